//! In which order the dims of a computed value are stored. Order has no meaning, so the one that spares its producer and
//! its users calls and copies is taken; ties go to the order that the graph has.

use super::dot::Plan;
use super::{Lowerer, Status};
use crate::ir::*;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

/// Values with more dims keep the graph's order: there would be too many others to try.
const MAX_DIMS: usize = 5;
/// Values that are followed to find products that use one, and products that count.
const MAX_FOLLOWED: usize = 24;
const MAX_USES: usize = 6;
/// Elementwise operations that are followed to find a merge.
const MAX_STEPS_TO_MERGE: usize = 4;

impl Lowerer<'_, '_> {
    /// For the result of a matrix product.
    pub(super) fn dot_order(&mut self, id: OpId) -> Vec<DimId> {
        let op = self.graph.op(id);
        let v = op.results[0];
        let given = self.graph.value(v).dims.clone();
        if let Some(order) = self.wanted_order(v) {
            return order;
        }
        if given.len() < 3 || given.len() > MAX_DIMS {
            return given;
        }
        let choice = Choice { given, make: self.product(id), uses: self.dot_uses(v) };
        if let Some(known) = self.dot_orders.get(&choice) {
            return known.clone();
        }
        let order = self.best_order(&choice);
        self.dot_orders.insert(choice, order.clone());
        order
    }

    fn best_order(&self, choice: &Choice) -> Vec<DimId> {
        let Choice { given, make, uses } = choice;
        let mut best = (f64::INFINITY, given.clone());
        for order in permutations(given) {
            let strides = self.strides(given, &order);
            let own = |d: DimId| given.iter().position(|g| *g == d).map_or(0, |i| strides[i]);
            let mut cost = make.plan(&self.graph, |d| [make.stride(0, d), make.stride(1, d), Some(own(d))]).cost();
            cost += uses.iter().map(|user| self.cost_of_use(user, own)).sum::<f64>();
            if cost < best.0 - 1e-9 {
                best = (cost, order);
            }
        }
        best.1
    }

    /// A product with its operands as far as they are laid out.
    fn product(&self, dot: OpId) -> Product {
        let op = self.graph.op(dot);
        let Op::Dot { contract } = &op.op else { unreachable!("a product is a dot") };
        let args = [op.args[0], op.args[1]];
        Product {
            dims: args.map(|a| self.graph.value(a).dims.clone()),
            strides: args.map(|a| self.views[a.index()].as_ref().map(|v| v.strides.clone())),
            contract: contract.clone(),
        }
    }

    /// For a value that a kernel computes.
    pub(super) fn member_order(&self, v: ValueId) -> Vec<DimId> {
        self.wanted_order(v).or_else(|| self.scattered_order(v)).unwrap_or_else(|| self.natural_order(v))
    }

    /// How a scatter wants what it alone reads.
    fn scattered_order(&self, v: ValueId) -> Option<Vec<DimId>> {
        let &[user] = self.users[v.index()].as_slice() else { return None };
        let op = self.graph.op(user);
        let scattered = matches!(op.op, Op::Scatter { .. }) && op.args[0] == v;
        let dims = &self.graph.value(v).dims;
        let order = scattered.then(|| self.scatter_source(user))?;
        (order.len() == dims.len()).then_some(order)
    }

    /// The order in which a kernel comes by the elements of a value if it goes through its operands in theirs.
    pub(super) fn natural_order(&self, v: ValueId) -> Vec<DimId> {
        let given = &self.graph.value(v).dims;
        let Some(op) = self.graph.def_op(v) else { return given.clone() };
        let rank = |a: &&ValueId| (self.graph.value(**a).dims.len(), self.comes_from_memory(**a), Reverse(**a));
        let Some(&x) = op.args.iter().max_by_key(rank) else { return given.clone() };
        let from = &self.orders[x.index()];
        let mut order: Vec<DimId> = match &op.op {
            Op::Reshape { groups } => replace(from, groups.iter().map(|(from, to)| (from.as_slice(), to.clone()))),
            Op::Window { axes, .. } => {
                let terms =
                    axes.iter().map(|a| (std::slice::from_ref(&a.input), a.terms.iter().map(|t| t.0).collect()));
                replace(from, terms)
            }
            Op::Concat { parts, to } => {
                let part = parts.iter().find(|p| from.contains(p)).map(std::slice::from_ref).unwrap_or(&[]);
                replace(from, std::iter::once((part, vec![*to])))
            }
            Op::Stack { dim } => self.with_new_dim(v, from, *dim),
            Op::Fold { axes } => {
                let mut order = from.clone();
                for a in axes {
                    let terms: Vec<DimId> = a.terms.iter().map(|t| t.0).collect();
                    order = match terms.iter().any(|d| order.contains(d)) {
                        true => replace(&order, std::iter::once((terms.as_slice(), vec![a.input]))),
                        false => self.with_new_dim(v, &order, a.input),
                    };
                }
                order
            }
            Op::Map(_) | Op::StopGradient | Op::Broadcast { .. } | Op::Reduce { .. } => from.clone(),
            _ => return given.clone(),
        };
        order.retain(|d| given.contains(d));
        let mut all: Vec<DimId> = given.iter().copied().filter(|d| !order.contains(d)).collect();
        all.extend(order);
        all
    }

    /// Whether a value is an array in memory or is made of one as large, so that its order is more than a habit.
    fn comes_from_memory(&self, v: ValueId) -> bool {
        let elements = |v: ValueId| self.graph.elements(&self.graph.value(v).dims);
        let inline = self.status[v.index()] == Status::Inline;
        !inline || self.inputs[v.index()].iter().any(|s| elements(s.value) >= elements(v))
    }

    /// Storage order of a stack of values that are stored in `order`: the new dim stands where a merge or products that
    /// follow want it.
    pub(super) fn stack_order(&self, v: ValueId, order: &[DimId], dim: DimId) -> Vec<DimId> {
        let uses = if self.merge_of(v, dim).is_some() { vec![] } else { self.dot_uses(v) };
        if uses.is_empty() {
            return self.with_new_dim(v, order, dim);
        }
        let given = &self.graph.value(v).dims;
        let mut best = (f64::INFINITY, vec![]);
        for at in 0..=order.len() {
            let mut longer = order.to_vec();
            longer.insert(at, dim);
            let strides = self.strides(given, &longer);
            let own = |d: DimId| given.iter().position(|g| *g == d).map_or(0, |i| strides[i]);
            let cost: f64 = uses.iter().map(|user| self.cost_of_use(user, own)).sum();
            if cost < best.0 - 1e-9 {
                best = (cost, longer);
            }
        }
        best.1
    }

    /// An order with one more dim: where a merge that follows wants it, or as the major one.
    fn with_new_dim(&self, v: ValueId, order: &[DimId], dim: DimId) -> Vec<DimId> {
        if let Some(group) = self.merge_of(v, dim)
            && let Some(first) = group.iter().find(|d| order.contains(d))
        {
            let rest: Vec<DimId> = order.iter().copied().filter(|d| d == first || !group.contains(d)).collect();
            return replace(&rest, std::iter::once((std::slice::from_ref(first), group.clone())));
        }
        std::iter::once(dim).chain(order.iter().copied()).collect()
    }

    /// The dims that a later operation merges a dim with, through elementwise operations.
    fn merge_of(&self, v: ValueId, dim: DimId) -> Option<Vec<DimId>> {
        let mut at = v;
        for _ in 0..MAX_STEPS_TO_MERGE {
            let mut next = None;
            for user in &self.users[at.index()] {
                let op = self.graph.op(*user);
                match &op.op {
                    Op::Reshape { groups } => {
                        if let Some((from, _)) = groups.iter().find(|(from, _)| from.contains(&dim) && from.len() > 1) {
                            return Some(from.clone());
                        }
                    }
                    Op::Map(_) => next = next.or(Some(op.results[0])),
                    _ => {}
                }
            }
            at = next?;
        }
        None
    }

    /// The dims of a value from major to minor as it is stored.
    pub(super) fn order_of(&self, v: ValueId) -> Vec<DimId> {
        let mut dims: Vec<(i64, DimId)> =
            self.graph.value(v).dims.iter().map(|d| (self.stride(v, *d).abs(), *d)).collect();
        dims.sort_by_key(|(stride, _)| Reverse(*stride));
        dims.into_iter().map(|(_, d)| d).collect()
    }

    /// Where the order is not free, or clearly best like that of a parameter.
    pub(super) fn wanted_order(&self, v: ValueId) -> Option<Vec<DimId>> {
        let dims = &self.graph.value(v).dims;
        if self.graph.block(self.current).results.contains(&v) {
            return Some(dims.clone());
        }
        let op = self.graph.def_op(v)?;
        if op.phase == Phase::Forward || op.again || dims.len() < 2 {
            return None;
        }
        if let Some(order) = self.slot_orders.get(&v) {
            return Some(order.clone());
        }
        let mut key = dims.clone();
        key.sort_unstable();
        self.param_orders.get(&key).cloned()
    }

    /// Products that read a value, be it rearranged or changed element by element.
    fn dot_uses(&self, v: ValueId) -> Vec<Use> {
        let mut found = Vec::new();
        let own: Vec<Carrier> =
            self.graph.value(v).dims.iter().map(|d| Carrier { dim: *d, of: *d, times: 1 }).collect();
        let mut seen = vec![v];
        let mut work: VecDeque<(ValueId, Vec<Carrier>)> = VecDeque::from([(v, own)]);
        while let Some((alias, carriers)) = work.pop_front() {
            for user in &self.users[alias.index()] {
                let op = self.graph.op(*user);
                if let Op::Dot { .. } = op.op {
                    let mut product = self.product(*user);
                    let which = usize::from(op.args[0] != alias);
                    // Its own strides are what is asked for.
                    product.strides[which] = None;
                    found.push(Use { product, which, carriers: carriers.clone() });
                    continue;
                }
                let Some(&result) = op.results.first() else { continue };
                if found.len() >= MAX_USES || seen.len() >= MAX_FOLLOWED || seen.contains(&result) {
                    continue;
                }
                if let Some(next) = self.carried(op, &carriers) {
                    seen.push(result);
                    work.push_back((result, next));
                }
            }
        }
        found
    }

    /// Where the dims of a value are in the result of an operation on it; None where they are lost.
    fn carried(&self, op: &Operation, carriers: &[Carrier]) -> Option<Vec<Carrier>> {
        let find = |d: DimId| carriers.iter().find(|c| c.dim == d).copied();
        let mut next: Vec<Carrier> = carriers.to_vec();
        match &op.op {
            Op::Map(_) | Op::StopGradient | Op::Broadcast { .. } | Op::Stack { .. } => {}
            Op::Reshape { groups } => {
                for (from, to) in groups {
                    next.retain(|c| !from.contains(&c.dim));
                    // The minor dim says how close elements are.
                    let Some(mut c) = from.last().and_then(|d| find(*d)) else { continue };
                    for d in to.iter().rev() {
                        next.push(Carrier { dim: *d, ..c });
                        c.times *= self.graph.size(*d) as i64;
                    }
                }
            }
            Op::Window { axes, .. } => {
                for a in axes {
                    next.retain(|c| c.dim != a.input);
                    let Some(c) = find(a.input) else { continue };
                    next.extend(a.terms.iter().map(|(d, k)| Carrier { dim: *d, of: c.of, times: c.times * k }));
                }
            }
            Op::Concat { parts, to } => {
                for c in next.iter_mut().filter(|c| parts.contains(&c.dim)) {
                    c.dim = *to;
                }
            }
            _ => return None,
        }
        Some(next)
    }

    /// What a product costs whose operand has the given strides; its other operand as far as it is known, its result
    /// wherever it is best.
    fn cost_of_use(&self, user: &Use, own: impl Fn(DimId) -> i64) -> f64 {
        let Use { product, which, carriers } = user;
        let plan = product.plan(&self.graph, |d| {
            let mut strides = [None; 3];
            strides[*which] = match carriers.iter().find(|c| c.dim == d) {
                Some(c) => Some(own(c.of) * c.times),
                None if product.dims[*which].contains(&d) => None,
                None => Some(0),
            };
            strides[1 - which] = product.stride(1 - which, d);
            strides
        });
        plan.cost()
    }
}

/// What becomes a new parameter or state, element by element, with the order of its slot: it is best stored so.
pub(super) fn slot_orders(graph: &Graph) -> HashMap<ValueId, Vec<DimId>> {
    let mut orders: HashMap<ValueId, Vec<DimId>> = HashMap::new();
    for output in &graph.outputs {
        let order = match output.kind {
            OutputKind::Param(p) => &graph.params[p.index()].dims,
            OutputKind::State(s) => &graph.states[s.index()].dims,
            _ => continue,
        };
        let same_dims = |v: ValueId| {
            let dims = &graph.value(v).dims;
            dims.len() == order.len() && dims.iter().all(|d| order.contains(d))
        };
        let mut work = vec![output.value];
        while let Some(v) = work.pop() {
            if order.len() < 2 || !same_dims(v) || orders.contains_key(&v) {
                continue;
            }
            orders.insert(v, order.clone());
            let Some(op) = graph.def_op(v) else { continue };
            if matches!(op.op, Op::Map(_) | Op::StopGradient) {
                work.extend(&op.args);
            }
        }
    }
    orders
}

/// All that the order of a product's result is chosen by: layers that agree in it are judged once.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Choice {
    given: Vec<DimId>,
    make: Product,
    uses: Vec<Use>,
}

#[derive(PartialEq, Eq, Hash)]
struct Product {
    dims: [Vec<DimId>; 2],
    /// In the order of `dims`; None of an operand that is not laid out yet.
    strides: [Option<Vec<i64>>; 2],
    contract: Vec<DimId>,
}

impl Product {
    fn stride(&self, operand: usize, d: DimId) -> Option<i64> {
        let at = self.dims[operand].iter().position(|own| *own == d);
        self.strides[operand].as_ref().map(|s| at.map_or(0, |i| s[i]))
    }

    fn plan(&self, graph: &Graph, stride: impl Fn(DimId) -> [Option<i64>; 3]) -> Plan {
        Plan::new(graph, [&self.dims[0], &self.dims[1]], &self.contract, stride)
    }
}

/// A product that reads a value, under another name and as operand `which`.
#[derive(PartialEq, Eq, Hash)]
struct Use {
    product: Product,
    which: usize,
    carriers: Vec<Carrier>,
}

/// A dim of an alias that moves through memory `times` as far as a dim of the value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Carrier {
    dim: DimId,
    of: DimId,
    times: i64,
}

/// A list of dims in which groups are replaced, each where its first member that is there stands.
fn replace<'a>(order: &[DimId], groups: impl Iterator<Item = (&'a [DimId], Vec<DimId>)>) -> Vec<DimId> {
    let mut out = order.to_vec();
    for (from, to) in groups {
        let at = out.iter().position(|d| from.contains(d));
        let before = at.map_or(0, |at| out[..at].iter().filter(|d| !from.contains(d)).count());
        out.retain(|d| !from.contains(d));
        out.splice(before..before, to);
    }
    out
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
