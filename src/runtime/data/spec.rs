//! What a train item says about its data, as plain values: sources, elementwise expressions over them, and the model
//! inputs to be fed. All of it is serialisable, so that a built program carries it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::runtime::tokenizer::TokenizerFile;
use crate::types::{DType, MapOp};

/// One file and how to read it. Paths are opened as they are: the caller resolves relative ones.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Source {
    pub path: PathBuf,
    pub kind: SourceKind,
    /// Fractions of the samples (arrays, lines) or elements (streams): `0.0 <= from < to <= 1.0`.
    pub from: f64,
    pub to: f64,
    /// In training only; a pass over validation data is always in order.
    pub shuffle: bool,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum SourceKind {
    /// Stream of bytes.
    Bytes,
    /// Stream of characters, numbered in code point order of the distinct ones of the whole file.
    Chars,
    /// Stream of little-endian ids without a header. After an id equal to `end` a new document begins.
    Tokens {
        width: IdWidth,
        end: Option<u32>,
    },
    /// Stream of the ids that a `tokenizer.json` makes of a text file. The token `end` closes every document; documents
    /// are what stands between the texts `split`, or the whole file.
    Text {
        tokenizer: TokenizerFile,
        end: Option<String>,
        split: Option<String>,
    },
    /// Each line one sample.
    Lines,
    Npy,
    Idx,
    /// All columns, or `count` from `column` on; a column without a count is a scalar a sample.
    Csv {
        column: Option<usize>,
        count: Option<usize>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IdWidth {
    U16,
    U32,
}

impl Source {
    /// The whole file, shuffled in training.
    pub fn new(path: impl Into<PathBuf>, kind: SourceKind) -> Source {
        Source { path: path.into(), kind, from: 0.0, to: 1.0, shuffle: true }
    }
}

impl SourceKind {
    /// Has an array per sample, rather than the fields of a stream.
    pub fn is_array(&self) -> bool {
        matches!(self, SourceKind::Npy | SourceKind::Idx | SourceKind::Csv { .. })
    }

    pub fn name(&self) -> &'static str {
        match self {
            SourceKind::Bytes => "bytes",
            SourceKind::Chars => "chars",
            SourceKind::Tokens { .. } => "tokens",
            SourceKind::Text { .. } => "text",
            SourceKind::Lines => "lines",
            SourceKind::Npy => "npy",
            SourceKind::Idx => "idx",
            SourceKind::Csv { .. } => "csv",
        }
    }
}

/// An elementwise expression over arrays, computed in f64 and rounded once at the end (a cast rounds where it stands).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Expr {
    Source(Source),
    /// Written without a point or exponent.
    Int(i64),
    Float(f64),
    Bool(bool),
    /// As many operands as the function takes. `Div` of ints, too, gives a float.
    Map(MapOp, Vec<Expr>),
}

/// The `data` or `valid` statement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum DataSpec {
    /// One source: a stream feeds inputs by field name; an array feeds the only input.
    Whole(Source),
    /// The block form, in file order.
    Fields(Vec<(String, Expr)>),
}

/// The fields that streams offer.
pub const STREAM_FIELDS: [&str; 4] = ["tokens", "targets", "document", "position"];

impl DataSpec {
    /// The files of its sources, in order of writing.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.files().into_iter().map(|f| f.1).collect()
    }

    /// The same, each with the input that reads it; a `Whole` one has no name.
    pub fn files(&self) -> Vec<(String, PathBuf)> {
        let of = |name: &str, e: &Expr| {
            let (mut e, mut sources) = (e.clone(), vec![]);
            e.collect_sources(&mut sources);
            sources.iter().map(|s| (name.to_string(), s.path.clone())).collect::<Vec<_>>()
        };
        match self {
            DataSpec::Whole(source) => vec![(String::new(), source.path.clone())],
            DataSpec::Fields(fields) => fields.iter().flat_map(|(name, e)| of(name, e)).collect(),
        }
    }

    /// Every source, in order of writing: for resolving relative paths, and for putting other files in their places.
    pub fn sources_mut(&mut self) -> Vec<&mut Source> {
        let mut out = vec![];
        match self {
            DataSpec::Whole(source) => out.push(source),
            DataSpec::Fields(fields) => fields.iter_mut().for_each(|(_, e)| e.collect_sources(&mut out)),
        }
        out
    }
}

impl Source {
    /// The tokenizer of a text.
    pub fn tokenizer_mut(&mut self) -> Option<&mut TokenizerFile> {
        match &mut self.kind {
            SourceKind::Text { tokenizer, .. } => Some(tokenizer),
            _ => None,
        }
    }
}

impl Expr {
    fn collect_sources<'a>(&'a mut self, out: &mut Vec<&'a mut Source>) {
        match self {
            Expr::Source(source) => out.push(source),
            Expr::Int(_) | Expr::Float(_) | Expr::Bool(_) => {}
            Expr::Map(_, operands) => operands.iter_mut().for_each(|e| e.collect_sources(out)),
        }
    }
}

/// A model input to be fed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Input {
    pub name: String,
    pub dtype: DType,
    /// In declared order, which is the order of axes in data files and in the buffers of a `Batch`.
    pub dims: Vec<Dim>,
    /// Which of `dims` counts samples.
    pub sample: usize,
    /// For ids: what they must stay below.
    pub bound: Option<Bound>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dim {
    pub name: String,
    pub size: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bound {
    /// The dim that ids index, for messages.
    pub dim: String,
    pub size: usize,
    /// Negative ids are meant (targets that a loss ignores).
    pub negative: bool,
}

impl Input {
    /// As it would be written, for messages: `image: f32[batch = 8, row = 28]`.
    pub fn describe(&self) -> String {
        let dims: Vec<String> = self.dims.iter().map(|d| format!("{} = {}", d.name, d.size)).collect();
        format!("{}: {}[{}]", self.name, self.dtype.name(), dims.join(", "))
    }

    /// Elements of one sample.
    pub fn sample_len(&self) -> usize {
        self.dims.iter().enumerate().filter(|(i, _)| *i != self.sample).map(|(_, d)| d.size).product()
    }
}
