//! Data for graphs in microbatches.

use partita::interp::{Env, Tensor};
use partita::ir::Graph;

/// The environment with the data as a graph in microbatches takes them: the same, divided.
pub fn divided(graph: &Graph, env: &Env) -> Env {
    let inputs = graph.inputs.iter().zip(&env.inputs).map(|(i, t)| {
        let shape = i.dims.iter().map(|d| graph.size(*d)).collect();
        Tensor { shape, ..t.clone() }
    });
    Env { inputs: inputs.collect(), ..env.clone() }
}
