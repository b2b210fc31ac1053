//! The golden models: their graphs, initial values and batches by the rules of their definitions.

use partita::autodiff;
use partita::driver::{Request, check};
use partita::elaborate::{Elab, Mode};
use partita::interp::{Env, Tensor};
use partita::ir::{Graph, OutputKind};
use partita::source::Disk;
use partita::syntax::ast::ItemKind;
use partita::types::DType;
use std::collections::BTreeMap;

/// A train step, its first environment and the file of facts about it.
pub fn load(model: &str, preset: &str, precision: DType) -> (Graph, Env, serde_json::Value) {
    let path = format!("tests/golden_models/{model}.pta");
    let text = std::fs::read_to_string(&path).unwrap();
    let facts = std::fs::read_to_string(format!("tests/golden_losses/{model}_{preset}.json")).unwrap();
    let facts: serde_json::Value = serde_json::from_str(&facts).unwrap();
    let request = Request { path: path.into(), presets: vec![preset.to_string()], sets: vec![] };
    let checked = check::load(&request, &Disk);
    let train = checked
        .program
        .main_items(|k| match k {
            ItemKind::Train(t) => Some(t),
            _ => None,
        })
        .remove(0);
    let mut e = Elab::new(&checked.program, checked.settings.clone(), Mode::TRAIN, precision);
    e.train(train, &partita::stage::slices, &|b, losses, params| autodiff::gradients_of_params(b, losses, params));
    assert!(!e.failed(), "{}", partita::diag::render::text(&e.sink, &checked.sources, false));
    let (mut graph, init) = (e.b.finish(), e.init.finish());
    graph.outputs.retain(|o| o.kind != OutputKind::Value);
    partita::ir::verify::verify(&graph).unwrap();
    let env = initial(&graph, &init, &facts, &names(&text, facts["config"]["L"].as_u64().unwrap() as usize));
    (graph, env, facts)
}

/// Element i of tensor s: the hash rule of the golden definitions.
fn hash_value(s: u32, i: u32) -> f64 {
    let mut x = i.wrapping_add(0x9E37_79B9u32.wrapping_mul(s + 1));
    x ^= x >> 16;
    x = x.wrapping_mul(0x85EB_CA6B);
    x ^= x >> 13;
    x = x.wrapping_mul(0xC2B2_AE35);
    x ^= x >> 16;
    f64::from(x) / f64::from(1u32 << 31) - 1.0
}

/// `"h{i}.wq": .. = block.{i}.attention.query.weight` as pairs parameter path -> name in the file.
fn names(source: &str, depth: usize) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for line in source.lines() {
        let line = line.trim();
        let (Some(rest), Some((_, path))) = (line.strip_prefix('"'), line.split_once("] = ")) else { continue };
        let Some((name, _)) = rest.split_once('"') else { continue };
        for i in 0..depth {
            let turn = i.to_string();
            out.insert(path.replace("{i}", &turn), name.replace("{i}", &turn));
        }
    }
    out
}

fn initial(graph: &Graph, init: &Graph, facts: &serde_json::Value, names: &BTreeMap<String, String>) -> Env {
    let mut env = Env::default();
    let tensors = facts["tensors"].as_array().unwrap();
    for p in &graph.params {
        let name = &names[&p.path];
        let s = tensors.iter().position(|t| t[0] == name.as_str()).unwrap();
        let shape: Vec<usize> = p.dims.iter().map(|d| graph.size(*d)).collect();
        let n: usize = shape.iter().product();
        let data = (0..n)
            .map(|i| {
                let r = hash_value(s as u32, i as u32);
                match tensors[s][2].as_str().unwrap() {
                    "w" => 0.1 * r,
                    "b" => 0.05 * r,
                    _ => 1.0 + 0.1 * r,
                }
            })
            .collect();
        env.params.push(Tensor::new(p.dtype, shape, data));
    }
    for s in &graph.states {
        let shape: Vec<usize> = s.dims.iter().map(|d| graph.size(*d)).collect();
        env.states.push(Tensor::filled(s.dtype, shape, 0.0));
    }
    assert_eq!(init.outputs.len(), env.params.len() + env.states.len());
    env
}

/// Inputs of a step.
pub fn batch(facts: &serde_json::Value, step: u64) -> Vec<Tensor> {
    let get = |k: &str| facts["config"][k].as_u64().unwrap();
    let (b, t, v) = (get("B"), get("T"), get("V"));
    let token = |row: u64, pos: u64| {
        let j = (step * b + row) * (t + 1) + pos;
        ((7 * j * j + 3 * j) % v) as f64
    };
    let make = |shift: u64| {
        let data = (0..b).flat_map(|r| (0..t).map(move |p| token(r, p + shift))).collect();
        Tensor::new(DType::I32, vec![b as usize, t as usize], data)
    };
    vec![make(0), make(1)]
}
