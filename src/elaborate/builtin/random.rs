//! Random draws: a function of (seed, step, stream, logical coordinates). The stream is the path of the instance and the
//! chain of call sites inside it.

use super::super::Elab;
use super::super::value::Val;
use super::{Args, Site};
use crate::check::constant::Const;
use crate::diag::Diagnostic;
use crate::ir::{DimId, Op, ValueId};
use crate::syntax::ast::Expr;
use crate::types::rng::{self, Dist};
use crate::types::{DType, MapOp};

impl<'a> Elab<'a> {
    pub(super) fn random_call(&mut self, site: Site<'a>, args: Args, call: &'a Expr) -> Option<Val> {
        if site.name == "draw" {
            return self.draw(site, args, call);
        }
        self.own_settings(site)?;
        let dims = if site.items.is_empty() {
            // In an initial value the parameter's own dims are meant.
            self.rest_dims(site.span)?
        } else {
            self.dim_list(site)?
        };
        let names: &[&str] = match site.name {
            "uniform" => &["lo", "hi"],
            "normal" | "trunc_normal" => &["std"],
            "randint" => &["n"],
            _ => &["p"],
        };
        self.no_named(site, &args, names)?;
        if args.pos.len() > names.len() {
            self.arity(site, names.len());
            return None;
        }
        let mut vals: Vec<Option<Val>> = Vec::new();
        for (i, n) in names.iter().enumerate() {
            let e = args.pos.get(i).or_else(|| args.named.iter().find(|a| a.0.text == *n).map(|a| &a.1)).cloned();
            vals.push(e.map(|e| self.close(e, None)));
        }
        if vals.iter().flatten().any(Val::is_error) {
            return None;
        }
        self.in_range(site, &vals)?;
        let stream = self.stream_of(call);
        let v = self.sample_value(site, &vals, &dims, stream)?;
        let single = self.single();
        let out = if self.b.dtype(v).is_float() { self.b.cast(v, single) } else { v };
        Some(Val::Tensor(out))
    }

    /// Constant settings of a distribution that there is.
    fn in_range(&mut self, site: Site<'a>, vals: &[Option<Val>]) -> Option<()> {
        let number = |i: usize| match vals.get(i) {
            Some(Some(Val::Const(c))) => c.as_f64(),
            _ => None,
        };
        let fault = match (site.name, number(0)) {
            ("uniform", lo)
                if lo.or(vals[0].is_none().then_some(0.0)) > number(1).or(vals[1].is_none().then_some(1.0)) =>
            {
                let both = vals.iter().all(|v| matches!(v, None | Some(Val::Const(_))));
                both.then_some("`lo` is above `hi`")
            }
            ("normal" | "trunc_normal", Some(std)) if !(std >= 0.0 && std.is_finite()) => {
                Some("`std` is a finite number, 0 or more")
            }
            ("bernoulli", Some(p)) if !(0.0..=1.0).contains(&p) => Some("`p` is a probability, from 0 to 1"),
            _ => None,
        };
        self.no_fault(site, fault)
    }

    fn no_fault(&mut self, site: Site<'a>, fault: Option<&str>) -> Option<()> {
        let Some(fault) = fault else { return Some(()) };
        self.error(
            Diagnostic::error("E0314", format!("there is no such distribution: {fault}"))
                .at(site.span, "drawn here")
                .help("give other constants"),
        );
        None
    }

    fn stream_of(&mut self, call: &'a Expr) -> u64 {
        let f = self.frame();
        let (name, n) = f.ordinals.get(&call.span).cloned().unwrap_or(("draw".to_string(), 1));
        let path = format!("{}/{name}#{n}.{}", f.stream, f.turns.join("."));
        rng::stream(&path)
    }

    fn sample_value(&mut self, site: Site<'a>, vals: &[Option<Val>], dims: &[DimId], stream: u64) -> Option<ValueId> {
        let turns = self.scans.clone();
        let constant = |v: &Option<Val>, default: f64| match v {
            None => Some(default),
            Some(Val::Const(Const::Unknown)) => Some(default),
            Some(Val::Const(c)) => c.as_f64(),
            _ => None,
        };
        let dist = match site.name {
            "uniform" => match (constant(&vals[0], 0.0), constant(&vals[1], 1.0)) {
                (Some(lo), Some(hi)) => Some(Dist::Uniform { lo, hi }),
                _ => None,
            },
            "normal" => constant(&vals[0], 1.0).map(|std| Dist::Normal { std }),
            "trunc_normal" => constant(&vals[0], 1.0).map(|std| Dist::TruncNormal { std }),
            "bernoulli" => constant(&vals[0], 0.5).map(|p| Dist::Bernoulli { p }),
            _ => match &vals[0] {
                Some(Val::Const(Const::Unknown)) => Some(Dist::RandInt { n: 1 }),
                Some(Val::Const(c)) if c.as_int().is_some_and(|n| n > 0 && n <= i64::from(i32::MAX)) => {
                    Some(Dist::RandInt { n: c.as_int().unwrap_or(1) as u32 })
                }
                _ => {
                    self.error(
                        Diagnostic::error("E0312", "`randint` needs a positive constant")
                            .at(site.span, "how many integers, from 0")
                            .help("write `randint[dims](n)`"),
                    );
                    return None;
                }
            },
        };
        if let Some(d) = dist {
            return Some(self.b.random(d, stream, dims, &turns));
        }
        // Settings that are values: scale a standard draw.
        let (unit, single) = (Dist::Uniform { lo: 0.0, hi: 1.0 }, self.single());
        let standard = match site.name {
            "normal" => Dist::Normal { std: 1.0 },
            "trunc_normal" => Dist::TruncNormal { std: 1.0 },
            _ => unit,
        };
        let x = self.b.random(standard, stream, dims, &turns);
        let x = self.b.cast(x, single);
        let part = |e: &mut Self, v: &Option<Val>, default: f64| match v {
            Some(v) => e.as_tensor(v, single),
            None => Some(e.b.scalar(default, single)),
        };
        let a = part(self, &vals[0], 0.0)?;
        if let Some(d) = self.b.dims(a).iter().find(|d| !dims.contains(d)).copied() {
            let name = self.dim_name(d);
            self.error(
                Diagnostic::error("E0307", format!("the setting has dim `{name}`, which is not drawn"))
                    .at(site.span, "a setting's dims are among the drawn ones")
                    .help(format!("draw along `{name}` too: name it in the brackets")),
            );
            return None;
        }
        Some(match site.name {
            "bernoulli" => self.b.map(MapOp::Lt, &[x, a]),
            "uniform" => {
                let hi = part(self, &vals[1], 1.0)?;
                let width = self.b.sub(hi, a);
                let scaled = self.b.mul(x, width);
                self.b.add(scaled, a)
            }
            _ => self.b.mul(x, a),
        })
    }

    /// `draw[d, top_k = 0, top_p = 1.0](logits)`
    fn draw(&mut self, site: Site<'a>, args: Args, call: &'a Expr) -> Option<Val> {
        let settings = self.own_settings(site)?;
        let top_k = self.whole(&settings, "top_k", 0)?;
        let top_p = self.number(&settings, "top_p", 1.0)?;
        let fault = if top_k < 0 {
            Some("`top_k` is 0 (all) or more")
        } else if !(top_p > 0.0 && top_p <= 1.0) {
            Some("`top_p` is above 0 and at most 1")
        } else {
            None
        };
        self.no_fault(site, fault)?;
        let top_k = u32::try_from(top_k).unwrap_or(u32::MAX);
        let dims = self.dim_list(site)?;
        let [dim] = dims[..] else {
            self.error(
                Diagnostic::error("E0314", "`draw` draws along one dim")
                    .at(site.head, "not one dim")
                    .help("name the dim of the classes: `draw[vocab](logits)`"),
            );
            return None;
        };
        let x = self.one_value(site, &args)?;
        self.has_dims(x, &[dim], args.pos[0].span)?;
        let single = self.single();
        let x = self.b.cast(x, single);
        let rest: Vec<DimId> = self.b.dims(x).iter().copied().filter(|d| *d != dim).collect();
        let stream = self.stream_of(call);
        let mut operands = vec![x];
        operands.extend(self.scans.clone());
        self.b.span = Some(site.span);
        let op = Op::Draw { dim, top_k, top_p, stream, dims: rest.clone() };
        Some(Val::Tensor(self.b.emit(op, &operands, &[(DType::I32, rest)])[0]))
    }
}
