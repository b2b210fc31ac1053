//! The decoder's part for what touches memory, and for matrix instructions.

use super::decode::{Decoder, op};
use super::lanes::{NONE, Op};
use super::memory::{GENERIC, GLOBAL, LOCAL, PARAM, SHARED, SIGNED, WIDE_ADDRESS, WIDE_REGISTERS};
use super::{asynccopy, atomics, memory, mma};
use crate::ptx::link::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::ptx::tree::{Instr, Operand, Ty};

impl Decoder<'_> {
    /// `cvta` adds or takes off the begin of a window; `isspacep` is not emitted by NVRTC for what is known.
    pub(super) fn window(&mut self, instr: &Instr, ty: Ty) -> Option<Op> {
        let base = match space_of(instr) {
            SHARED => SHARED_WINDOW,
            LOCAL => LOCAL_WINDOW,
            PARAM => PARAM_WINDOW,
            _ => 0,
        };
        let by = if instr.has("to") { base.wrapping_neg() } else { base };
        if ty.bytes() != 8 {
            return None;
        }
        let a = self.source(instr.operands.get(1)?, ty)?;
        let b = self.constant(by, true);
        Some(Op {
            d: self.target(instr.operands.first()?)?,
            a,
            b,
            ..op(crate::op2!(u64 => u64, |a, b| a.wrapping_add(b)))
        })
    }

    /// Row of an address, flags, offset.
    pub(super) fn address(&mut self, operand: &Operand) -> Option<(u32, u32, u64)> {
        let Operand::Mem { base, offset } = operand else { return None };
        match &**base {
            Operand::Reg(r) if self.ty(*r).bytes() == 8 => Some((self.row(*r), WIDE_ADDRESS, *offset as u64)),
            Operand::Reg(r) if self.ty(*r).bytes() == 4 => Some((self.row(*r), 0, *offset as u64)),
            Operand::Imm { bits, .. } => Some((self.constant(*bits, true), WIDE_ADDRESS, *offset as u64)),
            _ => None,
        }
    }

    pub(super) fn memory(&mut self, instr: &Instr, ty: Ty) -> Option<Op> {
        let store = instr.parts[0] == "st";
        let (value, place) = if store {
            (instr.operands.get(1)?, instr.operands.first()?)
        } else {
            (instr.operands.first()?, instr.operands.get(1)?)
        };
        let (a, mut c, imm) = self.address(place)?;
        let list = match value {
            Operand::Vector(list) => list.clone(),
            one => vec![one.clone()],
        };
        let wide = list.iter().any(|v| matches!(v, Operand::Reg(r) if self.ty(*r).bytes() == 8));
        let registers = if wide || ty.bytes() == 8 {
            Ty::B64
        } else if ty.bytes() < 4 {
            Ty::B16
        } else {
            Ty::B32
        };
        let mut rows = Vec::new();
        for v in &list {
            rows.push(match (store, v) {
                (false, Operand::Sink) => NONE,
                (false, v) => self.target(v)?,
                // A narrow store takes the low bits of a register of any width.
                (true, Operand::Reg(r)) if self.ty(*r) != Ty::Pred => self.row(*r),
                (true, v) => self.source(v, registers)?,
            });
        }
        if ty.signed() && ty.bytes() < 4 || ty == Ty::S32 && wide {
            c |= SIGNED;
        }
        if wide || ty.bytes() == 8 {
            c |= WIDE_REGISTERS;
        }
        // A signed byte or half in a register of 16 bits has nothing above it.
        let space = space_of(instr);
        let run = if store {
            memory::store_fn(space, ty.bytes(), list.len())?
        } else {
            memory::load_fn(space, ty.bytes(), list.len())?
        };
        Some(Op { a, c, imm, more: rows.into(), ..op(run) })
    }

    pub(super) fn atomic(&mut self, instr: &Instr, ty: Ty) -> Option<Op> {
        let mut operands = instr.operands.iter();
        let d = if instr.parts[0] == "atom" { self.target(operands.next()?)? } else { NONE };
        let (a, flags, offset) = self.address(operands.next()?)?;
        let b = self.source(operands.next()?, ty)?;
        let c = match operands.next() {
            Some(o) => self.source(o, ty)?,
            None => NONE,
        };
        let change = instr.parts.iter().skip(1).find_map(|p| atomics::Change::parse(p))?;
        let imm = atomics::pack(change, ty, space_of(instr))?;
        Some(Op { d, a, b, c, imm, more: [offset as u32, flags].into(), ..op(atomics::atomic_fn()) })
    }

    pub(super) fn async_copy(&mut self, instr: &Instr) -> Option<Op> {
        if !instr.has("async") || instr.has("bulk") || instr.has("mbarrier") {
            return None;
        }
        if instr.has("commit_group") {
            return Some(op(asynccopy::commit_fn()));
        }
        if instr.has("wait_all") {
            return Some(op(asynccopy::wait_all_fn()));
        }
        if instr.has("wait_group") {
            let Operand::Imm { bits, .. } = instr.operands.first()? else { return None };
            return Some(Op { imm: *bits, ..op(asynccopy::wait_fn()) });
        }
        let (a, flags, to) = self.address(instr.operands.first()?)?;
        let (b, source_flags, from) = self.address(instr.operands.get(1)?)?;
        let Operand::Imm { bits, .. } = instr.operands.get(2)? else { return None };
        let read = match instr.operands.get(3) {
            Some(o) => self.source(o, Ty::U32)?,
            None => NONE,
        };
        if source_flags != WIDE_ADDRESS || !matches!(bits, 4 | 8 | 16) {
            return None;
        }
        let more = [*bits as u32, read, to as u32, from as u32, flags].into();
        Some(Op { a, b, more, ..op(asynccopy::copy_fn()) })
    }

    pub(super) fn mma(&mut self, instr: &Instr) -> Option<Op> {
        let (run, shape) = mma::mma_fn(instr)?;
        let types = instr.types();
        let mut more = Vec::new();
        let counts = [shape.c, shape.a, shape.b, shape.c];
        for (i, (operand, count)) in instr.operands.iter().zip(counts).enumerate() {
            let list = match operand {
                Operand::Vector(list) => list.clone(),
                one => vec![one.clone()],
            };
            if list.len() != count {
                return None;
            }
            let held = if types[0] == Ty::F64 { Ty::F64 } else { Ty::B32 };
            for v in &list {
                more.push(if i == 0 { self.target(v)? } else { self.source(v, held)? });
            }
        }
        let _ = shape.k;
        Some(Op { more: more.into(), ..op(run) })
    }

    pub(super) fn matrices(&mut self, instr: &Instr) -> Option<Op> {
        if !instr.has("m8n8") || !instr.has("b16") {
            return None;
        }
        let store = instr.parts[0] == "stmatrix";
        let (value, place) = if store { (1, 0) } else { (0, 1) };
        let (a, c, imm) = self.address(instr.operands.get(place)?)?;
        let list = match instr.operands.get(value)? {
            Operand::Vector(list) => list.clone(),
            one => vec![one.clone()],
        };
        let rows = list.iter().map(|v| if store { self.source(v, Ty::B32) } else { self.target(v) });
        let more = rows.collect::<Option<Vec<u32>>>()?.into();
        let run = if store { mma::store_matrices_fn() } else { mma::load_matrices_fn() };
        Some(Op { a, b: u32::from(instr.has("trans")), c, imm, more, ..op(run) })
    }
}

/// The state space that an instruction names; generic where it names none.
fn space_of(instr: &Instr) -> u8 {
    for part in instr.parts.iter().skip(1) {
        match part.split("::").next().unwrap_or(part) {
            "global" | "const" => return GLOBAL,
            "shared" => return SHARED,
            "local" => return LOCAL,
            "param" => return PARAM,
            _ => {}
        }
    }
    GENERIC
}
