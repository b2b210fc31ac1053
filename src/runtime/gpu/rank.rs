//! One rank on its device.

use super::exchange::{Joining, Links};
use super::list::{Command, List, Maker, output_at};
use super::memory::Memory;
use crate::mesh::cut;
use crate::program::{ALIGN, Failure, Program};
use crate::runtime::RuntimeError;
use crate::runtime::device::cuda::context::Launch;
use crate::runtime::device::cuda::{Context, Graph, Loaded, Room, Stream, nvrtc};
use crate::runtime::exec::{Array, RunArgs, placed};
use std::collections::HashMap;
use std::sync::Arc;

/// `off`: steps are never put into graphs.
const GRAPHS: &str = "PARTITA_CUDA_GRAPHS";

pub struct Rank {
    program: Arc<Program>,
    context: Arc<Context>,
    // Dropped before the context that they belong to.
    lists: HashMap<(usize, bool, bool), Kept>,
    links: Links,
    loaded: Loaded,
    memory: Memory,
    stream: Stream,
    rank: usize,
    coordinates: Vec<usize>,
    graphs: bool,
}

/// A list with its table of numbers.
struct Kept {
    list: List,
    table: Room,
    runs: u32,
    graph: Option<Graph>,
}

impl Rank {
    pub fn open(program: Arc<Program>, rank: usize, device: usize, joining: &Joining) -> Result<Rank, RuntimeError> {
        let context = Context::open(device)?;
        context.enter()?;
        let gpu = program.gpu.as_ref().ok_or_else(|| RuntimeError::internal("a program without kernels for GPUs"))?;
        let compiled;
        let ptx = match gpu.arch <= context.arch && !gpu.ptx.is_empty() {
            true => &gpu.ptx,
            false => {
                compiled = nvrtc::compile(&gpu.text, nvrtc::newest(context.arch)?)?;
                &compiled
            }
        };
        let loaded = context.load(ptx, &gpu.kernels)?;
        for launch in gpu.steps.iter().flatten().flatten() {
            loaded.allow(launch.kernel as usize, launch.shared)?;
        }
        let stream = context.stream()?;
        let coordinates: Vec<usize> = program.mesh.atoms().map(|a| program.mesh.coordinate(rank, a)).collect();
        let memory = Memory::new(&context, &stream, &program, (rank, &coordinates), gpu.scratch)?;
        let links = Links::new(&context, &stream, &program, rank, joining)?;
        let graphs = links.is_alone() && std::env::var(GRAPHS).map_or(true, |v| v != "off");
        let lists = HashMap::new();
        Ok(Rank { program, context, lists, links, loaded, memory, stream, rank, coordinates, graphs })
    }

    pub fn name(&self) -> &str {
        &self.context.name
    }

    fn array(&self, array: Array) -> &Room {
        match array {
            Array::Param(n) => &self.memory.params[n],
            Array::State(n) => &self.memory.states[n],
            Array::Input(n) => &self.memory.inputs[n],
        }
    }

    pub fn write(&mut self, array: Array, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.context.enter()?;
        self.stream.write(self.array(array).at(), bytes)
    }

    pub fn read(&self, array: Array, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        self.context.enter()?;
        self.stream.read(self.array(array).at(), bytes)
    }

    /// What an output of the routine that ran last holds.
    pub fn output(&self, routine: usize, n: usize) -> Result<Vec<u8>, RuntimeError> {
        self.context.enter()?;
        let routine = self.program.variant(routine, self.program.stage(self.rank));
        let r = &self.program.routines[routine];
        let buffer = r.outputs[n].buffer;
        let mut bytes = vec![0; r.buffer(buffer).bytes()];
        self.stream.read(output_at(&self.program, &self.memory, routine, buffer)?, &mut bytes)?;
        Ok(bytes)
    }

    /// Runs a routine once.
    pub fn run(&mut self, asked: usize, args: RunArgs) -> Result<(), RuntimeError> {
        let done = self.run_or_fail(asked, args);
        // What one finds in its own results stops no other.
        if done.as_ref().is_err_and(|e| !matches!(e.code, "E0809" | "E0816")) {
            self.links.fail();
        }
        done
    }

    fn run_or_fail(&mut self, asked: usize, args: RunArgs) -> Result<(), RuntimeError> {
        self.context.enter()?;
        let routine = self.program.variant(asked, self.program.stage(self.rank));
        let key = (routine, args.begun, args.ahead);
        let mut kept = match self.lists.remove(&key) {
            Some(kept) if !kept.list.once => kept,
            _ => self.list(routine, args)?,
        };
        self.set_cells(args)?;
        let numbers: Vec<u64> = kept.list.table.iter().map(|e| e.value(args)).collect();
        self.stream.write(kept.table.at(), bytemuck::cast_slice(&numbers))?;
        self.stream.zero(self.memory.status.at(), 8)?;
        self.links.begin(asked);
        if self.graphs && kept.runs == 1 && !kept.list.once {
            kept.graph =
                Some(self.stream.capture(|| {
                    kept.list.commands.iter().try_for_each(|(c, _)| do_one(&self.stream, &self.loaded, c))
                })?);
        }
        match &kept.graph {
            Some(graph) => self.stream.run(graph)?,
            None => {
                for (command, source) in &kept.list.commands {
                    let done = match command {
                        Command::Launch { .. } | Command::Copy { .. } | Command::Set { .. } => {
                            do_one(&self.stream, &self.loaded, command)
                        }
                        other => self.links.run(&self.stream, &self.loaded, other),
                    };
                    done.map_err(|e| placed(&self.program, *source, e))?;
                }
            }
        }
        kept.runs = kept.runs.saturating_add(1);
        self.lists.insert(key, kept);
        self.links.finish(&self.stream)?;
        let mut cell = [0; 8];
        self.stream.read(self.memory.status.at(), &mut cell)?;
        match Failure::of_cell(u64::from_ne_bytes(cell)) {
            Some(failure) => Err(self.out_of_range(failure)),
            None => Ok(()),
        }
    }

    fn list(&self, routine: usize, args: RunArgs) -> Result<Kept, RuntimeError> {
        let gpu = self.program.gpu.as_ref().ok_or_else(|| RuntimeError::internal("no kernels"))?;
        let of = (&*self.program, gpu, &self.memory);
        let maker = Maker::new(of, (self.rank, &self.coordinates), &self.links.exchanges, args);
        let mut table = None;
        let list = maker.make(routine, |n| {
            let room = self.context.room(8 * n, "numbers of launches")?;
            Ok(table.insert(room).at())
        })?;
        let table = table.ok_or_else(|| RuntimeError::internal("no table"))?;
        Ok(Kept { list, table, runs: 0, graph: None })
    }

    fn set_cells(&self, args: RunArgs) -> Result<(), RuntimeError> {
        let mut cells = [0u8; 2 * ALIGN];
        cells[..4].copy_from_slice(&(args.step as i32).to_ne_bytes());
        cells[ALIGN..ALIGN + 4].copy_from_slice(&args.position.to_ne_bytes());
        self.stream.write(self.memory.cells.at(), &cells)?;
        self.stream.set(self.memory.next_step(), args.step as u32 + 1)
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
}

/// A command of one device alone.
fn do_one(stream: &Stream, loaded: &Loaded, command: &Command) -> Result<(), RuntimeError> {
    match command {
        Command::Launch { kernel, blocks, threads, shared, args } => {
            let function = loaded.functions[*kernel as usize];
            stream.launch(&Launch { function, blocks: *blocks, threads: *threads, shared: *shared, args })
        }
        Command::Copy { from, to, bytes } => stream.copy(*from, *to, *bytes),
        Command::Set { at, value } => stream.set(*at, *value),
        // What others take part in is no part of a graph.
        _ => Ok(()),
    }
}
