//! What streams run: the calls of a group together. And the groups of a thread.

use super::comm::{Code, Comm, INVALID_USAGE, SYSTEM};
use super::exchange::{Call, Exchange, Step, What};
use super::shared::Word;
use crate::check::fault::{Fault, Kind};
use crate::config::Config;
use crate::driver::device::Device;
use crate::driver::stream::{Stream, Work};
use crate::report;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A call before its end: what a group puts off.
pub enum Deferred {
    Call(Call, Arc<Stream>),
    /// A communicator whose ranks are to be waited for.
    Join(Arc<Comm>),
    /// A split: the communicator, its number, and where the new handle goes.
    Split(Arc<Comm>, u64, usize),
}

#[derive(Default)]
struct Group {
    depth: u32,
    list: Vec<Deferred>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::new(Group::default());
}

pub fn start() {
    GROUP.with_borrow_mut(|g| g.depth += 1);
}

/// Ends a group. Gives what it held where it was the outermost one.
pub fn end() -> Result<Vec<Deferred>, Code> {
    GROUP.with_borrow_mut(|g| {
        g.depth = g.depth.checked_sub(1).ok_or(INVALID_USAGE)?;
        Ok(if g.depth == 0 { std::mem::take(&mut g.list) } else { Vec::new() })
    })
}

/// Keeps a call for the end of the group; gives it back where there is no group.
pub fn defer(call: Deferred) -> Option<Deferred> {
    GROUP.with_borrow_mut(|g| {
        if g.depth == 0 {
            return Some(call);
        }
        g.list.push(call);
        None
    })
}

/// Hands calls to their streams, those of one stream as one piece of work.
pub fn post(calls: Vec<(Call, Arc<Stream>)>) -> Result<(), Code> {
    let mut streams: Vec<(Arc<Stream>, Vec<Call>)> = Vec::new();
    for (call, stream) in calls {
        if call.comm.error() != 0 || call.comm.aborted() {
            return Err(call.comm.error().max(INVALID_USAGE));
        }
        match streams.iter_mut().find(|s| Arc::ptr_eq(&s.0, &stream)) {
            Some(found) => found.1.push(call),
            None => streams.push((stream, vec![call])),
        }
    }
    for (stream, calls) in streams {
        let work = Arc::new(Together { calls, numbers: Mutex::default() });
        stream.push(work).map_err(|_| 1u32)?;
    }
    Ok(())
}

struct Together {
    calls: Vec<Call>,
    /// Numbers of the calls, for each time that this stands in a queue: a graph is launched many times.
    numbers: Mutex<VecDeque<Vec<u64>>>,
}

fn number(call: &Call) -> u64 {
    let counter = match call.what {
        What::Send => &call.comm.sends[call.root].0,
        What::Receive => &call.comm.receives[call.root].0,
        _ => &call.comm.posted,
    };
    counter.fetch_add(1, Ordering::AcqRel)
}

impl Work for Together {
    fn queued(&self, stream: &Arc<Stream>, place: u64) {
        let numbers = self.calls.iter().map(number).collect();
        self.numbers.lock().expect("no panic holds it").push_back(numbers);
        for call in &self.calls {
            call.comm.queued(stream, place);
        }
    }

    fn run(&self, device: &'static Device) -> Result<(), Fault> {
        // The queue's thread may be here before the one that handed the work over has numbered it.
        let numbers = loop {
            match self.numbers.lock().expect("no panic holds it").pop_front() {
                Some(numbers) => break numbers,
                None => std::thread::yield_now(),
            }
        };
        self.calls.iter().for_each(|c| c.comm.begin());
        let mut open: Vec<Exchange> =
            self.calls.iter().zip(numbers).map(|(c, n)| Exchange::new(c.clone(), n)).collect();
        let result = exchange(&mut open, device);
        self.calls.iter().for_each(|c| {
            c.comm.end();
            c.comm.shared.set(c.comm.rank, Word::Waiting, 0);
        });
        result
    }
}

/// Steps through exchanges until all are done, or one fails.
fn exchange(open: &mut Vec<Exchange>, device: &'static Device) -> Result<(), Fault> {
    let timeout = Duration::from_secs_f64(Config::get().timeout);
    let (mut idle, mut since, mut watch) = (0u32, Instant::now(), Watch::default());
    while !open.is_empty() {
        let mut moved = false;
        let mut failure = None;
        open.retain_mut(|e| {
            if failure.is_some() {
                return true;
            }
            let comm = e.call.comm.clone();
            if comm.aborted() || comm.error() != 0 {
                failure = Some(comm.clone());
                return true;
            }
            match e.step() {
                Ok(Step::Waits) => true,
                Ok(step) => {
                    moved = true;
                    comm.shared.of(comm.rank, Word::Progress).fetch_add(1, Ordering::AcqRel);
                    if step == Step::Done {
                        report::collective(e.call.what.name(), e.call.sent() as u64);
                    }
                    step != Step::Done
                }
                Err((code, message)) => {
                    comm.fail(code, message);
                    failure = Some(comm.clone());
                    true
                }
            }
        });
        if let Some(comm) = failure {
            return over(&comm, device);
        }
        if moved {
            (idle, since) = (0, Instant::now());
            continue;
        }
        idle += 1;
        if idle < 200 {
            std::thread::yield_now();
            continue;
        }
        let comm = open[0].call.comm.clone();
        if idle % 64 == 0 {
            open.iter().for_each(|e| e.call.comm.shared.set(e.call.comm.rank, Word::Waiting, 1));
            if watch.all_wait(&comm) || since.elapsed() > timeout {
                comm.fail(SYSTEM, stuck(open, since.elapsed()));
                return over(&comm, device);
            }
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// After a failure: NCCL's kernels go on waiting until the communicator is aborted. Who does not look for errors gets one
/// from the device after a while.
fn over(comm: &Comm, device: &'static Device) -> Result<(), Fault> {
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until && !comm.aborted() && device.check().is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    if comm.aborted() {
        return Ok(());
    }
    let said = comm.said();
    let why = if said.is_empty() { String::from("another rank has failed") } else { said };
    let message = format!("a collective has failed and the communicator was not aborted: {why}");
    Err(Fault { kind: Kind::Collective, place: None, message })
}

/// Sees that all ranks of a communicator wait and none moves.
#[derive(Default)]
struct Watch {
    progress: u64,
    since: Option<Instant>,
}

impl Watch {
    fn all_wait(&mut self, comm: &Comm) -> bool {
        let s = &comm.shared;
        let waiting = (0..comm.ranks).all(|r| s.get(r, Word::Waiting) == 1);
        let progress = (0..comm.ranks).map(|r| s.get(r, Word::Progress)).sum();
        if !waiting || progress != self.progress || self.since.is_none() {
            (self.progress, self.since) = (progress, Some(Instant::now()));
            return false;
        }
        self.since.is_some_and(|s| s.elapsed() > Duration::from_secs(1))
    }
}

/// What each rank of the first communicator is at.
fn stuck(open: &[Exchange], time: Duration) -> String {
    let call = &open[0].call;
    let (comm, s) = (&call.comm, &call.comm.shared);
    let mut text =
        format!("nothing has moved for {:.1} s: rank {} waits in its {}", time.as_secs_f64(), comm.rank, call.text());
    for r in (0..comm.ranks).filter(|r| *r != comm.rank) {
        let posted = s.get(r, Word::Posted);
        let waits = if s.get(r, Word::Waiting) == 1 { "waits" } else { "is not in a call" };
        text += &format!("; rank {r} {waits}, having come to {posted} collectives");
        if s.get(r, Word::Message) != 0 {
            let (what, side) = if s.get(r, Word::Message) == 1 { ("send", "to") } else { ("receive", "from") };
            text += &format!(
                " and last to a {what} of {} bytes {side} rank {}",
                s.get(r, Word::Bytes),
                s.get(r, Word::Peer)
            );
        }
    }
    text
}
