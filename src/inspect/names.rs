//! What values and operations are called in what is shown.

use crate::ir::*;
use crate::mesh::Atom;
use crate::shard::Story;
use crate::types::{MapOp, ReduceKind};
use indexmap::IndexMap;

/// How a value is reduced over atoms: `sum over heads, head_dim`
pub(super) fn reduced(story: &Story, v: ValueId, atoms: &[Atom]) -> String {
    let mut dims: Vec<String> = Vec::new();
    let mut kind = ReduceKind::Sum;
    for a in atoms {
        kind = story.reduction(v, *a).unwrap_or(kind);
        for op in story.sources(v, *a) {
            for d in story.contracted(op, &[*a]) {
                if !dims.contains(&d) {
                    dims.push(d);
                }
            }
        }
    }
    match dims.len() {
        0 => kind.name().to_string(),
        _ => format!("{} over {}", kind.name(), dims.join(", ")),
    }
}

/// The word of an operation of the whole program; of one that only says where a layout begins to hold, what it is.
pub fn word(story: &Story, op: OpId) -> String {
    let g = &story.graph;
    let here = g.op(op);
    match &here.op {
        Op::Reshape { groups } if groups.is_empty() => match g.scopes.get(here.scope.index()) {
            // Rules of a scope hold for what enters it.
            Some(s) if g.def_op(here.args[0]).is_some_and(|d| d.scope != here.scope) && !s.definition.is_empty() => {
                format!("entry into {}", s.definition)
            }
            _ => "layout".to_string(),
        },
        op => print::op_name(&story.graph, op),
    }
}

/// The path of a parameter that lies otherwise between steps than it is used, if a value is it (or a cast of it).
pub fn stored(story: &Story, v: ValueId) -> Option<&str> {
    let g = &story.graph;
    let mut op = g.def_op(outside(g, v))?;
    if let Op::Map(MapOp::Cast(_)) = op.op {
        op = g.def_op(outside(g, op.args[0]))?;
    }
    let Op::Param(p) = op.op else { return None };
    let path = &g.params[p.index()].path;
    let s = story.storage.params.get(path)?;
    (s.between != s.compute).then_some(path)
}

/// What a loop takes a value from, if it is the same in all turns.
fn outside(g: &Graph, v: ValueId) -> ValueId {
    let mut v = v;
    while let Def::BlockParam(k) = g.value(v).def {
        let block = g.value(v).block;
        let around = g.ops.iter().find_map(|o| match o.op {
            Op::Loop { body, carries, .. } if body == block => Some((o, carries)),
            _ => None,
        });
        match around {
            Some((o, carries)) if k > carries => v = o.args[k as usize - 1],
            _ => break,
        }
    }
    v
}

/// What values are called.
pub struct Names<'a> {
    g: &'a Graph,
    /// Gradients of parameters, and what losses and metrics are made of by elementwise operations alone.
    found: IndexMap<ValueId, String>,
}

impl<'a> Names<'a> {
    pub fn new(g: &'a Graph) -> Names<'a> {
        let mut found = IndexMap::new();
        for o in &g.outputs {
            let (dims, param) = match o.kind {
                OutputKind::Param(p) => (&g.params[p.index()].dims, Some(&g.params[p.index()].path)),
                OutputKind::Loss | OutputKind::Metric => (&g.value(o.value).dims, None),
                _ => continue,
            };
            let mut open = vec![o.value];
            while let Some(v) = open.pop() {
                let Some(op) = g.def_op(v) else { continue };
                let own = &g.value(v).dims;
                let alike = own.len() == dims.len() && dims.iter().all(|d| own.contains(d));
                if !alike || matches!(op.op, Op::Param(_) | Op::State(_) | Op::Constant(_)) {
                    continue;
                }
                let same = matches!(op.op, Op::Map(_) | Op::StopGradient);
                match param {
                    Some(path) if op.phase == Phase::Backward => {
                        found.entry(v).or_insert_with(|| format!("gradient of {path}"));
                        // In the program of a rank: what is reduced to it.
                        if let Op::Collective(_) = op.op {
                            open.extend(&op.args);
                        }
                    }
                    Some(_) if op.phase != Phase::Update => {}
                    Some(_) => open.extend(op.args.iter().copied().filter(|_| same)),
                    None => {
                        found.entry(v).or_insert_with(|| o.name.clone());
                        open.extend(op.args.iter().copied().filter(|_| same));
                    }
                }
            }
        }
        Names { g, found }
    }

    pub(super) fn graph(&self) -> &'a Graph {
        self.g
    }

    /// Of a parameter, state, input or output, a name of the source, or what makes it.
    pub fn of(&self, v: ValueId) -> String {
        let g = self.g;
        let own = |v: ValueId| -> Option<String> {
            let v = outside(g, v);
            match g.def_op(v).map(|o| &o.op) {
                Some(Op::Param(p)) => return Some(g.params[p.index()].path.clone()),
                Some(Op::State(s)) => return Some(g.states[s.index()].path.clone()),
                Some(Op::Input(i)) => return Some(g.inputs[i.index()].name.clone()),
                _ => {}
            }
            if let Some(name) = self.found.get(&v) {
                return Some(name.clone());
            }
            g.value(v).name.clone()
        };
        if let Some(o) = g.outputs.iter().find(|o| o.value == v) {
            return match o.kind {
                OutputKind::Param(_) | OutputKind::InitParam(_) => format!("new {}", o.name),
                _ => o.name.clone(),
            };
        }
        own(v).unwrap_or_else(|| match g.def_op(v) {
            // An edge, a cast or a renaming: what goes in.
            Some(op) if matches!(op.op, Op::Reshape { .. } | Op::Map(MapOp::Cast(_))) => {
                own(op.args[0]).unwrap_or_else(|| short(&print::op_name(g, &op.op)))
            }
            Some(op) => short(&print::op_name(g, &op.op)),
            None => v.to_string(),
        })
    }
}

/// The word of an operation without what it goes over.
fn short(word: &str) -> String {
    word.split('[').next().unwrap_or(word).to_string()
}
