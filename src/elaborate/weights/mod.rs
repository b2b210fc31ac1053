//! Foreign names of parameters: `weights` items become copy plans.
//!
//! In: a model that was walked ([`Elab::model`]) and a `weights` item of it. Out: a [`WeightsMap`]: for each tensor of the
//! file its name, its shape, and strided copies between it and the parameters. Diagnostics: E0706 to E0709, and those of
//! names, dims and sizes. Import and export ([`transfer`]) follow the same copies in opposite directions.
//! Invariants: the pieces of an entry fill its tensor exactly once; with no E0707 no element of a parameter is in two
//! pieces; numbers of parameters are the same in every mode, so that a map made in one serves all.
//! For users: [`map`] makes the map of one model by name, [`WeightsMap::own`] the one of Partita's own names (what a `load`
//! without `with` reads), [`transfer::import`] and [`transfer::export`] apply it.
//! Reading order: this file (types), `items.rs` (items, loops, prefixes), `names.rs` (paths, names of the file), `value.rs` (expressions), `pieces.rs` (the algebra),
//! `cover.rs` (each element once), `transfer.rs` (copies).

mod cover;
mod items;
mod names;
mod pieces;
#[cfg(test)]
mod tests;
pub mod transfer;
mod value;

use super::{Elab, Mode, Settings};
use crate::diag::Sink;
use crate::ir::{Graph, ParamId, StateId, StateKind};
use crate::resolve::{ItemRef, Program};
use crate::source::Span;
use crate::types::DType;
use serde::{Deserialize, Serialize};

/// A copy plan between a file's tensors and a model's parameters and states.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WeightsMap {
    /// Of the item; empty for Partita's own names.
    pub name: String,
    pub entries: Vec<Entry>,
    /// Every parameter and model state of the model, whether an entry has it or not.
    pub slots: Vec<Slot>,
}

/// A tensor of the file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub file_name: String,
    pub shape: Vec<usize>,
    pub pieces: Vec<Piece>,
    pub span: Span,
}

/// A parameter or state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Slot {
    pub target: Target,
    pub path: String,
    pub dtype: DType,
    /// In declared order.
    pub shape: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Target {
    Param(ParamId),
    State(StateId),
}

/// A strided copy: for every combination of digits `(k0, k1, ..)` the element `target_offset + sum k * target_stride` of
/// the target is the element `file_offset + sum k * file_stride` of the tensor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Piece {
    pub target: Target,
    pub target_offset: usize,
    pub file_offset: usize,
    pub factors: Vec<Factor>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Factor {
    pub size: usize,
    pub target_stride: usize,
    pub file_stride: usize,
}

impl Piece {
    pub fn elements(&self) -> usize {
        self.factors.iter().map(|f| f.size).product()
    }
}

impl Slot {
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl WeightsMap {
    /// The map of Partita's own names: every parameter and model state under its path, in declared order.
    pub fn own(graph: &Graph) -> WeightsMap {
        let slots = slots(graph);
        let none = Span::new(crate::source::FileId(0), 0, 0);
        let entries = (slots.iter())
            .map(|s| {
                let factors = vec![Factor { size: s.elements(), target_stride: 1, file_stride: 1 }];
                let piece = Piece { target: s.target, target_offset: 0, file_offset: 0, factors };
                let span = match s.target {
                    Target::Param(p) => graph.params[p.index()].span,
                    Target::State(t) => graph.states[t.index()].span,
                };
                let span = span.unwrap_or(none);
                Entry { file_name: s.path.clone(), shape: s.shape.clone(), pieces: vec![piece], span }
            })
            .collect();
        WeightsMap { name: String::new(), entries, slots }
    }
}

fn slots(graph: &Graph) -> Vec<Slot> {
    let sizes = |dims: &[crate::ir::DimId]| dims.iter().map(|d| graph.size(*d)).collect::<Vec<_>>();
    let params = graph.params.iter().enumerate().map(|(i, p)| Slot {
        target: Target::Param(ParamId(i as u32)),
        path: p.path.clone(),
        dtype: p.dtype,
        shape: sizes(&p.dims),
    });
    let states = (graph.states.iter().enumerate()).filter(|(_, s)| s.kind == StateKind::Model);
    let states = states.map(|(i, s)| Slot {
        target: Target::State(StateId(i as u32)),
        path: s.path.clone(),
        dtype: s.dtype,
        shape: sizes(&s.dims),
    });
    params.chain(states).collect()
}

/// The map `name` of a model, for `load .. with name` and export. Reports an unknown name at `at`, and what is wrong with
/// the item; parameters without an entry are reported by [`Elab::check_weights`] alone.
pub fn map(
    program: &Program,
    settings: &Settings,
    model: ItemRef,
    name: &str,
    at: Option<Span>,
    precision: DType,
    sink: &mut Sink,
) -> Option<WeightsMap> {
    let mut e = Elab::new(program, settings.clone(), Mode::EVAL, precision);
    let root = e.model(model);
    let out = match e.failed() {
        true => None,
        false => e.weights_named(model, root, name, at),
    };
    sink.extend(std::mem::take(&mut e.sink));
    out
}
