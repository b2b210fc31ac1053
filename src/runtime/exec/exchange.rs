//! A rank among others: where it is in the mesh, and its part of each collective.

use super::{Executor, place, placed};
use crate::mesh::Atom;
use crate::program::{Action, Begun, Collective, Program, Routine, SourceId, Step, Transfer};
use crate::runtime::RuntimeError;
use crate::runtime::comm::{Behind, CommError, Communicator, Deal, Deals, Exchange, Hub, Local, Posted};
use indexmap::{IndexMap, IndexSet};
use std::sync::Arc;

/// The code of an error that another rank's has led to.
pub(in crate::runtime) const FOLLOWS: &str = "E0814";

pub struct Links {
    pub rank: usize,
    /// Along the mesh's atoms.
    pub coordinates: Vec<usize>,
    /// By routine, and by number of a collective.
    places: Vec<Vec<Place>>,
    /// By routine: how many collectives those before it have. Routines call each other, so that numbers are those of them all.
    first: Vec<usize>,
    comm: Box<dyn Communicator>,
}

/// Where a collective is among the exchanges of the rank.
#[derive(Clone, Copy, Default)]
struct Place {
    exchange: usize,
    /// That waits for it.
    wait: usize,
    /// Whether that wait has it last.
    last: bool,
}

/// How the ranks are joined.
#[derive(Clone)]
pub struct Joined {
    pub hub: Arc<Hub>,
    /// Whether cores are spare for a thread that moves elements beside each rank.
    pub behind: bool,
}

impl Links {
    pub fn new(program: &Program, rank: usize, joined: Joined) -> Result<Links, RuntimeError> {
        let mesh = &program.mesh;
        let sets = sets(program);
        let (mut deals, mut known) = (Deals::default(), IndexMap::new());
        let mut places: Vec<Vec<Place>> = Vec::with_capacity(program.routines.len());
        let (mut first, mut count) = (Vec::new(), 0);
        for routine in &program.routines {
            let mut of_steps: Vec<Place> = Vec::new();
            let mut wrong = None;
            each_step(&routine.steps, &mut |step| {
                let Action::Collective(c) = &step.action else { return };
                debug_assert_eq!(c.number as usize, of_steps.len(), "collectives are numbered in order");
                // Layers that exchange alike share what is found out.
                let key = (c.reduce.clone(), c.atoms.clone(), c.dims.clone(), c.dtype, c.hops);
                let exchange = *known.entry(key).or_insert_with(|| {
                    let set = sets.get_index_of(&c.atoms).unwrap_or_default();
                    match Exchange::new(mesh, c, set, rank) {
                        Ok(e) => deals.exchanges.push(e),
                        Err(why) => wrong = wrong.take().or(Some((step.source, c.kind.name(), why))),
                    }
                    deals.exchanges.len().saturating_sub(1)
                });
                of_steps.push(Place { exchange, ..Place::default() });
            });
            if let Some((source, kind, why)) = wrong {
                return Err(placed(
                    program,
                    source,
                    RuntimeError::internal(format!("`{kind}` of `{}`: {why}", routine.name)),
                ));
            }
            first.push(count);
            deals.waits.push(waits(routine, &mut of_steps, count));
            count += of_steps.len();
            places.push(of_steps);
        }
        let coordinates = mesh.atoms().map(|a| mesh.coordinate(rank, a)).collect();
        let deals = Arc::new(deals);
        let Joined { hub, behind } = joined;
        let beside = behind.then(|| Behind::new(hub.clone(), rank, deals.clone())).flatten();
        let comm: Box<dyn Communicator> = match beside {
            Some(behind) => Box::new(behind),
            None => Box::new(Local::new(hub, rank, deals)),
        };
        Ok(Links { rank, coordinates, places, first, comm })
    }

    pub fn begin(&mut self) {
        self.comm.begin();
    }

    /// Nothing is moved any more.
    pub fn end(&mut self) {
        self.comm.end();
    }
}

/// What the waits of a routine wait for, and by which wait each collective is ended.
fn waits(routine: &Routine, places: &mut [Place], first: usize) -> Vec<Vec<Posted>> {
    let mut all = Vec::new();
    each_step(&routine.steps, &mut |step| {
        let Action::Wait(begun) = &step.action else { return };
        for (n, b) in begun.iter().enumerate() {
            let place = &mut places[b.number as usize];
            (place.wait, place.last) = (all.len(), n + 1 == begun.len());
        }
        let posted = |b: &Begun| {
            let number = b.number as usize;
            Posted { exchange: places[number].exchange, number: first + number }
        };
        all.push(begun.iter().map(posted).collect());
    });
    all
}

/// Collectives of all routines.
pub(super) fn collectives(program: &Program) -> usize {
    let mut n = 0;
    for routine in &program.routines {
        each_step(&routine.steps, &mut |step| n += usize::from(matches!(step.action, Action::Collective(_))));
    }
    n
}

/// How many numbers transfers have.
pub(super) fn transfers(program: &Program) -> usize {
    let steps = program.routines.iter().flat_map(|r| &r.steps);
    let number = |s: &Step| match &s.action {
        Action::Send(t) | Action::Receive(t) | Action::Sent(t) => Some(t.number as usize + 1),
        _ => None,
    };
    steps.filter_map(number).max().unwrap_or(0)
}

/// The sets of atoms that collectives of a program go along.
pub(in crate::runtime) fn sets(program: &Program) -> IndexSet<Vec<Atom>> {
    let mut all = IndexSet::new();
    for routine in &program.routines {
        each_step(&routine.steps, &mut |step| {
            if let Action::Collective(c) = &step.action {
                all.insert(c.atoms.clone());
            }
        });
    }
    all
}

/// In the order of their numbers: those of a loop's body after the loop.
pub(in crate::runtime) fn each_step(steps: &[Step], visit: &mut impl FnMut(&Step)) {
    for step in steps {
        visit(step);
        if let Action::Loop(l) = &step.action {
            each_step(&l.body, visit);
        }
    }
}

impl Executor {
    /// Where the rank's part of an array begins.
    pub(super) fn origin(&self, terms: &[(Atom, u64)]) -> u64 {
        let at = |a: &Atom| self.links.coordinates[a.index()] as u64;
        terms.iter().fold(0, |sum, (a, times)| sum.wrapping_add(at(a).wrapping_mul(*times)))
    }

    /// After a run, whatever became of it: nothing is moved any more.
    pub(super) fn settle(&mut self) {
        self.links.end();
    }

    /// Begins an exchange.
    pub(super) fn post(&mut self, routine: usize, c: &Collective) {
        let [from, to] = [c.from, c.to].map(|b| self.memory.locate(&self.spots[routine], b));
        let Links { places, first, comm, .. } = &mut self.links;
        let number = c.number as usize;
        let Place { exchange, wait, last } = places[routine][number];
        comm.post(Posted { exchange, number: first[routine] + number }, from, to);
        if last {
            // SAFETY: buffers are whole arrays of the collectives' shapes and apart, and nobody touches them before the wait:
            // invariants of a program. A run that ends before waits until nothing is moved.
            unsafe { comm.posted(Deal { routine, wait }) };
        }
    }

    /// Ends exchanges that were begun.
    pub(super) fn finish(&mut self, routine: usize, all: &[Begun], step: &Step) -> Result<(), RuntimeError> {
        let Some(first) = all.first() else { return Ok(()) };
        let Links { places, comm, .. } = &mut self.links;
        let wait = places[routine][first.number as usize].wait;
        // SAFETY: as where they were posted.
        let done = unsafe { comm.finish(Deal { routine, wait }, &self.pool) };
        done.map_err(|why| self.not_exchanged(why, first.kind.name(), step.source))
    }

    pub(super) fn send(&mut self, routine: usize, t: &Transfer) {
        let from = self.memory.locate(&self.spots[routine], t.buffer);
        self.links.comm.send(t.number as usize, from);
    }

    pub(super) fn receive(&mut self, routine: usize, t: &Transfer, step: &Step) -> Result<(), RuntimeError> {
        let to = self.memory.locate(&self.spots[routine], t.buffer);
        let bytes = self.program.routines[routine].buffer(t.buffer).bytes();
        let from = self.program.at_stage(self.links.rank, t.peer as usize);
        // SAFETY: both buffers have so many bytes: an invariant of a program; the sender keeps its one until it was taken.
        let done = unsafe { self.links.comm.receive(t.number as usize, from, to, bytes, &self.pool) };
        done.map_err(|why| self.not_exchanged(why, "receive", step.source))
    }

    pub(super) fn sent(&mut self, t: &Transfer, step: &Step) -> Result<(), RuntimeError> {
        let to = self.program.at_stage(self.links.rank, t.peer as usize);
        let done = self.links.comm.sent(t.number as usize, to);
        done.map_err(|why| self.not_exchanged(why, "send", step.source))
    }

    fn not_exchanged(&self, why: CommError, what: &str, source: SourceId) -> RuntimeError {
        let program = &self.program;
        let name = |r: &usize| rank_name(program, *r);
        let error = match why {
            CommError::Failed { rank, why } => {
                let at = place(program, source).map_or_else(String::new, |p| format!(" ({p})"));
                RuntimeError::new(FOLLOWS, format!("{} failed while others were at `{what}`{at}", name(&rank)))
                    .note(why)
            }
            CommError::Missing { ranks, seconds } => {
                let names = ranks.iter().map(name).collect::<Vec<_>>().join(", ");
                RuntimeError::new("E0815", format!("{names} did not come to `{what}` within {seconds} s"))
                    .help("look what holds that rank up: it may wait for data or be starved of its core")
            }
            CommError::Broken(why) => RuntimeError::internal(format!("`{what}`: {why}")),
        };
        placed(program, source, error)
    }
}

/// `rank 3 (dp = 1, tp = 1)`
pub(in crate::runtime) fn rank_name(program: &Program, rank: usize) -> String {
    let mesh = &program.mesh;
    let along = |axis: usize| {
        let at = mesh.atoms_of(axis).iter().fold(0, |n, a| n * mesh.size(*a) + mesh.coordinate(rank, *a));
        format!("{} = {at}", mesh.axes[axis].name)
    };
    let all: Vec<String> = (0..mesh.axes.len()).map(along).collect();
    format!("rank {rank} ({})", all.join(", "))
}
