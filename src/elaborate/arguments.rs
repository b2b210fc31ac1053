//! Arguments and results of a call: which argument is which, their dims and types, what comes back.

use super::Elab;
use super::call::GivenArg;
use super::dims::last;
use super::value::{Bound, Declared, StaticVal, Val};
use crate::check::constant::Const;
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::{DimId, ValueId};
use crate::source::Span;
use crate::syntax::ast::{self, Arg};
use crate::types::{DType, counted};

impl<'a> Elab<'a> {
    /// Arguments in the order of the signature; None where the default holds.
    pub(super) fn match_args(
        &mut self,
        def: &'a ast::Def,
        given: Vec<GivenArg>,
        site: Span,
    ) -> Option<Vec<Option<GivenArg>>> {
        self.match_arg_list(&def.args, given, site, &def.name.text, def.head)
    }

    pub fn match_arg_list(
        &mut self,
        args: &'a [Arg],
        given: Vec<GivenArg>,
        site: Span,
        name: &str,
        head: Span,
    ) -> Option<Vec<Option<GivenArg>>> {
        let mut out: Vec<Option<GivenArg>> = args.iter().map(|_| None).collect();
        let mut next = 0;
        let mut good = true;
        for g in given {
            let slot = match &g.name {
                None => {
                    next += 1;
                    if next > args.len() {
                        self.error(
                            Diagnostic::error("E0314", format!("`{name}` takes {}", counted(args.len(), "argument")))
                                .at(g.span, "one too many")
                                .and(head, "its signature")
                                .help("take it away, or give an argument by its name: `name = value`"),
                        );
                        good = false;
                        continue;
                    }
                    next - 1
                }
                Some(n) => match args.iter().position(|a| a.name.text == n.text) {
                    Some(i) => i,
                    None => {
                        let near = did_you_mean(&n.text, args.iter().map(|a| a.name.text.as_str()));
                        let d = Diagnostic::error("E0201", format!("`{name}` has no argument `{}`", n.text))
                            .at(n.span, "unknown argument")
                            .and(head, "its signature");
                        self.error(match near {
                            _ if super::habits::AXES.contains(&n.text.as_str()) => {
                                d.help(format!("dims are named in brackets: `{name}[dim](x)`"))
                            }
                            Some(x) => d.help(format!("did you mean `{x}`?")),
                            None => {
                                let names: Vec<&str> = args.iter().map(|a| a.name.text.as_str()).collect();
                                d.help(format!("its arguments: {}; settings stand in brackets", names.join(", ")))
                            }
                        });
                        good = false;
                        continue;
                    }
                },
            };
            if out[slot].is_some() {
                let n = args[slot].name.text.clone();
                self.error(
                    Diagnostic::error("E0314", format!("argument `{n}` is given twice"))
                        .at(g.span, "a second time")
                        .help("take one of them away; a value without a name takes the next place in the signature"),
                );
                good = false;
                continue;
            }
            out[slot] = Some(g);
        }
        for (a, o) in args.iter().zip(&out) {
            if o.is_none() && a.default.is_none() && good {
                self.error(
                    Diagnostic::error("E0314", format!("`{name}` needs its argument `{}`", a.name.text))
                        .at(site, format!("no value for `{}`", a.name.text))
                        .and(head, "its signature")
                        .help(format!("give it, by place or as `{} = ..`", a.name.text)),
                );
                good = false;
            }
        }
        good.then_some(out)
    }

    /// Checks and converts arguments, finds what `..` and the signature's float type stand for, and binds the names.
    pub fn bind_args(
        &mut self,
        args: &'a [Arg],
        given: Vec<Option<GivenArg>>,
        bound: &Bound,
        site: Span,
    ) -> Option<()> {
        let own: Vec<DimId> = (bound.statics.iter())
            .filter_map(|(_, v)| match v {
                StaticVal::Dim(s) => Some(s.ids.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        let mut good = true;
        let mut types: Vec<Option<Declared>> = Vec::new();
        for a in args {
            let t = self.declared(&a.ty);
            good &= t.is_some();
            types.push(t);
        }
        if !good {
            return None;
        }
        // First the dims: what is missing, what `..` takes.
        let mut rest: Vec<DimId> = Vec::new();
        let mut floats: Vec<DType> = Vec::new();
        for ((a, g), t) in args.iter().zip(&given).zip(types.iter().flatten()) {
            let Some(g) = g else { continue };
            match &g.val {
                Val::Tensor(v) => {
                    let dims = self.b.dims(*v).to_vec();
                    good &= self.argument_dims(a, t, &dims, g.span).is_some();
                    if t.rest {
                        for d in dims.iter().filter(|d| !t.dims.contains(d) && !own.contains(d)) {
                            if !rest.contains(d) {
                                rest.push(*d);
                            }
                        }
                    }
                    if t.dtype.is_none() && a.ty.dtype.is_none() && self.b.dtype(*v).is_float() {
                        floats.push(self.b.dtype(*v));
                    }
                }
                Val::Const(_) => {}
                Val::Error => good = false,
                other => {
                    let what = other.kind();
                    self.error(
                        Diagnostic::error("E0206", format!("argument `{}` is a value", a.name.text))
                            .at(g.span, format!("this is {what}"))
                            .help("call the instance, or take the tuple apart by `let (a, b) = ..`"),
                    );
                    good = false;
                }
            }
        }
        if !good {
            return None;
        }
        let float = floats.into_iter().max().unwrap_or(self.precision);
        self.frame().float = float;
        self.frame().rest = Some(rest);
        for ((a, g), t) in args.iter().zip(given).zip(types.into_iter().flatten()) {
            let (val, span) = match g {
                Some(g) => (g.val, g.span),
                None => match &a.default {
                    Some(d) => (self.value(d), d.span),
                    None => (Val::Error, site),
                },
            };
            let val = self.convert_argument(a, &t, val, span)?;
            self.define(&a.name, val, true);
        }
        Some(())
    }

    pub(super) fn argument_dims(&mut self, a: &Arg, t: &Declared, dims: &[DimId], span: Span) -> Option<()> {
        let missing: Vec<DimId> = t.dims.iter().copied().filter(|d| !dims.contains(d)).collect();
        let mapped = self.frame().mapped.clone();
        let extra: Vec<DimId> = dims.iter().copied().filter(|d| !t.dims.contains(d) && !mapped.contains(d)).collect();
        if (missing.is_empty() || dims.is_empty()) && (t.rest || extra.is_empty()) {
            return Some(());
        }
        let has = self.show_dims(dims);
        let d = if !missing.is_empty() && !dims.is_empty() {
            let m = self.show_dims(&missing);
            Diagnostic::error("E0307", format!("argument `{}` lacks {m}", a.name.text))
        } else {
            let x = self.show_dims(&extra);
            Diagnostic::error("E0307", format!("argument `{}` has {x} beyond the declared dims", a.name.text))
        };
        let cure = match (missing.as_slice(), extra.as_slice()) {
            ([m], [x]) => format!(
                "rename the dim where you call: `value[{} -> {}]`",
                last(&self.dim_name(*x)),
                last(&self.dim_name(*m))
            ),
            _ => "rename or reduce dims so that they match the signature".to_string(),
        };
        self.error(d.at(span, format!("this has {has}")).and(t.span, "declared here").help(cure));
        None
    }

    /// The argument in its declared type. Scalar constants stay constants, so that neutral defaults fold away.
    pub(super) fn convert_argument(&mut self, a: &Arg, t: &Declared, val: Val, span: Span) -> Option<Val> {
        let target = match (t.dtype, a.ty.dtype) {
            (Some(d), _) => d,
            (None, _) => self.frame().float,
        };
        match val {
            Val::Const(c) => {
                let c = self.constant_as(c, target, span)?;
                if t.dims.is_empty() {
                    return Some(Val::Const(c));
                }
                let v = self.as_tensor(&Val::Const(c), target)?;
                self.b.span = Some(span);
                Some(Val::Tensor(self.b.broadcast(v, &t.dims)))
            }
            Val::Tensor(v) => {
                self.b.span = Some(span);
                let v = self.convert(v, target, span)?;
                Some(Val::Tensor(self.b.broadcast(v, &t.dims)))
            }
            _ => None,
        }
    }

    /// A constant as a value of a declared element type.
    pub fn constant_as(&mut self, c: Const, target: DType, span: Span) -> Option<Const> {
        let ok = match (&c, target) {
            (Const::Unknown, _) => Some(Const::Unknown),
            (Const::Bool(_), DType::Bool) => Some(c.clone()),
            (_, DType::Bool) => None,
            (Const::Bool(b), DType::I32) => Some(Const::int(i64::from(*b))),
            (_, DType::I32) => c.as_int().filter(|n| i32::try_from(*n).is_ok()).map(Const::int),
            (Const::Bool(b), _) => Some(Const::Float(f64::from(u8::from(*b)))),
            _ => c.as_f64().map(Const::Float),
        };
        if ok.is_none() {
            self.error(
                Diagnostic::error("E0309", format!("{} where {target} is declared", c.kind()))
                    .at(span, format!("this is {c}"))
                    .help("write a constant of the declared type"),
            );
        }
        ok
    }

    /// Conversion to a declared element type: int and bool to a float, float to another float, bool to int; never a float
    /// to int or bool.
    pub fn convert(&mut self, v: ValueId, target: DType, span: Span) -> Option<ValueId> {
        let own = self.b.dtype(v);
        let fine = own == target || target.is_float() || (own == DType::Bool && target == DType::I32);
        if fine {
            return Some(self.b.cast(v, target));
        }
        let cure = match target {
            DType::I32 => "convert towards zero: `int(x)`",
            _ => "compare it: `x != 0`",
        };
        self.error(
            Diagnostic::error("E0309", format!("{own} where {target} is declared"))
                .at(span, format!("this is {own}"))
                .help(cure),
        );
        None
    }

    /// The body's value in the declared result type.
    pub fn result(&mut self, val: Val, declared: &[Declared], def: &'a ast::Def) -> Val {
        let span = def.body.stmts.last().map_or(def.body.span, |s| s.span);
        if val.is_error() {
            return Val::Error;
        }
        if !def.tuple {
            return self.one_result(val, &declared[0], span);
        }
        match val {
            Val::Tuple(vals) if vals.len() == declared.len() => {
                let out: Vec<Val> = vals.into_iter().zip(declared).map(|(v, d)| self.one_result(v, d, span)).collect();
                if out.iter().any(Val::is_error) { Val::Error } else { Val::Tuple(out) }
            }
            Val::Tuple(vals) => {
                self.not_as_declared(&format!("a tuple of {}", vals.len()), span, def.head);
                Val::Error
            }
            other => {
                let what = other.kind();
                self.not_as_declared(what, span, def.head);
                Val::Error
            }
        }
    }

    pub(super) fn not_as_declared(&mut self, what: &str, span: Span, head: Span) {
        self.error(
            Diagnostic::error("E0308", "the result is not as declared")
                .at(span, format!("this gives {what}"))
                .and(head, "declared here")
                .help("the last statement of a body is its value"),
        );
    }

    /// A constant as a value of the declared dims: itself where there are none.
    pub(super) fn filled(&mut self, c: Const, target: DType, d: &Declared, span: Span) -> Val {
        match self.constant_as(c, target, span) {
            Some(c) if d.dims.is_empty() => Val::Const(c),
            Some(c) => match self.as_tensor(&Val::Const(c), target) {
                Some(v) => Val::Tensor(self.b.broadcast(v, &d.dims)),
                None => Val::Error,
            },
            None => Val::Error,
        }
    }

    pub fn one_result(&mut self, val: Val, d: &Declared, span: Span) -> Val {
        let target = d.dtype.unwrap_or(self.frame().float);
        self.b.span = Some(span);
        match val {
            Val::Const(c) => self.filled(c, target, d, span),
            Val::Tensor(v) => {
                let dims = self.b.dims(v).to_vec();
                let mapped = self.frame().mapped.clone();
                let same = d.dims.iter().all(|x| dims.contains(x))
                    && dims.iter().all(|x| d.dims.contains(x) || mapped.contains(x));
                if !same && !dims.is_empty() {
                    let (has, want) = (self.show_dims(&dims), self.show_dims(&d.dims));
                    self.error(
                        Diagnostic::error("E0308", "the result is not as declared")
                            .at(span, format!("this has {has}"))
                            .and(d.span, format!("declared as {want}"))
                            .help("a body's value has exactly the declared dims"),
                    );
                    return Val::Error;
                }
                match self.convert(v, target, span) {
                    Some(v) => Val::Tensor(self.b.broadcast(v, &d.dims)),
                    None => Val::Error,
                }
            }
            Val::Error => Val::Error,
            other => {
                let what = other.kind();
                self.not_as_declared(what, span, d.span);
                Val::Error
            }
        }
    }
}
