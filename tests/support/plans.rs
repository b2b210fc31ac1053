//! Programs with a plan: a GPT of any sizes, and how a text with the lines of a plan is compiled.

use partita::diag::render;
use partita::driver::pipeline::{self, Graphs};
use partita::driver::{Findings, Options, Request};
use partita::source::Memory;
use std::path::PathBuf;

/// A text with the plan `p`, and what to do with it.
pub fn planned(source: &str, plan: &str) -> (Memory, Options) {
    let path = PathBuf::from("m.pta");
    let mut world = Memory::default();
    world.0.insert(path.clone(), format!("{source}\nplan p {{\n{plan}\n}}\n"));
    let request = Request { path, ..Request::default() };
    (world, Options { request, plan: Some("p".into()), ranks: true, ..Options::default() })
}

/// Fails with what was found.
pub fn sound<T>(plan: &str, outcome: Result<T, Box<Findings>>) -> T {
    outcome.unwrap_or_else(|f| panic!("{plan}\n{}", render::text(&f.sink, &f.sources, false)))
}

pub fn graphs((world, options): &(Memory, Options), plan: &str) -> Graphs {
    sound(plan, pipeline::graphs(options, world))
}

/// A GPT with biases everywhere and a tied head.
/// `sizes`: of batch, seq, vocab, embed, heads and depth, as a `dim` line has them.
pub fn gpt(sizes: &str, optimizer: &str) -> String {
    format!(
        "use nn.{{Embedding, LayerNorm, LearnedPosition, Linear, attention, causal, gelu_tanh}}
use losses.{{cross_entropy}}
use optim.{{adamw, sgd}}
dim {sizes}, head_dim = embed / heads, mlp = 4 * embed
layer Attention(x: [batch, seq, embed]) -> [batch, seq, embed] {{
    dim key = seq
    let query, keys, values = Linear[embed, (heads, head_dim)]
    let out = Linear[(heads, head_dim), embed]
    let k = keys(x)[seq -> key]
    let v = values(x)[seq -> key]
    out(attention[key, head_dim, head_dim, scale = 1 / sqrt(head_dim)](query(x), k, v, mask = causal[seq, key]()))
}}
layer Block(x: [batch, seq, embed]) -> [batch, seq, embed] {{
    let norm1, norm2 = LayerNorm[embed]
    let up = Linear[embed, mlp]
    let down = Linear[mlp, embed]
    let h = x + Attention(norm1(x))
    h + down(gelu_tanh(up(norm2(h))))
}}
model Gpt(tokens: int[batch, seq], targets: int[batch, seq]) {{
    let wte = Embedding[vocab, embed]
    let wpe = LearnedPosition[seq, embed]
    let norm = LayerNorm[embed]
    let h = wte(tokens) + wpe()
    for i in depth {{ h = Block(h) }}
    output logits = dot[embed](norm(h), wte.table)
    loss mean[batch, seq](cross_entropy[vocab](logits, targets))
}}
train Gpt {{
    optimizer {optimizer}
    steps 20
    seed 1
}}
"
    )
}
