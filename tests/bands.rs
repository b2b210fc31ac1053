//! Logits that are made some rows at a time: losses, gradients, metrics and evaluation are those of whole logits, for any
//! number of rows and threads, and the logits have no place in memory. What needs them whole has them whole.

use partita::driver::engine::{Compiled, Engine, Figure, Interpreted, Routine, Slot};
use partita::driver::pipeline::{self, ALL, Graphs};
use partita::driver::{Options, Recipe, Request};
use partita::kernel::Bands;
use partita::program::{self, Action, Gemm, Library, Step};
use partita::runtime::data::Batch;
use partita::runtime::exec::ExecOptions;
use partita::source::Memory;
use partita::types::{DType, rng};
use std::collections::BTreeMap;

const PROGRAM: &str = "
use nn.{Embedding, Linear, LayerNorm, gelu_tanh, softmax}
use losses.{cross_entropy}
use optim.{adamw}
dim batch = 3, seq = SEQ, vocab = 50, embed = 6, hidden = 12
model Net(tokens: int[batch, seq], targets: int[batch, seq], weights: [batch, seq]) {
    let wte = Embedding[vocab, embed]
    let norm = LayerNorm[embed]
    let up = Linear[embed, hidden]
    let down = Linear[hidden, embed]
    let x = wte(tokens)
    let h = norm(x + down(gelu_tanh(up(x))))
    BODY
}
train Net {
    data { tokens = npy(\"a.npy\"), targets = npy(\"b.npy\"), weights = npy(\"c.npy\") }
    optimizer adamw(lr = 1e-2, weight_decay = 0.1)
    clip 1.0
    steps 3
}
";

const TIED: &str = "output logits = dot[embed](h, wte.table)\n";
const OWN: &str = "let head = Linear[embed, vocab]\nlet logits = head(h)\n";

/// Bands of about 4 rows.
const SMALL: Bands = Bands { least: 0, bytes: 0, rows: 4, wider: 5 };

fn graphs(body: &str, seq: usize, options: Options) -> (Graphs, Options) {
    let text = PROGRAM.replace("BODY", body).replace("SEQ", &seq.to_string());
    let world = Memory(BTreeMap::from([("net.pta".into(), text)]));
    let options = Options { request: Request { path: "net.pta".into(), ..Request::default() }, ..options };
    let graphs = pipeline::graphs(&options, &world)
        .unwrap_or_else(|f| panic!("{}", partita::diag::render::text(&f.sink, &f.sources, false)));
    (graphs, options)
}

fn in_bands(precision: DType) -> Options {
    Options { bands: SMALL, precision: Some(precision), ..Options::default() }
}

/// Tokens, targets of which some are to be left out, and weights.
fn batch(recipe: &Recipe, number: u64) -> Batch {
    let mut batch = Batch::new(&recipe.inputs);
    for (n, (field, input)) in batch.fields.iter_mut().zip(&recipe.inputs).enumerate() {
        let samples = input.dims[input.sample].size;
        let each = field.sizes.iter().product::<usize>() / samples;
        let key = rng::key(3, number, n as u64, 0);
        for row in 0..samples {
            let draw = |i: usize| {
                let u = f64::from(rng::unit(key, (row * each + i) as u64));
                match input.name.as_str() {
                    "weights" => u,
                    "targets" if u < 0.2 => -100.0,
                    _ => (50.0 * u).floor(),
                }
            };
            field.write(row, &(0..each).map(draw).collect::<Vec<_>>());
        }
    }
    batch
}

fn run(engine: &mut dyn Engine, recipe: &Recipe) -> Vec<Figure> {
    engine.init(7).unwrap_or_else(|e| panic!("{e:?}"));
    let turns = (0..3).flat_map(|n| [(n, Routine::Eval), (n, Routine::Train)]);
    let figures = turns.map(|(n, routine)| engine.run(routine, 7, n, &batch(recipe, n)).expect("a step"));
    figures.flatten().collect()
}

fn params(engine: &mut dyn Engine, recipe: &Recipe) -> Vec<Vec<u8>> {
    let read = |n| {
        let mut bytes = Vec::new();
        engine.read(Slot::Param(n), &mut bytes).unwrap();
        bytes
    };
    (0..recipe.params.len()).map(read).collect()
}

/// What is in a routine's loops.
struct Found {
    loops: usize,
    /// Products that add to what they find.
    sums: usize,
    /// Scatters that do.
    added: usize,
    /// Elements of the largest buffer that is no parameter, gradient or state.
    largest: usize,
}

fn look(routine: &program::Routine) -> Found {
    let mut found = Found { loops: 0, sums: 0, added: 0, largest: 0 };
    let mut work: Vec<&Step> = routine.steps.iter().collect();
    while let Some(step) = work.pop() {
        match &step.action {
            Action::Loop(l) => {
                found.loops += 1;
                work.extend(&l.body);
            }
            Action::Gemm(Gemm { accumulate: true, .. }) => found.sums += 1,
            Action::Library(Library::Scatter { add: true, .. }) => found.added += 1,
            _ => {}
        }
    }
    let arena = routine.buffers.iter().filter(|b| matches!(b.place, program::Place::Arena(_)));
    found.largest = arena.filter(|b| b.elements != 50 * 6).map(|b| b.elements).max().unwrap_or(0);
    found
}

/// Checks a loss in bands against the interpreter; returns what the train step and the evaluation consist of.
fn check(what: &str, body: &str, seq: usize, precision: DType, bound: f64) -> [Found; 2] {
    let (mut graphs, options) = graphs(body, seq, in_bands(precision));
    let expected = run(&mut Interpreted::new(&graphs), &graphs.recipe);
    let program = pipeline::program(&mut graphs, ALL, None, &options).expect("a program");
    let found = [pipeline::TRAIN, pipeline::EVAL]
        .map(|name| look(program.routines.iter().find(|r| r.name == name).expect("a routine")));
    let mut first: Option<(Vec<f64>, Vec<Vec<u8>>)> = None;
    for threads in 1..=3 {
        let mut engine =
            Compiled::open(program.clone(), &graphs.recipe, ExecOptions { threads, ..ExecOptions::default() })
                .expect("an executor");
        let ours = run(&mut engine, &graphs.recipe);
        assert_eq!(ours.len(), expected.len(), "{what}");
        for (a, b) in ours.iter().zip(&expected) {
            for (x, y) in a.values.iter().zip(&b.values) {
                let near = (x - y).abs() <= bound * y.abs().max(1.0);
                assert!(near, "{what}, {seq} x 3 rows, {precision}: `{}` is {x}, not {y}", a.name);
            }
        }
        let values = ours.iter().flat_map(|f| f.values.clone()).collect();
        let all = (values, params(&mut engine, &graphs.recipe));
        match &first {
            None => first = Some(all),
            Some(first) => assert!(*first == all, "{what}: {threads} threads have other results"),
        }
    }
    found
}

/// Losses of all kinds, by the rows alone or with something known before.
#[test]
fn losses_in_bands_are_those_of_whole_logits() {
    let plain = "loss mean[batch, seq](cross_entropy[vocab](logits, where(targets < 0, 0, targets)))";
    let masked = "loss mean[batch, seq](cross_entropy[vocab](logits, targets), mask = targets != -100)";
    let losses = [
        ("plain", format!("{TIED}{plain}")),
        ("masked", format!("{TIED}{masked}")),
        ("a head of its own", format!("{OWN}{masked}")),
        (
            "smooth",
            format!("{OWN}loss mean[batch, seq](cross_entropy[vocab, smoothing = 0.1, z = 1e-3](logits, targets))"),
        ),
        (
            "capped and weighted",
            format!(
                "{TIED}let capped = 5 * tanh(logits / 5)\nlet l = cross_entropy[vocab](capped, targets)\nloss sum[batch, seq](l * weights) / sum[batch, seq](weights)"
            ),
        ),
        (
            "accuracy beside it",
            format!(
                "{TIED}{masked}\nlet best = argmax[vocab](logits)\nmetric accuracy = mean[batch, seq](f32(best == targets))"
            ),
        ),
        ("largest", format!("{OWN}loss mean[batch, seq](square(max[vocab](logits)))")),
        (
            "a teacher",
            format!(
                "{OWN}let old = Linear[embed, vocab, bias = false]\nlet t = softmax[vocab](stop_gradient(old(h)))\nlet s = f32(logits) - logsumexp[vocab](f32(logits))\nloss -mean[batch, seq](sum[vocab](t * s))"
            ),
        ),
    ];
    for (what, body) in &losses {
        // 21 rows, bands of 3 or 4; 27 rows; 12 of which a band is a part.
        for (seq, precision, bound) in
            [(7, DType::F64, 1e-9), (9, DType::F32, 1e-4), (4, DType::F32, 1e-4), (7, DType::BF16, 3e-2)]
        {
            let [train, eval] = check(what, body, seq, precision, bound);
            assert_eq!((train.loops, train.sums, eval.loops), (1, 1, 1), "{what}");
            assert_eq!(eval.sums, 0, "{what}");
            // Gradients of a table with two uses are one array.
            assert_eq!(train.added, usize::from(body.starts_with(TIED)), "{what}");
            for (found, step) in [(&train, "train"), (&eval, "eval")] {
                assert!(found.largest < 3 * seq * 50 / 2, "{what}: {step} has a buffer of {} elements", found.largest);
            }
        }
    }
}

/// The divisor depends on the logits: no band can be finished before all are begun.
#[test]
fn losses_that_rows_depend_on_each_other_by_keep_whole_logits() {
    let body = format!("{TIED}loss log(mean[batch, seq](exp(cross_entropy[vocab](logits, targets))))");
    let [train, eval] = check("log of a mean", &body, 7, DType::F64, 1e-9);
    assert_eq!((train.loops, eval.loops), (0, 1));
    let body = format!(
        "{TIED}let l = logits - max[batch, seq](logits)\nloss mean[batch, seq](cross_entropy[vocab](l, targets))"
    );
    let [train, eval] = check("across rows", &body, 7, DType::F64, 1e-9);
    assert_eq!((train.loops, eval.loops), (0, 0));
}

/// Bands of microbatches: loops in a loop, whose sums go on in the sums of the outer one.
#[test]
fn microbatches_are_made_in_bands() {
    let body = format!(
        "{TIED}loss mean[batch, seq](cross_entropy[vocab](logits, targets), mask = targets != -100)\n}}\nplan micro {{\nmicrobatches 3"
    );
    let (mut graphs, options) = graphs(&body, 11, Options { plan: Some("micro".into()), ..in_bands(DType::F32) });
    let expected = run(&mut Interpreted::new(&graphs), &graphs.recipe);
    let program = pipeline::program(&mut graphs, ALL, None, &options).expect("a program");
    let train = program.routines.iter().find(|r| r.name == pipeline::TRAIN).expect("a routine");
    let depth = |steps: &[Step]| steps.iter().filter(|s| matches!(s.action, Action::Loop(_))).count();
    let inner = train.steps.iter().map(|s| if let Action::Loop(l) = &s.action { depth(&l.body) } else { 0 });
    assert_eq!(inner.sum::<usize>(), 1);
    let mut engine = Compiled::open(program, &graphs.recipe, ExecOptions { threads: 2, ..ExecOptions::default() })
        .expect("an executor");
    for (a, b) in run(&mut engine, &graphs.recipe).iter().zip(&expected) {
        for (x, y) in a.values.iter().zip(&b.values) {
            assert!((x - y).abs() <= 1e-4 * y.abs().max(1.0), "`{}` is {x}, not {y}", a.name);
        }
    }
}

/// Whoever asks for logits gets them.
#[test]
fn outputs_are_whole() {
    let body = format!("{TIED}loss mean[batch, seq](cross_entropy[vocab](logits, targets))");
    let (mut graphs, options) = graphs(&body, 7, Options { outputs: vec!["logits".into()], ..in_bands(DType::F32) });
    let program = pipeline::program(&mut graphs, ALL, None, &options).expect("a program");
    let loops = |name| look(program.routines.iter().find(|r| r.name == name).expect("a routine")).loops;
    assert_eq!((loops(pipeline::TRAIN), loops(pipeline::EVAL)), (1, 0));
}

/// Small logits stay whole unless they are asked to be cut.
#[test]
fn small_logits_stay_whole() {
    let body = format!("{TIED}loss mean[batch, seq](cross_entropy[vocab](logits, targets))");
    let (graphs, options) = graphs(&body, 7, Options::default());
    let module = pipeline::lowered(&graphs, &[pipeline::TRAIN], &graphs.findings.sources, &options);
    assert_eq!(look(&module.program.routines[0]).loops, 0);
}
