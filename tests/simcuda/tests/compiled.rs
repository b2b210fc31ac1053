//! Kernels of CUDA C as NVRTC 12.9 has compiled them (`kernels/*.ptx`), against f64 arithmetic.

mod common;

use common::{Arg, Gpu, bf16s, difference, floats, of_bf16};

const BASIC: &str = include_str!("../kernels/basic.ptx");
const PRODUCTS: &str = include_str!("../kernels/products.ptx");
const ATTENTION: &str = include_str!("../kernels/attention.ptx");

#[test]
fn pointwise_kernels_move_each_byte_once() {
    let gpu = Gpu::new();
    let (rows, cols) = (33, 64);
    let (x, bias) = (floats(1, rows * cols), floats(2, cols));
    let (px, pb, out) = (gpu.put(&x), gpu.put(&bias), gpu.room(rows * cols * 4));
    let args = [
        Arg::Pointer(px),
        Arg::Pointer(pb),
        Arg::Pointer(out),
        Arg::U32((rows * cols / 4) as u32),
        Arg::U32(cols as u32),
    ];
    let counters = gpu.launch(BASIC, "gelu_bias", [2, 1, 1], [96, 1, 1], 0, &args).expect("no fault");
    let want: Vec<f64> = x
        .iter()
        .enumerate()
        .map(|(i, x)| {
            let u = f64::from(x + bias[i % cols]);
            0.5 * u * (1.0 + (0.7978845608 * (u + 0.044715 * u * u * u)).tanh())
        })
        .collect();
    assert!(difference(&gpu.get(out, rows * cols), &want) < 1e-6);
    assert_eq!(counters.unique_read_bytes, (rows * cols * 4 + cols * 4) as u64);
    assert_eq!(
        (counters.unique_written_bytes, counters.written_bytes),
        ((rows * cols * 4) as u64, (rows * cols * 4) as u64)
    );
    assert_eq!(counters.launches, 1);
}

#[test]
fn softmax_uses_shared_memory_barriers_and_shuffles() {
    for threads in [32, 128, 256] {
        let gpu = Gpu::new();
        let (rows, cols) = (5, 301);
        let x = floats(3, rows * cols);
        let (px, out) = (gpu.put(&x), gpu.room(rows * cols * 4));
        let args = [Arg::Pointer(px), Arg::Pointer(out), Arg::U32(cols as u32)];
        gpu.launch(BASIC, "softmax", [rows as u32, 1, 1], [threads, 1, 1], 0, &args).expect("no fault");
        let mut want = Vec::new();
        for row in x.chunks(cols) {
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            want.extend(row.iter().map(|x| f64::from(*x).exp() / sum));
        }
        assert!(difference(&gpu.get(out, rows * cols), &want) < 1e-6);
    }
}

#[test]
fn atomics_integers_and_optimizers() {
    let gpu = Gpu::new();
    let n = 1000;
    let index: Vec<i32> = (0..n).map(|i| (i * i) % 17).collect();
    let v = floats(4, n as usize);
    let (pi, pv, out) = (gpu.put(&index), gpu.put(&v), gpu.put(&[0f32; 17]));
    let args = [Arg::Pointer(pi), Arg::Pointer(pv), Arg::Pointer(out), Arg::U32(n as u32)];
    gpu.launch(BASIC, "scatter_add", [8, 1, 1], [128, 1, 1], 0, &args).expect("no fault");
    let mut want = vec![0f64; 17];
    index.iter().zip(&v).for_each(|(i, v)| want[*i as usize] += f64::from(*v));
    assert!(difference(&gpu.get(out, 17), &want) < 1e-6);

    let out = gpu.room(400 * 4);
    let args = [Arg::U32(0xdead_beef), Arg::U32(77), Arg::Pointer(out), Arg::U32(400)];
    gpu.launch(BASIC, "philox", [4, 1, 1], [128, 1, 1], 0, &args).expect("no fault");
    let philox = |i: u32| {
        let (mut c, mut k) = ([i, 0, 7, 0], [0xdead_beefu32, 77]);
        for _ in 0..10 {
            let (a, b) = (0xD251_1F53u64 * u64::from(c[0]), 0xCD9E_8D57u64 * u64::from(c[2]));
            c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
            k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
        }
        c[0] ^ c[1] ^ c[2] ^ c[3]
    };
    assert_eq!(gpu.get::<u32>(out, 400), (0..400).map(philox).collect::<Vec<u32>>());

    let (p, g, m, s) = (floats(5, 100), floats(6, 100), floats(7, 100), vec![0.5f32; 100]);
    let at = [gpu.put(&p), gpu.put(&g), gpu.put(&m), gpu.put(&s)];
    let mut args: Vec<Arg> = at.iter().map(|a| Arg::Pointer(*a)).collect();
    args.extend([Arg::F32(0.01), Arg::F32(0.9), Arg::F32(0.99), Arg::F32(1e-8), Arg::U32(100)]);
    gpu.launch(BASIC, "adam", [1, 1, 1], [128, 1, 1], 0, &args).expect("no fault");
    let want: Vec<f64> = (0..100)
        .map(|i| {
            let (g, m) = (f64::from(g[i]), f64::from(m[i]));
            let (m, v) = (0.9 * m + 0.1 * g, 0.99 * 0.5 + 0.01 * g * g);
            f64::from(p[i]) - 0.01 * m / (v.sqrt() + 1e-8)
        })
        .collect();
    assert!(difference(&gpu.get(at[0], 100), &want) < 1e-6);
}

/// The error function, by Simpson's rule.
fn erf(x: f64) -> f64 {
    let h = x / 400.0;
    let f = |i: i32| (-(h * f64::from(i)).powi(2)).exp();
    let sum: f64 = (0..200).map(|i| f(2 * i) + 4.0 * f(2 * i + 1) + f(2 * i + 2)).sum();
    sum * h / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn calls_local_memory_tables_and_the_library_of_functions() {
    let gpu = Gpu::new();
    let n = 200;
    let x: Vec<f32> = floats(8, n).iter().map(|x| x * 3.0).collect();
    let px = gpu.put(&x);
    let slow = |x: f64, n: i32| {
        let mut local = [0f64; 16];
        (0..n).for_each(|i| local[(i & 15) as usize] = x * f64::from(i));
        let s: f64 = (0..n).map(|i| local[((i * 7) & 15) as usize]).sum();
        (1.0 + s * s).ln() / (2.0 + s).sqrt()
    };
    for which in 0..8u32 {
        let out = gpu.room(n * 8);
        let args = [Arg::Pointer(out), Arg::Pointer(px), Arg::U32(n as u32), Arg::U32(which)];
        gpu.launch(BASIC, "misc", [2, 1, 1], [128, 1, 1], 0, &args).unwrap_or_else(|f| panic!("{which}: {f}"));
        let got = gpu.get::<f64>(out, n);
        for i in 0..n {
            let v = x[i];
            let d = f64::from(v);
            let want = match which {
                0 => slow(d, 9 + (i % 7) as i32),
                1 => f64::from(v * 100_000.0).sin() + d.cos(),
                2 => f64::from((i & 7) as u32 + 1) * d,
                3 => f64::from(v.abs() + 0.1).powf(1.7) + f64::from(v.abs() + 0.5).ln(),
                4 => erf(d) + 1.0 / (d.abs() + 1.0).sqrt() + d.exp2() + d.abs().ln_1p(),
                5 => {
                    let whole = (d * 1e6).trunc() / 7.0 + f64::from((v * 100.0) as i32 % 13);
                    let bits = (i as u32 * 77).count_ones() + (i as u32 + 1).leading_zeros();
                    whole + f64::from(bits) + f64::from((i as u32).reverse_bits())
                }
                6 => 1.0,
                _ if (v > 0.0 && i % 3 == 0) || (v < -0.5 && i & 1 == 1) => d % 0.3,
                _ => f64::from(v / 3.0),
            };
            if want.is_nan() {
                assert!(got[i].is_nan());
            } else {
                assert!((got[i] - want).abs() <= 2e-6 * want.abs().max(1.0), "{which}: x = {v}: {} {want}", got[i]);
            }
        }
    }
}

fn product(a: &[f32], b: &[f32], m: usize, n: usize, k: usize) -> Vec<f64> {
    let mut c = vec![0f64; m * n];
    for i in 0..m {
        for p in 0..k {
            for j in 0..n {
                c[i * n + j] += f64::from(a[i * k + p]) * f64::from(b[p * n + j]);
            }
        }
    }
    c
}

fn dims(m: usize, n: usize, k: usize) -> [Arg; 3] {
    [Arg::U32(m as u32), Arg::U32(n as u32), Arg::U32(k as u32)]
}

#[test]
fn tiled_products_of_ragged_sizes() {
    let gpu = Gpu::new();
    let (m, n, k) = (70, 90, 37);
    let (a, b) = (floats(9, m * k), floats(10, k * n));
    let (pa, pb, pc) = (gpu.put(&a), gpu.put(&b), gpu.room(m * n * 4));
    let mut args = vec![Arg::Pointer(pa), Arg::Pointer(pb), Arg::Pointer(pc)];
    args.extend(dims(m, n, k));
    let counters = gpu.launch(PRODUCTS, "tiled", [2, 2, 1], [256, 1, 1], 0, &args).expect("no fault");
    assert!(difference(&gpu.get(pc, m * n), &product(&a, &b, m, n, k)) < 1e-6);
    assert!(counters.shared_cycles >= counters.shared_accesses && counters.shared_accesses > 0);
}

#[test]
fn tensor_core_products_with_a_pipeline_of_copies() {
    let gpu = Gpu::new();
    let (m, n, k) = (128, 64, 96);
    let (a, b) = (bf16s(11, m * k), bf16s(12, k * n));
    let (pa, pb, pc) = (gpu.put(&a), gpu.put(&b), gpu.room(m * n * 4));
    let mut args = vec![Arg::Pointer(pa), Arg::Pointer(pb), Arg::Pointer(pc)];
    args.extend(dims(m, n, k));
    let counters = gpu.launch(PRODUCTS, "mma_bf16", [1, 2, 1], [128, 1, 1], 0, &args).expect("no fault");
    let (a, b): (Vec<f32>, Vec<f32>) =
        (a.iter().map(|x| of_bf16(*x)).collect(), b.iter().map(|x| of_bf16(*x)).collect());
    assert!(difference(&gpu.get(pc, m * n), &product(&a, &b, m, n, k)) < 1e-6);
    // Rows are padded so that `ldmatrix` has no conflicts.
    assert!(counters.shared_cycles as f64 <= 1.3 * counters.shared_accesses as f64, "{counters:?}");
}

#[test]
fn flash_attention_on_tensor_cores() {
    let gpu = Gpu::new();
    let (heads, tokens) = (2usize, 128usize);
    let n = heads * tokens * 64;
    let [q, k, v] = [21, 22, 23].map(|s| bf16s(s, n));
    let (pq, pk, pv, out) = (gpu.put(&q), gpu.put(&k), gpu.put(&v), gpu.room(n * 4));
    let args = [pq, pk, pv, out].map(Arg::Pointer).into_iter().chain([Arg::U32(tokens as u32)]).collect::<Vec<Arg>>();
    let counters = gpu.launch(ATTENTION, "flash", [2, 2, 1], [128, 1, 1], 3 * 64 * 72 * 2, &args).expect("no fault");
    let value = |x: &[u16], h: usize, t: usize, d: usize| f64::from(of_bf16(x[(h * tokens + t) * 64 + d]));
    let mut want = vec![0f64; n];
    for h in 0..heads {
        for t in 0..tokens {
            let score = |s: usize| (0..64).map(|d| value(&q, h, t, d) * value(&k, h, s, d)).sum::<f64>() * 0.125;
            let weights: Vec<f64> = (0..=t).map(|s| score(s).exp()).collect();
            let all: f64 = weights.iter().sum();
            for d in 0..64 {
                want[(h * tokens + t) * 64 + d] =
                    weights.iter().enumerate().map(|(s, w)| w / all * value(&v, h, s, d)).sum();
            }
        }
    }
    // The weights are rounded to bf16 before the second product.
    assert!(difference(&gpu.get(out, n), &want) < 5e-3);
    assert_eq!(counters.unique_written_bytes, (n * 4) as u64);
    assert_eq!(counters.shared_cycles, counters.shared_accesses, "rows of 144 bytes have no conflicts");
}
