//! The steps of a routine.

use super::memory::Spot;
use super::{Executor, RunArgs, broken, placed};
use crate::mesh::cut;
use crate::program::{
    Action, BatchDim, BufferId, Call as ProgramCall, Failure, Finished, Gemm, Key, Launch, Library, Loop,
    MAX_FINISH_ARGS, Routine, Scalar, Step,
};
use crate::runtime::RuntimeError;
use crate::runtime::device::attention;
use crate::runtime::device::code::Kernel;
use crate::runtime::device::library::{self, Draw, Scatter};
use crate::runtime::device::pool::Pool;
use crate::runtime::device::product::{Beside, Block, Extent, Product, Unit, Units};
use crate::runtime::device::share::Shared;
use crate::types::rng;
use crate::with_element;
use std::time::Instant;

/// Bytes of a copy that are worth a thread.
const COPY_LEAST: usize = 1 << 18;
/// Most loops around one draw.
const MAX_TURNS: usize = 16;

impl Executor {
    /// Runs steps; `number` counts them through all loop bodies, for times.
    pub(super) fn steps(
        &mut self,
        routine: usize,
        steps: &[Step],
        args: RunArgs,
        number: &mut usize,
    ) -> Result<(), RuntimeError> {
        for step in steps {
            let own = *number;
            *number += 1;
            if !step.when.holds(args.begun, args.ahead) {
                continue;
            }
            let start = self.watch.times.is_some().then(Instant::now);
            self.spoil_before(routine, own);
            self.watch_before(routine, step);
            self.note_arena(routine, step);
            let result = match &step.action {
                Action::Launch(launch) => self.launch(routine, launch, args),
                Action::Gemm(gemm) => self.gemm(routine, gemm),
                Action::Finished(f) => self.finished(routine, f, args),
                Action::Copy { from, to } => self.copy(routine, *from, *to),
                Action::Library(call) => self.library(routine, call, args),
                Action::Collective(c) => {
                    self.post(routine, c);
                    Ok(())
                }
                Action::Wait(all) => {
                    self.finish(routine, all, step)?;
                    Ok(())
                }
                Action::Loop(l) => {
                    self.run_loop(routine, l, args, number)?;
                    Ok(())
                }
                Action::Call(call) => {
                    self.call(routine, call, args)?;
                    Ok(())
                }
                Action::Send(t) => {
                    self.send(routine, t);
                    Ok(())
                }
                Action::Receive(t) => {
                    self.receive(routine, t, step)?;
                    Ok(())
                }
                Action::Sent(t) => {
                    self.sent(t, step)?;
                    Ok(())
                }
            };
            if let Err(why) = result {
                return Err(broken(&self.program.routines[routine], step, &why));
            }
            if let Some(failure) = Failure::of_cell(std::mem::take(&mut *self.lists.status)) {
                return Err(self.out_of_range(failure));
            }
            if let (Some(times), Some(start)) = (&mut self.watch.times, start) {
                times.step(routine, own, start);
            }
            self.watch_after(routine, step);
        }
        Ok(())
    }

    /// Runs another routine on buffers of this one.
    fn call(&mut self, routine: usize, call: &ProgramCall, args: RunArgs) -> Result<(), RuntimeError> {
        let callee = call.routine as usize;
        for k in 0..self.given[callee].len() {
            let (number, buffer) = self.given[callee][k];
            let at = self.at(routine, call.args[number as usize].buffer);
            self.spots[callee][buffer.index()] = Spot::Fixed(at);
        }
        let frame = self.memory.frame;
        self.memory.frame = match self.spots[routine][call.workspace.index()] {
            Spot::Arena { start, .. } => frame + start,
            _ => frame,
        };
        let program = self.program.clone();
        let own = RunArgs { step: args.step + u64::from(call.ahead), ..args };
        if call.ahead {
            self.memory.set_cells(own);
        }
        let done = self.steps(callee, &program.routines[callee].steps, own, &mut 0);
        if call.ahead {
            self.memory.set_cells(args);
        }
        self.memory.frame = frame;
        done
    }

    fn at(&self, routine: usize, buffer: BufferId) -> *mut u8 {
        self.memory.locate(&self.spots[routine], buffer)
    }

    fn note_arena(&mut self, routine: usize, step: &Step) {
        let (memory, spots) = (&self.memory, &self.spots[routine]);
        let mut end = self.high_water[routine];
        step.action.accesses(|buffer, _| end = end.max(memory.arena_end(spots, buffer)));
        self.high_water[routine] = end;
    }

    fn out_of_range(&self, failure: Failure) -> RuntimeError {
        let Some(site) = self.program.sites.get(failure.site as usize) else {
            return RuntimeError::internal(format!("a check without a site, number {}", failure.site));
        };
        let index = failure.value.into();
        let index = if self.program.mesh.ranks() > 1 { cut::told(index) } else { index };
        let error = match site.ragged {
            true => RuntimeError::overfull(index, &site.dim, site.size),
            false => RuntimeError::out_of_range(index, &site.dim, site.size),
        };
        placed(&self.program, site.source, error)
    }

    // ---- actions

    fn launch(&mut self, routine: usize, launch: &Launch, args: RunArgs) -> Result<(), String> {
        self.with_arguments(routine, launch, args, |exec, call| {
            exec.pool.split(launch.rows, launch.grain, &|begin, end| call.rows(begin, end))
        })
    }

    /// Prepares the arguments of a kernel.
    fn with_arguments(
        &mut self,
        routine: usize,
        launch: &Launch,
        args: RunArgs,
        run: impl FnOnce(&mut Executor, &Call) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut pointers = std::mem::take(&mut self.lists.pointers);
        let mut scalars = std::mem::take(&mut self.lists.scalars);
        pointers.clear();
        pointers.extend(launch.args.iter().map(|a| self.at(routine, a.buffer)));
        scalars.clear();
        scalars.extend(launch.scalars.iter().map(|s| match s {
            Scalar::Key(key) => self.key(routine, key, args),
            Scalar::Origin(terms) => self.origin(terms),
        }));
        scalars.push(&raw mut *self.lists.status as u64);
        let entry = self.program.code.functions[launch.function as usize] as usize;
        let call = Call {
            // SAFETY: the program's compiler has put a kernel there, for a processor that has been checked.
            kernel: unsafe { self.code.kernel(entry) },
            pointers: Shared(pointers.as_mut_ptr()),
            scalars: Shared(scalars.as_mut_ptr()),
            helpers: Shared(self.helpers.as_mut_ptr()),
        };
        let result = run(self, &call);
        self.lists.pointers = pointers;
        self.lists.scalars = scalars;
        result
    }

    /// A product, and the kernel that reads its result block by block.
    fn finished(&mut self, routine: usize, f: &Finished, args: RunArgs) -> Result<(), String> {
        let gemm = &f.gemm;
        let (_, width) = gemm.c_rows().ok_or("a block of a product that is not dense")?;
        let which = f.launch.args.iter().position(|a| a.buffer == gemm.c.buffer);
        let which = which.ok_or("a kernel that does not read the product")?;
        let (each, count, bytes) = (gemm.m * gemm.n / f.launch.rows, f.launch.args.len(), gemm.out.bytes());
        let buffers = &self.program.routines[routine].buffers;
        let beside = |n: &u32| {
            let buffer = f.launch.args[*n as usize].buffer;
            Beside { at: self.at(routine, buffer), bytes: buffers[buffer.index()].dtype.bytes() }
        };
        let beside: [Option<Beside>; 4] = std::array::from_fn(|n| f.beside.get(n).map(beside));
        self.with_arguments(routine, &f.launch, args, |exec, call| {
            let product = Product { batch: &[], sums: &[], ..product(gemm) };
            let read = gemm.dtype.bytes();
            // SAFETY: buffers hold all that the product reaches: invariants of a program.
            let operands = unsafe {
                (
                    exec.at(routine, gemm.a.buffer).add(gemm.a.offset * read).cast_const(),
                    exec.at(routine, gemm.b.buffer).add(gemm.b.offset * read).cast_const(),
                )
            };
            let then = |block: &Block| {
                let mut pointers = [std::ptr::null_mut(); MAX_FINISH_ARGS];
                // SAFETY: the list of the call has as many entries.
                pointers[..count].copy_from_slice(unsafe { std::slice::from_raw_parts(call.pointers.get(), count) });
                // The kernel addresses the whole result, of which these elements are here.
                let mut rows = |from: usize, to: usize, at: *mut u8| {
                    pointers[which] = at.wrapping_sub(from * bytes);
                    call.with(&mut pointers).rows(from / each, to / each);
                };
                let Block { lines, across, at, step } = block;
                if *step == width * bytes && across.len() == width {
                    return rows(lines.start * width, lines.end * width, *at);
                }
                for (n, line) in lines.clone().enumerate() {
                    rows(line * width + across.start, line * width + across.end, at.wrapping_add(n * step));
                }
            };
            let (pool, scratch) = (&exec.pool, exec.scratch.words());
            // SAFETY: as above.
            unsafe { product.run_in_blocks(Unit::best(), pool, operands, (units(f), &beside), scratch, &then) }
        })
    }

    fn key(&self, routine: usize, key: &Key, args: RunArgs) -> u64 {
        let mut turns = [0; MAX_TURNS];
        for (turn, cell) in turns.iter_mut().zip(&key.turns) {
            // SAFETY: the cell is an I32 of the program.
            *turn = unsafe { self.at(routine, *cell).cast::<i32>().read() };
        }
        rng::key(args.seed, args.step, key.stream, rng::turns(&turns[..key.turns.len()]))
    }

    fn gemm(&mut self, routine: usize, gemm: &Gemm) -> Result<(), String> {
        let mut batch = std::mem::take(&mut self.lists.batch);
        let mut sums = std::mem::take(&mut self.lists.sums);
        let extent = |d: &BatchDim| Extent { size: d.extent, a: d.a, b: d.b, c: d.c };
        batch.clear();
        batch.extend(gemm.batch.iter().map(extent));
        sums.clear();
        sums.extend(gemm.sums.iter().map(extent));
        let product = Product { batch: &batch, sums: &sums, ..product(gemm) };
        let (read, written) = (gemm.dtype.bytes(), gemm.out.bytes());
        // SAFETY: buffers hold all that the product reaches and c is apart from a and b: invariants of a program.
        let result = unsafe {
            let a = self.at(routine, gemm.a.buffer).add(gemm.a.offset * read);
            let b = self.at(routine, gemm.b.buffer).add(gemm.b.offset * read);
            let c = self.at(routine, gemm.c.buffer).add(gemm.c.offset * written);
            product.run(&self.pool, a, b, c, self.scratch.words())
        };
        self.lists.batch = batch;
        self.lists.sums = sums;
        result
    }

    fn copy(&mut self, routine: usize, from: BufferId, to: BufferId) -> Result<(), String> {
        let bytes = self.program.routines[routine].buffer(from).bytes();
        let (from, to) = (self.at(routine, from), self.at(routine, to));
        if from == to {
            return Ok(());
        }
        copy(&self.pool, from, to, bytes)
    }

    fn run_loop(&mut self, routine: usize, l: &Loop, args: RunArgs, number: &mut usize) -> Result<(), RuntimeError> {
        let first = *number;
        for n in 0..l.trip {
            let turn = if l.reverse { l.trip - 1 - n } else { n };
            // SAFETY: the cell is an I32 of the program.
            unsafe { self.at(routine, l.turn).cast::<i32>().write(turn as i32) };
            *number = first;
            self.steps(routine, &l.body, args, number)?;
            for (from, to) in &l.moves {
                self.copy(routine, *from, *to).map_err(RuntimeError::internal)?;
            }
        }
        *number = first + count(&l.body);
        Ok(())
    }

    fn library(&mut self, routine: usize, call: &Library, args: RunArgs) -> Result<(), String> {
        let program = self.program.clone();
        let r = &program.routines[routine];
        match call {
            Library::ArgSort { x, out, n, .. } => {
                let out = self.elements_mut::<i32>(r, routine, *out);
                with_element!(r.buffer(*x).dtype, E => {
                    library::arg_sort(&self.pool, self.elements::<E>(r, routine, *x), out, *n)
                })
            }
            Library::TopK { x, out, n, k, .. } => {
                let out = self.elements_mut::<i32>(r, routine, *out);
                with_element!(r.buffer(*x).dtype, E => {
                    library::top_k(&self.pool, self.elements::<E>(r, routine, *x), out, *n, *k)
                })
            }
            Library::PackPlace { index, out, n, limit, .. } => {
                let out = self.elements_mut::<i32>(r, routine, *out);
                let index = self.elements::<i32>(r, routine, *index);
                library::pack_place(index, out, *n, *limit, self.scratch.words());
                Ok(())
            }
            Library::Draw { logits, out, n, top_k, top_p, key, .. } => {
                let how = Draw { top_k: *top_k as usize, top_p: *top_p, key: self.key(routine, key, args) };
                let out = self.elements_mut::<i32>(r, routine, *out);
                with_element!(r.buffer(*logits).dtype, E => {
                    library::draw(self.elements::<E>(r, routine, *logits), out, *n, how, &mut self.scratch.words()[..2 * n]);
                });
                Ok(())
            }
            Library::Random { out, dist, key } => {
                let key = self.key(routine, key, args);
                library::fill(&self.pool, *dist, key, self.elements_mut::<f32>(r, routine, *out))
            }
            Library::Scatter { kind, x, index, out, batch, m, targets, width, times, each, add } => {
                let (batch, m, targets, width) = (*batch, *m, *targets, *width);
                let shape = Scatter { kind: *kind, batch, m, targets, width, times: *times, each: *each, add: *add };
                let index = self.elements::<i32>(r, routine, *index);
                with_element!(r.buffer(*x).dtype, E => {
                    let x = self.elements::<E>(r, routine, *x);
                    let out = self.elements_mut::<E>(r, routine, *out);
                    library::scatter(&self.pool, shape, x, index, out, &mut self.scratch.words()[..targets + 1 + m])
                })
            }
            Library::Attention(a) => {
                let (memory, spots) = (&self.memory, &self.spots[routine]);
                // SAFETY: buffers hold all that the arrays reach, and results are apart: invariants of a program.
                unsafe { attention::forward(&self.pool, a, &|b| memory.locate(spots, b), self.scratch.words()) }
            }
            Library::AttentionGrad(a) => {
                let (memory, spots) = (&self.memory, &self.spots[routine]);
                // SAFETY: as above.
                unsafe { attention::backward(&self.pool, a, &|b| memory.locate(spots, b), self.scratch.words()) }
            }
        }
    }

    /// The elements of a buffer. The lifetime is not that of a borrow of the executor: steps use its other parts at the same
    /// time.
    fn elements<'m, T>(&self, r: &Routine, routine: usize, buffer: BufferId) -> &'m [T] {
        let n = r.buffer(buffer).elements;
        // SAFETY: memory of the executor, which outlives the step; elements of `T` by the buffer's dtype.
        unsafe { std::slice::from_raw_parts(self.at(routine, buffer).cast(), n) }
    }

    /// The same to write to: buffers that a step writes are apart from all others, by the program's plan.
    fn elements_mut<'m, T>(&self, r: &Routine, routine: usize, buffer: BufferId) -> &'m mut [T] {
        let n = r.buffer(buffer).elements;
        // SAFETY: as above; nothing else refers to what a step writes.
        unsafe { std::slice::from_raw_parts_mut(self.at(routine, buffer).cast(), n) }
    }
}

/// How the result of a product may be cut, so that the kernel that finishes it has whole rows.
pub(super) fn units(f: &Finished) -> Units {
    let width = f.gemm.c_rows().map_or(1, |(_, width)| width);
    let each = f.gemm.m * f.gemm.n / f.launch.rows;
    Units { lines: (each / width).max(1), across: each.min(width) }
}

/// A product without its batch and further sums.
pub(super) fn product(gemm: &Gemm) -> Product<'static> {
    Product {
        batch: &[],
        sums: &[],
        m: Extent { size: gemm.m, a: gemm.a.rows, b: 0, c: gemm.c.rows },
        n: Extent { size: gemm.n, a: 0, b: gemm.b.cols, c: gemm.c.cols },
        k: Extent { size: gemm.k, a: gemm.a.cols, b: gemm.b.rows, c: 0 },
        accumulate: gemm.accumulate,
        dtype: gemm.dtype,
        out: gemm.out,
    }
}

/// A kernel with its arguments.
struct Call {
    kernel: Kernel,
    pointers: Shared<*mut u8>,
    scalars: Shared<u64>,
    helpers: Shared<usize>,
}

impl Call {
    fn rows(&self, begin: usize, end: usize) {
        // SAFETY: buffers hold all that the kernel accesses, and its rows are independent: invariants of a program.
        unsafe { (self.kernel)(self.pointers.get(), self.scalars.get(), self.helpers.get(), begin as u64, end as u64) }
    }

    /// The same with other buffers.
    fn with(&self, pointers: &mut [*mut u8]) -> Call {
        Call {
            pointers: Shared(pointers.as_mut_ptr()),
            scalars: self.scalars,
            helpers: self.helpers,
            kernel: self.kernel,
        }
    }
}

/// Copies bytes between places that do not overlap.
fn copy(pool: &Pool, from: *mut u8, to: *mut u8, bytes: usize) -> Result<(), String> {
    let (from, to) = (Shared(from), Shared(to));
    pool.split(bytes, COPY_LEAST, &|begin, end| {
        // SAFETY: both are buffers of `bytes` bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.get().add(begin), to.get().add(begin), end - begin) }
    })
}

/// Steps, those of loop bodies included.
pub(super) fn count(steps: &[Step]) -> usize {
    steps
        .iter()
        .map(|step| match &step.action {
            Action::Loop(l) => 1 + count(&l.body),
            _ => 1,
        })
        .sum()
}
