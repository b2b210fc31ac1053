//! Reductions: sum, mean, max, min, prod, any, all, argmax, argmin, logsumexp, var; segment reductions.

use super::super::Elab;
use super::super::value::{Ev, Val};
use super::{Args, Site};
use crate::diag::Diagnostic;
use crate::ir::{DimId, ValueId};
use crate::syntax::ast::{Group, IndexKind};
use crate::types::{DType, MapOp, ReduceKind};

impl<'a> Elab<'a> {
    pub(super) fn reduction(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        if site.items.iter().any(|i| matches!(&i.kind, IndexKind::Group { to: Some(_), .. })) {
            return self.segment(site, args);
        }
        self.own_settings(site)?;
        let dims = self.dim_list(site)?;
        self.no_named(site, &args, &["mask"])?;
        if args.pos.len() != 1 {
            self.arity(site, 1);
            return None;
        }
        if dims.is_empty() && site.items.is_empty() {
            self.error(
                Diagnostic::error("E0314", format!("`{}` needs the dims that it reduces", site.name))
                    .at(site.span, "no brackets")
                    .help(format!("write `{}[dim](..)`", site.name)),
            );
            return None;
        }
        let x = self.closed(&args.pos[0])?;
        self.has_dims(x, &dims, args.pos[0].span)?;
        let mask = match args.named.iter().find(|n| n.0.text == "mask") {
            Some((_, e)) => self.mask(e, x)?,
            None => None,
        };
        self.b.span = Some(site.span);
        self.reduce_value(site, &dims, x, mask).map(Val::Tensor)
    }

    /// A mask: bool, its dims within the value's. A constant true is none.
    fn mask(&mut self, e: &Ev, x: ValueId) -> Option<Option<ValueId>> {
        let m = self.closed(e)?;
        if self.b.dtype(m) != DType::Bool {
            let t = self.b.dtype(m);
            self.error(
                Diagnostic::error("E0309", "a mask is a bool")
                    .at(e.span, format!("this is {t}"))
                    .help("compare: `x != 0`"),
            );
            return None;
        }
        if self.b.splat(m) == Some(1.0) {
            return Some(None);
        }
        let extra: Vec<DimId> = self.b.dims(m).iter().copied().filter(|d| !self.b.dims(x).contains(d)).collect();
        if !extra.is_empty() {
            let (shown, own) = (self.show_dims(&extra), self.show_dims(self.b.dims(x)));
            self.error(
                Diagnostic::error("E0307", format!("the mask has {shown}, which the value lacks"))
                    .at(e.span, "this mask")
                    .help(format!("the value has {own}; a mask's dims are among them")),
            );
            return None;
        }
        Some(Some(m))
    }

    fn masked(&mut self, x: ValueId, mask: Option<ValueId>, neutral: f64) -> ValueId {
        match mask {
            None => x,
            Some(m) => {
                let n = self.b.scalar(neutral, self.b.dtype(x));
                self.b.select(m, x, n)
            }
        }
    }

    /// 16-bit floats are summed in f32; ints and bools where the result is a float.
    fn wide(&mut self, x: ValueId, float: bool) -> ValueId {
        let single = self.single();
        match self.b.dtype(x) {
            DType::F16 | DType::BF16 => self.b.cast(x, single),
            DType::Bool if !float => self.b.cast(x, DType::I32),
            DType::Bool | DType::I32 if float => self.b.cast(x, single),
            _ => x,
        }
    }

    fn reduce_value(&mut self, site: Site<'a>, dims: &[DimId], x: ValueId, mask: Option<ValueId>) -> Option<ValueId> {
        let dtype = self.b.dtype(x);
        Some(match site.name {
            "sum" => {
                let x = self.wide(x, false);
                let x = self.masked(x, mask, 0.0);
                self.b.sum(dims, x)
            }
            "prod" => {
                let x = self.wide(x, false);
                let x = self.masked(x, mask, 1.0);
                self.b.reduce(ReduceKind::Prod, dims, x)
            }
            "mean" => {
                let x = self.wide(x, true);
                self.mean_of(dims, x, mask)
            }
            "var" => {
                let x = self.wide(x, true);
                let m = self.mean_of(dims, x, mask);
                let d = self.b.sub(x, m);
                let d = self.b.map(MapOp::Square, &[d]);
                self.mean_of(dims, d, mask)
            }
            "max" | "min" | "argmax" | "argmin" => {
                let x = if dtype == DType::Bool { self.b.cast(x, DType::I32) } else { x };
                let high = site.name.ends_with("min");
                let neutral = match (self.b.dtype(x), high) {
                    (DType::I32, true) => f64::from(i32::MAX),
                    (DType::I32, false) => f64::from(i32::MIN),
                    (_, true) => f64::INFINITY,
                    (_, false) => f64::NEG_INFINITY,
                };
                let x = self.masked(x, mask, neutral);
                let kind = match site.name {
                    "max" => ReduceKind::Max,
                    "min" => ReduceKind::Min,
                    "argmax" => ReduceKind::ArgMax,
                    _ => ReduceKind::ArgMin,
                };
                self.b.reduce(kind, dims, x)
            }
            "any" | "all" => {
                if dtype != DType::Bool {
                    self.error(
                        Diagnostic::error("E0309", format!("`{}` takes bools", site.name))
                            .at(site.span, format!("this is {dtype}"))
                            .help("compare: `x != 0`"),
                    );
                    return None;
                }
                let all = site.name == "all";
                let x = self.masked(x, mask, f64::from(u8::from(all)));
                self.b.reduce(if all { ReduceKind::All } else { ReduceKind::Any }, dims, x)
            }
            _ => {
                let x = self.wide(x, true);
                let x = self.masked(x, mask, f64::NEG_INFINITY);
                // The largest value is a constant of the derivative; where nothing is finite, 0 keeps NaN away.
                let top = self.b.reduce(ReduceKind::Max, dims, x);
                let top = self.b.stop_gradient(top);
                let finite = self.b.map(MapOp::IsFinite, &[top]);
                let zero = self.b.scalar(0.0, self.b.dtype(top));
                let top = self.b.select(finite, top, zero);
                let shifted = self.b.sub(x, top);
                let e = self.b.map(MapOp::Exp, &[shifted]);
                let total = self.b.sum(dims, e);
                let l = self.b.map(MapOp::Log, &[total]);
                self.b.add(l, top)
            }
        })
    }

    /// Sum over count; with a mask the count is that of the mask over the same dims, and the mean of nothing is 0.
    fn mean_of(&mut self, dims: &[DimId], x: ValueId, mask: Option<ValueId>) -> ValueId {
        let masked = self.masked(x, mask, 0.0);
        let total = self.b.sum(dims, masked);
        let dtype = self.b.dtype(total);
        let Some(m) = mask else {
            let n = self.b.graph.elements(dims) as f64;
            return self.b.map_scalar(MapOp::Div, total, n);
        };
        let own: Vec<DimId> = dims.iter().copied().filter(|d| self.b.dims(m).contains(d)).collect();
        let others: Vec<DimId> = dims.iter().copied().filter(|d| !own.contains(d)).collect();
        let ones = self.b.cast(m, dtype);
        let count = self.b.sum(&own, ones);
        let count = self.b.map_scalar(MapOp::Mul, count, self.b.graph.elements(&others) as f64);
        let one = self.b.scalar(1.0, dtype);
        let zero = self.b.scalar(0.0, dtype);
        let empty = self.b.map(MapOp::Eq, &[count, zero]);
        let safe = self.b.select(empty, one, count);
        self.b.div(total, safe)
    }

    // ---- segments

    /// `sum[(a, b) -> (e = i, s = j)](x)`
    fn segment(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        let form = format!("{}[(a, b) -> (e = i, s = j)](x)", site.name);
        let kind = match site.name {
            "sum" => ReduceKind::Sum,
            "max" => ReduceKind::Max,
            "min" => ReduceKind::Min,
            _ => {
                self.error(
                    Diagnostic::error("E0314", format!("`{}` has no segment form", site.name))
                        .at(site.head, "`->` in its brackets")
                        .help("`sum`, `max` and `min` reduce into segments"),
                );
                return None;
            }
        };
        let (from, to) = self.arrow(site, &form)?;
        let removed = self.group_dims(from)?;
        let (targets, indices) = self.indexed(to)?;
        let x = self.one_value(site, &args)?;
        let x = if kind == ReduceKind::Sum { self.wide(x, false) } else { x };
        let mut all = self.b.dims(x).to_vec();
        for i in &indices {
            for d in self.b.dims(*i) {
                if !all.contains(d) {
                    all.push(*d);
                }
            }
        }
        if let Some(m) = removed.iter().find(|d| !all.contains(d)) {
            let (name, shown) = (self.dim_name(*m), self.show_dims(&all));
            self.error(
                Diagnostic::error("E0302", format!("neither the value nor its indices have dim `{name}`"))
                    .at(from.span, format!("they have {shown}"))
                    .help("name dims of the value or of an index before `->`"),
            );
            return None;
        }
        let mut dims: Vec<DimId> = all.into_iter().filter(|d| !removed.contains(d)).collect();
        dims.extend(&targets);
        self.no_twice(&dims, site.span)?;
        self.b.span = Some(site.span);
        Some(Val::Tensor(self.b.scatter(kind, &removed, &targets, x, &indices)))
    }

    /// `(e = i, s = j)`: dims with an index value each.
    pub(super) fn indexed(&mut self, g: &'a Group) -> Option<(Vec<DimId>, Vec<ValueId>)> {
        let (mut dims, mut indices) = (Vec::new(), Vec::new());
        for p in &g.parts {
            let set = self.dim(&p.name)?;
            let [d] = set.ids[..] else {
                self.error(
                    Diagnostic::error("E0206", "one dim is needed for an index")
                        .at(p.name.span, "a group of dims")
                        .help("give each dim of the group an index of its own: `(a = i, b = j)`"),
                );
                return None;
            };
            let Some(v) = &p.value else {
                self.error(
                    Diagnostic::error("E0314", format!("dim `{}` needs an index value", p.name.text))
                        .at(p.name.span, "no index")
                        .help(format!("write `{} = index`", p.name.text)),
                );
                return None;
            };
            let ev = self.eval(v);
            let i = self.closed(&ev)?;
            indices.push(self.index_value(i, v.span)?);
            dims.push(d);
        }
        self.no_twice(&dims, g.span)?;
        Some((dims, indices))
    }
}
