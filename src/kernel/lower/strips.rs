//! Products that one kernel finishes: it runs over each block of the result while that is in the cache, on the thread that made it.
//!
//! So are gradients that update parameters and that nobody else reads: they are never in memory as a whole. Their kernels are
//! cut finer first, so that a block need not have whole lines of the result.

use super::Lowerer;
use super::pieces::{by_elements, by_pieces, own_loads};
use crate::kernel::{ArgId, Kernel, Node};
use crate::program::{Access, Action, BufferId, Finished, Gemm, Launch, MAX_FINISH_ARGS, Place, Step};

/// Bytes of a result that would not stay in a cache until the kernel reads it.
const LEAST_BYTES: usize = 4 << 20;
/// Longest sum: a product takes the longer for each element, the longer its sum is, and the less does it matter when the
/// element is read.
pub(super) const MOST_SUMS: usize = 512;
/// Elements of a line of the result that a row of a kernel handles, at least and at most.
const PIECE: (usize, usize) = (128, 1024);
/// Elements of an operand that a thread keeps packed.
const PACKED: usize = 128 << 10;
/// Bytes of a block, about, and least lines.
const BLOCK_BYTES: usize = 384 << 10;
const LEAST_LINES: usize = 8;

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
                && self.updates(gemm, launch)
                && let Some(arg) = self.may_finish(gemm, launch)
            {
                let (gemm, launch) = (gemm.clone(), launch.clone());
                let next = steps.remove(i + 1);
                match self.finer(&gemm, launch, arg, steps, &uses) {
                    Some(launch) => {
                        self.routine.buffers[gemm.c.buffer.index()].place = Place::Strip;
                        let beside = beside(&self.module.kernels[launch.function as usize], arg);
                        steps[i].label = format!("dot+{}", next.label);
                        steps[i].action = Action::Finished(Finished { gemm, launch, beside });
                    }
                    None => steps.insert(i + 1, next),
                }
            }
            i += 1;
        }
    }

    /// The argument by which a kernel reads a product's result, where it may run on blocks of it while others are made.
    fn may_finish(&self, gemm: &Gemm, launch: &Launch) -> Option<ArgId> {
        let c = gemm.c.buffer;
        let buffer = self.routine.buffer(c);
        let plain = gemm.batch.is_empty() && gemm.sums.is_empty() && !gemm.accumulate && gemm.c.offset == 0;
        let floats = gemm.dtype.is_float() && gemm.out.is_float();
        let (lines, width) = gemm.c_rows()?;
        if !plain || !floats || lines * width != buffer.elements || !matches!(buffer.place, Place::Arena(_)) {
            return None;
        }
        // What the kernel writes is not what later blocks are made of.
        let spoilt = |b: BufferId| [gemm.a.buffer, gemm.b.buffer].iter().any(|o| self.overlap(b, *o));
        if launch.args.iter().any(|a| a.access.writes() && spoilt(a.buffer)) {
            return None;
        }
        let mut reads = launch.args.iter().enumerate().filter(|(_, a)| a.buffer == c);
        let (arg, Access::Read) = reads.next().map(|(n, a)| (n, a.access))? else { return None };
        (launch.args.len() <= MAX_FINISH_ARGS && reads.next().is_none()).then_some(ArgId(arg as u32))
    }

    /// Whether two buffers may be one memory, wholly or in part.
    fn overlap(&self, a: BufferId, b: BufferId) -> bool {
        let root = |mut b: BufferId| {
            while let Place::Slice { base, .. } = self.routine.buffer(b).place {
                b = base;
            }
            b
        };
        let (a, b) = (root(a), root(b));
        let [x, y] = [a, b].map(|b| self.routine.buffer(b).place);
        a == b || (x == y && !matches!(x, Place::Arena(_)))
    }

    /// Whether a kernel updates parameters by a product's result, which is so large, and soon made, that it pays not to store it.
    fn updates(&self, gemm: &Gemm, launch: &Launch) -> bool {
        let updates = |b: BufferId| matches!(self.routine.buffer(b).place, Place::Param(_));
        let written = launch.args.iter().any(|a| a.access.writes() && updates(a.buffer));
        written && self.routine.buffer(gemm.c.buffer).bytes() >= LEAST_BYTES && gemm.k <= MOST_SUMS
    }

    /// The launch of a kernel whose rows read as little of the result as can be, each a part for itself; none where
    /// blocks of such rows would be too large.
    fn finer(&mut self, gemm: &Gemm, launch: Launch, arg: ArgId, steps: &mut [Step], uses: &[u32]) -> Option<Launch> {
        let elements = self.routine.buffer(gemm.c.buffer).elements;
        let (_, width) = gemm.c_rows()?;
        let kernel = &self.module.kernels[launch.function as usize];
        let own = |kernel: &Kernel| {
            let each = elements.checked_div(kernel.row_count()).filter(|each| each * kernel.row_count() == elements)?;
            own_loads(kernel, arg, each).then_some(each)
        };
        if let Some(fine) = by_elements(kernel).filter(|k| own(k) == Some(1)) {
            return Some(self.launch_of(fine, launch));
        }
        let each = own(kernel)?;
        let most = PIECE.1.min(PACKED / gemm.k.max(1));
        if each == width && each > most {
            let divides = |n: &usize| width.is_multiple_of(*n);
            let lengths = || (PIECE.0..=most).rev().filter(divides);
            let length = lengths().find(|n| n.is_multiple_of(16)).or(lengths().next());
            if let Some(launch) = length.and_then(|n| self.cut(&launch, n, steps, uses)) {
                return Some(launch);
            }
        }
        let lines = BLOCK_BYTES / (each.max(width) * gemm.out.bytes());
        let unit = each.is_multiple_of(width) || width.is_multiple_of(each);
        // An operand that does not stay packed is packed for each block.
        let packed = each.min(width) * gemm.k <= PACKED || 2 * gemm.k <= 3 * lines;
        (unit && packed && (each < width || lines >= LEAST_LINES)).then_some(launch)
    }

    /// The launch of a kernel that takes the place of a launch's own.
    fn launch_of(&mut self, kernel: Kernel, launch: Launch) -> Launch {
        let elements: Vec<usize> = launch.args.iter().map(|a| self.routine.buffer(a.buffer).elements).collect();
        let (rows, work) = (kernel.row_count(), kernel.work(&elements));
        Launch { rows, work, grain: super::kernels::grain(&kernel), function: self.module.kernel(kernel), ..launch }
    }

    /// A launch with rows of `length` elements. What it sums for each row becomes longer; who reads that must do nothing but
    /// sum it up.
    fn cut(&mut self, launch: &Launch, length: usize, steps: &mut [Step], uses: &[u32]) -> Option<Launch> {
        let kernel = &self.module.kernels[launch.function as usize];
        let (fine, partial) = by_pieces(kernel, length)?;
        let times = fine.row_count() / kernel.row_count();
        let mut readers: Vec<(usize, Launch, Kernel)> = Vec::new();
        for arg in &partial {
            let b = launch.args[arg.index()].buffer;
            let buffer = self.routine.buffer(b);
            let alone = uses[b.index()] == 2 && matches!(buffer.place, Place::Arena(_));
            if !alone || buffer.elements != launch.rows {
                return None;
            }
            let (at, reader) = steps.iter().enumerate().find_map(|(n, s)| match &s.action {
                Action::Launch(l) if l.args.iter().any(|a| a.buffer == b) => Some((n, l)),
                _ => None,
            })?;
            let known = readers.iter().position(|(n, ..)| *n == at);
            let kernel = known.map_or(&self.module.kernels[reader.function as usize], |n| &readers[n].2);
            let arg = reader.args.iter().position(|a| a.buffer == b)?;
            let longer = super::pieces::longer_sum(kernel, ArgId(arg as u32), buffer.elements, times)?;
            match known {
                Some(n) => readers[n].2 = longer,
                None => readers.push((at, reader.clone(), longer)),
            }
        }
        for arg in partial {
            self.routine.buffers[launch.args[arg.index()].buffer.index()].elements *= times;
        }
        for (at, reader, kernel) in readers {
            steps[at].action = Action::Launch(self.launch_of(kernel, reader));
        }
        Some(self.launch_of(fine, launch.clone()))
    }
}

/// Arguments that a kernel reads at the places at which it reads `arg`.
fn beside(kernel: &Kernel, arg: ArgId) -> Vec<u32> {
    let loads = |of: ArgId| {
        kernel.exprs.iter().filter_map(move |e| match &e.node {
            Node::Load { buffer, at, .. } if *buffer == of => Some(at),
            _ => None,
        })
    };
    let Some(place) = loads(arg).next() else { return Vec::new() };
    let all = (0..kernel.buffers.len() as u32).map(ArgId).filter(|a| *a != arg);
    all.filter(|a| loads(*a).count() > 0 && loads(*a).all(|at| at == place)).map(|a| a.0).collect()
}
