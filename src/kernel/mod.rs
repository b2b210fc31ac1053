//! The kernel IR: fused loop nests over buffers, and the lowering of graphs to them.
//!
//! In: a verified `ir::Graph`. Out: [`Kernel`]s and a `program::Routine` whose launches call them. Reading order: this file
//! (the IR), then `lower` (graph to steps), then `print`.
//!
//! Execution of a kernel:
//! - for every *row* (a combination of the indices of `rows`, major first; the flat row number is row-major) its `body` runs
//!   once. Rows are independent: no row reads what another row of the same launch writes, so they run in any order, on
//!   any threads, several at once in the lanes of a vector;
//! - `body` is a list of statements in order. A [`Pass`] runs its loops (first outermost) and, in the innermost iteration,
//!   evaluates its carries, reductions and stores. A pass without loops runs once a row;
//! - an expression has no side effect and is evaluated where a statement uses it, at that iteration. An evaluated expression may
//!   be shared by the statements of one pass iteration, or hoisted out of loops that it does not depend on, but not over a
//!   statement that stores to a buffer that it loads.
//!
//! Within one iteration of a pass: all carries' new values, reductions and stores are evaluated with the registers as they
//! were when the iteration began; all loads come before all stores; then carries are updated.
//!
//! Types: an expression's `dtype` is its type in the program. F16 and BF16 are held in f32 registers: loads widen, stores round
//! (half to even), `Cast` to a 16-bit type rounds its value to that type, every other node computes in f32 and does not round.
//! Bool in memory is one byte, 0 or 1. I32 wraps.

#[cfg(test)]
mod eval;
mod index;
mod lower;
mod module;
mod operands;
mod pipelines;
pub mod print;
mod simplify;
mod work;

/// A step whose backward pass computes again what kernels would not keep for it; for passes that will be lowered apart.
pub fn keep_little(graph: crate::ir::Graph, options: &Options) -> crate::ir::Graph {
    lower::keep_little(graph, options)
}

pub use module::Module;

use crate::types::rng::Dist;
use crate::types::{DType, MapOp, ReduceKind};
use serde::{Deserialize, Serialize};

/// What lowering may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Put operations together into kernels. Without it every operation's result is in memory, where it can be looked at.
    pub fuse: bool,
    /// Bytes that must be gained for an operation of the forward pass to be repeated in the backward pass, so that its
    /// result need not be kept.
    pub recompute_from: usize,
    /// Elements from which on the parts of a stack or concatenation are written where they belong; smaller ones are made by
    /// one kernel.
    pub assemble_from: usize,
    /// Which values are made band by band.
    pub bands: Bands,
}

impl Default for Options {
    fn default() -> Options {
        Options { fuse: true, recompute_from: 16 << 10, assemble_from: 1 << 12, bands: Bands::default() }
    }
}

/// When a wide value (logits) is made some rows at a time, and how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bands {
    /// Bytes of a value that is worth it.
    pub least: usize,
    /// Bytes of a band, about.
    pub bytes: usize,
    /// Least rows of a band; a value of no more than two such bands stays whole.
    pub rows: usize,
    /// So many times more elements has a row of the value than one of what it is made of, and one of what comes out.
    pub wider: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// What it computes, for people; not part of its identity.
    pub name: String,
    /// Extent of every loop, by [`LoopId`]. The first `rows` of them are the parallel row loops, major first.
    pub extents: Vec<usize>,
    pub rows: usize,
    pub buffers: Vec<KernelBuffer>,
    /// Number of scalars (u64) that the caller passes: keys of random streams, and where counters begin.
    pub scalars: usize,
    /// Types of registers, by [`RegisterId`].
    pub registers: Vec<DType>,
    /// Operands stand before their users.
    pub exprs: Vec<Expr>,
    pub body: Vec<Statement>,
}

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
    /// A loop of a kernel: its index runs from 0 to its extent.
    LoopId "i"
    /// A buffer argument of a kernel.
    ArgId "p"
    ExprId "e"
    /// A scalar that a pass computes and later statements of the row read.
    RegisterId "r"
}

/// A buffer that the kernel is called with. Two arguments may name the same memory only if a row reads from it nothing
/// but elements that only the same row writes, in the same iteration (an update in place).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct KernelBuffer {
    pub dtype: DType,
    pub access: crate::program::Access,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Statement {
    /// Runs `body` for each turn of a loop in ascending order.
    For {
        index: LoopId,
        body: Vec<Statement>,
    },
    Pass(Pass),
}

/// A perfect loop nest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// Outermost first; the last is the one to vectorise or unroll. They run in ascending order where there are carries;
    /// otherwise the order is free, but fixed for given extents.
    pub loops: Vec<LoopId>,
    pub carries: Vec<Carry>,
    pub reductions: Vec<Reduction>,
    pub stores: Vec<Store>,
}

/// Folds the value of every iteration into a register, which starts at the neutral element when the pass begins and may be
/// read after it. Kinds: Sum, Prod, Max, Min (floats, I32), Any, All (Bool); never ArgMax, ArgMin. May be split over several accumulators
/// in an order that depends on nothing but the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduction {
    pub register: RegisterId,
    pub kind: ReduceKind,
    pub value: ExprId,
}

/// A register with a value that goes from iteration to iteration (scans, arg max). It is `initial` when the pass begins; during an
/// iteration it holds the value of the iteration before; then it becomes `next`. May be read after the pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Carry {
    pub register: RegisterId,
    /// Does not depend on the pass's loops.
    pub initial: ExprId,
    pub next: ExprId,
}

/// buffer[at] = value, where `when` (Bool) is absent or true.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Store {
    pub buffer: ArgId,
    pub at: Index,
    pub value: ExprId,
    pub when: Option<ExprId>,
}

/// base + sum of coefficient * loop index + sum of coefficient * expression (I32; summed in 64 bits). As an address it counts
/// elements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Index {
    pub base: i64,
    /// Each loop at most once, coefficients not 0, in ascending order of loops.
    pub loops: Vec<(LoopId, i64)>,
    pub exprs: Vec<(ExprId, i64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expr {
    pub node: Node,
    pub dtype: DType,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Node {
    /// Exact for I32; Bool: 0 or 1; floats: rounded to the dtype.
    Const(f64),
    /// The value of an index, as I32.
    Index(Index),
    /// buffer[at]; `fill` (in the buffer's type) where `when` (Bool) is false, and then the address may be out of bounds and
    /// must not be touched.
    Load { buffer: ArgId, at: Index, when: Option<ExprId>, fill: f64 },
    /// Semantics as on [`MapOp`]; operands have the types that it asks for.
    Map(MapOp, Vec<ExprId>),
    /// The current value of a register.
    Register(RegisterId),
    /// `rng::draw(dist, scalars[key], counter)`, the counter counted from `scalars[origin]` where there is one; I32 for RandInt (`rng::draw_int`), Bool for Bernoulli, else F32.
    Random { dist: Dist, key: u32, counter: Index, origin: Option<u32> },
    /// An index (I32) that must be in 0..size. If it is not, the kernel writes the site's number and the value to the status cell
    /// (first one wins, any of several at once) and goes on with 0; the runtime then stops the job after the step.
    Check { index: ExprId, size: usize, site: u32 },
}

impl Kernel {
    /// Number of rows.
    pub fn row_count(&self) -> usize {
        self.extents[..self.rows].iter().product()
    }

    pub fn expr(&self, id: ExprId) -> &Expr {
        &self.exprs[id.index()]
    }

    /// Whether the kernel does the same when the argument that it writes (`written`) and those that it reads (`read`) are
    /// one memory: one pass stores, every load is where that pass stores in the same iteration, and none is in a later pass.
    fn updates_in_place(&self, written: impl Fn(ArgId) -> bool, read: impl Fn(ArgId) -> bool) -> bool {
        // Per expression: whether it loads what is read, directly or not.
        let mut loads = vec![false; self.exprs.len()];
        let mut places: Vec<&Index> = Vec::new();
        for (i, expr) in self.exprs.iter().enumerate() {
            let mut uses_one = false;
            expr.operands(&mut |e| uses_one |= loads[e.index()]);
            let own = match &expr.node {
                Node::Load { buffer, at, .. } if read(*buffer) => {
                    places.push(at);
                    true
                }
                _ => false,
            };
            loads[i] = own || uses_one;
        }
        if places.is_empty() {
            return true;
        }
        let uses = |e: &ExprId| loads[e.index()];
        let mut stored = false;
        for statement in &self.body {
            let Statement::Pass(pass) = statement else { return false };
            let reads = pass.carries.iter().any(|c| uses(&c.initial) || uses(&c.next))
                || pass.reductions.iter().any(|r| uses(&r.value))
                || pass.stores.iter().any(|s| uses(&s.value) || s.at.exprs.iter().any(|(e, _)| uses(e)));
            if stored && reads {
                return false;
            }
            let stores: Vec<&Store> = pass.stores.iter().filter(|s| written(s.buffer)).collect();
            if stores.is_empty() {
                continue;
            }
            let own = |at: &&Index| stores.iter().any(|s| s.at == **at);
            if stored || stores.iter().any(|s| s.when.is_some()) || !places.iter().all(own) {
                return false;
            }
            stored = true;
        }
        true
    }
}

#[cfg(test)]
pub(crate) mod tests;
