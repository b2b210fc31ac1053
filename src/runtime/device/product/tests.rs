//! Products of all kinds by every unit of this machine, against plain sums.

use super::super::share::Shared;
use super::*;
use crate::runtime::device::library::Element;
use crate::types::rng;
use crate::with_element;
use half::{bf16, f16};

fn numbers(stream: u64, n: usize) -> Vec<f64> {
    // Few bits, so that every type holds them, and sums of them are exact.
    (0..n).map(|i| f64::from(rng::draw_int(33, stream | 1, i as u64) - 16) / 8.0).collect()
}

fn bytes(dtype: DType, x: &[f64]) -> Vec<u64> {
    let raw: Vec<u8> = x
        .iter()
        .flat_map(|&x| match dtype {
            DType::F64 => x.to_le_bytes().to_vec(),
            DType::F32 => (x as f32).to_le_bytes().to_vec(),
            DType::BF16 => bf16::from_f64(x).to_le_bytes().to_vec(),
            DType::F16 => f16::from_f64(x).to_le_bytes().to_vec(),
            DType::I32 => ((x * 8.0) as i32).to_le_bytes().to_vec(),
            DType::Bool => unreachable!(),
        })
        .collect();
    raw.chunks(8)
        .map(|c| {
            let mut word = [0; 8];
            word[..c.len()].copy_from_slice(c);
            u64::from_le_bytes(word)
        })
        .collect()
}

fn values(dtype: DType, raw: &[u64], n: usize) -> Vec<f64> {
    // SAFETY: as many elements as were written by `bytes`.
    unsafe {
        with_element!(dtype, E => {
            std::slice::from_raw_parts(raw.as_ptr().cast::<E>(), n).iter().map(|x| x.value()).collect()
        })
    }
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lay {
    Rows,
    Columns,
    /// Neither runs along neighbours.
    Apart,
}

#[derive(Clone, Copy)]
struct Case {
    size: (usize, usize, usize),
    batch: usize,
    sum: usize,
    /// Of a, b and c.
    lay: [Lay; 3],
    accumulate: bool,
    dtype: DType,
    out: DType,
}

/// Steps along rows and columns, and the elements of the whole.
fn lay(rows: usize, columns: usize, lay: Lay) -> (isize, isize, isize) {
    match lay {
        Lay::Rows => (columns as isize + 2, 1, (rows * (columns + 2) + 5) as isize),
        Lay::Columns => (1, rows as isize + 3, (columns * (rows + 3) + 5) as isize),
        Lay::Apart => (2 * columns as isize + 1, 2, (rows * (2 * columns + 1) + 6) as isize),
    }
}

fn check(case: &Case) {
    let Case { size: (m, n, k), batch, sum, accumulate, dtype, out, .. } = *case;
    let (am, ak, a_next) = lay(m, k, case.lay[0]);
    let (bk, bn, b_next) = lay(k, n, case.lay[1]);
    let (cm, cn, c_next) = lay(m, n, case.lay[2]);
    let (a_batch, b_batch) = (a_next * sum as isize, b_next * sum as isize);
    let product = Product {
        batch: &[Extent { size: batch, a: a_batch, b: b_batch, c: c_next }],
        sums: &[Extent { size: sum, a: a_next, b: b_next, c: 0 }],
        m: Extent { size: m, a: am, b: 0, c: cm },
        n: Extent { size: n, a: 0, b: bn, c: cn },
        k: Extent { size: k, a: ak, b: bk, c: 0 },
        accumulate,
        dtype,
        out,
    };
    let (na, nb, nc) = (batch * a_batch as usize, batch * b_batch as usize, batch * c_next as usize);
    let (a, b, start) = (bytes(dtype, &numbers(11, na)), bytes(dtype, &numbers(12, nb)), bytes(out, &numbers(13, nc)));
    let (x, y) = (values(dtype, &a, na), values(dtype, &b, nb));
    let mut expected = values(out, &start, nc);
    for t in 0..batch {
        for i in 0..m {
            for j in 0..n {
                let mut total = 0.0;
                for s in t * sum..(t + 1) * sum {
                    let (a, b) = (s * a_next as usize + i * am as usize, s * b_next as usize + j * bn as usize);
                    total += (0..k).map(|l| x[a + l * ak as usize] * y[b + l * bk as usize]).sum::<f64>();
                }
                let c = &mut expected[t * c_next as usize + i * cm as usize + j * cn as usize];
                *c = if accumulate { *c + total } else { total };
            }
        }
    }
    let tolerance = match out {
        DType::F64 => 1e-13,
        DType::F32 => 1e-6,
        DType::F16 => 1e-3,
        DType::BF16 => 4e-3,
        DType::I32 | DType::Bool => 0.0,
    };
    for unit in Unit::available() {
        let mut first: Option<Vec<u64>> = None;
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads);
            let mut c = start.clone();
            let mut scratch = vec![u64::MAX; if Product::needs_scratch(dtype) { threads * SCRATCH / 8 } else { 0 }];
            // SAFETY: the vectors hold all that the extents reach, and the unit is one of this processor.
            unsafe {
                let (a, b, c) = (a.as_ptr().cast(), b.as_ptr().cast(), c.as_mut_ptr().cast());
                product.run_on(unit, &pool, a, b, c, &mut scratch).unwrap();
            }
            for (i, (got, want)) in values(out, &c, nc).iter().zip(&expected).enumerate() {
                let near = (got - want).abs() <= tolerance * want.abs().max((k * sum).max(1) as f64);
                let Case { lay, .. } = case;
                assert!(near, "{unit:?} {dtype}->{out} {m}x{n}x{k} {lay:?} at {i}: {got} for {want}");
            }
            assert!(*first.get_or_insert(c.clone()) == c, "{unit:?} {dtype} {m}x{n}x{k}: {threads} threads differ");
        }
    }
}

/// Of many cases every so many are tried: builds without optimisation are slow.
const EVERY: usize = if cfg!(debug_assertions) { 9 } else { 1 };

const TYPES: [(DType, DType); 9] = [
    (DType::F32, DType::F32),
    (DType::F64, DType::F64),
    (DType::BF16, DType::BF16),
    (DType::BF16, DType::F32),
    (DType::F16, DType::F16),
    (DType::F32, DType::F64),
    (DType::F16, DType::F32),
    (DType::BF16, DType::F64),
    (DType::F64, DType::BF16),
];

fn lays(way: usize) -> [Lay; 3] {
    [way, way / 3, way / 9].map(|n| [Lay::Rows, Lay::Columns, Lay::Apart][n % 3])
}

#[test]
fn any_strides_and_types_agree_with_the_plain_sum() {
    let sizes = [(1, 1, 1), (3, 5, 7), (1, 17, 9), (17, 1, 33), (16, 16, 2), (20, 12, 64), (5, 5, 0), (33, 65, 19)];
    for (i, size) in sizes.into_iter().enumerate() {
        for way in 0..27 {
            let (dtype, out) = TYPES[(i + way) % TYPES.len()];
            let accumulate = (i + way / 2) % 2 == 0;
            if !(i + way).is_multiple_of(EVERY) {
                continue;
            }
            check(&Case { size, batch: 1 + i % 3, sum: way % 3, lay: lays(way), accumulate, dtype, out });
        }
    }
}

#[test]
fn integers_wrap_and_may_be_in_any_order() {
    for way in 0..27 {
        let (dtype, out) = (DType::I32, DType::I32);
        check(&Case { size: (9, 7, 5), batch: 2, sum: 2, lay: lays(way), accumulate: way % 2 == 0, dtype, out });
    }
}

#[test]
fn sizes_around_those_of_tiles() {
    // Rows and columns of all units' tiles, one less and one more; k of one, of odd pairs, and of several chunks.
    let mut n = 0usize;
    for rows in [1, 2, 4, 11, 12, 13, 15, 16, 17, 24, 47, 48, 49, 64, 65, 97] {
        for columns in [1, 3, 4, 5, 7, 8, 9, 15, 17, 25] {
            n += 1;
            if !n.is_multiple_of(EVERY) {
                continue;
            }
            let k = [1, 2, 7, 8, 31, 33, 385, 900][n % 8];
            let (dtype, out) = TYPES[n % 5];
            let case = Case {
                size: (rows, columns, k),
                batch: 1,
                sum: 1,
                lay: lays(n),
                accumulate: n.is_multiple_of(2),
                dtype,
                out,
            };
            check(&case);
            check(&Case { size: (columns, rows, k), ..case });
        }
    }
}

#[test]
fn large_products_are_the_same_on_any_number_of_threads() {
    for way in [0, 1, 3, 9, 13, 26].into_iter().step_by(EVERY) {
        for (dtype, out) in [TYPES[0], TYPES[2], TYPES[3], TYPES[1]] {
            let case = |size, batch, accumulate| Case { size, batch, sum: 1, lay: lays(way), accumulate, dtype, out };
            check(&case((310, 70, 130), 1, false));
            check(&case((9, 401, 600), 2, true));
        }
    }
}

#[test]
fn blocks_and_chunks_of_all_sizes_meet() {
    // More rows and columns than a block, several chunks of k, several sums; what is shared fits or does not.
    for (i, size) in [(400, 530, 401), (530, 400, 401), (130, 1100, 770), (1, 1100, 770)].into_iter().enumerate() {
        if EVERY > 1 && i < 3 {
            continue;
        }
        let (dtype, out) = TYPES[[0, 3, 2, 0][i]];
        check(&Case { size, batch: 1, sum: 1 + i % 2, lay: lays(7 * i), accumulate: i == 2, dtype, out });
    }
}

#[test]
fn tiles_pack_the_rows_of_coming_ones() {
    // Whole blocks of rows and less, several chunks of k, and once fewer turns of tiles than there is to pack.
    for (columns, rows, k) in [(50, 448, 400), (26, 600, 200)] {
        for (dtype, accumulate) in [(DType::F32, false), (DType::F64, true)] {
            let case =
                Case { size: (columns, rows, k), batch: 1, sum: 1, lay: [Lay::Rows; 3], accumulate, dtype, out: dtype };
            check(&case);
        }
    }
}

#[test]
fn few_columns_are_summed_in_pieces_alike_on_any_number_of_threads() {
    let few = |size, dtype, out, lay| Case { size, batch: 1, sum: 1, lay, accumulate: false, dtype, out };
    let (rows, columns) = ([Lay::Rows; 3], [Lay::Columns; 3]);
    for (i, (dtype, out)) in TYPES.into_iter().enumerate() {
        let n = 1 + i % 3;
        let case = few((n, 700, 131), dtype, out, rows);
        if [DType::F32, DType::F64].contains(&dtype) && dtype == out {
            let extent = |size: usize, a, b, c| Extent { size, a, b, c };
            let product = Product {
                batch: &[],
                sums: &[],
                m: extent(n, 131, 0, 700),
                n: extent(700, 0, 1, 1),
                k: extent(131, 1, 700, 0),
                accumulate: false,
                dtype,
                out,
            };
            let unit = Unit::best();
            assert!(plan::Task::new(&product, unit.kernel(dtype, out)).in_pieces());
        }
        check(&case);
        check(&few((700, n, 131), dtype, out, columns));
        check(&Case { accumulate: true, ..case });
    }
}

/// Blocks of a product, put together, are the product; every element is in one block.
fn check_blocks(size: (usize, usize, usize), lay_of: [Lay; 3], units: Units, (dtype, out): (DType, DType)) {
    let (m, n, k) = size;
    let (am, ak, na) = lay(m, k, lay_of[0]);
    let (bk, bn, nb) = lay(k, n, lay_of[1]);
    let (cm, cn) = if lay_of[2] == Lay::Columns { (1, m as isize) } else { (n as isize, 1) };
    let product = Product {
        batch: &[],
        sums: &[],
        m: Extent { size: m, a: am, b: 0, c: cm },
        n: Extent { size: n, a: 0, b: bn, c: cn },
        k: Extent { size: k, a: ak, b: bk, c: 0 },
        accumulate: false,
        dtype,
        out,
    };
    let (a, b) = (bytes(dtype, &numbers(11, na as usize)), bytes(dtype, &numbers(12, nb as usize)));
    let width = if cn == 1 && cm == n as isize { n } else { m };
    let beside = [None, Some(Beside { at: a.as_ptr().cast(), bytes: 4 })];
    for unit in Unit::available() {
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads);
            let mut scratch = vec![u64::MAX; threads * product.scratch_of_blocks(unit, units).div_ceil(8)];
            let from = (a.as_ptr().cast(), b.as_ptr().cast());
            let (empty, made) = (bytes(out, &vec![-99.0; m * n]), std::sync::atomic::AtomicUsize::new(0));
            let [mut whole, mut blocks] = [empty.clone(), empty];
            let to = Shared(blocks.as_mut_ptr().cast::<u8>());
            let copy = |block: &Block, to: *mut u8| {
                let Block { lines, across, at, step } = block;
                made.fetch_add(lines.len() * across.len(), std::sync::atomic::Ordering::Relaxed);
                for (i, line) in lines.clone().enumerate() {
                    // SAFETY: an element of c, and the memory of a block.
                    unsafe {
                        let to = to.add((line * width + across.start) * out.bytes());
                        to.copy_from_nonoverlapping(at.add(i * step), across.len() * out.bytes());
                    }
                }
            };
            let then = |block: &Block| {
                let Block { lines, across, .. } = block;
                assert!(lines.start % units.lines == 0 && across.start % units.across == 0);
                let ends = (lines.end % units.lines == 0, across.end % units.across == 0);
                assert!((ends.0 || lines.end == m * n / width) && (ends.1 || across.end == width));
                copy(block, to.get());
            };
            // SAFETY: the vectors hold all that the extents reach, and the unit is one of this processor.
            unsafe {
                product.run_in_blocks(unit, &pool, from, (units, &beside), &mut scratch, &then).unwrap();
                assert_eq!(made.into_inner(), m * n);
                product.run_on(unit, &pool, from.0, from.1, whole.as_mut_ptr().cast(), &mut scratch).unwrap();
            }
            let what = format!("{unit:?} {dtype}->{out} {size:?} {lay_of:?} {units:?}, {threads} threads");
            assert!(blocks == whole, "{what}");
        }
    }
}

#[test]
fn blocks_that_are_used_at_once_are_those_of_the_product() {
    let shapes = [
        ((64, 96, 16), (1, 1)),
        ((70, 1300, 9), (1, 26)),
        ((40, 2100, 33), (1, 1)),
        ((500, 30, 401), (1, 1)),
        ((96, 60, 0), (2, 60)),
        ((35, 1031, 60), (5, 1031)),
        ((1300, 1, 40), (1, 1)),
        ((9, 1024, 300), (1, 256)),
    ];
    for (i, (size, (lines, across))) in shapes.into_iter().enumerate() {
        for turned in [false, true] {
            let way = i * 4 + usize::from(turned);
            if EVERY > 1 && turned != i.is_multiple_of(2) {
                continue;
            }
            let (m, n, k) = size;
            let (size, c) = if turned { ((n, m, k), Lay::Columns) } else { (size, Lay::Rows) };
            let [a, b, _] = lays(way);
            check_blocks(size, [a, b, c], Units { lines, across }, TYPES[[0, 2, 1, 3, 0][way % 5]]);
        }
    }
}
