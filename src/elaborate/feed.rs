//! What a train item feeds: sources of data and the elementwise expressions over them.

use super::Elab;
use super::builtin::pointwise;
use super::elementwise::map_of;
use super::train::TrainFacts;
use crate::check::constant::Const;
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::{DimId, Input};
use crate::source::Span;
use crate::syntax::ast::{self, CallArg, DataSource, Expr, ExprKind, UnaryOp};
use crate::syntax::visit::{Node, walk};
use crate::types::{MapOp, counted};

/// Fields of a stream of text or tokens, matched to inputs by name.
pub const STREAM_FIELDS: [&str; 4] = ["tokens", "targets", "document", "position"];

#[derive(Clone, Debug)]
pub enum Feed {
    /// `bytes("corpus.txt")`
    Stream(Source),
    /// `{ image = npy("x.npy") / 255 }`
    Fields(Vec<(String, Span, FeedExpr)>),
}

#[derive(Clone, Debug)]
pub struct Valid {
    pub feed: Feed,
    pub every: Option<u64>,
    pub batches: Option<u64>,
}

/// A call such as `npy("x.npy")` or `chars("text.txt", to = 0.9)`.
#[derive(Clone, Debug)]
pub struct Source {
    /// `bytes chars tokens text lines npy idx csv`
    pub kind: String,
    /// As written; relative to the main file.
    pub path: String,
    pub options: Vec<(String, Const)>,
    pub span: Span,
}

/// An elementwise expression over sources.
#[derive(Clone, Debug)]
pub enum FeedExpr {
    Source(Source),
    /// A number or a bool.
    Constant(Const),
    Map(MapOp, Vec<FeedExpr>),
}

impl Source {
    pub fn option(&self, name: &str) -> Option<&Const> {
        self.options.iter().find(|(n, _)| n == name).map(|(_, c)| c)
    }
}

impl Feed {
    /// Names of the inputs that it can feed.
    pub fn names(&self) -> Vec<String> {
        match self {
            Feed::Stream(_) => STREAM_FIELDS.iter().map(|s| s.to_string()).collect(),
            Feed::Fields(f) => f.iter().map(|x| x.0.clone()).collect(),
        }
    }
}

/// A source's kind with the options that it takes.
const SOURCES: &[(&str, &[&str])] = &[
    ("bytes", &["from", "to", "shuffle"]),
    ("chars", &["from", "to", "shuffle"]),
    ("tokens", &["from", "to", "shuffle", "dtype", "end"]),
    ("text", &["from", "to", "shuffle", "tokenizer", "end", "split"]),
    ("lines", &["from", "to", "shuffle"]),
    ("npy", &["from", "to", "shuffle"]),
    ("idx", &["from", "to", "shuffle"]),
    ("csv", &["from", "to", "shuffle", "column", "count"]),
];

const STREAMS: [&str; 5] = ["bytes", "chars", "tokens", "text", "lines"];

/// Whether an expression holds a source, or a call with a path, which is meant as one.
fn reads(e: &Expr) -> bool {
    let mut found = false;
    walk(e, &mut |node| {
        let Node::Expr(e) = node else { return };
        let ExprKind::Call { callee, args } = &*e.kind else { return };
        let source = matches!(&*callee.kind, ExprKind::Name(n) if SOURCES.iter().any(|s| s.0 == n));
        let path = args.iter().any(|a| a.name.is_none() && matches!(&*a.value.kind, ExprKind::Str(_)));
        found |= source || path;
    });
    found
}

impl<'a> Elab<'a> {
    pub(super) fn feed(&mut self, source: &'a DataSource) -> Option<Feed> {
        match source {
            DataSource::Stream(e) => {
                let s = self.source(e)?;
                if !STREAMS.contains(&s.kind.as_str()) {
                    self.error(
                        Diagnostic::error("E0710", format!("`{}` is one array: say which input it feeds", s.kind))
                            .at(e.span, "no input is named")
                            .help(format!("write `data {{ input = {}(..) }}`", s.kind)),
                    );
                    return None;
                }
                Some(Feed::Stream(s))
            }
            DataSource::Fields(fields) => {
                let mut out: Vec<(String, Span, FeedExpr)> = Vec::new();
                let mut good = true;
                for (n, e) in fields {
                    if let Some(first) = out.iter().find(|x| x.0 == n.text) {
                        let first = first.1;
                        self.error(
                            Diagnostic::error("E0701", format!("input `{}` is fed twice", n.text))
                                .at(n.span, "a second time")
                                .and(first, "first here")
                                .help("keep one"),
                        );
                    }
                    match self.feed_expr(e) {
                        Some(x) => out.push((n.text.clone(), n.span, x)),
                        None => good = false,
                    }
                }
                good.then_some(Feed::Fields(out))
            }
        }
    }

    fn feed_expr(&mut self, e: &'a Expr) -> Option<FeedExpr> {
        if !reads(e) {
            return self.feed_constant(e);
        }
        let map = |op, operands| Some(FeedExpr::Map(op, operands));
        match &*e.kind {
            ExprKind::Paren(x) => self.feed_expr(x),
            ExprKind::Unary { op, value } => {
                let x = self.feed_expr(value)?;
                map(if *op == UnaryOp::Neg { MapOp::Neg } else { MapOp::Not }, vec![x])
            }
            ExprKind::Binary { op, left, right, .. } => {
                let (a, b) = (self.feed_expr(left)?, self.feed_expr(right)?);
                map(map_of(*op), vec![a, b])
            }
            ExprKind::Call { callee, args } => {
                if let ExprKind::Type(t) = &*callee.kind
                    && let Some(t) = self.element(*t)
                    && let [arg] = &args[..]
                {
                    let x = self.feed_expr(&arg.value)?;
                    return map(MapOp::Cast(t), vec![x]);
                }
                let ExprKind::Name(name) = &*callee.kind else { return self.not_of_data(e) };
                let op = match name.as_str() {
                    "clamp" => None,
                    _ => match pointwise(name) {
                        Some(op) => Some(op),
                        None => return self.source(e).map(FeedExpr::Source),
                    },
                };
                let arity = op.map_or(3, MapOp::arity);
                if args.len() != arity || args.iter().any(|a| a.name.is_some()) {
                    self.error(
                        Diagnostic::error("E0314", format!("`{name}` takes {} here", counted(arity, "value")))
                            .at(e.span, "other arguments")
                            .help("give them by position"),
                    );
                    return None;
                }
                let mut operands = Vec::new();
                for a in args {
                    operands.push(self.feed_expr(&a.value)?);
                }
                match (op, &operands[..]) {
                    (None, [x, lo, hi]) => {
                        let top = FeedExpr::Map(MapOp::Min, vec![x.clone(), hi.clone()]);
                        map(MapOp::Max, vec![top, lo.clone()])
                    }
                    (op, _) => map(op?, operands),
                }
            }
            _ => self.not_of_data(e),
        }
    }

    fn feed_constant(&mut self, e: &'a Expr) -> Option<FeedExpr> {
        match self.constant(e)? {
            c @ (Const::Bool(_) | Const::Exact(..) | Const::Float(_)) => Some(FeedExpr::Constant(c)),
            _ => self.not_of_data(e),
        }
    }

    fn not_of_data<T>(&mut self, e: &'a Expr) -> Option<T> {
        self.error(
            Diagnostic::error("E0710", "data expressions are elementwise over sources and constants")
                .at(e.span, "neither a source, nor a constant, nor elementwise")
                .help(
                    "write operators, elementwise functions such as `where(c, a, b)`, and conversions such as `int(x)`",
                ),
        );
        None
    }

    fn source(&mut self, e: &'a Expr) -> Option<Source> {
        let ExprKind::Call { callee, args } = &*e.kind else { return self.not_a_source(e) };
        let ExprKind::Name(kind) = &*callee.kind else { return self.not_a_source(e) };
        let Some((_, known)) = SOURCES.iter().find(|s| s.0 == kind) else {
            let near = did_you_mean(kind, SOURCES.iter().map(|s| s.0));
            let d = Diagnostic::error("E0201", format!("unknown source of data `{kind}`")).at(callee.span, "unknown");
            self.error(match near {
                Some(n) => d.help(format!("did you mean `{n}`?")),
                None => d.help("sources are bytes, chars, tokens, text, lines, npy, idx, csv"),
            });
            return None;
        };
        let mut path: Option<String> = None;
        let mut options = Vec::new();
        for a in args {
            self.source_arg(kind, known, a, &mut path, &mut options)?;
        }
        let Some(path) = path else {
            self.error(
                Diagnostic::error("E0710", format!("`{kind}` needs a path"))
                    .at(e.span, "no path")
                    .help(format!("write `{kind}(\"file\")`")),
            );
            return None;
        };
        let source = Source { kind: kind.clone(), path, options, span: e.span };
        self.options_fit(&source).then_some(source)
    }

    /// What options say together.
    fn options_fit(&mut self, s: &Source) -> bool {
        let number = |name: &str, or: f64| s.option(name).and_then(Const::as_f64).unwrap_or(or);
        let (from, to) = (number("from", 0.0), number("to", 1.0));
        let d = |message: String| Diagnostic::error("E0710", message).at(s.span, "here");
        let wrong = if from >= to {
            d(format!("the part of the data from {from} to {to} is empty")).help("`from` is less than `to`")
        } else if s.kind == "text" && s.option("tokenizer").is_none() {
            d("`text` needs a tokenizer".into())
                .help("write `text(\"corpus.txt\", tokenizer = \"tokenizer.json\")`, or read `bytes` or `chars`")
        } else if s.option("split").is_some() && s.option("end").is_none() {
            d("documents that are split apart need an end".into())
                .help("name the token that stands between them: `end = \"<|endoftext|>\"`")
        } else {
            return true;
        };
        self.error(wrong);
        false
    }

    fn source_arg(
        &mut self,
        kind: &str,
        known: &[&str],
        a: &'a CallArg,
        path: &mut Option<String>,
        options: &mut Vec<(String, Const)>,
    ) -> Option<()> {
        let name = match &a.name {
            None => {
                if reads(&a.value) {
                    return self.not_of_data(&a.value);
                }
                match self.constant(&a.value)? {
                    Const::Str(s) if path.is_none() => *path = Some(s),
                    other => {
                        self.error(
                            Diagnostic::error("E0710", format!("the path of `{kind}` is a string"))
                                .at(a.value.span, format!("this is {}", other.kind()))
                                .help("options are written by name"),
                        );
                        return None;
                    }
                }
                return Some(());
            }
            Some(n) => n,
        };
        if !known.contains(&name.text.as_str()) {
            let d = Diagnostic::error("E0201", format!("`{kind}` has no option `{}`", name.text))
                .at(name.span, "unknown option");
            self.error(match did_you_mean(&name.text, known.iter().copied()) {
                Some(n) => d.help(format!("did you mean `{n}`?")),
                None => d.help(format!("its options: {}", known.join(", "))),
            });
            return None;
        }
        // The element type of a token file is a word of its own: `dtype = u32`.
        let value = match &*a.value.kind {
            ExprKind::Name(n) if name.text == "dtype" => Const::Str(n.clone()),
            _ => self.constant(&a.value)?,
        };
        let fits = match name.text.as_str() {
            "from" | "to" => value.as_f64().is_some_and(|x| (0.0..=1.0).contains(&x)),
            "shuffle" => value.as_bool().is_some(),
            "column" => value.as_int().is_some_and(|n| n >= 0),
            "count" => value.as_int().is_some_and(|n| n > 0),
            "dtype" => matches!(&value, Const::Str(s) if s == "u16" || s == "u32"),
            "end" if kind == "tokens" => value.as_int().is_some_and(|n| (0..1 << 31).contains(&n)),
            "end" | "split" => matches!(&value, Const::Str(s) if !s.is_empty()),
            _ => matches!(value, Const::Str(_)),
        };
        if !fits {
            let want = match name.text.as_str() {
                "from" | "to" => "a fraction from 0.0 to 1.0",
                "shuffle" => "true or false",
                "column" => "a whole number from 0",
                "count" => "a positive whole number",
                "dtype" => "u16 or u32",
                "end" if kind == "tokens" => "an id: a whole number from 0",
                "end" => "a token of the tokenizer, as a string",
                "split" => "the text between documents, as a string",
                _ => "a string",
            };
            self.error(
                Diagnostic::error("E0710", format!("option `{}` of `{kind}` is {want}", name.text))
                    .at(a.value.span, format!("this is {value}"))
                    .help(format!("write {want}")),
            );
            return None;
        }
        options.push((name.text.clone(), value));
        Some(())
    }

    fn not_a_source<T>(&mut self, e: &'a Expr) -> Option<T> {
        self.error(
            Diagnostic::error("E0710", "a source of data is needed here")
                .at(e.span, "not one")
                .help("write `bytes(\"file\")`, or `{ input = npy(\"file\") }`"),
        );
        None
    }

    /// Columns of a table whose number is written are as many as the input has elements a sample.
    fn columns_fit(&mut self, input: &Input, sample: DimId, from: &FeedExpr) {
        let source = match from {
            FeedExpr::Map(_, operands) => return operands.iter().for_each(|x| self.columns_fit(input, sample, x)),
            FeedExpr::Source(source) if source.kind == "csv" => source,
            FeedExpr::Source(_) | FeedExpr::Constant(_) => return,
        };
        let count = source.option("count").and_then(Const::as_int);
        let Some(given) = count.or(source.option("column").map(|_| 1)) else { return };
        let dims: Vec<DimId> = input.dims.iter().copied().filter(|d| *d != sample).collect();
        let needed = self.b.graph.elements(&dims) as i64;
        if given == needed {
            return;
        }
        let plural = if given == 1 { "column" } else { "columns" };
        let shown = self.show_sizes(&dims);
        let mut d =
            Diagnostic::error("E0803", format!("{given} {plural} for input `{}`, which needs {needed}", input.name))
                .at(source.span, format!("{given} {plural} a sample"));
        if let Some(span) = input.span {
            d = d.and(
                span,
                if dims.is_empty() { "one element a sample".to_string() } else { format!("a sample has {shown}") },
            );
        }
        self.error(d.help(match (needed, count) {
            (1, _) => "leave out `count`: one column".to_string(),
            (n, _) => format!("write `count = {n}`"),
        }));
    }

    /// Every input is fed exactly once, and nothing else is.
    pub(super) fn check_feeds(&mut self, facts: &TrainFacts, item: &'a ast::Train) {
        let feeds = [facts.data.as_ref(), facts.valid.as_ref().map(|v| &v.feed)];
        for feed in feeds.into_iter().flatten() {
            let names = feed.names();
            for i in self.b.graph.inputs.clone() {
                if !names.contains(&i.name) {
                    let mut d = Diagnostic::error("E0701", format!("input `{}` is not fed", i.name))
                        .at(item.head, "its data lacks this input");
                    if let Some(s) = i.span {
                        d = d.and(s, "the input");
                    }
                    self.error(
                        d.help(match feed {
                            Feed::Stream(_) => "a stream has the fields tokens, targets, document, position; \
                                            others need `data { name = .. }` or a default"
                                .to_string(),
                            Feed::Fields(_) => {
                                format!("add `{} = ..` to the data, or give the input a default", i.name)
                            }
                        }),
                    );
                }
            }
            if let Feed::Fields(fields) = feed {
                for (n, span, from) in fields {
                    if let (Some(i), Some(sample)) =
                        (self.b.graph.inputs.iter().position(|i| i.name == *n), facts.sample_dim)
                    {
                        self.columns_fit(&self.b.graph.inputs[i].clone(), sample, from);
                    }
                    if !self.b.graph.inputs.iter().any(|i| i.name == *n) {
                        let inputs: Vec<String> = self.b.graph.inputs.iter().map(|i| i.name.clone()).collect();
                        let d = Diagnostic::error("E0201", format!("the model has no input `{n}`"))
                            .at(*span, "unknown input");
                        self.error(match did_you_mean(n, inputs.iter().map(String::as_str)) {
                            Some(x) => d.help(format!("did you mean `{x}`?")),
                            None if inputs.is_empty() => {
                                d.help("the model has no inputs: declare one, `model M(x: [batch, embed])`")
                            }
                            None => d.help(format!("its inputs: {}", inputs.join(", "))),
                        });
                    }
                }
            }
        }
    }
}
