//! What an executor does beside computing: memory, errors that name a line, watching, times, stored programs.

#[path = "support/backend.rs"]
#[allow(dead_code, reason = "shared with tests that run whole environments")]
mod backend;

use partita::ir::{self, Builder, GatherMode, OutputKind};
use partita::kernel::Options;
use partita::program::Program;
use partita::runtime::exec::{ExecOptions, Executor, RunArgs};
use partita::source::{FileId, SourceMap, Span};
use partita::types::rng::{Dist, stream};
use partita::types::{DType, MapOp, ReduceKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Tests of this file run one at a time: allocations are counted for the whole process.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

fn param(b: &mut Builder, path: &str, dims: &[ir::DimId]) -> ir::ParamId {
    b.add_param(ir::Param { path: path.into(), dtype: DType::F32, dims: dims.to_vec(), map: None, span: None })
}

fn input(b: &mut Builder, name: &str, dtype: DType, dims: &[ir::DimId]) -> ir::ValueId {
    let id = b.add_input(ir::Input { name: name.into(), dtype, dims: dims.to_vec(), span: None });
    b.input(id)
}

/// Softmax, top-k, scatter, draws, a loop, and a parameter update: every kind of step but matrix products.
fn busy() -> ir::Graph {
    let mut b = Builder::default();
    let (row, col, k, t) =
        (b.add_dim("row", 40, false), b.add_dim("col", 37, false), b.add_dim("k", 3, false), b.add_dim("t", 4, false));
    let w = param(&mut b, "w", &[row, col]);
    let tokens = input(&mut b, "tokens", DType::I32, &[row]);
    let x = b.param(w);
    let noise = b.random(Dist::Normal { std: 0.1 }, stream("noise"), &[row, col], &[]);
    let x = b.add(x, noise);
    let top = b.reduce(ReduceKind::Max, &[col], x);
    let centred = b.sub(x, top);
    let e = b.map(MapOp::Exp, &[centred]);
    let sum = b.sum(&[col], e);
    let p = b.div(e, sum);
    let best = b.top_k(col, k, p);
    let order = b.arg_sort(row, top);
    let moved = b.scatter(ReduceKind::Sum, &[row], &[row], p, &[tokens]);
    let start = b.splat_of(0.0, DType::F32, &[row, col]);
    let frame = b.begin_loop(t, false, &[start]);
    let (p_in, carry) = (b.reach(p), frame.carries[0]);
    let next = b.add(carry, p_in);
    let (finals, _) = b.end_loop(frame, &[next], &[]);
    let update = b.add(moved, finals[0]);
    b.output(OutputKind::Param(w), "w", update);
    b.output(OutputKind::Value, "best", best);
    b.output(OutputKind::Value, "order", order);
    let loss = b.sum(&[row, col], update);
    b.output(OutputKind::Loss, "loss", loss);
    b.finish()
}

fn prepare(program: Program, options: ExecOptions) -> Executor {
    let mut exec = Executor::new(Arc::new(program), options).unwrap();
    if !exec.program().params.is_empty() {
        let n = exec.param(0).len() / 4;
        let values: Vec<f64> = (0..n).map(|i| (i % 11) as f64 * 0.1).collect();
        exec.param_mut(0).copy_from_slice(&backend::pack(DType::F32, &values));
    }
    exec
}

#[test]
fn a_step_allocates_nothing() {
    let _alone = alone();
    let program = backend::compile(&busy(), &Options::default());
    for threads in [1, 3] {
        let mut exec = prepare(program.clone(), ExecOptions { threads, timing: true, ..ExecOptions::default() });
        exec.run(0, RunArgs::default()).unwrap();
        // Threads allocate when they begin, and the harness when a test ends: one quiet window is proof, since a step that
        // allocates does so every time.
        let quiet = (0..20).any(|window| {
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            for step in 0..19 {
                exec.run(0, RunArgs { step: 1 + window * 19 + step, ..RunArgs::default() }).unwrap();
            }
            ALLOCATIONS.load(Ordering::SeqCst) == before
        });
        assert!(quiet, "{threads} threads allocate");
        assert_eq!(exec.high_water(0), program.routines[0].arena);
        let times = exec.profile(0).expect("a measured executor").steps;
        let runs = times.iter().map(|t| t.runs).min().unwrap();
        let looped = times.iter().filter(|t| t.runs == 4 * runs).count();
        let plain = times.iter().filter(|t| t.runs == runs).count();
        assert!(looped > 0 && plain > 0 && looped + plain == times.len(), "{times:?}");
    }
}

#[test]
fn a_program_runs_from_its_bytes() {
    let _alone = alone();
    let program = backend::compile(&busy(), &Options::default());
    let stored = Program::from_bytes(&program.to_bytes()).unwrap();
    let mut here = prepare(program, ExecOptions::default());
    let mut there = prepare(stored, ExecOptions::default());
    for step in 0..3 {
        let args = RunArgs { seed: 4, step, position: 0, ..RunArgs::default() };
        here.run(0, args).unwrap();
        there.run(0, args).unwrap();
        assert_eq!(here.param(0), there.param(0));
    }
    assert!(here.scalar(0, here.program().routines[0].outputs.len() - 1).is_finite());
}

#[test]
fn foreign_code_is_an_error() {
    let _alone = alone();
    let mut program = backend::compile(&busy(), &Options::default());
    program.code.target = "z80".into();
    let error = Executor::new(Arc::new(program), ExecOptions::default()).err().unwrap();
    assert_eq!(error.code, "E0812");
    assert!(error.message.contains("z80"), "{error}");
}

/// A text of four lines, and the span of one of them.
fn texts() -> (SourceMap, impl Fn(usize) -> Option<Span>) {
    let mut texts = SourceMap::default();
    let file: FileId = texts.add("model.pta", "first\nsecond\nthird\nfourth\n");
    (texts, move |line: usize| Some(Span::new(file, [0, 6, 13, 19][line - 1], [5, 12, 18, 25][line - 1])))
}

#[test]
fn an_index_out_of_range_names_its_line() {
    let _alone = alone();
    let (texts, line) = texts();
    let mut b = Builder::default();
    let (token, vocab, seq) = (b.add_dim("token", 8, false), b.add_dim("vocab", 5, false), b.add_dim("seq", 6, false));
    let w = param(&mut b, "embedding", &[vocab, token]);
    let ids = input(&mut b, "ids", DType::I32, &[seq]);
    b.span = line(2);
    let table = b.param(w);
    b.span = line(3);
    let rows = b.gather(&[vocab], GatherMode::Error, table, &[ids]);
    b.span = line(4);
    let loss = b.sum(&[token, seq], rows);
    b.output(OutputKind::Loss, "loss", loss);
    let graph = b.finish();
    for threads in [1, 2] {
        let program = backend::compile_of(&graph, &Options::default(), &texts);
        let mut exec = prepare(program, ExecOptions { threads, ..ExecOptions::default() });
        let fill =
            |exec: &mut Executor, ids: [f64; 6]| exec.input_mut(0).copy_from_slice(&backend::pack(DType::I32, &ids));
        fill(&mut exec, [0.0, 4.0, 1.0, 3.0, 2.0, 0.0]);
        exec.run(0, RunArgs::default()).unwrap();
        for bad in [5.0, -1.0, 2e9] {
            fill(&mut exec, [0.0, 4.0, 1.0, bad, 2.0, 0.0]);
            let error = exec.run(0, RunArgs::default()).unwrap_err();
            assert_eq!(error.code, "E0809");
            assert_eq!(error.message, format!("index {bad} is out of range for dim `vocab` of size 5"));
            assert_eq!(error.place.as_deref(), Some("model.pta:3:1"));
        }
        fill(&mut exec, [1.0; 6]);
        exec.run(0, RunArgs::default()).unwrap();
    }
}

#[test]
fn the_first_value_that_is_not_a_number_is_named() {
    let _alone = alone();
    let (texts, line) = texts();
    let mut b = Builder::default();
    let d = b.add_dim("d", 6, false);
    let x = input(&mut b, "x", DType::F32, &[d]);
    b.span = line(1);
    let mask = b.map_scalar(MapOp::Lt, x, 100.0);
    let masked = b.splat_of(f64::NEG_INFINITY, DType::F32, &[d]);
    let m = b.select(mask, x, masked);
    b.span = line(2);
    let y = b.map(MapOp::Log, &[m]);
    b.span = line(3);
    let z = b.mul(y, y);
    let loss = b.sum(&[d], z);
    b.output(OutputKind::Loss, "loss", loss);
    let graph = b.finish();
    let program = backend::compile_of(&graph, &Options { fuse: false, ..Options::default() }, &texts);
    let mut exec = prepare(program, ExecOptions { check_finite: true, ..ExecOptions::default() });
    let run = |exec: &mut Executor, x: [f64; 6]| {
        exec.input_mut(0).copy_from_slice(&backend::pack(DType::F32, &x));
        exec.run(0, RunArgs::default())
    };
    run(&mut exec, [1.0; 6]).unwrap();
    let error = run(&mut exec, [1.0, 2.0, 3.0, -1.0, 1.0, 1.0]).unwrap_err();
    assert_eq!((error.code, error.place.as_deref()), ("E0810", Some("model.pta:2:1")));
    assert!(error.message.contains("gave NaN at element 3"), "{error}");
    // An infinity counts when it reaches the loss.
    let error = run(&mut exec, [1.0, 0.0, 3.0, 1.0, 1.0, 1.0]).unwrap_err();
    assert_eq!((error.code, error.place.as_deref()), ("E0810", Some("model.pta:2:1")));
    assert!(error.message.contains("gave -inf at element 1"), "{error}");
    run(&mut exec, [1.0; 6]).unwrap();
}
