//! What a rank does in a collective: one call of NCCL where arrays lie as NCCL wants them, else sends and receives of what other
//! ranks need, with packing, unpacking and reductions by kernels.
//!
//! A rank knows what all ranks of its group want, since each of them finds it by the same rules.

use crate::mesh::Mesh;
use crate::program::{Collective, Gpu};
use crate::runtime::RuntimeError;
use crate::runtime::comm::Exchange;
use crate::runtime::comm::plan::{Block, Transfer};
use crate::types::{DType, ReduceKind};

/// How a collective is done.
#[derive(Debug, PartialEq)]
pub enum How {
    AllReduce { count: usize, kind: ReduceKind },
    AllGather { count: usize },
    ReduceScatter { count: usize, kind: ReduceKind },
    Parts(Parts),
}

#[derive(Debug, PartialEq)]
pub struct Moves {
    pub how: How,
    pub dtype: DType,
    /// The communicator: see [`super::exchange::Joining`].
    pub set: usize,
}

/// An exchange by sends and receives. Staging memory is counted in bytes; places of blocks in elements.
#[derive(Debug, Default, PartialEq)]
pub struct Parts {
    /// Blocks that are copied before anything is sent: to staging memory.
    pub pack: Vec<Kernel>,
    /// In the same order for both ranks: see [`Message`].
    pub sends: Vec<Message>,
    pub receives: Vec<Message>,
    /// What comes after: copies of own blocks and from staging memory, reductions, clearing.
    pub finish: Vec<Kernel>,
    /// Bytes of staging memory.
    pub staging: usize,
}

/// Bytes for another rank of the communicator.
#[derive(Debug, PartialEq)]
pub struct Message {
    pub peer: usize,
    pub at: At,
    pub bytes: usize,
}

/// An address, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum At {
    From(usize),
    To(usize),
    Staging(usize),
}

/// A launch of a helper of `codegen`.
#[derive(Debug, PartialEq)]
pub struct Kernel {
    /// Index into `Gpu::kernels`.
    pub function: u32,
    pub from: Option<At>,
    pub to: At,
    /// Parts that are reduced, and elements between them.
    pub parts: Option<(usize, usize)>,
    pub elements: usize,
    /// Index of its geometry in the table of all.
    pub geometry: usize,
}

/// What building moves needs, and the geometries that were met.
pub struct Builder<'p> {
    pub mesh: &'p Mesh,
    pub gpu: &'p Gpu,
    pub rank: usize,
    pub geometries: Vec<i64>,
}

impl Builder<'_> {
    /// `set`: the number of the collective's atoms.
    pub fn moves(&mut self, c: &Collective, set: usize) -> Result<Moves, RuntimeError> {
        let broken = |why: String| RuntimeError::internal(format!("`{}`: {why}", c.kind.name()));
        let group = self.mesh.members(self.rank, &c.atoms);
        let all = group.iter().map(|r| Exchange::new(self.mesh, c, set, *r)).collect::<Result<Vec<_>, _>>();
        let all = all.map_err(broken)?;
        let how = match one_call(c, &group, &all) {
            Some(how) => how,
            None => How::Parts(self.parts(c, &group, &all)?),
        };
        Ok(Moves { how, dtype: c.dtype, set })
    }

    fn function(&self, name: &str) -> Result<u32, RuntimeError> {
        let at = self.gpu.kernels.iter().position(|k| k == name);
        at.map(|n| n as u32).ok_or_else(|| RuntimeError::internal(format!("no kernel `{name}`")))
    }

    /// The number of a geometry, which lies from there on in the table.
    fn geometry(&mut self, block: &Block, (from, to): (bool, bool)) -> usize {
        let at = self.geometries.len();
        self.geometries.extend([block.len as i64, block.loops.len() as i64]);
        // A side that is packed has its elements one after the other.
        let mut dense = vec![block.len as i64; block.loops.len()];
        for n in (0..block.loops.len().saturating_sub(1)).rev() {
            dense[n] = dense[n + 1] * block.loops[n + 1].count as i64;
        }
        for (l, dense) in block.loops.iter().zip(dense) {
            let side = |packed: bool, own: usize| if packed { dense } else { own as i64 };
            self.geometries.extend([l.count as i64, side(from, l.from), side(to, l.to)]);
        }
        at
    }

    fn copy(&mut self, block: &Block, bytes: usize, (from, to): (At, At)) -> Result<Kernel, RuntimeError> {
        let packed = |at: At| matches!(at, At::Staging(_));
        Ok(Kernel {
            function: self.function(&format!("exchange_copy_{bytes}"))?,
            from: Some(from),
            to,
            parts: None,
            elements: block.elements(),
            geometry: self.geometry(block, (packed(from), packed(to))),
        })
    }

    fn parts(&mut self, c: &Collective, group: &[usize], all: &[Exchange]) -> Result<Parts, RuntimeError> {
        let mut parts = Parts::default();
        let bytes = c.dtype.bytes();
        let own = group.iter().position(|r| *r == self.rank).unwrap_or(0);
        let place = |skip: isize, at: usize| (at as isize + skip) as usize * bytes;
        let elements = |t: &Transfer| t.blocks.iter().map(Block::elements).sum::<usize>();
        // A block that lies side by side on both ranks needs no staging.
        let plain = |t: &Transfer| t.sources.len() == 1 && t.blocks.len() == 1 && t.blocks[0].loops.is_empty();
        let rank = self.rank;
        for (peer, exchange) in all.iter().enumerate().filter(|(peer, _)| *peer != own) {
            for t in &exchange.transfers {
                for s in t.sources.iter().filter(|s| s.rank == rank) {
                    let size = elements(t) * bytes;
                    if plain(t) && exchange.reduce.is_none() {
                        let at = At::From(place(s.skip, t.blocks[0].from));
                        parts.sends.push(Message { peer, at, bytes: size });
                        continue;
                    }
                    let begin = parts.staging;
                    for b in &t.blocks {
                        let to = At::Staging(parts.staging);
                        let kernel = self.copy(b, bytes, (At::From(place(s.skip, b.from)), to))?;
                        parts.pack.push(kernel);
                        parts.staging += b.elements() * bytes;
                    }
                    parts.sends.push(Message { peer, at: At::Staging(begin), bytes: size });
                    parts.staging = parts.staging.next_multiple_of(16);
                }
            }
        }
        let mine = &all[own];
        for t in &mine.transfers {
            let count = elements(t);
            match mine.reduce {
                None => self.taken(&mut parts, t, (group, bytes))?,
                Some(kind) => {
                    let begin = parts.staging;
                    for s in &t.sources {
                        let at = At::Staging(parts.staging);
                        if s.rank == self.rank {
                            let mut to = parts.staging;
                            for b in &t.blocks {
                                let from = At::From(place(s.skip, b.from));
                                let kernel = self.copy(b, bytes, (from, At::Staging(to)))?;
                                parts.pack.push(kernel);
                                to += b.elements() * bytes;
                            }
                        } else {
                            let peer = group.iter().position(|r| *r == s.rank).unwrap_or(0);
                            parts.receives.push(Message { peer, at, bytes: count * bytes });
                        }
                        parts.staging += count * bytes;
                    }
                    let function = self.function(&format!("exchange_{}_{}", kind.name(), c.dtype.name()))?;
                    let mut from = begin;
                    for b in &t.blocks {
                        parts.finish.push(Kernel {
                            function,
                            from: Some(At::Staging(from)),
                            to: At::To(b.to * bytes),
                            parts: Some((t.sources.len(), count)),
                            elements: b.elements(),
                            geometry: self.geometry(b, (true, false)),
                        });
                        from += b.elements() * bytes;
                    }
                    parts.staging = parts.staging.next_multiple_of(16);
                }
            }
        }
        for b in mine.dead.iter().filter(|b| b.elements() > 0) {
            parts.finish.push(Kernel {
                function: self.function(&format!("exchange_clear_{bytes}"))?,
                from: None,
                to: At::To(b.to * bytes),
                parts: None,
                elements: b.elements(),
                geometry: self.geometry(b, (false, false)),
            });
        }
        Ok(parts)
    }

    /// Blocks that one rank has.
    fn taken(
        &mut self,
        parts: &mut Parts,
        t: &Transfer,
        (group, bytes): (&[usize], usize),
    ) -> Result<(), RuntimeError> {
        let Some(s) = t.sources.first() else { return Ok(()) };
        if s.rank == self.rank {
            for b in &t.blocks {
                let from = At::From((b.from as isize + s.skip) as usize * bytes);
                let kernel = self.copy(b, bytes, (from, At::To(b.to * bytes)))?;
                parts.finish.push(kernel);
            }
            return Ok(());
        }
        let peer = group.iter().position(|r| *r == s.rank).unwrap_or(0);
        let size = t.blocks.iter().map(Block::elements).sum::<usize>() * bytes;
        if let [b] = &t.blocks[..]
            && b.loops.is_empty()
        {
            parts.receives.push(Message { peer, at: At::To(b.to * bytes), bytes: size });
            return Ok(());
        }
        parts.receives.push(Message { peer, at: At::Staging(parts.staging), bytes: size });
        for b in &t.blocks {
            let kernel = self.copy(b, bytes, (At::Staging(parts.staging), At::To(b.to * bytes)))?;
            parts.finish.push(kernel);
            parts.staging += b.elements() * bytes;
        }
        parts.staging = parts.staging.next_multiple_of(16);
        Ok(())
    }
}

/// The call of NCCL that does all of a collective, if there is one: the same for all ranks of the group.
fn one_call(c: &Collective, group: &[usize], all: &[Exchange]) -> Option<How> {
    let first = &all[0];
    if all.iter().any(|e| !e.dead.is_empty() || e.elements != first.elements || e.room != first.room) {
        return None;
    }
    // Of a block that is all there is: where it begins on both sides, and how long it is.
    let run = |t: &Transfer| match &t.blocks[..] {
        [b] if b.loops.is_empty() => Some((b.from, b.to, b.len)),
        _ => None,
    };
    let sources =
        |t: &Transfer| -> Option<Vec<usize>> { t.sources.iter().map(|s| (s.skip == 0).then_some(s.rank)).collect() };
    match &c.reduce {
        Some((kind, _)) if c.is_in_place() => {
            let whole = |e: &Exchange| match &e.transfers[..] {
                [t] => run(t) == Some((0, 0, e.room)) && sources(t).as_deref() == Some(group),
                _ => false,
            };
            all.iter().all(whole).then_some(How::AllReduce { count: first.room, kind: *kind })
        }
        Some((kind, _)) => {
            let own = |(n, e): (usize, &Exchange)| match &e.transfers[..] {
                [t] => run(t) == Some((n * e.room, 0, e.room)) && sources(t).as_deref() == Some(group),
                _ => false,
            };
            all.iter().enumerate().all(own).then_some(How::ReduceScatter { count: first.room, kind: *kind })
        }
        None => {
            let count = first.room / group.len();
            let from_all = |e: &Exchange| {
                e.transfers.len() == group.len()
                    && e.transfers.iter().all(|t| {
                        let [s] = &t.sources[..] else { return false };
                        let place = group.iter().position(|r| *r == s.rank);
                        place.is_some_and(|n| s.skip == 0 && run(t) == Some((0, n * count, count)))
                    })
            };
            (first.room.is_multiple_of(group.len()) && all.iter().all(from_all)).then_some(How::AllGather { count })
        }
    }
}
