//! Gives registers rows of a warp's register file. PTX names a new register for almost every value; registers whose
//! lifetimes do not meet share a row, which keeps the file of a warp in the caches.

use super::link::Linked;
use super::tree::{Instr, Operand, Reg, Ty};

/// Row of each register (rows hold 32 lanes of 32 bits; 64-bit registers take two), and the rows in use. Predicates are
/// numbered apart, since each is one mask.
pub struct Rows {
    pub row: Vec<u32>,
    pub rows: u32,
    pub predicates: u32,
}

/// Instructions whose first operand is no destination.
fn writes_nothing(instr: &Instr) -> bool {
    let op = instr.parts[0].as_str();
    matches!(
        op,
        "st" | "red"
            | "bra"
            | "brx"
            | "exit"
            | "ret"
            | "membar"
            | "fence"
            | "trap"
            | "brkpt"
            | "nanosleep"
            | "prefetch"
            | "prefetchu"
            | "cp"
            | "stmatrix"
            | "discard"
            | "applypriority"
            | "griddepcontrol"
            | "pmevent"
    ) || matches!(op, "bar" | "barrier") && !instr.has("red")
}

fn registers(operand: &Operand, found: &mut impl FnMut(Reg)) {
    match operand {
        Operand::Reg(r) | Operand::Not(r) => found(*r),
        Operand::Pair(a, b) => {
            registers(a, found);
            registers(b, found);
        }
        Operand::Mem { base, .. } => registers(base, found),
        Operand::Vector(list) | Operand::List(list) => list.iter().for_each(|o| registers(o, found)),
        _ => {}
    }
}

/// Calls `found(register, is it written)` for what an instruction touches.
fn touched(instr: &Instr, mut found: impl FnMut(Reg, bool)) {
    let silent = writes_nothing(instr);
    for (i, operand) in instr.operands.iter().enumerate() {
        registers(operand, &mut |r| found(r, i == 0 && !silent));
    }
    if let Some((r, _)) = instr.guard {
        found(r, false);
    }
}

struct Bits(Vec<u64>);

impl Bits {
    fn has(&self, i: u32) -> bool {
        self.0[i as usize / 64] >> (i % 64) & 1 != 0
    }

    fn set(&mut self, i: u32) {
        self.0[i as usize / 64] |= 1 << (i % 64);
    }

    fn clear(&mut self, i: u32) {
        self.0[i as usize / 64] &= !(1 << (i % 64));
    }
}

pub fn allocate(kernel: &Linked) -> Rows {
    let (steps, count) = (&kernel.steps, kernel.regs.len());
    let words = count.div_ceil(64);
    // Blocks begin at targets and after branches.
    let mut begins = vec![false; steps.len() + 1];
    begins[0] = true;
    for (i, step) in steps.iter().enumerate() {
        step.targets.iter().for_each(|t| begins[*t as usize] = true);
        if !step.targets.is_empty() {
            begins[i + 1] = true;
        }
    }
    let starts: Vec<usize> = (0..steps.len()).filter(|i| begins[*i]).collect();
    let mut block_of = vec![0usize; steps.len()];
    let mut live_in: Vec<Bits> = starts.iter().map(|_| Bits(vec![0; words])).collect();
    let end_of = |b: usize| starts.get(b + 1).copied().unwrap_or(steps.len());
    for b in 0..starts.len() {
        block_of[starts[b]..end_of(b)].fill(b);
    }
    let successors = |b: usize| -> Vec<usize> {
        let last = &steps[end_of(b) - 1];
        let mut next: Vec<usize> = last.targets.iter().map(|t| block_of[*t as usize]).collect();
        let op = last.instr.parts[0].as_str();
        let leaves = last.instr.guard.is_none() && matches!(op, "bra" | "brx" | "exit" | "ret");
        if !leaves && end_of(b) < steps.len() {
            next.push(b + 1);
        }
        next
    };
    let live_out = |b: usize, live_in: &[Bits]| {
        let mut out = Bits(vec![0; words]);
        for s in successors(b) {
            out.0.iter_mut().zip(&live_in[s].0).for_each(|(o, i)| *o |= i);
        }
        out
    };
    let mut changed = true;
    while changed {
        changed = false;
        for b in (0..starts.len()).rev() {
            let mut live = live_out(b, &live_in);
            for step in steps[starts[b]..end_of(b)].iter().rev() {
                back(&step.instr, &mut live);
            }
            if live.0 != live_in[b].0 {
                live_in[b] = live;
                changed = true;
            }
        }
    }
    // The interval of a register: from the first step at which it lives to the last.
    let mut span = vec![(u32::MAX, 0u32); count];
    let mut widen = |r: u32, at: u32| {
        let s = &mut span[r as usize];
        *s = (s.0.min(at), s.1.max(at));
    };
    for b in 0..starts.len() {
        let out = live_out(b, &live_in);
        for r in 0..count as u32 {
            if live_in[b].has(r) {
                widen(r, starts[b] as u32);
            }
            if out.has(r) {
                widen(r, end_of(b) as u32);
            }
        }
        for (i, step) in steps.iter().enumerate().take(end_of(b)).skip(starts[b]) {
            touched(&step.instr, |r, _| widen(r, i as u32));
        }
    }
    scan(&kernel.regs, &span)
}

/// What lives before an instruction, from what lives after it.
fn back(instr: &Instr, live: &mut Bits) {
    touched(instr, |r, written| {
        if written && instr.guard.is_none() {
            live.clear(r);
        }
    });
    touched(instr, |r, written| {
        if !written {
            live.set(r);
        }
    });
}

/// Linear scan: registers in the order of their begin take a row that is free.
fn scan(types: &[Ty], span: &[(u32, u32)]) -> Rows {
    let mut order: Vec<u32> = (0..types.len() as u32).filter(|r| span[*r as usize].0 != u32::MAX).collect();
    order.sort_by_key(|r| span[*r as usize].0);
    let mut rows = Rows { row: vec![0; types.len()], rows: 0, predicates: 0 };
    let mut active: Vec<Reg> = Vec::new();
    let (mut free, mut free_wide): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    for r in order {
        let (begin, _) = span[r as usize];
        active.retain(|a| {
            let ended = span[*a as usize].1 < begin;
            if ended {
                let list = if types[*a as usize].bytes() == 8 { &mut free_wide } else { &mut free };
                list.push(rows.row[*a as usize]);
            }
            !ended
        });
        let ty = types[r as usize];
        if ty == Ty::Pred {
            rows.row[r as usize] = rows.predicates;
            rows.predicates += 1;
            continue;
        }
        let wide = ty.bytes() == 8;
        let list = if wide { &mut free_wide } else { &mut free };
        rows.row[r as usize] = list.pop().unwrap_or_else(|| {
            let at = rows.rows;
            rows.rows += if wide { 2 } else { 1 };
            at
        });
        active.push(r);
    }
    rows
}
