//! `partita schedule`.

use crate::run::succeeds;
use crate::{fails, write};
use serde_json::Value;
use tempfile::TempDir;

/// A model with a loop of eight turns, and a plan with such a pipeline.
fn with(axis: usize, pipeline: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = format!(
        "dim batch = 32, embed = 8, depth = 8
layer Mlp(x: [batch, embed]) -> [batch, embed] {{
    dim mid = embed
    param up: [embed -> mid] = normal(1)
    param down: [mid -> embed] = normal(1)
    dot[mid](dot[embed](x, up), down)
}}
model M(x: [batch, embed]) {{
    let h = x
    for i in depth {{ h = h + Mlp(h) }}
    loss mean[batch, embed](square(h))
}}
plan p {{
    mesh pp = {axis}
    {pipeline}
}}
"
    );
    write(folder.path(), "m.pta", text);
    folder
}

fn json(folder: &TempDir) -> Value {
    serde_json::from_str(&succeeds(folder.path(), &["schedule", "m.pta", "--unit", "--json"])).expect("an object")
}

#[test]
fn the_timeline_is_drawn() {
    let folder = with(2, "pipeline depth by pp { schedule = 1f1b, microbatches = 4 }");
    let text = succeeds(folder.path(), &["schedule", "m.pta", "--unit", "--certify"]);
    assert_eq!(
        text,
        "1f1b over pp: 2 ranks, 2 stages, 4 microbatches

rank 0  F0 F1 .  .  B0 =  F2 B1 =  F3 B2 =  .  B3 =
rank 1  .  F0 B0 =  F1 B1 =  F2 B2 =  F3 B3 =  .  .
B is I and W in one, `=` the rest of an action, `.` idle time

makespan 15 units, bubble 20.00 %
activations of a stage in memory, at most, by rank: 2 1
certified free of deadlock, with no buffers: 48 obligations
      26  events end, for no ranks wait in a circle
       8  receives meet the send of the same message, shape and size
       8  reads find the message that they need
       6  slots are written again after their last reader
"
    );
}

#[test]
fn its_json_has_the_times_and_the_certificate() {
    let folder = with(4, "pipeline depth by pp { schedule = zb_v, microbatches = 8 }");
    let all = json(&folder);
    assert_eq!(all["schedule"], "zb_v");
    assert_eq!(all["makespan"], 51);
    let bubble = all["bubble_fraction"].as_f64().expect("a number");
    assert!((bubble - 3.0 / 51.0).abs() < 1e-12, "{bubble}");
    assert_eq!(all["peak_activations"], serde_json::json!([8, 8, 8, 8]));
    assert_eq!(all["ranks"].as_array().expect("a list").len(), 4);
    // The last rank holds both stages in the middle.
    let last = &all["ranks"][3];
    assert_eq!(last["rank"], 3);
    let first = serde_json::json!({"op": "F", "stage": 3, "microbatch": 0, "start": 3, "end": 4});
    assert_eq!((&last["actions"][0], &last["actions"][1]["stage"]), (&first, &serde_json::json!(4)));
    let c = all["certificate"].as_object().expect("an object");
    assert_eq!(c["rendezvous"], 2 * 6 * 8);
    let kinds: u64 = c.iter().filter(|(k, _)| *k != "obligations").map(|(_, n)| n.as_u64().expect("a number")).sum();
    assert_eq!(c["obligations"], kinds);
}

#[test]
fn a_table_goes_into_a_file_and_back() {
    let folder = with(4, "pipeline depth by pp { schedule = v_half, microbatches = 8 }");
    let before = json(&folder);
    succeeds(folder.path(), &["schedule", "m.pta", "--csv", "-o", "half.csv"]);
    let text = std::fs::read_to_string(folder.path().join("m.pta")).expect("the program");
    write(folder.path(), "m.pta", text.replace("v_half", "file(\"half.csv\")"));
    let after = json(&folder);
    assert_eq!(after["schedule"], "file(\"half.csv\")");
    assert_eq!(after["ranks"], before["ranks"]);
}

#[test]
fn pictures_pages_and_traces_hold_every_action() {
    let folder = with(2, "pipeline depth by pp { schedule = interleaved(2), microbatches = 4 }");
    let at = folder.path();
    let svg = succeeds(at, &["schedule", "m.pta", "--svg"]);
    // Two backgrounds and the paper.
    assert_eq!(svg.matches("<rect").count(), 2 * 4 * 4 + 3);
    assert!(svg.ends_with("</svg>\n") && svg.matches("<text").count() == svg.matches("</text>").count());
    let page = succeeds(at, &["schedule", "m.pta", "--html"]);
    let data = page.split("const D=").nth(1).and_then(|d| d.split(";\n").next()).expect("the data");
    let data: Value = serde_json::from_str(data).expect("an object");
    assert_eq!(data["ranks"][1]["actions"].as_array().expect("a list").len(), 16);
    assert!(!page.contains("http"), "a page that needs another");
    succeeds(at, &["schedule", "m.pta", "--trace", "t.json"]);
    let trace: Value =
        serde_json::from_str(&std::fs::read_to_string(at.join("t.json")).expect("a trace")).expect("an object");
    let events = trace["traceEvents"].as_array().expect("a list");
    assert_eq!(events.iter().filter(|e| e["ph"] == "X").count(), 32);
    fails(at, &["schedule", "m.pta", "--svg", "--html"], 2, "--html");
}

/// Turns that do not divide go to the first stages, and take their time.
#[test]
fn stages_take_as_long_as_their_turns() {
    let folder = with(3, "pipeline depth by pp { schedule = gpipe, microbatches = 1 }");
    let text = succeeds(folder.path(), &["schedule", "m.pta", "--turns"]);
    assert!(text.contains("turns of the loop, by stage: 3 3 2\nmakespan 24 turns"), "{text}");
    let folder = with(3, "pipeline depth by pp { schedule = gpipe, microbatches = 2, stages = [1, 6, 1] }");
    let text = succeeds(folder.path(), &["schedule", "m.pta", "--turns"]);
    assert!(text.contains("turns of the loop, by stage: 1 6 1\nmakespan 42 turns"), "{text}");
}

/// A large table at both ends: looking up costs nothing, a head as much as several layers.
#[test]
fn cuts_are_even_in_modelled_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let text = |vocab: usize| {
        format!(
            "use nn.{{Embedding, Linear}}
use losses.{{cross_entropy}}
dim batch = 8, seq = 64, vocab = {vocab}, embed = 256, mid = 4 * embed, depth = 12
model M(tokens: int[batch, seq], targets: int[batch, seq]) {{
    let wte = Embedding[vocab, embed]
    let h = wte(tokens)
    for i in depth {{
        let up = Linear[embed, mid]
        let down = Linear[mid, embed]
        h = h + down(tanh(up(h)))
    }}
    loss mean[batch, seq](cross_entropy[vocab](dot[embed](h, wte.table), targets))
}}
plan p {{
    mesh pp = 4
    pipeline depth by pp {{ schedule = 1f1b, microbatches = 4 }}
}}
"
        )
    };
    let cut = |vocab: usize| {
        write(at, "m.pta", text(vocab));
        let shown = succeeds(at, &["schedule", "m.pta", "--json", "--machine", "a100"]);
        let shown: Value = serde_json::from_str(&shown).expect("an object");
        assert!(shown["machine"] == "a100" && shown["unit"] == "s", "{shown}");
        let turns = shown["turns"].as_array().expect("a list");
        turns.iter().map(|t| t.as_u64().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(cut(64), [3, 3, 3, 3]);
    let heavy = cut(8192);
    assert!(heavy[3] == 1 && heavy.iter().sum::<u64>() == 12 && heavy[0].abs_diff(heavy[2]) <= 1, "{heavy:?}");
}

/// What `calibrate` measures is a machine for `schedule`, and a file that is none is refused.
#[test]
fn times_are_those_of_a_machine() {
    let folder = with(2, "pipeline depth by pp { schedule = 1f1b, microbatches = 4 }");
    let at = folder.path();
    let of = |machine: &str| {
        let text = succeeds(at, &["schedule", "m.pta", "--json", "--machine", machine]);
        serde_json::from_str::<Value>(&text).expect("an object")
    };
    succeeds(at, &["calibrate", "--ranks", "2", "--threads", "1", "-o", "here.json"]);
    assert!(of("here.json")["machine"].as_str().is_some_and(|m| m.starts_with("this machine, 2 x 1")));
    // Half the speed is twice the time.
    let mut machine: Value =
        serde_json::from_str(&std::fs::read_to_string(at.join("here.json")).expect("a file")).expect("an object");
    (machine["latency"], machine["link"]) = (0.0.into(), 1e30.into());
    let mut time = |speed: f64| {
        for what in ["f64", "f32", "half", "memory"] {
            machine[what] = (1e9 * speed).into();
        }
        write(at, "made.json", machine.to_string());
        of("made.json")["makespan"].as_f64().expect("a time")
    };
    let (slow, fast) = (time(1.0), time(2.0));
    assert!((slow / fast - 2.0).abs() < 1e-9, "{slow} {fast}");
    let bad: [(&str, Value, &str); 5] = [
        ("memory", 0.0.into(), "`memory` is 0e0"),
        ("f32", 1e-320.into(), "1 at least"),
        ("latency", 1e308.into(), "1000 at most"),
        ("name", "a\u{1b}[31m".into(), "a line of text"),
        ("speed", 0.0.into(), "unknown field `speed`"),
    ];
    for (what, x, words) in bad {
        let mut bad = machine.clone();
        bad[what] = x;
        write(at, "bad.json", bad.to_string());
        let text = fails(at, &["schedule", "m.pta", "--machine", "bad.json"], 1, "E0902");
        assert!(text.contains(words), "{text}");
    }
    fails(at, &["schedule", "m.pta", "--machine", "none.json"], 1, "E0207");
}

#[test]
fn bad_tables_are_refused_with_their_places() {
    let folder = with(2, "pipeline depth by pp { schedule = file(\"x.csv\"), microbatches = 2 }");
    let refused = |table: &str, words: &[&str]| {
        write(folder.path(), "x.csv", table);
        let text = fails(folder.path(), &["schedule", "m.pta"], 1, "E0603");
        // `check` says the same.
        assert_eq!(fails(folder.path(), &["check", "m.pta"], 1, "E0603"), text);
        words.iter().for_each(|w| assert!(text.contains(w), "{table}: {w}\n{text}"));
    };
    refused(
        "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
        &[
            "in a circle",
            "x.csv:1:5",
            "1B0 of rank 1 comes after 1F1 of rank 1\n",
            "0F1 of rank 0 comes after 0B0 of rank 0",
        ],
    );
    refused("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", &["no rank computes 0B1", "m.pta:15"]);
    refused("0F0,0F1,0B0,0B1,0B1\n1F0,1B0,1F1,1B1\n", &["x.csv:1:17", "the first time"]);
    refused("0B0,0F0,0F1,0B1\n1F0,1B0,1F1,1B1\n", &["x.csv:1:1", "which it needs"]);
    refused("0F0,0X1\n", &["x.csv:1:5", "is no action"]);
    refused("0F0,0B0,0F1,0B1\n", &["the table has 1 ranks, the axis 2", "write 2 lines"]);
    refused("0F0,0B0\n1F0,1B0\n", &["1 microbatches", "microbatches = 1"]);
    std::fs::remove_file(folder.path().join("x.csv")).expect("the table");
    fails(folder.path(), &["schedule", "m.pta"], 1, "E0207");
    let folder = with(2, "shard batch by pp");
    let text = fails(folder.path(), &["schedule", "m.pta"], 1, "E0509");
    assert!(text.contains("pipeline depth by pp { schedule = 1f1b"), "{text}");
}

#[test]
fn the_lists_of_ranks_are_printed() {
    let folder = with(2, "pipeline depth by pp { schedule = 1f1b, microbatches = 2 }");
    let text = succeeds(folder.path(), &["ir", "m.pta", "--stage", "schedule"]);
    let expected = "rank 0: 1 slots
  0F0
  send F0 0>1 to 1
  0F1
  receive G0 1>0 from 1 | send F1 0>1 to 1  -> fills slot 0
  0B0  -> reads slot 0
";
    assert!(text.starts_with(expected), "{text}");
}
