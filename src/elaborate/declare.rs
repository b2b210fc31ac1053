//! Parameters and states: their declarations, initial values and updates.

use super::Elab;
use super::frame::{Body, Local};
use super::instance::InstanceId;
use super::value::{Declared, Val};
use crate::check::constant::Const;
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::{DimId, OutputKind, Param, ParamId, State, StateId, StateKind};
use crate::source::Span;
use crate::syntax::ast::{self, Expr, Name};
use crate::types::DType;
use indexmap::IndexMap;

impl<'a> Elab<'a> {
    pub(super) fn owner(&mut self, span: Span, what: &str) -> Option<InstanceId> {
        if let Some(id) = self.frame().instance {
            return Some(id);
        }
        let name = self.frame().name.clone();
        self.error(
            Diagnostic::error("E0401", format!("`{name}` is a function and has no {what} of its own"))
                .at(span, format!("{what} in a function"))
                .help(format!("make `{name}` a `layer`")),
        );
        None
    }

    /// Finds or makes a parameter of the current instance; returns the type that it is read in.
    pub fn declare_param(&mut self, name: &'a Name, ty: &'a ast::Type, init: &'a Expr) -> Option<(ParamId, DType)> {
        let owner = self.owner(name.span, "parameters")?;
        if matches!(self.frame().body, Body::Sample | Body::Optimizer | Body::Init) {
            self.not_here(name.span, "parameters belong to layers and models");
            return None;
        }
        let d = self.declared(ty)?;
        let read = d.dtype.unwrap_or(self.precision);
        if !read.is_float() {
            self.error(
                Diagnostic::error("E0309", "a parameter is trained, so its elements are floats")
                    .at(ty.span, format!("this is {read}"))
                    .help("use `state` for what is not trained"),
            );
            return None;
        }
        let key = self.frame().with_turns(&name.text);
        if let Some(id) = self.instance(owner).params.get(&key).copied() {
            let known = self.b.graph.params[id.index()].dims.clone();
            if known != d.dims {
                let (a, b) = (self.show_dims(&known), self.show_dims(&d.dims));
                self.error(
                    Diagnostic::error("E0402", format!("parameter `{key}` is used at different dims"))
                        .at(name.span, format!("{a} in one call, {b} in another"))
                        .help("make an instance for each"),
                );
                return None;
            }
            return Some((id, read));
        }
        let param = Param {
            path: self.instance(owner).join(&key),
            dtype: if d.dtype == Some(DType::F64) { DType::F64 } else { self.single() },
            dims: d.dims.clone(),
            map: d.map.clone(),
            span: Some(name.span),
        };
        let (path, dtype) = (param.path.clone(), param.dtype);
        let id = self.b.add_param(param.clone());
        self.init.add_param(param);
        self.instance(owner).params.insert(key, id);
        let fans = d.map.as_ref().map(|(i, o)| (self.size_const(i), self.size_const(o)));
        self.initial(init, &d, dtype, &path, fans, OutputKind::InitParam(id));
        Some((id, read))
    }

    pub fn declare_state(&mut self, name: &'a Name, ty: &'a ast::Type, init: &'a Expr) -> Option<(StateId, DType)> {
        let owner = self.owner(name.span, "states")?;
        let body = self.frame().body;
        if matches!(body, Body::Sample | Body::Init) {
            self.not_here(name.span, "states belong to layers, models and optimizers");
            return None;
        }
        let mut d = self.declared(ty)?;
        let dtype = d.dtype.unwrap_or(self.single());
        let key = self.frame().with_turns(&name.text);
        if let Some(id) = self.instance(owner).states.get(&key).copied() {
            return Some((id, dtype));
        }
        let (path, kind) = if body == Body::Optimizer {
            let mapped: Vec<DimId> = self.frame().mapped.clone();
            d.dims.splice(0..0, mapped.into_iter().filter(|m| !d.dims.contains(m)).collect::<Vec<_>>());
            let optimizer = self.frame().name.clone();
            (format!("{optimizer}.{key}:{}", self.instance(owner).path), StateKind::Optimizer)
        } else {
            (self.instance(owner).join(&key), StateKind::Model)
        };
        let state = State { path: path.clone(), dtype, dims: d.dims.clone(), kind, span: Some(name.span) };
        let id = self.b.add_state(state.clone());
        self.init.add_state(state);
        self.instance(owner).states.insert(key, id);
        self.initial(init, &d, dtype, &path, None, OutputKind::InitState(id));
        Some((id, dtype))
    }

    /// Evaluates an initial value in the graph of initial values; its random stream is the parameter's path.
    pub(super) fn initial(
        &mut self,
        init: &'a Expr,
        d: &Declared,
        dtype: DType,
        path: &str,
        fans: Option<(Const, Const)>,
        kind: OutputKind,
    ) {
        let single = self.single();
        let precision = std::mem::replace(&mut self.precision, single);
        std::mem::swap(&mut self.b, &mut self.init);
        let reads = std::mem::take(&mut self.reads);
        let scans = std::mem::take(&mut self.scans);
        let frame = self.frame();
        let saved = (frame.body, frame.float, std::mem::replace(&mut frame.stream, path.to_string()));
        let turns = std::mem::take(&mut frame.turns);
        let rest = frame.rest.replace(d.dims.clone());
        frame.body = Body::Init;
        frame.float = single;
        frame.outer = frame.scopes.len();
        let scope = std::mem::replace(&mut frame.scope, crate::ir::ROOT);
        let mut names = IndexMap::new();
        for (n, c) in ["fan_in", "fan_out"].iter().zip(fans.map(|(a, b)| [a, b]).into_iter().flatten()) {
            let local = Local { val: Val::Const(c), span: init.span, used: true, scan_depth: 0 };
            names.insert(n.to_string(), local);
        }
        frame.scopes.push(names);

        self.in_initial = true;
        let dims = [d.dims.clone()];
        let val = self.value_as(init, Some(&dims));
        self.in_initial = false;
        let typed = Declared { dtype: Some(dtype), ..d.clone() };
        let val = self.widen(val, &typed, init.span);
        let val = match val {
            Val::Const(c) => self.as_tensor(&Val::Const(c), dtype).map_or(Val::Error, Val::Tensor),
            v => v,
        };
        if let Val::Tensor(v) = val {
            self.b.output(kind, path, v);
        }

        let frame = self.frame();
        frame.scopes.pop();
        frame.outer = 0;
        frame.scope = scope;
        (frame.body, frame.float, frame.stream) = saved;
        frame.turns = turns;
        frame.rest = rest;
        self.reads = reads;
        self.scans = scans;
        std::mem::swap(&mut self.b, &mut self.init);
        self.precision = precision;
        // Dims may have been added while the graphs were swapped.
        let (a, b) = (self.b.graph.dims.len(), self.init.graph.dims.len());
        debug_assert_eq!(a, b);
    }

    pub(super) fn update(&mut self, name: &'a Name, value: &'a Expr) {
        let Some(owner) = self.frame().instance.filter(|_| !self.in_initial) else {
            self.not_here(name.span, "`update` belongs to the layer that has the state");
            return;
        };
        if !self.scans.is_empty() {
            self.not_here(name.span, "`update` inside a `scan` has no single value for the step");
            return;
        }
        let key = self.frame().with_turns(&name.text);
        let Some(id) = self.instance(owner).states.get(&key).copied() else {
            let names: Vec<String> = self.instance(owner).states.keys().cloned().collect();
            let d = Diagnostic::error("E0404", format!("`{}` is no state of this layer", name.text))
                .at(name.span, "nothing to update");
            self.error(match did_you_mean(&name.text, names.iter().map(String::as_str)) {
                Some(n) => d.help(format!("did you mean `{n}`?")),
                None => d.help(format!(
                    "declare it: `state {}: .. = ..`; a variable is rebound without `update`",
                    name.text
                )),
            });
            return;
        };
        if !self.mode.training {
            self.mark_used_expr(value);
            return;
        }
        if let Some(first) = self.instance(owner).updates.get(&key).copied() {
            self.error(
                Diagnostic::error("E0404", format!("state `{}` is updated twice in a step", name.text))
                    .at(name.span, "updated again here")
                    .and(first, "first updated here")
                    .help("an instance with an `update` is called once a step; make two instances"),
            );
            return;
        }
        self.instance(owner).updates.insert(key, name.span);
        let state = self.b.graph.states[id.index()].clone();
        let dims = [state.dims.clone()];
        let val = self.value_as(value, Some(&dims));
        let d =
            Declared { dtype: Some(state.dtype), dims: state.dims.clone(), rest: false, map: None, span: name.span };
        let val = match self.widen(val, &d, value.span) {
            Val::Const(c) => self.as_tensor(&Val::Const(c), state.dtype).map_or(Val::Error, Val::Tensor),
            v => v,
        };
        if let Val::Tensor(v) = val {
            self.b.span = Some(name.span);
            self.b.output(OutputKind::State(id), &state.path, v);
        }
    }
}
