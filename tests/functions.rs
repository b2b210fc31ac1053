//! The functions of f32 in machine code over every exponent, against those of f64.

#[path = "support/kernel.rs"]
mod support;

use partita::interp::eval_map;
use partita::kernel::*;
use partita::program::Access;
use partita::types::{DType, MapOp};
use support::{pack, run, unpack, with_each_generator};

/// out[i] = op(x[i])
fn pointwise(op: MapOp, n: usize) -> Kernel {
    let at = Index::of_loop(LoopId(0));
    let buffer = |access| KernelBuffer { dtype: DType::F32, access };
    let expr = |node| Expr { node, dtype: DType::F32 };
    Kernel {
        name: op.name().to_string(),
        extents: vec![n],
        rows: 1,
        buffers: vec![buffer(Access::Read), buffer(Access::Write)],
        exprs: vec![
            expr(Node::Load { buffer: ArgId(0), at: at.clone(), when: None, fill: 0.0 }),
            expr(Node::Map(op, vec![ExprId(0)])),
        ],
        body: vec![Statement::Pass(Pass {
            stores: vec![Store { buffer: ArgId(1), at, value: ExprId(1), when: None }],
            ..Pass::default()
        })],
        ..Kernel::default()
    }
}

/// Numbers of every exponent and both signs, with mantissas at the ends and between.
fn sweep() -> Vec<f64> {
    let mut all = Vec::new();
    let mut state = 1u32;
    for exponent in 0..255u32 {
        for step in 0..200u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let mantissa = match step {
                0 => 0,
                1 => 1,
                2 => 0x007F_FFFF,
                _ => state >> 9,
            };
            for sign in [0, 1] {
                all.push(f64::from(f32::from_bits(sign << 31 | exponent << 23 | mantissa)));
            }
        }
    }
    all
}

/// Distance from the exact value in units of the last place of the nearest f32.
fn ulps(got: f64, want: f64) -> f64 {
    let nearest = want as f32;
    if f64::from(nearest) == got || (want.is_nan() && got.is_nan()) {
        return 0.0;
    }
    if !got.is_finite() || !nearest.is_finite() {
        // One step beyond the largest number counts as one.
        let largest = f64::from(f32::MAX);
        return if got.abs().min(want.abs()) >= largest && got.signum() == want.signum() { 1.0 } else { f64::INFINITY };
    }
    let exponent = (want.abs().log2().floor() as i32 - 23).max(-149);
    (got - want).abs() / 2f64.powi(exponent)
}

fn functions_are_within_two_units_of_the_last_place() {
    use MapOp::*;
    let x = sweep();
    for op in [Exp, Log, Tanh, Erf, Sin, Cos, Expm1, Log1p, Sigmoid, Softplus] {
        let mut buffers = [pack(DType::F32, &x), pack(DType::F32, &vec![0.0; x.len()])];
        run(&pointwise(op, x.len()), &mut buffers, &[]);
        let mut worst = (0.0, 0.0, 0.0, 0.0);
        for (x, got) in x.iter().zip(unpack(DType::F32, &buffers[1])) {
            let want = eval_map(op, DType::F64, &[*x]);
            let distance = ulps(got, want);
            if distance > worst.0 {
                worst = (distance, *x, got, want);
            }
        }
        let most = if matches!(op, Expm1 | Log1p | Sigmoid | Softplus) { 2.5 } else { 2.0 };
        assert!(
            worst.0 <= most,
            "{}({:e}) is {:e}, not {:e}: {:.2} units",
            op.name(),
            worst.1,
            worst.2,
            worst.3,
            worst.0
        );
    }
}

#[test]
fn every_function_over_every_exponent() {
    with_each_generator(functions_are_within_two_units_of_the_last_place);
}
