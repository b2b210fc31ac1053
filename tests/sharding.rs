//! Programs spread over ranks compute what one device computes.

use partita::diag::render;
use partita::driver::{Options, Request, verify};
use partita::source::Memory;
use std::path::PathBuf;

fn verified(source: &str, plan: &str) -> verify::Report {
    let path = PathBuf::from("m.pta");
    let mut world = Memory::default();
    world.0.insert(path.clone(), format!("{source}\nplan p {{\n{plan}\n}}\n"));
    let options =
        Options { request: Request { path, ..Request::default() }, plan: Some("p".into()), ..Options::default() };
    match verify::verify(&options, &world, 2) {
        Ok(report) => report,
        Err(findings) => panic!("{plan}\n{}", render::text(&findings.sink, &findings.sources, false)),
    }
}

fn same(source: &str, plan: &str) {
    let report = verified(source, plan);
    assert_eq!(report.differs, None, "{plan}");
    assert!(report.compared > 4, "{report:?}");
}

const MLP: &str = "
use nn.{Linear, gelu}
use optim.{adamw, sgd}
dim batch = 8, inner = 6, mlp = 12, out = 5
model Net(x: [batch, inner], y: [batch, out]) {
    let up = Linear[inner, mlp]
    let down = Linear[mlp, out]
    let z = down(gelu(up(x)))
    loss mean[batch, out](square(z - y))
}
train Net { optimizer adamw(lr = 0.1)
 steps 2
 seed 3
}
";

#[test]
fn data_parallel() {
    same(MLP, "mesh dp = 2\nshard batch by dp");
}

#[test]
fn tensor_parallel() {
    same(MLP, "mesh tp = 2\nshard mlp by tp");
}

/// The collectives of a training step, a line each.
fn listed(source: &str, plan: &str) -> Vec<String> {
    let path = PathBuf::from("m.pta");
    let mut world = Memory::default();
    world.0.insert(path.clone(), format!("{source}\nplan p {{\n{plan}\n}}\n"));
    let options = Options {
        request: Request { path, ..Request::default() },
        plan: Some("p".into()),
        ranks: true,
        ..Options::default()
    };
    let fail = |f: Box<partita::driver::Findings>| -> ! { panic!("{}", render::text(&f.sink, &f.sources, false)) };
    let g = partita::driver::pipeline::graphs(&options, &world).unwrap_or_else(|f| fail(f));
    let p = partita::driver::sharding::programs(&g).unwrap_or_else(|f| fail(f)).expect("several ranks");
    let text = partita::ir::print::print(&p.train.graph);
    if std::env::var("SHOW").is_ok() {
        println!("{text}");
    }
    text.lines().filter(|l| l.contains("collective[") && !l.contains("[slice")).map(str::to_string).collect()
}

const GPT: &str = "
use nn.{Embedding, LayerNorm, LearnedPosition, Linear, attention, causal, gelu_tanh}
use losses.{cross_entropy}
use optim.{adamw}
dim batch = 4, seq = 8, vocab = 32, embed = 16, heads = 4, head_dim = embed / heads, mlp = 4 * embed, depth = 2
layer Attention(x: [batch, seq, embed]) -> [batch, seq, embed] {
    dim key = seq
    let query, keys, values = Linear[embed, (heads, head_dim)]
    let out = Linear[(heads, head_dim), embed]
    let k = keys(x)[seq -> key]
    let v = values(x)[seq -> key]
    out(attention[key, head_dim, head_dim, scale = 1 / sqrt(head_dim)](query(x), k, v, mask = causal[seq, key]()))
}
layer Block(x: [batch, seq, embed]) -> [batch, seq, embed] {
    let norm1, norm2 = LayerNorm[embed]
    let up = Linear[embed, mlp]
    let down = Linear[mlp, embed]
    let h = x + Attention(norm1(x))
    h + down(gelu_tanh(up(norm2(h))))
}
model Gpt(tokens: int[batch, seq], targets: int[batch, seq]) {
    let wte = Embedding[vocab, embed]
    let wpe = LearnedPosition[seq, embed]
    let norm = LayerNorm[embed]
    let h = wte(tokens) + wpe()
    for i in depth { h = Block(h) }
    output logits = dot[embed](norm(h), wte.table)
    loss mean[batch, seq](cross_entropy[vocab](logits, targets))
}
train Gpt {
    optimizer adamw(lr = 1e-3, beta2 = 0.95, weight_decay = 0.1)
    steps 20
    seed 1
}
";

#[test]
fn gpt_plans() {
    for plan in [
        "mesh dp = 2\nshard batch by dp",
        "mesh tp = 2\nshard heads, mlp by tp",
        "mesh tp = 2\nshard heads, mlp, vocab by tp",
        "mesh dp = 2, tp = 2\nshard batch by dp\nshard heads, mlp, vocab by tp\nshard seq by tp in LayerNorm",
        "mesh dp = 2\nshard batch by dp\nzero 1 by dp",
        "mesh dp = 2\nshard batch by dp\nzero 3 by dp",
        "mesh tp = 3\nshard heads, mlp, vocab by tp",
    ] {
        let list = listed(GPT, plan);
        println!("== {plan}\n{} collectives\n{}", list.len(), list.join("\n"));
        same(GPT, plan);
    }
}

/// A file with other sizes, and plan lines.
fn of_file(file: &str, preset: &str, sizes: &[(&str, &str)], plan: &str) -> verify::Report {
    let text = std::fs::read_to_string(file).expect("a file of the repository");
    let path = PathBuf::from("m.pta");
    let mut world = Memory::default();
    world.0.insert(path.clone(), format!("{text}\nplan p {{\n{plan}\n}}\n"));
    let request = Request {
        path,
        presets: (!preset.is_empty()).then(|| preset.to_string()).into_iter().collect(),
        sets: sizes.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect(),
        ..Request::default()
    };
    let options = Options { request, plan: Some("p".into()), ..Options::default() };
    match verify::verify(&options, &world, 2) {
        Ok(report) => report,
        Err(findings) => panic!("{file} {plan}\n{}", render::text(&findings.sink, &findings.sources, false)),
    }
}

#[test]
#[ignore]
fn one_of_the_environment() {
    let all = std::env::var("CASES").expect("CASES=file|preset|a=1,b=2|plan;lines");
    for case in all.split('\n') {
        let parts: Vec<&str> = case.split('|').collect();
        let [file, preset, sizes, plan] = parts[..] else { continue };
        let sizes: Vec<(&str, &str)> = sizes.split(',').filter_map(|s| s.split_once('=')).collect();
        let start = std::time::Instant::now();
        let plan = plan.replace(';', "\n");
        let r = std::panic::catch_unwind(|| of_file(file, preset, &sizes, &plan));
        match r {
            Ok(r) => println!(
                "{case}\n    {:?} compared {} largest {:e} in {:?}",
                r.differs,
                r.compared,
                r.largest,
                start.elapsed()
            ),
            Err(e) => println!("{case}\n    PANIC {}", e.downcast_ref::<String>().cloned().unwrap_or_default()),
        }
    }
}
