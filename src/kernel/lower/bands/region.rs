//! Which operations can be done band by band.
//!
//! A value is *wide* if it has all dims of the rows and one of the dims that only the weights have. The region consists of all operations
//! that read or make a wide value that follows from the product, or hangs together with one that does, and of those between them. It is sound if
//! each of them takes rows one by one or reduces them all, and if nothing in it waits for such a total.

use super::Sizes;
use crate::ir::*;
use crate::kernel::Bands;
use crate::types::ReduceKind;
use std::collections::{BTreeSet, HashMap, HashSet};

#[derive(Debug)]
pub(super) struct Region {
    /// Dims of the rows, major first.
    pub rows: Vec<DimId>,
    pub sizes: Sizes,
    /// In the order of the block.
    pub ops: Vec<OpId>,
    /// Values that come from outside and have dims of the rows: each band takes its part.
    pub parts: Vec<ValueId>,
    /// Other values that come from outside.
    pub captures: Vec<ValueId>,
    /// Values of rows that leave.
    pub collected: Vec<ValueId>,
    /// Totals over the rows that leave, and how those of bands are combined.
    pub totals: Vec<(ValueId, ReduceKind)>,
    pub phase: Phase,
    /// Whether all of it repeats the forward pass.
    pub again: bool,
}

/// Searches without success by the sizes that they began with: layers are alike, and a search goes through the whole block.
#[derive(Default)]
pub(super) struct Failures(HashMap<(Vec<usize>, Vec<usize>, bool), u32>);

/// Searches in vain after which no other product that is alike is tried: the next ones may be read by others.
const SEARCHES: u32 = 3;

impl Failures {
    /// Of searches that begin with a product like this one, from this side.
    fn of(&mut self, graph: &Graph, op: &Operation, side: usize) -> &mut u32 {
        let sizes = |v: ValueId| graph.value(v).dims.iter().map(|d| graph.size(*d)).collect();
        let key = (sizes(op.args[side]), sizes(op.args[1 - side]), op.phase == Phase::Forward);
        self.0.entry(key).or_default()
    }
}

/// The first product of a block that can be cut.
pub(super) fn find(graph: &Graph, block: BlockId, bands: &Bands, failures: &mut Failures) -> Option<Region> {
    let mut known: Option<(Users, Vec<bool>)> = None;
    for id in &graph.block(block).ops {
        let op = graph.op(*id);
        if !matches!(op.op, Op::Dot { .. }) || graph.bytes(op.results[0]) < bands.least {
            continue;
        }
        let (users, weights) = known.get_or_insert_with(|| (Users::of(graph, block), of_weights(graph)));
        // Weights have no rows: a loop over their dims would sum activations over and over.
        for side in [0, 1].into_iter().filter(|side| !weights[op.args[*side].index()]) {
            // A hidden layer, which is not much wider than what it is made of, would free little.
            let inner = graph.elements(&graph.value(op.args[side]).dims);
            let wide = graph.elements(&graph.value(op.results[0]).dims);
            if inner.saturating_mul(bands.wider) > wide {
                continue;
            }
            let Some(mut search) = Search::new(graph, block, users, op, side) else { continue };
            if graph.elements(&search.rows) <= 2 * bands.rows || *failures.of(graph, op, side) >= SEARCHES {
                continue;
            }
            search.widen();
            // All that follows from the product, or at least what hangs together with it.
            let found =
                [search.following(), vec![search.product]].into_iter().find_map(|from| search.region(from, bands));
            if found.is_some() {
                return found;
            }
            *failures.of(graph, op, side) += 1;
        }
    }
    None
}

/// Which values are functions of parameters and states alone.
fn of_weights(graph: &Graph) -> Vec<bool> {
    let mut found = vec![false; graph.values.len()];
    let mut work = vec![ENTRY];
    while let Some(block) = work.pop() {
        for id in &graph.block(block).ops {
            let op = graph.op(*id);
            if let Op::Loop { body, carries, .. } = op.op {
                let captures = carries as usize..op.args.len();
                captures.for_each(|i| found[graph.block(body).params[i + 1].index()] = found[op.args[i].index()]);
                work.push(body);
                continue;
            }
            let constant =
                |v: &ValueId| matches!(graph.def_op(*v), Some(o) if matches!(o.op, Op::Constant(_) | Op::Iota(_)));
            let known = |v: &ValueId| found[v.index()] || constant(v);
            let made = op.args.iter().any(|a| found[a.index()]) && op.args.iter().all(known);
            if made || matches!(op.op, Op::Param(_) | Op::State(_)) {
                op.results.iter().for_each(|r| found[r.index()] = true);
            }
        }
    }
    found
}

/// Who reads the values of a block.
struct Users {
    readers: Vec<Vec<OpId>>,
    /// What leaves the block.
    leaves: Vec<bool>,
}

impl Users {
    fn of(graph: &Graph, block: BlockId) -> Users {
        let n = graph.values.len();
        let mut users = Users { readers: vec![Vec::new(); n], leaves: vec![false; n] };
        for id in &graph.block(block).ops {
            for a in &graph.op(*id).args {
                users.readers[a.index()].push(*id);
            }
        }
        let outputs = graph.outputs.iter().map(|o| o.value);
        outputs.chain(graph.block(block).results.iter().copied()).for_each(|v| users.leaves[v.index()] = true);
        users
    }
}

/// What an operation of the region does to rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ByRow,
    Total(ReduceKind),
}

struct Search<'g> {
    graph: &'g Graph,
    block: BlockId,
    users: &'g Users,
    product: ValueId,
    rows: Vec<DimId>,
    /// Dims that make a value of rows a wide one.
    wide: BTreeSet<DimId>,
}

impl<'g> Search<'g> {
    /// For rows that come from one side of a product.
    fn new(graph: &'g Graph, block: BlockId, users: &'g Users, product: &Operation, side: usize) -> Option<Search<'g>> {
        let [x, weights] = [side, 1 - side].map(|i| &graph.value(product.args[i]).dims);
        let dims = &graph.value(product.results[0]).dims;
        let rows: Vec<DimId> = dims.iter().copied().filter(|d| x.contains(d) && !weights.contains(d)).collect();
        let wide: BTreeSet<DimId> =
            dims.iter().copied().filter(|d| weights.contains(d) && !x.contains(d) && graph.size(*d) > 1).collect();
        if rows.is_empty() || wide.is_empty() {
            return None;
        }
        Some(Search { graph, block, users, product: product.results[0], rows, wide })
    }

    /// Dims that wide ones become and come from: parts of them, several as one.
    fn widen(&mut self) {
        loop {
            let before = self.wide.len();
            for id in &self.graph.block(self.block).ops {
                let mut join = |dims: &[DimId]| {
                    if dims.iter().any(|d| self.wide.contains(d)) {
                        let others = dims.iter().filter(|d| !self.rows.contains(d) && self.graph.size(**d) > 1);
                        self.wide.extend(others);
                    }
                };
                match &self.graph.op(*id).op {
                    Op::Reshape { groups } => {
                        groups.iter().for_each(|(from, to)| join(&[from.as_slice(), to].concat()))
                    }
                    Op::Window { axes, .. } | Op::Fold { axes } => axes.iter().for_each(|a| {
                        let terms = a.terms.iter().map(|t| t.0);
                        join(&std::iter::once(a.input).chain(terms).collect::<Vec<_>>());
                    }),
                    Op::Concat { parts, to } => join(&[parts.as_slice(), &[*to]].concat()),
                    _ => {}
                }
            }
            if self.wide.len() == before {
                return;
            }
        }
    }

    fn dims(&self, v: ValueId) -> &'g [DimId] {
        &self.graph.value(v).dims
    }

    fn has_rows(&self, v: ValueId) -> bool {
        self.rows.iter().all(|d| self.dims(v).contains(d))
    }

    fn has_some_rows(&self, v: ValueId) -> bool {
        self.rows.iter().any(|d| self.dims(v).contains(d))
    }

    fn is_wide(&self, v: ValueId) -> bool {
        self.has_rows(v) && self.dims(v).iter().any(|d| self.wide.contains(d))
    }

    /// The operation that makes a value in this block of something else.
    fn maker(&self, v: ValueId) -> Option<OpId> {
        match self.graph.value(v).def {
            Def::Op(id, _) if self.graph.op(id).block == self.block && !self.graph.op(id).args.is_empty() => Some(id),
            _ => None,
        }
    }

    /// The region that begins with some wide values.
    fn region(&self, from: Vec<ValueId>, bands: &Bands) -> Option<Region> {
        let inside = self.between(self.touching(from))?;
        let ops: Vec<OpId> =
            self.graph.block(self.block).ops.iter().copied().filter(|id| inside.contains(id)).collect();
        let rows = self.graph.elements(&self.rows);
        let (mut parts, mut captures) = (Vec::new(), Vec::new());
        let (mut collected, mut totals) = (Vec::new(), Vec::new());
        // Bytes that a row takes at a time, in products.
        let mut row = 0;
        for id in &ops {
            let op = self.graph.op(*id);
            for a in &op.args {
                if self.maker(*a).is_some_and(|id| inside.contains(&id)) {
                    continue;
                }
                let drawn = self.graph.def_op(*a).is_some_and(|o| matches!(o.op, Op::Random { .. }));
                if drawn && self.is_wide(*a) {
                    return None;
                }
                let list = if self.has_some_rows(*a) { &mut parts } else { &mut captures };
                if !list.contains(a) {
                    list.push(*a);
                }
            }
            let kind = self.kind(op)?;
            let result = op.results[0];
            let read = |outside: bool| self.users.readers[result.index()].iter().any(|u| inside.contains(u) != outside);
            let leaves = self.users.leaves[result.index()] || read(true);
            match kind {
                Kind::ByRow if leaves && self.is_wide(result) => return None,
                Kind::ByRow if leaves => collected.push(result),
                Kind::ByRow => {}
                Kind::Total(_) if read(false) => return None,
                Kind::Total(how) => totals.push((result, how)),
            }
            if kind == Kind::ByRow && self.is_wide(result) && matches!(op.op, Op::Dot { .. }) {
                row += self.graph.bytes(result) / rows;
            }
        }
        let each = |v: &ValueId| self.graph.elements(self.dims(*v)) / rows;
        if collected.iter().any(|v| each(v) * bands.wider > each(&self.product)) {
            return None;
        }
        let of = |id: &OpId| self.graph.op(*id);
        let sums = ops.iter().any(|id| matches!(of(id).op, Op::Dot { .. }) && !self.has_rows(of(id).results[0]));
        let phase = if ops.iter().all(|id| of(id).phase == Phase::Forward) { Phase::Forward } else { Phase::Backward };
        let again = ops.iter().all(|id| of(id).again);
        let sizes = bands.sizes(rows, row, sums)?;
        Some(Region { rows: self.rows.clone(), sizes, ops, parts, captures, collected, totals, phase, again })
    }

    /// All wide values that depend on the product, be it by way of others.
    fn following(&self) -> Vec<ValueId> {
        let mut after = HashSet::from([self.product]);
        let mut found = vec![self.product];
        for id in &self.graph.block(self.block).ops {
            let op = self.graph.op(*id);
            if op.args.iter().any(|a| after.contains(a)) {
                after.extend(&op.results);
                found.extend(op.results.iter().filter(|r| self.is_wide(**r)));
            }
        }
        found
    }

    /// Operations that read or make wide values which hang together with the given ones.
    fn touching(&self, from: Vec<ValueId>) -> HashSet<OpId> {
        let mut inside = HashSet::new();
        let mut seen: HashSet<ValueId> = from.iter().copied().collect();
        let mut work = from;
        while let Some(v) = work.pop() {
            for id in self.maker(v).iter().chain(&self.users.readers[v.index()]) {
                if inside.insert(*id) {
                    let op = self.graph.op(*id);
                    let wide = op.args.iter().chain(&op.results).filter(|v| self.is_wide(**v));
                    work.extend(wide.copied().filter(|v| seen.insert(*v)));
                }
            }
        }
        inside
    }

    /// Adds what lies between operations of the region.
    fn between(&self, mut inside: HashSet<OpId>) -> Option<HashSet<OpId>> {
        let ops = &self.graph.block(self.block).ops;
        let n = self.graph.values.len();
        let (mut after, mut before) = (vec![false; n], vec![false; n]);
        for id in ops {
            let op = self.graph.op(*id);
            if inside.contains(id) || op.args.iter().any(|a| after[a.index()]) {
                op.results.iter().for_each(|r| after[r.index()] = true);
            }
        }
        let mut more = Vec::new();
        for id in ops.iter().rev() {
            let op = self.graph.op(*id);
            let needed = op.results.iter().any(|r| before[r.index()]);
            if inside.contains(id) || needed {
                op.args.iter().for_each(|a| before[a.index()] = true);
            }
            if needed && !inside.contains(id) && op.args.iter().any(|a| after[a.index()]) {
                // A total, or something else that rows do not have each for itself.
                if !op.results.iter().all(|r| self.has_rows(*r)) {
                    return None;
                }
                more.push(*id);
            }
        }
        inside.extend(more);
        Some(inside)
    }

    /// What an operation does to rows; None if it can stand in no band.
    fn kind(&self, op: &Operation) -> Option<Kind> {
        let [result] = op.results[..] else { return None };
        let of_rows = |dims: &[DimId]| dims.iter().any(|d| self.rows.contains(d));
        let all_rows = |dims: &[DimId]| self.rows.iter().all(|d| dims.contains(d));
        // Values of some dims of the rows are widened to all of them, if there is nothing else to them.
        let in_part = |a: &&ValueId| self.has_some_rows(**a) && !self.has_rows(**a);
        let widened = matches!(op.op, Op::Map(_) | Op::Broadcast { .. } | Op::Gather { .. });
        if op.args.iter().filter(in_part).any(|a| !widened || self.dims(*a).iter().any(|d| !self.rows.contains(d))) {
            return None;
        }
        if !self.has_some_rows(result) {
            return match &op.op {
                Op::Reduce { kind: ReduceKind::ArgMax | ReduceKind::ArgMin, .. } => None,
                Op::Reduce { kind, dims } => all_rows(dims).then_some(Kind::Total(*kind)),
                Op::Dot { contract } => all_rows(contract).then_some(Kind::Total(ReduceKind::Sum)),
                Op::Scatter { kind, removed, .. } => all_rows(removed).then_some(Kind::Total(*kind)),
                _ => None,
            };
        }
        let alone = match &op.op {
            Op::Map(_) | Op::Broadcast { .. } | Op::StopGradient => true,
            Op::Dot { contract } => !of_rows(contract),
            Op::Reduce { .. }
            | Op::Reshape { .. }
            | Op::Window { .. }
            | Op::Fold { .. }
            | Op::Gather { .. }
            | Op::Scatter { .. }
            | Op::Concat { .. }
            | Op::Stack { .. }
            | Op::Scan { .. }
            | Op::LinearScan { .. }
            | Op::ArgSort { .. }
            | Op::TopK { .. } => !self.rows.iter().any(|d| op.op.names_dim(*d)),
            // Draws and queues count rows; the others are large steps of their own.
            Op::Random { .. }
            | Op::Draw { .. }
            | Op::PackPlace { .. }
            | Op::Attention(_)
            | Op::AttentionGrad(_)
            | Op::Loop { .. }
            | Op::WriteAt { .. }
            | Op::Collective(_) => false,
            Op::Coordinate(_)
            | Op::Param(_)
            | Op::State(_)
            | Op::Input(_)
            | Op::Constant(_)
            | Op::Iota(_)
            | Op::Step
            | Op::Position => false,
        };
        (alone && self.has_rows(result)).then_some(Kind::ByRow)
    }
}
