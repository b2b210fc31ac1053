//! Arrays on every rank of a small mesh, moved as the steps of a path say, and compared with what layouts mean.
//!
//! For tests. A rank uses what members of its group hold and nothing else; what is dead in its buffer is not a number, and so
//! is what comes of reading it.

use super::reshard::{Kind, Step};
use super::{Atom, Entry, Layout, Mesh, Order, Partial, algebra, cut};
use crate::types::{DType, ReduceKind, rng};

/// One logical array as ranks hold it.
pub struct Spread<'a> {
    pub mesh: &'a Mesh,
    pub shape: &'a [usize],
    pub layout: Layout,
    /// Of each rank.
    pub buffers: Vec<Vec<f64>>,
}

/// Where each element of the logical array is in a rank's buffer, if it is.
pub fn places(mesh: &Mesh, shape: &[usize], layout: &Layout, rank: usize) -> Vec<Option<usize>> {
    let mut all = vec![Some(0)];
    for (c, n) in layout.dims.iter().zip(shape) {
        let room = cut::nominal(mesh, c, *n);
        let mut along = vec![None; *n];
        for s in cut::spans_of(mesh, c, *n, rank) {
            (0..s.len).for_each(|i| along[s.global + i] = Some(s.local + i));
        }
        all = all.iter().flat_map(|at| along.iter().map(move |i| Some((*at)? * room + (*i)?))).collect();
    }
    all
}

/// Every layout of so many dims in which values are partial by this operator, if at all.
pub fn layouts(mesh: &Mesh, dims: usize, op: ReduceKind) -> Vec<Layout> {
    let mut all = vec![Layout::replicated(dims)];
    for atom in mesh.atoms() {
        let before = all.clone();
        for at in &before {
            let mut next = at.clone();
            next.partial.push(Partial { atom, op });
            all.push(next);
            for d in 0..dims {
                // At every place among those that cut the dim already.
                for i in 0..=at.dims[d].len() {
                    let mut next = at.clone();
                    next.dims[d].insert(i, Entry::new(atom));
                    all.push(next);
                }
            }
        }
    }
    all
}

/// A small whole number from a seed and a place: sums and products of such are exact.
pub fn number(seed: u64, place: usize) -> f64 {
    f64::from(rng::bits(seed, place as u64) % 9) - 4.0
}

/// The parts that make up a value, at random.
fn split(op: ReduceKind, value: f64, count: usize, seed: u64) -> Vec<f64> {
    let lucky = rng::bits(seed, 0) as usize % count;
    let any = |i: usize| number(seed, i + 1);
    let others = |i: usize| match op {
        ReduceKind::Sum => any(i),
        ReduceKind::Prod => [1.0, -1.0][i % 2],
        ReduceKind::Max => value - any(i).abs(),
        ReduceKind::Min => value + any(i).abs(),
        ReduceKind::Any => f64::from(any(i) > 0.0) * value,
        ReduceKind::All => f64::from(any(i) > 0.0 || value != 0.0),
        ReduceKind::ArgMax | ReduceKind::ArgMin => panic!("no parts of an index"),
    };
    let mut parts: Vec<f64> = (0..count).map(others).collect();
    let rest = (0..count).filter(|i| *i != lucky).map(|i| parts[i]);
    parts[lucky] = match op {
        ReduceKind::Sum => value - rest.sum::<f64>(),
        ReduceKind::Prod => value * rest.product::<f64>(),
        _ => value,
    };
    parts
}

impl<'a> Spread<'a> {
    /// By the definition of a layout.
    pub fn new(mesh: &'a Mesh, shape: &'a [usize], layout: &Layout, logical: &[f64], seed: u64) -> Spread<'a> {
        let over: Vec<Atom> = layout.partial.iter().map(|p| p.atom).collect();
        let room = layout.local(mesh, shape).iter().product();
        let buffers = (0..mesh.ranks()).map(|rank| {
            let mut buffer = vec![f64::NAN; room];
            let member = mesh.members(rank, &over).iter().position(|r| *r == rank).expect("of its own group");
            for (i, place) in places(mesh, shape, layout, rank).into_iter().enumerate() {
                let Some(place) = place else { continue };
                buffer[place] = match layout.partial.first() {
                    Some(p) => split(p.op, logical[i], mesh.group(&over), seed ^ (i as u64) << 20)[member],
                    None => logical[i],
                };
            }
            buffer
        });
        Spread { mesh, shape, layout: layout.clone(), buffers: buffers.collect() }
    }

    /// What is wrong with it, if anything.
    pub fn check(&self, logical: &[f64]) -> Result<(), String> {
        let over: Vec<Atom> = self.layout.partial.iter().map(|p| p.atom).collect();
        let free: Vec<Atom> = self.mesh.atoms().filter(|a| self.layout.free(*a)).collect();
        for rank in 0..self.mesh.ranks() {
            let places = places(self.mesh, self.shape, &self.layout, rank);
            let parts = self.mesh.members(rank, &over);
            let twin = self.mesh.members(rank, &free)[0];
            for (i, place) in places.into_iter().enumerate() {
                let Some(place) = place else { continue };
                let values = parts.iter().map(|r| self.buffers[*r][place]);
                let whole = match self.layout.partial.first() {
                    Some(p) => values.reduce(|a, b| algebra::combine(p.op, a, b).expect("a monoid")),
                    None => Some(self.buffers[rank][place]),
                };
                if whole != Some(logical[i]) {
                    return Err(format!("rank {rank}, element {i}: {whole:?}, not {}", logical[i]));
                }
                if self.buffers[twin][place] != self.buffers[rank][place] {
                    return Err(format!("element {i} differs between replicas {twin} and {rank}"));
                }
            }
        }
        Ok(())
    }

    /// One step, and the elements sent per rank, mean over ranks.
    pub fn run(&self, step: &Step) -> Result<(Spread<'a>, f64), String> {
        assert_eq!(step.from, self.layout, "a step begins where the last one ended");
        let (mesh, shape) = (self.mesh, self.shape);
        let held: Vec<_> = (0..mesh.ranks()).map(|r| places(mesh, shape, &step.from, r)).collect();
        let n = mesh.group(&step.atoms) as f64;
        let op = step.from.partial.first().or(step.to.partial.first()).map(|p| p.op);
        let new: Vec<_> = step.to.partial.iter().filter(|p| step.from.partial_of(p.atom).is_none()).collect();
        let (mut buffers, mut sent) = (Vec::new(), 0.0);
        for rank in 0..mesh.ranks() {
            let members = mesh.members(rank, &step.atoms);
            let first = new.iter().all(|p| mesh.coordinate(rank, p.atom) == 0);
            let value = |r: usize, i: usize| held[r][i].map(|at| self.buffers[r][at]);
            let mut buffer = vec![f64::NAN; step.to.local(mesh, shape).iter().product()];
            let mut peers = Vec::new();
            for (i, place) in places(mesh, shape, &step.to, rank).into_iter().enumerate() {
                let Some(place) = place else { continue };
                let missing = || format!("{}: rank {rank} lacks element {i}", step.kind.name());
                let one = || algebra::identity(op.expect("of a partial value"), DType::F64).expect("a monoid");
                buffer[place] = match step.kind {
                    Kind::Slice => value(rank, i).ok_or_else(missing)?,
                    Kind::MakePartial if first || op.is_some_and(algebra::idempotent) => {
                        value(rank, i).ok_or_else(missing)?
                    }
                    Kind::MakePartial => one(),
                    Kind::ShardToPartial => value(rank, i).unwrap_or_else(one),
                    Kind::ReduceScatter | Kind::AllReduce => {
                        sent += if step.kind == Kind::AllReduce { 2.0 * (n - 1.0) / n } else { n - 1.0 };
                        let mut sum = one();
                        for r in &members {
                            let part = value(*r, i).ok_or_else(missing)?;
                            sum = algebra::combine(op.expect("of a partial value"), sum, part).expect("a monoid");
                        }
                        sum
                    }
                    Kind::AllToAll | Kind::AllGather | Kind::Permute => match value(rank, i) {
                        Some(own) => own,
                        None => {
                            sent += 1.0;
                            let holders: Vec<usize> =
                                members.iter().copied().filter(|r| held[*r][i].is_some()).collect();
                            peers.push(holders.clone());
                            value(*holders.first().ok_or_else(missing)?, i).ok_or_else(missing)?
                        }
                    },
                };
            }
            if step.kind == Kind::Permute {
                let whole = peers.first().is_none_or(|p| p.iter().any(|r| peers.iter().all(|q| q.contains(r))));
                if !whole {
                    return Err(format!("rank {rank} needs more than one block"));
                }
            }
            buffers.push(buffer);
        }
        Ok((Spread { mesh, shape, layout: step.to.clone(), buffers }, sent / mesh.ranks() as f64))
    }
}

/// Whether local arrays are what the buffers of ranks have room for, and hold each element once for each replica.
#[test]
fn blocks_tile_a_dim_once_for_each_replica() {
    let meshes = [Mesh::of(&[("a", 2), ("b", 3), ("c", 2)]), Mesh::of(&[("a", 3), ("b", 2)]), Mesh::of(&[("a", 1)])];
    for mesh in meshes {
        for mut layout in layouts(&mesh, 1, ReduceKind::Sum) {
            let cuts: usize = layout.dims[0].iter().map(|e| mesh.size(e.atom)).product();
            for (unit, order) in [(1, Order::Block), (3, Order::Block), (1, Order::Zigzag), (2, Order::Zigzag)] {
                if let Some(e) = layout.dims[0].last_mut() {
                    *e = Entry { unit, order, ..*e };
                }
                for extent in [0, 1, 5, 12, 13, 24] {
                    let room = layout.local(&mesh, &[extent])[0];
                    let mut held = vec![0; extent];
                    for rank in 0..mesh.ranks() {
                        let mut used = vec![false; room];
                        for (i, place) in places(&mesh, &[extent], &layout, rank).into_iter().enumerate() {
                            let Some(place) = place else { continue };
                            assert!(!std::mem::replace(&mut used[place], true), "two elements in one place");
                            held[i] += 1;
                        }
                        let even = cut::even(&mesh, &layout.dims[0], extent);
                        assert!(!even || used.iter().all(|u| *u), "{layout:?}, {extent}");
                    }
                    assert!(held.iter().all(|n| *n == mesh.ranks() / cuts), "{layout:?}, {extent}: {held:?}");
                }
            }
        }
    }
}
