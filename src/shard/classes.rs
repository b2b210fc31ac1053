//! What repeats: the turns of a loop in the source are unrolled in the graph, but they are one program, so that their values
//! have one layout. Values and operations that only differ in the turn are of one *class*; layouts belong to classes.
//!
//! A scope's class is that of its parent, its definition, and its path without the numbers of turns; an operation's is its scope's,
//! what it does, and which one of its kind it is in its scope. So the work of propagation does not grow with the
//! depth of a model.

use crate::ir::*;
use crate::source::Span;
use std::collections::HashMap;

pub struct Classes {
    /// By value: the class.
    pub of_value: Vec<u32>,
    /// By class of values: the first value.
    pub first: Vec<ValueId>,
    /// By class of values: how many there are.
    pub count: Vec<u32>,
    /// By operation: the class.
    pub of_op: Vec<u32>,
    /// Operations that stand for all that are alike: of one class, with operands of the same classes. In program order; those of loop bodies
    /// stand before their loop.
    pub speakers: Vec<OpId>,
    /// Operands that come from another turn of a loop in the source, by class of operation and number of operand.
    carried: std::collections::HashSet<(u32, u32)>,
}

/// The path without the numbers of turns, and these.
fn without_turns(path: &str) -> (String, Vec<u32>) {
    let (mut plain, mut turns) = (String::with_capacity(path.len()), Vec::new());
    for part in path.split('.') {
        if !plain.is_empty() {
            plain.push('.');
        }
        match part.parse::<u32>() {
            Ok(n) => {
                turns.push(n);
                plain.push('*');
            }
            Err(_) => plain.push_str(part),
        }
    }
    (plain, turns)
}

/// Numbers for things as they are met.
struct Numbers<K>(HashMap<K, u32>);

impl<K: std::hash::Hash + Eq> Numbers<K> {
    fn new() -> Numbers<K> {
        Numbers(HashMap::new())
    }

    fn of(&mut self, key: K) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(key).or_insert(next)
    }
}

/// A call of a definition at a place of a scope.
type Call<'g> = (Option<ScopeId>, &'g str, &'g str, Option<Span>);
/// What an operation does at a place of a scope.
type Doing = (ScopeId, Phase, Option<Span>, BlockId, u32);

/// By scope: its class and its turns, outermost first.
fn scopes(g: &Graph) -> Vec<(u32, Vec<u32>)> {
    let mut numbers = Numbers::new();
    // Which one of several calls of a definition at one place it is.
    let mut twins: HashMap<Call<'_>, u32> = HashMap::new();
    let mut out: Vec<(u32, Vec<u32>)> = Vec::with_capacity(g.scopes.len());
    for s in &g.scopes {
        let twin = twins.entry((s.parent, &s.path, &s.definition, s.site)).or_insert(0);
        let n = *twin;
        *twin += 1;
        let parent = s.parent.map(|p| out[p.index()].0);
        let (plain, turns) = without_turns(&s.path);
        out.push((numbers.of((parent, plain, s.definition.as_str(), s.site, n)), turns));
    }
    out
}

impl Classes {
    pub fn new(g: &Graph) -> Classes {
        let scopes = scopes(g);
        let mut kinds = Numbers::new();
        let mut ops = Numbers::new();
        let mut values = Numbers::new();
        let mut seen: HashMap<Doing, u32> = HashMap::new();
        let mut c = Classes {
            of_value: vec![u32::MAX; g.values.len()],
            first: Vec::new(),
            count: Vec::new(),
            of_op: vec![u32::MAX; g.ops.len()],
            speakers: Vec::new(),
            carried: Default::default(),
        };
        let mut known = std::collections::HashSet::new();
        let blocks: Vec<BlockId> = inner_first(g);
        for block in blocks {
            // A block's own values: each a class (loops at run time are not unrolled).
            for (i, p) in g.block(block).params.iter().enumerate() {
                c.of_value[p.index()] = values.of((u32::MAX - block.0, i as u32));
            }
            for id in &g.block(block).ops {
                let op = g.op(*id);
                let what = kinds.of(kind(g, op));
                let n = seen.entry((op.scope, op.phase, op.span, block, what)).or_insert(0);
                let ordinal = *n;
                *n += 1;
                let class = ops.of((scopes[op.scope.index()].0, op.phase, op.span, block, what, ordinal));
                c.of_op[id.index()] = class;
                for (i, r) in op.results.iter().enumerate() {
                    c.of_value[r.index()] = values.of((class, i as u32));
                }
                let operands: Vec<u32> = op.args.iter().map(|a| c.of_value[a.index()]).collect();
                if known.insert((class, operands)) {
                    c.speakers.push(*id);
                }
                for (i, a) in op.args.iter().enumerate() {
                    if let Some(source) = g.def_op(*a)
                        && carried(&scopes[source.scope.index()].1, &scopes[op.scope.index()].1)
                    {
                        c.carried.insert((class, i as u32));
                    }
                }
            }
        }
        c.first = vec![ValueId(u32::MAX); values.0.len()];
        c.count = vec![0; values.0.len()];
        for (v, class) in c.of_value.iter().enumerate().rev() {
            if *class != u32::MAX {
                c.first[*class as usize] = ValueId(v as u32);
                c.count[*class as usize] += 1;
            }
        }
        c
    }

    pub fn class(&self, v: ValueId) -> usize {
        self.of_value[v.index()] as usize
    }

    /// Whether an operand comes from another turn, here or in another operation of the class.
    pub fn is_carried(&self, op: OpId, operand: usize) -> bool {
        self.carried.contains(&(self.of_op[op.index()], operand as u32))
    }
}

/// Whether a value made in one turn is used in another.
fn carried(made: &[u32], used: &[u32]) -> bool {
    made.iter().zip(used).any(|(a, b)| a != b)
}

/// Blocks such that the body of a loop comes before the block that holds the loop; the order of the table otherwise.
pub fn inner_first(g: &Graph) -> Vec<BlockId> {
    let mut out = Vec::with_capacity(g.blocks.len());
    let mut open = vec![(ENTRY, false)];
    while let Some((block, done)) = open.pop() {
        if done {
            out.push(block);
            continue;
        }
        open.push((block, true));
        for id in g.block(block).ops.iter().rev() {
            if let Op::Loop { body, .. } = g.op(*id).op {
                open.push((body, false));
            }
        }
    }
    out
}

/// What an operation does, but for which parameter or stream it does it with.
fn kind(g: &Graph, op: &Operation) -> Vec<u8> {
    let plain = match &op.op {
        Op::Param(p) => {
            let p = &g.params[p.index()];
            return postcard::to_allocvec(&(0u8, without_turns(&p.path).0, &p.dims)).expect("plain data");
        }
        Op::State(s) => {
            let s = &g.states[s.index()];
            return postcard::to_allocvec(&(1u8, without_turns(&s.path).0, &s.dims)).expect("plain data");
        }
        Op::Random { dist, dims, .. } => Op::Random { dist: *dist, stream: 0, dims: dims.clone() },
        // Constants of several turns are alike as far as layouts go.
        Op::Constant(Constant::Splat(_)) => Op::Constant(Constant::Splat(0.0)),
        Op::Constant(Constant::Elements(_)) => Op::Constant(Constant::Elements(Vec::new())),
        other => other.clone(),
    };
    // Operands that lack a dim that others have belong to another nest of loops: the first turn may begin with one.
    let dims: Vec<&Vec<DimId>> = op.args.iter().chain(&op.results).map(|r| &g.value(*r).dims).collect();
    postcard::to_allocvec(&(2u8, plain, dims)).expect("plain data")
}
