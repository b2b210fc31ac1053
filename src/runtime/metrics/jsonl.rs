//! One JSON object a line: `{"step":1,"loss":4.2,"grad_norm":0.9}`; what is not known is left out.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::{Record, cannot_write};
use crate::runtime::error::Result;

/// An open file of records.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// A new file. One that is there and holds something is moved to `PATH.before-1`, or the next free number, which is
    /// told.
    pub fn create(path: &Path) -> Result<(JsonLines, Option<PathBuf>)> {
        let fail = |e: std::io::Error| cannot_write(path, &e);
        let aside = match std::fs::metadata(path) {
            // Devices and pipes stay where they are.
            Ok(there) if there.is_file() && there.len() > 0 => {
                let named = |number: u32| {
                    let mut name = path.as_os_str().to_owned();
                    name.push(format!(".before-{number}"));
                    PathBuf::from(name)
                };
                let aside = (1..).map(named).find(|p| !p.exists());
                aside.map(|to| std::fs::rename(path, &to).map(|()| to)).transpose().map_err(fail)?
            }
            _ => None,
        };
        let file = File::create(path).map_err(fail)?;
        Ok((JsonLines { path: path.to_path_buf(), file }, aside))
    }

    /// Goes on with a file after the records of steps up to `step`; later ones, and a line that was cut short, go.
    pub fn resume(path: &Path, step: u64) -> Result<JsonLines> {
        let fail = |e: std::io::Error| cannot_write(path, &e);
        let before = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(fail(e)),
        };
        let mut kept = String::new();
        for line in before.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
            let record: Option<u64> =
                serde_json::from_str::<serde_json::Value>(line).ok().and_then(|v| v["step"].as_u64());
            if record.is_none_or(|s| s <= step) {
                kept += line;
            }
        }
        if kept != before {
            // whole at every instant, since these are a user's figures
            let mut hidden = path.as_os_str().to_owned();
            hidden.push(".tmp");
            std::fs::write(&hidden, &kept).and_then(|()| std::fs::rename(&hidden, path)).map_err(fail)?;
        }
        let file = File::options().create(true).append(true).open(path).map_err(fail)?;
        Ok(JsonLines { path: path.to_path_buf(), file })
    }

    pub fn write(&mut self, record: &Record) -> Result<()> {
        let mut object = serde_json::Map::new();
        object.insert("step".into(), record.step.into());
        for (name, value) in record.values() {
            // a value that is not finite becomes null
            object.insert(name.into(), value.into());
        }
        let line = format!("{}\n", serde_json::Value::from(object));
        self.file.write_all(line.as_bytes()).map_err(|e| cannot_write(&self.path, &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64) -> Record {
        Record { step, loss: Some(step as f64 / 4.0), ..Record::default() }
    }

    #[test]
    fn absent_values_are_left_out_and_non_finite_ones_null() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.jsonl");
        let mut out = JsonLines::create(&path).unwrap().0;
        out.write(&record(1)).unwrap();
        out.write(&Record {
            step: 2,
            loss: Some(f64::NAN),
            valid_loss: Some(0.1),
            grad_norm: Some(f64::INFINITY),
            tokens_per_s: Some(1e6),
            others: vec![("block.0.load".into(), 3.0)],
        })
        .unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "{\"step\":1,\"loss\":0.25}\n\
             {\"step\":2,\"loss\":null,\"valid_loss\":0.1,\"grad_norm\":null,\"tokens_per_s\":1000000.0,\"block.0.load\":3.0}\n"
        );
    }

    #[test]
    fn resuming_drops_steps_that_will_be_done_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.jsonl");
        let mut out = JsonLines::create(&path).unwrap().0;
        for step in 1..=5 {
            out.write(&record(step)).unwrap();
        }
        let mut text = std::fs::read_to_string(&path).unwrap();
        text += "{\"step\":6,\"lo";
        std::fs::write(&path, text).unwrap();
        let mut out = JsonLines::resume(&path, 3).unwrap();
        out.write(&record(4)).unwrap();
        let steps: Vec<u64> = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["step"].as_u64().unwrap())
            .collect();
        assert_eq!(steps, [1, 2, 3, 4]);
        JsonLines::resume(&dir.path().join("new.jsonl"), 3).unwrap().write(&record(4)).unwrap();
    }

    #[test]
    fn figures_of_a_run_before_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.jsonl");
        std::fs::write(&path, "").unwrap();
        assert_eq!(JsonLines::create(&path).unwrap().1, None);
        for (number, text) in [(1, "a"), (2, "b")] {
            std::fs::write(&path, text).unwrap();
            let aside = JsonLines::create(&path).unwrap().1.unwrap();
            assert_eq!(aside, dir.path().join(format!("m.jsonl.before-{number}")));
            assert_eq!(std::fs::read_to_string(aside).unwrap(), text);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        }
    }

    #[test]
    fn an_unwritable_path_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(JsonLines::create(dir.path()).unwrap_err().code, "E0813");
        assert_eq!(JsonLines::create(&dir.path().join("no/m.jsonl")).unwrap_err().code, "E0813");
    }
}
