//! Plans resolved: what they mean, and the errors of each statement.

use super::{Offload, Recompute, ResolvedPlan, RuleKind};
use crate::check::plan::{Gather, Order, Regather};
use crate::check::replicas::Rule;
use crate::diag::{Diagnostic, Severity};
use crate::driver::check::{Request, check, load};
use crate::elaborate::{Elab, Mode};
use crate::schedule::Schedule;
use crate::source::{Disk, Memory};
use crate::syntax::ast::ItemKind;
use crate::types::DType;
use std::path::PathBuf;

const HEAD: &str = "
dim batch = 12, seq = 4, embed = 8, kv = 2, twin = 2, heads = (kv, twin), head_dim = 2, mlp = 6, depth = 4, spare = 3
layer Norm[d](x: [.., d]) -> [.., d] {
    param scale: [d] = 1
    x * scale
}
fn scores[k](q: [.., head_dim], keys: [.., k, head_dim]) -> [.., k] { dot[head_dim](q, keys) }
layer Attention(x: [batch, seq, embed]) -> [batch, seq, embed] {
    dim key = seq
    param wq: [embed -> heads, head_dim] = normal(1)
    param wk: [embed -> kv, head_dim] = normal(1)
    param wo: [heads, head_dim -> embed] = normal(1)
    let q_norm = Norm[head_dim]
    let q = q_norm(dot[embed](x, wq))
    let k = dot[embed](x, wk)[seq -> key]
    let y = dot[key](scores[key](q, k), k)
    dot[heads, head_dim](y, wo)
}
layer Block(x: [batch, seq, embed]) -> [batch, seq, embed] {
    let norm = Norm[embed]
    param up: [embed -> mlp] = normal(1)
    param down: [mlp -> embed] = normal(1)
    let h = x + Attention(norm(x))
    h + dot[mlp](dot[embed](h, up), down)
}
layer Idle(x: [.., embed]) -> [.., embed] { x + 1 }
model M(x: f32[batch, seq, embed]) {
    let h = x
    for i in depth { h = Block(h) }
    loss mean[batch, seq, embed](h)
}
train M {
    data { x = npy(\"x.npy\") }
    optimizer step_down(lr = 0.1)
    steps 1
}
optimizer step_down(w: [..], g: [..], lr: f32) -> [..] { w - lr * g }
";

fn all(text: &str) -> Vec<Diagnostic> {
    let mut world = Memory::default();
    world.0.insert(PathBuf::from("main.pta"), text.to_string());
    check(&Request { path: "main.pta".into(), ..Request::default() }, &world).sink.sorted()
}

fn errors(plan: &str) -> (String, Vec<Diagnostic>) {
    let text = format!("{}plan p {{\n{plan}\n}}\n", HEAD);
    let found = all(&text).into_iter().filter(|d| d.severity == Severity::Error).collect();
    (text, found)
}

fn resolved(plan: &str, mesh: &[(String, u64)]) -> (ResolvedPlan, Vec<String>) {
    let text = format!("{HEAD}plan p {{\n{plan}\n}}\n");
    let mut world = Memory::default();
    world.0.insert(PathBuf::from("main.pta"), text);
    let c = load(&Request { path: "main.pta".into(), ..Request::default() }, &world);
    let item = super::find(&c.program, "p").unwrap();
    let mut e = Elab::new(&c.program, c.settings.clone(), Mode::TRAIN, DType::F32);
    e.model(c.program.models()[0]);
    let (plan, found) = e.resolve_plan(item, mesh);
    assert!(!found.has_errors(), "{:#?}", found.sorted());
    (plan.unwrap(), e.b.graph.dims.iter().map(|d| d.name.clone()).collect())
}

#[test]
fn every_statement_resolves() {
    let (p, dims) = resolved(
        "mesh pp = 2, dp = 2, cp = 2, tp = 2 @ nvlink, far = 2
        shard batch by far, dp
        shard heads, mlp by tp
        shard seq by cp { order = zigzag, gather = ring, bound = 1.5 }
        shard key by cp in Attention
        shard embed by tp in Norm[embed]
        replicate embed in Block.norm
        layout Attention.q @ [heads: (tp)]
        pipeline depth by pp { schedule = interleaved(2), microbatches = 6, stages = [1, repeat(1, 3)] }
        zero 3 by dp, cp { regather = never }
        recompute Attention, Block.h { keep = collectives }
        precision bf16 { gradients = bf16 }
        offload activations, optimizer to host
        local(steps = 100) by far { lr = 0.7, momentum = 0.9 }",
        &[],
    );
    let name = |d: &crate::ir::DimId| dims[d.index()].as_str();
    assert_eq!(p.ranks(), 32);
    assert_eq!((p.microbatches, p.precision, p.gradients), (6, DType::BF16, DType::BF16));
    let shown: Vec<String> = (p.rules.iter())
        .map(|r| {
            let dims: Vec<&str> = r.dims.iter().map(name).collect();
            let axes: Vec<&str> = r.axes.iter().map(|a| p.mesh[*a].name.as_str()).collect();
            let scope = r.scope.as_ref().map_or("", |s| &s.text);
            format!("{}.{} {} by {} {scope}", r.statement, r.group, dims.join(","), axes.join(","))
        })
        .collect();
    let expect = [
        "1.0 batch by far,dp ",
        "2.0 kv,twin by tp ",
        "2.1 mlp by tp ",
        "3.0 seq by cp ",
        "4.0 Attention.key by cp Attention",
        "5.0 embed by tp Norm[embed]",
        "6.0 embed by  Block.norm",
        "7.0 kv,twin by tp Attention.q",
    ];
    assert_eq!(shown, expect);
    assert_eq!((p.rules[3].order, p.rules[3].gather, p.rules[3].bound), (Order::Zigzag, Some(Gather::Ring), Some(1.5)));
    // Four blocks have one norm over `embed` each, and another over `head_dim` in their attention.
    assert_eq!(p.rules[5].scope.as_ref().unwrap().roots.len(), 4);
    let q = p.rules[7].scope.as_ref().unwrap();
    assert_eq!((q.values.len(), p.rules[7].kind), (4, RuleKind::Layout));
    let pipeline = p.pipeline.as_ref().unwrap();
    assert_eq!((&pipeline.schedule, pipeline.axis), (&Schedule::Interleaved(2), 0));
    assert_eq!(pipeline.stages, Some(vec![1; 4]));
    assert_eq!((p.zero[0].level, p.zero[0].regather, &p.zero[0].axes[..]), (3, Regather::Never, &[1, 2][..]));
    assert!(matches!(&p.recompute, Recompute::Scopes(s) if s.len() == 2 && s[1].values.len() == 4));
    assert!(p.keep_collectives);
    assert_eq!(p.offload, [Offload::Activations, Offload::Optimizer]);
    let replicas = p.replicas.unwrap();
    assert_eq!((replicas.axis, replicas.count), (4, 2));
    assert_eq!(replicas.rule, Rule::Local { steps: 100, lr: 0.7, momentum: 0.9 });
}

#[test]
fn the_command_line_gives_other_sizes() {
    let (p, _) = resolved("mesh dp = 2, tp = 2\nshard batch by dp\nshard mlp by tp", &[("tp".to_string(), 3)]);
    assert_eq!(p.ranks(), 6);
    let (p, _) = resolved("recompute auto(memory = 1.5 KiB)", &[]);
    assert_eq!(p.recompute, Recompute::Auto(Some(1536)));
    assert_eq!((p.ranks(), p.microbatches), (1, 1));
}

/// Lines of a plan, the code, and the text that the primary label marks.
#[test]
fn errors_have_codes_and_places() {
    let cases: &[(&str, &str, &str)] = &[
        ("mesh dp = 2\nshard batch by dq", "E0501", "dq"),
        ("mesh dp = 2, tp = 2\nshard batch by dp", "E0502", "tp"),
        ("mesh dp = 2, dp = 4\nshard batch by dp", "E0202", "dp"),
        ("mesh dp = 2\nshard batch by dp, dp", "E0202", "dp"),
        ("mesh dp = 2\nmesh tp = 2\nshard batch by dp, tp", "E0506", "mesh tp = 2"),
        ("mesh dp = 0\nshard batch by dp", "E0505", "0"),
        ("mesh dp = 9999, tp = 9999\nshard batch by dp, tp", "E0505", "mesh dp = 9999, tp = 9999"),
        ("mesh dp = 2 @ nvlnk\nshard batch by dp", "E0506", "nvlnk"),
        ("shard batch by dp", "E0501", "dp"),
        ("mesh tp = 2\nshard mlp, seq by tp", "E0503", "seq"),
        ("mesh tp = 2\nshard mlp by tp\nshard seq by tp", "E0503", "seq"),
        ("mesh tp = 2\nshard mlp by tp\nshard mlp by tp", "E0508", "mlp"),
        ("mesh tp = 2, cp = 2\nshard seq by cp in Norm\nshard seq by tp in Norm", "E0508", "seq"),
        ("mesh tp = 2\nshard seq by tp in Norm\nreplicate seq in Norm", "E0508", "seq"),
        ("mesh tp = 2\nshard spare by tp", "E0504", "spare"),
        ("mesh tp = 2\nshard mlp by tp in Attention", "E0504", "mlp"),
        ("mesh tp = 2\nshard embed by tp in Idle", "E0504", "Idle"),
        ("mesh tp = 2\nshard embed by tp in Norm[mlp]", "E0504", "Norm[mlp]"),
        ("mesh tp = 2\nshard embedd by tp", "E0201", "embedd"),
        ("mesh tp = 2\nshard key by tp", "E0201", "key"),
        ("mesh tp = 2\nshard embed by tp in Blok", "E0201", "Blok"),
        ("mesh tp = 2\nshard embed by tp in step_down", "E0206", "step_down"),
        ("mesh tp = 2\nshard embed by tp in Attention.qq", "E0201", "qq"),
        ("mesh tp = 2\nshard seq by tp { ordr = zigzag }", "E0506", "ordr"),
        ("mesh tp = 2\nshard seq by tp { order = zigzg }", "E0506", "zigzg"),
        ("mesh tp = 2\nshard seq by tp { bound = 0.5 }", "E0506", "0.5"),
        ("mesh tp = 2\nlayout Attention @ [heads: tp]", "E0506", "Attention"),
        ("mesh tp = 2\nlayout Attention.q @ [mlp: tp]", "E0504", "mlp"),
        ("mesh pp = 2\npipeline mlp by pp", "E0504", "mlp"),
        ("mesh pp = 2\npipeline depth, depth by pp", "E0202", "depth"),
        ("mesh pp = 2\npipeline depth by pp { schedule = 1f1bb }", "E0506", "1f1bb"),
        ("mesh pp = 2\npipeline depth by pp { schedule = interleaved }", "E0506", "interleaved"),
        ("mesh pp = 2\npipeline depth by pp { schedule = gpipe(2) }", "E0506", "gpipe(2)"),
        ("mesh pp = 2\npipeline depth by pp { stages = [3, 2], microbatches = 2 }", "E0602", "[3, 2]"),
        ("mesh pp = 2\npipeline depth by pp { stages = [repeat(1, 4)] }", "E0602", "[repeat(1, 4)]"),
        (
            "mesh pp = 8\npipeline depth by pp { microbatches = 2 }",
            "E0602",
            "pipeline depth by pp { microbatches = 2 }",
        ),
        ("mesh pp = 3\npipeline depth by pp { schedule = dualpipe, microbatches = 3 }", "E0603", "dualpipe"),
        ("mesh pp = 2\npipeline depth by pp { microbatches = 5 }", "E0304", "5"),
        ("mesh pp = 2\npipeline depth by pp { microbatches = 2 }\nmicrobatches 2", "E0506", "2"),
        ("mesh pp = 2\nmicrobatches 3\npipeline depth by pp { microbatches = 2 }", "E0506", "2"),
        ("mesh pp = 2\npipeline depth by pp { microbatches = 2 }\nshard seq by pp", "E0508", "shard seq by pp"),
        ("microbatches 5", "E0304", "5"),
        ("mesh dp = 2\nshard batch by dp\nzero 4 by dp", "E0506", "4"),
        ("mesh dp = 2\nshard batch by dp\nzero 1 by dp { regather = never }", "E0506", "never"),
        ("mesh dp = 2\nshard batch by dp\nzero 1 by dp\nzero 2 by dp", "E0506", "zero 2 by dp"),
        ("recompute auto(memory = 70 GB)", "E0506", "GB"),
        ("recompute auto(memory = 70)", "E0506", "70"),
        ("recompute full, Attention", "E0506", "full"),
        ("recompute Atention", "E0201", "Atention"),
        ("recompute Attention.k2", "E0201", "k2"),
        ("recompute Attention { keep = all }", "E0506", "all"),
        ("precision bf61", "E0506", "bf61"),
        ("recompute", "E0506", "recompute"),
        ("precision bf16\nprecision f32", "E0506", "precision f32"),
        ("offload weights to host", "E0506", "weights"),
        ("offload optimizer to moon", "E0506", "moon"),
        ("local(100, 3)", "E0506", "local(100, 3)"),
        ("locl(steps = 100)", "E0506", "locl(steps = 100)"),
    ];
    let mut odd = Vec::new();
    for (lines, code, marked) in cases {
        let (text, found) = errors(lines);
        let place = |d: &Diagnostic| {
            let s = d.primary.as_ref().map_or(0..0, |p| p.span.start as usize..p.span.end as usize);
            format!("{} at {}: {}", d.code, &text[s], d.message)
        };
        let got: Vec<String> = found.iter().map(place).collect();
        if got.len() != 1 || !got[0].starts_with(&format!("{code} at {marked}: ")) {
            odd.push(format!("{lines}\n  wanted {code} at {marked}\n  found {got:#?}"));
        }
    }
    assert!(odd.is_empty(), "{}", odd.join("\n"));
}

#[test]
fn a_stronger_rule_keeps_the_axis() {
    for lines in [
        "mesh tp = 2\nshard mlp, heads by tp\nshard seq by tp in Norm",
        "mesh cp = 2\nshard seq by cp\nshard heads by cp in scores\nlayout Attention.y @ [heads: cp]",
        "mesh tp = 2\nshard seq by tp\nreplicate seq in Attention\nshard heads by tp in Attention",
    ] {
        assert_eq!(errors(lines).1, [], "{lines}");
    }
}

#[test]
fn without_a_model_the_form_is_judged() {
    let found = all("plan p {\nmesh dp = 2\nshard batch by tp { ordr = zigzag }\n}\n");
    let codes: Vec<&str> = found.iter().map(|d| d.code).collect();
    assert_eq!(codes, ["E0501", "E0506"]);
}

#[test]
fn axes_of_size_one_are_noted() {
    let text = format!("{HEAD}plan p {{\nmesh dp = 1\nshard batch by dp\n}}\n");
    let notes: Vec<_> = all(&text).into_iter().filter(|d| d.code == "W0006").collect();
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].severity, Severity::Note);
}

#[test]
fn a_pipeline_without_microbatches_is_told_of() {
    let warned = |lines: &str| {
        let found = all(&format!("{HEAD}plan p {{\nmesh pp = 2\n{lines}\n}}\n"));
        assert!(found.iter().all(|d| d.severity != Severity::Error), "{lines}: {found:?}");
        found.iter().filter(|d| d.code == "W0018").count()
    };
    assert_eq!(warned("pipeline depth by pp"), 1);
    for said in ["pipeline depth by pp { microbatches = 1 }", "pipeline depth by pp\nmicrobatches 2"] {
        assert_eq!(warned(said), 0, "{said}");
    }
}

#[test]
fn inline_layouts_need_dims_and_a_plan() {
    let inline = |layout: &str, plan: &str| {
        let head = HEAD.replace("for i in depth { h = Block(h) }", layout);
        all(&format!("{head}{plan}")).into_iter().filter(|d| !d.code.starts_with("W0") || d.code == "W0010").collect()
    };
    let block = "for i in depth { h = Block(h) @ [seq: tp] }";
    let found: Vec<Diagnostic> = inline(block, "");
    assert_eq!(found.iter().map(|d| (d.code, d.severity)).collect::<Vec<_>>(), [("W0010", Severity::Note)]);
    // The axis is used by the layout alone.
    let found: Vec<Diagnostic> = inline(block, "plan p {\n mesh tp = 2\n}\n");
    assert_eq!(found, []);
    let found: Vec<Diagnostic> = inline("for i in depth { h = Block(h) @ [mlp: tp] }", "");
    assert_eq!(found[0].code, "E0302");
    // An expression's layout is stronger than every statement.
    let found: Vec<Diagnostic> = inline(block, "plan p {\n mesh tp = 2\n shard embed by tp in Block\n}\n");
    assert_eq!(found, []);
    let twice = "for i in depth { h = Block(h) @ [seq: tp, embed: tp] }";
    let found: Vec<Diagnostic> = inline(twice, "plan p {\n mesh tp = 2\n}\n");
    assert_eq!(found[0].code, "E0503");
}

#[test]
fn plans_of_the_examples_resolve() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut files: Vec<PathBuf> = std::fs::read_dir(root).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "pta"));
    files.sort();
    let mut seen = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        if !text.contains("\nplan ") {
            continue;
        }
        // Some plans are meant for a preset's sizes.
        let c = load(&Request { path: file.clone(), ..Request::default() }, &Disk);
        let mut presets: Vec<Vec<String>> = vec![vec![]];
        presets.extend(c.program.main_items(|i| match i {
            ItemKind::Preset(p) => Some(vec![p.name.text.clone()]),
            _ => None,
        }));
        let mut left: Vec<String> = super::all(&c.program).iter().map(|p| p.name.text.clone()).collect();
        for presets in presets {
            if left.is_empty() {
                break;
            }
            let c = load(&Request { path: file.clone(), presets, ..Request::default() }, &Disk);
            let mut e = Elab::new(&c.program, c.settings.clone(), Mode::TRAIN, DType::F32);
            e.model(c.program.models()[0]);
            for plan in super::all(&c.program) {
                let (out, found) = e.resolve_plan(plan, &[]);
                let sizes = |d: &Diagnostic| ["E0304", "E0602"].contains(&d.code);
                assert!(found.sorted().iter().all(sizes), "{}: {:#?}", file.display(), found.sorted());
                if let (Some(out), Some(k)) = (out, left.iter().position(|n| *n == plan.name.text)) {
                    seen.push(format!("{} {}", plan.name.text, out.ranks()));
                    left.remove(k);
                }
            }
        }
        assert_eq!(left, Vec::<String>::new(), "{}: fits no preset", file.display());
    }
    let expect = [
        "dp256 256",
        "dualpipe2048 2048",
        "megatron 8",
        "cube64 64",
        "megatron175b 1024",
        "fsdp8 8",
        "ulysses32 32",
        "meta405b_long 16384",
        "ring405b 16384",
        "ep8pp4 64",
        "ep4 8",
        "dp8 8",
        "dp8_accumulate 8",
        "rows4 8",
        "pp8 64",
    ];
    assert_eq!(seen, expect);
}
