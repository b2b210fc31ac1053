//! One safetensors file: written as a stream with checksums, read tensor by tensor without holding the file in memory.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crc32fast::Hasher;
use indexmap::IndexMap;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo as StoredInfo};

use super::tensor::{TensorView, stored_type};

/// As the format's own library: no header is longer.
const HEADER_LIMIT: u64 = 100_000_000;

/// What was written, for the index.
#[derive(Debug)]
pub struct Written {
    pub bytes: u64,
    /// Of the whole file.
    pub crc32: u32,
    /// Of each tensor, in the order given.
    pub tensors: Vec<u32>,
}

/// Writes and syncs a file. Tensors with wide elements come first, so that each is aligned.
pub fn write(path: &Path, tensors: &[TensorView]) -> std::io::Result<Written> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(tensors[i].info.dtype.bytes()));
    let mut at = 0;
    let infos = order.iter().map(|&i| {
        let TensorView { info, bytes } = tensors[i];
        let data_offsets = (at, at + bytes.len());
        at += bytes.len();
        (info.name.clone(), StoredInfo { dtype: stored_type(info.dtype), shape: info.shape.clone(), data_offsets })
    });
    // readers of other libraries ask for this entry
    let about = [("format".to_string(), "pt".to_string())].into_iter().collect();
    let metadata = Metadata::new(Some(about), infos.collect()).map_err(std::io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(8), b' ');

    let mut file = File::create(path)?;
    let mut whole = Hasher::new();
    let mut put = |bytes: &[u8]| {
        whole.update(bytes);
        file.write_all(bytes)
    };
    put(&(header.len() as u64).to_le_bytes())?;
    put(&header)?;
    let mut sums = vec![0; tensors.len()];
    for &i in &order {
        put(tensors[i].bytes)?;
        sums[i] = crc32fast::hash(tensors[i].bytes);
    }
    file.sync_all()?;
    Ok(Written { bytes: 8 + header.len() as u64 + at as u64, crc32: whole.finalize(), tensors: sums })
}

/// An opened file.
#[derive(Debug)]
pub struct SafeFile {
    path: PathBuf,
    file: File,
    /// Checksum of all that precedes the data, which begins at `data`.
    head: u32,
    data: u64,
    /// In the order of the data.
    tensors: IndexMap<String, StoredInfo>,
}

/// Why a file cannot be used.
#[derive(Debug)]
pub enum Fault {
    Unreadable(std::io::Error),
    /// What is wrong with it, to follow its name.
    Damaged(String),
}

impl SafeFile {
    pub fn open(path: &Path) -> Result<SafeFile, Fault> {
        let file = File::open(path).map_err(Fault::Unreadable)?;
        let len = file.metadata().map_err(Fault::Unreadable)?.len();
        let damaged = |why: String| Fault::Damaged(why);
        if len < 8 {
            return Err(damaged(format!("is truncated: it has {len} bytes")));
        }
        let mut size = [0; 8];
        file.read_exact_at(&mut size, 0).map_err(Fault::Unreadable)?;
        let mut head = Hasher::new();
        head.update(&size);
        let size = u64::from_le_bytes(size);
        if size > HEADER_LIMIT || size > len - 8 {
            return Err(damaged("is truncated or no safetensors file".into()));
        }
        let mut header = vec![0; size as usize];
        file.read_exact_at(&mut header, 8).map_err(Fault::Unreadable)?;
        head.update(&header);
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|e| damaged(format!("has a damaged header: {e}")))?;
        let data = 8 + size;
        let needed = (metadata.data_len() as u64).saturating_add(data);
        if needed != len {
            return Err(damaged(format!("has {len} bytes where its header asks for {needed}")));
        }
        let tensors = metadata
            .offset_keys()
            .into_iter()
            .filter_map(|name| metadata.info(&name).cloned().map(|info| (name, info)))
            .collect();
        Ok(SafeFile { path: path.to_path_buf(), file, head: head.finalize(), data, tensors })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn info(&self, name: &str) -> Option<(Dtype, &[usize])> {
        self.tensors.get(name).map(|i| (i.dtype, i.shape.as_slice()))
    }

    /// The checksum of the whole file, given those of its tensors, without reading them.
    pub fn checksum(&self, of_tensor: impl Fn(&str) -> Option<u32>) -> Option<u32> {
        let mut whole = Hasher::new_with_initial_len(self.head, self.data);
        for (name, info) in &self.tensors {
            let len = (info.data_offsets.1 - info.data_offsets.0) as u64;
            whole.combine(&Hasher::new_with_initial_len(of_tensor(name)?, len));
        }
        Some(whole.finalize())
    }

    /// Reads a tensor's bytes.
    pub fn read(&self, name: &str, out: &mut Vec<u8>) -> Result<(), Fault> {
        let info = self.tensors.get(name).ok_or_else(|| Fault::Damaged(format!("lacks tensor `{name}`")))?;
        let (start, end) = info.data_offsets;
        out.resize(end - start, 0);
        self.file.read_exact_at(out, self.data + start as u64).map_err(Fault::Unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tensor::{Tensor, TensorInfo};
    use super::*;
    use crate::types::DType;

    fn tensors() -> Vec<Tensor> {
        vec![
            Tensor { info: TensorInfo::new("b.mask", DType::Bool, [3]), bytes: vec![1, 0, 1] },
            Tensor { info: TensorInfo::new("a.w", DType::F32, [2, 1]), bytes: vec![1, 2, 3, 4, 5, 6, 7, 8] },
            Tensor { info: TensorInfo::new("scalar", DType::F64, []), bytes: vec![9; 8] },
            Tensor { info: TensorInfo::new("none", DType::F32, [0, 4]), bytes: vec![] },
        ]
    }

    fn written() -> (tempfile::TempDir, PathBuf, Written) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let tensors = tensors();
        let views: Vec<_> = tensors.iter().map(Tensor::view).collect();
        let written = write(&path, &views).unwrap();
        (dir, path, written)
    }

    #[test]
    fn what_is_written_is_read_back_here_and_by_the_library() {
        let (_dir, path, written) = written();
        let raw = std::fs::read(&path).unwrap();
        assert_eq!((written.bytes, written.crc32), (raw.len() as u64, crc32fast::hash(&raw)));
        let library = safetensors::SafeTensors::deserialize(&raw).unwrap();
        let file = SafeFile::open(&path).unwrap();
        let mut bytes = vec![];
        for (t, sum) in tensors().iter().zip(&written.tensors) {
            file.read(&t.info.name, &mut bytes).unwrap();
            assert_eq!((&bytes, *sum), (&t.bytes, crc32fast::hash(&t.bytes)));
            assert_eq!(file.info(&t.info.name), Some((stored_type(t.info.dtype), t.info.shape.as_slice())));
            let seen = library.tensor(&t.info.name).unwrap();
            assert_eq!((seen.data(), seen.shape()), (t.bytes.as_slice(), t.info.shape.as_slice()));
        }
        assert_eq!(file.names().collect::<Vec<_>>(), ["scalar", "a.w", "none", "b.mask"]);
    }

    #[test]
    fn every_cut_is_noticed_and_no_mutation_panics() {
        let (_dir, path, _) = written();
        let good = std::fs::read(&path).unwrap();
        for cut in 0..good.len() {
            std::fs::write(&path, &good[..cut]).unwrap();
            assert!(matches!(SafeFile::open(&path), Err(Fault::Damaged(_))), "cut at {cut}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] = [0, 0xff, b'"', b'9', b']'][at % 5];
            std::fs::write(&path, &bad).unwrap();
            let Ok(file) = SafeFile::open(&path) else { continue };
            let mut bytes = vec![];
            for name in file.names() {
                file.read(name, &mut bytes).unwrap();
            }
        }
    }
}
