//! Arithmetic on affine indices.

use super::{ExprId, Index, LoopId};

impl Index {
    pub fn constant(base: i64) -> Index {
        Index { base, ..Index::default() }
    }

    pub fn of_loop(index: LoopId) -> Index {
        Index { base: 0, loops: vec![(index, 1)], exprs: vec![] }
    }

    pub fn of_expr(expr: ExprId) -> Index {
        Index { base: 0, loops: vec![], exprs: vec![(expr, 1)] }
    }

    /// Its value, if it is the same everywhere.
    pub fn as_constant(&self) -> Option<i64> {
        (self.loops.is_empty() && self.exprs.is_empty()).then_some(self.base)
    }

    /// Adds `factor` times `other`.
    pub fn add(&mut self, other: &Index, factor: i64) {
        self.base += other.base * factor;
        for (index, k) in &other.loops {
            self.add_loop(*index, k * factor);
        }
        for (expr, k) in &other.exprs {
            match self.exprs.iter_mut().find(|(e, _)| e == expr) {
                Some((_, old)) => *old += k * factor,
                None => self.exprs.push((*expr, k * factor)),
            }
        }
        self.exprs.retain(|(_, k)| *k != 0);
    }

    pub fn add_loop(&mut self, index: LoopId, factor: i64) {
        match self.loops.binary_search_by_key(&index, |(l, _)| *l) {
            Ok(i) => self.loops[i].1 += factor,
            Err(i) => self.loops.insert(i, (index, factor)),
        }
        self.loops.retain(|(_, k)| *k != 0);
    }

    pub fn coefficient(&self, index: LoopId) -> i64 {
        self.loops.iter().find(|(l, _)| *l == index).map_or(0, |(_, k)| *k)
    }

    /// The same with loops renamed: each loop becomes a sum of loops with factors (none: the loop stands at 0).
    pub fn replace_loops(&self, to: impl Fn(LoopId) -> Vec<(LoopId, i64)>) -> Index {
        let mut out = Index { base: self.base, loops: vec![], exprs: self.exprs.clone() };
        for (index, k) in &self.loops {
            for (new, factor) in to(*index) {
                out.add_loop(new, k * factor);
            }
        }
        out
    }
}
