//! What a rank's device does in a second: what modelled times are made of.

use crate::types::DType;
use serde::{Deserialize, Serialize};

/// The device of one rank, and what joins it to the others.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub name: String,
    /// Operations of matrix products a second, by working precision.
    pub f64: f64,
    pub f32: f64,
    /// Of bf16 and f16.
    pub half: f64,
    /// Bytes of memory that are read or written a second.
    pub memory: f64,
    /// Bytes a second that a rank sends to another one.
    pub link: f64,
    /// Seconds from the beginning of a message to that of its arrival.
    pub latency: f64,
}

/// The share of a data sheet's figures that products and kernels usually come to.
const REACHED: f64 = 0.6;

/// Rates and times that no machine comes to: with others, sums of times would be no numbers.
const MOST: f64 = 1e30;
const LONGEST: f64 = 1e3;

impl Machine {
    /// Machines that are known by name, by their makers' data sheets (dense products, SXM boards, one direction of NVLink).
    pub const NAMES: [&str; 2] = ["h100", "a100"];

    /// The one that is meant where none is named.
    pub fn usual() -> Machine {
        Machine::of_sheet("h100", [67e12, 67e12, 989e12], 3.35e12, 450e9)
    }

    pub fn named(name: &str) -> Option<Machine> {
        match name {
            "h100" => Some(Machine::usual()),
            "a100" => Some(Machine::of_sheet("a100", [19.5e12, 19.5e12, 312e12], 2.04e12, 300e9)),
            _ => None,
        }
    }

    fn of_sheet(name: &str, flops: [f64; 3], memory: f64, link: f64) -> Machine {
        let [f64, f32, half] = flops.map(|f| REACHED * f);
        let (memory, link) = (REACHED * memory, REACHED * link);
        Machine { name: name.into(), f64, f32, half, memory, link, latency: 5e-6 }
    }

    /// As `partita calibrate` writes it. Err: what is wrong with the text.
    pub fn parse(text: &str) -> Result<Machine, String> {
        let m: Machine = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let rates = [("f64", m.f64), ("f32", m.f32), ("half", m.half), ("memory", m.memory), ("link", m.link)];
        if let Some((what, rate)) = rates.into_iter().find(|(_, r)| !(1.0..=MOST).contains(r)) {
            return Err(format!("`{what}` is {rate:e} a second, and must be 1 at least and {MOST:e} at most"));
        }
        if !(0.0..=LONGEST).contains(&m.latency) {
            return Err(format!("`latency` is {:e} s, and must be 0 at least and {LONGEST} at most", m.latency));
        }
        if m.name.chars().any(char::is_control) {
            return Err("its `name` is more than a line of text".into());
        }
        Ok(m)
    }

    /// Operations a second of products of this type.
    pub fn flops(&self, dtype: DType) -> f64 {
        match dtype {
            DType::F64 => self.f64,
            DType::BF16 | DType::F16 => self.half,
            _ => self.f32,
        }
    }
}
