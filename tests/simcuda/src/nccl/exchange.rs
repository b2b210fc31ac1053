//! A collective or a message as a machine of small steps, none of which blocks: a stream makes steps of all that is in a
//! group until all are done.

use super::comm::{Code, Comm, INVALID_USAGE, REMOTE};
use super::reduce::{OPERATIONS, TYPES, combine, finish};
use super::shared::{Channel, HELD, SHOWN, Word};
use crate::check::fault::Kind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    Send,
    Receive,
}

const WHATS: [(What, &str); 10] = [
    (What::AllReduce, "all-reduce"),
    (What::AllGather, "all-gather"),
    (What::ReduceScatter, "reduce-scatter"),
    (What::Broadcast, "broadcast"),
    (What::Reduce, "reduce"),
    (What::AllToAll, "all-to-all"),
    (What::Gather, "gather"),
    (What::Scatter, "scatter"),
    (What::Send, "send"),
    (What::Receive, "receive"),
];

impl What {
    pub fn name(self) -> &'static str {
        WHATS.iter().find(|w| w.0 == self).map_or("", |w| w.1)
    }
}

/// A call: addresses on the device, elements, their type, the reduction, and the root or the peer.
#[derive(Clone)]
pub struct Call {
    pub comm: Arc<Comm>,
    pub what: What,
    pub send: u64,
    pub receive: u64,
    pub count: usize,
    pub ty: u32,
    pub operation: u32,
    pub root: usize,
}

fn describe(what: u64, count: u64, ty: u64, operation: u64, root: u64) -> String {
    let Some((what, name)) = WHATS.get(what as usize) else { return "nothing".into() };
    let ty = TYPES.get(ty as usize).map_or("?", |t| t.0);
    let reduces = matches!(what, What::AllReduce | What::ReduceScatter | What::Reduce);
    let by =
        if reduces { format!(" by {}", OPERATIONS.get(operation as usize).unwrap_or(&"?")) } else { String::new() };
    let rooted = matches!(what, What::Broadcast | What::Reduce | What::Gather | What::Scatter);
    let at = if rooted { format!(" with root {root}") } else { String::new() };
    format!("{name} of {count} {ty}{by}{at}")
}

impl Call {
    pub fn size(&self) -> usize {
        TYPES[self.ty as usize].1
    }

    fn bytes(&self) -> usize {
        self.count * self.size()
    }

    /// Bytes that are read from and written to this rank's buffers.
    fn spans(&self) -> (usize, usize) {
        let (n, all) = (self.bytes(), self.bytes() * self.comm.ranks);
        let root = self.comm.rank == self.root;
        match self.what {
            What::AllReduce => (n, n),
            What::AllGather => (n, all),
            What::ReduceScatter => (all, n),
            What::Broadcast => (if root { n } else { 0 }, n),
            What::Reduce => (n, if root { n } else { 0 }),
            What::AllToAll => (all, all),
            What::Gather => (n, if root { all } else { 0 }),
            What::Scatter => (if root { all } else { 0 }, n),
            What::Send => (n, 0),
            What::Receive => (0, n),
        }
    }

    pub fn sent(&self) -> usize {
        self.spans().0
    }

    /// Parts of what a rank shows: one for all ranks, or one for each.
    fn parts(&self) -> usize {
        match self.what {
            What::ReduceScatter | What::AllToAll | What::Scatter => self.comm.ranks,
            _ => 1,
        }
    }

    pub fn text(&self) -> String {
        match self.what {
            What::Send => format!("send of {} {} to rank {}", self.count, TYPES[self.ty as usize].0, self.root),
            What::Receive => format!("receive of {} {} from rank {}", self.count, TYPES[self.ty as usize].0, self.root),
            what => describe(
                WHATS.iter().position(|w| w.0 == what).unwrap_or(0) as u64,
                self.count as u64,
                u64::from(self.ty),
                u64::from(self.operation),
                self.root as u64,
            ),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Done,
    Moved,
    Waits,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Until its turn comes.
    Turn,
    /// Until all ranks have said what they call.
    Post,
    Show,
    See,
}

pub struct Exchange {
    pub call: Call,
    /// Which collective of the communicator, or which message to or from the peer.
    number: u64,
    phase: Phase,
    /// Bytes of each part that are over.
    at: usize,
    /// Parts shown before this collective.
    base: u64,
    round: u64,
}

type Failure = (Code, String);

impl Exchange {
    pub fn new(call: Call, number: u64) -> Exchange {
        Exchange { call, number, phase: Phase::Turn, at: 0, base: 0, round: 0 }
    }

    /// Makes a step.
    pub fn step(&mut self) -> Result<Step, Failure> {
        match self.call.what {
            What::Send | What::Receive => self.message(),
            _ => self.collective(),
        }
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Failure> {
        let memory = &self.call.comm.device.memory;
        memory.copy_out(at, into).map_err(|k| self.refused("sends", k, at, into.len()))
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Failure> {
        let memory = &self.call.comm.device.memory;
        memory.copy_in(at, from).map_err(|k| self.refused("receives into", k, at, from.len()))
    }

    fn refused(&self, verb: &str, kind: Kind, at: u64, bytes: usize) -> Failure {
        let (c, memory) = (&self.call.comm, &self.call.comm.device.memory);
        let message = format!(
            "rank {} {verb} {} in its {}: {}",
            c.rank,
            memory.describe(at, bytes),
            self.call.text(),
            kind.name()
        );
        (INVALID_USAGE, message)
    }

    /// The buffers are whole before a byte is exchanged.
    fn check_buffers(&self) -> Result<(), Failure> {
        let (sent, received) = self.call.spans();
        let memory = &self.call.comm.device.memory;
        if sent > 0 {
            memory.check(self.call.send, sent).map_err(|k| self.refused("sends", k, self.call.send, sent))?;
            if memory.find_uninitialised && !memory.written(self.call.send, sent) {
                crate::report::note(format!(
                    "rank {}: not all that its {} sends was written",
                    self.call.comm.rank,
                    self.call.text()
                ));
            }
        }
        if received > 0 {
            memory
                .check(self.call.receive, received)
                .map_err(|k| self.refused("receives into", k, self.call.receive, received))?;
        }
        Ok(())
    }

    fn post(&self) {
        let (c, s) = (&self.call, &self.call.comm.shared);
        let what = WHATS.iter().position(|w| w.0 == c.what).unwrap_or(0) as u64;
        s.set(c.comm.rank, Word::Kind, what);
        s.set(c.comm.rank, Word::Count, c.count as u64);
        s.set(c.comm.rank, Word::Type, u64::from(c.ty));
        s.set(c.comm.rank, Word::Operation, u64::from(c.operation));
        s.set(c.comm.rank, Word::Root, c.root as u64);
        s.set(c.comm.rank, Word::Posted, self.number + 1);
    }

    /// What a rank has said of its collective.
    fn said(&self, rank: usize) -> String {
        let s = &self.call.comm.shared;
        let of = |w| s.get(rank, w);
        describe(of(Word::Kind), of(Word::Count), of(Word::Type), of(Word::Operation), of(Word::Root))
    }

    /// Fails where a rank will never come; `None` where it may.
    fn missing(&self, ready: impl Fn(usize) -> bool) -> Result<bool, Failure> {
        let comm = &self.call.comm;
        for r in 0..comm.ranks {
            if ready(r) {
                continue;
            }
            if let Some(why) = comm.gone(r)
                && !ready(r)
            {
                let message = format!("rank {} waits in its {}, but rank {r} {why}", comm.rank, self.call.text());
                return Err((REMOTE, message));
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn collective(&mut self) -> Result<Step, Failure> {
        let comm = self.call.comm.clone();
        let (s, me, ranks) = (&comm.shared, comm.rank, comm.ranks);
        let size = self.call.size();
        // Bytes of each part that are shown in a round.
        let piece = SHOWN / self.call.parts() / size * size;
        let n = piece.min(self.call.bytes() - self.at);
        match self.phase {
            Phase::Turn => {
                if comm.turn.load(Ordering::Acquire) != self.number {
                    return Ok(Step::Waits);
                }
                self.check_buffers()?;
                self.base = s.get(me, Word::Shown);
                self.post();
                self.phase = Phase::Post;
            }
            Phase::Post => {
                if self.missing(|r| s.get(r, Word::Posted) > self.number)? {
                    return Ok(Step::Waits);
                }
                let own = self.said(me);
                if let Some(r) = (0..ranks).find(|r| self.said(*r) != own) {
                    let message = format!(
                        "collective {} of the communicator: rank {me} calls {own}, rank {r} calls {}",
                        self.number,
                        self.said(r)
                    );
                    return Err((INVALID_USAGE, message));
                }
                self.phase = Phase::Show;
            }
            Phase::Show => {
                if self.missing(|r| s.get(r, Word::Seen) >= self.base + self.round)? {
                    return Ok(Step::Waits);
                }
                if self.call.sent() > 0 {
                    let mut bytes = vec![0u8; n];
                    for part in 0..self.call.parts() {
                        let at = self.call.send + (part * self.call.bytes() + self.at) as u64;
                        self.read(at, &mut bytes)?;
                        s.show(me, part * piece, &bytes);
                    }
                }
                s.set(me, Word::Shown, self.base + self.round + 1);
                self.phase = Phase::See;
            }
            Phase::See => {
                if self.missing(|r| s.get(r, Word::Shown) > self.base + self.round)? {
                    return Ok(Step::Waits);
                }
                self.see(n, piece)?;
                s.set(me, Word::Seen, self.base + self.round + 1);
                self.at += n;
                self.round += 1;
                self.phase = Phase::Show;
                if self.at >= self.call.bytes() {
                    comm.turn.fetch_add(1, Ordering::AcqRel);
                    return Ok(Step::Done);
                }
            }
        }
        Ok(Step::Moved)
    }

    /// Takes what this rank needs of what all show: `n` bytes of each part.
    fn see(&self, n: usize, piece: usize) -> Result<(), Failure> {
        let (c, comm) = (&self.call, &self.call.comm);
        let (s, me, ranks) = (&comm.shared, comm.rank, comm.ranks);
        let mut bytes = vec![0u8; n];
        // The part of each rank's buffer that is for this rank.
        let part = if c.parts() == 1 { 0 } else { me * piece };
        let into = c.receive + self.at as u64;
        match c.what {
            What::AllReduce | What::ReduceScatter | What::Reduce => {
                if c.what == What::Reduce && me != c.root {
                    return Ok(());
                }
                let mut sum = vec![0u8; n];
                s.see(0, part, &mut sum);
                for r in 1..ranks {
                    s.see(r, part, &mut bytes);
                    combine(&mut sum, &bytes, c.ty, c.operation);
                }
                finish(&mut sum, c.ty, c.operation, ranks);
                self.write(into, &sum)
            }
            What::AllGather | What::AllToAll | What::Gather => {
                if c.what == What::Gather && me != c.root {
                    return Ok(());
                }
                for r in 0..ranks {
                    s.see(r, part, &mut bytes);
                    self.write(into + (r * c.bytes()) as u64, &bytes)?;
                }
                Ok(())
            }
            _ => {
                s.see(c.root, part, &mut bytes);
                self.write(into, &bytes)
            }
        }
    }

    fn message(&mut self) -> Result<Step, Failure> {
        let comm = self.call.comm.clone();
        let (s, me, peer) = (&comm.shared, comm.rank, self.call.root);
        let sends = self.call.what == What::Send;
        let turn = if sends { &comm.sends[peer].1 } else { &comm.receives[peer].1 };
        if turn.load(Ordering::Acquire) != self.number {
            return Ok(Step::Waits);
        }
        if self.phase == Phase::Turn {
            self.check_buffers()?;
            s.set(me, Word::Peer, peer as u64);
            s.set(me, Word::Bytes, self.call.bytes() as u64);
            s.set(me, Word::Message, if sends { 1 } else { 2 });
            self.phase = Phase::Post;
        }
        let (from, to) = if sends { (me, peer) } else { (peer, me) };
        let word = |w| s.channel(from, to, w);
        let (written, read) =
            (word(Channel::Written).load(Ordering::Acquire), word(Channel::Read).load(Ordering::Acquire));
        // A sender waits for an empty channel, a receiver for a full one.
        if (written == read) != sends {
            if let Some(why) = comm.gone(peer) {
                let full =
                    word(Channel::Written).load(Ordering::Acquire) != word(Channel::Read).load(Ordering::Acquire);
                if full == sends {
                    return Err((
                        REMOTE,
                        format!("rank {me} waits in its {}, but rank {peer} {why}", self.call.text()),
                    ));
                }
            }
            return Ok(Step::Waits);
        }
        let (bytes, n) = (self.call.bytes(), HELD.min(self.call.bytes() - self.at));
        let mut part = vec![0u8; n];
        if sends {
            self.read(self.call.send + self.at as u64, &mut part)?;
            s.send(from, to, &part);
            word(Channel::Bytes).store(bytes as u64, Ordering::Release);
            word(Channel::Type).store(u64::from(self.call.ty), Ordering::Release);
            word(Channel::Part).store(self.at as u64, Ordering::Release);
            word(Channel::Written).store(written + 1, Ordering::Release);
        } else {
            let (sent, ty) =
                (word(Channel::Bytes).load(Ordering::Acquire), word(Channel::Type).load(Ordering::Acquire));
            if sent != bytes as u64 || ty != u64::from(self.call.ty) {
                let (name, size) = TYPES.get(ty as usize).copied().unwrap_or(("?", 1));
                let message = format!(
                    "message {} from rank {peer} to rank {me}: rank {me} calls {}, rank {peer} sends {} {name}",
                    self.number,
                    self.call.text(),
                    sent as usize / size
                );
                return Err((INVALID_USAGE, message));
            }
            s.receive(from, to, &mut part);
            self.write(self.call.receive + self.at as u64, &part)?;
            word(Channel::Read).store(read + 1, Ordering::Release);
        }
        self.at += n;
        if self.at < bytes {
            return Ok(Step::Moved);
        }
        // A message that was sent is over when it was taken: NCCL gives no such promise, and none is needed.
        turn.fetch_add(1, Ordering::AcqRel);
        Ok(Step::Done)
    }
}
