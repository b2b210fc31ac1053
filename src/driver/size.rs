//! Sizes that no machine has: what lowering computes with 64 bits must not overflow.

use crate::diag::Diagnostic;
use crate::ir::{DimId, Graph, OutputKind, prune};
use crate::source::Span;

/// Bytes of all values together, which then are addressed by i64 without overflow.
const MOST: u128 = 1 << 62;

/// The same of a graph as the walk of a program leaves it: of what a step computes, without outputs that nobody asks for.
pub fn step_addressable(graph: &Graph) -> Result<(), Diagnostic> {
    // Nearly always all of it fits, and there is no need to see what is computed.
    if addressable(graph).is_ok() {
        return Ok(());
    }
    let mut step = graph.clone();
    step.outputs.retain(|o| o.kind != OutputKind::Value);
    addressable(&prune::prune(&step))
}

/// No value is larger than an address can say, nor are all together.
pub fn addressable(graph: &Graph) -> Result<(), Diagnostic> {
    let bytes = |dims: &[DimId]| dims.iter().fold(8u128, |n, d| n.saturating_mul(graph.size(*d) as u128));
    let mut total = 0u128;
    let mut add = |what: String, dims: &[DimId], span: Option<Span>| {
        total = total.saturating_add(bytes(dims));
        if total <= MOST {
            return Ok(());
        }
        let d = Diagnostic::error("E0604", format!("{what} is larger than any memory"))
            .help("make its dims smaller: `--set NAME=VALUE` tries another size");
        Err(match span {
            Some(s) => d.at(s, "here"),
            None => d,
        })
    };
    for p in &graph.params {
        add(format!("parameter `{}`", p.path), &p.dims, p.span)?;
    }
    for s in &graph.states {
        add(format!("state `{}`", s.path), &s.dims, s.span)?;
    }
    for i in &graph.inputs {
        add(format!("input `{}`", i.name), &i.dims, i.span)?;
    }
    for op in &graph.ops {
        for r in &op.results {
            add("this value".to_string(), &graph.value(*r).dims, op.span)?;
        }
    }
    Ok(())
}
