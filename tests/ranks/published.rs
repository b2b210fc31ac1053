//! Memory that is published of large models, beside what is planned for them at their full size: activations of a block (Korthikanti and
//! others 2022, arXiv 2205.05198, table 2 and the sizes of its section 6), and what a BLOOM of 176 billion parameters keeps for its
//! optimizer (the table of bytes for each parameter in the README of Megatron-LM).

use super::plans;
use partita::driver::memory::{Needed, needed};
use partita::driver::{Options, sharding};
use partita::ir::{Def, Graph, Op, Operation, Phase, ValueId};
use partita::program::Category;
use std::collections::HashSet;

fn of(source: &str, plan: &str) -> Needed {
    let (world, options) = plans::planned(source, plan);
    plans::sound(plan, needed(&Options { threads: 1, ..options }, &world))
}

/// A GPT, with dropout where the paper has it; attention in one operation, or by hand with its weights in memory.
fn source(sizes: &str, by_hand: bool) -> String {
    let attention = match by_hand {
        false => {
            "attention[key, head_dim, head_dim, scale = 1 / sqrt(head_dim)](query(x), k, v, mask = causal[seq, key]())"
        }
        true => "Core[key](query(x), k, v)",
    };
    format!(
        "use nn.{{Embedding, LayerNorm, Linear, attention, causal, dropout, gelu_tanh, softmax}}
use losses.{{cross_entropy}}
use optim.{{adamw}}
dim {sizes}, vocab = 64, head_dim = embed / heads, mlp = 4 * embed
layer Core[key](q: [batch, seq, heads, head_dim], k: [batch, key, heads, head_dim], v: [batch, key, heads, head_dim])
    -> [batch, seq, heads, head_dim] {{
    let scores = dot[head_dim](q, k) / sqrt(head_dim)
    let weights = softmax[key](where(iota[key] <= iota[seq], scores, -1e9))
    dot[key](dropout(weights), v)
}}
layer Attention(x: [batch, seq, embed]) -> [batch, seq, embed] {{
    dim key = seq
    let query, keys, values = Linear[embed, (heads, head_dim)]
    let out = Linear[(heads, head_dim), embed]
    let k = keys(x)[seq -> key]
    let v = values(x)[seq -> key]
    out({attention})
}}
layer Block(x: [batch, seq, embed]) -> [batch, seq, embed] {{
    let norm1, norm2 = LayerNorm[embed]
    let up = Linear[embed, mlp]
    let down = Linear[mlp, embed]
    let h = x + dropout(Attention(norm1(x)))
    let wide = up(norm2(h))
    h + dropout(down(gelu_tanh(wide)))
}}
model Gpt(tokens: int[batch, seq], targets: int[batch, seq]) {{
    let wte = Embedding[vocab, embed]
    let head = Linear[embed, vocab]
    let h = wte(tokens)
    for i in depth {{ h = Block(h) }}
    loss mean[batch, seq](cross_entropy[vocab](head(h), targets))
}}
train Gpt {{
    optimizer adamw(lr = 1e-3)
    steps 1
}}
"
    )
}

/// What a value was before it was exchanged, cut differently or put in another order; None of what parameters alone make.
fn origin(g: &Graph, mut v: ValueId) -> Option<ValueId> {
    loop {
        let Some(op) = g.def_op(v) else { return Some(v) };
        match op.op {
            Op::Param(_) => return None,
            Op::Collective(_) | Op::Reshape { .. } => v = op.args[0],
            _ => return Some(v),
        }
    }
}

fn is_of_parameters(g: &Graph, v: ValueId) -> bool {
    match g.value(v).def {
        Def::Op(op, _) => {
            let op = g.op(op);
            matches!(op.op, Op::Param(_)) || (!op.args.is_empty() && op.args.iter().all(|a| is_of_parameters(g, *a)))
        }
        Def::BlockParam(_) => false,
    }
}

/// Bytes that one block keeps as the paper counts: what products, norms, the activation function and softmax take or give, in the
/// type that it has, and a byte for each element of a mask of dropout. Of a rank's program, before anything is kept less of.
fn counted(source: &str, plan: &str) -> usize {
    let (world, options) = plans::planned(source, plan);
    let g = plans::graphs(&(world, options), plan);
    let g = plans::sound(plan, sharding::train(&g)).graph;
    let path = |op: &Operation| g.scopes[op.scope.index()].path.clone();
    let (mut kept, mut masks): (HashSet<ValueId>, usize) = (HashSet::new(), 0);
    for op in g.ops.iter().filter(|o| o.phase == Phase::Forward && path(o).starts_with("block.1")) {
        let elements = |v: ValueId| g.elements(&g.value(v).dims);
        let layer = path(op);
        let in_norm = layer.contains("norm");
        match &op.op {
            Op::Dot { .. } | Op::Attention { .. } => kept.extend(op.args.iter().filter_map(|a| origin(&g, *a))),
            Op::Random { .. } => masks += elements(op.results[0]),
            _ => {
                // What enters a norm, what the activation function takes, what softmax gives.
                let outside = |a: &&ValueId| g.def_op(**a).is_none_or(|o| path(o) != layer);
                kept.extend(op.args.iter().filter(|_| in_norm).filter(outside).filter_map(|a| origin(&g, *a)));
                let named = |v: &&ValueId| matches!(g.value(**v).name.as_deref(), Some("wide" | "weights"));
                kept.extend(op.results.iter().filter(named).filter_map(|r| origin(&g, *r)));
            }
        }
    }
    let large = |v: &&ValueId| g.value(**v).dims.len() > 1 && !is_of_parameters(&g, **v);
    let bytes = |v: &ValueId| g.elements(&g.value(*v).dims) * g.value(*v).dtype.bytes();
    kept.iter().filter(large).map(bytes).sum::<usize>() + masks
}

/// Of the paper, in MiB on each of 8 ranks: tensor parallelism alone, along the sequence, with attention's square computed again,
/// with all of it computed again; and all of it on one device.
const TABLE: [(&str, usize, usize, usize, [f64; 5]); 4] = [
    ("22B", 4, 6144, 64, [6752.0, 1264.0, 844.0, 204.0, 96.0]),
    ("175B", 1, 12288, 96, [2736.0, 552.0, 342.0, 102.0, 48.0]),
    ("530B", 1, 20480, 128, [3920.0, 840.0, 490.0, 170.0, 80.0]),
    ("1T", 1, 25600, 160, [4900.0, 1050.0, 612.5, 212.5, 100.0]),
];

#[test]
fn activations_of_a_block_are_those_of_megatron() {
    for (name, batch, embed, heads, wanted) in TABLE {
        let sizes = format!("batch = {batch}, seq = 2048, embed = {embed}, heads = {heads}, depth = 2");
        let (by_hand, fused) = (source(&sizes, true), source(&sizes, false));
        let tensor = "precision bf16\nmesh tp = 8\nshard heads, mlp by tp\n";
        let sequence = format!("{tensor}shard seq by tp in LayerNorm, dropout\n");
        let found = [
            counted(&by_hand, "precision bf16"),
            counted(&by_hand, tensor),
            counted(&by_hand, &sequence),
            counted(&fused, &sequence),
        ];
        for (bytes, wanted) in found.iter().zip(wanted) {
            let mib = *bytes as f64 / f64::from(1 << 20);
            assert!((mib / wanted - 1.0).abs() < 0.02, "{name}: {mib} MiB, published {wanted}; {found:?}");
        }
        // What is planned to be kept is less, and what is kept of a block in full is what enters it.
        let kept = |plan: &str| {
            let of_depth = |depth: usize| {
                let sizes = sizes.replace("depth = 2", &format!("depth = {depth}"));
                of(&source(&sizes, false), plan).report().by_category["activations"]
            };
            of_depth(3) - of_depth(2)
        };
        assert!(kept(&format!("{sequence}recompute gathers")) < found[3], "{name}");
        let full = kept(&format!("{tensor}recompute full")) as f64 / f64::from(1 << 20);
        assert!((full / wanted[4] - 1.0).abs() < 0.02, "{name}: {full} MiB, published {}", wanted[4]);
    }
}

/// 176 billion parameters in 70 layers over the mesh that trained it: 4 ranks of a layer, 12 stages, 8 copies. In f32 16 bytes for each
/// parameter, of which the 8 of the optimizer are divided: 8 + 8 / d. On disk 12 of them: weights and two moments.
#[test]
fn an_optimizer_of_the_size_of_bloom_takes_what_is_published() {
    let source = "use nn.{Embedding, LayerNorm, Linear, MultiHeadAttention, gelu_tanh}
use losses.{cross_entropy}
use optim.{adamw}
dim batch = 2048, seq = 2048, vocab = 250880, embed = 14336, heads = 112, head_dim = 128, mlp = 4 * embed, depth = 70
layer Block(x: [batch, seq, embed]) -> [batch, seq, embed] {
    let norm1, norm2 = LayerNorm[embed]
    let attention = MultiHeadAttention[seq, embed, heads, head_dim, linear_bias = true]
    let up = Linear[embed, mlp]
    let down = Linear[mlp, embed]
    let h = x + attention(norm1(x))
    h + down(gelu_tanh(up(norm2(h))))
}
model Bloom(tokens: int[batch, seq], targets: int[batch, seq]) {
    let wte = Embedding[vocab, embed]
    let norm0, norm = LayerNorm[embed]
    let h = norm0(wte(tokens))
    for i in depth { h = Block(h) }
    loss mean[batch, seq](cross_entropy[vocab](dot[embed](norm(h), wte.table), targets))
}
train Bloom {
    optimizer adamw(lr = 6e-5)
    steps 1
}
";
    const PARAMETERS: usize = 176_247_271_424;
    let plan = "mesh pp = 12, dp = 8, tp = 4
shard batch by dp
shard heads, mlp, vocab by tp
zero 1 by dp
recompute full
pipeline depth by pp { schedule = 1f1b, microbatches = 16 }";
    let n = of(source, plan);
    let elements = |whole: bool| -> usize {
        let params = n.program.params.iter();
        params.map(|p| if whole { p.whole_bytes() / 4 } else { p.bytes() / 4 }).sum()
    };
    assert_eq!(elements(true), PARAMETERS);
    assert_eq!(n.checkpoint_bytes, 12 * PARAMETERS);
    // Every layer is on one stage (C9). Gradients are all there in the last backward pass.
    let mut all = 0;
    for stage in &n.stages {
        let train = plans::sound(plan, n.running(stage, "train"));
        let of = |category: &str| train.report.by_category[category];
        let own = of("parameters") / 4;
        all += own * 4;
        let instants = n.instants(&train);
        let backward = instants.moments.iter().filter(|m| m.action.starts_with('B'));
        let gradients = backward.map(|m| m.by_category[Category::Gradients as usize]).max().unwrap_or(0);
        let each = (of("parameters") + gradients + of("optimizer_state")) as f64 / own as f64;
        assert!((each / 9.0 - 1.0).abs() < 0.02, "stage {}: {each} bytes for each parameter", stage.coordinate);
    }
    let whole = all as f64 / PARAMETERS as f64;
    // The table is on the first stage and the last.
    let table = 250_880.0 * 14_336.0 / PARAMETERS as f64;
    assert!((whole - table - 1.0).abs() < 0.02, "{whole} of all parameters");
}
