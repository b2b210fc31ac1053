//! Replicas: a training step that several groups of ranks take, each with its share of the batch, and come together later
//! than at once.
//!
//! In: the step of one replica, with its share of the batch, as one graph that was not pruned. Out: the step of all of them: what differs
//! from replica to replica has a dim more, the *replica*. Since dims have names, operations carry it along. Inputs have the replica in
//! front of the sample dim, so replica k gets samples k * share .. (k + 1) * share of what is fed, and draws for samples are those of the
//! whole batch. Losses and metrics are means over replicas; so is what the model's states become.
//!
//! - [`local`]: parameters and the states of optimizers are the replica's own. The model itself, which evaluation reads, is kept beside
//!   them; an outer step, which is a graph of its own, moves it to (or towards) the mean of the replicas and these to it.
//! - [`stale`]: parameters are shared, and gradients wait for some steps before their mean over replicas is applied.
//! - [`delayed`]: no replicas, but a step that computes with the parameters of the step before.
//!
//! Reading order: `copy.rs` (the step with replicas), `local.rs`, `stale.rs`, `delayed.rs`.

mod copy;
mod delayed;
mod local;
mod stale;

pub use delayed::{Delayed, delayed};
pub use local::{Local, Outer, local};
pub use stale::stale;

use crate::diag::Diagnostic;
use crate::ir::*;

/// The name of the dim of replicas.
const REPLICA: &str = "replica";

/// The path of the state that holds a parameter of the model, where the parameter itself is copies of it.
pub fn model_path(param: &str) -> String {
    format!("model:{param}")
}

/// The parameter of which a state of such a path holds the model's.
pub fn param_of(state: &str) -> Option<&str> {
    state.strip_prefix("model:")
}

/// The dim of replicas in a graph that has them.
pub fn dim_of(g: &Graph) -> Option<DimId> {
    g.dims.iter().position(|d| d.name == REPLICA).map(|i| DimId(i as u32))
}

/// The step of one replica.
#[derive(Clone, Copy)]
pub struct Step<'g> {
    pub graph: &'g Graph,
    /// Counts samples.
    pub sample: DimId,
    /// How many replicas there are.
    pub count: usize,
}

/// Parameters that are replicas' own, each with the state that holds the model's.
pub type Models = Vec<(ParamId, StateId)>;

fn refused(op: &Operation, what: &str) -> Box<Diagnostic> {
    let d = Diagnostic::error("E0606", format!("{what}, so replicas cannot train on their own"));
    let d = match op.span {
        Some(span) => d.at(span, "here"),
        None => d,
    };
    Box::new(d.help("leave out `local` or `async`, or write this otherwise"))
}
