//! The order of samples as a pure function of (seed, position): no permutation is stored, nothing is replayed.

use crate::types::rng;

/// Streams of random bits that order draws from; any fixed distinct numbers.
const SHUFFLE: u64 = 0x7061_7274_6974_6101;
const OFFSET: u64 = 0x7061_7274_6974_6102;

/// A bijection of `0..n` chosen by a seed and an epoch: the swap-or-not shuffle of V. T. Hoang, B. Morris and
/// P. Rogaway ("An Enciphering Scheme Based on a Card Shuffle", 2012), in which each round pairs `x` with
/// `(k - x) mod n` and swaps the pair, or not, by one bit that both members agree on.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    /// Per round: the pairing offset and the key of the bits.
    rounds: Vec<(u64, u64)>,
}

impl Permutation {
    pub fn new(seed: u64, epoch: u64, n: u64) -> Permutation {
        let bits = u64::from(u64::BITS - n.leading_zeros());
        let rounds = (0..6 * bits.max(4))
            .map(|round| {
                let key = rng::key(seed, epoch, SHUFFLE, round);
                (below(key, 0, n.max(1)), key)
            })
            .collect();
        Permutation { n, rounds }
    }

    /// The image of `x < n`.
    pub fn at(&self, x: u64) -> u64 {
        self.rounds.iter().fold(x, |x, &(k, key)| {
            let partner = if k >= x { k - x } else { k + (self.n - x) };
            let swap = rng::bits(key, x.max(partner).wrapping_add(1)) >> 31 == 1;
            if swap { partner } else { x }
        })
    }
}

/// In `0..=most`: where the first window of an epoch begins.
pub fn offset(seed: u64, epoch: u64, most: u64) -> u64 {
    below(rng::key(seed, epoch, OFFSET, 0), 0, most.saturating_add(1))
}

/// In `0..n`; 64 random bits scaled, so the bias is below n / 2^64.
fn below(key: u64, counter: u64, n: u64) -> u64 {
    let high = u128::from(rng::bits(key, counter.wrapping_mul(2)));
    let low = u128::from(rng::bits(key, counter.wrapping_mul(2) + 1));
    (((high << 32 | low) * u128::from(n)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_a_bijection_and_moves_things() {
        for n in (1..200).chain([997, 4096, 10_000]) {
            let p = Permutation::new(1, 0, n);
            let mut image: Vec<u64> = (0..n).map(|x| p.at(x)).collect();
            let fixed = image.iter().enumerate().filter(|(i, v)| *i as u64 == **v).count();
            image.sort();
            assert!(image.iter().copied().eq(0..n), "n = {n}");
            assert!(n < 50 || fixed < 10, "n = {n}: {fixed} fixed points");
        }
    }

    #[test]
    fn seeds_and_epochs_differ_and_repeat() {
        let order = |seed, epoch| -> Vec<u64> {
            let p = Permutation::new(seed, epoch, 1000);
            (0..1000).map(|x| p.at(x)).collect()
        };
        assert_eq!(order(3, 4), order(3, 4));
        assert_ne!(order(3, 4), order(3, 5));
        assert_ne!(order(3, 4), order(4, 4));
    }

    #[test]
    fn all_orders_of_three_are_about_equally_likely() {
        let mut seen = std::collections::BTreeMap::new();
        for seed in 0..6000 {
            let p = Permutation::new(seed, 0, 3);
            *seen.entry((p.at(0), p.at(1), p.at(2))).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 6);
        assert!(seen.values().all(|&c| (880..1120).contains(&c)), "{seen:?}");
    }

    #[test]
    fn large_sizes_stay_in_range() {
        let n = (1 << 40) + 12345;
        let p = Permutation::new(7, 1, n);
        let image: std::collections::BTreeSet<u64> = (0..1000).map(|x| p.at(x * 7919)).collect();
        assert_eq!(image.len(), 1000);
        assert!(image.iter().all(|&x| x < n));
    }

    #[test]
    fn offsets_cover_their_range() {
        let seen: std::collections::BTreeSet<u64> = (0..500).map(|e| offset(1, e, 9)).collect();
        assert!(seen.iter().copied().eq(0..10), "{seen:?}");
        assert_eq!(offset(1, 1, 0), 0);
    }
}
