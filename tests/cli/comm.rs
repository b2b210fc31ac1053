//! `partita comm`: its figures, its JSON against the page that documents it, and what it says of one number.

use crate::plans::{DEEP, folder};
use crate::run::succeeds;
use crate::{fails, tiny, write};
use serde_json::{Map, Value, json};
use std::path::Path;

fn json(at: &Path, arguments: &[&str]) -> Value {
    let text = succeeds(at, &[&["comm"], arguments, &["--json"]].concat());
    serde_json::from_str(&text).expect("an object")
}

fn number(x: &Value) -> f64 {
    x.as_f64().unwrap_or_else(|| panic!("{x} is no number"))
}

fn list(x: &Value) -> &Vec<Value> {
    x.as_array().unwrap_or_else(|| panic!("{x} is no list"))
}

fn keys(x: &Value) -> Vec<String> {
    let mut all: Vec<String> = x.as_object().unwrap_or_else(|| panic!("{x} is no object")).keys().cloned().collect();
    all.sort();
    all
}

#[test]
fn figures_are_those_of_the_ring() {
    let folder = folder();
    let read = |more: &[&str]| -> serde_json::Value {
        let text = succeeds(folder.path(), &[&["comm", "one.pta", "--json"], more].concat());
        serde_json::from_str(&text).expect("an object")
    };
    for n in [2u64, 3, 4] {
        let value = read(&["--mesh", &format!("tp={n}")]);
        let first = &value["collectives"][0];
        assert_eq!((&first["kind"], &first["op"], &first["value"]), (&"all_reduce".into(), &"sum".into(), &"y".into()));
        assert_eq!((&first["payload_bytes"], &first["group_size"]), (&160.into(), &n.into()));
        let wire = first["wire_bytes"].as_f64().expect("a number");
        assert!((wire - 2.0 * (n - 1) as f64 / n as f64 * 160.0).abs() < 1e-9, "{wire} of {n}");
        let all = value["collectives"].as_array().expect("a list").iter().map(|c| c["wire_bytes"].as_f64());
        let sum: f64 = all.map(|x| x.expect("a number")).sum();
        let totals = &value["totals"];
        for total in [&totals["wire_bytes"], &totals["by_axis"]["tp"], &totals["by_kind"]["all_reduce"]] {
            assert!((total.as_f64().expect("a number") - sum).abs() < 1e-9, "{totals} {sum}");
        }
    }
    // Evaluation has no gradients to be clipped.
    let eval = read(&["--eval"]);
    assert_eq!(eval["collectives"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_collective_is_explained_by_its_number() {
    let folder = folder();
    let text = succeeds(folder.path(), &["comm", "one.pta", "--why", "1"]);
    for part in ["1: all_reduce over tp of y", "adds up mlp, which `tp` cuts", "shard mlp by tp", "leave out"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let text = fails(folder.path(), &["comm", "one.pta", "--why", "9"], 1, "E0902");
    assert!(text.contains("numbered from 1 to"), "{text}");
    let page = succeeds(folder.path(), &["comm", "one.pta", "--html"]);
    assert!(page.starts_with("<!doctype html>") && page.contains("<td>sum over mlp</td>"), "{page}");
    assert!(!page.contains("http"), "{page}");
}

/// Names in the first column of the table in which `docs/commands.md` documents the object, with those in the lines that a word begins.
fn documented() -> Vec<String> {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/commands.md")).expect("the page");
    let (_, after) = page.split_once("`--json` gives one object:").expect("where the fields are documented");
    let rows = after.lines().skip_while(|l| !l.starts_with('|')).take_while(|l| l.starts_with('|')).skip(2);
    let mut all: Vec<String> = Vec::new();
    for row in rows {
        let names = row.split('|').nth(1).expect("a first column").split('`').skip(1).step_by(2);
        all.extend(names.map(|n| n.trim_end_matches("[]").to_string()));
    }
    all.sort();
    all
}

/// A model with experts, heads, a vocabulary and a loop of layers.
const MIXED: &str = "
use nn.{Embedding, Linear, attention, softmax}
use losses.{cross_entropy}
use optim.{adamw}
dim batch = 8, seq = 8, vocab = 32, embed = 16, heads = 4, head_dim = 4, mlp = 32, experts = 4, pick = 2, depth = 2
layer Attention(x: [batch, seq, embed]) -> [batch, seq, embed] {
    dim key = seq
    let query, keys, values = Linear[embed, (heads, head_dim)]
    let out = Linear[(heads, head_dim), embed]
    let k = keys(x)[seq -> key]
    let v = values(x)[seq -> key]
    out(attention[key, head_dim, head_dim, scale = 0.5](query(x), k, v, mask = true))
}
layer Experts[s](rows: [batch, experts, s, embed]) -> [batch, experts, s, embed] {
    param up: [experts, (embed -> mlp)] = normal(0.1)
    param down: [experts, (mlp -> embed)] = normal(0.1)
    dot[mlp](tanh(dot[embed](rows, up)), down)
}
layer Moe(x: [batch, seq, embed]) -> [batch, seq, embed] {
    dim slot = pick * seq
    param router: [embed -> experts] = normal(0.1)
    let (best, chosen) = top_k[experts -> pick](softmax[experts](dot[embed](x, router)))
    let (rows, place) = pack[(pick, seq) -> (experts = chosen, slot)](x)
    dot[pick](best, unpack[(experts = chosen, slot = place)](Experts[slot](rows)))
}
model Net(tokens: int[batch, seq], targets: int[batch, seq]) {
    let wte = Embedding[vocab, embed]
    let h = wte(tokens)
    for i in depth {
        h = h + Attention(h)
        h = h + Moe(h)
    }
    loss mean[batch, seq](cross_entropy[vocab](dot[embed](h, wte.table), targets))
}
train Net {
    optimizer adamw(lr = 1e-3)
    steps 2
    clip 1.0
}
plan dp { mesh dp = 4; shard batch by dp }
plan parts { mesh dp = 2; shard batch by dp; microbatches 2 }
plan tp { mesh tp = 4; shard heads, mlp, vocab by tp }
plan both { mesh dp = 2, tp = 2; shard batch by dp; shard heads, mlp, vocab by tp; zero 1 by dp }
plan zero { mesh dp = 4; shard batch by dp; zero 3 by dp }
plan ep { mesh ep = 4; shard batch by ep; shard experts by ep in Experts }
plan pp { mesh pp = 2; pipeline depth by pp { schedule = 1f1b, microbatches = 4 } }
plan cube { mesh pp = 2, dp = 2; shard batch by dp; zero 2 by dp; pipeline depth by pp { schedule = 1f1b, microbatches = 2 } }
plan far { mesh site = 2, dp = 2; shard batch by site, dp; local(steps = 10) by site }
";

const KINDS: [&str; 7] = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast", "send"];

/// Bytes that a rank sends, by the ring formula, of an even buffer of so many bytes.
fn ring(kind: &str, n: f64, payload: f64) -> Option<f64> {
    let part = (n - 1.0) / n * payload;
    match kind {
        "all_reduce" => Some(2.0 * part),
        "all_gather" | "reduce_scatter" => Some(part),
        // Each rank has a part of the whole, and keeps a part of that.
        "all_to_all" => Some(part / n),
        _ => None,
    }
}

/// Checks what the page says of one entry, numbered `id`.
fn entry(c: &Value, id: usize, mesh: &Map<String, Value>) {
    assert_eq!(c["id"], json!(id), "{c}");
    let kind = c["kind"].as_str().expect("a word");
    assert!(KINDS.contains(&kind), "{c}");
    let sizes: Vec<f64> = list(&c["axes"]).iter().map(|a| number(&mesh[a.as_str().expect("a name")])).collect();
    let group: f64 = sizes.iter().product();
    assert_eq!(number(&c["group_size"]), if kind == "send" { 2.0 } else { group }, "{c}");
    let width = match c["dtype"].as_str().expect("a type") {
        "f32" | "int" | "i32" => 4.0,
        other => panic!("{other}: {c}"),
    };
    assert_eq!(c["op"].is_null(), !kind.contains("reduce"), "{c}");
    let elements: f64 = list(&c["shape"]).iter().map(number).product();
    let payload = elements * width * number(&c["count"]);
    assert_eq!(number(&c["payload_bytes"]), payload, "{c}");
    // All dims of this model divide, so that the formulas hold to the byte.
    if let Some(wire) = ring(kind, group, payload) {
        assert!((number(&c["wire_bytes"]) - wire).abs() < 1e-6, "{wire}: {c}");
    }
    assert!(["forward", "backward", "update"].contains(&c["phase"].as_str().expect("a word")), "{c}");
    assert!(c["layer"].is_string() && !c["value"].as_str().expect("a name").is_empty(), "{c}");
    if !c["source"].is_null() {
        assert_eq!(keys(&c["source"]), ["column", "file", "line"], "{c}");
        assert!(number(&c["source"]["line"]) >= 1.0 && number(&c["source"]["column"]) >= 1.0, "{c}");
        assert!(c["source"]["file"].is_string(), "{c}");
    }
    assert!(c["overlapped"].is_boolean() && (c["bucket"].is_null() || c["bucket"].is_u64()), "{c}");
    assert!(!c["reason"].as_str().expect("a few words").is_empty(), "{c}");
}

/// The sums of `wire_bytes` by something of the entries.
fn sums<'a>(all: impl Iterator<Item = &'a Value>, key: impl Fn(&Value) -> String) -> Map<String, Value> {
    let mut out = Map::new();
    for c in all {
        let so_far = out.get(&key(c)).map_or(0.0, number);
        out.insert(key(c), json!(so_far + number(&c["wire_bytes"])));
    }
    out
}

fn alike(found: &Value, wanted: &Map<String, Value>) {
    let found = found.as_object().expect("an object");
    assert_eq!(found.len(), wanted.len(), "{found:?} {wanted:?}");
    for (name, x) in wanted {
        assert!((number(&found[name]) - number(x)).abs() < 1e-6, "{name}: {found:?} {wanted:?}");
    }
}

/// Every field that the page names is there and no other, and totals are sums: of data, tensor, expert and pipeline parallelism, ZeRO and
/// replicas.
#[test]
fn the_json_is_as_documented() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    write(at, "m.pta", MIXED);
    let documented = documented();
    let mut seen: Vec<String> = Vec::new();
    let mut kinds: Vec<String> = Vec::new();
    let mut see = |keys: Vec<String>| seen.extend(keys);
    for plan in ["dp", "parts", "tp", "both", "zero", "ep", "pp", "cube", "far"] {
        let value = json(at, &["m.pta", "--plan", plan]);
        see(keys(&value));
        see(keys(&value["totals"]));
        assert_eq!(value["plan"], plan);
        let mesh = value["mesh"].as_object().expect("an object");
        assert!(mesh.values().all(Value::is_u64), "{mesh:?}");
        let all = list(&value["collectives"]);
        assert!(!all.is_empty(), "{plan}");
        for (k, c) in all.iter().enumerate() {
            entry(c, k + 1, mesh);
            see(keys(c));
            see(c["source"].as_object().map_or_else(Vec::new, |_| keys(&c["source"])));
            kinds.push(c["kind"].as_str().expect("a word").to_string());
        }
        let totals = &value["totals"];
        alike(&totals["by_kind"], &sums(all.iter(), |c| c["kind"].as_str().expect("a word").to_string()));
        let axes = |c: &Value| list(&c["axes"]).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",");
        alike(&totals["by_axis"], &sums(all.iter(), axes));
        let sum: f64 = all.iter().map(|c| number(&c["wire_bytes"])).sum();
        assert!((number(&totals["wire_bytes"]) - sum).abs() < 1e-6, "{plan}: {sum} {totals}");
        let stages = value.get("between_stages").map(list);
        assert_eq!(stages.is_some(), mesh.contains_key("pp"), "{plan}");
        for (k, stage) in stages.into_iter().flatten().enumerate() {
            see(keys(stage));
            let own = || all.iter().filter(|c| c["kind"] == "send" && c["from"] == json!(k));
            assert_eq!(stage["coordinate"], json!(k));
            assert_eq!(number(&stage["sends"]), own().map(|c| number(&c["count"])).sum::<f64>());
            assert_eq!(number(&stage["bytes"]), own().map(|c| number(&c["payload_bytes"])).sum::<f64>());
        }
        if let Some(outer) = value.get("outer") {
            see(keys(outer));
            for (k, c) in list(&outer["collectives"]).iter().enumerate() {
                entry(c, all.len() + k + 1, mesh);
            }
            let once: f64 = list(&outer["collectives"]).iter().map(|c| number(&c["wire_bytes"])).sum();
            assert_eq!(number(&outer["wire_bytes"]), once);
            assert!((number(&totals["mean_wire_bytes"]) - sum - once / number(&outer["every"])).abs() < 1e-6);
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen, documented, "what `comm --json` has, and what docs/commands.md says");
    for kind in ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"] {
        assert!(kinds.iter().any(|k| k == kind), "no {kind} in {kinds:?}");
    }
}

/// What only stages exchange is listed, totalled and explained, too.
#[test]
fn what_stages_send_is_listed_and_explained() {
    let folder = tiny();
    let at = folder.path();
    write(at, "deep.pta", DEEP);
    let alone = ["deep.pta", "--plan", "stages", "--mesh", "dp=1"];
    let text = succeeds(at, &[&["comm"][..], &alone].concat());
    assert!(text.contains("1  send        pp  ") && text.contains("\nsent per rank and step: "), "{text}");
    assert!(text.contains("rank 0 to rank 1") && text.contains("\n  by kind: send "), "{text}");
    let value = json(at, &alone);
    let all = list(&value["collectives"]);
    for c in all {
        let id = c["id"].to_string();
        let told = succeeds(at, &[&["comm"][..], &alone, &["--why", &id]].concat());
        let (from, to) = (&c["from"], &c["to"]);
        assert!(told.starts_with(&format!("{id}: send from rank {from} to rank {to} of pp of ")), "{told}");
        for part in
            [&format!("stages of rank {to} need it"), "said in the plan\n  pipeline depth by pp", "`--mesh pp=1`"]
        {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
    // The gradient of a table that the first and the last stage use.
    assert!(all.iter().any(|c| c["value"] == "gradient of wte.table" && c["layer"] == "wte"), "{value}");
    // Both apply what they both have then, clipped by a norm that all know; what an optimizer makes of it is not sent.
    let made = |c: &&Value| c["layer"] == "wte.table" || c["value"].as_str().is_some_and(|v| v.starts_with("new "));
    assert_eq!(all.iter().filter(made).count(), 0, "{value}");
    let beyond = (all.len() + 1).to_string();
    let told = fails(at, &[&["comm"][..], &alone, &["--why", &beyond]].concat(), 1, "E0902");
    assert!(told.contains(&format!("numbered from 1 to {}", all.len())), "{told}");
    let page = succeeds(at, &[&["comm"][..], &alone, &["--html"]].concat());
    assert_eq!(page.matches("<td>send</td><td>pp</td>").count(), all.len(), "{page}");
    // With collectives, what is sent is numbered behind them.
    let both = ["deep.pta", "--plan", "stages"];
    let value = json(at, &both);
    let sends = |c: &&Value| c["kind"] == "send";
    let first = list(&value["collectives"]).iter().find(sends).expect("a send")["id"].to_string();
    let told = succeeds(at, &[&["comm"][..], &both, &["--why", &first]].concat());
    assert!(told.starts_with(&format!("{first}: send from rank ")), "{told}");
}

/// Tensor parallelism within experts and a sequence in parts: packed rows are many more than tokens, and the line that saves them is told.
#[test]
fn a_layer_that_had_better_keep_a_dim_whole_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let plan = |name: &str, more: &str| {
        format!("plan {name} {{\n mesh tp = 2\n shard heads, vocab by tp\n shard mlp by tp in Experts\n{more}}}\n")
    };
    let cut = " shard seq by tp in LayerNorm\n";
    let normed =
        MIXED.replace("h + Moe(h)", "h + Moe(LayerNorm[embed](h))").replace("{Embedding", "{LayerNorm, Embedding");
    let whole = format!("{cut} replicate seq in Moe\n");
    write(at, "m.pta", format!("{normed}{}{}{}", plan("inner", ""), plan("apart", cut), plan("cured", &whole)));
    let sends = |plan: &str| number(&json(at, &["m.pta", "--plan", plan])["totals"]["wire_bytes"]);
    let (inner, apart, cured) = (sends("inner"), sends("apart"), sends("cured"));
    assert!(apart > 2.0 * inner && cured < 1.2 * inner, "{inner} {apart} {cured}");
    let value = json(at, &["m.pta", "--plan", "apart"]);
    let inside = |c: &&Value| c["kind"] == "all_reduce" && c["layer"].as_str().is_some_and(|l| l.ends_with(".experts"));
    let id = list(&value["collectives"]).iter().find(inside).expect("a sum of packed rows")["id"].to_string();
    let told = succeeds(at, &["comm", "m.pta", "--plan", "apart", "--why", &id]);
    let line = format!("add `replicate seq in Moe`: a step sends {} bytes then, not ", thousands(cured));
    assert!(told.contains(&line), "{line}\n{told}");
    // Where it would save nothing, it is not named.
    let told = succeeds(at, &["comm", "m.pta", "--plan", "inner", "--why", "1"]);
    assert!(!told.contains("replicate"), "{told}");
}

fn thousands(x: f64) -> String {
    partita::types::grouped(x as u64)
}

/// A step in microbatches is a loop of the compiler's own: what is exchanged behind it has the places of the program, and its dims.
#[test]
fn microbatches_leave_everything_at_its_place() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    write(at, "m.pta", MIXED);
    let places = |plan: &str| -> Vec<(String, String, String, String)> {
        let value = json(at, &["m.pta", "--plan", plan]);
        let place = |c: &Value| {
            let of = |key: &str| c[key].as_str().unwrap_or_default().to_string();
            (of("value"), of("layer"), format!("{}", c["source"]["line"]), of("reason"))
        };
        let mut all: Vec<_> = list(&value["collectives"]).iter().map(place).collect();
        all.sort();
        all
    };
    let whole = places("dp");
    assert!(
        whole.iter().any(|p| p.0 == "gradient of attention.0.query.weight" && p.1 == "attention.0.query"),
        "{whole:?}"
    );
    assert_eq!(places("parts"), whole);
    let told = succeeds(at, &["comm", "m.pta", "--plan", "parts", "--why", "1"]);
    assert!(told.contains("leave out `shard batch by dp`: a step sends 0 bytes"), "{told}");
}
