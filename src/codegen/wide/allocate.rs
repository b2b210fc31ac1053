//! Registers of the machine for virtual ones: a linear scan over whole lifetimes. What finds no register lives in a slot
//! of the frame for its whole life; that falls on those that are used least often for how long they live.

use super::ir::{Class, Function, Op, Reg};

/// Where a virtual register lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    Register(u8),
    /// A slot of its class, by number.
    Slot(u32),
    /// The table of buffers that the function is called with.
    Buffer(u32),
    /// It is a constant, or nothing uses it.
    None,
}

/// Registers that may be given away, by class.
pub struct Files {
    pub vectors: Vec<u8>,
    /// None: masks are vectors.
    pub masks: Option<Vec<u8>>,
    pub words: Vec<u8>,
}

pub struct Homes {
    pub homes: Vec<Home>,
    /// Slots of vectors (and masks that are vectors), masks, words.
    pub slots: [u32; 3],
}

#[derive(Clone, Copy)]
struct Life {
    start: u32,
    end: u32,
    /// Uses, those in loops counted more.
    weight: f32,
    /// Registers that it would best take over.
    hints: [Reg; 3],
}

const UNBORN: u32 = u32::MAX;

pub fn allocate(f: &Function, files: &Files) -> Homes {
    let lives = lives(f);
    let mut order: Vec<u32> = (0..lives.len() as u32)
        .filter(|r| lives[*r as usize].start != UNBORN && f.regs[*r as usize].constant.is_none())
        .collect();
    order.sort_by_key(|r| lives[*r as usize].start);
    let mut homes = vec![Home::None; lives.len()];
    let mut slots = [0u32; 3];
    let mut free = [files.vectors.clone(), files.masks.clone().unwrap_or_default(), files.words.clone()];
    // The last of a list is taken first.
    free.iter_mut().for_each(|list| list.reverse());
    let mut active: [Vec<u32>; 3] = [const { Vec::new() }; 3];
    let mut free_slots: [Vec<(u32, u32)>; 3] = [const { Vec::new() }; 3];
    let file = |class: Class| match class {
        Class::Vector => 0,
        Class::Mask => usize::from(files.masks.is_some()),
        Class::Word => 2,
    };
    let density = |r: u32| {
        let l = &lives[r as usize];
        l.weight / (l.end - l.start + 1) as f32
    };
    for r in order {
        let life = lives[r as usize];
        let k = file(f.regs[r as usize].class);
        active[k].retain(|a| {
            let ended = lives[*a as usize].end < life.start;
            if ended && let Home::Register(n) = homes[*a as usize] {
                free[k].push(n);
            }
            !ended
        });
        let hinted = life.hints.iter().filter_map(|h| h.some()).find_map(|h| match homes[h.index()] {
            Home::Register(n) if file(f.class(h)) == k => free[k].iter().position(|x| *x == n),
            _ => None,
        });
        let register = match hinted {
            Some(at) => Some(free[k].remove(at)),
            None => free[k].pop(),
        };
        // Without a free register the least dense life goes to the frame.
        let mut slot = |r: u32, homes: &mut Vec<Home>| {
            let life = &lives[r as usize];
            let old = free_slots[k].iter().position(|(_, end)| *end < life.start);
            let n = match old {
                Some(at) => free_slots[k].swap_remove(at).0,
                None => {
                    slots[k] += 1;
                    slots[k] - 1
                }
            };
            free_slots[k].push((n, life.end));
            homes[r as usize] = pointer(f, r).unwrap_or(Home::Slot(n));
        };
        match register {
            Some(n) => homes[r as usize] = Home::Register(n),
            None => {
                let worst = active[k].iter().copied().min_by(|a, b| density(*a).total_cmp(&density(*b)));
                match worst {
                    Some(other) if density(other) < density(r) => {
                        homes[r as usize] = homes[other as usize];
                        // Its slot must be free for all of its life, which began earlier: a new one.
                        slots[k] += 1;
                        homes[other as usize] = pointer(f, other).unwrap_or(Home::Slot(slots[k] - 1));
                        active[k].retain(|a| *a != other);
                    }
                    _ => slot(r, &mut homes),
                }
            }
        }
        if let Home::Register(_) = homes[r as usize] {
            active[k].push(r);
        }
    }
    Homes { homes, slots }
}

/// Starts of buffers need no slot: they are in memory already. (They are made before everything else.)
fn pointer(f: &Function, r: u32) -> Option<Home> {
    f.code.iter().take_while(|i| matches!(i.op, Op::Pointer(_))).find_map(|i| match i.op {
        Op::Pointer(n) if i.to.0 == r => Some(Home::Buffer(n)),
        _ => None,
    })
}

/// Positions: an instruction reads at 2n and writes at 2n + 1.
fn lives(f: &Function) -> Vec<Life> {
    let mut lives = vec![Life { start: UNBORN, end: 0, weight: 0.0, hints: [Reg::NONE; 3] }; f.regs.len()];
    let (mut loops, mut open) = (Vec::new(), Vec::new());
    let mut weight = 1.0f32;
    for (n, inst) in f.code.iter().enumerate() {
        let n = n as u32;
        match inst.op {
            Op::Begin => {
                open.push(n);
                weight *= 8.0;
            }
            Op::AgainBelow(_) => {
                loops.push((open.pop().expect("loops are closed in order"), n));
                weight /= 8.0;
            }
            _ => {}
        }
        inst.uses(&mut |r| {
            let life = &mut lives[r.index()];
            life.end = life.end.max(2 * n);
            life.weight += weight;
        });
        if let Some(to) = inst.to.some() {
            let life = &mut lives[to.index()];
            if life.start == UNBORN {
                life.start = 2 * n + 1;
                life.hints = inst.args;
            }
            life.end = life.end.max(2 * n + 1);
            life.weight += weight;
        }
    }
    // What lives when a loop begins and is needed inside of it lives until the loop's end. Inner loops close first.
    for (begin, end) in loops {
        for life in &mut lives {
            if life.start < 2 * begin && life.end > 2 * begin && life.end < 2 * end + 1 {
                life.end = 2 * end + 1;
            }
        }
    }
    lives
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;

    /// Many sums in a loop, some of which start outside of it.
    fn function() -> Function {
        let mut f = Function::new(16, &Kernel::default());
        let one = f.f32(1.0);
        let outside: Vec<Reg> = (0..6).map(|_| f.op(Op::Add, &[one, one])).collect();
        let total = f.op(Op::Add, &[one, one]);
        let counter = f.op(Op::WordConst(0), &[]);
        f.effect(Op::Begin, &[]);
        let inside: Vec<Reg> = outside.iter().map(|x| f.op(Op::Mul, &[*x, total])).collect();
        for x in inside {
            f.set(total, Op::Add, &[total, x]);
        }
        f.set(counter, Op::AddConst(1), &[counter]);
        f.effect(Op::AgainBelow(Some(9)), &[counter]);
        f
    }

    #[test]
    fn no_home_is_shared_by_two_that_live_at_once() {
        let f = function();
        let lives = lives(&f);
        for count in 1..16u8 {
            let files = Files { vectors: (0..count).collect(), masks: Some(vec![1]), words: vec![3] };
            let Homes { homes, slots } = allocate(&f, &files);
            for a in 0..homes.len() {
                for b in 0..a {
                    let apart = lives[a].end < lives[b].start || lives[b].end < lives[a].start;
                    let shared = homes[a] == homes[b] && f.regs[a].class == f.regs[b].class && homes[a] != Home::None;
                    assert!(apart || !shared, "{a} and {b} in {:?} with {count} registers", homes[a]);
                }
            }
            assert!((slots[0] == 0) == (count >= 13), "{count} registers and {} slots", slots[0]);
        }
    }

    #[test]
    fn what_a_loop_uses_often_stays_in_registers() {
        let f = function();
        let files = Files { vectors: vec![0, 1, 2, 3], masks: None, words: vec![3] };
        let homes = allocate(&f, &files);
        let total = f.code.iter().rev().find(|i| i.op == Op::Add).expect("a sum").to;
        assert!(matches!(homes.homes[total.index()], Home::Register(_)));
    }
}
