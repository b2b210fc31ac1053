//! Value expressions of weights items: parameters that are rearranged, and nothing else.

use super::items::Walk;
use super::names::Found;
use super::pieces::{Axis, MAX_PARTS, Value};
use crate::diag::Diagnostic;
use crate::elaborate::Elab;
use crate::ir::DimId;
use crate::source::Span;
use crate::syntax::ast::{CallArg, Expr, ExprKind, Group, IndexItem, IndexKind};
use crate::types::counted;

impl<'a> Elab<'a> {
    pub(super) fn weights_value(&mut self, e: &'a Expr, walk: &Walk<'a>) -> Option<Value> {
        let mut values = self.weights_values(e, walk)?;
        match values.len() {
            1 => values.pop(),
            n => {
                self.error(
                    Diagnostic::error("E0709", format!("an entry is one value, this is {n}"))
                        .at(e.span, "`cut` gives several")
                        .help("take one piece: `x[c = 0.. -> a]`"),
                );
                None
            }
        }
    }

    /// One value; several for `cut`.
    fn weights_values(&mut self, e: &'a Expr, walk: &Walk<'a>) -> Option<Vec<Value>> {
        match &*e.kind {
            ExprKind::Paren(inner) => self.weights_values(inner, walk),
            ExprKind::Name(_) | ExprKind::Member { .. } | ExprKind::Turn { .. } => match self.weights_path(e, walk)? {
                Found::Leaf(t) => Some(vec![Value::whole(t, self.target_axes(t))]),
                Found::Instance(_) => {
                    self.error(
                        Diagnostic::error("E0206", "an instance is used as a value")
                            .at(e.span, "an instance of a layer")
                            .help("name one of its parameters, or use a prefix: `\"prefix.\" = instance`"),
                    );
                    None
                }
            },
            ExprKind::Index { base, items } => {
                let v = self.weights_value(base, walk)?;
                Some(vec![self.weights_view(v, items, e.span)?])
            }
            ExprKind::Call { callee, args } => match &*callee.kind {
                ExprKind::Index { base, items } => match &*base.kind {
                    ExprKind::Name(n) if n == "concat" => Some(vec![self.weights_concat(items, args, e.span, walk)?]),
                    ExprKind::Name(n) if n == "cut" => self.weights_cut(items, args, e.span, walk),
                    _ => self.not_invertible(e.span),
                },
                _ => self.not_invertible(e.span),
            },
            _ => self.not_invertible(e.span),
        }
    }

    fn not_invertible<T>(&mut self, span: Span) -> Option<T> {
        self.error(
            Diagnostic::error("E0709", "a weights map only rearranges parameters")
                .at(span, "this cannot be inverted")
                .help("use rename, split, merge, slice, index by a constant, `concat` and `cut`"),
        );
        None
    }

    fn too_many_parts(&mut self, span: Span) {
        self.error(
            Diagnostic::error("E0709", format!("this rearrangement falls into more than {MAX_PARTS} pieces"))
                .at(span, "too many pieces")
                .help("split dims where their sizes divide"),
        );
    }

    fn has_axes(&mut self, v: &Value, dims: &[DimId], span: Span) -> Option<Vec<usize>> {
        let missing: Vec<DimId> = dims.iter().copied().filter(|d| v.axis(*d).is_none()).collect();
        if missing.is_empty() {
            return dims.iter().map(|d| v.axis(*d)).collect();
        }
        let own: Vec<DimId> = v.axes.iter().map(|a| a.dim).collect();
        let (m, o) = (self.show_dims(&missing), self.show_dims(&own));
        self.error(
            Diagnostic::error("E0302", format!("the value lacks {m}"))
                .at(span, format!("the value has {o}"))
                .help("name dims that the value has"),
        );
        None
    }

    fn sized(&self, dims: &[DimId]) -> Vec<Axis> {
        dims.iter().map(|d| Axis { dim: *d, size: self.b.graph.size(*d) }).collect()
    }

    /// All items of one bracket at once: indices and slices first, then renames, splits and merges.
    fn weights_view(&mut self, v: Value, items: &'a [IndexItem], span: Span) -> Option<Value> {
        let mut v = v;
        let mut reshapes: Vec<(Vec<DimId>, Vec<Axis>)> = Vec::new();
        let mut gone: Vec<DimId> = Vec::new();
        // A slice's new dim may share its name with a dim that the bracket renames: it is put in last.
        let mut slices: Vec<(DimId, usize, DimId)> = Vec::new();
        for item in items {
            match &item.kind {
                IndexKind::Group { from, to: Some(to) } => {
                    let (a, b) = (self.group_dims(from)?, self.group_dims(to)?);
                    self.has_axes(&v, &a, item.span)?;
                    let (n, m) = (self.b.graph.elements(&a), self.b.graph.elements(&b));
                    if n != m {
                        let (sa, sb) = (self.show_dims(&a), self.show_dims(&b));
                        self.error(
                            Diagnostic::error("E0304", format!("sizes differ: {n} elements become {m}"))
                                .at(item.span, format!("{sa} has {n}, {sb} has {m}"))
                                .help("both sides of `->` have the same number of elements"),
                        );
                        return None;
                    }
                    gone.extend(&a);
                    reshapes.push((a, self.sized(&b)));
                }
                IndexKind::Equals { name, value, slice, to } => {
                    let set = self.dim(name)?;
                    let [dim] = set.ids[..] else { return self.not_invertible(item.span) };
                    self.has_axes(&v, &[dim], item.span)?;
                    gone.push(dim);
                    let Some(at) = self.weights_index(value, dim)? else { return self.not_invertible(item.span) };
                    let len = match (slice, to) {
                        (false, _) => 1,
                        (true, Some(to)) => {
                            let to = self.dim(to)?;
                            let [to] = to.ids[..] else { return self.not_invertible(item.span) };
                            slices.push((dim, at, to));
                            self.b.graph.size(to)
                        }
                        (true, None) => return self.not_invertible(item.span),
                    };
                    let size = self.b.graph.size(dim);
                    if at + len > size {
                        let (code, what) = if *slice { ("E0306", "slice") } else { ("E0313", "index") };
                        let n = self.dim_name(dim);
                        self.error(
                            Diagnostic::error(code, format!("{what} {at} is out of range"))
                                .at(value.span, format!("`{n}` has {}, numbered from 0", counted(size, "element")))
                                .help(format!("write a number from 0 to {}", size.saturating_sub(len))),
                        );
                        return None;
                    }
                    if !slice {
                        let axis = v.axis(dim)?;
                        let Some(next) = v.index(axis, at) else {
                            self.too_many_parts(span);
                            return None;
                        };
                        v = next;
                    }
                }
                _ => return self.not_invertible(item.span),
            }
        }
        let mut after: Vec<DimId> = v.axes.iter().map(|a| a.dim).filter(|d| !gone.contains(d)).collect();
        after.extend(reshapes.iter().flat_map(|(_, to)| to.iter().map(|a| a.dim)));
        after.extend(slices.iter().map(|s| s.2));
        self.no_twice(&after, span)?;
        self.no_twice(&gone, span)?;
        let out = self.apply_view_to(v, &reshapes, &slices);
        if out.is_none() {
            self.too_many_parts(span);
        }
        out
    }

    fn apply_view_to(
        &self,
        v: Value,
        reshapes: &[(Vec<DimId>, Vec<Axis>)],
        slices: &[(DimId, usize, DimId)],
    ) -> Option<Value> {
        // Renames need the old names, so slices are cut in place, under their old dims, and renamed with the others.
        let mut v = v;
        let mut items: Vec<(Vec<usize>, Vec<Axis>)> = Vec::new();
        for (dim, lo, to) in slices {
            let axis = v.axis(*dim)?;
            let size = self.b.graph.size(*to);
            v = v.slice(axis, *lo, Axis { dim: *dim, size })?;
            items.push((vec![axis], vec![Axis { dim: *to, size }]));
        }
        for (from, to) in reshapes {
            let axes = from.iter().map(|d| v.axis(*d)).collect::<Option<Vec<_>>>()?;
            items.push((axes, to.clone()));
        }
        v.reshape(&items)
    }

    /// A constant index; Some(None) where it is no whole number that is not negative.
    fn weights_index(&mut self, value: &'a Expr, dim: DimId) -> Option<Option<usize>> {
        let c = self.constant(value)?;
        match c.as_int() {
            Some(i) if i >= 0 => Some(Some(i as usize)),
            Some(i) => {
                let n = self.dim_name(dim);
                self.error(
                    Diagnostic::error("E0313", format!("index {i} is out of range"))
                        .at(value.span, format!("`{n}` is numbered from 0"))
                        .help("write an index from 0"),
                );
                None
            }
            None => Some(None),
        }
    }

    /// `[(a, b) -> c]`: the dims of the pieces, and the dim of the whole.
    fn pieces_and_whole(
        &mut self,
        pieces: &'a Group,
        whole: &'a Group,
        span: Span,
    ) -> Option<(Vec<(DimId, usize)>, Axis)> {
        let mut parts: Vec<(DimId, usize)> = Vec::new();
        for p in &pieces.parts {
            let set = self.dim(&p.name)?;
            let [d] = set.ids[..] else {
                self.error(
                    Diagnostic::error("E0206", "a group is no single dim")
                        .at(p.name.span, "a group of dims")
                        .help("merge it first: `x[(a, b) -> c]`"),
                );
                return None;
            };
            parts.push((d, self.b.graph.size(d)));
        }
        let whole_dims = self.group_dims(whole)?;
        let [dim] = whole_dims[..] else { return self.not_invertible(whole.span) };
        let (size, sum) = (self.b.graph.size(dim), parts.iter().map(|p| p.1).sum::<usize>());
        if size != sum {
            let n = self.dim_name(dim);
            self.error(
                Diagnostic::error("E0306", format!("the pieces have {sum} elements, `{n}` has {size}"))
                    .at(span, format!("{sum} and {size}"))
                    .help(format!("`{n}` needs the size {sum}")),
            );
            return None;
        }
        Some((parts, Axis { dim, size }))
    }

    fn weights_concat(
        &mut self,
        items: &'a [IndexItem],
        args: &'a [CallArg],
        span: Span,
        walk: &Walk<'a>,
    ) -> Option<Value> {
        let [IndexItem { kind: IndexKind::Group { from, to: Some(to) }, span: head }] = items else {
            return self.not_invertible(span);
        };
        let (parts, whole) = self.pieces_and_whole(from, to, *head)?;
        let mut values = Vec::new();
        for a in args {
            for v in self.weights_values(&a.value, walk)? {
                values.push((v, a.value.span));
            }
        }
        if values.len() != parts.len() {
            self.error(
                Diagnostic::error(
                    "E0314",
                    format!("{} for {}", counted(values.len(), "value"), counted(parts.len(), "dim")),
                )
                .at(span, "one value a dim")
                .and(*head, "the dims")
                .help("name as many dims as there are values"),
            );
            return None;
        }
        let mut out: Vec<(Value, usize)> = Vec::new();
        let mut others: Option<Vec<DimId>> = None;
        for ((v, at), (dim, _)) in values.into_iter().zip(parts) {
            let along = self.has_axes(&v, &[dim], at)?[0];
            let mut rest: Vec<DimId> = v.axes.iter().map(|a| a.dim).filter(|d| *d != dim).collect();
            rest.sort_unstable();
            match &others {
                Some(o) if *o != rest => {
                    let (a, b) = (self.show_dims(&rest), self.show_dims(o));
                    self.error(
                        Diagnostic::error("E0708", "the pieces have different dims beside the joined one")
                            .at(at, format!("this has {a} beside it, the first {b}"))
                            .help("all values of a `concat` have the same other dims"),
                    );
                    return None;
                }
                _ => others = Some(rest),
            }
            out.push((v, along));
        }
        let mut after = others.unwrap_or_default();
        after.push(whole.dim);
        self.no_twice(&after, span)?;
        let out = Value::concat(out, whole);
        if out.is_none() {
            self.too_many_parts(span);
        }
        out
    }

    fn weights_cut(
        &mut self,
        items: &'a [IndexItem],
        args: &'a [CallArg],
        span: Span,
        walk: &Walk<'a>,
    ) -> Option<Vec<Value>> {
        let ([IndexItem { kind: IndexKind::Group { from, to: Some(to) }, span: head }], [arg]) = (items, args) else {
            return self.not_invertible(span);
        };
        let (parts, whole) = self.pieces_and_whole(to, from, *head)?;
        let v = self.weights_value(&arg.value, walk)?;
        let along = self.has_axes(&v, &[whole.dim], arg.value.span)?[0];
        let mut lo = 0;
        let mut out = Vec::new();
        for (dim, size) in parts {
            let rest: Vec<DimId> = v.axes.iter().map(|a| a.dim).filter(|d| *d != whole.dim).chain([dim]).collect();
            self.no_twice(&rest, span)?;
            match v.clone().slice(along, lo, Axis { dim, size }) {
                Some(piece) => out.push(piece),
                None => {
                    self.too_many_parts(span);
                    return None;
                }
            }
            lo += size;
        }
        Some(out)
    }
}
