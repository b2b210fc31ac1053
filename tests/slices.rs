//! Statistics of the batch by slices, in the reference interpreter: against separate steps on each slice.

#[path = "support/divided.rs"]
mod divided;

use divided::divided;
use partita::autodiff;
use partita::diag::Diagnostic;
use partita::driver::{Request, check};
use partita::elaborate::{Elab, Mode};
use partita::interp::{self, Env, Tensor};
use partita::ir::{DimId, Graph, OutputKind, StateKind, print, prune, verify};
use partita::source::Memory;
use partita::stage::{accumulate, slices};
use partita::syntax::ast::ItemKind;
use partita::types::DType;
use std::collections::BTreeMap;

/// A model's step with an optimizer that subtracts the gradient, so that new parameters show it.
struct Step {
    graph: Graph,
    init: Graph,
    sample: DimId,
}

const HEAD: &str = "use nn.{BatchNorm, Linear, one_hot, softmax}\nuse losses.{cross_entropy}\n\
    optimizer plain(w: [..], g: [..]) -> [..] { w - g }\n";

fn step(model: &str, batch: usize, count: usize) -> Result<Step, Vec<Diagnostic>> {
    let text = format!(
        "{HEAD}dim batch = {batch}\n{model}\n\
         train M {{\n    samples batch in {count} slices\n    optimizer plain()\n    steps 1\n}}\n"
    );
    let world = Memory(BTreeMap::from([("m.pta".into(), text)]));
    let request = Request { path: "m.pta".into(), presets: vec![], sets: vec![] };
    let checked = check::load(&request, &world);
    let item = checked.program.main_items(|k| match k {
        ItemKind::Train(t) => Some(t),
        _ => None,
    });
    let errors = |e: &Elab| {
        let all = e.sink.sorted().into_iter().chain(checked.sink.sorted());
        all.filter(|d| d.code.starts_with('E')).collect::<Vec<_>>()
    };
    let mut e = Elab::new(&checked.program, checked.settings.clone(), Mode::TRAIN, DType::F64);
    assert!(!checked.sink.has_errors(), "{:?}", errors(&e));
    let facts = e.train(item[0], &slices, &autodiff::gradients_of_params);
    if e.failed() {
        return Err(errors(&e));
    }
    let (graph, init) = (prune::prune(&e.b.finish()), e.init.finish());
    verify::verify(&graph).unwrap_or_else(|e| panic!("{e}\n{}", print::print(&graph)));
    Ok(Step { graph, init, sample: facts.sample_dim.unwrap() })
}

fn sizes(g: &Graph, dims: &[DimId]) -> Vec<usize> {
    dims.iter().map(|d| g.size(*d)).collect()
}

impl Step {
    /// Initial values, and inputs that are runs of those of a large batch: from `from` on. The sample dim is the first of each.
    fn env(&self, from: usize) -> Env {
        let g = &self.graph;
        let mut env = Env { seed: 5, exact: true, ..Env::default() };
        env.params = g.params.iter().map(|p| Tensor::filled(p.dtype, sizes(g, &p.dims), 0.0)).collect();
        env.states = g.states.iter().map(|s| Tensor::filled(s.dtype, sizes(g, &s.dims), 0.0)).collect();
        for (o, t) in self.init.outputs.iter().zip(interp::run(&self.init, &env.clone()).unwrap()) {
            match o.kind {
                OutputKind::InitParam(p) => env.params[p.index()] = t,
                OutputKind::InitState(s) => env.states[s.index()] = t,
                _ => {}
            }
        }
        for (k, input) in g.inputs.iter().enumerate() {
            let row: usize = input.dims[1..].iter().map(|d| g.size(*d)).product();
            let rows = g.size(self.sample);
            let value = |i: usize| match input.dtype {
                DType::I32 => ((i * i + 3 * i + k) % 3) as f64,
                DType::Bool => f64::from(u8::from((i * i + k) % 5 > 1)),
                _ => ((i * 37 + k * 11 + i * i) as f64).sin() * 2.0 + (i as f64) / 10.0,
            };
            let data = (from * row..(from + rows) * row).map(value).collect();
            env.inputs.push(Tensor::new(input.dtype, sizes(g, &input.dims), data));
        }
        env
    }

    fn run(&self, from: usize) -> Vec<(String, Tensor)> {
        let values = interp::run(&self.graph, &self.env(from)).unwrap_or_else(|e| panic!("{e}"));
        self.graph.outputs.iter().map(|o| format!("{:?} {}", o.kind, o.name)).zip(values).collect()
    }
}

/// The outputs of one step in slices and their means over steps on each slice.
fn against_slices(model: &str, batch: usize, count: usize) -> Vec<(String, Vec<f64>, Vec<f64>)> {
    let cut = step(model, batch, count).unwrap_or_else(|e| panic!("{e:?}")).run(0);
    let part = step(model, batch / count, 1).unwrap();
    let parts: Vec<_> = (0..count).map(|k| part.run(k * batch / count)).collect();
    let mean = |i: usize, j: usize| parts.iter().map(|p| p[i].1.data[j]).sum::<f64>() / count as f64;
    cut.into_iter()
        .enumerate()
        .map(|(i, (name, t))| {
            let want = (0..t.data.len()).map(|j| mean(i, j)).collect();
            (name, t.data, want)
        })
        .collect()
}

fn named(outputs: &[(String, Tensor)], name: &str) -> Tensor {
    outputs.iter().find(|o| o.0.contains(name)).unwrap_or_else(|| panic!("no {name}")).1.clone()
}

fn near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-10 * (1.0 + a.abs()))
}

fn is_mean(model: &str, batch: usize, count: usize) {
    for (name, found, want) in against_slices(model, batch, count) {
        // The norm of a mean is no mean of norms.
        assert!(name.contains("grad_norm") || near(&found, &want), "{name}: {found:?} instead of {want:?}");
    }
}

/// Two hidden layers with norms over the batch.
const NORMS: &str = "dim seq = 3, wide = 4\n\
    model M(x: [batch, seq, wide]) {\n    dim hidden = 2\n    \
    let a = tanh(BatchNorm[hidden](Linear[wide, hidden](x)))\n    \
    let b = BatchNorm[wide](Linear[hidden, wide](a))\n    \
    loss mean[batch, seq, wide](square(tanh(b) - x))\n    metric size = mean[batch, seq, wide](abs(b))\n}\n";

#[test]
fn batch_norm_is_that_of_each_slice() {
    is_mean(NORMS, 8, 2);
    is_mean(NORMS, 8, 8);
    let norms = step(NORMS, 8, 2).unwrap();
    let whole = step(NORMS, 8, 1).unwrap();
    let loss = |s: &Step| named(&s.run(0), "Loss").data;
    assert!(!near(&loss(&norms), &loss(&whole)), "the slices differ from the batch");
    // Running averages are there, and move.
    let states: Vec<_> = norms.graph.states.iter().filter(|s| s.kind == StateKind::Model).collect();
    assert_eq!(states.len(), 4);
}

/// Experts that share a batch; their rows are queued along it, up to a limit.
const EXPERTS: &str = "dim seq = 3, embed = 4, experts = 3\n\
    layer Moe(x: [batch, seq, embed]) -> [batch, seq, embed] {\n    \
    dim slot = ceil(0.75 * batch * seq / experts)\n    dim pick = 1\n    \
    param router: [embed -> experts] = normal(0.5)\n    param w: [experts, embed] = normal(1)\n    \
    let prob = softmax[experts](dot[embed](x, router))\n    \
    let (best, chosen) = top_k[experts -> pick](prob)\n    \
    let share = mean[batch, seq, pick](one_hot[experts](chosen))\n    \
    loss balance = 0.5 * experts * sum[experts](share * mean[batch, seq](prob))\n    \
    let (rows, place) = pack[(pick, batch, seq) -> (experts = chosen, slot)](x)\n    \
    dot[pick](best, unpack[(experts = chosen, slot = place)](tanh(rows * w)))\n}\n\
    model M(x: [batch, seq, embed]) {\n    let y = x + Moe(x)\n    loss words = mean[batch, seq, embed](square(y - 1))\n}\n";

#[test]
fn balance_and_queues_of_experts_are_those_of_each_slice() {
    is_mean(EXPERTS, 4, 2);
    let found = against_slices(EXPERTS, 4, 2);
    assert!(found.iter().any(|f| f.0.contains("balance")));
    let whole = step(EXPERTS, 4, 1).unwrap().run(0);
    for loss in ["balance", "words"] {
        let cut = found.iter().find(|f| f.0.contains(loss)).unwrap();
        assert!(!near(&cut.1, &named(&whole, loss).data), "{loss} does not depend on slices");
    }
}

#[test]
fn in_batch_negatives_are_those_of_the_slice() {
    let model = "dim d = 3\nmodel M(a: [batch, d], b: [batch, d]) {\n    dim other = batch\n    \
        param w: [d] = normal(1)\n    \
        let score = dot[d](a * w, b[batch -> other])\n    \
        let top = max[other](score)\n    \
        let lse = log(sum[other](exp(score - top))) + top\n    \
        loss mean[batch](lse - score[other = iota[batch]])\n}\n";
    is_mean(model, 6, 2);
    is_mean(model, 6, 3);
}

#[test]
fn a_masked_mean_stays_one_of_the_batch() {
    let model = |loss: &str| {
        format!(
            "dim seq = 3, wide = 2\nmodel M(x: [batch, seq, wide], keep: bool[batch, seq]) {{\n    dim hidden = 2\n    \
             let y = square(BatchNorm[hidden](Linear[wide, hidden](x)))\n    let l = sum[hidden](y * y)\n    {loss}\n}}\n"
        )
    };
    let before = step(&model("loss mean[batch, seq](l, mask = keep)"), 4, 2).unwrap().run(0);
    // The sums of the slices' losses over all that counts.
    let sums = against_slices(&model("loss sum[batch, seq](where(keep, l, 0))"), 4, 2);
    let counts = against_slices(&model("loss sum[batch, seq](l)\n    metric n = sum[batch, seq](f32(keep))"), 4, 2);
    let n = &counts.iter().find(|f| f.0 == "Metric n").unwrap();
    assert!(near(&n.1, &[n.2[0] * 2.0]), "a metric is of the whole batch: {n:?}");
    let sum = &sums.iter().find(|f| f.0.contains("Loss")).unwrap();
    assert!(near(&named(&before, "Loss").data, &[sum.2[0] * 2.0 / n.1[0]]));
    // The same where each sample's share is divided first.
    let text = "let share = f32(keep) / sum[batch, seq](f32(keep))\n    loss sum[batch, seq](share * l)";
    let after = step(&model(text), 4, 2).unwrap().run(0);
    for (a, b) in before.iter().zip(&after) {
        assert!(near(&a.1.data, &b.1.data), "{}", a.0);
    }
}

#[test]
fn a_term_that_is_not_affine_is_the_mean_over_slices() {
    let term = "square(mean[batch](tanh(x * w)))";
    let model = |loss: &str| format!("model M(x: [batch]) {{\n    param w: [] = 0.7\n    {loss}\n}}\n");
    is_mean(&model(&format!("loss {term}")), 6, 3);
    is_mean(&model(&format!("loss mean[batch](x * w) - 0.5 * {term}")), 6, 3);
}

#[test]
fn without_statistics_nothing_changes() {
    let model = "dim d = 2\nmodel M(x: [batch, d], keep: bool[batch]) {\n    \
        dim h = 2\n    let y = tanh(Linear[d, h](x))\n    \
        loss mean[batch](sum[h](square(y)) + sum[d](x), mask = keep)\n    \
        metric spread = mean[batch, h](square(y - mean[batch, h](y)))\n}\n";
    let text = |count: usize| print::print(&step(model, 6, count).unwrap().graph);
    assert_eq!(text(3), text(1));
    // One slice is the whole batch.
    assert!(!print::print(&step(NORMS, 8, 1).unwrap().graph).contains("slices"));
}

#[test]
fn draws_and_positions_are_those_of_the_batch() {
    let model = |y: &str| {
        format!(
            "model M(x: [batch]) {{\n    param w: [] = 0.7\n    let y = {y}\n    let m = mean[batch](y)\n    \
             loss mean[batch](square(y - m))\n    output seen = y\n}}\n"
        )
    };
    let noise = step(&model("x * w + normal[batch](1) + f32(iota[batch])"), 6, 2).unwrap();
    let found = noise.run(0);
    let y = named(&found, "Value seen").data;
    let variance = |y: &[f64]| {
        let m = y.iter().sum::<f64>() / y.len() as f64;
        y.iter().map(|y| (y - m) * (y - m)).sum::<f64>() / y.len() as f64
    };
    let want = (variance(&y[..3]) + variance(&y[3..])) / 2.0;
    assert!(near(&named(&found, "Loss").data, &[want]));
    let plain = step(&model("x * w + normal[batch](1) + f32(iota[batch])"), 6, 1).unwrap().run(0);
    assert!(near(&y, &named(&plain, "Value seen").data));
}

#[test]
fn slices_stay_whole_in_microbatches() {
    for model in [NORMS, EXPERTS] {
        let whole = step(model, 8, 4).unwrap();
        let want = interp::run(&whole.graph, &whole.env(0)).unwrap();
        for parts in [2, 4] {
            let cut = accumulate(&whole.graph, whole.sample, parts).unwrap_or_else(|e| panic!("{e:?}"));
            verify::verify(&cut).unwrap();
            let found = interp::run(&cut, &divided(&cut, &whole.env(0))).unwrap();
            for ((o, w), f) in whole.graph.outputs.iter().zip(&want).zip(&found) {
                assert!(near(&w.data, &f.data), "{} in {parts}", o.name);
            }
        }
        // A slice cannot be cut.
        let d = accumulate(&whole.graph, whole.sample, 8).unwrap_err();
        assert_eq!(d.code, "E0601");
        assert!(d.help.iter().any(|h| h.contains("leave out `microbatches`") && h.contains("slices")), "{d:?}");
    }
}

#[test]
fn slices_divide_the_batch() {
    let found = step(NORMS, 8, 3).err().expect("8 samples in 3 slices");
    assert_eq!(found[0].code, "E0304");
    assert!(found[0].primary.is_some());
}
