//! Offsets in the arena: largest buffers first, each into the tightest gap that is free for its whole lifetime.

use super::Lifetime;
use crate::program::ALIGN;

pub struct Wanted {
    pub id: usize,
    pub bytes: usize,
    pub life: Lifetime,
}

/// An offset for each, and where the last one ends.
pub fn assign(wanted: &[Wanted]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    let length = |w: &Wanted| w.life.last - w.life.first;
    order.sort_by_key(|i| {
        let w = &wanted[*i];
        (std::cmp::Reverse(w.bytes), std::cmp::Reverse(length(w)), w.life.first, w.id)
    });
    let mut places = vec![0; wanted.len()];
    let mut placed = Placed::new(wanted.iter().map(|w| w.life.last).max().unwrap_or(0));
    let mut end = 0;
    for i in order {
        let w = &wanted[i];
        let at = placed.tightest_gap(w);
        places[i] = at;
        placed.insert(at, w);
        end = end.max(at + w.bytes);
    }
    (places, end.next_multiple_of(ALIGN))
}

/// What is placed so far: all of it, and what lives in each span of time. Most buffers live so briefly that they meet only what is in one
/// or two spans.
struct Placed {
    all: Row,
    spans: Vec<Row>,
    /// Steps of a span.
    length: usize,
}

/// Spans of time.
const SPANS: usize = 64;

impl Placed {
    fn new(last: usize) -> Placed {
        let length = last / SPANS + 1;
        let spans = (0..=last / length).map(|_| Row::default()).collect();
        Placed { all: Row::default(), spans, length }
    }

    fn insert(&mut self, at: usize, w: &Wanted) {
        let spans = w.life.first / self.length..=w.life.last / self.length;
        self.spans[spans].iter_mut().for_each(|row| row.insert(at, w));
        self.all.insert(at, w);
    }

    fn tightest_gap(&self, w: &Wanted) -> usize {
        let mut gap = Gap { bytes: w.bytes, best: None, free: 0 };
        match &self.spans[w.life.first / self.length..=w.life.last / self.length] {
            [row] => row.met(w.life).for_each(|used| gap.next(used)),
            // What is in both is seen twice, which changes nothing.
            [a, b] => {
                let (mut a, mut b) = (a.met(w.life).peekable(), b.met(w.life).peekable());
                while let Some(used) = match (a.peek(), b.peek()) {
                    (Some(x), Some(y)) if y < x => b.next(),
                    (Some(_), _) => a.next(),
                    (None, _) => b.next(),
                } {
                    gap.next(used);
                }
            }
            _ => self.all.met(w.life).for_each(|used| gap.next(used)),
        }
        gap.best.map_or(gap.free, |(_, at)| at)
    }
}

/// By offset: where each begins and ends, and when it lives. Lifetimes lie on their own: most that are looked at are not met.
#[derive(Default)]
struct Row {
    places: Vec<(usize, usize)>,
    lives: Vec<Lifetime>,
}

impl Row {
    fn insert(&mut self, at: usize, w: &Wanted) {
        let slot = self.places.partition_point(|(start, _)| *start <= at);
        self.places.insert(slot, (at, at + w.bytes));
        self.lives.insert(slot, w.life);
    }

    fn met(&self, life: Lifetime) -> impl Iterator<Item = (usize, usize)> {
        let met = self.lives.iter().enumerate().filter(move |(_, l)| l.meets(life));
        met.map(|(k, _)| self.places[k])
    }
}

/// The smallest gap of enough bytes between places that come in the order of their beginnings.
struct Gap {
    bytes: usize,
    best: Option<(usize, usize)>,
    free: usize,
}

impl Gap {
    fn next(&mut self, (start, stop): (usize, usize)) {
        if start >= self.free + self.bytes {
            let gap = start - self.free;
            if self.best.is_none_or(|(size, _)| gap < size) {
                self.best = Some((gap, self.free));
            }
        }
        self.free = self.free.max(stop.next_multiple_of(ALIGN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buffers_that_live_together_share_no_byte(
            list in prop::collection::vec((1usize..5000, 0usize..40, 0usize..12), 1..80)
        ) {
            let wanted: Vec<Wanted> = list
                .iter()
                .enumerate()
                .map(|(id, (bytes, first, length))| {
                    Wanted { id, bytes: *bytes, life: Lifetime { first: *first, last: first + length } }
                })
                .collect();
            let (at, end) = assign(&wanted);
            let mut highest = 0;
            for (i, a) in wanted.iter().enumerate() {
                prop_assert_eq!(at[i] % ALIGN, 0);
                highest = highest.max(at[i] + a.bytes);
                for (j, b) in wanted.iter().enumerate().take(i) {
                    let apart = at[i] + a.bytes <= at[j] || at[j] + b.bytes <= at[i];
                    prop_assert!(!a.life.meets(b.life) || apart, "{} and {}", i, j);
                }
            }
            prop_assert_eq!(highest.next_multiple_of(ALIGN), end);
            // No better than what must be held at once, no worse than no sharing at all.
            let live = |t: usize| -> usize {
                wanted.iter().filter(|w| w.life.first <= t && t <= w.life.last).map(|w| w.bytes).sum()
            };
            let least = (0..60).map(live).max().unwrap_or(0);
            let most: usize = wanted.iter().map(|w| w.bytes.next_multiple_of(ALIGN)).sum();
            prop_assert!(least <= end && end <= most);
        }
    }
}
