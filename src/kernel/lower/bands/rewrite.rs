//! Puts a region into a loop over bands of rows.

use super::region::Region;
use crate::ir::*;
use crate::types::{DType, MapOp, ReduceKind};
use std::collections::{HashMap, HashSet};

/// Replaces the operations of a region by a first band, a loop, and what puts rows together.
pub(super) fn rewrite(graph: &mut Graph, block: BlockId, region: &Region) {
    let (before, after) = split(graph, block, region);
    let model = graph.op(region.ops[0]).clone();
    let mut emit = Emission { graph, region, model, block, list: before };
    let replaced = emit.bands();
    let list = std::mem::take(&mut emit.list);
    let now = |v: &mut ValueId| *v = replaced.get(v).copied().unwrap_or(*v);
    for id in &after {
        graph.ops[id.index()].args.iter_mut().for_each(now);
    }
    graph.blocks[block.index()].ops = [list, after].concat();
    graph.blocks[block.index()].results.iter_mut().for_each(now);
    graph.outputs.iter_mut().for_each(|o| now(&mut o.value));
}

/// The block's other operations: those that stand before the region, and those that stand after it since they wait for it,
/// or for the first that does.
fn split(graph: &Graph, block: BlockId, region: &Region) -> (Vec<OpId>, Vec<OpId>) {
    let inside: HashSet<OpId> = region.ops.iter().copied().collect();
    let ops = &graph.block(block).ops;
    let mut needed: HashSet<ValueId> = region.parts.iter().chain(&region.captures).copied().collect();
    let mut early: HashSet<OpId> = HashSet::new();
    for id in ops.iter().rev().filter(|id| !inside.contains(id)) {
        let op = graph.op(*id);
        if op.results.iter().any(|r| needed.contains(r)) {
            early.insert(*id);
            needed.extend(&op.args);
        }
    }
    let made: HashSet<ValueId> = region.ops.iter().flat_map(|id| &graph.op(*id).results).copied().collect();
    let waits = |id: &OpId| !inside.contains(id) && graph.op(*id).args.iter().any(|a| made.contains(a));
    let first = ops.iter().position(waits).unwrap_or(ops.len());
    let others = ops.iter().enumerate().filter(|(_, id)| !inside.contains(id));
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (at, id) in others {
        if at < first || early.contains(id) { before.push(*id) } else { after.push(*id) }
    }
    (before, after)
}

struct Emission<'a> {
    graph: &'a mut Graph,
    region: &'a Region,
    /// Whose place and pass new operations have.
    model: Operation,
    /// Where operations go.
    block: BlockId,
    list: Vec<OpId>,
}

/// What a band leaves.
struct Left {
    collected: Vec<ValueId>,
    totals: Vec<ValueId>,
}

impl Emission<'_> {
    /// The new values of what leaves the region.
    fn bands(&mut self) -> HashMap<ValueId, ValueId> {
        let region = self.region;
        let sizes = region.sizes;
        (self.model.phase, self.model.again) = (region.phase, region.again);
        let rows = match region.rows[..] {
            [one] => one,
            _ => self.dim("rows", self.graph.elements(&region.rows)),
        };
        let parts: Vec<ValueId> = region.parts.iter().map(|v| self.by_rows(*v, rows)).collect();
        let start = (sizes.first > 0).then(|| {
            let head = self.dim("band.first", sizes.first);
            let band = self.own_part(&parts, rows, head, None);
            (head, self.band(head, &band, &region.captures))
        });

        let (turns, part) = (self.dim("bands", sizes.turns), self.dim("band", sizes.band));
        let initial: Vec<ValueId> = match &start {
            Some((_, left)) => left.totals.clone(),
            None => region.totals.iter().map(|(v, how)| self.neutral(*v, *how)).collect(),
        };
        let (finals, stacked) = self.looped(turns, part, rows, &initial, &parts);

        let mut replaced = HashMap::new();
        for ((v, _), total) in region.totals.iter().zip(finals) {
            let Value { dtype, dims, .. } = self.graph.value(*v).clone();
            let total = match self.graph.value(total).dtype == dtype {
                true => total,
                false => self.one(Op::Map(MapOp::Cast(dtype)), &[total], dtype, dims),
            };
            replaced.insert(*v, total);
        }
        for (i, (v, stacked)) in region.collected.iter().zip(stacked).enumerate() {
            let Value { dtype, dims, name, .. } = self.graph.value(*v).clone();
            let others = self.others(&dims);
            let with = |d: DimId| [&[d], others.as_slice()].concat();
            let first = start.as_ref().map(|(head, left)| (*head, left.collected[i]));
            let whole = match first {
                None => {
                    let groups = vec![(vec![turns, part], region.rows.clone())];
                    self.one(Op::Reshape { groups }, &[stacked], dtype, dims)
                }
                Some((head, first)) => {
                    let rest = self.dim("bands.rest", sizes.turns * sizes.band);
                    let groups = vec![(vec![turns, part], vec![rest])];
                    let (rest_dims, all) = (with(rest), with(rows));
                    let later = self.one(Op::Reshape { groups }, &[stacked], dtype, rest_dims);
                    let concat = Op::Concat { parts: vec![head, rest], to: rows };
                    let all = self.one(concat, &[first, later], dtype, all);
                    match region.rows[..] {
                        [_] => all,
                        _ => {
                            let groups = vec![(vec![rows], region.rows.clone())];
                            self.one(Op::Reshape { groups }, &[all], dtype, dims)
                        }
                    }
                }
            };
            self.graph.values[whole.index()].name = name;
            replaced.insert(*v, whole);
        }
        replaced
    }

    /// The loop over all bands but the first: final totals, and the values of rows.
    fn looped(
        &mut self,
        turns: DimId,
        part: DimId,
        rows: DimId,
        initial: &[ValueId],
        parts: &[ValueId],
    ) -> (Vec<ValueId>, Vec<ValueId>) {
        let region = self.region;
        let body = BlockId(self.graph.blocks.len() as u32);
        self.graph.blocks.push(Block::default());
        let args: Vec<ValueId> = initial.iter().chain(parts).chain(&region.captures).copied().collect();
        let outer = std::mem::replace(&mut self.block, body);
        let before = std::mem::take(&mut self.list);

        let turn = self.value(DType::I32, vec![], Def::BlockParam(0));
        let mut params = vec![turn];
        for (i, a) in args.iter().enumerate() {
            let Value { dtype, dims, name, .. } = self.graph.value(*a).clone();
            let param = self.value(dtype, dims, Def::BlockParam(i as u32 + 1));
            self.graph.values[param.index()].name = name;
            params.push(param);
        }
        let carries = params[1..=initial.len()].to_vec();
        let (inner_parts, captures) = params[1 + initial.len()..].split_at(parts.len());
        let (inner_parts, captures) = (inner_parts.to_vec(), captures.to_vec());
        let mut at = self.count(turn, MapOp::Mul, region.sizes.band);
        if region.sizes.first > 0 {
            at = self.count(at, MapOp::Add, region.sizes.first);
        }
        let band = self.own_part(&inner_parts, rows, part, Some(at));
        let left = self.band(part, &band, &captures);
        let mut next = Vec::new();
        for (((_, how), carry), total) in region.totals.iter().zip(carries).zip(left.totals) {
            let Value { dtype, dims, .. } = self.graph.value(carry).clone();
            next.push(self.one(Op::Map(how.combining()), &[carry, total], dtype, dims));
        }

        let ops = std::mem::replace(&mut self.list, before);
        self.block = outer;
        let types = |v: &ValueId, more: &[DimId]| {
            let Value { dtype, dims, .. } = self.graph.value(*v);
            (*dtype, [more, dims].concat())
        };
        let mut results: Vec<(DType, Vec<DimId>)> = next.iter().map(|v| types(v, &[])).collect();
        results.extend(left.collected.iter().map(|v| types(v, &[turns])));
        let carried = next.len();
        next.extend(left.collected);
        self.graph.blocks[body.index()] = Block { params, ops, results: next };
        let op = Op::Loop { body, dim: turns, reverse: false, carries: carried as u32 };
        let mut out = self.operation(op, args, results);
        for (v, r) in region.totals.iter().map(|t| t.0).chain(region.collected.iter().copied()).zip(&out) {
            // Reports name what it is, not that a loop has made it.
            let of = self.graph.def_op(v).map(|o| super::super::op_word(&o.op).to_string());
            self.graph.values[r.index()].name = self.graph.value(v).name.clone().or(of);
        }
        let stacked = out.split_off(carried);
        (out, stacked)
    }

    /// The operations of the region for one band, whose rows are `part`.
    fn band(&mut self, part: DimId, parts: &[ValueId], captures: &[ValueId]) -> Left {
        let region = self.region;
        let outside = region.parts.iter().chain(&region.captures).copied();
        let mut map: HashMap<ValueId, ValueId> = outside.zip(parts.iter().chain(captures).copied()).collect();
        for id in &region.ops {
            let op = self.graph.op(*id).clone();
            let old = op.results[0];
            let Value { mut dtype, dims, name, .. } = self.graph.value(old).clone();
            let mut dims = self.of_band(&dims, part);
            let mut args: Vec<ValueId> = op.args.iter().map(|a| map[a]).collect();
            let mut new = op.op.map_dims(&mut |d| if region.rows.contains(&d) { part } else { d });
            if let Op::Broadcast { dims } | Op::Reduce { dims, .. } | Op::Dot { contract: dims } = &mut new {
                once(dims);
            }
            if let Op::Scatter { removed, .. } = &mut new {
                once(removed);
            }
            (self.model.span, self.model.scope) = (op.span, op.scope);
            (self.model.phase, self.model.again) = (op.phase, op.again);
            if let Some((_, how)) = region.totals.iter().find(|t| t.0 == old) {
                dims = self.stored(old);
                // Sums of bands are summed, and so are not rounded to 16 bits each.
                let wide = summed_in(dtype, *how);
                if wide != dtype && !matches!(new, Op::Dot { .. }) {
                    let from = self.graph.value(args[0]).dims.clone();
                    args[0] = self.one(Op::Map(MapOp::Cast(wide)), &[args[0]], wide, from);
                }
                dtype = wide;
            }
            let result = self.one(new, &args, dtype, dims);
            self.graph.values[result.index()].name = name;
            map.insert(old, result);
        }
        let first = self.graph.op(region.ops[0]);
        (self.model.span, self.model.scope) = (first.span, first.scope);
        (self.model.phase, self.model.again) = (region.phase, region.again);
        Left {
            collected: region.collected.iter().map(|v| map[v]).collect(),
            totals: region.totals.iter().map(|(v, _)| map[v]).collect(),
        }
    }

    /// The dims of a total: in the order in which a parameter has them, like other gradients, unless it is shown.
    fn stored(&self, v: ValueId) -> Vec<DimId> {
        let dims = &self.graph.value(v).dims;
        let same = |p: &&Param| p.dims.len() == dims.len() && p.dims.iter().all(|d| dims.contains(d));
        let shown = self.graph.outputs.iter().any(|o| o.value == v);
        self.graph.params.iter().filter(|_| !shown).find(same).map_or(dims, |p| &p.dims).clone()
    }

    /// A value from outside with all rows as one dim.
    fn by_rows(&mut self, mut v: ValueId, rows: DimId) -> ValueId {
        let region = self.region;
        let Value { dtype, dims, .. } = self.graph.value(v).clone();
        let missing: Vec<DimId> = region.rows.iter().copied().filter(|d| !dims.contains(d)).collect();
        if !missing.is_empty() {
            let all = region.rows.clone();
            v = self.one(Op::Broadcast { dims: missing }, &[v], dtype, all);
        }
        if region.rows.len() == 1 {
            return v;
        }
        let groups = vec![(region.rows.clone(), vec![rows])];
        let all = [vec![rows], self.others(&dims)].concat();
        self.one(Op::Reshape { groups }, &[v], dtype, all)
    }

    /// The part of each value that belongs to a band: from the beginning, or from row `at`.
    fn own_part(&mut self, values: &[ValueId], rows: DimId, part: DimId, at: Option<ValueId>) -> Vec<ValueId> {
        let axis = WindowAxis { input: rows, offset: 0, dynamic: at.is_some(), terms: vec![(part, 1)] };
        let mut all = Vec::new();
        for v in values {
            let Value { dtype, dims, .. } = self.graph.value(*v).clone();
            let dims = dims.iter().map(|d| if *d == rows { part } else { *d }).collect();
            let args: Vec<ValueId> = std::iter::once(*v).chain(at).collect();
            all.push(self.one(Op::Window { axes: vec![axis.clone()], fill: 0.0 }, &args, dtype, dims));
        }
        all
    }

    /// What a total begins with where no band stands before the loop.
    fn neutral(&mut self, v: ValueId, how: ReduceKind) -> ValueId {
        let dtype = summed_in(self.graph.value(v).dtype, how);
        let dims = self.stored(v);
        let value = self.one(Op::Constant(Constant::Splat(how.neutral(dtype))), &[], dtype, vec![]);
        match dims.is_empty() {
            true => value,
            false => self.one(Op::Broadcast { dims: dims.clone() }, &[value], dtype, dims),
        }
    }

    fn count(&mut self, x: ValueId, op: MapOp, by: usize) -> ValueId {
        let by = self.one(Op::Constant(Constant::Splat(by as f64)), &[], DType::I32, vec![]);
        self.one(Op::Map(op), &[x, by], DType::I32, vec![])
    }

    /// Dims without those of the rows.
    fn others(&self, dims: &[DimId]) -> Vec<DimId> {
        dims.iter().copied().filter(|d| !self.region.rows.contains(d)).collect()
    }

    /// Dims with the band in the place of the rows.
    fn of_band(&self, dims: &[DimId], part: DimId) -> Vec<DimId> {
        let mut all: Vec<DimId> = dims.iter().map(|d| if self.region.rows.contains(d) { part } else { *d }).collect();
        once(&mut all);
        all
    }

    // ---- the graph

    fn dim(&mut self, name: &str, size: usize) -> DimId {
        let taken = |name: &str| self.graph.dims.iter().any(|d| d.name == name);
        let names = std::iter::once(name.to_string()).chain((2..).map(|n| format!("{name}#{n}")));
        let name = names.into_iter().find(|n| !taken(n)).expect("a name that is free");
        self.graph.dims.push(Dim { name, size, ragged: false, cut: None });
        DimId(self.graph.dims.len() as u32 - 1)
    }

    fn value(&mut self, dtype: DType, dims: Vec<DimId>, def: Def) -> ValueId {
        self.graph.values.push(Value { dtype, dims, block: self.block, def, name: None });
        ValueId(self.graph.values.len() as u32 - 1)
    }

    fn one(&mut self, op: Op, args: &[ValueId], dtype: DType, dims: Vec<DimId>) -> ValueId {
        self.operation(op, args.to_vec(), vec![(dtype, dims)])[0]
    }

    fn operation(&mut self, op: Op, args: Vec<ValueId>, types: Vec<(DType, Vec<DimId>)>) -> Vec<ValueId> {
        let id = OpId(self.graph.ops.len() as u32);
        let types = types.into_iter().enumerate();
        let results: Vec<ValueId> =
            types.map(|(i, (dtype, dims))| self.value(dtype, dims, Def::Op(id, i as u32))).collect();
        let Operation { span, scope, phase, again, .. } = self.model;
        let block = self.block;
        self.graph.ops.push(Operation { op, args, results: results.clone(), block, span, scope, phase, again });
        self.list.push(id);
        results
    }
}

/// The type in which totals of bands are kept.
fn summed_in(dtype: DType, how: ReduceKind) -> DType {
    let summed = matches!(how, ReduceKind::Sum | ReduceKind::Prod);
    if summed && dtype.bytes() == 2 { DType::F32 } else { dtype }
}

fn once(dims: &mut Vec<DimId>) {
    let mut seen = HashSet::new();
    dims.retain(|d| seen.insert(*d));
}
