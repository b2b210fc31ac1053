//! What a train item feeds: sources of data and the elementwise expressions over them.

use super::Elab;
use super::train::TrainFacts;
use crate::check::constant::Const;
use crate::diag::{Diagnostic, did_you_mean};
use crate::source::Span;
use crate::syntax::ast::{self, BinaryOp, CallArg, DataSource, Expr, ExprKind, UnaryOp};
use crate::types::DType;

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
    Number(f64),
    Negate(Box<FeedExpr>),
    Binary(BinaryOp, Box<FeedExpr>, Box<FeedExpr>),
    Cast(DType, Box<FeedExpr>),
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
    ("tokens", &["from", "to", "shuffle", "dtype"]),
    ("text", &["from", "to", "shuffle", "tokenizer"]),
    ("lines", &["from", "to", "shuffle"]),
    ("npy", &["from", "to", "shuffle"]),
    ("idx", &["from", "to", "shuffle"]),
    ("csv", &["from", "to", "shuffle", "column", "count"]),
];

const STREAMS: [&str; 5] = ["bytes", "chars", "tokens", "text", "lines"];

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
                    let x = self.feed_expr(e)?;
                    out.push((n.text.clone(), n.span, x));
                }
                Some(Feed::Fields(out))
            }
        }
    }

    fn feed_expr(&mut self, e: &'a Expr) -> Option<FeedExpr> {
        match &*e.kind {
            ExprKind::Paren(x) => self.feed_expr(x),
            ExprKind::Unary { op: UnaryOp::Neg, value } => Some(FeedExpr::Negate(Box::new(self.feed_expr(value)?))),
            ExprKind::Binary { op, left, right, .. }
                if matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem) =>
            {
                let (a, b) = (self.feed_expr(left)?, self.feed_expr(right)?);
                Some(FeedExpr::Binary(*op, Box::new(a), Box::new(b)))
            }
            ExprKind::Call { callee, args } => {
                if let (ExprKind::Type(t), [arg]) = (&*callee.kind, &args[..]) {
                    let x = self.feed_expr(&arg.value)?;
                    return Some(FeedExpr::Cast(self.element(*t)?, Box::new(x)));
                }
                if let ExprKind::Name(n) = &*callee.kind
                    && SOURCES.iter().any(|s| s.0 == n)
                {
                    return self.source(e).map(FeedExpr::Source);
                }
                self.feed_number(e)
            }
            _ => self.feed_number(e),
        }
    }

    fn feed_number(&mut self, e: &'a Expr) -> Option<FeedExpr> {
        let c = self.constant(e)?;
        match c.as_f64() {
            Some(x) => Some(FeedExpr::Number(x)),
            None => {
                self.error(
                    Diagnostic::error("E0710", "data expressions hold sources, numbers, `+ - * / %` and conversions")
                        .at(e.span, format!("this is {}", c.kind())),
                );
                None
            }
        }
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
        Some(Source { kind: kind.clone(), path, options, span: e.span })
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
            self.error(
                Diagnostic::error("E0201", format!("`{kind}` has no option `{}`", name.text))
                    .at(name.span, "unknown option")
                    .help(format!("its options: {}", known.join(", "))),
            );
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
            _ => matches!(value, Const::Str(_)),
        };
        if !fits {
            let want = match name.text.as_str() {
                "from" | "to" => "a fraction from 0.0 to 1.0",
                "shuffle" => "true or false",
                "column" => "a whole number from 0",
                "count" => "a positive whole number",
                "dtype" => "u16 or u32",
                _ => "a string",
            };
            self.error(
                Diagnostic::error("E0710", format!("option `{}` of `{kind}` is {want}", name.text))
                    .at(a.value.span, format!("this is {value}")),
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
                for (n, span, _) in fields {
                    if !self.b.graph.inputs.iter().any(|i| i.name == *n) {
                        let inputs: Vec<String> = self.b.graph.inputs.iter().map(|i| i.name.clone()).collect();
                        let d = Diagnostic::error("E0201", format!("the model has no input `{n}`"))
                            .at(*span, "unknown input");
                        self.error(match did_you_mean(n, inputs.iter().map(String::as_str)) {
                            Some(x) => d.help(format!("did you mean `{x}`?")),
                            None => d.help(format!("its inputs: {}", inputs.join(", "))),
                        });
                    }
                }
            }
        }
    }
}
