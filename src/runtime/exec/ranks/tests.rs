//! Ranks that fail, panic or do not come.

use super::*;
use crate::mesh::{Atom, CollectiveKind, Mesh};
use crate::program::{
    Action, Begun, Buffer, BufferId, Category, Code, Collective, Exchanged, Place, Role, Routine, Slot, Source,
    SourceId, Step,
};
use crate::types::{DType, ReduceKind, When};
use std::time::Instant;

const N: usize = 8;

/// Buffers: the input, a temporary, another one, a cell with the coordinate, part of the temporary that depends on it.
fn program(ranks: usize, actions: Vec<Action>) -> Arc<Program> {
    let buffer = |place, dtype, elements| Buffer {
        place,
        dtype,
        elements,
        name: "x".into(),
        category: Category::Workspace,
        microbatch: None,
        source: SourceId(0),
    };
    let slice = Place::Slice { base: BufferId(1), turn: BufferId(3), offset: 0, stride: 16 };
    let buffers = vec![
        buffer(Place::Input(0), DType::F32, N),
        buffer(Place::Arena(0), DType::F32, N),
        buffer(Place::Arena(64), DType::F32, N),
        buffer(Place::Coordinate(Atom(0)), DType::I32, 1),
        buffer(slice, DType::F32, 4),
        buffer(Place::Arena(128), DType::F32, 4),
    ];
    let step = |action| Step { action, source: SourceId(1), label: "step".into(), when: When::Always };
    let steps = actions.into_iter().map(step).collect();
    let routine = Routine { name: "test".into(), buffers, steps, arena: 192, ..Routine::default() };
    let input = Slot {
        path: "x".into(),
        dtype: DType::F32,
        dims: vec!["n".into()],
        shape: vec![N],
        cut: vec![None],
        role: Role::Input,
        source: SourceId(0),
        host: false,
        on: vec![],
        copied: false,
    };
    let line = Source { file: "gpt.pta".into(), line: 7, column: 3, ..Source::default() };
    Arc::new(Program {
        inputs: vec![input],
        code: Code { target: std::env::consts::ARCH.into(), ..Code::default() },
        routines: vec![routine],
        sources: vec![Source::default(), line],
        mesh: Mesh::of(&[("dp", ranks)]),
        ..Program::default()
    })
}

/// An exchange and the wait for it.
fn all_reduce(number: u32, from: u32, to: u32) -> [Action; 2] {
    let (from, to) = (BufferId(from), BufferId(to));
    let wait = Action::Wait(vec![Begun { number, kind: CollectiveKind::AllReduce, from, to }]);
    let begin = Action::Collective(Box::new(Collective {
        kind: CollectiveKind::AllReduce,
        atoms: vec![Atom(0)],
        reduce: Some((ReduceKind::Sum, vec![Atom(0)])),
        dtype: DType::F32,
        from,
        to,
        dims: vec![Exchanged { extent: N, from: vec![], to: vec![] }],
        hops: 0,
        number,
    }));
    [begin, wait]
}

/// Panics on ranks from 2: a slice outside of its base.
fn panic_late() -> Action {
    Action::Copy { from: BufferId(4), to: BufferId(5) }
}

/// A sum, and another one that the ranks that panic do not come to.
fn reduced_twice() -> Vec<Action> {
    let [a, b] = all_reduce(0, 0, 1);
    let [c, d] = all_reduce(1, 1, 2);
    vec![a, b, panic_late(), c, d]
}

fn ranks(program: Arc<Program>, limit: Duration) -> Ranks {
    joined(program, limit, false)
}

fn joined(program: Arc<Program>, limit: Duration, behind: bool) -> Ranks {
    let exec = ExecOptions { threads: 1, ..ExecOptions::default() };
    Ranks::new(program, RankOptions { exec, limit, behind: Some(behind) }).unwrap()
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_rank_that_panics_wakes_all_others() {
    let start = Instant::now();
    for round in 0..40 {
        let mut all = joined(program(4, reduced_twice()), LONG, round % 2 == 1);
        let e = all.run(0, RunArgs::default()).unwrap_err();
        assert_eq!(e.code, "E0901");
        assert!(e.message.contains("a rank panicked: slice 32..+16 is outside"), "{e}");
        assert_eq!(e.notes[0], "on rank 2 (dp = 2)");
        let waiting = e.notes.get(1).expect("somebody waited");
        // Rank 3 may be the first to fail; either is named.
        assert!(waiting.contains("rank 2 (dp = 2) failed") || waiting.contains("rank 3 (dp = 3) failed"), "{e}");
        assert!(waiting.ends_with("failed while others were at `all_reduce` (gpt.pta:7:3)"), "{e}");
    }
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn ranks_run_again_after_a_failure() {
    for behind in [false, true] {
        let mut all = joined(program(3, reduced_twice()), LONG, behind);
        assert!(all.run(0, RunArgs::default()).is_err());
        // Without the rank that panics, by the same threads.
        let mut good = joined(program(2, reduced_twice()), LONG, behind);
        for _ in 0..100 {
            good.run(0, RunArgs::default()).unwrap();
        }
        assert!(all.run(0, RunArgs::default()).is_err());
    }
}

#[test]
fn a_rank_that_is_late_is_named() {
    late(false);
    late(true);
}

fn late(behind: bool) {
    let mut all = joined(program(3, all_reduce(0, 0, 1).to_vec()), Duration::from_millis(60), behind);
    let seat = all.seats[2].clone();
    let (held, is_held) = std::sync::mpsc::channel();
    let holder = std::thread::spawn(move || {
        let _exec = lock(&seat.exec);
        held.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(400));
    });
    is_held.recv().unwrap();
    let e = all.run(0, RunArgs::default()).unwrap_err();
    assert_eq!((e.code, e.place.as_deref()), ("E0815", Some("gpt.pta:7:3")));
    assert_eq!(e.message, "rank 2 (dp = 2) did not come to `all_reduce` within 0 s");
    holder.join().unwrap();
    // It came, too late; the next run finds all in order.
    assert!(!all.dead);
    all.run(0, RunArgs::default()).unwrap();
}

#[test]
fn a_rank_that_never_comes_back_is_given_up() {
    let mut all = ranks(program(2, all_reduce(0, 0, 1).to_vec()), Duration::from_millis(30));
    let seat = all.seats[1].clone();
    let exec = lock(&seat.exec);
    let start = Instant::now();
    let e = all.run(0, RunArgs::default()).unwrap_err();
    assert_eq!(e.code, "E0815");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(all.dead && all.run(0, RunArgs::default()).is_err());
    drop(all);
    drop(exec);
}

#[test]
fn errors_of_ranks_become_one() {
    let program = program(3, vec![]);
    let own = |text: &str| Some(Err(RuntimeError::new("E0809", text)));
    let follow = || Some(Err(RuntimeError::new("E0814", "rank 2 failed while others were at `all_gather`")));
    let verdict = |results| verdict(&program, results, LONG).unwrap_err();
    let e = verdict(vec![follow(), own("a"), own("b")]);
    assert_eq!((e.code, e.message.as_str()), ("E0809", "a"));
    assert_eq!(e.notes.len(), 2);
    assert!(e.notes[1].starts_with("on rank 0 (dp = 0): rank 2 failed"));
    // As long as one has failed by itself it does not matter that another is missing.
    assert_eq!(verdict(vec![None, follow(), own("b")]).message, "b");
    assert_eq!(verdict(vec![Some(Ok(())), None, follow()]).code, "E0815");
    assert_eq!(verdict(vec![Some(Ok(())), follow(), Some(Ok(()))]).code, "E0814");
}

#[test]
fn a_program_of_many_ranks_is_not_run_on_one() {
    let e = Executor::new(program(2, vec![]), ExecOptions::default()).err().expect("an error");
    assert_eq!(e.message, "a program of 2 ranks is run on one");
}
