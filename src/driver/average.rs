//! Evaluation with averaged weights, or with the model of replicas: reads of parameters become reads of the states that hold their averages.

use crate::ir::{DimId, Graph, Op, ParamId, StateId};

/// `graph` is of the same model as `train`, in which `averages` pairs parameters with states.
pub fn read_averages(graph: &mut Graph, train: &Graph, averages: &[(ParamId, StateId)]) {
    for (param, state) in averages {
        let (from, to) = (&train.params[param.index()], &train.states[state.index()]);
        let Some(here) = graph.params.iter().position(|p| p.path == from.path) else { continue };
        let mut copy = to.clone();
        copy.dims.clone_from(&graph.params[here].dims);
        let id = StateId(graph.states.len() as u32);
        graph.states.push(copy);
        // A parameter that replicas have each has a dim that evaluation does not know.
        if from.dims.len() > graph.params[here].dims.len() {
            let dim = &train.dims[from.dims[0].index()];
            let known = graph.dims.iter().position(|d| d.name == dim.name);
            let id = known.unwrap_or_else(|| {
                graph.dims.push(dim.clone());
                graph.dims.len() - 1
            });
            graph.params[here].dims.insert(0, DimId(id as u32));
        }
        for op in &mut graph.ops {
            if op.op == Op::Param(ParamId(here as u32)) {
                op.op = Op::State(id);
            }
        }
    }
}
