//! What an expression reads.

use super::{Expr, ExprId, Index, Kernel, Node, Pass};

impl Node {
    /// The address or counter of an expression that has one.
    pub fn index(&self) -> Option<&Index> {
        match self {
            Node::Index(index) | Node::Load { at: index, .. } | Node::Random { counter: index, .. } => Some(index),
            Node::Const(_) | Node::Map(..) | Node::Register(_) | Node::Check { .. } => None,
        }
    }
}

impl Expr {
    /// Calls `visit` for each operand, those of addresses included.
    pub fn operands(&self, visit: &mut dyn FnMut(ExprId)) {
        if let Some(index) = self.node.index() {
            index.exprs.iter().for_each(|(e, _)| visit(*e));
        }
        match &self.node {
            Node::Load { when, .. } => when.iter().for_each(|e| visit(*e)),
            Node::Map(_, args) => args.iter().for_each(|e| visit(*e)),
            Node::Check { index, .. } => visit(*index),
            Node::Const(_) | Node::Index(_) | Node::Register(_) | Node::Random { .. } => {}
        }
    }
}

impl Kernel {
    /// The expressions that a pass evaluates in its iterations, in order, operands first.
    pub fn needed(&self, pass: &Pass) -> Vec<ExprId> {
        let mut marked = vec![false; self.exprs.len()];
        let mut mark = |e: ExprId| marked[e.index()] = true;
        pass.carries.iter().for_each(|c| mark(c.next));
        pass.reductions.iter().for_each(|r| mark(r.value));
        for store in &pass.stores {
            mark(store.value);
            store.when.iter().for_each(|e| mark(*e));
            store.at.exprs.iter().for_each(|(e, _)| mark(*e));
        }
        for n in (0..marked.len()).rev() {
            if marked[n] {
                self.exprs[n].operands(&mut |e| marked[e.index()] = true);
            }
        }
        (0..marked.len()).filter(|n| marked[*n]).map(|n| ExprId(n as u32)).collect()
    }
}
