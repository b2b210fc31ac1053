//! Loops: `for` is unrolled with a constant turn; `scan` is a loop at run time with carried variables.

use super::Elab;
use super::dims::last;
use super::frame::{Body, Local};
use super::ordinals;
use super::value::Val;
use crate::check::constant::Const;
use crate::diag::Diagnostic;
use crate::ir::{DimId, Operation, Scope, ValueId};
use crate::source::Span;
use crate::syntax::ast::{Block, Expr, ExprKind, LoopKind, LoopRange, Name};
use crate::types::DType;
use indexmap::IndexMap;

impl<'a> Elab<'a> {
    /// A loop; `want`: its collected value is used.
    pub fn run_loop(&mut self, e: &'a Expr, want: bool) -> Val {
        let ExprKind::For { kind, var, reverse, over, body } = &*e.kind else { return Val::Error };
        match (kind, over) {
            (LoopKind::For, LoopRange::Range(lo, hi)) => {
                let (Some(a), Some(b)) = (self.constant(lo), self.constant(hi)) else { return Val::Error };
                let (a, b) = match (a.as_int(), b.as_int()) {
                    (Some(a), Some(b)) => (a, b),
                    _ if a == Const::Unknown || b == Const::Unknown => (0, 1),
                    _ => {
                        self.error(
                            Diagnostic::error("E0312", "a range goes over whole numbers")
                                .at(lo.span.to(hi.span), "not whole")
                                .help("write whole numbers: `0..4`"),
                        );
                        return Val::Error;
                    }
                };
                self.unroll(var, a, b, *reverse, body, None, want, e.span)
            }
            (LoopKind::For, LoopRange::Dim(name)) => {
                if self.loop_over_value(name) {
                    return Val::Error;
                }
                let Some(set) = self.dim(name) else { return Val::Error };
                let n = self.b.graph.elements(&set.ids) as i64;
                let (n, open) = if self.is_opaque(&set.ids) { (1, true) } else { (n, false) };
                let dim = (set.ids.len() == 1 && !open).then(|| set.ids[0]);
                if let (Some(d), Body::Model) = (dim, self.frame().body) {
                    self.loop_dims.entry(d).or_insert(name.span);
                }
                self.unroll(var, 0, n, *reverse, body, dim, want, e.span)
            }
            (LoopKind::Scan, LoopRange::Dim(name)) => {
                let Some(set) = self.dim(name) else { return Val::Error };
                let [dim] = set.ids[..] else {
                    self.error(
                        Diagnostic::error("E0206", "`scan` goes over one dim")
                            .at(name.span, "a group")
                            .help("merge its dims first"),
                    );
                    return Val::Error;
                };
                self.scan_loop(var, dim, *reverse, body, want, e.span)
            }
            (LoopKind::Scan, LoopRange::Range(lo, hi)) => {
                self.error(
                    Diagnostic::error("E0206", "`scan` goes over a dim")
                        .at(lo.span.to(hi.span), "a range")
                        .help("declare a dim of that size; `for` takes ranges"),
                );
                Val::Error
            }
        }
    }

    /// `for l in net`, a value in the place of a dim; reports it.
    fn loop_over_value(&mut self, name: &Name) -> bool {
        if self.dim_opt(&name.text).is_some() {
            return false;
        }
        let Some(val) = self.frame().lookup(&name.text) else { return false };
        if val.is_error() {
            return true;
        }
        let d = Diagnostic::error("E0206", format!("`{}` is {}, not a dim", name.text, val.kind()))
            .at(name.span, "a loop runs over a dim or a range");
        self.error(match &val {
            Val::Const(c) if c.is_int() => d.help(format!("write `for i in 0..{} {{..}}`", name.text)),
            _ => d.help("layers in a row are made by a loop: `for i in depth { h = Block[..](h) }`"),
        });
        true
    }

    /// What stands in a loop's body itself gets a scope that knows the turn, as the layers that are called there do.
    fn mark_turn(&mut self, first: usize) {
        let (scope, turns) = (self.frame().scope, self.frame().model_turns.clone());
        let is_own = |op: &Operation| op.scope == scope;
        if turns.is_empty() || !self.b.graph.ops[first..].iter().any(is_own) {
            return;
        }
        let own = Scope { parent: Some(scope), turns, ..self.b.graph.scopes[scope.index()].clone() };
        let own = self.b.add_scope(own);
        self.b.graph.ops[first..].iter_mut().filter(|op| is_own(op)).for_each(|op| op.scope = own);
    }

    #[allow(clippy::too_many_arguments)]
    fn unroll(
        &mut self,
        var: &'a Name,
        lo: i64,
        hi: i64,
        reverse: bool,
        body: &'a Block,
        dim: Option<DimId>,
        want: bool,
        span: Span,
    ) -> Val {
        if !self.few_turns(lo, hi, span) {
            return Val::Error;
        }
        let mut collected = Vec::new();
        for k in 0..(hi - lo).max(0) {
            if !self.spend_turn(span) {
                return Val::Error;
            }
            let turn = if reverse { hi - 1 - k } else { lo + k };
            let errors = self.sink.error_count();
            self.frame().scopes.push(IndexMap::new());
            self.frame().turns.push(turn.to_string());
            let c = if dim.is_some_and(|d| self.is_opaque(&[d])) { Const::Unknown } else { Const::int(turn) };
            self.define(var, Val::Const(c), true);
            let around = self.frame().model_turns.len();
            if let (Some(d), Body::Model) = (dim, self.frame().body) {
                self.frame().model_turns.push((d, turn as u32));
            }
            let first = self.b.graph.ops.len();
            let val = self.scoped_block(body, None);
            self.mark_turn(first);
            self.frame().model_turns.truncate(around);
            self.frame().turns.pop();
            self.frame().scopes.pop();
            if self.too_large {
                return Val::Error;
            }
            match val {
                Val::Nothing => {}
                v => collected.push(v),
            }
            // Further turns would only repeat the errors of this one.
            if self.sink.error_count() > errors {
                return Val::Error;
            }
        }
        let Some(first) = collected.first() else { return Val::Nothing };
        if !want || dim.is_none() {
            let (what, at) = (first.kind(), body.stmts.last().map_or(body.span, |s| s.span));
            self.error(
                Diagnostic::error("E0406", "the loop's value is computed and dropped")
                    .at(at, format!("{what} in each turn"))
                    .help("a `for` over a dim gives its body's values along the dim; use it, or end the body with `name = ..`"),
            );
            return Val::Error;
        }
        let dim = dim.expect("checked above");
        self.stack_values(dim, collected, reverse, span)
    }

    fn stack_values(&mut self, dim: DimId, mut collected: Vec<Val>, reverse: bool, span: Span) -> Val {
        if reverse {
            collected.reverse();
        }
        let dtype = self.common_type(&collected);
        let mut values: Vec<ValueId> = Vec::new();
        for v in &collected {
            match self.as_tensor(v, dtype) {
                Some(v) => values.push(v),
                None => {
                    self.error(
                        Diagnostic::error("E0206", "a loop collects values")
                            .at(span, format!("its body gives {}", v.kind()))
                            .help("end the body with a value, or use the loop as a statement"),
                    );
                    return Val::Error;
                }
            }
        }
        let dims = self.b.union(&values);
        if dims.contains(&dim) {
            let name = last(&self.dim_name(dim)).to_string();
            self.error(
                Diagnostic::error("E0303", format!("the loop's value has dim `{name}` already"))
                    .at(span, format!("collecting adds `{name}` again"))
                    .help("rename or reduce that dim in the body's last value"),
            );
            return Val::Error;
        }
        self.b.span = Some(span);
        let values: Vec<ValueId> = values.into_iter().map(|v| self.b.broadcast(v, &dims)).collect();
        Val::Tensor(self.b.stack(dim, &values))
    }

    /// The widest element type of several values.
    pub fn common_type(&self, vals: &[Val]) -> DType {
        vals.iter()
            .map(|v| match v {
                Val::Tensor(t) => self.b.dtype(*t),
                Val::Const(Const::Bool(_)) => DType::Bool,
                Val::Const(c) if c.is_int() => DType::I32,
                _ => self.single(),
            })
            .max()
            .unwrap_or(self.single())
    }

    fn scan_loop(&mut self, var: &'a Name, dim: DimId, reverse: bool, body: &'a Block, want: bool, span: Span) -> Val {
        // Carried: outer variables that the body rebinds.
        let mut names: Vec<String> = Vec::new();
        for n in ordinals::rebound(body) {
            // What an initial value may not rebind is reported where it is rebound.
            let inside = self.frame().outside(&n).is_none();
            if inside && self.frame().find(&n).is_some_and(|l| matches!(l.val, Val::Tensor(_) | Val::Const(_))) {
                names.push(n);
            }
        }
        let mut types: Vec<Option<DType>> = vec![None; names.len()];
        // A carry takes the wider type of its first value and of what a turn gives: at most two widenings.
        for _ in 0..4 {
            // The copies below cost time too.
            let size = self.b.graph.ops.len() + self.init.graph.ops.len();
            if !self.spend(size as u64 / 4, span) {
                return Val::Error;
            }
            let saved = (self.b.clone(), self.init.clone(), self.instances.clone(), self.reads.clone());
            let frame = self.frame().clone();
            match self.try_scan(var, dim, reverse, body, want, span, &names, &types) {
                Ok(val) => return val,
                Err(wider) => {
                    (self.b, self.init, self.instances, self.reads) = saved;
                    *self.frame() = frame;
                    types = wider;
                }
            }
        }
        Val::Error
    }

    #[allow(clippy::too_many_arguments)]
    fn try_scan(
        &mut self,
        var: &'a Name,
        dim: DimId,
        reverse: bool,
        body: &'a Block,
        want: bool,
        span: Span,
        names: &[String],
        types: &[Option<DType>],
    ) -> Result<Val, Vec<Option<DType>>> {
        self.b.span = Some(span);
        let mut initial = Vec::new();
        for (n, t) in names.iter().zip(types) {
            let val = self.frame().lookup(n).expect("looked up before");
            let natural = self.common_type(std::slice::from_ref(&val));
            match self.as_tensor(&val, t.unwrap_or(natural)) {
                Some(v) => initial.push(v),
                None => return Ok(Val::Error),
            }
        }
        let loop_frame = self.b.begin_loop(dim, reverse, &initial);
        let turn = loop_frame.turn;
        self.scans.push(turn);
        let depth = self.scans.len();
        for (n, c) in names.iter().zip(&loop_frame.carries) {
            let local = self.frame().find(n).expect("looked up before");
            local.val = Val::Tensor(*c);
            local.scan_depth = depth;
        }
        self.frame().scopes.push(IndexMap::new());
        let errors = self.sink.error_count();
        self.define(var, Val::Tensor(turn), true);
        let val = self.scoped_block(body, None);
        self.frame().scopes.pop();

        let mut next = Vec::new();
        let mut wider: Vec<Option<DType>> = types.to_vec();
        let mut restart = false;
        for (i, (n, c)) in names.iter().zip(&loop_frame.carries).enumerate() {
            let now = self.frame().lookup(n).expect("looked up before");
            let have = self.b.dtype(*c);
            let want = self.common_type(std::slice::from_ref(&now)).max(have);
            if want != have {
                wider[i] = Some(want);
                restart = true;
            }
            next.push(self.as_tensor(&now, want).unwrap_or(*c));
        }
        let collected: Vec<ValueId> = match &val {
            Val::Tensor(v) => vec![*v],
            Val::Const(_) => {
                let t = self.common_type(std::slice::from_ref(&val));
                self.as_tensor(&val, t).into_iter().collect()
            }
            _ => vec![],
        };
        let bad = collected.iter().any(|v| self.b.dims(*v).contains(&dim));
        let collected = if bad || !want { vec![] } else { collected };
        self.scans.pop();
        // A value that failed was reported, perhaps before the loop.
        let lost = val.is_error() || names.iter().any(|n| self.frame().lookup(n).is_some_and(|v| v.is_error()));
        let failed = lost || self.sink.error_count() > errors;
        if restart && !failed {
            return Err(wider);
        }
        self.b.span = Some(span);
        let (finals, stacked) = self.b.end_loop(loop_frame, &next, &collected);
        for (n, v) in names.iter().zip(finals) {
            let depth = self.scans.len();
            let local: &mut Local = self.frame().find(n).expect("looked up before");
            local.val = if failed { Val::Error } else { Val::Tensor(v) };
            local.scan_depth = depth;
        }
        if failed {
            return Ok(Val::Error);
        }
        if bad {
            let name = last(&self.dim_name(dim)).to_string();
            self.error(
                Diagnostic::error("E0303", format!("the loop's value has dim `{name}` already"))
                    .at(span, format!("collecting adds `{name}` again"))
                    .help("rename or reduce that dim in the body's last value"),
            );
            return Ok(Val::Error);
        }
        if !want && !matches!(val, Val::Nothing) {
            let at = body.stmts.last().map_or(body.span, |s| s.span);
            self.error(
                Diagnostic::error("E0406", "the loop's value is computed and dropped")
                    .at(at, "a value in each turn")
                    .help("a `scan` gives its body's values along the dim; use it, or end the body with `name = ..`"),
            );
            return Ok(Val::Error);
        }
        Ok(stacked.first().map_or(Val::Nothing, |v| Val::Tensor(*v)))
    }
}
