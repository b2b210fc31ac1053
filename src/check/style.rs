//! Warnings about the text of the main file that need no types: how names are written, conditions that are literals.

use crate::diag::{Diagnostic, Sink};
use crate::resolve::Program;
use crate::syntax::ast::*;
use crate::syntax::visit::{self, Node};

/// Looks through the main file.
pub fn check(program: &Program, sink: &mut Sink) {
    for item in program.modules.first().iter().flat_map(|main| &main.ast.items) {
        match &item.kind {
            ItemKind::Def(def) => {
                match def.kind {
                    DefKind::Layer => camel(&def.name, "a layer", sink),
                    DefKind::Fn => snake(&def.name, "a function", sink),
                    DefKind::Optimizer => snake(&def.name, "an optimizer", sink),
                }
                def.args.iter().for_each(|a| snake(&a.name, "an argument", sink));
                block(&def.body, sink);
            }
            ItemKind::Model(model) => {
                camel(&model.name, "a model", sink);
                model.args.iter().for_each(|a| snake(&a.name, "an input", sink));
                block(&model.body, sink);
            }
            ItemKind::Dims(dims) => dims.iter().for_each(|d| snake(&d.name, "a dim", sink)),
            ItemKind::Consts(consts) => consts.iter().for_each(|c| snake(&c.name, "a constant", sink)),
            ItemKind::Preset(preset) => snake(&preset.name, "a preset", sink),
            ItemKind::Plan(plan) => snake(&plan.name, "a plan", sink),
            ItemKind::Sample(sample) => block(&sample.body, sink),
            ItemKind::Use(_) | ItemKind::Train(_) | ItemKind::Weights(_) => {}
        }
    }
}

fn block(block: &Block, sink: &mut Sink) {
    visit::walk_block(block, &mut |node| match node {
        Node::Stmt(stmt) => match &stmt.kind {
            StmtKind::Let { names, .. } => names.iter().for_each(|n| snake(n, "a value", sink)),
            StmtKind::Param { names, .. } => names.iter().for_each(|n| snake(n, "a parameter", sink)),
            StmtKind::State { names, .. } => names.iter().for_each(|n| snake(n, "a state", sink)),
            StmtKind::Dims(dims) => dims.iter().for_each(|d| snake(&d.name, "a dim", sink)),
            _ => {}
        },
        Node::Expr(expr) => condition(expr, sink),
    });
}

/// `if 1 < 2 {..}` and `where(true, a, b)` always take one side. Names are not looked at: a setting may be constant here
/// and another constant elsewhere.
fn condition(expr: &Expr, sink: &mut Sink) {
    let cond = match &*expr.kind {
        ExprKind::If { cond, .. } => cond,
        ExprKind::Call { callee, args } if is_where(callee) => match args.first() {
            Some(first) => &first.value,
            None => return,
        },
        _ => return,
    };
    if is_literal(cond) {
        sink.push(
            Diagnostic::warning("W0003", "the condition is always the same")
                .at(cond.span, "depends on nothing")
                .help("write the side that is meant"),
        );
    }
}

fn is_where(callee: &Expr) -> bool {
    matches!(&*callee.kind, ExprKind::Name(n) if n == "where")
}

fn is_literal(expr: &Expr) -> bool {
    let mut literal = true;
    visit::walk(expr, &mut |node| {
        let Node::Expr(e) = node else { return };
        literal &= matches!(
            &*e.kind,
            ExprKind::Int(_)
                | ExprKind::Float(_)
                | ExprKind::Bool(_)
                | ExprKind::Paren(_)
                | ExprKind::Unary { .. }
                | ExprKind::Binary { .. }
        );
    });
    literal
}

fn camel(name: &Name, what: &str, sink: &mut Sink) {
    let text = &name.text;
    if text.starts_with(|c: char| c.is_ascii_lowercase()) || text.contains('_') {
        let better: String = text.split('_').map(capitalised).collect();
        warn(name, what, "CamelCase", &better, sink);
    }
}

fn snake(name: &Name, what: &str, sink: &mut Sink) {
    if !name.text.contains(|c: char| c.is_ascii_uppercase()) {
        return;
    }
    let mut better = String::new();
    let mut before = '_';
    for c in name.text.chars() {
        if c.is_ascii_uppercase() && !before.is_ascii_uppercase() && before != '_' {
            better.push('_');
        }
        better.push(c.to_ascii_lowercase());
        before = c;
    }
    warn(name, what, "snake_case", &better, sink);
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or(String::new(), |c| c.to_ascii_uppercase().to_string() + chars.as_str())
}

fn warn(name: &Name, what: &str, style: &str, better: &str, sink: &mut Sink) {
    sink.push(
        Diagnostic::warning("W0004", format!("{what} is named in {style}"))
            .at(name.span, "named otherwise")
            .help(format!("call it `{better}`")),
    );
}
