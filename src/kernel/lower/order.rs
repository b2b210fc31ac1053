//! In which order the dims of a computed value are stored. Order has no meaning, so the one that spares its producer and
//! its users calls and copies is taken; ties go to the order that the graph has.

use super::Lowerer;
use super::dot::Plan;
use crate::ir::*;

/// Values with more dims keep the graph's order: there would be too many others to try.
const MAX_DIMS: usize = 5;
/// Renames that are followed to find a user.
const MAX_RENAMES: usize = 3;

impl Lowerer<'_, '_> {
    /// For the result of a matrix product.
    pub(super) fn dot_order(&self, id: OpId) -> Vec<DimId> {
        let op = self.graph.op(id);
        let v = op.results[0];
        let given = self.graph.value(v).dims.clone();
        if let Some(order) = self.wanted_order(v) {
            return order;
        }
        if given.len() < 3 || given.len() > MAX_DIMS {
            return given;
        }
        let Op::Dot { contract } = &op.op else { return given };
        let uses = self.dot_uses(v);
        let dims = [op.args[0], op.args[1]].map(|a| self.graph.value(a).dims.as_slice());
        let mut best = (f64::INFINITY, given.clone());
        for order in permutations(&given) {
            let strides = self.strides(&given, &order);
            let own = |d: DimId| given.iter().position(|g| *g == d).map_or(0, |i| strides[i]);
            let make = Plan::new(&self.graph, dims, contract, |d| {
                [Some(self.stride(op.args[0], d)), Some(self.stride(op.args[1], d)), Some(own(d))]
            });
            let mut cost = make.cost();
            cost += uses.iter().map(|user| self.cost_of_use(user, own)).sum::<f64>();
            if cost < best.0 - 1e-9 {
                best = (cost, order);
            }
        }
        best.1
    }

    /// For a value that a kernel computes.
    pub(super) fn member_order(&self, v: ValueId, inputs: &[super::Source]) -> Vec<DimId> {
        if let Some(order) = self.wanted_order(v) {
            return order;
        }
        let dims = &self.graph.value(v).dims;
        let like = inputs.iter().filter(|s| s.aligned).map(|s| s.value).find(|s| {
            let other = &self.graph.value(*s).dims;
            self.views[s.index()].is_some() && other.len() == dims.len() && other.iter().all(|d| dims.contains(d))
        });
        like.map_or(dims.clone(), |s| self.order_of(s))
    }

    /// The dims of a value from major to minor as it is stored.
    pub(super) fn order_of(&self, v: ValueId) -> Vec<DimId> {
        let mut dims: Vec<(i64, DimId)> =
            self.graph.value(v).dims.iter().map(|d| (self.stride(v, *d).abs(), *d)).collect();
        dims.sort_by_key(|(stride, _)| std::cmp::Reverse(*stride));
        dims.into_iter().map(|(_, d)| d).collect()
    }

    /// Where the order is not free, or clearly best like that of a parameter.
    fn wanted_order(&self, v: ValueId) -> Option<Vec<DimId>> {
        let dims = &self.graph.value(v).dims;
        if self.graph.block(self.current).results.contains(&v) {
            return Some(dims.clone());
        }
        let phase = self.graph.def_op(v)?.phase;
        if phase == Phase::Forward || dims.len() < 2 {
            return None;
        }
        let mut key = dims.clone();
        key.sort_unstable();
        self.param_orders.get(&key).cloned()
    }

    /// Products that read a value, through renames of its dims.
    fn dot_uses(&self, v: ValueId) -> Vec<Use> {
        let mut found = Vec::new();
        let mut work: Vec<(ValueId, Vec<(DimId, DimId)>)> = vec![(v, vec![])];
        while let Some((alias, renamed)) = work.pop() {
            for user in &self.users[alias.index()] {
                let op = self.graph.op(*user);
                match &op.op {
                    Op::Dot { .. } => found.push(Use { dot: *user, alias, renamed: renamed.clone() }),
                    Op::Reshape { groups } if renamed.len() < MAX_RENAMES => {
                        let mut all = renamed.clone();
                        let plain = groups.iter().all(|(from, to)| {
                            let ([from], [to]) = (from.as_slice(), to.as_slice()) else { return false };
                            let old = all.iter().find(|(_, new)| new == from).map_or(*from, |(old, _)| *old);
                            all.retain(|(o, _)| *o != old);
                            all.push((old, *to));
                            true
                        });
                        if plain {
                            work.push((op.results[0], all));
                        }
                    }
                    _ => {}
                }
            }
        }
        found
    }

    /// What a product costs whose operand has the given strides; its other operand as far as it is known, its result
    /// wherever it is best.
    fn cost_of_use(&self, user: &Use, own: impl Fn(DimId) -> i64) -> f64 {
        let op = self.graph.op(user.dot);
        let Op::Dot { contract } = &op.op else { return 0.0 };
        let dims = [op.args[0], op.args[1]].map(|a| self.graph.value(a).dims.as_slice());
        let which = usize::from(op.args[0] != user.alias);
        let other = op.args[1 - which];
        let old = |d: DimId| user.renamed.iter().find(|(_, new)| *new == d).map_or(d, |(old, _)| *old);
        let plan = Plan::new(&self.graph, dims, contract, |d| {
            let mut strides = [None; 3];
            strides[which] = Some(if dims[which].contains(&d) { own(old(d)) } else { 0 });
            if self.views[other.index()].is_some() {
                strides[1 - which] = Some(self.stride(other, d));
            }
            strides
        });
        plan.cost()
    }
}

/// A product that reads a value under another name.
struct Use {
    dot: OpId,
    alias: ValueId,
    /// (dim of the value, dim of the alias)
    renamed: Vec<(DimId, DimId)>,
}

fn permutations(dims: &[DimId]) -> Vec<Vec<DimId>> {
    let mut all: Vec<Vec<DimId>> = vec![vec![]];
    for _ in dims {
        all = all
            .iter()
            .flat_map(|p| {
                dims.iter().filter(|d| !p.contains(d)).map(|d| {
                    let mut longer = p.clone();
                    longer.push(*d);
                    longer
                })
            })
            .collect();
    }
    all
}
