//! Commands about plans of several ranks.

use crate::run::{partita, succeeds};
use crate::{err, fails, out, tiny, write};
use std::process::Command;
use tempfile::TempDir;

const NET: &str = "
use nn.{Linear, gelu}
use optim.{sgd}
dim batch = 8, inner = 6, mlp = 12, out = 5
model Net(x: [batch, inner], y: [batch, out]) {
    let up = Linear[inner, mlp]
    let down = Linear[mlp, out]
    loss mean[batch, out](square(down(gelu(up(x))) - y))
}
train Net { optimizer sgd(lr = 0.1)
 steps 2
}
";

/// A folder with programs: one plan, two plans, none.
pub fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let one = "plan p {\n mesh tp = 2\n shard mlp by tp\n}\n";
    write(folder.path(), "one.pta", format!("{NET}{one}"));
    write(folder.path(), "two.pta", format!("{NET}{one}plan q {{\n mesh dp = 2\n shard batch by dp\n}}\n"));
    write(folder.path(), "none.pta", NET);
    folder
}

#[test]
fn the_only_plan_is_meant_unless_one_is_named() {
    let folder = folder();
    let text = succeeds(folder.path(), &["comm", "one.pta"]);
    assert!(text.starts_with("plan p: tp = 2 (2 ranks), training step\n"), "{text}");
    let text = succeeds(folder.path(), &["comm", "two.pta", "--plan", "q", "--mesh", "dp=4"]);
    assert!(text.starts_with("plan q: dp = 4 (4 ranks)"), "{text}");
    for command in [&["comm"][..], &["verify"], &["ir", "--stage", "spmd"], &["ir", "--stage", "layouts"]] {
        let with = |file| [command, &[file]].concat();
        let text = fails(folder.path(), &with("two.pta"), 1, "E0509");
        assert!(text.contains("--plan NAME`: p, q"), "{text}");
        fails(folder.path(), &with("none.pta"), 1, "E0509");
        let text = fails(folder.path(), &[&with("none.pta")[..], &["--mesh", "dp=2"]].concat(), 1, "E0502");
        assert!(text.contains("shard DIM by dp"), "{text}");
        fails(folder.path(), &[&with("one.pta")[..], &["--mesh", "dp=2"]].concat(), 1, "E0501");
        fails(folder.path(), &[&with("one.pta")[..], &["--plan", "pp"]].concat(), 1, "E0509");
    }
    assert!(
        succeeds(folder.path(), &["ir", "one.pta", "--stage", "spmd"]).contains("collective[all_reduce tp; sum tp")
    );
    let text = succeeds(folder.path(), &["ir", "one.pta", "--stage", "layouts"]);
    assert!(text.contains("weight[mlp@tp, out]: f32 = param"), "{text}");
}

const RING: &str = "use nn.{attention, causal}
use optim.{sgd}
dim batch = 2, seq = 8, embed = 4
model Net(x: [batch, seq, embed]) {
    dim key = seq
    param g: [embed] = 1.0
    let k = (x * g)[seq -> key]
    loss mean[batch, seq, embed](square(attention[key, embed, embed, scale = 0.5](x * g, k, k, mask = causal[seq, key]())))
}
train Net {
    optimizer sgd(lr = 0.1)
    steps 1
}
plan r {
    mesh cp = 3
    shard seq by cp { gather = ring }
}
";

#[test]
fn memory_is_that_of_a_rank() {
    let folder = folder();
    let report = |arguments: &[&str]| -> serde_json::Value {
        let json = succeeds(folder.path(), &[&["memory", "two.pta", "--json"], arguments].concat());
        serde_json::from_str(&json).expect("a report")
    };
    let of = |r: &serde_json::Value, category: &str| r["ranks"][0]["by_category"][category].as_u64().expect("bytes");
    let one = report(&[]);
    let two = report(&["--plan", "p"]);
    assert_eq!((&two["mesh"]["tp"], &two["ranks"][0]["rank"]), (&2.into(), &serde_json::json!([0, 1])));
    assert_eq!(two["one_device"]["peak_bytes"], one["ranks"][0]["peak_bytes"]);
    assert_eq!(two["ranks"].as_array().map(Vec::len), Some(1));
    // 12 of mlp: up 6 x 12 and its shift, down 12 x 5 are cut; the shift of down is not.
    assert_eq!((of(&one, "parameters"), of(&two, "parameters")), (4 * (72 + 12 + 60 + 5), 4 * (36 + 6 + 30 + 5)));
    // Parts of 3, 3, 3, 3, 0: the largest counts, and it is said.
    let five = report(&["--plan", "p", "--mesh", "tp=5"]);
    assert_eq!(of(&five, "parameters"), 4 * (18 + 3 + 15 + 5));
    assert_eq!(five["uneven"], serde_json::json!(["mlp 12 by tp: parts of 3 to 0"]));
    // Blocks that go round are no parts of their own.
    write(folder.path(), "ring.pta", RING);
    let ring = succeeds(folder.path(), &["memory", "ring.pta", "--plan", "r", "--json"]);
    let ring: serde_json::Value = serde_json::from_str(&ring).expect("a report");
    let parts = serde_json::json!(["seq 8 by cp: parts of 3 to 2", "key 8 by cp: parts of 3 to 2"]);
    assert_eq!(ring["uneven"], parts);
    let text = succeeds(folder.path(), &["memory", "two.pta", "--plan", "q", "--mesh", "dp=4000"]);
    assert!(text.starts_with("plan q: dp = 4000 (4000 ranks), all alike\npeak of each rank "), "{text}");
    assert!(text.contains("uneven: batch 8 by dp: parts of 1 to 0; every rank has room"), "{text}");
    let text = fails(folder.path(), &["memory", "two.pta", "--plan", "q", "--limit", "1KiB"], 1, "E0604");
    assert!(text.contains("each rank needs") && text.contains("more ranks"), "{text}");
    let most = two["ranks"][0]["peak_bytes"].as_u64().unwrap() + two["ranks"][0]["scratch_bytes"].as_u64().unwrap();
    succeeds(folder.path(), &["memory", "two.pta", "--plan", "p", "--limit", &most.to_string()]);
}

#[test]
fn a_profile_and_a_trace_are_of_all_ranks() {
    let folder = tiny();
    let at = folder.path();
    let run = ["train", "tiny.pta", "--plan", "many", "--mesh", "tp=1,dp=4", "--steps", "3", "--no-save"];
    let text = succeeds(at, &[&run[..], &["--profile", "--trace", "trace.json"]].concat());
    assert!(text.contains("\nfigures are means of 4 ranks; without collectives a step takes "), "{text}");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(at.join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().expect("a list of events");
    let of = |rank: u64| {
        let own = events.iter().filter(|e| e["pid"].as_u64() == Some(rank) && e["name"] == "all_reduce");
        own.map(|e| e["ts"].as_f64().expect("a time")).collect::<Vec<_>>()
    };
    let all: Vec<Vec<f64>> = (0..4).map(of).collect();
    assert!(!all[0].is_empty() && all.iter().all(|one| one.len() == all[0].len()), "{all:?}");
    // No rank begins a step before all have ended the one before.
    let step = all[0].len() / 3;
    assert!(all.iter().all(|one| all.iter().all(|other| one[step - 1] < other[step])), "{all:?}");
}

#[test]
fn sampling_built_programs_and_exports_are_those_of_one_device_under_any_plan() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--steps", "2"]);
    let sample = ["sample", "tiny.pta", "--prompt", "a text", "--length", "12"];
    let one = succeeds(at, &sample);
    assert_eq!(succeeds(at, &[&sample[..], &["--plan", "many"]].concat()), one);
    assert_eq!(succeeds(at, &[&sample[..], &["--plan", "many", "--mesh", "tp=5,dp=1"]].concat()), one);
    let initial = [&sample[..], &["--initial"]].concat();
    assert_eq!(succeeds(at, &[&initial[..], &["--plan", "many"]].concat()), succeeds(at, &initial));
    // A program is built for all ranks of its plan, and goes on from a checkpoint of one.
    succeeds(at, &["build", "tiny.pta", "-o", "prog", "--plan", "many", "--mesh", "tp=2"]);
    let prog = |arguments: &[&str]| {
        let output = Command::new(at.join("prog")).args(arguments).current_dir(at).output().expect("it runs");
        assert!(output.status.success(), "{}", err(&output));
        out(&output)
    };
    assert!(prog(&["info"]).contains("ranks        4: dp = 2, tp = 2\n"), "{}", prog(&["info"]));
    assert_eq!(prog(&["sample", "--prompt", "a text", "--length", "12"]), one);
    prog(&["train", "--resume", "--steps", "4"]);
    succeeds(at, &["train", "tiny.pta", "--steps", "4", "--out", "one"]);
    let exported = |from: &str, plan: &[&str]| {
        let export = ["export", "tiny.pta", "-o", "w.safetensors", "--checkpoint", from];
        succeeds(at, &[&export[..], plan].concat());
        std::fs::read(at.join("w.safetensors")).expect("weights")
    };
    let many = exported("runs/Tiny", &["--plan", "many"]);
    assert_eq!(many, exported("runs/Tiny", &[]));
    assert_eq!(many.len(), exported("one", &[]).len());
}

/// Two layers in two stages, on two ranks of data each.
pub const DEEP: &str = r#"
use nn.{Embedding, Linear}
use losses.{cross_entropy}
use optim.{adamw}
dim batch = 4, seq = 8, vocab = 256, embed = 8, mid = 10, depth = 2
plan stages {
    mesh pp = 2, dp = 2
    shard batch by dp
    pipeline depth by pp { schedule = zb_h1, microbatches = 2 }
}
plan same { microbatches 2 }
plan gathered { mesh dp = 2
    shard batch by dp
    zero 3 by dp { regather = step }
    microbatches 2 }
plan kept { mesh dp = 2
    shard batch by dp
    zero 3 by dp { regather = never }
    microbatches 2 }
plan again { mesh dp = 2
    shard batch by dp
    zero 3 by dp
    microbatches 2 }
model Deep(tokens: int[batch, seq], targets: int[batch, seq]) {
    let wte = Embedding[vocab, embed]
    param scale: [embed] = 1
    let h = wte(tokens)
    for i in depth {
        let up = Linear[embed, mid]
        let down = Linear[mid, embed]
        h = h + down(tanh(up(h)))
    }
    loss mean[batch, seq](cross_entropy[vocab](dot[embed](scale * h, wte.table), targets))
}
train Deep {
    data bytes("text.txt")
    valid bytes("text.txt", to = 0.2)
    optimizer adamw(lr = 1e-3)
    steps 4
    seed 1
    clip 1.0
}
"#;

#[test]
fn a_run_in_stages_is_that_of_one_device() {
    let folder = tiny();
    let at = folder.path();
    write(at, "deep.pta", DEEP);
    let losses = |out: &str, arguments: &[&str]| {
        let text = succeeds(at, &[&["train", "deep.pta", "--precision", "f64", "--out", out], arguments].concat());
        let lines = text.lines().filter(|l| l.starts_with("step ") && l.contains("  loss "));
        lines
            .map(|l| l.split("tokens/s").next().unwrap_or(l).rsplit_once("  ").map_or("", |p| p.0).to_string())
            .collect::<Vec<_>>()
    };
    let one = losses("one", &["--plan", "same", "--steps", "6"]);
    assert_eq!(one.len(), 6, "{one:?}");
    let begun = losses("many", &["--plan", "stages"]);
    assert_eq!(begun.iter().map(|l| l.replace("/4", "/6")).collect::<Vec<_>>(), one[..4]);
    // It goes on from what the ranks of all stages have written, also on other ranks.
    assert_eq!(losses("many", &["--plan", "stages", "--resume", "--steps", "6", "--mesh", "pp=1"]), one[4..]);
    let text = succeeds(at, &["comm", "deep.pta", "--plan", "stages"]);
    assert!(text.contains("\nbetween stages, sent in a step") && text.contains("  rank 1 of the pipeline: "), "{text}");
    succeeds(at, &["build", "deep.pta", "-o", "prog", "--plan", "stages"]);
    let text = succeeds(at, &["verify", "deep.pta", "--plan", "stages"]);
    assert!(text.contains("the same as one device: ") && !text.contains("cut into stages"), "{text}");
    let output =
        Command::new(at.join("prog")).args(["train", "--steps", "2", "--out", "built"]).current_dir(at).output();
    assert!(output.is_ok_and(|o| o.status.success()));
}

/// How often parameters that are stored in parts are gathered: in the forward and backward pass of each of two microbatches, in the
/// forward pass of each, once.
#[test]
fn parameters_are_gathered_as_often_as_is_said() {
    let folder = tiny();
    let at = folder.path();
    write(at, "deep.pta", DEEP);
    let gathers = |plan: &str| {
        let text = succeeds(at, &["verify", "deep.pta", "--plan", plan]);
        assert!(text.contains("the same as one device: "), "{text}");
        let json = succeeds(at, &["comm", "deep.pta", "--plan", plan, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("an object");
        let all = json["collectives"].as_array().expect("a list");
        let of = all.iter().filter(|e| e["kind"] == "all_gather" && e["phase"] != "update");
        of.map(|e| e["count"].as_u64().expect("a number")).sum::<u64>()
    };
    let (once, kept, again) = (gathers("gathered"), gathers("kept"), gathers("again"));
    assert!(once > 4 && kept == 2 * once && again > kept, "{once} {kept} {again}");
}

/// Data that is no good ends a run at its own step, although the step before reads it already; the last checkpoint is named.
#[test]
fn bad_data_ends_a_run_when_its_step_comes() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let program = "use optim.{sgd}\ndim batch = 4, wide = 3, depth = 4\nmodel Net(x: [batch, wide]) {\n    let h = x\n    \
         for i in depth { param u: [wide] = 1.0\n        h = h * u }\n    loss mean[batch, wide](square(h - 0.5))\n}\n\
         train Net {\n    data { x = csv(\"x.csv\", shuffle = false) }\n    optimizer sgd(lr = 0.01)\n    steps 6\n    save every 1\n}\n\
         plan two {\n    mesh pp = 2\n    pipeline depth by pp { schedule = 2bw, microbatches = 4 }\n}\n";
    write(at, "m.pta", program);
    let row = |k: usize| if k == 13 { "0.5,1e30,0.5\n".to_string() } else { format!("0.{k},0.5,0.25\n") };
    write(at, "x.csv", (0..24).map(row).collect::<String>());
    for more in [&["--debug-nan"][..], &[]] {
        let all = ["train", "m.pta", "--plan", "two", "--out", "run", "--metrics", "m.jsonl"];
        let told = fails(at, &[&all, more].concat(), 1, "E0810");
        assert_eq!(crate::run::metric(&at.join("m.jsonl"), "loss").len(), 3, "{told}");
        assert!(at.join("run").join("step-00000003").is_dir(), "{told}");
        assert!(!more.is_empty() || told.contains("step-00000003"), "{told}");
        std::fs::remove_dir_all(at.join("run")).expect("a run");
        std::fs::remove_file(at.join("m.jsonl")).expect("metrics");
    }
}

/// What a plan says of training is no matter where one sample is computed.
#[test]
fn a_model_trained_in_microbatches_is_sampled_and_built() {
    let folder = tiny();
    let at = folder.path();
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    write(at, "tiny.pta", format!("{text}\nplan parts {{ microbatches 2 }}\n"));
    succeeds(at, &["train", "tiny.pta", "--plan", "parts", "--steps", "2"]);
    let sample = |more: &[&str]| succeeds(at, &[&["sample", "tiny.pta", "--length", "8"], more].concat());
    assert_eq!(sample(&["--plan", "parts"]), sample(&[]));
    succeeds(at, &["build", "tiny.pta", "--plan", "parts", "-o", "prog"]);
}

/// `auto` takes as many stages a rank as are faster by the model, and keeps as many activations as it may.
#[test]
fn a_found_schedule_is_no_worse_than_one_of_a_stage_a_rank() {
    let folder = tiny();
    let at = folder.path();
    let deep = DEEP.replace("depth = 2", "depth = 8");
    let shown = |schedule: &str| -> serde_json::Value {
        write(
            at,
            "deep.pta",
            deep.replace("schedule = zb_h1, microbatches = 2", &format!("schedule = {schedule}, microbatches = 4")),
        );
        let json = succeeds(at, &["schedule", "deep.pta", "--plan", "stages", "--json"]);
        serde_json::from_str(&json).expect("an object")
    };
    let time = |schedule: &str| shown(schedule)["makespan"].as_f64().expect("a time");
    assert!(time("auto") <= 1.000_001 * time("1f1b").min(time("zb_h1")));
    let kept = |schedule: &str| -> f64 {
        let all = shown(schedule);
        let (peaks, turns) =
            (all["peak_activations"].as_array().expect("peaks"), all["turns"].as_array().expect("turns"));
        let most = peaks.iter().filter_map(|p| p.as_f64()).fold(0.0, f64::max);
        most * 2.0 / turns.len() as f64
    };
    assert!(kept("auto(1)") <= 1.0 && kept("auto") > 1.0, "{} {}", kept("auto(1)"), kept("auto"));
    write(at, "deep.pta", deep.replace("schedule = zb_h1", "schedule = auto(few)"));
    fails(at, &["check", "deep.pta"], 1, "E0506");
}

/// What cannot be cut says what stands in the way.
#[test]
fn steps_that_cannot_be_cut_say_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let free = "model Free() {\n    param w: [wide] = 1.0\n    let h = w\n    for i in depth { param u: [wide] = 1.0\n        h = h * u }\n\
         \x20   loss mean[wide](square(h))\n}\n";
    let loops = "model Loops(x: [batch, wide]) {\n    let h = x\n    for i in depth { param u: [wide] = 1.0\n        h = h * u }\n\
         \x20   for k in more { param v: [wide] = 1.0\n        h = h * v }\n    loss mean[batch, wide](square(h))\n}\n";
    for (model, name, dims, words) in [
        (free, "Free", "depth", "nothing is fed, so there are no samples for 2 microbatches"),
        (loops, "Loops", "more, depth", "the model goes through its loops in another order than `more, depth`"),
    ] {
        let data = if name == "Loops" { "    data { x = npy(\"x.npy\") }\n" } else { "" };
        let program = format!(
            "use optim.{{sgd}}\ndim batch = 4, wide = 3, depth = 2, more = 2\n{model}train {name} {{\n{data}    optimizer sgd(lr = 0.1)\n    \
             steps 2\n}}\nplan p {{ mesh pp = 2\n    pipeline {dims} by pp {{ schedule = 1f1b, microbatches = 2 }} }}\n"
        );
        write(at, "m.pta", program);
        let told = fails(at, &["comm", "m.pta", "--plan", "p"], 1, "E0605");
        assert!(told.contains(words), "{told}");
    }
}

/// What the ranks of a program run is shown to end, collectives included.
#[test]
fn a_certificate_is_of_what_ranks_run_too() {
    let folder = tiny();
    let at = folder.path();
    write(at, "deep.pta", DEEP);
    let text = succeeds(at, &["schedule", "deep.pta", "--plan", "stages", "--certify"]);
    let (_, of_ranks) = text.split_once("that the ranks run").expect("a second certificate");
    assert!(of_ranks.contains("collectives are called alike") && of_ranks.contains("receives meet"), "{text}");
    let json = succeeds(at, &["schedule", "deep.pta", "--plan", "stages", "--certify", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("an object");
    let of = |key: &str| json["certificate_of_ranks"][key].as_u64().expect("a number");
    assert!(of("obligations") > of("progress") && of("collectives") > 0 && of("rendezvous") > 0, "{json}");
}

/// All steps of a run that go over into each other, beside the same in the schedule.
#[test]
fn a_run_without_a_bubble_between_steps_is_compared_as_a_whole() {
    let folder = tiny();
    let at = folder.path();
    let (before, rest) = DEEP.split_once("schedule = ").expect("a schedule");
    let (_, after) = rest.split_once(',').expect("and how many microbatches");
    write(at, "deep.pta", format!("{before}schedule = 2bw,{after}"));
    succeeds(at, &["train", "deep.pta", "--plan", "stages", "--no-save", "--trace", "run.json"]);
    let compare = ["schedule", "deep.pta", "--plan", "stages", "--compare", "run.json"];
    let text = succeeds(at, &compare);
    assert!(text.contains("4 steps in a row") && text.contains("measured / simulated"), "{text}");
    let json = succeeds(at, &[&compare[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).expect("an object");
    for rank in json["ranks"].as_array().expect("ranks") {
        let actions = rank["actions"].as_array().expect("actions");
        let of = |op: &str| -> Vec<u64> {
            let all = actions.iter().filter(|a| a["op"] == op && a["measured"]["start"].is_number());
            all.filter_map(|a| a["microbatch"].as_u64()).collect()
        };
        assert_eq!([of("F"), of("B")], [(0..8).collect::<Vec<_>>(), (0..8).collect()], "{rank}");
    }
    // A run of other sizes.
    let other = fails(at, &[&compare[..], &["--set", "embed=9"]].concat(), 1, "E0902");
    assert!(other.contains("parameters and inputs of"), "{other}");
    // An action that is missing, in the midst.
    let mut trace: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(at.join("run.json")).expect("a trace")).expect("an object");
    let events = trace["traceEvents"].as_array_mut().expect("events");
    let gone = events.iter().position(|e| e["ph"] == "X" && e["name"] == "B1.1").expect("an action");
    events.remove(gone);
    write(at, "run.json", trace.to_string());
    assert!(fails(at, &compare, 1, "E0902").contains("is no trace of this schedule"));
}

/// A run in stages beside its schedule.
#[test]
fn a_schedule_is_compared_with_a_run_of_it() {
    let folder = tiny();
    let at = folder.path();
    write(at, "deep.pta", DEEP);
    succeeds(at, &["train", "deep.pta", "--plan", "stages", "--no-save", "--trace", "run.json"]);
    let compare = ["schedule", "deep.pta", "--plan", "stages", "--compare", "run.json"];
    // Traces of long runs are longer than any program.
    let mut trace = std::fs::read_to_string(at.join("run.json")).expect("a trace");
    trace.push_str(&" ".repeat(2 << 20));
    write(at, "run.json", trace);
    let text = succeeds(at, &compare);
    for words in
        ["    0  F ", "    1  W ", "simulated from what actions took", "median of 3 steps", "measured / simulated"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let json = succeeds(at, &[&compare[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).expect("an object");
    let makespan = |what: &str| json[what]["makespan"].as_f64().expect("a time");
    assert!(makespan("measured") > 0.0 && makespan("simulated") > 0.0 && makespan("modelled") > 0.0);
    // In the order of the table, one action after the other, none beyond the step.
    for rank in json["ranks"].as_array().expect("ranks") {
        let time = |a: &serde_json::Value, end: &str| a["measured"][end].as_f64().expect("a time");
        let actions = rank["actions"].as_array().expect("actions");
        assert_eq!(actions.len(), 6);
        assert!(actions.windows(2).all(|w| time(&w[0], "end") <= time(&w[1], "start")), "{rank}");
        assert!(actions.iter().all(|a| time(a, "end") <= makespan("measured") + 1e-9), "{rank}");
    }
    // Events that are missing, that go backward, and ranks that the plan has not.
    let trace = std::fs::read_to_string(at.join("run.json")).expect("a trace");
    let trace: serde_json::Value = serde_json::from_str(&trace).expect("an object");
    let of = |event: &serde_json::Value| event["ph"] == "X" && event["name"] == "I1.1";
    let changed = |change: &dyn Fn(&mut Vec<serde_json::Value>, usize)| {
        let mut trace = trace.clone();
        let events = trace["traceEvents"].as_array_mut().expect("a list");
        let first = events.iter().position(of).expect("an action");
        change(events, first);
        write(at, "run.json", trace.to_string());
    };
    changed(&|events, k| _ = events.remove(k));
    assert!(fails(at, &compare, 1, "E0902").contains("of the pipeline did `1"), "an event is missing");
    changed(&|events, k| events[k]["dur"] = (-1.0).into());
    assert!(fails(at, &compare, 1, "E0902").contains("microseconds"), "a negative time");
    // Events in any order are those of their times.
    changed(&|events, k| {
        let event = events.remove(k);
        events.push(event);
    });
    succeeds(at, &compare);
    let text = fails(at, &[&compare[..], &["--mesh", "dp=1"]].concat(), 1, "E0902");
    assert!(text.contains("2 of its ranks are at place 0 of the pipeline, where the plan has 1"), "{text}");
    // A trace of another schedule, and none at all.
    let text = fails(at, &[&compare[..], &["--mesh", "pp=1"]].concat(), 1, "E0902");
    assert!(text.contains("no trace of this schedule"), "{text}");
    write(at, "run.json", "{}");
    fails(at, &compare, 1, "E0902");
}

/// Of a file with several plans, the one that is meant is judged, whatever is wrong with others.
#[test]
fn a_plan_is_checked_without_the_others() {
    let folder = folder();
    let at = folder.path();
    let two = std::fs::read_to_string(at.join("two.pta")).expect("written");
    write(at, "three.pta", format!("{two}plan bad {{\n mesh dp = 2\n shard batch by dp\n precision bf61\n}}\n"));
    fails(at, &["check", "three.pta"], 1, "E0506");
    assert!(succeeds(at, &["check", "three.pta", "--plan", "q"]).contains("parameters"));
    fails(at, &["check", "three.pta", "--plan", "q", "--mesh", "tp=2"], 1, "E0501");
    fails(at, &["check", "three.pta", "--plan", "bad"], 1, "E0506");
    fails(at, &["check", "three.pta", "--plan", "good"], 1, "E0509");
}

/// A memory that nothing meets is an error where it is needed, and a warning where a plan is shown.
#[test]
fn recomputation_that_does_not_suffice_is_told() {
    let folder = tiny();
    let at = folder.path();
    let lines = "microbatches = 2 }\n    recompute auto(memory = 1 KiB)\n}\nplan same";
    write(at, "deep.pta", DEEP.replace("microbatches = 2 }\n}\nplan same", lines));
    let command = |words: &[&str]| partita(at, &[words, &["deep.pta", "--plan", "stages"]].concat());
    for words in [&["comm"][..], &["verify", "--steps", "1"], &["schedule"]] {
        let output = command(words);
        let said = err(&output);
        assert!(output.status.success(), "{words:?}: {said}");
        assert!(said.contains("warning[W0015]: with all that is worth it computed again each rank needs "), "{said}");
        assert!(
            said.contains("more than 1.00 KiB") && !said.contains("W0014") && said.contains("refuse the plan (E0604)"),
            "{said}"
        );
        assert_eq!(said.contains("of f64, in which `verify` runs"), words[0] == "verify", "{said}");
    }
    for words in [&["memory"][..], &["train", "--no-save"], &["check"]] {
        let output = command(words);
        assert!(!output.status.success() && err(&output).contains("error[E0604]"), "{words:?}: {}", err(&output));
    }
    // One that suffices is told as before.
    write(at, "deep.pta", DEEP.replace("microbatches = 2 }\n}\nplan same", &lines.replace("1 KiB", "1 GiB")));
    assert!(!err(&command(&["schedule"])).contains("W0015"));
}

#[test]
fn an_axis_of_one_rank_is_noted_and_does_nothing() {
    let folder = folder();
    let output = partita(folder.path(), &["comm", "one.pta", "--mesh", "tp=1"]);
    assert!(output.status.success() && err(&output).contains("note[W0006]"), "{}", err(&output));
    assert!(out(&output).ends_with("one rank: nothing is exchanged\n"), "{}", out(&output));
    let text = succeeds(folder.path(), &["verify", "one.pta", "--mesh", "tp=1"]);
    assert!(text.contains("nothing to compare") && !text.contains("the same"), "{text}");
    let json = succeeds(folder.path(), &["comm", "one.pta", "--mesh", "tp=1", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json).expect("an object");
    assert_eq!((&value["mesh"]["tp"], &value["totals"]["wire_bytes"]), (&1.into(), &0.into()));
}

#[test]
fn a_plan_is_verified() {
    let folder = folder();
    let text = succeeds(folder.path(), &["verify", "one.pta"]);
    assert!(text.contains("plan p: tp = 2 (2 ranks)") && text.contains("the same as one device"), "{text}");
    assert!(text.contains("over 3 steps"), "{text}");
    let text = succeeds(folder.path(), &["verify", "two.pta", "--plan", "q", "--steps", "1", "--mesh", "dp=3"]);
    assert!(text.contains("dp = 3 (3 ranks)") && text.contains("over 1 step,"), "{text}");
}

#[test]
fn what_is_too_large_is_made_smaller_or_refused() {
    let folder = folder();
    let text = succeeds(folder.path(), &["verify", "two.pta", "--plan", "q", "--mesh", "dp=32"]);
    // 8 rows over 32 ranks: one over 2, so that a rank still has none.
    for part in ["dp = 2 (2 ranks)", "batch = 1,", "made smaller, from 32 ranks", "the same as one device"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("differs"), "{text}");
    let large =
        NET.replace("inner = 6, mlp = 12", "inner = 60 * 100, mlp = 60 * 100").replace("batch = 8", "batch = 80 * 10");
    write(folder.path(), "large.pta", format!("{large}plan p {{\n mesh tp = 2\n shard mlp by tp\n}}\n"));
    let text = fails(folder.path(), &["verify", "large.pta"], 1, "E0505");
    assert!(text.contains("GFLOP") && text.contains("--full"), "{text}");
    // Why smaller sizes are not taken is said.
    assert!(text.contains("tp = 2: a step of"), "{text}");
    // Tokens must find their rows: a table of 4 rows is too small for indices from 37 on.
    let table =
        "use nn.{Embedding}\nuse optim.{sgd}\ndim batch = 4, vocab = 128, width = 2\nmodel Net(tokens: int[batch]) {
 let table = Embedding[vocab, width]\n loss mean[batch, width](square(table(tokens + 37)))\n}
train Net { optimizer sgd(lr = 0.1)\n steps 2\n}\nplan p {\n mesh tp = 32\n shard vocab by tp\n}\n";
    write(folder.path(), "table.pta", table);
    let text = succeeds(folder.path(), &["verify", "table.pta"]);
    assert!(text.contains("vocab = 64") && text.contains("the same as one device"), "{text}");
}

/// Dims that are fractions of others: all at once they do not fit each other, one after the other they do.
#[test]
fn dims_that_depend_on_each_other_are_made_smaller_one_by_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = "use nn.{Linear}\nuse optim.{sgd}
dim batch = 48, seq = 2048, embed = 384, width = 32, heads = 2 * embed / width
model Net(x: [batch, seq, embed]) {
    dim chunk = seq / 64, i = 64
    let up = Linear[embed, (heads, width)]
    let y = cumsum[i](up(x)[seq -> (chunk, i)])
    loss mean[batch, chunk, i, heads, width](square(y))
}
train Net {\n optimizer sgd(lr = 0.1)\n steps 2\n}
plan p {\n mesh cp = 2, tp = 3\n shard seq by cp\n shard heads by tp\n zero 1 by tp\n}\n";
    write(folder.path(), "m.pta", text);
    let text = succeeds(folder.path(), &["verify", "m.pta"]);
    for part in ["cp = 2, tp = 3 (6 ranks)", "made smaller", "seq = 128", "the same as one device"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("differs"), "{text}");
}

#[test]
fn a_gather_that_nobody_asked_for_is_a_finding_of_check() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = "use optim.{sgd}\ndim batch = 4, seq = 8\nmodel Net(x: [batch, seq]) {\n param scale: [seq] = 1\n \
                let (sorted, at) = sort[seq](x * scale)\n loss mean[batch, seq](square(sorted) + f32(at))\n}\n\
                train Net { optimizer sgd(lr = 0.1)\n steps 2\n}\nplan p {\n mesh cp = 2\n shard seq by cp\n}\n";
    write(folder.path(), "m.pta", text);
    let said = |arguments: &[&str]| err(&partita(folder.path(), arguments));
    assert!(!said(&["check", "m.pta"]).contains("W0013"));
    for arguments in [&["check", "m.pta", "--plan", "p"][..], &["comm", "m.pta"], &["verify", "m.pta", "--steps", "1"]]
    {
        let text = said(arguments);
        assert!(text.contains("W0013") && text.contains("cuts `seq`"), "{arguments:?}\n{text}");
        assert!(text.contains("say so by `replicate seq in Net`"), "{text}");
    }
    // Nobody can write a dim that the compiler has made.
    let text = "use nn.{BatchNorm, Linear}\nuse optim.{sgd}\ndim batch = 8, inner = 3, mid = 4\nmodel Net(x: [batch, inner]) {
 let f = Linear[inner, mid]\n let norm = BatchNorm[mid]\n loss mean[batch, mid](square(norm(f(x))))\n}
train Net { optimizer sgd(lr = 0.1)\n samples batch in 2 slices\n steps 2\n}\nplan p {\n mesh dp = 4\n shard batch by dp\n}\n";
    write(folder.path(), "m.pta", text);
    let text = said(&["comm", "m.pta"]);
    assert!(!text.contains("replicate batch."), "{text}");
}
