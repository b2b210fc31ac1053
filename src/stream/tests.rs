//! Streamed programs against whole ones: the same values at every position, in steps of 1 and of several.

use super::*;
use crate::driver::{Request, check};
use crate::elaborate::{Elab, Mode};
use crate::interp::{self, Env, Tensor};
use crate::source::Memory;
use crate::syntax::ast::ItemKind;
use crate::types::rng;

const HEAD: &str = "
use nn.{Embedding, LayerNorm, LearnedPosition, Linear, RmsNorm, attention, causal, gelu, rope, softmax, outer, silu}
dim batch = 2, seq = 8, vocab = 11, embed = 8, heads = 2, head_dim = embed / heads
";

struct Built {
    whole: Graph,
    init: Graph,
    facts: crate::elaborate::sample::SampleFacts,
}

fn build(source: &str) -> Built {
    let mut world = Memory::default();
    world.0.insert("main.pta".into(), format!("{HEAD}{source}"));
    let checked = check::load(&Request { path: "main.pta".into(), ..Request::default() }, &world);
    let item = checked
        .program
        .main_items(|k| match k {
            ItemKind::Sample(s) => Some(s),
            _ => None,
        })
        .remove(0);
    let mut e = Elab::new(&checked.program, checked.settings.clone(), Mode::STREAM, DType::F64);
    let facts = e.sample(item);
    e.sink.extend(checked.sink.clone());
    assert!(!e.failed(), "{}", crate::diag::render::text(&e.sink, &checked.sources, false));
    let init = e.init.finish();
    let whole = prune::prune(&e.b.finish());
    verify::verify(&whole).unwrap();
    Built { whole, init, facts }
}

fn shape(g: &Graph, dims: &[DimId]) -> Vec<usize> {
    dims.iter().map(|d| g.size(*d)).collect()
}

fn tokens(g: &Graph, dims: &[DimId], n: f64) -> Tensor {
    let s = shape(g, dims);
    let count: usize = s.iter().product();
    let data = (0..count).map(|i| (f64::from(rng::bits(12345, i as u64)) % n).floor()).collect();
    Tensor::new(DType::I32, s, data)
}

/// Runs the whole program and the streamed one on the same tokens and compares the output `z`.
fn compare(source: &str) {
    let built = build(source);
    let g = &built.whole;
    let feed = built.facts.feed.clone().unwrap();
    let mut env = Env { seed: 3, ..Env::default() };
    for p in &g.params {
        let key = rng::stream(&p.path) | 1;
        let s = shape(g, &p.dims);
        let n: usize = s.iter().product();
        let data = (0..n).map(|i| f64::from(rng::unit(key, i as u64)) - 0.5).collect();
        env.params.push(Tensor::new(p.dtype, s, data));
    }
    assert!(built.init.outputs.len() >= g.params.len());
    env.inputs = g.inputs.iter().map(|i| tokens(g, &i.dims, 11.0)).collect();
    let z = g.outputs.iter().position(|o| o.name == "z").unwrap();
    let want = interp::run(g, &env).unwrap().swap_remove(z);
    let want_dims = g.value(g.outputs[z].value).dims.clone();

    for n in [1, 4] {
        let s = stream(g, feed.input, feed.dim, n).unwrap();
        verify::verify(&s.graph).unwrap_or_else(|e| panic!("{e}\n{}", print::print(&s.graph)));
        let mut step = env.clone();
        step.states =
            (s.graph.states.iter()).map(|st| Tensor::filled(st.dtype, shape(&s.graph, &st.dims), 0.0)).collect();
        if let Some(p) = &s.prelude {
            let out = interp::run(p, &step).unwrap();
            keep(p, out, &mut step);
        }
        let whole = env.inputs[feed.input.index()].clone();
        for k in 0..8 / n {
            step.position = (k * n) as i32;
            step.inputs[feed.input.index()] = part(&whole, k * n, n);
            let out = interp::run(&s.graph, &step).unwrap();
            let oz = s.graph.outputs.iter().position(|o| o.name == "z").unwrap();
            let dims = s.graph.value(s.graph.outputs[oz].value).dims.clone();
            same(&want, &want_dims, &out[oz], &dims, &s, feed.dim, k * n);
            keep(&s.graph, out, &mut step);
        }
    }
}

fn keep(g: &Graph, out: Vec<Tensor>, env: &mut Env) {
    for (o, t) in g.outputs.iter().zip(out) {
        if let OutputKind::State(id) = o.kind {
            env.states[id.index()] = t;
        }
    }
}

/// Columns from `lo` of [batch, seq].
fn part(t: &Tensor, lo: usize, n: usize) -> Tensor {
    let (b, s) = (t.shape[0], t.shape[1]);
    let data = (0..b).flat_map(|r| t.data[r * s + lo..r * s + lo + n].to_vec()).collect();
    Tensor::new(t.dtype, vec![b, n], data)
}

fn same(want: &Tensor, want_dims: &[DimId], got: &Tensor, got_dims: &[DimId], s: &Streamed, dim: DimId, lo: usize) {
    let total = got.data.len();
    for flat in 0..total {
        let mut rest = flat;
        let mut at: Vec<(DimId, usize)> = Vec::new();
        for (d, n) in got_dims.iter().zip(&got.shape).rev() {
            at.push(if *d == s.dim { (dim, rest % n + lo) } else { (*d, rest % n) });
            rest /= n;
        }
        let index = want_dims
            .iter()
            .zip(&want.shape)
            .fold(0, |i, (d, n)| i * n + at.iter().find(|a| a.0 == *d).expect("the same dims").1);
        let (a, b) = (want.data[index], got.data[flat]);
        assert!((a - b).abs() <= 1e-9 * (1.0 + a.abs()), "position {lo}: {b} instead of {a}");
    }
}

const ATTENTION: &str = "
layer Attention(x: [batch, seq, embed]) -> [batch, seq, embed] {
    dim key = seq
    let query, keys, values = Linear[embed, (heads, head_dim)]
    let out = Linear[(heads, head_dim), embed]
    let k = rope[seq, head_dim](keys(x))[seq -> key]
    let q = rope[seq, head_dim](query(x))
    out(attention[key, head_dim, head_dim, scale = 0.5](q, k, values(x)[seq -> key], mask = MASK))
}
model M(tokens: int[batch, seq], targets: int[batch, seq]) {
    let wte = Embedding[vocab, embed, std = 1.0]
    let wpe = LearnedPosition[seq, embed]
    let norm = LayerNorm[embed]
    let h = wte(tokens) + wpe()
    for i in 0..2 { h = h + Attention(norm(h)) }
    output logits = dot[embed](norm(h), wte.table)
}
sample M { output z = logits * 2.0
    feed tokens[seq] = argmax[vocab](logits) }
";

#[test]
fn attention_keeps_keys_and_values() {
    compare(&ATTENTION.replace("MASK", "causal[seq, key]()"));
}

#[test]
fn a_sliding_window_is_causal_too() {
    compare(&ATTENTION.replace("MASK", "causal[seq, key, reach = 3]()"));
}

#[test]
fn attention_counts_positions_from_where_it_is() {
    let built = build(&ATTENTION.replace("MASK", "causal[seq, key]()"));
    let feed = built.facts.feed.unwrap();
    let graph = stream(&built.whole, feed.input, feed.dim, 1).unwrap().graph;
    let attentions: Vec<&Op> = graph.ops.iter().map(|o| &o.op).filter(|o| matches!(o, Op::Attention(_))).collect();
    assert_eq!(attentions.len(), 2);
    assert!(attentions.iter().all(|o| matches!(o, Op::Attention(a) if a.first && a.causal && !a.mask)));
}

#[test]
fn a_mask_of_another_form_is_one_in_memory() {
    compare(&ATTENTION.replace("MASK", "iota[key] < iota[seq]"));
    compare(&ATTENTION.replace("MASK", "causal[seq, key]() and (iota[key] % 2 == 0 or iota[key] == iota[seq])"));
}

#[test]
fn attention_without_a_causal_mask_is_refused() {
    let built = build(&ATTENTION.replace("MASK", "iota[seq] <= iota[key]"));
    let feed = built.facts.feed.unwrap();
    let problem = stream(&built.whole, feed.input, feed.dim, 1).err().unwrap();
    assert!(problem.message.contains("depends on later positions"), "{}", problem.message);
    assert!(problem.span.is_some());
}

#[test]
fn a_scan_keeps_its_carries() {
    compare(
        "
model M(tokens: int[batch, seq]) {
    dim prev = embed
    param wh: [prev -> embed] = normal(0.3)
    let wte = Embedding[vocab, embed]
    let x = wte(tokens)
    let h: [batch, embed] = 0
    let y = scan t in seq {
        h = tanh(x[seq = t] + dot[prev](h[embed -> prev], wh)) + 0.01 * t
        h
    }
    output logits = dot[embed](y, wte.table)
}
sample M { output z = logits * 1.5
    feed tokens[seq] = argmax[vocab](logits) }",
    );
}

#[test]
fn windows_shifts_and_recurrences_keep_what_they_reach() {
    compare(
        "
dim tap = 3
model M(tokens: int[batch, seq]) {
    param conv: [tap, embed] = normal(0.5)
    param decay: [embed] = normal(0.5)
    let wte = Embedding[vocab, embed]
    let x = wte(tokens)
    let c = dot[tap](window[seq -> (seq, tap), before = 2](x), conv)
    let s = shift[seq, by = 2, fill = 0.25](c)
    let g: [batch, seq, embed] = sigmoid(decay)
    let h = linear_scan[seq](g, c + s)
    let t = cumsum[seq](h) + cummax[seq](x) + cumsum[seq, exclusive = true](x)
    output logits = dot[embed](t, wte.table)
}
sample M { output z = logits * 1.5
    feed tokens[seq] = argmax[vocab](logits) }",
    );
}

#[test]
fn experts_with_ragged_slots_stream() {
    compare(
        "
dim experts = 3, pick = 2, mlp = 4
layer Ffn[s](rows: [experts, s, embed]) -> [experts, s, embed] {
    param up: [experts, (embed -> mlp)] = normal(0.5)
    param down: [experts, (mlp -> embed)] = normal(0.5)
    dot[mlp](gelu(dot[embed](rows, up)), down)
}
model M(tokens: int[batch, seq]) {
    dim slot = ragged(batch * seq)
    param router: [embed -> experts] = normal(1.0)
    let wte = Embedding[vocab, embed]
    let x = wte(tokens)
    let prob = softmax[experts](dot[embed](x, router))
    let (best, chosen) = top_k[experts -> pick](prob)
    let (rows, place) = pack[(pick, batch, seq) -> (experts = chosen, slot)](x)
    let y = dot[pick](best, unpack[(experts = chosen, slot = place)](Ffn[slot](rows)))
    output logits = dot[embed](x + y, wte.table)
}
sample M { output z = logits * 1.5
    feed tokens[seq] = argmax[vocab](logits) }",
    );
}

#[test]
fn what_does_not_depend_on_the_fed_input_is_computed_once() {
    let source = "
dim src = 5
model M(source: int[batch, src], tokens: int[batch, seq]) {
    let wte = Embedding[vocab, embed]
    let memory = mean[src](tanh(wte(source)))
    let x = wte(tokens) + memory
    output logits = dot[embed](x, wte.table)
}
sample M { output z = logits * 1.5
    feed tokens[seq] = argmax[vocab](logits) }";
    compare(source);
    let built = build(source);
    let feed = built.facts.feed.unwrap();
    assert!(stream(&built.whole, feed.input, feed.dim, 1).unwrap().prelude.is_some());
}
