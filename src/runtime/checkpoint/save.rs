//! Writing one checkpoint so that at every instant the directory holds only complete ones: all files go to a hidden
//! directory, are synced, and appear by one rename.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::index::{DataPosition, FORMAT, FileEntry, Index, NAME, TensorEntry, VERSION};
use super::load::{Found, list};
use super::safefile;
use super::tensor::{Tensor, TensorView, fingerprint};
use crate::runtime::data::CharTable;
use crate::runtime::error::{Result, RuntimeError};

/// Names of what is not, or no longer, a checkpoint.
pub(super) const TEMPORARY: &str = ".tmp-";
/// A checkpoint that is being replaced by one of the same step.
pub(super) const REPLACED: &str = ".old-";

/// All that is needed to go on bit for bit.
#[derive(Clone, PartialEq, Debug)]
pub struct Snapshot {
    /// Steps done.
    pub step: u64,
    pub seed: u64,
    pub data: DataPosition,
    pub chars: Option<CharTable>,
    pub extra: serde_json::Value,
    /// `model` (parameters and model state), `optimizer`, and others such as averages; each becomes a file.
    pub groups: Vec<Group>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    pub name: String,
    pub tensors: Vec<Tensor>,
}

/// How to save.
#[derive(Clone, Copy, Debug)]
pub struct SaveOptions {
    /// How many checkpoints stay; 0 keeps all.
    pub keep: usize,
    /// A group of more bytes is cut into several files.
    pub shard_bytes: usize,
}

impl Default for SaveOptions {
    fn default() -> SaveOptions {
        SaveOptions { keep: 3, shard_bytes: 5_000_000_000 }
    }
}

/// How far a save has come; tests stop or fail it at each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Created,
    Wrote(String),
    Complete,
    Replacing,
    Renamed,
    Removing,
    Removed,
}

/// The directory of the checkpoint that is the best by its validation loss.
pub const BEST: &str = "best";

/// The name of a step's directory; sorts by step.
pub fn directory_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Writes a checkpoint under `dir` and removes the oldest beyond `keep`.
pub fn save(dir: &Path, snapshot: &Snapshot, options: &SaveOptions) -> Result<PathBuf> {
    save_observed(dir, snapshot, options, &mut |_| Ok(()))
}

pub(super) fn save_observed(
    dir: &Path,
    snapshot: &Snapshot,
    options: &SaveOptions,
    observe: &mut dyn FnMut(Stage) -> io::Result<()>,
) -> Result<PathBuf> {
    save_as(dir, directory_name(snapshot.step), snapshot, options, observe)
}

/// Writes a checkpoint under a name that may be taken, by one that is replaced.
pub(super) fn save_as(
    dir: &Path,
    name: String,
    snapshot: &Snapshot,
    options: &SaveOptions,
    observe: &mut dyn FnMut(Stage) -> io::Result<()>,
) -> Result<PathBuf> {
    let temporary = dir.join(format!("{TEMPORARY}{name}"));
    let target = dir.join(&name);
    let written =
        write_files(&temporary, snapshot, options, observe).and_then(|()| publish(dir, &temporary, &target, observe));
    if let Err(e) = written {
        // best effort: what stays is hidden and removed by the next run
        let _ = std::fs::remove_dir_all(&temporary);
        return Err(cannot_write(&target, &e));
    }
    prune(dir, options.keep, observe).map_err(|e| {
        RuntimeError::new("E0808", format!("cannot remove an old checkpoint in `{}`: {e}", dir.display()))
            .place(dir.display())
            .note(format!("the new one, `{name}`, is complete"))
            .help("remove it by hand, or see that the directory is writable")
    })?;
    Ok(target)
}

pub(super) fn cannot_write(target: &Path, e: &io::Error) -> RuntimeError {
    let error = RuntimeError::new(
        "E0808",
        format!("cannot write checkpoint `{}`: {}", target.display(), crate::runtime::data::reason(e)),
    )
    .place(target.display())
    .note("checkpoints written before are untouched");
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            error.help("free space on the disk, or choose another with `--out DIR`")
        }
        _ => error.help("see that the directory is writable, or choose another with `--out DIR`"),
    }
}

fn write_files(
    temporary: &Path,
    snapshot: &Snapshot,
    options: &SaveOptions,
    observe: &mut dyn FnMut(Stage) -> io::Result<()>,
) -> io::Result<()> {
    if temporary.exists() {
        std::fs::remove_dir_all(temporary)?;
    }
    std::fs::create_dir_all(temporary)?;
    observe(Stage::Created)?;
    let mut index = Index {
        format: FORMAT.into(),
        version: VERSION,
        step: snapshot.step,
        seed: snapshot.seed,
        data: snapshot.data,
        fingerprint: fingerprint(
            snapshot.groups.iter().filter(|g| g.name == "model").flat_map(|g| &g.tensors).map(|t| &t.info),
        ),
        chars: snapshot.chars.clone(),
        extra: snapshot.extra.clone(),
        files: vec![],
        tensors: vec![],
    };
    for group in &snapshot.groups {
        let views: Vec<TensorView> = group.tensors.iter().map(Tensor::view).collect();
        for (name, tensors) in shards(&group.name, &views, options.shard_bytes) {
            let written = safefile::write(&temporary.join(&name), tensors)?;
            for (tensor, &crc32) in tensors.iter().zip(&written.tensors) {
                let info = tensor.info.clone();
                index.tensors.push(TensorEntry { group: group.name.clone(), info, file: index.files.len(), crc32 });
            }
            index.files.push(FileEntry { name: name.clone(), bytes: written.bytes, crc32: written.crc32 });
            observe(Stage::Wrote(name))?;
        }
        if let Some(map) = shard_index(&group.name, &views, options.shard_bytes)? {
            write_synced(&temporary.join(format!("{}.safetensors.index.json", group.name)), &map)?;
        }
    }
    write_synced(&temporary.join(NAME), index.to_text()?.as_bytes())?;
    sync_directory(temporary)?;
    observe(Stage::Complete)
}

fn publish(
    dir: &Path,
    temporary: &Path,
    target: &Path,
    observe: &mut dyn FnMut(Stage) -> io::Result<()>,
) -> io::Result<()> {
    let replaced = dir.join(format!("{REPLACED}{}", target.file_name().unwrap_or_default().to_string_lossy()));
    if target.exists() {
        if replaced.exists() {
            std::fs::remove_dir_all(&replaced)?;
        }
        std::fs::rename(target, &replaced)?;
        if let Err(e) = observe(Stage::Replacing).and_then(|()| std::fs::rename(temporary, target)) {
            std::fs::rename(&replaced, target)?;
            return Err(e);
        }
    } else {
        std::fs::rename(temporary, target)?;
    }
    sync_directory(dir)?;
    observe(Stage::Renamed)?;
    if replaced.exists() {
        std::fs::remove_dir_all(&replaced)?;
    }
    Ok(())
}

/// Removes the oldest; each is first hidden by a rename, so that no half of one is ever taken for a checkpoint.
fn prune(dir: &Path, keep: usize, observe: &mut dyn FnMut(Stage) -> io::Result<()>) -> io::Result<()> {
    if keep == 0 {
        return Ok(());
    }
    let all = list(dir).map_err(io::Error::other)?;
    let extra = all.len().saturating_sub(keep);
    for Found { step, path } in all.into_iter().take(extra) {
        let hidden = dir.join(format!("{TEMPORARY}remove-{}", directory_name(step)));
        std::fs::rename(&path, &hidden)?;
        observe(Stage::Removing)?;
        std::fs::remove_dir_all(&hidden)?;
        observe(Stage::Removed)?;
    }
    Ok(())
}

/// Cuts tensors into files of at most `limit` bytes (or one tensor), with the names that Hugging Face's libraries use.
pub(super) fn shards<'a, 'b>(
    group: &str,
    tensors: &'b [TensorView<'a>],
    limit: usize,
) -> Vec<(String, &'b [TensorView<'a>])> {
    let mut ends = vec![];
    let mut bytes = 0usize;
    for (i, tensor) in tensors.iter().enumerate() {
        if i > 0 && bytes.saturating_add(tensor.bytes.len()) > limit {
            ends.push(i);
            bytes = 0;
        }
        bytes += tensor.bytes.len();
    }
    ends.push(tensors.len());
    let count = ends.len();
    let mut start = 0;
    ends.into_iter()
        .enumerate()
        .map(|(i, end)| {
            let name = match count {
                1 => format!("{group}.safetensors"),
                _ => format!("{group}-{:05}-of-{count:05}.safetensors", i + 1),
            };
            let part = &tensors[start..end];
            start = end;
            (name, part)
        })
        .collect()
}

/// The map from tensors to files that goes with several files.
pub(super) fn shard_index(group: &str, tensors: &[TensorView], limit: usize) -> io::Result<Option<Vec<u8>>> {
    let shards = shards(group, tensors, limit);
    if shards.len() == 1 {
        return Ok(None);
    }
    let total: usize = tensors.iter().map(|t| t.bytes.len()).sum();
    let map: serde_json::Map<String, serde_json::Value> = shards
        .iter()
        .flat_map(|(file, tensors)| tensors.iter().map(|t| (t.info.name.clone(), file.clone().into())))
        .collect();
    let json = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map });
    Ok(Some(serde_json::to_vec_pretty(&json)?))
}

pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
