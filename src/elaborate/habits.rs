//! What users of other languages write, and what to write instead.

use super::builtin::NAMES;
use crate::resolve::stdlib;
use crate::syntax::ast::{Expr, ExprKind, IndexItem, IndexKind, UnaryOp};

/// Arguments by which other languages say along what a function works.
pub(super) const AXES: [&str; 2] = ["axis", "dim"];

/// A name that other languages have.
pub(super) fn name(n: &str) -> Option<&'static str> {
    Some(match n {
        "zeros" | "zeros_like" => "write `0`: a constant takes any dims; for these alone: `let z: [dim, ..] = 0`",
        "ones" | "ones_like" => "write `1`: a constant takes any dims; for these alone: `let z: [dim, ..] = 1`",
        "print" => "to see a number during training, write `metric name = ..` in the model",
        "None" | "null" | "nil" => "there is no empty value: a setting that is off is a bool or a number",
        "True" | "yes" | "on" => "write `true`",
        "False" | "no" | "off" => "write `false`",
        "torch" | "F" | "jnp" | "jax" | "np" | "tf" => {
            "functions are called by their names alone, `exp(x)`; those of the library after `use nn.{relu}`"
        }
        "self" => "a layer's parameters and parts are called by their names alone: `proj(x)`",
        "len" => "a dim's name is its size; `size[a, b]` is that of several",
        "range" => "a loop runs over a dim or a range: `for i in 0..n {..}`",
        "matmul" | "mm" | "bmm" | "einsum" | "tensordot" => {
            "write `dot[dim](x, w)`, naming the dim that is summed over"
        }
        "cat" | "concatenate" => "write `concat[(a, b) -> c](x, y)`",
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
        "reshape" | "view" | "flatten" | "unflatten" => {
            Some(format!("write `{of}[a -> (b, c)]` to split a dim, `{of}[(b, c) -> a]` to merge two"))
        }
        "T" | "mT" | "transpose" | "permute" | "swapaxes" | "swapdims" | "t" | "contiguous" => Some(format!(
            "dims have names and no order, so nothing is transposed; `{of}[a -> b]` renames, `{of}[a -> (b, c)]` splits"
        )),
        "unsqueeze" | "squeeze" | "expand" | "expand_as" | "broadcast_to" => {
            Some("a value takes the dims that it lacks from what it is used with; this step is left out".to_string())
        }
        "matmul" | "mm" | "bmm" => Some(format!("write `dot[dim]({of}, w)`, naming the dim that is summed over")),
        "detach" => Some(format!("write `stop_gradient({of})`")),
        "float" => Some(format!("write `f32({of})`")),
        "long" | "int" => Some(format!("write `int({of})`")),
        "half" | "bfloat16" | "to" | "cuda" | "cpu" | "type" | "astype" => Some(format!(
            "write `f32({of})` or `int({of})` to convert; a plan says the precision, the runtime the device"
        )),
        "softmax" | "log_softmax" => Some(format!("write `{name}[dim]({of})`")),
        _ if stdlib::defines("nn", name) => Some(format!("write `{name}({of})`, after `use nn.{{{name}}}`")),
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

/// A number or truth value as it is written.
pub(super) fn literal(e: &Expr) -> Option<String> {
    match &*e.kind {
        ExprKind::Int(text) | ExprKind::Float(text) => Some(text.clone()),
        ExprKind::Bool(value) => Some(value.to_string()),
        ExprKind::Unary { op: UnaryOp::Neg, value } => literal(value).map(|text| format!("-{text}")),
        _ => None,
    }
}
