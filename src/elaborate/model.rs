//! A model in one mode: its inputs, its body, and what comes out.

use super::call::GivenArg;
use super::frame::Body;
use super::instance::{Instance, InstanceId};
use super::value::{Bound, DimSet, StaticVal, Val};
use super::{Elab, ReadKey};
use crate::check::constant::Const;
use crate::diag::Diagnostic;
use crate::ir::{Input, Scope};
use crate::resolve::{Entity, ItemRef, MAIN, Program};
use crate::source::Span;
use crate::syntax::ast::{DefKind, ItemKind, StaticKind};

impl<'a> Elab<'a> {
    /// Walks a model. Afterwards the graph has its inputs, parameters, losses, metrics and outputs.
    pub fn model(&mut self, at: ItemRef) -> InstanceId {
        let model = self.program.model(at);
        self.instances.push(Instance::new(String::new(), at, Vec::new(), model.name.span));
        let root = InstanceId(self.instances.len() as u32 - 1);
        self.instance(root).calls = 1;
        let mut frame = self.open_frame(at.module, Body::Model, &model.name.text);
        frame.def = Some(at);
        frame.instance = Some(root);
        frame.ordinals = self.ordinals_of(&model.body);
        frame.scope = self.b.add_scope(Scope {
            path: String::new(),
            definition: model.name.text.clone(),
            parent: Some(crate::ir::ROOT),
            site: None,
            turns: Vec::new(),
        });
        self.uses.entry(at).or_default().push(frame.scope);
        self.within(frame, |e| {
            for a in &model.args {
                let Some(d) = e.declared(&a.ty) else {
                    e.define(&a.name, Val::Error, true);
                    continue;
                };
                if d.rest {
                    e.error(
                        Diagnostic::error("E0302", "a model's inputs name all their dims")
                            .at(a.ty.span, "`..` in a model's input")
                            .help("list the dims in the order of the data file's axes"),
                    );
                    e.define(&a.name, Val::Error, true);
                    continue;
                }
                if let (Some(default), Some(fed)) = (&a.default, &e.fed)
                    && !fed.contains(&a.name.text)
                {
                    let val = e.value_as(default, Some(std::slice::from_ref(&d.dims)));
                    let val = e.widen(val, &d, default.span);
                    e.define(&a.name, val, false);
                    continue;
                }
                let dtype = d.dtype.unwrap_or(e.single());
                let id = e.b.add_input(Input {
                    name: a.name.text.clone(),
                    dtype,
                    dims: d.dims.clone(),
                    span: Some(a.name.span),
                });
                // Floats are fed in f32 and read in working precision.
                let read = if d.dtype.is_none() { e.precision } else { dtype };
                e.b.span = Some(a.name.span);
                let v = e.read(ReadKey::Input(id), read);
                e.define(&a.name, Val::Tensor(v), false);
            }
            let val = e.body(&model.body, None);
            if !matches!(val, Val::Nothing | Val::Error) {
                let span = model.body.stmts.last().map_or(model.body.span, |s| s.span);
                e.error(
                    Diagnostic::error("E0406", "a model's last value is dropped")
                        .at(span, "computed for nothing")
                        .help("give it a name: `output name = ..`, `loss ..`, `metric name = ..`"),
                );
            }
        });
        root
    }

    /// Walks the definitions of the main file that nothing used, with open dims, so that their errors show too.
    pub fn unused_defs(&mut self) {
        let Some(main) = self.program.modules.first() else { return };
        for (i, item) in main.ast.items.iter().enumerate() {
            let ItemKind::Def(def) = &item.kind else { continue };
            let at = ItemRef { module: MAIN, item: i as u32, sub: 0 };
            if self.used_defs.contains(&at) || def.kind == DefKind::Optimizer {
                continue;
            }
            self.open_def(at, def.name.span);
        }
    }

    fn open_def(&mut self, at: ItemRef, span: Span) {
        let def = self.program.def(at);
        let mut statics = Vec::new();
        for s in &def.statics {
            if s.kind == StaticKind::Dim {
                let id = self.opaque_dim(&format!("{}.{}", def.name.text, s.name.text));
                statics.push((s.name.text.clone(), StaticVal::Dim(DimSet::single(id))));
            } else if s.default.is_none() {
                statics.push((s.name.text.clone(), StaticVal::Const(Const::Unknown)));
            }
        }
        self.instances.push(Instance::new(format!("unused.{}", def.name.text), at, Vec::new(), span));
        let owner = InstanceId(self.instances.len() as u32 - 1);
        let rest = self.opaque_dim(&format!("{}...", def.name.text));
        let bound = Bound { def: at, statics, span };
        let mut outer = self.open_frame(at.module, Body::Layer, "");
        outer.instance = Some(owner);
        self.within(outer, |e| {
            let own = (def.kind == DefKind::Layer).then_some(owner);
            let Some(mut frame) = e.def_frame(&bound, own, span) else { return };
            let Some(()) = e.bind_settings(&mut frame, &bound) else { return };
            frame.called_from = None;
            let mut given = Vec::new();
            e.frames.push(frame);
            for a in &def.args {
                let val = match e.declared(&a.ty) {
                    Some(d) => {
                        let mut dims = d.dims.clone();
                        if d.rest {
                            dims.insert(0, rest);
                        }
                        let dtype = d.dtype.unwrap_or(e.precision);
                        Val::Tensor(e.b.splat_of(1.0, dtype, &dims))
                    }
                    None => Val::Error,
                };
                given.push(Some(GivenArg { name: None, val, span: a.name.span }));
            }
            let frame = e.frames.pop().expect("pushed above");
            e.within(frame, |e| {
                let Some(()) = e.bind_args(&def.args, given, &bound, span) else { return };
                let results: Option<Vec<_>> = def.result.iter().map(|t| e.declared(t)).collect();
                let dims: Option<Vec<Vec<_>>> = results.as_ref().map(|r| r.iter().map(|d| d.dims.clone()).collect());
                let val = e.body(&def.body, dims.as_deref());
                if let Some(results) = results {
                    e.result(val, &results, def);
                }
            });
        });
    }

    /// Warnings for imports and top-level names of the main file that nothing looked up.
    pub fn unused_names(&mut self) {
        let Some(main) = self.program.modules.first() else { return };
        let named: Vec<(String, Span, bool)> =
            main.names.iter().map(|(n, b)| (n.clone(), b.span, b.imported)).collect();
        let presets = self.program.main_items(|i| if let ItemKind::Preset(p) = i { Some(p) } else { None });
        let set: Vec<&str> = presets.iter().flat_map(|p| &p.settings).map(|(n, _)| n.text.as_str()).collect();
        for (name, span, imported) in named {
            if imported && !set.contains(&name.as_str()) && !self.used_names.contains(&(MAIN, name.clone())) {
                self.sink.push(
                    Diagnostic::warning("W0001", format!("`{name}` is imported and never used"))
                        .at(span, "not used")
                        .help("remove it from the `use`"),
                );
            }
        }
    }
}

/// The item of a model by name.
pub fn find_model(program: &Program, name: &str) -> Option<ItemRef> {
    match program.modules.first()?.names.get(name)?.entity {
        Entity::Model(at) => Some(at),
        _ => None,
    }
}
