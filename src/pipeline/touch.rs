//! What functions read and write of parameters, states and inputs.

use super::behind::{Held, Homes, bit};
use crate::ir::*;

/// Notes what a function reads on a rank.
pub fn reads(g: &Graph, rank: usize, held: &mut Held, inputs: &mut [Homes]) {
    for op in &g.ops {
        match op.op {
            Op::Param(p) => held.params[p.index()] |= bit(rank),
            Op::State(s) => {
                if let Some(homes) = held.states.get_mut(s.index()) {
                    *homes |= bit(rank);
                }
            }
            _ => {}
        }
    }
    reads_inputs(g, rank, inputs);
}

/// A parameter or state that a function needs and the rank does not hold.
pub fn missing<'g>(g: &'g Graph, rank: usize, held: &Held) -> Option<&'g str> {
    let is_on = |homes: Option<&Homes>| homes.is_none_or(|h| h & bit(rank) != 0);
    let param = |p: ParamId| (!is_on(held.params.get(p.index()))).then(|| g.params[p.index()].path.as_str());
    let state = |s: StateId| (!is_on(held.states.get(s.index()))).then(|| g.states[s.index()].path.as_str());
    let read = g.ops.iter().find_map(|op| match op.op {
        Op::Param(p) => param(p),
        Op::State(s) => state(s),
        _ => None,
    });
    read.or_else(|| {
        g.outputs.iter().find_map(|o| match o.kind {
            OutputKind::Param(p) => param(p),
            OutputKind::State(s) => state(s),
            _ => None,
        })
    })
}

/// Notes what a function reads or writes.
pub fn touched(g: &Graph, params: &mut [bool], states: &mut [bool]) {
    let mut note = |param: Option<ParamId>, state: Option<StateId>| {
        param.iter().for_each(|p| params[p.index()] = true);
        // Arguments come behind the states of the step.
        state.and_then(|s| states.get_mut(s.index())).into_iter().for_each(|s| *s = true);
    };
    g.ops.iter().for_each(|op| match op.op {
        Op::Param(p) => note(Some(p), None),
        Op::State(s) => note(None, Some(s)),
        _ => {}
    });
    g.outputs.iter().for_each(|o| match o.kind {
        OutputKind::Param(p) => note(Some(p), None),
        OutputKind::State(s) => note(None, Some(s)),
        _ => {}
    });
}

pub fn reads_inputs(g: &Graph, rank: usize, inputs: &mut [Homes]) {
    for op in &g.ops {
        if let Op::Input(i) = op.op {
            inputs[i.index()] |= bit(rank);
        }
    }
}
