//! Which ranks hold which stages.

/// Stage `s` on rank `s` modulo their number.
pub fn looped(ranks: usize, chunks: usize) -> Vec<Vec<usize>> {
    (0..ranks * chunks).map(|s| vec![s % ranks]).collect()
}

/// Down the ranks and back up: the last rank holds the two stages in the middle.
pub fn v(ranks: usize) -> Vec<Vec<usize>> {
    (0..ranks).chain((0..ranks).rev()).map(|r| vec![r]).collect()
}

/// Down and up at once: stage `s` on rank `s` and on the one as far from the other end.
pub fn dual(ranks: usize) -> Vec<Vec<usize>> {
    (0..ranks).map(|s| vec![s.min(ranks - 1 - s), s.max(ranks - 1 - s)]).collect()
}
