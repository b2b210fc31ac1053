//! Gradients that one kernel reads, which updates parameters by them, and nobody else: the product is made strip by strip, and
//! the kernel runs over each strip while it is in the cache, so that the gradient is never in memory as a whole.

use super::Lowerer;
use crate::kernel::{Kernel, Node};
use crate::program::{Access, Action, BufferId, Finished, Gemm, Launch, MAX_STRIP_ARGS, Place, Step};

/// Bytes of a result that would not stay in a cache until the kernel reads it.
const LEAST_BYTES: usize = 4 << 20;
/// Longest sum. Each strip packs an operand anew, which must be little beside what the kernel saves; that is the less, the
/// longer a product takes for each element.
pub(super) const MOST_SUMS: usize = 512;
/// The same for each two rows of a strip: what packing reads and writes against what storing the result and loading it would.
const MOST_SUMS_OF_TWO_ROWS: usize = 3;
/// Bytes of a strip, about: a part of a second-level cache.
const STRIP_BYTES: usize = 1 << 20;
/// Rows of a strip come in whole tiles of any processor.
const STRIP_ROWS: usize = 48;

impl Lowerer<'_, '_> {
    pub(super) fn finish_products(&mut self, steps: &mut Vec<Step>) {
        if !self.options.fuse {
            return;
        }
        let mut uses = vec![0u32; self.routine.buffers.len()];
        for step in steps.iter() {
            super::finish::visit(step, &mut |b, _| uses[b.index()] += 1);
        }
        self.routine.outputs.iter().for_each(|o| uses[o.buffer.index()] += 1);
        // What a loop takes slices of must be there as a whole.
        for buffer in &self.routine.buffers {
            if let Place::Slice { base, turn, .. } = buffer.place {
                uses[base.index()] += 1;
                uses[turn.index()] += 1;
            }
        }
        let mut i = 0;
        while i + 1 < steps.len() {
            if let (Action::Gemm(gemm), Action::Launch(launch)) = (&steps[i].action, &steps[i + 1].action)
                && uses[gemm.c.buffer.index()] == 2
                && let Some(strip) = self.strip(gemm, launch)
            {
                let c = gemm.c.buffer;
                let finished = Finished { gemm: gemm.clone(), launch: launch.clone(), strip };
                steps[i].label = format!("dot+{}", steps[i + 1].label);
                steps[i].action = Action::Finished(finished);
                steps.remove(i + 1);
                self.routine.buffers[c.index()].place = Place::Strip;
            }
            i += 1;
        }
    }

    /// Rows of a strip, where a product can be finished by a kernel and that is worth it.
    fn strip(&self, gemm: &Gemm, launch: &Launch) -> Option<usize> {
        let c = gemm.c.buffer;
        let buffer = self.routine.buffer(c);
        let plain = gemm.batch.is_empty() && gemm.sums.is_empty() && !gemm.accumulate && gemm.c.offset == 0;
        let (rows, width) = gemm.c_rows()?;
        let large = buffer.bytes() >= LEAST_BYTES && gemm.k <= MOST_SUMS;
        if !plain || !large || !matches!(buffer.place, Place::Arena(_)) || rows * width != buffer.elements {
            return None;
        }
        // Other kernels read little beside the result, which costs less than products that threads make alone.
        let updates = |b: BufferId| matches!(self.routine.buffer(b).place, Place::Param(_));
        if !launch.args.iter().any(|a| a.access.writes() && updates(a.buffer)) {
            return None;
        }
        // What the kernel writes is not what later strips are made of.
        let same = |a: BufferId, b: BufferId| {
            let [x, y] = [a, b].map(|b| self.routine.buffer(b).place);
            a == b || (x == y && !matches!(x, Place::Arena(_)))
        };
        let operands = [gemm.a.buffer, gemm.b.buffer];
        let spoilt = |b: BufferId| operands.iter().any(|o| same(b, *o));
        if launch.args.iter().any(|a| a.access.writes() && spoilt(a.buffer)) {
            return None;
        }
        let kernel = &self.module.kernels[launch.function as usize];
        let reads = launch.args.iter().enumerate().filter(|(_, a)| a.buffer == c);
        let mut reads = reads.map(|(n, a)| (n, a.access));
        let (arg, Access::Read) = reads.next()? else { return None };
        let many = launch.args.len() > MAX_STRIP_ARGS;
        if many || reads.next().is_some() || launch.rows == 0 || !buffer.elements.is_multiple_of(launch.rows) {
            return None;
        }
        let each = buffer.elements / launch.rows;
        if !reads_own_part(kernel, arg, each) {
            return None;
        }
        // Whole rows of the result and of the kernel.
        let unit = match (width % each, each % width) {
            (0, _) => 1,
            (_, 0) => each / width,
            _ => return None,
        };
        let wanted = (STRIP_BYTES / (width * buffer.dtype.bytes())).max(1).next_multiple_of(STRIP_ROWS);
        let strip = wanted.next_multiple_of(unit).min(rows);
        (2 * gemm.k <= MOST_SUMS_OF_TWO_ROWS * strip).then_some(strip)
    }
}

/// Whether row r of a kernel reads nothing of an argument but its elements r * each .. (r + 1) * each.
fn reads_own_part(kernel: &Kernel, arg: usize, each: usize) -> bool {
    let mut strides = vec![0i64; kernel.rows];
    let mut stride = each as i64;
    for l in (0..kernel.rows).rev() {
        strides[l] = stride;
        stride *= kernel.extents[l] as i64;
    }
    kernel.exprs.iter().all(|e| {
        let Node::Load { buffer, at, .. } = &e.node else { return true };
        if buffer.index() != arg {
            return true;
        }
        let step = |l: usize| at.loops.iter().find(|(x, _)| x.index() == l).map_or(0, |(_, c)| *c);
        let own_row = (0..kernel.rows).all(|l| step(l) == strides[l] || kernel.extents[l] == 1);
        let inner = (kernel.rows..kernel.extents.len()).map(|l| (step(l), kernel.extents[l] as i64 - 1));
        let (mut low, mut high) = (at.base, at.base);
        for (step, last) in inner {
            low += (step * last).min(0);
            high += (step * last).max(0);
        }
        own_row && at.exprs.is_empty() && low >= 0 && high < each as i64
    })
}
