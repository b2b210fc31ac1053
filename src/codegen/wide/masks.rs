//! Conditions, and what moves between lanes, as machine code. With 512 bits masks are registers of their own; with 256
//! they are vectors whose lanes are all ones or all zeros.

use super::allocate::Home;
use super::asm::*;
use super::emit::{Emit, LOAD, STORE, XOR};
use super::ir::*;

/// Mask registers that are never given to values.
pub const K1: u8 = 1;
pub const K2: u8 = 2;

const TO_MASK: Code = code(1, 0, 0x92);
const FROM_MASK: Code = code(1, 0, 0x93);
const AND: Code = code(1, 1, 0xDB);
const OR: Code = code(1, 1, 0xEB);
const AND_NOT: Code = code(1, 1, 0xDF);
const EQUAL_INT: Code = code(1, 1, 0x76);
const GREATER_INT: Code = code(1, 1, 0x66);

impl Emit<'_> {
    /// A mask in a mask register: its own, or the given one.
    pub fn mask(&mut self, r: Reg, scratch: u8) -> u8 {
        if let Some(Constant::Mask(bits)) = self.f.constant_of(r) {
            self.a.constant(RDX, i64::from(*bits));
            self.a.vex(TO_MASK, Length::X, scratch, 0, Rm::Reg(RDX), None);
            return scratch;
        }
        match self.home(r) {
            Home::Register(n) => n,
            _ => {
                let from = self.slot_of(r).expect("a mask has a place");
                self.a.vex(code(1, 0, 0x90), Length::X, scratch, 0, Rm::Mem(from), None);
                scratch
            }
        }
    }

    pub fn mask_target(&self, to: Reg) -> u8 {
        match self.home(to) {
            Home::Register(n) => n,
            _ => K1,
        }
    }

    pub fn mask_done(&mut self, to: Reg, register: u8) {
        match self.home(to) {
            Home::Register(n) if n != register => {
                self.a.vex(code(1, 0, 0x90), Length::X, n, 0, Rm::Reg(register), None)
            }
            Home::Slot(_) => {
                let slot = self.slot_of(to).expect("just seen");
                self.a.vex(code(1, 0, 0x91), Length::X, register, 0, Rm::Mem(slot), None);
            }
            _ => {}
        }
    }

    pub fn copy_mask(&mut self, to: Reg, from: Reg) {
        let x = self.mask(from, K1);
        self.mask_done(to, x);
    }

    /// The mask of a memory instruction; none: every lane.
    pub fn masked(&mut self, r: Reg, zero: bool) -> Masked {
        match r.some() {
            Some(r) => Masked { by: self.mask(r, K1), zero },
            None => Masked::default(),
        }
    }

    /// The bits of a mask in a general register, one a lane.
    pub fn mask_bits(&mut self, to: Gpr, r: Reg) {
        if self.a.wide {
            let x = self.mask(r, K1);
            self.a.vex(FROM_MASK, Length::X, to, 0, Rm::Reg(x), None);
        } else {
            let x = self.vector(r, 1);
            self.a.vex(code(1, 0, 0x50), Length::Y, to, 0, Rm::Reg(x), None);
        }
    }

    /// Sets the zero flag if no lane is set.
    pub fn test_any(&mut self, r: Reg) {
        if self.a.wide {
            let x = self.mask(r, K1);
            self.a.vex(code(1, 0, 0x98), Length::X, x, 0, Rm::Reg(x), None);
        } else {
            let x = self.vector(r, 1);
            self.a.vex(code(2, 1, 0x17), Length::Y, x, 0, Rm::Reg(x), None);
        }
    }

    pub fn masks(&mut self, i: &Inst) {
        if self.a.wide { self.masks_512(i) } else { self.masks_256(i) }
    }

    fn masks_512(&mut self, i: &Inst) {
        let [a, b, c] = i.args;
        let logic = |op| code(1, 0, op);
        match i.op {
            Op::Compare(relation) => {
                let (x, y, to) = (self.vector(a, 1), self.rm(b), self.mask_target(i.to));
                let c = code(1, 0, 0xC2);
                self.a.evex(c, Length::Z, to, x, y, Masked::default(), Some(float_predicate(relation)));
                self.mask_done(i.to, to);
            }
            Op::CompareInt(relation) => {
                let (x, y, to) = (self.vector(a, 1), self.rm(b), self.mask_target(i.to));
                let number = match relation {
                    Relation::Equal => 0,
                    Relation::Less => 1,
                    Relation::LessEqual => 2,
                    Relation::NotEqual => 4,
                    Relation::GreaterEqual => 5,
                    Relation::Greater => 6,
                };
                self.a.evex(code(3, 1, 0x1F), Length::Z, to, x, y, Masked::default(), Some(number));
                self.mask_done(i.to, to);
            }
            Op::Select => {
                let by = self.mask(a, K1);
                let to = self.target(i.to);
                let (no, yes) = (self.vector(c, 1), self.rm(b));
                self.a.evex(code(2, 1, 0x65), Length::Z, to, no, yes, Masked { by, zero: false }, None);
                self.done(i.to, to);
            }
            Op::MaskAnd | Op::MaskOr | Op::MaskXor | Op::MaskAndNot => {
                let op = match i.op {
                    Op::MaskAnd => 0x41,
                    Op::MaskOr => 0x45,
                    Op::MaskXor => 0x47,
                    _ => 0x42,
                };
                let (x, y, to) = (self.mask(a, K1), self.mask(b, K2), self.mask_target(i.to));
                self.a.vex(logic(op), Length::Y, to, x, Rm::Reg(y), None);
                self.mask_done(i.to, to);
            }
            Op::FirstLanes => {
                let count = self.word(a, RCX);
                self.a.constant(RAX, 0xFFFF_FFFF);
                // bzhi
                self.a.vex(code(2, 0, 0xF5), Length::X, RAX, count, Rm::Reg(RAX), None);
                self.mask_of_bits(i.to);
            }
            Op::Any | Op::All => {
                self.a.constant(RAX, 0);
                self.test_any(a);
                // setnz, or setc, which a test of all ones sets
                let set = if i.op == Op::Any { 0x95 } else { 0x92 };
                self.a.general(false, &[0x0F, set], 0, Rm::Reg(RAX), &[]);
                self.a.general(false, &[0xF7], 3, Rm::Reg(RAX), &[]);
                self.mask_of_bits(i.to);
            }
            _ => unreachable!("{:?} makes no mask", i.op),
        }
    }

    /// The bits in `eax` as a mask.
    pub fn mask_of_bits(&mut self, r: Reg) {
        let to = self.mask_target(r);
        self.a.vex(TO_MASK, Length::X, to, 0, Rm::Reg(RAX), None);
        self.mask_done(r, to);
    }

    fn masks_256(&mut self, i: &Inst) {
        let [a, b, c] = i.args;
        let to = self.target(i.to);
        match i.op {
            Op::Compare(relation) => {
                let (x, y) = (self.vector(a, 1), self.rm(b));
                self.a.vector(code(1, 0, 0xC2), to, x, y, Some(float_predicate(relation)));
            }
            Op::CompareInt(relation) => {
                let (op, swap, not) = match relation {
                    Relation::Equal => (EQUAL_INT, false, false),
                    Relation::NotEqual => (EQUAL_INT, false, true),
                    Relation::Greater => (GREATER_INT, false, false),
                    Relation::LessEqual => (GREATER_INT, false, true),
                    Relation::Less => (GREATER_INT, true, false),
                    Relation::GreaterEqual => (GREATER_INT, true, true),
                };
                let (a, b) = if swap { (b, a) } else { (a, b) };
                let (x, y) = (self.vector(a, 1), self.rm(b));
                self.a.vector(op, to, x, y, None);
                if not {
                    let ones = self.scratch(1);
                    self.a.vector(EQUAL_INT, ones, ones, Rm::Reg(ones), None);
                    self.a.vector(XOR, to, to, Rm::Reg(ones), None);
                }
            }
            Op::Select => {
                let (by, no, yes) = (self.vector(a, 2), self.vector(c, 1), self.rm(b));
                self.a.vector(code(3, 1, 0x4A), to, no, yes, Some(by << 4));
            }
            Op::MaskAnd => return self.binary(AND, i, true),
            Op::MaskOr => return self.binary(OR, i, true),
            Op::MaskXor => return self.binary(XOR, i, true),
            Op::MaskAndNot => return self.binary(AND_NOT, i, false),
            Op::FirstLanes => {
                let count = self.word(a, RCX);
                self.a.sized(code(1, 1, 0x6E), Length::X, to, 0, Rm::Reg(count), None);
                self.a.vector(code(2, 1, 0x58), to, 0, Rm::Reg(to), None);
                let steps: Vec<u8> = (0..self.f.lanes as u32).flat_map(u32::to_le_bytes).collect();
                let steps = self.a.pool(&steps);
                self.a.vector(GREATER_INT, to, to, Rm::Pool(steps), None);
            }
            Op::Any | Op::All => {
                self.a.constant(RAX, 0);
                let ones = self.scratch(2);
                let x = self.vector(a, 1);
                self.a.vector(EQUAL_INT, ones, ones, Rm::Reg(ones), None);
                // vptest sets the zero flag if no bit is common, the carry flag if none is missing.
                self.a.vex(code(2, 1, 0x17), Length::Y, x, 0, Rm::Reg(ones), None);
                let set = if i.op == Op::Any { 0x95 } else { 0x92 };
                self.a.general(false, &[0x0F, set], 0, Rm::Reg(RAX), &[]);
                self.a.general(false, &[0xF7], 3, Rm::Reg(RAX), &[]);
                self.a.sized(code(1, 1, 0x6E), Length::X, to, 0, Rm::Reg(RAX), None);
                self.a.vector(code(2, 1, 0x58), to, 0, Rm::Reg(to), None);
            }
            _ => unreachable!("{:?} makes no mask", i.op),
        }
        self.done(i.to, to);
    }

    // ---- between lanes

    pub fn lanes(&mut self, i: &Inst) {
        let [a, b, _] = i.args;
        match i.op {
            Op::Exchange(distance) => {
                let (x, to) = (self.vector(a, 1), self.target(i.to));
                let quarters = code(3, 1, 0x23);
                match (distance, self.a.wide) {
                    (1, _) => self.a.vector(code(3, 1, 0x04), to, 0, Rm::Reg(x), Some(0xB1)),
                    (2, _) => self.a.vector(code(3, 1, 0x04), to, 0, Rm::Reg(x), Some(0x4E)),
                    (4, true) => self.a.vector(quarters, to, x, Rm::Reg(x), Some(0xB1)),
                    (4, false) => self.a.vector(code(3, 1, 0x06), to, x, Rm::Reg(x), Some(1)),
                    (8, true) => self.a.vector(quarters, to, x, Rm::Reg(x), Some(0x4E)),
                    _ => unreachable!("no lanes {distance} apart"),
                }
                self.done(i.to, to);
            }
            Op::SplatFirst => {
                let (x, to) = (self.vector(a, 1), self.target(i.to));
                self.a.vector(code(2, 1, 0x18), to, 0, Rm::Reg(x), None);
                self.done(i.to, to);
            }
            Op::SplatLong => {
                let (x, to) = (self.word(a, RAX), self.target(i.to));
                if self.a.wide {
                    self.a.vector(code(2, 1, 0x7C).w(), to, 0, Rm::Reg(x), None);
                } else {
                    self.a.sized(code(1, 1, 0x6E).w(), Length::X, to, 0, Rm::Reg(x), None);
                    self.a.vector(code(2, 1, 0x59), to, 0, Rm::Reg(to), None);
                }
                self.done(i.to, to);
            }
            Op::AddLong => {
                let (x, y, to) = (self.vector(a, 1), self.vector(b, 2), self.target(i.to));
                self.a.vector(code(1, 1, 0xD4).w(), to, x, Rm::Reg(y), None);
                self.done(i.to, to);
            }
            Op::MulLong => self.multiply_long(i),
            Op::SwapHalves => {
                let (x, to) = (self.vector(a, 1), self.target(i.to));
                self.a.vector(code(1, 1, 0x70), to, 0, Rm::Reg(x), Some(0xB1));
                self.done(i.to, to);
            }
            Op::UpperHalves => {
                let (x, y, s) = (self.vector(a, 1), self.vector(b, 2), self.scratch(0));
                if self.a.wide {
                    let order: Vec<u8> = (0..16u32).flat_map(|l| (2 * l + 1).to_le_bytes()).collect();
                    let order = self.a.pool(&order);
                    self.a.vector(LOAD, s, 0, Rm::Pool(order), None);
                    self.a.vector(code(2, 1, 0x76), s, x, Rm::Reg(y), None);
                } else {
                    // By halves of the vector: a, b, a, b.
                    self.a.vector(code(1, 0, 0xC6), s, x, Rm::Reg(y), Some(0xDD));
                    self.a.vector(code(3, 1, 0x00).w(), s, 0, Rm::Reg(s), Some(0xD8));
                }
                self.done(i.to, s);
            }
            _ => unreachable!("{:?} moves no lanes", i.op),
        }
    }

    fn multiply_long(&mut self, i: &Inst) {
        let [a, b, _] = i.args;
        if self.a.wide {
            let (x, y, to) = (self.vector(a, 1), self.vector(b, 2), self.target(i.to));
            self.a.vector(code(2, 1, 0x40).w(), to, x, Rm::Reg(y), None);
            self.done(i.to, to);
            return;
        }
        // low * low + 2^32 (low * high + high * low)
        let (multiply, add) = (code(1, 1, 0xF4), code(1, 1, 0xD4));
        let (high, s) = (code(1, 1, 0x73), [self.scratch(0), self.scratch(1), self.scratch(2)]);
        let temporary = self.temporary(0);
        let x = self.vector(a, 0);
        self.a.vector(high, 2, s[1], Rm::Reg(x), Some(32));
        self.a.vector(STORE, x, 0, Rm::Mem(temporary), None);
        let y = self.vector(b, 2);
        self.a.vector(multiply, s[1], s[1], Rm::Reg(y), None);
        self.a.vector(high, 2, s[0], Rm::Reg(y), Some(32));
        self.a.vector(multiply, s[0], s[0], Rm::Mem(temporary), None);
        self.a.vector(add, s[0], s[0], Rm::Reg(s[1]), None);
        self.a.vector(high, 6, s[0], Rm::Reg(s[0]), Some(32));
        self.a.vector(multiply, s[1], y, Rm::Mem(temporary), None);
        self.a.vector(add, s[0], s[0], Rm::Reg(s[1]), None);
        self.done(i.to, s[0]);
    }
}

fn float_predicate(relation: Relation) -> u8 {
    match relation {
        Relation::Equal => 0,
        Relation::NotEqual => 4,
        Relation::Less => 0x11,
        Relation::LessEqual => 0x12,
        Relation::Greater => 0x1E,
        Relation::GreaterEqual => 0x1D,
    }
}
