//! Dims, constants and names of whole files: what nothing uses is evaluated too, kinds of constants hold, names that exist
//! everywhere keep their meaning.

use super::Elab;
use super::expr::PREDEFINED;
use super::frame::Body;
use super::value::Val;
use crate::check::constant::Const;
use crate::diag::Diagnostic;
use crate::resolve::{Entity, ItemRef, MAIN, ModuleId};
use crate::source::Span;
use crate::syntax::ast::{ConstDef, DimValue, ItemKind, TypeName};

impl<'a> Elab<'a> {
    /// Dims and constants of the main file, and of files that it imports from, as far as this walk has used them.
    pub fn values_of_file(&self) -> Vec<(String, String)> {
        let own = |at: &ItemRef| self.program.module(at.module).path.is_some();
        let names = self.program.modules.first().into_iter().flat_map(|m| &m.names);
        let value = names.filter_map(|(name, binding)| match &binding.entity {
            Entity::Dim(at) if own(at) => match &self.global_dims.get(at)?.as_ref()?.ids[..] {
                [one] => Some((name.clone(), self.b.graph.size(*one).to_string())),
                _ => None,
            },
            Entity::Const(at) if own(at) => match self.constants.get(at)? {
                Val::Const(c) => Some((name.clone(), c.to_string())),
                _ => None,
            },
            _ => None,
        });
        value.collect()
    }

    /// Evaluates every dim, constant and preset of the program's own files.
    pub fn all_globals(&mut self) {
        for (m, module) in self.program.modules.iter().enumerate() {
            if module.path.is_none() {
                continue;
            }
            for (i, item) in module.ast.items.iter().enumerate() {
                let at = |sub: usize| ItemRef { module: ModuleId(m as u32), item: i as u32, sub: sub as u32 };
                match &item.kind {
                    ItemKind::Dims(dims) => (0..dims.len()).for_each(|k| {
                        self.global_dim(at(k));
                    }),
                    ItemKind::Consts(consts) => (0..consts.len()).for_each(|k| {
                        self.global_const(at(k));
                    }),
                    ItemKind::Preset(p) if m == 0 => p.settings.iter().for_each(|(name, value)| {
                        let frame = self.open_frame(MAIN, Body::File, "");
                        let Some(c) = self.within(frame, |e| e.constant(value)) else { return };
                        match module.names.get(&name.text).map(|b| b.entity) {
                            Some(Entity::Dim(d)) if matches!(self.program.dim(d).value, DimValue::Size(_)) => {
                                self.size_of(&c, value.span);
                            }
                            Some(Entity::Const(c_at)) => {
                                self.const_kind(c_at, c, Some(value.span));
                            }
                            _ => {}
                        }
                    }),
                    _ => {}
                }
            }
        }
    }

    /// A constant in its declared kind; one that is set from outside also keeps the kind of the written value.
    /// `replaced`: the place of the value that was set.
    pub(super) fn const_kind(&mut self, at: ItemRef, c: Const, replaced: Option<Span>) -> Val {
        let def: &'a ConstDef = self.program.constant(at);
        if c == Const::Unknown {
            return Val::Const(c);
        }
        let list = def.ty.as_ref().is_some_and(|t| t.dims.as_ref().is_some_and(|d| !d.is_empty()));
        let declared = def.ty.as_ref().and_then(|t| t.dtype).map(|(t, _)| t);
        let (fits, kind) = match declared {
            _ if list => (false, "a list"),
            Some(TypeName::Bool) => (c.as_bool().is_some(), "a bool"),
            Some(TypeName::Int) => (c.as_int().is_some(), "a whole number"),
            Some(_) => (c.is_number(), "a number"),
            None if replaced.is_some() => {
                let frame = self.open_frame(at.module, Body::File, "");
                match self.within(frame, |e| e.value(&def.value)) {
                    Val::Const(Const::Bool(_)) => (c.as_bool().is_some(), "a bool"),
                    Val::Const(Const::Str(_)) => (matches!(c, Const::Str(_)), "a string"),
                    Val::Const(Const::Unknown) | Val::Error => (true, ""),
                    _ => (c.is_number(), "a number"),
                }
            }
            None => (true, ""),
        };
        if fits {
            return Val::Const(c);
        }
        let d = Diagnostic::error("E0309", format!("constant `{}` is {kind}, not {c}", def.name.text));
        let d = match replaced {
            Some(span) if span != def.name.span => d.at(span, "set here").and(def.name.span, "declared here"),
            Some(_) => d.at(def.name.span, format!("set to {c} from outside")),
            None => d.at(def.value.span, format!("this is {c}")),
        };
        self.error(d.help("give a constant of its kind"));
        Val::Error
    }

    /// Top-level names of the program's own files that exist everywhere with another meaning.
    pub fn predefined_names(&mut self) {
        for module in self.program.modules.iter().filter(|m| m.path.is_some()) {
            for (name, b) in module.names.iter().filter(|(_, b)| !b.imported) {
                if PREDEFINED.contains(&name.as_str()) {
                    self.predefined_twice(name, b.span);
                } else if matches!(b.entity, Entity::Def(_)) && super::builtin::NAMES.contains(&name.as_str()) {
                    self.sink.push(
                        Diagnostic::warning("W0005", format!("`{name}` hides the built-in function of the same name"))
                            .at(b.span, "calls in this file mean this one")
                            .help("choose another name"),
                    );
                }
            }
        }
    }

    pub(super) fn predefined_twice(&mut self, name: &str, span: Span) {
        self.error(
            Diagnostic::error("E0202", format!("`{name}` is predefined"))
                .at(span, "defined a second time")
                .help("choose another name"),
        );
    }
}
