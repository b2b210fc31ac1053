//! Walks over strided elements without allocating.

/// More dims than any program's value has after neighbours are merged.
pub const MAX_DIMS: usize = 32;

/// Calls `row(offsets, n)` for every index of all dims but the last, in row-major order: `offsets` are where the row of
/// each of the `N` operands begins, in elements, and `n` is the length of the last dim. Row numbers `begin..end` only.
///
/// `strides[k]` are those of operand k, one a dim.
pub fn rows<const N: usize>(
    sizes: &[usize],
    strides: [&[isize]; N],
    begin: usize,
    end: usize,
    mut row: impl FnMut([isize; N], usize),
) {
    assert!(sizes.len() <= MAX_DIMS, "{} dims in one walk", sizes.len());
    let Some((&n, outer)) = sizes.split_last() else {
        if begin < end {
            row([0; N], 1);
        }
        return;
    };
    if begin >= end {
        return;
    }
    let mut index = [0usize; MAX_DIMS];
    let mut offsets = [0isize; N];
    let mut rest = begin;
    for (d, &size) in outer.iter().enumerate().rev() {
        index[d] = rest % size;
        rest /= size;
        for k in 0..N {
            offsets[k] += index[d] as isize * strides[k][d];
        }
    }
    for _ in begin..end {
        row(offsets, n);
        for (d, &size) in outer.iter().enumerate().rev() {
            index[d] += 1;
            if index[d] < size {
                for k in 0..N {
                    offsets[k] += strides[k][d];
                }
                break;
            }
            index[d] = 0;
            for k in 0..N {
                offsets[k] -= (size - 1) as isize * strides[k][d];
            }
        }
    }
}

/// How many rows [`rows`] has in all.
pub fn row_count(sizes: &[usize]) -> usize {
    match sizes.split_last() {
        Some((_, outer)) => outer.iter().product(),
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visited(sizes: &[usize], strides: &[isize], begin: usize, end: usize) -> Vec<isize> {
        let mut seen = Vec::new();
        let last = strides.last().copied().unwrap_or(0);
        rows(sizes, [strides], begin, end, |[at], n| seen.extend((0..n as isize).map(|i| at + i * last)));
        seen
    }

    #[test]
    fn visits_every_element_in_row_major_order() {
        assert_eq!(visited(&[2, 3], &[10, 1], 0, 2), [0, 1, 2, 10, 11, 12]);
        assert_eq!(visited(&[2, 2, 2], &[1, 100, -10], 0, 4), [0, -10, 100, 90, 1, -9, 101, 91]);
        assert_eq!(visited(&[], &[], 0, 1), [0]);
        assert_eq!(visited(&[4], &[3], 0, 1), [0, 3, 6, 9]);
    }

    #[test]
    fn parts_make_the_whole() {
        let (sizes, strides) = ([3, 4, 5, 2], [7, 1, 40, 3]);
        let whole = visited(&sizes, &strides, 0, row_count(&sizes));
        let mut parts = visited(&sizes, &strides, 0, 17);
        parts.extend(visited(&sizes, &strides, 17, 60));
        assert_eq!(whole.len(), 120);
        assert_eq!(whole, parts);
    }
}
