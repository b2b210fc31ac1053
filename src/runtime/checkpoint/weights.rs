//! Weights of other programs: safetensors files, single or with Hugging Face's index over several, read on demand; and
//! export to them.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use safetensors::Dtype;

use super::load::{list, unreadable};
use super::safefile::{Fault, SafeFile, write};
use super::save::{shard_index, shards, sync_directory, write_synced};
use super::tensor::{TensorView, convert};
use crate::runtime::data::reason;
use crate::runtime::error::{Result, RuntimeError};
use crate::types::DType;

/// Opened weight files.
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    files: Vec<SafeFile>,
    /// Which file holds a tensor.
    tensors: IndexMap<String, usize>,
}

impl Weights {
    /// `path`: a `.safetensors` file, an index (`.safetensors.index.json`), a directory with `model.safetensors` or its
    /// index in it, such as a checkpoint, or a run, whose newest checkpoint is meant.
    pub fn open(path: &Path) -> Result<Weights> {
        let within = |dir: &Path| {
            let names = ["model.safetensors", "model.safetensors.index.json"];
            names.into_iter().map(|name| dir.join(name)).find(|p| p.exists())
        };
        let file = if path.is_dir() {
            let found = match within(path) {
                Some(file) => Some(file),
                None => list(path)?.pop().and_then(|newest| within(&newest.path)),
            };
            found.ok_or_else(|| {
                let message = format!("`{}` has neither a checkpoint nor `model.safetensors` in it", path.display());
                RuntimeError::new("E0805", message)
                    .place(path.display())
                    .help("name the directory of a run or of one of its `step-..`, or a file of weights")
            })?
        } else {
            path.to_path_buf()
        };
        if file.extension().is_some_and(|e| e == "json") {
            return Weights::open_index(&file);
        }
        let one = open_file(&file)?;
        let tensors = one.names().map(|name| (name.to_string(), 0)).collect();
        Ok(Weights { path: file, files: vec![one], tensors })
    }

    fn open_index(path: &Path) -> Result<Weights> {
        let damaged = |why: String| damaged(path, why);
        let bytes = std::fs::read(path).map_err(|e| unreadable(path, &e))?;
        let json: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|e| damaged(format!("is no JSON: {e}")))?;
        let map = json["weight_map"].as_object().ok_or_else(|| damaged("has no `weight_map`".into()))?;
        let dir = path.parent().unwrap_or(Path::new(""));
        let mut names: IndexMap<&str, usize> = IndexMap::new();
        let mut files = vec![];
        let mut tensors = IndexMap::new();
        for (tensor, file) in map {
            let file = file.as_str().ok_or_else(|| damaged(format!("has no file name for `{tensor}`")))?;
            if file.contains(['/', '\\']) {
                return Err(damaged(format!("names a file outside its directory: `{file}`")));
            }
            let number = match names.get(file) {
                Some(&number) => number,
                None => {
                    files.push(open_file(&dir.join(file))?);
                    names.insert(file, files.len() - 1);
                    files.len() - 1
                }
            };
            if files[number].info(tensor).is_none() {
                return Err(damaged(format!("names tensor `{tensor}`, which `{file}` lacks")));
            }
            tensors.insert(tensor.clone(), number);
        }
        Ok(Weights { path: path.to_path_buf(), files, tensors })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Stored type and shape.
    pub fn info(&self, name: &str) -> Option<(Dtype, &[usize])> {
        self.files[*self.tensors.get(name)?].info(name)
    }

    /// The values as the type wanted, row-major in the file's order of axes.
    pub fn read(&self, name: &str, to: DType) -> Result<Vec<u8>> {
        let missing = || {
            RuntimeError::new("E0805", format!("`{}` has no tensor `{name}`", self.path.display()))
                .place(self.path.display())
                .help("check the names in the `weights` item")
        };
        let file = &self.files[*self.tensors.get(name).ok_or_else(missing)?];
        let (dtype, _) = file.info(name).ok_or_else(missing)?;
        let mut bytes = vec![];
        file.read(name, &mut bytes).map_err(|f| fault(file.path(), f))?;
        convert(&bytes, dtype, to).ok_or_else(|| {
            RuntimeError::new("E0805", format!("tensor `{name}` of `{}` has type {dtype}", self.path.display()))
                .place(self.path.display())
                .help("convert it to a type of plain numbers, such as BF16")
        })
    }
}

/// Writes tensors to `path`, or beside it to several files with an index if there are more than `shard_bytes`. What was
/// there before stays until the new files are complete.
pub fn export(path: &Path, tensors: &[TensorView], shard_bytes: usize) -> Result<Vec<PathBuf>> {
    let fail = |e: std::io::Error| {
        RuntimeError::new("E0813", format!("cannot write `{}`: {}", path.display(), reason(&e)))
            .place(path.display())
            .help("see that the directory is there, writable, and has space")
    };
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = name.strip_suffix(".safetensors").unwrap_or(&name);
    let parts = shards(stem, tensors, shard_bytes);
    let single = parts.len() == 1;
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let hidden = |name: &str| dir.join(format!(".tmp-{name}"));
    let mut renames = vec![];
    let result = (|| {
        for (part, tensors) in parts {
            let part = if single { name.clone() } else { part };
            renames.push((hidden(&part), dir.join(&part)));
            write(&hidden(&part), tensors)?;
        }
        if let Some(map) = shard_index(stem, tensors, shard_bytes)? {
            let index = format!("{stem}.safetensors.index.json");
            renames.push((hidden(&index), dir.join(&index)));
            write_synced(&hidden(&index), &map)?;
        }
        for (from, to) in &renames {
            std::fs::rename(from, to)?;
        }
        sync_directory(dir)
    })();
    if let Err(e) = result {
        for (from, _) in &renames {
            let _ = std::fs::remove_file(from);
        }
        return Err(fail(e));
    }
    Ok(renames.into_iter().map(|(_, to)| to).collect())
}

fn open_file(path: &Path) -> Result<SafeFile> {
    SafeFile::open(path).map_err(|f| fault(path, f))
}

fn fault(path: &Path, fault: Fault) -> RuntimeError {
    match fault {
        Fault::Unreadable(e) => unreadable(path, &e),
        Fault::Damaged(why) => damaged(path, why),
    }
}

fn damaged(path: &Path, why: String) -> RuntimeError {
    RuntimeError::new("E0806", format!("`{}` {why}", path.display()))
        .place(path.display())
        .help("fetch or convert the file again")
}

#[cfg(test)]
mod tests {
    use super::super::tensor::{Tensor, TensorInfo};
    use super::*;

    fn tensors() -> Vec<Tensor> {
        (0..4u8)
            .map(|i| Tensor {
                info: TensorInfo::new(format!("t{i}"), DType::BF16, [4]),
                bytes: vec![i, 0x3f, i, 0x3f, i, 0x3f, i, 0x3f],
            })
            .collect()
    }

    #[test]
    fn single_and_sharded_files_read_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let owned = tensors();
        let views: Vec<_> = owned.iter().map(Tensor::view).collect();
        let one = export(&dir.path().join("model.safetensors"), &views, 1 << 20).unwrap();
        assert_eq!(one.len(), 1);
        let sharded = dir.path().join("s");
        std::fs::create_dir(&sharded).unwrap();
        let many = export(&sharded.join("model.safetensors"), &views, 20).unwrap();
        let names: Vec<_> = many.iter().map(|p| p.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(
            names,
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
        );
        for path in [dir.path().to_path_buf(), one[0].clone(), sharded.clone(), many[2].clone()] {
            let weights = Weights::open(&path).unwrap();
            assert_eq!(weights.names().collect::<Vec<_>>(), ["t0", "t1", "t2", "t3"]);
            assert_eq!(weights.info("t2"), Some((Dtype::BF16, &[4][..])));
            assert_eq!(weights.read("t2", DType::BF16).unwrap(), owned[2].bytes);
            assert_eq!(weights.read("t0", DType::F32).unwrap(), 0.5f32.to_le_bytes().repeat(4));
            assert_eq!(weights.read("t9", DType::F32).unwrap_err().code, "E0805");
        }
        std::fs::remove_file(&many[1]).unwrap();
        assert_eq!(Weights::open(&sharded).unwrap_err().code, "E0805");
    }

    #[test]
    fn a_failed_export_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.safetensors");
        std::fs::write(&path, "before").unwrap();
        // a directory in the way of the hidden file
        std::fs::create_dir(dir.path().join(".tmp-w.safetensors")).unwrap();
        let owned = tensors();
        let views: Vec<_> = owned.iter().map(Tensor::view).collect();
        assert_eq!(export(&path, &views, 1 << 20).unwrap_err().code, "E0813");
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
    }

    #[test]
    fn bad_indexes_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors.index.json");
        let owned = tensors();
        let views: Vec<_> = owned.iter().map(Tensor::view).collect();
        export(&dir.path().join("x.safetensors"), &views, 1 << 20).unwrap();
        for (text, code) in [
            ("", "E0806"),
            ("{}", "E0806"),
            (r#"{"weight_map": {"t0": 3}}"#, "E0806"),
            (r#"{"weight_map": {"t0": "../x.safetensors"}}"#, "E0806"),
            (r#"{"weight_map": {"t7": "x.safetensors"}}"#, "E0806"),
            (r#"{"weight_map": {"t0": "y.safetensors"}}"#, "E0805"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Weights::open(&path).unwrap_err().code, code, "{text}");
        }
        std::fs::write(&path, r#"{"weight_map": {"t0": "x.safetensors"}}"#).unwrap();
        assert_eq!(Weights::open(dir.path()).unwrap().names().count(), 1);
    }
}
