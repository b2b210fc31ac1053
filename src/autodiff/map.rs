//! Derivatives of elementwise functions.

use super::Reverse;
use crate::ir::{DimId, ValueId};
use crate::types::MapOp;

impl Reverse<'_> {
    /// `y` = op(args) with cotangent `g`.
    pub(super) fn map_rule(&mut self, op: MapOp, args: &[ValueId], y: ValueId, g: ValueId) {
        use MapOp::*;
        let over = self.b.dims(y).to_vec();
        for (i, x) in args.iter().enumerate() {
            if !self.wants(*x) {
                continue;
            }
            if let Some((part, over)) = self.early_sum(op, i, args, y, g) {
                self.contribute(*x, part, &over);
            } else if let Some(part) = self.map_part(op, i, args, y, g) {
                self.contribute(*x, part, &over);
            }
        }
        // Cast is listed here so that a new function must say what its derivative is.
        debug_assert!(!matches!(op, Cast(t) if !t.is_float()));
    }

    /// The contribution to operand `i` of a difference, product or quotient where part of the sum over dims that the operand
    /// lacks can be taken before a factor that lacks them too; with the dims that are left to sum over.
    fn early_sum(
        &mut self,
        op: MapOp,
        i: usize,
        args: &[ValueId],
        y: ValueId,
        g: ValueId,
    ) -> Option<(ValueId, Vec<DimId>)> {
        use MapOp::*;
        let x = args[i];
        // Sums in a wider type than the cotangent's come last.
        if self.held_in(x) != self.b.dtype(g) {
            return None;
        }
        let b = &mut *self.b;
        let (summed, factor) = match (op, i) {
            (Sub, 1) => (g, None),
            (Mul, _) => (g, Some(args[1 - i])),
            (Div, 0) => (g, Some(args[1])),
            (Div, _) if b.dims(x).len() < b.dims(y).len() => (b.mul(g, y), Some(x)),
            _ => return None,
        };
        let lacks = |v: ValueId, d: &DimId| !b.dims(v).contains(d);
        let (early, late): (Vec<DimId>, Vec<DimId>) = b
            .dims(y)
            .iter()
            .copied()
            .partition(|d| lacks(x, d) && factor.is_none_or(|f| lacks(f, d)) && !lacks(summed, d));
        if early.is_empty() {
            return None;
        }
        let sum = b.sum(&early, summed);
        let part = match (op, i) {
            (Mul, _) => b.mul(sum, args[1 - i]),
            (Div, 0) => b.div(sum, args[1]),
            (Div, _) => {
                let part = b.div(sum, x);
                b.neg(part)
            }
            _ => b.neg(sum),
        };
        Some((part, late))
    }

    /// The contribution to operand `i`.
    fn map_part(&mut self, op: MapOp, i: usize, args: &[ValueId], y: ValueId, g: ValueId) -> Option<ValueId> {
        use MapOp::*;
        let x = args[0];
        let b = &mut *self.b;
        Some(match (op, i) {
            (Neg, _) | (Sub, 1) => b.neg(g),
            (Exp, _) => b.mul(g, y),
            (Expm1, _) => {
                let slope = b.map_scalar(Add, y, 1.0);
                b.mul(g, slope)
            }
            (Log, _) => b.div(g, x),
            (Log1p, _) => {
                let below = b.map_scalar(Add, x, 1.0);
                b.div(g, below)
            }
            (Sqrt, _) => {
                let half = b.map_scalar(Mul, g, 0.5);
                b.div(half, y)
            }
            (Rsqrt, _) => {
                let square = b.map(Square, &[y]);
                let cube = b.mul(square, y);
                let slope = b.map_scalar(Mul, cube, -0.5);
                b.mul(g, slope)
            }
            (Square, _) => {
                // The cotangent may have fewer dims than x.
                let twice = b.map_scalar(Mul, g, 2.0);
                b.mul(twice, x)
            }
            (Abs, _) => {
                let sign = b.map(Sign, &[x]);
                b.mul(g, sign)
            }
            (Tanh, _) => {
                let square = b.map(Square, &[y]);
                let one = b.scalar(1.0, b.dtype(y));
                let slope = b.sub(one, square);
                b.mul(g, slope)
            }
            (Sigmoid, _) => {
                let one = b.scalar(1.0, b.dtype(y));
                let rest = b.sub(one, y);
                let slope = b.mul(y, rest);
                b.mul(g, slope)
            }
            (Softplus, _) => {
                let slope = b.map(Sigmoid, &[x]);
                b.mul(g, slope)
            }
            (Erf, _) => {
                let square = b.map(Square, &[x]);
                let minus = b.neg(square);
                let bell = b.map(Exp, &[minus]);
                let slope = b.map_scalar(Mul, bell, std::f64::consts::FRAC_2_SQRT_PI);
                b.mul(g, slope)
            }
            (Sin, _) => {
                let slope = b.map(Cos, &[x]);
                b.mul(g, slope)
            }
            (Cos, _) => {
                let sine = b.map(Sin, &[x]);
                let slope = b.neg(sine);
                b.mul(g, slope)
            }
            (Cast(_), _) | (Add, _) | (Sub, _) | (Rem, 0) => g,
            (Mul, _) => b.mul(g, args[1 - i]),
            (Div, 0) => b.div(g, args[1]),
            (Div, _) => {
                let slope = b.div(y, args[1]);
                let part = b.mul(g, slope);
                b.neg(part)
            }
            (Rem, _) => {
                let whole = b.map(FloorDiv, args);
                let part = b.mul(g, whole);
                b.neg(part)
            }
            (Pow, 0) => {
                // x ** 0 is flat, also at 0 where the power below is infinite.
                let less = b.map_scalar(Sub, args[1], 1.0);
                let power = b.map(Pow, &[x, less]);
                let slope = b.mul(args[1], power);
                let zero = b.scalar(0.0, b.dtype(y));
                let flat = b.map(Eq, &[args[1], zero]);
                let slope = b.select(flat, zero, slope);
                b.mul(g, slope)
            }
            (Pow, _) => {
                // 0 ** e stays 0 as e moves; elsewhere the slope is y log x.
                let zero = b.scalar(0.0, b.dtype(y));
                let some = b.map(Ne, &[x, zero]);
                let one = b.scalar(1.0, b.dtype(y));
                let safe = b.select(some, x, one);
                let log = b.map(Log, &[safe]);
                let slope = b.mul(y, log);
                let slope = b.select(some, slope, zero);
                b.mul(g, slope)
            }
            (Max | Min, _) => {
                // At equality the second operand has the slope.
                let first = b.map(if op == Max { Gt } else { Lt }, args);
                let zero = b.scalar(0.0, b.dtype(y));
                if i == 0 { b.select(first, g, zero) } else { b.select(first, zero, g) }
            }
            (Where, 1) => {
                let zero = b.scalar(0.0, b.dtype(g));
                b.select(args[0], g, zero)
            }
            (Where, 2) => {
                let zero = b.scalar(0.0, b.dtype(g));
                b.select(args[0], zero, g)
            }
            // Steps, conditions, logic: no derivative.
            (Where, _) | (Sign | Floor | Ceil | Round | FloorDiv | IsFinite | Not, _) => return None,
            (And | Or | Eq | Ne | Lt | Le | Gt | Ge, _) => return None,
        })
    }
}
