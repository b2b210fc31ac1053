//! Data statements of a train item as the runtime's own descriptions, and which inputs they feed.

use super::findings::DataPlaces;
use crate::check::constant::Const;
use crate::diag::Diagnostic;
use crate::elaborate::feed::{Feed, FeedExpr, Source};
use crate::ir::{DimId, GatherMode, Graph, InputId, Op, ValueId};
use crate::program;
use crate::runtime::data::{Bound, DataSpec, Dim, Expr, IdWidth, Input, Source as Read, SourceKind};
use crate::runtime::tokenizer::TokenizerFile;
use crate::source::{SourceMap, Span};
use crate::types::{DType, MapOp};
use std::path::Path;

/// A feed with its paths relative to `base` resolved.
pub fn spec(feed: &Feed, base: &Path) -> Result<DataSpec, Diagnostic> {
    Ok(match feed {
        Feed::Stream(s) => DataSpec::Whole(source(s, base)?),
        Feed::Fields(fields) => {
            let fields: Result<Vec<_>, _> = fields.iter().map(|(n, _, e)| Ok((n.clone(), expr(e, base)?))).collect();
            DataSpec::Fields(fields?)
        }
    })
}

/// Where the program names its data.
pub fn places(feed: &Feed, sources: &SourceMap) -> DataPlaces {
    match feed {
        Feed::Stream(s) => vec![(String::new(), at(s.span, sources))],
        Feed::Fields(fields) => fields.iter().map(|f| (f.0.clone(), at(f.1, sources))).collect(),
    }
}

/// A place in the program as built programs keep it.
pub fn at(span: Span, sources: &SourceMap) -> program::Source {
    let file = sources.file(span.file);
    let (line, column) = file.line_column(span.start);
    program::Source { file: file.name.clone(), line: line as u32, column: column as u32, ..Default::default() }
}

/// Elaboration has checked the options.
fn source(s: &Source, base: &Path) -> Result<Read, Diagnostic> {
    let fraction = |name: &str, or: f64| s.option(name).and_then(|c| c.as_f64()).unwrap_or(or);
    let whole = |name: &str| s.option(name).and_then(|c| c.as_int()).and_then(|n| usize::try_from(n).ok());
    let text = |name: &str| match s.option(name) {
        Some(Const::Str(s)) => Some(s.clone()),
        _ => None,
    };
    let kind = match s.kind.as_str() {
        "bytes" => SourceKind::Bytes,
        "chars" => SourceKind::Chars,
        "tokens" => {
            let width = if text("dtype").as_deref() == Some("u32") { IdWidth::U32 } else { IdWidth::U16 };
            SourceKind::Tokens { width, end: whole("end").and_then(|n| u32::try_from(n).ok()) }
        }
        "text" => {
            let tokenizer = TokenizerFile::at(base.join(text("tokenizer").unwrap_or_default()));
            SourceKind::Text { tokenizer, end: text("end"), split: text("split") }
        }
        "lines" => SourceKind::Lines,
        "npy" => SourceKind::Npy,
        "idx" => SourceKind::Idx,
        "csv" => SourceKind::Csv { column: whole("column"), count: whole("count") },
        other => {
            let message = format!("unknown source of data `{other}`");
            return Err(Diagnostic::error("E0710", message).at(s.span, "here"));
        }
    };
    let (from, to) = (fraction("from", 0.0), fraction("to", 1.0));
    let shuffle = s.option("shuffle").and_then(|c| c.as_bool()).unwrap_or(true);
    Ok(Read { path: base.join(&s.path), kind, from, to, shuffle })
}

fn expr(e: &FeedExpr, base: &Path) -> Result<Expr, Diagnostic> {
    Ok(match e {
        FeedExpr::Source(s) => Expr::Source(source(s, base)?),
        FeedExpr::Constant(c) => match (c, c.as_int()) {
            (Const::Bool(b), _) => Expr::Bool(*b),
            (_, Some(n)) => Expr::Int(n),
            _ => Expr::Float(c.as_f64().unwrap_or(f64::NAN)),
        },
        FeedExpr::Map(op, operands) => {
            Expr::Map(*op, operands.iter().map(|x| expr(x, base)).collect::<Result<_, _>>()?)
        }
    })
}

/// The inputs of a graph as the loader wants them.
pub fn inputs(graph: &Graph, sample: Option<DimId>) -> Vec<Input> {
    graph
        .inputs
        .iter()
        .enumerate()
        .map(|(i, x)| Input {
            name: x.name.clone(),
            dtype: x.dtype,
            dims: x.dims.iter().map(|d| Dim { name: graph.dim(*d).name.clone(), size: graph.size(*d) }).collect(),
            sample: sample.and_then(|s| x.dims.iter().position(|d| *d == s)).unwrap_or(0),
            bound: if x.dtype == DType::I32 { bound(graph, InputId(i as u32)) } else { None },
        })
        .collect()
}

/// The smallest dim that an input's values index, so that a value out of range is found where it is read.
pub fn bound(graph: &Graph, input: InputId) -> Option<Bound> {
    // Values that are the input's, and whether negative ones have been dealt with on the way.
    let mut carried: Vec<(ValueId, bool)> = Vec::new();
    let mut found: Option<Bound> = None;
    for op in &graph.ops {
        let of = |v: &ValueId| carried.iter().find(|(c, _)| c == v).map(|c| c.1);
        match &op.op {
            Op::Input(i) if *i == input => carried.push((op.results[0], false)),
            Op::Reshape { .. } | Op::Broadcast { .. } => {
                if let Some(negative) = of(&op.args[0]) {
                    carried.push((op.results[0], negative));
                }
            }
            Op::Map(MapOp::Max)
                if graph.value(op.results[0]).dtype == DType::I32 && op.args.iter().any(|a| of(a).is_some()) =>
            {
                carried.push((op.results[0], true));
            }
            Op::Gather { dims, mode } => {
                for (dim, index) in dims.iter().zip(&op.args[1..]) {
                    let Some(negative) = of(index) else { continue };
                    let size = graph.size(*dim);
                    if found.as_ref().is_none_or(|b| size < b.size) {
                        let negative = negative || *mode == GatherMode::Zero;
                        found = Some(Bound { dim: graph.dim(*dim).name.clone(), size, negative });
                    }
                }
            }
            _ => {}
        }
    }
    found
}
