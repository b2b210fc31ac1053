//! What users of other languages write, and what to write instead.

use super::builtin::NAMES;
use crate::syntax::ast::{Expr, ExprKind, IndexItem, IndexKind};

/// A name that other languages have.
pub(super) fn name(n: &str) -> Option<&'static str> {
    Some(match n {
        "zeros" | "zeros_like" => "write `0`: a constant takes any dims; for these alone: `let z: [dim, ..] = 0`",
        "ones" | "ones_like" => "write `1`: a constant takes any dims; for these alone: `let z: [dim, ..] = 1`",
        "print" => "to see a number during training, write `metric name = ..` in the model",
        "None" | "null" | "nil" => "there is no empty value: a setting that is off is a bool or a number",
        "True" | "yes" | "on" => "write `true`",
        "False" | "no" | "off" => "write `false`",
        _ => return None,
    })
}

/// `x.mean()`
pub(super) fn method(of: &Expr, name: &str) -> Option<String> {
    let of = match &*of.kind {
        ExprKind::Name(n) => n.as_str(),
        _ => "..",
    };
    match name {
        "shape" | "size" => Some("dims have names: `size[dim]` is the size of one".to_string()),
        "sum" | "mean" | "max" | "min" | "prod" | "any" | "all" | "argmax" | "argmin" | "var" | "cumsum" => {
            Some(format!("write `{name}[dims]({of})`"))
        }
        _ => NAMES.contains(&name).then(|| format!("write `{name}({of})`")),
    }
}

/// A call whose argument is a setting: `draw[vocab, top_k = ..](..)`.
pub(super) fn setting(callee: &str, items: &[IndexItem], name: &str) -> String {
    let mut brackets: Vec<String> = Vec::new();
    for item in items {
        match &item.kind {
            IndexKind::Group { from, to: None } if !from.paren => {
                brackets.extend(from.parts.iter().map(|p| p.name.text.clone()));
            }
            _ => brackets.push("..".to_string()),
        }
    }
    brackets.push(format!("{name} = .."));
    format!("it is a setting: write `{callee}[{}](..)`", brackets.join(", "))
}
