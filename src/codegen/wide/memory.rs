//! Loads and stores as machine code: how elements look in memory, masks, and lanes that lie apart.

use super::asm::*;
use super::emit::{BROADCAST, Emit, Kept, LOAD, MOVE, STORE, XOR};
use super::ir::*;
use super::masks::{K1, K2};
use crate::types::DType;

const WIDEN_WORDS: Code = code(2, 1, 0x33).part(Part::Half);
const WIDEN_BYTES: Code = code(2, 1, 0x31).part(Part::Quarter);
const WIDEN_HALVES: Code = code(2, 1, 0x13).part(Part::Half);
const NARROW_TO_WORDS: Code = code(2, 2, 0x33).part(Part::Half);
const NARROW_TO_BYTES: Code = code(2, 2, 0x31).part(Part::Quarter);
const NARROW_TO_HALVES: Code = code(3, 1, 0x1D).part(Part::Half);
const SHIFT: Code = code(1, 1, 0x72);
const FROM_WORD: Code = code(1, 1, 0x6E).part(Part::Bytes(4));
const TO_WORD: Code = code(1, 1, 0x7E).part(Part::Bytes(4));
const TEST: Code = code(2, 1, 0x27);

impl Emit<'_> {
    pub fn load(&mut self, i: &Inst, dtype: DType) {
        if !self.a.wide {
            return self.load_256(i, dtype);
        }
        let mask = self.masked(i.mask, true);
        let from = Rm::Mem(self.mem(i.at.expect("a load has an address")));
        if dtype == DType::Bool {
            let (s, to) = (self.scratch(0), self.mask_target(i.to));
            self.a.evex(WIDEN_BYTES, Length::Z, s, 0, from, mask, None);
            self.a.evex(TEST, Length::Z, to, s, Rm::Reg(s), Masked::default(), None);
            self.mask_done(i.to, to);
            return;
        }
        let to = self.target(i.to);
        let op = match dtype {
            DType::BF16 => WIDEN_WORDS,
            DType::F16 => WIDEN_HALVES,
            _ => LOAD,
        };
        self.a.evex(op, Length::Z, to, 0, from, mask, None);
        if dtype == DType::BF16 {
            self.a.vector(SHIFT, 6, to, Rm::Reg(to), Some(16));
        }
        self.done(i.to, to);
    }

    pub fn load_splat(&mut self, i: &Inst, dtype: DType) {
        let at = i.at.expect("a load has an address");
        if dtype.bytes() == 4 && (self.a.wide || i.mask.some().is_none()) {
            let mask = self.masked(i.mask, true);
            let (from, to) = (Rm::Mem(self.mem(at)), self.target(i.to));
            if self.a.wide {
                self.a.evex(BROADCAST, Length::Z, to, 0, from, mask, None);
            } else {
                self.a.vector(BROADCAST, to, 0, from, None);
            }
            self.done(i.to, to);
            return;
        }
        let from = Rm::Mem(self.mem(at));
        let skip = self.a.label();
        if let Some(mask) = i.mask.some() {
            // Only the value's own register may be touched between here and the load.
            self.a.constant(RDX, 0);
            self.test_any_keeping(mask);
            self.a.jump_if(Condition::Zero, skip);
        }
        match dtype.bytes() {
            4 => self.a.general(false, &[0x8B], RDX, from, &[]),
            2 => self.a.general(false, &[0x0F, 0xB7], RDX, from, &[]),
            _ => self.a.general(false, &[0x0F, 0xB6], RDX, from, &[]),
        }
        self.a.place(skip);
        if dtype == DType::Bool {
            self.a.general(false, &[0xF7], 3, Rm::Reg(RDX), &[]);
        }
        if dtype == DType::Bool && self.a.wide {
            self.a.mov(RAX, Rm::Reg(RDX));
            if let Some(mask) = i.mask.some() {
                self.mask_bits(RCX, mask);
                self.a.general(false, &[0x23], RAX, Rm::Reg(RCX), &[]);
            }
            self.mask_of_bits(i.to);
            return;
        }
        // The mask is still needed, so its register must not be taken over yet.
        let to = if i.mask.some().is_some() { self.scratch(0) } else { self.target(i.to) };
        if dtype == DType::BF16 {
            self.a.general(false, &[0xC1], 4, Rm::Reg(RDX), &[16]);
        }
        self.a.sized(FROM_WORD, Length::X, to, 0, Rm::Reg(RDX), None);
        if dtype == DType::F16 {
            self.a.sized(WIDEN_HALVES, Length::X, to, 0, Rm::Reg(to), None);
        }
        self.a.vector(BROADCAST, to, 0, Rm::Reg(to), None);
        self.zero_unless(to, i.mask);
        self.done(i.to, to);
    }

    /// As [`Emit::test_any`], but no register other than the scratch masks and vectors changes.
    fn test_any_keeping(&mut self, mask: Reg) {
        if let Some(Constant::Mask(bits)) = self.f.constant_of(mask) {
            // cmp rdx, 0 or a difference
            self.a.compare_constant(Rm::Reg(RDX), i32::from(*bits != 0));
            return;
        }
        self.test_any(mask);
    }

    /// Lanes outside of a mask become 0.
    fn zero_unless(&mut self, x: u8, mask: Reg) {
        let Some(mask) = mask.some() else { return };
        if self.a.wide {
            let by = self.mask(mask, K1);
            self.a.evex(MOVE, Length::Z, x, 0, Rm::Reg(x), Masked { by, zero: true }, None);
        } else {
            let by = self.rm(mask);
            self.a.vector(code(1, 1, 0xDB), x, x, by, None);
        }
    }

    // ---- lanes apart

    pub fn gather(&mut self, i: &Inst, dtype: DType) {
        let at = i.at.expect("a load has an address");
        if dtype.bytes() == 4 {
            return self.gather_words(i, at);
        }
        let index = self.vector(i.args[0], 0);
        let (from, to) = (self.temporary(0), self.temporary(1));
        self.a.vector(STORE, index, 0, Rm::Mem(from), None);
        let s = self.scratch(0);
        self.a.vector(XOR, s, s, Rm::Reg(s), None);
        self.a.vector(STORE, s, 0, Rm::Mem(to), None);
        let masked = i.mask.some();
        if let Some(mask) = masked {
            self.mask_bits(RDX, mask);
        }
        let base = self.mem_plain(at);
        for lane in 0..self.f.lanes as i32 {
            let skip = self.a.label();
            if masked.is_some() {
                self.a.general(false, &[0x0F, 0xBA], 4, Rm::Reg(RDX), &[lane as u8]);
                self.a.jump_if(Condition::NotBelow, skip);
            }
            let element = self.lane_address(base, from, lane, dtype);
            let widen = if dtype == DType::Bool { 0xB6 } else { 0xB7 };
            self.a.general(false, &[0x0F, widen], RCX, Rm::Mem(element), &[]);
            let cell = Mem { disp: to.disp + 4 * lane, ..to };
            self.a.general(false, &[0x89], RCX, Rm::Mem(cell), &[]);
            self.a.place(skip);
        }
        if dtype == DType::Bool && self.a.wide {
            self.a.vector(LOAD, s, 0, Rm::Mem(to), None);
            let mask = self.mask_target(i.to);
            self.a.evex(TEST, Length::Z, mask, s, Rm::Reg(s), Masked::default(), None);
            self.mask_done(i.to, mask);
            return;
        }
        let target = self.target(i.to);
        self.a.vector(LOAD, target, 0, Rm::Mem(to), None);
        self.widen_lanes(target, dtype);
        self.done(i.to, target);
    }

    /// Elements in the low parts of lanes as values.
    pub fn widen_lanes(&mut self, x: u8, dtype: DType) {
        match dtype {
            DType::BF16 => self.a.vector(SHIFT, 6, x, Rm::Reg(x), Some(16)),
            DType::F16 => {
                self.pack_words(x);
                self.a.vector(WIDEN_HALVES, x, 0, Rm::Reg(x), None);
            }
            DType::Bool => {
                let zero = self.scratch(2);
                self.a.vector(XOR, zero, zero, Rm::Reg(zero), None);
                self.a.vector(code(1, 1, 0xFA), x, zero, Rm::Reg(x), None);
            }
            _ => {}
        }
    }

    /// The low halves of all lanes, side by side.
    pub fn pack_words(&mut self, x: u8) {
        if self.a.wide {
            self.a.evex(NARROW_TO_WORDS, Length::Z, x, 0, Rm::Reg(x), Masked::default(), None);
        } else {
            // vpackusdw by halves of the vector, then the halves together
            self.a.vector(code(2, 1, 0x2B), x, x, Rm::Reg(x), None);
            self.a.vector(code(3, 1, 0x00).w(), x, 0, Rm::Reg(x), Some(0xD8));
        }
    }

    /// The address of a lane's element; uses `rcx`.
    fn lane_address(&mut self, base: Mem, indices: Mem, lane: i32, dtype: DType) -> Mem {
        let cell = Mem { disp: indices.disp + 4 * lane, ..indices };
        self.a.general(true, &[0x63], RCX, Rm::Mem(cell), &[]);
        Mem { index: Some(RCX), scale: dtype.bytes().trailing_zeros() as u8, ..base }
    }

    fn gather_words(&mut self, i: &Inst, at: Address) {
        let index = self.vector(i.args[0], 1);
        let s = self.scratch(0);
        self.a.vector(XOR, s, s, Rm::Reg(s), None);
        let op = code(2, 1, 0x92).part(Part::Bytes(4));
        if self.a.wide {
            // The mask is used up.
            match i.mask.some() {
                Some(mask) => {
                    let by = self.mask(mask, K1);
                    self.a.vex(code(1, 0, 0x90), Length::X, K1, 0, Rm::Reg(by), None);
                }
                None => self.a.vex(code(1, 0, 0x46), Length::Y, K1, K1, Rm::Reg(K1), None),
            }
            let base = self.mem_plain(at);
            let from = Rm::Mem(Mem { index: Some(index), scale: 2, ..base });
            self.a.evex(op, Length::Z, s, 0, from, Masked { by: K1, zero: false }, None);
        } else {
            let mask = self.scratch(2);
            match i.mask.some() {
                Some(by) => self.load_vector(mask, by),
                None => self.a.vector(code(1, 1, 0x76), mask, mask, Rm::Reg(mask), None),
            }
            let base = self.mem_plain(at);
            let from = Rm::Mem(Mem { index: Some(index), scale: 2, ..base });
            self.a.vector(op, s, mask, from, None);
        }
        self.done(i.to, s);
    }

    // ---- stores

    /// A value as the bits of memory in the lanes of a register: itself, or scratch 0.
    fn bits_of(&mut self, value: Reg, dtype: DType) -> u8 {
        let (s, t) = (self.scratch(0), self.scratch(1));
        match dtype {
            DType::BF16 => {
                let x = self.vector(value, 2);
                self.round_bf16(x, s, t);
                s
            }
            DType::F16 => {
                let x = self.vector(value, 0);
                self.a.sized(NARROW_TO_HALVES, self.a.length(), x, 0, Rm::Reg(s), Some(0));
                self.a.vector(code(2, 1, 0x33), s, 0, Rm::Reg(s), None);
                s
            }
            DType::Bool if self.a.wide => {
                let by = self.mask(value, K1);
                let one = self.a.pool(&1u32.to_le_bytes());
                self.a.evex(BROADCAST, Length::Z, s, 0, Rm::Pool(one), Masked { by, zero: true }, None);
                s
            }
            DType::Bool => {
                let x = self.vector(value, 0);
                self.a.vector(SHIFT, 2, s, Rm::Reg(x), Some(31));
                s
            }
            _ => self.vector(value, 0),
        }
    }

    /// x rounded (half to even) to the upper half of its lanes, moved to the lower half of those of `s`.
    fn round_bf16(&mut self, x: u8, s: u8, t: u8) {
        let constant = |e: &mut Self, bits: u32| {
            let bytes = bits.to_le_bytes();
            if e.a.wide { Rm::Spread(e.a.pool(&bytes)) } else { Rm::Pool(e.a.pool(&bytes.repeat(e.f.lanes))) }
        };
        let (one, below, quiet) = (constant(self, 1), constant(self, 0x7FFF), constant(self, 0x40));
        let (add, and, or) = (code(1, 1, 0xFE), code(1, 1, 0xDB), code(1, 1, 0xEB));
        self.a.vector(SHIFT, 2, t, Rm::Reg(x), Some(16));
        self.a.vector(and, s, t, one, None);
        self.a.vector(add, s, s, Rm::Reg(x), None);
        self.a.vector(add, s, s, below, None);
        self.a.vector(SHIFT, 2, s, Rm::Reg(s), Some(16));
        // What is not a number keeps its upper half, made quiet.
        let compare = code(1, 0, 0xC2);
        if self.a.wide {
            self.a.evex(compare, Length::Z, K2, x, Rm::Reg(x), Masked::default(), Some(3));
            self.a.evex(or, Length::Z, s, t, quiet, Masked { by: K2, zero: false }, None);
        } else {
            self.a.vector(or, t, t, quiet, None);
            // x may be the last scratch register, and is needed no more after this.
            let nan = self.scratch(2);
            self.a.vector(compare, nan, x, Rm::Reg(x), Some(3));
            self.a.vector(code(3, 1, 0x4A), s, s, Rm::Reg(t), Some(nan << 4));
        }
    }

    pub fn store(&mut self, i: &Inst, dtype: DType) {
        let at = i.at.expect("a store has an address");
        if !self.a.wide {
            return self.store_256(i, dtype, at);
        }
        let (x, op, imm) = match dtype {
            DType::F16 => (self.vector(i.args[0], 0), NARROW_TO_HALVES, Some(0)),
            DType::BF16 => (self.bits_of(i.args[0], dtype), NARROW_TO_WORDS, None),
            DType::Bool => (self.bits_of(i.args[0], dtype), NARROW_TO_BYTES, None),
            _ => (self.vector(i.args[0], 0), STORE, None),
        };
        let mask = self.masked(i.mask, false);
        let to = Rm::Mem(self.mem(at));
        self.a.evex(op, Length::Z, x, 0, to, mask, imm);
    }

    pub fn store_first(&mut self, i: &Inst, dtype: DType) {
        let at = i.at.expect("a store has an address");
        if dtype == DType::Bool {
            self.mask_bits(RDX, i.args[0]);
            self.a.general(false, &[0x83], 4, Rm::Reg(RDX), &[1]);
        } else {
            let x = self.bits_of(i.args[0], dtype);
            self.a.sized(TO_WORD, Length::X, x, 0, Rm::Reg(RDX), None);
        }
        let skip = self.a.label();
        if let Some(mask) = i.mask.some() {
            // The mask is that of all lanes or none. Constants were folded away.
            self.a.mov(RCX, Rm::Reg(RDX));
            self.mask_bits(RAX, mask);
            self.a.mov(RDX, Rm::Reg(RCX));
            self.a.general(false, &[0xF6], 0, Rm::Reg(RAX), &[1]);
            self.a.jump_if(Condition::Zero, skip);
        }
        let to = self.mem(at);
        self.store_bits(to, RDX, dtype);
        self.a.place(skip);
    }

    fn store_bits(&mut self, to: Mem, from: Gpr, dtype: DType) {
        match dtype.bytes() {
            4 => self.a.general(false, &[0x89], from, Rm::Mem(to), &[]),
            2 => {
                self.a.bytes.push(0x66);
                self.a.general(false, &[0x89], from, Rm::Mem(to), &[]);
            }
            _ => self.a.general(false, &[0x88], from, Rm::Mem(to), &[]),
        }
    }

    pub fn scatter(&mut self, i: &Inst, dtype: DType) {
        let at = i.at.expect("a store has an address");
        let bits = self.bits_of(i.args[0], dtype);
        if self.a.wide && dtype.bytes() == 4 {
            let index = self.vector(i.args[1], 1);
            match i.mask.some() {
                Some(mask) => {
                    let by = self.mask(mask, K1);
                    self.a.vex(code(1, 0, 0x90), Length::X, K1, 0, Rm::Reg(by), None);
                }
                None => self.a.vex(code(1, 0, 0x46), Length::Y, K1, K1, Rm::Reg(K1), None),
            }
            let base = self.mem_plain(at);
            let to = Rm::Mem(Mem { index: Some(index), scale: 2, ..base });
            let op = code(2, 1, 0xA2).part(Part::Bytes(4));
            self.a.evex(op, Length::Z, bits, 0, to, Masked { by: K1, zero: false }, None);
            return;
        }
        let (indices, values, mask) = (self.temporary(0), self.temporary(1), self.temporary(2));
        self.a.vector(STORE, bits, 0, Rm::Mem(values), None);
        let index = self.vector(i.args[1], 0);
        self.a.vector(STORE, index, 0, Rm::Mem(indices), None);
        let masked = i.mask.some();
        if let Some(by) = masked {
            self.mask_bits(RAX, by);
            self.a.store(mask, RAX);
        }
        let base = self.mem_plain(at);
        for lane in 0..self.f.lanes as i32 {
            let skip = self.a.label();
            if masked.is_some() {
                self.a.general(false, &[0x0F, 0xBA], 4, Rm::Mem(mask), &[lane as u8]);
                self.a.jump_if(Condition::NotBelow, skip);
            }
            let element = self.lane_address(base, indices, lane, dtype);
            let cell = Mem { disp: values.disp + 4 * lane, ..values };
            self.a.general(false, &[0x8B], RDX, Rm::Mem(cell), &[]);
            self.store_bits(element, RDX, dtype);
            self.a.place(skip);
        }
    }

    // ---- failed checks

    /// Writes (site + 1, index) of the first lane to the status cell, if that is still empty.
    pub fn report(&mut self, i: &Inst, site: u32) {
        let done = self.a.label();
        self.mask_bits(RAX, i.args[0]);
        self.a.general(false, &[0x85], RAX, Rm::Reg(RAX), &[]);
        self.a.jump_if(Condition::Zero, done);
        let cells = self.temporary(0);
        let x = self.vector(i.args[1], 0);
        self.a.vector(STORE, x, 0, Rm::Mem(cells), None);
        // bsf
        self.a.general(false, &[0x0F, 0xBC], RAX, Rm::Reg(RAX), &[]);
        let cell = Mem { index: Some(RAX), scale: 2, ..cells };
        self.a.general(false, &[0x8B], RCX, Rm::Mem(cell), &[]);
        self.a.constant(RDX, (i64::from(site) + 1) << 32);
        self.a.general(true, &[0x0B], RCX, Rm::Reg(RDX), &[]);
        let scalars = self.kept(Kept::Scalars);
        self.a.mov(RDX, Rm::Mem(scalars));
        self.a.mov(RDX, Rm::Mem(Mem::at(RDX, 8 * self.f.scalars as i32)));
        self.a.compare_constant(Rm::Mem(Mem::at(RDX, 0)), 0);
        self.a.jump_if(Condition::NotZero, done);
        self.a.store(Mem::at(RDX, 0), RCX);
        self.a.place(done);
    }

    // ---- 256 bits

    fn load_256(&mut self, i: &Inst, dtype: DType) {
        let at = i.at.expect("a load has an address");
        let to = self.target(i.to);
        match (i.mask.some(), dtype.bytes()) {
            (None, _) => {
                let from = Rm::Mem(self.mem(at));
                let op = match dtype {
                    DType::BF16 => WIDEN_WORDS,
                    DType::F16 => WIDEN_HALVES,
                    DType::Bool => WIDEN_BYTES,
                    _ => LOAD,
                };
                self.a.vector(op, to, 0, from, None);
                if dtype != DType::F16 {
                    self.widen_lanes(to, dtype);
                }
            }
            (Some(mask), 4) => {
                let by = self.vector(mask, 2);
                let from = Rm::Mem(self.mem(at));
                self.a.vector(code(2, 1, 0x2C), to, by, from, None);
            }
            (Some(mask), _) => {
                let cells = self.temporary(1);
                // The result may take over the register of the mask.
                self.mask_bits(RDX, mask);
                self.a.vector(XOR, to, to, Rm::Reg(to), None);
                self.a.vector(STORE, to, 0, Rm::Mem(cells), None);
                let base = self.mem_plain(at);
                for lane in 0..self.f.lanes as i32 {
                    let skip = self.a.label();
                    self.a.general(false, &[0x0F, 0xBA], 4, Rm::Reg(RDX), &[lane as u8]);
                    self.a.jump_if(Condition::NotBelow, skip);
                    let element = Mem { disp: base.disp + lane * dtype.bytes() as i32, ..base };
                    let widen = if dtype == DType::Bool { 0xB6 } else { 0xB7 };
                    self.a.general(false, &[0x0F, widen], RCX, Rm::Mem(element), &[]);
                    let cell = Mem { disp: cells.disp + 4 * lane, ..cells };
                    self.a.general(false, &[0x89], RCX, Rm::Mem(cell), &[]);
                    self.a.place(skip);
                }
                self.a.vector(LOAD, to, 0, Rm::Mem(cells), None);
                self.widen_lanes(to, dtype);
            }
        }
        self.done(i.to, to);
    }

    fn store_256(&mut self, i: &Inst, dtype: DType, at: Address) {
        let bits = self.bits_of(i.args[0], dtype);
        match (i.mask.some(), dtype.bytes()) {
            (None, 4) => {
                let to = Rm::Mem(self.mem(at));
                self.a.vector(STORE, bits, 0, to, None);
            }
            (Some(mask), 4) => {
                let by = self.vector(mask, 2);
                let to = Rm::Mem(self.mem(at));
                self.a.vector(code(2, 1, 0x2E), bits, by, to, None);
            }
            (None, size) => {
                let s = self.scratch(0);
                self.pack_words(s);
                if size == 1 {
                    // vpackuswb
                    self.a.sized(code(1, 1, 0x67), Length::X, s, s, Rm::Reg(s), None);
                    let to = Rm::Mem(self.mem(at));
                    self.a.sized(code(1, 1, 0xD6), Length::X, s, 0, to, None);
                } else {
                    let to = Rm::Mem(self.mem(at));
                    self.a.sized(STORE, Length::X, s, 0, to, None);
                }
            }
            (Some(mask), size) => {
                let (values, bits_of_mask) = (self.temporary(1), self.temporary(2));
                self.a.vector(STORE, bits, 0, Rm::Mem(values), None);
                self.mask_bits(RAX, mask);
                self.a.store(bits_of_mask, RAX);
                let base = self.mem_plain(at);
                for lane in 0..self.f.lanes as i32 {
                    let skip = self.a.label();
                    self.a.general(false, &[0x0F, 0xBA], 4, Rm::Mem(bits_of_mask), &[lane as u8]);
                    self.a.jump_if(Condition::NotBelow, skip);
                    let cell = Mem { disp: values.disp + 4 * lane, ..values };
                    self.a.general(false, &[0x8B], RDX, Rm::Mem(cell), &[]);
                    let element = Mem { disp: base.disp + lane * size as i32, ..base };
                    self.store_bits(element, RDX, dtype);
                    self.a.place(skip);
                }
            }
        }
    }
}
