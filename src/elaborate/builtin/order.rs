//! Along one dim: cumulative operations, linear recurrences, top-k, sort; and packing into queues.

use super::super::Elab;
use super::super::value::Val;
use super::{Args, Site};
use crate::diag::Diagnostic;
use crate::ir::{DimId, GatherMode, ValueId};
use crate::syntax::ast::{Group, IndexKind};
use crate::types::{DType, ReduceKind, ScanKind};

impl<'a> Elab<'a> {
    pub(super) fn order_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        match site.name {
            "cumsum" | "cumprod" | "cummax" => self.cumulative(site, args),
            "linear_scan" => self.recurrence(site, args),
            "top_k" => self.top_k_call(site, args),
            "sort" => self.sort_call(site, args),
            "pack" => self.pack_call(site, args),
            _ => self.unpack_call(site, args),
        }
    }

    fn along(&mut self, site: Site<'a>) -> Option<DimId> {
        let dims = self.dim_list(site)?;
        if let [d] = dims[..] {
            return Some(d);
        }
        self.error(
            Diagnostic::error("E0314", format!("`{}` works along one dim", site.name))
                .at(site.head, "not one dim in brackets")
                .help(format!("write `{}[dim](..)`", site.name)),
        );
        None
    }

    fn cumulative(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        let settings = self.own_settings(site)?;
        let exclusive = self.truth(&settings, "exclusive")?;
        let reverse = self.truth(&settings, "reverse")?;
        let dim = self.along(site)?;
        let x = self.one_value(site, &args)?;
        self.has_dims(x, &[dim], args.pos[0].span)?;
        let single = self.single();
        self.b.span = Some(site.span);
        let x = match self.b.dtype(x) {
            DType::Bool => self.b.cast(x, DType::I32),
            DType::F16 | DType::BF16 if site.name != "cummax" => self.b.cast(x, single),
            _ => x,
        };
        let kind = match site.name {
            "cumsum" => ScanKind::Sum,
            "cumprod" => ScanKind::Prod,
            _ => ScanKind::Max,
        };
        Some(Val::Tensor(self.b.scan(kind, dim, exclusive, reverse, x)))
    }

    fn recurrence(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        self.own_settings(site)?;
        let dim = self.along(site)?;
        self.no_named(site, &args, &[])?;
        if args.pos.len() != 2 {
            self.arity(site, 2);
            return None;
        }
        let g = self.closed(&args.pos[0])?;
        let x = self.closed(&args.pos[1])?;
        let union = self.b.union(&[g, x]);
        let whole = [g, x].iter().any(|v| self.b.dims(*v).len() == union.len());
        if !whole {
            let (a, b) = (self.show_dims(self.b.dims(g)), self.show_dims(self.b.dims(x)));
            self.error(
                Diagnostic::error("E0301", "one operand of a recurrence has all its dims")
                    .at(site.span, "neither has")
                    .and(args.pos[0].span, format!("this has {a}"))
                    .and(args.pos[1].span, format!("this has {b}"))
                    .help("declare the type of one of them with all dims: `let g: [..] = ..`"),
            );
            return None;
        }
        self.has_dims(g, &[dim], args.pos[0].span)?;
        self.has_dims(x, &[dim], args.pos[1].span)?;
        let t = self.b.dtype(g).max(self.b.dtype(x)).max(self.single());
        self.b.span = Some(site.span);
        let (g, x) = (self.b.cast(g, t), self.b.cast(x, t));
        Some(Val::Tensor(self.b.linear_scan(dim, false, g, x)))
    }

    fn top_k_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        self.own_settings(site)?;
        let (from, to) = self.arrow(site, "top_k[a -> k](x)")?;
        let x = self.one_value(site, &args)?;
        let a = self.group_dims(from)?;
        let k = self.single_dim(to)?;
        self.has_dims(x, &a, from.span)?;
        let (n, m) = (self.b.graph.elements(&a), self.b.size(k));
        if m > n && !self.is_opaque(&a) && !self.is_opaque(&[k]) {
            self.error(
                Diagnostic::error("E0304", format!("the {m} largest of {n} elements"))
                    .at(site.head, format!("`{}` is larger than the dim", self.dim_name(k)))
                    .help(format!("declare `{}` with a size of at most {n}", self.dim_name(k))),
            );
            return None;
        }
        let rest: Vec<DimId> = self.b.dims(x).iter().copied().filter(|d| !a.contains(d)).collect();
        let mut out = rest;
        out.push(k);
        self.no_twice(&out, site.head)?;
        self.b.span = Some(site.span);
        let (x, dim) = self.merged(x, &a);
        let index = self.b.top_k(dim, k, x);
        let values = self.b.gather(&[dim], GatherMode::Error, x, &[index]);
        Some(Val::Tuple(vec![Val::Tensor(values), Val::Tensor(index)]))
    }

    /// Several dims merged into one for an operation along it.
    fn merged(&mut self, x: ValueId, dims: &[DimId]) -> (ValueId, DimId) {
        if let [d] = dims[..] {
            return (x, d);
        }
        let n = self.b.graph.elements(dims);
        let m = self.new_dim("merged", n, false);
        (self.b.reshape(&[(dims.to_vec(), vec![m])], x), m)
    }

    fn sort_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        self.own_settings(site)?;
        let dim = self.along(site)?;
        let x = self.one_value(site, &args)?;
        self.has_dims(x, &[dim], args.pos[0].span)?;
        self.b.span = Some(site.span);
        let index = self.b.arg_sort(dim, x);
        let values = self.b.gather(&[dim], GatherMode::Error, x, &[index]);
        Some(Val::Tuple(vec![Val::Tensor(values), Val::Tensor(index)]))
    }

    /// `pack[(a, b) -> (e = i, s)](x)`: (rows, place)
    fn pack_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        self.own_settings(site)?;
        let (from, to) = self.arrow(site, "pack[(a, b) -> (e = index, s)](x)")?;
        let packed = self.group_dims(from)?;
        let [expert, slot] = &to.parts[..] else {
            return self.pack_form(site, to);
        };
        let (Some(index), None) = (&expert.value, &slot.value) else {
            return self.pack_form(site, to);
        };
        let e = self.dim(&expert.name)?;
        let s = self.dim(&slot.name)?;
        let ([e], [s]) = (&e.ids[..], &s.ids[..]) else {
            return self.pack_form(site, to);
        };
        let (e, s) = (*e, *s);
        let ev = self.eval(index);
        let i = self.closed(&ev)?;
        let i = self.index_value(i, index.span)?;
        self.has_dims(i, &packed, index.span)?;
        let x = self.one_value(site, &args)?;
        let own = self.b.dims(x).to_vec();
        if !packed.iter().any(|d| own.contains(d)) {
            let shown = self.show_dims(&own);
            self.error(
                Diagnostic::error("E0302", "the packed value has none of the packed dims")
                    .at(args.pos[0].span, format!("this has {shown}"))
                    .help("pack along a dim that the value has; it is copied along the others"),
            );
            return None;
        }
        let mut dims: Vec<DimId> = own.iter().chain(self.b.dims(i)).copied().filter(|d| !packed.contains(d)).collect();
        dims.sort_unstable();
        dims.dedup();
        dims.extend([e, s]);
        self.no_twice(&dims, site.span)?;
        self.b.span = Some(site.span);
        let limit = self.b.size(s);
        let place = self.b.pack_place(&packed, limit, i);
        let rows = self.b.scatter(ReduceKind::Sum, &packed, &[e, s], x, &[i, place]);
        Some(Val::Tuple(vec![Val::Tensor(rows), Val::Tensor(place)]))
    }

    fn pack_form(&mut self, site: Site<'a>, to: &Group) -> Option<Val> {
        self.error(
            Diagnostic::error("E0314", "`pack` gives an indexed dim and a slot dim")
                .at(to.span, "other dims here")
                .help(format!("write `{}[(a, b) -> (e = index, s)](x)`", site.name)),
        );
        None
    }

    /// `unpack[(e = i, s = p)](y)`
    fn unpack_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        let group = site.items.iter().find_map(|i| match &i.kind {
            IndexKind::Group { from, to: None } => Some(from),
            _ => None,
        });
        let Some(group) = group.filter(|_| site.items.len() == 1) else {
            self.error(
                Diagnostic::error("E0314", "`unpack` has other brackets")
                    .at(site.head, "not understood")
                    .help("write `unpack[(e = index, s = place)](y)`"),
            );
            return None;
        };
        let (dims, indices) = self.indexed(group)?;
        let y = self.one_value(site, &args)?;
        self.has_dims(y, &dims, args.pos[0].span)?;
        self.b.span = Some(site.span);
        Some(Val::Tensor(self.b.gather(&dims, GatherMode::Zero, y, &indices)))
    }

    /// Widens values to a common set of dims but one, in the first value's order. One value must have all the others.
    pub(super) fn aligned(&mut self, values: &[ValueId], own: &[DimId], site: Site<'a>) -> Option<Vec<ValueId>> {
        let mut union: Vec<DimId> = Vec::new();
        let others = |e: &Self, v: ValueId, o: &DimId| -> Vec<DimId> {
            e.b.dims(v).iter().copied().filter(|d| d != o).collect()
        };
        for (v, o) in values.iter().zip(own) {
            for d in others(self, *v, o) {
                if !union.contains(&d) {
                    union.push(d);
                }
            }
        }
        let whole = values.iter().zip(own).any(|(v, o)| others(self, *v, o).len() == union.len());
        if !whole {
            let shown: Vec<String> = values.iter().map(|v| self.show_dims(self.b.dims(*v))).collect();
            self.error(
                Diagnostic::error("E0301", format!("one operand of `{}` has all the other dims", site.name))
                    .at(site.span, format!("they have {}", shown.join(" and ")))
                    .help("declare the type of an operand that lacks dims: `let x: [..] = ..`"),
            );
            return None;
        }
        let t = values.iter().map(|v| self.b.dtype(*v)).max()?;
        Some(
            values
                .iter()
                .map(|v| {
                    let v = self.b.cast(*v, t);
                    self.b.broadcast(v, &union)
                })
                .collect(),
        )
    }
}
