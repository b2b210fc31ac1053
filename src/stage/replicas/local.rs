//! Local steps with an outer step: local SGD (Stich, "Local SGD Converges Fast and Communicates Little", 2019) and DiLoCo
//! (Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023).

use super::copy::{Copied, Own, copied, mean};
use super::{Models, Step, model_path};
use crate::diag::Diagnostic;
use crate::ir::*;
use crate::types::MapOp;

/// The outer optimizer: stochastic gradient descent with Nesterov momentum. With `lr` 1 and no momentum it takes the mean.
#[derive(Clone, Copy, Debug)]
pub struct Outer {
    pub lr: f64,
    pub momentum: f64,
}

/// A step, the outer step, and initial values.
pub struct Local {
    pub step: Graph,
    pub outer: Graph,
    pub init: Graph,
    pub models: Models,
}

struct Each {
    /// By number in the step's tables, with which those of initial values begin.
    params: Vec<bool>,
    states: Vec<bool>,
}

impl Own for Each {
    fn param(&self, p: ParamId) -> bool {
        self.params[p.index()]
    }

    fn state(&self, s: StateId) -> bool {
        self.states[s.index()]
    }

    fn waits(&self, _: ValueId) -> bool {
        false
    }

    fn instead(&mut self, _: &mut Builder, _: DimId, _: ValueId, new: ValueId) -> ValueId {
        new
    }
}

/// Every replica's own training, by `step`; the model moves by outer steps. `init` computes the initial values of one replica.
///
/// With the model a, the replicas' parameters w_k and the outer momentum v, an outer step is
/// d = a - mean_k(w_k); v' = momentum * v + d; a' = a - lr * (d + momentum * v'); w_k' = a'.
pub fn local(step: Step<'_>, init: &Graph, outer: Outer) -> Result<Local, Box<Diagnostic>> {
    let g = step.graph;
    let trained = |i: usize| g.outputs.iter().any(|o| o.kind == OutputKind::Param(ParamId(i as u32)));
    let mut each = Each {
        params: (0..g.params.len()).map(trained).collect(),
        states: g.states.iter().map(|s| s.kind != StateKind::Model).collect(),
    };
    let Copied { mut b, outputs, replica } = copied(step, &mut each)?;
    b.graph.outputs = g.outputs.iter().zip(outputs).map(|(o, value)| Output { value, ..o.clone() }).collect();
    // Beside each parameter of the replicas the model's, and what it moved by.
    let mut models: Models = Vec::new();
    let mut moved: Vec<StateId> = Vec::new();
    for (i, p) in g.params.iter().enumerate().filter(|(i, _)| each.params[*i]) {
        let state = |path: String, kind| State { path, dtype: p.dtype, dims: p.dims.clone(), kind, span: p.span };
        models.push((ParamId(i as u32), b.add_state(state(model_path(&p.path), StateKind::Average))));
        if outer.momentum != 0.0 {
            moved.push(b.add_state(state(format!("outer.momentum:{}", p.path), StateKind::Optimizer)));
        }
    }
    let graph = b.finish();
    let outer = together(&graph, replica, step.count, (&models, &moved), outer);
    Ok(Local { init: started(init, &graph, &each, &models), step: graph, outer, models })
}

/// The outer step.
fn together(g: &Graph, replica: DimId, count: usize, (models, moved): (&Models, &[StateId]), outer: Outer) -> Graph {
    let mut b = Builder::new(Graph {
        dims: g.dims.clone(),
        params: g.params.clone(),
        states: g.states.clone(),
        scopes: g.scopes.clone(),
        blocks: vec![Block::default()],
        ..Graph::default()
    });
    b.phase = Phase::Update;
    for (k, (p, model)) in models.iter().enumerate() {
        // What rules say of the parameter where the model reads it holds here, too.
        let read = g.ops.iter().find(|o| o.op == Op::Param(*p));
        (b.span, b.scope) = (g.params[p.index()].span, read.map_or(ROOT, |o| o.scope));
        let own = b.param(*p);
        let mean = mean(&mut b, replica, count, (own, &g.params[p.index()].path));
        let before = b.state(*model);
        let after = if outer.lr == 1.0 && outer.momentum == 0.0 {
            mean
        } else {
            let mut by = b.sub(before, mean);
            if let Some(s) = moved.get(k) {
                let old = b.state(*s);
                let kept = b.map_scalar(MapOp::Mul, old, outer.momentum);
                let new = b.add(kept, by);
                b.output(OutputKind::State(*s), &g.states[s.index()].path, new);
                let ahead = b.map_scalar(MapOp::Mul, new, outer.momentum);
                by = b.add(by, ahead);
            }
            let by = b.map_scalar(MapOp::Mul, by, outer.lr);
            b.sub(before, by)
        };
        b.output(OutputKind::State(*model), &g.states[model.index()].path, after);
        let after = b.broadcast(after, &[replica]);
        b.output(OutputKind::Param(*p), &g.params[p.index()].path, after);
    }
    b.finish()
}

/// Initial values of one replica as those of all of them, and of the model.
fn started(init: &Graph, g: &Graph, each: &Each, models: &Models) -> Graph {
    let mut b = Builder::new(init.clone());
    let replica = b.add_dim(super::REPLICA, g.size(super::dim_of(g).expect("a step of replicas")), false);
    let own: Vec<Output> = std::mem::take(&mut b.graph.outputs);
    for (i, p) in b.graph.params.iter_mut().enumerate().filter(|(i, _)| each.params[*i]) {
        debug_assert_eq!(p.path, g.params[i].path, "tables are alike");
        p.dims.insert(0, replica);
    }
    for (_, s) in b.graph.states.iter_mut().enumerate().filter(|(i, _)| each.states[*i]) {
        s.dims.insert(0, replica);
    }
    for (p, s) in models {
        let State { path, dtype, kind, span, .. } = g.states[s.index()].clone();
        let dims = b.graph.params[p.index()].dims[1..].to_vec();
        // States of the momentum, which begin at zero, stand between in the step's table alone.
        let id = b.add_state(State { path: path.clone(), dtype, dims, kind, span });
        let first = own.iter().find(|o| o.kind == OutputKind::InitParam(*p)).map(|o| o.value);
        first.into_iter().for_each(|v| b.output(OutputKind::InitState(id), &path, v));
    }
    for o in own {
        b.span = o.span;
        let wide = match o.kind {
            OutputKind::InitParam(p) => each.params[p.index()],
            OutputKind::InitState(s) => each.states[s.index()],
            _ => false,
        };
        let value = if wide { b.broadcast(o.value, &[replica]) } else { o.value };
        b.output(o.kind, &o.name, value);
    }
    b.finish()
}
