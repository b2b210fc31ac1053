//! What stands at kept positions beyond the present one: proof that a reduction over them does not count them.
//!
//! Along a kept dim `key`, a value at later positions is `Later` (anything, though finite: caches begin as zeros) or a known
//! constant (put there by `where(mask, x, constant)` under a mask that implies `iota[key] <= iota[dim]`); a value
//! without an entry does not depend on later positions.

use crate::ir::*;
use crate::types::MapOp;
use indexmap::IndexMap;
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Beyond {
    Later,
    Constant(f64),
}

/// By kept dim.
pub type Entry = IndexMap<DimId, Beyond>;

#[derive(Default)]
pub struct Futures(HashMap<ValueId, Entry>);

impl Futures {
    pub fn set(&mut self, v: ValueId, e: Entry) {
        if e.is_empty() {
            self.0.remove(&v);
        } else {
            self.0.insert(v, e);
        }
    }

    pub fn entry(&self, v: ValueId) -> Entry {
        self.0.get(&v).cloned().unwrap_or_default()
    }

    fn at(&self, v: ValueId, key: DimId) -> Option<Beyond> {
        self.0.get(&v).and_then(|e| e.get(&key)).copied()
    }

    /// The entry of an operation's results, or why it would count later positions.
    pub fn of(&self, g: &Graph, op: &Operation, dim: DimId) -> Result<Entry, String> {
        let mut keys: Vec<DimId> = Vec::new();
        for a in &op.args {
            for k in self.0.get(a).into_iter().flat_map(|e| e.keys()) {
                if !keys.contains(k) {
                    keys.push(*k);
                }
            }
        }
        let mut out = Entry::new();
        for key in keys {
            let (key, f) = self.along(g, op, key, dim)?;
            if let Some(f) = f {
                out.insert(key, f);
            }
        }
        Ok(out)
    }

    fn along(&self, g: &Graph, op: &Operation, key: DimId, dim: DimId) -> Result<(DimId, Option<Beyond>), String> {
        let args: Vec<Option<Beyond>> = op.args.iter().map(|a| self.at(*a, key)).collect();
        let later = || {
            format!(
                "the value at a position depends on later positions: `{}` is reduced without a mask that implies \
                 `iota[{0}] <= iota[{1}]`",
                g.dim(key).name,
                g.dim(dim).name
            )
        };
        match &op.op {
            Op::Map(m) => Ok((key, self.map(g, op, *m, &args, key, dim))),
            Op::Broadcast { .. } | Op::StopGradient => Ok((key, args[0])),
            Op::Reduce { dims, .. } => {
                if !dims.contains(&key) {
                    return Ok((key, args[0].filter(|f| *f == Beyond::Later)));
                }
                match args[0] {
                    Some(Beyond::Later) => Err(later()),
                    _ => Ok((key, None)),
                }
            }
            Op::Dot { contract } => {
                let zero = args.contains(&Some(Beyond::Constant(0.0)));
                let any = args.contains(&Some(Beyond::Later));
                match (contract.contains(&key), zero, any) {
                    (true, false, true) => Err(later()),
                    (true, _, _) => Ok((key, None)),
                    (false, true, _) => Ok((key, Some(Beyond::Constant(0.0)))),
                    (false, false, true) => Ok((key, Some(Beyond::Later))),
                    (false, false, false) => Ok((key, None)),
                }
            }
            Op::Attention(a) if a.key == key => {
                let masks =
                    a.causal && a.query == dim || a.extras().1.is_some_and(|m| implies(g, op.args[m], key, dim));
                if args.contains(&Some(Beyond::Later)) && !masks { Err(later()) } else { Ok((key, None)) }
            }
            Op::Reshape { groups } => match groups.iter().find(|(a, _)| a.contains(&key)) {
                None => Ok((key, args[0])),
                Some((a, b)) if a.len() == 1 && b.len() == 1 => Ok((b[0], args[0])),
                Some(_) => Err(format!("the kept dim `{}` is split or merged", g.dim(key).name)),
            },
            other => {
                let touches = other.names_dim(key);
                let tainted = args.contains(&Some(Beyond::Later));
                if touches && tainted {
                    return Err(later());
                }
                Ok((key, tainted.then_some(Beyond::Later)))
            }
        }
    }

    fn map(
        &self,
        g: &Graph,
        op: &Operation,
        m: MapOp,
        args: &[Option<Beyond>],
        key: DimId,
        dim: DimId,
    ) -> Option<Beyond> {
        // A constant operand without the kept dim is that constant everywhere.
        let full: Vec<Option<Beyond>> =
            (op.args.iter().zip(args)).map(|(a, f)| f.or_else(|| splat(g, *a).map(Beyond::Constant))).collect();
        if m == MapOp::Where && implies(g, op.args[0], key, dim) {
            return full[2];
        }
        use Beyond::Constant as C;
        let absorbed = match (m, &full[..]) {
            (MapOp::Mul, [Some(C(0.0)), _] | [_, Some(C(0.0))]) => Some(0.0),
            (MapOp::Div, [Some(C(0.0)), _]) => Some(0.0),
            (MapOp::Add | MapOp::Sub, [Some(C(f64::NEG_INFINITY)), x]) if *x != Some(Beyond::Later) => {
                Some(f64::NEG_INFINITY)
            }
            (MapOp::Exp, [Some(C(x))]) => Some(x.exp()),
            (MapOp::Cast(_), [Some(C(x))]) => Some(*x),
            (MapOp::Neg, [Some(C(x))]) => Some(-x),
            _ => None,
        };
        match absorbed {
            Some(c) => Some(C(c)),
            None => args.contains(&Some(Beyond::Later)).then_some(Beyond::Later),
        }
    }
}

fn splat(g: &Graph, v: ValueId) -> Option<f64> {
    let op = g.def_op(v)?;
    match &op.op {
        Op::Constant(Constant::Splat(x)) => Some(*x),
        Op::Broadcast { .. } => splat(g, op.args[0]),
        _ => None,
    }
}

/// Whether a mask is false wherever `iota[key] > iota[dim]`.
fn implies(g: &Graph, mask: ValueId, key: DimId, dim: DimId) -> bool {
    let Some(op) = g.def_op(mask) else { return false };
    let iota = |v: ValueId, d: DimId| g.def_op(v).is_some_and(|o| o.op == Op::Iota(d));
    match op.op {
        Op::Map(MapOp::And) => op.args.iter().any(|a| implies(g, *a, key, dim)),
        Op::Map(MapOp::Le | MapOp::Lt) => iota(op.args[0], key) && iota(op.args[1], dim),
        Op::Map(MapOp::Ge | MapOp::Gt) => iota(op.args[0], dim) && iota(op.args[1], key),
        Op::Broadcast { .. } => implies(g, op.args[0], key, dim),
        _ => false,
    }
}
