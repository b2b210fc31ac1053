//! The list of a rank with two chunks while it is written: next comes always the next microbatch.

use crate::schedule::{Action, Work};
use std::collections::VecDeque;

pub struct Row {
    pub list: Vec<Action>,
    stages: [usize; 2],
    microbatches: usize,
    /// How many `F` and `I` there are, by chunk.
    forward: [usize; 2],
    input: [usize; 2],
    /// Chunks and microbatches whose `W` is still to come.
    pending: VecDeque<(usize, usize)>,
}

impl Row {
    pub fn new(stages: [usize; 2], microbatches: usize) -> Row {
        Row { list: Vec::new(), stages, microbatches, forward: [0; 2], input: [0; 2], pending: VecDeque::new() }
    }

    /// Whether forward work of a chunk is left.
    pub fn forward_left(&self, chunk: usize) -> bool {
        self.forward[chunk] < self.microbatches
    }

    pub fn f(&mut self, chunk: usize) {
        self.push(Work::F, chunk, self.forward[chunk]);
        self.forward[chunk] += 1;
    }

    pub fn b(&mut self, chunk: usize) {
        self.push(Work::B, chunk, self.input[chunk]);
        self.input[chunk] += 1;
    }

    pub fn i(&mut self, chunk: usize) {
        let k = self.input[chunk];
        self.push(Work::I, chunk, k);
        self.input[chunk] += 1;
        self.pending.push_back((chunk, k));
    }

    /// The oldest `W` of a chunk.
    pub fn w(&mut self, chunk: usize) {
        if let Some(at) = self.pending.iter().position(|p| p.0 == chunk)
            && let Some((_, k)) = self.pending.remove(at)
        {
            self.push(Work::W, chunk, k);
        }
    }

    /// The oldest `W`.
    pub fn oldest_w(&mut self) {
        if let Some((chunk, k)) = self.pending.pop_front() {
            self.push(Work::W, chunk, k);
        }
    }

    /// `I` and at once its `W`.
    pub fn iw(&mut self, chunk: usize) {
        self.i(chunk);
        self.w(chunk);
    }

    /// Every `W` that is left.
    pub fn rest(&mut self) {
        while !self.pending.is_empty() {
            self.oldest_w();
        }
    }

    fn push(&mut self, op: Work, chunk: usize, microbatch: usize) {
        self.list.push(Action::new(op, self.stages[chunk], microbatch));
    }
}
