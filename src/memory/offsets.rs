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
    // Placed so far, by offset. Lifetimes lie on their own: most that are looked at are not met.
    let mut placed = Placed::default();
    let mut end = 0;
    for i in order {
        let w = &wanted[i];
        let at = placed.tightest_gap(w);
        places[i] = at;
        let slot = placed.spans.partition_point(|(start, _)| *start <= at);
        placed.spans.insert(slot, (at, at + w.bytes));
        placed.lives.insert(slot, w.life);
        end = end.max(at + w.bytes);
    }
    (places, end.next_multiple_of(ALIGN))
}

#[derive(Default)]
struct Placed {
    /// Where each begins and ends.
    spans: Vec<(usize, usize)>,
    lives: Vec<Lifetime>,
}

impl Placed {
    fn tightest_gap(&self, w: &Wanted) -> usize {
        let mut best: Option<(usize, usize)> = None;
        let mut free = 0;
        for (k, life) in self.lives.iter().enumerate() {
            if !life.meets(w.life) {
                continue;
            }
            let (start, stop) = self.spans[k];
            if start >= free + w.bytes {
                let gap = start - free;
                if best.is_none_or(|(size, _)| gap < size) {
                    best = Some((gap, free));
                }
            }
            free = free.max(stop.next_multiple_of(ALIGN));
        }
        best.map_or(free, |(_, at)| at)
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
