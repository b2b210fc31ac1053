//! A step that computes with the parameters of the step before: the rule of PipeDream-2BW (Narayanan et al.,
//! "Memory-Efficient Pipeline-Parallel DNN Training", 2021).

use super::{Models, model_path};
use crate::ir::*;
use std::collections::HashMap;

/// A step, and initial values.
pub struct Delayed {
    pub step: Graph,
    pub init: Graph,
    pub models: Models,
}

/// With the update u of the optimizer, w(t + 1) = w(t) - u(gradient at w(t - 1)); the first step computes with w(0). The graph's
/// parameters are the earlier ones then; states hold the latest ones, from which updates start and which evaluation reads.
pub fn delayed(graph: &Graph, init: &Graph) -> Delayed {
    let (mut b, mut start) = (Builder::new(graph.clone()), Builder::new(init.clone()));
    b.phase = Phase::Update;
    let mut models: Models = Vec::new();
    let mut latest: HashMap<ParamId, ValueId> = HashMap::new();
    let known = graph.block(ENTRY).ops.len();
    for o in &mut b.graph.outputs.clone() {
        let OutputKind::Param(p) = o.kind else { continue };
        let Param { path, dtype, dims, span, .. } = graph.params[p.index()].clone();
        let state = State { path: model_path(&path), dtype, dims, kind: StateKind::Latest, span };
        let first = init.outputs.iter().find(|o| o.kind == OutputKind::InitParam(p)).map(|o| o.value);
        // Both graphs have the same dims of parameters, each by its own numbers.
        let dims = init.params[p.index()].dims.clone();
        let id = start.add_state(State { dims, ..state.clone() });
        first.into_iter().for_each(|v| start.output(OutputKind::InitState(id), &state.path, v));
        let id = b.add_state(state);
        b.span = span;
        latest.insert(p, b.state(id));
        models.push((p, id));
    }
    // They are read before all else.
    b.graph.blocks[ENTRY.index()].ops.rotate_left(known);
    let stands_for = |g: &Graph, v: ValueId| match g.def_op(v)?.op {
        Op::Param(p) => latest.get(&p).copied(),
        _ => None,
    };
    for i in 0..b.graph.ops.len() {
        if b.graph.ops[i].phase != Phase::Update {
            continue;
        }
        for k in 0..b.graph.ops[i].args.len() {
            if let Some(v) = stands_for(&b.graph, b.graph.ops[i].args[k]) {
                b.graph.ops[i].args[k] = v;
            }
        }
    }
    for i in 0..b.graph.outputs.len() {
        let OutputKind::Param(p) = b.graph.outputs[i].kind else { continue };
        let (_, id) = models.iter().find(|m| m.0 == p).expect("a model of each parameter that is trained");
        let path = b.graph.states[id.index()].path.clone();
        let value = b.graph.outputs[i].value;
        let value = stands_for(&b.graph, value).unwrap_or(value);
        // What was the latest is the earlier one next.
        b.graph.outputs[i].value = latest[&p];
        b.output(OutputKind::State(*id), &path, value);
    }
    Delayed { step: b.finish(), init: start.finish(), models }
}
