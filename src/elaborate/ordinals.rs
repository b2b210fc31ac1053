//! Numbers the call sites of a body: the k-th call of a name in source order. Random streams and the names of anonymous
//! instances depend on it, so it must not depend on which branches are taken.

use crate::source::Span;
use crate::syntax::ast::*;
pub use crate::syntax::visit::{Node, walk, walk_block};
use std::collections::HashMap;

/// The word that a callee is known by: `f`, `f` of `f[..]`, `c` of `a.b.c`.
pub fn callee_name(callee: &Expr) -> Option<&str> {
    match &*callee.kind {
        ExprKind::Name(n) => Some(n),
        ExprKind::Index { base, .. } => callee_name(base),
        ExprKind::Member { name, .. } => Some(&name.text),
        _ => None,
    }
}

/// By the span of each call expression: its name and its number, from 1.
pub fn number(block: &Block) -> HashMap<Span, (String, u32)> {
    let mut counts: HashMap<&str, u32> = HashMap::new();
    let mut out = HashMap::new();
    walk_block(block, &mut |node| {
        if let Node::Expr(e) = node
            && let ExprKind::Call { callee, .. } = &*e.kind
            && let Some(name) = callee_name(callee)
        {
            let n = counts.entry(name).or_insert(0);
            *n += 1;
            out.insert(e.span, (name.to_string(), *n));
        }
    });
    out
}

/// Names that a block rebinds, nested blocks included, in source order, each once.
pub fn rebound(block: &Block) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    walk_block(block, &mut |node| {
        if let Node::Stmt(Stmt { kind: StmtKind::Rebind { name, .. }, .. }) = node
            && !names.contains(&name.text)
        {
            names.push(name.text.clone());
        }
    });
    names
}
