//! From a table to the ranks' events.
//!
//! All computations and transfers are put into one order, in which each transfer comes after what makes its message and before
//! what needs it; a rank's list is its part of that order. So the order itself is a run of all ranks in which every rendezvous is
//! met: whatever the table, nothing waits for itself. The order follows the simulated times, with a transfer right before
//! what needs it. Transfers of a rank without a computation between them begin together: so crossing sends of neighbours do, and
//! chains of them are not passed on one by one.

use super::{Event, Message, Program, Transfer, What};
use crate::schedule::{Action, Costs, Index, Place, Problem, Table, simulate};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The shape's number and the bytes of what crosses a boundary; its gradient's are the same.
pub type Sizes = [(u32, u64)];

/// What one rank makes and another one needs.
#[derive(Clone, Debug)]
pub struct Crossing {
    /// What makes it.
    pub from: Place,
    /// The first on its rank that needs it.
    pub to: Place,
    pub message: Message,
}

/// The step of a table that can be run, in which each stage needs the results of the one before and the gradients of the one
/// behind. `sizes`: by boundary; the costs decide where transfers go.
pub fn build(table: &Table, costs: &Costs, sizes: &Sizes) -> Result<Program, Problem> {
    lay_out(table, costs, &crossings(table, sizes))
}

/// The step of a table that can be run, whose ranks send each other all of this. What crosses must be made before it is needed
/// in some run of the table: it goes from a stage to later ones, and back with gradients.
pub fn lay_out(table: &Table, costs: &Costs, transfers: &[Crossing]) -> Result<Program, Problem> {
    let times = simulate(table, costs)?.times;
    let start = |p: Place| times[p.rank][p.index][0];
    let mut lists: Vec<Vec<Item>> = vec![Vec::new(); table.ranks.len()];
    let order = Order::new(table, transfers).run(|node| match node {
        Node::Compute(p) => (start(p), 1, p.rank),
        Node::Transfer(t) => (start(transfers[t].to), 0, t),
    });
    if order.len() < table.len() + transfers.len() {
        return Err(Problem::impossible("what crosses is needed before it is made", "send what earlier work makes"));
    }
    for node in order {
        match node {
            Node::Compute(p) => lists[p.rank].push(Item::Compute(p.index)),
            Node::Transfer(t) => {
                lists[transfers[t].from.rank].push(Item::Send(t));
                lists[transfers[t].to.rank].push(Item::Receive(t));
            }
        }
    }
    let mut out = Program::default();
    for (rank, list) in lists.iter().enumerate() {
        let (events, slots) = events(table, rank, list, transfers);
        out.ranks.push(events);
        out.slots.push(slots);
    }
    Ok(out)
}

/// What neighbouring stages on different ranks need of each other.
pub fn crossings(table: &Table, sizes: &Sizes) -> Vec<Crossing> {
    let index = Index::of(table);
    let mut out = Vec::new();
    for (to, a) in table.places() {
        for from in index.needs(table, a).into_iter().flatten().filter(|p| p.rank != to.rank) {
            let maker = table.action(from).stage;
            let (shape, bytes) = sizes.get(maker.min(a.stage)).copied().unwrap_or_default();
            let message = Message { from: maker, to: a.stage, microbatch: a.microbatch, value: 0, shape, bytes };
            out.push(Crossing { from, to, message });
        }
    }
    out
}

#[derive(Clone, Copy)]
enum Node {
    Compute(Place),
    Transfer(usize),
}

/// Computations and transfers in one order.
struct Order<'a> {
    table: &'a Table,
    /// Number of a rank's first computation among all of them.
    first: Vec<usize>,
    /// The transfers that a computation waits for.
    incoming: Vec<Vec<usize>>,
    /// Transfers of what a computation makes.
    outgoing: Vec<Vec<usize>>,
    /// The rank that a transfer goes to.
    receiver: Vec<usize>,
}

impl<'a> Order<'a> {
    fn new(table: &'a Table, transfers: &[Crossing]) -> Order<'a> {
        let mut first = Vec::with_capacity(table.ranks.len());
        let mut count = 0;
        for list in &table.ranks {
            first.push(count);
            count += list.len();
        }
        let (mut incoming, mut outgoing) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for (t, Crossing { from, to, .. }) in transfers.iter().enumerate() {
            incoming[first[to.rank] + to.index].push(t);
            outgoing[first[from.rank] + from.index].push(t);
        }
        let receiver = transfers.iter().map(|t| t.to.rank).collect();
        Order { table, first, incoming, outgoing, receiver }
    }

    /// Takes what is ready by its key: a time that is not negative, and whatever tells equals apart.
    fn run(&self, key: impl Fn(Node) -> (f64, u8, usize)) -> Vec<Node> {
        let mut heap: BinaryHeap<Reverse<(u64, u8, usize, usize)>> = BinaryHeap::new();
        let mut done = vec![false; self.receiver.len()];
        let mut next = vec![0; self.table.ranks.len()];
        // What is ready and in the heap, by the last two numbers of a key.
        let push = |heap: &mut BinaryHeap<_>, node: Node| {
            let (time, kind, id) = key(node);
            let index = if let Node::Compute(p) = node { p.index } else { 0 };
            heap.push(Reverse((time.to_bits(), kind, id, index)));
        };
        let ready = |next: &[usize], done: &[bool], rank: usize| {
            let index = next[rank];
            let there = index < self.table.ranks[rank].len();
            let waits = there && self.incoming[self.first[rank] + index].iter().any(|t| !done[*t]);
            (there && !waits).then_some(Place { rank, index })
        };
        for rank in 0..next.len() {
            if let Some(p) = ready(&next, &done, rank) {
                push(&mut heap, Node::Compute(p));
            }
        }
        let mut out = Vec::new();
        while let Some(Reverse((_, kind, id, index))) = heap.pop() {
            let rank = if kind == 0 {
                done[id] = true;
                out.push(Node::Transfer(id));
                let rank = self.receiver[id];
                // Whether this is what the rank stands before.
                let stands = next[rank] < self.table.ranks[rank].len();
                if !stands || !self.incoming[self.first[rank] + next[rank]].contains(&id) {
                    continue;
                }
                rank
            } else {
                out.push(Node::Compute(Place { rank: id, index }));
                next[id] += 1;
                for t in &self.outgoing[self.first[id] + index] {
                    push(&mut heap, Node::Transfer(*t));
                }
                id
            };
            if let Some(p) = ready(&next, &done, rank) {
                push(&mut heap, Node::Compute(p));
            }
        }
        out
    }
}

#[derive(Clone, Copy)]
enum Item {
    Compute(usize),
    Send(usize),
    Receive(usize),
}

/// A rank's events and the shapes of its slots, which are used again once they are read.
fn events(table: &Table, rank: usize, list: &[Item], transfers: &[Crossing]) -> (Vec<Event>, Vec<u32>) {
    let mut out: Vec<Event> = Vec::new();
    let mut slots: Vec<u32> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    // What has been received and not been read: index of the reader, slot, message.
    let mut held: Vec<(usize, usize, Message)> = Vec::new();
    let push = |out: &mut Vec<Event>, t: Transfer| match out.last_mut().map(|e| &mut e.what) {
        Some(What::Exchange(all)) => all.push(t),
        _ => out.push(Event { stream: 0, what: What::Exchange(vec![t]) }),
    };
    for item in list {
        match *item {
            Item::Compute(index) => {
                let action: Action = table.ranks[rank][index];
                let (read, rest): (Vec<_>, Vec<_>) = held.into_iter().partition(|h| h.0 == index);
                held = rest;
                free.extend(read.iter().map(|r| r.1));
                let reads = read.into_iter().map(|(_, slot, message)| (slot, message)).collect();
                out.push(Event { stream: 0, what: What::Compute { action, reads } });
            }
            Item::Send(t) => {
                let Crossing { to, message, .. } = &transfers[t];
                push(&mut out, Transfer::Send { to: to.rank, message: *message });
            }
            Item::Receive(t) => {
                let Crossing { from, to, message } = &transfers[t];
                let slot = match free.iter().position(|s| slots[*s] == message.shape) {
                    Some(k) => free.swap_remove(k),
                    None => {
                        slots.push(message.shape);
                        slots.len() - 1
                    }
                };
                held.push((to.index, slot, *message));
                push(&mut out, Transfer::Receive { from: from.rank, message: *message, slot });
            }
        }
    }
    (out, slots)
}
