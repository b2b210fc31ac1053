//! Dead code and common subexpressions.
//!
//! In: a verified graph and the values to keep. Out: a graph with the same tables (dims, parameters, states, inputs,
//! scopes; their ids stay) and outputs, in which only what the outputs and kept values need is left, each thing once; values
//! are numbered anew. Loops lose carries, collected values and captures that nobody needs.
//!
//! Two operations are one if they are the same with the same operands in one block and pass (a backward operation that
//! repeats a forward one stays: a recomputation is wanted). Leaves (constants, parameters, ..) are one across passes, but for a
//! draw that is there to be drawn again. So two
//! random draws are one only if stream, dims and turns agree: then they are the same draw. Loops are never merged. The order
//! of what is left is that of the input: the result is a function of the graph alone.

use super::*;
use crate::types::DType;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The graph that computes the outputs alone.
pub fn prune(graph: &Graph) -> Graph {
    prune_keeping(graph, &[]).0
}

/// As [`prune`], with further values of the program's block to keep; returns these too, under their new numbers.
pub fn prune_keeping(graph: &Graph, keep: &[ValueId]) -> (Graph, Vec<ValueId>) {
    let (result, kept, _) = copied(graph, keep);
    (result, kept)
}

/// As [`prune`], with what each operation was.
pub fn prune_tracing(graph: &Graph) -> (Graph, Vec<OpId>) {
    let (result, _, origins) = copied(graph, &[]);
    (result, origins)
}

fn copied(graph: &Graph, keep: &[ValueId]) -> (Graph, Vec<ValueId>, Vec<OpId>) {
    let mut live = Live { g: graph, values: vec![false; graph.values.len()] };
    for v in graph.outputs.iter().map(|o| o.value).chain(keep.iter().copied()) {
        live.values[v.index()] = true;
    }
    live.block(ENTRY);
    let tables = Graph {
        dims: graph.dims.clone(),
        params: graph.params.clone(),
        states: graph.states.clone(),
        inputs: graph.inputs.clone(),
        scopes: graph.scopes.clone(),
        mesh: graph.mesh.clone(),
        blocks: vec![Block { ops: Vec::with_capacity(graph.block(ENTRY).ops.len()), ..Block::default() }],
        ops: Vec::with_capacity(graph.ops.len()),
        values: Vec::with_capacity(graph.values.len()),
        ..Graph::default()
    };
    let mut copy = Copy {
        g: graph,
        live: live.values,
        b: Builder::new(tables),
        map: vec![None; graph.values.len()],
        known: vec![HashMap::default()],
        keys: Default::default(),
        origins: Vec::with_capacity(graph.ops.len()),
    };
    copy.block(ENTRY);
    let kept = keep.iter().map(|v| copy.get(*v)).collect();
    let outputs = graph.outputs.iter().map(|o| Output { value: copy.get(o.value), ..o.clone() }).collect();
    let mut result = copy.b.finish();
    result.outputs = outputs;
    (result, kept, copy.origins)
}

/// Which values are needed.
struct Live<'a> {
    g: &'a Graph,
    values: Vec<bool>,
}

impl Live<'_> {
    fn block(&mut self, id: BlockId) {
        for op in self.g.block(id).ops.iter().rev() {
            let op = self.g.op(*op);
            if !op.results.iter().any(|r| self.values[r.index()]) {
                continue;
            }
            match op.op {
                Op::Loop { body, carries, .. } => self.looped(op, body, carries as usize),
                _ => op.args.iter().for_each(|a| self.values[a.index()] = true),
            }
        }
    }

    fn looped(&mut self, op: &Operation, body: BlockId, carries: usize) {
        let block = self.g.block(body);
        for (r, inner) in op.results.iter().zip(&block.results) {
            if self.values[r.index()] {
                self.values[inner.index()] = true;
            }
        }
        // A carry that the body reads is needed at the end of each turn.
        loop {
            self.block(body);
            let mut grown = false;
            for c in 0..carries {
                let read = self.values[block.params[1 + c].index()];
                let result = &mut self.values[op.results[c].index()];
                if read && !*result {
                    *result = true;
                    grown = true;
                    self.values[block.results[c].index()] = true;
                }
            }
            if !grown {
                break;
            }
        }
        for (c, a) in op.args.iter().enumerate() {
            let needed = if c < carries { op.results[c] } else { block.params[1 + c] };
            if self.values[needed.index()] {
                self.values[a.index()] = true;
            }
        }
    }
}

struct Copy<'a> {
    g: &'a Graph,
    live: Vec<bool>,
    b: Builder,
    map: Vec<Option<ValueId>>,
    /// Per open block: what was copied, by a number that equal operations share.
    known: Vec<HashMap<u64, OpId, Plain>>,
    /// Two operations as bytes, to compare them.
    keys: [Vec<u8>; 2],
    /// By operation of the result: which one it was.
    origins: Vec<OpId>,
}

/// Takes a number that is spread already as it is.
#[derive(Default)]
struct Spread(u64);

type Plain = BuildHasherDefault<Spread>;

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

/// What makes two operations one, as bytes.
fn key(g: &Graph, op: &Operation, args: &[ValueId], to: &mut Vec<u8>) {
    let pass = if args.is_empty() { None } else { Some(op.phase) };
    let mut bytes = std::mem::take(to);
    bytes.clear();
    bytes = postcard::to_extend(&(&op.op, args, pass, op.again), bytes).expect("operations serialise");
    for r in &op.results {
        let Value { dtype, dims, .. } = g.value(*r);
        bytes = postcard::to_extend(&(dtype, dims), bytes).expect("types serialise");
    }
    *to = bytes;
}

/// A number for bytes, eight at a time.
fn number(bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |h: u64, word: u64| (h ^ word).wrapping_mul(ODD).rotate_left(29);
    let mut words = bytes.chunks_exact(8);
    let mut hash =
        (&mut words).fold(bytes.len() as u64, |h, w| mix(h, u64::from_le_bytes(w.try_into().expect("eight"))));
    for b in words.remainder() {
        hash = mix(hash, u64::from(*b));
    }
    mix(hash, hash >> 32)
}

impl Copy<'_> {
    fn get(&self, v: ValueId) -> ValueId {
        self.map[v.index()].expect("what is needed is copied before its use")
    }

    fn block(&mut self, id: BlockId) {
        for id in &self.g.block(id).ops {
            let op = self.g.op(*id);
            if !op.results.iter().any(|r| self.live[r.index()]) {
                continue;
            }
            (self.b.span, self.b.scope, self.b.phase, self.b.again) = (op.span, op.scope, op.phase, op.again);
            match op.op {
                Op::Loop { body, dim, reverse, carries } => self.looped(op, body, dim, reverse, carries as usize),
                _ => self.single(op),
            }
            self.origins.resize(self.b.graph.ops.len(), *id);
        }
    }

    fn single(&mut self, op: &Operation) {
        let args: Vec<ValueId> = op.args.iter().map(|a| self.get(*a)).collect();
        let args: Vec<ValueId> = args.into_iter().map(|a| self.b.reach(a)).collect();
        let [own, other] = &mut self.keys;
        key(self.g, op, &args, own);
        let number = number(own);
        let known = self.known.last_mut().expect("a block is open");
        if let Some(same) = known.get(&number) {
            let same = self.b.graph.op(*same);
            key(&self.b.graph, same, &same.args, other);
            // Two that share a number by chance both stay.
            if own == other {
                let results = same.results.clone();
                op.results.iter().zip(results).for_each(|(old, new)| self.bind(*old, new));
                return;
            }
        }
        let types: Vec<(DType, Vec<DimId>)> =
            op.results.iter().map(|r| (self.g.value(*r).dtype, self.g.value(*r).dims.clone())).collect();
        known.insert(number, OpId(self.b.graph.ops.len() as u32));
        let new = self.b.emit(op.op.clone(), &args, &types);
        op.results.iter().zip(new).for_each(|(old, new)| self.bind(*old, new));
    }

    fn bind(&mut self, old: ValueId, new: ValueId) {
        self.map[old.index()] = Some(new);
        if let Some(name) = &self.g.value(old).name {
            self.b.name(new, name);
        }
    }

    fn looped(&mut self, op: &Operation, body: BlockId, dim: DimId, reverse: bool, carries: usize) {
        let (place, phase, again) = ((op.span, op.scope), op.phase, op.again);
        let block = self.g.block(body);
        let kept: Vec<usize> = (0..op.results.len()).filter(|i| self.live[op.results[*i].index()]).collect();
        let (kept_carries, kept_collected): (Vec<usize>, Vec<usize>) = kept.iter().partition(|i| **i < carries);
        let initial: Vec<ValueId> = kept_carries.iter().map(|c| self.get(op.args[*c])).collect();
        let frame = self.b.begin_loop(dim, reverse, &initial);
        self.known.push(HashMap::default());
        self.bind(block.params[0], frame.turn);
        for (c, v) in kept_carries.iter().zip(frame.carries.clone()) {
            self.bind(block.params[1 + c], v);
        }
        for (p, a) in block.params[1 + carries..].iter().zip(&op.args[carries..]) {
            // Captured anew where it is used.
            self.map[p.index()] = self.map[a.index()];
        }
        self.block(body);
        (self.b.span, self.b.scope) = place;
        (self.b.phase, self.b.again) = (phase, again);
        let results = |copy: &Self, list: &[usize]| -> Vec<ValueId> {
            list.iter().map(|i| copy.get(block.results[*i])).collect()
        };
        let (next, collected) = (results(self, &kept_carries), results(self, &kept_collected));
        self.known.pop();
        let (finals, stacked) = self.b.end_loop(frame, &next, &collected);
        for (i, v) in kept_carries.iter().chain(&kept_collected).zip(finals.into_iter().chain(stacked)) {
            self.bind(op.results[*i], v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{parse::parse, print::print, verify::verify};

    fn pruned(text: &str) -> String {
        let graph = parse(text).unwrap();
        verify(&graph).unwrap();
        let result = prune(&graph);
        verify(&result).unwrap();
        let printed = print(&result);
        // Twice is once.
        assert_eq!(print(&prune(&result)), printed);
        printed.lines().skip_while(|l| !l.starts_with('%')).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_no_output_needs_goes_and_what_is_twice_is_once() {
        let text = "dim a = 2\ninput 0 x: f32[a]\n\
                    %0: f32[a] = input[0 x]\n%1: f32 = constant[2.0]\n%2: f32 = constant[2.0]\n\
                    %3: f32[a] = mul(%0, %1)\n%4: f32[a] = mul(%0, %2)\n%5: f32[a] = exp(%0)\n%6: f32[a] = add(%3, %4)\n\
                    output value y = %6\n";
        let want = "%0: f32[a] = input[0 x]\n%1: f32 = constant[2.0]\n%2: f32[a] = mul(%0, %1)\n\
                    %3: f32[a] = add(%2, %2)\noutput value y = %3";
        assert_eq!(pruned(text), want);
    }

    #[test]
    fn draws_are_one_if_they_are_the_same_draw() {
        let text = "dim a = 2\n\
                    %0: f32[a] = random[normal 1.0; stream = 1; a]\n%1: f32[a] = random[normal 1.0; stream = 1; a]\n\
                    %2: f32[a] = random[normal 1.0; stream = 2; a]\n%3: f32[a] = add(%0, %1)\n%4: f32[a] = add(%3, %2)\n\
                    output value y = %4\n";
        assert_eq!(pruned(text).matches("random").count(), 2);
    }

    #[test]
    fn a_recomputation_is_not_merged_with_the_forward_pass() {
        let text = "dim a = 2\ninput 0 x: f32[a]\n%0: f32[a] = input[0 x]\n%1: f32[a] = exp(%0)\n\
                    %2: f32[a] = exp(%0)  // backward\n%3: f32[a] = add(%1, %2)  // backward\noutput value y = %3\n";
        assert_eq!(pruned(text).matches("exp").count(), 2);
    }

    #[test]
    fn loops_lose_what_is_not_needed() {
        // The second carry is only read by itself; the first needs the third.
        let text = "dim t = 3\ninput 0 x: f32[t]\n%0: f32[t] = input[0 x]\n%1: f32 = constant[1.0]\n\
                    %2: f32, %3: f32, %4: f32, %5: f32[t], %6: f32[t] = loop[t](%1, %1, %1; %0, %1) {\n\
                    params(%7: int, %8: f32, %9: f32, %10: f32, %11: f32[t], %12: f32)\n\
                    %13: f32 = mul(%8, %10)\n%14: f32 = exp(%9)\n%15: f32 = add(%10, %12)\n\
                    %16: f32 = gather[t; error](%11, %7)\nresults(%13, %14, %15; %16, %13)\n}\n\
                    output value y = %2\noutput value z = %6\n";
        let want = "%0: f32 = constant[1.0]\n\
                    %8: f32, %9: f32, %10: f32[t] = loop[t](%0, %0; %0) {\n  \
                    params(%1: int, %2: f32, %3: f32, %6: f32)\n  %4: f32 = mul(%2, %3)\n  %5: f32 = add(%3, %6)\n  \
                    results(%4, %5; %4)\n}\noutput value y = %8\noutput value z = %10";
        let found = pruned(text);
        // Numbers of values are not the point here.
        let strip = |s: &str| s.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
        assert_eq!(strip(&found), strip(want), "{found}");
    }
}
