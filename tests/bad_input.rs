//! What goes wrong outside the program: data, checkpoints, plans, command lines. Each is a clear error with its code, and
//! nothing is lost.

#[path = "common/run.rs"]
mod run;

use std::path::Path;

const MODEL: &str = "
use nn.{Embedding}
use losses.{cross_entropy}
use optim.{adamw}
dim batch = 4, seq = 8, vocab = 16, embed = 8
model M(tokens: int[batch, seq], targets: int[batch, seq]) {
    let wte = Embedding[vocab, embed]
    output logits = dot[embed](wte(tokens), wte.table)
    loss mean[batch, seq](cross_entropy[vocab](logits, targets))
}
train M {
    data SOURCE
    optimizer adamw(lr = 1e-3)
    steps 3
}
plan two {
    mesh dp = 2
    shard batch by dp
}
";

/// A folder with the model over a source of data.
fn folder(source: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("m.pta"), MODEL.replace("SOURCE", source)).expect("written");
    folder
}

/// Runs a command that must fail with a code and without a panic; gives what it said.
#[track_caller]
fn fails(folder: &Path, arguments: &[&str], code: &str) -> String {
    let output = run::partita(folder, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "partita {} succeeded", arguments.join(" "));
    assert!(said.contains(code), "expected {code}:\n{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(folder.join(name), bytes).expect("written");
}

#[test]
fn what_is_not_finite_in_the_data_is_told_from_what_the_model_makes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let text = "use optim.{sgd}
dim batch = 2, a = 3
model M(x: [batch, a]) {
    param w: [a] = 1
    loss mean[batch, a](x * w)
}
train M {
    data { x = npy(\"x.npy\") }
    optimizer sgd(lr = 0.1)
    steps 1
}
";
    std::fs::write(at.join("m.pta"), text).expect("written");
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    let padded = format!("{header:<117}\n");
    bytes.extend((padded.len() as u16).to_le_bytes());
    bytes.extend(padded.as_bytes());
    for x in [1.0f32, 2.0, 3.0, f32::NAN, 5.0, 6.0] {
        bytes.extend(x.to_le_bytes());
    }
    std::fs::write(at.join("x.npy"), bytes).expect("written");
    let output = run::partita(at, &["train", "m.pta", "--out", "run", "--debug-nan", "--color", "never"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("E0810") && said.contains("the data of input `x` holds NaN"), "{said}");
    // A file that is not there is named at the line that asks for it.
    std::fs::remove_file(at.join("x.npy")).expect("removed");
    let output = run::partita(at, &["train", "m.pta", "--out", "run", "--color", "never"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("E0801") && said.contains("m.pta:8:"), "{said}");
}

#[test]
fn a_missing_data_file() {
    let f = folder(r#"bytes("gone.txt")"#);
    let said = fails(f.path(), &["train", "m.pta"], "E0801");
    assert!(said.contains("gone.txt"), "{said}");
}

#[test]
fn an_empty_data_file() {
    let f = folder(r#"bytes("empty.txt")"#);
    write(f.path(), "empty.txt", b"");
    fails(f.path(), &["train", "m.pta"], "E0804");
}

#[test]
fn data_shorter_than_one_batch() {
    let f = folder(r#"bytes("short.txt")"#);
    write(f.path(), "short.txt", &[3u8; 16]);
    fails(f.path(), &["train", "m.pta"], "E0804");
}

#[test]
fn more_characters_than_the_vocabulary() {
    let f = folder(r#"chars("many.txt")"#);
    write(f.path(), "many.txt", "abcdefghijklmnopqrstuvwxyz".repeat(20).as_bytes());
    let said = fails(f.path(), &["train", "m.pta"], "E0803");
    assert!(said.contains("26"), "the count is said: {said}");
}

#[test]
fn a_token_out_of_range() {
    let f = folder(r#"tokens("t.bin")"#);
    let tokens: Vec<u8> = (0..400u16).flat_map(|i| (if i == 20 { 999 } else { i % 16 }).to_le_bytes()).collect();
    write(f.path(), "t.bin", &tokens);
    let output = run::partita(f.path(), &["train", "m.pta", "--steps", "30"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && (said.contains("E0803") || said.contains("E0809")), "{said}");
    assert!(said.contains("999"), "the id is said: {said}");
}

#[test]
fn a_data_file_that_becomes_shorter_during_the_run() {
    let f = folder(r#"tokens("t.bin")"#);
    let tokens: Vec<u8> = (0..40_000u16).flat_map(|i| (i % 16).to_le_bytes()).collect();
    write(f.path(), "t.bin", &tokens);
    let mut child = run::command()
        .args(["train", "m.pta", "--steps", "100000000", "--metrics", "log.jsonl"])
        .current_dir(f.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let log = f.path().join("log.jsonl");
    while std::fs::metadata(&log).map_or(0, |m| m.len()) == 0 {
        assert!(child.try_wait().expect("it can be asked").is_none(), "it trains");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::fs::OpenOptions::new().write(true).open(f.path().join("t.bin")).and_then(|t| t.set_len(100)).expect("cut");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("E0801") && said.contains("became shorter"), "{said}");
    let kept = std::fs::read_dir(f.path().join("runs/M")).expect("the run has a folder").filter_map(|e| e.ok());
    let steps = kept.filter(|e| e.file_name().to_string_lossy().starts_with("step-")).count();
    assert_eq!(steps, 1, "the steps that are done are kept");
}

#[test]
fn a_truncated_array() {
    let f = folder(r#"{ tokens = npy("x.npy"), targets = npy("x.npy") }"#);
    let head = "{'descr': '<i4', 'fortran_order': False, 'shape': (100, 8), }";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend(((head.len() + 1) as u16).to_le_bytes());
    file.extend(head.as_bytes());
    file.push(b'\n');
    file.extend([0u8; 40]);
    write(f.path(), "x.npy", &file);
    fails(f.path(), &["train", "m.pta"], "E0802");
}

#[test]
fn a_damaged_checkpoint_is_not_loaded() {
    let f = folder(r#"bytes("text.txt")"#);
    let text: Vec<u8> = (0..2000u32).map(|i| (i * i % 16) as u8).collect();
    write(f.path(), "text.txt", &text);
    run::succeeds(f.path(), &["train", "m.pta", "--out", "run"]);
    let mut damaged = 0;
    let mut open = vec![f.path().join("run")];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(at).expect("the run is there") {
            let path = entry.expect("listed").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "safetensors") {
                let mut bytes = std::fs::read(&path).expect("read");
                let last = bytes.len() - 3;
                bytes[last] ^= 0x40;
                std::fs::write(&path, bytes).expect("written");
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0, "no checkpoint was written");
    fails(f.path(), &["train", "m.pta", "--out", "run", "--resume", "--steps", "5"], "E0806");
}

#[test]
fn a_checkpoint_of_another_model() {
    let f = folder(r#"bytes("text.txt")"#);
    let text: Vec<u8> = (0..2000u32).map(|i| (i * i % 16) as u8).collect();
    write(f.path(), "text.txt", &text);
    run::succeeds(f.path(), &["train", "m.pta", "--out", "run"]);
    let more = ["train", "m.pta", "--out", "run", "--resume", "--steps", "5", "--set", "embed=12"];
    fails(f.path(), &more, "E0807");
}

#[test]
fn a_folder_that_cannot_be_written() {
    let f = folder(r#"bytes("text.txt")"#);
    write(f.path(), "text.txt", &[1u8; 2000]);
    write(f.path(), "run", b"a file where a folder should be");
    let output = run::partita(f.path(), &["train", "m.pta", "--out", "run"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && (said.contains("E0808") || said.contains("E0805")), "{said}");
}

#[test]
fn a_loss_that_is_not_finite() {
    let f = folder(r#"bytes("text.txt")"#);
    write(f.path(), "text.txt", &[1u8; 2000]);
    let model =
        MODEL.replace("SOURCE", r#"bytes("text.txt")"#).replace("wte(tokens), wte", "log(0 * wte(tokens) - 1), wte");
    write(f.path(), "m.pta", model.as_bytes());
    fails(f.path(), &["train", "m.pta"], "E0810");
    let said = fails(f.path(), &["train", "m.pta", "--debug-nan"], "E0810");
    assert!(said.contains("m.pta:8") || said.contains("log(0"), "the line is named: {said}");
}

#[test]
fn plans_that_cannot_run_here() {
    let f = folder(r#"bytes("text.txt")"#);
    write(f.path(), "text.txt", &[1u8; 2000]);
    let said = fails(f.path(), &["train", "m.pta", "--plan", "tow"], "E0509");
    assert!(said.contains("two"), "{said}");
    fails(f.path(), &["train", "m.pta", "--plan", "two", "--mesh", "dq=1"], "E0501");
}

#[test]
fn dims_that_do_not_divide() {
    let f = folder(r#"bytes("text.txt")"#);
    let model =
        MODEL.replace("embed = 8", "embed = 10, heads = 4, hd = embed / heads").replace("SOURCE", r#"bytes("t")"#);
    let model = model.replace("output logits", "let split = wte(tokens)[embed -> (heads, hd)]\n    output logits");
    write(f.path(), "m.pta", model.as_bytes());
    fails(f.path(), &["check", "m.pta"], "E0305");
}

#[test]
fn wrong_settings() {
    let f = folder(r#"bytes("text.txt")"#);
    write(f.path(), "text.txt", &[1u8; 2000]);
    let output = run::partita(f.path(), &["check", "m.pta", "--set", "embd=4"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("embed"), "{said}");
    let output = run::partita(f.path(), &["train", "m.pta", "--precision", "f8"]);
    assert_eq!(output.status.code(), Some(2));
    let output = run::partita(f.path(), &["explain", "E9999"]);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("E0902"));
}

#[test]
fn the_rest_of_the_validation_data_is_left_out_once() {
    let f = folder("bytes(\"text.txt\")\n    valid bytes(\"text.txt\", from = 0.5) every 1");
    write(f.path(), "text.txt", &[1u8; 2003]);
    let output = run::partita(f.path(), &["train", "m.pta", "--out", "run"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("W0007").count(), 1, "{said}");
}

#[test]
fn data_that_changed_since_the_checkpoint_is_noticed() {
    let f = folder(r#"bytes("text.txt")"#);
    write(f.path(), "text.txt", &[1u8; 2000]);
    run::succeeds(f.path(), &["train", "m.pta", "--out", "run"]);
    write(f.path(), "text.txt", &[2u8; 2400]);
    let output = run::partita(f.path(), &["train", "m.pta", "--out", "run", "--resume", "--steps", "5"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("W0009"), "{said}");
}

#[test]
fn sizes_that_no_machine_has() {
    let f = folder(r#"bytes("text.txt")"#);
    write(f.path(), "text.txt", &[1u8; 2000]);
    // The weights alone are 4 PiB, which the system refuses; then more than 64 bits count.
    let with = |command: &'static str, embed: &'static str, vocab: &'static str, code: &str| {
        fails(f.path(), &[command, "m.pta", "--set", embed, "--set", vocab], code)
    };
    let text = with("train", "embed=33554432", "vocab=33554432", "E0811");
    assert!(text.contains("`wte.table`"), "{text}");
    let text = with("train", "embed=2147483647", "vocab=2147483647", "E0604");
    assert!(text.contains("`wte.table`") && text.contains("larger than any memory"), "{text}");
    let text = with("train", "embed=4", "vocab=2147483648", "E0305");
    assert!(text.contains("at most 2147483647"), "{text}");
    let sample = "sample M {\n    feed tokens[seq] = draw[vocab](logits)\n    text bytes\n}\n";
    write(f.path(), "m.pta", (MODEL.replace("SOURCE", r#"bytes("text.txt")"#) + sample).as_bytes());
    with("sample", "embed=2147483647", "vocab=2147483647", "E0604");
}

/// Its output `huge` has more bytes than there are addresses.
const UNREAD: &str = r#"
dim batch = 2, a = 2147483647, b = 2147483647
optimizer keep(w: [..], g: [..]) -> [..] { w - 0 * g }
model M(x: [batch]) {
    param w: [] = 1
    output huge = x + 0 * iota[a] * iota[b]
    output small = x
    loss mean[batch](square(w * x))
}
train M {
    data { x = csv("x.csv", column = 0) }
    optimizer keep()
    steps 1
}
"#;

#[test]
fn only_what_is_computed_has_to_fit() {
    let f = tempfile::tempdir().expect("a temporary folder");
    write(f.path(), "x.csv", b"1\n2\n");
    let with = |text: &str| write(f.path(), "m.pta", text.as_bytes());
    with(UNREAD);
    for command in ["check", "train", "eval", "memory"] {
        run::succeeds(f.path(), &[command, "m.pta"]);
    }
    run::succeeds(f.path(), &["eval", "m.pta", "--output", "small=small.npy"]);
    fails(f.path(), &["eval", "m.pta", "--output", "huge=huge.npy"], "E0604");
    // Read by the loss, by a metric, by a sampler.
    let all = "max[batch, a, b](huge)";
    for text in [
        UNREAD.replace("    loss ", &format!("    loss 0 * {all}\n    loss ")),
        UNREAD.replace("    loss ", &format!("    metric most = {all}\n    loss ")),
        UNREAD.to_string() + "sample M(x: [batch]) {\n    output most = HUGE\n}\n",
    ] {
        with(&text.replace("HUGE", "max[batch, a, b](x + 0 * iota[a] * iota[b])"));
        for command in ["check", "train"] {
            let said = fails(f.path(), &[command, "m.pta"], "E0604");
            assert!(said.contains("larger than any memory"), "{said}");
        }
    }
    // A sampler computes one sample, not a batch.
    with(
        r#"dim batch = 67108864, seq = 8, vocab = 1073741824
model M(tokens: int[batch, seq]) {
    param w: [] = 1
    output logits = w * (iota[vocab] == tokens)
    loss w * mean[batch, seq](tokens)
}
sample M {
    feed tokens[seq] = draw[vocab](logits)
}
"#,
    );
    run::succeeds(f.path(), &["check", "m.pta"]);
}

/// An array of 8 samples of 3 numbers, with this header.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let head = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((head.len() as u16).to_le_bytes());
    file.extend(head.as_bytes());
    file.extend(data);
    file
}

const TABLE: &str = "
dim batch = 4, p = 3
optimizer plain(w: [..], g: [..]) -> [..] { w - 0.1 * g }
model M(x: [batch, p], y: int[batch]) {
    param w: [p] = 1
    loss mean[batch](square(dot[p](x, w) - y))
}
train M {
    data { x = SOURCE, y = npy(\"y.npy\") }
    optimizer plain()
    steps 2
}
";

#[test]
fn damaged_files_of_every_kind() {
    let f = tempfile::tempdir().expect("a temporary folder");
    write(f.path(), "y.npy", &npy("'|u1'", "(8,)", &[1; 8]));
    std::fs::create_dir(f.path().join("folder")).expect("made");
    let with = |source: &str, bytes: &[u8]| {
        write(f.path(), "file", bytes);
        write(f.path(), "file.gz", bytes);
        write(f.path(), "m.pta", TABLE.replace("SOURCE", source).as_bytes());
    };
    let rows = |odd: &str| "a,b,c\n1,2,3\n".to_string() + odd + "\n" + &"4,5,6\n".repeat(6);
    let numbers = [0u8; 96];
    let idx = |code: u8, data: &[u8]| [&[0, 0, code, 2, 0, 0, 0, 8, 0, 0, 0, 3], data].concat();
    let bad: &[(&str, Vec<u8>, &str, &str)] = &[
        (r#"csv("gone")"#, vec![], "E0801", "gone"),
        (r#"csv("folder")"#, vec![], "E0801", "directory"),
        (r#"npy("folder")"#, vec![], "E0801", "directory"),
        (r#"csv("/dev/null")"#, vec![], "E0804", "no data"),
        (r#"npy("/dev/null")"#, vec![], "E0802", "too short"),
        (r#"csv("file")"#, vec![], "E0804", "no data"),
        (r#"csv("file")"#, b"a,b,c\n".to_vec(), "E0804", "no data"),
        (r#"csv("file")"#, rows("1,2").into(), "E0802", "2 instead of 3 fields in line 3"),
        (r#"csv("file")"#, rows("4,5,6").replace("a,b,c", "1,,3").into(), "E0802", "(column 1) in line 1"),
        (r#"csv("file")"#, rows("4,5,6").replace("a,b,c", "nan,2,3").into(), "E0802", "(column 0) in line 1"),
        (r#"csv("/dev/zero")"#, vec![], "E0801", "without an end"),
        (r#"csv("file")"#, rows("1,nan,2").into(), "E0802", "\"nan\" where a number is needed (column 1) in line 3"),
        (r#"csv("file")"#, rows("1,\"2,5\",2").into(), "E0802", "column 1) in line 3"),
        (r#"csv("file")"#, rows("1,2,\"3").into(), "E0802", "not closed in line 3"),
        (r#"csv("file", column = 1, count = 3)"#, rows("1,2,3").into(), "E0803", "has 3 columns"),
        (r#"csv("file", column = 0, count = 3)"#, rows("1,2,3").replace(',', ";").into(), "E0803", "semicolons"),
        (r#"csv("file", column = 0, count = 2)"#, rows("1,2,3").into(), "E0803", "needs 3"),
        (r#"csv("file", to = 0.2)"#, rows("1,2,3").into(), "E0803", "has 1 sample, `y.npy` has 8"),
        (r#"csv("file.gz")"#, rows("1,2,3").into(), "E0802", "cannot unpack"),
        (r#"npy("file")"#, npy("'|O'", "(8, 3)", &numbers), "E0802", "'|O'"),
        (r#"npy("file")"#, npy("[('a', '<f4')]", "(8, 3)", &numbers), "E0802", "[('a', '<f4')]"),
        (r#"npy("file")"#, npy("'<f4'", "(8, 3)", &numbers[1..]), "E0802", "truncated"),
        (r#"npy("file")"#, npy("'<f4'", "(3, 8)", &numbers), "E0803", "has shape [8]"),
        (r#"npy("file")"#, npy("'<f4'", "()", &numbers), "E0803", "one number"),
        (r#"npy("file")"#, b"PK\x03\x04 and so on".to_vec(), "E0802", "no npy file"),
        (r#"idx("file")"#, idx(7, &numbers), "E0802", "element type 0x07"),
        (r#"idx("file")"#, idx(8, &numbers[..23]), "E0802", "truncated"),
        (r#"idx("file")"#, idx(8, &numbers), "E0802", "more bytes"),
        (r#"idx("file")"#, idx(8, &[])[..7].to_vec(), "E0802", "header"),
    ];
    for (source, bytes, code, words) in bad {
        with(source, bytes);
        let said = fails(f.path(), &["train", "m.pta"], code);
        assert!(said.contains(words), "{source}: {words} is not in\n{said}");
        assert!(said.contains(" = help: "), "{source}: no cure in\n{said}");
    }
    let good: &[(&str, Vec<u8>)] = &[
        (r#"npy("file")"#, npy("'>f4'", "(8, 3)", &numbers)),
        (r#"npy("file")"#, npy("'<f4'", "(8, 3)", &numbers)),
        (r#"idx("file")"#, idx(8, &numbers[..24])),
        (r#"csv("file")"#, rows("\"1\", 2 ,3e-1").into()),
        (r#"csv("file")"#, rows("1,2,3").replace('\n', "\r\n").into()),
        (
            r#"csv("file", column = 1, count = 3)"#,
            b"a,b,c,d\n".iter().chain(&b"\"A, B\nC\",1,2,3\n".repeat(8)).copied().collect(),
        ),
    ];
    for (source, bytes) in good {
        with(source, bytes);
        run::succeeds(f.path(), &["train", "m.pta"]);
    }
}

#[test]
fn files_with_odd_names_and_pipes() {
    use std::os::unix::ffi::OsStrExt;
    let f = folder(r#"bytes("text.txt")"#);
    let text: Vec<u8> = (0..2000u32).map(|i| (i * i % 16) as u8).collect();
    let odd = std::ffi::OsStr::from_bytes(b"t\xff\xfe.txt");
    std::fs::write(f.path().join(odd), &text).expect("written");
    let output = run::command()
        .args(["train", "m.pta", "--data"])
        .arg(odd)
        .current_dir(f.path())
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let made = std::process::Command::new("mkfifo").arg("pipe").current_dir(f.path()).status().expect("mkfifo runs");
    assert!(made.success());
    let pipe = f.path().join("pipe");
    let writer = std::thread::spawn(move || std::fs::write(pipe, text).expect("somebody reads"));
    run::succeeds(f.path(), &["train", "m.pta", "--data", "pipe"]);
    writer.join().expect("written");
    let twice = MODEL.replace("SOURCE", "bytes(\"pipe\", to = 0.5)\n    valid bytes(\"pipe\", from = 0.5)");
    write(f.path(), "m.pta", twice.as_bytes());
    let said = fails(f.path(), &["train", "m.pta"], "E0801");
    assert!(said.contains("is a pipe"), "{said}");
}

#[test]
fn thousands_of_errors_are_counted_and_a_hundred_shown() {
    let f = tempfile::tempdir().expect("a temporary folder");
    let names: Vec<String> = (0..3000).map(|i| format!("    let q{i} = undef{i}d\n")).collect();
    let text = format!("dim batch = 4\nmodel M(x: [batch]) {{\n{}    loss mean[batch](x)\n}}\n", names.concat());
    write(f.path(), "m.pta", text.as_bytes());
    let said = fails(f.path(), &["check", "m.pta"], "E0201");
    assert_eq!(said.matches("error[E0201]").count(), 100);
    assert!(said.contains("2900 more errors\n3000 errors"), "{said}");
    let json = run::partita(f.path(), &["check", "--json", "m.pta"]);
    let lines = String::from_utf8_lossy(&json.stdout).lines().count();
    assert_eq!(lines, 101);
}

#[test]
fn a_long_line_is_shown_around_its_label() {
    let f = tempfile::tempdir().expect("a temporary folder");
    let sum = vec!["x"; 20_000].join(" + ");
    let text = format!("dim batch = 4\nmodel M(x: [batch]) {{\n    loss mean[batch]((wrong)) // {sum}\n}}\n");
    write(f.path(), "m.pta", text.as_bytes());
    let said = fails(f.path(), &["check", "m.pta"], "E0201");
    assert!(said.contains("m.pta:3:23") && said.contains("(wrong)"), "{said}");
    assert!(said.len() < 2000, "{} bytes", said.len());
}

#[test]
fn settings_from_outside_keep_the_kind_of_the_constant() {
    let f = tempfile::tempdir().expect("a temporary folder");
    let text = "const n: int = 3, on = true, name = \"x\"\ndim batch = 4\nmodel M(x: [batch]) {\n    loss mean[batch](x) * n\n}\n";
    write(f.path(), "m.pta", text.as_bytes());
    for set in ["n=1.5", "on=1", "name=3"] {
        fails(f.path(), &["check", "m.pta", "--set", set], "E0309");
    }
    for set in ["train.steps=0", "train.clip=-1", "train.seed=-1"] {
        fails(f.path(), &["check", "m.pta", "--set", set], "E0902");
    }
}

#[test]
fn a_chain_of_constants_without_end() {
    let f = tempfile::tempdir().expect("a temporary folder");
    let chain: Vec<String> = (0..5000).map(|i| format!("const c{i} = c{}\n", i + 1)).collect();
    let text = format!(
        "{}const c5000 = 1\ndim batch = 4\nmodel M(x: [batch]) {{\n    loss mean[batch](x)\n}}\n",
        chain.concat()
    );
    write(f.path(), "m.pta", text.as_bytes());
    fails(f.path(), &["check", "m.pta"], "E0102");
}
