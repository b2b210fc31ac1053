//! Places in the queues of experts.

/// Bytes of scratch for rows of n indices: pairs of an index and its place, sorted.
pub fn scratch_bytes(n: usize) -> usize {
    n * 8
}

/// index [rows, n] -> out [rows, n]: how many earlier elements of the row are equal; -1 at or beyond `limit`, and for
/// negative indices. `scratch` holds at least n elements.
pub fn pack_place(index: &[i32], out: &mut [i32], n: usize, limit: usize, scratch: &mut [u64]) {
    if n == 0 {
        return;
    }
    for (index, out) in index.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
        // Equal indices side by side, in order of their positions.
        let sorted = &mut scratch[..n];
        for (i, (slot, e)) in sorted.iter_mut().zip(index).enumerate() {
            *slot = (*e as u32 as u64) << 32 | i as u64;
        }
        sorted.sort_unstable();
        let (mut expert, mut queue) = (None, 0usize);
        for entry in sorted {
            let (e, i) = ((*entry >> 32) as u32 as i32, *entry as u32 as usize);
            if expert != Some(e) {
                (expert, queue) = (Some(e), 0);
            }
            out[i] = if e < 0 || queue >= limit { -1 } else { queue as i32 };
            queue += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_equals_before_up_to_the_limit() {
        let mut out = [9; 12];
        let mut scratch = [0; 6];
        pack_place(&[2, 0, 2, 2, -1, 0, 1, 1, 1, 1, 1, 7], &mut out, 6, 2, &mut scratch);
        assert_eq!(out, [0, 0, 1, -1, -1, 1, 0, 1, -1, -1, -1, 0]);
    }
}
