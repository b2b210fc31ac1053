//! Items, definitions, types and the statements of a block.

use super::ast::*;
use super::build::{Builder, Rule, parts};
use super::expr::type_name;
use crate::diag::Diagnostic;
use crate::source::Span;
use pest::iterators::Pair;

impl<'t> Builder<'t> {
    pub fn items(&mut self, file: Pair<'t, Rule>) -> Vec<Item> {
        parts(file).rest().map(|item| self.item(item)).collect()
    }

    fn item(&mut self, pair: Pair<'t, Rule>) -> Item {
        let span = self.span(&pair);
        let doc = doc_before(self.text, span.start as usize);
        let mut inner = parts(pair);
        let attribute = inner.take(Rule::attribute).map(|a| {
            let mut inner = parts(a);
            (self.name(inner.must()), self.name(inner.must()))
        });
        let item = inner.must();
        let kind = match item.as_rule() {
            Rule::use_item => ItemKind::Use(self.use_item(item)),
            Rule::dims => ItemKind::Dims(self.dims(item)),
            Rule::consts => ItemKind::Consts(self.consts(item)),
            Rule::def => ItemKind::Def(self.def(item)),
            Rule::model => ItemKind::Model(self.model(item)),
            Rule::preset => ItemKind::Preset(self.preset(item)),
            Rule::plan => ItemKind::Plan(self.plan(item)),
            Rule::train => ItemKind::Train(self.train(item)),
            Rule::sample => ItemKind::Sample(self.sample(item)),
            _ => ItemKind::Weights(self.weights(item)),
        };
        Item { kind, doc, attribute, span }
    }

    fn use_item(&mut self, pair: Pair<'t, Rule>) -> Use {
        let mut inner = parts(pair);
        let local = inner.take(Rule::use_local).is_some();
        let mut path = Vec::new();
        while let Some(name) = inner.take(Rule::name) {
            path.push(self.name(name));
        }
        let names = inner.maybe().map(|names| {
            parts(names)
                .rest()
                .map(|n| {
                    let mut inner = parts(n);
                    UseName { name: self.name(inner.must()), alias: inner.maybe().map(|a| self.name(a)) }
                })
                .collect()
        });
        Use { local, path, names }
    }

    pub fn dims(&mut self, pair: Pair<'t, Rule>) -> Vec<DimDef> {
        parts(pair)
            .rest()
            .map(|d| {
                let mut inner = parts(d);
                let name = self.name(inner.must());
                let value = self.expr(inner.must());
                DimDef { name, value: dim_value(value) }
            })
            .collect()
    }

    fn consts(&mut self, pair: Pair<'t, Rule>) -> Vec<ConstDef> {
        parts(pair)
            .rest()
            .map(|c| {
                let mut inner = parts(c);
                let name = self.name(inner.must());
                let ty = inner.take(Rule::ty).map(|t| self.ty(t));
                ConstDef { name, ty, value: self.expr(inner.must()) }
            })
            .collect()
    }

    fn def(&mut self, pair: Pair<'t, Rule>) -> Def {
        let begin = self.span(&pair);
        let mut inner = parts(pair);
        let kind = match inner.must().as_str() {
            "layer" => DefKind::Layer,
            "optimizer" => DefKind::Optimizer,
            _ => DefKind::Fn,
        };
        let name = self.name(inner.must());
        let statics = inner.take(Rule::statics).map(|s| parts(s).rest().map(|d| self.static_def(d)).collect());
        let args = self.args(inner.must());
        let result = inner.must();
        let head = Span::new(self.file, begin.start as usize, self.span(&result).end as usize);
        let tuple = result.as_str().starts_with('(');
        let result = parts(result).rest().map(|t| self.ty(t)).collect();
        let body = self.block(inner.must());
        Def { kind, name, statics: statics.unwrap_or_default(), args, result, tuple, body, head }
    }

    fn static_def(&mut self, pair: Pair<'t, Rule>) -> Static {
        let mut inner = parts(pair);
        let name = self.name(inner.must());
        let kind = inner.take(Rule::static_kind).map(|k| match k.as_str() {
            "int" => StaticKind::Int,
            "float" => StaticKind::Float,
            "bool" => StaticKind::Bool,
            _ => StaticKind::Str,
        });
        let default = inner.maybe().map(|e| self.expr(e));
        let bare = if default.is_some() { StaticKind::OfDefault } else { StaticKind::Dim };
        Static { name, kind: kind.unwrap_or(bare), default }
    }

    pub fn args(&mut self, pair: Pair<'t, Rule>) -> Vec<Arg> {
        parts(pair)
            .rest()
            .map(|a| {
                let mut inner = parts(a);
                let name = self.name(inner.must());
                let ty = self.ty(inner.must());
                Arg { name, ty, default: inner.maybe().map(|e| self.expr(e)) }
            })
            .collect()
    }

    fn ty(&mut self, pair: Pair<'t, Rule>) -> Type {
        let span = self.span(&pair);
        let mut inner = parts(pair);
        let dtype = inner.take(Rule::dtype).map(|d| (type_name(d.as_str()), self.span(&d)));
        if let Some((TypeName::Float, at)) = dtype {
            self.report(
                Diagnostic::error("E0101", "`float` is the kind of a setting, not a type of elements")
                    .at(at, "unexpected here")
                    .help("write `f32`, or only the dims for the working precision"),
            );
        }
        let (mut dims, mut outs) = (None, None);
        if let Some(list) = inner.maybe() {
            let mut found = Vec::new();
            for part in parts(list).rest() {
                match part.as_rule() {
                    Rule::ty_outs => outs = Some(self.names(part)),
                    _ => found.push(self.type_dim(part)),
                }
            }
            dims = Some(found);
        }
        Type { dtype, dims, outs, span }
    }

    fn type_dim(&mut self, pair: Pair<'t, Rule>) -> TypeDim {
        let part = parts(pair).must();
        match part.as_rule() {
            Rule::dots => TypeDim::Rest(self.span(&part)),
            Rule::name => TypeDim::Dim(self.name(part)),
            _ => {
                let mut inner = parts(part);
                TypeDim::Map(self.names(inner.must()), self.names(inner.must()))
            }
        }
    }

    fn model(&mut self, pair: Pair<'t, Rule>) -> Model {
        let begin = self.span(&pair).start as usize;
        let mut inner = parts(pair);
        let name = self.name(inner.must());
        let args = inner.must();
        let head = Span::new(self.file, begin, self.span(&args).end as usize);
        Model { name, args: self.args(args), body: self.block(inner.must()), head }
    }

    fn preset(&mut self, pair: Pair<'t, Rule>) -> Preset {
        let mut inner = parts(pair);
        Preset { name: self.name(inner.must()), settings: self.settings(inner.must()) }
    }

    pub fn settings(&mut self, pair: Pair<'t, Rule>) -> Vec<(Name, Expr)> {
        parts(pair)
            .rest()
            .map(|s| {
                let mut inner = parts(s);
                (self.name(inner.must()), self.expr(inner.must()))
            })
            .collect()
    }

    /// Also the block of a sample. Leaves the height of its highest expression behind.
    pub fn block(&mut self, pair: Pair<'t, Rule>) -> Block {
        let span = self.span(&pair);
        let (mut stmts, mut height) = (Vec::new(), 0);
        for part in parts(pair).rest() {
            let span = self.span(&part);
            self.height = 0;
            let kind = self.stmt(part);
            height = height.max(self.height);
            stmts.push(Stmt { kind, span });
        }
        self.height = height;
        Block { stmts, span }
    }

    fn stmt(&mut self, pair: Pair<'t, Rule>) -> StmtKind {
        let pair = if pair.as_rule() == Rule::stmt { parts(pair).must() } else { pair };
        let rule = pair.as_rule();
        match rule {
            Rule::expr => return StmtKind::Expr(self.expr(pair)),
            Rule::dims => return StmtKind::Dims(self.dims(pair)),
            _ => {}
        }
        let mut inner = parts(pair);
        match rule {
            Rule::let_stmt => {
                let names = inner.must();
                let tuple = names.as_rule() == Rule::let_tuple;
                let names = if tuple { parts(names).must() } else { names };
                let names = self.names(names);
                let ty = inner.take(Rule::ty).map(|t| self.ty(t));
                StmtKind::Let { names, tuple, ty, value: self.expr(inner.must()) }
            }
            Rule::param => {
                let (names, ty) = (self.names(inner.must()), self.ty(inner.must()));
                StmtKind::Param { names, ty, init: self.expr(inner.must()) }
            }
            Rule::state => {
                let (names, ty) = (self.names(inner.must()), self.ty(inner.must()));
                StmtKind::State { names, ty, init: self.expr(inner.must()) }
            }
            Rule::update => StmtKind::Update { name: self.name(inner.must()), value: self.expr(inner.must()) },
            Rule::loss => {
                let name = inner.take(Rule::name).map(|n| self.name(n));
                StmtKind::Loss { name, value: self.expr(inner.must()) }
            }
            Rule::metric => StmtKind::Metric { name: self.name(inner.must()), value: self.expr(inner.must()) },
            Rule::output => StmtKind::Output { name: self.name(inner.must()), value: self.expr(inner.must()) },
            Rule::rebind => StmtKind::Rebind { name: self.name(inner.must()), value: self.expr(inner.must()) },
            Rule::feed_line => {
                let (input, dim) = (self.name(inner.must()), self.name(inner.must()));
                StmtKind::Feed { input, dim, value: self.expr(inner.must()) }
            }
            _ => StmtKind::Setting { word: self.name(inner.must()), value: self.expr(inner.must()) },
        }
    }
}

/// `(kv, group)` is a group; everything else is a size.
fn dim_value(value: Expr) -> DimValue {
    let group = match &*value.kind {
        ExprKind::Tuple(values) => values
            .iter()
            .map(|v| match &*v.kind {
                ExprKind::Name(text) => Some(Name { text: text.clone(), span: v.span }),
                _ => None,
            })
            .collect::<Option<Vec<Name>>>(),
        _ => None,
    };
    group.map_or(DimValue::Size(value), DimValue::Group)
}

/// The `///` lines that end right above the line of this place.
fn doc_before(text: &str, start: usize) -> Option<String> {
    let above = text.get(..start)?.rsplit_once('\n')?.0;
    let mut lines: Vec<&str> = Vec::new();
    for line in above.split('\n').rev() {
        let Some(doc) = line.trim_start_matches([' ', '\t', ';']).strip_prefix("///") else { break };
        lines.push(doc.strip_prefix(' ').unwrap_or(doc).trim_end());
    }
    lines.reverse();
    (!lines.is_empty()).then(|| lines.join("\n"))
}
