//! Ranks that are threads of one process.

use super::bell::{Bell, Patience, Waited, lock};
use super::plan::Exchange;
use super::{CommError, Communicator, Deal, Deals, Posted, transfer};
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
#[repr(align(128))]
struct Desk {
    /// By number of an exchange.
    posts: Vec<Post>,
    /// By group: how often it has come to a meeting.
    came: Vec<AtomicU64>,
    /// By number of a transfer: where what it sends lies, once it is there.
    sends: Vec<AtomicPtr<u8>>,
    /// By number of a transfer: whether it was taken.
    taken: Vec<AtomicBool>,
    /// Rings when one of these changes.
    changed: Bell,
}

/// Where a rank's arrays are.
#[derive(Default)]
struct Post {
    from: AtomicPtr<u8>,
    to: AtomicPtr<u8>,
    /// How often it has posted them.
    times: AtomicU64,
}

impl Hub {
    /// `sets`: the atoms that groups go along, by the numbers of [`Exchange::set`]; `exchanges`: how many numbers they have;
    /// `transfers`: how many numbers those from rank to rank have.
    pub fn new(mesh: &Mesh, sets: &[Vec<Atom>], exchanges: usize, transfers: usize, patience: Patience) -> Hub {
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
        let desk = || Desk {
            posts: (0..exchanges).map(|_| Post::default()).collect(),
            came: groups.iter().map(|_| AtomicU64::new(0)).collect(),
            sends: (0..transfers).map(|_| AtomicPtr::default()).collect(),
            taken: (0..transfers).map(|_| AtomicBool::new(false)).collect(),
            changed: Bell::default(),
        };
        let desks = (0..mesh.ranks()).map(|_| desk()).collect();
        Hub { sets, groups, desks, failed: AtomicBool::new(false), failure: Mutex::new(None), patience }
    }

    /// Before all ranks begin to run again.
    pub fn reset(&self) {
        for group in &self.groups {
            group.arrived.reset();
            group.posted.iter().for_each(|p| p.store(0, Ordering::SeqCst));
        }
        for desk in &self.desks {
            let counts = desk.posts.iter().map(|p| &p.times).chain(&desk.came);
            counts.for_each(|n| n.store(0, Ordering::SeqCst));
            desk.sends.iter().for_each(|p| p.store(std::ptr::null_mut(), Ordering::SeqCst));
            desk.taken.iter().for_each(|t| t.store(false, Ordering::SeqCst));
        }
        *lock(&self.failure) = None;
        self.failed.store(false, Ordering::SeqCst);
    }

    /// A rank goes no further: all who wait for it are woken. The first one counts.
    pub fn fail(&self, rank: usize, why: &str) {
        lock(&self.failure).get_or_insert_with(|| (rank, why.to_string()));
        self.failed.store(true, Ordering::SeqCst);
        self.groups.iter().map(|g| &g.arrived).chain(self.desks.iter().map(|d| &d.changed)).for_each(Bell::ring);
    }

    pub fn patience(&self) -> Patience {
        self.patience
    }

    fn failure(&self) -> CommError {
        match &*lock(&self.failure) {
            Some((rank, why)) => CommError::Failed { rank: *rank, why: why.clone() },
            None => CommError::Broken("a failure without a rank".into()),
        }
    }
}

/// How a rank says where its arrays are.
pub struct Poster {
    hub: Arc<Hub>,
    rank: usize,
}

impl Poster {
    pub fn new(hub: Arc<Hub>, rank: usize) -> Poster {
        Poster { hub, rank }
    }

    pub fn post(&self, e: &Exchange, number: usize, from: *const u8, to: *mut u8) {
        let post = &self.hub.desks[self.rank].posts[number];
        post.from.store(from.cast_mut(), Ordering::Relaxed);
        post.to.store(to, Ordering::Relaxed);
        let times = post.times.fetch_add(1, Ordering::SeqCst) + 1;
        let g = &self.hub.groups[self.hub.sets[e.set][self.rank]];
        if g.posted[number].fetch_add(1, Ordering::SeqCst) + 1 == times * g.ranks.len() as u64 {
            g.arrived.ring();
        }
    }

    pub fn send(&self, number: usize, from: *const u8) {
        let desk = &self.hub.desks[self.rank];
        desk.sends[number].store(from.cast_mut(), Ordering::SeqCst);
        desk.changed.ring();
    }

    /// # Safety
    /// As for [`Communicator::receive`].
    pub unsafe fn receive(
        &self,
        number: usize,
        from: usize,
        to: *mut u8,
        bytes: usize,
        pool: &Pool,
    ) -> Result<(), CommError> {
        let desk = &self.hub.desks[from];
        let ready = || !desk.sends[number].load(Ordering::SeqCst).is_null();
        self.met(desk.changed.wait_for(ready, self.hub.patience, &self.hub.failed), from)?;
        let source = Shared(desk.sends[number].load(Ordering::SeqCst));
        let target = Shared(to);
        let copied = pool.split(bytes, LEAST * 8, &|begin, end| {
            // SAFETY: inside of both arrays, as the caller has seen to; pieces are apart.
            unsafe { std::ptr::copy_nonoverlapping(source.get().add(begin), target.get().add(begin), end - begin) }
        });
        copied.map_err(CommError::Broken)?;
        desk.taken[number].store(true, Ordering::SeqCst);
        desk.changed.ring();
        Ok(())
    }

    pub fn sent(&self, number: usize, to: usize) -> Result<(), CommError> {
        let desk = &self.hub.desks[self.rank];
        let ready = || desk.taken[number].load(Ordering::SeqCst);
        self.met(desk.changed.wait_for(ready, self.hub.patience, &self.hub.failed), to)
    }

    fn met(&self, how: Waited, other: usize) -> Result<(), CommError> {
        match how {
            Waited::Ready => Ok(()),
            Waited::Stopped => Err(self.hub.failure()),
            Waited::Late => Err(CommError::Missing { ranks: vec![other], seconds: self.hub.patience.limit.as_secs() }),
        }
    }
}

/// Moves what a rank has to move.
pub struct Mover {
    hub: Arc<Hub>,
    rank: usize,
    /// By number of an exchange: how often it has been moved in this run.
    moved: Vec<u64>,
    /// Room for small results, while others still read their parts.
    staging: Vec<u64>,
}

impl Mover {
    pub fn new(hub: Arc<Hub>, rank: usize) -> Mover {
        let moved = vec![0; hub.desks[rank].posts.len()];
        Mover { hub, rank, moved, staging: vec![0; STAGING / 8] }
    }

    pub fn begin(&mut self) {
        self.moved.fill(0);
    }

    fn array(&self, number: usize, rank: usize) -> *const u8 {
        self.hub.desks[rank].posts[number].from.load(Ordering::Relaxed).cast_const()
    }

    fn result(&self, number: usize, rank: usize) -> *mut u8 {
        self.hub.desks[rank].posts[number].to.load(Ordering::Relaxed)
    }

    /// Waits until the whole group has come as often as this rank.
    fn meet(&self, group: usize) -> Result<(), CommError> {
        let g = &self.hub.groups[group];
        let times = self.hub.desks[self.rank].came[group].fetch_add(1, Ordering::SeqCst) + 1;
        let goal = times * g.ranks.len() as u64;
        if g.arrived.add() == goal {
            g.arrived.ring();
            return Ok(());
        }
        let how = g.arrived.wait(goal, self.hub.patience, &self.hub.failed);
        self.hub.waited(how, g, |desk| desk.came[group].load(Ordering::SeqCst) < times)
    }

    /// Waits until the whole group has posted an exchange as often as this rank has to move it.
    fn gather(&mut self, group: usize, number: usize) -> Result<(), CommError> {
        self.moved[number] += 1;
        let times = self.moved[number];
        let g = &self.hub.groups[group];
        let goal = times * g.ranks.len() as u64;
        let ready = || g.posted[number].load(Ordering::SeqCst) >= goal;
        let how = g.arrived.wait_for(ready, self.hub.patience, &self.hub.failed);
        self.hub.waited(how, g, |desk| desk.posts[number].times.load(Ordering::SeqCst) < times)
    }
}

impl Hub {
    fn waited(&self, how: Waited, g: &Group, late: impl Fn(&Desk) -> bool) -> Result<(), CommError> {
        match how {
            Waited::Ready => Ok(()),
            Waited::Stopped => Err(self.failure()),
            Waited::Late => {
                let ranks = g.ranks.iter().copied().filter(|r| late(&self.desks[*r])).collect();
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

impl Mover {
    /// Moves what is to be moved in exchanges that were posted, all of the same set of groups; waits for the others.
    ///
    /// # Safety
    /// As for [`Communicator::finish`].
    pub unsafe fn finish(&mut self, exchanges: &[Exchange], all: &[Posted], pool: &Pool) -> Result<(), CommError> {
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

/// A rank's end, where its own threads move the elements when it waits for them.
pub struct Local {
    deals: Arc<Deals>,
    poster: Poster,
    mover: Mover,
}

impl Local {
    pub fn new(hub: Arc<Hub>, rank: usize, deals: Arc<Deals>) -> Local {
        Local { deals, poster: Poster::new(hub.clone(), rank), mover: Mover::new(hub, rank) }
    }
}

impl Communicator for Local {
    fn begin(&mut self) {
        self.mover.begin();
    }

    fn post(&mut self, p: Posted, from: *const u8, to: *mut u8) {
        self.poster.post(&self.deals.exchanges[p.exchange], p.number, from, to);
    }

    unsafe fn posted(&mut self, _: Deal) {}

    unsafe fn finish(&mut self, deal: Deal, pool: &Pool) -> Result<(), CommError> {
        // SAFETY: as the caller has seen to.
        unsafe { self.mover.finish(&self.deals.exchanges, self.deals.of(deal), pool) }
    }

    fn send(&mut self, number: usize, from: *const u8) {
        self.poster.send(number, from);
    }

    unsafe fn receive(
        &mut self,
        number: usize,
        from: usize,
        to: *mut u8,
        bytes: usize,
        pool: &Pool,
    ) -> Result<(), CommError> {
        // SAFETY: as the caller has seen to.
        unsafe { self.poster.receive(number, from, to, bytes, pool) }
    }

    fn sent(&mut self, number: usize, to: usize) -> Result<(), CommError> {
        self.poster.sent(number, to)
    }

    fn end(&mut self) {}
}
