//! Minimum cuts, by which passes choose what is kept: which arcs of least total weight separate a source from a sink (Dinic 1970).

/// Of an arc that is never cut.
pub const NEVER: u64 = u64::MAX / 4;

pub type NodeId = usize;

struct Arc {
    to: NodeId,
    /// What may still flow.
    left: u64,
}

/// A network with a source and a sink.
pub struct Network {
    /// Arcs in pairs: the second of a pair is the first one's reverse.
    arcs: Vec<Arc>,
    out: Vec<Vec<usize>>,
}

pub const SOURCE: NodeId = 0;
pub const SINK: NodeId = 1;

impl Default for Network {
    fn default() -> Network {
        Network::new()
    }
}

impl Network {
    pub fn new() -> Network {
        Network { arcs: Vec::new(), out: vec![Vec::new(); 2] }
    }

    pub fn node(&mut self) -> NodeId {
        self.out.push(Vec::new());
        self.out.len() - 1
    }

    pub fn arc(&mut self, from: NodeId, to: NodeId, weight: u64) {
        for (a, b, left) in [(from, to, weight), (to, from, 0)] {
            self.out[a].push(self.arcs.len());
            self.arcs.push(Arc { to: b, left });
        }
    }

    /// For every node whether it is on the sink's side of the least cut; of several, of the one nearest to the sink.
    pub fn sink_side(mut self) -> Vec<bool> {
        while let Some(levels) = self.levels() {
            let mut next = vec![0; self.out.len()];
            while self.push(&levels, &mut next) {}
        }
        // Whatever may still flow into the sink is on its side.
        let mut side = vec![false; self.out.len()];
        side[SINK] = true;
        let mut work = vec![SINK];
        while let Some(n) = work.pop() {
            for &a in &self.out[n] {
                let from = self.arcs[a].to;
                if self.arcs[a ^ 1].left > 0 && !side[from] {
                    side[from] = true;
                    work.push(from);
                }
            }
        }
        side
    }

    /// Distances from the source; None where the sink can no longer be reached.
    fn levels(&self) -> Option<Vec<u32>> {
        let mut levels = vec![u32::MAX; self.out.len()];
        levels[SOURCE] = 0;
        let mut queue = std::collections::VecDeque::from([SOURCE]);
        while let Some(n) = queue.pop_front() {
            for &a in &self.out[n] {
                let Arc { to, left } = self.arcs[a];
                if left > 0 && levels[to] == u32::MAX {
                    levels[to] = levels[n] + 1;
                    queue.push_back(to);
                }
            }
        }
        (levels[SINK] != u32::MAX).then_some(levels)
    }

    /// Lets flow what one shortest path can take; false where there is none. `next` is the arc of each node to try first.
    fn push(&mut self, levels: &[u32], next: &mut [usize]) -> bool {
        let mut path: Vec<usize> = Vec::new();
        let mut at = SOURCE;
        while at != SINK {
            let found = (next[at]..self.out[at].len()).find(|i| {
                let Arc { to, left } = self.arcs[self.out[at][*i]];
                left > 0 && levels[to] == levels[at] + 1
            });
            match found {
                Some(i) => {
                    next[at] = i;
                    let a = self.out[at][i];
                    path.push(a);
                    at = self.arcs[a].to;
                }
                None => {
                    // A dead end: the way there is not tried again.
                    next[at] = self.out[at].len();
                    let Some(a) = path.pop() else { return false };
                    at = self.arcs[a ^ 1].to;
                    next[at] += 1;
                }
            }
        }
        let flow = path.iter().map(|a| self.arcs[*a].left).min().unwrap_or(0);
        for a in path {
            self.arcs[a].left -= flow;
            self.arcs[a ^ 1].left += flow;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The weight of a cut.
    fn weight(arcs: &[(usize, usize, u64)], side: &[bool]) -> u64 {
        arcs.iter().filter(|(a, b, _)| !side[*a] && side[*b]).map(|(.., w)| w).sum()
    }

    proptest! {
        #[test]
        fn no_cut_is_lighter_and_none_as_light_is_nearer_to_the_sink(
            list in prop::collection::vec((0usize..8, 0usize..8, 0u64..6), 1..24)
        ) {
            let mut network = Network::new();
            (2..8).for_each(|_| { network.node(); });
            list.iter().for_each(|(a, b, w)| network.arc(*a, *b, *w));
            let side = network.sink_side();
            prop_assert!(side[SINK] && !side[SOURCE]);
            let found = weight(&list, &side);
            for choice in 0..64u32 {
                let other: Vec<bool> = (0..8).map(|n| n == SINK || n > 1 && choice >> (n - 2) & 1 == 1).collect();
                let w = weight(&list, &other);
                prop_assert!(w >= found);
                prop_assert!(w > found || (0..8).all(|n| other[n] || !side[n]), "{:?} {:?}", side, other);
            }
        }
    }
}
