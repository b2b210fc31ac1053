//! A path being written down, and the obvious one: slice what will be cut, scatter sums where they are wanted, reduce the
//! others, then send every rank what it lacks.
//!
//! It is the best one unless sums wait for a place that is taken or not yet made, or the axes differ in weight.

use super::super::{Atom, Cut, Entry, Layout, Mesh, Order, algebra, cut};
use super::{Cost, Kind, Step, volume};
use crate::types::ReduceKind;

/// What paths are compared by: elements sent by all ranks times weights, collectives, the largest buffer, atoms of groups.
pub type Key = (u128, usize, u128, usize);

/// A path as far as it is known.
#[derive(Clone)]
pub struct Walk<'a> {
    pub mesh: &'a Mesh,
    pub shape: &'a [usize],
    pub at: Layout,
    pub key: Key,
    /// Elements sent by all ranks.
    sent: u128,
    /// The weights of the axes that something was sent along.
    slowest: u64,
    fastest: u64,
    /// Where they are asked for: with elements sent in place of bytes.
    steps: Option<Vec<(Step, u128)>>,
    /// Whether no other path is cheaper.
    pub best: bool,
}

impl<'a> Walk<'a> {
    pub fn new(mesh: &'a Mesh, shape: &'a [usize], from: &Layout, keep: bool) -> Walk<'a> {
        let room = volume::room(mesh, shape, from);
        let steps = keep.then(Vec::new);
        let (slowest, fastest) = (0, u64::MAX);
        Walk { mesh, shape, at: from.clone(), key: (0, 0, room, 0), sent: 0, slowest, fastest, steps, best: true }
    }

    /// The obvious path.
    pub fn direct(mesh: &'a Mesh, shape: &'a [usize], from: &Layout, to: &Layout, keep: bool) -> Option<Walk<'a>> {
        let mut walk = Walk::new(mesh, shape, from, keep);
        if from == to {
            return Some(walk);
        }
        legal(from, to)?;
        let ended: Vec<Atom> =
            from.partial.iter().filter(|p| to.partial_of(p.atom) != Some(p.op)).map(|p| p.atom).collect();
        walk.append(to);
        let left: Vec<Atom> = ended.iter().copied().filter(|a| walk.at.partial_of(*a).is_some()).collect();
        if !left.is_empty() {
            // Scattered first and moved, or made partial again, it may take less.
            walk.best &= left.iter().all(|a| to.free(*a));
            walk.all_reduce(&left);
        }
        walk.redistribute(to, !ended.is_empty());
        walk.make_partial(to);
        // Sent along fast links first, less may be left for the slow ones.
        walk.best &= walk.slowest <= walk.fastest;
        Some(walk)
    }

    /// Slices and scatters along dims that only grow.
    fn append(&mut self, to: &Layout) {
        for turn in 0.. {
            let mut sliced: Vec<(usize, Entry)> = Vec::new();
            for d in 0..to.dims.len() {
                sliced.extend(rest(&self.at, to, d).iter().take_while(|e| self.at.free(e.atom)).map(|e| (d, *e)));
            }
            if !sliced.is_empty() {
                // A sum had to be scattered before this could be cut.
                self.best &= turn == 0;
                self.step(Kind::Slice, &[], None, |at| sliced.iter().for_each(|(d, e)| at.dims[*d].push(*e)));
            }
            let mut scattered = false;
            for d in 0..to.dims.len() {
                let partial = rest(&self.at, to, d).iter().take_while(|e| self.at.partial_of(e.atom).is_some());
                let run: Vec<Entry> = partial.copied().collect();
                if let Some(first) = run.first() {
                    let atoms: Vec<Atom> = run.iter().map(|e| e.atom).collect();
                    let op = self.at.partial_of(first.atom);
                    self.step(Kind::ReduceScatter, &atoms, op, |at| scatter(at, d, &run));
                    scattered = true;
                }
            }
            if !scattered {
                return;
            }
        }
    }

    fn all_reduce(&mut self, atoms: &[Atom]) {
        let op = self.at.partial_of(atoms[0]);
        self.step(Kind::AllReduce, atoms, op, |at| at.partial.retain(|p| !atoms.contains(&p.atom)));
    }

    /// To the wanted cuts, except that what will be partial stays cut where it is the minor part of a dim.
    fn redistribute(&mut self, to: &Layout, reduced: bool) {
        let later = |e: &Entry| to.partial_of(e.atom).is_some();
        let mut wanted: Vec<Cut> = Vec::with_capacity(to.dims.len());
        for (now, then) in self.at.dims.iter().zip(&to.dims) {
            let stays = now.starts_with(then) && now[then.len()..].iter().all(later);
            self.best &= stays || !now.iter().any(later);
            wanted.push(if stays { now.clone() } else { then.clone() });
        }
        if wanted == self.at.dims {
            return;
        }
        // What is cut before it is reduced leaves less to reduce; and what is scattered may go where it is wanted and be
        // gathered in one step.
        let gathers = self.at.dims.iter().zip(&wanted).all(|(a, b)| a.starts_with(b));
        self.best &= !reduced || gathers;
        self.redistribute_to(wanted);
    }

    /// To other cuts in one step, partial atoms as they are.
    pub fn redistribute_to(&mut self, wanted: Vec<Cut>) {
        let (kind, atoms) = exchange(self.mesh, self.shape, &self.at.dims, &wanted);
        self.step(kind, &atoms, None, |at| at.dims = wanted);
    }

    /// Partial over what the goal says, each atom being replicated or the minor part of a dim.
    fn make_partial(&mut self, to: &Layout) {
        let new =
            |at: &Layout| to.partial.iter().copied().filter(|p| at.partial_of(p.atom).is_none()).collect::<Vec<_>>();
        let all = new(&self.at);
        let cut: Vec<Atom> = all.iter().map(|p| p.atom).filter(|a| self.at.dim_of(*a).is_some()).collect();
        if !cut.is_empty() {
            let op = to.partial_of(cut[0]);
            self.step(Kind::ShardToPartial, &[], op, |at| {
                at.dims.iter_mut().for_each(|c| c.retain(|e| !cut.contains(&e.atom)));
                at.partial.extend(all.iter().filter(|p| cut.contains(&p.atom)));
                at.partial.sort();
            });
        }
        let all = new(&self.at);
        if let Some(first) = all.first() {
            self.step(Kind::MakePartial, &[], Some(first.op), |at| {
                at.partial.extend(&all);
                at.partial.sort();
            });
        }
    }

    /// One step. Where nothing is sent, as along groups of one rank, it is local.
    pub fn step(&mut self, kind: Kind, atoms: &[Atom], reduce: Option<ReduceKind>, change: impl FnOnce(&mut Layout)) {
        let redistributes = matches!(kind, Kind::AllToAll | Kind::Permute);
        let before = (self.steps.is_some() || redistributes).then(|| self.at.clone());
        let held = if kind.local() { 0 } else { volume::held(self.mesh, self.shape, &self.at) };
        change(&mut self.at);
        let n = self.mesh.group(atoms) as u128;
        let sent = match kind {
            Kind::Slice | Kind::MakePartial | Kind::ShardToPartial => 0,
            Kind::ReduceScatter => held / n * (n - 1),
            Kind::AllReduce => 2 * (held / n * (n - 1)),
            Kind::AllGather => held * (n - 1),
            Kind::AllToAll | Kind::Permute => {
                let from = &before.as_ref().expect("kept for these").dims;
                let needed = volume::held(self.mesh, self.shape, &self.at);
                needed - volume::shared(self.mesh, self.shape, from, &self.at.dims)
            }
        };
        let (kind, reduce) = if sent == 0 && !kind.local() { (Kind::Slice, None) } else { (kind, reduce) };
        let mut group = Vec::new();
        if !kind.local() {
            group.extend(atoms.iter().copied().filter(|a| self.mesh.size(*a) > 1));
            self.slowest = self.slowest.max(self.mesh.weight(&group));
            self.fastest = group.iter().fold(self.fastest, |w, a| w.min(self.mesh.weight(&[*a])));
            self.sent += sent;
            self.key.0 += sent * u128::from(self.mesh.weight(&group));
            self.key.1 += 1;
            self.key.3 += group.len();
        }
        self.key.2 = self.key.2.max(volume::room(self.mesh, self.shape, &self.at));
        if let (Some(steps), Some(from)) = (&mut self.steps, before) {
            match steps.last_mut().filter(|(s, _)| s.kind == kind && kind.local()) {
                Some((last, _)) => last.to = self.at.clone(),
                None => steps.push((Step { kind, atoms: group, reduce, from, to: self.at.clone(), bytes: 0.0 }, sent)),
            }
        }
    }

    pub fn finish(self, element_bytes: usize) -> Vec<Step> {
        let scale = element_bytes as f64 / self.mesh.ranks() as f64;
        let steps = self.steps.unwrap_or_default();
        steps.into_iter().map(|(step, sent)| Step { bytes: sent as f64 * scale, ..step }).collect()
    }

    pub fn cost(&self, element_bytes: usize) -> Cost {
        let scale = element_bytes as f64 / self.mesh.ranks() as f64;
        let (weighted, collectives, peak, atoms) = self.key;
        Cost {
            weighted: weighted as f64 * scale,
            bytes: self.sent as f64 * scale,
            collectives,
            peak: (peak * element_bytes as u128) as f64,
            atoms,
        }
    }

    /// Whether its steps are kept.
    pub fn keeps(&self) -> bool {
        self.steps.is_some()
    }
}

/// What a dim lacks of its cut, if it has but to grow.
fn rest<'l>(at: &Layout, to: &'l Layout, dim: usize) -> &'l [Entry] {
    to.dims[dim].strip_prefix(&at.dims[dim][..]).unwrap_or(&[])
}

/// Cuts a dim by atoms that the value was partial over.
pub fn scatter(at: &mut Layout, dim: usize, entries: &[Entry]) {
    at.partial.retain(|p| entries.iter().all(|e| e.atom != p.atom));
    at.dims[dim].extend_from_slice(entries);
}

/// Partial by one operator at most, before and after; and what is no monoid is left alone.
fn legal(from: &Layout, to: &Layout) -> Option<()> {
    for layout in [from, to] {
        let one = layout.partial.windows(2).all(|p| p[0].op == p[1].op);
        let combines = |op, atom, other: &Layout| algebra::is_monoid(op) || other.partial_of(atom) == Some(op);
        let other = if std::ptr::eq(layout, from) { to } else { from };
        if !one || !layout.partial.iter().all(|p| combines(p.op, p.atom, other)) {
            return None;
        }
    }
    (from.dims.len() == to.dims.len()).then_some(())
}

/// The kind and the group of a step from some cuts to others.
fn exchange(mesh: &Mesh, shape: &[usize], from: &[Cut], to: &[Cut]) -> (Kind, Vec<Atom>) {
    let changed = || from.iter().zip(to).zip(shape).filter(|((a, b), _)| a != b);
    let beyond = |a: &Cut, b: &Cut| -> Vec<Atom> {
        let kept = a.iter().zip(b).take_while(|(x, y)| x == y).count();
        a[kept..].iter().map(|e| e.atom).collect()
    };
    let gone: Vec<Atom> = changed().flat_map(|((a, b), _)| beyond(a, b)).collect();
    if changed().all(|((a, b), _)| a.starts_with(b)) {
        return (Kind::AllGather, gone);
    }
    // All that a rank will hold is at hand where its coordinates alone choose among blocks that it has.
    if gone.is_empty() {
        return (Kind::Slice, gone);
    }
    let blocks = |c: &Cut| mesh.group(&c.iter().map(|e| e.atom).collect::<Vec<_>>());
    let plain = |c: &Cut, n: usize| c.iter().all(|e| e.order == Order::Block) && cut::even(mesh, c, n);
    if changed().all(|((a, b), n)| blocks(a) == blocks(b) && plain(a, *n) && plain(b, *n)) {
        let mut atoms = gone;
        for ((a, b), _) in changed() {
            atoms.extend(beyond(b, a).iter().filter(|x| !atoms.contains(x)).copied().collect::<Vec<_>>());
        }
        return (Kind::Permute, atoms);
    }
    (Kind::AllToAll, gone)
}
