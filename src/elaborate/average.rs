//! What a train step keeps beside its parameters: averages of weights, and the scale of a loss in f16.

use super::call::GivenArg;
use super::value::{Bound, Val};
use super::{Elab, ReadKey};
use crate::diag::Diagnostic;
use crate::ir::{OutputKind, ParamId, State, StateKind, ValueId};
use crate::resolve::Entity;
use crate::syntax::ast::{DefKind, Expr, ExprKind};
use crate::types::{DType, MapOp};

/// Loss scaling of `precision f16`: first scale, factor up after so many good steps, factor down at an overflow
/// (Micikevicius et al., "Mixed Precision Training", 2018).
pub(super) const FIRST_SCALE: f64 = 65536.0;
const GROWTH_STEPS: f64 = 2000.0;

impl<'a> Elab<'a> {
    /// A second set of weights: state, from the initial weight on.
    pub(super) fn average(
        &mut self,
        call: &'a Expr,
        p: ParamId,
        new: ValueId,
    ) -> Option<(ParamId, crate::ir::StateId)> {
        let param = self.b.graph.params[p.index()].clone();
        let state = State {
            path: format!("average:{}", param.path),
            dtype: param.dtype,
            dims: param.dims.clone(),
            kind: StateKind::Average,
            span: Some(call.span),
        };
        let id = self.b.add_state(state.clone());
        self.init.add_state(state.clone());
        let first = self.init.graph.outputs.iter().find(|o| o.kind == OutputKind::InitParam(p)).map(|o| o.value)?;
        self.init.output(OutputKind::InitState(id), &state.path, first);
        let ExprKind::Call { callee, args } = &*call.kind else {
            self.error(
                Diagnostic::error("E0710", "`average` needs a call")
                    .at(call.span, "not a call")
                    .help("write `average ema(decay = 0.999)`"),
            );
            return None;
        };
        let def = match &*callee.kind {
            ExprKind::Name(n) => match self.entity(crate::resolve::MAIN, n) {
                Some(Entity::Def(at)) if self.program.def(at).kind == DefKind::Fn => at,
                _ => {
                    self.unknown_name(n, callee.span);
                    return None;
                }
            },
            _ => return None,
        };
        let old = self.read(ReadKey::State(id), param.dtype);
        let mut given = vec![
            GivenArg { name: None, val: Val::Tensor(old), span: call.span },
            GivenArg { name: None, val: Val::Tensor(new), span: call.span },
        ];
        given.extend(self.given(args));
        let bound = Bound { def, statics: Vec::new(), span: callee.span };
        match self.call_def(bound, given, None, call.span) {
            Val::Tensor(v) => {
                let v = self.b.cast(v, param.dtype);
                self.b.output(OutputKind::State(id), &state.path, v);
                Some((p, id))
            }
            _ => None,
        }
    }

    pub(super) fn scale_state(&mut self, name: &str, first: f64, dtype: DType) -> (crate::ir::StateId, ValueId) {
        let state = State { path: name.to_string(), dtype, dims: vec![], kind: StateKind::Scaling, span: None };
        let id = self.b.add_state(state.clone());
        self.init.add_state(state);
        let v = self.init.scalar(first, dtype);
        self.init.output(OutputKind::InitState(id), name, v);
        (id, self.read(ReadKey::State(id), dtype))
    }

    /// A step with an infinite or NaN gradient changes nothing.
    pub(super) fn guard_updates(&mut self, from: usize, finite: ValueId) {
        for k in 0..self.b.graph.outputs.len() {
            let out = self.b.graph.outputs[k].clone();
            let old = match out.kind {
                OutputKind::Param(p) if k >= from => {
                    let t = self.b.graph.params[p.index()].dtype;
                    self.read(ReadKey::Param(p), t)
                }
                OutputKind::State(s) => {
                    let t = self.b.graph.states[s.index()].dtype;
                    self.read(ReadKey::State(s), t)
                }
                _ => continue,
            };
            let kept = self.b.select(finite, out.value, old);
            self.b.graph.outputs[k].value = kept;
        }
    }

    pub(super) fn next_scale(&mut self, id: crate::ir::StateId, scale: ValueId, finite: ValueId) {
        let single = self.single();
        let (good_id, good) = self.scale_state("good_steps", 0.0, single);
        let counted = self.b.map_scalar(MapOp::Add, good, 1.0);
        let limit = self.b.scalar(GROWTH_STEPS, single);
        let grow = self.b.map(MapOp::Ge, &[counted, limit]);
        let zero = self.b.scalar(0.0, single);
        let up = self.b.map_scalar(MapOp::Mul, scale, 2.0);
        let grown = self.b.select(grow, up, scale);
        let down = self.b.map_scalar(MapOp::Mul, scale, 0.5);
        let next = self.b.select(finite, grown, down);
        let restart = self.b.select(grow, zero, counted);
        let good_next = self.b.select(finite, restart, zero);
        self.b.output(OutputKind::State(id), "loss_scale", next);
        self.b.output(OutputKind::State(good_id), "good_steps", good_next);
        self.b.output(OutputKind::Metric, "loss_scale", scale);
        let one = self.b.scalar(1.0, single);
        let skipped = self.b.select(finite, zero, one);
        self.b.output(OutputKind::Metric, "skipped", skipped);
    }
}
