//! The warps of a block, from barrier to barrier.

use super::barrier::{ALL, ANY, ARRIVE, Barrier, COUNT};
use super::decode::Kernel;
use super::env::Env;
use super::lanes::{Flow, LANES, Row};
use super::special::Special;
use super::warp::{State, Warp};
use crate::check::fault::{Fault, Kind, Place};

/// Warps with their rows, made once for a launch.
pub fn warps(kernel: &Kernel, threads: [u32; 3], grid: [u32; 3], dynamic: usize) -> Vec<Warp> {
    let count = threads.iter().product::<u32>();
    let number = count.div_ceil(LANES as u32);
    (0..number)
        .map(|index| {
            let mut rows = vec![Row([0; LANES]); kernel.rows as usize];
            kernel.fill(&mut rows);
            let mut warp = Warp {
                rows,
                predicates: vec![0; kernel.predicates as usize],
                exec: 0,
                active: 0,
                live: 0,
                pc: 0,
                groups: Vec::new(),
                local: vec![0; kernel.local_bytes * LANES],
                copies: Default::default(),
                carry: 0,
                index,
                state: State::Done,
                vote: (0, false),
                switch: [0; LANES],
                instructions: 0,
                lane_instructions: 0,
            };
            *warp.predicates.last_mut().expect("there is the true one") = u32::MAX;
            for (row, special) in &kernel.specials {
                let at = |l: usize| index * LANES as u32 + l as u32;
                let value = |l: usize| match special {
                    Special::Tid(0) => at(l) % threads[0],
                    Special::Tid(1) => at(l) / threads[0] % threads[1],
                    Special::Tid(_) => at(l) / (threads[0] * threads[1]),
                    Special::Ntid(d) => threads[*d],
                    Special::Nctaid(d) => grid[*d],
                    Special::Lane => l as u32,
                    Special::Warp => index,
                    Special::Warps => number,
                    Special::MaskEq => 1 << l,
                    Special::MaskLt => (1 << l) - 1,
                    Special::MaskLe => u32::MAX >> (31 - l),
                    Special::MaskGe => u32::MAX << l,
                    Special::MaskGt => !(u32::MAX >> (31 - l)),
                    Special::SharedBytes => (kernel.shared_bytes + dynamic) as u32,
                    Special::DynamicBytes => dynamic as u32,
                    Special::Ctaid(_) | Special::Zero => 0,
                };
                warp.rows[*row as usize] = Row(std::array::from_fn(value));
            }
            warp
        })
        .collect()
}

/// Runs a block to its end, or to a fault in `env`.
pub fn run(kernel: &Kernel, warps: &mut [Warp], env: &mut Env, threads: u32, backwards: bool) {
    env.shared.written.fill(0);
    if let Some(races) = &mut env.shared.races {
        races.begin();
    }
    for (i, warp) in warps.iter_mut().enumerate() {
        let lanes = (threads - i as u32 * LANES as u32).min(LANES as u32);
        warp.begin(u32::MAX >> (LANES as u32 - lanes));
        for (row, special) in &kernel.specials {
            if let Special::Ctaid(d) = special {
                warp.rows[*row as usize] = Row([env.block[*d]; LANES]);
            }
        }
    }
    let mut barriers = [Barrier::default(); 16];
    loop {
        let mut moved = false;
        for i in 0..warps.len() {
            let i = if backwards { warps.len() - 1 - i } else { i };
            let warp = &mut warps[i];
            if warp.state != State::Ready {
                continue;
            }
            moved = true;
            env.warp = warp.index;
            let flow = warp.run(&kernel.ops, env);
            if env.fault.is_some() {
                return;
            }
            if flow == Flow::Barrier {
                let State::Waiting { barrier, threads, .. } = warp.state else { continue };
                let how = kernel.ops[warp.pc as usize - 1].imm & 15;
                barriers[barrier as usize].arrive(warp, threads, how != ARRIVE);
                if how == ARRIVE {
                    warp.state = State::Ready;
                }
            }
        }
        let released = (0..16).filter(|b| release(kernel, warps, &mut barriers[*b], *b as u32, env)).count();
        if warps.iter().all(|w| w.state == State::Done) {
            return;
        }
        if !moved && released == 0 {
            env.fault = Some(stuck(kernel, warps, env));
            return;
        }
    }
}

/// Lets the warps of a barrier go on if all have come that it is for.
fn release(kernel: &Kernel, warps: &mut [Warp], barrier: &mut Barrier, number: u32, env: &mut Env) -> bool {
    if barrier.waiting == 0 {
        return false;
    }
    let living = warps.iter().filter(|w| w.state != State::Done).fold(0u32, |m, w| m | 1 << w.index);
    let full = if barrier.threads == 0 {
        living & !barrier.come == 0
    } else {
        barrier.come.count_ones() * LANES as u32 >= barrier.threads
    };
    if !full {
        return false;
    }
    if let Some(races) = &mut env.shared.races {
        races.barrier(barrier.come);
    }
    for warp in warps.iter_mut().filter(|w| barrier.waiting >> w.index & 1 != 0) {
        if !matches!(warp.state, State::Waiting { barrier, .. } if barrier == number) {
            continue;
        }
        let op = &kernel.ops[warp.pc as usize - 1];
        warp.exec = warp.live;
        match op.imm & 15 {
            COUNT => warp.put32(op.d, &[barrier.votes; LANES]),
            ALL => warp.put_predicate(op.d, if barrier.all { u32::MAX } else { 0 }),
            ANY => warp.put_predicate(op.d, if barrier.votes > 0 { u32::MAX } else { 0 }),
            _ => {}
        }
        warp.state = State::Ready;
    }
    *barrier = Barrier::default();
    true
}

/// What to say where every warp waits and none can go on.
fn stuck(kernel: &Kernel, warps: &[Warp], env: &Env) -> Fault {
    let mut lines: Vec<(u32, u32, Vec<u32>)> = Vec::new();
    for w in warps {
        let State::Waiting { barrier, line, .. } = w.state else { continue };
        match lines.iter_mut().find(|l| (l.0, l.1) == (barrier, line)) {
            Some(found) => found.2.push(w.index),
            None => lines.push((barrier, line, vec![w.index])),
        }
    }
    let ended: Vec<u32> = warps.iter().filter(|w| w.state == State::Done).map(|w| w.index).collect();
    let mut message = String::from("no warp can go on:");
    for (barrier, line, who) in &lines {
        message += &format!(" warps {who:?} wait at barrier {barrier} of line {line};");
    }
    message += &format!(" warps {ended:?} have ended");
    let (line, warp) = lines.first().map_or((1, 0), |l| (l.1, l.2[0]));
    let place = Place { kernel: kernel.name.clone(), line, block: env.block, thread: warp * LANES as u32 };
    Fault { kind: Kind::MissingBarrier, place: Some(place), message }
}
