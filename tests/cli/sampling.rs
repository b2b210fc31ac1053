//! Inputs that a sampler takes beside the prompt.

use crate::run::{partita, succeeds};
use crate::{err, fails, out, write};
use std::process::Command;
use tempfile::TempDir;

/// Says what `source` says: the next element at a position is the source's at that position. Trained for a step that
/// changes nothing.
const ECHO: &str = r#"
dim batch = 2, seq = 40, src = 8, vocab = 256
optimizer keep(w: [..], g: [..]) -> [..] { w - 0 * g }
model Echo(source: int[batch, src], tokens: int[batch, seq], targets: int[batch, seq]) {
    param sharp: [] = 50
    param table: [vocab] = 0
    let said: int[batch, seq] = source[src = min(iota[seq], src - 1)]
    let seen: bool[batch, seq, vocab] = iota[vocab] == said
    let score: [batch, seq, vocab] = sharp * seen + table[vocab = tokens]
    output logits = score
    loss mean[batch, seq, vocab](square(logits)) + 0 * mean[batch, seq](targets)
}
train Echo {
    data { source = npy("source.npy"), tokens = npy("tokens.npy"), targets = npy("tokens.npy") }
    optimizer keep()
    steps 1
}
sample Echo {
    feed tokens[seq] = draw[vocab](logits)
    text bytes
}
"#;

/// A sampler that is written out, with a vector and a number.
const SCALED: &str = r#"
dim batch = 2, width = 3
optimizer keep(w: [..], g: [..]) -> [..] { w - 0 * g }
model M(x: [batch, width]) {
    param w: [] = 2
    loss mean[batch, width](square(w * x))
}
train M {
    data { x = npy("x.npy") }
    optimizer keep()
    steps 1
}
sample M(x: [width], n: int, on: bool) {
    output y = where(on, x * n, -x)
}
"#;

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    header += &" ".repeat(63 - (10 + header.len()) % 64);
    header.push('\n');
    let mut all = b"\x93NUMPY\x01\x00".to_vec();
    all.extend((header.len() as u16).to_le_bytes());
    all.extend(header.as_bytes());
    all.extend(data);
    all
}

fn echo() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(folder.path(), "echo.pta", ECHO);
    write(folder.path(), "source.npy", npy("|u1", "2, 8", &[1; 16]));
    write(folder.path(), "tokens.npy", npy("|u1", "2, 40", &[1; 80]));
    succeeds(folder.path(), &["train", "echo.pta"]);
    folder
}

#[test]
fn a_sample_item_finds_the_run_of_its_model() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let named = ECHO.replace("train Echo {", "train first of Echo {");
    write(at, "echo.pta", &named);
    write(at, "source.npy", npy("|u1", "2, 8", &[1; 16]));
    write(at, "tokens.npy", npy("|u1", "2, 40", &[1; 80]));
    let help = fails(at, &["sample", "echo.pta", "--length", "3"], 1, "E0805");
    assert!(help.contains("`runs/first` does not exist"), "{help}");
    succeeds(at, &["train", "echo.pta"]);
    let sample = ["sample", "--length", "3", "--input", "source=12345678"];
    succeeds(at, &[&sample[..], &["echo.pta"]].concat());
    succeeds(at, &["build", "echo.pta", "-o", "prog"]);
    let drawn = Command::new(at.join("prog")).args(sample).current_dir(at).output().expect("runs");
    assert!(drawn.status.success(), "{}", err(&drawn));
    let second = &named[named.find("train").expect("an item")..named.find("sample").expect("an item")];
    write(at, "two.pta", named.clone() + &second.replace("first", "second"));
    let help = fails(at, &["sample", "two.pta", "--length", "3"], 1, "E0805");
    assert!(help.contains("`runs/first`, `runs/second`"), "{help}");
}

#[test]
fn training_does_not_begin_before_a_broken_sample_item_is_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    write(at, "echo.pta", ECHO.replace("feed tokens[", "feed token[").as_str());
    for arguments in [&["train", "echo.pta", "--dry-run"][..], &["train", "echo.pta"]] {
        let text = fails(at, arguments, 1, "E0201");
        assert!(text.contains("`token`") && !text.contains("tensors"), "{text}");
    }
    assert!(!at.join("runs").exists());
}

const SAMPLE: &[&str] = &["sample", "echo.pta", "--prompt", "hello w", "--temperature", "0", "--length", "3"];

#[test]
fn a_sequence_is_given_as_text_numbers_or_a_file() {
    let folder = echo();
    let at = folder.path();
    write(
        at,
        "one.npy",
        npy("<i8", "8,", &[b'6', b'7'].repeat(4).iter().flat_map(|b| i64::from(*b).to_le_bytes()).collect::<Vec<_>>()),
    );
    for (given, wanted) in [
        ("source=abcdefgh", "hello wghh"),
        ("source=65,66,67,68,69,70,71,72", "hello wGHH"),
        ("source=90", "hello wZZZ"),
        ("source=one.npy", "hello w677"),
        ("source=\"12345678\"", "hello w788"),
    ] {
        let said = succeeds(at, &[SAMPLE, &["--input", given]].concat());
        assert_eq!(said.trim_end(), wanted, "{given}");
    }
    succeeds(at, &["build", "echo.pta", "-o", "prog"]);
    let mut built = Command::new(at.join("prog"));
    built.args(&SAMPLE[..1]).args(&SAMPLE[2..]).args(["--input", "source=90"]).current_dir(at);
    let output = built.output().expect("the program runs");
    assert_eq!(out(&output).trim_end(), "hello wZZZ", "{}", err(&output));
}

#[test]
fn a_profile_says_where_the_time_of_a_token_goes() {
    let folder = echo();
    let said = succeeds(folder.path(), &[SAMPLE, &["--input", "source=90", "--profile"]].concat());
    let (sample, profile) = said.split_once('\n').expect("two parts");
    assert_eq!(sample, "hello wZZZ");
    assert!(profile.starts_with("profile of ") && profile.contains(" tokens after the first: "), "{profile}");
    assert!(profile.contains("time/token") && profile.contains(" draw echo.pta:"), "{profile}");
}

#[test]
fn what_does_not_fit_an_input_is_said() {
    let folder = echo();
    let at = folder.path();
    write(at, "floats.npy", npy("<f4", "8,", &[0; 32]));
    write(at, "short.npy", npy("|u1", "7,", &[0; 7]));
    for (given, code, words) in [
        (&[][..], "E0803", "needs its input source: int[batch = 1, src = 8]"),
        (&["--input", "sorce=1"], "E0902", "did you mean `source`?"),
        (&["--input", "tokens=1"], "E0902", "--prompt"),
        (&["--input", "source=1", "--input", "source=2"], "E0902", "twice"),
        (&["--input", "source=1,2"], "E0803", "has 2 elements"),
        (&["--input", "source=3000000000"], "E0803", "32-bit"),
        (&["--input", "source=far too long"], "E0803", "12 elements"),
        (&["--input", "source=floats.npy"], "E0803", "floats"),
        (&["--input", "source=short.npy"], "E0803", "shape [7]"),
        (&["--input", "source=gone.npy"], "E0801", "gone.npy"),
    ] {
        let said = fails(at, &[SAMPLE, given].concat(), 1, code);
        assert!(said.contains(words), "{given:?}: {said}");
    }
    assert_eq!(partita(at, &[SAMPLE, &["--input", "source"]].concat()).status.code(), Some(2));
}

#[test]
fn the_lowest_temperatures_take_the_most_likely() {
    let folder = echo();
    let at = folder.path();
    for temperature in ["0", "1e-5", "1e-7", "1e-39", "1e-300"] {
        for precision in ["f32", "f16"] {
            let said = succeeds(
                at,
                &[
                    &SAMPLE[..4],
                    &["--length", "3", "--input", "source=90", "--precision", precision, "--temperature", temperature],
                ]
                .concat(),
            );
            assert_eq!(said.trim_end(), "hello wZZZ", "{temperature} in {precision}");
        }
    }
}

#[test]
fn positions_that_run_out_are_said() {
    let folder = echo();
    let at = folder.path();
    // 40 positions: the last element that is drawn need not be fed.
    for (length, said) in [("34", false), ("35", true)] {
        let output = partita(at, &[&SAMPLE[..6], &["--length", length, "--input", "source=90"]].concat());
        assert!(output.status.success(), "{}", err(&output));
        assert_eq!(err(&output).contains("the model has 40 positions"), said, "{length}: {}", err(&output));
    }
}

#[test]
fn a_sampler_that_is_written_out_takes_its_arguments() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    write(at, "m.pta", SCALED);
    write(at, "x.npy", npy("|u1", "2, 3", &[1, 2, 3, 4, 5, 6]));
    succeeds(at, &["train", "m.pta"]);
    let drawn = |x: &str, n: &str, on: &str| -> Vec<f32> {
        let given = [x, n, on].map(|v| ["--input", v]).concat();
        succeeds(at, &[&["sample", "m.pta", "--out", "."][..], &given].concat());
        let bytes = std::fs::read(at.join("y.npy")).expect("it was written");
        bytes[bytes.len() - 12..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect()
    };
    assert_eq!(drawn("x=0.5,1,2", "n=3", "on=1"), [1.5, 3.0, 6.0]);
    assert_eq!(drawn("x=0.5", "n=3", "on=0"), [-0.5; 3]);
    let said = fails(at, &["sample", "m.pta", "--input", "x=1", "--input", "n=1"], 1, "E0803");
    assert!(said.contains("on: bool[]"), "{said}");
    fails(at, &["sample", "m.pta", "--input", "x=1", "--input", "n=0.5", "--input", "on=1"], 1, "E0803");
    fails(at, &["sample", "m.pta", "--input", "x=1", "--input", "n=1", "--input", "on=2"], 1, "E0803");
    fails(at, &["sample", "m.pta", "--input", "x=one", "--input", "n=1", "--input", "on=1"], 1, "E0902");
}

/// Says the successor of each byte: the table is read from a file.
const NEXT: &str = r#"
dim batch = 2, seq = 8, vocab = 256
optimizer keep(w: [..], g: [..]) -> [..] { w - 0 * g }
model Next(tokens: int[batch, seq]) {
    param table: [vocab] = 0
    let said: int[batch, seq] = int(table[vocab = tokens])
    output logits = where(iota[vocab] == said, 50, 0)
    loss mean[batch, seq](square(table[vocab = tokens]))
}
train Next {
    data { tokens = npy("tokens.npy") }
    load "table.safetensors"
    optimizer keep()
    steps 1
}
sample Next {
    feed tokens[seq] = draw[vocab](logits)
    text bytes
}
"#;

/// A safetensors file of one vector.
fn vector(name: &str, values: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let n = values.len();
    let mut header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[{n}],"data_offsets":[0,{}]}}}}"#, bytes.len());
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat()
}

#[test]
fn imported_weights_are_sampled_from_without_a_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    write(at, "next.pta", NEXT);
    let table: Vec<f32> = (1..=256).map(|n| n as f32).collect();
    write(at, "table.safetensors", vector("table", &table));
    let sample = ["sample", "--initial", "--prompt", "abc", "--temperature", "0", "--length", "12"];
    let ours = [&sample[..], &["next.pta"]].concat();
    assert_eq!(succeeds(at, &ours), "abcdefghijklmno\n");
    fails(at, &["sample", "next.pta"], 1, "E0805");
    fails(at, &[&ours[..], &["--checkpoint", "runs/Next"]].concat(), 2, "cannot be used with");
    succeeds(at, &["build", "next.pta", "-o", "prog"]);
    let run = || Command::new(at.join("prog")).args(sample).current_dir(at).output().expect("runs");
    assert_eq!(out(&run()), "abcdefghijklmno\n");
    std::fs::remove_file(at.join("table.safetensors")).expect("it is gone");
    for said in [fails(at, &ours, 1, "E0805"), err(&run())] {
        assert!(said.contains("E0805") && said.contains("table.safetensors"), "{said}");
    }
    // Which train item, where there are several.
    write(at, "table.safetensors", vector("table", &table));
    let item = &NEXT[NEXT.find("train").expect("an item")..NEXT.find("sample").expect("an item")];
    let two =
        NEXT.replace("train Next {", "train up of Next {") + &item.replace("train Next {", "train down of Next {");
    write(at, "next.pta", &two);
    let said = fails(at, &ours, 1, "E0711");
    assert!(said.contains("up, down"), "{said}");
    write(at, "next.pta", two.replace("sample Next {", "sample down of Next {"));
    assert_eq!(succeeds(at, &ours), "abcdefghijklmno\n");
    write(at, "next.pta", NEXT.replace(item, ""));
    fails(at, &ours, 1, "E0711");
    write(at, "next.pta", NEXT.replace("text bytes", "text chars"));
    fails(at, &ours, 1, "E0807");
}

#[test]
fn a_model_of_ids_is_sampled_in_ids() {
    let folder = TempDir::new().expect("a folder");
    let at = folder.path();
    // The next id is always the one before it plus 1: a table that is not trained.
    let program = r#"
dim batch = 2, seq = 8, vocab = 1000
optimizer keep(w: [..], g: [..]) -> [..] { w - 0 * g }
model Count(tokens: int[batch, seq], targets: int[batch, seq]) {
    param sharp: [] = 50
    let next: bool[batch, seq, vocab] = iota[vocab] == tokens + 1
    let scores: [batch, seq, vocab] = sharp * next
    output logits = scores
    loss mean[batch, seq, vocab](square(logits)) + 0 * mean[batch, seq](targets)
}
train Count {
    data tokens("ids.bin")
    optimizer keep()
    steps 1
}
sample Count { feed tokens[seq] = argmax[vocab](logits) }
"#;
    write(at, "count.pta", program);
    let ids: Vec<u8> = (0..200u16).flat_map(u16::to_le_bytes).collect();
    write(at, "ids.bin", ids);
    succeeds(at, &["train", "count.pta"]);
    let text = succeeds(at, &["sample", "count.pta", "--prompt", "5, 653", "--length", "4"]);
    assert_eq!(text.trim_end(), "5, 653 654 655 656 657");
    let text = fails(at, &["sample", "count.pta", "--prompt", "five"], 1, "E0902");
    assert!(text.contains("`five` is no id"), "{text}");
}
