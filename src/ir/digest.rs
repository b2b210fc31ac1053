//! A graph as bytes that depend on what it computes and on its names, and on no place in a text: for fingerprints.

use super::*;

/// The bytes; of one version of the compiler.
pub fn digest(g: &Graph) -> Vec<u8> {
    let mut out = Bytes(Vec::with_capacity(48 * g.ops.len()));
    out.add(&g.dims);
    out.add(&g.mesh);
    for s in &g.scopes {
        out.add(&(&s.path, &s.definition, s.parent));
    }
    for p in &g.params {
        out.add(&(&p.path, p.dtype, &p.dims, &p.map));
    }
    for s in &g.states {
        out.add(&(&s.path, s.dtype, &s.dims, s.kind));
    }
    for i in &g.inputs {
        out.add(&(&i.name, i.dtype, &i.dims));
    }
    out.add(&g.blocks);
    for o in &g.ops {
        out.add(&(&o.op, &o.args, &o.results, o.scope, o.phase));
        if o.again {
            out.add(&o.again);
        }
    }
    for v in &g.values {
        out.add(&(v.dtype, &v.dims, &v.name));
    }
    for o in &g.outputs {
        out.add(&(o.kind, &o.name, o.value));
    }
    out.0
}

struct Bytes(Vec<u8>);

impl Bytes {
    fn add(&mut self, part: &impl Serialize) {
        let bytes = std::mem::take(&mut self.0);
        self.0 = postcard::to_extend(part, bytes).expect("parts of a graph are plain data");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::parse::parse;
    use crate::source::FileId;

    #[test]
    fn what_is_computed_is_told_apart_and_places_are_not() {
        let text = "dim a = 2\ninput 0 x: f32[a]\n%0: f32[a] = input[0 x]\n%1: f32 = constant[2.0]\n\
                    %2: f32[a] = mul(%0, %1)\noutput value y = %2\n";
        let graph = parse(text).expect("a graph");
        let own = digest(&graph);
        for (old, new) in
            [("a = 2", "a = 3"), ("[2.0]", "[2.5]"), ("mul(", "add("), ("(%0, %1)", "(%1, %0)"), ("y =", "z =")]
        {
            let other = parse(&text.replace(old, new)).expect("a graph");
            assert!(digest(&other) != own, "{new}");
        }
        let mut moved = graph.clone();
        moved.ops[2].span = Some(Span::new(FileId(0), 3, 4));
        assert!(digest(&moved) == own);
    }
}
