//! The lines of plans.

use super::ast::*;
use super::build::{Builder, Parts, Rule, parts};
use crate::source::Span;
use pest::iterators::Pair;

impl<'t> Builder<'t> {
    pub fn plan(&mut self, pair: Pair<'t, Rule>) -> Plan {
        let begin = self.span(&pair).start as usize;
        let mut inner = parts(pair);
        let name = self.name(inner.must());
        let head = Span::new(self.file, begin, name.span.end as usize);
        let lines = inner
            .rest()
            .map(|line| PlanLine { span: self.span(&line), kind: self.plan_line(parts(line).must()) })
            .collect();
        Plan { name, lines, head }
    }

    fn plan_line(&mut self, pair: Pair<'t, Rule>) -> PlanKind {
        let rule = pair.as_rule();
        let mut inner = parts(pair);
        match rule {
            Rule::mesh => PlanKind::Mesh(inner.rest().map(|axis| self.mesh_axis(axis)).collect()),
            Rule::shard => PlanKind::Shard {
                dims: self.groups(inner.must()),
                axes: self.names(inner.must()),
                scopes: self.scopes(&mut inner),
                opts: self.opts(&mut inner),
            },
            Rule::replicate => PlanKind::Replicate { dims: self.groups(inner.must()), scopes: self.scopes(&mut inner) },
            Rule::layout_line => {
                PlanKind::Layout { scope: self.scope(inner.must()), entries: self.entries(inner.must()) }
            }
            Rule::pipeline => PlanKind::Pipeline {
                dims: self.names(inner.must()),
                axis: self.name(inner.must()),
                opts: self.opts(&mut inner),
            },
            Rule::microbatches => PlanKind::Microbatches(self.whole(inner.must())),
            Rule::precision => PlanKind::Precision { name: self.name(inner.must()), opts: self.opts(&mut inner) },
            Rule::zero => PlanKind::Zero {
                level: self.whole(inner.must()),
                axes: self.names(inner.must()),
                scopes: self.scopes(&mut inner),
                opts: self.opts(&mut inner),
            },
            Rule::recompute => {
                let mut values = Vec::new();
                while let Some(value) = inner.take(Rule::value) {
                    values.push(self.value(value));
                }
                PlanKind::Recompute { values, opts: self.opts(&mut inner) }
            }
            Rule::statement => PlanKind::Statement {
                value: self.value(inner.must()),
                axis: inner.take(Rule::name).map(|n| self.name(n)),
                opts: self.opts(&mut inner),
            },
            _ => PlanKind::Offload { what: self.names(inner.must()), to: self.name(inner.must()) },
        }
    }

    fn mesh_axis(&mut self, pair: Pair<'t, Rule>) -> MeshAxis {
        let mut inner = parts(pair);
        MeshAxis {
            name: self.name(inner.must()),
            size: self.whole(inner.must()),
            link: inner.maybe().map(|n| self.name(n)),
        }
    }

    fn groups(&mut self, pair: Pair<'t, Rule>) -> Vec<Group> {
        parts(pair).rest().map(|g| self.group(g)).collect()
    }

    fn scopes(&mut self, inner: &mut Parts<'t>) -> Vec<Scope> {
        let Some(list) = inner.take(Rule::scopes) else { return Vec::new() };
        parts(list).rest().map(|s| self.scope(s)).collect()
    }

    fn scope(&mut self, pair: Pair<'t, Rule>) -> Scope {
        let span = self.span(&pair);
        let mut scope = Scope { path: Vec::new(), dims: Vec::new(), span };
        for part in parts(pair).rest() {
            match part.as_rule() {
                Rule::names => scope.dims = self.names(part),
                _ => scope.path.push(self.name(part)),
            }
        }
        scope
    }

    fn opts(&mut self, inner: &mut Parts<'t>) -> Vec<PlanOpt> {
        let Some(list) = inner.take(Rule::opts) else { return Vec::new() };
        parts(list)
            .rest()
            .map(|opt| {
                let mut inner = parts(opt);
                PlanOpt { name: self.name(inner.must()), value: self.value(inner.must()) }
            })
            .collect()
    }

    fn value(&mut self, pair: Pair<'t, Rule>) -> PlanValue {
        let span: Span = self.span(&pair);
        let part = parts(pair).must();
        let rule = part.as_rule();
        let kind = match rule {
            Rule::string => PlanValueKind::Str(self.string(&part)),
            Rule::number => {
                let mut inner = parts(part);
                let text = inner.must().as_str().replace('_', "");
                PlanValueKind::Number { text, unit: inner.maybe().map(|u| self.name(u)) }
            }
            Rule::value_call => {
                let mut inner = parts(part);
                let name = self.name(inner.must());
                let args = inner
                    .rest()
                    .map(|arg| {
                        let mut inner = parts(arg);
                        (inner.take(Rule::name).map(|n| self.name(n)), self.value(inner.must()))
                    })
                    .collect();
                PlanValueKind::Call { name, args }
            }
            Rule::value_list => PlanValueKind::List(parts(part).rest().map(|v| self.value(v)).collect()),
            _ => PlanValueKind::Word(parts(part).rest().map(|w| self.name(w)).collect()),
        };
        PlanValue { kind, span }
    }
}
