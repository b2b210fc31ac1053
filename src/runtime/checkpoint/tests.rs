//! Behaviour of saving and loading as a whole: interruption at every stage, failures, damage.

use std::io;
use std::path::Path;

use super::save::{Stage, save_observed};
use super::*;
use crate::runtime::data::CharTable;
use crate::types::DType;

/// Differs by step in every byte of its tensors.
fn snapshot(step: u64) -> Snapshot {
    let tensor = |name: &str, dtype: DType, shape: &[usize]| {
        let info = TensorInfo::new(name, dtype, shape);
        let bytes = (0..info.size().unwrap()).map(|i| (i as u64 * 7 + step) as u8).collect();
        Tensor { info, bytes }
    };
    Snapshot {
        step,
        seed: 1337,
        data: DataPosition { batch: step, samples: 99 },
        chars: Some(CharTable::of("abc\n")),
        extra: serde_json::json!({"loss": 1.5}),
        groups: vec![
            Group {
                name: "model".into(),
                tensors: vec![tensor("wte.table", DType::F32, &[5, 4]), tensor("norm.scale", DType::BF16, &[4])],
            },
            Group { name: "optimizer".into(), tensors: vec![tensor("wte.table.m", DType::F32, &[5, 4])] },
        ],
    }
}

fn infos(group: &Group) -> Vec<TensorInfo> {
    group.tensors.iter().map(|t| t.info.clone()).collect()
}

/// Loads and compares everything.
fn assert_loads(path: &Path, expected: &Snapshot) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let index = &checkpoint.index;
    assert_eq!((index.step, index.seed, index.data), (expected.step, expected.seed, expected.data));
    assert_eq!((&index.chars, &index.extra), (&expected.chars, &expected.extra));
    assert_eq!(index.fingerprint, fingerprint(&infos(&expected.groups[0])));
    assert_eq!(checkpoint.groups(), ["model", "optimizer"]);
    for group in &expected.groups {
        checkpoint.expect(&group.name, &infos(group)).unwrap();
        assert_eq!(checkpoint.read(&group.name).unwrap(), group.tensors);
    }
}

fn steps(dir: &Path) -> Vec<u64> {
    list(dir).unwrap().iter().map(|f| f.step).collect()
}

fn hidden(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|n| n.starts_with(".tmp") || n.starts_with(".old")).count()
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn saved_state_comes_back_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), &snapshot(200), &SaveOptions::default()).unwrap();
    assert_eq!(path.file_name().unwrap(), "step-00000200");
    assert_loads(dir.path(), &snapshot(200));
    assert_loads(&path, &snapshot(200));
    let model = Weights::open(&path).unwrap();
    assert_eq!(model.read("wte.table", DType::F32).unwrap(), snapshot(200).groups[0].tensors[0].bytes);
}

#[test]
fn large_groups_are_cut_into_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), &snapshot(7), &SaveOptions { keep: 3, shard_bytes: 80 }).unwrap();
    assert!(path.join("model-00002-of-00002.safetensors").exists() && path.join("optimizer.safetensors").exists());
    assert_loads(dir.path(), &snapshot(7));
    assert_eq!(Weights::open(&path).unwrap().names().count(), 2);
}

#[test]
fn the_newest_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    for step in [100, 200, 300, 400, 500] {
        save(dir.path(), &snapshot(step), &SaveOptions { keep: 2, ..SaveOptions::default() }).unwrap();
    }
    assert_eq!((steps(dir.path()), hidden(dir.path())), (vec![400, 500], 0));
    save(dir.path(), &snapshot(600), &SaveOptions { keep: 0, ..SaveOptions::default() }).unwrap();
    assert_eq!(steps(dir.path()), [400, 500, 600]);
}

/// Runs a save and gives a copy of the directory, as a killed process would leave it, at every stage.
fn interrupted(before: &[u64], step: u64, mut check: impl FnMut(&Stage, &Path)) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let options = SaveOptions { keep: 2, shard_bytes: 80 };
    for &s in before {
        save(dir.path(), &snapshot(s), &options).unwrap();
    }
    let mut stages = 0;
    save_observed(dir.path(), &snapshot(step), &options, &mut |stage| {
        let copy = tempfile::tempdir().unwrap();
        copy_tree(dir.path(), copy.path());
        // half a file more, as a kill in the middle of the next write leaves
        let temporary = copy.path().join(".tmp-step-00000300");
        if temporary.exists() && stage != Stage::Complete {
            std::fs::write(temporary.join("index.json"), "{\"format\":").unwrap();
        }
        check(&stage, copy.path());
        stages += 1;
        Ok(())
    })
    .unwrap();
    stages
}

#[test]
fn a_kill_at_any_stage_leaves_a_loadable_checkpoint() {
    let stages = interrupted(&[100, 200], 300, |stage, dir| {
        let newest = if matches!(stage, Stage::Renamed | Stage::Removing | Stage::Removed) { 300 } else { 200 };
        assert_loads(dir, &snapshot(newest));
        let all = steps(dir);
        // the next run tidies up and goes on
        drop(Saver::open(dir, SaveOptions::default()).unwrap());
        assert_eq!((steps(dir), hidden(dir)), (all, 0), "{stage:?}");
        save(dir, &snapshot(300), &SaveOptions::default()).unwrap();
        assert_loads(dir, &snapshot(300));
    });
    assert_eq!(stages, 8);
}

#[test]
fn a_kill_while_replacing_a_step_leaves_the_old_or_the_new() {
    let mut replacing = 0;
    interrupted(&[100, 300], 300, |stage, dir| {
        replacing += usize::from(*stage == Stage::Replacing);
        assert_loads(dir, &snapshot(300));
        assert_eq!(steps(dir), [100, 300], "{stage:?}");
        drop(Saver::open(dir, SaveOptions::default()).unwrap());
        assert_eq!((steps(dir), hidden(dir)), (vec![100, 300], 0), "{stage:?}");
        assert_loads(dir, &snapshot(300));
    });
    assert_eq!(replacing, 1);
}

#[test]
fn a_failed_write_leaves_all_older_ones_and_no_rest() {
    for fail_at in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let options = SaveOptions { keep: 2, shard_bytes: 80 };
        for s in [100, 300] {
            save(dir.path(), &snapshot(s), &options).unwrap();
        }
        let mut replacement = snapshot(300);
        replacement.seed = 2;
        let mut stage_number = 0;
        let result = save_observed(dir.path(), &replacement, &options, &mut |_| {
            stage_number += 1;
            match stage_number > fail_at {
                true => Err(io::Error::from(io::ErrorKind::StorageFull)),
                false => Ok(()),
            }
        });
        let e = result.unwrap_err();
        assert_eq!(e.code, "E0808");
        assert!(e.message.contains("no storage space") && e.help.as_ref().unwrap().contains("free space"), "{e}");
        assert_eq!((steps(dir.path()), hidden(dir.path())), (vec![100, 300], 0), "failed at {fail_at}");
        assert_loads(dir.path(), &snapshot(300));
    }
}

#[test]
fn an_unwritable_directory_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_eq!(Saver::open(&file.join("runs"), SaveOptions::default()).unwrap_err().code, "E0808");
    assert_eq!(save(&file, &snapshot(1), &SaveOptions::default()).unwrap_err().code, "E0808");
}

#[test]
fn damage_names_the_file_or_tensor_and_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), &snapshot(100), &SaveOptions::default()).unwrap();
    let path = save(dir.path(), &snapshot(200), &SaveOptions::default()).unwrap();
    let file = path.join("model.safetensors");
    let good = std::fs::read(&file).unwrap();
    let load =
        || Checkpoint::open(&path).and_then(|c| c.read("model").map(|_| ()).and(c.read("optimizer").map(|_| ())));
    load().unwrap();

    let mut bad = good.clone();
    let at = bad.len() - 60;
    bad[at] ^= 1;
    std::fs::write(&file, &bad).unwrap();
    let e = load().unwrap_err();
    assert_eq!(e.code, "E0806");
    assert!(e.message.contains("model.safetensors") && e.message.contains("`wte.table`"), "{e}");
    assert!(e.help.as_ref().unwrap().contains("step-00000100"), "{e}");

    // no change of any byte goes unnoticed
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&file, &bad).unwrap();
        assert_eq!(load().unwrap_err().code, "E0806", "byte {at}");
    }
    for cut in (0..good.len()).step_by(13) {
        std::fs::write(&file, &good[..cut]).unwrap();
        assert_eq!(load().unwrap_err().code, "E0806", "cut at {cut}");
    }
    std::fs::remove_file(&file).unwrap();
    assert!(load().unwrap_err().message.contains("lacks its file `model.safetensors`"));
    std::fs::write(&file, &good).unwrap();
    load().unwrap();
    std::fs::remove_file(path.join("index.json")).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap_err().code, "E0805");
    // found among others it is one that lost its index
    let e = Checkpoint::open(dir.path()).unwrap_err();
    assert!(e.code == "E0806" && e.message.contains("lacks its `index.json`"), "{e}");
}

#[test]
fn another_model_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), &snapshot(100), &SaveOptions::default()).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let mut other = infos(&snapshot(100).groups[0]);
    other.reverse();
    checkpoint.expect("model", &other).unwrap();
    other[1].shape = vec![6, 4];
    other[0].name = "norm2.scale".into();
    let e = checkpoint.expect("model", &other).unwrap_err();
    assert_eq!(e.code, "E0807");
    assert!(e.message.contains("`norm2.scale` (bf16[4]) is not in the checkpoint"), "{e}");
    assert_eq!(
        e.notes,
        [
            "`wte.table` is f32[5, 4] in the checkpoint and f32[6, 4] in the model",
            "`norm.scale` (bf16[4]) is not in the model"
        ]
    );
    let many: Vec<_> = (0..9).map(|i| TensorInfo::new(format!("x{i}"), DType::F32, [1])).collect();
    assert_eq!(checkpoint.expect("model", &many).unwrap_err().notes.last().unwrap(), "and 6 further differences");
}

#[test]
fn nothing_to_load_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Checkpoint::open(dir.path()).unwrap_err().message.contains("has no checkpoint in it"));
    let e = Checkpoint::open(&dir.path().join("no")).unwrap_err();
    assert!(e.code == "E0805" && e.message.contains("does not exist"), "{e}");
}

#[test]
fn the_saver_works_in_the_background_and_gives_buffers_back() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs/deep");
    let mut saver = Saver::open(&runs, SaveOptions::default()).unwrap();
    assert!(saver.save(snapshot(10)).is_none() && saver.recycle().is_none());
    let first = saver.save(snapshot(20)).unwrap().unwrap();
    assert_eq!((first.step, first.path), (10, runs.join("step-00000010")));
    assert_eq!(saver.recycle().unwrap(), snapshot(10));
    assert_eq!(saver.finish().unwrap().unwrap().step, 20);
    assert!(saver.finish().is_none() && saver.poll().is_none());
    saver.save(snapshot(30));
    let e = Saver::open(&runs, SaveOptions::default()).unwrap_err();
    assert!(e.code == "E0808" && e.message.contains("another run"), "{e}");
    // what was started is completed
    drop(saver);
    assert_loads(&runs, &snapshot(30));
    Saver::open(&runs, SaveOptions::default()).unwrap();
}

#[test]
fn the_saver_reports_failures_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut saver = Saver::open(dir.path(), SaveOptions::default()).unwrap();
    let mut bad = snapshot(10);
    bad.groups[0].name = "no/such".into();
    saver.save(bad);
    assert_eq!(saver.save(snapshot(20)).unwrap().unwrap_err().code, "E0808");
    let outcome = loop {
        if let Some(outcome) = saver.poll() {
            break outcome;
        }
        std::thread::yield_now();
    };
    assert_eq!(outcome.unwrap().step, 20);
    assert_eq!((steps(dir.path()), hidden(dir.path())), (vec![20], 0));
}

#[test]
fn old_runs_are_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    for step in [100, 200, 300] {
        save(dir.path(), &snapshot(step), &SaveOptions::default()).unwrap();
    }
    let mut saver = Saver::open(dir.path(), SaveOptions::default()).unwrap();
    let aside = saver.set_aside(Some(200), &[]).unwrap().unwrap();
    assert_eq!((steps(dir.path()), steps(&aside)), (vec![100, 200], vec![300]));
    let aside = saver.set_aside(None, &[]).unwrap().unwrap();
    assert_eq!((steps(dir.path()), steps(&aside)), (vec![], vec![100, 200]));
    assert_loads(&aside, &snapshot(200));
    assert!(saver.set_aside(None, &[]).unwrap().is_none());
}
