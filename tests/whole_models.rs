//! Every example as a whole, at a size that a test can run: steps of training and batches of evaluation on the CPU backend
//! agree with the interpreter in each precision (16-bit ones less closely: fused operations round less often), and losses
//! in few bits are near those in f64. What memory was planned is what is used, to the byte.

use partita::driver::engine::{Compiled, Engine, Figure, Interpreted, Machine, Routine};
use partita::driver::pipeline::{self, ALL};
use partita::driver::{Options, Recipe, Request};
use partita::kernel::Bands;
use partita::memory;
use partita::program::Action;
use partita::runtime::data::Batch;
use partita::runtime::exec::{ExecOptions, scratch_bytes};
use partita::source::{Disk, Memory};
use partita::types::{DType, rng};
use std::path::Path;

const SEED: u64 = 5;

struct Case {
    file: &'static str,
    preset: Option<&'static str>,
    sets: &'static str,
    /// Steps of training. One where the update of a small batch is so large that differences explode.
    steps: u64,
}

impl Case {
    fn options(&self, precision: DType) -> Options {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(self.file);
        let set = |s: &str| {
            let (name, value) = s.split_once('=').expect("name=value");
            (name.to_string(), value.to_string())
        };
        let request = Request {
            path,
            presets: self.preset.iter().map(|p| p.to_string()).collect(),
            sets: self.sets.split_whitespace().map(set).collect(),
        };
        Options { request, precision: Some(precision), threads: 2, ..Options::default() }
    }
}

/// Integers up to their bound (0 or 1 where there is none), floats in 0..1.
fn batch(recipe: &Recipe, number: u64) -> Batch {
    let mut batch = Batch::new(&recipe.inputs);
    for (n, (field, input)) in batch.fields.iter_mut().zip(&recipe.inputs).enumerate() {
        let samples = input.dims[input.sample].size;
        let each = field.sizes.iter().product::<usize>() / samples.max(1);
        let key = rng::key(SEED, number, n as u64, 0);
        for row in 0..samples {
            let draw = |i: usize| {
                let u = f64::from(rng::unit(key, (row * each + i) as u64));
                if field.dtype.is_float() {
                    u
                } else {
                    (input.bound.as_ref().map_or(2.0, |b| b.size as f64) * u).floor()
                }
            };
            let sample: Vec<f64> = (0..each).map(draw).collect();
            field.write(row, &sample);
        }
    }
    batch
}

/// Figures of batches of evaluation and steps of training in turn.
fn run(engine: &mut dyn Engine, recipe: &Recipe, steps: u64) -> Vec<Figure> {
    let seen = |e: Box<dyn std::fmt::Debug>| panic!("{e:?}");
    let mut all = Vec::new();
    if let Err(e) = engine.init(SEED) {
        seen(Box::new(e));
    }
    for (number, routine) in (0..steps).flat_map(|n| [(n, Routine::Eval), (n, Routine::Train)]) {
        match engine.run(routine, SEED, number, &batch(recipe, number)) {
            Ok(figures) => all.extend(figures),
            Err(e) => seen(Box::new(e)),
        }
    }
    all
}

/// What temporaries are before the first run, so that what is touched can be found: a huge number of any type.
const PAINT: u8 = 0xfe;

fn painted(engine: &mut Compiled) {
    engine.machine_mut().each(|exec| exec.paint(PAINT));
}

fn compare(case: &Case, what: &str, ours: &[Figure], theirs: &[Figure], bound: f64, norms: bool) {
    let losses = |f: &[Figure]| -> Vec<(String, f64)> {
        let kept = f.iter().filter(|f| f.is_loss() || norms && f.name == "grad_norm");
        kept.map(|f| (f.name.clone(), f.values[0])).collect()
    };
    // Where a gradient overflows f16 the step is skipped, and its norm says so.
    let skipped = ours.iter().filter(|f| f.name == "skipped" && f.values[0] > 0.0).count();
    let (ours, theirs) = (losses(ours), losses(theirs));
    assert_eq!(ours.len(), theirs.len());
    let overflows = ours.iter().filter(|(name, x)| name == "grad_norm" && !x.is_finite()).count();
    assert!(overflows <= skipped, "{} {what}: {overflows} norms overflow, {skipped} steps are skipped", case.file);
    for ((name, x), (_, y)) in ours.iter().zip(&theirs) {
        // A norm is made of many more roundings than a loss.
        let bound = if name == "grad_norm" { 10.0 * bound } else { bound };
        let near = (x - y).abs() <= bound * y.abs().max(1.0);
        let overflow = name == "grad_norm" && !x.is_finite();
        assert!(x.is_finite() && near || overflow, "{} {what}: `{name}` is {x}, not {y}", case.file);
    }
}

fn check(case: Case) {
    let mut exact = None;
    let cases =
        [(DType::F64, 1e-9, 0.0), (DType::F32, 1e-4, 1e-3), (DType::BF16, 2e-2, 5e-2), (DType::F16, 3e-3, 1e-2)];
    for (precision, bound, loose) in cases {
        let options = case.options(precision);
        let shown = |f: Box<partita::driver::Findings>| -> ! {
            panic!("{}: {}", case.file, partita::diag::render::text(&f.sink, &f.sources, false))
        };
        let mut graphs = pipeline::graphs(&options, &Disk).unwrap_or_else(|f| shown(f));
        let expected = run(&mut Interpreted::new(&graphs), &graphs.recipe, case.steps);
        let program = pipeline::program(&mut graphs, ALL, None, &options).unwrap_or_else(|f| shown(f));
        let recipe = &graphs.recipe;
        let planned: Vec<usize> = program.routines.iter().map(|r| r.arena).collect();
        let peaks: Vec<usize> = program.routines.iter().map(|r| memory::report(&program, r, 0).peak_bytes).collect();
        let mut engine =
            Compiled::open(program, recipe, ExecOptions { threads: 2, ..ExecOptions::default() }).expect("an executor");
        painted(&mut engine);
        let ours = run(&mut engine, recipe, case.steps);
        compare(&case, &precision.to_string(), &ours, &expected, bound, true);
        match &exact {
            None => exact = Some(ours),
            Some(exact) => compare(&case, &format!("{precision} near f64"), &ours, exact, loose, false),
        }
        let Machine::One(exec) = engine.into_machine() else { panic!("several ranks") };
        let most = planned.iter().copied().max().expect("routines");
        assert_eq!(exec.touched(PAINT), [most, 0], "{} {precision}: touched, against the plan", case.file);
        for (n, routine) in exec.program().routines.iter().enumerate() {
            assert_eq!(exec.high_water(n), planned[n], "{} {precision}: arena of `{}`", case.file, routine.name);
            assert_eq!(exec.scratch_bytes(), scratch_bytes(exec.program(), 2));
            assert_eq!(peaks[n], exec.persistent_bytes() + planned[n], "{} {precision}: `{}`", case.file, routine.name);
        }
    }
}

/// Every value that can be made some rows at a time is: in loops, with rows left over.
fn check_in_bands(case: &Case) {
    let mut loops = 0;
    for (precision, bound) in [(DType::F64, 1e-9), (DType::F32, 1e-4), (DType::BF16, 2e-2)] {
        let bands = Bands { least: 0, bytes: 0, rows: 3, wider: 0 };
        let options = Options { bands, ..case.options(precision) };
        let mut graphs = pipeline::graphs(&options, &Disk).unwrap_or_else(|_| panic!("{}: a sound program", case.file));
        let expected = run(&mut Interpreted::new(&graphs), &graphs.recipe, case.steps);
        let program = pipeline::program(&mut graphs, ALL, None, &options).unwrap_or_else(|_| panic!("{}", case.file));
        let steps = program.routines.iter().flat_map(|r| &r.steps);
        loops += steps.filter(|s| matches!(s.action, Action::Loop(_))).count();
        let (recipe, exec) = (&graphs.recipe, ExecOptions { threads: 2, ..ExecOptions::default() });
        let mut engine = Compiled::open(program, recipe, exec).expect("an executor");
        let ours = run(&mut engine, recipe, case.steps);
        compare(case, &format!("{precision} in bands"), &ours, &expected, bound, true);
    }
    assert!(loops > 0, "{}: nothing is made in bands", case.file);
}

/// What a plan has computed again is the same, in f64 to the bit; the executor follows.
fn check_again(case: &Case) {
    let path = case.options(DType::F64).request.path;
    let files = std::fs::read_dir(path.parent().expect("a folder")).expect("the examples");
    let read = |path: std::path::PathBuf| Some((std::fs::read_to_string(&path).ok()?, path));
    let all = files.filter_map(|e| read(e.ok()?.path())).map(|(text, path)| (path, text));
    let mut world = Memory(all.collect());
    *world.0.get_mut(&path).expect("the example") +=
        "\nplan all_again { recompute full }\nplan most_again { recompute auto(memory = 1 KiB) }\n";
    let graphs = |plan: Option<&str>, precision: DType| {
        let options = Options { plan: plan.map(str::to_string), ..case.options(precision) };
        let shown = |f: Box<partita::driver::Findings>| -> ! {
            panic!("{}: {}", case.file, partita::diag::render::text(&f.sink, &f.sources, false))
        };
        (pipeline::graphs(&options, &world).unwrap_or_else(|f| shown(f)), options)
    };
    let values = |all: &[Figure]| -> Vec<u64> { all.iter().flat_map(|f| &f.values).map(|x| x.to_bits()).collect() };
    let (g, _) = graphs(None, DType::F64);
    let wanted = run(&mut Interpreted::new(&g), &g.recipe, 1);
    for plan in ["all_again", "most_again"] {
        let (g, _) = graphs(Some(plan), DType::F64);
        let found = run(&mut Interpreted::new(&g), &g.recipe, 1);
        assert!(values(&wanted) == values(&found), "{}: {plan} changes numbers", case.file);
        let (mut g, options) = graphs(Some(plan), DType::F32);
        // That nothing is little enough is not asked here.
        g.short = None;
        let expected = run(&mut Interpreted::new(&g), &g.recipe, 1);
        let program = pipeline::program(&mut g, ALL, None, &options).unwrap_or_else(|_| panic!("{}", case.file));
        let planned: Vec<usize> = program.routines.iter().map(|r| r.arena).collect();
        let exec = ExecOptions { threads: 2, ..ExecOptions::default() };
        let mut engine = Compiled::open(program, &g.recipe, exec).expect("an executor");
        painted(&mut engine);
        let ours = run(&mut engine, &g.recipe, 1);
        compare(case, plan, &ours, &expected, 1e-4, true);
        let Machine::One(exec) = engine.into_machine() else { panic!("several ranks") };
        let most = planned.iter().copied().max().expect("routines");
        assert_eq!(exec.touched(PAINT), [most, 0], "{} {plan}: touched, against the plan", case.file);
        (0..planned.len()).for_each(|n| assert_eq!(exec.high_water(n), planned[n], "{} {plan}", case.file));
    }
}

macro_rules! examples {
    ($($name:ident $preset:expr, $sets:literal, $steps:literal;)*) => {
        $(
            #[test]
            fn $name() {
                check(Case { file: concat!(stringify!($name), ".pta"), preset: $preset, sets: $sets, steps: $steps });
            }
        )*

        mod again {
            use super::*;
            $(
                #[test]
                fn $name() {
                    let file = concat!(stringify!($name), ".pta");
                    check_again(&Case { file, preset: $preset, sets: $sets, steps: 1 });
                }
            )*
        }
    };
}

examples! {
    bert None, "batch=4 seq=8 context=8 vocab=120 embed=16 heads=2 depth=2", 2;
    big_linear None, "batch=4 wide=12 tall=20", 2;
    clip None, "batch=3 row=8 col=8 side=4 word=6 vocab=20 wide=16 wide_heads=2 slim=16 slim_heads=2 head_dim=8 depth=2 joint=8", 2;
    deepseek_v3 None, "batch=2 seq=6 vocab=20 depth=5 embed=16 heads=2 mlp=24 q_rank=8 kv_rank=8 nope=4 turn=4 value_dim=4 experts=8 groups=4 keep=2 pick=2 expert_mlp=8", 2;
    digits None, "batch=8", 2;
    dit None, "batch=4 row=4 col=4 embed=16 heads=2 depth=2 freq=8 classes=10 times=20", 2;
    first None, "batch=2 seq=12 vocab=40 embed=16 depth=2", 2;
    gan Some("tiny"), "row=16 col=16", 2;
    gemma2 None, "batch=2 seq=8 vocab=20 embed=16 kv=2 head_dim=4 mlp=24 depth=2", 2;
    gpt2 None, "batch=2 seq=8 vocab=20 embed=16 heads=2 depth=2", 2;
    llama Some("tiny"), "", 2;
    llama3 None, "batch=2 seq=8 vocab=20 embed=16 kv=2 group=2 head_dim=4 mlp=24 depth=2", 2;
    llama3_lora None, "batch=2 seq=8 vocab=20 embed=16 kv=2 head_dim=4 mlp=24 depth=2 rank=2", 2;
    lstm None, "batch=2 seq=6 vocab=20 embed=8 hidden=8", 2;
    mamba2 None, "batch=2 seq=64 vocab=20 embed=16 width=8 memory=4 depth=2", 2;
    mixtral None, "batch=2 seq=8 vocab=20 embed=16 kv=2 group=2 head_dim=4 mlp=24 depth=2 experts=4", 2;
    mnist None, "batch=4 c1=4 c2=4", 2;
    moe Some("tiny"), "", 2;
    muon None, "batch=2 seq=8 vocab=20 embed=16 heads=2 depth=2", 2;
    quickstart None, "batch=2 seq=12 vocab=40 embed=16 depth=2", 2;
    resnet50 None, "batch=16 row0=32 col0=32 stem=4 mid2=2 mid3=2 mid4=2 mid5=2 classes=5", 1;
    shakespeare None, "batch=2 seq=12 vocab=40 embed=16 depth=2", 2;
    t5 None, "batch=2 src=6 tgt=5 vocab=40 embed=16 heads=2 head_dim=8 mlp=24 layers_in=2 layers_out=2 buckets=8", 2;
    vae None, "batch=4 row=8 col=8 c1=4 c2=4 code=3 hidden=8", 2;
    vit None, "batch=2 row=16 col=16 side=8 classes=5 embed=16 heads=2 depth=2", 2;
}

#[test]
fn examples_in_bands() {
    let cases = [
        ("bert.pta", None, "batch=4 seq=8 context=8 vocab=120 embed=16 heads=2 depth=2"),
        ("gemma2.pta", None, "batch=2 seq=8 vocab=20 embed=16 kv=2 head_dim=4 mlp=24 depth=2"),
        ("gpt2.pta", None, "batch=2 seq=9 vocab=50 embed=16 heads=2 depth=2"),
        ("llama3_lora.pta", None, "batch=2 seq=8 vocab=20 embed=16 kv=2 head_dim=4 mlp=24 depth=2 rank=2"),
        ("mixtral.pta", None, "batch=2 seq=8 vocab=20 embed=16 kv=2 group=2 head_dim=4 mlp=24 depth=2 experts=4"),
        (
            "t5.pta",
            None,
            "batch=2 src=6 tgt=5 vocab=40 embed=16 heads=2 head_dim=8 mlp=24 layers_in=2 layers_out=2 buckets=8",
        ),
        ("vit.pta", None, "batch=2 row=16 col=16 side=8 classes=5 embed=16 heads=2 depth=2"),
    ];
    for (file, preset, sets) in cases {
        check_in_bands(&Case { file, preset, sets, steps: 2 });
    }
}

#[test]
fn every_example_is_here() {
    let text = include_str!("whole_models.rs");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for entry in std::fs::read_dir(folder).expect("the examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "pta") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            assert!(text.contains(&format!("\n    {name} ")), "no test of {name}.pta");
        }
    }
}
