//! Steps in microbatches against the same steps on the whole batch, in the reference interpreter.

#[path = "support/divided.rs"]
mod divided;

use divided::divided;
use partita::autodiff;
use partita::interp::{self, Env, Tensor};
use partita::ir::{
    Builder, DimId, GatherMode, Graph, Input, Op, OutputKind, Param, ParamId, Phase, State, StateKind, ValueId,
    WindowAxis, print, verify,
};
use partita::source::{FileId, Span};
use partita::stage::accumulate;
use partita::types::rng::{self, Dist};
use partita::types::{DType, MapOp, ReduceKind, ScanKind};

struct Step {
    b: Builder,
    env: Env,
    drawn: u64,
    batch: DimId,
}

impl Step {
    fn new(batch: usize) -> Step {
        let mut b = Builder::default();
        let batch = b.add_dim("batch", batch, false);
        Step { b, env: Env { exact: true, ..Env::default() }, drawn: 0, batch }
    }

    fn dim(&mut self, name: &str, size: usize) -> DimId {
        self.b.add_dim(name, size, false)
    }

    fn normal(&mut self) -> f64 {
        self.drawn += 1;
        f64::from(rng::draw(Dist::Normal { std: 1.0 }, rng::key(7, 0, 0, 0), self.drawn))
    }

    fn tensor(&mut self, dtype: DType, dims: &[DimId], data: Vec<f64>) -> Tensor {
        Tensor { dtype, shape: dims.iter().map(|d| self.b.size(*d)).collect(), data }
    }

    fn param_of(&mut self, dims: &[DimId], data: Vec<f64>) -> ValueId {
        let t = self.tensor(DType::F32, dims, data);
        self.env.params.push(t);
        let path = format!("p{}", self.env.params.len());
        let id = self.b.add_param(Param { path, dtype: DType::F32, dims: dims.to_vec(), map: None, span: None });
        self.b.param(id)
    }

    fn param(&mut self, dims: &[DimId]) -> ValueId {
        let data = (0..self.b.graph.elements(dims)).map(|_| self.normal()).collect();
        self.param_of(dims, data)
    }

    fn input_of(&mut self, dtype: DType, dims: &[DimId], data: Vec<f64>) -> ValueId {
        let t = self.tensor(dtype, dims, data);
        self.env.inputs.push(t);
        let name = format!("x{}", self.env.inputs.len());
        let id = self.b.add_input(Input { name, dtype, dims: dims.to_vec(), span: None });
        self.b.input(id)
    }

    fn input(&mut self, dims: &[DimId]) -> ValueId {
        let data = (0..self.b.graph.elements(dims)).map(|_| self.normal()).collect();
        self.input_of(DType::F32, dims, data)
    }

    fn ints(&mut self, dims: &[DimId], low: i64, n: u32) -> ValueId {
        let data = (0..self.b.graph.elements(dims))
            .map(|_| {
                self.drawn += 1;
                (low + i64::from(rng::draw_int(n, rng::key(8, 0, 0, 0), self.drawn))) as f64
            })
            .collect();
        self.input_of(DType::I32, dims, data)
    }

    fn metric(&mut self, name: &str, v: ValueId) {
        self.b.output(OutputKind::Metric, name, v);
    }

    /// The loss, its gradients, and an update that clips by their norm.
    fn train(&mut self, loss: ValueId) {
        self.b.output(OutputKind::Loss, "loss", loss);
        let params: Vec<ParamId> = (0..self.b.graph.params.len() as u32).map(ParamId).collect();
        let grads = autodiff::gradients_of_params(&mut self.b, &[loss], &params);
        self.b.phase = Phase::Update;
        let mut norm = self.b.scalar(0.0, DType::F32);
        for g in &grads {
            let square = self.b.map(MapOp::Square, &[*g]);
            let dims = self.b.dims(square).to_vec();
            let s = self.b.sum(&dims, square);
            norm = self.b.add(norm, s);
        }
        self.metric("grad_norm", norm);
        let scale = self.b.map_scalar(MapOp::Add, norm, 1.0);
        for (p, g) in params.iter().zip(grads) {
            let w = self.b.param(*p);
            let g = self.b.div(g, scale);
            let new = self.b.sub(w, g);
            self.b.output(OutputKind::Param(*p), "w", new);
        }
    }

    /// Compares all outputs of the step in 2 and more microbatches; returns the last graph.
    fn check(self, name: &str) -> Graph {
        let whole = self.b.finish();
        sound(name, &whole);
        let want = interp::run(&whole, &self.env).unwrap_or_else(|e| panic!("{name}: {e}"));
        let size = whole.size(self.batch);
        let mut last = None;
        for parts in (2..=size).filter(|n| size.is_multiple_of(*n)) {
            let cut = accumulate(&whole, self.batch, parts).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            sound(name, &cut);
            let text = print::print(&cut);
            let found = interp::run(&cut, &divided(&cut, &self.env)).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
            for ((o, w), f) in whole.outputs.iter().zip(&want).zip(&found) {
                let f = reorder(&whole, &cut, o.value, f, &o.name);
                assert_eq!(w.dtype, f.dtype, "{name}");
                for (a, b) in w.data.iter().zip(&f.data) {
                    let near = a == b || (a - b).abs() < 1e-11 * (1.0 + a.abs());
                    assert!(near, "{name}, {} in {parts}: {b} instead of {a}\n{text}", o.name);
                }
            }
            last = Some(cut);
        }
        last.expect("a batch that divides")
    }

    fn refused(self, name: &str) -> Box<partita::diag::Diagnostic> {
        let whole = self.b.finish();
        sound(name, &whole);
        let d = accumulate(&whole, self.batch, 2).expect_err(name);
        assert_eq!(d.code, "E0601", "{name}");
        d
    }
}

/// The axes of an output may stand in another order: brings `found` into that of the whole step.
fn reorder(whole: &Graph, cut: &Graph, v: ValueId, found: &Tensor, name: &str) -> Tensor {
    let o = cut.outputs.iter().find(|o| o.name == name).unwrap();
    let (own, want) = (&cut.value(o.value).dims, &whole.value(v).dims);
    if !matches!(o.kind, OutputKind::Value | OutputKind::Metric) || own == want {
        return found.clone();
    }
    let mut b = Builder::new(cut.clone());
    b.graph.outputs.clear();
    let x = b.elements(found.data.clone(), found.dtype, own.clone());
    let state = b.add_state(State {
        path: "order".into(),
        dtype: found.dtype,
        dims: want.clone(),
        kind: StateKind::Model,
        span: None,
    });
    b.output(OutputKind::InitState(state), "x", x);
    let only = partita::ir::prune::prune(&b.finish());
    let n = only.elements(want);
    let shape: Vec<usize> = want.iter().map(|d| only.size(*d)).collect();
    let mut env = Env { exact: true, states: vec![], ..Env::default() };
    env.params = only.params.iter().map(|p| zeros(&only, p.dtype, &p.dims)).collect();
    env.inputs = only.inputs.iter().map(|p| zeros(&only, p.dtype, &p.dims)).collect();
    env.states = only.states.iter().map(|p| zeros(&only, p.dtype, &p.dims)).collect();
    let t = interp::run(&only, &env).unwrap().remove(0);
    assert_eq!((t.data.len(), &t.shape), (n, &shape));
    t
}

fn zeros(g: &Graph, dtype: DType, dims: &[DimId]) -> Tensor {
    Tensor::filled(dtype, dims.iter().map(|d| g.size(*d)).collect(), 0.0)
}

fn sound(name: &str, graph: &Graph) {
    verify::verify(graph).unwrap_or_else(|e| panic!("{name}: {e}\n{}", print::print(graph)));
}

/// How many operations of a kind stand in the body of each loop over microbatches, inner loops included.
fn in_loops(graph: &Graph, f: &dyn Fn(&Op) -> bool) -> Vec<usize> {
    fn count(g: &Graph, block: partita::ir::BlockId, f: &dyn Fn(&Op) -> bool) -> usize {
        let own = |id: &partita::ir::OpId| match g.op(*id).op {
            Op::Loop { body, .. } => count(g, body, f),
            ref op => usize::from(f(op)),
        };
        g.block(block).ops.iter().map(own).sum()
    }
    let loops = graph.block(partita::ir::ENTRY).ops.iter().filter_map(|id| match graph.op(*id).op {
        Op::Loop { body, dim, .. } if graph.dim(dim).name == "microbatches" => Some(count(graph, body, f)),
        _ => None,
    });
    loops.collect()
}

#[test]
fn sums_and_means_follow_from_the_loss() {
    for (mean, want) in [(false, 10.0), (true, 2.5)] {
        let mut s = Step::new(4);
        let w = s.param_of(&[], vec![1.0]);
        let x = s.input_of(DType::F32, &[s.batch], vec![1.0, 2.0, 3.0, 4.0]);
        let y = s.b.mul(w, x);
        let mut loss = s.b.sum(&[s.batch], y);
        if mean {
            loss = s.b.map_scalar(MapOp::Div, loss, 4.0);
        }
        let g = autodiff::gradients_of_params(&mut s.b, &[loss], &[ParamId(0)])[0];
        s.b.output(OutputKind::Value, "g", g);
        let env = s.env.clone();
        let cut = s.check("sum loss");
        assert_eq!(interp::run(&cut, &divided(&cut, &env)).unwrap()[0].item(), want);
    }
}

/// Rows with their targets counted where they are not negative; the last two rows have none.
fn masked_mean(s: &mut Step) -> ValueId {
    let (seq, vocab, embed) = (s.dim("seq", 3), s.dim("vocab", 5), s.dim("embed", 2));
    let batch = s.batch;
    let tokens = s.ints(&[batch, seq], 0, 5);
    let n = s.b.size(batch);
    let mut targets: Vec<f64> = (0..3 * n).map(|i| ((i * 7) % 6) as f64 - 1.0).collect();
    targets[3 * (n - 2)..].fill(-1.0);
    let targets = s.input_of(DType::I32, &[batch, seq], targets);
    let (table, head) = (s.param(&[vocab, embed]), s.param(&[embed, vocab]));
    let h = s.b.gather(&[vocab], GatherMode::Error, table, &[tokens]);
    let h = s.b.map(MapOp::Tanh, &[h]);
    let logits = s.b.dot(&[embed], h, head, DType::F32);
    let top = s.b.reduce(ReduceKind::Max, &[vocab], logits);
    let moved = s.b.sub(logits, top);
    let e = s.b.map(MapOp::Exp, &[moved]);
    let total = s.b.sum(&[vocab], e);
    let lse = s.b.map(MapOp::Log, &[total]);
    let picked = s.b.gather(&[vocab], GatherMode::Zero, moved, &[targets]);
    let each = s.b.sub(lse, picked);
    let zero = s.b.scalar(0.0, DType::I32);
    let counts = s.b.map(MapOp::Ge, &[targets, zero]);
    let nothing = s.b.scalar(0.0, DType::F32);
    let each = s.b.select(counts, each, nothing);
    let sum = s.b.sum(&[batch, seq], each);
    let ones = s.b.cast(counts, DType::F32);
    let count = s.b.sum(&[seq, batch], ones);
    let best = s.b.reduce(ReduceKind::ArgMax, &[vocab], logits);
    let right = s.b.map(MapOp::Eq, &[best, targets]);
    let right_count = s.b.cast(right, DType::I32);
    let right_count = s.b.sum(&[batch, seq], right_count);
    s.metric("right", right_count);
    let any = s.b.reduce(ReduceKind::Any, &[batch, seq], right);
    s.metric("any", any);
    let largest = s.b.reduce(ReduceKind::Max, &[batch, seq, vocab], logits);
    s.metric("largest", largest);
    let loss = s.b.div(sum, count);
    let perplexity = s.b.map(MapOp::Exp, &[loss]);
    s.metric("perplexity", perplexity);
    s.b.output(OutputKind::Value, "logits", logits);
    loss
}

#[test]
fn a_masked_mean_divides_by_the_count_of_the_batch() {
    let mut s = Step::new(6);
    let loss = masked_mean(&mut s);
    s.train(loss);
    let cut = s.check("masked mean");
    // The first loop counts and does nothing else.
    assert_eq!(in_loops(&cut, &|op| matches!(op, Op::Dot { .. })), [0, 3]);
    assert_eq!(in_loops(&cut, &|op| matches!(op, Op::Map(MapOp::Exp))), [0, 1]);
}

#[test]
fn gradients_of_16_bits_accumulate_in_f32() {
    let mut s = Step::new(512);
    let (k, batch) = (s.dim("k", 2), s.batch);
    let w = s.param_of(&[k], vec![1.0, 1.0]);
    let x = s.input_of(DType::BF16, &[batch, k], vec![1.0; 1024]);
    let w = s.b.cast(w, DType::BF16);
    let y = s.b.dot(&[k], x, w, DType::BF16);
    let y = s.b.cast(y, DType::F32);
    let loss = s.b.sum(&[batch], y);
    // A total in 16 bits too: it is rounded once.
    let halves = s.b.sum(&[batch], x);
    s.metric("halves", halves);
    let g = autodiff::gradients_of_params(&mut s.b, &[loss], &[ParamId(0)])[0];
    s.b.output(OutputKind::Value, "g", g);
    let (batch, mut env) = (s.batch, s.env.clone());
    env.exact = false;
    let cut = accumulate(&s.b.finish(), batch, 512).unwrap();
    sound("bf16", &cut);
    let found = interp::run(&cut, &divided(&cut, &env)).unwrap();
    assert_eq!(found[0].data, [512.0, 512.0]);
    assert_eq!(found[1].data, [512.0, 512.0]);
    // Casts to 16 bits that are the same for all samples are made once.
    assert_eq!(in_loops(&cut, &|op| matches!(op, Op::Map(MapOp::Cast(DType::BF16)))), [0]);
}

#[test]
fn draws_and_positions_are_those_of_the_whole_batch() {
    let mut s = Step::new(4);
    let (batch, d, unit) = (s.batch, s.dim("d", 3), s.dim("unit", 2));
    let w = s.param(&[d, unit]);
    let x = s.input(&[d, batch]);
    let y = s.b.dot(&[d], x, w, DType::F32);
    // The samples are not the major dim of the draw.
    let keep = s.b.random(Dist::Bernoulli { p: 0.7 }, 5, &[unit, batch], &[]);
    let zero = s.b.scalar(0.0, DType::F32);
    let y = s.b.select(keep, y, zero);
    let place = s.b.iota(batch);
    let place = s.b.cast(place, DType::F32);
    let table = s.b.elements(vec![0.5, -1.0, 2.0, 3.0], DType::F32, vec![batch]);
    let weight = s.b.mul(place, table);
    let y = s.b.mul(y, weight);
    let noise = s.b.random(Dist::Normal { std: 1.0 }, 6, &[unit], &[]);
    let y = s.b.mul(y, noise);
    let loss = s.b.sum(&[batch, unit], y);
    s.train(loss);
    s.check("draws");
}

#[test]
fn samples_may_be_merged_with_other_dims() {
    let mut s = Step::new(4);
    let (batch, seq, d) = (s.batch, s.dim("seq", 3), s.dim("d", 2));
    let token = s.dim("token", 12);
    let w = s.param(&[d]);
    let x = s.input(&[batch, seq, d]);
    let y = s.b.mul(x, w);
    let flat = s.b.reshape(&[(vec![batch, seq], vec![token])], y);
    let place = s.b.iota(token);
    let place = s.b.cast(place, DType::F32);
    let flat = s.b.mul(flat, place);
    let flat = s.b.map(MapOp::Sin, &[flat]);
    let total = s.b.sum(&[token], flat);
    let back = s.b.reshape(&[(vec![token], vec![batch, seq])], flat);
    let running = s.b.scan(ScanKind::Sum, seq, false, false, back);
    s.b.output(OutputKind::Value, "flat", flat);
    let more = s.b.sum(&[batch, seq], running);
    let sum = s.b.add(total, more);
    let loss = s.b.sum(&[d], sum);
    s.train(loss);
    s.check("merged");
}

#[test]
fn loops_inside_the_step() {
    let mut s = Step::new(4);
    let (batch, t, d, m) = (s.batch, s.dim("t", 3), s.dim("d", 2), s.dim("m", 2));
    let m2 = s.dim("m2", 2);
    let x = s.input(&[batch, t, d]);
    let lengths = s.ints(&[batch], 1, 3);
    let (w, u, bias) = (s.param(&[d, m]), s.param(&[m2, m]), s.param(&[t, m]));
    let start = s.b.splat_of(0.0, DType::F32, &[batch, m]);
    let count = s.b.scalar(1.0, DType::F32);
    let frame = s.b.begin_loop(t, false, &[start, count]);
    let axis = WindowAxis { input: t, offset: 0, dynamic: true, terms: vec![] };
    let now = s.b.window(vec![axis.clone()], 0.0, x, &[frame.turn]);
    let shift = s.b.window(vec![axis], 0.0, bias, &[frame.turn]);
    let keep = s.b.random(Dist::Bernoulli { p: 0.5 }, 3, &[batch, m], &[frame.turn]);
    let (h, n) = (frame.carries[0], frame.carries[1]);
    let a = s.b.dot(&[d], now, w, DType::F32);
    let h2 = s.b.rename(m, m2, h);
    let r = s.b.dot(&[m2], h2, u, DType::F32);
    let sum = s.b.add(a, r);
    let sum = s.b.add(sum, shift);
    let sum = s.b.mul(sum, n);
    let new = s.b.map(MapOp::Tanh, &[sum]);
    let zero = s.b.scalar(0.0, DType::F32);
    let new = s.b.select(keep, new, zero);
    let n2 = s.b.map_scalar(MapOp::Add, n, 0.5);
    let (finals, all) = s.b.end_loop(frame, &[new, n2], &[new, n2]);
    let place = s.b.iota(t);
    let seen = s.b.map(MapOp::Lt, &[place, lengths]);
    let zero = s.b.scalar(0.0, DType::F32);
    let masked = s.b.select(seen, all[0], zero);
    let total = s.b.sum(&[batch, t, m], masked);
    let ones = s.b.cast(seen, DType::F32);
    let count = s.b.sum(&[batch, t], ones);
    let loss = s.b.div(total, count);
    s.b.output(OutputKind::Value, "scales", all[1]);
    s.b.output(OutputKind::Value, "last", finals[0]);
    s.train(loss);
    s.check("lstm-like");
}

#[test]
fn a_metric_may_need_a_pass_of_its_own() {
    let mut s = Step::new(4);
    let (batch, d) = (s.batch, s.dim("d", 3));
    let w = s.param(&[d]);
    let x = s.input(&[batch, d]);
    let y = s.b.mul(x, w);
    let sum = s.b.sum(&[batch], y);
    let mean = s.b.map_scalar(MapOp::Mul, sum, 0.25);
    let moved = s.b.sub(y, mean);
    let square = s.b.map(MapOp::Square, &[moved]);
    let variance = s.b.sum(&[batch], square);
    s.metric("variance", variance);
    let y = s.b.map(MapOp::Sin, &[y]);
    let loss = s.b.sum(&[batch, d], y);
    s.train(loss);
    s.check("variance");
}

#[test]
fn statistics_over_slices_are_kept_whole() {
    // Samples counted by slice: batch norm over the rows of each slice.
    let mut s = Step::new(4);
    let (slice, row, d) = (s.batch, s.dim("row", 3), s.dim("d", 2));
    let w = s.param(&[d]);
    let x = s.input(&[slice, row, d]);
    let y = s.b.mul(x, w);
    let loss = batch_norm_loss(&mut s, y, row, 3.0, &[slice, row, d]);
    s.train(loss);
    s.check("slices");
}

fn batch_norm_loss(s: &mut Step, y: ValueId, over: DimId, n: f64, all: &[DimId]) -> ValueId {
    let sum = s.b.sum(&[over], y);
    let mean = s.b.map_scalar(MapOp::Div, sum, n);
    s.b.span = Some(Span::new(FileId(0), 10, 20));
    let moved = s.b.sub(y, mean);
    s.b.span = None;
    let square = s.b.map(MapOp::Square, &[moved]);
    let sum = s.b.sum(&[over], square);
    let var = s.b.map_scalar(MapOp::Div, sum, n);
    let var = s.b.map_scalar(MapOp::Add, var, 0.1);
    let r = s.b.map(MapOp::Rsqrt, &[var]);
    let normed = s.b.mul(moved, r);
    let cube = s.b.map(MapOp::Sin, &[normed]);
    s.b.sum(all, cube)
}

#[test]
fn batch_statistics_are_refused_and_named() {
    let mut s = Step::new(4);
    let (batch, d) = (s.batch, s.dim("d", 2));
    let w = s.param(&[d]);
    let x = s.input(&[batch, d]);
    let y = s.b.mul(x, w);
    let loss = batch_norm_loss(&mut s, y, batch, 4.0, &[batch, d]);
    s.train(loss);
    let d = s.refused("batch norm");
    assert_eq!(d.primary.unwrap().span, Span::new(FileId(0), 10, 20));

    // The share of samples routed to an expert times their probability.
    let mut s = Step::new(4);
    let (batch, e) = (s.batch, s.dim("e", 3));
    let w = s.param(&[e]);
    let x = s.input(&[batch, e]);
    let y = s.b.mul(x, w);
    let best = s.b.reduce(ReduceKind::ArgMax, &[e], y);
    let ones = s.b.splat_of(1.0, DType::F32, &[batch]);
    let f = s.b.scatter(ReduceKind::Sum, &[batch], &[e], ones, &[best]);
    let p = s.b.map(MapOp::Sigmoid, &[y]);
    let p = s.b.sum(&[batch], p);
    let both = s.b.mul(f, p);
    let loss = s.b.sum(&[e], both);
    s.train(loss);
    s.refused("balance");

    // A loss that is no affine function of its mean.
    let mut s = Step::new(4);
    let w = s.param(&[]);
    let x = s.input(&[s.batch]);
    let y = s.b.mul(x, w);
    let sum = s.b.sum(&[s.batch], y);
    let loss = s.b.map(MapOp::Square, &[sum]);
    s.train(loss);
    s.refused("square of a mean");

    // Negatives from the batch.
    let mut s = Step::new(4);
    let (batch, d) = (s.batch, s.dim("d", 2));
    let other = s.dim("other", 4);
    let w = s.param(&[d]);
    let x = s.input(&[batch, d]);
    let y = s.b.mul(x, w);
    let z = s.b.rename(batch, other, y);
    let score = s.b.dot(&[d], y, z, DType::F32);
    let loss = s.b.sum(&[batch, other], score);
    s.train(loss);
    s.refused("negatives");

    // Along the samples.
    let mut s = Step::new(4);
    let w = s.param(&[]);
    let x = s.input(&[s.batch]);
    let y = s.b.mul(x, w);
    let run = s.b.scan(ScanKind::Sum, s.batch, false, false, y);
    let loss = s.b.sum(&[s.batch], run);
    s.train(loss);
    s.refused("running sum");
}

#[test]
fn what_is_not_needed_is_not_refused() {
    let mut s = Step::new(4);
    let w = s.param(&[]);
    let x = s.input(&[s.batch]);
    let y = s.b.mul(x, w);
    s.b.scan(ScanKind::Sum, s.batch, false, false, y);
    let loss = s.b.sum(&[s.batch], y);
    // A coefficient that is a parameter, and a term that no sample takes part in, are no statistics.
    let v = s.param(&[]);
    let loss = s.b.mul(loss, v);
    let decay = s.b.map(MapOp::Square, &[w]);
    let loss = s.b.add(loss, decay);
    s.train(loss);
    s.check("unused");
}

#[test]
fn a_batch_must_divide() {
    let s = Step::new(4);
    let (batch, whole) = (s.batch, s.b.finish());
    assert_eq!(accumulate(&whole, batch, 3).unwrap_err().code, "E0304");
    assert_eq!(accumulate(&whole, batch, 0).unwrap_err().code, "E0304");
}

/// A random samplewise program: values of samples, parameters, masks, reductions, a loss that is affine in its totals.
fn random_step(seed: u64) -> Step {
    let mut s = Step::new(6);
    s.drawn = seed * 1000;
    s.env.seed = seed;
    let below = |s: &mut Step, n: usize| {
        s.drawn += 1;
        rng::draw_int(n as u32, rng::key(9, 0, 0, 0), s.drawn) as usize
    };
    let (batch, a, c) = (s.batch, s.dim("a", 2), s.dim("c", 3));
    let merged = s.dim("merged", 12);
    let mut params = vec![s.param(&[a]), s.param(&[a, c]), s.param(&[])];
    let mut pool = vec![s.input(&[batch, a]), s.input(&[c, batch]), s.input(&[batch])];
    let mask = s.ints(&[batch, a], 0, 2);
    let none = s.b.scalar(0.0, DType::I32);
    let mask = s.b.map(MapOp::Gt, &[mask, none]);
    for i in 0..12 {
        let x = pool[below(&mut s, pool.len())];
        let y = pool[below(&mut s, pool.len())];
        let p = params[below(&mut s, params.len())];
        let has = |s: &Step, v: ValueId, d: DimId| s.b.dims(v).contains(&d);
        let new = match below(&mut s, 10) {
            0 => s.b.mul(x, p),
            1 => s.b.add(x, y),
            2 => s.b.map(MapOp::Tanh, &[x]),
            3 if has(&s, x, a) => s.b.dot(&[a], x, params[1], DType::F32),
            4 if has(&s, x, a) => s.b.sum(&[a], x),
            5 if has(&s, x, c) => s.b.scan(ScanKind::Sum, c, false, i % 2 == 0, x),
            6 if has(&s, x, a) => {
                let zero = s.b.scalar(0.0, DType::F32);
                s.b.select(mask, x, zero)
            }
            7 if has(&s, x, a) && s.b.dims(x).len() == 2 => {
                let flat = s.b.reshape(&[(vec![batch, a], vec![merged])], x);
                let sine = s.b.map(MapOp::Sin, &[flat]);
                s.b.reshape(&[(vec![merged], vec![batch, a])], sine)
            }
            8 => {
                let dims = s.b.dims(x).to_vec();
                let keep = s.b.random(Dist::Bernoulli { p: 0.6 }, i, &dims, &[]);
                let zero = s.b.scalar(0.0, DType::F32);
                s.b.select(keep, x, zero)
            }
            9 if has(&s, x, c) && !has(&s, y, c) => {
                let frame = s.b.begin_loop(c, i % 2 == 0, &[y]);
                let now = s.b.gather(&[c], GatherMode::Error, x, &[frame.turn]);
                let next = s.b.mul(frame.carries[0], p);
                let small = s.b.map(MapOp::Tanh, &[now]);
                // The carry keeps its dims.
                let extra: Vec<DimId> =
                    [small, p].iter().flat_map(|v| s.b.dims(*v).to_vec()).filter(|d| !has(&s, y, *d)).collect();
                let mut extra: Vec<DimId> = extra.into_iter().filter(|d| *d != c || has(&s, p, c)).collect();
                extra.dedup();
                let all = s.b.add(next, small);
                let next = s.b.sum(&extra.into_iter().filter(|d| has(&s, all, *d)).collect::<Vec<_>>(), all);
                let next = s.b.map(MapOp::Sin, &[next]);
                let (finals, stacked) = s.b.end_loop(frame, &[next], &[next]);
                s.b.add(finals[0], stacked[0])
            }
            _ => s.b.map_scalar(MapOp::Mul, x, 0.5),
        };
        pool.push(new);
        // What no sample takes part in.
        let q = s.b.map(MapOp::Sin, &[p]);
        params.push(q);
    }
    let ones = s.b.cast(mask, DType::F32);
    let count = s.b.sum(&[batch, a], ones);
    let mut loss = s.b.map(MapOp::Square, &[params[2]]);
    for x in pool.split_off(pool.len() - 3) {
        let dims = s.b.dims(x).to_vec();
        let total = s.b.sum(&dims, x);
        let mean = s.b.div(total, count);
        let largest = s.b.reduce(ReduceKind::Max, &dims, x);
        s.metric(&format!("largest {}", x.0), largest);
        loss = s.b.add(loss, mean);
    }
    s.train(loss);
    s
}

#[test]
fn random_steps() {
    for seed in 1..40 {
        random_step(seed).check(&format!("random step {seed}"));
    }
}
