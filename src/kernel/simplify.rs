//! Makes loops of a kernel fewer and longer: drops loops of one turn, merges loops that go through memory as one, and
//! gives long elementwise kernels rows to spread over threads.

use super::{Index, Kernel, LoopId, Node, Pass, Statement};

/// Fewer rows are too few to share among threads.
const FEW_ROWS: usize = 64;
/// Elements of a row that a long loop is cut into, at most and at least.
const LONGEST_ROW: usize = 4096;
const SHORTEST_ROW: usize = 256;

/// An equal kernel with fewer loops.
pub(super) fn simplify(mut kernel: Kernel) -> Kernel {
    drop_unit_loops(&mut kernel);
    merge_loops(&mut kernel);
    lend_inner_loop(&mut kernel);
    cut_long_loop(&mut kernel);
    compact(&mut kernel);
    kernel
}

fn passes_mut(body: &mut [Statement], visit: &mut impl FnMut(&mut Pass)) {
    for statement in body {
        match statement {
            Statement::Pass(pass) => visit(pass),
            Statement::For { body, .. } => passes_mut(body, visit),
        }
    }
}

fn indices_mut(kernel: &mut Kernel, visit: &mut impl FnMut(&mut Index)) {
    for expr in &mut kernel.exprs {
        match &mut expr.node {
            Node::Index(index) | Node::Load { at: index, .. } | Node::Random { counter: index, .. } => visit(index),
            Node::Const(_) | Node::Map(..) | Node::Register(_) | Node::Check { .. } => {}
        }
    }
    passes_mut(&mut kernel.body, &mut |pass| pass.stores.iter_mut().for_each(|s| visit(&mut s.at)));
}

/// Replaces loops everywhere in indices.
fn substitute(kernel: &mut Kernel, to: impl Fn(LoopId) -> Vec<(LoopId, i64)>) {
    indices_mut(kernel, &mut |index| *index = index.replace_loops(&to));
}

fn drop_unit_loops(kernel: &mut Kernel) {
    let unit: Vec<bool> = kernel.extents.iter().map(|e| *e == 1).collect();
    if !unit.contains(&true) {
        return;
    }
    substitute(kernel, |l| if unit[l.index()] { vec![] } else { vec![(l, 1)] });
    passes_mut(&mut kernel.body, &mut |pass| pass.loops.retain(|l| !unit[l.index()]));
}

/// Merges neighbours: rows with rows, inner loops with inner loops that every pass has together.
fn merge_loops(kernel: &mut Kernel) {
    loop {
        let mut pairs: Vec<(LoopId, LoopId)> = Vec::new();
        let rows: Vec<LoopId> = live_rows(kernel);
        pairs.extend(rows.windows(2).map(|w| (w[0], w[1])));
        let mut lists: Vec<Vec<LoopId>> = Vec::new();
        passes_mut(&mut kernel.body, &mut |pass| lists.push(pass.loops.clone()));
        let neighbours = |list: &Vec<LoopId>, a, b| list.windows(2).any(|w| w == [a, b]);
        for list in &lists {
            for w in list.windows(2) {
                let (a, b) = (w[0], w[1]);
                let together = lists.iter().all(|l| neighbours(l, a, b) || !(l.contains(&a) || l.contains(&b)));
                if together && !pairs.contains(&(a, b)) {
                    pairs.push((a, b));
                }
            }
        }
        let Some((a, b)) = pairs.into_iter().find(|(a, b)| as_one(kernel, *a, *b)) else { return };
        // b becomes the loop over both; a disappears.
        let inner = kernel.extents[b.index()];
        kernel.extents[b.index()] = kernel.extents[a.index()] * inner;
        kernel.extents[a.index()] = 1;
        substitute(kernel, |l| if l == a { vec![] } else { vec![(l, 1)] });
        passes_mut(&mut kernel.body, &mut |pass| pass.loops.retain(|l| *l != a));
    }
}

/// Row loops of more than one turn.
fn live_rows(kernel: &Kernel) -> Vec<LoopId> {
    (0..kernel.rows).filter(|r| kernel.extents[*r] != 1).map(|r| LoopId(r as u32)).collect()
}

/// Whether every index moves by a as by a whole run of b.
fn as_one(kernel: &mut Kernel, a: LoopId, b: LoopId) -> bool {
    let n = kernel.extents[b.index()] as i64;
    let mut all = true;
    indices_mut(kernel, &mut |index| all &= index.coefficient(a) == n * index.coefficient(b));
    all
}

/// The only pass of a kernel that computes element by element.
fn elementwise(kernel: &Kernel) -> Option<&Pass> {
    match kernel.body.as_slice() {
        [Statement::Pass(pass)] if pass.carries.is_empty() && pass.reductions.is_empty() => Some(pass),
        _ => None,
    }
}

/// An elementwise kernel without an inner loop lends one from its rows, so that a row is never a single element.
fn lend_inner_loop(kernel: &mut Kernel) {
    let Some(pass) = elementwise(kernel) else { return };
    if !pass.loops.is_empty() {
        return;
    }
    let Some(last) = live_rows(kernel).pop() else { return };
    let inner = LoopId(kernel.extents.len() as u32);
    kernel.extents.push(kernel.extents[last.index()]);
    kernel.extents[last.index()] = 1;
    substitute(kernel, |l| vec![(if l == last { inner } else { l }, 1)]);
    passes_mut(&mut kernel.body, &mut |pass| pass.loops.push(inner));
}

/// Cuts the last loop of an elementwise kernel with few rows into rows.
fn cut_long_loop(kernel: &mut Kernel) {
    let Some(pass) = elementwise(kernel) else { return };
    let Some(&last) = pass.loops.last() else { return };
    let loops = pass.loops.clone();
    let rows: usize = live_rows(kernel).iter().map(|r| kernel.extents[r.index()]).product();
    if rows >= FEW_ROWS {
        return;
    }
    // Whole outer loops first, then part of the last one.
    let mut lent: Vec<LoopId> = loops[..loops.len() - 1].to_vec();
    let n = kernel.extents[last.index()];
    let cut = (SHORTEST_ROW..=LONGEST_ROW.min(n / 2)).rev().find(|c| n.is_multiple_of(*c));
    let mut extents: Vec<usize> = kernel.extents[..kernel.rows].to_vec();
    let first_new = extents.len();
    let mut moved: Vec<(LoopId, Vec<(LoopId, i64)>)> = Vec::new();
    for l in &lent {
        moved.push((*l, vec![(LoopId(extents.len() as u32), 1)]));
        extents.push(kernel.extents[l.index()]);
    }
    if let Some(c) = cut {
        moved.push((last, vec![(LoopId(extents.len() as u32), c as i64)]));
        extents.push(n / c);
    }
    let new_rows = extents.len();
    if new_rows == first_new {
        return;
    }
    lent.push(last);
    let inner = LoopId(extents.len() as u32);
    extents.push(cut.unwrap_or(n));
    match moved.iter_mut().find(|(l, _)| *l == last) {
        Some((_, to)) => to.push((inner, 1)),
        None => moved.push((last, vec![(inner, 1)])),
    }
    substitute(kernel, |l| match moved.iter().find(|(old, _)| *old == l) {
        Some((_, to)) => to.clone(),
        None => vec![(l, 1)],
    });
    kernel.extents = extents;
    kernel.rows = new_rows;
    passes_mut(&mut kernel.body, &mut |pass| pass.loops = vec![inner]);
}

/// Numbers the loops that are left; a kernel whose passes have no loops left keeps empty lists.
fn compact(kernel: &mut Kernel) {
    let mut used = vec![false; kernel.extents.len()];
    for r in live_rows(kernel) {
        used[r.index()] = true;
    }
    passes_mut(&mut kernel.body, &mut |pass| pass.loops.iter().for_each(|l| used[l.index()] = true));
    fn fors(body: &[Statement], used: &mut [bool]) {
        for statement in body {
            if let Statement::For { index, body } = statement {
                used[index.index()] = true;
                fors(body, used);
            }
        }
    }
    fors(&kernel.body, &mut used);
    let mut number = vec![0u32; used.len()];
    let mut extents = Vec::new();
    for (i, u) in used.iter().enumerate() {
        if *u {
            number[i] = extents.len() as u32;
            extents.push(kernel.extents[i]);
        }
    }
    kernel.rows = used[..kernel.rows].iter().filter(|u| **u).count();
    kernel.extents = extents;
    substitute(kernel, |l| vec![(LoopId(number[l.index()]), 1)]);
    fn rename(body: &mut [Statement], number: &[u32]) {
        for statement in body {
            match statement {
                Statement::Pass(pass) => pass.loops.iter_mut().for_each(|l| *l = LoopId(number[l.index()])),
                Statement::For { index, body } => {
                    *index = LoopId(number[index.index()]);
                    rename(body, number);
                }
            }
        }
    }
    rename(&mut kernel.body, &number);
}
