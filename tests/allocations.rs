//! A training step allocates nothing, on any thread, once it has run.

#[path = "support/backend.rs"]
mod backend;
#[path = "support/golden.rs"]
mod golden;

use partita::kernel::Options;
use partita::runtime::exec::{ExecOptions, Executor, RunArgs};
use partita::types::DType;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counting calls on all threads.
struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of the allocator in a step behind the second one, the fewest of three.
fn of_a_step(model: &str, precision: DType, threads: usize) -> usize {
    let (graph, mut env, facts) = golden::load(model, "tiny", precision);
    let program = Arc::new(backend::compile(&graph, &Options::default()));
    let mut exec = backend::executor(&program, &env, ExecOptions { threads, ..ExecOptions::default() });
    for step in 0..2 {
        fill(&mut exec, &facts, step);
        env.step = step;
        let results = backend::run(&mut exec, &graph, &env).expect("runs");
        assert!(results.iter().all(|t| t.data.iter().all(|x| x.is_finite())), "a step that trains");
    }
    // A thread that the system lets run for the first time so late allocates what every thread does: that is not the step's.
    let calls = (2..5).map(|step| {
        fill(&mut exec, &facts, step);
        let before = CALLS.load(Ordering::SeqCst);
        exec.run(0, RunArgs { seed: env.seed, step, position: 0, ..RunArgs::default() }).expect("runs");
        CALLS.load(Ordering::SeqCst) - before
    });
    calls.min().unwrap_or(0)
}

fn fill(exec: &mut Executor, facts: &serde_json::Value, step: u64) {
    for (n, t) in golden::batch(facts, step).iter().enumerate() {
        exec.input_mut(n).copy_from_slice(&backend::pack(t.dtype, &t.data));
    }
}

/// One test, so that no other one allocates meanwhile.
#[test]
fn a_step_allocates_nothing() {
    let before = CALLS.load(Ordering::SeqCst);
    drop(vec![0u8; 1000]);
    assert!(CALLS.load(Ordering::SeqCst) > before, "allocations are counted");
    for model in ["gpt", "llama", "moe"] {
        for precision in [DType::F32, DType::BF16, DType::F64] {
            for threads in [1, 2] {
                assert_eq!(of_a_step(model, precision, threads), 0, "{model} in {precision} on {threads} threads");
            }
        }
    }
}
