//! Streaming: a program over a whole dim becomes one over its next positions, with caches that are derived, not written.
//!
//! In: a forward graph (pruned to what is wanted), the input that is fed back and the dim along which. Out: a [`Streamed`]
//! graph in which that dim has only the new positions (from `Op::Position` on), and new states of kind `Cache`.
//! Rules (the language reference, "Sample items and streaming"): `iota` and parameters are taken at the true positions; a
//! rename of the dim is where history starts, and its value at all positions so far is kept; scans, cumulative
//! operations, causal windows and shifts keep their carry; what does not depend on the fed input is computed once, by
//! [`Streamed::prelude`].
//! Invariant: at every position the result equals that of the whole program, whatever stands at later positions. A
//! reduction over kept positions is accepted only where later ones provably do not count (`future.rs`).
//! Reading order: this file, `future.rs`, `carry.rs`.

mod carry;
mod future;

use crate::ir::*;
use crate::source::Span;
use crate::types::DType;
use future::{Beyond, Futures};
use indexmap::IndexMap;
use std::collections::HashMap;

/// A program for `positions` new positions at a time.
pub struct Streamed {
    pub graph: Graph,
    /// Computes what does not depend on the fed input into cache states; None where there is nothing of the kind.
    pub prelude: Option<Graph>,
    /// The dim of the new positions.
    pub dim: DimId,
}

/// Why a program cannot be streamed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    pub message: String,
    pub span: Option<Span>,
}

/// Makes the program for `positions` new positions along `dim`, fed back into `fed`.
pub fn stream(graph: &Graph, fed: InputId, dim: DimId, positions: usize) -> Result<Streamed, Problem> {
    let mut b = Builder::new(Graph {
        dims: graph.dims.clone(),
        params: graph.params.clone(),
        states: graph.states.clone(),
        inputs: graph.inputs.clone(),
        ..Graph::default()
    });
    b.graph.scopes = graph.scopes.clone();
    let new = b.add_dim(&format!("{}.new", graph.dim(dim).name), positions, false);
    for d in &mut b.graph.inputs[fed.index()].dims {
        if *d == dim {
            *d = new;
        }
    }
    let mut s = Streamer {
        g: graph,
        b,
        dim,
        new,
        moved: IndexMap::from([(dim, new)]),
        values: HashMap::new(),
        futures: Futures::default(),
        depends: dependent(graph, fed, dim),
        position: None,
        kept: Vec::new(),
        places: HashMap::new(),
        turns: HashMap::new(),
    };
    s.shrink_slots(positions);
    for op in &graph.block(ENTRY).ops {
        s.operation(graph.op(*op))?;
    }
    for o in &graph.outputs {
        s.b.span = o.span;
        let v = s.get(o.value);
        s.b.output(o.kind, &o.name, v);
    }
    let prelude = s.prelude();
    Ok(Streamed { graph: s.b.finish(), prelude, dim: new })
}

/// Values that depend on the fed input or on positions along the streamed dim.
fn dependent(graph: &Graph, fed: InputId, dim: DimId) -> Vec<bool> {
    let mut out = vec![false; graph.values.len()];
    for (i, v) in graph.values.iter().enumerate() {
        out[i] = v.dims.contains(&dim);
    }
    for op in &graph.ops {
        let own = match &op.op {
            Op::Input(i) => *i == fed,
            Op::Random { .. } | Op::Draw { .. } | Op::Step | Op::Position => true,
            Op::Loop { dim: d, .. } => *d == dim,
            _ => false,
        };
        if own || op.args.iter().any(|a| out[a.index()]) {
            for r in &op.results {
                out[r.index()] = true;
            }
        }
    }
    // Everything inside a loop's body is walked with the loop.
    for (i, v) in graph.values.iter().enumerate() {
        if v.block != ENTRY {
            out[i] = true;
        }
    }
    out
}

struct Streamer<'g> {
    g: &'g Graph,
    b: Builder,
    dim: DimId,
    new: DimId,
    /// Dims that have another size in the stepwise program.
    moved: IndexMap<DimId, DimId>,
    values: HashMap<ValueId, ValueId>,
    futures: Futures,
    depends: Vec<bool>,
    position: Option<ValueId>,
    /// Values computed once, with the states that keep them.
    kept: Vec<(ValueId, StateId)>,
    /// Places in queues of ragged slot dims, with the slots that one step needs.
    places: HashMap<ValueId, usize>,
    /// Turns of loops over the streamed dim: true turn by the body's turn parameter.
    turns: HashMap<ValueId, ValueId>,
}

impl Streamer<'_> {
    fn fail<T>(&self, op: &Operation, what: &str) -> Result<T, Problem> {
        Err(Problem { message: what.to_string(), span: op.span })
    }

    fn move_dim(&self, d: DimId) -> DimId {
        self.moved.get(&d).copied().unwrap_or(d)
    }

    fn move_dims(&self, dims: &[DimId]) -> Vec<DimId> {
        dims.iter().map(|d| self.move_dim(*d)).collect()
    }

    fn position(&mut self) -> ValueId {
        if let Some(p) = self.position {
            return p;
        }
        let p = self.b.hoisted(|b| b.emit(Op::Position, &[], &[(DType::I32, vec![])])[0]);
        self.position = Some(p);
        p
    }

    /// The stepwise value of a value; what does not depend on the fed input is read from a state that keeps it.
    fn get(&mut self, v: ValueId) -> ValueId {
        if let Some(n) = self.values.get(&v) {
            return *n;
        }
        let op = self.g.def_op(v).expect("block parameters are mapped when their loop is entered");
        let leaf = op.args.is_empty();
        let new = if leaf {
            let types: Vec<(DType, Vec<DimId>)> = op.results.iter().map(|r| self.type_of(*r)).collect();
            let op = op.clone();
            self.b.hoisted(|b| b.emit(op.op, &[], &types)[0])
        } else {
            let (dtype, dims) = self.type_of(v);
            let name = self.g.value(v).name.clone().unwrap_or_else(|| v.to_string());
            let id = self.add_cache(&format!("once:{name}:{}", self.kept.len()), dtype, dims);
            self.kept.push((v, id));
            self.b.hoisted(|b| b.state(id))
        };
        self.values.insert(v, new);
        new
    }

    fn type_of(&self, v: ValueId) -> (DType, Vec<DimId>) {
        let value = self.g.value(v);
        (value.dtype, self.move_dims(&value.dims))
    }

    fn add_cache(&mut self, path: &str, dtype: DType, dims: Vec<DimId>) -> StateId {
        let span = self.b.span;
        self.b.add_state(State { path: path.to_string(), dtype, dims, kind: StateKind::Cache, span })
    }

    /// The rows of one step need no more slots than it has choices: a ragged slot dim shrinks with the positions.
    fn shrink_slots(&mut self, positions: usize) {
        let g = self.g;
        for op in &g.ops {
            let Op::Scatter { targets, .. } = &op.op else { continue };
            let Some(place) = op.args.last().and_then(|p| g.def_op(*p)) else { continue };
            let Op::PackPlace { packed, .. } = &place.op else { continue };
            let Some(slot) = targets.last().copied() else { continue };
            if !packed.contains(&self.dim) || !g.dim(slot).ragged {
                continue;
            }
            let n: usize = packed.iter().map(|d| if *d == self.dim { positions } else { g.size(*d) }).product();
            let n = n.min(g.size(slot));
            if !self.moved.contains_key(&slot) {
                let small = self.b.add_dim(&format!("{}.new", g.dim(slot).name), n, true);
                self.moved.insert(slot, small);
            }
            self.places.insert(place.results[0], n);
        }
    }

    fn prelude(&self) -> Option<Graph> {
        if self.kept.is_empty() {
            return None;
        }
        let mut g = self.g.clone();
        g.states = self.b.graph.states.clone();
        // Cache states may have dims of the stepwise program.
        g.dims = self.b.graph.dims.clone();
        g.outputs = (self.kept.iter())
            .map(|(v, id)| Output {
                kind: OutputKind::State(*id),
                name: g.states[id.index()].path.clone(),
                value: *v,
                span: g.def_op(*v).and_then(|o| o.span),
            })
            .collect();
        Some(prune::prune(&g))
    }

    // ---- operations

    fn operation(&mut self, op: &Operation) -> Result<(), Problem> {
        let wanted = op.results.iter().any(|r| self.depends[r.index()]);
        if !wanted {
            return Ok(());
        }
        self.b.span = op.span;
        self.b.scope = op.scope;
        let mixes = op.args.iter().any(|a| self.g.value(*a).dims.contains(&self.dim));
        match &op.op {
            Op::Param(_) | Op::Constant(Constant::Elements(_)) | Op::State(_)
                if self.g.value(op.results[0]).dims.contains(&self.dim) =>
            {
                self.at_positions(op)
            }
            Op::Iota(d) if *d == self.dim => {
                let i = self.b.iota(self.new);
                let p = self.position();
                let v = self.b.add(i, p);
                self.bind(op, v);
                Ok(())
            }
            Op::Input(i) => {
                let dims = &self.g.inputs[i.index()].dims;
                if dims.contains(&self.dim) && !self.b.graph.inputs[i.index()].dims.contains(&self.new) {
                    let name = self.g.inputs[i.index()].name.clone();
                    return self.fail(op, &format!("input `{name}` has the streamed dim and is not fed"));
                }
                let v = self.b.input(*i);
                self.bind(op, v);
                Ok(())
            }
            Op::Random { .. } | Op::Draw { .. } => self.random(op),
            Op::Reshape { groups } if mixes && groups.iter().any(|(a, _)| a.contains(&self.dim)) => {
                self.history(op, groups)
            }
            Op::Window { axes, fill } if mixes && axes.iter().any(|a| a.input == self.dim) => {
                self.window(op, axes, *fill)
            }
            Op::Scan { kind, dim, exclusive, reverse } if *dim == self.dim => {
                self.cumulative(op, *kind, *exclusive, *reverse)
            }
            Op::LinearScan { dim, reverse } if *dim == self.dim => self.recurrence(op, *reverse),
            Op::Loop { dim, reverse, .. } => {
                let (dim, reverse) = (*dim, *reverse);
                self.run_loop(op, dim, reverse)
            }
            Op::Gather { dims, .. } if dims.contains(&self.dim) => self.gather(op, dims),
            Op::Scatter { removed, targets, .. } if removed.contains(&self.dim) => {
                let ragged = targets.last().is_some_and(|t| self.moved.contains_key(t));
                if ragged {
                    return self.plain(op);
                }
                self.fail(
                    op,
                    "the value at a position depends on later positions: rows of all positions share queues; \
                               a `ragged` slot dim lets each position have its own",
                )
            }
            Op::PackPlace { packed, .. } if packed.contains(&self.dim) => {
                if !self.places.contains_key(&op.results[0]) {
                    return self.fail(
                        op,
                        "the value at a position depends on others by full queues; a `ragged` slot dim has no limit",
                    );
                }
                self.plain(op)
            }
            Op::Attention(a) if a.query == self.dim => self.attention(op, a),
            _ if mixes && op.op.names_dim(self.dim) && !matches!(op.op, Op::Broadcast { .. }) => {
                self.fail(op, "the value at a position depends on later positions")
            }
            _ => self.plain(op),
        }
    }

    fn bind(&mut self, op: &Operation, v: ValueId) {
        if let Some(n) = &self.g.value(op.results[0]).name {
            self.b.name(v, n);
        }
        self.values.insert(op.results[0], v);
        // What does not reduce a kept dim keeps what stands at its later positions.
        let dims = &self.g.value(op.results[0]).dims;
        let mut entry = future::Entry::new();
        for a in &op.args {
            entry.extend(self.futures.entry(*a).into_iter().filter(|(k, f)| dims.contains(k) && *f == Beyond::Later));
        }
        self.futures.set(op.results[0], entry);
    }

    fn args(&mut self, op: &Operation) -> Vec<ValueId> {
        let turns: Vec<ValueId> = op.args.iter().map(|a| self.turns.get(a).copied().unwrap_or(*a)).collect();
        op.args.iter().zip(turns).map(|(a, t)| if t == *a { self.get(*a) } else { t }).collect()
    }

    /// Attention of the new positions: what they see of the keys depends on where they are.
    fn attention(&mut self, op: &Operation, a: &Attention) -> Result<(), Problem> {
        if !a.causal && a.reach.is_none() {
            return self.plain(op);
        }
        let position = self.position();
        self.plain_as(op, Op::Attention(Attention { first: true, ..a.clone() }), &[position])
    }

    /// The same operation on the new positions.
    fn plain(&mut self, op: &Operation) -> Result<(), Problem> {
        self.plain_as(op, op.op.clone(), &[])
    }

    /// An operation in the place of `op`, on the new positions; `more` are further operands.
    fn plain_as(&mut self, op: &Operation, new: Op, more: &[ValueId]) -> Result<(), Problem> {
        let future = self.futures.of(self.g, op, self.dim).map_err(|m| Problem { message: m, span: op.span })?;
        let mut args = self.args(op);
        args.extend(more);
        let types: Vec<(DType, Vec<DimId>)> = op.results.iter().map(|r| self.type_of(*r)).collect();
        let moved = self.moved.clone();
        let mut new = new.map_dims(&mut |d| moved.get(&d).copied().unwrap_or(d));
        if let (Op::PackPlace { limit, .. }, Some(n)) = (&mut new, self.places.get(&op.results[0])) {
            *limit = *n;
        }
        let results = self.b.emit(new, &args, &types);
        for (r, n) in op.results.iter().zip(results) {
            if let Some(name) = &self.g.value(*r).name {
                self.b.name(n, name);
            }
            self.values.insert(*r, n);
            self.futures.set(*r, future.clone());
        }
        Ok(())
    }

    /// A parameter or list along the streamed dim: its part at the new positions.
    fn at_positions(&mut self, op: &Operation) -> Result<(), Problem> {
        let v = self.g.value(op.results[0]);
        let whole = self.b.hoisted(|b| b.emit(op.op.clone(), &[], &[(v.dtype, v.dims.clone())])[0]);
        let p = self.position();
        let axis = WindowAxis { input: self.dim, offset: 0, dynamic: true, terms: vec![(self.new, 1)] };
        let part = self.b.hoisted(|b| b.window(vec![axis], 0.0, whole, &[p]));
        self.bind(op, part);
        Ok(())
    }

    /// Draws differ from position to position: the position is one more coordinate.
    fn random(&mut self, op: &Operation) -> Result<(), Problem> {
        let mut args = self.args(op);
        if self.depends[op.results[0].index()] {
            let p = self.position();
            args.push(p);
        }
        let types: Vec<(DType, Vec<DimId>)> = op.results.iter().map(|r| self.type_of(*r)).collect();
        let moved = self.moved.clone();
        let new = op.op.map_dims(&mut |d| moved.get(&d).copied().unwrap_or(d));
        let v = self.b.emit(new, &args, &types)[0];
        self.bind(op, v);
        Ok(())
    }

    /// A rename of the streamed dim: the value at all positions so far is kept.
    fn history(&mut self, op: &Operation, groups: &[(Vec<DimId>, Vec<DimId>)]) -> Result<(), Problem> {
        let (from, to) = groups.iter().find(|(a, _)| a.contains(&self.dim)).expect("checked by the caller");
        let (&[_], &[key]) = (&from[..], &to[..]) else {
            return self.fail(op, "the streamed dim is split or merged; only a rename starts a history");
        };
        let x = self.get(op.args[0]);
        let others: Vec<(Vec<DimId>, Vec<DimId>)> =
            groups.iter().filter(|(a, _)| !a.contains(&self.dim)).cloned().collect();
        let x = if others.is_empty() { x } else { self.b.reshape(&others, x) };
        let dims: Vec<DimId> = self.b.dims(x).iter().map(|d| if *d == self.new { key } else { *d }).collect();
        let dtype = self.b.dtype(x);
        let name = format!("history:{}:{}", self.g.dim(key).name, self.b.graph.states.len());
        let id = self.add_cache(&name, dtype, dims.clone());
        let old = self.b.state(id);
        let p = self.position();
        let all = self.b.emit(Op::WriteAt { dim: key, part: self.new }, &[old, x, p], &[(dtype, dims)])[0];
        self.b.output(OutputKind::State(id), &name, all);
        self.bind(op, all);
        self.futures.set(op.results[0], IndexMap::from([(key, Beyond::Later)]));
        Ok(())
    }

    /// Inside a loop over the streamed dim, `x[dim = turn]` reads the new positions by the local turn.
    fn gather(&mut self, op: &Operation, dims: &[DimId]) -> Result<(), Problem> {
        let k = dims.iter().position(|d| *d == self.dim).expect("checked by the caller");
        let index = op.args[k + 1];
        if !self.turns.contains_key(&index) {
            return self.fail(op, "the value at a position depends on other positions by an index");
        }
        let mut args = self.args(op);
        args[k + 1] = self.values[&index];
        let types: Vec<(DType, Vec<DimId>)> = op.results.iter().map(|r| self.type_of(*r)).collect();
        let moved = self.moved.clone();
        let new = op.op.map_dims(&mut |d| moved.get(&d).copied().unwrap_or(d));
        let v = self.b.emit(new, &args, &types)[0];
        self.bind(op, v);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
