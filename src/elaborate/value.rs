//! What expressions evaluate to while a program is elaborated.

use super::instance::InstanceId;
use crate::check::constant::Const;
use crate::ir::{DimId, ValueId};
use crate::resolve::ItemRef;
use crate::source::Span;
use crate::types::DType;

/// A dim's name in scope: one dim, or the dims of a group, major first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DimSet {
    pub ids: Vec<DimId>,
    /// Whether it was written as a group (or bound to one).
    pub group: bool,
}

impl DimSet {
    pub fn single(id: DimId) -> DimSet {
        DimSet { ids: vec![id], group: false }
    }
}

#[derive(Clone, Debug)]
pub enum Val {
    Const(Const),
    /// A vector of constants, before a declared type gives it a dim.
    Array(Vec<f64>),
    Tensor(ValueId),
    Tuple(Vec<Val>),
    Instance(InstanceId),
    /// Follows from an error that was reported.
    Error,
    /// The value of a statement, or of a block without one.
    Nothing,
}

impl Val {
    pub fn is_error(&self) -> bool {
        matches!(self, Val::Error)
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Val::Const(_) => "a constant",
            Val::Array(_) => "a list of constants",
            Val::Tensor(_) => "a value",
            Val::Tuple(_) => "a tuple",
            Val::Instance(_) => "an instance",
            Val::Error => "an error",
            Val::Nothing => "nothing",
        }
    }
}

/// The leaves of a maximal tree of elementwise operations, for the widest-operand rule.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Dims of each leaf that is no `iota`, equal ones once.
    pub leaves: Vec<Vec<DimId>>,
    /// Dims of the tree's `iota`s: they count towards any leaf.
    pub iotas: Vec<DimId>,
    /// The first operator whose operands' dims no leaf has together.
    pub conflict: Option<Conflict>,
}

#[derive(Clone, Debug)]
pub struct Conflict {
    pub op: Span,
    /// Whether it adds or subtracts, so that no contraction can be meant.
    pub sum: bool,
    pub left: (Span, Vec<DimId>),
    pub right: (Span, Vec<DimId>),
}

impl Tree {
    pub fn leaf(dims: &[DimId]) -> Tree {
        Tree { leaves: vec![dims.to_vec()], ..Tree::default() }
    }

    pub fn iota(dims: &[DimId]) -> Tree {
        Tree { iotas: dims.to_vec(), ..Tree::default() }
    }

    pub fn union(&self) -> Vec<DimId> {
        let mut all: Vec<DimId> = Vec::new();
        for d in self.leaves.iter().flatten().chain(&self.iotas) {
            if !all.contains(d) {
                all.push(*d);
            }
        }
        all
    }

    /// Whether one leaf, together with the iotas, has all dims of the tree.
    pub fn covered(&self) -> bool {
        let all = self.union();
        let none = Vec::new();
        let leaves: Vec<&Vec<DimId>> = if self.leaves.is_empty() { vec![&none] } else { self.leaves.iter().collect() };
        leaves.iter().any(|l| all.iter().all(|d| l.contains(d) || self.iotas.contains(d)))
    }

    pub fn merge(&mut self, other: Tree) {
        for leaf in other.leaves {
            if !self.leaves.contains(&leaf) {
                self.leaves.push(leaf);
            }
        }
        self.iotas.extend(other.iotas);
        if self.conflict.is_none() {
            self.conflict = other.conflict;
        }
    }
}

/// A value with what is needed to use it as an operand.
#[derive(Clone, Debug)]
pub struct Ev {
    pub val: Val,
    pub span: Span,
    /// Some: the expression is elementwise and its tree is still open.
    pub tree: Option<Tree>,
}

impl Ev {
    pub fn new(val: Val, span: Span) -> Ev {
        Ev { val, span, tree: None }
    }

    pub fn error(span: Span) -> Ev {
        Ev::new(Val::Error, span)
    }
}

/// What a setting or dim parameter is bound to at one use of a definition.
#[derive(Clone, Debug)]
pub enum StaticVal {
    Dim(DimSet),
    Const(Const),
}

/// A declared type with its dims found.
#[derive(Clone, Debug)]
pub struct Declared {
    /// None: a float without annotation.
    pub dtype: Option<DType>,
    /// All dims in declared order: those before `->`, then those after.
    pub dims: Vec<DimId>,
    pub rest: bool,
    /// Input and output dims of a linear map; `dims` outside both are mapped over.
    pub map: Option<(Vec<DimId>, Vec<DimId>)>,
    pub span: Span,
}

/// A definition with its brackets filled in.
#[derive(Clone, Debug)]
pub struct Bound {
    pub def: ItemRef,
    pub statics: Vec<(String, StaticVal)>,
    pub span: Span,
}
