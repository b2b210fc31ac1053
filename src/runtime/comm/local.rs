//! Ranks that are threads of one process.

use super::bell::{Bell, Patience, Waited, lock};
use super::plan::Exchange;
use super::{CommError, Communicator, Posted, transfer};
use crate::mesh::{Atom, Mesh};
use crate::runtime::device::pool::Pool;
use crate::runtime::device::share::Shared;
use crate::with_element;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Elements that are worth a thread.
const LEAST: usize = 1 << 14;

/// Bytes of a result that every rank reduces for itself: that reads more, but the ranks meet once less.
const STAGING: usize = 1 << 15;
/// The same, of the parts of all ranks together.
const PARTS: usize = 1 << 16;

/// Where all ranks meet.
pub struct Hub {
    /// For each set of atoms that groups go along, the group of every rank.
    sets: Vec<Vec<usize>>,
    groups: Vec<Group>,
    desks: Vec<Desk>,
    failed: AtomicBool,
    failure: Mutex<Option<(usize, String)>>,
    patience: Patience,
}

struct Group {
    ranks: Vec<usize>,
    /// Arrivals at meetings, of all ranks together.
    arrived: Bell,
    /// By number of an exchange: how often it was posted, by all ranks together.
    posted: Vec<AtomicU64>,
}

/// What a rank shows to the others; cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Desk {
    /// By number of an exchange.
    posts: Vec<Post>,
    /// How often it has posted or come to a meeting, of all groups.
    steps: AtomicU64,
}

/// Where a rank's arrays are.
#[derive(Default)]
struct Post {
    from: AtomicPtr<u8>,
    to: AtomicPtr<u8>,
}

impl Hub {
    /// `sets`: the atoms that groups go along, by the numbers of [`Exchange::set`]; `exchanges`: how many a routine has.
    pub fn new(mesh: &Mesh, sets: &[Vec<Atom>], exchanges: usize, patience: Patience) -> Hub {
        let mut groups: Vec<Group> = Vec::new();
        let set = |atoms: &Vec<Atom>| -> Vec<usize> {
            let first = groups.len();
            let mut of = vec![usize::MAX; mesh.ranks()];
            for rank in 0..mesh.ranks() {
                if of[rank] == usize::MAX {
                    let ranks = mesh.members(rank, atoms);
                    ranks.iter().for_each(|r| of[*r] = groups.len());
                    let posted = (0..exchanges).map(|_| AtomicU64::new(0)).collect();
                    groups.push(Group { ranks, arrived: Bell::default(), posted });
                }
            }
            debug_assert!(of.iter().all(|g| *g >= first));
            of
        };
        let sets = sets.iter().map(set).collect();
        let posts = || (0..exchanges).map(|_| Post::default()).collect();
        let desks = (0..mesh.ranks()).map(|_| Desk { posts: posts(), ..Desk::default() }).collect();
        Hub { sets, groups, desks, failed: AtomicBool::new(false), failure: Mutex::new(None), patience }
    }

    /// Before all ranks begin to run again.
    pub fn reset(&self) {
        for group in &self.groups {
            group.arrived.reset();
            group.posted.iter().for_each(|p| p.store(0, Ordering::SeqCst));
        }
        for desk in &self.desks {
            desk.steps.store(0, Ordering::SeqCst);
        }
        *lock(&self.failure) = None;
        self.failed.store(false, Ordering::SeqCst);
    }

    /// A rank goes no further: all who wait for it are woken. The first one counts.
    pub fn fail(&self, rank: usize, why: &str) {
        lock(&self.failure).get_or_insert_with(|| (rank, why.to_string()));
        self.failed.store(true, Ordering::SeqCst);
        self.groups.iter().for_each(|g| g.arrived.ring());
    }

    fn failure(&self) -> CommError {
        match &*lock(&self.failure) {
            Some((rank, why)) => CommError::Failed { rank: *rank, why: why.clone() },
            None => CommError::Broken("a failure without a rank".into()),
        }
    }
}

/// A rank's end.
pub struct Local {
    hub: Arc<Hub>,
    rank: usize,
    /// For each group of the hub how often the rank has come to a meeting of it in this run.
    came: Vec<u64>,
    /// By number of an exchange: how often it has posted it, and which of its steps the last time was.
    posted: Vec<(u64, u64)>,
    /// Room for small results, while others still read their parts.
    staging: Vec<u64>,
}

impl Local {
    pub fn new(hub: Arc<Hub>, rank: usize) -> Local {
        let came = vec![0; hub.groups.len()];
        let posted = vec![(0, 0); hub.desks[rank].posts.len()];
        Local { hub, rank, came, posted, staging: vec![0; STAGING / 8] }
    }

    fn array(&self, number: usize, rank: usize) -> *const u8 {
        self.hub.desks[rank].posts[number].from.load(Ordering::Relaxed).cast_const()
    }

    fn result(&self, number: usize, rank: usize) -> *mut u8 {
        self.hub.desks[rank].posts[number].to.load(Ordering::Relaxed)
    }

    /// Waits until the whole group has come as often as this rank.
    fn meet(&mut self, group: usize) -> Result<(), CommError> {
        let g = &self.hub.groups[group];
        let step = self.hub.step(self.rank);
        self.came[group] += 1;
        let goal = self.came[group] * g.ranks.len() as u64;
        if g.arrived.add() == goal {
            g.arrived.ring();
            return Ok(());
        }
        self.hub.waited(g.arrived.wait(goal, self.hub.patience, &self.hub.failed), g, step)
    }

    /// Waits until the whole group has posted an exchange as often as this rank.
    fn gather(&self, group: usize, number: usize) -> Result<(), CommError> {
        let g = &self.hub.groups[group];
        let (times, step) = self.posted[number];
        let goal = times * g.ranks.len() as u64;
        let ready = || g.posted[number].load(Ordering::SeqCst) >= goal;
        self.hub.waited(g.arrived.wait_for(ready, self.hub.patience, &self.hub.failed), g, step)
    }
}

impl Hub {
    /// A rank goes a step further.
    fn step(&self, rank: usize) -> u64 {
        let own = &self.desks[rank].steps;
        let step = own.load(Ordering::Relaxed) + 1;
        own.store(step, Ordering::SeqCst);
        step
    }

    fn waited(&self, how: Waited, g: &Group, step: u64) -> Result<(), CommError> {
        match how {
            Waited::Ready => Ok(()),
            Waited::Stopped => Err(self.failure()),
            Waited::Late => {
                let late = |r: &usize| self.desks[*r].steps.load(Ordering::SeqCst) < step;
                let ranks = g.ranks.iter().copied().filter(late).collect();
                Err(CommError::Missing { ranks, seconds: self.patience.limit.as_secs() })
            }
        }
    }
}

/// Where in the staging area results go that every rank reduces for itself.
#[derive(Default)]
struct Staged {
    bytes: usize,
}

impl Staged {
    /// The place of the next result, if it is small; the same for all ranks of a group.
    fn place(&mut self, e: &Exchange) -> Option<usize> {
        let bytes = e.room * e.dtype.bytes();
        let at = self.bytes.next_multiple_of(8);
        let small = e.alike.len() > 1 && at + bytes <= STAGING && bytes * e.alike.len() <= PARTS;
        small.then(|| {
            self.bytes = at + bytes;
            at
        })
    }
}

impl Communicator for Local {
    fn begin(&mut self) {
        self.came.fill(0);
        self.posted.fill((0, 0));
    }

    fn post(&mut self, e: &Exchange, number: usize, from: *const u8, to: *mut u8) {
        let post = &self.hub.desks[self.rank].posts[number];
        post.from.store(from.cast_mut(), Ordering::Relaxed);
        post.to.store(to, Ordering::Relaxed);
        let (times, step) = &mut self.posted[number];
        *times += 1;
        *step = self.hub.step(self.rank);
        let g = &self.hub.groups[self.hub.sets[e.set][self.rank]];
        if g.posted[number].fetch_add(1, Ordering::SeqCst) + 1 == *times * g.ranks.len() as u64 {
            g.arrived.ring();
        }
    }

    unsafe fn finish(&mut self, exchanges: &[Exchange], all: &[Posted], pool: &Pool) -> Result<(), CommError> {
        let Some(first) = all.first().map(|p| &exchanges[p.exchange]) else { return Ok(()) };
        if all.iter().any(|p| exchanges[p.exchange].set != first.set) {
            return Err(CommError::Broken("exchanges of several groups at once".into()));
        }
        let (group, alone) = (self.hub.sets[first.set][self.rank], first.group.len() == 1);
        for p in all {
            self.gather(group, p.number)?;
        }
        let mut staged = Staged::default();
        for p in all {
            let e = &exchanges[p.exchange];
            // The result may lie where the parts are.
            let place = staged.place(e);
            let out = Shared(match place {
                Some(at) => self.staging.as_mut_ptr().cast::<u8>().wrapping_add(at),
                None => self.result(p.number, self.rank),
            });
            let own = if place.is_some() { 0..e.elements } else { e.share(e.place) };
            let this = &*self;
            with_element!(e.dtype, E => {
                let theirs = |rank: usize| this.array(p.number, rank).cast::<E>();
                let done = pool.split(own.len(), LEAST, &|begin, end| {
                    // SAFETY: all have posted, so that all arrays are there and nobody writes what is read, before the next
                    // meeting; pieces of the result are apart.
                    unsafe { transfer::fetch(e, (own.start + begin, own.start + end), &theirs, out.get().cast::<E>()) }
                });
                done.map_err(CommError::Broken)?;
                // SAFETY: they belong to nobody's share.
                unsafe { transfer::clear(&e.dead, out.get().cast::<E>()) };
            });
        }
        if alone {
            return Ok(());
        }
        let reduced = all.iter().any(|p| exchanges[p.exchange].alike.len() > 1);
        if reduced {
            // All shares are there, and nobody reads small parts any more.
            self.meet(group)?;
        }
        let (mut staged, mut read) = (Staged::default(), false);
        for p in all {
            let e = &exchanges[p.exchange];
            let out = self.result(p.number, self.rank);
            if let Some(at) = staged.place(e) {
                let from = self.staging.as_ptr().cast::<u8>().wrapping_add(at);
                // SAFETY: both have room for the result.
                unsafe { std::ptr::copy_nonoverlapping(from, out, e.room * e.dtype.bytes()) };
                continue;
            }
            read = true;
            let out = Shared(out);
            for (place, rank) in e.alike.iter().enumerate().filter(|(place, _)| *place != e.place) {
                let theirs = Shared(self.result(p.number, *rank));
                let share = e.share(place);
                with_element!(e.dtype, E => {
                    let done = pool.split(share.len(), LEAST, &|begin, end| {
                        let part = (share.start + begin, share.start + end);
                        // SAFETY: that rank has written its share and writes others only.
                        unsafe { transfer::repeat(e, part, theirs.get().cast::<E>(), out.get().cast::<E>()) }
                    });
                    done.map_err(CommError::Broken)?;
                });
            }
        }
        // Nobody goes on to overwrite what another one still reads.
        if read { self.meet(group) } else { Ok(()) }
    }
}
