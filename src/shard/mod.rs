//! Shards a program: from rules about dims to the one program that every rank of a mesh runs.
//!
//! In: a verified, pruned graph on whole shapes, and [`Rules`]. Out: a [`Sharded`]: the graph of a rank, in which dims are parts
//! of wholes and collectives stand where layouts change, and why each of them is there. No strategy is known here: data, tensor, sequence and
//! expert parallelism and ZeRO are layouts.
//!
//! Invariants of the result (checked by `verify.rs`): operands of every operation agree in how their dims are cut; what is
//! partial reaches only operations that are linear in it, or a collective that reduces it; groups of collectives are atoms of the mesh.
//!
//! Reading order: `nest.rs` (what an operation is to sharding), `classes.rs` (what repeats), `facts.rs` (what rules say of
//! values), `propagate.rs` (what follows), `assign.rs` (which loops of an operation are cut), `halo.rs` and `ring.rs` (windows and
//! attention over parts), `reduce.rs` (where partial values are reduced), `emit/` (the graph of a rank), `hoist.rs` (what loops need not
//! repeat), `overlap.rs` (what runs while ranks
//! exchange), `explain.rs` (what was decided, to be told). The rules are written down in `docs/layouts.md`.

mod assign;
mod bounds;
mod classes;
mod emit;
mod explain;
mod facts;
mod halo;
mod hoist;
mod local;
mod nest;
mod overlap;
mod propagate;
mod reduce;
mod ring;
mod units;
mod verify;

use crate::diag::Diagnostic;
use crate::ir::*;
use crate::mesh::{Entry, Mesh};
use crate::source::Span;

pub use verify::verify;

/// What a plan asks for, in terms of the graph.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub mesh: Mesh,
    pub pins: Vec<Pin>,
    pub zero: Vec<Zero>,
    /// Atoms along which keys and values go round in a ring, where queries are cut by the same.
    pub ring: Vec<crate::mesh::Atom>,
    pub bounds: Vec<Bound>,
}

/// Buffers of rows that are packed by a dim have room for this many times the even share of its elements.
#[derive(Clone, Debug)]
pub struct Bound {
    pub dim: DimId,
    pub factor: f64,
}

/// One dim, cut by these entries (none: not cut) wherever it occurs in the scope.
#[derive(Clone, Debug)]
pub struct Pin {
    pub dim: DimId,
    pub entries: Vec<Entry>,
    /// None: everywhere.
    pub place: Option<Place>,
    pub strength: Strength,
    pub span: Span,
}

/// Weakest first. Within one, deeper scopes are stronger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Strength {
    Statement,
    Layout,
    Inline,
}

/// Where a pin holds.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Bodies; all that is called from inside belongs to them.
    pub roots: Vec<ScopeId>,
    /// Only values of this name in the bodies themselves, and these parameters and states.
    pub named: Option<String>,
    /// Only values of expressions that stand here, in the bodies themselves.
    pub site: Option<Span>,
    pub params: Vec<ParamId>,
    pub states: Vec<StateId>,
}

/// ZeRO: what is stored cut along atoms beside the cuts of its layout.
#[derive(Clone, Debug)]
pub struct Zero {
    /// 1: optimizer state; 2: gradients too; 3: parameters too.
    pub level: u8,
    pub atoms: Vec<crate::mesh::Atom>,
    /// None: all parameters.
    pub place: Option<Place>,
    pub regather: Regather,
    pub span: Span,
}

/// How often parameters that are stored in parts are gathered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regather {
    /// Before their use in the forward pass and again in the backward pass.
    Backward,
    /// In the forward pass of each microbatch, and kept for its backward pass.
    Never,
    /// Once, before the first microbatch.
    Step,
}

/// The program of a rank.
#[derive(Debug, Default)]
pub struct Sharded {
    pub graph: Graph,
    /// By operation of `graph`: why a collective is there.
    pub reasons: Vec<Option<Reason>>,
    pub warnings: Vec<Diagnostic>,
    /// The whole program, its layouts and how they came about.
    pub story: Story,
}

/// Why a collective is there.
#[derive(Clone, PartialEq, Debug)]
pub struct Reason {
    /// The statement that has the backward pass repeat it, of a repetition.
    pub again: Option<Span>,
    /// The operation (of the whole program) that needs the value so, or that made it partial.
    pub operation: OpId,
    pub why: Why,
    /// The value of the whole program that moves.
    pub value: ValueId,
    /// Sent per rank at each execution, mean over ranks.
    pub bytes: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The operation's loops are cut otherwise than the value.
    Operand,
    /// The operation makes the value in another layout than it has.
    Result,
    /// The parts of a sum become the sum.
    Reduction,
    /// It goes round in a ring.
    Ring,
    /// What blocks come to: totals of those that follow each other, the best of each.
    Chain,
    /// A new parameter or state goes to its place, or an output leaves.
    Output,
}

/// Shards a graph; the layouts of its parameters and states are given by path, as [`storage`] says them for the training step.
pub fn shard(graph: &Graph, rules: &Rules, storage: &Storage) -> Sharded {
    spread(graph, rules, storage).ordered()
}

/// The same before operations are put into an order in which exchanges run beside others: see [`ordered`].
pub fn spread(graph: &Graph, rules: &Rules, storage: &Storage) -> Sharded {
    let graph = facts::with_edges(&bounds::bounded(graph, rules), rules);
    let classes = classes::Classes::new(&graph);
    let mut state = facts::State::new(&graph, rules, storage, classes);
    for phase in [Phase::Forward, Phase::Backward] {
        propagate::propagate(&mut state, phase);
        assign::assign(&mut state, phase);
    }
    reduce::place_reductions(&mut state);
    let mut out = emit::emit(&state);
    hoist::gathers(&mut out.graph);
    let once = |path: &str| storage.params.get(path).is_some_and(|s| s.regather == Regather::Step);
    hoist::parameters(&mut out.graph, &once);
    out.reasons.resize(out.graph.ops.len(), None);
    out.story = Story::of(state);
    out.story.graph = graph;
    out
}

/// The program of a rank with its operations in an order in which exchanges run beside others.
pub fn ordered(mut graph: Graph) -> Graph {
    overlap::overlap(&mut graph);
    graph
}

impl Sharded {
    /// Takes note of what was made of the program, because of a statement: of each operation which one it was or repeats.
    pub fn repeated(&mut self, origins: &[OpId], span: Span) {
        let of = |(op, old): (&Operation, &OpId)| {
            let reason = self.reasons[old.index()].clone()?;
            Some(Reason { again: op.again.then_some(span), ..reason })
        };
        self.reasons = self.graph.ops.iter().zip(origins).map(of).collect();
    }

    /// With its operations in their order.
    pub fn ordered(self) -> Sharded {
        Sharded { graph: ordered(self.graph), ..self }
    }
}

pub use bounds::bounds_some;
pub use explain::{Choice, Link, Priced, Story};
pub use facts::{Storage, storage};
pub use nest::{Along, Nest};
pub use overlap::overlapped;
