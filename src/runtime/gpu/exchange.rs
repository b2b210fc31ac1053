//! A rank's ends of all that joins it with others: communicators of groups, and a pair of streams for each rank along the pipeline.

use super::list::Command;
use super::moves::{At, Builder, How, Kernel, Message, Moves};
use crate::mesh::Atom;
use crate::program::{Action, Program};
use crate::runtime::RuntimeError;
use crate::runtime::device::cuda::context::Launch;
use crate::runtime::device::cuda::nccl::{Comm, Id};
use crate::runtime::device::cuda::{Context, Event, Loaded, Room, Stream};
use crate::runtime::exec::{each_step, sets};
use indexmap::{IndexMap, IndexSet};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What ranks must agree on before they join each other.
pub struct Joining {
    /// Atoms along which collectives go.
    sets: IndexSet<Vec<Atom>>,
    /// By set and by the first rank of a group.
    groups: HashMap<(usize, usize), Id>,
    /// From one rank along the pipeline to another one.
    pairs: IndexMap<(usize, usize), Id>,
    /// For each such pair: numbers and bytes of what is sent, in the sender's order, by the routine that is asked for.
    orders: HashMap<(usize, usize, usize), Vec<(u32, usize)>>,
    /// Whether a rank has failed.
    pub failed: Arc<AtomicBool>,
}

impl Joining {
    pub fn new(program: &Program) -> Result<Joining, RuntimeError> {
        let mesh = &program.mesh;
        let sets = sets(program);
        let mut joining = Joining {
            groups: HashMap::new(),
            pairs: IndexMap::new(),
            orders: HashMap::new(),
            failed: Arc::new(AtomicBool::new(false)),
            sets,
        };
        for (n, atoms) in joining.sets.iter().enumerate() {
            for rank in 0..mesh.ranks() {
                let group = mesh.members(rank, atoms);
                if group.first() == Some(&rank) && group.len() > 1 {
                    joining.groups.insert((n, rank), Id::new()?);
                }
            }
        }
        for rank in 0..mesh.ranks() {
            for routine in program.routines_at(program.stage(rank)) {
                let r = &program.routines[routine];
                for step in &r.steps {
                    let Action::Send(t) = &step.action else { continue };
                    let peer = program.at_stage(rank, t.peer as usize);
                    if !joining.pairs.contains_key(&(rank, peer)) {
                        joining.pairs.insert((rank, peer), Id::new()?);
                    }
                    let key = (rank, peer, entry(program, routine));
                    joining.orders.entry(key).or_default().push((t.number, r.buffer(t.buffer).bytes()));
                }
            }
        }
        Ok(joining)
    }
}

/// The routine that is asked for where a stage runs this one.
fn entry(program: &Program, routine: usize) -> usize {
    let has = |r: &crate::program::Routine| r.variants.contains(&(routine as u32));
    program.routines.iter().position(has).unwrap_or(routine)
}

/// One direction to or from another rank.
struct Way {
    comm: Comm,
    stream: Stream,
}

pub struct Links {
    context: Arc<Context>,
    /// The communicators of the rank's groups, by set.
    comms: Vec<Option<Comm>>,
    /// Collectives go on beside what is computed.
    stream: Stream,
    moves: Vec<Moves>,
    /// By routine and number of a collective.
    pub exchanges: Vec<Vec<usize>>,
    staging: Room,
    geometries: Room,
    /// When what was begun last is there, and when what it needs is.
    done: Event,
    ready: Event,
    outgoing: HashMap<usize, Way>,
    incoming: HashMap<usize, Way>,
    /// By peer: when a number has been sent.
    sent: HashMap<(usize, u32), Event>,
    /// What comes from a peer in this run, in order; and what has come before it was asked for.
    expected: HashMap<usize, VecDeque<(u32, usize)>>,
    early: HashMap<(usize, u32), Room>,
    orders: HashMap<(usize, usize), Vec<(u32, usize)>>,
    failed: Arc<AtomicBool>,
}

impl Links {
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        program: &Program,
        rank: usize,
        joining: &Joining,
    ) -> Result<Links, RuntimeError> {
        let gpu = program.gpu.as_ref().ok_or_else(|| RuntimeError::internal("a program without kernels for GPUs"))?;
        let mut builder = Builder { mesh: &program.mesh, gpu, rank, geometries: Vec::new() };
        let (mut moves, mut exchanges) = (Vec::new(), Vec::new());
        let mut known: HashMap<_, usize> = HashMap::new();
        for routine in &program.routines {
            let (mut of_routine, mut wrong) = (Vec::new(), None);
            each_step(&routine.steps, &mut |step| {
                let Action::Collective(c) = &step.action else { return };
                let key = (c.reduce.clone(), c.atoms.clone(), c.dims.clone(), c.dtype, c.hops);
                let number = *known.entry(key).or_insert_with(|| {
                    let set = joining.sets.get_index_of(&c.atoms).unwrap_or_default();
                    match builder.moves(c, set) {
                        Ok(m) => moves.push(m),
                        Err(e) => wrong = wrong.take().or(Some(e)),
                    }
                    moves.len().saturating_sub(1)
                });
                of_routine.push(number);
            });
            if let Some(e) = wrong {
                return Err(e);
            }
            exchanges.push(of_routine);
        }
        let bytes = |m: &Moves| if let How::Parts(p) = &m.how { p.staging } else { 0 };
        let staging = context.room(moves.iter().map(bytes).max().unwrap_or(0), "what is exchanged")?;
        let table = bytemuck::cast_slice::<i64, u8>(&builder.geometries);
        let geometries = context.room(table.len(), "what is exchanged")?;
        stream.write(geometries.at(), table)?;
        // All ranks join in the same order.
        let mut comms = Vec::new();
        for (n, atoms) in joining.sets.iter().enumerate() {
            let group = program.mesh.members(rank, atoms);
            let place = group.iter().position(|r| *r == rank).unwrap_or(0);
            let id = group.first().and_then(|first| joining.groups.get(&(n, *first)));
            comms.push(id.map(|id| Comm::join(*id, group.len(), place)).transpose()?);
        }
        let (mut outgoing, mut incoming) = (HashMap::new(), HashMap::new());
        for ((from, to), id) in &joining.pairs {
            if *from == rank {
                outgoing.insert(*to, Way { comm: Comm::join(*id, 2, 0)?, stream: context.stream()? });
            } else if *to == rank {
                incoming.insert(*from, Way { comm: Comm::join(*id, 2, 1)?, stream: context.stream()? });
            }
        }
        let orders = joining.orders.iter().filter(|((_, to, _), _)| *to == rank);
        Ok(Links {
            context: context.clone(),
            comms,
            stream: context.stream()?,
            moves,
            exchanges,
            staging,
            geometries,
            done: context.event()?,
            ready: context.event()?,
            outgoing,
            incoming,
            sent: HashMap::new(),
            expected: HashMap::new(),
            early: HashMap::new(),
            orders: orders.map(|((from, _, routine), all)| ((*from, *routine), all.clone())).collect(),
            failed: joining.failed.clone(),
        })
    }

    /// Whether nobody else takes part.
    pub fn is_alone(&self) -> bool {
        self.comms.iter().all(Option::is_none) && self.outgoing.is_empty() && self.incoming.is_empty()
    }

    /// A run of a routine begins.
    pub fn begin(&mut self, routine: usize) {
        let of = self.orders.iter().filter(|((_, r), _)| *r == routine);
        self.expected = of.map(|((from, _), all)| (*from, all.iter().copied().collect())).collect();
    }

    /// Does a command that concerns others; `main` is the stream of all others.
    pub fn run(&mut self, main: &Stream, loaded: &Loaded, command: &Command) -> Result<(), RuntimeError> {
        match *command {
            Command::Begin { exchange, from, to } => {
                main.record(&self.ready)?;
                self.stream.wait_for(&self.ready)?;
                self.exchange(loaded, &self.moves[exchange], from, to)?;
                self.stream.record(&self.done)
            }
            Command::Wait => main.wait_for(&self.done),
            Command::Send { peer, from, bytes, number } => {
                let way = self.outgoing.get(&peer).ok_or_else(no_way)?;
                main.record(&self.ready)?;
                way.stream.wait_for(&self.ready)?;
                way.comm.send(from, bytes, 1, &way.stream)?;
                let event = match self.sent.remove(&(peer, number)) {
                    Some(event) => event,
                    None => self.context.event()?,
                };
                way.stream.record(&event)?;
                self.sent.insert((peer, number), event);
                Ok(())
            }
            Command::Sent { peer, number } => match self.sent.get(&(peer, number)) {
                Some(event) => main.wait_for(event),
                None => Err(no_way()),
            },
            Command::Receive { peer, to, bytes, number } => self.receive(main, peer, (to, bytes), number),
            Command::Launch { .. } | Command::Copy { .. } | Command::Set { .. } => Ok(()),
        }
    }

    /// Takes what comes under a number. What the other rank sends before it is put aside until it is asked for.
    fn receive(
        &mut self,
        main: &Stream,
        peer: usize,
        (to, bytes): (u64, usize),
        number: u32,
    ) -> Result<(), RuntimeError> {
        if let Some(room) = self.early.get(&(peer, number)) {
            let waits = self.expected.get(&peer).is_some_and(|e| e.iter().any(|(n, _)| *n == number));
            if !waits {
                return main.copy(room.at(), to, bytes);
            }
        }
        let way = self.incoming.get(&peer).ok_or_else(no_way)?;
        main.record(&self.ready)?;
        way.stream.wait_for(&self.ready)?;
        let expected = self.expected.entry(peer).or_default();
        while let Some((next, size)) = expected.pop_front() {
            if next == number {
                way.comm.receive(to, size, 0, &way.stream)?;
                way.stream.record(&self.done)?;
                return main.wait_for(&self.done);
            }
            let room = match self.early.remove(&(peer, next)) {
                Some(room) => room,
                None => self.context.room(size, "what comes early")?,
            };
            way.comm.receive(room.at(), size, 0, &way.stream)?;
            self.early.insert((peer, next), room);
        }
        Err(RuntimeError::internal(format!("rank {peer} sends nothing under number {number}")))
    }

    fn exchange(&self, loaded: &Loaded, moves: &Moves, from: u64, to: u64) -> Result<(), RuntimeError> {
        let comm = self.comms[moves.set].as_ref();
        let s = &self.stream;
        let parts = match (&moves.how, comm) {
            (How::AllReduce { count, kind }, Some(comm)) => {
                return comm.all_reduce((from, to), *count, moves.dtype, *kind, s);
            }
            (How::AllGather { count }, Some(comm)) => return comm.all_gather((from, to), *count, moves.dtype, s),
            (How::ReduceScatter { count, kind }, Some(comm)) => {
                return comm.reduce_scatter((from, to), *count, moves.dtype, *kind, s);
            }
            (How::AllReduce { count, .. } | How::AllGather { count } | How::ReduceScatter { count, .. }, None) => {
                return s.copy(from, to, count * moves.dtype.bytes());
            }
            (How::Parts(parts), _) => parts,
        };
        let at = |at: At| match at {
            At::From(bytes) => from + bytes as u64,
            At::To(bytes) => to + bytes as u64,
            At::Staging(bytes) => self.staging.at() + bytes as u64,
        };
        parts.pack.iter().try_for_each(|k| self.launch(loaded, k, &at))?;
        if let Some(comm) = comm.filter(|_| !parts.sends.is_empty() || !parts.receives.is_empty()) {
            let some = |m: &&Message| m.bytes > 0;
            comm.together(|| {
                parts.sends.iter().filter(some).try_for_each(|m| comm.send(at(m.at), m.bytes, m.peer, s))?;
                parts.receives.iter().filter(some).try_for_each(|m| comm.receive(at(m.at), m.bytes, m.peer, s))
            })?;
        }
        parts.finish.iter().try_for_each(|k| self.launch(loaded, k, &at))
    }

    fn launch(&self, loaded: &Loaded, k: &Kernel, at: &impl Fn(At) -> u64) -> Result<(), RuntimeError> {
        if k.elements == 0 {
            return Ok(());
        }
        let mut args: Vec<u64> = k.from.iter().map(|f| at(*f)).chain([at(k.to)]).collect();
        args.extend(k.parts.iter().flat_map(|(count, stride)| [*count as u64, *stride as u64]));
        args.extend([k.elements as u64, self.geometries.at() + 8 * k.geometry as u64]);
        let blocks = k.elements.div_ceil(256).min(1 << 12) as u32;
        let function = loaded.functions[k.function as usize];
        self.stream.launch(&Launch { function, blocks, threads: 256, shared: 0, args: &args })
    }

    /// Waits until all streams are done, unless another rank fails, or what joins them.
    pub fn finish(&mut self, main: &Stream) -> Result<(), RuntimeError> {
        if self.is_alone() {
            return main.wait();
        }
        let mut turns = 0u32;
        loop {
            let ways = self.outgoing.values().chain(self.incoming.values());
            let mut idle = main.is_idle()? && self.stream.is_idle()?;
            for way in ways {
                idle = way.stream.is_idle()? && idle;
            }
            if idle {
                return Ok(());
            }
            if self.failed.load(Ordering::SeqCst) {
                return Err(RuntimeError::new(crate::runtime::exec::FOLLOWS, "another rank failed during this step"));
            }
            turns += 1;
            if turns.is_multiple_of(64) {
                self.trouble()?;
            }
            match turns {
                0..1000 => std::thread::yield_now(),
                _ => std::thread::sleep(std::time::Duration::from_micros(200)),
            }
        }
    }

    fn trouble(&self) -> Result<(), RuntimeError> {
        let ways = self.outgoing.values().chain(self.incoming.values()).map(|w| &w.comm);
        self.comms.iter().flatten().chain(ways).try_for_each(Comm::trouble)
    }

    /// This rank does not go on, so others must not wait for it.
    pub fn fail(&mut self) {
        self.failed.store(true, Ordering::SeqCst);
        self.comms.iter_mut().flatten().for_each(Comm::abort);
        self.outgoing.values_mut().chain(self.incoming.values_mut()).for_each(|w| w.comm.abort());
    }
}

fn no_way() -> RuntimeError {
    RuntimeError::internal("a transfer between ranks that are not joined")
}
