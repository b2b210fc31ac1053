//! The dims that an operation names, and their substitution.

use super::*;

impl Graph {
    /// How a plan names a dim: the definition that it is local to, and its name there. None for dims that a pass has made of another one.
    pub fn said(&self, dim: DimId) -> Option<(Option<&str>, &str)> {
        let name = self.whole_name(dim);
        let name = name.split_once('#').map_or(name, |n| n.0);
        match name.rsplit_once('.') {
            None => Some((None, name)),
            Some((of, _)) if self.dims.iter().any(|d| d.name == of) => None,
            Some((of, name)) => Some((Some(of), name)),
        }
    }
}

impl Graph {
    /// The name by which a reader of the program knows a dim: of one that a pass has made, that of the dim which it was made of.
    pub fn known_as(&self, dim: DimId) -> &str {
        let name = &self.dim(dim).name;
        match (self.said(dim), name.rsplit_once('.')) {
            (None, Some((of, _))) => of,
            _ => name,
        }
    }
}

impl Op {
    /// The same operation on other dims: every dim that it names is replaced by `f` of it. (The body of a loop is not
    /// touched.)
    pub fn map_dims(&self, f: &mut dyn FnMut(DimId) -> DimId) -> Op {
        let mut op = self.clone();
        op.each_dim(&mut |d| *d = f(*d));
        op
    }

    /// Whether the operation names the dim.
    pub fn names_dim(&self, dim: DimId) -> bool {
        let mut found = false;
        self.clone().each_dim(&mut |d| found |= *d == dim);
        found
    }

    fn each_dim(&mut self, f: &mut dyn FnMut(&mut DimId)) {
        match self {
            Op::Param(_)
            | Op::State(_)
            | Op::Input(_)
            | Op::Constant(_)
            | Op::Step
            | Op::Position
            | Op::Map(_)
            | Op::Coordinate(_)
            | Op::StopGradient => {}
            Op::Collective(c) => c.dims.iter_mut().for_each(|(from, to)| {
                f(from);
                f(to);
            }),
            Op::Iota(d)
            | Op::Stack { dim: d }
            | Op::Scan { dim: d, .. }
            | Op::LinearScan { dim: d, .. }
            | Op::ArgSort { dim: d }
            | Op::Loop { dim: d, .. } => f(d),
            Op::Random { dims, .. }
            | Op::Broadcast { dims }
            | Op::Reduce { dims, .. }
            | Op::Dot { contract: dims }
            | Op::Gather { dims, .. }
            | Op::PackPlace { packed: dims, .. } => dims.iter_mut().for_each(f),
            Op::Reshape { groups } => {
                groups.iter_mut().for_each(|(from, to)| from.iter_mut().chain(to).for_each(&mut *f));
            }
            Op::Window { axes, .. } | Op::Fold { axes } => {
                for a in axes {
                    f(&mut a.input);
                    a.terms.iter_mut().for_each(|t| f(&mut t.0));
                }
            }
            Op::Scatter { removed, targets, .. } => removed.iter_mut().chain(targets).for_each(f),
            Op::Concat { parts, to } => {
                parts.iter_mut().for_each(&mut *f);
                f(to);
            }
            Op::TopK { dim, k } => {
                f(dim);
                f(k);
            }
            Op::Draw { dim, dims, .. } => {
                f(dim);
                dims.iter_mut().for_each(f);
            }
            Op::Attention(a) | Op::AttentionGrad(a) => {
                // One dim in two roles stays one.
                [&mut a.query, &mut a.key, &mut a.feature, &mut a.value].into_iter().for_each(f);
            }
            Op::WriteAt { dim, part } => {
                f(dim);
                f(part);
            }
        }
    }
}
