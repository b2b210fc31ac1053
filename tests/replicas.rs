//! Replicas that train apart, gradients that are applied late, and parameters of the step before: each rule beside a simulation of
//! it that takes one replica's step after the other, and the ranks' programs beside the whole one.

#[path = "replicas/examples.rs"]
mod examples;
#[path = "support/graphs.rs"]
#[allow(dead_code)]
mod graphs;
#[path = "support/plans.rs"]
#[allow(dead_code)]
mod plans;
#[path = "replicas/random.rs"]
mod random;

pub use partita;

use partita::driver::pipeline::{self, Graphs};
use partita::driver::{Options, verify};
use partita::interp::{self, Env, Tensor};
use partita::ir::{DimId, Graph, OutputKind};
use partita::types::{DType, rng};
use std::collections::BTreeMap;

/// A run on one device, step by step.
struct Run {
    g: Graphs,
    env: Env,
}

type Arrays = BTreeMap<String, Vec<f64>>;

fn shape(g: &Graph, dims: &[DimId]) -> Vec<usize> {
    dims.iter().map(|d| g.size(*d)).collect()
}

impl Run {
    fn new(source: &str, plan: &str) -> Run {
        let (world, options) = plans::planned(source, plan);
        let options = Options { precision: Some(DType::F64), ..options };
        Run::of(plans::graphs(&(world, options), plan))
    }

    fn of(g: Graphs) -> Run {
        let zeros = |g: &Graph| Env {
            seed: 5,
            params: g.params.iter().map(|p| Tensor::filled(p.dtype, shape(g, &p.dims), 0.0)).collect(),
            states: g.states.iter().map(|s| Tensor::filled(s.dtype, shape(g, &s.dims), 0.0)).collect(),
            ..Env::default()
        };
        let mut run = Run { env: zeros(&g.train), g };
        let values = interp::run(&run.g.init, &zeros(&run.g.init)).expect("initial values");
        let init = run.g.init.clone();
        run.settle(&init, &values);
        run
    }

    fn settle(&mut self, of: &Graph, values: &[Tensor]) {
        let train = &self.g.train;
        for (o, v) in of.outputs.iter().zip(values) {
            match o.kind {
                OutputKind::Param(p) | OutputKind::InitParam(p) => {
                    let path = &of.params[p.index()].path;
                    let at = train.params.iter().position(|p| p.path == *path).expect("a parameter");
                    assert_eq!(self.env.params[at].data.len(), v.data.len(), "{path}");
                    self.env.params[at].data.clone_from(&v.data);
                }
                OutputKind::State(s) | OutputKind::InitState(s) => {
                    let path = &of.states[s.index()].path;
                    let at = train.states.iter().position(|s| s.path == *path).expect("a state");
                    assert_eq!(self.env.states[at].data.len(), v.data.len(), "{path}");
                    self.env.states[at].data.clone_from(&v.data);
                }
                _ => {}
            }
        }
    }

    /// Takes a step on data; gives losses and metrics.
    fn step(&mut self, data: &[(&str, Vec<f64>)]) -> Arrays {
        self.feed(&data.iter().map(|(n, x)| (n.to_string(), x.clone())).collect::<Vec<_>>())
    }

    fn feed(&mut self, data: &[(String, Vec<f64>)]) -> Arrays {
        let g = self.g.train.clone();
        let of = |name: &str| data.iter().find(|d| d.0 == name).expect("data").1.clone();
        self.env.inputs = g.inputs.iter().map(|i| Tensor::new(i.dtype, shape(&g, &i.dims), of(&i.name))).collect();
        let values = interp::run(&g, &self.env).unwrap_or_else(|e| panic!("{e}"));
        self.settle(&g, &values);
        if let Some((every, outer)) = self.g.outer.clone()
            && (self.env.step + 1).is_multiple_of(every)
        {
            let env = Env { inputs: Vec::new(), ..self.env.clone() };
            let values = interp::run(&outer, &env).unwrap_or_else(|e| panic!("{e}"));
            self.settle(&outer, &values);
        }
        self.env.step += 1;
        let figures = g.outputs.iter().zip(values);
        let figures = figures.filter(|(o, _)| matches!(o.kind, OutputKind::Loss | OutputKind::Metric));
        figures.map(|(o, v)| (o.name.clone(), v.data)).collect()
    }

    fn params(&self) -> Arrays {
        let all = self.g.train.params.iter().zip(&self.env.params);
        all.map(|(p, t)| (p.path.clone(), t.data.clone())).collect()
    }

    fn set(&mut self, params: &Arrays) {
        for (p, t) in self.g.train.params.iter().zip(&mut self.env.params) {
            t.data.clone_from(&params[&p.path]);
        }
    }

    /// States by path without what stands before it.
    fn states(&self, prefix: &str) -> Arrays {
        let all = self.g.train.states.iter().zip(&self.env.states);
        all.filter_map(|(s, t)| Some((s.path.strip_prefix(prefix)?.to_string(), t.data.clone()))).collect()
    }
}

#[track_caller]
fn near(found: &Arrays, wanted: &Arrays, what: &str) {
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>(), "{what}");
    for (name, want) in wanted {
        let have = &found[name];
        assert_eq!(have.len(), want.len(), "{what}: {name}");
        for (i, (x, y)) in have.iter().zip(want).enumerate() {
            assert!((x - y).abs() <= 1e-9 * y.abs().max(1.0), "{what}: {name} at {i} is {x}, simulated {y}");
        }
    }
}

/// By element of arrays of the same names.
fn each(arrays: &[&Arrays], f: impl Fn(&[f64]) -> f64) -> Arrays {
    let one = |(name, first): (&String, &Vec<f64>)| {
        let at = |i: usize| f(&arrays.iter().map(|a| a[name][i]).collect::<Vec<_>>());
        (name.clone(), (0..first.len()).map(at).collect())
    };
    arrays[0].iter().map(one).collect()
}

const BATCH: usize = 8;

fn net(optimizer: &str, batch: usize) -> String {
    format!(
        "use nn.{{Linear, dropout, gelu}}\nuse optim.{{adamw, muon, sgd}}
dim batch = {batch}, inner = 3, mlp = 4, out = 2
model Net(x: [batch, inner], y: [batch, out]) {{
    let up = Linear[inner, mlp, std = 0.5]
    let down = Linear[mlp, out, std = 0.5]
    let z = down(gelu(up(x)))
    loss mean[batch, out](square(z - y))
    metric far = mean[batch, out](abs(z - y))
}}
train Net {{\n    {optimizer}\n    steps 20\n    seed 5\n}}\n"
    )
}

/// Data of a step; `part`: of so many equal ones the k-th.
fn data(step: u64, (k, of): (usize, usize)) -> Vec<(&'static str, Vec<f64>)> {
    let one = |name: &'static str, width: usize, number: u64| {
        let key = rng::key(11, step, number, 0);
        let rows = BATCH / of;
        let value = |i: usize| 2.0 * f64::from(rng::unit(key, i as u64)) - 1.0;
        (name, (k * rows * width..(k + 1) * rows * width).map(value).collect())
    };
    vec![one("x", 3, 1), one("y", 2, 2)]
}

const WHOLE: (usize, usize) = (0, 1);

/// Local SGD and DiLoCo: each replica's training is a run of its own, of the same program with a smaller batch.
#[test]
fn local_steps_are_those_of_runs_of_their_own() {
    for optimizer in ["optimizer sgd(lr = 0.2, momentum = 0.5)", "optimizer adamw(lr = 0.05)\n    clip 0.3"] {
        for (count, lr, momentum) in [(2, 1.0, 0.0), (4, 1.0, 0.0), (2, 0.7, 0.9), (4, 0.5, 0.0)] {
            let what = format!("{optimizer}, {count} replicas, {lr}, {momentum}");
            let plan = format!(
                "mesh dp = {count}\nshard batch by dp\nlocal(steps = 3) by dp {{ lr = {lr}, momentum = {momentum} }}"
            );
            let mut run = Run::new(&net(optimizer, BATCH), &plan);
            let mut all: Vec<Run> = (0..count).map(|_| Run::new(&net(optimizer, BATCH / count), "")).collect();
            let mut model = all[0].params();
            let mut moved = each(&[&model], |_| 0.0);
            near(&run.states("model:"), &model, &what);
            for step in 0..7 {
                let figures = run.step(&data(step, WHOLE));
                let own: Vec<Arrays> =
                    all.iter_mut().enumerate().map(|(k, r)| r.step(&data(step, (k, count)))).collect();
                let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
                near(&figures, &each(&own.iter().collect::<Vec<_>>(), mean), &what);
                if step % 3 == 2 {
                    let own: Vec<Arrays> = all.iter().map(Run::params).collect();
                    let mean = each(&own.iter().collect::<Vec<_>>(), mean);
                    let by = each(&[&model, &mean], |x| x[0] - x[1]);
                    moved = each(&[&moved, &by], |x| momentum * x[0] + x[1]);
                    model = each(&[&model, &by, &moved], |x| x[0] - lr * (x[1] + momentum * x[2]));
                    all.iter_mut().for_each(|r| r.set(&model));
                }
                near(&run.states("model:"), &model, &what);
                for (name, held) in run.params() {
                    let own: Vec<f64> = all.iter().flat_map(|r| r.params()[&name].clone()).collect();
                    near(&[(name.clone(), held)].into(), &[(name, own)].into(), &what);
                }
            }
        }
    }
}

/// The gradient of the whole batch of a step at some parameters: what plain descent by 1 takes away.
fn gradient(at: &Arrays, step: u64) -> (Arrays, Arrays) {
    let mut run = Run::new(&net("optimizer sgd(lr = 1.0)", BATCH), "");
    run.set(at);
    let figures = run.step(&data(step, WHOLE));
    (each(&[at, &run.params()], |x| x[0] - x[1]), figures)
}

/// An optimizer, written out.
struct Simulated {
    adam: bool,
    m: Arrays,
    v: Arrays,
}

impl Simulated {
    fn new(adam: bool, like: &Arrays) -> Simulated {
        let zeros = each(&[like], |_| 0.0);
        Simulated { adam, m: zeros.clone(), v: zeros }
    }

    fn text(&self) -> &'static str {
        if self.adam {
            "optimizer adamw(lr = 0.05, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1)"
        } else {
            "optimizer sgd(lr = 0.2)"
        }
    }

    fn update(&mut self, w: &Arrays, g: &Arrays, step: u64) -> Arrays {
        if !self.adam {
            return each(&[w, g], |x| x[0] - 0.2 * x[1]);
        }
        let t = step as i32 + 1;
        self.m = each(&[&self.m, g], |x| 0.9 * x[0] + 0.1 * x[1]);
        self.v = each(&[&self.v, g], |x| 0.95 * x[0] + 0.05 * x[1] * x[1]);
        each(&[w, &self.m, &self.v], |x| {
            let (m, v) = (x[1] / (1.0 - 0.9f64.powi(t)), x[2] / (1.0 - 0.95f64.powi(t)));
            x[0] - 0.05 * (m / (v.sqrt() + 1e-8) + 0.1 * x[0])
        })
    }
}

/// Bounded staleness: w(t + 1) = w(t) - u(gradient of step t - k at w(t - k)), and no update before step k.
#[test]
fn late_gradients_are_those_of_earlier_parameters() {
    for (adam, count, late) in [(false, 2, 1), (false, 4, 3), (true, 2, 2), (true, 4, 1), (true, 1, 2)] {
        let mut w = Run::new(&net("optimizer sgd(lr = 1.0)", BATCH), "").params();
        let mut optimizer = Simulated::new(adam, &w);
        let plan = format!("mesh dp = {count}\nshard batch by dp\nasync(staleness = {late}) by dp");
        let mut run = Run::new(&net(optimizer.text(), BATCH), &plan);
        let mut waiting: Vec<Arrays> = Vec::new();
        for step in 0..7u64 {
            let what = format!("{plan}, adam {adam}, step {step}");
            let (g, figures) = gradient(&w, step);
            let found = run.step(&data(step, WHOLE));
            near(
                &found.iter().filter(|f| f.0 != "grad_norm").map(|(n, x)| (n.clone(), x.clone())).collect(),
                &figures.iter().filter(|f| f.0 != "grad_norm").map(|(n, x)| (n.clone(), x.clone())).collect(),
                &what,
            );
            waiting.push(g);
            if step >= late {
                w = optimizer.update(&w, &waiting.remove(0), step);
            }
            near(&run.params(), &w, &what);
        }
    }
}

/// PipeDream-2BW: w(t + 1) = w(t) - u(gradient of step t at w(t - 1)).
#[test]
fn a_pipeline_with_two_versions_computes_with_the_earlier_one() {
    for (adam, ranks) in [(false, 1), (true, 1), (true, 2)] {
        let mut latest = Run::new(&looped("optimizer sgd(lr = 1.0)"), "").params();
        let mut earlier = latest.clone();
        let mut optimizer = Simulated::new(adam, &latest);
        let plan = format!("mesh pp = {ranks}\npipeline depth by pp {{ schedule = 2bw, microbatches = 4 }}");
        let mut run = Run::new(&looped(optimizer.text()), &plan);
        for step in 0..5 {
            let mut alone = Run::new(&looped("optimizer sgd(lr = 1.0)"), "");
            alone.set(&earlier);
            alone.step(&data(step, WHOLE));
            let g = each(&[&earlier, &alone.params()], |x| x[0] - x[1]);
            let next = optimizer.update(&latest, &g, step);
            earlier = std::mem::replace(&mut latest, next);
            run.step(&data(step, WHOLE));
            near(&run.params(), &earlier, &plan);
            near(&run.states("model:"), &latest, &plan);
        }
    }
}

fn looped(optimizer: &str) -> String {
    net(optimizer, BATCH)
        .replace("out = 2\n", "out = 2, depth = 2\n")
        .replace("    let z = down(gelu(up(x)))", "    let h = up(x)\n    for i in depth { h = Mix(h) }\n    let z = down(h)")
        .replace("model Net", "layer Mix(h: [batch, mlp]) -> [batch, mlp] {\n    param scale: [mlp] = 1.5\n    h + gelu(scale * h)\n}\nmodel Net")
}

/// Whatever makes no difference: means of each step, and gradients that do not wait.
#[test]
fn replicas_that_meet_at_once_are_one() {
    let source = net("optimizer sgd(lr = 0.2)", BATCH).replace("gelu(up(x))", "dropout[p = 0.3](gelu(up(x)))");
    for rule in ["local(steps = 1) by dp", "async(staleness = 0) by dp"] {
        for count in [2, 4] {
            let plan = format!("mesh dp = {count}\nshard batch by dp\n{rule}");
            let (mut apart, mut one) = (Run::new(&source, &plan), Run::new(&source, ""));
            for step in 0..4 {
                let (a, b) = (apart.step(&data(step, WHOLE)), one.step(&data(step, WHOLE)));
                near(
                    &[("loss".to_string(), a["loss"].clone())].into(),
                    &[("loss".to_string(), b["loss"].clone())].into(),
                    &plan,
                );
            }
            let model = if rule.starts_with("local") { apart.states("model:") } else { apart.params() };
            near(&model, &one.params(), &plan);
        }
    }
}

/// Ranks compute what the whole step says, under other strategies too.
#[test]
fn ranks_of_replicas_compute_what_one_device_does() {
    let gpt =
        |optimizer: &str| plans::gpt("batch = 8, seq = 6, vocab = 10, embed = 8, heads = 2, depth = 2", optimizer);
    let clipped = gpt("adamw(lr = 1e-2)").replace("seed 1\n", "seed 1\n    clip 0.5\n");
    let deep = clipped.replace("depth = 2", "depth = 4");
    let muon =
        gpt("muon(lr = 1e-2) on matrix\n    optimizer sgd(lr = 0.1) on rest").replace("optim.{", "optim.{muon, ");
    let pipeline = "pipeline depth by pp { schedule = 2bw, microbatches = 4 }";
    for (source, plan) in [
        (&clipped, "mesh dp = 2\nshard batch by dp\nlocal(steps = 2) by dp { lr = 0.7, momentum = 0.9 }".to_string()),
        (&clipped, "mesh far = 2, dp = 2\nshard batch by far, dp\nlocal(steps = 2) by far\nzero 1 by dp".to_string()),
        (
            &clipped,
            "mesh dp = 2, tp = 2\nshard batch by dp\nshard heads, mlp, vocab by tp\nlocal(steps = 2) by dp".to_string(),
        ),
        (
            &muon,
            "mesh dp = 4\nshard batch by dp\nlocal(steps = 2) by dp { momentum = 0.5 }\nmicrobatches 2".to_string(),
        ),
        (&clipped, "mesh dp = 2\nshard batch by dp\nasync(staleness = 2) by dp".to_string()),
        (&clipped, "mesh dp = 2\nshard batch by dp\nasync(staleness = 1)\nzero 2 by dp\nmicrobatches 2".to_string()),
        (&muon, "mesh dp = 2\nshard batch by dp\nasync(staleness = 1)\nzero 3 by dp".to_string()),
        (
            &clipped,
            "mesh far = 2, dp = 2\nshard batch by far, dp\nasync(staleness = 1) by far\nzero 1 by dp".to_string(),
        ),
        (&clipped, format!("mesh pp = 2\n{pipeline}")),
        (&deep, format!("mesh pp = 4\n{pipeline}")),
        (&deep, format!("mesh pp = 3, dp = 2\nshard batch by dp\n{pipeline}\nzero 3 by dp")),
        (&clipped, format!("mesh dp = 2, pp = 2\nshard batch by dp\n{pipeline}\nzero 1 by dp")),
    ] {
        let (world, options) = plans::planned(source, &plan);
        let report = plans::sound(&plan, verify::verify(&options, &world, 5));
        assert_eq!(report.differs, None, "{plan}");
        assert!(report.noisy.is_empty() && report.compared > 100, "{plan}: {report:?}");
    }
}

/// What is said of a plan that is no good.
fn refused(source: &str, plan: &str) -> String {
    let (world, options) = plans::planned(source, plan);
    let found = pipeline::graphs(&options, &world).err().unwrap_or_else(|| panic!("accepted: {plan}"));
    partita::diag::render::text(&found.sink, &found.sources, false)
}

/// Each mistake has its place and its cure.
#[test]
fn plans_of_replicas_that_are_no_good_are_refused() {
    let plain = net("optimizer sgd(lr = 0.2)", BATCH);
    let average =
        plain.replace("optim.{", "optim.{ema, ").replace("    steps 20", "    average ema(decay = 0.9)\n    steps 20");
    let sliced = plain.replace("    steps 20", "    samples batch in 4 slices\n    steps 20");
    let counting = plain.replace(
        "    metric far",
        "    state most: int = 0\n    update most = argmax[batch](x[inner = 0])\n    metric far",
    );
    let two = "pipeline depth by pp { schedule = 2bw, microbatches = 2 }";
    let looped = looped("optimizer sgd(lr = 0.2)");
    let local = "mesh dp = 2\nlocal(steps = 3) by dp";
    for (source, plan, code, words) in [
        (&plain, "mesh dp = 2\nlocal(steps = 3, 4) by dp", "E0506", "write `local(steps = ..)`"),
        (&plain, "mesh dp = 2\nlocal(steps = 0) by dp", "E0506", "positive whole number"),
        (&plain, "mesh dp = 2\nlocal(steps = 3) by dp { lr = 0 }", "E0506", "outer learning rate is above 0"),
        (&plain, "mesh dp = 2\nlocal(steps = 3) by dp { momentum = 1 }", "E0506", "below 1"),
        (&plain, "mesh dp = 2\nasync(staleness = 100000000) by dp", "E0506", "the limit is 64"),
        (&plain, "mesh dp = 2\nasync(staleness = 3) by dp { lr = 1 }", "E0506", "no option `lr`"),
        (&plain, "mesh dp = 2\nasync(staleness = 1)\nlocal(steps = 3)", "E0506", "keep one of them"),
        (&plain, "mesh dp = 2, tp = 2\nshard mlp by tp\nlocal(steps = 3)", "E0506", "`local(..) by dp`"),
        (&plain, "local(steps = 3)", "E0506", "`mesh dp = 2`"),
        (&plain, "mesh dp = 2\nlocal(steps = 3) by tp", "E0501", "unknown mesh axis `tp`"),
        (&plain, "mesh dp = 2\nshard mlp by dp\nlocal(steps = 3) by dp", "E0508", "would cut [mlp] by `dp` as well"),
        (&plain, "mesh a = 2, b = 2\nshard batch by b, a\nlocal(steps = 3) by a", "E0508", "name `a` first"),
        (&plain, "mesh dp = 2\nzero 1 by dp\nlocal(steps = 3) by dp", "E0508", "would share the state of optimizers"),
        (
            &looped,
            "mesh pp = 2\npipeline depth by pp { microbatches = 2 }\nasync(staleness = 1)",
            "E0508",
            "stages along `pp`",
        ),
        (&plain, "mesh dp = 3\nlocal(steps = 3) by dp", "E0304", "make `batch` a multiple of 3"),
        (&average, local, "E0606", "leave `average` out"),
        (&sliced, "mesh dp = 8\nlocal(steps = 3) by dp", "E0606", "write a multiple of 8 slices"),
        (&counting, local, "E0606", "no mean of it"),
        (&looped, &format!("mesh pp = 2, dp = 2\n{two}\nasync(staleness = 1) by dp"), "E0606", "leave one of them out"),
        (
            &looped.replace("optim.{", "optim.{ema, ").replace("    steps 20", "    average ema(decay = 0.9)"),
            &format!("mesh pp = 2\n{two}"),
            "E0606",
            "keeps no third",
        ),
    ] {
        let text = refused(source, plan);
        assert!(text.contains(&format!("error[{code}]")) && text.contains(words), "{plan}\n{text}");
        assert!(text.contains("m.pta:") && text.contains("help: "), "{plan}\n{text}");
    }
}

/// A dim of samples in what outlives a step, and nothing that is fed.
#[test]
fn replicas_need_a_batch_to_share() {
    let text = "use optim.{sgd}\ndim batch = 4
model M(x: [batch]) {\n    param w: [batch] = 1\n    loss mean[batch](square(x - w))\n}
train M {\n    optimizer sgd(lr = 0.1)\n    steps 2\n}\n";
    let local = "mesh dp = 2\nlocal(steps = 3) by dp";
    let said = refused(text, local);
    assert!(said.contains("E0606") && said.contains("parameter `w` has the sample dim `batch`"), "{said}");
    let said = refused(&text.replace("M(x: [batch])", "M()").replace("x - w", "w"), local);
    assert!(said.contains("E0606") && said.contains("nothing is fed"), "{said}");
}
