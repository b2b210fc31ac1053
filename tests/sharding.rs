//! Programs spread over ranks compute what one device computes.

#[path = "sharding/cases.rs"]
mod cases;
#[path = "sharding/optimizers.rs"]
mod optimizers;
#[path = "support/plans.rs"]
#[allow(dead_code)]
mod plans;
#[path = "sharding/random.rs"]
mod random;
#[path = "support/spread.rs"]
#[allow(dead_code)]
mod spread;
#[path = "support/ranks.rs"]
#[allow(dead_code, unused_imports)]
mod support;

use partita::driver::{Options, pipeline, sharding, verify};
use partita::ir::Op;
use partita::types::DType;

fn verified(source: &str, plan: &str) -> verify::Report {
    let (world, options) = plans::planned(source, plan);
    plans::sound(plan, verify::verify(&options, &world, 2))
}

fn same(source: &str, plan: &str) {
    let report = verified(source, plan);
    assert_eq!(report.differs, None, "{plan}");
    assert!(report.compared > 4, "{report:?}");
}

/// What is said of a plan that is no good.
fn refused(source: &str, plan: &str) -> String {
    let (world, options) = plans::planned(source, plan);
    let found = pipeline::graphs(&options, &world).err().expect("refused");
    partita::diag::render::text(&found.sink, &found.sources, false)
}

const MLP: &str = "
use nn.{Linear, gelu}
use optim.{adamw, sgd}
dim batch = 8, inner = 6, mlp = 12, out = 5
model Net(x: [batch, inner], y: [batch, out]) {
    let up = Linear[inner, mlp]
    let down = Linear[mlp, out]
    let z = down(gelu(up(x)))
    loss mean[batch, out](square(z - y))
}
train Net { optimizer adamw(lr = 0.1)
 steps 2
 seed 3
}
";

/// What noise makes of ill-conditioned results is allowed, and nothing else: of each reduction that is lost the verification tells.
#[test]
fn a_reduction_that_is_lost_is_found() {
    let text = "use nn.{BatchNorm, Linear}\nuse optim.{adamw}\ndim batch = 6, inner = 5, mlp = 7
model M(x: [batch, inner]) {
    let up = Linear[inner, mlp, std = 0.5]
    let norm = BatchNorm[mlp]
    loss mean[batch, mlp](square(norm(up(x)) - f32(iota[mlp])))
}
train M {\n    optimizer adamw(lr = 0.1)\n    steps 2\n    seed 3\n}\n";
    let (world, options) = plans::planned(text, "mesh dp = 2\nshard batch by dp");
    let options = Options { precision: Some(DType::F64), ..options };
    let g = plans::sound("", pipeline::graphs(&options, &world));
    let whole = plans::sound("", sharding::programs(&g)).expect("several ranks");
    let report = verify::compare(&g, &whole, None, 2).expect("it runs");
    assert_eq!(report.differs, None);
    let reductions: Vec<usize> = (0..whole.train.graph.ops.len())
        .filter(|i| matches!(&whole.train.graph.ops[*i].op, Op::Collective(c) if c.reduce.is_some()))
        .collect();
    assert!(reductions.len() > 5, "{reductions:?}");
    for lost in reductions {
        let mut programs = plans::sound("", sharding::programs(&g)).expect("several ranks");
        programs.train.graph.ops[lost].op = Op::Reshape { groups: Vec::new() };
        let report = verify::compare(&g, &programs, None, 2).expect("it runs");
        assert!(report.differs.is_some(), "operation {lost}: {report:?}");
    }
}

#[test]
fn data_parallel() {
    same(MLP, "mesh dp = 2\nshard batch by dp");
}

#[test]
fn tensor_parallel() {
    same(MLP, "mesh tp = 2\nshard mlp by tp");
}

fn gpt() -> String {
    plans::gpt(
        "batch = 4, seq = 8, vocab = 32, embed = 16, heads = 4, depth = 2",
        "adamw(lr = 1e-3, beta2 = 0.95, weight_decay = 0.1)",
    )
}

#[test]
fn gpt_plans() {
    for plan in [
        "mesh dp = 2\nshard batch by dp",
        "mesh tp = 2\nshard heads, mlp by tp",
        "mesh tp = 2\nshard heads, mlp, vocab by tp",
        "mesh dp = 2, tp = 2\nshard batch by dp\nshard heads, mlp, vocab by tp\nshard seq by tp in LayerNorm",
        "mesh dp = 2\nshard batch by dp\nzero 1 by dp",
        "mesh dp = 2\nshard batch by dp\nzero 3 by dp",
        "mesh tp = 3\nshard heads, mlp, vocab by tp",
    ] {
        same(&gpt(), plan);
    }
}

/// A file at a preset.
fn of_file(file: &str, preset: &str, plan: &str) -> verify::Report {
    let text = std::fs::read_to_string(file).expect("a file of the repository");
    let (world, mut options) = plans::planned(&text, plan);
    options.request.presets.push(preset.to_string());
    plans::sound(plan, verify::verify(&options, &world, 2))
}

/// Each plan on the tiny sizes of a golden model.
fn golden(model: &str, preset: &str, plans: &[&str]) {
    for plan in plans {
        let r = of_file(&format!("tests/golden_models/{model}.pta"), preset, plan);
        assert_eq!(r.differs, None, "{model} {plan}");
    }
}

const TENSOR: &str = "shard heads, mlp, vocab by tp";
const SEQUENCE: &str = "shard seq by tp in LayerNorm";

#[test]
fn gpt_with_data_parallelism() {
    let of = |n: u32, more: &str| format!("mesh dp = {n}\nshard batch by dp\n{more}");
    let plans = [of(2, ""), of(4, ""), of(3, ""), of(2, "zero 1 by dp"), of(4, "zero 2 by dp"), of(4, "zero 3 by dp")];
    golden("gpt", "tiny", &plans.each_ref().map(String::as_str));
}

#[test]
fn gpt_in_microbatches() {
    let of = |more: &str| format!("mesh dp = 2\nshard batch by dp\nmicrobatches 2\n{more}");
    let all = format!("mesh dp = 2, tp = 2\nshard batch by dp\n{TENSOR}\n{SEQUENCE}\nmicrobatches 2");
    let idle = "mesh dp = 2, b = 2\nshard batch by dp\nmicrobatches 2\nzero 1 by dp, b".to_string();
    let plans = [of(""), of("zero 1 by dp"), of("zero 2 by dp"), of("zero 3 by dp"), all, idle];
    golden("gpt", "tiny", &plans.each_ref().map(String::as_str));
}

#[test]
fn gpt_with_tensor_and_sequence_parallelism() {
    let of = |n: u32, more: &str| format!("mesh tp = {n}\n{TENSOR}\n{more}");
    let plans = [of(2, ""), of(4, ""), of(3, ""), of(2, SEQUENCE), of(3, SEQUENCE)];
    golden("gpt", "tiny", &plans.each_ref().map(String::as_str));
}

#[test]
fn gpt_with_context_parallelism() {
    let plans = [
        "mesh cp = 2\nshard seq by cp",
        "mesh cp = 3\nshard seq by cp",
        "mesh cp = 2\nshard seq by cp { order = zigzag }",
        "mesh cp = 2\nshard seq by cp\nshard heads by cp in attention",
    ];
    golden("gpt", "tiny", &plans);
}

#[test]
fn keys_and_values_in_a_ring() {
    let plans = [
        "mesh cp = 2\nshard seq by cp { gather = ring }",
        "mesh cp = 3\nshard seq by cp { gather = ring }",
        "mesh cp = 5\nshard seq by cp { gather = ring }",
        "mesh cp = 4\nshard seq by cp { gather = ring, order = zigzag }",
        "mesh cp = 3\nshard seq by cp { gather = ring, order = zigzag }",
        "mesh cp = 2, tp = 2\nshard seq by cp { gather = ring }\nshard heads, mlp, vocab by tp",
    ];
    golden("gpt", "tiny", &plans);
    let llama = [
        "mesh cp = 2\nshard seq by cp { gather = ring }",
        "mesh dp = 2, cp = 2\nshard batch by dp\nshard seq by cp { gather = ring }\nmicrobatches 2",
    ];
    golden("llama", "tiny", &llama);
}

/// Other rules of who sees whom: documents, a reach, all.
#[test]
fn rings_of_any_visibility() {
    let packed = "document: int[batch, pos]";
    for (input, layer, extra) in [
        ("", "MultiHeadAttention[pos, d, heads, hd]", ""),
        ("", "MultiHeadAttention[pos, d, heads, hd, both_ways = true]", ""),
        ("", "MultiHeadAttention[pos, d, heads, hd, reach = 3]", ""),
        // A bias of both positions, with all keys in sight and without.
        ("", "MultiHeadAttention[pos, d, heads, hd, linear_bias = true]", ""),
        ("", "MultiHeadAttention[pos, d, heads, hd, linear_bias = true, both_ways = true]", ""),
        ("", "MultiHeadAttention[pos, d, heads, hd, linear_bias = true, reach = 5, cap = 3.0]", ""),
        (packed, "GroupedAttention[pos, d, kv, heads, hd]", ", document"),
        (packed, "GroupedAttention[pos, d, kv, heads, hd, reach = 4, cap = 2.0]", ", document"),
    ] {
        let source = format!(
            "use nn.{{GroupedAttention, MultiHeadAttention}}\nuse optim.{{sgd}}
dim batch = 2, pos = 11, d = 8, kv = 2, heads = 2, hd = 4
model Net(x: [batch, pos, d]{}{input}, y: [batch, pos, d]) {{
    let attention = {layer}
    loss mean[batch, pos, d](square(attention(x{extra}) - y))
}}
train Net {{\n    optimizer sgd(lr = 0.5)\n    steps 2\n    seed 3\n}}\n",
            if input.is_empty() { "" } else { ", " }
        );
        for plan in [
            "mesh cp = 2\nshard pos by cp { gather = ring }",
            "mesh cp = 4\nshard pos by cp { gather = ring }",
            "mesh cp = 2\nshard pos by cp { gather = ring, order = zigzag }",
        ] {
            same(&source, plan);
        }
    }
}

/// A mask that no rule of positions says, and a bias that is learned: keys go round, or are gathered where the bias has a gradient.
#[test]
fn rings_with_masks_and_learned_biases() {
    let source = |far: &str| {
        format!(
            "use nn.{{attention}}\nuse optim.{{sgd}}
dim batch = 2, pos = 11, heads = 2, hd = 4, inner = 4
model Net(x: [batch, pos, heads, inner], hide: int[batch, pos], y: [batch, pos, heads, hd]) {{
    dim key = pos
    param wq, wk, wv: [inner -> hd] = normal(0.5)
    let q = dot[inner](x, wq)
    let k = dot[inner](x, wk)[pos -> key]
    let v = dot[inner](x, wv)[pos -> key]
    let seen = (hide[pos -> key] != iota[pos] % 3) and (iota[key] * iota[key] <= 7 * iota[pos])
{far}
    loss mean[batch, pos, heads, hd](square(attention[key, hd, hd, scale = 0.5](q, k, v, mask = seen, bias = far) - y))
}}
train Net {{\n    optimizer sgd(lr = 0.5)\n    steps 2\n    seed 3\n}}\n"
        )
    };
    let fixed = "    let far: [heads, pos, key] = sin(iota[pos] * 3 - iota[key] * (iota[heads] + 1))";
    let learned = "    dim buckets = 7
    param table: [buckets, heads] = normal(0.5)
    let far = table[buckets = clamp(iota[pos] - iota[key] + 3, 0, 6)]";
    for far in [fixed, learned] {
        for plan in [
            "mesh cp = 2\nshard pos by cp { gather = ring }",
            "mesh cp = 4\nshard pos by cp { gather = ring }",
            "mesh cp = 3\nshard pos by cp { gather = ring, order = zigzag }",
            "mesh cp = 2, tp = 2\nshard pos by cp { gather = ring }\nshard heads by tp",
        ] {
            same(&source(far), plan);
        }
    }
}

/// Of what ranks find in their blocks the best are gathered, not the scores: on any mesh, with equal scores too.
#[test]
fn the_best_of_cut_scores() {
    let text = |scores: &str| {
        format!(
            "use nn.{{Linear}}\nuse optim.{{sgd}}
dim batch = 4, inner = 3, vocab = 11, pick = 3
model Net(x: [batch, inner], y: [batch, pick]) {{
    let up = Linear[inner, vocab]
    let scores = {scores}
    let (best, at) = top_k[vocab -> pick](scores)
    metric first = at
    loss mean[batch, pick](square(best - y) * f32(1 + at))
}}
train Net {{\n    optimizer sgd(lr = 0.1)\n    steps 2\n    seed 3\n}}\n"
        )
    };
    let plans = [
        "mesh tp = 2\nshard vocab by tp",
        "mesh tp = 4\nshard vocab by tp",
        "mesh tp = 8\nshard vocab by tp",
        "mesh dp = 2, tp = 3\nshard batch by dp\nshard vocab by tp",
        "mesh a = 2, b = 2\nshard vocab by a, b",
        "mesh tp = 2\nshard vocab by tp { order = zigzag }",
        "mesh tp = 12\nshard vocab by tp",
    ];
    // All alike, some of them infinite, in the order of places and against it.
    for scores in [
        "up(x)",
        "0 * up(x)",
        "where(iota[vocab] % 4 < 3, -inf, up(x))",
        "up(x) + 5 * iota[vocab]",
        "floor(up(x)) - iota[vocab] % 2",
    ] {
        for plan in plans {
            same(&text(scores), plan);
        }
    }
}

#[test]
fn llama_on_any_mesh() {
    let plans = [
        "mesh dp = 2\nshard batch by dp",
        "mesh tp = 2\nshard heads, mlp, vocab by tp",
        // Two heads of keys for four and eight ranks.
        "mesh tp = 4\nshard heads, mlp, vocab by tp",
        "mesh tp = 8\nshard heads by tp",
        "mesh tp = 3\nshard kv, mlp, vocab by tp",
        "mesh cp = 2\nshard seq by cp",
        "mesh dp = 2, cp = 2\nshard batch by dp\nshard seq by cp\nmicrobatches 2",
    ];
    golden("llama", "tiny", &plans);
}

#[test]
fn experts_on_their_ranks() {
    let plans = [
        "mesh dp = 2\nshard batch by dp",
        "mesh ep = 2\nshard batch by ep\nshard experts by ep in Experts",
        "mesh ep = 4\nshard batch by ep\nshard experts by ep in Experts",
        "mesh dp = 2, ep = 2\nshard batch by dp, ep\nshard experts by ep in Experts\nzero 2 by dp",
    ];
    golden("moe", "tiny", &plans);
    golden("moe", "tiny_capacity", &plans[..3]);
}

/// Room for packed rows by the even share: the same numbers where it is enough, else an end, never a row less.
#[test]
fn packed_rows_have_the_room_that_a_bound_gives() {
    let plan = |more: &str| format!("mesh ep = 2\nshard batch by ep\nshard experts by ep in Experts{more}");
    // Four sequences of 16, two choices, four experts: the even share is 32 rows of 64.
    let of = |bound: &str| of_file("tests/golden_models/moe.pta", "tiny", &plan(bound));
    assert_eq!(of(" { bound = 1.9 }").differs, None);
    let moe = |bound: &str| {
        let text = std::fs::read_to_string("tests/golden_models/moe.pta").expect("a file of the repository");
        let (world, mut options) = plans::planned(&text, &plan(bound));
        options.request.presets.push("tiny".into());
        (world, options)
    };
    let (world, options) = moe(" { bound = 1.0 }");
    let found = verify::verify(&options, &world, 2).expect_err("a row too many");
    let text = partita::diag::render::text(&found.sink, &found.sources, false);
    assert!(text.contains("E0816") && text.contains("which has room for 32"), "{text}");
    let room = |bound: &str| {
        let (world, options) = moe(bound);
        let g = pipeline::graphs(&options, &world).unwrap_or_else(|_| panic!("{bound}"));
        let p = sharding::programs(&g).unwrap_or_else(|_| panic!("{bound}")).expect("two ranks");
        let rows = |g: &partita::ir::Graph| g.dims.iter().filter(|d| d.ragged).map(|d| d.size).max();
        (rows(&p.train.graph), rows(&p.eval.graph))
    };
    assert_eq!(room(""), (Some(64), Some(64)));
    assert_eq!(room(" { bound = 1.25 }"), (Some(40), Some(40)));
    assert_eq!(room(" { bound = 9.0 }"), (Some(64), Some(64)));
    let text = refused(MLP, "mesh tp = 2\nshard mlp by tp { bound = 1.5 }");
    assert!(text.contains("E0506") && text.contains("packed by `mlp`"), "{text}");
}

const INLINE: &str = "
use nn.{Linear, gelu}
use optim.{sgd}
dim batch = 8, inner = 6, mlp = 12, out = 5
model Net(x: [batch, inner], y: [batch, out]) {
    let up = Linear[inner, mlp]
    let down = Linear[mlp, out]
    let h = gelu(up(x)) @ [mlp: tp]
    loss mean[batch, out](square(down(h) - y))
}
train Net {
    optimizer sgd(lr = 0.1)
    steps 2
    seed 3
}
";

#[test]
fn a_layout_in_an_expression_and_one_of_a_name() {
    same(INLINE, "mesh dp = 2, tp = 2\nshard batch by dp");
    same(MLP, "mesh dp = 2, tp = 3\nshard batch by dp\nlayout Net.z @ [out: tp]");
    same(MLP, "mesh dp = 2, tp = 2\nshard batch by dp\nshard mlp by tp\nreplicate mlp in Linear");
}

fn of_tokens(body: &str) -> String {
    format!(
        "use nn.{{Embedding}}\nuse optim.{{sgd}}
dim batch = 4, seq = 8, vocab = 12, embed = 6
model Net(tokens: int[batch, seq]) {{
    let wte = Embedding[vocab, embed]
    let x = wte(tokens)
{body}
    loss mean[batch, seq, embed](square(h))
}}
train Net {{\n    optimizer sgd(lr = 0.1)\n    steps 2\n    seed 3\n}}\n"
    )
}

#[test]
fn positions_may_be_read_and_written_anywhere() {
    let bodies = [
        "    let at = (tokens * 3) % seq\n    let h = x + x[seq = at]",
        "    let (sorted, at) = sort[seq](x)\n    let h = x + sorted",
        "    dim other = seq\n    param w: [seq, other] = normal(0.1)\n    let h = x + sum[seq](x) + sum[other](w + w[seq -> other, other -> seq])",
    ];
    for body in bodies {
        for plan in ["mesh a = 2\nshard seq by a", "mesh a = 3\nshard seq by a", "mesh a = 2\nshard batch by a"] {
            same(&of_tokens(body), plan);
        }
    }
}

#[test]
fn zero_stays_away_from_dims_that_are_dealt_from_both_ends() {
    same(&gpt(), "mesh a = 2, b = 2\nshard vocab by b { order = zigzag }\nzero 1 by a");
}

#[test]
fn windows_over_rows_in_parts() {
    for rows in [8, 9] {
        let net = plans::convolutions(rows);
        for plan in [
            "mesh sp = 2\nshard row, half, quarter, up by sp",
            "mesh sp = 3\nshard row, half, quarter, up by sp",
            "mesh dp = 2, sp = 2\nshard batch by dp\nshard row, half by sp",
            "mesh sp = 2, wp = 2\nshard row, half, quarter, up by sp\nshard col, col2, col3, col4 by wp",
            "mesh sp = 4\nshard quarter by sp",
            "mesh sp = 2\nshard row by sp",
            "mesh sp = 2, wp = 2\nshard row, half, quarter, up by sp, wp",
        ] {
            same(&net, plan);
        }
    }
}

/// Statistics by slices, of which ranks have several, one, or a part.
#[test]
fn ranks_may_share_a_slice() {
    let net = "use nn.{BatchNorm, Linear, relu}\nuse optim.{sgd}
dim batch = 16, inner = 3, mlp = 4, out = 2
model Net(x: [batch, inner], y: [batch, out]) {
    let up = Linear[inner, mlp]
    let norm = BatchNorm[mlp]
    let down = Linear[mlp, out]
    loss mean[batch, out](square(down(relu(norm(up(x)))) - y))
}
train Net {\n    samples batch in 4 slices\n    optimizer sgd(lr = 0.1)\n    steps 2\n    seed 3\n}\n";
    for plan in [
        "mesh dp = 2\nshard batch by dp",
        "mesh dp = 4\nshard batch by dp",
        "mesh dp = 8\nshard batch by dp",
        "mesh dp = 16\nshard batch by dp",
        "mesh dp = 12\nshard batch by dp",
        "mesh dp = 3\nshard batch by dp",
        "mesh dp = 4\nshard batch by dp\nmicrobatches 2",
        "mesh dp = 4\nshard batch by dp\nmicrobatches 4",
        "mesh a = 2, b = 4\nshard batch by a, b\nshard mlp by b in Net.down",
    ] {
        same(net, plan);
    }
}

/// Recurrences and running sums over a sequence in parts: each rank goes on from what those before it come to.
#[test]
fn recurrences_over_parts_of_a_sequence() {
    let net = "use nn.{Linear}\nuse optim.{sgd}
dim batch = 2, pos = 10, inner = 3, mlp = 4
model Net(x: [batch, pos, inner], y: [batch, pos, mlp]) {
    let value, gate = Linear[inner, mlp]
    let keep = exp(-softplus(gate(x)))
    let carried = linear_scan[pos](keep, value(x))
    let total = cumsum[pos](square(carried))
    loss mean[batch, pos, mlp](square(total - y))
}
train Net {\n    optimizer sgd(lr = 0.01)\n    steps 2\n    seed 3\n}\n";
    for plan in [
        "mesh cp = 2\nshard pos by cp",
        "mesh cp = 3\nshard pos by cp",
        "mesh cp = 4\nshard pos by cp { order = zigzag }",
        "mesh a = 2, b = 3\nshard pos by a, b",
        "mesh a = 2, b = 2\nshard pos by a\nshard mlp by b",
    ] {
        same(net, plan);
    }
}

/// A bias that is stored in parts of parts is added to a sum in parts.
#[test]
fn parts_of_parts_are_summands() {
    for plan in [
        "mesh a = 3, b = 2\nshard heads by b, a\nzero 3 by b, a",
        "mesh a = 2, b = 2\nshard heads, mlp by b\nzero 3 by a, b",
    ] {
        golden("moe", "tiny", &[plan]);
    }
}
