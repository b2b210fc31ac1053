//! Every unit of the processor against attention by the formula. (All options on the best unit: `tests/attention.rs`.)

use super::head::Head;
use super::*;
use crate::program::Strided;

const QUERIES_IN: usize = 75;
const KEYS_IN: usize = 141;
const FEATURES: usize = 21;
const WIDTH: usize = 18;

/// Arrays by number of buffer: q, k, v, out, log, d_out, dq, dk, dv.
struct Arrays(Vec<Vec<f32>>);

impl Arrays {
    fn new(group: usize) -> Arrays {
        let rows = group * QUERIES_IN;
        let sizes = [rows * FEATURES, KEYS_IN * FEATURES, KEYS_IN * WIDTH, rows * WIDTH, rows, rows * WIDTH];
        let grads = [rows * FEATURES, KEYS_IN * FEATURES, KEYS_IN * WIDTH];
        let value = |b: usize, i: usize| ((i * 37 + b * 11) % 101) as f32 / 50.0 - 1.0;
        let array = |(b, n): (usize, &usize)| (0..*n).map(|i| value(b, i)).collect();
        Arrays(sizes.iter().chain(&grads).enumerate().map(array).collect())
    }

    fn run(&mut self, unit: Unit, threads: usize, call: &AttentionGrad) {
        let pool = Pool::new(threads);
        // Not numbers: what is there before must not matter.
        let mut scratch = vec![0x7fc0_0000_7fc0_0000; scratch_bytes(&call.of) * threads / 8];
        let bases: Vec<*mut u8> = self.0.iter_mut().map(|a| a.as_mut_ptr().cast()).collect();
        let locate = |b: BufferId| bases[b.0 as usize];
        // SAFETY: all arrays are as large as the call says, and the unit is available.
        unsafe {
            forward_on(unit, &pool, &call.of, &locate, &mut scratch).unwrap();
            backward_on(unit, &pool, call, &locate, &mut scratch).unwrap();
        }
    }
}

/// By batch (none), group, query, key, feature, value.
fn strided(buffer: u32, steps: [usize; 5]) -> Strided {
    Strided { buffer: BufferId(buffer), offset: 0, steps: steps.map(|s| s as isize).to_vec() }
}

fn call(group: usize, causal: bool) -> AttentionGrad {
    let queries = |buffer, width| strided(buffer, [QUERIES_IN * width, width, 0, 1, 1]);
    let keys = |buffer, width| strided(buffer, [0, 0, width, 1, 1]);
    let of = Attention {
        batch: vec![],
        group: vec![group],
        queries: QUERIES_IN,
        keys: KEYS_IN,
        features: FEATURES,
        width: WIDTH,
        q: queries(0, FEATURES),
        k: keys(1, FEATURES),
        v: keys(2, WIDTH),
        out: queries(3, WIDTH),
        log: Some(strided(4, [QUERIES_IN, 1, 0, 0, 0])),
        documents: None,
        mask: None,
        bias: None,
        first: None,
        scale: 0.8,
        cap: 0.0,
        causal,
        reach: None,
        dtype: DType::F32,
    };
    let (dq, dk, dv) = (Some(queries(6, FEATURES)), Some(keys(7, FEATURES)), Some(keys(8, WIDTH)));
    AttentionGrad { of, d_out: queries(5, WIDTH), dq, dk, dv, sums: None }
}

/// out, log, dq, dk, dv
fn formula(x: &Arrays, group: usize, causal: bool) -> [Vec<f64>; 5] {
    let at = |b: usize, i: usize| f64::from(x.0[b][i]);
    let mut all = [3, 4, 6, 7, 8].map(|b: usize| vec![0.0; x.0[b].len()]);
    for row in 0..group * QUERIES_IN {
        let seen = if causal { row % QUERIES_IN + 1 } else { KEYS_IN };
        let dot = |a: usize, i: usize, b: usize, j: usize, n: usize| -> f64 {
            (0..n).map(|f| at(a, i * n + f) * at(b, j * n + f)).sum()
        };
        let score: Vec<f64> = (0..seen).map(|k| 0.8 * dot(0, row, 1, k, FEATURES)).collect();
        let total: f64 = score.iter().map(|s| s.exp()).sum();
        let weight: Vec<f64> = score.iter().map(|s| s.exp() / total).collect();
        let by_weight: Vec<f64> = (0..seen).map(|k| dot(5, row, 2, k, WIDTH)).collect();
        let level: f64 = weight.iter().zip(&by_weight).map(|(w, d)| w * d).sum();
        all[1][row] = total.ln();
        for k in 0..seen {
            let by_product = 0.8 * weight[k] * (by_weight[k] - level);
            for e in 0..WIDTH {
                all[0][row * WIDTH + e] += weight[k] * at(2, k * WIDTH + e);
                all[4][k * WIDTH + e] += weight[k] * at(5, row * WIDTH + e);
            }
            for f in 0..FEATURES {
                all[2][row * FEATURES + f] += by_product * at(1, k * FEATURES + f);
                all[3][k * FEATURES + f] += by_product * at(0, row * FEATURES + f);
            }
        }
    }
    all
}

#[test]
fn every_unit_computes_the_formula_on_any_number_of_threads() {
    for (group, causal) in [(1, false), (2, true)] {
        let call = call(group, causal);
        let expected = formula(&Arrays::new(group), group, causal);
        for unit in Unit::available() {
            let mut first: Option<Vec<Vec<f32>>> = None;
            for threads in [1, 3] {
                let mut arrays = Arrays::new(group);
                arrays.run(unit, threads, &call);
                for (buffer, e) in [3, 4, 6, 7, 8].into_iter().zip(&expected) {
                    for (i, (x, y)) in e.iter().zip(&arrays.0[buffer]).enumerate() {
                        let near = (x - f64::from(*y)).abs() < 2e-5 * (1.0 + x.abs());
                        assert!(near, "{unit:?}, causal {causal}, buffer {buffer} [{i}]: {y}, expected {x}");
                    }
                }
                assert_eq!(first.get_or_insert(arrays.0.clone()), &arrays.0, "{unit:?}: {threads} threads differ");
            }
        }
    }
}

#[test]
fn one_query_gets_what_it_gets_among_many() {
    let mut many = Arrays::new(1);
    many.run(Unit::best(), 1, &call(1, true));
    let whole = call(1, true).of;
    let moved = |s: &Strided, n: usize| Strided { offset: n, ..s.clone() };
    for unit in Unit::available() {
        for query in [0, 1, 17, 74] {
            let a = Attention {
                queries: 1,
                q: moved(&whole.q, query * FEATURES),
                out: moved(&whole.out, query * WIDTH),
                log: None,
                first: Some(BufferId(9)),
                ..whole.clone()
            };
            let mut first: Option<Vec<f32>> = None;
            for threads in [1, 3] {
                let mut arrays = Arrays::new(1);
                arrays.0.push(vec![f32::from_bits(query as u32)]);
                let mut scratch = vec![0x7fc0_0000_7fc0_0000; scratch_bytes(&a) * threads / 8];
                let bases: Vec<*mut u8> = arrays.0.iter_mut().map(|a| a.as_mut_ptr().cast()).collect();
                // SAFETY: all arrays are as large as the call says, and the unit is available.
                unsafe {
                    forward_on(unit, &Pool::new(threads), &a, &|b| bases[b.0 as usize], &mut scratch).unwrap();
                    let head = Head::new(&a, DType::F32, &|b| bases[b.0 as usize]);
                    assert!(one::run::<f32>(unit, &Pool::new(1), &head, &mut scratch).is_some());
                }
                let out = arrays.0[3][query * WIDTH..][..WIDTH].to_vec();
                for (x, y) in many.0[3][query * WIDTH..].iter().zip(&out) {
                    assert!((x - y).abs() < 2e-5 * (1.0 + x.abs()), "{unit:?}, query {query}: {y}, expected {x}");
                }
                assert_eq!(first.get_or_insert(out.clone()), &out, "{unit:?}: {threads} threads differ");
            }
        }
    }
}

#[test]
fn queries_that_see_nothing_give_zero() {
    let mut call = call(1, true);
    call.of.reach = Some(0);
    let mut arrays = Arrays::new(1);
    arrays.run(Unit::best(), 1, &call);
    for buffer in [3, 6, 7, 8] {
        assert!(arrays.0[buffer].iter().all(|x| *x == 0.0), "buffer {buffer}");
    }
    assert!(arrays.0[4].iter().all(|x| *x == f32::INFINITY));
}
