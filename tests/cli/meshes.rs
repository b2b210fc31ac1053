//! Runs on one mesh that go on on another, data on any mesh, and what is said of meshes that are no good.

use crate::run::{metric, partita, succeeds};
use crate::training::state;
use crate::{err, fails, tiny, write};
use std::path::Path;

const PLANS: &str = "
plan grid {
    mesh dp = 2, tp = 2
    shard batch by dp
    shard vocab by tp
    zero 1 by dp
}
plan parts {
    mesh dp = 4
    shard batch by dp
    zero 3 by dp
}
";

/// All numbers of a run's newest checkpoint by file and tensor, which are f64, and whether any is not whole.
fn numbers(run: &Path) -> Vec<(String, Vec<usize>, Vec<f64>)> {
    let mut all = Vec::new();
    for (file, bytes) in state(run) {
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
        for (name, t) in tensors.tensors() {
            let read = |b: &[u8]| f64::from_le_bytes(b.try_into().expect("8 bytes"));
            assert_eq!(t.dtype(), safetensors::Dtype::F64, "{name}");
            all.push((format!("{file}: {name}"), t.shape().to_vec(), t.data().chunks_exact(8).map(read).collect()));
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// J2, K1: weights, optimizer state, averages, the model's own state, and the place in the data survive a change of mesh; each
/// sample is read once, by whoever holds it.
#[test]
fn j2_k1_a_run_goes_on_on_another_mesh() {
    let folder = tiny();
    let at = folder.path();
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    write(at, "many.pta", format!("{text}{PLANS}"));
    let train = |more: &[&str]| {
        succeeds(at, &[&["train", "many.pta", "--precision", "f64"][..], more].concat());
    };
    train(&["--out", "one", "--metrics", "one.jsonl", "--steps", "6"]);
    for (out, plans) in [("a", [Some("grid"), Some("parts"), None]), ("b", [Some("parts"), None, Some("grid")])] {
        let metrics = format!("{out}.jsonl");
        for (k, plan) in plans.into_iter().enumerate() {
            let steps = (2 * (k + 1)).to_string();
            let mut arguments = vec!["--out", out, "--metrics", &metrics, "--steps", &steps];
            if k > 0 {
                arguments.push("--resume");
            }
            arguments.extend(plan.into_iter().flat_map(|p| ["--plan", p]));
            train(&arguments);
        }
        for key in ["loss", "grad_norm"] {
            let (one, many) = (metric(&at.join("one.jsonl"), key), metric(&at.join(&metrics), key));
            assert_eq!((one.len(), many.len()), (6, 6));
            assert!(one.iter().zip(&many).all(|(a, b)| (a - b).abs() <= 1e-9 * a.abs()), "{key}: {one:?}\n{many:?}");
        }
        let (one, many) = (numbers(&at.join("one")), numbers(&at.join(out)));
        assert_eq!(one.len(), many.len());
        for ((name, shape, a), (other, same, b)) in one.iter().zip(&many) {
            assert_eq!((name, shape), (other, same));
            let scale = a.iter().fold(1e-4f64, |m, x| m.max(x.abs()));
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-9 * scale), "{name}");
        }
    }
}

/// C5: a checkpoint of a vocabulary that does not divide holds what the model has, and goes on on any mesh.
#[test]
fn c5_an_uneven_vocabulary_is_saved_as_it_is() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let text = "use losses.{cross_entropy}
use optim.{adamw}
dim batch = 2, width = 2, vocab = 3
model M(x: [batch, width], target: int[batch]) {
    param table: [width -> vocab] = normal(1.0)
    loss mean[batch](cross_entropy[vocab](dot[width](x, table), target))
}
train M {
    data { x = csv(\"d.csv\", column = 0, count = 2), target = csv(\"d.csv\", column = 2) }
    optimizer adamw(lr = 0.1)
    steps 4
    seed 1
}
plan p {
    mesh tp = 2
    shard vocab by tp
}
";
    write(at, "m.pta", text);
    write(at, "d.csv", "1,2,0\n3,1,2\n-1,1,1\n0,1,2\n");
    let train = |more: &[&str]| {
        succeeds(at, &[&["train", "m.pta", "--precision", "f64"][..], more].concat());
    };
    train(&["--out", "one", "--metrics", "one.jsonl"]);
    train(&["--out", "many", "--metrics", "many.jsonl", "--steps", "1", "--plan", "p"]);
    let shapes = |run: &str| numbers(&at.join(run)).into_iter().map(|(_, s, _)| s).collect::<Vec<_>>();
    assert_eq!(shapes("many"), shapes("one"));
    assert!(shapes("many").contains(&vec![2, 3]), "{:?}", shapes("many"));
    train(&["--out", "many", "--metrics", "many.jsonl", "--steps", "2", "--plan", "p", "--mesh", "tp=3", "--resume"]);
    train(&["--out", "many", "--metrics", "many.jsonl", "--steps", "3", "--resume"]);
    train(&["--out", "many", "--metrics", "many.jsonl", "--plan", "p", "--mesh", "tp=5", "--resume"]);
    let (one, many) = (metric(&at.join("one.jsonl"), "loss"), metric(&at.join("many.jsonl"), "loss"));
    assert!(one.len() == 4 && one.iter().zip(&many).all(|(a, b)| (a - b).abs() < 1e-9), "{one:?}\n{many:?}");
}

#[test]
fn an_axis_has_one_size() {
    let folder = tiny();
    for command in [&["train", "tiny.pta", "--plan", "single"][..], &["comm", "tiny.pta", "--plan", "many"]] {
        let text = fails(folder.path(), &[command, &["--mesh", "dp=2,dp=3"]].concat(), 1, "E0202");
        assert!(text.contains("`--mesh dp=..` is given twice"), "{text}");
    }
    fails(folder.path(), &["train", "tiny.pta", "--mesh", "dp=1", "--mesh", "dp=1"], 1, "E0202");
}

/// I3: an index beyond a table that ranks hold in parts is told as that of the whole; a negative one, too.
#[test]
fn i3_an_index_beyond_a_cut_table_names_the_whole() {
    let folder = tiny();
    let at = folder.path();
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    for (index, said) in [("tokens * 0 + 256", "index 256 is"), ("tokens * 0 - 7", "index -7 is")] {
        let text = text.replace("wte(tokens)", &format!("wte({index})"));
        write(at, "bad.pta", format!("{text}{PLANS}"));
        let text = fails(at, &["train", "bad.pta", "--out", "run", "--plan", "grid"], 1, "E0809");
        assert!(text.contains(&format!("{said} out of range for dim `vocab` of size 256")), "{text}");
        assert!(text.contains("help: indices of `vocab` are 0 to 255"), "{text}");
    }
}

#[test]
fn a_plan_is_checked_on_other_meshes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let text = "use nn.{Linear}\nuse optim.{sgd}\ndim batch = 4, kv = 2, group = 2, out = 3, heads = (kv, group)
model Net(x: [batch, heads]) {
    let f = Linear[heads, out]
    loss mean[batch, out](square(f(x)))
}
train Net { optimizer sgd(lr = 0.1); steps 2 }
plan p {
    mesh tp = 4
    shard heads by tp
}
";
    write(at, "m.pta", text);
    let good = partita(at, &["check", "m.pta", "--mesh", "tp=2"]);
    assert!(good.status.success(), "{}", err(&good));
    fails(at, &["check", "m.pta", "--mesh", "tp=3"], 1, "E0505");
    fails(at, &["check", "m.pta", "--plan", "p", "--mesh", "dp=3"], 1, "E0501");
}
