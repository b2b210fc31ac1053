//! Hand-computed values for each family of operations.

use super::*;
use crate::types::{MapOp, ReduceKind, ScanKind};

struct Case {
    b: Builder,
    env: Env,
}

impl Case {
    fn new() -> Case {
        Case { b: Builder::default(), env: Env::default() }
    }

    fn dim(&mut self, name: &str, size: usize) -> DimId {
        self.b.add_dim(name, size, false)
    }

    fn input(&mut self, dtype: DType, dims: &[DimId], data: &[f64]) -> ValueId {
        let name = format!("x{}", self.env.inputs.len());
        let shape = dims.iter().map(|d| self.b.size(*d)).collect();
        self.env.inputs.push(Tensor::new(dtype, shape, data.to_vec()));
        let id = self.b.add_input(Input { name, dtype, dims: dims.to_vec(), span: None });
        self.b.input(id)
    }

    /// Evaluates one value, its axes in the given order.
    fn eval(mut self, v: ValueId, dims: &[DimId]) -> Result<Vec<f64>, InterpError> {
        let own = self.b.dims(v).to_vec();
        self.b.output(OutputKind::Value, "out", v);
        let graph = self.b.finish();
        crate::ir::verify::verify(&graph).unwrap();
        let out = run(&graph, &self.env)?.remove(0);
        Ok(permute(&graph, &out, &own, dims).data)
    }
}

#[test]
fn elementwise_functions_round_to_their_type() {
    assert_eq!(eval_map(MapOp::Add, DType::F32, &[1e8, 1.0]), 1e8);
    assert_eq!(eval_map(MapOp::Add, DType::F64, &[1e8, 1.0]), 1e8 + 1.0);
    assert_eq!(eval_map(MapOp::Add, DType::BF16, &[256.0, 1.0]), 256.0);
    assert_eq!(eval_map(MapOp::Mul, DType::I32, &[65536.0, 65537.0]), 65536.0);
    assert_eq!(eval_map(MapOp::FloorDiv, DType::I32, &[-7.0, 2.0]), -4.0);
    assert_eq!(eval_map(MapOp::Rem, DType::I32, &[-7.0, 2.0]), 1.0);
    assert_eq!(eval_map(MapOp::Rem, DType::I32, &[-7.0, 0.0]), 0.0);
    assert_eq!(eval_map(MapOp::Cast(DType::I32), DType::F32, &[-2.9]), -2.0);
    assert_eq!(eval_map(MapOp::Cast(DType::I32), DType::F32, &[1e20]), f64::from(i32::MAX));
    assert_eq!(eval_map(MapOp::Cast(DType::I32), DType::F32, &[f64::NAN]), 0.0);
    assert_eq!(eval_map(MapOp::Round, DType::F32, &[2.5]), 2.0);
    assert!(eval_map(MapOp::Max, DType::F32, &[1.0, f64::NAN]).is_nan());
    assert!(eval_map(MapOp::Softplus, DType::F32, &[f64::NAN]).is_nan());
    assert_eq!(eval_map(MapOp::Softplus, DType::F64, &[1000.0]), 1000.0);
    assert_eq!(eval_map(MapOp::Sigmoid, DType::F64, &[-1000.0]), 0.0);
}

#[test]
fn erf_matches_tabulated_values() {
    // Abramowitz and Stegun, table 7.1, and erfc(3.5) from table 7.3.
    for (x, y) in [(0.5, 0.5204998778130465), (1.0, 0.8427007929497149), (2.0, 0.9953222650189527)] {
        assert!((map::erf(x) - y).abs() < 2e-16 * 2.0, "{x}");
        assert_eq!(map::erf(-x), -map::erf(x));
    }
    assert!((1.0 - map::erf(3.5) - 7.430983723414128e-7).abs() < 1e-16);
    // The two methods meet.
    assert!((map::erf(3.0 - 1e-12) - map::erf(3.0)).abs() < 1e-15);
}

#[test]
fn dims_match_by_name() {
    let mut c = Case::new();
    let (a, b) = (c.dim("a", 2), c.dim("b", 3));
    let x = c.input(DType::F32, &[a, b], &[1., 2., 3., 4., 5., 6.]);
    let y = c.input(DType::F32, &[b, a], &[10., 20., 30., 40., 50., 60.]);
    let z = c.b.add(x, y);
    assert_eq!(c.eval(z, &[a, b]).unwrap(), [11., 32., 53., 24., 45., 66.]);
}

#[test]
fn reductions_and_products() {
    let mut c = Case::new();
    let (a, b, d) = (c.dim("a", 2), c.dim("b", 3), c.dim("d", 2));
    let x = c.input(DType::F32, &[a, b], &[1., 5., 3., 4., 5., 6.]);
    let w = c.input(DType::F32, &[d, b], &[1., 0., 0., 1., 1., 1.]);
    let p = c.b.dot(&[b], x, w, DType::F32);
    let arg = c.b.reduce(ReduceKind::ArgMax, &[b, a], x);
    let arg = c.b.cast(arg, DType::F32);
    let out = c.b.add(p, arg);
    // The largest is x[1, 2]; over (b, a) it stands at 2 * 2 + 1.
    assert_eq!(c.eval(out, &[a, d]).unwrap(), [6., 14., 9., 20.]);
}

#[test]
fn split_and_merge_are_major_first() {
    let mut c = Case::new();
    let (a, b, n, m) = (c.dim("a", 2), c.dim("b", 3), c.dim("n", 6), c.dim("m", 6));
    let x = c.input(DType::F32, &[n], &[0., 1., 2., 3., 4., 5.]);
    let split = c.b.reshape(&[(vec![n], vec![a, b])], x);
    let merged = c.b.reshape(&[(vec![b, a], vec![m])], split);
    assert_eq!(c.eval(merged, &[m]).unwrap(), [0., 3., 1., 4., 2., 5.]);
}

#[test]
fn windows_and_their_adjoint() {
    let mut c = Case::new();
    let (n, o, k) = (c.dim("n", 4), c.dim("o", 3), c.dim("k", 2));
    let x = c.input(DType::F32, &[n], &[1., 2., 3., 4.]);
    let axes = vec![WindowAxis { input: n, offset: -1, dynamic: false, terms: vec![(o, 2), (k, 1)] }];
    let pieces = c.b.window(axes.clone(), 9.0, x, &[]);
    let back = c.b.fold_window(axes, pieces);
    let both = c.b.reduce(ReduceKind::Sum, &[k], pieces);
    let sum = c.b.reduce(ReduceKind::Sum, &[n], back);
    let out = c.b.add(both, sum);
    // pieces: [9 1] [2 3] [4 9]; folded: 1 2 3 4.
    assert_eq!(c.eval(out, &[o]).unwrap(), [20., 15., 23.]);
}

#[test]
fn a_dynamic_offset_is_clamped() {
    let mut c = Case::new();
    let (n, o) = (c.dim("n", 4), c.dim("o", 2));
    let x = c.input(DType::F32, &[n], &[1., 2., 3., 4.]);
    let at = c.b.scalar(3.0, DType::I32);
    let axes = vec![WindowAxis { input: n, offset: 0, dynamic: true, terms: vec![(o, 1)] }];
    let y = c.b.window(axes, 0.0, x, &[at]);
    assert_eq!(c.eval(y, &[o]).unwrap(), [3., 4.]);
}

#[test]
fn gather_and_scatter() {
    let mut c = Case::new();
    let (v, t) = (c.dim("v", 3), c.dim("t", 4));
    let table = c.input(DType::F32, &[v], &[10., 20., 30.]);
    let at = c.input(DType::I32, &[t], &[2., 0., -1., 2.]);
    let rows = c.b.gather(&[v], GatherMode::Zero, table, &[at]);
    let back = c.b.scatter(ReduceKind::Sum, &[t], &[v], rows, &[at]);
    assert_eq!(c.eval(back, &[v]).unwrap(), [10., 0., 60.]);
}

#[test]
fn an_index_out_of_range_names_the_place() {
    let mut c = Case::new();
    let (v, t) = (c.dim("vocab", 3), c.dim("t", 2));
    let table = c.input(DType::F32, &[v], &[1., 2., 3.]);
    let at = c.input(DType::I32, &[t], &[2., 3.]);
    let span = crate::source::Span::new(crate::source::FileId(0), 3, 9);
    c.b.span = Some(span);
    let rows = c.b.gather(&[v], GatherMode::Error, table, &[at]);
    let Def::Op(gather, _) = c.b.graph.value(rows).def else { panic!("an operation's result") };
    assert_eq!(c.b.graph.op(gather).span, Some(span));
    let e = c.eval(rows, &[t]).unwrap_err();
    assert!(e.to_string().starts_with("index 3 is out of range for dim `vocab` of size 3"), "{e}");
    assert_eq!(e, InterpError::Range(gather, OutOfRange { index: 3, dim: "vocab".into(), size: 3, ragged: false }));
}

#[test]
fn concat_stack_and_write() {
    let mut c = Case::new();
    let (a, two, n, s) = (c.dim("a", 1), c.dim("two", 2), c.dim("n", 3), c.dim("s", 2));
    let x = c.input(DType::F32, &[a], &[1.]);
    let y = c.input(DType::F32, &[two], &[2., 3.]);
    let joined = c.b.concat(&[a, two], n, &[x, y]);
    let twice = c.b.add(joined, joined);
    let stacked = c.b.stack(s, &[joined, twice]);
    let start = c.b.scalar(1.0, DType::I32);
    let wide = c.b.broadcast(y, &[s]);
    let written = c.b.emit(Op::WriteAt { dim: n, part: two }, &[stacked, wide, start], &[(DType::F32, vec![s, n])])[0];
    assert_eq!(c.eval(written, &[s, n]).unwrap(), [1., 2., 3., 2., 2., 3.]);
}

#[test]
fn scans() {
    let mut c = Case::new();
    let (n, kinds) = (c.dim("n", 4), c.dim("kinds", 7));
    let x = c.input(DType::F32, &[n], &[2., 3., 3., 1.]);
    let list: Vec<ValueId> = [
        (ScanKind::Sum, false, false),
        (ScanKind::Sum, true, false),
        (ScanKind::Sum, false, true),
        (ScanKind::Prod, true, true),
        (ScanKind::Max, false, true),
        (ScanKind::ArgMax, false, false),
        (ScanKind::ArgMax, true, true),
    ]
    .into_iter()
    .map(|(kind, exclusive, reverse)| {
        let y = c.b.scan(kind, n, exclusive, reverse, x);
        c.b.cast(y, DType::F32)
    })
    .collect();
    let all = c.b.stack(kinds, &list);
    let want: Vec<f64> = [
        [2., 5., 8., 9.],
        [0., 2., 5., 8.],
        [9., 7., 4., 1.],
        [9., 3., 1., 1.],
        [3., 3., 3., 1.],
        [0., 1., 1., 1.],
        [2., 2., 3., -1.],
    ]
    .concat();
    assert_eq!(c.eval(all, &[kinds, n]).unwrap(), want);
}

#[test]
fn linear_scans_both_ways() {
    let mut c = Case::new();
    let (n, s) = (c.dim("n", 3), c.dim("s", 2));
    let g = c.input(DType::F32, &[n], &[5., 2., 3.]);
    let x = c.input(DType::F32, &[n], &[1., 1., 1.]);
    let up = c.b.linear_scan(n, false, g, x);
    let down = c.b.linear_scan(n, true, g, x);
    let all = c.b.stack(s, &[up, down]);
    assert_eq!(c.eval(all, &[s, n]).unwrap(), [1., 3., 10., 16., 3., 1.]);
}

#[test]
fn sorting_breaks_ties_by_lowest_index() {
    let mut c = Case::new();
    let (n, k, m) = (c.dim("n", 4), c.dim("k", 2), c.dim("m", 6));
    let x = c.input(DType::F32, &[n], &[3., 1., 3., 1.]);
    let sorted = c.b.arg_sort(n, x);
    let top = c.b.top_k(n, k, x);
    let all = c.b.concat(&[n, k], m, &[sorted, top]);
    assert_eq!(c.eval(all, &[m]).unwrap(), [1., 3., 0., 2., 0., 2.]);
}

#[test]
fn places_in_queues() {
    let mut c = Case::new();
    let (group, t, k) = (c.dim("group", 2), c.dim("t", 2), c.dim("k", 2));
    let index = c.input(DType::I32, &[group, t, k], &[0., 1., 0., 0., 1., 1., -1., 1.]);
    let place = c.b.pack_place(&[k, t], 2, index);
    // Queue order: k major, then t.
    assert_eq!(c.eval(place, &[group, t, k]).unwrap(), [0., 0., 1., -1., 0., 1., -1., -1.]);
}

#[test]
fn loops_carry_and_collect() {
    let mut c = Case::new();
    let t = c.dim("t", 3);
    let x = c.input(DType::F32, &[t], &[1., 2., 3.]);
    let start = c.b.scalar(10.0, DType::F32);
    let frame = c.b.begin_loop(t, true, &[start]);
    let axes = vec![WindowAxis { input: t, offset: 0, dynamic: true, terms: vec![] }];
    let now = c.b.window(axes, 0.0, x, &[frame.turn]);
    let next = c.b.add(frame.carries[0], now);
    let doubled = c.b.add(next, next);
    let (finals, collected) = c.b.end_loop(frame, &[next], &[doubled]);
    let out = c.b.sub(collected[0], finals[0]);
    // In reverse: 13, 15, 16.
    assert_eq!(c.eval(out, &[t]).unwrap(), [16., 14., 10.]);
}

#[test]
fn draws_follow_logical_coordinates_not_storage() {
    let draw = |swap: bool| {
        let mut c = Case::new();
        let (a, b) = (c.dim("a", 2), c.dim("b", 3));
        let r = c.b.random(Dist::Normal { std: 1.0 }, 7, &[a, b], &[]);
        if swap {
            c.b.graph.values[r.index()].dims = vec![b, a];
        }
        c.env.seed = 3;
        c.eval(r, &[a, b]).unwrap()
    };
    assert_eq!(draw(false), draw(true));
    let key = rng::key(3, 0, 7, 0);
    assert_eq!(draw(false)[4], f64::from(rng::draw(Dist::Normal { std: 1.0 }, key, 4)));
}

#[test]
fn a_draw_of_one_class_is_the_largest() {
    for (top_k, top_p) in [(1, 1.0), (0, 0.01)] {
        let mut c = Case::new();
        let (n, v) = (c.dim("n", 2), c.dim("v", 3));
        let logits = c.input(DType::F32, &[n, v], &[0., 2., 1., 3., 0., 3.]);
        let op = Op::Draw { dim: v, top_k, top_p, stream: 1, dims: vec![n] };
        let drawn = c.b.emit(op, &[logits], &[(DType::I32, vec![n])])[0];
        assert_eq!(c.eval(drawn, &[n]).unwrap(), [1., 0.]);
    }
}

#[test]
fn draws_have_the_frequencies_of_the_softmax() {
    let mut c = Case::new();
    let (n, v) = (c.dim("n", 4000), c.dim("v", 3));
    let logits = c.input(DType::F32, &[v], &[0.0, 2f64.ln(), -50.0]);
    let logits = c.b.broadcast(logits, &[n]);
    let op = Op::Draw { dim: v, top_k: 0, top_p: 1.0, stream: 1, dims: vec![n] };
    let drawn = c.b.emit(op, &[logits], &[(DType::I32, vec![n])])[0];
    let mean = c.eval(drawn, &[n]).unwrap().iter().sum::<f64>() / 4000.0;
    assert!((mean - 2.0 / 3.0).abs() < 0.03, "{mean}");
}

#[test]
fn parameters_come_back_in_declared_order() {
    let mut b = Builder::default();
    let (r, s) = (b.add_dim("r", 2, false), b.add_dim("s", 3, false));
    let p = b.add_param(Param { path: "w".into(), dtype: DType::F32, dims: vec![r, s], map: None, span: None });
    let w = b.param(p);
    let v = b.emit(Op::Map(MapOp::Neg), &[w], &[(DType::F32, vec![s, r])])[0];
    b.output(OutputKind::Param(p), "w", v);
    let w = Tensor::new(DType::F32, vec![2, 3], vec![1., 2., 3., 4., 5., 6.]);
    let out = run(&b.finish(), &Env { params: vec![w], ..Env::default() }).unwrap();
    assert_eq!(out[0].shape, [2, 3]);
    assert_eq!(out[0].data, [-1., -2., -3., -4., -5., -6.]);
}

#[test]
fn what_is_fed_must_fit() {
    let mut b = Builder::default();
    let r = b.add_dim("r", 2, false);
    b.add_input(Input { name: "x".into(), dtype: DType::F32, dims: vec![r], span: None });
    let graph = b.finish();
    assert_eq!(run(&graph, &Env::default()).unwrap_err().to_string(), "`x` is not given");
    let env = Env { inputs: vec![Tensor::scalar(DType::F32, 1.0)], ..Env::default() };
    assert_eq!(run(&graph, &env).unwrap_err().to_string(), "`x` is given as f32[], expected f32[2]");
}
