//! Gradients that are applied late: data parallelism with bounded staleness, in the form in which all ranks agree.

use super::Step;
use super::copy::{Copied, Own, copied, mean};
use crate::diag::Diagnostic;
use crate::ir::*;
use crate::types::MapOp;
use std::collections::HashMap;

/// Gradients wait in a queue of states, as each replica has computed them.
struct Waiting<'a> {
    graph: &'a Graph,
    count: usize,
    steps: usize,
    /// By value: the parameter of which it is the gradient.
    of: HashMap<ValueId, ParamId>,
    /// New values of the states of queues.
    next: Vec<(StateId, ValueId)>,
}

impl Own for Waiting<'_> {
    fn param(&self, _: ParamId) -> bool {
        false
    }

    fn state(&self, _: StateId) -> bool {
        false
    }

    fn waits(&self, v: ValueId) -> bool {
        self.of.contains_key(&v)
    }

    fn instead(&mut self, b: &mut Builder, replica: DimId, old: ValueId, new: ValueId) -> ValueId {
        let dims = b.dims(new).to_vec();
        let path = &self.graph.params[self.of[&old].index()].path;
        let phase = std::mem::replace(&mut b.phase, Phase::Update);
        let mut v = new;
        for k in 0..self.steps {
            let state = State {
                path: format!("async.gradient{}:{path}", k + 1),
                dtype: b.dtype(new),
                dims: dims.clone(),
                kind: StateKind::Optimizer,
                span: b.span,
            };
            let s = b.add_state(state);
            self.next.push((s, v));
            v = b.state(s);
        }
        let mean = mean(b, replica, self.count, (v, &format!("gradient of {path}")));
        b.phase = phase;
        mean
    }
}

/// A step that applies the mean gradient of `steps` steps before: with the update u of the optimizer,
/// w(t + 1) = w(t) - u(mean over replicas of the gradients at w(t - steps)). The first `steps` steps change neither parameters nor the states
/// of optimizers. `gradients`: which values of the graph updates begin with.
pub fn stale(step: Step<'_>, gradients: &[(ParamId, ValueId)], steps: usize) -> Result<Graph, Box<Diagnostic>> {
    let g = step.graph;
    let of = gradients.iter().rev().map(|(p, v)| (*v, *p)).collect();
    let mut waiting = Waiting { graph: g, count: step.count, steps, of, next: Vec::new() };
    let Copied { mut b, outputs, .. } = copied(step, &mut waiting)?;
    (b.span, b.scope, b.phase) = (None, ROOT, Phase::Update);
    let now = b.step();
    let there = b.map_scalar(MapOp::Ge, now, steps as f64);
    for (o, new) in g.outputs.iter().zip(outputs) {
        let updated = |s: StateId| g.states[s.index()].kind != StateKind::Model;
        b.span = o.span;
        let old = match o.kind {
            OutputKind::Param(p) => Some(b.param(p)),
            OutputKind::State(s) if updated(s) => Some(b.state(s)),
            _ => None,
        };
        let value = old.map_or(new, |old| b.select(there, new, old));
        b.output(o.kind, &o.name, value);
    }
    for (s, v) in waiting.next {
        let path = b.graph.states[s.index()].path.clone();
        b.output(OutputKind::State(s), &path, v);
    }
    Ok(b.finish())
}
