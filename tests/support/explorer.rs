//! Every order in which the ranks of a step can go on, tried out: what certificates are compared with.

use partita::schedule::program::{Event, Members, Message, Program, Transfer, What};
use std::collections::HashSet;

/// Every state that ranks can be in which meet without buffers: whether all of them lead to the end, and no rank ever receives or finds
/// another message than it expects. For programs of one stream.
pub fn explore(p: &Program) -> bool {
    // What is offered is taken, each once.
    let number = |e: &Event, taken: bool| match e.what {
        What::Offer { number, .. } if !taken => Some(number),
        What::Take { number, .. } if taken => Some(number),
        _ => None,
    };
    let [mut offered, mut taken] =
        [false, true].map(|t| p.ranks.iter().flatten().filter_map(|e| number(e, t)).collect::<Vec<_>>());
    offered.sort_unstable();
    taken.sort_unstable();
    if offered != taken || offered.windows(2).any(|w| w[0] == w[1]) {
        return false;
    }
    // The next event of each rank and which of its transfers are done.
    type State = Vec<(usize, u32)>;
    let start: State = vec![(0, 0); p.ranks.len()];
    let mut seen: HashSet<State> = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some(state) = open.pop() {
        assert!(seen.len() < 4_000_000, "too many states");
        let mut next: Vec<State> = Vec::new();
        for (rank, (at, done)) in state.iter().enumerate() {
            let Some(event) = p.ranks[rank].get(*at) else { continue };
            match &event.what {
                What::Compute { reads, .. } => {
                    if reads.iter().any(|(slot, m)| content(p, rank, *at, *slot) != Some(m)) {
                        return false;
                    }
                    next.push(passed(&state, rank));
                }
                What::Signal(_) | What::Wait(_) => next.push(passed(&state, rank)),
                What::Offer { .. } => next.push(passed(&state, rank)),
                What::Take { from, message, number, .. } => {
                    let offers = |e: &Event| matches!(&e.what, What::Offer { number: n, .. } if n == number);
                    let Some(k) = p.ranks[*from].iter().position(offers) else { return false };
                    let What::Offer { to, message: m, .. } = &p.ranks[*from][k].what else { return false };
                    if *to != rank || m != message {
                        return false;
                    }
                    if state[*from].0 > k {
                        next.push(passed(&state, rank));
                    }
                }
                What::Taken { number } => {
                    let takes = |e: &Event| matches!(&e.what, What::Take { number: n, .. } if n == number);
                    let taken = |(r, list): (usize, &Vec<Event>)| list[..state[r].0].iter().any(takes);
                    if p.ranks.iter().enumerate().any(taken) {
                        next.push(passed(&state, rank));
                    }
                }
                What::Collective { communicator, .. } => {
                    let Members::Ranks(members) = &p.communicators[*communicator] else {
                        next.push(passed(&state, rank));
                        continue;
                    };
                    let calls = |r: &usize| p.ranks[*r].get(state[*r].0).map(|e| &e.what);
                    let meets = |w: &What| matches!(w, What::Collective { communicator: c, .. } if c == communicator);
                    if members.iter().all(|r| calls(r).is_some_and(meets)) {
                        if members.iter().any(|r| calls(r) != Some(&event.what)) {
                            return false;
                        }
                        next.push(members.iter().fold(state.clone(), |s, r| passed(&s, *r)));
                    }
                }
                What::Exchange(all) => {
                    for (k, t) in all.iter().enumerate().filter(|(k, _)| done & (1 << k) == 0) {
                        let Transfer::Send { to, message } = t else { continue };
                        // Sends to one rank go in order, and so do receives from one.
                        let earlier = |t: &Transfer| matches!(t, Transfer::Send { to: other, .. } if other == to);
                        if all[..k].iter().enumerate().any(|(j, t)| done & (1 << j) == 0 && earlier(t)) {
                            continue;
                        }
                        let (there, taken) = state[*to];
                        let Some(What::Exchange(others)) = p.ranks[*to].get(there).map(|e| &e.what) else { continue };
                        let from_here = |t: &Transfer| matches!(t, Transfer::Receive { from, .. } if *from == rank);
                        let first = others.iter().enumerate().find(|(j, t)| taken & (1 << j) == 0 && from_here(t));
                        let Some((j, received)) = first else { continue };
                        if received.message() != message {
                            return false;
                        }
                        let mut s = state.clone();
                        s[rank].1 |= 1 << k;
                        s[*to].1 |= 1 << j;
                        for r in [rank, *to] {
                            let Some(What::Exchange(all)) = p.ranks[r].get(s[r].0).map(|e| &e.what) else { continue };
                            if s[r].1.count_ones() as usize == all.len() {
                                s[r] = (s[r].0 + 1, 0);
                            }
                        }
                        next.push(s);
                    }
                }
            }
        }
        if next.is_empty() && state.iter().enumerate().any(|(r, (at, _))| *at < p.ranks[r].len()) {
            return false;
        }
        for s in next {
            if seen.insert(s.clone()) {
                open.push(s);
            }
        }
    }
    true
}

fn passed(state: &[(usize, u32)], rank: usize) -> Vec<(usize, u32)> {
    let mut s = state.to_vec();
    s[rank] = (s[rank].0 + 1, 0);
    s
}

/// What was received last into a slot.
fn content(p: &Program, rank: usize, before: usize, slot: usize) -> Option<&Message> {
    p.ranks[rank][..before].iter().rev().find_map(|e| match &e.what {
        What::Take { message, slot: s, .. } if *s == slot => Some(message),
        What::Exchange(all) => all.iter().rev().find_map(|t| match t {
            Transfer::Receive { message, slot: s, .. } if *s == slot => Some(message),
            _ => None,
        }),
        _ => None,
    })
}
