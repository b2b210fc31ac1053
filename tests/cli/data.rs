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
}
