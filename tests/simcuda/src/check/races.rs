//! Races in shared memory. Each warp has a clock, which barriers and `bar.warp.sync` advance, and knows of the clocks of
//! other warps what barriers have told it; two accesses to a word, one of them a write, race if the later one's warp
//! does not know the earlier one's clock (as in FastTrack, Flanagan and Freund, PLDI 2009, with warps as threads). Within
//! a warp, accesses of two lanes need a `bar.warp.sync` or a barrier between them. A word keeps the last two writes and
//! the last two reads, so a race of three warps may be missed, never invented.

/// An access: bytes of the word (4 bits), atomic, several lanes, lane (5 bits), warp (5 bits), clock (16 bits).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Access(u32);

impl Access {
    fn new(warp: u32, clock: u32, lane: u32, bytes: u32, atomic: bool) -> Access {
        Access(bytes | u32::from(atomic) << 4 | lane << 6 | warp << 11 | clock << 16)
    }

    fn bytes(self) -> u32 {
        self.0 & 15
    }

    fn atomic(self) -> bool {
        self.0 >> 4 & 1 != 0
    }

    fn several(self) -> bool {
        self.0 >> 5 & 1 != 0
    }

    fn lane(self) -> u32 {
        self.0 >> 6 & 31
    }

    fn warp(self) -> u32 {
        self.0 >> 11 & 31
    }

    fn clock(self) -> u32 {
        self.0 >> 16
    }
}

#[derive(Clone, Copy, Default)]
struct Word {
    writes: [Access; 2],
    reads: [Access; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    Read,
    /// By several lanes of the warp at once.
    ReadByAll,
    Write,
    Atomic,
}

pub struct Races {
    words: Vec<Word>,
    /// What warp `w` knows of the clock of warp `u`.
    knows: Vec<[u32; 32]>,
    /// Whether lanes of one warp are told apart.
    within_warps: bool,
}

/// The other access of a race.
pub struct Other {
    pub thread: u32,
    pub wrote: bool,
}

impl Races {
    pub fn new(bytes: usize, warps: usize, within_warps: bool) -> Races {
        let mut races = Races { words: vec![Word::default(); bytes.div_ceil(4)], knows: Vec::new(), within_warps };
        races.knows = vec![[0; 32]; warps.min(32)];
        races.begin();
        races
    }

    /// Before a block.
    pub fn begin(&mut self) {
        self.words.fill(Word::default());
        for (w, knows) in self.knows.iter_mut().enumerate() {
            *knows = [0; 32];
            knows[w] = 1;
        }
    }

    /// A barrier of these warps.
    pub fn barrier(&mut self, warps: u32) {
        let mut joined = [0u32; 32];
        let members = (0..self.knows.len()).filter(|w| warps >> w & 1 != 0);
        for w in members.clone() {
            joined.iter_mut().zip(&self.knows[w]).for_each(|(j, k)| *j = (*j).max(*k));
        }
        for w in members {
            self.knows[w] = joined;
            self.tick(w);
        }
    }

    /// `bar.warp.sync`.
    pub fn tick(&mut self, warp: usize) {
        let Some(knows) = self.knows.get_mut(warp) else { return };
        knows[warp] += 1;
        if knows[warp] > 0xffff {
            // The clock is full: what was before is forgotten.
            self.begin();
        }
    }

    /// Notes an access of a lane and gives one that it races with.
    #[inline]
    pub fn access(&mut self, warp: u32, lane: u32, at: u32, bytes: u32, how: How) -> Option<Other> {
        let knows = self.knows.get(warp as usize)?;
        let clock = knows[warp as usize];
        let reads = matches!(how, How::Read | How::ReadByAll);
        let several = u32::from(how == How::ReadByAll) << 5;
        let (mut at, end) = (at, at + bytes);
        let mut found = None;
        while at < end {
            if end - at >= 4 && at.is_multiple_of(4) && reads {
                let new = Access(Access::new(warp, clock, lane, 15, false).0 | several);
                if may_read(&mut self.words[at as usize / 4], new, knows, self.within_warps) {
                    at += 4;
                    continue;
                }
            }
            let (word, first) = (at / 4, at % 4);
            let n = (end - at).min(4 - first);
            let mut new = Access::new(warp, clock, lane, ((1 << n) - 1) << first, how == How::Atomic);
            new.0 |= several;
            let within = self.within_warps;
            let races = |old: Access| {
                old.bytes() & new.bytes() != 0
                    && if old.warp() == warp {
                        within && old.clock() == clock && (old.lane() != lane || old.several() || new.several())
                    } else {
                        knows[old.warp() as usize] < old.clock()
                    }
                    && !(how == How::Atomic && old.atomic())
            };
            let state = &mut self.words[word as usize];
            let other = |old: Access, wrote| Other { thread: old.warp() * 32 + old.lane(), wrote };
            for old in state.writes {
                if races(old) {
                    found = Some(other(old, true));
                }
            }
            if !reads {
                for old in state.reads {
                    if races(old) {
                        found = Some(other(old, false));
                    }
                }
            }
            let list = if reads { &mut state.reads } else { &mut state.writes };
            note(list, new, knows);
            at += n;
        }
        found
    }

    /// A read that a write of this warp, which will come later, is not ordered after.
    pub fn read_before(&self, warp: u32, at: u32, bytes: u32) -> Option<u32> {
        let knows = self.knows.get(warp as usize)?;
        let words = &self.words[at as usize / 4..(at + bytes).div_ceil(4) as usize];
        let unordered = |a: &&Access| a.bytes() != 0 && a.warp() != warp && knows[a.warp() as usize] < a.clock();
        let read = words.iter().flat_map(|w| &w.reads).find(unordered)?;
        Some(read.warp() * 32 + read.lane())
    }
}

/// Notes a read of a word if it is what most are: no write is unordered, and the warp has read the word already or
/// nobody has.
#[inline(always)]
fn may_read(state: &mut Word, new: Access, knows: &[u32; 32], within: bool) -> bool {
    let (warp, clock, lane) = (new.warp(), new.clock(), new.lane());
    let ordered = |old: Access| {
        let alone = old.lane() == lane && !old.several() && !new.several();
        let own = old.warp() == warp && old.clock() == clock && !alone;
        knows[old.warp() as usize] >= old.clock() && !(own && within && old.bytes() != 0)
    };
    if !(ordered(state.writes[0]) & ordered(state.writes[1])) {
        return false;
    }
    let kept = &mut state.reads[0];
    if (kept.0 ^ new.0) & !0x7e0 == 0 {
        kept.0 |= u32::from(kept.lane() != lane) << 5 | u32::from(new.several()) << 5;
        return true;
    }
    let over = kept.bytes() == 0 || kept.warp() == warp && kept.clock() < clock;
    if over {
        *kept = new;
    }
    over
}

/// Keeps an access: joined with one of its warp and time, else in the place of one that is over.
#[inline]
fn note(list: &mut [Access; 2], new: Access, knows: &[u32; 32]) {
    for old in list.iter_mut() {
        let alike = (old.0 ^ new.0) & !0x7ef == 0;
        if old.bytes() != 0 && alike {
            let several = old.several() || new.several() || old.lane() != new.lane();
            old.0 |= new.bytes() | u32::from(several) << 5;
            return;
        }
    }
    let over = |a: Access| a.bytes() == 0 || a.warp() == new.warp() || knows[a.warp() as usize] >= a.clock();
    let place = if over(list[0]) {
        0
    } else if over(list[1]) {
        1
    } else {
        0
    };
    list[place] = new;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barriers_order_warps_and_nothing_else_does() {
        let mut r = Races::new(64, 2, true);
        assert!(r.access(0, 0, 0, 4, How::Write).is_none());
        assert!(r.access(1, 0, 0, 4, How::Read).is_some_and(|o| o.wrote && o.thread == 0));
        r.begin();
        assert!(r.access(0, 0, 0, 4, How::Write).is_none());
        r.barrier(3);
        assert!(r.access(1, 0, 0, 4, How::Read).is_none());
        assert!(r.access(0, 5, 0, 4, How::Write).is_some_and(|o| !o.wrote && o.thread == 32));
        // Halves of a word are apart.
        r.begin();
        assert!(r.access(0, 0, 4, 2, How::Write).is_none());
        assert!(r.access(1, 0, 6, 2, How::Write).is_none());
        assert!(r.access(1, 0, 4, 4, How::Read).is_some());
    }

    #[test]
    fn lanes_of_a_warp_need_a_warp_barrier_and_atomics_do_not_race() {
        let mut r = Races::new(64, 1, true);
        assert!(r.access(0, 1, 8, 4, How::Write).is_none());
        assert!(r.access(0, 1, 8, 4, How::Read).is_none());
        assert!(r.access(0, 2, 8, 4, How::Read).is_some());
        r.begin();
        r.access(0, 1, 8, 4, How::Write);
        r.tick(0);
        assert!(r.access(0, 2, 8, 4, How::Read).is_none());
        r.begin();
        r.access(0, 1, 0, 4, How::Atomic);
        assert!(r.access(0, 2, 0, 4, How::Atomic).is_none());
        assert!(r.access(0, 3, 0, 4, How::Read).is_some());
    }
}
