//! The vector IR: code of one function over vectors, masks and words, with structured control.
//!
//! A vector has as many lanes of 32 bits as the machine's registers, a mask one bit for each lane, a word 64 bits. Every
//! value is a virtual register; one that several instructions write is a variable, which is written before any loop
//! that changes it. Constants are registers too, but no instruction makes them.

use crate::kernel::Kernel;
use crate::program::Helper;
use crate::types::DType;
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    Vector,
    Mask,
    Word,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reg(pub u32);

impl Reg {
    pub const NONE: Reg = Reg(u32::MAX);

    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub fn some(self) -> Option<Reg> {
        (self != Reg::NONE).then_some(self)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Constant {
    /// The same in every lane, by its bits; `float`: for people, a float.
    Splat { bits: u32, float: bool },
    /// Lane by lane.
    Lanes(Vec<u32>),
    /// 64-bit lanes, half as many.
    Longs(Vec<u64>),
    /// A bit for each lane.
    Mask(u32),
}

/// Where a word comes from at a function's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    Begin,
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    Nearest,
    Down,
    Up,
}

/// What an instruction does with its operands a, b, c.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Op {
    /// Of any class.
    Copy,
    // floats, lane by lane
    Add,
    Sub,
    Mul,
    Div,
    /// b unless a is less: also if either is NaN.
    Min,
    /// b unless a is greater: also if either is NaN.
    Max,
    Sqrt,
    /// The quotient of the first lanes, in every lane: on whole vectors it takes several times as long.
    DivFirst,
    SqrtFirst,
    /// a * b + c, rounded once.
    MulAdd,
    Round(Rounding),
    /// a * 2^b for whole b, rounded once.
    Scale,
    // integers, lane by lane
    AddInt,
    SubInt,
    MulInt,
    MinInt,
    MaxInt,
    AbsInt,
    /// The quotient rounded down, in 64-bit floats; b is not 0.
    FloorDivInt,
    // bits
    And,
    Or,
    Xor,
    ShiftLeft(u8),
    ShiftRight(u8),
    ShiftRightSigned(u8),
    // conversions
    ToFloat,
    /// Towards zero; what does not fit is the least integer.
    ToInt,
    /// Rounds to the nearest 16-bit float, which may be a denormal number, and back.
    RoundHalf,
    // conditions
    Compare(Relation),
    CompareInt(Relation),
    /// Where the mask a is set b, else c.
    Select,
    MaskAnd,
    MaskOr,
    MaskXor,
    /// not a, and b.
    MaskAndNot,
    /// The first lanes, as many as the word a says.
    FirstLanes,
    /// All lanes if any is set.
    Any,
    /// All lanes if all are set.
    All,
    // between lanes
    /// The low half of a word in every lane.
    Splat,
    /// The first lane, extended by its sign.
    FirstWord,
    /// Lanes change places with those so many lanes on.
    Exchange(u8),
    SplatFirst,
    // 64-bit lanes
    SplatLong,
    AddLong,
    MulLong,
    /// The halves of each lane change places.
    SwapHalves,
    /// The upper halves of the lanes of a, then of b.
    UpperHalves,
    // memory: at an address, in a type of memory; what is masked off is not touched, and reads as 0
    Load(DType),
    /// One element in every lane.
    LoadSplat(DType),
    /// Lane by lane, at the address plus the elements that a says.
    Gather(DType),
    /// a
    Store(DType),
    /// The first lane of a.
    StoreFirst(DType),
    /// a, lane by lane, at the address plus the elements that b says.
    Scatter(DType),
    /// Notes that the check of a site failed in a lane of the mask a, whose indices are b.
    Report(u32),
    /// A function of the runtime, lane by lane.
    Call(Helper),
    // words
    Argument(Argument),
    /// The start of a buffer.
    Pointer(u32),
    Scalar(u32),
    WordConst(i64),
    AddWord,
    SubWord,
    MinWord,
    AddConst(i64),
    MulConst(i64),
    /// Both are not negative.
    DivConst(u64),
    // control
    /// The start of a loop.
    Begin,
    /// The end of a loop, which goes on while the word a is below a number or the word b.
    AgainBelow(Option<u64>),
    /// The start of a part that is only run if the word a is below a number or the word b.
    IfBelow(Option<u64>),
    IfNotBelow(Option<u64>),
    /// .. if the mask a has a lane.
    IfAny,
    /// The end of such a part.
    End,
}

/// base + index * bytes + disp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    pub base: Reg,
    pub index: Reg,
    pub bytes: u8,
    pub disp: i32,
}

#[derive(Clone, Copy, Debug)]
pub struct Inst {
    pub op: Op,
    pub to: Reg,
    pub args: [Reg; 3],
    /// Of memory instructions.
    pub at: Option<Address>,
    pub mask: Reg,
}

impl Inst {
    /// Every register that the instruction reads.
    pub fn uses(&self, visit: &mut dyn FnMut(Reg)) {
        let address = self.at.map_or([Reg::NONE; 2], |a| [a.base, a.index]);
        self.args.into_iter().chain(address).chain([self.mask]).filter_map(Reg::some).for_each(visit);
    }
}

pub struct RegInfo {
    pub class: Class,
    pub constant: Option<Constant>,
}

pub struct Function {
    /// Lanes of a vector: 16 or 8.
    pub lanes: usize,
    pub regs: Vec<RegInfo>,
    pub code: Vec<Inst>,
    pub scalars: usize,
    /// Whether functions may round a product and a sum once.
    pub fused: bool,
    /// Whether what is computed at the moment is the same in all lanes.
    pub uniform: bool,
    constants: HashMap<Constant, Reg>,
}

impl Function {
    pub fn new(lanes: usize, kernel: &Kernel) -> Function {
        Function {
            lanes,
            regs: Vec::new(),
            code: Vec::new(),
            scalars: kernel.scalars,
            fused: true,
            uniform: false,
            constants: HashMap::new(),
        }
    }

    pub fn class(&self, r: Reg) -> Class {
        self.regs[r.index()].class
    }

    pub fn constant_of(&self, r: Reg) -> Option<&Constant> {
        self.regs[r.index()].constant.as_ref()
    }

    pub fn register(&mut self, class: Class) -> Reg {
        self.regs.push(RegInfo { class, constant: None });
        Reg(self.regs.len() as u32 - 1)
    }

    pub fn constant(&mut self, constant: Constant) -> Reg {
        if let Some(known) = self.constants.get(&constant) {
            return *known;
        }
        let class = if matches!(constant, Constant::Mask(_)) { Class::Mask } else { Class::Vector };
        let r = self.register(class);
        self.regs[r.index()].constant = Some(constant.clone());
        self.constants.insert(constant, r);
        r
    }

    pub fn f32(&mut self, x: f32) -> Reg {
        self.constant(Constant::Splat { bits: x.to_bits(), float: true })
    }

    pub fn i32(&mut self, x: i32) -> Reg {
        self.constant(Constant::Splat { bits: x as u32, float: false })
    }

    pub fn mask(&mut self, lanes: usize) -> Reg {
        self.constant(Constant::Mask(((1u64 << lanes) - 1) as u32))
    }

    /// The class of what an operation makes.
    fn result(op: Op) -> Class {
        use Op::*;
        match op {
            Compare(_) | CompareInt(_) | MaskAnd | MaskOr | MaskXor | MaskAndNot | FirstLanes | Any | All => {
                Class::Mask
            }
            Load(DType::Bool) | LoadSplat(DType::Bool) | Gather(DType::Bool) => Class::Mask,
            FirstWord | Argument(_) | Pointer(_) | Scalar(_) | WordConst(_) | AddWord | SubWord | MinWord
            | AddConst(_) | MulConst(_) | DivConst(_) => Class::Word,
            _ => Class::Vector,
        }
    }

    pub fn op(&mut self, op: Op, args: &[Reg]) -> Reg {
        let to = self.register(Function::result(op));
        self.set(to, op, args);
        to
    }

    /// The same into a variable.
    pub fn set(&mut self, to: Reg, op: Op, args: &[Reg]) {
        let mut all = [Reg::NONE; 3];
        all[..args.len()].copy_from_slice(args);
        self.code.push(Inst { op, to, args: all, at: None, mask: Reg::NONE });
    }

    /// Writes a value that was just computed, and that nothing else reads, to a variable.
    pub fn move_last(&mut self, to: Reg, value: Reg) {
        match self.code.last_mut() {
            Some(last) if last.to == value && value != to => last.to = to,
            _ => self.set(to, Op::Copy, &[value]),
        }
    }

    /// An instruction without a result.
    pub fn effect(&mut self, op: Op, args: &[Reg]) {
        self.set(Reg::NONE, op, args);
    }

    pub fn read(&mut self, op: Op, args: &[Reg], at: Address, mask: Option<Reg>) -> Reg {
        let to = self.op(op, args);
        let last = self.code.last_mut().expect("just pushed");
        last.at = Some(at);
        last.mask = mask.unwrap_or(Reg::NONE);
        to
    }

    pub fn write(&mut self, op: Op, args: &[Reg], at: Address, mask: Option<Reg>) {
        self.effect(op, args);
        let last = self.code.last_mut().expect("just pushed");
        last.at = Some(at);
        last.mask = mask.unwrap_or(Reg::NONE);
    }

    // ---- combinations that are used often

    pub fn select(&mut self, mask: Reg, yes: Reg, no: Reg) -> Reg {
        if yes == no {
            return yes;
        }
        self.op(Op::Select, &[mask, yes, no])
    }

    pub fn mask_not(&mut self, a: Reg) -> Reg {
        let all = self.mask(self.lanes);
        self.op(Op::MaskXor, &[a, all])
    }

    /// Where both hold; None: everywhere.
    pub fn both(&mut self, a: Option<Reg>, b: Option<Reg>) -> Option<Reg> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.op(Op::MaskAnd, &[a, b])),
            (a, b) => a.or(b),
        }
    }
}
