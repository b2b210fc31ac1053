//! Brackets on values: rename, split, merge, index, gather, slice. All items of one bracket act at once.

use super::Elab;
use super::dims::twice;
use super::value::{Ev, Val};
use crate::check::constant::Const;
use crate::diag::Diagnostic;
use crate::ir::{DimId, GatherMode, ValueId, WindowAxis};
use crate::source::Span;
use crate::syntax::ast::{Expr, ExprKind, Group, IndexItem, IndexKind};
use crate::types::{DType, MapOp, counted};

impl<'a> Elab<'a> {
    /// `base[items]` outside a call: a view of a value, an instance's layer is handled by `let`.
    pub fn brackets(&mut self, span: Span, base: &'a Expr, items: &'a [IndexItem]) -> Ev {
        if let ExprKind::Name(n) = &*base.kind
            && self.frame().find(n).is_none()
        {
            if super::builtin::NAMES.contains(&n.as_str()) {
                return match n.as_str() {
                    "iota" | "size" => self.builtin_leaf(n, items, span),
                    _ => self.needs_call(span, n),
                };
            }
            let module = self.frame().module;
            if let Some(crate::resolve::Entity::Def(_)) = self.entity(module, n) {
                return self.needs_call(span, n);
            }
        }
        match self.value(base) {
            Val::Tensor(v) => match self.view(v, items, span) {
                Some(v) => Ev::new(Val::Tensor(v), span),
                None => Ev::error(span),
            },
            Val::Error => Ev::error(span),
            other => {
                self.error(
                    Diagnostic::error("E0206", format!("{} takes no brackets", other.kind()))
                        .at(base.span, format!("this is {}", other.kind()))
                        .help("brackets rename, index and slice values"),
                );
                Ev::error(span)
            }
        }
    }

    fn needs_call(&mut self, span: Span, n: &str) -> Ev {
        self.error(
            Diagnostic::error("E0206", format!("`{n}[..]` is no value by itself"))
                .at(span, "parentheses are missing")
                .help(format!("call it: `{n}[..](..)`; an instance of a layer is made by `let name = {n}[..]`")),
        );
        Ev::error(span)
    }

    /// All items of one bracket on a value.
    pub fn view(&mut self, v: ValueId, items: &'a [IndexItem], span: Span) -> Option<ValueId> {
        let mut reshapes: Vec<(Vec<DimId>, Vec<DimId>, Span)> = Vec::new();
        let mut gathers: Vec<(Vec<DimId>, ValueId)> = Vec::new();
        let mut windows: Vec<(WindowAxis, Option<ValueId>)> = Vec::new();
        let mut indexed: Vec<DimId> = Vec::new();
        if items.is_empty() {
            self.error(
                Diagnostic::error("E0314", "empty brackets on a value")
                    .at(span, "they do nothing")
                    .help("write `x[a -> b]`, `x[a = i]` or `x[a = lo.. -> b]`"),
            );
            return None;
        }
        for item in items {
            match &item.kind {
                IndexKind::Group { from, to: Some(to) } => {
                    let a = self.group_dims(from)?;
                    let b = self.group_dims(to)?;
                    self.has_dims(v, &a, item.span)?;
                    let (n, m) = (self.b.graph.elements(&a), self.b.graph.elements(&b));
                    if n != m && !self.is_opaque(&a) && !self.is_opaque(&b) {
                        let (sa, sb) = (self.show_sizes(&a), self.show_sizes(&b));
                        self.error(
                            Diagnostic::error("E0304", format!("sizes differ: {n} elements become {m}"))
                                .at(item.span, format!("{sa} -> {sb}"))
                                .help("both sides of `->` have the same number of elements"),
                        );
                        return None;
                    }
                    reshapes.push((a, b, item.span));
                }
                IndexKind::Equals { name, value, slice, to } => {
                    let set = self.dim(name)?;
                    self.has_dims(v, &set.ids, item.span)?;
                    if set.ids.iter().any(|d| indexed.contains(d)) {
                        self.error(
                            Diagnostic::error("E0303", format!("dim `{}` is indexed twice", name.text))
                                .at(item.span, "a second index of this dim")
                                .help("all items of one bracket act at once; index the result in brackets of its own"),
                        );
                        return None;
                    }
                    indexed.extend(&set.ids);
                    let index = self.value(value);
                    if index.is_error() {
                        return None;
                    }
                    if *slice {
                        let Some(to) = to else {
                            self.error(
                                Diagnostic::error("E0312", "a slice needs the dim that it gives")
                                    .at(item.span, "no `-> dim`")
                                    .help(format!("write `{} = lo.. -> dim`", name.text)),
                            );
                            return None;
                        };
                        let to = self.dim(to)?;
                        windows.push(self.slice_axis(&set.ids, index, &to.ids, item.span, value.span)?);
                    } else {
                        match index {
                            Val::Const(c) => {
                                let axes = self.index_axes(&set.ids, &c, value.span)?;
                                windows.extend(axes.into_iter().map(|a| (a, None)));
                            }
                            Val::Tensor(i) => gathers.push((set.ids, self.index_value(i, value.span)?)),
                            other => {
                                self.error(
                                    Diagnostic::error("E0309", "an index is an int")
                                        .at(value.span, format!("this is {}", other.kind()))
                                        .help("index with an int value or a whole number; `int(x)` converts"),
                                );
                                return None;
                            }
                        }
                    }
                }
                IndexKind::Group { from, to: None } => {
                    self.error(
                        Diagnostic::error("E0314", "brackets on a value rename, index or slice")
                            .at(from.span, "nothing is said of this dim")
                            .help("write `x[a -> b]`, `x[a = i]` or `x[a = lo.. -> b]`"),
                    );
                    return None;
                }
                IndexKind::Rest | IndexKind::Other(_) => {
                    let d = Diagnostic::error("E0314", "brackets on a value rename, index or slice")
                        .at(item.span, "this does none of these");
                    let first = self.b.dims(v).first().map(|d| super::dims::last(&self.dim_name(*d)).to_string());
                    let index = if let IndexKind::Other(e) = &item.kind { super::habits::literal(e) } else { None };
                    self.error(match (first, index) {
                        (Some(dim), Some(i)) => d.help(format!("name the dim that is indexed: `x[{dim} = {i}]`")),
                        _ => d.help("write `x[a -> b]`, `x[a = i]` or `x[a = lo.. -> b]`"),
                    });
                    return None;
                }
            }
        }
        self.b.span = Some(span);
        self.apply_view(v, reshapes, gathers, windows, span)
    }

    fn apply_view(
        &mut self,
        v: ValueId,
        reshapes: Vec<(Vec<DimId>, Vec<DimId>, Span)>,
        gathers: Vec<(Vec<DimId>, ValueId)>,
        windows: Vec<(WindowAxis, Option<ValueId>)>,
        span: Span,
    ) -> Option<ValueId> {
        let mut v = v;
        if !windows.is_empty() {
            let offsets: Vec<ValueId> = windows.iter().filter_map(|w| w.1).collect();
            let axes: Vec<WindowAxis> = windows.into_iter().map(|w| w.0).collect();
            let mut dims: Vec<DimId> =
                self.b.dims(v).iter().copied().filter(|d| !axes.iter().any(|a| a.input == *d)).collect();
            dims.extend(axes.iter().flat_map(|a| a.terms.iter().map(|t| t.0)));
            self.no_twice(&dims, span)?;
            v = self.b.window(axes, 0.0, v, &offsets);
        }
        if !gathers.is_empty() {
            let (mut dims, mut indices) = (Vec::new(), Vec::new());
            for (ids, index) in gathers {
                let split = self.split_index(index, &ids);
                dims.extend(ids);
                indices.extend(split);
            }
            v = self.b.gather(&dims, GatherMode::Error, v, &indices);
        }
        if !reshapes.is_empty() {
            let froms: Vec<DimId> = reshapes.iter().flat_map(|r| r.0.iter().copied()).collect();
            self.no_twice(&froms, span)?;
            let mut dims: Vec<DimId> = self.b.dims(v).iter().copied().filter(|d| !froms.contains(d)).collect();
            dims.extend(reshapes.iter().flat_map(|r| r.1.iter().copied()));
            self.no_twice(&dims, span)?;
            let groups: Vec<(Vec<DimId>, Vec<DimId>)> =
                reshapes.into_iter().filter(|(a, b, _)| a != b).map(|(a, b, _)| (a, b)).collect();
            if !groups.is_empty() {
                v = self.b.reshape(&groups, v);
            }
        }
        Some(v)
    }

    /// A flattened index over several dims as one index a dim.
    fn split_index(&mut self, index: ValueId, dims: &[DimId]) -> Vec<ValueId> {
        if dims.len() == 1 {
            return vec![index];
        }
        let mut rest = index;
        let mut out = Vec::new();
        for d in dims.iter().skip(1).rev() {
            let n = self.b.size(*d) as f64;
            out.push(self.b.map_scalar(MapOp::Rem, rest, n));
            rest = self.b.map_scalar(MapOp::FloorDiv, rest, n);
        }
        out.push(rest);
        out.reverse();
        out
    }

    /// An int value; bools count as ints.
    pub fn index_value(&mut self, i: ValueId, span: Span) -> Option<ValueId> {
        match self.b.dtype(i) {
            DType::I32 => Some(i),
            DType::Bool => Some(self.b.cast(i, DType::I32)),
            t => {
                self.error(
                    Diagnostic::error("E0309", "an index is an int")
                        .at(span, format!("this is {t}"))
                        .help("convert it towards zero: `int(x)`"),
                );
                None
            }
        }
    }

    fn index_axes(&mut self, dims: &[DimId], c: &Const, span: Span) -> Option<Vec<WindowAxis>> {
        let axis = |d: DimId, i: i64| WindowAxis { input: d, offset: i, dynamic: false, terms: vec![] };
        if *c == Const::Unknown || self.is_opaque(dims) {
            return Some(dims.iter().map(|d| axis(*d, 0)).collect());
        }
        let n = self.b.graph.elements(dims) as i64;
        match c.as_int() {
            Some(i) if (0..n).contains(&i) => {
                let mut rest = i;
                let mut out: Vec<WindowAxis> = Vec::new();
                for d in dims.iter().rev() {
                    let s = self.b.size(*d) as i64;
                    out.push(axis(*d, rest % s));
                    rest /= s;
                }
                out.reverse();
                Some(out)
            }
            Some(i) => {
                let name = self.show_dims(dims);
                let last = dims.first().filter(|_| dims.len() == 1 && i < 0 && i >= -n);
                let cure = match last.map(|d| self.dim_name(*d)) {
                    Some(d) => format!("a dim's name is its size: write `{} - {}`", super::dims::last(&d), -i),
                    None => format!("write an index from 0 to {}", n - 1),
                };
                self.error(
                    Diagnostic::error("E0313", format!("index {i} is out of range"))
                        .at(span, format!("{name} has {}, numbered from 0", counted(n, "element")))
                        .help(cure),
                );
                None
            }
            None => {
                self.error(
                    Diagnostic::error("E0309", "an index is a whole number")
                        .at(span, format!("this is {c}"))
                        .help("write a whole number, such as `x[part = 0]`"),
                );
                None
            }
        }
    }

    fn slice_axis(
        &mut self,
        from: &[DimId],
        lo: Val,
        to: &[DimId],
        span: Span,
        at: Span,
    ) -> Option<(WindowAxis, Option<ValueId>)> {
        let (&[from], &[to]) = (from, to) else {
            self.error(
                Diagnostic::error("E0206", "a slice is of one dim and gives one dim")
                    .at(span, "a group stands here")
                    .help("merge the group first: `x[(a, b) -> c]`"),
            );
            return None;
        };
        let (n, m) = (self.b.size(from) as i64, self.b.size(to) as i64);
        let open = self.is_opaque(&[from, to]);
        match lo {
            Val::Const(Const::Unknown) => {
                Some((WindowAxis { input: from, offset: 0, dynamic: false, terms: vec![(to, 1)] }, None))
            }
            Val::Const(c) => {
                let lo = c.as_int();
                if !open && !lo.is_some_and(|lo| lo >= 0 && lo + m <= n) {
                    let name = self.dim_name(from);
                    self.error(
                        Diagnostic::error(
                            "E0306",
                            format!("a slice of {} from {c} does not fit", counted(m, "element")),
                        )
                        .at(span, format!("`{name}` has {}", counted(n, "element")))
                        .help(format!("the start may be 0 to {}", (n - m).max(0))),
                    );
                    return None;
                }
                let offset = lo.unwrap_or(0);
                Some((WindowAxis { input: from, offset, dynamic: false, terms: vec![(to, 1)] }, None))
            }
            Val::Tensor(v) => {
                let v = self.index_value(v, at)?;
                if !self.b.dims(v).is_empty() {
                    let shown = self.show_dims(self.b.dims(v).to_vec().as_slice());
                    self.error(
                        Diagnostic::error("E0309", "a slice starts at a scalar")
                            .at(at, format!("this has dims {shown}"))
                            .help("gather with an index value: `x[a = i]`"),
                    );
                    return None;
                }
                if m > n && !open {
                    self.error(
                        Diagnostic::error("E0306", format!("a slice of {} of a dim of {n}", counted(m, "element")))
                            .at(span, "too long")
                            .help(format!("declare the slice's dim with a size of at most {n}")),
                    );
                    return None;
                }
                let start = if open { v } else { self.checked_start(v, from, (n - m + 1) as usize) };
                Some((WindowAxis { input: from, offset: 0, dynamic: true, terms: vec![(to, 1)] }, Some(start)))
            }
            _ => None,
        }
    }

    /// The start of a slice, looked up among those that fit, so that another one is an error like any index.
    fn checked_start(&mut self, start: ValueId, sliced: DimId, fit: usize) -> ValueId {
        let name = format!("{}_start", self.dim_name(sliced));
        let starts = self.new_dim(&name, fit, false);
        let all = self.b.iota(starts);
        self.b.gather(&[starts], GatherMode::Error, all, &[start])
    }

    pub fn group_dims(&mut self, g: &Group) -> Option<Vec<DimId>> {
        let mut out = Vec::new();
        for p in &g.parts {
            if let Some(v) = &p.value {
                self.error(
                    Diagnostic::error("E0314", "an index value stands in a list of dims")
                        .at(v.span, "not expected here")
                        .help("only `pack`, `unpack` and segment reductions take `dim = index` in parentheses"),
                );
                return None;
            }
            out.extend(self.dim(&p.name)?.ids);
        }
        self.no_twice(&out, g.span)?;
        Some(out)
    }

    pub fn no_twice(&mut self, dims: &[DimId], span: Span) -> Option<()> {
        let Some(d) = twice(dims) else { return Some(()) };
        let name = self.dim_name(d);
        self.error(
            Diagnostic::error("E0303", format!("dim `{name}` would occur twice"))
                .at(span, format!("gives `{name}` a second time"))
                .help(super::dims::second_dim(&name)),
        );
        None
    }

    /// Whether a value has the dims that an operation names.
    pub fn has_dims(&mut self, v: ValueId, dims: &[DimId], span: Span) -> Option<()> {
        let own = self.b.dims(v).to_vec();
        let missing: Vec<DimId> = dims.iter().copied().filter(|d| !own.contains(d)).collect();
        if missing.is_empty() {
            return Some(());
        }
        let (m, o) = (self.show_dims(&missing), self.show_dims(&own));
        self.error(
            Diagnostic::error("E0302", format!("the value lacks {m}"))
                .at(span, format!("the value has {o}"))
                .help("name dims that the value has"),
        );
        None
    }

    pub fn show_sizes(&self, dims: &[DimId]) -> String {
        let parts: Vec<String> = dims.iter().map(|d| format!("{} = {}", self.dim_name(*d), self.b.size(*d))).collect();
        format!("({})", parts.join(", "))
    }
}
