//! Special registers: those that a launch, a block or a warp fixes are rows that are filled before it runs; clocks are
//! read by an operation.

use super::lanes::{Flow, LANES, Run};
use crate::lane_fn;

/// A special register that is filled beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Lane,
    Warp,
    Warps,
    /// Lanes equal to, below, up to, from, above the lane itself.
    MaskEq,
    MaskLt,
    MaskLe,
    MaskGe,
    MaskGt,
    Zero,
    SharedBytes,
    DynamicBytes,
}

impl Special {
    pub fn parse(name: &str) -> Option<Special> {
        let (base, dim) = name.split_once('.').unwrap_or((name, "x"));
        let dim = ["x", "y", "z"].iter().position(|d| *d == dim)?;
        Some(match base {
            "tid" => Special::Tid(dim),
            "ntid" => Special::Ntid(dim),
            "ctaid" => Special::Ctaid(dim),
            "nctaid" => Special::Nctaid(dim),
            "laneid" => Special::Lane,
            "warpid" => Special::Warp,
            "nwarpid" => Special::Warps,
            "lanemask_eq" => Special::MaskEq,
            "lanemask_lt" => Special::MaskLt,
            "lanemask_le" => Special::MaskLe,
            "lanemask_ge" => Special::MaskGe,
            "lanemask_gt" => Special::MaskGt,
            "smid" | "nsmid" | "gridid" => Special::Zero,
            "total_smem_size" => Special::SharedBytes,
            "dynamic_smem_size" => Special::DynamicBytes,
            _ => return None,
        })
    }
}

/// `%clock`, `%clock64`, `%globaltimer`: instructions of the warp.
pub fn clock(wide: bool) -> Run {
    if wide {
        lane_fn!(|op, w, env| {
            let now = w.instructions;
            w.put64(op.d, &[now; LANES]);
            Flow::Next
        })
    } else {
        lane_fn!(|op, w, env| {
            let now = w.instructions as u32;
            w.put32(op.d, &[now; LANES]);
            Flow::Next
        })
    }
}
