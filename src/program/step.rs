//! The steps of a routine: kernels, matrix products, library kernels, exchanges between ranks, loops.
//!
//! Shapes of library kernels are canonical: the compiler copies operands into the stated row-major order where they are
//! not in it already. All sizes, strides and offsets count elements unless a field says bytes.

use super::{Attention, AttentionGrad, BufferId, SourceId, Work};
use crate::mesh::{Atom, CollectiveKind, Cut};
use crate::types::rng::Dist;
use crate::types::{DType, ReduceKind, When};
use serde::{Deserialize, Serialize};

/// One step with where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub action: Action,
    pub source: SourceId,
    /// What it computes, for profiles: `softmax`, `dot`, ..
    pub label: String,
    /// In which runs of the routine.
    pub when: When,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Action {
    Launch(Launch),
    Gemm(Gemm),
    Finished(Finished),
    /// Copies all bytes of `from` (same size as `to`; the two are equal or do not overlap).
    Copy {
        from: BufferId,
        to: BufferId,
    },
    Library(Library),
    /// Begins an exchange: says where the rank's part is and goes on. Until the exchange is waited for, nothing writes that part
    /// or touches the result.
    Collective(Box<Collective>),
    /// Ends exchanges of one set of groups that were begun before in the same list of steps, in that order.
    Wait(Vec<Begun>),
    Loop(Loop),
    Call(Call),
    /// Says that a buffer is there for another rank of the pipeline, and goes on.
    Send(Transfer),
    /// Waits for what another rank sends, and takes it.
    Receive(Transfer),
    /// Waits until what was sent has been taken.
    Sent(Transfer),
}

/// Runs the steps of another routine, which calls none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub routine: u32,
    /// What its [`super::Place::Argument`]s are, by their numbers.
    pub args: Vec<Arg>,
    /// Its arena.
    pub workspace: BufferId,
    /// It computes for the next step.
    pub ahead: bool,
}

/// Between ranks that differ only in where they are along the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The other one's coordinate along the pipeline.
    pub peer: u32,
    pub buffer: BufferId,
    /// The same for both, and used once in a run.
    pub number: u32,
}

/// A call of a compiled kernel: rows 0..rows, in any order and on any threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Index of the kernel: into the compiler's list of kernels and into `Code::functions`.
    pub function: u32,
    /// In the order of the kernel's buffers.
    pub args: Vec<Arg>,
    /// In the order of the kernel's scalars; computed by the runtime just before the call.
    pub scalars: Vec<Scalar>,
    pub rows: usize,
    /// Least number of rows worth giving to a thread. A multiple of the kernel's lanes where it has any.
    pub grain: usize,
    pub work: Work,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arg {
    pub buffer: BufferId,
    pub access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Access {
    Read,
    /// Every element that is ever read later is written, or it was written before (a part of a concatenation).
    Write,
    ReadWrite,
}

impl Access {
    pub fn reads(self) -> bool {
        self != Access::Write
    }

    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

/// A number (u64) that a kernel is called with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scalar {
    /// The key of a random stream.
    Key(Key),
    /// Where the rank's part of an array begins: the sum of its coordinates along atoms, each times a number.
    Origin(Vec<(Atom, u64)>),
}

impl Scalar {
    fn turns(&self) -> &[BufferId] {
        match self {
            Scalar::Key(key) => &key.turns,
            Scalar::Origin(_) => &[],
        }
    }

    fn turns_mut(&mut self) -> &mut [BufferId] {
        match self {
            Scalar::Key(key) => &mut key.turns,
            Scalar::Origin(_) => &mut [],
        }
    }
}

/// `rng::key(seed, step, stream, turn)`, where `turn` is `rng::turns` of the I32 cells in `turns`, outermost loop first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    pub stream: u64,
    pub turns: Vec<BufferId>,
}

/// For every index of `batch`: c[m, n] = sum over `sums` and k of a[m, k] * b[k, n].
///
/// Operands have one dtype. Accumulation is in f32 (f64 for F64); 16-bit results are rounded once, at the end. An empty
/// sum (k = 0 or an extent of 0 in `sums`) writes zeros. I32 operands wrap (rare; need not be fast).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gemm {
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Independent products; major first.
    pub batch: Vec<BatchDim>,
    /// Further contracted dims that do not merge with k (their `c` stride is 0).
    pub sums: Vec<BatchDim>,
    /// Dtype of a and b.
    pub dtype: DType,
    /// Dtype of c.
    pub out: DType,
    /// Adds to what c holds instead of overwriting it; then c is read, too. Only for F32 and F64 results.
    pub accumulate: bool,
}

/// Most arguments of a kernel that finishes a product.
pub const MAX_FINISH_ARGS: usize = 32;

/// A product and the kernel that reads its result block by block: when some elements of some lines of c (see [`Gemm::c_rows`])
/// are made, the kernel's rows that read them run on the same thread. Nobody else reads the result, which is never there as
/// a whole ([`super::Place::Strip`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Without batch and further sums.
    pub gemm: Gemm,
    /// Row r of the kernel reads elements r * n .. (r + 1) * n of c, for one n: a part of a line, or whole lines.
    pub launch: Launch,
    /// Arguments whose elements the kernel reads where it reads those of c.
    pub beside: Vec<u32>,
}

impl Gemm {
    /// Rows of c, each a run of elements side by side, and their width; m and n or the other way round. None where c is
    /// not dense.
    pub fn c_rows(&self) -> Option<(usize, usize)> {
        let (m, n) = (self.m as isize, self.n as isize);
        match (self.c.rows, self.c.cols) {
            (rows, 1) if rows == n => Some((self.m, self.n)),
            (1, cols) if cols == m => Some((self.n, self.m)),
            _ => None,
        }
    }
}

/// Where a matrix lies: element (i, j) is at `offset + i * rows + j * cols`. For a: i = m, j = k; b: i = k, j = n; c: i = m, j = n.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    pub buffer: BufferId,
    pub offset: usize,
    pub rows: isize,
    pub cols: isize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchDim {
    pub extent: usize,
    pub a: isize,
    pub b: isize,
    pub c: isize,
}

/// Kernels of the runtime itself. All arrays are row-major and whole buffers, but those of attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Library {
    /// x [rows, n] -> out [rows, n] (I32): the stable ascending order of each row; NaN sorts last.
    ArgSort {
        x: BufferId,
        out: BufferId,
        rows: usize,
        n: usize,
    },
    /// x [rows, n] -> out [rows, k] (I32): indices of the largest, largest first, ties by lowest index.
    TopK {
        x: BufferId,
        out: BufferId,
        rows: usize,
        n: usize,
        k: usize,
    },
    /// index [rows, n] (I32) -> out [rows, n] (I32): how many earlier elements of the row are equal; -1 at or beyond `limit`,
    /// and -1 for negative indices.
    PackPlace {
        index: BufferId,
        out: BufferId,
        rows: usize,
        n: usize,
        limit: usize,
    },
    /// logits [rows, n] -> out [rows] (I32): a class drawn from softmax(logits) among the `top_k` largest (0: all) that hold
    /// `top_p` of the probability. Row r uses `rng::unit(key, r)`.
    Draw {
        logits: BufferId,
        out: BufferId,
        rows: usize,
        n: usize,
        top_k: u32,
        top_p: f64,
        key: Key,
    },
    /// out (F32): `rng::draw(dist, key, i)` at every i; `dist` is a distribution of floats.
    Random {
        out: BufferId,
        dist: Dist,
        key: Key,
    },
    /// x [batch, m, width], of which every `each` rows are there once for `times` repetitions one after the other, index
    /// [batch, m] (I32) -> out [batch, targets, width]: `kind` (Sum, Max, Min) over all m with
    /// index[b, m] = t, in ascending order of m; targets that nothing reaches get 0 (Sum), -inf (Max), inf (Min) or the
    /// bounds of I32. Negative indices are dropped; others are in range (the compiler has put a check before it).
    /// Sums of 16-bit floats accumulate in f32. With `add` (sums of F32 and F64) they are added to what out holds.
    Scatter {
        kind: ReduceKind,
        x: BufferId,
        index: BufferId,
        out: BufferId,
        batch: usize,
        m: usize,
        targets: usize,
        width: usize,
        times: usize,
        each: usize,
        add: bool,
    },
    Attention(Box<Attention>),
    AttentionGrad(Box<AttentionGrad>),
}

/// What the ranks of a group hold becomes what `to` says: see `ir::Collective`. All ranks of the mesh begin it, and wait for it, at the
/// same places of their program. Both buffers are whole and row-major over `dims`, and apart unless it is in place; elements of `to` that are not real
/// become 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Collective {
    pub kind: CollectiveKind,
    /// Ranks that differ only along these exchange what they hold; major first.
    pub atoms: Vec<Atom>,
    /// The atoms over which `from` is partial and `to` is not.
    pub reduce: Option<(ReduceKind, Vec<Atom>)>,
    pub dtype: DType,
    pub from: BufferId,
    pub to: BufferId,
    /// In the order of storage, major first.
    pub dims: Vec<Exchanged>,
    /// See `ir::Collective`.
    pub hops: u32,
    /// Through all collectives of the routine, in order.
    pub number: u32,
}

/// An exchange that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// That of the collective.
    pub number: u32,
    pub kind: CollectiveKind,
    pub from: BufferId,
    pub to: BufferId,
}

impl Collective {
    /// Whether the result may lie where the operand is: all ranks of a group get the same, and each reduces a part of it, which
    /// the others read nothing of.
    pub fn is_in_place(&self) -> bool {
        let reduces = |a| self.reduce.as_ref().is_some_and(|(_, reduced)| reduced.contains(a));
        !self.atoms.is_empty() && self.atoms.iter().all(reduces) && self.dims.iter().all(|d| d.from == d.to)
    }
}

/// A dim of both arrays of a collective.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Exchanged {
    /// Of the whole.
    pub extent: usize,
    pub from: Cut,
    pub to: Cut,
}

/// `trip` turns. Before each turn the runtime writes the turn's number (0, 1, ..; `trip - 1`, .. , 0 if `reverse`) to the I32
/// cell `turn`, then runs `body`, then `moves` (each copies all bytes of a buffer; no source is a target of an earlier move).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loop {
    pub trip: usize,
    pub reverse: bool,
    pub turn: BufferId,
    pub body: Vec<Step>,
    pub moves: Vec<(BufferId, BufferId)>,
}

impl Launch {
    fn accesses(&self, visit: &mut impl FnMut(BufferId, Access)) {
        self.args.iter().for_each(|a| visit(a.buffer, a.access));
        self.scalars.iter().flat_map(Scalar::turns).for_each(|b| visit(*b, Access::Read));
    }

    fn buffers_mut(&mut self, change: &mut impl FnMut(&mut BufferId)) {
        self.args.iter_mut().for_each(|a| change(&mut a.buffer));
        self.scalars.iter_mut().flat_map(Scalar::turns_mut).for_each(change);
    }
}

impl Gemm {
    fn accesses(&self, visit: &mut impl FnMut(BufferId, Access)) {
        visit(self.a.buffer, Access::Read);
        visit(self.b.buffer, Access::Read);
        visit(self.c.buffer, if self.accumulate { Access::ReadWrite } else { Access::Write });
    }

    fn buffers_mut(&mut self, change: &mut impl FnMut(&mut BufferId)) {
        [&mut self.a, &mut self.b, &mut self.c].into_iter().for_each(|m| change(&mut m.buffer));
    }
}

impl Action {
    /// Calls `visit` for each buffer named by this action (not for those of a loop's body or its moves; not for the
    /// cells and bases of slices).
    pub fn accesses(&self, mut visit: impl FnMut(BufferId, Access)) {
        match self {
            Action::Launch(launch) => launch.accesses(&mut visit),
            Action::Gemm(gemm) => gemm.accesses(&mut visit),
            Action::Finished(f) => {
                f.gemm.accesses(&mut visit);
                f.launch.accesses(&mut visit);
            }
            Action::Copy { from, to } => {
                visit(*from, Access::Read);
                visit(*to, Access::Write);
            }
            Action::Library(Library::ArgSort { x, out, .. } | Library::TopK { x, out, .. })
            | Action::Library(Library::PackPlace { index: x, out, .. }) => {
                visit(*x, Access::Read);
                visit(*out, Access::Write);
            }
            Action::Library(Library::Draw { logits, out, key, .. }) => {
                visit(*logits, Access::Read);
                key.turns.iter().for_each(|b| visit(*b, Access::Read));
                visit(*out, Access::Write);
            }
            Action::Library(Library::Random { out, key, .. }) => {
                key.turns.iter().for_each(|b| visit(*b, Access::Read));
                visit(*out, Access::Write);
            }
            Action::Library(Library::Scatter { x, index, out, add, .. }) => {
                visit(*x, Access::Read);
                visit(*index, Access::Read);
                visit(*out, if *add { Access::ReadWrite } else { Access::Write });
            }
            Action::Library(Library::Attention(a)) => a.accesses(&mut visit),
            Action::Library(Library::AttentionGrad(a)) => a.accesses(&mut visit),
            Action::Collective(c) => visit(c.from, Access::Read),
            Action::Wait(all) => {
                for b in all {
                    visit(b.from, Access::Read);
                    visit(b.to, Access::Write);
                }
            }
            Action::Loop(l) => visit(l.turn, Access::Write),
            Action::Call(c) => {
                c.args.iter().for_each(|a| visit(a.buffer, a.access));
                visit(c.workspace, Access::Write);
            }
            Action::Send(t) | Action::Sent(t) => visit(t.buffer, Access::Read),
            Action::Receive(t) => visit(t.buffer, Access::Write),
        }
    }

    /// Calls `change` for each buffer named by this action, those of a loop's body and moves included.
    pub fn buffers_mut(&mut self, change: &mut impl FnMut(&mut BufferId)) {
        match self {
            Action::Launch(launch) => launch.buffers_mut(change),
            Action::Gemm(gemm) => gemm.buffers_mut(change),
            Action::Finished(f) => {
                f.gemm.buffers_mut(change);
                f.launch.buffers_mut(change);
            }
            Action::Copy { from, to } => [from, to].into_iter().for_each(change),
            Action::Library(Library::ArgSort { x, out, .. } | Library::TopK { x, out, .. })
            | Action::Library(Library::PackPlace { index: x, out, .. }) => [x, out].into_iter().for_each(change),
            Action::Library(Library::Draw { logits, out, key, .. }) => {
                [logits, out].into_iter().chain(&mut key.turns).for_each(change);
            }
            Action::Library(Library::Random { out, key, .. }) => {
                std::iter::once(out).chain(&mut key.turns).for_each(change);
            }
            Action::Library(Library::Scatter { x, index, out, .. }) => [x, index, out].into_iter().for_each(change),
            Action::Library(Library::Attention(a)) => a.buffers_mut(change),
            Action::Library(Library::AttentionGrad(a)) => a.buffers_mut(change),
            Action::Collective(c) => [&mut c.from, &mut c.to].into_iter().for_each(change),
            Action::Wait(all) => all.iter_mut().flat_map(|b| [&mut b.from, &mut b.to]).for_each(change),
            Action::Call(c) => {
                c.args.iter_mut().for_each(|a| change(&mut a.buffer));
                change(&mut c.workspace);
            }
            Action::Send(t) | Action::Receive(t) | Action::Sent(t) => change(&mut t.buffer),
            Action::Loop(l) => {
                change(&mut l.turn);
                for step in &mut l.body {
                    step.action.buffers_mut(change);
                }
                for (from, to) in &mut l.moves {
                    change(from);
                    change(to);
                }
            }
        }
    }
}
