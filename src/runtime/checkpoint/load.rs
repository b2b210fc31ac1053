//! Finding, checking and reading checkpoints.

use std::path::{Path, PathBuf};

use super::index::{Index, NAME, TensorEntry};
use super::safefile::{Fault, SafeFile};
use super::save::{REPLACED, directory_name};
use super::tensor::{Tensor, TensorInfo, stored_type};
use crate::runtime::data::reason;
use crate::runtime::error::{Result, RuntimeError};

/// A checkpoint in a directory of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub step: u64,
    pub path: PathBuf,
}

/// The checkpoints of a directory, oldest first; none if there is no such directory. A checkpoint whose replacement was
/// cut short counts.
pub fn list(dir: &Path) -> Result<Vec<Found>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(unreadable(dir, &e)),
    };
    let mut found = std::collections::BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(|e| unreadable(dir, &e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let (name, replaced) = match name.strip_prefix(REPLACED) {
            Some(name) => (name, true),
            None => (name.as_str(), false),
        };
        let step = name.strip_prefix("step-").and_then(|digits| digits.parse::<u64>().ok());
        let Some(step) = step.filter(|&step| directory_name(step) == name) else { continue };
        if !replaced || !found.contains_key(&step) {
            found.insert(step, entry.path());
        }
    }
    Ok(found.into_iter().map(|(step, path)| Found { step, path }).collect())
}

/// The directories of a run in which older checkpoints are, the newest last.
fn aside(run: &Path) -> Vec<PathBuf> {
    let numbered = (1u32..).map(|i| run.join(aside_name(i))).take_while(|p| p.is_dir());
    let mut all: Vec<PathBuf> = numbered.filter(|p| list(p).is_ok_and(|found| !found.is_empty())).collect();
    let hidden = all.len().saturating_sub(SHOWN_ASIDE);
    all.drain(..hidden);
    all
}

/// Directories of older checkpoints that a message names.
const SHOWN_ASIDE: usize = 3;

/// The name of the directory that older checkpoints are moved to.
pub(super) fn aside_name(number: u32) -> String {
    format!("before-{number}")
}

/// The checkpoint that a path means: itself, or the newest in it.
pub fn locate(path: &Path) -> Result<PathBuf> {
    if path.join(NAME).is_file() {
        return Ok(path.to_path_buf());
    }
    if let Some(newest) = list(path)?.pop() {
        return Ok(newest.path);
    }
    let what = if path.exists() { "has no checkpoint in it" } else { "does not exist" };
    Err(RuntimeError::new("E0805", format!("`{}` {what}", path.display()))
        .place(path.display())
        .help("train first, or name the directory of a run or of one of its `step-..`"))
}

/// An opened checkpoint: its index is read, its tensors are not.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    pub index: Index,
}

impl Checkpoint {
    /// Opens what `locate` finds.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        let path = locate(path)?;
        let file = path.join(NAME);
        let bytes = std::fs::read(&file).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => corrupted(&path, "lacks its `index.json`"),
            _ => unreadable(&file, &e),
        })?;
        let index = std::str::from_utf8(&bytes)
            .map_err(|_| "is damaged: it is no text".to_string())
            .and_then(Index::parse)
            .map_err(|why| corrupted(&path, format!("file `{NAME}` {why}")))?;
        Ok(Checkpoint { path, index })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Groups in order of writing.
    pub fn groups(&self) -> Vec<&str> {
        let mut names: Vec<&str> = vec![];
        for tensor in &self.index.tensors {
            if !names.contains(&tensor.group.as_str()) {
                names.push(&tensor.group);
            }
        }
        names
    }

    /// The tensors of a group, in the saver's order.
    pub fn tensors(&self, group: &str) -> Vec<&TensorInfo> {
        self.index.tensors.iter().filter(|t| t.group == group).map(|t| &t.info).collect()
    }

    /// Compares a group with what a program has; order does not matter.
    pub fn expect(&self, group: &str, expected: &[TensorInfo]) -> Result<()> {
        let has = self.tensors(group);
        let mut differences = vec![];
        for want in expected {
            match has.iter().find(|t| t.name == want.name) {
                None => differences.push(format!("`{}` ({}) is not in the checkpoint", want.name, want.describe())),
                Some(t) if *t != want => differences.push(format!(
                    "`{}` is {} in the checkpoint and {} in the model",
                    want.name,
                    t.describe(),
                    want.describe()
                )),
                Some(_) => {}
            }
        }
        for t in has {
            if !expected.iter().any(|want| want.name == t.name) {
                differences.push(format!("`{}` ({}) is not in the model", t.name, t.describe()));
            }
        }
        let Some(first) = differences.first() else { return Ok(()) };
        const SHOWN: usize = 5;
        let mut error = self.another_model(format!(" ({group}): {first}"));
        for difference in differences.iter().take(SHOWN).skip(1) {
            error = error.note(difference);
        }
        if differences.len() > SHOWN {
            error = error.note(format!("and {} further differences", differences.len() - SHOWN));
        }
        Err(error)
    }

    /// The error of a checkpoint that does not fit; `why` follows what is said of it. Runs that were moved aside may be the
    /// ones that are meant.
    pub fn another_model(&self, why: impl std::fmt::Display) -> RuntimeError {
        let error =
            RuntimeError::new("E0807", format!("checkpoint `{}` belongs to another model{why}", self.path.display()))
                .place(self.path.display());
        let aside: Vec<String> =
            self.path.parent().map_or(vec![], aside).iter().map(|p| format!("`{}`", p.display())).collect();
        let cure =
            "use the model and settings that it was trained with, or another run: `--checkpoint DIR`, `--out DIR`";
        match &aside[..] {
            [] => error.help(format!("{cure} to train")),
            _ => error.help(format!("{cure} to train; older ones are in {}", aside.join(", "))),
        }
    }

    /// Reads a group; every byte is checked against the checksums.
    pub fn read(&self, group: &str) -> Result<Vec<Tensor>> {
        let mut out = vec![];
        self.read_each(group, &mut |info, bytes| {
            out.push(Tensor { info: info.clone(), bytes: bytes.to_vec() });
            Ok(())
        })?;
        Ok(out)
    }

    /// As `read`, one tensor at a time in a buffer that is reused.
    pub fn read_each(&self, group: &str, sink: &mut dyn FnMut(&TensorInfo, &[u8]) -> Result<()>) -> Result<()> {
        let mut open: Option<(usize, SafeFile)> = None;
        let mut bytes = vec![];
        for entry in self.index.tensors.iter().filter(|t| t.group == group) {
            let name = &entry.info.name;
            let listed = &self.index.files[entry.file];
            let fault = |fault| self.fault(&listed.name, fault);
            let file = match open.take() {
                Some((number, file)) if number == entry.file => file,
                _ => {
                    let path = self.path.join(&listed.name);
                    let file = SafeFile::open(&path).map_err(fault)?;
                    let len = std::fs::metadata(&path).map_err(|e| fault(Fault::Unreadable(e)))?.len();
                    if len != listed.bytes {
                        let why = format!("has {len} bytes instead of {}", listed.bytes);
                        return Err(fault(Fault::Damaged(why)));
                    }
                    let crc_of = |name: &str| {
                        let here = |t: &&TensorEntry| t.file == entry.file && t.info.name == name;
                        self.index.tensors.iter().find(here).map(|t| t.crc32)
                    };
                    if file.checksum(crc_of) != Some(listed.crc32) {
                        return Err(fault(Fault::Damaged("is damaged: its header has another checksum".into())));
                    }
                    file
                }
            };
            if file.info(name) != Some((stored_type(entry.info.dtype), &entry.info.shape)) {
                let why = format!("does not hold tensor `{name}` as the index says");
                return Err(fault(Fault::Damaged(why)));
            }
            file.read(name, &mut bytes).map_err(fault)?;
            if crc32fast::hash(&bytes) != entry.crc32 {
                let why = format!("is damaged: tensor `{name}` has another checksum");
                return Err(fault(Fault::Damaged(why)));
            }
            sink(&entry.info, &bytes)?;
            open = Some((entry.file, file));
        }
        Ok(())
    }

    fn fault(&self, file: &str, fault: Fault) -> RuntimeError {
        match fault {
            Fault::Unreadable(e) if e.kind() != std::io::ErrorKind::NotFound => unreadable(&self.path.join(file), &e),
            Fault::Unreadable(_) => corrupted(&self.path, format!("lacks its file `{file}`")),
            Fault::Damaged(why) => corrupted(&self.path, format!("file `{file}` {why}")),
        }
    }
}

pub(super) fn unreadable(path: &Path, e: &std::io::Error) -> RuntimeError {
    RuntimeError::new("E0805", format!("cannot read `{}`: {}", path.display(), reason(e)))
        .place(path.display())
        .help("check the path and its permissions")
}

/// Names the checkpoint before it, if there is one.
fn corrupted(path: &Path, why: impl std::fmt::Display) -> RuntimeError {
    let error = RuntimeError::new("E0806", format!("checkpoint `{}` is corrupted: {why}", path.display()))
        .place(path.display());
    let before = path
        .parent()
        .and_then(|dir| list(dir).ok())
        .and_then(|all| all.into_iter().rev().find(|f| f.path.as_path() < path));
    match before {
        Some(found) => {
            error.help(format!("remove that directory to use the one before it, `{}`", found.path.display()))
        }
        None => error.help("restore it from a copy"),
    }
}
