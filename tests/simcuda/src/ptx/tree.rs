//! The tree of a PTX module. Registers are numbers within their function: names are resolved while parsing, because
//! inline assembly opens scopes that hide outer names.

use std::collections::HashMap;

/// An element type of PTX (ISA 8.8, section 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ty {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F64,
}

impl Ty {
    pub fn parse(word: &str) -> Option<Ty> {
        Some(match word {
            "pred" => Ty::Pred,
            "b8" => Ty::B8,
            "b16" => Ty::B16,
            "b32" => Ty::B32,
            "b64" => Ty::B64,
            "b128" => Ty::B128,
            "u8" => Ty::U8,
            "u16" => Ty::U16,
            "u32" => Ty::U32,
            "u64" => Ty::U64,
            "s8" => Ty::S8,
            "s16" => Ty::S16,
            "s32" => Ty::S32,
            "s64" => Ty::S64,
            "f16" => Ty::F16,
            "f16x2" => Ty::F16x2,
            "bf16" => Ty::Bf16,
            "bf16x2" => Ty::Bf16x2,
            "tf32" => Ty::Tf32,
            "f32" => Ty::F32,
            "f64" => Ty::F64,
            _ => return None,
        })
    }

    /// Bytes in memory.
    pub fn bytes(self) -> usize {
        match self {
            Ty::Pred | Ty::B8 | Ty::U8 | Ty::S8 => 1,
            Ty::B16 | Ty::U16 | Ty::S16 | Ty::F16 | Ty::Bf16 => 2,
            Ty::B32 | Ty::U32 | Ty::S32 | Ty::F32 | Ty::F16x2 | Ty::Bf16x2 | Ty::Tf32 => 4,
            Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64 => 8,
            Ty::B128 => 16,
        }
    }

    pub fn signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }

    pub fn float(self) -> bool {
        matches!(self, Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 | Ty::Tf32 | Ty::F32 | Ty::F64)
    }
}

/// A register of a function, by number.
pub type Reg = u32;

#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    Reg(Reg),
    /// `!p`
    Not(Reg),
    /// `p|q`: two destinations.
    Pair(Box<Operand>, Box<Operand>),
    /// An integer, or the bits of a float: `single` tells that they are those of an f32.
    Imm {
        bits: u64,
        single: bool,
    },
    /// `%tid.x` and its like, without the `%`.
    Special(String),
    /// `[base + offset]`
    Mem {
        base: Box<Operand>,
        offset: i64,
    },
    /// A variable, a label or a function, with an offset.
    Name(String, i64),
    Vector(Vec<Operand>),
    /// `_`: a destination that nobody reads.
    Sink,
    /// What stands in parentheses in a call.
    List(Vec<Operand>),
}

#[derive(Debug, Clone)]
pub struct Instr {
    pub line: u32,
    /// A predicate register and whether its negation is meant.
    pub guard: Option<(Reg, bool)>,
    /// The opcode and its modifiers: `ld`, `global`, `v4`, `f32`.
    pub parts: Vec<String>,
    pub operands: Vec<Operand>,
}

impl Instr {
    pub fn has(&self, part: &str) -> bool {
        self.parts.iter().skip(1).any(|p| p == part)
    }

    /// The element types among the modifiers, in order.
    pub fn types(&self) -> Vec<Ty> {
        self.parts.iter().skip(1).filter_map(|p| Ty::parse(p)).collect()
    }

    pub fn name(&self) -> String {
        self.parts.join(".")
    }
}

#[derive(Debug, Clone)]
pub enum Item {
    Instr(Instr),
    Label(String, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// A value of an initialiser.
#[derive(Debug, Clone)]
pub enum Init {
    Bits(u64),
    Address(String, i64),
}

#[derive(Debug, Clone)]
pub struct Variable {
    pub name: String,
    pub space: Space,
    pub ty: Ty,
    pub align: usize,
    /// Elements; `None` for an array whose size the launch gives (`extern .shared`).
    pub count: Option<usize>,
    pub init: Vec<Init>,
}

impl Variable {
    pub fn bytes(&self) -> usize {
        self.ty.bytes() * self.count.unwrap_or(0)
    }
}

#[derive(Debug, Clone, Default)]
pub struct Function {
    pub name: String,
    pub entry: bool,
    /// Return values of a `.func`.
    pub returns: Vec<Variable>,
    pub params: Vec<Variable>,
    /// The type of each register.
    pub regs: Vec<Ty>,
    pub variables: Vec<Variable>,
    pub items: Vec<Item>,
    /// Lists of labels for `brx.idx`.
    pub targets: HashMap<String, Vec<String>>,
    /// Most threads of a block (`.maxntid`, `.reqntid`); 0 where nothing is said.
    pub max_threads: u32,
    pub declared_only: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Module {
    /// The number in `.target sm_NN`.
    pub target: u32,
    pub variables: Vec<Variable>,
    pub functions: Vec<Function>,
}
