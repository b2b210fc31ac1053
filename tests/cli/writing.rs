//! Results that cannot be written, or would be written over what is needed.

use crate::run::{metric, partita, succeeds};
use crate::{err, fails, out, tiny, write};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `partita` with standard output on a device that is full.
#[cfg(target_os = "linux")]
fn full(folder: &Path, arguments: &[&str]) -> Output {
    crate::run::command()
        .args(arguments)
        .current_dir(folder)
        .stdout(File::options().write(true).open("/dev/full").expect("the device is there"))
        .output()
        .expect("the binary runs")
}

/// Runs a shell's line with `partita` as `$0`.
fn shell(folder: &Path, line: &str) -> Output {
    let shell = Command::new("bash")
        .args(["-c", line, env!("CARGO_BIN_EXE_partita")])
        .env("PARTITA_CACHE", "off")
        .current_dir(folder)
        .output();
    shell.expect("bash runs")
}

#[test]
#[cfg(target_os = "linux")]
fn a_result_that_cannot_be_printed_is_an_error() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta"]);
    for arguments in [
        &["check", "tiny.pta"][..],
        &["check", "tiny.pta", "--json"],
        &["sample", "tiny.pta"],
        &["eval", "tiny.pta", "--json"],
        &["memory", "tiny.pta"],
        &["ir", "tiny.pta"],
        &["explain", "E0301"],
        &["export", "tiny.pta", "-o", "w.safetensors"],
        &["doctor"],
        &["--help"],
    ] {
        let output = full(at, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?} {}", err(&output));
        assert!(arguments[0] == "--help" || err(&output).contains("E0813"), "{arguments:?} {}", err(&output));
    }
    // What was trained is there.
    let output = full(at, &["train", "tiny.pta", "--steps", "3"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(err(&output).contains("warning[E0813]"), "{}", err(&output));
    let output = shell(at, "\"$0\" sample tiny.pta --length 100000000 | head -c 5");
    assert!(
        output.status.success() && err(&output).lines().all(|l| l.starts_with("the model has")),
        "{}",
        err(&output)
    );
}

#[test]
#[cfg(target_os = "linux")]
fn metrics_that_cannot_be_written_do_not_stop_training() {
    let folder = tiny();
    let at = folder.path();
    let output = partita(at, &["train", "tiny.pta", "--metrics", "/dev/full", "--steps", "5"]);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(err(&output).matches("warning[E0813]").count(), 1, "{}", err(&output));
    assert!(out(&output).contains("step 5 of 5"), "{}", out(&output));
    assert!(at.join("runs/Tiny/step-00000005").exists());
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_no_death() {
    let folder = tiny();
    let at = folder.path();
    let output = shell(at, "ulimit -f 20; \"$0\" train tiny.pta --set embed=200 --steps 2");
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(err(&output).contains("E0808"), "{}", err(&output));
    let output = shell(at, "ulimit -f 20; \"$0\" build tiny.pta -o prog");
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(err(&output).contains("E0813") && !at.join("prog").exists(), "{}", err(&output));
}

#[test]
fn what_a_command_reads_is_not_written_over() {
    let folder = tiny();
    let at = folder.path();
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    write(at, "parts.pta", "fn half(x: [..]) -> [..] { x / 2 }\n");
    write(at, "main.pta", format!("use .parts.{{half}}\n{text}").replace("(each)\n}", "(half(each))\n}"));
    std::fs::hard_link(at.join("main.pta"), at.join("link")).expect("a link");
    succeeds(at, &["train", "main.pta", "--steps", "1"]);
    let weights = "runs/Tiny/step-00000001/model.safetensors";
    for arguments in [
        &["build", "main.pta", "-o", "main.pta"][..],
        &["build", "main.pta", "-o", "link"],
        &["build", "main.pta", "-o", "parts.pta"],
        &["build", "main.pta", "-o", "text.txt"],
        &["build", "main.pta", "-o", env!("CARGO_BIN_EXE_partita")],
        &["export", "main.pta", "-o", "main.pta"],
        &["export", "main.pta", "-o", weights],
        &["eval", "main.pta", "--output", "each=text.txt"],
        &["train", "main.pta", "--metrics", "text.txt"],
    ] {
        let said = fails(at, arguments, 1, "E0813");
        assert!(said.contains("would destroy"), "{arguments:?} {said}");
    }
    succeeds(at, &["build", "main.pta", "-o", "prog"]);
    succeeds(at, &["build", "main.pta", "-o", "prog"]);
}

#[test]
fn directories_of_single_files_are_not_made() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--steps", "1"]);
    fails(at, &["eval", "tiny.pta", "--output", "each=new/each.npy"], 1, "E0813");
    fails(at, &["train", "tiny.pta", "--metrics", "new/m.jsonl"], 1, "E0813");
    assert!(at.join("runs/Tiny/step-00000001").exists(), "the run before stays where it is");
    assert!(!at.join("new").exists());
}

#[test]
fn the_number_of_threads_has_a_limit() {
    let folder = tiny();
    let at = folder.path();
    for n in ["1025", "100000", "99999999999999999999", "-1"] {
        let output = partita(at, &["train", "tiny.pta", &format!("--threads={n}")]);
        assert_eq!(output.status.code(), Some(2), "{n} {}", err(&output));
    }
    succeeds(at, &["train", "tiny.pta", "--steps", "1", "--threads", "64"]);
}

const KINDS: &str = "
use nn.{outer}
dim a = 3, batch = 2, b = 2
optimizer keep(w: [..], g: [..]) -> [..] { w - 0 * g }
model M(x: int[batch]) {
    param w: [a] = 2
    let table: int[a, batch, b] = iota[a] * 10 + x[..] + 16777200 + iota[b] * 0
    output ids = table
    output big = x > 2
    output real = outer(w, x)
    output sum = sum[batch](x)
    loss mean[a](square(w))
}
train M {
    data { x = npy(\"x.npy\") }
    optimizer keep()
    steps 1
}
";

/// Header and data of an array.
fn array(path: &Path) -> (String, Vec<u8>) {
    let bytes = std::fs::read(path).expect("the array");
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    (String::from_utf8_lossy(&bytes[10..start]).trim_end().to_string(), bytes[start..].to_vec())
}

#[test]
fn outputs_have_their_types_and_samples_first() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    write(at, "m.pta", KINDS.replace("x[..]", "x"));
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    let header = format!("{:117}\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }");
    file.extend(header.as_bytes());
    file.extend([1, 2, 3, 4]);
    write(at, "x.npy", file);
    succeeds(at, &["train", "m.pta"]);
    for (precision, real) in [("f32", "<f4"), ("f64", "<f8"), ("bf16", "<f4"), ("f16", "<f")] {
        let outputs = ["ids", "big", "real", "sum"].map(|n| format!("{n}={n}.npy"));
        let mut arguments = vec!["eval", "m.pta", "--initial", "--precision", precision];
        outputs.iter().for_each(|o| arguments.extend(["--output", o]));
        let output = partita(at, &arguments);
        assert!(output.status.success(), "{}", err(&output));
        assert!(err(&output).contains("ids.npy: int [batch 4, a 3, b 2]"), "{}", err(&output));
        let (head, data) = array(&at.join("ids.npy"));
        assert!(head.contains("'<i4'") && head.contains("(4,3,2,)"), "{head}");
        let ids: Vec<i32> = data.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let wanted = (1..=4).flat_map(|x| (0..3).flat_map(move |a| [16_777_200 + x + a * 10; 2]));
        assert_eq!(ids, wanted.collect::<Vec<_>>(), "{precision}");
        let (head, data) = array(&at.join("big.npy"));
        assert!(head.contains("'|b1'") && head.contains("(4,)"), "{head}");
        assert_eq!(data, [0, 0, 1, 1]);
        let (head, _) = array(&at.join("real.npy"));
        assert!(head.contains(real) && head.contains("(4,3,)"), "{precision}: {head}");
        // Without a sample dim there is one value for each batch.
        let (head, data) = array(&at.join("sum.npy"));
        assert!(head.contains("'<i4'") && head.contains("(2,)"), "{head}");
        assert_eq!((data[0], data[4]), (3, 7));
    }
}

#[test]
fn figures_do_not_hide_each_other() {
    let folder = tiny();
    let at = folder.path();
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    let with = |lines: &str| write(at, "m.pta", text.replace("    loss mean", &format!("{lines}    loss mean")));
    for name in ["grad_norm", "valid_loss", "tokens_per_s", "step", "skipped", "batches"] {
        with(&format!("    metric {name} = mean[batch, seq](each)\n"));
        let said = fails(at, &["check", "m.pta"], 1, "E0202");
        assert!(said.contains("every run reports"), "{said}");
    }
    for (first, second) in [("metric q", "metric q"), ("loss z", "loss z"), ("loss z", "metric z")] {
        with(&format!("    {first} = mean[batch, seq](each)\n    {second} = 2 * mean[batch, seq](each)\n"));
        let said = fails(at, &["check", "m.pta"], 1, "E0202");
        assert!(said.contains("reported twice"), "{said}");
    }
    // A layer that is called twice has figures of one path; each is reported.
    let twice = text
        .replace("model Tiny", "layer Half() -> [] {\n    metric h = 0.5\n    0.5\n}\n\nmodel Tiny")
        .replace("    let h =", "    let half = Half\n    let both = half() + half()\n    let h =")
        .replace("    loss mean", "    metric two = both\n    loss mean");
    write(at, "m.pta", twice);
    succeeds(at, &["train", "m.pta", "--metrics", "m.jsonl", "--steps", "2"]);
    for key in ["half.h", "half.h.2"] {
        assert_eq!(metric(&at.join("m.jsonl"), key), [0.5, 0.5], "{key}");
    }
}
