//! What a process takes is what was said: bytes that it has allocated, and bytes that runs touch, for plans of every kind.

#[path = "support/plans.rs"]
#[allow(dead_code)]
mod plans;

use partita::driver::Options;
use partita::driver::engine::Compiled;
use partita::driver::memory::needed;
use partita::driver::pipeline::{self, ALL};
use partita::runtime::exec::{ExecOptions, RunArgs, held};
use std::sync::Mutex;

/// Allocations are counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// A huge number of any type; no result has it.
const PAINT: u8 = 0xfe;

/// Opens a plan's program and runs all that its ranks can be asked for, over painted temporaries.
fn check(source: &str, plan: &str) {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let (world, options) = plans::planned(source, plan);
    let options = Options { threads: 1, ..options };
    let said = plans::sound(plan, needed(&options, &world));
    let mut g = plans::graphs(&(world, options.clone()), plan);
    let program = plans::sound(plan, pipeline::program(&mut g, ALL, None, &options));
    let before = held();
    let threads = ExecOptions { threads: 1, ..ExecOptions::default() };
    let mut engine = Compiled::open(program, &g.recipe, threads).expect("ranks");
    let now = held();
    let all = |bytes: &dyn Fn(&partita::driver::memory::Stage) -> usize| -> usize {
        said.stages.iter().map(|s| s.ranks.len() * bytes(s)).sum()
    };
    let memory = all(&|s| s.report.peak_bytes + said.scratch_bytes);
    assert_eq!(now[0] - before[0], memory, "{plan}: allocated by {} ranks", said.ranks);
    assert_eq!(now[1] - before[1], all(&|s| s.report.offloaded_bytes), "{plan}: in files");
    let machine = engine.machine_mut();
    machine.each(|exec| exec.paint(PAINT));
    let program = machine.program();
    for (step, name) in ["init", "train", "eval", "outer", "train"].into_iter().enumerate() {
        // There is an outer step where replicas train apart.
        let Some(routine) = program.routines.iter().position(|r| r.name == name) else {
            assert_eq!(name, "outer", "{plan}");
            continue;
        };
        let args = RunArgs { seed: 3, step: step as u64, position: 0, ..RunArgs::default() };
        machine.run(routine, args).unwrap_or_else(|e| panic!("{plan}: {e}"));
    }
    assert_eq!(held(), now, "{plan}: allocated in steps");
    let mut rank = 0;
    machine.each(|exec| {
        let stage = program.stage(rank);
        let planned = [program.arena_bytes(stage), program.host_bytes(stage)];
        assert_eq!(exec.touched(PAINT), planned, "{plan}: touched by rank {rank}");
        rank += 1;
    });
}

fn gpt() -> String {
    plans::gpt("batch = 4, seq = 6, vocab = 13, embed = 24, heads = 4, depth = 4", "adamw(lr = 1e-3)")
        .replace("nn.{", "nn.{dropout, ")
        .replace("h + down(gelu_tanh(up(norm2(h))))", "h + dropout(down(gelu_tanh(up(norm2(h)))))")
}

#[test]
fn one_device_takes_what_was_said() {
    for plan in [
        "",
        "precision bf16",
        "microbatches 2\nrecompute full",
        "recompute Attention\noffload activations, optimizer, parameters to host",
    ] {
        check(&gpt(), plan);
    }
}

#[test]
fn layouts_take_what_was_said() {
    let dp = "shard batch by dp";
    let tp = "shard heads, mlp, vocab by tp";
    for plan in [
        format!("mesh dp = 3\n{dp}"),
        format!("mesh dp = 2\n{dp}\nzero 1 by dp"),
        format!("mesh dp = 2\n{dp}\nzero 2 by dp\nmicrobatches 2"),
        format!("mesh dp = 2\n{dp}\nzero 3 by dp\nprecision bf16"),
        format!("mesh tp = 3\n{tp}"),
        format!("mesh dp = 2, tp = 2\n{dp}\n{tp}\nshard seq by tp in LayerNorm\nrecompute full\nzero 3 by dp"),
        format!("mesh dp = 2\n{dp}\nzero 1 by dp\noffload activations, optimizer to host"),
        "mesh cp = 2\nshard seq by cp { gather = ring, order = zigzag }".to_string(),
        format!("mesh dp = 2\n{dp}\nlocal(steps = 2) by dp {{ lr = 0.7, momentum = 0.9 }}"),
        format!("mesh dp = 2\n{dp}\nasync(staleness = 2) by dp"),
    ] {
        check(&gpt(), &plan);
    }
}

#[test]
fn stages_take_what_was_said() {
    let pipeline = |schedule: &str| format!("pipeline depth by pp {{ schedule = {schedule}, microbatches = 4 }}");
    for (mesh, schedule, more) in [
        ("pp = 4", "1f1b", ""),
        ("pp = 2", "gpipe", "recompute full"),
        ("pp = 2", "interleaved(2)", "recompute Attention"),
        ("pp = 2", "zb_h1", "precision bf16"),
        ("pp = 2", "v_min", "offload activations, optimizer, parameters to host"),
        ("pp = 2", "dualpipe", ""),
        ("pp = 2", "2bw", ""),
        ("pp = 2, dp = 2", "zb_v", "shard batch by dp\nzero 3 by dp\nrecompute full"),
        ("pp = 2, tp = 2", "1f1b", "shard heads, mlp, vocab by tp\nshard seq by tp in LayerNorm"),
        ("pp = 2, dp = 2", "1f1b", "shard batch by dp\nzero 2 by dp\noffload activations to host"),
    ] {
        let plan = format!("mesh {mesh}\n{}\n{more}", pipeline(schedule));
        // A rank along dp has its own samples of each microbatch.
        let source = if mesh.contains("dp") { gpt().replace("batch = 4", "batch = 8") } else { gpt() };
        check(&source, &plan);
    }
}
