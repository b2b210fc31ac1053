//! The certificate of a pipeline's step agrees with trying out every order in which ranks can go on.

#[path = "support/explorer.rs"]
mod explorer;

use explorer::explore;
use partita::schedule::certify::{At, Certificate, Refusal, certify};
use partita::schedule::check::check;
use partita::schedule::program::{
    Crossing, Event, Members, Message, Program, Transfer, What, build, crossings, lay_out,
};
use partita::schedule::{Action, Costs, Fault, Index, Schedule, Table, Work};
use std::collections::HashSet;

fn built_in() -> Vec<Schedule> {
    let mut all = vec![Schedule::GPipe, Schedule::OneFOneB, Schedule::Interleaved(2), Schedule::LoopedBfs(2)];
    all.extend([Schedule::ZbH1, Schedule::ZbH2, Schedule::ZbV, Schedule::VHalf, Schedule::VMin]);
    all.extend([Schedule::DualPipe, Schedule::DualPipeV]);
    all
}

fn program(s: &Schedule, p: usize, m: usize) -> Option<Program> {
    let costs = Costs::unit(s.stages(p, 0, None)?);
    let table = s.table(p, m, &costs, &|_| Err(String::new())).ok()?;
    let sizes: Vec<(u32, u64)> = (1..table.stages).map(|_| (0, 64)).collect();
    Some(build(&table, &costs, &sizes).expect("a table that can be run"))
}

fn certified(p: &Program) -> Certificate {
    certify(p).unwrap_or_else(|e| panic!("{}", e.message(p)))
}

/// G2: rendezvous that block, on up to 8 ranks with 4 chunks and 16 microbatches; what crosses in one place is grouped.
#[test]
fn every_schedule_is_certified() {
    let mut schedules = built_in();
    for v in 1..=4 {
        schedules.extend([Schedule::Interleaved(v), Schedule::LoopedBfs(v)]);
    }
    let mut count = 0;
    for s in &schedules {
        for p in 1..=8 {
            for m in 1..=16 {
                let Some(program) = program(s, p, m) else { continue };
                let c = certified(&program);
                let sends: usize = program.ranks.iter().flatten().map(|e| sends(&e.what)).sum();
                assert_eq!((c.rendezvous, c.reads), (sends, sends), "{s} {p} {m}");
                if let Schedule::Interleaved(2..) = s {
                    let grouped = program.ranks.iter().flatten().any(|e| crosses(&e.what));
                    assert!(grouped || p == 1 || m < p, "{s} {p} {m}");
                }
                count += 1;
            }
        }
    }
    assert!(count > 1500, "{count}");
}

/// Whether a rank sends and receives at once.
fn crosses(w: &What) -> bool {
    match w {
        What::Exchange(all) => {
            let sends = all.iter().filter(|t| matches!(t, Transfer::Send { .. })).count();
            sends > 0 && sends < all.len()
        }
        _ => false,
    }
}

fn sends(w: &What) -> usize {
    match w {
        What::Exchange(all) => all.iter().filter(|t| matches!(t, Transfer::Send { .. })).count(),
        _ => 0,
    }
}

#[test]
fn every_order_of_good_programs_ends() {
    for s in built_in() {
        for p in 1..=4 {
            for m in 1..=8 {
                if let Some(program) = program(&s, p, m) {
                    assert!(explore(&program), "{s} {p} {m}");
                    certified(&program);
                }
            }
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n.max(1)
    }
}

/// One mistake somewhere.
fn corrupt(p: &mut Program, random: &mut Random) {
    let rank = random.below(p.ranks.len());
    let list = &mut p.ranks[rank];
    let at = random.below(list.len());
    if list.is_empty() {
        return;
    }
    match random.below(10) {
        0 if at + 1 < list.len() => list.swap(at, at + 1),
        1 => {
            let other = random.below(list.len());
            list.swap(at, other);
        }
        2 => {
            list.remove(at);
        }
        3 => {
            let event = list[at].clone();
            list.insert(random.below(list.len() + 1), event);
        }
        // Transfers one after the other: in their order, or the other way round.
        4 | 5 => {
            if let What::Exchange(mut all) = list[at].what.clone() {
                if random.below(2) == 0 {
                    all.reverse();
                }
                let single = |t| Event { stream: 0, what: What::Exchange(vec![t]) };
                list.splice(at..=at, all.into_iter().map(single));
            }
        }
        6 => {
            if let What::Exchange(all) = &mut list[at].what {
                let (a, b) = (random.below(all.len()), random.below(all.len()));
                all.swap(a, b);
            }
        }
        // One transfer later.
        7 => {
            if let What::Exchange(all) = &mut list[at].what
                && all.len() > 1
            {
                let t = all.remove(random.below(all.len()));
                let later = (at + 1 + random.below(4)).min(list.len());
                list.insert(later, Event { stream: 0, what: What::Exchange(vec![t]) });
            }
        }
        // All sends before the receives that go with them.
        8 => {
            let each = std::mem::take(list).into_iter().flat_map(|e| match e.what {
                What::Exchange(mut all) => {
                    all.sort_by_key(|t| matches!(t, Transfer::Receive { .. }));
                    all.into_iter().map(|t| Event { stream: 0, what: What::Exchange(vec![t]) }).collect()
                }
                _ => vec![e],
            });
            *list = each.collect();
        }
        _ => {
            if let What::Exchange(all) = &mut list[at].what {
                let k = random.below(all.len());
                if all.len() > 1 {
                    all.remove(k);
                }
            }
        }
    }
}

#[test]
fn corrupted_programs_are_judged_alike() {
    let schedules = built_in();
    let mut random = Random(7);
    let (mut good, mut bad, mut stuck) = (0, 0, 0);
    while good + bad < 10_000 {
        let s = &schedules[random.below(schedules.len())];
        let (p, m) = (2 + random.below(3), 1 + random.below(8));
        let Some(mut program) = program(s, p, m) else { continue };
        for _ in 0..=random.below(3) {
            corrupt(&mut program, &mut random);
        }
        let judged = certify(&program);
        assert_eq!(judged.is_ok(), explore(&program), "{s} {p} {m}: {judged:?}");
        match judged {
            Ok(_) => good += 1,
            Err(e) => {
                bad += 1;
                stuck += usize::from(matches!(e, Refusal::Stuck { .. }));
            }
        }
    }
    println!("{good} good, {bad} bad, of which {stuck} wait in a circle");
    assert!(good > 500 && bad > 2000 && stuck > 100, "{good} {bad} {stuck}");
}

/// Whether ranks that compute in order, and keep all that they are sent, do all work once: tried out.
fn runs(t: &Table) -> bool {
    let mut done: HashSet<(usize, Action)> = HashSet::new();
    let mut next = vec![0; t.ranks.len()];
    let has = |done: &HashSet<(usize, Action)>, rank: Option<usize>, works: &[Work], s: usize, k: usize| {
        let by = |r: usize| works.iter().any(|w| done.contains(&(r, Action::new(*w, s, k))));
        rank.map_or((0..t.ranks.len()).any(by), by)
    };
    loop {
        let mut moved = false;
        for (rank, list) in t.ranks.iter().enumerate() {
            let Some(a) = list.get(next[rank]).copied() else { continue };
            let (s, k) = (a.stage, a.microbatch);
            let here = Some(rank);
            let ready = match a.op {
                Work::F => s == 0 || has(&done, None, &[Work::F], s - 1, k),
                Work::I | Work::B => {
                    has(&done, here, &[Work::F], s, k)
                        && (s + 1 == t.stages || has(&done, None, &[Work::I, Work::B], s + 1, k))
                }
                Work::W => has(&done, here, &[Work::I], s, k),
            };
            if ready {
                let again = match a.op {
                    Work::F => has(&done, None, &[Work::F], s, k),
                    Work::I | Work::B => has(&done, None, &[Work::I, Work::B], s, k),
                    Work::W => has(&done, None, &[Work::W], s, k),
                };
                if again {
                    return false;
                }
                done.insert((rank, a));
                next[rank] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let all = (0..t.stages).all(|s| {
        (0..t.microbatches).all(|k| {
            let (f, b) = (has(&done, None, &[Work::F], s, k), has(&done, None, &[Work::B], s, k));
            f && (b || has(&done, None, &[Work::W], s, k))
        })
    });
    all && next.iter().zip(&t.ranks).all(|(n, list)| *n == list.len())
}

#[test]
fn corrupted_tables_are_judged_alike() {
    let schedules = built_in();
    let mut random = Random(11);
    let (mut good, mut circles) = (0, 0);
    for _ in 0..10_000 {
        let s = &schedules[random.below(schedules.len())];
        let (p, m) = (2 + 2 * random.below(2), 1 + random.below(8));
        let costs = Costs::unit(s.stages(p, 0, None).expect("a schedule of its own"));
        let mut t = s.table(p, m, &costs, &|_| Err(String::new())).expect("a table");
        for _ in 0..=random.below(3) {
            let list = &mut t.ranks[random.below(p)];
            let (a, b) = (random.below(list.len()), random.below(list.len()));
            match random.below(8) {
                0 => drop(list.remove(a)),
                1 => list.insert(b, list[a]),
                2 | 3 => list.swap(a, b),
                _ if a + 1 < list.len() => list.swap(a, a + 1),
                _ => {}
            }
        }
        let found = check(&t);
        assert_eq!(found.is_empty(), runs(&t), "{s} {p} {m}: {found:?}");
        if found.is_empty() {
            good += 1;
            let sizes: Vec<(u32, u64)> = (1..t.stages).map(|s| (s as u32, 64)).collect();
            certified(&build(&t, &costs, &sizes).expect("a table that can be run"));
        }
        circles += usize::from(matches!(found.first().map(|f| &f.fault), Some(Fault::Cycle { .. })));
    }
    println!("{good} good, {circles} circles");
    assert!(good > 1000 && circles > 200, "{good} {circles}");
}

/// The same step with offers in the place of sends: what is received is taken, and some calls later the sender waits until it was.
fn offered(p: &Program, later: usize) -> Program {
    let mut out = p.clone();
    // Messages have numbers by what they are.
    let mut numbers: Vec<Message> = Vec::new();
    let mut number = |m: &Message| {
        numbers.iter().position(|n| n == m).unwrap_or_else(|| {
            numbers.push(*m);
            numbers.len() - 1
        })
    };
    for list in &mut out.ranks {
        let mut events: Vec<Event> = Vec::new();
        let mut open: Vec<(usize, usize)> = Vec::new();
        for e in std::mem::take(list) {
            let What::Exchange(all) = &e.what else {
                let now = events.len();
                for (k, _) in open.extract_if(.., |(_, at)| *at + later < now) {
                    events.push(event(0, What::Taken { number: k }));
                }
                events.push(e);
                continue;
            };
            // A rank offers before it waits.
            for t in all {
                if let Transfer::Send { to, message } = *t {
                    open.push((number(&message), events.len()));
                    events.push(event(0, What::Offer { to, message, number: number(&message) }));
                }
            }
            for t in all {
                if let Transfer::Receive { from, message, slot } = *t {
                    events.push(event(0, What::Take { from, message, number: number(&message), slot }));
                }
            }
        }
        events.extend(open.iter().map(|(k, _)| event(0, What::Taken { number: *k })));
        *list = events;
    }
    out
}

#[test]
fn offers_are_judged_alike() {
    let schedules = built_in();
    let mut random = Random(3);
    let (mut good, mut bad, mut stuck) = (0, 0, 0);
    for _ in 0..2_000 {
        let s = &schedules[random.below(schedules.len())];
        let (p, m) = (2 + random.below(2), 1 + random.below(5));
        let Some(program) = program(s, p, m) else { continue };
        let mut program = offered(&program, random.below(6));
        certified(&program);
        for _ in 0..=random.below(2) {
            let list = &mut program.ranks[random.below(p)];
            let (a, b) = (random.below(list.len()), random.below(list.len()));
            match random.below(8) {
                0 => drop(list.remove(a)),
                1 => {
                    let e = list[a].clone();
                    list.insert(b, e);
                }
                2 => list.swap(a, b),
                3 => {
                    let e = list.remove(a);
                    list.insert(b.min(list.len()), e);
                }
                _ if a + 1 < list.len() => list.swap(a, a + 1),
                _ => {}
            }
        }
        let judged = certify(&program);
        assert_eq!(judged.is_ok(), explore(&program), "{s} {p} {m}: {judged:?}");
        match judged {
            Ok(_) => good += 1,
            Err(e) => {
                bad += 1;
                stuck += usize::from(matches!(e, Refusal::Stuck { .. }));
            }
        }
    }
    println!("{good} good, {bad} bad, of which {stuck} wait in a circle");
    assert!(good > 300 && bad > 300 && stuck > 100, "{good} {bad} {stuck}");
}

fn event(stream: usize, what: What) -> Event {
    Event { stream, what }
}

fn message(microbatch: usize) -> Message {
    Message { from: 0, to: 1, microbatch, value: 0, shape: 0, bytes: 8 }
}

fn send(to: usize, k: usize) -> Event {
    event(0, What::Exchange(vec![Transfer::Send { to, message: message(k) }]))
}

fn receive(stream: usize, from: usize, k: usize, slot: usize) -> Event {
    event(stream, What::Exchange(vec![Transfer::Receive { from, message: message(k), slot }]))
}

fn compute(k: usize, slot: usize) -> Event {
    let action = Action::new(Work::F, 1, k);
    event(0, What::Compute { action, reads: vec![(slot, message(k))] })
}

fn two(a: Vec<Event>, b: Vec<Event>) -> Program {
    Program { ranks: vec![a, b], slots: vec![vec![0; 2]; 2], communicators: Vec::new() }
}

#[test]
fn crossing_sends_wait_for_each_other() {
    let both = |first: Event, second: Event| vec![first, second];
    let p = two(both(send(1, 0), receive(0, 1, 0, 0)), both(send(0, 0), receive(0, 0, 0, 0)));
    let at = |rank, index| At { rank, index };
    let Err(Refusal::Stuck { mut around }) = certify(&p) else { panic!("is stuck") };
    around.sort();
    assert_eq!(around, [at(0, 0), at(0, 1), at(1, 0), at(1, 1)]);
    let p = two(both(send(1, 0), receive(0, 1, 0, 0)), both(receive(0, 0, 0, 0), send(0, 0)));
    assert_eq!(certified(&p).rendezvous, 2);
}

#[test]
fn messages_must_be_the_same() {
    let p = two(vec![send(1, 0)], vec![receive(0, 0, 1, 0)]);
    assert!(matches!(certify(&p), Err(Refusal::Mismatch { .. })));
    let p = two(vec![send(1, 0), send(1, 1)], vec![receive(0, 0, 0, 0)]);
    assert_eq!(certify(&p), Err(Refusal::Unmet { at: At { rank: 0, index: 1 } }));
}

/// Receives of another stream than that of the computations.
#[test]
fn streams_need_signals() {
    let sends = || vec![send(1, 0), send(1, 1)];
    let signal = |stream, n| event(stream, What::Signal(n));
    let wait = |stream, n| event(stream, What::Wait(n));
    // The computation waits for the receive, and the next receive into the slot for the computation.
    let whole = vec![
        receive(1, 0, 0, 0),
        signal(1, 0),
        wait(0, 0),
        compute(0, 0),
        signal(0, 1),
        wait(1, 1),
        receive(1, 0, 1, 0),
        signal(1, 2),
        wait(0, 2),
        compute(1, 0),
    ];
    let c = certified(&two(sends(), whole.clone()));
    assert_eq!((c.waits, c.reads, c.reuses), (3, 2, 1));
    let without = |k: usize| {
        let mut list = whole.clone();
        list.remove(k);
        certify(&two(sends(), list))
    };
    assert!(matches!(without(2), Err(Refusal::Unread { slot: 0, .. })));
    assert!(matches!(without(5), Err(Refusal::Overwritten { slot: 0, .. })));
    assert!(matches!(without(1), Err(Refusal::Unmet { .. })));
    // A stream that waits for what comes behind it on another stream, which waits for it.
    let circle = vec![wait(0, 0), signal(0, 1), wait(1, 1), signal(1, 0)];
    assert!(matches!(certify(&two(Vec::new(), circle)), Err(Refusal::Stuck { .. })));
}

#[test]
fn collectives_go_in_one_order() {
    let call = |stream, communicator, kind| event(stream, What::Collective { communicator, kind, bytes: 8 });
    let with = |a: Vec<Event>, b: Vec<Event>| {
        let mut p = two(a, b);
        p.communicators = vec![Members::Ranks(vec![0, 1]), Members::Ranks(vec![0, 1]), Members::Copies(64)];
        certify(&p)
    };
    let c = with(vec![call(0, 0, 1), call(0, 2, 1)], vec![call(0, 0, 1)]).expect("a good program");
    assert_eq!(c.collectives, 2);
    assert!(matches!(with(vec![call(0, 0, 1)], vec![call(0, 0, 2)]), Err(Refusal::Disagree { .. })));
    assert!(matches!(with(vec![call(0, 0, 1)], Vec::new()), Err(Refusal::Unmet { .. })));
    // In one stream each waits for the other; in two streams what is begun first may leave no room for the other.
    let crossed = |s| with(vec![call(0, 0, 1), call(s, 1, 1)], vec![call(s, 1, 1), call(0, 0, 1)]);
    assert!(matches!(crossed(0), Err(Refusal::Launches { .. })));
    assert!(matches!(crossed(1), Err(Refusal::Launches { communicators: [0, 1], .. })));
    // A collective that waits for a message which is sent after it.
    let late = with(vec![call(0, 0, 1), send(1, 0)], vec![receive(0, 0, 0, 0), call(0, 0, 1)]);
    assert!(matches!(late, Err(Refusal::Stuck { .. })));
}

/// Values that go on to several later stages, beside what goes to the next one, and gradients of them.
#[test]
fn whatever_crosses_is_laid_out() {
    for s in built_in().into_iter().filter(|s| *s != Schedule::DualPipe) {
        let costs = Costs::unit(s.stages(4, 0, None).expect("a schedule of its own"));
        let t = s.table(4, 6, &costs, &|_| Err(String::new())).expect("a table");
        let index = Index::of(&t);
        let mut all = crossings(&t, &vec![(0, 64); t.stages]);
        let neighbours = all.len();
        for k in 0..t.microbatches {
            for (from, to) in [(0, 2), (0, t.stages - 1), (1, t.stages - 1)] {
                let forward = [from, to].map(|s| index.forward(s, k).expect("forward work"));
                let backward = [to, from].map(|s| index.input(s, k).expect("backward work"));
                for ([a, b], [x, y]) in [(forward, [from, to]), (backward, [to, from])] {
                    if a.rank != b.rank {
                        let message = Message { from: x, to: y, microbatch: k, value: 7, shape: 1, bytes: 8 };
                        all.push(Crossing { from: a, to: b, message });
                    }
                }
            }
        }
        let program = lay_out(&t, &costs, &all).expect("a table that can be run");
        assert!(all.len() > neighbours + 20);
        assert_eq!(certified(&program).reads, all.len(), "{s}");
        assert!(t.stages > 4 || explore(&program), "{s}");
    }
}

/// A step of 16 ranks with 6 stages each and 96 microbatches.
#[test]
fn large_steps_are_certified_at_once() {
    let begin = std::time::Instant::now();
    let p = program(&Schedule::Interleaved(6), 16, 96).expect("a schedule");
    let c = certified(&p);
    assert_eq!(c.rendezvous, 2 * 95 * 96);
    println!("{} events, {} obligations in {:?}", p.events(), c.obligations(), begin.elapsed());
}
