//! The graph IR: one SSA program on global shapes over named dims.
//!
//! In: what `elaborate` emits through [`Builder`]. Out: a [`Graph`] that `autodiff` extends, `interp` evaluates and
//! `kernel` lowers. Reading order: this file (types), `builder.rs` (the only way to add operations; derives result
//! types), `verify.rs` and `rules.rs` (the invariants; what each operation demands), `print.rs`, `lex.rs` and `parse.rs` (text
//! form, round trip), `digest.rs` (bytes for fingerprints), `prune.rs` (dead code and common subexpressions),
//! `again.rs` (what is computed twice instead of being kept), `work.rs` (how much is computed), `mincut.rs` (minimum cuts, by which passes
//! choose).
//!
//! Invariants (checked by `verify`):
//! - operations of a block stand in an order in which every operand is defined before its use;
//! - no dim occurs twice in a value; the order of a value's dims is its storage order (row-major) and has no meaning
//!   beyond that: a pass may permute it wherever the value is no parameter, state or input;
//! - an elementwise operation's result has exactly the union of its operands' dims, and each operand's dims are a
//!   subset of it (broadcasting by name);
//! - a block uses only its own values: what a loop body needs from outside is an explicit capture.

pub mod again;
pub mod builder;
pub mod digest;
mod dims;
mod lex;
pub mod mincut;
pub mod parse;
pub mod print;
pub mod prune;
mod rules;
mod table;
pub mod verify;
pub mod work;

pub use crate::mesh::CollectiveKind;
use crate::mesh::{Atom, Entry, Mesh, cut};
use crate::source::{SourceMap, Span};
use crate::types::rng::Dist;
use crate::types::{DType, MapOp, ReduceKind, ScanKind};
pub use builder::Builder;
use serde::{Deserialize, Serialize};
pub use table::Table;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $prefix:literal)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    )*};
}

ids! {
    /// A dim of the graph.
    DimId "d"
    /// A value, `%3` in text.
    ValueId "%"
    OpId "op"
    BlockId "block"
    ParamId "param"
    StateId "state"
    InputId "input"
    /// The instance and call site that an operation came from.
    ScopeId "scope"
}

/// A named extent. Dims are nominal: two dims of one size are different.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dim {
    /// As the user knows it: `seq`, `Attention.key`. Unique in a graph (`#2` is appended to a second one).
    pub name: String,
    pub size: usize,
    /// The slot dim of `pack`: rows beyond an expert's count do not exist (they are zero).
    pub ragged: bool,
    /// Only in the program of a rank: the part of a dim that each rank holds. `size` is the nominal extent of the part.
    #[serde(default)]
    pub cut: Option<CutDim>,
}

/// The whole that a dim is a part of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CutDim {
    /// Its extent.
    pub extent: usize,
    /// How the mesh cuts it, major first; never empty.
    pub entries: Vec<Entry>,
}

/// An array.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Value {
    pub dtype: DType,
    /// In storage order, major first.
    pub dims: Vec<DimId>,
    pub block: BlockId,
    pub def: Def,
    /// A name from the source for printing; not unique.
    pub name: Option<String>,
}

/// What defines a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Def {
    /// Result number of an operation.
    Op(OpId, u32),
    /// Parameter number of a block (the body of a loop).
    BlockParam(u32),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    pub op: Op,
    pub args: Vec<ValueId>,
    pub results: Vec<ValueId>,
    pub block: BlockId,
    pub span: Option<Span>,
    pub scope: ScopeId,
    /// Which pass of training it belongs to.
    pub phase: Phase,
    /// Of the backward pass: it computes once more what an operation of the forward pass computes, so that this need not be kept. The two
    /// are never made one.
    #[serde(default)]
    pub again: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Phase {
    Forward,
    Backward,
    Update,
}

/// A straight list of operations. Block 0 is the program; others are loop bodies.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Block {
    /// For a loop body: turn (I32 scalar), carries, captures, in this order.
    pub params: Vec<ValueId>,
    pub ops: Vec<OpId>,
    /// For a loop body: next carries, then collected values.
    pub results: Vec<ValueId>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Graph {
    pub dims: Table<Dim>,
    pub values: Vec<Value>,
    pub ops: Vec<Operation>,
    pub blocks: Vec<Block>,
    pub params: Table<Param>,
    pub states: Table<State>,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    pub scopes: Table<Scope>,
    /// Of the ranks that run it; without axes where there is one.
    #[serde(default)]
    pub mesh: Mesh,
}

/// Where an operation came from: the instance path (`block.3.attention`) and the definition's name (`Attention`).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Scope {
    pub path: String,
    pub definition: String,
    pub parent: Option<ScopeId>,
    /// Where the definition is called.
    #[serde(default)]
    pub site: Option<Span>,
    /// The loops of the model's body in one turn of which it was called, outermost first: their dims, and the turns' numbers.
    /// Empty for what is called by others.
    #[serde(default)]
    pub turns: Vec<(DimId, u32)>,
}

/// A trained parameter. Read by `Op::Param`; its master copy is f32 (f64 under `precision f64`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Param {
    /// `block.3.attention.wq`
    pub path: String,
    /// Type of the master copy.
    pub dtype: DType,
    /// In declared order, which is also the order in checkpoints.
    pub dims: Vec<DimId>,
    /// Input and output dims where it is declared as a linear map; dims in neither are mapped over.
    pub map: Option<(Vec<DimId>, Vec<DimId>)>,
    pub span: Option<Span>,
}

/// A value that lives from step to step and is not trained: model state, optimizer state, the loss scale.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// `norm.running_mean`; of an optimizer `adamw.m:block.3.attention.wq`.
    pub path: String,
    pub dtype: DType,
    pub dims: Vec<DimId>,
    pub kind: StateKind,
    pub span: Option<Span>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum StateKind {
    Model,
    Optimizer,
    /// A second set of weights (`average`).
    Average,
    /// What a parameter will be in the next step, where it is known by then; it lies as the parameter does.
    Latest,
    /// Loss scale and counters of the runtime.
    Scaling,
    /// What a sampling program keeps from position to position.
    Cache,
    /// None of the above: what the caller of a function hands to it and gets from it (see `pipeline`).
    Argument,
}

/// Something fed at each step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Input {
    pub name: String,
    pub dtype: DType,
    /// In declared order: the order of axes in data files.
    pub dims: Vec<DimId>,
    pub span: Option<Span>,
}

/// A value that leaves the step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Output {
    pub kind: OutputKind,
    pub name: String,
    pub value: ValueId,
    pub span: Option<Span>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum OutputKind {
    /// A loss term, f32 scalar.
    Loss,
    Metric,
    /// `output name = e`
    Value,
    /// The new value of a parameter.
    Param(ParamId),
    /// The new value of a state.
    State(StateId),
    /// Initial values: the value of a parameter or state before the first step (in an initialisation graph).
    InitParam(ParamId),
    InitState(StateId),
}

/// A constant.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Constant {
    /// The same value everywhere. Integers up to 2^53 are exact. Bool: 0 or 1.
    Splat(f64),
    /// One number an element, in the order of the result's dims.
    Elements(Vec<f64>),
}

/// One operation. Operand order is that of the docs below. "x's dims" are by name; order never matters.
///
/// Result types are derived by `Builder`; each rule is stated there and in `verify`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Op {
    // ---- leaves (no operands)
    /// The master copy of a parameter.
    Param(ParamId),
    State(StateId),
    Input(InputId),
    Constant(Constant),
    /// I32 [dim]: 0, 1, ..
    Iota(DimId),
    /// I32 scalar: the number of this step, from 0 (in evaluation and sampling: the batch or sample number).
    Step,
    /// I32 scalar: the position of the first element along the streamed dim; only in sampling programs.
    Position,
    /// A draw; `stream` from `rng::stream(path)`. The logical index is row-major over `dims` in this order, which need not
    /// be the storage order. Operands: the turns of enclosing loops (I32 scalars), outermost first. F32, or I32 for
    /// RandInt, Bool for Bernoulli.
    Random {
        dist: Dist,
        stream: u64,
        dims: Vec<DimId>,
    },
    // ---- elementwise
    Map(MapOp),
    /// x, widened by `dims` that it lacks.
    Broadcast {
        dims: Vec<DimId>,
    },
    // ---- contractions and reductions
    /// Reduces over `dims` (all of which x has). Any/All: Bool. Sum over an empty set 0, Prod 1, Max -inf, Min inf (I32:
    /// its bounds). Sum/Prod keep the dtype that the builder was asked for.
    Reduce {
        kind: ReduceKind,
        dims: Vec<DimId>,
    },
    /// a, b of one dtype: sum over `contract` of a * b; every dim of `contract` is in both. Shared dims not contracted are
    /// batch dims. The result's dtype may be wider than the operands' (accumulation is in f32, f64 for f64).
    Dot {
        contract: Vec<DimId>,
    },
    // ---- views and rearrangements
    /// All groups at once; each `from` list (major first) of x is replaced by the `to` list of equal total size. Rename,
    /// split, merge.
    Reshape {
        groups: Vec<(Vec<DimId>, Vec<DimId>)>,
    },
    /// out[o..] = x[.., axis.input = axis.offset + sum(coeff * o), ..], `fill` where that is outside. Slice, index by a
    /// constant, pad, flip, shift, windows. An axis whose `dynamic` is true takes its offset as operand (I32 scalar, after x, in axis
    /// order) added to `offset`; out of range is then clamped to fit. A dim of `terms` is a dim of the result.
    Window {
        axes: Vec<WindowAxis>,
        fill: f64,
    },
    /// The adjoint of `Window` (no dynamic axes, fill 0): out[.., axis.input = .., ..] is the sum of all x at places o that map to it.
    Fold {
        axes: Vec<WindowAxis>,
    },
    /// x, one I32 index per dim of `dims`: out = x[dims = indices]; dims (x's minus `dims`) union the indices' dims, common
    /// dims aligned. Out of range: a run-time error, or 0 for `Zero`.
    Gather {
        dims: Vec<DimId>,
        mode: GatherMode,
    },
    /// x, one I32 index per dim of `targets`: out is `kind` (Sum, Max, Min) over all elements of x whose indices are at
    /// `targets`; result dims: (x's and the indices' dims) minus `removed`, plus `targets`. Elements with an index out of
    /// range are dropped if negative, else a run-time error. The transpose of `Gather`.
    Scatter {
        kind: ReduceKind,
        removed: Vec<DimId>,
        targets: Vec<DimId>,
    },
    /// x_k has dim parts[k] where the result has `to`, whose size is the sum.
    Concat {
        parts: Vec<DimId>,
        to: DimId,
    },
    /// x_k become element k of the new dim.
    Stack {
        dim: DimId,
    },
    // ---- along one dim
    /// Running combinations. A running argmax keeps what it met first (`reverse`: the highest index); where nothing precedes
    /// (the first element of an exclusive one) it is -1.
    Scan {
        kind: ScanKind,
        dim: DimId,
        exclusive: bool,
        reverse: bool,
    },
    /// g, x: h[i] = g[i] * h[i-1] + x[i] from 0 (reverse: h[i] = g[i] * h[i+1] + x[i]); dims are the union.
    LinearScan {
        dim: DimId,
        reverse: bool,
    },
    /// I32: the indices that sort x along `dim`, ascending, stable. Here, in `TopK` and in argmax, NaN is larger than every number.
    ArgSort {
        dim: DimId,
    },
    /// I32 with `dim` replaced by `k`: indices of the largest, largest first, ties by lowest index.
    TopK {
        dim: DimId,
        k: DimId,
    },
    /// index (I32): its place in the queue of its expert, in row-major order over `packed` (I32), -1 at or beyond `limit`. One set of queues per
    /// combination of index's other dims. A negative index is in no queue: -1.
    PackPlace {
        packed: Vec<DimId>,
        limit: usize,
    },
    /// logits: a class along `dim` drawn from softmax(logits) (I32), among the `top_k` largest (0: all) that hold `top_p` of
    /// the probability. Further operands as for `Random`; logical index over `dims`. Exactly: classes are sorted by logit
    /// (largest first, ties by lowest index); the first `top_k` stay, then the shortest beginning of these whose weights
    /// e^(logit - largest) reach `top_p` of their total (at least one). The draw is the first kept class, in class order, at
    /// which the running sum of weights exceeds `rng::unit` times the kept total.
    Draw {
        dim: DimId,
        top_k: u32,
        top_p: f64,
        stream: u64,
        dims: Vec<DimId>,
    },
    // ---- attention
    /// q, keys, values, then the operands that [`Attention`] says. Results: of every query the values' mean by the weights
    /// exp(score - logsumexp), in q's type; and that logsumexp over all keys that are seen (F32, F64 for F64). A query that
    /// sees nothing has the result 0 and the logsumexp inf: exp(score - it) is 0. Scores and weights are held in F32 (F64) at least.
    Attention(Attention),
    /// Operands of the attention, its two results, the first one's cotangent. Results: the cotangents of q, keys and values,
    /// each with its operand's dims and type.
    AttentionGrad(Attention),
    // ---- other
    /// x; no derivative.
    StopGradient,
    /// A loop at run time over the `trip` turns of a dim. Operands: initial carries, then captures. Results: final carries,
    /// then collected values with `dim` added. The body's params and results: see `Block`.
    Loop {
        body: BlockId,
        dim: DimId,
        reverse: bool,
        carries: u32,
    },
    /// cache (with dim `dim`), x (with dim `part` instead), I32 scalar start: cache with x written at start ... Out of
    /// range: a run-time error. Only in sampling programs.
    WriteAt {
        dim: DimId,
        part: DimId,
    },
    // ---- many ranks
    /// I32 scalar: where this rank is along the atom.
    Coordinate(Atom),
    /// x: what the ranks of a group hold becomes what the result's layout says.
    Collective(Collective),
}

/// One move from layout to layout. All ranks run it at the same place of their program; those that differ only along `atoms`
/// exchange what they hold.
///
/// The dims of a value say how it is cut ([`Dim::cut`]). With `reduce`, the elements of x are parts along the atoms that
/// are named there: the result holds what the operator makes of them. Elements of the result's buffer that are not real are 0.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Collective {
    pub kind: CollectiveKind,
    /// The group, major first; empty for a slice.
    pub atoms: Vec<Atom>,
    /// The atoms over which x is partial and the result is not; a subset of the group. Parts are added in F32 (F64 for F64),
    /// in the order of ranks.
    pub reduce: Option<(ReduceKind, Vec<Atom>)>,
    /// Dims of x in exchange for dims of the result: parts of one whole, or the whole itself, in the same order of storage.
    pub dims: Vec<(DimId, DimId)>,
    /// Of a permutation in a ring, and 0 else: each rank of the group gets the array of the one so many places before it, as it is.
    pub hops: u32,
    /// Those with one number (not 0) are begun where they stand, one after the other, and waited for together. 0: for itself.
    pub bucket: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum GatherMode {
    /// Out of range stops the job and names the line.
    Error,
    /// Negative indices give 0; others out of range stop the job.
    Zero,
}

/// How one dim of x is addressed by dims of the result.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct WindowAxis {
    pub input: DimId,
    pub offset: i64,
    pub dynamic: bool,
    /// (dim of the result, coefficient); may be empty (an index).
    pub terms: Vec<(DimId, i64)>,
}

/// Which dims and operands an attention has.
///
/// The score of a query and a key is s = scale * (sum over `feature` of q * keys), then cap * tanh(s / cap) where `cap` is above 0,
/// then s + bias. A key is seen if all conditions hold; a score that is not seen counts for nothing, whatever it is. Dims of
/// keys but `key` and `feature` are those of values but `key` and `value`, and q has them all; q's further dims are rows
/// that share keys and values.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Attention {
    /// The position of a query: of q, and of neither keys nor values.
    pub query: DimId,
    /// The position of a key: of keys and values, and not of q.
    pub key: DimId,
    /// What scores sum over: of q and keys.
    pub feature: DimId,
    /// Of values and the result; may be `feature`.
    pub value: DimId,
    pub scale: f64,
    pub cap: f64,
    /// Key k is seen by query q only if k <= q.
    pub causal: bool,
    /// Only if q - k < reach.
    pub reach: Option<u32>,
    /// Two more operands, I32: numbers of queries (dims of q but `feature`) and of keys (dims of keys but `feature`); only
    /// where they are equal.
    pub documents: bool,
    /// One more operand, Bool, over some dims of q but `feature`, and `key`: only where it is true.
    pub mask: bool,
    /// One more operand, of q's type, over such dims. No derivative.
    pub bias: bool,
    /// One more operand, an I32 scalar: the position of the first query, by which `causal` and `reach` count; it is 0 without, and
    /// negative before the first key. In sampling programs, and where ranks hold parts of the queries.
    pub first: bool,
}

impl Attention {
    /// Number of operands of the attention.
    pub fn operands(&self) -> usize {
        let more = [self.mask, self.bias, self.first].map(usize::from).iter().sum::<usize>();
        3 + 2 * usize::from(self.documents) + more
    }

    /// The number of the operand that says where the first query is.
    pub fn position(&self) -> Option<usize> {
        self.first.then(|| self.operands() - 1)
    }

    /// The numbers of the operands for documents, the mask and the bias.
    pub fn extras(&self) -> (Option<usize>, Option<usize>, Option<usize>) {
        let mut next = 3;
        let mut take = |there: bool, n: usize| {
            let at = next;
            next += if there { n } else { 0 };
            there.then_some(at)
        };
        (take(self.documents, 2), take(self.mask, 1), take(self.bias, 1))
    }
}

impl Graph {
    pub fn dim(&self, id: DimId) -> &Dim {
        &self.dims[id.index()]
    }

    pub fn size(&self, id: DimId) -> usize {
        self.dims[id.index()].size
    }

    /// For each place of a rank's buffer along a dim the index in the whole; none where nothing is real.
    pub fn places(&self, id: DimId, rank: usize) -> Vec<Option<usize>> {
        let d = self.dim(id);
        let Some(c) = &d.cut else { return (0..d.size).map(Some).collect() };
        let mut all = vec![None; d.size];
        for s in cut::spans_of(&self.mesh, &c.entries, c.extent, rank) {
            (0..s.len).for_each(|i| all[s.local + i] = Some(s.global + i));
        }
        all
    }

    /// The extent of the whole that a dim is (a part of).
    pub fn extent(&self, id: DimId) -> usize {
        let d = self.dim(id);
        d.cut.as_ref().map_or(d.size, |c| c.extent)
    }

    /// The name of the whole that a dim is (a part of).
    pub fn whole_name(&self, id: DimId) -> &str {
        let Dim { name, cut, .. } = self.dim(id);
        let Some(c) = cut else { return name };
        let atoms: Vec<Atom> = c.entries.iter().map(|e| e.atom).collect();
        let part = format!(".{}", self.mesh.names(&atoms).join(".").replace(':', "."));
        let alone = name.split_once('#').map_or(name.as_str(), |n| n.0);
        alone.strip_suffix(&part).unwrap_or(name)
    }

    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    pub fn op(&self, id: OpId) -> &Operation {
        &self.ops[id.index()]
    }

    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }

    /// The operation that defines a value, unless it is a block's parameter.
    pub fn def_op(&self, id: ValueId) -> Option<&Operation> {
        match self.value(id).def {
            Def::Op(op, _) => Some(self.op(op)),
            Def::BlockParam(_) => None,
        }
    }

    /// The program's own call that led to an operation, where the standard library holds its place: lines of the library
    /// say little alone.
    pub fn called(&self, op: OpId, texts: &SourceMap) -> Option<Span> {
        let op = self.op(op);
        let _ = op.span.filter(|s| texts.in_library(*s))?;
        let mut sites = self.outwards(op.scope).filter_map(|s| self.scopes[s.index()].site);
        sites.find(|site| !texts.in_library(*site))
    }

    /// A scope and those around it, the outermost last.
    pub fn outwards(&self, scope: ScopeId) -> impl Iterator<Item = ScopeId> + '_ {
        let known = Some(scope).filter(|s| s.index() < self.scopes.len());
        std::iter::successors(known, |s| self.scopes[s.index()].parent)
    }

    /// Number of elements of the given dims; saturates.
    pub fn elements(&self, dims: &[DimId]) -> usize {
        dims.iter().fold(1usize, |n, d| n.saturating_mul(self.size(*d)))
    }

    /// Bytes of a value in memory; saturates.
    pub fn bytes(&self, id: ValueId) -> usize {
        let v = self.value(id);
        self.elements(&v.dims).saturating_mul(v.dtype.bytes())
    }

    pub fn output(&self, kind: OutputKind, name: &str) -> Option<&Output> {
        self.outputs.iter().find(|o| o.kind == kind && o.name == name)
    }
}

/// The program's own block.
pub const ENTRY: BlockId = BlockId(0);
/// The scope of the program itself.
pub const ROOT: ScopeId = ScopeId(0);
