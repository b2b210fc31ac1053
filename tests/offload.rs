//! What a plan has wait in files: the same numbers, less memory, and what was planned to the byte.

#[path = "support/plans.rs"]
#[allow(dead_code)]
mod plans;

use partita::driver::engine::{Compiled, Engine, Routine, Slot};
use partita::driver::memory::{Needed, needed};
use partita::driver::pipeline::{self, ALL, TRAIN};
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
    let said = needs(plan).report;
    let arenas: Vec<usize> = program.routines.iter().map(|r| r.arena).collect();
    let recipe = &g.recipe;
    let threads = ExecOptions { threads: 1, ..ExecOptions::default() };
    let mut engine = Compiled::open(program, recipe, threads).expect("an executor");
    engine.init(7).expect("initial values");
    let mut figures = Vec::new();
    for step in 0..2 {
        let found = engine.run(Routine::Train, 7, step, &batch(recipe, step)).expect("a step");
        figures.extend(found.iter().flat_map(|f| f.values.clone()));
    }
    let train = ALL.iter().position(|n| *n == TRAIN).expect("a routine");
    engine.machine_mut().each(|exec| {
        assert_eq!(exec.high_water(train), arenas[train], "{plan}");
        assert_eq!(exec.persistent_bytes() + arenas.iter().max().expect("routines"), said.peak_bytes, "{plan}");
    });
    let slots = (0..recipe.params.len()).map(Slot::Param).chain((0..recipe.states.len()).map(Slot::State));
    let arrays = slots.map(|slot| {
        let mut bytes = Vec::new();
        engine.read(slot, &mut bytes);
        bytes
    });
    (figures, arrays.collect())
}

#[test]
fn what_waits_in_files_is_the_same() {
    let ranks = "mesh dp = 2\nshard batch by dp\nzero 1 by dp\nrecompute Attention\n";
    let all = "activations, optimizer, parameters";
    for (plan, lists) in [("", &["activations", "optimizer"][..]), ("microbatches 2\n", &[all]), (ranks, &[all])] {
        let wanted = run(plan);
        for what in lists {
            assert!(run(&format!("{plan}offload {what} to host")) == wanted, "{plan}{what}");
        }
    }
}

#[test]
fn files_hold_what_memory_does_not() {
    let plain = needs("");
    let of = |n: &Needed, category: &str| n.report.by_category[category];
    assert_eq!(plain.report.offloaded_bytes, 0);
    let optimizer = needs("offload optimizer to host");
    // All moments but those of small parameters.
    assert!(20 * of(&optimizer, "optimizer_state") < of(&plain, "optimizer_state"));
    let moved = plain.report.peak_bytes - optimizer.report.peak_bytes;
    assert_eq!(moved, optimizer.report.offloaded_bytes);
    let activations = needs("offload activations to host");
    assert!(5 * of(&activations, "activations") < of(&plain, "activations"));
    assert!(activations.report.peak_bytes < plain.report.peak_bytes);
    assert!(activations.report.offloaded_bytes > 0);
    let all = needs("recompute full\noffload activations, optimizer, parameters to host");
    assert!(
        3 * all.report.peak_bytes < plain.report.peak_bytes,
        "{} {}",
        all.report.peak_bytes,
        plain.report.peak_bytes
    );
}
