//! What the actions of a pipeline take: time, and memory that stays.

use super::{Action, Work};

/// Of one stage and one microbatch, in any unit of time and memory.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StageCost {
    pub forward: f64,
    /// Of `I`.
    pub input: f64,
    /// Of `W`.
    pub weight: f64,
    /// Memory that stays from `F` on.
    pub held: f64,
    /// What of it stays from `I` to `W`; after `B` nothing does.
    pub kept: f64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Costs {
    pub stages: Vec<StageCost>,
    /// Time that the result of stage `s` takes to another rank that holds stage `s + 1`, and its gradient back, by `s`.
    pub transfer: Vec<[f64; 2]>,
    /// Most memory of what stays that a rank may have at any time.
    pub cap: Option<f64>,
}

impl Costs {
    /// `F = I = W = 1`, transfers take no time; what stays is counted in activations of one stage, all of which live until `W`.
    pub fn unit(stages: usize) -> Costs {
        let stage = StageCost { forward: 1.0, input: 1.0, weight: 1.0, held: 1.0, kept: 1.0 };
        Costs { stages: vec![stage; stages], transfer: vec![[0.0; 2]; stages.saturating_sub(1)], cap: None }
    }

    pub fn of(&self, op: Work, stage: usize) -> f64 {
        let s = &self.stages[stage];
        match op {
            Work::F => s.forward,
            Work::I => s.input,
            Work::W => s.weight,
            Work::B => s.input + s.weight,
        }
    }

    /// Time from the end of the work of a neighbouring stage on another rank until an action has what it needs of it.
    pub fn between(&self, a: Action) -> f64 {
        match a.op {
            Work::F => a.stage.checked_sub(1).map_or(0.0, |s| self.transfer[s][0]),
            Work::I | Work::B => self.transfer.get(a.stage).map_or(0.0, |t| t[1]),
            Work::W => 0.0,
        }
    }

    /// What an action changes of the memory that stays.
    pub fn memory(&self, op: Work, stage: usize) -> f64 {
        let s = &self.stages[stage];
        match op {
            Work::F => s.held,
            Work::I => s.kept - s.held,
            Work::W => -s.kept,
            Work::B => -s.held,
        }
    }
}
