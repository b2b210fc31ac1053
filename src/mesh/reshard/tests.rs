//! Every path of small meshes, run on emulated ranks, and the bytes of the usual ones.

use super::super::emulate::{Spread, layouts, number};
use super::super::{Entry, Layout, Mesh, Order};
use super::plan::Walk;
use super::{Cost, Kind, Step, cost, path, search};
use crate::types::ReduceKind;

fn logical(shape: &[usize]) -> Vec<f64> {
    (0..shape.iter().product()).map(|i| number(7, i)).collect()
}

/// Runs a path and compares values and bytes with the definitions.
fn run(mesh: &Mesh, shape: &[usize], from: &Layout, to: &Layout, steps: &[Step]) -> Result<(), String> {
    let logical = logical(shape);
    let mut at = Spread::new(mesh, shape, from, &logical, 3);
    at.check(&logical)?;
    for step in steps {
        let (next, sent) = at.run(step)?;
        next.check(&logical).map_err(|e| format!("{}: {e}", step.kind.name()))?;
        if (sent * 4.0 - step.bytes).abs() > 1e-9 * sent {
            return Err(format!("{}: {} bytes, not {}", step.kind.name(), step.bytes, sent * 4.0));
        }
        assert_eq!(step.atoms.is_empty(), step.kind.local());
        let reduces = !matches!(step.kind, Kind::Slice | Kind::AllToAll | Kind::Permute | Kind::AllGather);
        assert_eq!(step.reduce.is_some(), reduces);
        at = next;
    }
    if at.layout == *to { Ok(()) } else { Err("ends elsewhere".to_string()) }
}

/// Everything gathered and reduced, then cut.
fn by_way_of_replicated(mesh: &Mesh, shape: &[usize], from: &Layout, to: &Layout) -> Cost {
    let whole = Layout::replicated(from.dims.len());
    let ended = from.partial.iter().filter(|p| to.partial_of(p.atom) != Some(p.op)).map(|p| p.atom).collect::<Vec<_>>();
    let mut walk = Walk::new(mesh, shape, from, false);
    let op = from.partial.first().map(|p| p.op);
    walk.step(Kind::AllReduce, &ended, op, |at| at.partial.retain(|p| !ended.contains(&p.atom)));
    walk.redistribute_to(whole.dims);
    walk.cost(4)
}

fn check(mesh: &Mesh, shape: &[usize], from: &Layout, to: &Layout) -> Vec<Step> {
    let place = || format!("{mesh} {shape:?}: {from:?} -> {to:?}");
    let steps = path(mesh, shape, 4, from, to).unwrap_or_else(|| panic!("no path of {}", place()));
    run(mesh, shape, from, to, &steps).unwrap_or_else(|e| panic!("{e}\n{}\n{steps:?}", place()));
    let taken = cost(mesh, shape, 4, from, to).expect("there is a path");
    let sum: f64 = steps.iter().map(|s| s.bytes).sum();
    assert!((taken.bytes - sum).abs() <= 1e-9 * sum, "{}", place());
    assert_eq!(taken.collectives, steps.iter().filter(|s| !s.kind.local()).count(), "{}", place());
    let most = by_way_of_replicated(mesh, shape, from, to);
    assert!(taken.weighted <= most.weighted * (1.0 + 1e-9), "{} over {}: {}", taken.weighted, most.weighted, place());
    steps
}

const TWO: [ReduceKind; 2] = [ReduceKind::Sum, ReduceKind::Max];

#[test]
fn every_pair_of_layouts_of_a_matrix_is_reached() {
    for mesh in [Mesh::of(&[("a", 2), ("b", 2)]), Mesh::of(&[("a", 2), ("b", 3)])] {
        for shape in [[4, 6], [5, 3], [1, 7], [0, 4]] {
            let mut all = layouts(&mesh, 2, TWO[0]);
            all.extend(layouts(&mesh, 2, TWO[1]).into_iter().filter(|l| !l.partial.is_empty()));
            assert_eq!(all.len(), 18 + 7);
            for from in &all {
                for to in &all {
                    check(&mesh, &shape, from, to);
                }
            }
        }
    }
}

/// Pairs of layouts, some of very many: every so manieth.
fn some_pairs(all: &[Layout], every: usize) -> impl Iterator<Item = (&Layout, &Layout)> {
    (0..all.len() * all.len()).step_by(every).map(|i| (&all[i / all.len()], &all[i % all.len()]))
}

#[test]
fn the_obvious_path_is_the_cheapest_wherever_it_says_so() {
    let (mut obvious, mut others) = (0, 0);
    for (mesh, every) in
        [(Mesh::of(&[("a", 2), ("b", 3)]), 1), (Mesh::of(&[("a", 2), ("b", 3), ("c", 2)]), 23), (links(), 1)]
    {
        let all = layouts(&mesh, 2, ReduceKind::Sum);
        for (from, to) in some_pairs(&all, every) {
            let plan = Walk::direct(&mesh, &[12, 7], from, to, false).expect("a path");
            let (best, key) = (plan.best, plan.key);
            let found = search::better(from, to, plan).key;
            assert!(found <= key && (!best || found == key), "{mesh}: {from:?} -> {to:?}: {found:?}, {key:?}");
            (obvious, others) = if best { (obvious + 1, others) } else { (obvious, others + 1) };
        }
    }
    assert!(obvious > 4 * others / 3, "{obvious} of {}", obvious + others);
}

#[test]
fn one_place_to_put_things_is_enough() {
    for mesh in [Mesh::of(&[("a", 2), ("b", 2)]), links()] {
        let all = layouts(&mesh, 3, ReduceKind::Sum);
        for (from, to) in some_pairs(&all, 3) {
            let plan = || Walk::direct(&mesh, &[8, 8, 16], from, to, false).expect("a path");
            let found = |dims| search::better_over(dims, from, to, plan()).key;
            let (one, every) = (search::better(from, to, plan()).key, found(vec![0, 1, 2]));
            assert_eq!((one.0, one.1), (every.0, every.1), "{mesh}: {from:?} -> {to:?}");
        }
    }
}

/// A fast axis within a slow one.
fn links() -> Mesh {
    let mut mesh = Mesh::of(&[("dp", 2), ("tp", 4)]);
    mesh.axes[0].weight = 10;
    mesh
}

#[test]
fn pairs_of_three_axes_are_reached() {
    let mesh = Mesh::of(&[("a", 2), ("b", 3), ("c", 2)]);
    let all = layouts(&mesh, 2, ReduceKind::Sum);
    for (from, to) in some_pairs(&all, 61) {
        check(&mesh, &[5, 9], from, to);
    }
    // Cuts in units and from both ends, among all others.
    let mesh = Mesh::of(&[("a", 2), ("b", 2)]);
    let mut all = Vec::new();
    for at in layouts(&mesh, 2, ReduceKind::Sum) {
        for d in 0..2 {
            for (unit, order) in [(3, Order::Block), (1, Order::Zigzag), (2, Order::Zigzag)] {
                let mut next = at.clone();
                let Some(e) = next.dims[d].last_mut() else { continue };
                *e = Entry { unit, order, ..*e };
                all.push(next);
            }
        }
        all.push(at);
    }
    for (from, to) in some_pairs(&all, 7) {
        check(&mesh, &[11, 8], from, to);
    }
}
