//! Replicas that train apart, late gradients and earlier parameters, compiled, beside the same on one device.

use super::plans;
use super::stages::{self, compare};
use partita::types::DType;

fn gpt(optimizer: &str) -> String {
    let sizes = "batch = 8, seq = 6, vocab = 13, embed = 8, heads = 2, depth = 4";
    plans::gpt(sizes, optimizer).replace("seed 1\n", "seed 1\n    clip 0.5\n")
}

const DATA: &str = "shard batch by dp\n";
const DILOCO: &str = "local(steps = 2) by dp { lr = 0.7, momentum = 0.9 }\n";

#[test]
fn replicas_on_ranks_train_as_on_one_device() {
    for (mesh, more) in [
        ("dp = 2", format!("{DATA}{DILOCO}")),
        ("dp = 4", format!("{DATA}local(steps = 2) by dp\nmicrobatches 2")),
        ("dp = 2, tp = 2", format!("{DATA}{DILOCO}shard heads, mlp, vocab by tp")),
        ("far = 2, dp = 2", "shard batch by far, dp\nlocal(steps = 2) by far { momentum = 0.5 }\nzero 1 by dp".into()),
        ("dp = 2", format!("{DATA}async(staleness = 1)")),
        ("dp = 4", format!("{DATA}async(staleness = 2)\nzero 3 by dp\nmicrobatches 2")),
        ("dp = 2, tp = 2", format!("{DATA}async(staleness = 1) by dp\nzero 1 by dp\nshard heads, mlp by tp")),
    ] {
        compare(&gpt("adamw(lr = 1e-2)"), &format!("mesh {mesh}\n{more}"), DType::F64, 13, 1e-9);
    }
    let plain = gpt("sgd(lr = 0.1, momentum = 0.9)");
    for more in [DILOCO, "async(staleness = 1)"] {
        compare(&plain, &format!("mesh dp = 2\n{DATA}{more}"), DType::F32, 13, 2e-4);
    }
}

#[test]
fn stages_of_replicas_train_as_on_one_device() {
    for (schedule, mesh, more) in [
        ("2bw", "", ""),
        ("2bw", ", dp = 2", DATA),
        ("2bw", ", dp = 2", "shard batch by dp\nzero 1 by dp\n"),
        ("2bw", ", tp = 2", "shard heads, mlp, vocab by tp"),
        ("1f1b", ", dp = 2", "shard batch by dp\nlocal(steps = 2) by dp { momentum = 0.9 }"),
        ("zb_v", ", dp = 2", "shard batch by dp\nlocal(steps = 2) by dp"),
        ("1f1b", ", dp = 2", "shard batch by dp\nasync(staleness = 1) by dp"),
        ("interleaved(2)", ", dp = 2", "shard batch by dp\nasync(staleness = 2) by dp\nzero 1 by dp"),
    ] {
        let pipeline = format!("pipeline depth by pp {{ schedule = {schedule}, microbatches = 4 }}");
        compare(&gpt("adamw(lr = 1e-2)"), &format!("mesh pp = 2{mesh}\n{pipeline}\n{more}"), DType::F64, 13, 1e-9);
    }
}

/// A pipeline that does not drain: runs begin the step after their own, or not, and go on with what the run before has begun.
#[test]
fn steps_that_go_over_into_each_other_train_as_on_one_device() {
    for (ranks, microbatches, mesh, more) in [
        (2, 2, "", ""),
        (2, 4, "", ""),
        (3, 4, "", "recompute full"),
        (4, 4, "", ""),
        (4, 8, "", ""),
        (2, 4, ", dp = 2", DATA),
        (3, 4, ", dp = 2", "shard batch by dp\nzero 1 by dp\n"),
        (2, 4, ", dp = 2", "shard batch by dp\nzero 2 by dp\n"),
        (4, 4, ", dp = 2", "shard batch by dp\nzero 3 by dp\n"),
        (2, 4, ", tp = 2", "shard heads, mlp, vocab by tp"),
    ] {
        let pipeline = format!("pipeline depth by pp {{ schedule = 2bw, microbatches = {microbatches} }}");
        let plan = format!("mesh pp = {ranks}{mesh}\n{pipeline}\n{more}");
        let batch = gpt("adamw(lr = 1e-2)").replace("batch = 8", &format!("batch = {}", 2 * microbatches));
        assert!(compare(&batch, &plan, DType::F64, 13, 1e-9), "{plan}");
        let dropout = stages::gpt(4).replace("batch = 8", &format!("batch = {}", 2 * microbatches));
        assert!(compare(&dropout, &plan, DType::F64, 13, 1e-9), "{plan}");
    }
}
