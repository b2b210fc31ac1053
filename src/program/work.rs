//! How much a step does, for profiles.

use super::{Action, Gemm, Library, Routine};
use crate::mesh::CollectiveKind;
use serde::{Deserialize, Serialize};

/// What a call does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Operations on floats.
    pub flops: u64,
    /// Bytes that must come from memory or go there, each once.
    pub bytes: u64,
}

impl Action {
    /// What one run does; of a loop nothing: its body counts for itself.
    pub fn work(&self, routine: &Routine) -> Work {
        match self {
            Action::Launch(launch) => launch.work,
            Action::Gemm(gemm) => gemm.work(),
            Action::Finished(f) => {
                let (product, kernel) = (f.gemm.work(), f.launch.work);
                // The result is written and read in the cache.
                let between = 2 * (f.gemm.m * f.gemm.n * f.gemm.out.bytes()) as u64;
                Work {
                    flops: product.flops + kernel.flops,
                    bytes: (product.bytes + kernel.bytes).saturating_sub(between),
                }
            }
            Action::Copy { from, .. } => Work { flops: 0, bytes: 2 * routine.buffer(*from).bytes() as u64 },
            Action::Library(call) => {
                let mut bytes = 0;
                self.accesses(|b, _| bytes += routine.buffer(b).bytes() as u64);
                Work { flops: call.flops(routine), bytes }
            }
            Action::Wait(all) => {
                let mut work = Work::default();
                for b in all {
                    let [from, to] = [b.from, b.to].map(|b| routine.buffer(b));
                    let reduces = matches!(b.kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter);
                    work.flops += if reduces { from.elements as u64 } else { 0 };
                    work.bytes += (from.bytes() + to.bytes()) as u64;
                }
                work
            }
            Action::Collective(_) => Work::default(),
            Action::Receive(t) => Work { flops: 0, bytes: 2 * routine.buffer(t.buffer).bytes() as u64 },
            Action::Loop(_) | Action::Call(_) | Action::Send(_) | Action::Sent(_) => Work::default(),
        }
    }

    /// Kinds of steps in profiles.
    pub fn kind(&self) -> &'static str {
        match self {
            Action::Launch(_) => "kernel",
            Action::Gemm(_) | Action::Finished(_) => "product",
            Action::Copy { .. } => "copy",
            Action::Library(_) => "library",
            Action::Collective(_) | Action::Wait(_) => "collective",
            Action::Loop(_) => "loop",
            Action::Call(_) => "call",
            Action::Send(_) | Action::Receive(_) | Action::Sent(_) => "transfer",
        }
    }
}

impl Gemm {
    /// Multiplications and additions count one each; operands and result are touched once.
    fn work(&self) -> Work {
        let batch: u64 = self.batch.iter().map(|b| b.extent as u64).product();
        let sums: u64 = self.sums.iter().map(|s| s.extent as u64).product();
        let [m, n, k] = [self.m, self.n, self.k].map(|x| x as u64);
        // A batch dim that an operand lacks reads it again; from the cache, where it is small.
        let over = |stride: fn(&super::BatchDim) -> isize| -> u64 {
            let dims = self.batch.iter().chain(&self.sums);
            dims.filter(|d| stride(d) != 0).map(|d| d.extent as u64).product()
        };
        let read = self.dtype.bytes() as u64 * (m * k * over(|d| d.a) + k * n * over(|d| d.b));
        let written = self.out.bytes() as u64 * m * n * over(|d| d.c);
        Work { flops: 2 * m * n * k * batch * sums, bytes: read + if self.accumulate { 2 * written } else { written } }
    }
}

impl Library {
    fn flops(&self, routine: &Routine) -> u64 {
        match self {
            Library::Scatter { x, .. } => routine.buffer(*x).elements as u64,
            Library::Attention(a) => a.flops(),
            Library::AttentionGrad(a) => a.flops(),
            _ => 0,
        }
    }
}
