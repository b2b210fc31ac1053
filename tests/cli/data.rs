//! Data and checkpoints that are missing, damaged or of another kind: each a clear error, nothing lost.

use crate::run::{partita, succeeds};
use crate::{err, fails, tiny, write};

#[test]
fn bad_data_is_an_error_before_the_first_step() {
    let folder = tiny();
    let at = folder.path();
    let text = fails(at, &["train", "tiny.pta", "--data", "missing.txt"], 1, "E0801");
    assert!(text.contains("missing.txt"), "{text}");
    write(at, "empty.txt", "");
    fails(at, &["train", "tiny.pta", "--data", "empty.txt"], 1, "E0804");
    write(at, "short.txt", "only so much");
    fails(at, &["train", "tiny.pta", "--data", "short.txt"], 1, "E0804");
    assert!(!at.join("runs/Tiny/step-00000001").exists());
    // The same file in `valid` is replaced, too.
    write(at, "other.txt", "other text ".repeat(200));
    succeeds(at, &["train", "tiny.pta", "--data", "other.txt", "--steps", "1"]);
}

#[test]
fn ids_beyond_a_dim_and_characters_beyond_a_vocabulary() {
    let folder = tiny();
    let at = folder.path();
    let text = fails(at, &["train", "tiny.pta", "--set", "vocab=64"], 1, "E0803");
    assert!(text.contains("vocab"), "{text}");
    let model = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    write(at, "chars.pta", model.replace("bytes(", "chars(").replace("text bytes", "text chars"));
    let text = fails(at, &["train", "chars.pta", "--set", "vocab=8"], 1, "E0803");
    assert!(text.contains("8"), "{text}");
}

/// A run that its data ends says where it is kept.
#[test]
fn a_run_goes_on_when_its_data_is_mended() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let model = "use optim.{sgd}\ndim batch = 4, vocab = 5\nmodel M(x: int[batch]) {\n    param u: [vocab] = 1.0\n    \
        loss mean[batch](square(u[vocab = x] - 0.5))\n}\ntrain M {\n    data { x = csv(\"x.csv\", shuffle = false) }\n    \
        optimizer sgd(lr = 0.1)\n    steps 4\n}\n";
    write(at, "m.pta", model);
    let rows = |bad: &str| (0..16).map(|k| format!("{}\n", if k == 9 { bad } else { "1" })).collect::<String>();
    write(at, "x.csv", rows("9"));
    let text = fails(at, &["train", "m.pta"], 1, "E0803");
    assert!(text.contains("the run is kept in `runs/M/step-00000002`"), "{text}");
    write(at, "x.csv", rows("2"));
    succeeds(at, &["train", "m.pta", "--resume"]);
    assert!(at.join("runs/M/step-00000004").is_dir());
}

#[test]
fn arrays_must_fit_the_inputs() {
    let folder = tiny();
    let at = folder.path();
    let model = "use nn.{Linear}\nuse losses.{square_error}\nuse optim.{sgd}\ndim batch = 2, a = 3, b = a\n\
        model M(x: [batch, a], y: [batch]) {\n    let f = Linear[a, b]\n    loss mean[batch](square_error(sum[b](f(x)), y))\n}\n\
        train M {\n    data { x = csv(\"d.csv\", column = 0, count = 3), y = csv(\"d.csv\", column = 3) }\n    optimizer sgd(lr = 0.1)\n    steps 2\n}\n";
    write(at, "m.pta", model);
    write(at, "d.csv", "1,2,3,4\n5,6,7,8\n9,10,11,12\n");
    succeeds(at, &["train", "m.pta"]);
    write(at, "d.csv", "1,2,3,4\n5,six,7,8\n");
    let text = fails(at, &["train", "m.pta"], 1, "E0802");
    assert!(text.contains("d.csv"), "{text}");
    write(at, "d.csv", "1,2\n3,4\n");
    let output = partita(at, &["train", "m.pta"]);
    assert!(err(&output).contains("E080"), "{}", err(&output));
    let wrong = model.replace("count = 3", "count = 2");
    write(at, "m.pta", wrong);
    write(at, "d.csv", "1,2,3,4\n5,6,7,8\n9,10,11,12\n");
    fails(at, &["train", "m.pta"], 1, "E0803");
}

#[test]
fn checkpoints_of_no_use_are_told_apart() {
    let folder = tiny();
    let at = folder.path();
    fails(at, &["eval", "tiny.pta"], 1, "E0805");
    fails(at, &["train", "tiny.pta", "--resume"], 1, "E0805");
    succeeds(at, &["train", "tiny.pta", "--steps", "2"]);
    let text = fails(at, &["train", "tiny.pta", "--set", "embed=6", "--resume"], 1, "E0807");
    assert!(text.contains("wte.table"), "{text}");
    fails(at, &["eval", "tiny.pta", "--set", "embed=6"], 1, "E0807");
    let file = at.join("runs/Tiny/step-00000002/model.safetensors");
    let mut bytes = std::fs::read(&file).expect("the weights");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).expect("it can be damaged");
    fails(at, &["eval", "tiny.pta"], 1, "E0806");
    fails(at, &["sample", "tiny.pta", "--length", "1"], 1, "E0806");
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let folder = tiny();
    let at = folder.path();
    write(at, "file", "");
    fails(at, &["train", "tiny.pta", "--out", "file/run"], 1, "E0808");
    fails(at, &["train", "tiny.pta", "--metrics", "file/m.jsonl"], 1, "E0813");
    fails(at, &["build", "tiny.pta", "-o", "file/prog"], 1, "E0813");
}

#[test]
fn changed_data_is_noticed_when_a_run_goes_on() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--steps", "1"]);
    write(at, "other.txt", "other text ".repeat(200));
    let output = partita(at, &["train", "tiny.pta", "--steps", "2", "--resume", "--data", "other.txt"]);
    assert!(output.status.success() && err(&output).contains("W0009"), "{}", err(&output));
}

#[test]
fn what_validation_leaves_out_is_said_once() {
    let folder = tiny();
    let output = partita(folder.path(), &["train", "tiny.pta"]);
    assert_eq!(err(&output).matches("W0007").count(), 1, "{}", err(&output));
    // The cure is a command that evaluates all.
    let said = err(&output);
    let cure = said.split("`partita ").nth(1).and_then(|s| s.split('`').next()).expect("a command");
    assert!(cure.starts_with("eval tiny.pta --set batch="), "{cure}");
    let output = partita(folder.path(), &["eval", "tiny.pta", "--set", "embed=12"]);
    assert!(err(&output).contains("`partita eval tiny.pta --set embed=12 --set batch="), "{}", err(&output));
    let output = partita(folder.path(), &cure.split(' ').collect::<Vec<_>>());
    assert!(output.status.success() && !err(&output).contains("W0007"), "{}", err(&output));
}

/// A word tokenizer of five entries, the last a special token that ends documents.
pub const TOKENIZER: &str = r#"{"version":"1.0",
    "added_tokens":[{"id":4,"content":"<end>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
    "pre_tokenizer":{"type":"Whitespace"},
    "model":{"type":"WordLevel","vocab":{"to":0,"be":1,"or":2,"not":3},"unk_token":"or"}}"#;

/// A model of such words; `DATA` is what it is trained on.
pub const WORDS: &str = r#"use nn.{Embedding, Linear}
use losses.{cross_entropy}
use optim.{adamw}
dim batch = 4, seq = 7, vocab = 5, embed = 8
model M(tokens: int[batch, seq], targets: int[batch, seq], document: int[batch, seq]) {
    let wte = Embedding[vocab, embed]
    let head = Linear[embed, vocab]
    output logits = head(wte(tokens))
    output ids = tokens
    output at = document
    loss mean[batch, seq](cross_entropy[vocab](logits, targets))
}
train M {
    data DATA
    valid DATA
    optimizer adamw(lr = 0.1)
    steps 60
}
sample M {
    feed tokens[seq] = draw[vocab](logits)
    text tokenizer("tokenizer.json")
    stop "<end>"
}
"#;

/// `DATA` of a text.
pub const TEXT: &str = r#"text("text.txt", tokenizer = "tokenizer.json", end = "<end>", split = "\n")"#;

#[test]
fn documents_end_with_a_token() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    write(at, "tokenizer.json", TOKENIZER);
    write(at, "text.txt", "to be\nnot to be\n".repeat(40));
    let with = |data: &str| write(at, "m.pta", WORDS.replace("DATA", data));
    let text = TEXT;
    with(text);
    succeeds(at, &["train", "m.pta"]);
    succeeds(at, &["eval", "m.pta", "--output", "ids=ids.npy", "--output", "at=at.npy", "--batches", "1"]);
    let row = |name: &str| -> Vec<i32> {
        let bytes = std::fs::read(at.join(name)).expect("it was written");
        let data = &bytes[bytes.len() - 4 * 28..];
        data.chunks_exact(4).take(7).map(|b| i32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    };
    assert_eq!((row("ids.npy"), row("at.npy")), (vec![0, 1, 4, 3, 0, 1, 4], vec![0, 0, 0, 1, 1, 1, 1]));
    // The special token has no text, but it stops the sample.
    let said = succeeds(at, &["sample", "m.pta", "--prompt", "not", "--temperature", "0", "--length", "30"]);
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["not", "to", "be"], "{said}");

    // The ids themselves, with the id that ends documents.
    let ids: Vec<u8> = [0u16, 1, 4, 3, 0, 1, 4].repeat(40).iter().flat_map(|i| i.to_le_bytes()).collect();
    write(at, "ids.bin", ids);
    with(r#"tokens("ids.bin", end = 4)"#);
    succeeds(at, &["eval", "m.pta", "--output", "at=again.npy", "--batches", "1"]);
    assert_eq!(row("again.npy"), [0, 0, 0, 1, 1, 1, 1]);

    with(&text.replace("<end>\"", "</s>\""));
    let said = fails(at, &["train", "m.pta"], 1, "E0803");
    assert!(said.contains("no token `</s>`") && said.contains("<end>"), "{said}");
    with(&text.replace("end = \"<end>\", ", ""));
    fails(at, &["check", "m.pta"], 1, "E0710");
    with(r#"tokens("ids.bin", end = "<end>")"#);
    fails(at, &["check", "m.pta"], 1, "E0710");
}

#[test]
fn data_expressions_are_elementwise() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    write(at, "d.csv", "a,b\n-7,1\n12,0\n3,1\n8,0\n");
    let model = "dim batch = 4\nconst ten = 10\nmodel M(x: [batch], y: int[batch], z: bool[batch]) {\n    param w: [] = 1\n    \
        output p = x\n    output q = y\n    output r = z\n    loss mean[batch](square(w - x))\n}\n\
        optimizer plain(w: [..], g: [..]) -> [..] { w - g }\n\
        train M {\n    data { x = X, y = Y, z = Z }\n    valid { x = X, y = Y, z = Z }\n    optimizer plain()\n    steps 1\n}\n";
    let with = |x: &str, y: &str, z: &str| {
        write(at, "m.pta", model.replace("X", x).replace("Y", y).replace("Z", z));
    };
    let (a, b) = (r#"csv("d.csv", column = 0)"#, r#"csv("d.csv", column = 1)"#);
    with(&format!("sqrt(square({a})) / 2"), &format!("{a} % ten"), &format!("{a} > 0 and not ({b} == 1)"));
    succeeds(at, &["eval", "m.pta", "--initial", "--output", "p=p.npy", "--output", "q=q.npy", "--output", "r=r.npy"]);
    // Floats, ints and bools, each as what they are.
    let last = |name: &str, n: usize| {
        let bytes = std::fs::read(at.join(name)).expect("it was written");
        bytes[bytes.len() - n..].to_vec()
    };
    let words = |name: &str| last(name, 16).chunks_exact(4).map(|b| <[u8; 4]>::try_from(b).expect("four")).collect();
    let floats = |name: &str| Vec::<[u8; 4]>::into_iter(words(name)).map(f32::from_le_bytes).collect::<Vec<_>>();
    let ints = |name: &str| Vec::<[u8; 4]>::into_iter(words(name)).map(i32::from_le_bytes).collect::<Vec<_>>();
    assert_eq!(floats("p.npy"), [3.5, 6.0, 1.5, 4.0]);
    assert_eq!(ints("q.npy"), [3, 2, 3, 8]);
    assert_eq!(last("r.npy", 4), [0, 1, 0, 1]);
    with(&format!("clamp({a}, 0, 10)"), &format!("where({b} == 1, floor_div({a}, 2), -1)"), &format!("bool({b})"));
    succeeds(at, &["eval", "m.pta", "--initial", "--output", "p=p.npy", "--output", "q=q.npy"]);
    assert_eq!(floats("p.npy"), [0.0, 10.0, 3.0, 8.0]);
    assert_eq!(ints("q.npy"), [-4, -1, 1, -1]);

    with(a, a, &format!("{a} and {b}"));
    let said = fails(at, &["eval", "m.pta", "--initial"], 1, "E0803");
    assert!(said.contains("takes bools"), "{said}");
    with(&format!("mean[batch]({a})"), a, b);
    fails(at, &["check", "m.pta"], 1, "E0710");
    for odd in [format!("{a}[batch]"), format!("if true {{ {a} }} else {{ 1 }}"), format!("npy({a})")] {
        with(&odd, a, b);
        fails(at, &["check", "m.pta"], 1, "E0710");
    }
    with(&format!("max({a})"), a, b);
    fails(at, &["check", "m.pta"], 1, "E0314");
    with("npz(\"x.npz\") / 2", a, b);
    let said = fails(at, &["check", "m.pta"], 1, "E0201");
    assert!(said.contains("did you mean `npy`?"), "{said}");
    with("1 / 2", a, b);
    fails(at, &["eval", "m.pta", "--initial"], 1, "E0803");
}
