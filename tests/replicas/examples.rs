//! Every kind of operation: examples as replicas, beside runs of their own, and their ranks beside the whole step.

use super::{Arrays, Run, near};
use partita::driver::{Options, Recipe, Request, pipeline, verify};
use partita::interp::Tensor;
use partita::ir::{Op, StateKind};
use partita::runtime::data::Batch;
use partita::source::Memory;
use partita::types::{DType, rng};
use std::path::{Path, PathBuf};

/// Rows of samples from `first` on. Integers up to their bound (0 or 1 where there is none), floats in 0..1.
fn rows(recipe: &Recipe, step: u64, first: usize) -> Vec<(String, Vec<f64>)> {
    let mut batch = Batch::new(&recipe.inputs);
    for (n, (field, input)) in batch.fields.iter_mut().zip(&recipe.inputs).enumerate() {
        let samples = input.dims[input.sample].size;
        let each = field.sizes.iter().product::<usize>() / samples.max(1);
        let key = rng::key(7, step, n as u64, 0);
        for row in 0..samples {
            let draw = |i: usize| {
                let u = f64::from(rng::unit(key, ((first + row) * each + i) as u64));
                let bound = input.bound.as_ref().map_or(2.0, |b| b.size as f64);
                if field.dtype.is_float() { u } else { (bound * u).floor() }
            };
            field.write(row, &(0..each).map(draw).collect::<Vec<_>>());
        }
    }
    recipe.inputs.iter().zip(&batch.fields).map(|(i, f)| (i.name.clone(), f.values())).collect()
}

fn planned(file: &str, sets: &str, batch: usize, plan: &str) -> (Memory, Options) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).expect("an example");
    let mut world = Memory::default();
    world.0.insert(PathBuf::from("llama3.pta"), read("llama3.pta"));
    // Replicas that train apart have no average.
    let text = read(file).lines().filter(|l| !l.trim().starts_with("average ")).collect::<Vec<_>>().join("\n");
    // One that is alone has its share of the slices.
    let text = if plan.is_empty() { text.replace("in 4 slices", "in 2 slices") } else { text };
    world.0.insert(PathBuf::from("m.pta"), format!("{text}\nplan apart {{\n{plan}\n}}\n"));
    let all = format!("{sets} batch={batch}");
    let pairs = all.split_whitespace().map(|s| s.split_once('=').expect("name=value"));
    let sets = pairs.map(|(n, v)| (n.to_string(), v.to_string())).collect();
    let request = Request { path: "m.pta".into(), sets, ..Request::default() };
    (world, Options { request, plan: Some("apart".into()), precision: Some(DType::F64), ..Options::default() })
}

fn run(file: &str, sets: &str, batch: usize, plan: &str) -> Run {
    let (world, options) = planned(file, sets, batch, plan);
    Run::of(super::plans::sound(file, pipeline::graphs(&options, &world)))
}

/// Two replicas with a share of `share` samples each.
fn check(file: &str, sets: &str, share: usize) {
    let plan = |rule: &str| format!("mesh dp = 2\n{rule}");
    let local = plan("local(steps = 2) by dp { momentum = 0.5 }");
    let late = plan("async(staleness = 1)");
    let mut apart = run(file, sets, 2 * share, &local);
    let draws = apart.g.train.ops.iter().any(|o| matches!(o.op, Op::Random { .. }));
    let figures = apart.feed(&rows(&apart.g.recipe, 0, 0));
    let mut own: Vec<Run> = (0..2).map(|_| run(file, sets, share, "")).collect();
    let theirs: Vec<Arrays> =
        own.iter_mut().enumerate().map(|(k, r)| r.feed(&rows(&r.g.recipe, 0, k * share))).collect();
    if !draws {
        near(&figures, &super::each(&[&theirs[0], &theirs[1]], |x| (x[0] + x[1]) / 2.0), file);
        for (p, Tensor { data, .. }) in apart.g.train.params.iter().zip(&apart.env.params) {
            let both: Vec<f64> = own.iter().flat_map(|r| r.params()[&p.path].clone()).collect();
            let wanted =
                if p.dims.len() == own[0].g.train.params.iter().find(|q| q.path == p.path).expect("it").dims.len() {
                    own[0].params()[&p.path].clone()
                } else {
                    both
                };
            near(&[(p.path.clone(), data.clone())].into(), &[(p.path.clone(), wanted)].into(), file);
        }
        let states = apart.g.train.states.iter().zip(&apart.env.states).filter(|(s, _)| s.kind == StateKind::Model);
        for (s, Tensor { data, .. }) in states {
            let [a, b] = [0, 1].map(|k| own[k].states("")[&s.path].clone());
            let mean = a.iter().zip(&b).map(|(x, y)| (x + y) / 2.0).collect();
            near(&[(s.path.clone(), data.clone())].into(), &[(s.path.clone(), mean)].into(), file);
        }
    }
    for plan in [local, late] {
        let (world, options) = planned(file, sets, 2 * share, &plan);
        let report = super::plans::sound(&plan, verify::verify(&options, &world, 2));
        assert_eq!(report.differs, None, "{file}: {plan}");
        assert!(report.compared > 10, "{file}: {report:?}");
    }
}

macro_rules! examples {
    ($($name:ident $share:literal, $sets:literal;)*) => {
        $(
            #[test]
            fn $name() {
                check(concat!(stringify!($name), ".pta"), $sets, $share);
            }
        )*
    };
}

examples! {
    bert 2, "seq=8 context=8 vocab=120 embed=16 heads=2 depth=1";
    clip 2, "row=8 col=8 side=4 word=6 vocab=20 wide=16 wide_heads=2 slim=16 slim_heads=2 head_dim=8 depth=1 joint=8";
    deepseek_v3 1, "seq=6 vocab=20 depth=4 embed=8 heads=2 mlp=8 q_rank=4 kv_rank=4 nope=4 turn=4 value_dim=4 experts=8 groups=4 keep=2 pick=2 expert_mlp=8";
    dit 1, "row=4 col=4 embed=16 heads=2 depth=1 freq=8 classes=10 times=20";
    gemma2 1, "seq=8 vocab=20 embed=16 kv=2 head_dim=4 mlp=24 depth=2";
    llama3_lora 1, "seq=8 vocab=20 embed=16 kv=2 head_dim=4 mlp=24 depth=1 rank=2";
    lstm 2, "seq=6 vocab=20 embed=8 hidden=8";
    mamba2 1, "seq=64 vocab=20 embed=16 width=8 memory=4 depth=1";
    mixtral 2, "seq=8 vocab=20 embed=16 kv=2 group=2 head_dim=4 mlp=24 depth=1 experts=4";
    mnist 2, "c1=4 c2=4";
    muon 1, "seq=8 vocab=20 embed=16 heads=2 depth=1";
    // Of four slices each replica has two.
    resnet50 4, "row0=32 col0=32 stem=4 mid2=2 mid3=2 mid4=2 mid5=2 classes=5";
    t5 1, "src=6 tgt=5 vocab=40 embed=16 heads=2 head_dim=8 mlp=24 layers_in=1 layers_out=1 buckets=8";
    vae 2, "row=8 col=8 c1=4 c2=4 code=3 hidden=8";
}
