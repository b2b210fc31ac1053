//! Exchanges between ranks, by their definition; and the logical places of the elements that a rank holds.

use super::{Shared, walk};
use crate::ir::*;
use crate::mesh::algebra;

/// For each element of an array over `order` (row-major) its index row-major over `logical`, counted in the wholes that the
/// dims are parts of; 0 where nothing is real.
pub fn logical_index(g: &Graph, rank: usize, logical: &[DimId], order: &[DimId]) -> Vec<usize> {
    let stride = |d: &DimId| -> usize {
        let at = logical.iter().position(|l| l == d).expect("a draw has the dims that it counts over");
        logical[at + 1..].iter().map(|l| g.extent(*l)).product()
    };
    let places: Vec<Vec<Option<usize>>> = order.iter().map(|d| g.places(*d, rank)).collect();
    let strides: Vec<usize> = order.iter().map(stride).collect();
    let mut out = Vec::with_capacity(g.elements(order));
    walk::walk(&walk::sizes(g, order), &[], |_, index| {
        let parts = index.iter().zip(&places).zip(&strides).map(|((i, p), s)| p[*i].map(|x| x * s));
        out.push(parts.sum::<Option<usize>>().unwrap_or(0));
    });
    out
}

/// What each rank holds afterwards.
pub fn run(g: &Graph, c: &Collective, op: &Operation, parts: &[Shared]) -> Vec<Vec<f64>> {
    let (from, to) = (&g.value(op.args[0]).dims, &g.value(op.results[0]).dims);
    if c.hops > 0 {
        return (0..parts.len()).map(|rank| parts[g.mesh.before(rank, &c.atoms, c.hops)].data.clone()).collect();
    }
    let reduced: &[_] = c.reduce.as_ref().map_or(&[], |r| &r.1);
    let kind = c.reduce.as_ref().map(|r| r.0);
    let result = |rank: usize| {
        let mut out: Vec<Option<f64>> = vec![None; g.elements(to)];
        // The ranks of the group by their coordinates along what is reduced; of each such set one part of the whole.
        for first in g.mesh.members(rank, reduced) {
            let mut part: Vec<Option<f64>> = vec![None; out.len()];
            let others: Vec<_> = c.atoms.iter().copied().filter(|a| !reduced.contains(a)).collect();
            for member in g.mesh.members(first, &others) {
                take(g, (from, member, &parts[member].data), (to, rank), &mut part);
            }
            for (all, x) in out.iter_mut().zip(part) {
                *all = match (*all, x) {
                    (Some(a), Some(x)) => algebra::combine(kind.expect("several parts are reduced"), a, x),
                    (a, x) => a.or(x),
                };
            }
        }
        out.into_iter().map(|x| x.unwrap_or(0.0)).collect()
    };
    (0..parts.len()).map(result).collect()
}

/// Writes what a member holds of a rank's elements.
fn take(g: &Graph, from: (&[DimId], usize, &[f64]), to: (&[DimId], usize), out: &mut [Option<f64>]) {
    let theirs: Vec<Vec<Option<usize>>> = from.0.iter().map(|d| g.places(*d, from.1)).collect();
    let own: Vec<Vec<Option<usize>>> = to.0.iter().map(|d| g.places(*d, to.1)).collect();
    // Where the element of an index in the whole lies with the member.
    let find = |d: usize, global: usize| theirs[d].iter().position(|p| *p == Some(global));
    let table: Vec<Vec<Option<usize>>> =
        own.iter().enumerate().map(|(d, places)| places.iter().map(|p| find(d, (*p)?)).collect()).collect();
    let sizes = walk::sizes(g, from.0);
    let mut at = 0;
    walk::walk(&walk::sizes(g, to.0), &[], |_, index| {
        let place = index.iter().enumerate().try_fold(0, |n, (d, i)| Some(n * sizes[d] + table[d][*i]?));
        if let Some(p) = place {
            out[at] = Some(from.2[p]);
        }
        at += 1;
    });
}
