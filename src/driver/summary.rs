//! A checked program in brief: dims, signatures of its items, each model's inputs, parameters, states and outputs.

use super::check::Checked;
use crate::elaborate::{Elab, Mode};
use crate::ir::{DimId, Graph, OutputKind};
use crate::resolve::ItemRef;
use crate::source::Span;
use crate::syntax::ast::ItemKind;
use crate::types::DType;
use std::fmt::Write;

pub fn text(c: &Checked, models: &[ItemRef]) -> String {
    let mut out = String::new();
    let items = c.program.modules.first().map_or(&[][..], |m| &m.ast.items);
    for item in items {
        let head = match &item.kind {
            ItemKind::Def(d) => d.head,
            ItemKind::Plan(p) => p.head,
            ItemKind::Train(t) => t.head,
            ItemKind::Sample(s) => s.head,
            ItemKind::Weights(w) => w.head,
            ItemKind::Use(_) | ItemKind::Dims(_) | ItemKind::Consts(_) | ItemKind::Model(_) | ItemKind::Preset(_) => {
                continue;
            }
        };
        let _ = writeln!(out, "{}", one_line(c.sources.text(head)));
    }
    for at in models {
        let mut e = Elab::new(&c.program, c.settings.clone(), Mode::TRAIN, DType::F32);
        e.model(*at);
        let _ = writeln!(out, "\nmodel {}", c.program.model(*at).name.text);
        model(c, &e, &mut out);
    }
    out
}

fn model(c: &Checked, e: &Elab, out: &mut String) {
    let g = &e.b.graph;
    let mut used: Vec<DimId> = Vec::new();
    let mut note = |dims: &[DimId]| used.extend(dims.iter().filter(|d| !used.contains(d)).copied().collect::<Vec<_>>());
    g.inputs.iter().for_each(|i| note(&i.dims));
    g.params.iter().for_each(|p| note(&p.dims));
    g.states.iter().for_each(|s| note(&s.dims));
    for d in used {
        let dim = g.dim(d);
        let _ = writeln!(out, "  dim {} = {}", dim.name, dim.size);
    }
    for i in &g.inputs {
        let _ = writeln!(out, "  input {}: {}{}", i.name, i.dtype, dims(g, &i.dims));
    }
    for p in &g.params {
        let shape = match &p.map {
            Some((ins, outs)) => {
                let names = |ds: &[DimId]| ds.iter().map(|d| g.dim(*d).name.as_str()).collect::<Vec<_>>().join(", ");
                let rest: Vec<DimId> =
                    p.dims.iter().copied().filter(|d| !ins.contains(d) && !outs.contains(d)).collect();
                let map = format!("{} -> {}", names(ins), names(outs));
                if rest.is_empty() { format!("[{map}]") } else { format!("[{}, ({map})]", names(&rest)) }
            }
            None => dims(g, &p.dims),
        };
        let _ = write!(out, "  param {}: {}{shape}", p.path, p.dtype);
        let _ = writeln!(out, "{}", p.span.map_or(String::new(), |s| initial(c, s)));
    }
    for s in &g.states {
        let _ = write!(out, "  state {}: {}{}", s.path, s.dtype, dims(g, &s.dims));
        let _ = writeln!(out, "{}", s.span.map_or(String::new(), |s| initial(c, s)));
    }
    for o in &g.outputs {
        let kind = match o.kind {
            OutputKind::Loss => "loss",
            OutputKind::Metric => "metric",
            OutputKind::Value => "output",
            OutputKind::State(_) => "update",
            OutputKind::Param(_) | OutputKind::InitParam(_) | OutputKind::InitState(_) => continue,
        };
        let v = g.value(o.value);
        let _ = writeln!(out, "  {kind} {}: {}{}", o.name, v.dtype, dims(g, &v.dims));
    }
}

fn dims(g: &Graph, dims: &[DimId]) -> String {
    if dims.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = dims.iter().map(|d| g.dim(*d).name.as_str()).collect();
    format!("[{}]", names.join(", "))
}

/// ` = normal(0.02)`: the rest of the line that declares it, and the place.
fn initial(c: &Checked, span: Span) -> String {
    let text = &c.sources.file(span.file).text;
    let rest = text.get(span.start as usize..).unwrap_or("").lines().next().unwrap_or("");
    let code = rest.split("//").next().unwrap_or(rest).trim_end();
    let value = code.split_once(" = ").map_or(String::new(), |(_, value)| format!(" = {value}"));
    format!("{value}    // {}", c.sources.place(span))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
