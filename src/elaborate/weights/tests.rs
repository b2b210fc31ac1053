//! Round trips, hand-checked copies, and the errors of weights items.

use super::transfer::{Buffers, FileTensor, export, import};
use super::{Entry, Target, WeightsMap, map};
use crate::diag::{Diagnostic, Severity, Sink};
use crate::driver::check::{Request, check, load};
use crate::elaborate::model::find_model;
use crate::source::{Disk, Memory};
use crate::types::DType;
use half::bf16;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;

const HEAD: &str = "
dim batch = 2, embed = 6, heads = 2, head_dim = 4, mlp = 5, depth = 2
layer Norm[d](x: [.., d]) -> [.., d] {
    param scale: [d] = 1
    state seen: f32[d] = 0
    x * (scale + seen)
}
layer Block[wide: bool](x: [batch, embed]) -> [batch, embed] {
    dim both = 2 * embed
    let norm = Norm[embed]
    param wq, wk: [embed -> heads, head_dim] = normal(1)
    param up: [both -> mlp] = normal(1)
    param down: [mlp -> embed] = normal(1)
    let y = dot[mlp](dot[both](concat[(embed, embed) -> both](x, norm(x)), up), down)
    y + sum[heads, head_dim](dot[embed](x, wq) * dot[embed](x, wk))
}
model M(x: f32[batch, embed]) {
    let h = x
    for i in depth { h = Block[wide = i == 0](h) }
    loss mean[batch, embed](h)
}
optimizer down(w: [..], g: [..]) -> [..] { w - g }
";

const BLOCK: &str = "
weights w of Block {
    dim half = head_dim / 2, two = 2
    \"norm.weight\": [embed] = norm.scale
    \"norm.seen\": [embed] = norm.seen
    \"wq\": [(heads, half, two), embed] = wq[head_dim -> (two, half)]
    \"up\": [mlp, both] = up
    \"down\": [embed, mlp] = down
    if wide { \"a.wk\": [(heads, head_dim), embed] = wk } else { \"b.wk\": [(heads, head_dim), embed] = wk }
}
";

fn found(text: &str) -> Vec<Diagnostic> {
    let mut world = Memory::default();
    world.0.insert(PathBuf::from("main.pta"), text.to_string());
    let all = check(&Request { path: "main.pta".into(), ..Request::default() }, &world).sink.sorted();
    all.into_iter().filter(|d| d.severity == Severity::Error).collect()
}

fn text_map(text: &str, name: &str) -> WeightsMap {
    let mut world = Memory::default();
    world.0.insert(PathBuf::from("main.pta"), text.to_string());
    let mut c = load(&Request { path: "main.pta".into(), ..Request::default() }, &world);
    let model = find_model(&c.program, "M").unwrap();
    let map = map(&c.program, &c.settings, model, name, None, DType::F32, &mut c.sink);
    assert!(!c.sink.has_errors(), "{:#?}", c.sink.sorted());
    map.unwrap()
}

/// A store whose elements are all different.
fn filled(map: &WeightsMap) -> Buffers {
    let mut b = Buffers::zeros(map);
    let mut n = 0;
    for (_, (t, bytes)) in &mut b.0 {
        assert_eq!(*t, DType::F32);
        for e in bytes.chunks_mut(4) {
            e.copy_from_slice(&(n as f32).to_le_bytes());
            n += 1;
        }
    }
    b
}

fn round_trip(map: &WeightsMap) {
    let before = filled(map);
    let mut file: HashMap<&str, FileTensor> = HashMap::new();
    for e in &map.entries {
        let t = export(e, None, &before).unwrap();
        assert_eq!(t.shape, e.shape);
        file.insert(&e.file_name, t);
    }
    let mut after = Buffers::zeros(map);
    import(map, "f", &|_| true, &mut |n| file.get(n).cloned(), &mut after).unwrap();
    assert!(before == after, "what comes back from the file differs");
}

fn floats(t: &FileTensor) -> Vec<f32> {
    t.bytes.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

fn entry<'m>(map: &'m WeightsMap, name: &str) -> &'m Entry {
    map.entries.iter().find(|e| e.file_name == name).unwrap()
}

#[test]
fn prefixes_settings_and_local_dims() {
    let text = format!("{HEAD}{BLOCK}weights w of M {{\n for i in depth {{ \"h.{{i}}.\" = block.{{i}} }}\n}}\n");
    assert_eq!(found(&text), []);
    let map = text_map(&text, "w");
    let names: Vec<&str> = map.entries.iter().map(|e| e.file_name.as_str()).collect();
    assert_eq!(&names[4..8], ["h.0.down", "h.0.a.wk", "h.1.norm.weight", "h.1.norm.seen"]);
    assert_eq!(names.last(), Some(&"h.1.b.wk"));
    assert_eq!(entry(&map, "h.1.wq").shape, [8, 6]);
    assert_eq!(entry(&map, "h.1.up").shape, [5, 12]);
    round_trip(&map);
}

#[test]
fn rotary_halves_become_pairs_in_the_file() {
    let text = "
dim embed = 2, heads = 2, head_dim = 4
dim batch = 1
model M(x: f32[batch, embed]) {
    param wq: [embed -> heads, head_dim] = normal(1)
    loss sum[batch, heads, head_dim](dot[embed](x, wq))
}
weights w of M {
    dim half = head_dim / 2, two = 2
    \"wq\": [(heads, half, two), embed] = wq[head_dim -> (two, half)]
}
";
    assert_eq!(found(text), []);
    let map = text_map(text, "w");
    let t = export(entry(&map, "wq"), None, &filled(&map)).unwrap();
    // The parameter is [embed, heads, (two, half)] = 0..16: row `head, half, two` of the file takes element
    // `8 embed + 4 head + 2 two + half`.
    let rows = [[0, 8], [2, 10], [1, 9], [3, 11], [4, 12], [6, 14], [5, 13], [7, 15]];
    assert_eq!(floats(&t), rows.as_flattened().iter().map(|x| *x as f32).collect::<Vec<_>>());
    round_trip(&map);
}

#[test]
fn joined_cut_and_indexed_parameters() {
    let text = "
dim batch = 1, embed = 2, a = 2, b = 3, c = 5, one = 1, experts = 2
model M(x: f32[batch, embed]) {
    param wa: [embed -> a] = normal(1)
    param wb: [embed -> b] = normal(1)
    param wc: [embed -> c] = normal(1)
    param ex: [experts, (embed -> a)] = normal(1)
    let p = concat[(a, b) -> c](dot[embed](x, wa), dot[embed](x, wb))
    let q = dot[a](sum[experts](dot[embed](x, ex)), wa)
    loss sum[batch, c](p * dot[embed](x, wc)) + sum[batch, embed](q)
}
weights w of M {
    \"ab\": [one, c, embed] = concat[(a, b) -> c](wa, wb)
    \"first\": [embed, a] = wc[c = 0.. -> a]
    \"last\": [b, embed] = wc[c = 2.. -> b]
    for e in experts { \"ex.{e}.of.{embed}\": [a, embed] = ex[experts = e] }
}
weights again of M {
    \"ab\": [c, embed] = concat[(a, b) -> c](wa, wb)
    \"ba\": [embed, c] = concat[(a, b) -> c](cut[c -> (a, b)](wc))
    \"ex\": [(experts, a), embed] = ex
}
";
    assert_eq!(found(text), []);
    let map = text_map(text, "w");
    let store = filled(&map);
    let ab = export(entry(&map, "ab"), None, &store).unwrap();
    assert_eq!(ab.shape, [1, 5, 2]);
    assert_eq!(floats(&ab), [0., 2., 1., 3., 4., 7., 5., 8., 6., 9.]);
    let last = export(entry(&map, "last"), None, &store).unwrap();
    assert_eq!(floats(&last), [12., 17., 13., 18., 14., 19.]);
    let ex = export(entry(&map, "ex.1.of.2"), None, &store).unwrap();
    assert_eq!(floats(&ex), [24., 26., 25., 27.]);
    round_trip(&map);
    round_trip(&text_map(text, "again"));
}

#[test]
fn types_are_converted_and_bad_files_are_named() {
    let text = format!("{HEAD}{BLOCK}weights w of M {{\n for i in depth {{ \"h.{{i}}.\" = block.{{i}} }}\n}}\n");
    let map = text_map(&text, "w");
    let half: Vec<u8> = (0..6).flat_map(|i| bf16::from_f32(i as f32 * 0.5).to_le_bytes()).collect();
    let tensor = |dtype, shape: &[usize], bytes: &[u8]| FileTensor {
        dtype,
        shape: shape.to_vec(),
        bytes: Cow::Owned(bytes.to_vec()),
    };
    let scale = map.slots.iter().find(|s| s.path == "block.1.norm.scale").unwrap().target;
    let only = |t: Target| t == scale;
    let mut store = Buffers::zeros(&map);
    let mut read = |n: &str| (n == "h.1.norm.weight").then(|| tensor(DType::BF16, &[6], &half));
    import(&map, "f", &only, &mut read, &mut store).unwrap();
    let got: Vec<f32> = store.0[&scale].1.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(got, [0., 0.5, 1., 1.5, 2., 2.5]);
    let back = export(entry(&map, "h.1.norm.weight"), Some(DType::BF16), &store).unwrap();
    assert_eq!(&*back.bytes, &half[..]);
    let code = |t: Option<FileTensor<'static>>| {
        let mut store = Buffers::zeros(&map);
        import(&map, "f", &only, &mut |_| t.clone(), &mut store).unwrap_err()[0].code
    };
    assert_eq!(code(None), "E0805");
    assert_eq!(code(Some(tensor(DType::BF16, &[12], &half))), "E0807");
    assert_eq!(code(Some(tensor(DType::F32, &[6], &half))), "E0806");
    let mut store = Buffers::zeros(&map);
    let mut read = |_: &str| Some(tensor(DType::BF16, &[1, 6], &half));
    assert!(import(&map, "f", &only, &mut read, &mut store).is_ok(), "axes of size 1 do not count");
}

#[test]
fn own_names_need_no_item() {
    let text = format!("{HEAD}{BLOCK}weights w of M {{\n for i in depth {{ \"h.{{i}}.\" = block.{{i}} }}\n}}\n");
    let mut world = Memory::default();
    world.0.insert(PathBuf::from("main.pta"), text);
    let c = load(&Request { path: "main.pta".into(), ..Request::default() }, &world);
    let mut e = crate::elaborate::Elab::new(&c.program, c.settings.clone(), crate::elaborate::Mode::EVAL, DType::F32);
    e.model(find_model(&c.program, "M").unwrap());
    let map = WeightsMap::own(&e.b.graph);
    assert!(map.entries.iter().any(|e| e.file_name == "block.1.wq" && e.shape == [6, 2, 4]));
    round_trip(&map);
}

/// Each case: lines of `weights w of M`, the code, and the text that the primary label marks.
#[test]
fn errors_have_codes_and_places() {
    let norms = "\"h.{i}.n\": [embed] = block.{i}.norm.scale\n \"h.{i}.s\": [embed] = block.{i}.norm.seen";
    let cases: &[(&str, &str, &str)] = &[
        ("for i in depth { \"a.{i}\": [embed] = block.{i} }", "E0206", "block.{i}"),
        ("\"a\": [embed] = blok.{i}.norm.scale", "E0201", "i"),
        ("for i in depth { \"a.{i}\": [embed] = blok.{i}.norm.scale }", "E0201", "blok.{i}"),
        ("for i in depth { \"a.{i}\": [embed] = block.{i}.norm.scal }", "E0201", "scal"),
        ("for i in depth { \"a.{j}\": [embed] = block.{i}.norm.scale }", "E0201", "\"a.{j}\""),
        ("for i in depth { \"a\": [embed] = block.{i}.norm.scale }", "E0707", "\"a\""),
        ("for i in 0..3 { \"a.{i}\": [embed] = block.{i}.norm.scale }", "E0201", "block.{i}"),
        (
            "for i in depth { \"a.{i}\": [embed] = block.{i}.norm.scale + block.{i}.norm.seen }",
            "E0709",
            "block.{i}.norm.scale + block.{i}.norm.seen",
        ),
        ("for i in depth { \"a.{i}\": [embed] = block.{i}.norm.scale.x }", "E0206", "x"),
        ("for i in depth { \"a.{i}\": [mlp] = block.{i}.norm.scale }", "E0708", "mlp"),
        ("for i in depth { \"a.{i}\": [embed, mlp, embed] = block.{i}.down }", "E0708", "embed, mlp, embed"),
        ("for i in depth { \"a.{i}\": [embed] = block.{i}.down }", "E0708", "embed"),
        ("for i in depth { \"a.{i}\": [embed] = block.{i}.down[mlp = 9] }", "E0313", "9"),
        ("for i in depth { \"a.{i}\": [mlp] = block.{i}.down[heads = 0] }", "E0302", "heads = 0"),
        ("for i in depth { \"a.{i}\": [mlp, heads] = block.{i}.down[embed -> heads] }", "E0304", "embed -> heads"),
        ("for i in depth { \"a.{i}.\" = block.{i}.norm }", "E0201", "block.{i}.norm"),
        ("for i in depth { \"a.{i}.\" = block.{i}.wq }", "E0206", "block.{i}.wq"),
        ("if depth { \"a\": [embed] = down }", "E0309", "depth"),
    ];
    for (lines, code, marked) in cases {
        let text = format!("{HEAD}weights w of M {{\n{lines}\n}}\n");
        let all = found(&text);
        let d = all.first().unwrap_or_else(|| panic!("no error: {lines}"));
        let span = d.primary.as_ref().unwrap().span;
        assert_eq!((d.code, &text[span.start as usize..span.end as usize]), (*code, *marked), "{lines}\n{all:#?}");
        assert!(d.help.is_some(), "{lines}: without a cure");
    }
    // What is missing, in part, or twice.
    let whole = |lines: &str| found(&format!("{HEAD}weights w of M {{\nfor i in depth {{ {norms} }}\n{lines}\n}}\n"));
    let all = whole("");
    assert_eq!(all[0].code, "E0706");
    assert!(all[0].message.contains("`block.0.wq` and 7 others"), "{}", all[0].message);
    let all = whole("\"again.{i}\": [embed] = block.{i}.norm.scale");
    assert_eq!(all[0].code, "E0201");
    let all = whole("for i in depth { \"again.{i}\": [embed] = block.{i}.norm.scale }");
    let codes: Vec<&str> = all.iter().map(|d| d.code).collect();
    assert_eq!(codes, ["E0706", "E0707"]);
    assert!(all[1].secondary.len() == 1 && all[1].message.contains("block.0.norm.scale"));
}

#[test]
fn owners_and_loads_are_known_names() {
    let first = |tail: &str| {
        let text = format!("{HEAD}{tail}");
        let all = found(&text);
        let span = all[0].primary.as_ref().unwrap().span;
        (all[0].code, text[span.start as usize..span.end as usize].to_string())
    };
    assert_eq!(first("weights w of Modl { }\n"), ("E0201", "Modl".to_string()));
    assert_eq!(first("weights w of embed { }\n"), ("E0206", "embed".to_string()));
    let train =
        "train M {\n data { x = npy(\"x.npy\") }\n optimizer down()\n steps 1\n load \"f\" with v on \"**.scale\"\n}\n";
    let (code, at) = first(&format!("weights w of M {{ }}\n{train}"));
    assert_eq!((code, at.as_str()), ("E0706", "w"));
    let both = found(&format!("{HEAD}weights w of M {{ }}\n{train}"));
    assert!(both.iter().any(|d| d.code == "E0201" && d.message.contains("no weights item `v`")), "{both:#?}");
    // A map that one `load` uses in part needs what is selected.
    let train = train.replace("with v", "with w");
    let part = "weights w of M {\n for i in depth { \"n.{i}\": [embed] = block.{i}.norm.scale }\n}\n";
    assert_eq!(found(&format!("{HEAD}{part}{train}")), []);
}

/// Every item of the examples and golden models; those small enough are exported and imported again.
#[test]
fn items_of_the_examples_are_whole() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut tried = Vec::new();
    for dir in ["examples", "tests/golden_models"] {
        let mut files: Vec<PathBuf> = std::fs::read_dir(root.join(dir)).unwrap().map(|f| f.unwrap().path()).collect();
        files.retain(|f| f.extension().is_some_and(|e| e == "pta"));
        files.sort();
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            if !text.contains("\nweights ") {
                continue;
            }
            let c = load(&Request { path: file.clone(), ..Request::default() }, &Disk);
            let mut sink = Sink::default();
            for model in c.program.models() {
                let mut e = crate::elaborate::Elab::new(
                    &c.program,
                    c.settings.clone(),
                    crate::elaborate::Mode::EVAL,
                    DType::F32,
                );
                let root = e.model(model);
                for map in e.check_weights(model, root) {
                    let n: usize = map.slots.iter().map(|s| s.elements()).sum();
                    if n < 20_000_000 {
                        round_trip(&map);
                    }
                    tried.push(format!("{} {}", file.file_stem().unwrap().to_string_lossy(), map.name));
                }
                sink.extend(std::mem::take(&mut e.sink));
            }
            assert!(!sink.has_errors(), "{}: {:#?}", file.display(), sink.sorted());
        }
    }
    let expect = [
        "bert huggingface",
        "deepseek_v3 huggingface",
        "gemma2 huggingface",
        "gpt2 huggingface",
        "llama golden",
        "llama3 huggingface",
        "llama3 original",
        "llama3_lora base",
        "mamba2 huggingface",
        "mixtral huggingface",
        "t5 huggingface",
        "vit huggingface",
        "gpt golden",
        "llama golden",
        "moe golden",
    ];
    assert_eq!(tried, expect);
}
