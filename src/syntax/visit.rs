//! Walks over statements and expressions in source order.

use super::ast::*;

/// Visits every expression of a block, outer before inner, in source order; and every statement.
pub fn walk_block<'a>(block: &'a Block, f: &mut dyn FnMut(Node<'a>)) {
    for s in &block.stmts {
        f(Node::Stmt(s));
        match &s.kind {
            StmtKind::Let { value, .. }
            | StmtKind::Rebind { value, .. }
            | StmtKind::Update { value, .. }
            | StmtKind::Loss { value, .. }
            | StmtKind::Metric { value, .. }
            | StmtKind::Output { value, .. }
            | StmtKind::Feed { value, .. }
            | StmtKind::Setting { value, .. }
            | StmtKind::Expr(value) => walk(value, f),
            StmtKind::Param { init, .. } | StmtKind::State { init, .. } => walk(init, f),
            StmtKind::Dims(d) => {
                for d in d {
                    if let DimValue::Size(e) = &d.value {
                        walk(e, f);
                    }
                }
            }
        }
    }
}

pub enum Node<'a> {
    Stmt(&'a Stmt),
    Expr(&'a Expr),
}

pub fn walk<'a>(e: &'a Expr, f: &mut dyn FnMut(Node<'a>)) {
    f(Node::Expr(e));
    match &*e.kind {
        ExprKind::Int(_)
        | ExprKind::Float(_)
        | ExprKind::Str(_)
        | ExprKind::Bool(_)
        | ExprKind::Name(_)
        | ExprKind::Type(_) => {}
        ExprKind::Tuple(es) | ExprKind::Array(es) => es.iter().for_each(|e| walk(e, f)),
        ExprKind::Paren(e) | ExprKind::Unary { value: e, .. } => walk(e, f),
        ExprKind::Member { base, .. } | ExprKind::Turn { base, .. } | ExprKind::Layout { base, .. } => walk(base, f),
        ExprKind::If { cond, then, other } => {
            walk(cond, f);
            walk_block(then, f);
            match other {
                None => {}
                Some(Else::Block(b)) => walk_block(b, f),
                Some(Else::If(e)) => walk(e, f),
            }
        }
        ExprKind::For { over, body, .. } => {
            if let LoopRange::Range(a, b) = over {
                walk(a, f);
                walk(b, f);
            }
            walk_block(body, f);
        }
        ExprKind::Binary { left, right, .. } => {
            walk(left, f);
            walk(right, f);
        }
        ExprKind::Call { callee, args } => {
            walk(callee, f);
            args.iter().for_each(|a| walk(&a.value, f));
        }
        ExprKind::Index { base, items } => {
            walk(base, f);
            for i in items {
                match &i.kind {
                    IndexKind::Rest => {}
                    IndexKind::Equals { value, .. } | IndexKind::Other(value) => walk(value, f),
                    IndexKind::Group { from, to } => {
                        for p in from.parts.iter().chain(to.iter().flat_map(|g| &g.parts)) {
                            if let Some(v) = &p.value {
                                walk(v, f);
                            }
                        }
                    }
                }
            }
        }
    }
}
