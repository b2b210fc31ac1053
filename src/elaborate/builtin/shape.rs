//! Rearrangements: concat, cut, stack, pad, flip, shift, windows and their adjoint.

use super::super::Elab;
use super::super::value::Val;
use super::{Args, Site};
use crate::check::constant::Const;
use crate::diag::Diagnostic;
use crate::ir::{DimId, ValueId, WindowAxis};
use crate::source::Span;
use crate::syntax::ast::IndexKind;
use crate::types::{DType, counted};

impl<'a> Elab<'a> {
    pub(super) fn shape_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        match site.name {
            "concat" => self.concat_call(site, args),
            "cut" => self.cut_call(site, args),
            "stack" => self.stack_call(site, args),
            "pad" => self.pad_call(site, args),
            "flip" => self.flip_call(site, args),
            "shift" => self.shift_call(site, args),
            "window" => self.window_call(site, args),
            _ => self.fold_call(site, args),
        }
    }

    fn values(&mut self, site: Site<'a>, args: &Args) -> Option<Vec<ValueId>> {
        self.no_named(site, args, &[])?;
        let mut out = Vec::new();
        for a in &args.pos {
            out.push(self.closed(a)?);
        }
        self.b.span = Some(site.span);
        Some(out)
    }

    /// `concat[(a, b) -> c](x, y)`: the k-th value has the k-th dim.
    fn concat_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        self.own_settings(site)?;
        let (from, to) = self.arrow(site, "concat[(a, b) -> c](x, y)")?;
        let mut parts = Vec::new();
        for p in &from.parts {
            let set = self.dim(&p.name)?;
            let [d] = set.ids[..] else {
                self.error(
                    Diagnostic::error("E0206", "`concat` joins single dims")
                        .at(p.name.span, "a group")
                        .help("merge its dims first: `x[group -> d]`"),
                );
                return None;
            };
            parts.push(d);
        }
        let c = self.single_dim(to)?;
        let values = self.values(site, &args)?;
        if values.len() != parts.len() {
            self.error(
                Diagnostic::error(
                    "E0314",
                    format!("{} for {}", counted(parts.len(), "dim"), counted(values.len(), "value")),
                )
                .at(from.span, "one dim a value")
                .and(site.span, "the values")
                .help("name as many dims before `->` as there are values"),
            );
            return None;
        }
        for ((v, d), a) in values.iter().zip(&parts).zip(&args.pos) {
            self.has_dims(*v, &[*d], a.span)?;
        }
        let total: usize = parts.iter().map(|d| self.b.size(*d)).sum();
        if total != self.b.size(c) && !self.is_opaque(&parts) && !self.is_opaque(&[c]) {
            self.error(
                Diagnostic::error(
                    "E0306",
                    format!("the parts have {total} elements, `{}` {}", self.dim_name(c), self.b.size(c)),
                )
                .at(to.span, "wrong size")
                .and(from.span, self.show_sizes(&parts))
                .help(format!("it must be {total}")),
            );
            return None;
        }
        let values = self.aligned(&values, &parts, site)?;
        let first: Vec<DimId> = self.b.dims(values[0]).iter().copied().filter(|d| *d != parts[0]).collect();
        let mut dims = first;
        dims.push(c);
        self.no_twice(&dims, site.span)?;
        Some(Val::Tensor(self.b.concat(&parts, c, &values)))
    }

    /// `cut[c -> (a, b)](z)`: a tuple.
    fn cut_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        self.own_settings(site)?;
        let (from, to) = self.arrow(site, "cut[c -> (a, b)](z)")?;
        let c = self.single_dim(from)?;
        let mut parts = Vec::new();
        for p in &to.parts {
            let set = self.dim(&p.name)?;
            let [d] = set.ids[..] else {
                self.error(
                    Diagnostic::error("E0206", "`cut` gives single dims")
                        .at(p.name.span, "a group")
                        .help("cut to one dim of that size, and split it after: `x[c -> (a, b)]`"),
                );
                return None;
            };
            parts.push(d);
        }
        let z = self.one_value(site, &args)?;
        self.has_dims(z, &[c], args.pos[0].span)?;
        let total: usize = parts.iter().map(|d| self.b.size(*d)).sum();
        if total != self.b.size(c) && !self.is_opaque(&parts) && !self.is_opaque(&[c]) {
            self.error(
                Diagnostic::error(
                    "E0306",
                    format!("the parts have {total} elements, `{}` {}", self.dim_name(c), self.b.size(c)),
                )
                .at(to.span, self.show_sizes(&parts))
                .help("the parts' sizes add up to the dim's"),
            );
            return None;
        }
        self.b.span = Some(site.span);
        let mut lo = 0;
        let mut out = Vec::new();
        for d in parts {
            let mut dims: Vec<DimId> = self.b.dims(z).iter().copied().filter(|x| *x != c).collect();
            dims.push(d);
            self.no_twice(&dims, site.span)?;
            out.push(Val::Tensor(self.b.slice(c, lo, d, z)));
            lo += self.b.size(d);
        }
        Some(Val::Tuple(out))
    }

    fn stack_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        self.own_settings(site)?;
        let dims = self.dim_list(site)?;
        let [d] = dims[..] else {
            self.error(
                Diagnostic::error("E0314", "`stack` gives one new dim")
                    .at(site.head, "not one dim in brackets")
                    .help("write `stack[d](x, y)`"),
            );
            return None;
        };
        let values = self.values(site, &args)?;
        if values.is_empty() || (values.len() != self.b.size(d) && !self.is_opaque(&[d])) {
            self.error(
                Diagnostic::error(
                    "E0304",
                    format!(
                        "`{}` has {}, given are {}",
                        self.dim_name(d),
                        counted(self.b.size(d), "element"),
                        counted(values.len(), "value")
                    ),
                )
                .at(site.span, "one value an element")
                .help(format!("declare the dim with a size of {}, or give as many values as it has", values.len())),
            );
            return None;
        }
        let none: Vec<DimId> = values.iter().map(|_| DimId(u32::MAX)).collect();
        let values = self.aligned(&values, &none, site)?;
        if self.b.dims(values[0]).contains(&d) {
            let mut dims = self.b.dims(values[0]).to_vec();
            dims.push(d);
            self.no_twice(&dims, site.span)?;
        }
        Some(Val::Tensor(self.b.stack(d, &values)))
    }

    /// `pad[a -> b, before = 1, after = 0, value = 0](x)`
    fn pad_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        let s = self.own_settings(site)?;
        let before = self.whole(&s, "before", 0)?;
        let after = self.whole(&s, "after", 0)?;
        let value = self.number(&s, "value", 0.0)?;
        let (from, to) = self.arrow(site, "pad[a -> b, before = 1](x)")?;
        let (a, b) = (self.single_dim(from)?, self.single_dim(to)?);
        let x = self.one_value(site, &args)?;
        self.has_dims(x, &[a], args.pos[0].span)?;
        let want = self.b.size(a) as i64 + before + after;
        self.right_size(b, want, to.span, "padded")?;
        self.b.span = Some(site.span);
        let axis = WindowAxis { input: a, offset: -before, dynamic: false, terms: vec![(b, 1)] };
        self.windowed(x, axis, value, site.span)
    }

    fn windowed(&mut self, x: ValueId, axis: WindowAxis, fill: f64, span: Span) -> Option<Val> {
        let mut dims: Vec<DimId> = self.b.dims(x).iter().copied().filter(|d| *d != axis.input).collect();
        dims.extend(axis.terms.iter().map(|t| t.0));
        self.no_twice(&dims, span)?;
        let fill = if self.b.dtype(x) == DType::Bool { f64::from(u8::from(fill != 0.0)) } else { fill };
        Some(Val::Tensor(self.b.window(vec![axis], fill, x, &[])))
    }

    fn right_size(&mut self, d: DimId, want: i64, span: Span, what: &str) -> Option<()> {
        let have = self.b.size(d) as i64;
        if have == want || self.is_opaque(&[d]) {
            return Some(());
        }
        let name = self.dim_name(d);
        self.error(
            Diagnostic::error("E0306", format!("`{name}` has {}, the {what} dim has {want}", counted(have, "element")))
                .at(span, "wrong size")
                .help(format!("declare a dim of {}", counted(want, "element"))),
        );
        None
    }

    fn flip_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        self.own_settings(site)?;
        let dims = self.dim_list(site)?;
        let x = self.one_value(site, &args)?;
        self.has_dims(x, &dims, args.pos[0].span)?;
        self.b.span = Some(site.span);
        Some(Val::Tensor(dims.into_iter().fold(x, |x, d| self.b.flip(d, x))))
    }

    fn shift_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        let s = self.own_settings(site)?;
        let by = self.whole(&s, "by", 1)?;
        let fill = self.number(&s, "fill", 0.0)?;
        let dims = self.dim_list(site)?;
        let [d] = dims[..] else {
            self.error(
                Diagnostic::error("E0314", "`shift` works along one dim")
                    .at(site.head, "not one dim in brackets")
                    .help("write `shift[dim, by = 1](x)`"),
            );
            return None;
        };
        let x = self.one_value(site, &args)?;
        self.has_dims(x, &[d], args.pos[0].span)?;
        self.b.span = Some(site.span);
        Some(Val::Tensor(self.b.shift(d, by, fill, x)))
    }

    /// `window[a -> (o, k), stride = 1, dilation = 1, pad = 0, before =, after =, fill = 0](x)`
    fn window_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        let w = self.window_settings(site)?;
        let (from, to) = self.arrow(site, "window[a -> (o, k), stride = 1, pad = 0](x)")?;
        let a = self.single_dim(from)?;
        let to_dims = self.group_dims(to)?;
        let [o, k] = to_dims[..] else {
            self.error(
                Diagnostic::error("E0314", "a window gives two dims: places and taps")
                    .at(to.span, counted(to_dims.len(), "dim"))
                    .help("write `window[a -> (o, k)](x)`"),
            );
            return None;
        };
        let x = self.one_value(site, &args)?;
        self.has_dims(x, &[a], args.pos[0].span)?;
        self.window_size(a, o, k, &w, to.span)?;
        self.b.span = Some(site.span);
        let axis =
            WindowAxis { input: a, offset: -w.before, dynamic: false, terms: vec![(o, w.stride), (k, w.dilation)] };
        self.windowed(x, axis, w.fill, site.span)
    }

    /// `fold[(o, k) -> a, stride, dilation, pad](x)`
    fn fold_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        let w = self.window_settings(site)?;
        let (from, to) = self.arrow(site, "fold[(o, k) -> a, stride = 1, pad = 0](x)")?;
        let a = self.single_dim(to)?;
        let from_dims = self.group_dims(from)?;
        let [o, k] = from_dims[..] else {
            self.error(
                Diagnostic::error("E0314", "`fold` joins two dims: places and taps")
                    .at(from.span, counted(from_dims.len(), "dim"))
                    .help("write `fold[(o, k) -> a](x)`"),
            );
            return None;
        };
        let x = self.one_value(site, &args)?;
        self.has_dims(x, &[o, k], args.pos[0].span)?;
        self.window_size(a, o, k, &w, site.head)?;
        let mut dims: Vec<DimId> = self.b.dims(x).iter().copied().filter(|d| *d != o && *d != k).collect();
        dims.push(a);
        self.no_twice(&dims, site.span)?;
        self.b.span = Some(site.span);
        let axis =
            WindowAxis { input: a, offset: -w.before, dynamic: false, terms: vec![(o, w.stride), (k, w.dilation)] };
        Some(Val::Tensor(self.b.fold_window(vec![axis], x)))
    }

    fn window_settings(&mut self, site: Site<'a>) -> Option<WindowSettings> {
        let s = self.own_settings(site)?;
        let pad = self.whole(&s, "pad", 0)?;
        let w = WindowSettings {
            stride: self.whole(&s, "stride", 1)?,
            dilation: self.whole(&s, "dilation", 1)?,
            before: self.whole(&s, "before", pad)?,
            after: self.whole(&s, "after", pad)?,
            fill: self.number(&s, "fill", 0.0)?,
            open: s.iter().any(|x| x.1 == Const::Unknown),
        };
        if w.stride < 1 || w.dilation < 1 || w.before < 0 || w.after < 0 {
            let span =
                site.items.iter().find(|i| matches!(i.kind, IndexKind::Equals { .. })).map_or(site.head, |i| i.span);
            self.error(
                Diagnostic::error("E0306", "stride and dilation are at least 1, padding at least 0")
                    .at(span, "out of range")
                    .help("write `stride = 1`, `dilation = 1` and `pad = 0`, or more"),
            );
            return None;
        }
        Some(w)
    }

    fn window_size(&mut self, a: DimId, o: DimId, k: DimId, w: &WindowSettings, span: Span) -> Option<()> {
        if w.open || self.is_opaque(&[a, o, k]) {
            return Some(());
        }
        let (n, have, taps) = (self.b.size(a) as i64, self.b.size(o) as i64, self.b.size(k) as i64);
        let room = n + w.before + w.after - w.dilation * (taps - 1) - 1;
        let want = room.div_euclid(w.stride) + 1;
        if want == have && room >= 0 {
            return Some(());
        }
        let (na, no, nk) = (self.dim_name(a), self.dim_name(o), self.dim_name(k));
        let d = Diagnostic::error("E0306", format!("`{no}` has {have} elements, the window gives {}", want.max(0)))
            .at(span, "wrong number of places")
            .with_note(format!(
                "({na} {n} + before {} + after {} - dilation {} * ({nk} {taps} - 1) - 1) / stride {} + 1, rounded down",
                w.before, w.after, w.dilation, w.stride
            ));
        self.error(if want > 0 && room >= 0 {
            d.help(format!("declare a dim of {want} elements, or change stride or padding"))
        } else {
            d.help("the window is larger than the padded dim")
        });
        None
    }
}

struct WindowSettings {
    stride: i64,
    dilation: i64,
    before: i64,
    after: i64,
    fill: f64,
    /// A setting is not known: the definition is checked without a use.
    open: bool,
}
