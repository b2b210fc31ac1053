//! Ranks that are threads of one process.

use super::bell::{Bell, Patience, Waited, lock};
use super::plan::Exchange;
use super::{CommError, Communicator, transfer};
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
    /// Arrivals, of all ranks together.
    arrived: Bell,
}

/// What a rank shows to the others; a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Desk {
    from: AtomicPtr<u8>,
    to: AtomicPtr<u8>,
    /// Which step it is at.
    step: AtomicU64,
    /// Meetings that it has come to, of all groups.
    meetings: AtomicU64,
}

impl Hub {
    /// `sets`: the atoms that groups go along, by the numbers of [`Exchange::set`].
    pub fn new(mesh: &Mesh, sets: &[Vec<Atom>], patience: Patience) -> Hub {
        let mut groups: Vec<Group> = Vec::new();
        let set = |atoms: &Vec<Atom>| -> Vec<usize> {
            let first = groups.len();
            let mut of = vec![usize::MAX; mesh.ranks()];
            for rank in 0..mesh.ranks() {
                if of[rank] == usize::MAX {
                    let ranks = mesh.members(rank, atoms);
                    ranks.iter().for_each(|r| of[*r] = groups.len());
                    groups.push(Group { ranks, arrived: Bell::default() });
                }
            }
            debug_assert!(of.iter().all(|g| *g >= first));
            of
        };
        let sets = sets.iter().map(set).collect();
        let desks = (0..mesh.ranks()).map(|_| Desk::default()).collect();
        Hub { sets, groups, desks, failed: AtomicBool::new(false), failure: Mutex::new(None), patience }
    }

    /// Before all ranks begin to run again.
    pub fn reset(&self) {
        self.groups.iter().for_each(|g| g.arrived.reset());
        for desk in &self.desks {
            desk.meetings.store(0, Ordering::SeqCst);
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
    /// For each group of the hub how often the rank has come to it in this run.
    came: Vec<u64>,
    /// Room for a small result, while others still read its parts.
    staging: Vec<u64>,
}

impl Local {
    pub fn new(hub: Arc<Hub>, rank: usize) -> Local {
        let came = vec![0; hub.groups.len()];
        Local { hub, rank, came, staging: vec![0; STAGING / 8] }
    }
}

impl Hub {
    /// Waits until the whole group has come as often as this rank.
    fn meet(&self, rank: usize, came: &mut [u64], group: usize) -> Result<(), CommError> {
        let g = &self.groups[group];
        let own = &self.desks[rank].meetings;
        let meetings = own.load(Ordering::Relaxed) + 1;
        own.store(meetings, Ordering::SeqCst);
        came[group] += 1;
        let goal = came[group] * g.ranks.len() as u64;
        if g.arrived.add() == goal {
            g.arrived.ring();
            return Ok(());
        }
        match g.arrived.wait(goal, self.patience, &self.failed) {
            Waited::Ready => Ok(()),
            Waited::Stopped => Err(self.failure()),
            Waited::Late => {
                let late = |r: &usize| self.desks[*r].meetings.load(Ordering::SeqCst) < meetings;
                let ranks = g.ranks.iter().copied().filter(late).collect();
                Err(CommError::Missing { ranks, seconds: self.patience.limit.as_secs() })
            }
        }
    }
}

impl Communicator for Local {
    fn begin(&mut self) {
        self.came.fill(0);
    }

    unsafe fn exchange(
        &mut self,
        e: &Exchange,
        number: usize,
        from: *const u8,
        to: *mut u8,
        pool: &Pool,
    ) -> Result<(), CommError> {
        let Local { hub, rank, came, staging } = self;
        let (hub, rank) = (&**hub, *rank);
        let group = hub.sets[e.set][rank];
        let mut meet = || hub.meet(rank, came, group);
        let desk = &hub.desks[rank];
        desk.from.store(from.cast_mut(), Ordering::Relaxed);
        desk.to.store(to, Ordering::Relaxed);
        desk.step.store(number as u64, Ordering::Relaxed);
        let alone = e.group.len() == 1;
        if !alone {
            meet()?;
            let elsewhere = |r: &&usize| hub.desks[**r].step.load(Ordering::Relaxed) != number as u64;
            if let Some(r) = e.group.iter().find(elsewhere) {
                return Err(CommError::Broken(format!("rank {r} is at another step than rank {rank}")));
            }
        }
        let bytes = e.room * e.dtype.bytes();
        let small = e.alike.len() > 1 && bytes <= STAGING && bytes * e.alike.len() <= PARTS;
        // The result may lie where the parts are.
        let shared = Shared(if small { staging.as_mut_ptr().cast() } else { to });
        with_element!(e.dtype, E => {
            let theirs = |rank: usize| hub.desks[rank].from.load(Ordering::Relaxed).cast_const().cast::<E>();
            let own = if small { 0..e.elements } else { e.share(e.place) };
            let done = pool.split(own.len(), LEAST, &|begin, end| {
                // SAFETY: the group has met, so that all arrays are there and nobody writes what is read, before the next
                // meeting; pieces of the result are apart.
                unsafe { transfer::fetch(e, (own.start + begin, own.start + end), &theirs, shared.get().cast::<E>()) }
            });
            done.map_err(CommError::Broken)?;
            // SAFETY: they belong to nobody's share.
            unsafe { transfer::clear(&e.dead, shared.get().cast::<E>()) };
            if alone {
                return Ok(());
            }
            if small {
                // Nobody reads parts any more.
                meet()?;
                // SAFETY: both have room for the result.
                unsafe { std::ptr::copy_nonoverlapping(shared.get().cast_const(), to, bytes) };
                return Ok(());
            }
            if e.alike.len() > 1 {
                meet()?;
                for (place, rank) in e.alike.iter().enumerate().filter(|(p, _)| *p != e.place) {
                    let theirs = Shared(hub.desks[*rank].to.load(Ordering::Relaxed));
                    let share = e.share(place);
                    let done = pool.split(share.len(), LEAST, &|begin, end| {
                        let part = (share.start + begin, share.start + end);
                        // SAFETY: that rank has written its share and writes others only.
                        unsafe { transfer::repeat(e, part, theirs.get().cast::<E>(), shared.get().cast::<E>()) }
                    });
                    done.map_err(CommError::Broken)?;
                }
            }
        });
        // Nobody goes on to overwrite what another one still reads.
        meet()
    }
}
