//! The library's attention as one operation of the graph, where its arguments fit that; its body stays the meaning, and
//! what is emitted where they do not.
//!
//! A mask is taken apart by how it is computed: comparisons of positions become attributes, equal documents two short
//! operands, and only what is left a mask in memory.

use super::Elab;
use super::value::Val;
use crate::check::constant::Const;
use crate::ir::{Attention, DimId, Op, ValueId};
use crate::resolve::ItemRef;
use crate::types::{DType, MapOp};

/// What a mask demands of query and key.
#[derive(Default)]
struct Conditions {
    /// The dim whose position is compared with the key's.
    query: Option<DimId>,
    causal: bool,
    reach: Option<u32>,
    /// Numbers of queries, and of keys.
    documents: Option<[ValueId; 2]>,
    /// What is none of these.
    rest: Vec<ValueId>,
}

impl Elab<'_> {
    /// Whether calls of a function may become the runtime's attention.
    pub(super) fn is_attention(&self, at: ItemRef) -> bool {
        let kernel = |(name, argument): &(crate::syntax::ast::Name, crate::syntax::ast::Name)| {
            name.text == "kernel" && argument.text == "flash_attention"
        };
        let library = self.program.module(at.module).path.is_none();
        library && self.program.item(at).attribute.as_ref().is_some_and(kernel)
    }

    /// The call in the current frame, whose body has been walked, as one operation; None where it is not of that form.
    pub(super) fn attention(&mut self) -> Option<ValueId> {
        let [q, keys, values] = ["q", "keys", "values"].map(|n| self.tensor_named(n));
        let (q, keys, values) = (q?, keys?, values?);
        let [key, feature, value] = ["k", "d", "e"].map(|n| self.dim_named(n));
        let (key, feature, value) = (key?, feature?, value?);
        let scale = self.number_named("scale")?;
        let cap = self.number_named("cap")?;
        let mask = self.frame().lookup("mask")?;
        let bias = self.frame().lookup("bias")?;

        let has = |e: &Self, v: ValueId, d: DimId| e.b.dims(v).contains(&d);
        let own = |e: &Self, v: ValueId| value == feature || !has(e, v, value);
        let fits = has(self, q, feature) && has(self, keys, feature) && has(self, keys, key);
        let fits = fits && has(self, values, key) && has(self, values, value) && !has(self, q, key);
        let fits = fits && own(self, q) && own(self, keys) && (value == feature || !has(self, values, feature));
        let float = self.b.dtype(q);
        let alike = float.is_float() && [keys, values].iter().all(|v| self.b.dtype(*v) == float);
        if !fits || !alike || !scale.is_finite() || !cap.is_finite() {
            return None;
        }
        // Keys and values get each other's dims, queries both.
        let mut shared: Vec<DimId> = Vec::new();
        for d in self.b.dims(keys).iter().chain(self.b.dims(values)) {
            if ![key, feature, value].contains(d) && !shared.contains(d) {
                shared.push(*d);
            }
        }
        let mut rows: Vec<DimId> = self.b.dims(q).iter().copied().filter(|d| *d != feature).collect();
        let alone: Vec<DimId> = rows.iter().copied().filter(|d| !shared.contains(d)).collect();
        rows.extend(shared.iter().filter(|d| !alone.contains(d) && !self.b.dims(q).contains(d)));

        let mut c = Conditions::default();
        match mask {
            Val::Const(Const::Bool(true)) => {}
            Val::Tensor(m) => self.conditions(m, key, &alone, [&rows, &shared], &mut c),
            _ => return None,
        }
        let query = match c.query {
            Some(d) => d,
            None => *alone.iter().max_by_key(|d| self.b.size(**d))?,
        };
        let within = |e: &Self, v: ValueId| e.b.dims(v).iter().all(|d| rows.contains(d) || *d == key);
        let bias = match bias {
            Val::Const(c) if c.as_f64() == Some(0.0) => None,
            Val::Tensor(v) if self.b.splat(v) == Some(0.0) => None,
            Val::Tensor(v) if self.b.dtype(v) == float && within(self, v) && !self.may_train(v) => Some(v),
            _ => return None,
        };
        if !c.rest.iter().all(|v| within(self, *v)) {
            return None;
        }
        let mask = c.rest.into_iter().reduce(|a, b| self.b.map(MapOp::And, &[a, b]));
        let mut args = vec![self.b.broadcast(q, &shared), self.b.broadcast(keys, &shared)];
        args.push(self.b.broadcast(values, &shared));
        args.extend(c.documents.into_iter().flatten().chain(mask).chain(bias));
        let a = Attention {
            query,
            key,
            feature,
            value,
            scale,
            cap: cap.max(0.0),
            causal: c.causal,
            reach: c.reach,
            documents: c.documents.is_some(),
            mask: mask.is_some(),
            bias: bias.is_some(),
            first: false,
        };
        Some(self.b.attention(&a, &args)[0])
    }

    fn tensor_named(&mut self, name: &str) -> Option<ValueId> {
        match self.frame().lookup(name)? {
            Val::Tensor(v) => Some(v),
            _ => None,
        }
    }

    fn number_named(&mut self, name: &str) -> Option<f64> {
        match self.frame().lookup(name)? {
            Val::Const(c) => c.as_f64(),
            _ => None,
        }
    }

    fn dim_named(&mut self, name: &str) -> Option<DimId> {
        match self.frame().dims.get(name)?.0.ids[..] {
            [d] => Some(d),
            _ => None,
        }
    }

    /// Splits a mask into conditions. `alone`: dims that q has and keys lack, whose positions may be compared with the key's.
    fn conditions(&self, v: ValueId, key: DimId, alone: &[DimId], dims: [&[DimId]; 2], c: &mut Conditions) {
        let v = self.plain(v);
        if self.b.splat(v) == Some(1.0) {
            return;
        }
        let known = match self.b.graph.def_op(v) {
            Some(op) => match (&op.op, op.args.as_slice()) {
                (Op::Map(MapOp::And), [a, b]) => {
                    self.conditions(*a, key, alone, dims, c);
                    self.conditions(*b, key, alone, dims, c);
                    true
                }
                (Op::Map(MapOp::Le), [k, q]) | (Op::Map(MapOp::Ge), [q, k]) if self.position(*k) == Some(key) => {
                    let good = self.is_query(self.position(*q), alone, c);
                    c.causal |= good;
                    good
                }
                (Op::Map(MapOp::Lt), [x, limit]) | (Op::Map(MapOp::Gt), [limit, x]) => {
                    self.within_reach(*x, self.everywhere(*limit).map(f64::ceil), key, alone, c)
                }
                (Op::Map(MapOp::Le), [x, limit]) | (Op::Map(MapOp::Ge), [limit, x]) => {
                    self.within_reach(*x, self.everywhere(*limit).map(|n| n.floor() + 1.0), key, alone, c)
                }
                (Op::Map(MapOp::Eq), [a, b]) => self.same_documents(*a, *b, key, dims, c),
                _ => false,
            },
            None => false,
        };
        if !known {
            c.rest.push(v);
        }
    }

    /// Whether the dim can be (or is) the position of queries.
    fn is_query(&self, d: Option<DimId>, alone: &[DimId], c: &mut Conditions) -> bool {
        let good = d.is_some_and(|d| alone.contains(&d) && c.query.is_none_or(|q| q == d));
        if good {
            c.query = d;
        }
        good
    }

    /// query - key < limit
    fn within_reach(&self, x: ValueId, limit: Option<f64>, key: DimId, alone: &[DimId], c: &mut Conditions) -> bool {
        let Some(op) = self.b.graph.def_op(self.plain(x)) else { return false };
        let (Op::Map(MapOp::Sub), [q, k], Some(limit)) = (&op.op, op.args.as_slice(), limit) else { return false };
        let fits = limit >= 0.0 && self.position(*k) == Some(key);
        if !fits || !self.is_query(self.position(*q), alone, c) {
            return false;
        }
        if limit <= f64::from(u32::MAX >> 1) {
            let limit = limit as u32;
            c.reach = Some(c.reach.map_or(limit, |r| r.min(limit)));
        }
        true
    }

    /// Equal numbers of query and key.
    fn same_documents(
        &self,
        a: ValueId,
        b: ValueId,
        key: DimId,
        [rows, shared]: [&[DimId]; 2],
        c: &mut Conditions,
    ) -> bool {
        if let (Some(x), Some(y)) = (self.everywhere(a), self.everywhere(b)) {
            return x == y;
        }
        let (a, b) = (self.plain(a), self.plain(b));
        let [q, k] = if self.b.dims(a).contains(&key) { [b, a] } else { [a, b] };
        let within = |v: ValueId, dims: &[DimId]| self.b.dims(v).iter().all(|d| dims.contains(d));
        let fits = within(q, rows) && within(k, &[shared, &[key]].concat());
        if self.b.dtype(q) != DType::I32 || !fits || c.documents.is_some() {
            return false;
        }
        c.documents = Some([q, k]);
        true
    }

    /// The value without dims along which it is the same, where that is plain to see.
    fn plain(&self, v: ValueId) -> ValueId {
        match self.b.graph.def_op(v) {
            Some(op) => match op.op {
                Op::Broadcast { .. } => self.plain(op.args[0]),
                // A whole number as a float is compared like itself.
                Op::Map(MapOp::Cast(DType::F32 | DType::F64)) if self.b.dtype(op.args[0]) == DType::I32 => {
                    self.plain(op.args[0])
                }
                _ => v,
            },
            None => v,
        }
    }

    /// The dim whose index a value is.
    fn position(&self, v: ValueId) -> Option<DimId> {
        match self.b.graph.def_op(self.plain(v))?.op {
            Op::Iota(d) => Some(d),
            _ => None,
        }
    }

    /// What a value is everywhere.
    fn everywhere(&self, v: ValueId) -> Option<f64> {
        let v = self.plain(v);
        match self.b.graph.def_op(v)?.op {
            Op::Reshape { .. } => self.everywhere(self.b.graph.def_op(v)?.args[0]),
            _ => self.b.splat(v),
        }
    }

    /// Whether a gradient might be wanted of a value.
    fn may_train(&self, v: ValueId) -> bool {
        let (mut work, mut seen) = (vec![v], std::collections::HashSet::new());
        while let Some(v) = work.pop() {
            if !seen.insert(v) || !self.b.dtype(v).is_float() {
                continue;
            }
            match self.b.graph.def_op(v) {
                None => return true,
                Some(op) => match op.op {
                    Op::Param(_) | Op::Loop { .. } => return true,
                    Op::StopGradient => {}
                    _ => work.extend(&op.args),
                },
            }
        }
        false
    }
}
