//! Machine code of kernels against the plain reading of the kernel IR.

#[path = "support/plain.rs"]
mod plain;
#[path = "support/kernel.rs"]
mod support;

use partita::codegen::wide::Width;
use partita::interp::eval_map;
use partita::kernel::*;
use partita::program::Access;
use partita::types::rng::{self, Dist};
use partita::types::{DType, MapOp, ReduceKind};
use plain::Plain;
use support::{pack, run, run_pieces, unpack};

fn read(dtype: DType) -> KernelBuffer {
    KernelBuffer { dtype, access: Access::Read }
}

fn write(dtype: DType) -> KernelBuffer {
    KernelBuffer { dtype, access: Access::Write }
}

fn along(l: u32) -> Index {
    Index { base: 0, loops: vec![(LoopId(l), 1)], exprs: vec![] }
}

fn loops(terms: &[(u32, i64)]) -> Index {
    Index { base: 0, loops: terms.iter().map(|(l, c)| (LoopId(*l), *c)).collect(), exprs: vec![] }
}

fn load(buffer: u32, at: Index) -> Node {
    Node::Load { buffer: ArgId(buffer), at, when: None, fill: 0.0 }
}

fn store(buffer: u32, at: Index, value: u32) -> Store {
    Store { buffer: ArgId(buffer), at, value: ExprId(value), when: None }
}

fn expr(node: Node, dtype: DType) -> Expr {
    Expr { node, dtype }
}

fn result(op: MapOp, dtype: DType) -> DType {
    use MapOp::*;
    match op {
        Cast(to) => to,
        IsFinite | Not | And | Or | Eq | Ne | Lt | Le | Gt | Ge => DType::Bool,
        _ => dtype,
    }
}

fn valid(op: MapOp, dtype: DType) -> bool {
    use MapOp::*;
    match dtype {
        DType::Bool => matches!(op, Not | And | Or | Eq | Ne | Lt | Le | Gt | Ge | Cast(_) | Where),
        DType::I32 => matches!(
            op,
            Neg | Square
                | Abs
                | Sign
                | Cast(_)
                | Add
                | Sub
                | Mul
                | FloorDiv
                | Rem
                | Pow
                | Max
                | Min
                | Eq
                | Ne
                | Lt
                | Le
                | Gt
                | Ge
                | Where
        ),
        _ => !matches!(op, Not | And | Or),
    }
}

/// out[i] = op(a[i], b[i], ..)
fn pointwise(op: MapOp, dtype: DType, n: usize) -> Kernel {
    let mut operands = vec![dtype; op.arity()];
    if op == MapOp::Where {
        operands[0] = DType::Bool;
    }
    let out = result(op, dtype);
    let mut buffers: Vec<KernelBuffer> = operands.iter().map(|d| read(*d)).collect();
    buffers.push(write(out));
    let mut exprs: Vec<Expr> = operands.iter().enumerate().map(|(k, d)| expr(load(k as u32, along(0)), *d)).collect();
    exprs.push(expr(Node::Map(op, (0..operands.len() as u32).map(ExprId).collect()), out));
    let value = operands.len() as u32;
    Kernel {
        name: op.name().to_string(),
        extents: vec![n],
        rows: 1,
        buffers,
        exprs,
        body: vec![Statement::Pass(Pass { stores: vec![store(value, along(0), value)], ..Pass::default() })],
        ..Kernel::default()
    }
}

fn samples(op: MapOp, dtype: DType, operand: usize) -> Vec<f64> {
    let n = 1531;
    let unit = |i: u64| f64::from(rng::unit(rng::stream("samples") | 1, i * 3 + operand as u64));
    (0..n)
        .map(|i| {
            let u = unit(i);
            let sign = if unit(i + 10_000) < 0.5 { -1.0 } else { 1.0 };
            match dtype {
                DType::Bool => f64::from(u8::from(u < 0.5)),
                DType::I32 => match i % 4 {
                    0 => [0.0, 1.0, -1.0, 2_147_483_647.0, -2_147_483_648.0, 7.0, -7.0, 2.0][(u * 8.0) as usize],
                    1 => (u * 20.0).floor() - 10.0,
                    2 => (u * 4e9 - 2e9).floor(),
                    // Small exponents for powers.
                    _ => (u * 6.0).floor(),
                },
                _ => match i % 6 {
                    0 => {
                        let edges = [
                            0.0,
                            -0.0,
                            1.0,
                            -1.0,
                            0.5,
                            -0.5,
                            1.5,
                            2.5,
                            f64::INFINITY,
                            f64::NEG_INFINITY,
                            f64::NAN,
                            1e-40,
                            -1e-40,
                            3e38,
                            -3e38,
                            1e-310,
                            88.5,
                            -88.5,
                            103.0,
                            -103.5,
                            65504.0,
                            65519.0,
                            65520.0,
                            6e-8,
                            2e-8,
                            -3e9,
                            3e9,
                            0.625,
                            -0.625,
                            1e-5,
                        ];
                        edges[(u * edges.len() as f64) as usize]
                    }
                    1 => sign * u,
                    2 => sign * u * 10.0,
                    3 => sign * (u * 200.0 - 100.0).exp(),
                    4 => sign * (u * 20.0 - 18.0).exp(),
                    _ if op == MapOp::Sin || op == MapOp::Cos => sign * u * 1000.0,
                    _ => sign * u * 110.0,
                },
            }
        })
        .collect()
}

/// Distance in units of the last place of the format.
fn ulps(dtype: DType, a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    if !a.is_finite() || !b.is_finite() {
        // The step from the largest number to infinity counts as one.
        let largest = match dtype {
            DType::F16 => 65504.0,
            DType::BF16 => f64::from(half::bf16::MAX),
            DType::F32 => f64::from(f32::MAX),
            _ => f64::MAX,
        };
        return if a.abs().min(b.abs()) == largest && a.signum() == b.signum() { 1.0 } else { f64::INFINITY };
    }
    let (digits, least) = match dtype {
        DType::F16 => (10, -24),
        DType::BF16 => (7, -133),
        DType::F32 => (23, -149),
        _ => (52, -1074),
    };
    let exponent = (b.abs().log2().floor() as i32 - digits).max(least);
    (a - b).abs() / 2f64.powi(exponent)
}

fn tolerance(op: MapOp, dtype: DType) -> f64 {
    use MapOp::*;
    match op {
        Exp | Expm1 | Log | Log1p | Tanh | Sigmoid | Softplus | Erf | Sin | Cos | Pow => match dtype {
            DType::F16 | DType::BF16 => 1.0,
            DType::F32 => 2.5,
            // The reference itself is not the nearest number.
            _ => 8.0,
        },
        Rsqrt => 1.5,
        _ => 0.0,
    }
}

fn every_elementwise_function_on_every_type() {
    let mut failures = Vec::new();
    for &op in MapOp::ALL {
        for dtype in [DType::Bool, DType::I32, DType::F16, DType::BF16, DType::F32, DType::F64] {
            if !valid(op, dtype) {
                continue;
            }
            let out = result(op, dtype);
            let operand_types: Vec<DType> =
                (0..op.arity()).map(|k| if op == MapOp::Where && k == 0 { DType::Bool } else { dtype }).collect();
            let mut buffers: Vec<Vec<u8>> =
                operand_types.iter().enumerate().map(|(k, d)| pack(*d, &samples(op, *d, k))).collect();
            let inputs: Vec<Vec<f64>> = buffers.iter().zip(&operand_types).map(|(b, d)| unpack(*d, b)).collect();
            let n = inputs[0].len();
            buffers.push(vec![0; n * out.bytes()]);
            let kernel = pointwise(op, dtype, n);
            let mut single = buffers.clone();
            run(&kernel, &mut buffers, &[]);
            let pieces: Vec<(usize, usize)> = (0..n).map(|i| (i, i + 1)).collect();
            run_pieces(&kernel, &mut single, &[], &pieces);
            assert_eq!(buffers.last(), single.last(), "{} of {dtype}: single rows differ", op.name());
            let got = unpack(out, buffers.last().unwrap());
            let mut worst = (0.0, String::new());
            for i in 0..n {
                let x: Vec<f64> = inputs.iter().map(|v| v[i]).collect();
                // 16-bit floats are computed in f32 and rounded at the end.
                let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
                let want = partita::interp::round(out, eval_map(op, wide, &x));
                let distance = ulps(out, got[i], want);
                if distance > worst.0 {
                    worst = (distance, format!("{}{x:?} as {dtype}: {:e}, not {want:e}", op.name(), got[i]));
                }
            }
            if worst.0 > tolerance(op, dtype) {
                failures.push(format!("{:.2} ulp: {}", worst.0, worst.1));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

fn powers_by_small_constants() {
    for n in [-2.0, -1.0, 1.0, 2.0, 3.0, 4.0, 0.5, 7.0] {
        for dtype in [DType::F32, DType::F64] {
            let x: Vec<f64> = numbers(9, 37).iter().map(|x| x.abs() + 0.01).collect();
            let mut kernel = pointwise(MapOp::Pow, dtype, x.len());
            kernel.exprs[1] = expr(Node::Const(n), dtype);
            let mut buffers = [pack(dtype, &x), pack(dtype, &x), pack(dtype, &x)];
            run(&kernel, &mut buffers, &[]);
            for (x, y) in unpack(dtype, &buffers[0]).iter().zip(unpack(dtype, &buffers[2])) {
                let want = partita::interp::round(dtype, x.powf(n));
                assert!(ulps(dtype, y, want) <= 2.0, "{x} ^ {n} is {y}, not {want}");
            }
        }
    }
}

fn random_draws_are_those_of_the_shared_generator_bit_for_bit() {
    let n = 100_003;
    for dist in [
        Dist::Uniform { lo: -0.3, hi: 2.0 },
        Dist::Normal { std: 0.02 },
        Dist::TruncNormal { std: 1.5 },
        Dist::RandInt { n: 50_257 },
        Dist::RandInt { n: u32::MAX },
        Dist::Bernoulli { p: 0.1 },
        Dist::Bernoulli { p: 1.0 },
    ] {
        let dtype = match dist {
            Dist::RandInt { .. } => DType::I32,
            Dist::Bernoulli { .. } => DType::Bool,
            _ => DType::F32,
        };
        let kernel = Kernel {
            name: "draw".into(),
            extents: vec![n],
            rows: 1,
            buffers: vec![write(dtype)],
            scalars: 2,
            exprs: vec![expr(
                Node::Random {
                    dist,
                    key: 1,
                    counter: Index { base: 7, loops: vec![(LoopId(0), 3)], exprs: vec![] },
                    origin: None,
                },
                dtype,
            )],
            body: vec![Statement::Pass(Pass { stores: vec![store(0, along(0), 0)], ..Pass::default() })],
            ..Kernel::default()
        };
        let key = rng::key(3, 5, rng::stream("here"), 0);
        let mut buffers = vec![vec![0; n * dtype.bytes()]];
        run(&kernel, &mut buffers, &[1, key]);
        let got = unpack(dtype, &buffers[0]);
        for (i, x) in got.iter().enumerate() {
            let at = 7 + 3 * i as u64;
            let want = match dist {
                Dist::RandInt { n } => f64::from(rng::draw_int(n, key, at)),
                _ => f64::from(rng::draw(dist, key, at)),
            };
            assert!(x.to_bits() == want.to_bits(), "{dist:?} at {at}: {x} for {want}");
        }
    }
}

fn numbers(seed: u64, n: usize) -> Vec<f64> {
    (0..n).map(|i| f64::from(rng::draw(Dist::Normal { std: 1.0 }, seed | 1, i as u64))).collect()
}

/// Runs a kernel both ways, whole and in uneven pieces, and compares all buffers.
fn check(kernel: &Kernel, buffers: &[Vec<u8>], keys: &[u64], tolerance: f64) {
    let mut plain = Plain::new(kernel, buffers, keys);
    plain.run();
    let mut whole = buffers.to_vec();
    run(kernel, &mut whole, keys);
    for (k, b) in kernel.buffers.iter().enumerate() {
        for (i, (got, want)) in unpack(b.dtype, &whole[k]).iter().zip(&plain.buffers[k]).enumerate() {
            let near =
                got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= tolerance * want.abs().max(1.0);
            assert!(near, "{} buffer {k} at {i}: {got} for {want}", kernel.name);
        }
    }
    let rows = kernel.row_count();
    let cuts = [0, rows / 7, rows / 7 + 1, rows / 2, rows - rows / 5, rows];
    let pieces: Vec<(usize, usize)> = cuts.windows(2).map(|w| (w[0], w[1])).rev().collect();
    let mut parts = buffers.to_vec();
    run_pieces(kernel, &mut parts, keys, &pieces);
    assert!(whole == parts, "{}: pieces of rows differ from the whole", kernel.name);
}

/// softmax over the last dim: max, sum of exponentials, quotient.
fn softmax(dtype: DType, rows: &[usize], n: usize) -> Kernel {
    let inner = LoopId(rows.len() as u32);
    let mut terms = Vec::new();
    let mut step = n as i64;
    for (l, size) in rows.iter().enumerate().rev() {
        terms.push((l as u32, step));
        step *= *size as i64;
    }
    terms.reverse();
    terms.push((inner.0, 1));
    let at = loops(&terms);
    let exprs = vec![
        expr(load(0, at.clone()), dtype),
        expr(Node::Register(RegisterId(0)), dtype),
        expr(Node::Map(MapOp::Sub, vec![ExprId(0), ExprId(1)]), dtype),
        expr(Node::Map(MapOp::Exp, vec![ExprId(2)]), dtype),
        expr(Node::Register(RegisterId(1)), dtype),
        expr(Node::Map(MapOp::Div, vec![ExprId(3), ExprId(4)]), dtype),
    ];
    let reduce = |register: u32, kind, value: u32| {
        Statement::Pass(Pass {
            loops: vec![inner],
            reductions: vec![Reduction { register: RegisterId(register), kind, value: ExprId(value) }],
            ..Pass::default()
        })
    };
    let mut extents = rows.to_vec();
    extents.push(n);
    Kernel {
        name: format!("softmax {dtype} {rows:?} {n}"),
        extents,
        rows: rows.len(),
        buffers: vec![read(dtype), write(dtype)],
        registers: vec![dtype; 2],
        exprs,
        body: vec![
            reduce(0, ReduceKind::Max, 0),
            reduce(1, ReduceKind::Sum, 3),
            Statement::Pass(Pass { loops: vec![inner], stores: vec![store(1, at, 5)], ..Pass::default() }),
        ],
        ..Kernel::default()
    }
}

fn softmax_of_rows() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for (rows, n) in [(vec![5, 3], 1), (vec![4], 7), (vec![3, 2], 65), (vec![2], 256)] {
            let count: usize = rows.iter().product::<usize>() * n;
            let buffers = [pack(dtype, &numbers(count as u64, count)), pack(dtype, &vec![0.0; count])];
            let tolerance = match dtype {
                DType::F16 => 1e-3,
                DType::BF16 => 1e-2,
                DType::F32 => 1e-6,
                _ => 1e-14,
            };
            check(&softmax(dtype, &rows, n), &buffers, &[], tolerance);
        }
    }
}

/// out[c] = reduction over t of x[t, c]: neighbouring rows fill lanes.
fn reductions_down_columns() {
    for (kind, dtype) in [
        (ReduceKind::Sum, DType::F32),
        (ReduceKind::Max, DType::F32),
        (ReduceKind::Min, DType::I32),
        (ReduceKind::Prod, DType::I32),
        (ReduceKind::Any, DType::Bool),
        (ReduceKind::All, DType::Bool),
        (ReduceKind::Sum, DType::F64),
    ] {
        for (t, c) in [(9, 23), (1, 4), (0, 5), (31, 64)] {
            let kernel = Kernel {
                name: format!("{kind:?} {dtype} {t} {c}"),
                extents: vec![c, t],
                rows: 1,
                buffers: vec![read(dtype), write(dtype)],
                registers: vec![dtype],
                exprs: vec![
                    expr(load(0, loops(&[(0, 1), (1, c as i64)])), dtype),
                    expr(Node::Register(RegisterId(0)), dtype),
                ],
                body: vec![
                    Statement::Pass(Pass {
                        loops: vec![LoopId(1)],
                        reductions: vec![Reduction { register: RegisterId(0), kind, value: ExprId(0) }],
                        ..Pass::default()
                    }),
                    Statement::Pass(Pass { stores: vec![store(1, along(0), 1)], ..Pass::default() }),
                ],
                ..Kernel::default()
            };
            let mut x = numbers(77, t * c);
            match dtype {
                DType::Bool => x.iter_mut().for_each(|x| *x = f64::from(u8::from(*x > 0.7))),
                DType::I32 => x.iter_mut().for_each(|x| *x = (*x * 3.0).round()),
                _ => {}
            }
            check(&kernel, &[pack(dtype, &x), pack(dtype, &vec![0.0; c])], &[], 1e-5);
        }
    }
}

/// The same along rows of memory: each pass fills lanes by its own loop.
fn reductions_along_rows() {
    for (kind, dtype) in [
        (ReduceKind::Sum, DType::F32),
        (ReduceKind::Max, DType::BF16),
        (ReduceKind::Min, DType::F32),
        (ReduceKind::Sum, DType::I32),
        (ReduceKind::Any, DType::Bool),
        (ReduceKind::All, DType::Bool),
        (ReduceKind::Prod, DType::F64),
    ] {
        for n in [1, 4, 19, 33, 130] {
            let kernel = Kernel {
                name: format!("{kind:?} {dtype} {n}"),
                extents: vec![3, n],
                rows: 1,
                buffers: vec![read(dtype), write(dtype)],
                registers: vec![dtype],
                exprs: vec![
                    expr(load(0, loops(&[(0, n as i64), (1, 1)])), dtype),
                    expr(Node::Register(RegisterId(0)), dtype),
                ],
                body: vec![
                    Statement::Pass(Pass {
                        loops: vec![LoopId(1)],
                        reductions: vec![Reduction { register: RegisterId(0), kind, value: ExprId(0) }],
                        ..Pass::default()
                    }),
                    Statement::Pass(Pass { stores: vec![store(1, along(0), 1)], ..Pass::default() }),
                ],
                ..Kernel::default()
            };
            let mut x = numbers(78, 3 * n);
            match dtype {
                DType::Bool => x.iter_mut().for_each(|x| *x = f64::from(u8::from(*x > -1.9))),
                DType::I32 => x.iter_mut().for_each(|x| *x = (*x * 1e9).round()),
                _ => {}
            }
            if dtype == DType::F32 && kind == ReduceKind::Min && n > 4 {
                x[3] = f64::NAN;
            }
            check(&kernel, &[pack(dtype, &x), pack(dtype, &[0.0; 3])], &[], 1e-5);
        }
    }
}

/// A running sum and a running arg max by carries, in both directions of memory.
fn carries_go_from_turn_to_turn() {
    for across in [false, true] {
        let (r, n) = (13usize, 9usize);
        let (row, turn) = if across { (1, r as i64) } else { (n as i64, 1) };
        let at = loops(&[(0, row), (1, turn)]);
        let kernel = Kernel {
            name: format!("scan across={across}"),
            extents: vec![r, n],
            rows: 1,
            buffers: vec![read(DType::F32), write(DType::F32), write(DType::I32)],
            registers: vec![DType::F32, DType::F32, DType::I32],
            exprs: vec![
                expr(Node::Const(0.0), DType::F32),
                expr(Node::Const(f64::NEG_INFINITY), DType::F32),
                expr(Node::Const(-1.0), DType::I32),
                expr(load(0, at.clone()), DType::F32),
                expr(Node::Register(RegisterId(0)), DType::F32),
                expr(Node::Map(MapOp::Add, vec![ExprId(4), ExprId(3)]), DType::F32),
                expr(Node::Register(RegisterId(1)), DType::F32),
                expr(Node::Map(MapOp::Gt, vec![ExprId(3), ExprId(6)]), DType::Bool),
                expr(Node::Map(MapOp::Where, vec![ExprId(7), ExprId(3), ExprId(6)]), DType::F32),
                expr(Node::Index(along(1)), DType::I32),
                expr(Node::Register(RegisterId(2)), DType::I32),
                expr(Node::Map(MapOp::Where, vec![ExprId(7), ExprId(9), ExprId(10)]), DType::I32),
            ],
            body: vec![
                Statement::Pass(Pass {
                    loops: vec![LoopId(1)],
                    carries: vec![
                        Carry { register: RegisterId(0), initial: ExprId(0), next: ExprId(5) },
                        Carry { register: RegisterId(1), initial: ExprId(1), next: ExprId(8) },
                        Carry { register: RegisterId(2), initial: ExprId(2), next: ExprId(11) },
                    ],
                    stores: vec![store(1, at, 5)],
                    ..Pass::default()
                }),
                Statement::Pass(Pass { stores: vec![store(2, along(0), 10)], ..Pass::default() }),
            ],
            ..Kernel::default()
        };
        let buffers = [
            pack(DType::F32, &numbers(5, r * n)),
            pack(DType::F32, &vec![0.0; r * n]),
            pack(DType::I32, &vec![0.0; r]),
        ];
        check(&kernel, &buffers, &[], 1e-5);
    }
}

/// Guarded loads (padding), flips, gathers by an index and guarded stores.
fn addresses_of_all_kinds() {
    let n = 37usize;
    let m = 11usize;
    let index = |base, terms: &[(u32, i64)], exprs: &[(u32, i64)]| Index {
        base,
        loops: terms.iter().map(|(l, c)| (LoopId(*l), *c)).collect(),
        exprs: exprs.iter().map(|(e, c)| (ExprId(*e), *c)).collect(),
    };
    for dtype in [DType::F32, DType::I32, DType::BF16, DType::Bool, DType::F64] {
        let kernel = Kernel {
            name: format!("addresses {dtype}"),
            extents: vec![m, n],
            rows: 2,
            buffers: vec![read(dtype), read(DType::I32), write(dtype), write(dtype), write(DType::I32), write(dtype)],
            exprs: vec![
                // 0: shifted by two, zero (or 1) before the start
                expr(Node::Index(index(-2, &[(1, 1)], &[])), DType::I32),
                expr(Node::Const(0.0), DType::I32),
                expr(Node::Map(MapOp::Ge, vec![ExprId(0), ExprId(1)]), DType::Bool),
                expr(
                    Node::Load {
                        buffer: ArgId(0),
                        at: index(-2, &[(0, n as i64), (1, 1)], &[]),
                        when: Some(ExprId(2)),
                        fill: 1.0,
                    },
                    dtype,
                ),
                // 4: gathered by an index that varies along rows
                expr(load(1, along(1)), DType::I32),
                expr(Node::Check { index: ExprId(4), size: n, site: 5 }, DType::I32),
                expr(load(0, index(0, &[(0, n as i64)], &[(5, 1)])), dtype),
                // 7: an index as a value
                expr(Node::Index(index(3, &[(0, 2), (1, -5)], &[(5, 4)])), DType::I32),
                // 8: by a condition that is the same in all lanes
                expr(Node::Index(along(0)), DType::I32),
                expr(Node::Const(4.0), DType::I32),
                expr(Node::Map(MapOp::Lt, vec![ExprId(8), ExprId(9)]), DType::Bool),
                expr(
                    Node::Load {
                        buffer: ArgId(0),
                        at: index(0, &[(0, n as i64), (1, 1)], &[]),
                        when: Some(ExprId(10)),
                        fill: 0.0,
                    },
                    dtype,
                ),
            ],
            body: vec![Statement::Pass(Pass {
                stores: vec![
                    // flipped
                    store(2, index(n as i64 - 1, &[(0, n as i64), (1, -1)], &[]), 3),
                    Store {
                        buffer: ArgId(3),
                        at: index(0, &[(0, n as i64), (1, 1)], &[]),
                        value: ExprId(6),
                        when: Some(ExprId(2)),
                    },
                    store(4, index(0, &[(0, n as i64), (1, 1)], &[]), 7),
                    store(5, index(0, &[(0, n as i64), (1, 1)], &[]), 11),
                ],
                ..Pass::default()
            })],
            ..Kernel::default()
        };
        let mut x = numbers(8, m * n);
        if !dtype.is_float() {
            x.iter_mut().for_each(|x| *x = (*x * 2.0).round());
        }
        let indices: Vec<f64> = (0..n).map(|i| ((i * 17 + 3) % n) as f64).collect();
        let none = vec![0.0; m * n];
        let buffers = [
            pack(dtype, &x),
            pack(DType::I32, &indices),
            pack(dtype, &none),
            pack(dtype, &none),
            pack(DType::I32, &none),
            pack(dtype, &none),
        ];
        check(&kernel, &buffers, &[], 0.0);
    }
}

fn an_index_out_of_range_is_reported_and_replaced() {
    let n = 21usize;
    for bad in [0usize, 6, 20] {
        let kernel = Kernel {
            name: "gather".into(),
            extents: vec![n],
            rows: 1,
            buffers: vec![read(DType::F32), read(DType::I32), write(DType::F32)],
            exprs: vec![
                expr(load(1, along(0)), DType::I32),
                expr(Node::Check { index: ExprId(0), size: 4, site: 9 }, DType::I32),
                expr(load(0, Index { base: 0, loops: vec![], exprs: vec![(ExprId(1), 1)] }), DType::F32),
                // Enough work for lanes to be worth it.
                expr(Node::Map(MapOp::Exp, vec![ExprId(2)]), DType::F32),
            ],
            body: vec![Statement::Pass(Pass { stores: vec![store(2, along(0), 3)], ..Pass::default() })],
            ..Kernel::default()
        };
        let mut indices: Vec<f64> = (0..n).map(|i| (i % 4) as f64).collect();
        let table = pack(DType::F32, &[1.0, 2.0, 3.0, 4.0]);
        let good = [table.clone(), pack(DType::I32, &indices), pack(DType::F32, &vec![0.0; n])];
        assert_eq!(run(&kernel, &mut good.clone(), &[]), 0);
        indices[bad] = -7.0;
        let mut buffers = [table, pack(DType::I32, &indices), pack(DType::F32, &vec![0.0; n])];
        let status = run(&kernel, &mut buffers, &[]);
        assert_eq!((status >> 32, status as u32 as i32), (10, -7), "bad index at {bad}");
        assert!((unpack(DType::F32, &buffers[2])[bad] - 1f64.exp()).abs() < 1e-6);
    }
}

/// A kernel of random elementwise expressions over a matrix, a row and a column.
fn random_kernel(seed: u64) -> (Kernel, Vec<Vec<u8>>) {
    let mut count = 0u64;
    let mut pick = |n: usize| {
        count += 1;
        rng::draw_int(n as u32, rng::stream("random kernel") ^ seed | 1, count) as usize
    };
    let (r, c) = ([1, 3, 8][pick(3)], [2, 4, 17, 40][pick(4)]);
    let dtypes = [DType::F32, DType::BF16, DType::I32, DType::Bool, DType::F32];
    let mut exprs = vec![
        expr(load(0, loops(&[(0, c as i64), (1, 1)])), DType::F32),
        expr(load(1, along(1)), DType::F32),
        expr(load(2, along(0)), DType::I32),
        expr(Node::Index(loops(&[(0, 3), (1, 1)])), DType::I32),
        expr(load(3, loops(&[(0, 1), (1, r as i64)])), DType::BF16),
        expr(Node::Const(0.75), DType::F32),
        expr(Node::Const(3.0), DType::I32),
    ];
    use MapOp::*;
    let float = [Add, Sub, Mul, Max, Min, Neg, Abs, Square, Sigmoid, Tanh, Floor, Round, Sign];
    let int = [Add, Sub, Mul, Max, Min, Neg, Abs, FloorDiv, Rem];
    for _ in 0..4 + pick(30) {
        let of = |exprs: &[Expr], dtype: DType, pick: &mut dyn FnMut(usize) -> usize| {
            let all: Vec<u32> = (0..exprs.len() as u32).filter(|e| exprs[*e as usize].dtype == dtype).collect();
            (!all.is_empty()).then(|| ExprId(all[pick(all.len())]))
        };
        let dtype = dtypes[pick(5)];
        let (op, on) = match dtype {
            DType::Bool => ([Lt, Ge, Eq, Ne][pick(4)], [DType::F32, DType::I32][pick(2)]),
            DType::I32 if pick(6) == 0 => (Cast(DType::I32), DType::F32),
            DType::F32 if pick(6) == 0 => (Cast(DType::F32), DType::BF16),
            DType::BF16 => (Cast(DType::BF16), DType::F32),
            DType::I32 => (int[pick(int.len())], DType::I32),
            _ if pick(5) == 0 => (Where, DType::F32),
            _ => (float[pick(float.len())], DType::F32),
        };
        let mut args = Vec::new();
        for k in 0..op.arity() {
            let wanted = if op == Where && k == 0 { DType::Bool } else { on };
            args.extend(of(&exprs, wanted, &mut pick));
        }
        if args.len() == op.arity() {
            exprs.push(expr(Node::Map(op, args), dtype));
        }
    }
    let last = |dtype: DType| (0..exprs.len() as u32).rev().find(|e| exprs[*e as usize].dtype == dtype);
    let mut buffers = vec![read(DType::F32), read(DType::F32), read(DType::I32), read(DType::BF16)];
    let mut data = vec![
        pack(DType::F32, &numbers(seed + 1, r * c)),
        pack(DType::F32, &numbers(seed + 2, c)),
        pack(DType::I32, &numbers(seed + 3, r).iter().map(|x| (x * 4.0).round()).collect::<Vec<_>>()),
        pack(DType::BF16, &numbers(seed + 4, r * c)),
    ];
    let mut stores = Vec::new();
    for dtype in [DType::F32, DType::I32, DType::Bool, DType::BF16] {
        if let Some(e) = last(dtype) {
            stores.push(store(buffers.len() as u32, loops(&[(0, c as i64), (1, 1)]), e));
            buffers.push(write(dtype));
            data.push(pack(dtype, &vec![0.0; r * c]));
        }
    }
    let kernel = Kernel {
        name: format!("random {seed}"),
        extents: vec![r, c],
        rows: 2,
        buffers,
        exprs,
        body: vec![Statement::Pass(Pass { stores, ..Pass::default() })],
        ..Kernel::default()
    };
    (kernel, data)
}

fn random_expressions() {
    for seed in 0..150 {
        let (kernel, data) = random_kernel(seed);
        check_random(&kernel, &data);
        // The columns as an inner loop.
        let mut inner = kernel.clone();
        inner.rows = 1;
        if let Statement::Pass(pass) = &mut inner.body[0] {
            pass.loops = vec![LoopId(1)];
        }
        check_random(&inner, &data);
    }
}

/// Discontinuous functions may fall on either side after different roundings, so a few elements may differ.
fn check_random(kernel: &Kernel, data: &[Vec<u8>]) {
    let mut plain = Plain::new(kernel, data, &[]);
    plain.run();
    let mut got = data.to_vec();
    run(kernel, &mut got, &[]);
    let (mut all, mut wrong) = (0, 0);
    for (k, b) in kernel.buffers.iter().enumerate().skip(4) {
        let tolerance = if b.dtype == DType::BF16 { 1e-2 } else { 1e-4 };
        for (x, want) in unpack(b.dtype, &got[k]).iter().zip(&plain.buffers[k]) {
            all += 1;
            let near =
                x == want || (x.is_nan() && want.is_nan()) || (x - want).abs() <= tolerance * want.abs().max(1.0);
            wrong += usize::from(!near);
        }
    }
    assert!(wrong * 100 <= all, "{}: {wrong} of {all} elements are wrong", kernel.name);
    let rows = kernel.row_count();
    let mut parts = data.to_vec();
    run_pieces(kernel, &mut parts, &[], &[(rows / 3, rows), (0, rows / 3)]);
    assert!(got == parts, "{}: pieces of rows differ from the whole", kernel.name);
}

#[test]
fn equal_kernels_share_code_and_text_is_stable() {
    let target = partita::codegen::cpu::Target::host().unwrap();
    let a = softmax(DType::F32, &[3], 8);
    let b = Kernel { name: "another name".into(), ..a.clone() };
    let c = softmax(DType::F32, &[3], 9);
    let code = target.compile(&[a.clone(), c.clone(), b], 2).unwrap();
    assert_eq!(code.functions[0], code.functions[2]);
    assert_ne!(code.functions[0], code.functions[1]);
    assert!(code.functions.iter().all(|f| f % 64 == 0));
    assert_eq!(code, target.compile(&[a.clone(), c, a.clone()], 1).unwrap());
    let text = target.clif(&a);
    assert!(text.starts_with("function u0:0(i64, i64, i64, i64, i64)"), "{text}");
    assert_eq!(text, target.clif(&a));
}

/// A kernel with more sums at once than a frame of vectors should hold is left to the other code generator.
#[test]
fn too_many_values_for_a_frame_are_left_to_cranelift() {
    let (sums, n) = (1200u32, 5usize);
    let at = |k: u32| Index { base: i64::from(k), loops: vec![(LoopId(0), 1)], exprs: vec![] };
    let mut exprs: Vec<Expr> = (0..sums).map(|k| expr(load(0, at(k)), DType::F32)).collect();
    let mut terms: Vec<u32> = (sums..2 * sums).collect();
    exprs.extend((0..sums).map(|k| expr(Node::Register(RegisterId(k)), DType::F32)));
    while terms.len() > 1 {
        let pairs: Vec<Vec<u32>> = terms.chunks(2).map(<[u32]>::to_vec).collect();
        terms = pairs
            .into_iter()
            .map(|pair| {
                if let [a, b] = pair[..] {
                    exprs.push(expr(Node::Map(MapOp::Add, vec![ExprId(a), ExprId(b)]), DType::F32));
                    return exprs.len() as u32 - 1;
                }
                pair[0]
            })
            .collect();
    }
    let sum = |k| Reduction { register: RegisterId(k), kind: ReduceKind::Sum, value: ExprId(k) };
    let kernel = Kernel {
        name: "many sums".into(),
        extents: vec![n],
        buffers: vec![read(DType::F32), write(DType::F32)],
        registers: vec![DType::F32; sums as usize],
        exprs,
        body: vec![
            Statement::Pass(Pass {
                loops: vec![LoopId(0)],
                reductions: (0..sums).map(sum).collect(),
                ..Pass::default()
            }),
            Statement::Pass(Pass { stores: vec![store(1, Index::constant(0), terms[0])], ..Pass::default() }),
        ],
        ..Kernel::default()
    };
    assert_eq!(Width::W512.compile(&kernel), None);
    // Half the width, half the frame: sums that live in memory are summed well.
    assert!(Width::W256.compile(&kernel).is_some());
    let x: Vec<f64> = (0..sums as usize + n).map(|i| (i % 7) as f64).collect();
    if Width::W256.is_here() {
        support::with_generator(Some(Width::W256), || {
            check(&kernel, &[pack(DType::F32, &x), pack(DType::F32, &[0.0])], &[], 1e-6);
        });
    }
}

/// Code for processors other than this one is at least complete and self-contained.
#[test]
fn other_processors_have_code_for_everything() {
    for arch in ["aarch64", "x86_64"] {
        let target = partita::codegen::cpu::Target::named(arch).unwrap();
        let mut kernels =
            vec![softmax(DType::F32, &[2], 64), softmax(DType::F16, &[2], 64), softmax(DType::F64, &[2], 7)];
        for &op in MapOp::ALL {
            for dtype in [DType::Bool, DType::I32, DType::F16, DType::BF16, DType::F32, DType::F64] {
                if valid(op, dtype) {
                    kernels.push(pointwise(op, dtype, 37));
                }
            }
        }
        kernels.extend((0..12).map(|seed| random_kernel(seed).0));
        let code = target.compile(&kernels, 2).unwrap();
        assert!(code.target.starts_with(arch), "{}", code.target);
    }
}

/// Every check is a test, with each code generator that this processor can run the code of.
mod by_each_generator {
    macro_rules! tests {
        ($($name:ident)*) => {$(
            #[test]
            fn $name() {
                super::support::with_each_generator(super::$name);
            }
        )*};
    }

    tests! {
        every_elementwise_function_on_every_type
        powers_by_small_constants
        random_draws_are_those_of_the_shared_generator_bit_for_bit
        softmax_of_rows
        reductions_down_columns
        reductions_along_rows
        carries_go_from_turn_to_turn
        addresses_of_all_kinds
        an_index_out_of_range_is_reported_and_replaced
        random_expressions
    }
}
