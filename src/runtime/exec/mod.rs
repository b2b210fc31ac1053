//! Executes the routines of a program: one step after the other, each on all threads.
//!
//! In: a [`Program`]. The executor holds its persistent arrays (parameters, states, inputs), one arena for the
//! temporaries of whichever routine runs, and its machine code. A run changes parameters and states in place and leaves
//! its outputs readable until the next one.
//!
//! Invariants: everything is allocated when the executor is made, nothing while it runs; a failed run may leave parameters and states half updated only if the failing step is part of
//! the update itself.
//!
//! Reading order: this file, `memory.rs` (where buffers lie), `run.rs` (steps), `watch.rs` (values that are not finite),
//! `profile.rs` (times); `exchange.rs` (collectives of one rank), `ranks.rs` (all ranks), `parts.rs` (arrays of all ranks).

mod exchange;
mod memory;
mod parts;
mod profile;
mod ranks;
mod run;
mod watch;

pub use crate::runtime::device::arena::held;
pub(in crate::runtime) use exchange::{FOLLOWS, each_step, rank_name, sets};
pub use parts::Array;
pub(in crate::runtime) use parts::Held;
pub use profile::{Profile, Roof, Span, Timing};
pub use ranks::{RankOptions, Ranks};
pub use watch::Free;

use crate::program::{Action, Buffer, BufferId, Gemm, Library, Place, Program, Routine, Step};
use crate::runtime::RuntimeError;
use crate::runtime::comm;
use crate::runtime::device::arena::Arena;
use crate::runtime::device::code::Code;
use crate::runtime::device::pool::{Pool, default_threads};
use crate::runtime::device::product::{Extent, Product, SCRATCH, Unit};
use crate::runtime::device::{attention, cpu, helpers, library};
use exchange::{Joined, Links};
use memory::{Memory, Spot};
use std::sync::Arc;
use std::time::Instant;
use watch::Watch;

/// How to execute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExecOptions {
    /// Threads, the caller included; 0: one for each core.
    pub threads: usize,
    /// After every step looks for values that are not finite and stops at the first step that made one.
    pub check_finite: bool,
    /// Measures every step.
    pub timing: bool,
}

/// What a run may depend on beside parameters, states and inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunArgs {
    pub seed: u64,
    /// Number of the step, batch or sample.
    pub step: u64,
    /// Position of sampling.
    pub position: i32,
    /// Whether the run before has begun this step.
    pub begun: bool,
    /// Whether to begin the next one.
    pub ahead: bool,
}

pub struct Executor {
    program: Arc<Program>,
    pool: Pool,
    code: Arc<Code>,
    helpers: [usize; crate::program::Helper::ALL.len()],
    memory: Memory,
    /// Where the buffers of each routine lie.
    spots: Vec<Vec<Spot>>,
    /// By routine: the buffers that its caller gives, with the numbers of the arguments.
    given: Vec<Vec<(u32, BufferId)>>,
    /// Memory of library kernels, and of matrix products to pack operands into.
    scratch: Slab,
    lists: Lists,
    links: Links,
    watch: Watch,
    /// By routine: one past the last byte of the arena that its runs so far have used.
    high_water: Vec<usize>,
}

/// Argument lists of the current step, kept from step to step so that they are not allocated.
#[derive(Default)]
struct Lists {
    pointers: Vec<*mut u8>,
    scalars: Vec<u64>,
    batch: Vec<Extent>,
    sums: Vec<Extent>,
    /// The status cell of kernels.
    status: Box<u64>,
}

// SAFETY: the raw pointers in `lists` and `spots` point into memory that the executor owns; they are used only while it
// is borrowed.
unsafe impl Send for Executor {}

impl Executor {
    /// For a program of one rank.
    pub fn new(program: Arc<Program>, options: ExecOptions) -> Result<Executor, RuntimeError> {
        if program.mesh.ranks() != 1 {
            return Err(RuntimeError::internal(format!("a program of {} ranks is run on one", program.mesh.ranks())));
        }
        let hub = Arc::new(ranks::hub(&program, comm::Patience::default()));
        let code = Executor::load(&program)?;
        Executor::of_rank(program, options, code, (Joined { hub, behind: false }, 0))
    }

    /// The machine code, which all ranks share.
    fn load(program: &Program) -> Result<Arc<Code>, RuntimeError> {
        cpu::supports(&program.code.target).map_err(|why| {
            RuntimeError::new("E0812", format!("the program cannot run on this machine: {why}"))
                .help("build the program on this machine")
        })?;
        let code = Code::new(&program.code.bytes);
        Ok(Arc::new(code.ok_or_else(|| RuntimeError::new("E0811", "the system refuses memory for machine code"))?))
    }

    /// For one rank of the program's mesh.
    fn of_rank(
        program: Arc<Program>,
        options: ExecOptions,
        code: Arc<Code>,
        (joined, rank): (Joined, usize),
    ) -> Result<Executor, RuntimeError> {
        let threads = if options.threads == 0 { default_threads() } else { options.threads };
        let pool = Pool::new(threads);
        let links = Links::new(&program, rank, joined)?;
        let memory = Memory::new(&program, rank, &links.coordinates)?;
        let spots = memory.spots(&program, program.stage(rank));
        let given = program.routines.iter().map(given).collect();
        let need = Need::of(&program, pool.threads());
        let lists = Lists {
            pointers: Vec::with_capacity(need.args),
            scalars: Vec::with_capacity(need.scalars + 1),
            batch: Vec::with_capacity(need.dims),
            sums: Vec::with_capacity(need.dims),
            status: Box::new(0),
        };
        Ok(Executor {
            helpers: helpers::table(),
            scratch: Slab::new(need.scratch, "working memory")?,
            watch: Watch::new(&program, options),
            high_water: vec![0; program.routines.len()],
            program,
            pool,
            code,
            memory,
            spots,
            given,
            lists,
            links,
        })
    }

    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The number of a routine.
    pub fn routine(&self, name: &str) -> Option<usize> {
        self.program.routines.iter().position(|r| r.name == name)
    }

    // ---- persistent arrays, as bytes in native order, row-major in their slot's shape

    pub fn param(&self, n: usize) -> &[u8] {
        self.memory.params[n].bytes()
    }

    pub fn param_mut(&mut self, n: usize) -> &mut [u8] {
        self.memory.params[n].bytes_mut()
    }

    pub fn state(&self, n: usize) -> &[u8] {
        self.memory.states[n].bytes()
    }

    pub fn state_mut(&mut self, n: usize) -> &mut [u8] {
        self.memory.states[n].bytes_mut()
    }

    pub fn input(&self, n: usize) -> &[u8] {
        self.memory.inputs[n].bytes()
    }

    pub fn input_mut(&mut self, n: usize) -> &mut [u8] {
        self.memory.inputs[n].bytes_mut()
    }

    // ---- running

    /// The routine that this rank runs where one is asked for.
    fn own(&self, routine: usize) -> usize {
        self.program.variant(routine, self.program.stage(self.links.rank))
    }

    /// Runs a routine once.
    pub fn run(&mut self, routine: usize, args: RunArgs) -> Result<(), RuntimeError> {
        let routine = self.own(routine);
        self.memory.frame = 0;
        self.memory.set_cells(args);
        self.links.begin();
        self.watch.begin(routine);
        let start = self.watch.times.is_some().then(|| (Instant::now(), self.pool.waited()));
        let program = self.program.clone();
        self.steps(routine, &program.routines[routine].steps, args, &mut 0)?;
        self.watch.run_ended(routine, start, &self.pool);
        self.finish_watch(routine)
    }

    /// Bytes of an output of the routine that ran last.
    pub fn output(&self, routine: usize, n: usize) -> &[u8] {
        let routine = self.own(routine);
        let r = &self.program.routines[routine];
        let buffer = r.outputs[n].buffer;
        let bytes = r.buffer(buffer).bytes();
        // SAFETY: the buffer lies in memory that the executor owns, and no run is under way.
        unsafe { std::slice::from_raw_parts(self.memory.locate(&self.spots[routine], buffer), bytes) }
    }

    /// A scalar output as a number (of an array its first element).
    pub fn scalar(&self, routine: usize, n: usize) -> f64 {
        let routine = self.own(routine);
        let r = &self.program.routines[routine];
        let dtype = r.buffer(r.outputs[n].buffer).dtype;
        memory::number(dtype, self.output(routine, n))
    }

    // ---- reports

    /// One past the last byte of the arena that the runs of a routine so far have used.
    pub fn high_water(&self, routine: usize) -> usize {
        self.high_water[self.own(routine)]
    }

    /// Fills all temporaries with a byte, so that [`Executor::touched`] can tell what is written from then on. What a run reads
    /// without having written it is that byte, too.
    pub fn paint(&mut self, byte: u8) {
        self.memory.paint(byte);
    }

    /// One past the last cache line of the arena, and of the file of temporaries, that holds something else than the byte: found by
    /// looking at them, whatever was planned.
    pub fn touched(&self, byte: u8) -> [usize; 2] {
        self.memory.touched(byte)
    }

    /// Bytes of parameters, states, inputs, constants and cells.
    pub fn persistent_bytes(&self) -> usize {
        self.memory.persistent_bytes()
    }

    /// Bytes that the executor holds beside the arena and the persistent arrays.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.bytes().len()
    }
}

/// Bytes of working memory that an executor of a program holds beside the program's own: packed panels of matrix
/// products, one set for each thread, and what library kernels sort in.
pub fn scratch_bytes(program: &Program, threads: usize) -> usize {
    Need::of(program, threads).scratch
}

/// Buffers that are arguments.
fn given(routine: &Routine) -> Vec<(u32, BufferId)> {
    let number = |(i, b): (usize, &Buffer)| match b.place {
        Place::Argument(n) => Some((n, BufferId(i as u32))),
        _ => None,
    };
    routine.buffers.iter().enumerate().filter_map(number).collect()
}

/// What steps need beside their buffers.
#[derive(Default)]
struct Need {
    args: usize,
    scalars: usize,
    dims: usize,
    scratch: usize,
}

impl Need {
    fn of(program: &Program, threads: usize) -> Need {
        let mut need = Need::default();
        program.routines.iter().for_each(|r| need.steps(&r.steps, threads));
        need.scratch = need.scratch.next_multiple_of(8);
        need
    }

    fn steps(&mut self, steps: &[Step], threads: usize) {
        for step in steps {
            match &step.action {
                Action::Launch(launch) => {
                    self.args = self.args.max(launch.args.len());
                    self.scalars = self.scalars.max(launch.scalars.len());
                }
                Action::Gemm(Gemm { batch, sums, dtype, .. }) => {
                    self.dims = self.dims.max(batch.len()).max(sums.len());
                    if Product::needs_scratch(*dtype) {
                        self.scratch = self.scratch.max(SCRATCH * threads);
                    }
                }
                Action::Finished(f) => {
                    self.args = self.args.max(f.launch.args.len());
                    self.scalars = self.scalars.max(f.launch.scalars.len());
                    let each = run::product(&f.gemm).scratch_of_blocks(Unit::best(), run::units(f));
                    self.scratch = self.scratch.max(each * threads);
                }
                Action::Library(Library::Attention(a)) => {
                    self.scratch = self.scratch.max(attention::scratch_bytes(a) * threads);
                }
                Action::Library(Library::AttentionGrad(a)) => {
                    self.scratch = self.scratch.max(attention::scratch_bytes(&a.of) * threads);
                }
                Action::Library(call) => self.scratch = self.scratch.max(library::scratch_bytes(call)),
                Action::Copy { .. } | Action::Collective(_) | Action::Wait(_) => {}
                Action::Call(_) | Action::Send(_) | Action::Receive(_) | Action::Sent(_) => {}
                Action::Loop(l) => self.steps(&l.body, threads),
            }
        }
    }
}

/// A zeroed array that lives as long as the executor.
struct Slab {
    arena: Arena,
}

impl Slab {
    fn new(bytes: usize, what: &str) -> Result<Slab, RuntimeError> {
        let arena = Arena::new(bytes).ok_or_else(|| {
            RuntimeError::new("E0811", format!("out of memory: {bytes} bytes for {what}"))
                .help("use a smaller batch or model, or `precision bf16`")
        })?;
        Ok(Slab { arena })
    }

    /// Memory that the system may write to a file meanwhile.
    fn in_file(bytes: usize, what: &str) -> Result<Slab, RuntimeError> {
        let arena = Arena::in_file(bytes).map_err(|why| {
            let folder = std::env::temp_dir();
            let why = format!("cannot offload {bytes} bytes of {what} to a file in `{}`: {why}", folder.display());
            RuntimeError::new("E0811", why)
                .help("name a folder with enough room by the variable TMPDIR, or leave `offload` out")
        })?;
        Ok(Slab { arena })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: all bytes of the arena are initialised, and runs borrow the executor exclusively.
        unsafe { std::slice::from_raw_parts(self.arena.base(), self.arena.len()) }
    }

    /// Whole words alone.
    fn words(&mut self) -> &mut [u64] {
        // SAFETY: as above; arenas begin at a multiple of any element's size, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.arena.base().cast(), self.arena.len() / 8) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.arena.base(), self.arena.len()) }
    }
}

/// The source of a step for messages: `file:line:column`, or nothing.
fn place(program: &Program, source: crate::program::SourceId) -> Option<String> {
    let source = program.sources.get(source.0 as usize)?;
    (!source.file.is_empty()).then(|| format!("{}:{}:{}", source.file, source.line, source.column))
}

/// The same as the place of an error; of the standard library the call that led there, too.
pub(in crate::runtime) fn placed(
    program: &Program,
    source: crate::program::SourceId,
    mut error: RuntimeError,
) -> RuntimeError {
    error.place = place(program, source);
    match program.sources.get(source.0 as usize).filter(|s| !s.called.is_empty()) {
        Some(s) => error.called_at(&s.called),
        None => error,
    }
}

/// Internal errors name the step.
fn broken(routine: &Routine, step: &Step, why: &str) -> RuntimeError {
    RuntimeError::internal(format!("step `{}` of `{}`: {why}", step.label, routine.name))
}
