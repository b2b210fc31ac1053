//! Windows over a dim that is cut: what a rank needs beside its own block, its halo.
//!
//! A window reads x at `offset + coefficient * place + other terms`. The ranks that make a block of places each read a run of x, of one
//! length, that starts a fixed step further on each. Runs overlap, or reach into the blocks of neighbours, as far as it takes.

use super::nest::{Along, Loop, slot_value};
use crate::ir::{Graph, Op, Operation, WindowAxis};
use crate::mesh::{Cut, Entry, Mesh, Order, cut};

/// The term by whose dim an axis may be cut: the longest one of those that go along the input.
pub fn along(g: &Graph, axis: &WindowAxis) -> Option<usize> {
    let fits = |n: i64| i32::try_from(n).is_ok();
    let run = |(d, c): &(_, i64)| c.saturating_mul(g.extent(*d) as i64);
    let (lowest, width) = others(g, axis, usize::MAX);
    if axis.dynamic || !fits(lowest) || !fits(width) || !fits(g.extent(axis.input) as i64) {
        return None;
    }
    let able = (0..axis.terms.len()).filter(|t| axis.terms[*t].1 > 0 && fits(run(&axis.terms[*t])));
    able.max_by_key(|t| (g.extent(axis.terms[*t].0), std::cmp::Reverse(*t)))
}

/// What a loop of a window or its adjoint goes along.
pub struct Reach<'a> {
    pub axis: &'a WindowAxis,
    /// Which of the axes it is, and which of its terms.
    pub number: usize,
    pub term: usize,
    /// The slot of x.
    pub input: usize,
}

impl<'a> Reach<'a> {
    /// None of loops that are not shifted.
    pub fn of(g: &Graph, op: &'a Operation, l: &Loop) -> Option<Reach<'a>> {
        let (axes, input, places) = match &op.op {
            Op::Window { axes, .. } => (axes, 0, op.args.len()),
            Op::Fold { axes } => (axes, 1, 0),
            _ => return None,
        };
        let dim = |slot: usize| Some(g.value(slot_value(op, slot)).dims[l.slots[slot]?.at]);
        let (x, y) = (dim(input)?, dim(places)?);
        let number = axes.iter().position(|a| l.along == Along::Shifted && a.input == x)?;
        let term = axes[number].terms.iter().position(|t| t.0 == y)?;
        Some(Reach { axis: &axes[number], number, term, input })
    }
}

/// The first element that the terms but one lead to, counted from where that one leads, and the number of elements from the first to the last.
fn others(g: &Graph, axis: &WindowAxis, but: usize) -> (i64, i64) {
    let terms = axis.terms.iter().enumerate().filter(|(t, _)| *t != but);
    let reach = |(_, (d, c)): (usize, &(_, i64))| c.saturating_mul(g.extent(*d) as i64 - 1);
    let (below, above) = terms.map(reach).fold((0i64, 0i64), |(b, a), r| match r < 0 {
        true => (b.saturating_add(r), a),
        false => (b, a.saturating_add(r)),
    });
    (below.saturating_add(axis.offset), above.saturating_sub(below).saturating_add(1))
}

/// The runs of x that ranks read whose places are cut by an entry.
pub fn runs(g: &Graph, mesh: &Mesh, axis: &WindowAxis, term: usize, entry: &Entry) -> Entry {
    let (d, coefficient) = axis.terms[term];
    let places = cut::block(mesh, entry, g.extent(d)) as i64;
    let (lowest, width) = others(g, axis, term);
    let number = |n: i64| n.clamp(0, i64::from(i32::MAX)) as u32;
    let order = Order::Halo {
        step: number(coefficient * places),
        lead: -lowest as i32,
        len: number(coefficient * (places - 1).max(0) + width),
    };
    Entry { unit: 1, order, ..*entry }
}

/// Where the window of a rank's first place begins in its run.
pub fn offset(g: &Graph, axis: &WindowAxis, term: usize) -> i64 {
    axis.offset - others(g, axis, term).0
}

/// Whether ranks need nothing but their own blocks, which begin as far from each other as their windows do.
pub fn local(mesh: &Mesh, extent: usize, block: &Entry, runs: Entry) -> bool {
    let Order::Halo { step, .. } = runs.order else { return false };
    cut::block(mesh, block, extent) == step as usize && foreign(mesh, extent, &vec![*block], runs) == 0.0
}

/// Elements of the runs that other ranks have, where each holds its part of a dim of this extent; the mean over the ranks.
pub fn foreign(mesh: &Mesh, extent: usize, own: &Cut, runs: Entry) -> f64 {
    let parts = mesh.size(runs.atom);
    let strange = |i: usize| -> usize {
        let run = cut::spans(mesh, &[runs], extent, &[i]);
        let mine = cut::spans(mesh, own, extent, &vec![i; own.len()]);
        let all = run.iter().map(|r| r.len).sum::<usize>();
        let end = |s: &cut::Span| s.global + s.len;
        let both = |r: &cut::Span, m: &cut::Span| end(r).min(end(m)).saturating_sub(r.global.max(m.global));
        all - run.iter().map(|r| mine.iter().map(|m| both(r, m)).sum::<usize>()).sum::<usize>()
    };
    (0..parts).map(strange).sum::<usize>() as f64 / parts as f64
}
