//! Gradients that are applied block by block while their product is made: the same parameters as when the gradient is
//! stored first, for any number of threads.

use partita::driver::engine::{Compiled, Engine, Routine, Slot};
use partita::driver::pipeline::{self, ALL};
use partita::driver::{Options, Request};
use partita::program::{self, Action, Place, Step};
use partita::runtime::data::Batch;
use partita::runtime::exec::ExecOptions;
use partita::source::Memory;
use std::collections::BTreeMap;

/// Two matrices whose gradients do not stay in a cache: one is made with its rows, one across them. The sizes divide
/// neither into whole blocks nor into whole tiles.
const PROGRAM: &str = "
use optim.{OPTIMIZER}
dim batch = 12, wide = 1030, tall = 1100
model Two() {
    param up: [wide, tall] = normal(0.05)
    param down: [tall, wide] = normal(0.05)
    let x: [batch, wide] = normal[batch, wide]()
    loss mean[batch, wide](square(dot[tall](tanh(dot[wide](x, up)), down) - x))
}
train Two {
    optimizer OPTIMIZER(lr = 0.1)
    steps 3
}
";

/// Products whose results are nowhere as a whole.
fn passing(routine: &program::Routine) -> usize {
    let is_strip = |s: &&Step| match &s.action {
        Action::Finished(f) => routine.buffer(f.gemm.c.buffer).place == Place::Strip,
        _ => false,
    };
    routine.steps.iter().filter(is_strip).count()
}

struct Outcome {
    strips: usize,
    arena: usize,
    figures: Vec<f64>,
    params: Vec<Vec<u8>>,
}

fn run(optimizer: &str, sizes: [usize; 2], unfused: bool, threads: usize) -> Outcome {
    let text = PROGRAM.replace("OPTIMIZER", optimizer);
    let text = text.replace("wide = 1030, tall = 1100", &format!("wide = {}, tall = {}", sizes[0], sizes[1]));
    let world = Memory(BTreeMap::from([("two.pta".into(), text)]));
    let request = Request { path: "two.pta".into(), ..Request::default() };
    let options = Options { request, unfused, ..Options::default() };
    let mut graphs = pipeline::graphs(&options, &world)
        .unwrap_or_else(|f| panic!("{}", partita::diag::render::text(&f.sink, &f.sources, false)));
    let program = pipeline::program(&mut graphs, ALL, None, &options).expect("a program");
    let train = program.routines.iter().find(|r| r.name == pipeline::TRAIN).expect("a train step");
    let (strips, arena) = (passing(train), train.arena);
    let options = ExecOptions { threads, ..ExecOptions::default() };
    let mut engine = Compiled::open(program, &graphs.recipe, options).expect("an executor");
    engine.init(7).expect("initial values");
    let mut figures = Vec::new();
    for step in 0..3 {
        let found = engine.run(Routine::Train, 7, step, &Batch::new(&[])).expect("a step");
        figures.extend(found.iter().flat_map(|f| f.values.clone()));
    }
    let params = (0..2).map(|n| {
        let mut bytes = Vec::new();
        engine.read(Slot::Param(n), &mut bytes).unwrap();
        bytes
    });
    Outcome { strips, arena, figures, params: params.collect() }
}

#[test]
fn gradients_are_applied_while_they_are_made() {
    // The second sizes are primes: lines of the results cannot be cut into equal parts.
    for (optimizer, sizes) in [("adamw", [1030, 1100]), ("sgd", [1031, 1103])] {
        let elements = sizes[0] * sizes[1];
        let stored = run(optimizer, sizes, true, 2);
        assert_eq!(stored.strips, 0);
        let one = run(optimizer, sizes, false, 1);
        assert_eq!(one.strips, 2, "{optimizer}");
        // Neither gradient has a place of its own.
        assert!(one.arena < elements * 4, "{} bytes", one.arena);
        for threads in [2, 3] {
            let more = run(optimizer, sizes, false, threads);
            assert!(more.params == one.params && more.figures == one.figures, "{optimizer}, {threads} threads");
        }
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-4 * (1e-3 + b.abs());
        assert!(one.figures.iter().zip(&stored.figures).all(|(a, b)| close(*a, *b)), "{:?}", one.figures);
        for (a, b) in one.params.iter().zip(&stored.params) {
            let (a, b): (&[f32], &[f32]) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
            assert_eq!((a.len(), b.len()), (elements, elements));
            let worst = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            // Adam's first steps have the size of the learning rate whatever the gradient's: tiny ones may round away.
            assert!(worst <= if optimizer == "sgd" { 1e-6 } else { 2e-2 }, "{optimizer}: {worst}");
        }
    }
}

/// Products of long sums take so long for each element that it matters little when the element is read.
#[test]
fn gradients_of_long_sums_are_stored() {
    let strips = |batch| strips(&format!("batch = {batch}, wide = 1030, tall = 1100"));
    assert_eq!((strips(440), strips(520)), (2, 0));
}

/// The gradient of a hidden layer is large here, and its sum short; those of the parameters are small.
#[test]
fn gradients_of_activations_are_stored() {
    assert_eq!(strips("batch = 1100, wide = 32, tall = 1000"), 0);
}

fn strips(dims: &str) -> usize {
    let text = PROGRAM.replace("OPTIMIZER", "sgd").replace("batch = 12, wide = 1030, tall = 1100", dims);
    let world = Memory(BTreeMap::from([("two.pta".into(), text)]));
    let request = Request { path: "two.pta".into(), ..Request::default() };
    let options = Options { request, ..Options::default() };
    let graphs = pipeline::graphs(&options, &world).unwrap_or_else(|_| panic!("a sound program"));
    let module = pipeline::lowered(&graphs, &[pipeline::TRAIN], &graphs.findings.sources, &options);
    passing(&module.program.routines[0])
}
