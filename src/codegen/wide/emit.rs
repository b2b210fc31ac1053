//! The vector IR as machine code: frame, control, words, and the arithmetic that both widths encode alike.
//!
//! Scratch registers, which are never given to values: `rax`, `rcx`, `rdx`, the last three vectors, and the masks `k1`, `k2`.
//! `rdi` holds the table of buffers throughout.

use super::allocate::{self, Files, Home, Homes};
use super::asm::*;
use super::ir::*;

/// What one function is emitted from and into.
pub struct Emit<'f> {
    pub a: Asm,
    pub f: &'f Function,
    homes: Homes,
    frame: Frame,
    /// Open loops and parts: where they start, or end.
    open: Vec<Label>,
    pub calls: super::call::Calls,
}

/// Offsets from the stack pointer, which is a multiple of 64.
struct Frame {
    vectors: i32,
    masks: i32,
    words: i32,
    arguments: i32,
    size: i32,
}

/// Vectors at the frame's start that one instruction uses.
pub const TEMPORARIES: i32 = 3;

/// The kernel's arguments that are kept in the frame.
#[derive(Clone, Copy)]
pub enum Kept {
    Begin = 0,
    End = 1,
    Scalars = 2,
    Helpers = 3,
}

pub const WORDS: [Gpr; 10] = [RBX, RSI, 8, 9, 10, 11, 12, 13, 14, 15];

/// Most bytes of a frame. Stacks have guard pages, which a larger step could miss.
const MOST_FRAME: i32 = 128 << 10;

/// The bytes of a function, unless so much of it must live in its frame that the frame would be too large.
pub fn emit(f: &Function) -> Option<Vec<u8>> {
    let wide = f.lanes == 16;
    let files = Files {
        vectors: if wide { (0..29).collect() } else { (0..13).collect() },
        masks: wide.then(|| (3..8).collect()),
        words: WORDS.to_vec(),
    };
    let homes = allocate::allocate(f, &files);
    let bytes = 4 * f.lanes as i32;
    let vectors = TEMPORARIES * bytes;
    let masks = vectors + homes.slots[0] as i32 * bytes;
    let words = masks + homes.slots[1] as i32 * 8;
    let arguments = words + homes.slots[2] as i32 * 8;
    let frame = Frame { vectors, masks, words, arguments, size: arguments + 4 * 8 };
    let mut e = Emit { a: Asm::new(wide), f, homes, frame, open: Vec::new(), calls: Default::default() };
    if e.frame.size > MOST_FRAME {
        return None;
    }
    e.enter();
    for inst in &f.code {
        e.inst(inst);
    }
    e.leave();
    e.call_routine();
    Some(e.a.finish())
}

impl Emit<'_> {
    // ---- the frame

    fn enter(&mut self) {
        self.a.push(RBP);
        self.a.mov(RBP, Rm::Reg(RSP));
        for r in [RBX, 12, 13, 14, 15] {
            self.a.push(r);
        }
        let size = self.frame.size + self.call_area();
        self.a.general(true, &[0x81], 5, Rm::Reg(RSP), &size.to_le_bytes());
        self.a.general(true, &[0x83], 4, Rm::Reg(RSP), &[-64i8 as u8]);
        for (kept, r) in [(Kept::Begin, RCX), (Kept::End, 8), (Kept::Scalars, RSI), (Kept::Helpers, RDX)] {
            let to = self.kept(kept);
            self.a.store(to, r);
        }
    }

    fn leave(&mut self) {
        // vzeroupper
        self.a.bytes.extend([0xC5, 0xF8, 0x77]);
        self.a.lea(RSP, Mem::at(RBP, -40));
        for r in [15, 14, 13, 12, RBX, RBP] {
            self.a.pop(r);
        }
        self.a.bytes.push(0xC3);
    }

    pub fn kept(&self, kept: Kept) -> Mem {
        Mem::at(RSP, self.frame.arguments + kept as i32 * 8)
    }

    pub fn temporary(&self, n: i32) -> Mem {
        Mem::at(RSP, n * self.bytes())
    }

    /// The first byte of the frame behind everything else, a multiple of 64.
    pub fn frame_end(&self) -> i32 {
        (self.frame.size + 63) & !63
    }

    /// Bytes of a vector.
    pub fn bytes(&self) -> i32 {
        4 * self.f.lanes as i32
    }

    // ---- operands

    pub fn home(&self, r: Reg) -> Home {
        self.homes.homes[r.index()]
    }

    fn slot(&self, r: Reg, n: u32) -> Mem {
        let n = n as i32;
        match self.f.class(r) {
            Class::Vector => Mem::at(RSP, self.frame.vectors + n * self.bytes()),
            Class::Mask if !self.a.wide => Mem::at(RSP, self.frame.vectors + n * self.bytes()),
            Class::Mask => Mem::at(RSP, self.frame.masks + n * 8),
            Class::Word => Mem::at(RSP, self.frame.words + n * 8),
        }
    }

    /// The n-th scratch vector.
    pub fn scratch(&self, n: u8) -> u8 {
        if self.a.wide { 29 + n } else { 13 + n }
    }

    fn words_of(&self, constant: &Constant) -> Vec<u8> {
        match constant {
            Constant::Splat { bits, .. } => bits.to_le_bytes().to_vec(),
            Constant::Lanes(lanes) => lanes.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Constant::Longs(lanes) => lanes.iter().flat_map(|x| x.to_le_bytes()).collect(),
            // As a vector, where masks are vectors.
            Constant::Mask(bits) => {
                (0..self.f.lanes).flat_map(|l| (bits >> l & 1).wrapping_neg().to_le_bytes()).collect()
            }
        }
    }

    /// A vector as the last operand.
    pub fn rm(&mut self, r: Reg) -> Rm {
        if let Some(constant) = self.f.constant_of(r) {
            let mut bytes = self.words_of(constant);
            if bytes.len() == 4 {
                if self.a.wide {
                    return Rm::Spread(self.a.pool(&bytes));
                }
                bytes = bytes.repeat(self.f.lanes);
            }
            return Rm::Pool(self.a.pool(&bytes));
        }
        match self.home(r) {
            Home::Register(n) => Rm::Reg(n),
            Home::Slot(n) => Rm::Mem(self.slot(r, n)),
            Home::Buffer(_) | Home::None => unreachable!("a vector has a place"),
        }
    }

    /// A vector in a register: its own, or a scratch register.
    pub fn vector(&mut self, r: Reg, scratch: u8) -> u8 {
        if let Home::Register(n) = self.home(r) {
            return n;
        }
        let to = self.scratch(scratch);
        self.load_vector(to, r);
        to
    }

    /// Puts a vector into a register.
    pub fn load_vector(&mut self, to: u8, r: Reg) {
        match self.f.constant_of(r) {
            Some(Constant::Splat { bits: 0, .. }) => self.a.vector(XOR, to, to, Rm::Reg(to), None),
            Some(Constant::Splat { bits, .. }) => {
                let at = self.a.pool(&bits.to_le_bytes());
                self.a.vector(BROADCAST, to, 0, Rm::Pool(at), None);
            }
            _ => match self.rm(r) {
                Rm::Reg(n) if n == to => {}
                Rm::Reg(n) => self.a.vector(MOVE, to, 0, Rm::Reg(n), None),
                place => self.a.vector(LOAD, to, 0, place, None),
            },
        }
    }

    /// The register that an instruction puts its vector into; [`Emit::done`] must follow.
    pub fn target(&self, to: Reg) -> u8 {
        match self.home(to) {
            Home::Register(n) => n,
            _ => self.scratch(0),
        }
    }

    pub fn done(&mut self, to: Reg, register: u8) {
        match self.home(to) {
            Home::Slot(n) => {
                let slot = self.slot(to, n);
                self.a.vector(STORE, register, 0, Rm::Mem(slot), None);
            }
            Home::Register(n) if n != register => self.a.vector(MOVE, n, 0, Rm::Reg(register), None),
            _ => {}
        }
    }

    pub fn slot_of(&self, r: Reg) -> Option<Mem> {
        match self.home(r) {
            Home::Slot(n) => Some(self.slot(r, n)),
            _ => None,
        }
    }

    /// A word as the last operand.
    fn word_rm(&self, r: Reg) -> Rm {
        match self.home(r) {
            Home::Register(n) => Rm::Reg(n),
            Home::Slot(n) => Rm::Mem(self.slot(r, n)),
            Home::Buffer(n) => Rm::Mem(Mem::at(RDI, 8 * n as i32)),
            Home::None => unreachable!("a word has a place"),
        }
    }

    pub fn word(&mut self, r: Reg, scratch: Gpr) -> Gpr {
        match self.word_rm(r) {
            Rm::Reg(n) => n,
            place => {
                self.a.mov(scratch, place);
                scratch
            }
        }
    }

    /// The register that an instruction puts its word into; [`Emit::set_word`] must follow.
    fn word_target(&self, to: Reg) -> Gpr {
        match self.home(to) {
            Home::Register(n) => n,
            _ => RAX,
        }
    }

    fn set_word(&mut self, to: Reg, from: Gpr) {
        if self.home(to) == Home::None {
            return;
        }
        match self.word_rm(to) {
            Rm::Reg(n) if n == from => {}
            Rm::Reg(n) => self.a.mov(n, Rm::Reg(from)),
            Rm::Mem(m) => self.a.store(m, from),
            Rm::Pool(_) | Rm::Spread(_) => unreachable!("no word is written to constants"),
        }
    }

    /// An address in terms of registers; uses `rax` and `rcx`.
    pub fn mem(&mut self, at: Address) -> Mem {
        let base = self.word(at.base, RAX);
        let index = at.index.some().map(|i| self.word(i, RCX));
        Mem { base, index, scale: at.bytes.trailing_zeros() as u8, disp: at.disp }
    }

    /// The same without an index.
    pub fn mem_plain(&mut self, at: Address) -> Mem {
        let mem = self.mem(at);
        if mem.index.is_none() {
            return mem;
        }
        self.a.lea(RAX, mem);
        Mem::at(RAX, 0)
    }

    // ---- instructions

    fn inst(&mut self, i: &Inst) {
        use Op::*;
        let [a, b, _] = i.args;
        match i.op {
            Copy => self.copy(i.to, a),
            Add => self.binary(code(1, 0, 0x58), i, true),
            Sub => self.binary(code(1, 0, 0x5C), i, false),
            Mul => self.binary(code(1, 0, 0x59), i, true),
            Div => self.binary(code(1, 0, 0x5E), i, false),
            Min => self.binary(code(1, 0, 0x5D), i, false),
            Max => self.binary(code(1, 0, 0x5F), i, false),
            Sqrt => self.unary(code(1, 0, 0x51), i, None),
            DivFirst => {
                let (x, y) = (self.vector(a, 1), self.rm(b));
                self.first(code(1, 0, 0x5E), i, x, y);
            }
            SqrtFirst => {
                let x = self.rm(a);
                self.first(code(1, 0, 0x51), i, 0, x);
            }
            MulAdd => self.mul_add(i),
            Round(mode) => {
                let mode = match mode {
                    Rounding::Nearest => 8,
                    Rounding::Down => 9,
                    Rounding::Up => 10,
                };
                self.unary(code(3, 1, 0x08), i, Some(mode));
            }
            Scale => self.binary(code(2, 1, 0x2C), i, false),
            AddInt => self.binary(code(1, 1, 0xFE), i, true),
            SubInt => self.binary(code(1, 1, 0xFA), i, false),
            MulInt => self.binary(code(2, 1, 0x40), i, true),
            MinInt => self.binary(code(2, 1, 0x39), i, true),
            MaxInt => self.binary(code(2, 1, 0x3D), i, true),
            AbsInt => self.unary(code(2, 1, 0x1E), i, None),
            And => self.binary(code(1, 1, 0xDB), i, true),
            Or => self.binary(code(1, 1, 0xEB), i, true),
            Xor => self.binary(XOR, i, true),
            ShiftLeft(n) => self.shift(i, 6, n),
            ShiftRight(n) => self.shift(i, 2, n),
            ShiftRightSigned(n) => self.shift(i, 4, n),
            ToFloat => self.unary(code(1, 0, 0x5B), i, None),
            ToInt => self.unary(code(1, 2, 0x5B), i, None),
            RoundHalf => {
                let (x, to, s) = (self.vector(a, 1), self.target(i.to), self.scratch(1));
                let half = if self.a.wide { Length::Z } else { Length::Y };
                self.a.sized(code(3, 1, 0x1D).part(Part::Half), half, x, 0, Rm::Reg(s), Some(0));
                self.a.vector(code(2, 1, 0x13).part(Part::Half), to, 0, Rm::Reg(s), None);
                self.done(i.to, to);
            }
            FloorDivInt => self.floor_div(i),
            Compare(_) | CompareInt(_) | Select | MaskAnd | MaskOr | MaskXor | MaskAndNot | FirstLanes | Any | All => {
                self.masks(i);
            }
            Splat => self.splat(i.to, a),
            FirstWord => {
                let x = self.vector(a, 0);
                self.a.sized(code(1, 1, 0x7E).part(Part::Bytes(4)), Length::X, x, 0, Rm::Reg(RAX), None);
                self.a.general(true, &[0x63], RAX, Rm::Reg(RAX), &[]);
                self.set_word(i.to, RAX);
            }
            Exchange(_) | SplatFirst | SplatLong | AddLong | MulLong | SwapHalves | UpperHalves => self.lanes(i),
            Load(dtype) => self.load(i, dtype),
            LoadSplat(dtype) => self.load_splat(i, dtype),
            Gather(dtype) => self.gather(i, dtype),
            Store(dtype) => self.store(i, dtype),
            StoreFirst(dtype) => self.store_first(i, dtype),
            Scatter(dtype) => self.scatter(i, dtype),
            Report(site) => self.report(i, site),
            Call(helper) => self.call_lanes(i, helper),
            Argument(which) => {
                let kept = match which {
                    super::ir::Argument::Begin => Kept::Begin,
                    super::ir::Argument::End => Kept::End,
                };
                let from = self.kept(kept);
                let to = self.word_target(i.to);
                self.a.mov(to, Rm::Mem(from));
                self.set_word(i.to, to);
            }
            Pointer(n) => {
                if let Home::Register(to) = self.home(i.to) {
                    self.a.mov(to, Rm::Mem(Mem::at(RDI, 8 * n as i32)));
                }
            }
            Scalar(n) => {
                let scalars = self.kept(Kept::Scalars);
                self.a.mov(RAX, Rm::Mem(scalars));
                let to = self.word_target(i.to);
                self.a.mov(to, Rm::Mem(Mem::at(RAX, 8 * n as i32)));
                self.set_word(i.to, to);
            }
            WordConst(x) => {
                let to = self.word_target(i.to);
                self.a.constant(to, x);
                self.set_word(i.to, to);
            }
            AddWord => {
                let (x, y, to) = (self.word(a, RAX), self.word(b, RCX), self.word_target(i.to));
                self.a.lea(to, Mem { base: x, index: Some(y), scale: 0, disp: 0 });
                self.set_word(i.to, to);
            }
            SubWord => {
                self.a.mov(RAX, self.word_rm(a));
                self.a.sub(RAX, self.word_rm(b));
                self.set_word(i.to, RAX);
            }
            MinWord => {
                self.a.mov(RAX, self.word_rm(a));
                self.a.mov(RCX, self.word_rm(b));
                self.a.compare(RAX, Rm::Reg(RCX));
                // cmova
                self.a.general(true, &[0x0F, 0x47], RAX, Rm::Reg(RCX), &[]);
                self.set_word(i.to, RAX);
            }
            AddConst(x) => match i32::try_from(x) {
                Ok(x) if i.to == a => self.a.add_constant(self.word_rm(a), x),
                Ok(x) => {
                    let (base, to) = (self.word(a, RAX), self.word_target(i.to));
                    self.a.lea(to, Mem::at(base, x));
                    self.set_word(i.to, to);
                }
                Err(_) => {
                    self.a.constant(RAX, x);
                    self.a.add(RAX, self.word_rm(a));
                    self.set_word(i.to, RAX);
                }
            },
            MulConst(x) => {
                let (from, mut to) = (self.word_rm(a), self.word_target(i.to));
                match i32::try_from(x) {
                    Ok(x) => self.a.multiply_constant(to, from, x),
                    Err(_) => {
                        to = RAX;
                        self.a.constant(to, x);
                        self.a.multiply(to, from);
                    }
                }
                self.set_word(i.to, to);
            }
            DivConst(x) => {
                self.a.mov(RAX, self.word_rm(a));
                self.a.constant(RCX, x as i64);
                self.a.general(false, &[0x33], RDX, Rm::Reg(RDX), &[]);
                self.a.general(true, &[0xF7], 6, Rm::Reg(RCX), &[]);
                self.set_word(i.to, RAX);
            }
            Begin => {
                let top = self.a.label();
                self.a.place(top);
                self.open.push(top);
            }
            AgainBelow(limit) => {
                let top = self.open.pop().expect("loops are closed in order");
                self.compare_word(a, b, limit);
                self.a.jump_if(Condition::Below, top);
            }
            IfBelow(limit) => {
                self.compare_word(a, b, limit);
                self.part(Condition::NotBelow);
            }
            IfNotBelow(limit) => {
                self.compare_word(a, b, limit);
                self.part(Condition::Below);
            }
            IfAny => {
                self.test_any(a);
                self.part(Condition::Zero);
            }
            End => {
                let end = self.open.pop().expect("parts are closed in order");
                self.a.place(end);
            }
        }
    }

    fn part(&mut self, skip: Condition) {
        let end = self.a.label();
        self.a.jump_if(skip, end);
        self.open.push(end);
    }

    fn compare_word(&mut self, a: Reg, b: Reg, limit: Option<u64>) {
        match limit {
            Some(limit) => match i32::try_from(limit) {
                Ok(limit) => self.a.compare_constant(self.word_rm(a), limit),
                Err(_) => {
                    self.a.constant(RAX, limit as i64);
                    let x = self.word(a, RCX);
                    self.a.compare(x, Rm::Reg(RAX));
                }
            },
            None => {
                let x = self.word(a, RAX);
                let rm = self.word_rm(b);
                self.a.compare(x, rm);
            }
        }
    }

    fn copy(&mut self, to: Reg, from: Reg) {
        match self.f.class(to) {
            Class::Word => {
                let x = self.word(from, RAX);
                self.set_word(to, x);
            }
            Class::Mask if self.a.wide => self.copy_mask(to, from),
            Class::Vector | Class::Mask => {
                let target = self.target(to);
                self.load_vector(target, from);
                self.done(to, target);
            }
        }
    }

    fn is_in_register(&self, r: Reg) -> bool {
        matches!(self.home(r), Home::Register(_))
    }

    pub fn binary(&mut self, c: Code, i: &Inst, commutative: bool) {
        let [mut a, mut b, _] = i.args;
        if commutative && self.is_in_register(b) && !self.is_in_register(a) {
            std::mem::swap(&mut a, &mut b);
        }
        let x = self.vector(a, 1);
        let y = self.rm(b);
        let to = self.target(i.to);
        self.a.vector(c, to, x, y, None);
        self.done(i.to, to);
    }

    pub fn unary(&mut self, c: Code, i: &Inst, imm: Option<u8>) {
        let x = self.rm(i.args[0]);
        let to = self.target(i.to);
        self.a.vector(c, to, 0, x, imm);
        self.done(i.to, to);
    }

    /// On the first lanes alone, whose result goes to every lane.
    fn first(&mut self, c: Code, i: &Inst, x: u8, y: Rm) {
        let (s, to) = (self.scratch(0), self.target(i.to));
        self.a.sized(c, Length::X, s, x, y, None);
        self.a.vector(BROADCAST, to, 0, Rm::Reg(s), None);
        self.done(i.to, to);
    }

    fn shift(&mut self, i: &Inst, extension: u8, by: u8) {
        let (x, to) = (self.vector(i.args[0], 1), self.target(i.to));
        self.a.vector(code(1, 1, 0x72), extension, to, Rm::Reg(x), Some(by));
        self.done(i.to, to);
    }

    /// The forms of a fused product: to = to * rm + second, to = second * to + rm, to = second * rm + to.
    fn mul_add(&mut self, i: &Inst) {
        let [form132, form213, form231] = [0x98, 0xA8, 0xB8];
        let [mut a, mut b, c] = i.args;
        let op = |byte| code(2, 1, byte);
        let to = self.target(i.to);
        let is_target = |e: &Self, r: Reg| e.home(r) == Home::Register(to) && e.slot_of(i.to).is_none();
        if is_target(self, b) || (!self.is_in_register(a) && self.is_in_register(b)) && !is_target(self, a) {
            std::mem::swap(&mut a, &mut b);
        }
        if is_target(self, a) {
            if self.is_in_register(c) && !self.is_in_register(b) {
                let (second, rm) = (self.vector(c, 1), self.rm(b));
                self.a.vector(op(form132), to, second, rm, None);
            } else {
                let (second, rm) = (self.vector(b, 1), self.rm(c));
                self.a.vector(op(form213), to, second, rm, None);
            }
        } else if is_target(self, c) {
            let (second, rm) = (self.vector(a, 1), self.rm(b));
            self.a.vector(op(form231), to, second, rm, None);
        } else {
            self.load_vector(to, a);
            let (second, rm) = (self.vector(b, 1), self.rm(c));
            self.a.vector(op(form213), to, second, rm, None);
        }
        self.done(i.to, to);
    }

    /// In 64-bit floats, which hold both operands exactly; no rounding of their quotient crosses a whole number.
    fn floor_div(&mut self, i: &Inst) {
        for (n, r) in [i.args[0], i.args[1]].into_iter().enumerate() {
            let x = self.vector(r, 0);
            let to = self.temporary(n as i32);
            self.a.vector(STORE, x, 0, Rm::Mem(to), None);
        }
        let widen = code(1, 2, 0xE6).part(Part::Half);
        let half = if self.a.wide { 32 } else { 16 };
        for part in [0, 1] {
            let (x, y) = (self.scratch(part), self.scratch(2));
            for (to, n) in [(x, 0), (y, 1)] {
                let mut from = self.temporary(n);
                from.disp += i32::from(part) * half;
                self.a.vector(widen, to, 0, Rm::Mem(from), None);
            }
            self.a.vector(code(1, 1, 0x5E).w(), x, x, Rm::Reg(y), None);
            self.a.vector(code(3, 1, 0x09).w(), x, 0, Rm::Reg(x), Some(9));
            self.a.vector(code(1, 1, 0xE6).w(), x, 0, Rm::Reg(x), None);
        }
        let (low, high, to) = (self.scratch(0), self.scratch(1), self.target(i.to));
        let insert = if self.a.wide { code(3, 1, 0x3A).w() } else { code(3, 1, 0x38) };
        self.a.vector(insert, to, low, Rm::Reg(high), Some(1));
        self.done(i.to, to);
    }

    fn splat(&mut self, to: Reg, from: Reg) {
        let x = self.word(from, RAX);
        let target = self.target(to);
        if self.a.wide {
            self.a.vector(code(2, 1, 0x7C), target, 0, Rm::Reg(x), None);
        } else {
            self.a.sized(code(1, 1, 0x6E), Length::X, target, 0, Rm::Reg(x), None);
            self.a.vector(code(2, 1, 0x58), target, 0, Rm::Reg(target), None);
        }
        self.done(to, target);
    }
}

pub const MOVE: Code = code(1, 0, 0x28);
pub const LOAD: Code = code(1, 0, 0x10);
pub const STORE: Code = code(1, 0, 0x11);
pub const BROADCAST: Code = code(2, 1, 0x18).part(Part::Bytes(4));
pub const XOR: Code = code(1, 1, 0xEF);
