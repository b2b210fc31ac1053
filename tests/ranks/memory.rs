//! Memory of a rank beside the formulas of the literature: ZeRO (Rajbhandari and others 2019, arXiv 1910.02054) to the byte, and
//! activations of a GPT block (Korthikanti and others 2022, arXiv 2205.05198) from above; and what recomputed gathers cost.

use super::plans;
use partita::diag::render;
use partita::driver::engine::{Compiled, Engine};
use partita::driver::memory::{Needed, needed};
use partita::driver::{pipeline, sharding, verify};
use partita::ir::{CollectiveKind, Op, Phase};
use partita::runtime::exec::ExecOptions;

fn of(source: &str, plan: &str) -> Needed {
    let (world, options) = plans::planned(source, plan);
    let options = partita::driver::Options { threads: 1, ..options };
    needed(&options, &world).unwrap_or_else(|f| panic!("{plan}\n{}", render::text(&f.sink, &f.sources, false)))
}

fn bytes(n: &Needed, category: &str) -> usize {
    n.report().by_category[category]
}

/// Parameters in f32, two moments, gradients that wait for all microbatches: 4 + 8 + 4 bytes for each parameter, of which
/// `zero` cuts first the moments, then the gradients, then the parameters.
#[test]
fn zero_divides_what_its_formula_says() {
    // Everything divides by 64.
    let sizes = "batch = 256, seq = 64, vocab = 64, embed = 128, heads = 2, depth = 2";
    let source = plans::gpt(sizes, "adamw(lr = 1e-3)");
    let plan = |dp: usize, zero: usize| format!("mesh dp = {dp}\nshard batch by dp\nmicrobatches 2\nzero {zero} by dp");
    let one = of(&source, "microbatches 2");
    let p = bytes(&one, "parameters");
    assert_eq!((bytes(&one, "gradients"), bytes(&one, "optimizer_state")), (p, 2 * p));
    for dp in [2, 4, 64] {
        for zero in 0..=3 {
            let n = of(&source, &plan(dp, zero));
            let cut = |from: usize| if zero >= from { p / dp } else { p };
            let found = ["parameters", "gradients", "optimizer_state"].map(|c| bytes(&n, c));
            assert_eq!(found, [cut(3), cut(2), 2 * cut(1)], "zero {zero} over {dp}");
        }
    }
}

/// A GPT whose blocks are those of the activation formulas: biases, dropout of attention's result and of the MLP's.
fn gpt(sizes: &str) -> String {
    let plain = plans::gpt(sizes, "adamw(lr = 1e-3)").replace("gelu_tanh}", "dropout, gelu_tanh}");
    let dropped = plain
        .replace("x + Attention(norm1(x))", "x + dropout(Attention(norm1(x)))")
        .replace("h + down(gelu_tanh(up(norm2(h))))", "h + dropout(down(gelu_tanh(up(norm2(h)))))");
    assert!(dropped.matches("dropout(").count() == 2, "{dropped}");
    dropped
}

const TOKENS: usize = 2 * 512;
const EMBED: usize = 512;
const HEADS: usize = 8;

/// Bytes of activations that one more block keeps for the backward pass.
fn block(plan: &str) -> usize {
    let with = |depth: usize| {
        let sizes = format!("batch = 2, seq = 512, vocab = 64, embed = {EMBED}, heads = {HEADS}, depth = {depth}");
        bytes(&of(&gpt(&sizes), &format!("precision bf16\n{plan}")), "activations")
    };
    with(3) - with(2)
}

/// The formulas, with s b h = tokens x embed and t ranks, for attention whose scores are not kept:
/// s b h (10 + 24 / t), and 34 s b h / t where norms and dropout are cut along the sequence. Of the 34 bytes, the compiler keeps 20: the
/// inputs of both norms (2 + 2), queries, keys and values (6), what attention gives (2) and what the activation function
/// takes (8). It draws both masks again (1 + 1) and computes again what the norms (2 + 2) and the activation function (8) give. In
/// addition it keeps 4 bytes a head and token, with which attention's backward pass computes scores, and two numbers a token of
/// each norm.
#[test]
fn a_block_keeps_less_than_its_formula() {
    let sbh = TOKENS * EMBED;
    let (scores, norms) = (4 * HEADS * TOKENS, 16 * TOKENS);
    for t in [1, 2, 4, 8] {
        let mesh = format!("mesh tp = {t}\nshard heads, mlp by tp\n");
        let tensor = block(&mesh);
        assert_eq!(tensor, sbh * (4 * t + 16) / t + scores / t + norms, "tensor over {t}");
        assert!(tensor <= sbh * (10 * t + 24) / t, "tensor over {t}");
        let along = "shard seq by tp in LayerNorm, dropout\n";
        let sequence = block(&format!("{mesh}{along}recompute gathers"));
        assert_eq!(sequence, (20 * sbh + scores + norms) / t, "sequence over {t}");
        assert!(sequence <= 34 * sbh / t, "sequence over {t}");
        // What the products of a block read is gathered, and kept without `recompute gathers`.
        let kept = if t == 1 { 0 } else { 4 * sbh };
        assert_eq!(block(&format!("{mesh}{along}")), sequence + kept, "sequence over {t}, gathered forms kept");
    }
}

#[test]
fn gathers_are_repeated_once_for_the_backward_pass_and_change_nothing() {
    let source = plans::gpt("batch = 2, seq = 6, vocab = 7, embed = 8, heads = 4, depth = 2", "adamw(lr = 1e-3)");
    let sequence = "mesh tp = 2\nshard heads, mlp, vocab by tp\nshard seq by tp in LayerNorm";
    let gathers = |plan: &str| {
        let (world, options) = plans::planned(&source, plan);
        let options = partita::driver::Options { precision: Some(partita::types::DType::F64), ..options };
        let g = plans::graphs(&(world, options), plan);
        let p = plans::sound(plan, sharding::programs(&g)).expect("many ranks");
        let report = verify::compare(&g, &p, None, 2).unwrap_or_else(|e| panic!("{e}"));
        assert!(report.differs.is_none() && report.compared > 100, "{plan}: {report:?}");
        let in_phase = |phase: Phase| {
            let ops = p.train.graph.ops.iter().filter(|o| o.phase == phase);
            ops.filter(|o| matches!(&o.op, Op::Collective(c) if c.kind == CollectiveKind::AllGather)).count()
        };
        (in_phase(Phase::Forward), in_phase(Phase::Backward))
    };
    let (forward, backward) = gathers(sequence);
    // Two for each block, and one for the head.
    assert_eq!(forward, 5);
    assert_eq!(gathers(&format!("{sequence}\nrecompute gathers")), (forward, backward + 5));
}

/// Parameters that are used in another type are gathered in it, and not kept either.
#[test]
fn gathered_parameters_are_not_kept_in_bf16() {
    let source = plans::gpt("batch = 4, seq = 8, vocab = 64, embed = 64, heads = 4, depth = 12", "adamw(lr = 1e-3)");
    let plan = |more: &str| format!("precision bf16\nmesh dp = 2\nshard batch by dp\nzero 3 by dp {more}");
    let [again, kept] =
        ["", "{ regather = never }"].map(|more| bytes(&of(&source, &plan(more)), "gathered_parameters"));
    // The parts, in the other type, wait for the backward pass; of whole blocks there are at most one that is used and one that arrives.
    assert!(5 * again < 4 * kept, "{again} {kept}");
}

/// Uneven parts included.
#[test]
fn ranks_take_what_was_said() {
    let source = plans::gpt("batch = 4, seq = 8, vocab = 20, embed = 24, heads = 4, depth = 2", "adamw(lr = 1e-3)");
    let plan = "mesh dp = 2, tp = 3\nshard batch by dp\nshard heads, mlp, vocab by tp\nshard seq by tp in LayerNorm\nzero 2 by dp";
    let said = of(&source, plan);
    assert!(said.uneven.iter().any(|u| u == "heads 4 by tp: parts of 2 to 0"), "{:?}", said.uneven);
    let (world, options) = plans::planned(&source, plan);
    let options = partita::driver::Options { threads: 1, ..options };
    let mut g = plans::graphs(&(world, options.clone()), plan);
    let program = plans::sound(plan, pipeline::program(&mut g, pipeline::ALL, None, &options));
    let arenas: Vec<usize> = program.routines.iter().map(|r| r.arena).collect();
    let threads = ExecOptions { threads: 1, ..ExecOptions::default() };
    let mut engine = Compiled::open(program, &g.recipe, threads).expect("ranks");
    assert!(engine.init(1).is_ok());
    let init = pipeline::ALL.iter().position(|n| *n == pipeline::INIT).expect("a routine");
    let ranks = engine.machine_mut().each(|exec| {
        assert_eq!(exec.high_water(init), arenas[init]);
        assert_eq!(exec.persistent_bytes() + arenas.iter().max().expect("routines"), said.report().peak_bytes);
        assert_eq!(exec.scratch_bytes(), said.scratch_bytes);
    });
    assert_eq!(ranks.len(), 6);
}

/// What is computed again is not kept: of a block in full all but its input (2 s b h), of attention queries, keys, values and what it
/// gives, with the numbers by which its backward pass computes scores.
#[test]
fn what_is_computed_again_is_not_kept() {
    let sbh = TOKENS * EMBED;
    let norms = 16 * TOKENS;
    for t in [1, 2, 4] {
        let tensor = format!("mesh tp = {t}\nshard heads, mlp by tp\n");
        assert_eq!(block(&format!("{tensor}recompute full")), 2 * sbh, "tensor over {t}");
        assert_eq!(block(&format!("{tensor}recompute Attention")), sbh * (4 * t + 8) / t + norms, "tensor over {t}");
        // The sums over ranks of what attention gives are kept beside it.
        let kept = if t == 1 { 2 } else { 4 };
        let keep = format!("{tensor}recompute full {{ keep = collectives }}");
        assert_eq!(block(&keep), kept * sbh, "tensor over {t}");
        let sequence = format!("{tensor}shard seq by tp in LayerNorm, dropout\nrecompute full");
        assert_eq!(block(&sequence), 2 * sbh / t, "sequence over {t}");
    }
}

/// Attention by hand, whose weights are s s b a numbers: they are kept unless they are computed again.
#[test]
fn selective_recomputation_drops_the_square_of_the_sequence() {
    let core = "layer Core[key](q: [batch, seq, heads, head_dim], k: [batch, key, heads, head_dim], v: [batch, key, heads, head_dim])
    -> [batch, seq, heads, head_dim] {
    let scores = dot[head_dim](q, k) / sqrt(head_dim)
    let weights = softmax[key](where(iota[key] <= iota[seq], scores, -1e9))
    dot[key](dropout(weights), v)
}
layer Attention(";
    let source = |depth: usize| {
        let sizes = format!("batch = 2, seq = 512, vocab = 64, embed = {EMBED}, heads = {HEADS}, depth = {depth}");
        let by_hand = gpt(&sizes)
            .replacen("layer Attention(", core, 1)
            .replace("dropout, gelu_tanh}", "dropout, gelu_tanh, softmax}");
        let at = by_hand.find("    out(attention[").expect("attention");
        let end = at + by_hand[at..].find('\n').expect("a line");
        format!("{}    out(Core[key](query(x), k, v)){}", &by_hand[..at], &by_hand[end..])
    };
    let block = |plan: &str| {
        let with = |depth| bytes(&of(&source(depth), &format!("precision bf16\n{plan}")), "activations");
        with(3) - with(2)
    };
    let square = HEADS * TOKENS * 512;
    let (kept, core) = (block(""), block("recompute Core"));
    // Of the formula's 5 a s / h the masks are drawn again: weights in bf16 are left, and the sums of their rows.
    let squares = (kept - core) as f64 / square as f64;
    assert!((2.0..2.05).contains(&squares), "{squares}");
    let sbh = TOKENS * EMBED;
    assert!((20.0..20.1).contains(&(core as f64 / sbh as f64)), "{core}");
}
