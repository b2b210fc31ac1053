//! `partita memory` of a plan with stages: of each rank, at any instant, over time, as a page, against a limit.

use super::plans::DEEP;
use super::run::succeeds;
use super::{fails, tiny, write};
use serde_json::Value;
use std::path::Path;

fn deep() -> tempfile::TempDir {
    let folder = tiny();
    write(folder.path(), "deep.pta", DEEP.replace("zb_h1", "1f1b"));
    folder
}

fn json(at: &Path, arguments: &[&str]) -> Value {
    let text = succeeds(at, &[&["memory", "deep.pta", "--plan", "stages", "--json"], arguments].concat());
    serde_json::from_str(&text).expect("a report")
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| panic!("{v} is no number"))
}

fn sum(list: &Value) -> u64 {
    list.as_array().expect("a list").iter().map(|e| number(&e["bytes"])).sum()
}

fn total(by_category: &Value) -> u64 {
    by_category.as_object().expect("an object").values().map(number).sum()
}

#[test]
fn each_rank_of_a_pipeline_has_its_own_peak() {
    let folder = deep();
    let report = json(folder.path(), &[]);
    let ranks = report["ranks"].as_array().expect("a list");
    let stages: Vec<(&Value, u64)> = ranks.iter().map(|r| (&r["rank"], number(&r["stage"]))).collect();
    assert_eq!(stages, [(&serde_json::json!([0, 1]), 0), (&serde_json::json!([2, 3]), 1)]);
    for r in ranks {
        assert_eq!(
            (total(&r["by_category"]), sum(&r["by_source"])),
            (number(&r["peak_bytes"]), number(&r["peak_bytes"]))
        );
        assert_eq!(r["peak_at"]["routine"], "train");
    }
    let peaks: Vec<u64> = ranks.iter().map(|r| number(&r["peak_bytes"])).collect();
    assert_ne!(peaks[0], peaks[1]);
    // The text is of those that need most, with a line for each.
    let most = if peaks[0] > peaks[1] { "0, 1" } else { "2, 3" };
    let text = succeeds(folder.path(), &["memory", "deep.pta", "--plan", "stages"]);
    let first = format!("plan stages: pp = 2, dp = 2 (4 ranks); figures are of ranks {most}, which need most\n");
    assert!(text.starts_with(&first), "{text}");
    assert!(text.contains("\n  ranks 0, 1  ") && text.contains("\n  ranks 2, 3  "), "{text}");
    let other = succeeds(folder.path(), &["memory", "deep.pta", "--plan", "stages", "--rank", "3"]);
    assert!(other.contains("; figures are of ranks 2, 3\n"), "{other}");
    let text = fails(folder.path(), &["memory", "deep.pta", "--plan", "stages", "--rank", "4"], 1, "E0902");
    assert!(text.contains("ranks of this plan are 0 to 3"), "{text}");
}

#[test]
fn what_is_alive_at_the_peak_is_listed() {
    let folder = deep();
    let report = json(folder.path(), &["--rank", "0", "--at", "peak"]);
    let rank = &report["ranks"][0];
    assert_eq!(report["ranks"].as_array().map(Vec::len), Some(1));
    assert_eq!((sum(&rank["alive"]), &rank["at"]["bytes"]), (number(&rank["peak_bytes"]), &rank["peak_bytes"]));
    // At any instant as much is in use as the list of instants says.
    let report = json(folder.path(), &["--rank", "0", "--at", "0", "--timeline"]);
    let rank = &report["ranks"][0];
    assert_eq!(rank["at"]["in_use"], rank["timeline"][0]["bytes"]);
    assert!(number(&rank["at"]["in_use"]) < number(&rank["at"]["bytes"]));
    // Two microbatches wait for their backward passes, of each the same arrays.
    let report = json(folder.path(), &["--rank", "0", "--at", "F0.1"]);
    let alive = report["ranks"][0]["alive"].as_array().expect("a list");
    let kept = |m: u64| {
        let of = |l: &&Value| l["microbatch"].as_u64() == Some(m) && l["category"] == "activations";
        let mut all: Vec<String> = alive.iter().filter(of).map(|l| format!("{} {}", l["value"], l["bytes"])).collect();
        all.sort();
        all
    };
    assert!(!kept(0).is_empty() && kept(0) == kept(1), "{:?} {:?}", kept(0), kept(1));
    let lines = alive.iter().filter(|l| l["file"] == "deep.pta" && number(&l["line"]) > 0).count();
    assert!(lines > 2, "{alive:?}");
    assert!(alive.iter().any(|l| l["value"] == "free at this instant"), "{alive:?}");
    let text = succeeds(folder.path(), &["memory", "deep.pta", "--plan", "stages", "--rank", "0", "--at", "F0.1"]);
    assert!(text.contains("\nactivations of 2 microbatches in flight, 0: "), "{text}");
    for at in ["B7.0", "99999", "peek"] {
        let text = fails(folder.path(), &["memory", "deep.pta", "--plan", "stages", "--at", at], 1, "E0902");
        assert!(
            text.contains(&format!("there is no instant `{at}`")) && text.contains("`--timeline` lists all"),
            "{text}"
        );
    }
    let text = fails(folder.path(), &["memory", "deep.pta", "--routine", "dance"], 1, "E0902");
    assert!(text.contains("say one of train, eval, init"), "{text}");
}

#[test]
fn instants_follow_the_list_of_the_rank() {
    let folder = deep();
    for rank in ["0", "2"] {
        let report = json(folder.path(), &["--rank", rank, "--timeline"]);
        let r = &report["ranks"][0];
        let timeline = r["timeline"].as_array().expect("a list");
        let bytes = |m: &Value| number(&m["bytes"]);
        assert!(timeline.iter().all(|m| total(&m["by_category"]) == bytes(m)));
        // What is most in use is the peak, but for gaps between arrays.
        let gaps: u64 = r["by_source"]
            .as_array()
            .expect("a list")
            .iter()
            .filter(|e| e["value"] == "gaps between buffers")
            .map(|e| number(&e["bytes"]))
            .sum();
        let most = timeline.iter().map(bytes).max().expect("an instant");
        assert!(most <= number(&r["peak_bytes"]) && most + gaps >= number(&r["peak_bytes"]));
        let names: Vec<String> =
            timeline.iter().map(|m| format!("{}.{}", m["action"].as_str().expect("a name"), m["microbatch"])).collect();
        let at = |name: &str| names.iter().position(|n| n == name).unwrap_or_else(|| panic!("{name} in {names:?}"));
        let flying = |name: &str| timeline[at(name)]["in_flight"].as_array().map(Vec::len);
        match rank {
            "0" => {
                assert!(at("F0.0") < at("F0.1") && at("F0.1") < at("B0.0") && at("B0.0") < at("B0.1"));
                assert_eq!((flying("F0.0"), flying("F0.1"), flying("B0.1")), (Some(1), Some(2), Some(1)));
            }
            _ => assert!(at("F1.0") < at("B1.0") && at("B1.0") < at("F1.1")),
        }
    }
    // On one device the instants are the steps.
    let text = succeeds(folder.path(), &["memory", "deep.pta", "--timeline"]);
    assert!(text.starts_with("instant  action ") && text.lines().count() > 20, "{text}");
    let text = succeeds(folder.path(), &["memory", "deep.pta", "--timeline", "--routine", "init"]);
    assert!(text.contains("\n      0  init  "), "{text}");
}

#[test]
fn a_page_shows_memory_over_time() {
    let folder = deep();
    let html = succeeds(folder.path(), &["memory", "deep.pta", "--plan", "stages", "--html"]);
    assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"));
    assert!(html.contains("<title>memory of deep.pta, plan stages: pp = 2, dp = 2</title>"));
    assert_eq!(html.matches("<option>ranks ").count(), 2);
    let from = html.find("const D=").expect("data") + "const D=".len();
    let mut data = serde_json::Deserializer::from_str(&html[from..]).into_iter::<Value>();
    let data = data.next().expect("data").expect("JSON");
    let names: Vec<&str> =
        data["ranks"][0]["moments"].as_array().expect("a list").iter().filter_map(|m| m[0].as_str()).collect();
    assert!(names.iter().any(|n| n.starts_with('F')) && names.iter().any(|n| n.starts_with('B')), "{names:?}");
    succeeds(folder.path(), &["memory", "deep.pta", "--html", "-o", "page.html"]);
    assert!(
        std::fs::read_to_string(folder.path().join("page.html"))
            .expect("a page")
            .contains("<title>memory of deep.pta</title>")
    );
    fails(folder.path(), &["memory", "deep.pta", "--html", "-o", "nowhere/page.html"], 1, "E0813");
}

#[test]
fn a_limit_is_one_of_every_rank() {
    let folder = deep();
    let report = json(folder.path(), &[]);
    let needs = |k: usize| {
        let r = &report["ranks"][k];
        number(&r["peak_bytes"]) + number(&r["scratch_bytes"])
    };
    let (least, most) = (needs(0).min(needs(1)), needs(0).max(needs(1)));
    let run = |limit: u64| {
        let limit = limit.to_string();
        let all = ["memory", "deep.pta", "--plan", "stages", "--limit", &limit];
        if limit == most.to_string() { succeeds(folder.path(), &all) } else { fails(folder.path(), &all, 1, "E0604") }
    };
    run(most);
    let text = run(most - 1);
    assert!(text.contains("ranks 2, 3 need ") || text.contains("ranks 0, 1 need "), "{text}");
    assert!(text.contains("use more stages or microbatches") && text.contains(" = in train, "), "{text}");
    assert_eq!(text.matches(" need ").count(), 1, "{text}");
    // Where others do not fit either, they are named, too.
    let text = run(least - 1);
    assert_eq!(text.matches(" need ").count(), 2, "{text}");
    for (limit, unit) in
        [("1KiB", 1u64 << 10), ("0.5MiB", 1 << 19), ("2 GiB", 2 << 30), ("1TiB", 1 << 40), ("4096B", 4096)]
    {
        let line = ["memory", "deep.pta", "--plan", "stages", "--limit", limit];
        match unit < most {
            true => drop(fails(folder.path(), &line, 1, "E0604")),
            false => drop(succeeds(folder.path(), &line)),
        }
    }
}
