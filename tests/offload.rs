//! What a plan has wait in files: the same numbers, less memory, and what was planned to the byte.

#[path = "support/plans.rs"]
#[allow(dead_code)]
mod plans;

use partita::driver::engine::{Compiled, Engine, Routine, Slot};
use partita::driver::memory::{Needed, needed};
use partita::driver::pipeline::{self, ALL, INIT, TRAIN};
use partita::driver::{Options, Recipe};
use partita::runtime::data::Batch;
use partita::runtime::exec::ExecOptions;
use partita::types::rng;

fn source() -> String {
    plans::gpt("batch = 4, seq = 64, vocab = 32, embed = 64, heads = 4, depth = 4", "adamw(lr = 1e-3)")
}

fn needs(plan: &str) -> Needed {
    let (world, options) = plans::planned(&source(), plan);
    plans::sound(plan, needed(&Options { threads: 1, ..options }, &world))
}

fn batch(recipe: &Recipe, number: u64) -> Batch {
    let mut batch = Batch::new(&recipe.inputs);
    for (n, (field, input)) in batch.fields.iter_mut().zip(&recipe.inputs).enumerate() {
        let samples = input.dims[input.sample].size;
        let each = field.sizes.iter().product::<usize>() / samples;
        let key = rng::key(9, number, n as u64, 0);
        for row in 0..samples {
            let draw = |i: usize| (32.0 * f64::from(rng::unit(key, (row * each + i) as u64))).floor();
            field.write(row, &(0..each).map(draw).collect::<Vec<f64>>());
        }
    }
    batch
}

/// Figures of two steps, and parameters and states after them.
fn run(plan: &str) -> (Vec<f64>, Vec<Vec<u8>>) {
    let (world, options) = plans::planned(&source(), plan);
    let options = Options { threads: 1, ..options };
    let mut g = plans::graphs(&(world, options.clone()), plan);
    let program = plans::sound(plan, pipeline::program(&mut g, ALL, None, &options));
    let recipe = &g.recipe;
    let threads = ExecOptions { threads: 1, ..ExecOptions::default() };
    let mut engine = Compiled::open(program, recipe, threads).expect("an executor");
    engine.machine_mut().each(|exec| exec.paint(0xfe));
    engine.init(7).expect("initial values");
    let mut figures = Vec::new();
    for step in 0..2 {
        let found = engine.run(Routine::Train, 7, step, &batch(recipe, step)).expect("a step");
        figures.extend(found.iter().flat_map(|f| f.values.clone()));
    }
    let stages = needs(plan).stages;
    let program = engine.machine_mut().program().clone();
    let mut rank = 0;
    engine.machine_mut().each(|exec| {
        let stage = &stages[program.stage(rank)];
        let runs = [TRAIN, INIT].map(|r| exec.routine(r).expect("a routine"));
        let own = |r: usize| &program.routines[program.variant(r, stage.coordinate)];
        assert_eq!(exec.high_water(runs[0]), own(runs[0]).arena, "{plan}, rank {rank}");
        let most = |bytes: fn(&partita::program::Routine) -> usize| runs.map(|r| bytes(own(r))).into_iter().max();
        let touched = [most(|r| r.arena), most(|r| r.host)].map(|n| n.expect("routines"));
        assert_eq!(exec.touched(0xfe), touched, "{plan}, rank {rank}");
        let all = exec.persistent_bytes() + program.arena_bytes(stage.coordinate);
        assert_eq!(all, stage.report.peak_bytes, "{plan}, rank {rank}");
        rank += 1;
    });
    let slots = (0..recipe.params.len()).map(Slot::Param).chain((0..recipe.states.len()).map(Slot::State));
    let arrays = slots.map(|slot| {
        let mut bytes = Vec::new();
        engine.read(slot, &mut bytes).unwrap();
        bytes
    });
    (figures, arrays.collect())
}

#[test]
fn what_waits_in_files_is_the_same() {
    let ranks = "mesh dp = 2\nshard batch by dp\nzero 1 by dp\nrecompute Attention\n";
    let all = "activations, optimizer, parameters";
    let stages = "mesh pp = 2\npipeline depth by pp { schedule = 1f1b, microbatches = 4 }\n";
    let zero_bubble = "mesh pp = 2, dp = 2\nshard batch by dp\nzero 3 by dp\nrecompute Attention\n\
                       pipeline depth by pp { schedule = zb_v, microbatches = 2 }\n";
    let plain: &[&str] = &["activations", "optimizer"];
    for (plan, lists) in [
        ("", plain),
        ("microbatches 2\n", &[all]),
        (ranks, &[all]),
        (stages, &["activations", all]),
        (zero_bubble, &[all]),
    ] {
        let wanted = run(plan);
        for what in lists {
            assert!(run(&format!("{plan}offload {what} to host")) == wanted, "{plan}{what}");
        }
    }
}

/// What waits for its backward pass while other microbatches are worked on; of the last stage nothing does.
#[test]
fn stages_keep_in_files_what_waits_for_its_turn() {
    let stages = "mesh pp = 2\npipeline depth by pp { schedule = 1f1b, microbatches = 4 }\n";
    let [plain, offloaded] = ["", "offload activations to host"].map(|o| needs(&format!("{stages}{o}")));
    let activations = |n: &Needed, stage: usize| n.stages[stage].report.by_category["activations"];
    assert!(10 * activations(&offloaded, 0) < activations(&plain, 0));
    assert!(activations(&offloaded, 1) <= activations(&plain, 1));
    assert!(offloaded.stages[0].report.offloaded_bytes > activations(&plain, 0) / 2);
    assert_eq!(plain.stages[0].report.offloaded_bytes, 0);
}

#[test]
fn files_hold_what_memory_does_not() {
    let plain = needs("");
    let of = |n: &Needed, category: &str| n.report().by_category[category];
    assert_eq!(plain.report().offloaded_bytes, 0);
    let optimizer = needs("offload optimizer to host");
    // All moments but those of small parameters.
    assert!(20 * of(&optimizer, "optimizer_state") < of(&plain, "optimizer_state"));
    let moved = plain.report().peak_bytes - optimizer.report().peak_bytes;
    assert_eq!(moved, optimizer.report().offloaded_bytes);
    let activations = needs("offload activations to host");
    assert!(5 * of(&activations, "activations") < of(&plain, "activations"));
    assert!(activations.report().peak_bytes < plain.report().peak_bytes);
    assert!(activations.report().offloaded_bytes > 0);
    let all = needs("recompute full\noffload activations, optimizer, parameters to host");
    assert!(
        3 * all.report().peak_bytes < plain.report().peak_bytes,
        "{} {}",
        all.report().peak_bytes,
        plain.report().peak_bytes
    );
}
