//! The lines of train, sample and weights items.

use super::ast::*;
use super::build::{Builder, Rule, parts};
use super::expr::loop_kind;
use crate::source::Span;
use pest::iterators::Pair;

impl<'t> Builder<'t> {
    pub fn train(&mut self, pair: Pair<'t, Rule>) -> Train {
        let (name, model, head, rest) = self.variant(pair);
        let lines = rest
            .into_iter()
            .map(|line| TrainLine { span: self.span(&line), kind: self.train_line(parts(line).must()) })
            .collect();
        Train { name, model, lines, head }
    }

    /// `[name of] Model` of a train or sample item, and the parts after it.
    fn variant(&mut self, pair: Pair<'t, Rule>) -> (Option<Name>, Name, Span, Vec<Pair<'t, Rule>>) {
        let begin = self.span(&pair).start as usize;
        let mut inner = parts(pair);
        let first = self.name(inner.must());
        let (name, model) = match inner.take(Rule::name) {
            Some(model) => (Some(first), self.name(model)),
            None => (None, first),
        };
        let head = Span::new(self.file, begin, model.span.end as usize);
        (name, model, head, inner.rest().collect())
    }

    fn train_line(&mut self, pair: Pair<'t, Rule>) -> TrainKind {
        let rule = pair.as_rule();
        let mut inner = parts(pair);
        match rule {
            Rule::data => {
                let valid = inner.must().as_str() == "valid";
                let source = inner.must();
                let source = match source.as_rule() {
                    Rule::settings => DataSource::Fields(self.settings(source)),
                    _ => DataSource::Stream(self.term(source)),
                };
                let every = inner.take(Rule::every).map(|e| self.expr(parts(e).must()));
                let batches = inner.take(Rule::batches).map(|e| self.expr(parts(e).must()));
                TrainKind::Data { valid, source, every, batches }
            }
            Rule::samples => {
                TrainKind::Samples { dim: self.name(inner.must()), slices: inner.maybe().map(|e| self.expr(e)) }
            }
            Rule::train_let => TrainKind::Let { name: self.name(inner.must()), value: self.expr(inner.must()) },
            Rule::optimize => {
                let call = self.term(inner.must());
                let on = inner.take(Rule::select).map(|s| self.select(s));
                let minimizes = inner.maybe().map(|n| self.names(n)).unwrap_or_default();
                TrainKind::Optimizer { call, on, minimizes }
            }
            Rule::freeze => TrainKind::Freeze(self.select(inner.must())),
            Rule::load => {
                let path = inner.must();
                let path = (self.string(&path), self.span(&path));
                let with = inner.take(Rule::name).map(|n| self.name(n));
                TrainKind::Load { path, with, on: inner.maybe().map(|s| self.select(s)) }
            }
            Rule::save if inner.take(Rule::save_best).is_some() => TrainKind::SaveBest,
            Rule::save => {
                let every = self.expr(inner.must());
                let keep = inner.maybe().map(|k| match k.as_rule() {
                    Rule::keep_all => Keep::All,
                    _ => Keep::Newest(self.expr(k)),
                });
                TrainKind::Save { every, keep }
            }
            Rule::log => TrainKind::Log(self.expr(inner.must())),
            _ => {
                let word = inner.must();
                let value = self.expr(inner.must());
                match word.as_str() {
                    "clip" => TrainKind::Clip(value),
                    "gradient" => TrainKind::Gradient(value),
                    "average" => TrainKind::Average(value),
                    "steps" => TrainKind::Steps(value),
                    _ => TrainKind::Seed(value),
                }
            }
        }
    }

    fn select(&mut self, pair: Pair<'t, Rule>) -> Select {
        let span = self.span(&pair);
        let mut inner = parts(pair);
        let terms = self.select_terms(inner.must());
        let except = inner.maybe().map(|t| self.select_terms(t)).unwrap_or_default();
        Select { terms, except, span }
    }

    fn select_terms(&mut self, pair: Pair<'t, Rule>) -> Vec<SelectTerm> {
        parts(pair)
            .rest()
            .map(|term| {
                let span = self.span(&term);
                let inner = parts(term).must();
                let kind = match (inner.as_rule(), inner.as_str()) {
                    (Rule::string, _) => SelectKind::Glob(self.string(&inner)),
                    (_, "matrix") => SelectKind::Matrix,
                    (_, "vector") => SelectKind::Vector,
                    _ => SelectKind::Rest,
                };
                SelectTerm { kind, span }
            })
            .collect()
    }

    pub fn sample(&mut self, pair: Pair<'t, Rule>) -> Sample {
        let (name, model, head, rest) = self.variant(pair);
        let mut sample = Sample { name, model, args: None, body: Block { stmts: Vec::new(), span: head }, head };
        for part in rest {
            match part.as_rule() {
                Rule::args => sample.args = Some(self.args(part)),
                _ => sample.body = self.block(part),
            }
        }
        sample
    }

    pub fn weights(&mut self, pair: Pair<'t, Rule>) -> Weights {
        let begin = self.span(&pair).start as usize;
        let mut inner = parts(pair);
        let (name, of) = (self.name(inner.must()), self.name(inner.must()));
        let head = Span::new(self.file, begin, of.span.end as usize);
        Weights { name, of, body: self.weights_block(inner.must()), head }
    }

    fn weights_block(&mut self, pair: Pair<'t, Rule>) -> WeightsBlock {
        let span = self.span(&pair);
        let lines = parts(pair)
            .rest()
            .map(|line| WeightsLine { span: self.span(&line), kind: self.weights_line(parts(line).must()) })
            .collect();
        WeightsBlock { lines, span }
    }

    fn weights_line(&mut self, pair: Pair<'t, Rule>) -> WeightsKind {
        let rule = pair.as_rule();
        if rule == Rule::dims {
            return WeightsKind::Dims(self.dims(pair));
        }
        let mut inner = parts(pair);
        match rule {
            Rule::weights_entry => {
                let text = inner.must();
                let text = (self.string(&text), self.span(&text));
                match inner.take(Rule::weights_axes) {
                    Some(axes) => {
                        let axes = parts(axes).rest().map(|g| self.group(g)).collect();
                        WeightsKind::Entry { file_name: text, axes, value: self.expr(inner.must()) }
                    }
                    None => WeightsKind::Prefix { prefix: text, instance: self.term(inner.must()) },
                }
            }
            Rule::weights_for => {
                loop_kind(inner.must().as_str());
                let var = self.name(inner.must());
                let (over, _, _) = self.loop_over(inner.must());
                WeightsKind::For { var, over, body: self.weights_block(inner.must()) }
            }
            _ => {
                let cond = self.expr(inner.must());
                let then = self.weights_block(inner.must());
                WeightsKind::If { cond, then, other: inner.maybe().map(|b| self.weights_block(b)) }
            }
        }
    }

    pub fn group(&mut self, pair: Pair<'t, Rule>) -> Group {
        let span = self.span(&pair);
        let mut list = Vec::new();
        let mut paren = false;
        for part in parts(pair).rest() {
            if part.as_rule() == Rule::name {
                list.push(GroupPart { name: self.name(part), value: None });
                continue;
            }
            paren = true;
            let mut inner = parts(part);
            let name = self.name(inner.must());
            list.push(GroupPart { name, value: inner.maybe().map(|e| self.expr(e)) });
        }
        Group { parts: list, paren, span }
    }
}
