//! What a rank has to move in a collective: found once, from the mesh and the cuts of the dims.
//!
//! Of every dim the runs of elements that the rank's result shares with what another rank holds give blocks, which are copied,
//! or, where parts are reduced, combined from all ranks that hold one. A block has one geometry for all ranks that a reduction
//! goes over, since what is reduced cuts nothing; but for runs that overlap, of which each rank has the same element elsewhere.

use crate::mesh::{Entry, Mesh, Span, cut};
use crate::program::Collective;
use crate::types::{DType, ReduceKind};

/// A rank's part of a collective.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchange {
    pub dtype: DType,
    pub reduce: Option<ReduceKind>,
    /// Which set of atoms the group goes along: see [`super::Hub`].
    pub set: usize,
    /// The ranks of the group, in order of their coordinates.
    pub group: Vec<usize>,
    /// Those of the group whose result is the same: each reduces a share of it for all. The rank alone where nothing is reduced.
    pub alike: Vec<usize>,
    /// Where the rank is among them.
    pub place: usize,
    pub transfers: Vec<Transfer>,
    /// Elements of the result's buffer that are not real.
    pub dead: Vec<Block>,
    /// Real elements of the result.
    pub elements: usize,
    /// Of its buffer.
    pub room: usize,
}

/// Blocks that come from certain ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct Transfer {
    /// One; where parts are reduced, one for each part, in order.
    pub sources: Vec<Source>,
    pub blocks: Vec<Block>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Source {
    pub rank: usize,
    /// How much further on than with the first source its elements are.
    pub skip: isize,
}

impl Source {
    fn alike(ranks: Vec<usize>) -> Vec<Source> {
        ranks.into_iter().map(|rank| Source { rank, skip: 0 }).collect()
    }
}

/// Nested loops around a run of elements side by side; all numbers count elements.
#[derive(Clone, PartialEq, Debug)]
pub struct Block {
    pub from: usize,
    pub to: usize,
    /// Major first: how often, and how far apart there and here.
    pub loops: Vec<Stride>,
    /// Of a run.
    pub len: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stride {
    pub count: usize,
    pub from: usize,
    pub to: usize,
}

/// A run along one dim that two arrays share.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Piece {
    pub from: usize,
    pub to: usize,
    pub len: usize,
}

impl Block {
    pub fn elements(&self) -> usize {
        self.loops.iter().map(|l| l.count).product::<usize>() * self.len
    }

    /// Calls `run(from, to, len)` for the runs of elements `begin..end` of the block, counted row-major.
    pub fn runs(&self, begin: usize, end: usize, run: &mut impl FnMut(usize, usize, usize)) {
        let mut at = begin;
        while at < end {
            let (mut number, within) = (at / self.len, at % self.len);
            let (mut from, mut to) = (self.from + within, self.to + within);
            for l in self.loops.iter().rev() {
                let i = number % l.count;
                number /= l.count;
                from += i * l.from;
                to += i * l.to;
            }
            let len = (self.len - within).min(end - at);
            // Further runs of the innermost loop, without finding each anew.
            let inner = self.loops.last().filter(|_| within == 0 && len == self.len);
            let Some(l) = inner else {
                run(from, to, len);
                at += len;
                continue;
            };
            let first = at / self.len % l.count;
            let times = (l.count - first).min((end - at) / self.len);
            for k in 0..times {
                run(from + k * l.from, to + k * l.to, len);
            }
            at += times * len;
        }
    }
}

/// The blocks of all combinations of pieces of the dims (major first) of two arrays of these shapes.
pub fn blocks(pieces: &[Vec<Piece>], from: &[usize], to: &[usize]) -> Vec<Block> {
    let strides =
        |shape: &[usize]| -> Vec<usize> { (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect() };
    let (far_from, far_to) = (strides(from), strides(to));
    let mut all = vec![Block { from: 0, to: 0, loops: Vec::new(), len: 1 }];
    for (d, pieces) in pieces.iter().enumerate() {
        let with = |b: &Block, p: &Piece| {
            let mut next = Block { from: b.from + p.from * far_from[d], to: b.to + p.to * far_to[d], ..b.clone() };
            push(&mut next.loops, Stride { count: p.len, from: far_from[d], to: far_to[d] });
            next
        };
        all = all.iter().flat_map(|b| pieces.iter().filter(|p| p.len > 0).map(move |p| with(b, p))).collect();
    }
    for b in &mut all {
        if let Some(l) = b.loops.pop_if(|l| (l.from, l.to) == (1, 1)) {
            b.len = l.count;
        }
    }
    all
}

/// Adds an inner loop; one with the loop around it where their elements follow each other.
fn push(loops: &mut Vec<Stride>, inner: Stride) {
    match loops.last_mut() {
        _ if inner.count == 1 => {}
        Some(l) if l.from == inner.from * inner.count && l.to == inner.to * inner.count => {
            *l = Stride { count: l.count * inner.count, ..inner };
        }
        _ => loops.push(inner),
    }
}

/// What two arrays share along a dim, of which each holds some spans.
fn shared(from: &[Span], to: &[Span]) -> Vec<Piece> {
    let overlap = |f: &Span, t: &Span| {
        let (begin, end) = (f.global.max(t.global), (f.global + f.len).min(t.global + t.len));
        let at = |s: &Span| s.local + begin - s.global;
        (begin < end).then(|| Piece { from: at(f), to: at(t), len: end - begin })
    };
    to.iter().flat_map(|t| from.iter().filter_map(move |f| overlap(f, t))).collect()
}

/// Of what a rank has of a dim the parts that the same ranks have in their runs, the place of each in the whole, and who these are;
/// what nobody has is left out.
fn overlaid(runs: &[(usize, Vec<Span>)], own: &[Span], stride: usize) -> Vec<(Piece, usize, Vec<Source>)> {
    let end = |s: &Span| s.global + s.len;
    let mut out = Vec::new();
    for t in own {
        let mut edges: Vec<usize> = runs.iter().flat_map(|(_, r)| r).flat_map(|r| [r.global, end(r)]).collect();
        edges.extend([t.global, end(t)]);
        edges.retain(|e| (t.global..=end(t)).contains(e));
        edges.sort_unstable();
        edges.dedup();
        for part in edges.windows(2) {
            let (begin, len) = (part[0], part[1] - part[0]);
            let have = |(rank, runs): &(usize, Vec<Span>)| {
                let run = runs.iter().find(|r| r.global <= begin && begin < end(r))?;
                Some((*rank, run.local + begin - run.global))
            };
            let found: Vec<(usize, usize)> = runs.iter().filter_map(have).collect();
            let Some((_, first)) = found.first().copied() else { continue };
            let source = |(rank, at)| Source { rank, skip: (at as isize - first as isize) * stride as isize };
            let piece = Piece { from: first, to: t.local + begin - t.global, len };
            out.push((piece, begin, found.into_iter().map(source).collect()));
        }
    }
    out
}

/// The extent of a buffer along a dim: there is room for one element at least.
pub fn room(mesh: &Mesh, entries: &[Entry], extent: usize) -> usize {
    cut::nominal(mesh, entries, extent).max(1)
}

impl Exchange {
    /// Why not, if some element of the result is with no rank of the group.
    pub fn new(mesh: &Mesh, c: &Collective, set: usize, rank: usize) -> Result<Exchange, String> {
        let reduced: &[_] = c.reduce.as_ref().map_or(&[], |(_, atoms)| atoms);
        let cuts_from = |a| c.dims.iter().any(|d| d.from.iter().any(|e| e.atom == a));
        let cuts_to = |a| c.dims.iter().any(|d| d.to.iter().any(|e| e.atom == a));
        // Along others the rank has all that its neighbours have.
        let moved: Vec<_> = c.atoms.iter().copied().filter(|a| cuts_from(*a) && !reduced.contains(a)).collect();
        let shape = |cut: fn(&crate::program::Exchanged) -> &[Entry]| -> Vec<usize> {
            c.dims.iter().map(|d| room(mesh, cut(d), d.extent)).collect()
        };
        let (from, to) = (shape(|d| &d.from), shape(|d| &d.to));
        let mut own: Vec<Vec<Span>> = c.dims.iter().map(|d| cut::spans_of(mesh, &d.to, d.extent, rank)).collect();
        let pieces = |member: usize, own: &[Vec<Span>]| -> Vec<Vec<Piece>> {
            let dims = c.dims.iter().zip(own);
            dims.map(|(d, own)| shared(&cut::spans_of(mesh, &d.from, d.extent, member), own)).collect()
        };
        let mut members = mesh.members(rank, &moved);
        // Its own elements first, then the neighbours behind it: not all read from one rank at the same time.
        let place = members.iter().position(|m| *m == rank).unwrap_or(0);
        if c.reduce.is_none() {
            members.rotate_left(place);
        }
        let overlap = c.dims.iter().position(|d| d.from.iter().any(|e| reduced.contains(&e.atom)));
        let mut transfers: Vec<Transfer> = Vec::new();
        match overlap {
            _ if c.hops > 0 => {
                let pieces: Vec<Vec<Piece>> = own.iter().map(|s| real(s)).collect();
                let sources = Source::alike(vec![mesh.before(rank, &c.atoms, c.hops)]);
                transfers.push(Transfer { sources, blocks: blocks(&pieces, &from, &to) });
            }
            None => transfers.extend(members.into_iter().map(|member| Transfer {
                sources: Source::alike(mesh.members(member, reduced)),
                blocks: blocks(&pieces(member, &own), &from, &to),
            })),
            Some(d) => {
                let stride: usize = from[d + 1..].iter().product();
                let exchanged = &c.dims[d];
                let runs = mesh.members(rank, reduced).into_iter();
                let runs: Vec<(usize, Vec<Span>)> =
                    runs.map(|m| (m, cut::spans_of(mesh, &exchanged.from, exchanged.extent, m))).collect();
                let parts = overlaid(&runs, &own[d], stride);
                let mut all = pieces(rank, &own);
                own[d] = parts.iter().map(|(p, global, _)| Span { global: *global, local: p.to, len: p.len }).collect();
                for (piece, _, sources) in parts {
                    all[d] = vec![piece];
                    transfers.push(Transfer { sources, blocks: blocks(&all, &from, &to) });
                }
            }
        }
        transfers.retain(|t| !t.blocks.is_empty());
        let elements = own.iter().map(|spans| spans.iter().map(|s| s.len).sum::<usize>()).product();
        let found: usize = transfers.iter().flat_map(|t| &t.blocks).map(Block::elements).sum();
        if found != elements {
            return Err(format!("{found} elements of the {elements} of its result are with the group of rank {rank}"));
        }
        let same: Vec<_> = c.atoms.iter().copied().filter(|a| c.reduce.is_some() && !cuts_to(*a)).collect();
        let alike = mesh.members(rank, &same);
        Ok(Exchange {
            dtype: c.dtype,
            reduce: c.reduce.as_ref().map(|r| r.0),
            set,
            group: mesh.members(rank, &c.atoms),
            place: alike.iter().position(|r| *r == rank).unwrap_or(0),
            alike,
            transfers,
            dead: dead(&own, &to),
            room: to.iter().product(),
            elements,
        })
    }

    /// The elements of the result that one of those alike reduces: whole cache lines where there are many.
    pub fn share(&self, place: usize) -> std::ops::Range<usize> {
        let n = self.alike.len();
        let round = if self.elements >= n * 64 { 64 } else { 1 };
        let cut = |i: usize| if i == n { self.elements } else { self.elements * i / n / round * round };
        cut(place)..cut(place + 1)
    }
}

/// Spans that stay where they are.
fn real(spans: &[Span]) -> Vec<Piece> {
    spans.iter().map(|s| Piece { from: s.local, to: s.local, len: s.len }).collect()
}

/// What of an array of this shape is in no span of its dims.
fn dead(own: &[Vec<Span>], shape: &[usize]) -> Vec<Block> {
    let all = |n: usize| vec![Piece { from: 0, to: 0, len: n }];
    let mut dead = Vec::new();
    for (d, n) in shape.iter().enumerate() {
        let mut gaps = Vec::new();
        let mut at = 0;
        for s in &own[d] {
            gaps.push(Piece { from: at, to: at, len: s.local - at });
            at = s.local + s.len;
        }
        gaps.push(Piece { from: at, to: at, len: n - at });
        let mut pieces: Vec<Vec<Piece>> = own[..d].iter().map(|s| real(s)).collect();
        pieces.push(gaps);
        pieces.extend(shape[d + 1..].iter().map(|n| all(*n)));
        dead.extend(blocks(&pieces, shape, shape));
    }
    dead
}
