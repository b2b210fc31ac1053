//! Operations of the language: which names there are, and how their brackets and arguments are read.

mod contract;
mod order;
mod random;
mod reduce;
mod shape;

use super::value::{Ev, Val};
use super::{Elab, habits};
use crate::check::constant::{self, Const};
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::{DimId, ValueId};
use crate::source::Span;
use crate::syntax::ast::{CallArg, Expr, Group, IndexItem, IndexKind, Name, TypeName};
use crate::types::{DType, MapOp};

/// Every operation by name.
pub const NAMES: &[&str] = &[
    "exp",
    "expm1",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "square",
    "abs",
    "sign",
    "tanh",
    "sigmoid",
    "softplus",
    "erf",
    "sin",
    "cos",
    "floor",
    "ceil",
    "round",
    "max",
    "min",
    "clamp",
    "where",
    "floor_div",
    "ceil_div",
    "round_up",
    "ragged",
    "sum",
    "mean",
    "prod",
    "any",
    "all",
    "argmax",
    "argmin",
    "logsumexp",
    "var",
    "dot",
    "concat",
    "cut",
    "stack",
    "pad",
    "flip",
    "shift",
    "window",
    "fold",
    "cumsum",
    "cumprod",
    "cummax",
    "linear_scan",
    "top_k",
    "sort",
    "pack",
    "unpack",
    "iota",
    "size",
    "uniform",
    "normal",
    "trunc_normal",
    "randint",
    "bernoulli",
    "draw",
    "stop_gradient",
];

/// Evaluated arguments of an operation.
pub struct Args {
    pub pos: Vec<Ev>,
    pub named: Vec<(Name, Ev)>,
    pub span: Span,
}

/// The operation being called: its name, brackets and places.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    pub name: &'a str,
    pub items: &'a [IndexItem],
    /// The whole call.
    pub span: Span,
    /// What stands before the parentheses.
    pub head: Span,
}

/// The settings that a builtin takes in its brackets.
fn settings_of(builtin: &str) -> &'static [&'static str] {
    match builtin {
        "draw" => &["top_k", "top_p"],
        "cumsum" | "cumprod" | "cummax" => &["exclusive", "reverse"],
        "pad" => &["before", "after", "value"],
        "shift" => &["by", "fill"],
        "window" | "fold" => &["stride", "dilation", "pad", "before", "after", "fill"],
        _ => &[],
    }
}

impl<'a> Elab<'a> {
    pub fn builtin(
        &mut self,
        name: &'a str,
        items: &'a [IndexItem],
        args: &'a [CallArg],
        call: &'a Expr,
        head: Span,
    ) -> Ev {
        let site = Site { name, items, span: call.span, head };
        let mut given = Args { pos: Vec::new(), named: Vec::new(), span: call.span };
        for a in args {
            let ev = self.eval(&a.value);
            match &a.name {
                Some(n) => given.named.push((n.clone(), ev)),
                None => given.pos.push(ev),
            }
        }
        if given.pos.iter().chain(given.named.iter().map(|n| &n.1)).any(|e| e.val.is_error()) {
            return Ev::error(call.span);
        }
        self.b.span = Some(call.span);
        let val = match name {
            "max" | "min" if items.is_empty() => return self.pointwise(site, given),
            "exp" | "expm1" | "log" | "log1p" | "sqrt" | "rsqrt" | "square" | "abs" | "sign" | "tanh" | "sigmoid"
            | "softplus" | "erf" | "sin" | "cos" | "floor" | "ceil" | "round" | "clamp" | "where" | "floor_div"
            | "ceil_div" | "round_up" => return self.pointwise(site, given),
            "iota" | "size" => {
                if !given.pos.is_empty() || !given.named.is_empty() {
                    self.arity(site, 0);
                    return Ev::error(call.span);
                }
                return self.builtin_leaf(name, items, call.span);
            }
            "ragged" => self.ragged(site, given),
            "stop_gradient" => self.one_value(site, &given).map(|v| Val::Tensor(self.b.stop_gradient(v))),
            "sum" | "mean" | "max" | "min" | "prod" | "any" | "all" | "argmax" | "argmin" | "logsumexp" | "var" => {
                self.reduction(site, given)
            }
            "dot" => self.dot_call(site, given),
            "concat" | "cut" | "stack" | "pad" | "flip" | "shift" | "window" | "fold" => self.shape_call(site, given),
            "cumsum" | "cumprod" | "cummax" | "linear_scan" | "top_k" | "sort" | "pack" | "unpack" => {
                self.order_call(site, given)
            }
            "uniform" | "normal" | "trunc_normal" | "randint" | "bernoulli" | "draw" => {
                self.random_call(site, given, call)
            }
            _ => None,
        };
        Ev::new(val.unwrap_or(Val::Error), call.span)
    }

    /// `iota[d]`, `size[dims]`, which take no arguments.
    pub fn builtin_leaf(&mut self, name: &str, items: &'a [IndexItem], span: Span) -> Ev {
        let site = Site { name: "", items, span, head: span };
        let Some(dims) = self.dim_list(site) else { return Ev::error(span) };
        if name == "size" {
            return Ev::new(Val::Const(self.size_const(&dims)), span);
        }
        if dims.is_empty() {
            self.error(
                Diagnostic::error("E0314", "`iota` needs a dim").at(span, "empty brackets").help("write `iota[dim]`"),
            );
            return Ev::error(span);
        }
        self.iota(&dims, span)
    }

    // ---- elementwise functions

    fn pointwise(&mut self, site: Site<'a>, args: Args) -> Ev {
        if let Some((n, _)) = args.named.first() {
            let span = n.span;
            self.error(
                Diagnostic::error("E0201", format!("`{}` has no argument `{}`", site.name, n.text))
                    .at(span, "unknown argument")
                    .help("its arguments are given by position"),
            );
            return Ev::error(site.span);
        }
        if !site.items.is_empty() {
            self.error(
                Diagnostic::error("E0314", format!("`{}` takes no brackets", site.name))
                    .at(site.items[0].span, "an elementwise function works on all dims")
                    .help(format!("write `{}(..)`", site.name)),
            );
            return Ev::error(site.span);
        }
        let consts: Option<Vec<Const>> = args
            .pos
            .iter()
            .map(|a| match &a.val {
                Val::Const(c) => Some(c.clone()),
                _ => None,
            })
            .collect();
        if let Some(consts) = consts
            && !(site.name == "erf" && consts.len() == 1)
        {
            return match constant::function(site.name, &consts) {
                Some(Ok(c)) => Ev::new(Val::Const(c), site.span),
                Some(Err(p)) => {
                    self.constant_problem(p, site.span);
                    Ev::error(site.span)
                }
                None => Ev::error(site.span),
            };
        }
        if site.name == "clamp" {
            return self.clamp(site, args);
        }
        let Some(op) = pointwise(site.name) else {
            self.error(
                Diagnostic::error("E0312", format!("`{}` is a function of constants", site.name))
                    .at(site.span, "an argument is no constant")
                    .help("give it numbers, constants, settings or sizes of dims"),
            );
            return Ev::error(site.span);
        };
        if args.pos.len() != op.arity() {
            self.arity(site, op.arity());
            return Ev::error(site.span);
        }
        self.elementwise(op, site.head, site.span, args.pos)
    }

    /// Two selections, so that the slope is 1 on the bounds.
    fn clamp(&mut self, site: Site<'a>, args: Args) -> Ev {
        let Ok([x, lo, hi]) = <[Ev; 3]>::try_from(args.pos) else {
            self.arity(site, 3);
            return Ev::error(site.span);
        };
        if let (Val::Const(a), Val::Const(b)) = (&lo.val, &hi.val)
            && let (Some(a), Some(b)) = (a.as_f64(), b.as_f64())
            && a > b
        {
            self.error(
                Diagnostic::error("E0314", format!("the bounds of `clamp` are in the wrong order: {a} > {b}"))
                    .at(lo.span.to(hi.span), "the lower bound is above the upper one")
                    .help("write `clamp(x, lo, hi)`"),
            );
            return Ev::error(site.span);
        }
        let below = self.elementwise(MapOp::Lt, site.head, site.span, vec![x.clone(), lo.clone()]);
        let above = self.elementwise(MapOp::Gt, site.head, site.span, vec![x.clone(), hi.clone()]);
        if below.val.is_error() || above.val.is_error() {
            return Ev::error(site.span);
        }
        let top = self.elementwise(MapOp::Where, site.head, site.span, vec![above, hi, x]);
        if top.val.is_error() {
            return Ev::error(site.span);
        }
        self.elementwise(MapOp::Where, site.head, site.span, vec![below, lo, top])
    }

    pub fn cast_call(&mut self, t: TypeName, args: &'a [CallArg], span: Span) -> Ev {
        let [arg] = args else {
            self.error(
                Diagnostic::error("E0314", "a conversion takes 1 argument")
                    .at(span, "wrong number of arguments")
                    .help("write `f32(x)`, with one value in the parentheses"),
            );
            return Ev::error(span);
        };
        let ev = self.eval(&arg.value);
        if ev.val.is_error() {
            return Ev::error(span);
        }
        let Some(dtype) = self.element(t) else {
            self.error(
                Diagnostic::error("E0309", "`float` is a kind of setting, no element type")
                    .at(span, "here")
                    .help("write `f32(x)`"),
            );
            return Ev::error(span);
        };
        if let Val::Const(c) = &ev.val {
            let out = match (c, dtype) {
                (Const::Unknown, _) => Const::Unknown,
                (_, DType::I32) => match c.as_f64() {
                    Some(x) if x.is_finite() => Const::int(x.trunc() as i64),
                    Some(x) => Const::Float(x),
                    None => Const::int(i64::from(c.as_bool().unwrap_or(false))),
                },
                (_, DType::Bool) => Const::Bool(c.as_bool().unwrap_or(c.as_f64().is_some_and(|x| x != 0.0))),
                _ => Const::Float(c.as_f64().unwrap_or(f64::from(u8::from(c.as_bool().unwrap_or(false))))),
            };
            return Ev::new(Val::Const(out), span);
        }
        self.elementwise(MapOp::Cast(dtype), span, span, vec![ev])
    }

    fn ragged(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        match args.pos.first().map(|a| &a.val) {
            Some(Val::Const(c)) if args.pos.len() == 1 => {
                self.saw_ragged = true;
                Some(Val::Const(c.clone()))
            }
            _ => {
                self.error(
                    Diagnostic::error("E0314", "`ragged` takes one constant: the most rows that a group may have")
                        .at(site.span, "not one constant")
                        .help("write `dim slot = ragged(seq)`"),
                );
                None
            }
        }
    }

    // ---- reading brackets and arguments

    pub fn arity(&mut self, site: Site<'a>, n: usize) {
        let d =
            Diagnostic::error("E0314", format!("`{}` takes {n} argument{}", site.name, if n == 1 { "" } else { "s" }))
                .at(site.span, "wrong number of arguments");
        self.error(match site.name {
            "where" => d.help("write `where(condition, a, b)`"),
            "clamp" => d.help("write `clamp(x, low, high)`"),
            name => {
                let brackets = if site.items.is_empty() { "" } else { "[..]" };
                d.help(format!("write `{name}{brackets}({})`", ["x", "y", "z"][..n.min(3)].join(", ")))
            }
        });
    }

    /// The single argument as a value.
    pub fn one_value(&mut self, site: Site<'a>, args: &Args) -> Option<ValueId> {
        if args.pos.len() != 1 {
            self.arity(site, 1);
            return None;
        }
        self.no_named(site, args, &[])?;
        self.closed(&args.pos[0])
    }

    pub fn closed(&mut self, e: &Ev) -> Option<ValueId> {
        let val = self.close(e.clone(), None);
        if val.is_error() {
            return None;
        }
        let out = self.tensor(&Ev { val, span: e.span, tree: None });
        self.b.span = Some(e.span);
        out
    }

    /// Reports named arguments other than `known`.
    pub fn no_named(&mut self, site: Site<'a>, args: &Args, known: &[&str]) -> Option<()> {
        for (n, _) in &args.named {
            if !known.contains(&n.text.as_str()) {
                let d = Diagnostic::error("E0201", format!("`{}` has no argument `{}`", site.name, n.text))
                    .at(n.span, "unknown argument");
                let setting = settings_of(site.name).contains(&n.text.as_str());
                self.error(match (did_you_mean(&n.text, known.iter().copied()), known) {
                    _ if setting => d.help(habits::setting(site.name, site.items, &n.text)),
                    _ if habits::AXES.contains(&n.text.as_str()) => {
                        d.help(format!("dims are named in brackets: `{}[dim](x)`", site.name))
                    }
                    (Some(x), _) => d.help(format!("did you mean `{x}`?")),
                    (None, []) => d.help("its arguments are given by position; settings stand in brackets"),
                    (None, k) => d.help(format!("it takes `{}`", k.join("`, `"))),
                });
                return None;
            }
        }
        Some(())
    }

    /// The dims in the brackets; settings are not expected.
    pub fn dim_list(&mut self, site: Site<'a>) -> Option<Vec<DimId>> {
        let mut dims = Vec::new();
        for item in site.items {
            if let IndexKind::Equals { slice: false, to: None, .. } = &item.kind {
                continue;
            }
            dims.extend(self.dim_item(item)?);
        }
        self.no_twice(&dims, site.head)?;
        Some(dims)
    }

    fn dim_item(&mut self, item: &'a IndexItem) -> Option<Vec<DimId>> {
        match &item.kind {
            IndexKind::Rest => self.rest_dims(item.span),
            IndexKind::Group { from, to: None } => self.group_dims(from),
            _ => {
                self.error(
                    Diagnostic::error("E0314", "a dim is needed in these brackets")
                        .at(item.span, "not a dim")
                        .help("brackets hold dims and settings; parentheses hold values"),
                );
                None
            }
        }
    }

    pub fn rest_dims(&mut self, span: Span) -> Option<Vec<DimId>> {
        if let Some(rest) = self.frame().rest.clone() {
            return Some(rest);
        }
        self.error(
            Diagnostic::error("E0312", "`..` stands for nothing here")
                .at(span, "no argument's type has `..`")
                .help("name the dims"),
        );
        None
    }

    /// The settings in a builtin's brackets.
    pub(super) fn own_settings(&mut self, site: Site<'a>) -> Option<Vec<(String, Const, Span)>> {
        self.bracket_settings(site, settings_of(site.name))
    }

    /// Settings in the brackets, by name.
    pub fn bracket_settings(&mut self, site: Site<'a>, known: &[&str]) -> Option<Vec<(String, Const, Span)>> {
        let mut out = Vec::new();
        for item in site.items {
            let IndexKind::Equals { name, value, slice: false, to: None } = &item.kind else { continue };
            if !known.contains(&name.text.as_str()) {
                let d = Diagnostic::error("E0201", format!("`{}` has no setting `{}`", site.name, name.text))
                    .at(name.span, "unknown setting");
                self.error(match (did_you_mean(&name.text, known.iter().copied()), known) {
                    (Some(x), _) => d.help(format!("did you mean `{x}`?")),
                    (None, []) => d.help("it has no settings"),
                    (None, k) => d.help(format!("its settings: `{}`", k.join("`, `"))),
                });
                return None;
            }
            if out.iter().any(|(n, _, _)| *n == name.text) {
                self.twice_set(name);
                return None;
            }
            let c = self.constant(value)?;
            out.push((name.text.clone(), c, value.span));
        }
        Some(out)
    }

    /// A whole setting, or its default.
    pub fn whole(&mut self, settings: &[(String, Const, Span)], name: &str, default: i64) -> Option<i64> {
        match settings.iter().find(|s| s.0 == name) {
            None => Some(default),
            Some((_, Const::Unknown, _)) => Some(default),
            Some((_, c, span)) => match c.as_int() {
                Some(n) => Some(n),
                None => {
                    self.error(
                        Diagnostic::error("E0309", format!("setting `{name}` is a whole number"))
                            .at(*span, format!("this is {c}"))
                            .help(format!("write a whole number: `{name} = 2`")),
                    );
                    None
                }
            },
        }
    }

    pub fn number(&mut self, settings: &[(String, Const, Span)], name: &str, default: f64) -> Option<f64> {
        match settings.iter().find(|s| s.0 == name) {
            None => Some(default),
            Some((_, Const::Unknown, _)) => Some(default),
            Some((_, c, span)) => match c.as_f64() {
                Some(n) => Some(n),
                None => {
                    self.error(
                        Diagnostic::error("E0309", format!("setting `{name}` is a number"))
                            .at(*span, format!("this is {}", c.kind()))
                            .help(format!("write a number: `{name} = 0.5`")),
                    );
                    None
                }
            },
        }
    }

    pub fn truth(&mut self, settings: &[(String, Const, Span)], name: &str) -> Option<bool> {
        match settings.iter().find(|s| s.0 == name) {
            None => Some(false),
            Some((_, Const::Unknown, _)) => Some(false),
            Some((_, c, span)) => match c.as_bool() {
                Some(b) => Some(b),
                None => {
                    self.error(
                        Diagnostic::error("E0309", format!("setting `{name}` is true or false"))
                            .at(*span, format!("this is {}", c.kind()))
                            .help(format!("write `{name} = true` or `{name} = false`")),
                    );
                    None
                }
            },
        }
    }

    /// The one `group -> group` item of the brackets.
    pub fn arrow(&mut self, site: Site<'a>, form: &str) -> Option<(&'a Group, &'a Group)> {
        let mut arrows = site.items.iter().filter_map(|i| match &i.kind {
            IndexKind::Group { from, to: Some(to) } => Some((from, to)),
            _ => None,
        });
        let first = arrows.next();
        let more = arrows.next().is_some();
        let stray = site.items.iter().any(|i| {
            matches!(&i.kind, IndexKind::Rest | IndexKind::Other(_) | IndexKind::Group { to: None, .. })
                || matches!(&i.kind, IndexKind::Equals { slice: true, .. } | IndexKind::Equals { to: Some(_), .. })
        });
        match first {
            Some(f) if !more && !stray => Some(f),
            _ => {
                self.error(
                    Diagnostic::error("E0314", format!("`{}` has other brackets", site.name))
                        .at(site.head, "not understood")
                        .help(format!("write `{form}`")),
                );
                None
            }
        }
    }

    /// One dim of a group; a group of several is refused.
    pub fn single_dim(&mut self, g: &Group) -> Option<DimId> {
        let dims = self.group_dims(g)?;
        if let [d] = dims[..] {
            return Some(d);
        }
        self.error(
            Diagnostic::error("E0206", "one dim is needed here")
                .at(g.span, format!("this is {} dims", dims.len()))
                .help("name one dim; `x[(a, b) -> c]` makes one of several"),
        );
        None
    }
}

/// The elementwise function of a name, apart from `clamp`, which is several.
pub fn pointwise(name: &str) -> Option<MapOp> {
    use MapOp::*;
    Some(match name {
        "exp" => Exp,
        "expm1" => Expm1,
        "log" => Log,
        "log1p" => Log1p,
        "sqrt" => Sqrt,
        "rsqrt" => Rsqrt,
        "square" => Square,
        "abs" => Abs,
        "sign" => Sign,
        "tanh" => Tanh,
        "sigmoid" => Sigmoid,
        "softplus" => Softplus,
        "erf" => Erf,
        "sin" => Sin,
        "cos" => Cos,
        "floor" => Floor,
        "ceil" => Ceil,
        "round" => Round,
        "max" => Max,
        "min" => Min,
        "where" => Where,
        "floor_div" => FloorDiv,
        _ => return None,
    })
}
