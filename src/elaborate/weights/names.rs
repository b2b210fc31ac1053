//! Names in weights items: `{i}` in the file's names, and paths of parameters and instances.

use super::Target;
use super::items::Walk;
use crate::check::constant::Const;
use crate::diag::{Diagnostic, did_you_mean, some_of};
use crate::elaborate::Elab;
use crate::elaborate::instance::InstanceId;
use crate::elaborate::value::Val;
use crate::resolve::Entity;
use crate::source::Span;
use crate::syntax::ast::{Expr, ExprKind, ItemKind};

/// What a path leads to.
pub(super) enum Found {
    Leaf(Target),
    Instance(InstanceId),
}

/// An element of a path: `block`, or the turn `3` of `.{i}`.
struct Step {
    text: String,
    span: Span,
    turn: bool,
}

impl<'a> Elab<'a> {
    /// `h.{i}.w` with loop variables and constants put in.
    pub(super) fn file_name(&mut self, text: &str, span: Span) -> Option<String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            out.push_str(&rest[..open]);
            let Some(close) = rest[open..].find('}') else {
                self.error(
                    Diagnostic::error("E0201", "a `{` without its `}` in a file's name")
                        .at(span, "not closed")
                        .help("write `{i}`: a loop variable or a constant"),
                );
                return None;
            };
            out.push_str(&self.turn(&rest[open + 1..open + close], span)?);
            rest = &rest[open + close + 1..];
        }
        out.push_str(rest);
        Some(out)
    }

    /// The value of a loop variable or constant, as it stands in names.
    fn turn(&mut self, name: &str, span: Span) -> Option<String> {
        let value = match self.frame().lookup(name) {
            Some(v) => Some(v),
            None => match self.dim_opt(name) {
                Some(set) => Some(Val::Const(self.size_const(&set?.ids))),
                None => {
                    let module = self.frame().module;
                    match self.entity(module, name) {
                        Some(Entity::Const(at)) => Some(self.global_const(at)),
                        _ => None,
                    }
                }
            },
        };
        match value {
            Some(Val::Const(c)) => match c {
                Const::Str(s) => Some(s),
                c => Some(c.to_string()),
            },
            Some(_) => None,
            None => {
                let names = self.frame().names();
                let d = Diagnostic::error("E0201", format!("unknown name `{name}` in braces"))
                    .at(span, format!("`{{{name}}}` is no loop variable or constant"));
                self.error(match did_you_mean(name, names.iter().map(String::as_str)) {
                    Some(n) => d.help(format!("did you mean `{{{n}}}`?")),
                    None => d.help("braces hold a `for` variable or a constant"),
                });
                None
            }
        }
    }

    // ---- paths

    /// `block.{i}.attention.wq`, from the instance whose names hold.
    pub(super) fn weights_path(&mut self, e: &'a Expr, walk: &Walk<'a>) -> Option<Found> {
        let mut steps = Vec::new();
        self.steps(e, &mut steps)?;
        let mut at = walk.here;
        let mut k = 0;
        loop {
            let mut end = k + 1;
            while end < steps.len() && steps[end].turn {
                end += 1;
            }
            let key = steps[k..end].iter().map(|s| s.text.as_str()).collect::<Vec<_>>().join(".");
            let span = steps[k].span.to(steps[end - 1].span);
            let instance = self.instance(at);
            let next = instance.children.get(&key).copied();
            let leaf = (instance.params.get(&key).map(|p| Target::Param(*p)))
                .or(instance.states.get(&key).map(|s| Target::State(*s)));
            match (leaf, next) {
                (Some(t), _) if end == steps.len() => return Some(Found::Leaf(t)),
                (Some(_), _) => {
                    self.error(
                        Diagnostic::error("E0206", format!("`{key}` is a parameter and has no members"))
                            .at(steps[end].span, "no such member")
                            .help("end the path with the parameter"),
                    );
                    return None;
                }
                (None, Some(id)) if end == steps.len() => return Some(Found::Instance(id)),
                (None, Some(id)) => at = id,
                (None, None) => {
                    self.no_member(at, &key, span);
                    return None;
                }
            }
            k = end;
        }
    }

    fn steps(&mut self, e: &'a Expr, out: &mut Vec<Step>) -> Option<()> {
        match &*e.kind {
            ExprKind::Name(n) => out.push(Step { text: n.clone(), span: e.span, turn: false }),
            ExprKind::Member { base, name } => {
                self.steps(base, out)?;
                out.push(Step { text: name.text.clone(), span: name.span, turn: false });
            }
            ExprKind::Turn { base, name } => {
                self.steps(base, out)?;
                let text = self.turn(&name.text, name.span)?;
                let span = Span { start: name.span.start, ..e.span };
                out.push(Step { text, span, turn: true });
            }
            ExprKind::Paren(inner) => self.steps(inner, out)?,
            _ => {
                self.error(
                    Diagnostic::error("E0709", "this is no path")
                        .at(e.span, "not the name of an instance or parameter")
                        .help("write `part.{i}.name`"),
                );
                return None;
            }
        }
        Some(())
    }

    fn no_member(&mut self, at: InstanceId, key: &str, span: Span) {
        let i = self.instance(at);
        let (path, owner) = (i.path.clone(), i.def);
        let names: Vec<String> = i.params.keys().chain(i.states.keys()).chain(i.children.keys()).cloned().collect();
        let stem = key.split('.').next().unwrap_or(key);
        let turns: Vec<&str> = names.iter().filter_map(|n| n.strip_prefix(stem)?.strip_prefix('.')).collect();
        let what = if path.is_empty() { "the model".to_string() } else { format!("`{path}`") };
        let d = Diagnostic::error("E0201", format!("{what} has no parameter or part `{key}`")).at(span, "unknown name");
        let d = match self.program.item(owner).kind {
            ItemKind::Def(ref def) => d.and(def.head, "its layer"),
            _ => d,
        };
        let d = match (&turns[..], did_you_mean(key, names.iter().map(String::as_str))) {
            ([first, .., last], _) => d.help(format!("`{stem}` has turns: `{stem}.{{i}}`, {first} to {last}")),
            ([only], _) => d.help(format!("`{stem}` has one turn: {only}")),
            (_, Some(n)) => d.help(format!("did you mean `{n}`?")),
            (_, None) if names.is_empty() => d.help("it has none"),
            (_, None) => d.help(format!("it has {}", some_of(names.iter().map(String::as_str)))),
        };
        self.error(d);
    }
}
