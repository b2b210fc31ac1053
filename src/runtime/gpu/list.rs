//! A routine as one flat list of what a device does.

use super::memory::Memory;
use crate::mesh::Atom;
use crate::program::{
    ALIGN, Action, BufferId, Call, Gpu, GpuArg, GpuLaunch, Key, Library, Place, Program, Scalar, SourceId, Step,
};
use crate::runtime::RuntimeError;
use crate::runtime::exec::RunArgs;
use crate::types::rng;
use std::collections::HashMap;

/// What a device does, with all addresses.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Launch {
        kernel: u32,
        blocks: u32,
        threads: u32,
        shared: u32,
        args: Vec<u64>,
    },
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// A cell of 32 bits becomes a number.
    Set {
        at: u64,
        value: u32,
    },
    /// Begins a collective: by its number among those of all routines, as it is counted from run to run.
    Begin {
        exchange: usize,
        from: u64,
        to: u64,
    },
    /// What was begun so far is there.
    Wait,
    Send {
        peer: usize,
        from: u64,
        bytes: usize,
        number: u32,
    },
    Receive {
        peer: usize,
        to: u64,
        bytes: usize,
        number: u32,
    },
    /// What was sent under a number is taken.
    Sent {
        peer: usize,
        number: u32,
    },
}

/// A number of the table of scalars.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    Key { stream: u64, turns: Vec<i32>, ahead: bool },
    Number(u64),
}

impl Entry {
    pub fn value(&self, args: RunArgs) -> u64 {
        match self {
            Entry::Key { stream, turns, ahead } => {
                rng::key(args.seed, args.step + u64::from(*ahead), *stream, rng::turns(turns))
            }
            Entry::Number(n) => *n,
        }
    }
}

#[derive(Default)]
pub struct List {
    /// With the place in the program that each is there for.
    pub commands: Vec<(Command, SourceId)>,
    pub table: Vec<Entry>,
    /// It holds for this run alone: addresses depend on the step or the position.
    pub once: bool,
}

/// What making a list knows.
pub struct Maker<'p> {
    pub program: &'p Program,
    pub gpu: &'p Gpu,
    pub memory: &'p Memory,
    /// Of the rank.
    pub rank: usize,
    pub coordinates: &'p [usize],
    /// The number of a collective's exchange, by routine and number in it.
    pub exchanges: &'p [Vec<usize>],
    pub args: RunArgs,
    pub list: List,
    /// What cells hold that the host knows of, by address.
    cells: HashMap<u64, i32>,
    /// Scalars of launches, as their places in the table (in `args` of the command, at the end of making).
    scalars: Vec<(usize, usize, usize)>,
}

/// A routine under way.
struct Frame<'f> {
    routine: usize,
    arena: u64,
    args: &'f [u64],
    ahead: bool,
}

impl<'p> Maker<'p> {
    pub fn new(
        (program, gpu, memory): (&'p Program, &'p Gpu, &'p Memory),
        (rank, coordinates): (usize, &'p [usize]),
        exchanges: &'p [Vec<usize>],
        args: RunArgs,
    ) -> Maker<'p> {
        let mut cells = HashMap::new();
        let base = memory.cells.at();
        cells.insert(base, args.step as i32);
        cells.insert(memory.next_step(), args.step as i32 + 1);
        cells.insert(base + ALIGN as u64, args.position);
        for (n, at) in coordinates.iter().enumerate() {
            cells.insert(base + ((2 + n) * ALIGN) as u64, *at as i32);
        }
        let (list, scalars) = Default::default();
        Maker { program, gpu, memory, rank, coordinates, exchanges, args, list, cells, scalars }
    }

    /// The list of a routine; `table` gives the address of a table of so many numbers.
    pub fn make(
        mut self,
        routine: usize,
        table: impl FnOnce(usize) -> Result<u64, RuntimeError>,
    ) -> Result<List, RuntimeError> {
        let frame = Frame { routine, arena: self.memory.arena.at(), args: &[], ahead: false };
        let program = self.program;
        self.steps(&frame, &program.routines[routine].steps, &mut 0)?;
        let base = table(self.list.table.len())?;
        for (command, arg, entry) in self.scalars {
            if let Command::Launch { args, .. } = &mut self.list.commands[command].0 {
                args[arg] = base + 8 * entry as u64;
            }
        }
        Ok(self.list)
    }

    fn push(&mut self, step: &Step, command: Command) {
        self.list.commands.push((command, step.source));
    }

    fn steps(&mut self, frame: &Frame<'_>, steps: &[Step], number: &mut usize) -> Result<(), RuntimeError> {
        for step in steps {
            let own = *number;
            *number += 1;
            let holds = step.when.holds(self.args.begun, self.args.ahead);
            if let Action::Loop(l) = &step.action {
                let first = *number;
                for n in 0..if holds { l.trip } else { 0 } {
                    let turn = if l.reverse { l.trip - 1 - n } else { n };
                    let at = self.locate(frame, l.turn)?;
                    self.cells.insert(at, turn as i32);
                    self.push(step, Command::Set { at, value: turn as u32 });
                    *number = first;
                    self.steps(frame, &l.body, number)?;
                    for (from, to) in &l.moves {
                        self.copy(frame, step, *from, *to)?;
                    }
                }
                *number = first + count(&l.body);
                continue;
            }
            if holds {
                self.step(frame, step, own)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, frame: &Frame<'_>, step: &Step, number: usize) -> Result<(), RuntimeError> {
        let routine = &self.program.routines[frame.routine];
        match &step.action {
            Action::Launch(_) | Action::Gemm(_) | Action::Finished(_) | Action::Library(_) => {
                let gpu = self.gpu;
                for launch in &gpu.steps[frame.routine][number] {
                    self.launch(frame, step, launch)?;
                }
            }
            Action::Copy { from, to } => self.copy(frame, step, *from, *to)?,
            Action::Collective(c) => {
                let exchange = self.exchanges[frame.routine][c.number as usize];
                let (from, to) = (self.locate(frame, c.from)?, self.locate(frame, c.to)?);
                self.push(step, Command::Begin { exchange, from, to });
            }
            Action::Wait(_) => self.push(step, Command::Wait),
            Action::Call(call) => self.call(frame, call)?,
            Action::Send(t) => {
                let (peer, from) = (self.program.at_stage(self.rank, t.peer as usize), self.locate(frame, t.buffer)?);
                let bytes = routine.buffer(t.buffer).bytes();
                self.push(step, Command::Send { peer, from, bytes, number: t.number });
            }
            Action::Receive(t) => {
                let (peer, to) = (self.program.at_stage(self.rank, t.peer as usize), self.locate(frame, t.buffer)?);
                let bytes = routine.buffer(t.buffer).bytes();
                self.push(step, Command::Receive { peer, to, bytes, number: t.number });
            }
            Action::Sent(t) => {
                let peer = self.program.at_stage(self.rank, t.peer as usize);
                self.push(step, Command::Sent { peer, number: t.number });
            }
            Action::Loop(_) => {}
        }
        Ok(())
    }

    fn call(&mut self, frame: &Frame<'_>, call: &Call) -> Result<(), RuntimeError> {
        let args: Vec<u64> = call.args.iter().map(|a| self.locate(frame, a.buffer)).collect::<Result<_, _>>()?;
        let workspace = self.program.routines[frame.routine].buffer(call.workspace);
        let arena = match workspace.place {
            Place::Arena(_) => self.locate(frame, call.workspace)?,
            _ => frame.arena,
        };
        let routine = call.routine as usize;
        let inner = Frame { routine, arena, args: &args, ahead: call.ahead };
        let program = self.program;
        self.steps(&inner, &program.routines[routine].steps, &mut 0)
    }

    fn copy(&mut self, frame: &Frame<'_>, step: &Step, from: BufferId, to: BufferId) -> Result<(), RuntimeError> {
        let bytes = self.program.routines[frame.routine].buffer(from).bytes();
        let (from, to) = (self.locate(frame, from)?, self.locate(frame, to)?);
        if from != to && bytes > 0 {
            self.push(step, Command::Copy { from, to, bytes });
        }
        Ok(())
    }

    fn launch(&mut self, frame: &Frame<'_>, step: &Step, launch: &GpuLaunch) -> Result<(), RuntimeError> {
        let first = self.list.table.len();
        for scalar in &launch.scalars {
            let entry = match scalar {
                Scalar::Key(key) => self.key(frame, key)?,
                Scalar::Origin(terms) => Entry::Number(self.origin(terms)),
            };
            self.list.table.push(entry);
        }
        // Who may be drawn is said after compiling.
        if let Action::Library(Library::Draw { top_k, top_p, .. }) = &step.action {
            self.list.table.extend([Entry::Number(u64::from(*top_k)), Entry::Number(top_p.to_bits())]);
        }
        let mut args = Vec::with_capacity(launch.args.len());
        for (n, arg) in launch.args.iter().enumerate() {
            args.push(match arg {
                GpuArg::Buffer(b, bytes) => self.locate(frame, *b)?.wrapping_add(*bytes),
                GpuArg::Scratch(bytes) => self.memory.scratch.at() + bytes,
                GpuArg::Status => self.memory.status.at(),
                GpuArg::Scalars => {
                    self.scalars.push((self.list.commands.len(), n, first));
                    0
                }
            });
        }
        let GpuLaunch { kernel, blocks, threads, shared, .. } = *launch;
        self.push(step, Command::Launch { kernel, blocks, threads, shared, args });
        Ok(())
    }

    fn key(&mut self, frame: &Frame<'_>, key: &Key) -> Result<Entry, RuntimeError> {
        let turns = key.turns.iter().map(|t| {
            let at = self.locate(frame, *t)?;
            self.cell(at)
        });
        Ok(Entry::Key { stream: key.stream, turns: turns.collect::<Result<_, _>>()?, ahead: frame.ahead })
    }

    fn origin(&self, terms: &[(Atom, u64)]) -> u64 {
        let at = |a: &Atom| self.coordinates[a.index()] as u64;
        terms.iter().fold(0, |sum, (a, times)| sum.wrapping_add(at(a).wrapping_mul(*times)))
    }

    /// What a cell holds.
    fn cell(&mut self, at: u64) -> Result<i32, RuntimeError> {
        let cells = self.memory.cells.at();
        if at == cells || at == cells + ALIGN as u64 || at == self.memory.next_step() {
            self.list.once = true;
        }
        self.cells
            .get(&at)
            .copied()
            .ok_or_else(|| RuntimeError::internal("a place that depends on what a GPU computes"))
    }

    /// Where a buffer begins.
    fn locate(&mut self, frame: &Frame<'_>, buffer: BufferId) -> Result<u64, RuntimeError> {
        let m = self.memory;
        let routine = &self.program.routines[frame.routine];
        Ok(match routine.buffer(buffer).place {
            Place::Arena(offset) => frame.arena + offset as u64,
            Place::Host(offset) => m.host.at() + offset as u64,
            Place::Param(n) => m.params[n as usize].at(),
            Place::State(n) => m.states[n as usize].at(),
            Place::Input(n) => m.inputs[n as usize].at(),
            Place::Constant(offset) => m.constants.at() + offset as u64,
            Place::Step if frame.ahead => m.next_step(),
            Place::Step => m.cells.at(),
            Place::Position => m.cells.at() + ALIGN as u64,
            Place::Coordinate(atom) => m.cells.at() + ((2 + atom.index()) * ALIGN) as u64,
            Place::Argument(n) => frame.args[n as usize],
            Place::Strip => m.scratch.at(),
            Place::Slice { base, turn, offset, stride } => {
                let turn = self.locate(frame, turn)?;
                let from = offset + i64::from(self.cell(turn)?) * stride;
                let (own, whole) = (routine.buffer(buffer).bytes(), routine.buffer(base).bytes());
                if !usize::try_from(from).is_ok_and(|from| from + own <= whole) {
                    let why = format!("slice {from}..+{own} is outside of its buffer of {whole} bytes");
                    return Err(RuntimeError::internal(why));
                }
                self.locate(frame, base)? + from as u64
            }
        })
    }
}

/// Steps, those of loop bodies included.
fn count(steps: &[Step]) -> usize {
    let of = |step: &Step| match &step.action {
        Action::Loop(l) => 1 + count(&l.body),
        _ => 1,
    };
    steps.iter().map(of).sum()
}

/// Where an output of a routine lies when it has run. An output that moves with a loop has no such place.
pub fn output_at(program: &Program, memory: &Memory, routine: usize, buffer: BufferId) -> Result<u64, RuntimeError> {
    let args = RunArgs::default();
    let gpu = Gpu::default();
    let mut maker = Maker::new((program, &gpu, memory), (0, &[]), &[], args);
    maker.locate(&Frame { routine, arena: memory.arena.at(), args: &[], ahead: false }, buffer)
}
