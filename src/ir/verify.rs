//! Checks the invariants of a graph that its door states; the rules of each operation are in `rules.rs`.
//!
//! Never panics, whatever the graph (it may come from a file). The message names the operation or value.

use super::rules;
use super::*;
use crate::mesh;

/// Ok if the graph is well formed; otherwise the first fault found, in words.
pub fn verify(graph: &Graph) -> Result<(), String> {
    tables(graph)?;
    ownership(graph)?;
    for (i, block) in graph.blocks.iter().enumerate() {
        order(graph, BlockId(i as u32), block)?;
    }
    for (i, op) in graph.ops.iter().enumerate() {
        rules::check(graph, op).map_err(|e| format!("{}: {e}", describe(graph, OpId(i as u32), op)))?;
    }
    outputs(graph)
}

fn describe(graph: &Graph, id: OpId, op: &Operation) -> String {
    let results: Vec<String> = op.results.iter().map(ValueId::to_string).collect();
    format!("{id} ({} = {})", results.join(", "), super::print::op_name(graph, &op.op))
}

fn tables(g: &Graph) -> Result<(), String> {
    if g.blocks.is_empty() || g.scopes.is_empty() {
        return Err("a graph has at least one block and one scope".into());
    }
    let mut names = std::collections::BTreeSet::new();
    for d in &g.dims {
        if d.size == 0 {
            return Err(format!("dim `{}` has size 0", d.name));
        }
        if let Some(c) = &d.cut {
            let atoms: Vec<Atom> = c.entries.iter().map(|e| e.atom).collect();
            let known = |a: &Atom| g.mesh.atoms().any(|b| b == *a);
            let twice = atoms.iter().enumerate().any(|(i, a)| atoms[..i].contains(a));
            if atoms.is_empty() || twice || !atoms.iter().all(known) || c.entries.iter().any(|e| e.unit == 0) {
                return Err(format!("dim `{}` is cut by what the mesh does not have, or twice by the same", d.name));
            }
            let nominal = mesh::cut::nominal(&g.mesh, &c.entries, c.extent);
            if nominal.max(1) != d.size {
                return Err(format!("dim `{}` has size {}, its cut gives {nominal}", d.name, d.size));
            }
        }
        if !names.insert(&d.name) {
            return Err(format!("two dims are named `{}`", d.name));
        }
    }
    for (i, s) in g.scopes.iter().enumerate() {
        if s.parent.is_some_and(|p| p.index() >= i) {
            return Err(format!("scope{i} does not stand after its parent"));
        }
    }
    for (i, v) in g.values.iter().enumerate() {
        distinct(g, &v.dims).map_err(|e| format!("%{i}: {e}"))?;
        if v.block.index() >= g.blocks.len() {
            return Err(format!("%{i} is in no block"));
        }
    }
    let named = (g.params.iter().map(|p| (&p.path, &p.dims)))
        .chain(g.states.iter().map(|s| (&s.path, &s.dims)))
        .chain(g.inputs.iter().map(|i| (&i.name, &i.dims)));
    for (name, dims) in named {
        distinct(g, dims).map_err(|e| format!("`{name}`: {e}"))?;
    }
    for p in &g.params {
        if !p.dtype.is_float() {
            return Err(format!("parameter `{}` is no float", p.path));
        }
        if let Some((from, to)) = &p.map
            && from.iter().chain(to).any(|d| !p.dims.contains(d))
        {
            return Err(format!("parameter `{}`: its map has a dim that it lacks", p.path));
        }
    }
    Ok(())
}

/// All dims exist and none occurs twice.
pub(super) fn distinct(g: &Graph, dims: &[DimId]) -> Result<(), String> {
    for (i, d) in dims.iter().enumerate() {
        if d.index() >= g.dims.len() {
            return Err(format!("{d} does not exist"));
        }
        if dims[..i].contains(d) {
            return Err(format!("dim `{}` occurs twice", g.dim(*d).name));
        }
    }
    Ok(())
}

/// Every operation is in one block, every value defined in one place, every inner block the body of one loop.
fn ownership(g: &Graph) -> Result<(), String> {
    let mut listed = vec![false; g.ops.len()];
    let mut defined = vec![false; g.values.len()];
    let mut parent: Vec<Option<BlockId>> = vec![None; g.blocks.len()];
    let mut define = |v: ValueId, block: BlockId, def: Def| -> Result<(), String> {
        let Some(value) = g.values.get(v.index()) else { return Err(format!("{v} does not exist")) };
        if std::mem::replace(&mut defined[v.index()], true) {
            return Err(format!("{v} is defined twice"));
        }
        if value.def != def || value.block != block {
            return Err(format!("{v} does not record where it is defined"));
        }
        Ok(())
    };
    for (b, block) in g.blocks.iter().enumerate() {
        let b = BlockId(b as u32);
        for (i, p) in block.params.iter().enumerate() {
            define(*p, b, Def::BlockParam(i as u32))?;
        }
        for id in &block.ops {
            let Some(op) = g.ops.get(id.index()) else { return Err(format!("{id} does not exist")) };
            if std::mem::replace(&mut listed[id.index()], true) || op.block != b {
                return Err(format!("{id} is listed twice or in a block that it does not record"));
            }
            if op.scope.index() >= g.scopes.len() {
                return Err(format!("{id}: {} does not exist", op.scope));
            }
            for (i, r) in op.results.iter().enumerate() {
                define(*r, b, Def::Op(*id, i as u32))?;
            }
            if let Op::Loop { body, .. } = op.op {
                match parent.get_mut(body.index()) {
                    Some(p @ None) if body != ENTRY => *p = Some(b),
                    _ => return Err(format!("{id}: {body} is no body of its own")),
                }
            }
        }
    }
    if let Some(i) = listed.iter().position(|l| !l) {
        return Err(format!("op{i} is in no block"));
    }
    if let Some(i) = defined.iter().position(|d| !d) {
        return Err(format!("%{i} is defined nowhere"));
    }
    for b in 1..g.blocks.len() {
        let mut at = b;
        for _ in 0..g.blocks.len() {
            match parent[at] {
                Some(p) => at = p.index(),
                None => break,
            }
        }
        if at != 0 {
            return Err(format!("block{b} is no body of a loop of the program"));
        }
    }
    Ok(())
}

fn order(g: &Graph, id: BlockId, block: &Block) -> Result<(), String> {
    let mut ready = vec![false; g.values.len()];
    for p in &block.params {
        ready[p.index()] = true;
    }
    let usable = |ready: &[bool], v: ValueId| ready.get(v.index()).copied().unwrap_or(false);
    for op in &block.ops {
        let op_id = *op;
        let op = g.op(op_id);
        if let Some(a) = op.args.iter().find(|a| !usable(&ready, **a)) {
            return Err(format!("{}: {a} is not defined before its use, or in another block", describe(g, op_id, op)));
        }
        for r in &op.results {
            ready[r.index()] = true;
        }
    }
    if let Some(r) = block.results.iter().find(|r| !usable(&ready, **r)) {
        return Err(format!("{id}: its result {r} is not its own"));
    }
    if id == ENTRY && !(block.params.is_empty() && block.results.is_empty()) {
        return Err("the program's block has no parameters and no results".into());
    }
    Ok(())
}

fn outputs(g: &Graph) -> Result<(), String> {
    for o in &g.outputs {
        let fail = |why: &str| Err(format!("output `{}`: {why}", o.name));
        let Some(v) = g.values.get(o.value.index()).filter(|v| v.block == ENTRY) else {
            return fail("its value is not in the program's block");
        };
        let declared = match o.kind {
            OutputKind::Loss if !v.dims.is_empty() || !v.dtype.is_float() => return fail("a loss is a float scalar"),
            OutputKind::Loss | OutputKind::Metric | OutputKind::Value => continue,
            OutputKind::Param(p) | OutputKind::InitParam(p) => {
                g.params.get(p.index()).map(|p| (p.dtype, p.dims.as_slice()))
            }
            OutputKind::State(s) | OutputKind::InitState(s) => {
                g.states.get(s.index()).map(|s| (s.dtype, s.dims.as_slice()))
            }
        };
        match declared {
            None => return fail("the parameter or state does not exist"),
            Some((dtype, dims)) if dtype != v.dtype || !rules::same_dims(dims, &v.dims) => {
                return fail("its type is not that of the parameter or state");
            }
            Some(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::parse::parse;

    const HEAD: &str = "dim a = 2\ndim b = 3\ndim n = 6\nparam 0 w: f32[a, b]\ninput 0 x: f32[a, b]\ninput 1 i: int[a]\n\
                        %0: f32[a, b] = param[0 w]\n%1: f32[a, b] = input[0 x]\n%2: int[a] = input[1 i]\n";

    fn check(text: &str) -> Result<(), String> {
        verify(&parse(&format!("{HEAD}{text}"))?)
    }

    #[test]
    fn a_sound_graph_passes() {
        check("%3: f32[a, b] = add(%0, %1)\n%4: f32 = reduce_sum[a, b](%3)\noutput loss l = %4").unwrap();
    }

    #[test]
    fn each_fault_is_found_and_named() {
        let cases = [
            ("%3: f32[a] = add(%0, %1)", "%3"),
            ("%3: f32[a, b] = add(%0)", "operands"),
            ("%3: f32[a, b] = add(%0, %2)", "type"),
            ("%3: f32[a, a] = neg(%0)", "occurs twice"),
            ("%3: bool[a, b] = neg(%0)", "type"),
            ("%3: f32[a, b] = add(%0, %4)\n%4: f32[a, b] = neg(%0)", "before its use"),
            ("%3: f32[a, b] = where(%0, %1, %1)", "type"),
            ("%3: f32[a] = reduce_sum[n](%0)", "dim"),
            ("%3: f32[a, b] = broadcast[b](%0)", "has already"),
            ("%3: f32[n, a, b] = broadcast[n](%1)\n%4: f32[a, b] = dot[n](%3, %0)", "lacks"),
            ("%3: f32[n] = reshape[(a) -> (n)](%0)", "size"),
            ("%3: f32[a, n] = reshape[(b) -> (n)](%0)", "size"),
            ("%3: f32[b] = gather[a; error](%0)", "operands"),
            ("%3: f32[a, b] = gather[a; error](%0, %1)", "type"),
            ("%3: f32[n, b] = concat[a, a -> n](%0, %1)", "size"),
            ("%3: f32[n, a, b] = stack[n](%0, %1)", "operands"),
            ("%3: f32[a, b] = cumsum[n](%0)", "lacks"),
            ("%3: int[a, b] = cumsum[a](%0)", "type"),
            ("%3: int[a, n] = top_k[b -> n](%0)", "more than"),
            ("%3: int[a, b] = pack_place[a; limit = 3](%0)", "type"),
            ("%3: f32[a, b] = stop_gradient(%2)", "dims"),
            ("%3: f32[b] = window[a = 0 + 1*n](%0)", "dims"),
            ("%3: f32[b] = window[a = dynamic 0](%0)", "operands"),
            ("%3: f32[a, b] = constant[{1.0}]()", "elements"),
            ("%3: int = constant[0.5]()", "whole"),
            ("%3: f32[n, b], %4: f32[n] = attention[n, a, b, b; scale = 1.0; cap = 0.0;](%0, %0, %0)", "lacks"),
            ("%3: f32[a, b] = attention[a, n, b, b; scale = 1.0; cap = 0.0;](%0, %0, %0)", "two results"),
            ("output loss l = %0", "scalar"),
            ("output param[0] w = %2", "type"),
            ("%3: f32[a, b] = loop[a](%0;) {\n  params(%4: int, %5: f32[a, b])\n  results(%0;)\n}", "not its own"),
            ("%3: f32[a, b] = loop[a](%0;) {\n  params(%4: int, %5: f32[a])\n  results(%5;)\n}", "carr"),
        ];
        for (text, want) in cases {
            let e = check(text).expect_err(text);
            assert!(e.contains(want), "{text}\n{e}");
        }
    }
}
