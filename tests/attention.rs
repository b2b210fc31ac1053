//! Attention of the CPU backend, forward and backward, against the interpreter's plain one.

#[path = "support/backend.rs"]
mod backend;

use partita::interp::{self, Env, Tensor};
use partita::ir::{Attention, Builder, DimId, Graph, Input, Op, OutputKind, ValueId};
use partita::kernel::Options;
use partita::runtime::exec::ExecOptions;
use partita::types::DType;
use partita::types::rng::{self, Dist};
use std::sync::Arc;

/// Sizes and options; everything else is drawn.
#[derive(Clone, Debug, Default)]
struct Setting {
    queries: usize,
    keys: usize,
    features: usize,
    width: usize,
    batch: Vec<usize>,
    group: Vec<usize>,
    causal: bool,
    reach: Option<u32>,
    documents: bool,
    mask: bool,
    bias: bool,
    cap: f64,
    scale: Option<f64>,
    /// Values and keys have one dim of features.
    same: bool,
    /// The position of the first query, in the forward pass alone.
    first: Option<usize>,
}

struct Case {
    graph: Graph,
    env: Env,
}

struct Draw {
    b: Builder,
    env: Env,
    seed: u64,
    drawn: u64,
}

impl Draw {
    fn normal(&mut self) -> f64 {
        self.drawn += 1;
        f64::from(rng::draw(Dist::Normal { std: 1.0 }, rng::key(self.seed, 1, 2, 3), self.drawn))
    }

    fn below(&mut self, n: usize) -> usize {
        self.drawn += 1;
        rng::draw_int(n as u32, rng::key(self.seed, 4, 5, 6), self.drawn) as usize
    }

    fn shuffled(&mut self, dims: &[DimId]) -> Vec<DimId> {
        let (mut left, mut out) = (dims.to_vec(), Vec::new());
        while !left.is_empty() {
            let i = self.below(left.len());
            out.push(left.remove(i));
        }
        out
    }

    /// An input with its dims in any order.
    fn input(&mut self, dtype: DType, dims: &[DimId], make: impl Fn(&mut Draw) -> f64) -> ValueId {
        let dims = self.shuffled(dims);
        let shape: Vec<usize> = dims.iter().map(|d| self.b.size(*d)).collect();
        let data = (0..shape.iter().product()).map(|_| make(self)).collect();
        self.env.inputs.push(Tensor::new(dtype, shape, data));
        let name = format!("i{}", self.env.inputs.len());
        let id = self.b.add_input(Input { name, dtype, dims, span: None });
        self.b.input(id)
    }
}

fn case(seed: u64, s: &Setting, dtype: DType) -> Case {
    let mut d = Draw { b: Builder::default(), env: Env { seed, ..Env::default() }, seed, drawn: 0 };
    let dims = |d: &mut Draw, name: &str, sizes: &[usize]| -> Vec<DimId> {
        sizes.iter().map(|n| d.b.add_dim(name, *n, false)).collect()
    };
    let (batch, group) = (dims(&mut d, "batch", &s.batch), dims(&mut d, "group", &s.group));
    let [query, key, feature] =
        [("query", s.queries), ("key", s.keys), ("feature", s.features)].map(|(n, size)| d.b.add_dim(n, size, false));
    let value = if s.same { feature } else { d.b.add_dim("value", s.width, false) };
    let rows = [batch.as_slice(), &group, &[query]].concat();
    let all = |more: &[DimId], list: &[DimId]| [list, more].concat();
    let q = d.input(dtype, &all(&[feature], &rows), Draw::normal);
    let k = d.input(dtype, &all(&[key, feature], &batch), Draw::normal);
    let v = d.input(dtype, &all(&[key, value], &batch), Draw::normal);
    let a = Attention {
        query,
        key,
        feature,
        value,
        scale: s.scale.unwrap_or(1.0 / (s.features as f64).sqrt()),
        cap: s.cap,
        causal: s.causal,
        reach: s.reach,
        documents: s.documents,
        mask: s.mask,
        bias: s.bias,
        first: s.first.is_some(),
    };
    let mut args = vec![q, k, v];
    if s.documents {
        let own = batch.first().map(|b| vec![*b]).unwrap_or_default();
        args.push(d.input(DType::I32, &all(&[query], &own), |d| d.below(3) as f64));
        args.push(d.input(DType::I32, &all(&[key], &own), |d| d.below(3) as f64));
    }
    if s.mask {
        let own = all(&[key], &group);
        args.push(d.input(DType::Bool, &own, |d| f64::from(u8::from(d.below(4) > 0))));
    }
    if s.bias {
        let own = [group.as_slice(), &batch[..batch.len().min(1)], &[query, key]].concat();
        args.push(d.input(dtype, &own, |d| if d.below(9) == 0 { f64::NEG_INFINITY } else { d.normal() }));
    }
    if let Some(first) = s.first {
        d.env.position = first as i32;
        args.push(d.b.emit(Op::Position, &[], &[(DType::I32, vec![])])[0]);
    }
    let [out, log] = d.b.attention(&a, &args);
    if s.first.is_some() {
        d.b.output(OutputKind::Value, "out", out);
        d.b.output(OutputKind::Value, "log", log);
        return Case { graph: d.b.finish(), env: d.env };
    }
    let by = d.input(dtype, &all(&[value], &rows), Draw::normal);
    args.extend([out, log, by]);
    let grads = d.b.attention_grad(&a, &args);
    for (name, v) in [("out", out), ("log", log), ("dq", grads[0]), ("dk", grads[1]), ("dv", grads[2])] {
        d.b.output(OutputKind::Value, name, v);
    }
    let graph = d.b.finish();
    partita::ir::verify::verify(&graph).unwrap_or_else(|e| panic!("{s:?}: {e}"));
    Case { graph, env: d.env }
}

fn check(seed: u64, s: &Setting, dtype: DType) {
    let case = case(seed, s, dtype);
    let expected = interp::run(&case.graph, &case.env).expect("evaluates");
    let program = Arc::new(backend::compile(&case.graph, &Options::default()));
    let near = match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 1e-3,
        _ => 1e-2,
    };
    // The exponential makes relative errors of absolute ones.
    let near = near * s.scale.map_or(1.0, |x| x.abs().max(1.0));
    let mut first: Option<Vec<u64>> = None;
    for threads in [1, 3] {
        let options = ExecOptions { threads, ..ExecOptions::default() };
        let mut exec = backend::executor(&program, &case.env, options);
        // Twice: what a run leaves in scratch memory must not matter.
        for _ in 0..2 {
            let found = backend::run(&mut exec, &case.graph, &case.env).expect("runs");
            for (o, (e, f)) in case.graph.outputs.iter().zip(expected.iter().zip(&found)) {
                let scale = e.data.iter().filter(|x| x.is_finite()).fold(1.0f64, |m, x| m.max(x.abs()));
                for (i, (x, y)) in e.data.iter().zip(&f.data).enumerate() {
                    assert!(
                        x == y || (x - y).abs() <= near * scale,
                        "seed {seed}, {dtype}, {s:?}: {} [{i}] is {y}, expected {x}",
                        o.name
                    );
                }
            }
            let bits: Vec<u64> = found.iter().flat_map(|t| &t.data).map(|x| x.to_bits()).collect();
            assert_eq!(*first.get_or_insert(bits.clone()), bits, "{threads} threads differ: {s:?}");
        }
    }
}

fn plain() -> Setting {
    Setting { queries: 70, keys: 150, features: 9, width: 20, ..Setting::default() }
}

#[test]
fn whole_and_uneven_blocks() {
    for (queries, keys) in [(1, 1), (1, 17), (16, 128), (64, 256), (65, 129), (130, 300), (3, 5), (47, 1)] {
        for (features, width, same) in [(16, 16, true), (40, 32, false), (1, 3, false)] {
            check(1, &Setting { queries, keys, features, width, same, ..plain() }, DType::F32);
        }
    }
}

#[test]
fn sizes_around_those_of_blocks() {
    for (queries, keys, features) in
        [(63, 65, 1), (65, 63, 80), (64, 257, 20), (257, 129, 32), (257, 257, 16), (66, 127, 128)]
    {
        for (causal, reach) in [(false, None), (true, None), (true, Some(70))] {
            let s = Setting { queries, keys, features, width: features, same: true, causal, reach, ..plain() };
            check(9, &s, DType::F32);
        }
    }
}

/// Rows so wide that the backward pass takes the keys in several parts.
#[test]
fn wide_rows_and_many_keys() {
    for (dtype, group) in [(DType::F32, vec![2]), (DType::BF16, vec![]), (DType::F64, vec![])] {
        for causal in [false, true] {
            let s =
                Setting { queries: 70, keys: 300, features: 256, width: 200, causal, group: group.clone(), ..plain() };
            check(10, &s, dtype);
        }
    }
    let s = Setting { queries: 300, keys: 300, features: 200, width: 256, reach: Some(20), causal: true, ..plain() };
    check(11, &s, DType::F32);
}

#[test]
fn causal_masks_and_sliding_windows() {
    for (queries, keys) in [(1, 1), (33, 33), (150, 150), (200, 70), (70, 200)] {
        for (causal, reach) in [(true, None), (true, Some(40)), (false, Some(9)), (true, Some(0))] {
            check(2, &Setting { queries, keys, causal, reach, ..plain() }, DType::F32);
        }
    }
}

#[test]
fn queries_from_a_position_on() {
    for (queries, keys) in [(1, 300), (3, 150), (70, 200)] {
        for first in [0, 1, 5, 127, 128, keys - queries, keys] {
            for (causal, reach) in [(true, None), (true, Some(40)), (false, Some(9)), (false, None)] {
                let s = Setting { queries, keys, causal, reach, first: Some(first), group: vec![2], ..plain() };
                check(12, &s, DType::F32);
            }
        }
    }
}

#[test]
fn grouped_queries_and_several_batch_dims() {
    for (batch, group) in [(vec![], vec![]), (vec![], vec![3]), (vec![2, 3], vec![2]), (vec![2, 1, 2], vec![1, 2])] {
        for causal in [false, true] {
            check(3, &Setting { batch: batch.clone(), group: group.clone(), causal, ..plain() }, DType::F32);
        }
    }
}

#[test]
fn documents_masks_biases_and_caps() {
    for n in 0..32 {
        let on = |bit: usize| n >> bit & 1 == 1;
        let s = Setting {
            queries: 70,
            keys: 70,
            documents: on(0),
            mask: on(1),
            bias: on(2),
            cap: if on(3) { 1.5 } else { 0.0 },
            causal: on(4),
            ..plain()
        };
        check(4 + n as u64, &s, DType::F32);
    }
}

#[test]
fn every_precision() {
    for dtype in [DType::F64, DType::BF16, DType::F16] {
        check(5, &plain(), dtype);
        check(6, &Setting { queries: 150, keys: 150, causal: true, same: true, group: vec![2], ..plain() }, dtype);
        check(7, &Setting { documents: true, mask: true, bias: true, cap: 3.0, ..plain() }, dtype);
    }
}

#[test]
fn scales_of_any_sign_and_size() {
    for scale in [0.0, -0.3, 40.0, -40.0] {
        check(8, &Setting { scale: Some(scale), ..plain() }, DType::F32);
        check(8, &Setting { scale: Some(scale), causal: true, ..plain() }, DType::F64);
    }
}

#[test]
fn random_settings() {
    for seed in 0..32 {
        let mut d = Draw { b: Builder::default(), env: Env::default(), seed, drawn: 0 };
        let s = Setting {
            queries: 1 + d.below(90),
            keys: 1 + d.below(180),
            features: 1 + d.below(40),
            width: 1 + d.below(40),
            batch: (0..d.below(3)).map(|_| 1 + d.below(3)).collect(),
            group: (0..d.below(2)).map(|_| 1 + d.below(3)).collect(),
            causal: d.below(2) == 0,
            reach: [None, Some(d.below(100) as u32)][d.below(2)],
            documents: d.below(4) == 0,
            mask: d.below(4) == 0,
            bias: d.below(4) == 0,
            cap: [0.0, 2.0][d.below(2)],
            scale: None,
            same: d.below(2) == 0,
            first: None,
        };
        check(100 + seed, &s, [DType::F32, DType::F64, DType::BF16, DType::F16][seed as usize % 4]);
    }
}
