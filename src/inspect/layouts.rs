//! Every value of the whole program with its layout, as text.
//!
//! ```text
//! %12 score[batch@dp, seq, heads@tp]: f32 = dot[embed](%3, %7)  // block.0.attention gpt.pta:20:13
//! ```

use super::comm::phase_name;
use crate::ir::*;
use crate::shard::Story;
use crate::source::SourceMap;
use std::fmt::Write;

/// The program's text; parameters and states as they lie between steps, where that is otherwise than they are used.
pub fn text(story: &Story, sources: &SourceMap) -> String {
    let mut out = String::new();
    let (g, mesh) = (&story.graph, &story.mesh);
    if !mesh.axes.is_empty() {
        let _ = writeln!(out, "mesh {mesh}");
    }
    for p in &g.params {
        let Some(s) = story.storage.params.get(&p.path) else { continue };
        let names: Vec<&str> = p.dims.iter().map(|d| g.dim(*d).name.as_str()).collect();
        let show = |cuts: &[crate::mesh::Cut]| {
            crate::mesh::Layout { dims: cuts.to_vec(), partial: Vec::new() }.show(mesh, &names)
        };
        let _ = write!(out, "param {}{}: {}", p.path, show(&s.compute), p.dtype);
        for (what, cuts) in [("stored", &s.between), ("gradient", &s.gradient), ("updated", &s.update)] {
            if *cuts != s.compute {
                let _ = write!(out, ", {what} {}", show(cuts));
            }
        }
        out.push('\n');
    }
    block(story, sources, ENTRY, 0, &mut out);
    for o in &g.outputs {
        let _ = writeln!(out, "output {} = {}", o.name, o.value);
    }
    out
}

/// The word of an operation; of an edge on which a value enters a scope, that.
fn head(g: &Graph, op: &Op) -> String {
    match op {
        Op::Reshape { groups } if groups.is_empty() => "enter".to_string(),
        op => print::op_name(g, op),
    }
}

/// `%12 score[batch@dp, seq]: f32`
fn value(story: &Story, v: ValueId) -> String {
    let value = story.graph.value(v);
    let name = value.name.as_ref().map_or_else(String::new, |n| format!(" {n}"));
    let layout = story.layout(v).show(&story.mesh, &story.dims(v));
    let layout = if value.dims.is_empty() { layout.trim_start_matches("[]").trim_start() } else { &layout };
    let gap = if name.is_empty() || value.dims.is_empty() && !layout.is_empty() { " " } else { "" };
    let gap = if layout.is_empty() { "" } else { gap };
    format!("{v}{name}{gap}{layout}: {}", value.dtype)
}

fn block(story: &Story, sources: &SourceMap, id: BlockId, depth: usize, out: &mut String) {
    let g = &story.graph;
    let indent = "  ".repeat(depth);
    for op_id in &g.block(id).ops {
        let op = g.op(*op_id);
        let results: Vec<String> = op.results.iter().map(|r| value(story, *r)).collect();
        let args: Vec<String> = op.args.iter().map(ValueId::to_string).collect();
        let args = if args.is_empty() { String::new() } else { format!("({})", args.join(", ")) };
        let _ = write!(out, "{indent}{} = {}{args}", results.join(", "), head(g, &op.op));
        let mut notes = Vec::new();
        if op.phase != Phase::Forward {
            notes.push(phase_name(op.phase).to_string());
        }
        if let Some(s) = g.scopes.get(op.scope.index()).filter(|s| !s.path.is_empty()) {
            notes.push(s.path.clone());
        }
        notes.extend(op.span.map(|s| sources.place(s)));
        let note = if notes.is_empty() { String::new() } else { format!("  // {}", notes.join(" ")) };
        if let Op::Loop { body, .. } = op.op {
            let params: Vec<String> = g.block(body).params.iter().map(|p| value(story, *p)).collect();
            let _ = writeln!(out, " {{{note}\n{indent}  params({})", params.join(", "));
            block(story, sources, body, depth + 1, out);
            let results: Vec<String> = g.block(body).results.iter().map(ValueId::to_string).collect();
            let _ = writeln!(out, "{indent}  results({})\n{indent}}}", results.join(", "));
        } else {
            let _ = writeln!(out, "{note}");
        }
    }
}
