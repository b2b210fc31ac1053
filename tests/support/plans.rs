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
    (world, Options { request, plan: Some("p".into()), ..Options::default() })
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

/// A convolutional network: strides, pooling, an upward convolution and a shift along rows; 9 rows, or as many as are given.
pub fn convolutions(rows: usize) -> String {
    let (half, quarter) = (rows.div_ceil(2), rows.div_ceil(2).div_ceil(2));
    format!(
        "use nn.{{BatchNorm, Conv2d, ConvTranspose2d, Linear, max_pool2d, relu}}
use losses.{{cross_entropy}}
use optim.{{sgd}}
dim batch = 4, rgb = 2, c = 3, wide = 4, classes = 5
dim row = {rows}, half = {half}, quarter = {quarter}, up = {quarter} * 2
dim col = 6, col2 = 3, col3 = 2, col4 = 4
model Net(image: [batch, row, col, rgb], label: int[batch]) {{
    let first = Conv2d[row, col, rgb, row, col, c, side = 5, pad = 2]
    let norm = BatchNorm[c]
    let second = Conv2d[row, col, c, half, col2, wide, stride = 2]
    let skip = Conv2d[row, col, c, half, col2, wide, side = 1, stride = 2, pad = 0]
    let back = ConvTranspose2d[quarter, col3, wide, up, col4, c]
    let head = Linear[c, classes, std = 0.5]
    let x = relu(norm(first(image)))
    let y = relu(second(x) + skip(x))
    let pooled = max_pool2d[half, col2, quarter, col3, side = 3, pad = 1](y)
    let z = back(pooled)
    let late = z + shift[up, by = 2](z)
    loss mean[batch](cross_entropy[classes](head(mean[up, col4](square(late))), label))
}}
train Net {{\n    optimizer sgd(lr = 0.1, momentum = 0.9)\n    steps 2\n    seed 3\n}}\n"
    )
}
