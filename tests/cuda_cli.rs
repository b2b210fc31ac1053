//! The command line on GPUs made of software: golden models on one of them and, by NCCL, on several; samples, checkpoints, and what is
//! told where something is missing. Without NVRTC they say that they are skipped.

#[path = "common/golden.rs"]
mod golden;
#[path = "common/run.rs"]
mod run;

use golden::Golden;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

/// `partita` that finds so many GPUs. None, and a line that says so, without NVRTC.
fn command(devices: usize) -> Option<Command> {
    let Some(nvrtc) = std::env::var_os("SIMCUDA_NVRTC") else {
        eprintln!("skipped: NVRTC is not here; SIMCUDA_NVRTC names its folder");
        return None;
    };
    let folder = simcuda::place::folder();
    let mut command = run::command();
    let all: [(&str, OsString); 4] = [
        ("PARTITA_LIBCUDA", folder.join("libcuda.so.1").into()),
        ("PARTITA_NCCL", folder.join("libnccl.so.2").into()),
        ("PARTITA_NVRTC", nvrtc),
        ("SIMCUDA_DEVICES", devices.to_string().into()),
    ];
    command.envs(all);
    Some(command)
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn succeeds(mut command: Command, folder: &Path, arguments: &[&str]) -> String {
    let output = command.args(arguments).current_dir(folder).output().expect("the binary was built with the tests");
    let (out, err) = texts(&output);
    assert!(output.status.success(), "partita {}\n{out}{err}", arguments.join(" "));
    out + &err
}

#[track_caller]
fn fails(mut command: Command, folder: &Path, arguments: &[&str], code: &str) -> String {
    let output = command.args(arguments).current_dir(folder).output().expect("the binary was built with the tests");
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "partita {}\n{err}", arguments.join(" "));
    assert!(err.contains(code) && !err.contains("panicked"), "should say {code}: {err}");
    err
}

/// Trains a few steps by a mesh and lines of a plan, or on one GPU. In f32 no more than a few roundings lie between.
#[track_caller]
fn follows(model: &str, precision: &str, plan: Option<(&str, &str)>) {
    const STEPS: usize = 3;
    let ranks = plan.map_or(1, |(mesh, _)| {
        mesh.split(',').filter_map(|a| a.split('=').nth(1)?.trim().parse::<usize>().ok()).product()
    });
    let Some(command) = command(ranks) else { return };
    let golden = Golden::load(model, "tiny");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = golden.write(folder.path(), STEPS);
    let mut arguments =
        vec!["train", path.to_str().expect("a plain path"), "--preset", "tiny", "--precision", precision];
    arguments.extend(["--steps", "3", "--no-save", "--metrics", "m.jsonl", "--device", "cuda"]);
    if let Some((mesh, lines)) = plan {
        let text = std::fs::read_to_string(&path).expect("written");
        std::fs::write(&path, format!("{text}\nplan p {{\n mesh {mesh}\n {lines}\n}}\n")).expect("written");
        arguments.extend(["--plan", "p"]);
    }
    let told = succeeds(command, folder.path(), &arguments);
    assert!(told.contains(&format!("{ranks} GPU")), "{told}");
    let losses = run::metric(&folder.path().join("m.jsonl"), "loss");
    assert_eq!(losses.len(), STEPS);
    let bound = if precision == "f32" { 2e-4 } else { 2e-2 };
    for (step, (ours, theirs)) in losses.iter().zip(golden.losses()).enumerate() {
        let error = (ours - theirs).abs() / theirs.abs();
        assert!(error < bound, "{model} {precision} {plan:?} step {step}: loss {ours}, not {theirs}");
    }
}

#[test]
fn one_gpu_follows_the_golden_losses() {
    follows("gpt", "f32", None);
    follows("llama", "bf16", None);
}

#[test]
fn gpus_that_cut_the_batch() {
    follows("gpt", "f32", Some(("dp = 2", "shard batch by dp")));
    follows("gpt", "f32", Some(("dp = 4", "shard batch by dp\n zero 3 by dp")));
    follows("gpt", "bf16", Some(("dp = 2", "shard batch by dp\n zero 1 by dp")));
}

#[test]
fn gpus_that_cut_heads_and_widths() {
    follows("gpt", "f32", Some(("tp = 2", "shard heads, mlp, vocab by tp")));
    follows("gpt", "f32", Some(("tp = 3", "shard heads, mlp, vocab by tp")));
    let both = "shard batch by dp\n shard heads, mlp, vocab by tp\n shard seq by tp in RmsNorm";
    follows("llama", "f32", Some(("dp = 2, tp = 2", both)));
}

#[test]
fn gpus_that_cut_the_sequence() {
    follows("gpt", "f32", Some(("cp = 2", "shard seq by cp")));
    follows("llama", "f32", Some(("cp = 2", "shard seq by cp\n shard heads by cp in attention")));
}

#[test]
fn gpus_with_experts_of_their_own() {
    follows("moe", "f32", Some(("ep = 2", "shard batch by ep\n shard experts by ep in Experts")));
    let zero = "shard batch by dp, ep\n shard experts by ep in Experts\n zero 2 by dp";
    follows("moe", "f32", Some(("dp = 2, ep = 2", zero)));
}

#[test]
fn gpus_with_stages_of_their_own() {
    let stages = |schedule: &str| format!("pipeline depth by pp {{ schedule = {schedule}, microbatches = 2 }}");
    follows("gpt", "f32", Some(("pp = 2", &stages("1f1b"))));
    follows("gpt", "f32", Some(("pp = 2", &stages("zb_h1"))));
    let with_batch = format!("shard batch by dp\n {}", stages("gpipe"));
    follows("llama", "f32", Some(("pp = 2, dp = 2", &with_batch)));
}

/// For the oldest architecture where there is no driver, for that of the device where there is one.
#[test]
#[cfg_attr(debug_assertions, ignore = "long where the compiler is not optimised")]
fn kernels_of_all_examples_compile() {
    let Some(first) = command(1) else { return };
    drop(first);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(folder.join("examples")).expect("there are examples");
    let mut files: Vec<_> = files.map(|e| e.expect("an entry").path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "pta"));
    files.sort();
    assert!(files.len() > 20, "{files:?}");
    for (n, path) in files.iter().enumerate() {
        let mut compile = command(1).expect("as before");
        let with_device = n % 4 == 0;
        if !with_device {
            compile.env("PARTITA_LIBCUDA", "/nowhere/lib.so");
        }
        let path = path.to_str().expect("a plain path");
        let ptx = succeeds(compile, folder, &["ir", path, "--stage", "ptx"]);
        let target = if with_device { ".target sm_90" } else { ".target sm_80" };
        assert!(ptx.contains(target) && ptx.contains(".entry"), "{path}");
    }
}

#[test]
fn norms_of_many_elements_are_shared_by_blocks() {
    let Some(gpu) = command(1) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let text = "use optim.{sgd}
dim wide = 40100
model M() {
    param w: [wide] = normal(0.1)
    param b: [wide] = normal(0.1)
    loss mean[wide]((w + b) * (w + b))
}
train M {
    optimizer sgd(lr = 40.0)
    steps 3
    clip 0.01
}
";
    std::fs::write(at.join("m.pta"), text).expect("written");
    let figures = |command: Command, device: &str| {
        let name = format!("{device}.jsonl");
        succeeds(command, at, &["train", "m.pta", "--no-save", "--device", device, "--metrics", &name]);
        [run::metric(&at.join(&name), "loss"), run::metric(&at.join(&name), "grad_norm")]
    };
    let (ours, theirs) = (figures(gpu, "cuda"), figures(run::command(), "cpu"));
    assert_eq!(ours.each_ref().map(Vec::len), [3, 3]);
    for (a, b) in ours.iter().flatten().zip(theirs.iter().flatten()) {
        assert!((a - b).abs() / b < 1e-5, "{ours:?} on the GPU, {theirs:?} on the processor");
    }
    let text = succeeds(run::command(), at, &["ir", "m.pta", "--stage", "cuda"]);
    assert!(text.contains("u64 *partials"), "no kernel of many blocks");
    let ptx = succeeds(command(1).expect("as before"), at, &["ir", "m.pta", "--stage", "ptx"]);
    assert!(ptx.contains(".target sm_90"), "{}", &ptx[..200]);
}

const TINY: &str = include_str!("cli/tiny.pta");

fn tiny() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String =
        (0..60).map(|i| format!("line {i} of a text that repeats itself and then does not {}\n", i * i)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("written");
    std::fs::write(folder.path().join("tiny.pta"), TINY).expect("written");
    folder
}

#[test]
fn a_run_is_saved_resumed_evaluated_and_sampled_from() {
    let Some(first) = command(1) else { return };
    let folder = tiny();
    let at = folder.path();
    let again = || command(1).expect("as before");
    succeeds(first, at, &["train", "tiny.pta", "--out", "whole", "--metrics", "whole.jsonl"]);
    succeeds(again(), at, &["train", "tiny.pta", "--out", "parts", "--steps", "5", "--metrics", "parts.jsonl"]);
    succeeds(again(), at, &["train", "tiny.pta", "--out", "parts", "--resume", "--metrics", "parts.jsonl"]);
    let losses = |name: &str| run::metric(&at.join(name), "loss");
    assert_eq!(losses("whole.jsonl"), losses("parts.jsonl"), "resumed");
    // The processor draws the same dropout and follows the same way.
    succeeds(again(), at, &["train", "tiny.pta", "--device", "cpu", "--out", "cpu", "--metrics", "cpu.jsonl"]);
    for (gpu, cpu) in losses("whole.jsonl").iter().zip(losses("cpu.jsonl")) {
        assert!((gpu - cpu).abs() / cpu < 1e-3, "{gpu} on the GPU, {cpu} on the processor");
    }
    let eval = |device: &str| {
        let text = succeeds(again(), at, &["eval", "tiny.pta", "--checkpoint", "whole", "--json", "--device", device]);
        let line = text.lines().find(|l| l.starts_with('{')).expect("a figure").to_string();
        serde_json::from_str::<serde_json::Value>(&line).expect("an object")["loss"].as_f64().expect("a loss")
    };
    let (gpu, cpu) = (eval("cuda"), eval("cpu"));
    assert!((gpu - cpu).abs() / cpu < 1e-5, "{gpu} on the GPU, {cpu} on the processor");
    let sample = |more: &[&str]| {
        let all = [
            &["sample", "tiny.pta", "--checkpoint", "whole", "--prompt", "line", "--length", "12", "--device", "cuda"],
            more,
        ];
        succeeds(again(), at, &all.concat())
    };
    let greedy = ["--temperature", "0"];
    assert_eq!(sample(&greedy), sample(&greedy));
    let on_cpu = succeeds(
        again(),
        at,
        &[
            "sample",
            "tiny.pta",
            "--checkpoint",
            "whole",
            "--prompt",
            "line",
            "--length",
            "12",
            "--device",
            "cpu",
            "--temperature",
            "0",
        ],
    );
    assert_eq!(sample(&greedy), on_cpu, "greedy samples");
    assert!(sample(&["--top-k", "3", "--top-p", "0.9"]).contains("line"));
}

#[test]
fn what_is_missing_is_named() {
    let Some(one) = command(1) else { return };
    let folder = tiny();
    let at = folder.path();
    let again = || command(1).expect("as before");
    let train = |device| ["train", "tiny.pta", "--no-save", "--device", device];
    let told = fails(one, at, &train("cuda:3"), "E0817");
    assert!(told.contains("the driver has 1"), "{told}");
    fails(again(), at, &train("tpu"), "E0902");
    let told = fails(again(), at, &[&train("cuda")[..], &["--debug-nan"]].concat(), "E0902");
    assert!(told.contains("`--debug-nan` works on the processor alone"), "{told}");
    let without = |variable: &str| {
        let mut command = again();
        command.env(variable, "/nowhere/lib.so");
        command
    };
    let told = fails(without("PARTITA_LIBCUDA"), at, &train("cuda"), "E0817");
    assert!(told.contains("NVIDIA's driver (libcuda) was not found") && told.contains("/nowhere/lib.so"), "{told}");
    let told = fails(without("PARTITA_NVRTC"), at, &train("cuda"), "E0817");
    assert!(told.contains("NVIDIA's compiler (NVRTC) was not found"), "{told}");
    // Where the driver is missing, the processor is the default.
    let told = succeeds(without("PARTITA_LIBCUDA"), at, &["train", "tiny.pta", "--no-save", "--steps", "1"]);
    assert!(told.contains("thread"), "{told}");
    let mut lost = again();
    lost.env("SIMCUDA_LOSE", "0:40");
    let told = fails(lost, at, &train("cuda"), "E0818");
    assert!(told.contains("CUDA_ERROR"), "{told}");
    let doctor = succeeds(again(), at, &["doctor"]);
    assert!(["gpu driver", "nvrtc", "nccl", "sm_90"].iter().all(|w| doctor.contains(w)), "{doctor}");
}

#[test]
fn a_built_program_carries_its_kernels() {
    let Some(one) = command(1) else { return };
    let folder = tiny();
    let at = folder.path();
    succeeds(one, at, &["build", "tiny.pta", "-o", "prog", "--device", "cuda"]);
    let run = |nvrtc: bool| {
        let mut program = Command::new(at.join("prog"));
        let folder = simcuda::place::folder();
        program.env("PARTITA_LIBCUDA", folder.join("libcuda.so.1")).env("SIMCUDA_DEVICES", "1");
        if !nvrtc {
            program.env("PARTITA_NVRTC", "/nowhere/lib.so");
        }
        program
    };
    let told = succeeds(run(false), at, &["train", "--steps", "2", "--no-save"]);
    assert!(told.contains("1 GPU"), "{told}");
}
