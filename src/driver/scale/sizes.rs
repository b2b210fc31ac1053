//! Which smaller sizes a dim may have.

use crate::driver::sharding::Sharding;
use crate::elaborate::plan::Pipeline;
use crate::ir::{DimId, Graph};
use crate::mesh::Atom;
use crate::resolve::{Entity, MAIN, Program};
use crate::source::SourceMap;
use crate::stage;
use crate::syntax::ast::{DimDef, DimValue};

/// What of an uncut dim stays, and how many elements a rank has of one that is cut; smallest first.
pub const TRIES: [(usize, usize); 8] = [(8, 1), (8, 2), (16, 2), (16, 4), (8, 8), (32, 4), (64, 8), (256, 32)];

/// From here on a rank may get more elements than it has of the program as it is.
const MORE: usize = 8;

/// Fewer elements of an uncut dim would hide mistakes: of one, sums and shifts are the same whatever is added up.
const SMALL: usize = 4;

/// Dims that the main file defines or imports whose sizes are written as numbers.
pub fn dims(program: &Program, sources: &SourceMap) -> Vec<(String, usize)> {
    let number = |d: &DimDef| match &d.value {
        DimValue::Size(e) => sources.text(e.span).trim().replace('_', "").parse::<usize>().ok(),
        DimValue::Group(_) => None,
    };
    let names = program.module(MAIN).names.iter();
    let own = names.filter_map(|(name, b)| match b.entity {
        Entity::Dim(at) => Some((name.clone(), number(program.dim(at))?)),
        _ => None,
    });
    own.collect()
}

/// The ranks of an axis in place of so many. Of three a size may be no multiple that is one of two.
pub fn few(ranks: usize) -> usize {
    if ranks.is_multiple_of(2) { 2 } else { ranks.min(3) }
}

/// A dim whose size is to be found.
pub struct Sized<'a> {
    pub g: &'a Graph,
    pub s: &'a Sharding,
    pub name: &'a str,
    /// Its size in the text.
    pub written: usize,
    /// The numbers that the program computes with need so many.
    pub least: usize,
}

/// How ranks divide a dim.
struct Cut {
    /// Its size, and the ranks that cut it.
    n: usize,
    ranks: usize,
    /// The ranks that cut it when axes are made smaller.
    few: usize,
    /// By storage alone.
    stored: bool,
}

impl Sized<'_> {
    fn id(&self) -> Option<DimId> {
        self.g.dims.iter().position(|d| d.name == self.name).map(|i| DimId(i as u32))
    }

    /// Samples are counted in microbatches, where there are any.
    fn divided(&self) -> bool {
        self.id().is_some_and(|d| stage::part_of(self.g, d).is_some())
    }

    /// Its size in the program.
    pub fn now(&self) -> usize {
        self.id().map_or(self.written, |d| self.g.size(d))
    }

    /// None of a loop of the source.
    fn cut(&self) -> Option<Cut> {
        let used = |d: &DimId| self.g.values.iter().any(|v| v.dims.contains(d));
        let d = self.id().filter(|d| self.divided() || used(d))?;
        let pins = self.s.train.pins.iter().filter(|p| p.dim == d && !p.entries.is_empty());
        let own: Vec<Atom> = pins.flat_map(|p| p.entries.iter().map(|e| e.atom)).collect();
        let stored = own.is_empty();
        let mut atoms =
            if stored { self.s.train.zero.iter().flat_map(|z| z.atoms.iter().copied()).collect() } else { own };
        atoms.sort_unstable();
        atoms.dedup();
        let size = |a: &Atom| self.s.mesh().size(*a);
        let (ranks, few) = (atoms.iter().map(size).product(), atoms.iter().map(|a| few(size(a))).product());
        Some(Cut { n: self.g.size(d), ranks, few, stored })
    }

    /// The smallest numbers of turns of a loop of the source; of stages, some for each of them. The first turns may be others than
    /// those that follow.
    fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        let written = self.now();
        let pipeline = self.s.plan.pipeline.as_ref();
        let stages = pipeline.map_or(1, |p| p.schedule.chunks().unwrap_or(1) as usize);
        let of_axis = |p: &Pipeline| self.s.plan.mesh[p.axis].size as usize;
        let ranks = pipeline.map_or(1, of_axis);
        let left = usize::from(!written.is_multiple_of(ranks * stages));
        let each = few(ranks) * stages;
        let least = (each + left).max(2);
        (0..6).map(move |k| least + k * each)
    }

    /// Whether it is the number of turns of a loop of the source.
    pub fn turning(&self) -> bool {
        self.cut().is_none()
    }

    /// The smaller size of one of [`TRIES`]; none where it stays.
    pub fn resized(&self, (uncut, each): (usize, usize)) -> Option<usize> {
        let uncut = uncut.max(self.least);
        let Some(Cut { n, ranks, few, stored }) = self.cut() else {
            let turns = self.turns().next().expect("a smallest one");
            return (self.now() > turns).then_some(turns);
        };
        let new = if stored {
            if n <= uncut {
                n
            } else if n.is_multiple_of(ranks) {
                if uncut.is_multiple_of(few) { uncut } else { uncut * few }
            } else {
                uncut + usize::from(uncut.is_multiple_of(few))
            }
        } else {
            let (q, r) = (n / ranks, n % ranks);
            let batch = self.divided() || self.g.inputs.first().and_then(|i| i.dims.first()) == self.id().as_ref();
            let turns = if batch { self.s.plan.microbatches as usize } else { 1 };
            // More than a rank had, at last: other dims may be fractions of this one.
            let most = if each < MORE { q } else { usize::MAX };
            let real = if q == 0 { 0 } else { each.min(most) * few };
            let real = real.max(self.least.next_multiple_of(few));
            let whole = if turns > 1 { real.next_multiple_of(few * turns) } else { real };
            whole + usize::from(r > 0)
        };
        (new < n).then_some(new)
    }

    /// All smaller sizes to be tried, smallest first: those of [`TRIES`], and divisors, of which other dims may be fractions.
    pub fn ladder(&self) -> Vec<usize> {
        let n = self.now();
        let mut least = self.least;
        let mut all: Vec<usize> = match self.cut() {
            Some(cut) => {
                if cut.stored {
                    least = least.max(SMALL.min(n));
                }
                let divisors = (1..n).filter(|m| n.is_multiple_of(*m) && (cut.stored || cut.alike(*m)));
                TRIES.iter().filter_map(|t| self.resized(*t)).chain(divisors).collect()
            }
            None => self.turns().collect(),
        };
        all.retain(|m| (least..n).contains(m));
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Cut {
    /// Whether fewer ranks divide so many as ranks do.
    fn alike(&self, m: usize) -> bool {
        m.is_multiple_of(self.few) == self.n.is_multiple_of(self.ranks) && (m < self.few) == (self.n < self.ranks)
    }
}

/// How ranks divide the dims that rules cut: whether evenly, and whether each rank has some.
pub fn pattern(g: &Graph, s: &Sharding) -> Vec<(String, bool, bool)> {
    let mut out = Vec::new();
    for p in s.train.pins.iter().filter(|p| !p.entries.is_empty()) {
        let ranks: usize = p.entries.iter().map(|e| s.mesh().size(e.atom)).product();
        let n = g.size(p.dim);
        let one = (g.dim(p.dim).name.clone(), n.is_multiple_of(ranks), n < ranks);
        if !out.contains(&one) {
            out.push(one);
        }
    }
    out.sort();
    out
}
