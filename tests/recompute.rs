//! What the backward pass computes again instead of keeping it: bytes that a layer keeps, kernels that do it, and results
//! that are the same for any number of threads.

use partita::driver::engine::{Compiled, Engine, Routine, Slot};
use partita::driver::pipeline::{self, ALL, Graphs};
use partita::driver::{Options, Request};
use partita::memory;
use partita::program::{self, Action, BufferId, Launch};
use partita::runtime::data::Batch;
use partita::runtime::exec::ExecOptions;
use partita::source::Memory;
use std::collections::BTreeMap;

const ROWS: usize = 1024;
const EMBED: usize = 64;
const HIDDEN: usize = 256;

/// Layers of `x + down(ACT(up(norm(x))))`.
const PROGRAM: &str = "
use nn.{LayerNorm, RmsNorm, Linear, dropout, gelu, gelu_tanh, relu, silu}
use optim.{sgd}
dim rows = 1024, embed = 64, hidden = 256, depth = DEPTH
layer Block(x: [rows, embed]) -> [rows, embed] {
    let norm = NORM[embed]
    let up, gate = Linear[embed, hidden]
    let down = Linear[hidden, embed]
    let n = norm(x)
    x + down(ACT)
}
model Net() {
    let x: [rows, embed] = normal[rows, embed]()
    for i in depth { x = Block(x) }
    loss mean[rows, embed](square(x))
}
train Net {
    optimizer sgd(lr = 0.1)
    steps 3
}
";

fn graphs(norm: &str, act: &str, depth: usize, unfused: bool) -> (Graphs, Options) {
    let text = PROGRAM.replace("NORM", norm).replace("ACT", act).replace("DEPTH", &depth.to_string());
    let world = Memory(BTreeMap::from([("net.pta".into(), text)]));
    let request = Request { path: "net.pta".into(), ..Request::default() };
    let options = Options { request, unfused, ..Options::default() };
    let graphs = pipeline::graphs(&options, &world)
        .unwrap_or_else(|f| panic!("{}", partita::diag::render::text(&f.sink, &f.sources, false)));
    (graphs, options)
}

/// The train step, planned.
fn train(norm: &str, act: &str, depth: usize) -> program::Routine {
    let (graphs, options) = graphs(norm, act, depth, false);
    let mut module = pipeline::lowered(&graphs, &[pipeline::TRAIN], &graphs.findings.sources, &options);
    let mut routine = module.program.routines.remove(0);
    memory::plan(&mut routine);
    routine
}

/// What one more layer adds to the arena, in values of `rows`.
fn kept(norm: &str, act: &str) -> f64 {
    let arena = |depth| train(norm, act, depth).arena;
    (arena(5) - arena(3)) as f64 / (2 * 4 * ROWS) as f64
}

/// The layer's input and what its first product made; beside them sums of rows alone.
#[test]
fn a_layer_keeps_its_input_and_its_products() {
    let sums = 4.0;
    for norm in ["LayerNorm", "RmsNorm"] {
        for act in ["gelu_tanh(up(n))", "gelu(up(n))", "silu(up(n))", "relu(up(n))", "dropout(tanh(up(n)))"] {
            let (got, least) = (kept(norm, act), (EMBED + HIDDEN) as f64);
            assert!(least <= got && got <= least + sums, "{norm}, {act}: {got} numbers a row, {least} expected");
        }
        let (got, least) = (kept(norm, "silu(gate(n)) * up(n)"), (EMBED + 2 * HIDDEN) as f64);
        assert!(least <= got && got <= least + sums, "{norm}, gated: {got} numbers a row, {least} expected");
    }
}

/// The kernel that has the pre-activation and the hidden gradient makes the gradient of the one, and the activation again.
#[test]
fn what_is_computed_again_is_part_of_a_kernel_that_reads_the_same() {
    let depth = 3;
    let routine = train("LayerNorm", "gelu_tanh(up(n))", depth);
    let launches: Vec<&Launch> = routine
        .steps
        .iter()
        .filter_map(|s| match &s.action {
            Action::Launch(launch) => Some(launch),
            Action::Finished(f) => Some(&f.launch),
            _ => None,
        })
        .collect();
    let large = |b: &BufferId, n: usize| routine.buffer(*b).elements == ROWS * n;
    let writes =
        |launch: &Launch, n: usize| launch.args.iter().filter(|a| a.access.writes() && large(&a.buffer, n)).count();
    let hidden: Vec<usize> = launches.iter().map(|l| writes(l, HIDDEN)).filter(|n| *n > 0).collect();
    assert_eq!(hidden, [vec![1; depth], vec![2; depth]].concat(), "one kernel forward, one backward for each layer");
    // Both take places of operands: in the backward pass, too, there is no third array of that size beside them.
    let twice = |l: &&&Launch| {
        let of = |reads: bool| {
            let args = l.args.iter().filter(move |a| a.access.reads() == reads && large(&a.buffer, HIDDEN));
            args.map(|a| a.buffer).collect::<Vec<_>>()
        };
        let (read, written) = (of(true), of(false));
        written.len() == 2 && written.iter().all(|w| read.contains(w))
    };
    assert_eq!(launches.iter().filter(twice).count(), depth);
}

#[test]
fn results_are_those_of_kept_values_whatever_the_number_of_threads() {
    let run = |unfused: bool, threads: usize| {
        let (mut graphs, options) = graphs("LayerNorm", "dropout(gelu_tanh(up(n)))", 2, unfused);
        let program = pipeline::program(&mut graphs, ALL, None, &options).expect("a program");
        let recipe = &graphs.recipe;
        let options = ExecOptions { threads, ..ExecOptions::default() };
        let mut engine = Compiled::open(program, recipe, options).expect("an executor");
        engine.init(7).expect("initial values");
        let mut figures = Vec::new();
        for step in 0..2 {
            let found = engine.run(Routine::Train, 7, step, &Batch::new(&[])).expect("a step");
            figures.extend(found.iter().flat_map(|f| f.values.clone()));
        }
        let params = (0..recipe.params.len()).map(|n| {
            let mut bytes = Vec::new();
            engine.read(Slot::Param(n), &mut bytes).unwrap();
            bytes
        });
        (params.collect::<Vec<_>>(), figures)
    };
    let one = run(false, 1);
    assert!(one == run(false, 2) && one == run(false, 3));
    let kept = run(true, 2);
    for (a, b) in one.0.iter().zip(&kept.0) {
        let (a, b): (&[f32], &[f32]) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
        let worst = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-6, "{worst}");
    }
}
