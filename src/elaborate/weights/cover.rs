//! Which elements of the parameters a map writes: each once.

use super::{Factor, Piece, Slot, Target, WeightsMap};
use std::collections::HashMap;

/// Beyond so many blocks only numbers of elements are compared.
const MAX_BLOCKS: usize = 1 << 22;

/// What is wrong with one target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No entry at all.
    Missing,
    /// So many elements are in no entry.
    Partly(usize),
    /// Numbers of the two entries that write the same element.
    Twice(usize, usize),
}

/// Faults by slot, in the order of slots. `needed`: slots that must be whole.
pub fn faults(map: &WeightsMap, needed: &dyn Fn(Target) -> bool) -> Vec<(usize, Fault)> {
    let mut by_target: HashMap<Target, Vec<(usize, &Piece)>> = HashMap::new();
    for (n, e) in map.entries.iter().enumerate() {
        for p in &e.pieces {
            by_target.entry(p.target).or_default().push((n, p));
        }
    }
    let mut out = Vec::new();
    for (k, slot) in map.slots.iter().enumerate() {
        let fault = match by_target.get(&slot.target) {
            None => Some(Fault::Missing),
            Some(pieces) => check(slot, pieces),
        };
        match fault {
            Some(Fault::Missing | Fault::Partly(_)) if !needed(slot.target) => {}
            Some(f) => out.push((k, f)),
            None => {}
        }
    }
    out
}

fn check(slot: &Slot, pieces: &[(usize, &Piece)]) -> Option<Fault> {
    let total = slot.elements();
    let written: usize = pieces.iter().map(|(_, p)| p.elements()).sum();
    if pieces.len() == 1 {
        return (written < total).then(|| Fault::Partly(total - written));
    }
    let block = pieces.iter().fold(total, |b, (_, p)| gcd(b, unit(p)));
    if total / block.max(1) > MAX_BLOCKS {
        return match written.cmp(&total) {
            std::cmp::Ordering::Less => Some(Fault::Partly(total - written)),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Fault::Twice(pieces[0].0, pieces[pieces.len() - 1].0)),
        };
    }
    let mut owner = vec![usize::MAX; total / block];
    for (n, p) in pieces {
        let mut second = None;
        super::transfer::walk(&coarse(p, block), &mut |t, _| {
            if owner[t] != usize::MAX && second.is_none() {
                second = Some(owner[t]);
            }
            owner[t] = *n;
        });
        if let Some(first) = second {
            return Some(Fault::Twice(first, *n));
        }
    }
    (written < total).then(|| Fault::Partly(total - written))
}

/// The contiguous run that a piece consists of, and the strides from run to run.
fn run(p: &Piece) -> (usize, Vec<Factor>) {
    let mut factors = p.factors.clone();
    factors.sort_by_key(|f| f.target_stride);
    let mut run = 1;
    let mut within = 0;
    while within < factors.len() && factors[within].target_stride == run {
        run *= factors[within].size;
        within += 1;
    }
    (run, factors.split_off(within))
}

/// The largest block such that a piece consists of whole ones, each in one run.
fn unit(p: &Piece) -> usize {
    let (run, rest) = run(p);
    rest.iter().fold(gcd(run, p.target_offset), |b, f| gcd(b, f.target_stride))
}

/// The piece counted in blocks.
fn coarse(p: &Piece, block: usize) -> Piece {
    let (run, mut factors) = run(p);
    factors.iter_mut().for_each(|f| f.target_stride /= block);
    factors.push(Factor { size: run / block, target_stride: 1, file_stride: 0 });
    Piece { target_offset: p.target_offset / block, file_offset: 0, factors, ..*p }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::super::Entry;
    use super::*;
    use crate::ir::ParamId;
    use crate::source::{FileId, Span};
    use crate::types::DType;

    const P: Target = Target::Param(ParamId(0));

    fn map(shape: &[usize], pieces: Vec<Piece>) -> WeightsMap {
        let span = Span::new(FileId(0), 0, 0);
        let entries = (pieces.into_iter().enumerate())
            .map(|(i, p)| Entry { file_name: format!("{i}"), shape: vec![p.elements()], pieces: vec![p], span })
            .collect();
        let slot = Slot { target: P, path: "w".into(), dtype: DType::F32, shape: shape.to_vec() };
        WeightsMap { name: "m".into(), entries, slots: vec![slot] }
    }

    fn piece(target_offset: usize, factors: &[(usize, usize)]) -> Piece {
        let factors = (factors.iter()).map(|&(size, s)| Factor { size, target_stride: s, file_stride: 1 }).collect();
        Piece { target: P, target_offset, file_offset: 0, factors }
    }

    fn found(shape: &[usize], pieces: Vec<Piece>) -> Option<Fault> {
        faults(&map(shape, pieces), &|_| true).into_iter().next().map(|f| f.1)
    }

    #[test]
    fn each_element_once() {
        // Two halves, by rows and by columns, of [4, 6].
        assert_eq!(found(&[4, 6], vec![piece(0, &[(12, 1)]), piece(12, &[(12, 1)])]), None);
        assert_eq!(found(&[4, 6], vec![piece(0, &[(4, 6), (3, 1)]), piece(3, &[(4, 6), (3, 1)])]), None);
        // The same number of elements, but one column twice and one never.
        let odd = vec![piece(0, &[(4, 6), (3, 1)]), piece(2, &[(4, 6), (3, 1)])];
        assert_eq!(found(&[4, 6], odd), Some(Fault::Twice(0, 1)));
        // Even and odd columns.
        assert_eq!(found(&[4, 6], vec![piece(0, &[(12, 2)]), piece(1, &[(12, 2)])]), None);
        assert_eq!(found(&[4, 6], vec![piece(0, &[(12, 2)]), piece(1, &[(11, 2)])]), Some(Fault::Partly(1)));
        assert_eq!(found(&[4, 6], vec![piece(0, &[(23, 1)])]), Some(Fault::Partly(1)));
        assert_eq!(found(&[4, 6], vec![]), Some(Fault::Missing));
        // Blocks of two elements with a third piece between.
        let three = vec![piece(0, &[(4, 6), (2, 1)]), piece(2, &[(2, 1), (4, 6)]), piece(4, &[(4, 6), (2, 1)])];
        assert_eq!(found(&[4, 6], three), None);
    }

    #[test]
    fn blocks_count_in_whole_runs() {
        let p = piece(24, &[(4, 12), (2, 3), (3, 1)]);
        assert_eq!(unit(&p), 6);
        let c = coarse(&p, 3);
        let mut seen = vec![];
        super::super::transfer::walk(&c, &mut |t, _| seen.push(t));
        seen.sort_unstable();
        assert_eq!(seen, [8, 9, 12, 13, 16, 17, 20, 21]);
    }
}
