//! Proves that a step ends: that no set of ranks, streams and communicators waits for itself, that each receive meets a send of the same
//! message, and that each computation finds in its slots what it needs.
//!
//! Every event has a beginning and an end. Beginnings come after the end of what is before in the stream; ends after the beginning of all
//! that the event meets: the other side of a transfer, all members of a collective, the end of a signal. If these edges have no cycle,
//! then events end in any order along them, whatever the ranks' speed, and with no buffer anywhere. The graph has two nodes an event and the
//! check goes through it once, so that it takes time in proportion to the events. Copies of the pipeline (data and tensor
//! parallel) add none: they run the same lists, so that a run of one is a run of all in step, and what must meet is
//! determined by the lists and not by speed.

use super::program::{Members, Message, Program, Transfer, What};
use indexmap::IndexMap;

/// An event of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct At {
    pub rank: usize,
    pub index: usize,
}

/// What was shown, by kind: how often.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Certificate {
    /// Events that end.
    pub events: usize,
    /// Receives that meet a send of the same message, shape and size.
    pub rendezvous: usize,
    /// Collective operations whose members call the same one in the same place.
    pub collectives: usize,
    /// Pairs of communicators with several ranks in common, on each of which they begin in the same order.
    pub launches: usize,
    /// Reads that find their message.
    pub reads: usize,
    /// Slots that are written again after their last reader.
    pub reuses: usize,
    /// Waits of one stream for another.
    pub waits: usize,
}

impl Certificate {
    pub fn obligations(&self) -> usize {
        self.by_kind().iter().map(|k| k.1).sum()
    }

    /// What was shown of another step, too.
    pub fn and(&self, other: &Certificate) -> Certificate {
        Certificate {
            events: self.events + other.events,
            rendezvous: self.rendezvous + other.rendezvous,
            collectives: self.collectives + other.collectives,
            launches: self.launches + other.launches,
            reads: self.reads + other.reads,
            reuses: self.reuses + other.reuses,
            waits: self.waits + other.waits,
        }
    }

    pub fn by_kind(&self) -> [(&'static str, usize); 7] {
        [
            ("progress", self.events),
            ("rendezvous", self.rendezvous),
            ("collectives", self.collectives),
            ("launches", self.launches),
            ("reads", self.reads),
            ("reuses", self.reuses),
            ("waits", self.waits),
        ]
    }
}

/// Why a step is not certified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Each event waits for the next, the last for the first.
    Stuck { around: Vec<At> },
    /// A transfer, a collective or a wait that nobody meets.
    Unmet { at: At },
    /// A send meets a receive of another message.
    Mismatch { send: At, sent: Message, receive: At, expected: Message },
    /// Members of a communicator call different operations.
    Disagree { communicator: usize, at: At, other: At },
    /// Two communicators begin in another order on two ranks that both are in.
    Launches { communicators: [usize; 2], at: At, other: At },
    /// A computation does not find what it needs in a slot, or may not yet.
    Unread { at: At, slot: usize, message: Message },
    /// A slot may be written again before another event has read or written it.
    Overwritten { at: At, user: At, slot: usize },
}

impl Refusal {
    /// One sentence without a full stop.
    pub fn message(&self, p: &Program) -> String {
        let event = |a: &At| format!("`{}` (event {} of rank {})", p.ranks[a.rank][a.index], a.index, a.rank);
        match self {
            Refusal::Stuck { around } => {
                let all: Vec<String> = around.iter().map(event).collect();
                format!("{}, which is where it began", all.join(" waits for "))
            }
            Refusal::Unmet { at } => format!("{} is met by none", event(at)),
            Refusal::Mismatch { send, sent, receive, expected } => {
                format!("{} sends {sent} where {} expects {expected}", event(send), event(receive))
            }
            Refusal::Disagree { communicator, at, other } => {
                format!("in communicator {communicator} {} meets {}", event(at), event(other))
            }
            Refusal::Launches { communicators: [a, b], at, other } => {
                format!(
                    "communicators {a} and {b} begin in one order at {} and in another at {}",
                    event(at),
                    event(other)
                )
            }
            Refusal::Unread { at, slot, message } => format!("{} does not find {message} in slot {slot}", event(at)),
            Refusal::Overwritten { at, user, slot } => {
                format!("{} may overwrite slot {slot} before {} has ended", event(at), event(user))
            }
        }
    }
}

/// Shows that a step ends, or why it may not.
pub fn certify(program: &Program) -> Result<Certificate, Refusal> {
    let mut out = Certificate { events: program.events(), ..Certificate::default() };
    let mut g = Waits::new(program);
    g.transfers(&mut out)?;
    g.offers(&mut out)?;
    g.collectives(&mut out)?;
    g.signals(&mut out)?;
    launches(program, &mut out)?;
    let clocks = g.run()?;
    slots(&g, &clocks, &mut out)?;
    Ok(out)
}

/// Who waits for whom. Event `e` begins at node `2e` and ends at `2e + 1`; nodes behind those are meetings of collectives.
struct Waits<'a> {
    program: &'a Program,
    all: Vec<At>,
    first: Vec<usize>,
    /// What an event comes after in its stream.
    before: Vec<Option<usize>>,
    /// Its place in the stream.
    position: Vec<u32>,
    /// The signal that a wait waits for.
    signal: Vec<Option<usize>>,
    /// What must have been reached before a node, other than by the stream.
    needs: Vec<Vec<u32>>,
}

impl<'a> Waits<'a> {
    fn new(program: &'a Program) -> Waits<'a> {
        let (mut all, mut first) = (Vec::new(), Vec::new());
        let (mut before, mut position) = (Vec::new(), Vec::new());
        for (rank, list) in program.ranks.iter().enumerate() {
            first.push(all.len());
            let streams = list.iter().map(|e| e.stream + 1).max().unwrap_or(0);
            let mut last: Vec<Option<usize>> = vec![None; streams];
            for (index, e) in list.iter().enumerate() {
                let previous = last[e.stream].replace(all.len());
                position.push(previous.map_or(0, |p| position[p] + 1));
                before.push(previous);
                all.push(At { rank, index });
            }
        }
        let needs = vec![Vec::new(); 2 * all.len()];
        let signal = vec![None; all.len()];
        Waits { program, all, first, before, position, signal, needs }
    }

    fn id(&self, at: At) -> usize {
        self.first[at.rank] + at.index
    }

    fn what(&self, id: usize) -> &'a What {
        let At { rank, index } = self.all[id];
        &self.program.ranks[rank][index].what
    }

    /// The end of one event comes after the beginning of another.
    fn meets(&mut self, end: usize, beginning: usize) {
        self.needs[2 * end + 1].push(2 * beginning as u32);
    }

    /// Sends and receives between two ranks meet in order.
    fn transfers(&mut self, out: &mut Certificate) -> Result<(), Refusal> {
        // By sender and receiver: what is sent, what is expected.
        type Ends = Vec<(usize, Message)>;
        let mut pairs: IndexMap<(usize, usize), [Ends; 2]> = IndexMap::new();
        for id in 0..self.all.len() {
            let What::Exchange(all) = self.what(id) else { continue };
            let rank = self.all[id].rank;
            for t in all {
                let (pair, side) = match t {
                    Transfer::Send { to, .. } => ((rank, *to), 0),
                    Transfer::Receive { from, .. } => ((*from, rank), 1),
                };
                pairs.entry(pair).or_default()[side].push((id, *t.message()));
            }
        }
        for [sends, receives] in pairs.into_values() {
            for ((s, sent), (r, expected)) in sends.iter().zip(&receives) {
                if sent != expected {
                    let [send, receive] = [*s, *r].map(|id| self.all[id]);
                    return Err(Refusal::Mismatch { send, sent: *sent, receive, expected: *expected });
                }
                self.meets(*s, *r);
                self.meets(*r, *s);
                out.rendezvous += 1;
            }
            let met = sends.len().min(receives.len());
            if let Some((id, _)) = sends.get(met).or(receives.get(met)) {
                return Err(Refusal::Unmet { at: self.all[*id] });
            }
        }
        Ok(())
    }

    /// What is offered is taken, by whom it is meant for.
    fn offers(&mut self, out: &mut Certificate) -> Result<(), Refusal> {
        // By number: who offers it to whom, who takes it from whom.
        type Side = Option<(usize, usize, Message)>;
        let mut numbers: IndexMap<usize, [Side; 2]> = IndexMap::new();
        for id in 0..self.all.len() {
            let (number, side, peer, message) = match self.what(id) {
                What::Offer { to, message, number } => (number, 0, to, message),
                What::Take { from, message, number, .. } => (number, 1, from, message),
                _ => continue,
            };
            let sides = numbers.entry(*number).or_default();
            if sides[side].replace((id, *peer, *message)).is_some() {
                return Err(Refusal::Unmet { at: self.all[id] });
            }
        }
        for sides in numbers.values() {
            let (Some((offer, to, sent)), Some((take, from, expected))) = (sides[0], sides[1]) else {
                let left = sides[0].or(sides[1]).map_or(0, |s| s.0);
                return Err(Refusal::Unmet { at: self.all[left] });
            };
            let [send, receive] = [offer, take].map(|id| self.all[id]);
            if sent != expected || to != receive.rank || from != send.rank {
                return Err(Refusal::Mismatch { send, sent, receive, expected });
            }
            self.meets(take, offer);
            out.rendezvous += 1;
        }
        for id in 0..self.all.len() {
            if let What::Taken { number } = self.what(id) {
                let offered = numbers.get(number).and_then(|s| Some((s[0]?.0, s[1]?.0)));
                let Some((offer, take)) = offered else { return Err(Refusal::Unmet { at: self.all[id] }) };
                if self.all[offer].rank != self.all[id].rank {
                    return Err(Refusal::Unmet { at: self.all[id] });
                }
                self.needs[2 * id + 1].push(2 * take as u32 + 1);
                out.waits += 1;
            }
        }
        Ok(())
    }

    fn collectives(&mut self, out: &mut Certificate) -> Result<(), Refusal> {
        // Calls of each member, by communicator.
        let mut calls: Vec<IndexMap<usize, Vec<usize>>> = vec![IndexMap::new(); self.program.communicators.len()];
        for id in 0..self.all.len() {
            if let What::Collective { communicator, .. } = self.what(id) {
                match self.program.communicators.get(*communicator) {
                    // All copies call it here: they are there when this one is.
                    Some(Members::Copies(_)) => out.collectives += 1,
                    Some(Members::Ranks(members)) if members.contains(&self.all[id].rank) => {
                        calls[*communicator].entry(self.all[id].rank).or_default().push(id);
                    }
                    _ => return Err(Refusal::Unmet { at: self.all[id] }),
                }
            }
        }
        for (communicator, by_rank) in calls.iter().enumerate() {
            let Members::Ranks(members) = &self.program.communicators[communicator] else { continue };
            let longest = by_rank.values().max_by_key(|c| c.len()).cloned().unwrap_or_default();
            for (n, id) in longest.iter().enumerate() {
                let meeting = self.needs.len();
                self.needs.push(Vec::new());
                for rank in members {
                    let Some(call) = by_rank.get(rank).and_then(|c| c.get(n)) else {
                        return Err(Refusal::Unmet { at: self.all[*id] });
                    };
                    if self.what(*call) != self.what(*id) {
                        let [at, other] = [*call, *id].map(|id| self.all[id]);
                        return Err(Refusal::Disagree { communicator, at, other });
                    }
                    self.needs[meeting].push(2 * *call as u32);
                    self.needs[2 * *call + 1].push(meeting as u32);
                }
                out.collectives += 1;
            }
        }
        Ok(())
    }

    fn signals(&mut self, out: &mut Certificate) -> Result<(), Refusal> {
        for rank in 0..self.program.ranks.len() {
            let ids = self.first[rank]..self.first[rank] + self.program.ranks[rank].len();
            let mut signals: IndexMap<usize, usize> = IndexMap::new();
            for id in ids.clone() {
                if let What::Signal(n) = self.what(id)
                    && signals.insert(*n, id).is_some()
                {
                    return Err(Refusal::Unmet { at: self.all[id] });
                }
            }
            for id in ids {
                if let What::Wait(n) = self.what(id) {
                    let Some(signal) = signals.get(n) else { return Err(Refusal::Unmet { at: self.all[id] }) };
                    self.signal[id] = Some(*signal);
                    self.needs[2 * id + 1].push(2 * *signal as u32 + 1);
                    out.waits += 1;
                }
            }
        }
        Ok(())
    }

    /// All that a node comes after.
    fn needs_of(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let event = node / 2;
        let own = match (event < self.all.len(), node % 2) {
            (false, _) => None,
            (true, 0) => self.before[event].map(|b| 2 * b + 1),
            (true, _) => Some(node - 1),
        };
        own.into_iter().chain(self.needs[node].iter().map(|n| *n as usize))
    }

    /// Reaches all nodes, or finds a cycle. Gives what is over when an event ends: of each stream of its rank, how many events.
    fn run(&self) -> Result<Vec<Vec<u32>>, Refusal> {
        let count = self.needs.len();
        let mut left: Vec<u32> = (0..count).map(|n| self.needs_of(n).count() as u32).collect();
        let mut after: Vec<Vec<u32>> = vec![Vec::new(); count];
        for node in 0..count {
            self.needs_of(node).for_each(|n| after[n].push(node as u32));
        }
        let streams: Vec<usize> =
            self.program.ranks.iter().map(|l| l.iter().map(|e| e.stream + 1).max().unwrap_or(0)).collect();
        let mut clocks: Vec<Vec<u32>> = vec![Vec::new(); self.all.len()];
        let mut open: Vec<usize> = (0..count).filter(|n| left[*n] == 0).collect();
        let mut reached = 0;
        while let Some(node) = open.pop() {
            reached += 1;
            let event = node / 2;
            if node % 2 == 1 && event < self.all.len() {
                let At { rank, index } = self.all[event];
                let mut clock = self.begun(event, &clocks).unwrap_or_else(|| vec![0; streams[rank]]);
                if let Some(signal) = self.signal[event] {
                    clock.iter_mut().zip(&clocks[signal]).for_each(|(a, b)| *a = (*a).max(*b));
                }
                clock[self.program.ranks[rank][index].stream] = self.position[event] + 1;
                clocks[event] = clock;
            }
            for n in &after[node] {
                left[*n as usize] -= 1;
                if left[*n as usize] == 0 {
                    open.push(*n as usize);
                }
            }
        }
        if reached == count { Ok(clocks) } else { Err(self.cycle(&left)) }
    }

    /// What is over when an event begins.
    fn begun(&self, event: usize, clocks: &[Vec<u32>]) -> Option<Vec<u32>> {
        self.before[event].map(|b| clocks[b].clone())
    }

    /// Nodes that are never reached wait for others of them.
    fn cycle(&self, left: &[u32]) -> Refusal {
        let mut seen: IndexMap<usize, ()> = IndexMap::new();
        let mut node = (0..left.len()).find(|n| left[*n] > 0).unwrap_or(0);
        while seen.insert(node, ()).is_none() {
            node = self.needs_of(node).find(|n| left[*n] > 0).unwrap_or(node);
        }
        let from = seen.get_index_of(&node).unwrap_or(0);
        let mut around: Vec<At> = Vec::new();
        for (n, ()) in &seen[from..] {
            // A meeting is no event; beginning and end are one.
            if let Some(at) = self.all.get(n / 2)
                && around.last() != Some(at)
            {
                around.push(*at);
            }
        }
        if around.len() > 1 && around.first() == around.last() {
            around.pop();
        }
        Refusal::Stuck { around }
    }
}

/// Communicators with several ranks in common begin in the same order on each of them: what runs at the same time may take up what the other
/// needs to run.
fn launches(p: &Program, out: &mut Certificate) -> Result<(), Refusal> {
    let members = |c: usize| match &p.communicators[c] {
        Members::Ranks(r) => &r[..],
        Members::Copies(_) => &[],
    };
    for b in 0..p.communicators.len() {
        for a in 0..b {
            let shared: Vec<usize> = members(a).iter().copied().filter(|r| members(b).contains(r)).collect();
            if shared.len() < 2 {
                continue;
            }
            let calls = |rank: usize| -> Vec<(usize, At)> {
                let of = |(index, e): (usize, &super::program::Event)| match e.what {
                    What::Collective { communicator: c, .. } if c == a || c == b => Some((c, At { rank, index })),
                    _ => None,
                };
                p.ranks[rank].iter().enumerate().filter_map(of).collect()
            };
            let first = calls(shared[0]);
            for rank in &shared[1..] {
                let here = calls(*rank);
                if let Some((x, y)) = first.iter().zip(&here).find(|(x, y)| x.0 != y.0) {
                    return Err(Refusal::Launches { communicators: [a, b], at: y.1, other: x.1 });
                }
                out.launches += 1;
            }
        }
    }
    Ok(())
}

/// Computations find in their slots what was received last, and it stays there until they have ended.
fn slots(g: &Waits, clocks: &[Vec<u32>], out: &mut Certificate) -> Result<(), Refusal> {
    let over = |event: usize, when: usize| {
        let At { rank, index } = g.all[event];
        let stream = g.program.ranks[rank][index].stream;
        g.begun(when, clocks).is_some_and(|c| c[stream] > g.position[event])
    };
    for (rank, list) in g.program.ranks.iter().enumerate() {
        // What is in a slot: who wrote it, what, and who has read it.
        let mut held: Vec<Option<(usize, Message, Vec<usize>)>> = vec![None; g.program.slots[rank].len()];
        for (index, e) in list.iter().enumerate() {
            let at = At { rank, index };
            let id = g.id(at);
            if let What::Compute { reads, .. } = &e.what {
                for (slot, message) in reads {
                    match held.get_mut(*slot) {
                        Some(Some((writer, m, readers))) if m == message && over(*writer, id) => readers.push(id),
                        _ => return Err(Refusal::Unread { at, slot: *slot, message: *message }),
                    }
                    out.reads += 1;
                }
            }
            for (message, slot) in filled(&e.what) {
                if g.program.slots[rank].get(slot) != Some(&message.shape) {
                    return Err(Refusal::Unread { at, slot, message });
                }
                if let Some((writer, _, readers)) = held[slot].replace((id, message, Vec::new())) {
                    if let Some(user) = readers.iter().chain([&writer]).find(|r| !over(**r, id)) {
                        return Err(Refusal::Overwritten { at, user: g.all[*user], slot });
                    }
                    out.reuses += 1;
                }
            }
        }
    }
    Ok(())
}

/// What an event receives, and into which slots.
fn filled(what: &What) -> Vec<(Message, usize)> {
    match what {
        What::Exchange(all) => {
            let received = |t: &Transfer| match t {
                Transfer::Receive { message, slot, .. } => Some((*message, *slot)),
                Transfer::Send { .. } => None,
            };
            all.iter().filter_map(received).collect()
        }
        What::Take { message, slot, .. } => vec![(*message, *slot)],
        What::Compute { .. } | What::Offer { .. } | What::Taken { .. } => Vec::new(),
        What::Collective { .. } | What::Signal(_) | What::Wait(_) => Vec::new(),
    }
}
