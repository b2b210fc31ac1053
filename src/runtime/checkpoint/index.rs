//! `index.json` of a checkpoint: what it holds, for which model, and the checksums of its files.

use serde::{Deserialize, Serialize};

use super::tensor::TensorInfo;
use crate::runtime::data::CharTable;

pub const FORMAT: &str = "partita-checkpoint";
pub const VERSION: u32 = 1;
pub const NAME: &str = "index.json";
/// Before the checksum of the text that precedes it, which ends the file.
const TAIL: &str = ",\n  \"crc32\": \"";

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Index {
    pub format: String,
    pub version: u32,
    /// Steps done.
    pub step: u64,
    pub seed: u64,
    pub data: DataPosition,
    /// Of the tensors of group `model`.
    pub fingerprint: String,
    /// The numbering of characters, for models of `chars`.
    pub chars: Option<CharTable>,
    /// Whatever else the caller keeps. Floats in it may lose their last bit; state belongs into tensors.
    pub extra: serde_json::Value,
    pub files: Vec<FileEntry>,
    /// Per group in the caller's order.
    pub tensors: Vec<TensorEntry>,
}

/// Where training stands in its data: all that follows is a function of it and the seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DataPosition {
    /// The next batch to use.
    pub batch: u64,
    /// Samples of an epoch: another number on resuming means that the data changed.
    pub samples: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileEntry {
    pub name: String,
    pub bytes: u64,
    pub crc32: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TensorEntry {
    pub group: String,
    #[serde(flatten)]
    pub info: TensorInfo,
    /// Which of `files`.
    pub file: usize,
    pub crc32: u32,
}

impl Index {
    /// As JSON with its own checksum.
    pub fn to_text(&self) -> serde_json::Result<String> {
        let text = serde_json::to_string_pretty(self)?;
        let body = text.strip_suffix("\n}").unwrap_or(&text);
        Ok(format!("{body}{TAIL}{:08x}\"\n}}\n", crc32fast::hash(body.as_bytes())))
    }

    /// Or what is wrong, to follow the file's name.
    pub fn parse(text: &str) -> Result<Index, String> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|e| format!("is damaged: {e}"))?;
        if value["format"] != FORMAT {
            return Err("is no index of a checkpoint".into());
        }
        match value["version"].as_u64() {
            Some(v) if v == u64::from(VERSION) => {}
            Some(v) => return Err(format!("has version {v}, this program reads version {VERSION}")),
            None => return Err("is damaged: it has no version".into()),
        }
        let sum = text.rfind(TAIL).map(|i| (crc32fast::hash(&text.as_bytes()[..i]), &text[i + TAIL.len()..]));
        match sum {
            Some((crc, tail)) if tail == format!("{crc:08x}\"\n}}\n") => {}
            _ => return Err("is damaged: its checksum differs".into()),
        }
        let index: Index = serde_json::from_value(value).map_err(|e| format!("is damaged: {e}"))?;
        let plain = |name: &str| !name.is_empty() && !name.contains(['/', '\\']) && !name.starts_with('.');
        if !index.files.iter().all(|f| plain(&f.name)) {
            return Err("names files outside its directory".into());
        }
        if index.tensors.iter().any(|t| t.file >= index.files.len() || t.info.size().is_none()) {
            return Err("is damaged: a tensor's entry is impossible".into());
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DType;

    fn index() -> Index {
        Index {
            format: FORMAT.into(),
            version: VERSION,
            step: 200,
            seed: u64::MAX,
            data: DataPosition { batch: 200, samples: 77 },
            fingerprint: "00".into(),
            chars: Some(CharTable::of("a\nß")),
            extra: serde_json::json!({"best": 1.234567890123456e-7, "note": ",\n  \"crc32\": \""}),
            files: vec![FileEntry { name: "model.safetensors".into(), bytes: 5, crc32: 7 }],
            tensors: vec![TensorEntry {
                group: "model".into(),
                info: TensorInfo::new("w", DType::BF16, [2, 3]),
                file: 0,
                crc32: 9,
            }],
        }
    }

    #[test]
    fn round_trip_and_every_change_is_noticed() {
        let text = index().to_text().unwrap();
        assert_eq!(Index::parse(&text).unwrap(), index());
        assert!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["crc32"].is_string());
        for (at, c) in text.char_indices() {
            let with = if c == '1' { '2' } else { '1' };
            let bad: String = text.char_indices().map(|(i, c)| if i == at { with } else { c }).collect();
            assert!(Index::parse(&bad).is_err(), "{at}: {c:?}");
            assert!(Index::parse(&text[..at]).is_err());
        }
    }

    #[test]
    fn other_versions_formats_and_paths_are_refused() {
        let text = Index { version: 2, ..index() }.to_text().unwrap();
        assert!(Index::parse(&text).unwrap_err().contains("version 2"));
        assert!(Index::parse("{}").unwrap_err().contains("no index"));
        for name in ["../x", "/etc/passwd", "..", ""] {
            let mut bad = index();
            bad.files[0].name = name.into();
            assert!(Index::parse(&bad.to_text().unwrap()).unwrap_err().contains("outside"));
        }
        let mut bad = index();
        bad.tensors[0].file = 1;
        assert!(Index::parse(&bad.to_text().unwrap()).is_err());
        bad = index();
        bad.tensors[0].info.shape = vec![usize::MAX, 2];
        assert!(Index::parse(&bad.to_text().unwrap()).is_err());
    }
}
