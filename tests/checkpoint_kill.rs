//! A process that saves without pause is killed at random instants; what it leaves must always load.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use partita::runtime::checkpoint::{
    Checkpoint, DataPosition, Group, SaveOptions, Saver, Snapshot, Tensor, TensorInfo, list,
};
use partita::types::DType;

const CHILD: &str = "PARTITA_TEST_SAVE_INTO";

fn snapshot(step: u64) -> Snapshot {
    let tensor = Tensor { info: TensorInfo::new("w", DType::F32, [50_000]), bytes: vec![step as u8; 200_000] };
    Snapshot {
        step,
        seed: 1,
        data: DataPosition { batch: step, samples: 1 },
        chars: None,
        extra: serde_json::Value::Null,
        groups: vec![Group { name: "model".into(), tensors: vec![tensor] }],
    }
}

/// Never returns.
fn save_forever(dir: &Path) {
    let mut saver = Saver::open(dir, SaveOptions { keep: 2, ..SaveOptions::default() }).unwrap();
    let first = list(dir).unwrap().last().map_or(0, |f| f.step);
    for step in first.. {
        // the step of the run before is written again: replaced
        saver.save(snapshot(step)).transpose().unwrap();
    }
}

#[test]
fn a_killed_run_always_leaves_its_last_checkpoints() {
    if let Ok(dir) = std::env::var(CHILD) {
        return save_forever(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut newest = None;
    for round in 0..12u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["a_killed_run_always_leaves_its_last_checkpoints", "--exact"])
            .env(CHILD, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // let it come to a first save, then cut it short at varying instants
        let waited = std::time::Instant::now();
        while list(dir.path()).unwrap().last().map(|f| f.step) == newest && waited.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_micros(round * 1370 % 9000));
        child.kill().unwrap();
        child.wait().unwrap();

        let found = list(dir.path()).unwrap();
        assert!((1..=3).contains(&found.len()), "{found:?}");
        assert!(found.last().map(|f| f.step) > newest, "round {round} saved nothing");
        newest = found.last().map(|f| f.step);
        for f in found {
            let tensors = Checkpoint::open(&f.path).unwrap().read("model").unwrap();
            assert_eq!(tensors, snapshot(f.step).groups[0].tensors);
        }
    }
}
