//! Bytes that a training step sends per rank: at most what is least possible for plans that everybody knows.

#[path = "support/plans.rs"]
#[allow(dead_code)]
mod plans;

use partita::driver::sharding::{self, Programs};
use partita::ir::{CollectiveKind, ENTRY, Graph, Op, Operation, print};
use partita::shard::Reason;

/// The programs of a rank.
fn programs(source: &str, plan: &str) -> Programs {
    let g = plans::graphs(&plans::planned(source, plan), plan);
    plans::sound(plan, sharding::programs(&g)).expect("several ranks")
}

/// The training step of a rank, and why its collectives are there.
fn program(source: &str, plan: &str) -> (Graph, Vec<Option<Reason>>) {
    let p = programs(source, plan);
    (p.train.graph, p.train.reasons)
}

/// Bytes sent per rank and step, and the collectives as text.
fn sent((graph, reasons): (Graph, Vec<Option<Reason>>)) -> (f64, Vec<String>) {
    // Once a step, whatever the number of microbatches.
    let inside = graph.ops.iter().filter(|o| o.block != ENTRY);
    assert_eq!(inside.filter(|o| matches!(&o.op, Op::Collective(c) if !c.atoms.is_empty())).count(), 0);
    let total = reasons.iter().flatten().map(|r| r.bytes).sum();
    let lines = print::print(&graph);
    let moves = |l: &&str| l.contains("collective[") && !l.contains("[slice");
    (total, lines.lines().filter(moves).map(str::to_string).collect())
}

/// At most the least possible, a thousandth apart for scalars.
fn at_most(row: &str, source: &str, plan: &str, least: f64) {
    within(row, program(source, plan), least);
}

fn within(row: &str, program: (Graph, Vec<Option<Reason>>), least: f64) {
    let (bytes, list) = sent(program);
    println!("{row}: {bytes} of {least}: {:.4}", bytes / least);
    if bytes > least * 1.001 {
        panic!("{row}: {bytes} bytes, {:.3} times {least}\n{}", bytes / least, list.join("\n"));
    }
}

fn mlp(optimizer: &str) -> String {
    format!(
        "use nn.{{Linear, gelu}}\nuse optim.{{adamw, sgd}}
dim batch = 64, inner = 512, mlp = 2048, out = 512
model Net(x: [batch, inner], y: [batch, out]) {{
    let up = Linear[inner, mlp]
    let down = Linear[mlp, out]
    loss mean[batch, out](square(down(gelu(up(x))) - y))
}}
train Net {{\n    optimizer {optimizer}\n    steps 2\n    seed 3\n}}\n"
    )
}

#[test]
fn a_data_parallel() {
    at_most("a1", &mlp("sgd(lr = 0.1)"), "mesh dp = 8\nshard batch by dp", 14_697_991.0);
    at_most("a2", &mlp("adamw(lr = 0.1)"), "mesh dp = 8\nshard batch by dp", 14_697_991.0);
    at_most("a3", &mlp("adamw(lr = 0.1)"), "mesh dp = 8\nshard batch by dp\nmicrobatches 4", 14_697_991.0);
}

fn residual(blocks: usize, batch: usize, wanted: bool) -> String {
    let (input, x) = match wanted {
        true => ("", "    param x: [batch, inner] = normal(1.0)\n"),
        false => ("x: [batch, inner], ", ""),
    };
    format!(
        "use nn.{{Linear, gelu}}\nuse optim.{{sgd}}
dim batch = {batch}, inner = 512, mlp = 2048, depth = {blocks}
layer Block(x: [batch, inner]) -> [batch, inner] {{
    let up = Linear[inner, mlp]
    let down = Linear[mlp, inner]
    x + down(gelu(up(x)))
}}
model Net({input}y: [batch, inner]) {{
{x}    let h = x
    for i in depth {{ h = Block(h) }}
    loss mean[batch, inner](square(h - y))
}}
train Net {{\n    optimizer sgd(lr = 0.1)\n    steps 2\n    seed 3\n}}\n"
    )
}

#[test]
fn b_hidden_over_tp() {
    at_most("b1", &residual(1, 64, false), "mesh tp = 4\nshard mlp by tp", 196_608.0);
    at_most("b2", &residual(1, 64, true), "mesh tp = 4\nshard mlp by tp", 393_216.0);
    at_most("b3", &residual(2, 64, false), "mesh dp = 2, tp = 4\nshard batch by dp\nshard mlp by tp", 4_497_412.0);
}

const ATTENTION: &str = "
use nn.{Linear, attention, causal}
use optim.{sgd}
dim batch = 8, seq = 128, embed = 256, heads = 8, head_dim = embed / heads
layer Attention(x: [batch, seq, embed]) -> [batch, seq, embed] {
    dim key = seq
    let query, keys, values = Linear[embed, (heads, head_dim)]
    let out = Linear[(heads, head_dim), embed]
    let k = keys(x)[seq -> key]
    let v = values(x)[seq -> key]
    out(attention[key, head_dim, head_dim, scale = 1 / sqrt(head_dim)](query(x), k, v, mask = causal[seq, key]()))
}
model Net(y: [batch, seq, embed]) {
    param x: [batch, seq, embed] = normal(1.0)
    loss mean[batch, seq, embed](square(Attention(x) - y))
}
train Net {
    optimizer sgd(lr = 0.1)
    steps 2
    seed 3
}
";

fn gpt() -> String {
    plans::gpt(
        "batch = 8, seq = 128, vocab = 512, embed = 256, heads = 8, depth = 4",
        "adamw(lr = 1e-3, beta2 = 0.95, weight_decay = 0.1)",
    )
}

#[test]
fn c_heads_over_tp() {
    at_most("c1", ATTENTION, "mesh tp = 4\nshard heads by tp", 3_145_728.0);
    at_most("c2", &gpt(), "mesh dp = 2, tp = 4\nshard batch by dp\nshard heads, mlp by tp", 16_417_796.0);
    at_most("c3", &gpt(), "mesh dp = 4, tp = 4\nshard batch by dp\nshard heads, mlp by tp", 12_043_782.0);
}

#[test]
fn d_sequence_over_tp() {
    let plan = "mesh dp = 2, tp = 4\nshard batch by dp\nshard heads, mlp by tp\nshard seq by tp in LayerNorm";
    at_most("d1", &gpt(), plan, 17_231_876.0);
}

#[test]
fn e_zero_3() {
    let plan = "mesh dp = 8\nshard batch by dp\nzero 3 by dp";
    at_most("e1", &gpt(), &format!("{plan} {{ regather = never }}"), 23_263_744.0);
    at_most("e2", &gpt(), plan, 34_895_616.0);
}

#[test]
fn f_zero_1() {
    at_most("f1", &gpt(), "mesh dp = 8\nshard batch by dp\nzero 1 by dp", 23_263_744.0);
}

const SEQ: &str = "
use nn.{attention}
use optim.{sgd}
dim batch = 4, seq = 512, embed = 256, heads = 8, head_dim = embed / heads
layer Attention(x: [batch, seq, embed]) -> [batch, seq, embed] {
    dim key = seq
    param wq, wk, wv: [embed -> heads, head_dim] = normal(0.02)
    param wo: [heads, head_dim -> embed] = normal(0.02)
    let q = dot[embed](x, wq)
    let k = dot[embed](x, wk)[seq -> key]
    let v = dot[embed](x, wv)[seq -> key]
    dot[heads, head_dim](attention[key, head_dim, head_dim, scale = 1 / sqrt(head_dim)](q, k, v, mask = true), wo)
}
model Net(x: [batch, seq, embed], y: [batch, seq, embed]) {
    loss mean[batch, seq, embed](square(Attention(x) - y))
}
train Net {
    optimizer sgd(lr = 0.1)
    steps 2
    seed 3
}
";

#[test]
fn h_ulysses() {
    at_most("h1", SEQ, "mesh cp = 4\nshard seq by cp\nshard heads by cp in attention", 4_718_598.0);
}

fn voc(vocab: usize) -> String {
    format!(
        "use nn.{{Embedding}}\nuse losses.{{cross_entropy}}\nuse optim.{{sgd}}
dim batch = 4, seq = 128, embed = 256, vocab = {vocab}
model Net(tokens: int[batch, seq], targets: int[batch, seq]) {{
    dim mid = embed
    let wte = Embedding[vocab, embed]
    param wm: [embed -> mid] = normal(0.02)
    let h = tanh(dot[embed](wte(tokens), wm))[mid -> embed]
    loss mean[batch, seq](cross_entropy[vocab](dot[embed](h, wte.table), targets))
}}
train Net {{\n    optimizer sgd(lr = 0.1)\n    steps 2\n    seed 3\n}}\n"
    )
}

#[test]
fn i_vocabulary() {
    at_most("i1", &voc(512), "mesh tp = 4\nshard vocab by tp", 1_582_080.0);
    at_most("i2", &voc(50_257), "mesh tp = 4\nshard vocab by tp", 1_582_080.0);
}

fn product(m: usize, k: usize, n: usize) -> String {
    format!(
        "use optim.{{sgd}}
dim rows = {m}, inner = {k}, cols = {n}
model Net(x: [rows, inner]) {{
    param w: [inner -> cols] = normal(0.02)
    loss mean[rows, cols](square(dot[inner](x, w)))
}}
train Net {{\n    optimizer sgd(lr = 0.1)\n    steps 2\n    seed 3\n}}\n"
    )
}

#[test]
fn k_products() {
    // Forward alone, of two values in parts: the smaller operand is gathered, and nothing else but the loss is exchanged.
    for (row, (m, k, n), least) in [("k1", (64, 512, 4096), 114_688.0), ("k2", (8192, 512, 256), 458_752.0)] {
        let p = programs(&product(m, k, n), "mesh a = 8\nlayout Net.x @ [rows: a]\nlayout Net.w @ [cols: a]");
        let kinds: Vec<CollectiveKind> = (p.eval.graph.ops.iter())
            .filter_map(|o| if let Op::Collective(c) = &o.op { Some(c.kind) } else { None })
            .filter(|k| *k != CollectiveKind::Slice)
            .collect();
        assert_eq!(kinds, [CollectiveKind::AllGather, CollectiveKind::AllReduce], "{row}");
        let gathered = p.eval.reasons.iter().flatten().map(|r| r.bytes).fold(0.0, f64::max);
        assert_eq!(gathered, least, "{row}");
        within(row, (p.eval.graph, p.eval.reasons), least);
    }
    at_most("k3", &product(8192, 512, 256), "mesh a = 8\nshard rows by a\nlayout Net.w @ [cols: a]", 917_511.0);
}

fn experts(groups: usize) -> String {
    format!(
        "use nn.{{gelu, softmax}}\nuse optim.{{sgd}}
dim groups = {groups}, token = 256, inner = 256, embed = 256, outer = 256, experts = 8, pick = 2, slot = 64, mlp = 512
layer Experts(rows: [groups, experts, slot, embed]) -> [groups, experts, slot, embed] {{
    param up: [experts, (embed -> mlp)] = normal(0.02)
    param down: [experts, (mlp -> embed)] = normal(0.02)
    dot[mlp](gelu(dot[embed](rows, up)), down)
}}
model Net(x: [groups, token, inner], y: [groups, token, outer]) {{
    param wi: [inner -> embed] = normal(0.02)
    param wg: [embed -> experts] = normal(0.02)
    param wout: [embed -> outer] = normal(0.02)
    let h = tanh(dot[inner](x, wi))
    let (best, chosen) = top_k[experts -> pick](softmax[experts](dot[embed](h, wg)))
    let (rows, place) = pack[(pick, token) -> (experts = chosen, slot)](h)
    let back = unpack[(experts = chosen, slot = place)](Experts(rows))
    loss mean[groups, token, outer](square(dot[embed](dot[pick](best, back), wout) - y))
}}
train Net {{\n    optimizer sgd(lr = 0.1)\n    steps 2\n    seed 3\n}}\n"
    )
}

#[test]
fn g_experts() {
    let plan = "shard experts by ep in Experts";
    at_most("g1", &experts(4), &format!("mesh ep = 4\nshard groups by ep\n{plan}"), 2_371_590.0);
    at_most("g2", &experts(8), &format!("mesh dp = 2, ep = 4\nshard groups by dp, ep\n{plan}"), 4_601_863.0);
}

#[test]
fn gradients_of_all_layers_are_summed_over_microbatches_first() {
    let plan = "mesh dp = 2, tp = 4\nshard batch by dp\nshard heads, mlp by tp\nmicrobatches 2";
    let (graph, reasons) = program(&gpt(), plan);
    let over_dp = |c: &partita::ir::Collective| c.atoms == [partita::mesh::Atom(0)];
    let inside = graph
        .ops
        .iter()
        .zip(&reasons)
        .filter(|(o, r)| o.block != ENTRY && r.is_some() && matches!(&o.op, Op::Collective(c) if over_dp(c)));
    let what: Vec<String> =
        inside.map(|(o, _)| format!("{} {}", graph.scopes[o.scope.index()].path, o.results[0])).collect();
    assert_eq!(what, Vec::<String>::new());
}

/// What rules say of a parameter holds in a microbatch as in a whole batch: layers exchange the same.
#[test]
fn microbatches_exchange_what_a_batch_does() {
    let gpt = plans::gpt("batch = 32, seq = 64, vocab = 64, embed = 32, heads = 4, depth = 2", "sgd(lr = 0.1)");
    let plan = "mesh tp = 2\nshard heads, mlp, vocab by tp\nshard seq by tp in LayerNorm";
    let exchanged = |plan: &str| {
        let (graph, _) = program(&gpt, plan);
        let mut kinds = std::collections::BTreeMap::new();
        for op in &graph.ops {
            if let Op::Collective(c) = &op.op
                && !c.atoms.is_empty()
                && c.kind != CollectiveKind::AllReduce
            {
                *kinds.entry(format!("{:?}", c.kind)).or_insert(0) += 1;
            }
        }
        kinds
    };
    let whole = exchanged(plan);
    assert!(whole["AllGather"] > 8 && whole["ReduceScatter"] > 8, "{whole:?}");
    assert_eq!(whole, exchanged(&format!("{plan}\nmicrobatches 4")));
}

/// Rows that neighbours read, and nothing more; nothing where windows lie side by side.
#[test]
fn windows_get_the_rows_around_a_block() {
    let net = |side: usize, pad: usize| {
        format!(
            "use nn.{{Conv2d}}\nuse optim.{{sgd}}
dim batch = 2, row = 16, col = 8, rgb = 3, c = 4, c2 = 4
model Net(image: [batch, row, col, rgb], y: [batch, row, col, c2]) {{
    let first = Conv2d[row, col, rgb, row, col, c, side = 1, pad = 0]
    let conv = Conv2d[row, col, c, row, col, c2, side = {side}, pad = {pad}]
    loss mean[batch, row, col, c2](square(conv(first(image)) - y))
}}
train Net {{\n    optimizer sgd(lr = 0.1)\n    steps 1\n    seed 3\n}}\n"
        )
    };
    let halos = |side, pad, ranks: usize| -> f64 {
        let (graph, reasons) = program(&net(side, pad), &format!("mesh sp = {ranks}\nshard row by sp"));
        let moves = |o: &Op| matches!(o, Op::Collective(c) if c.kind == CollectiveKind::Permute);
        let all = graph.ops.iter().zip(&reasons).filter(|(o, _)| moves(&o.op));
        all.map(|(_, r)| r.as_ref().map_or(0.0, |r| r.bytes)).sum()
    };
    // A row: 2 of the batch, 8 columns, 4 channels. Two rows at each of three edges, to four ranks; as many come back.
    let row = 2.0 * 8.0 * 4.0 * 4.0;
    assert_eq!(halos(3, 1, 4), 2.0 * 2.0 * 3.0 / 4.0 * row);
    assert_eq!(halos(5, 2, 4), 2.0 * 4.0 * 3.0 / 4.0 * row);
    assert_eq!(halos(1, 0, 4), 0.0);
}

/// Keys and values go round forward and backward, and their cotangents come home: n - 1 blocks each.
#[test]
fn a_ring_sends_what_gathering_would() {
    let gpt = plans::gpt("batch = 2, seq = 16, vocab = 32, embed = 16, heads = 4, depth = 1", "sgd(lr = 0.1)");
    for order in ["", ", order = zigzag"] {
        let plan = format!("mesh cp = 4\nshard seq by cp {{ gather = ring{order} }}");
        let (graph, reasons) = program(&gpt, &plan);
        let round = |o: &Op| matches!(o, Op::Collective(c) if c.hops > 0);
        let sent = graph.ops.iter().zip(&reasons).filter(|(o, _)| round(&o.op));
        let sent: f64 = sent.map(|(_, r)| r.as_ref().map_or(0.0, |r| r.bytes) * 3.0).sum();
        let keys_and_values = 2.0 * 2.0 * 16.0 * 16.0 * 4.0;
        assert_eq!(sent, 3.0 * 3.0 / 4.0 * keys_and_values);
        let gathered = |o: &Op| matches!(o, Op::Collective(c) if c.kind == CollectiveKind::AllGather);
        assert_eq!(graph.ops.iter().filter(|o| gathered(&o.op) && o.span.is_some()).count(), 0);
    }
}

/// The place of a maximum over cut classes takes two numbers per sample, not the logits.
#[test]
fn accuracy_over_cut_classes_gathers_no_logits() {
    let net = "use nn.{Linear}\nuse losses.{cross_entropy}\nuse optim.{sgd}
dim batch = 8, inner = 4, classes = 10
model Net(x: [batch, inner], label: int[batch]) {
    let head = Linear[inner, classes]
    let logits = head(x)
    loss mean[batch](cross_entropy[classes](logits, label))
    metric right = mean[batch](argmax[classes](logits) == label)
}
train Net {\n    optimizer sgd(lr = 0.1)\n    steps 1\n    seed 3\n}\n";
    let (graph, reasons) = program(net, "mesh tp = 4\nshard classes by tp");
    let gathers = |o: &Op| matches!(o, Op::Collective(c) if c.kind == CollectiveKind::AllGather);
    assert!(!graph.ops.iter().any(|o| gathers(&o.op)), "{}", print::print(&graph));
    let most = reasons.iter().flatten().map(|r| r.bytes).fold(0.0, f64::max);
    assert!(most <= 1.5 * 8.0 * 4.0, "{most}");
}

/// A recurrence over a sequence in parts sends the state of each block, not the sequence.
#[test]
fn recurrences_send_states() {
    let net = "use nn.{Linear}\nuse optim.{sgd}
dim batch = 2, pos = 64, inner = 3, mlp = 4
model Net(x: [batch, pos, inner], y: [batch, pos, mlp]) {
    let value, gate = Linear[inner, mlp]
    let carried = linear_scan[pos](sigmoid(gate(x)), value(x))
    loss mean[batch, pos, mlp](square(carried - y))
}
train Net {\n    optimizer sgd(lr = 0.1)\n    steps 1\n    seed 3\n}\n";
    let (graph, reasons) = program(net, "mesh cp = 4\nshard pos by cp");
    let of = |kind| {
        let found = move |o: &Op| matches!(o, Op::Collective(c) if c.kind == kind);
        graph.ops.iter().zip(&reasons).filter(move |(o, _)| found(&o.op)).filter_map(|(_, r)| r.as_ref())
    };
    // Factor and state of three other blocks, forward and backward.
    let state = 2.0 * 4.0 * 4.0;
    let gathered: f64 = of(CollectiveKind::AllGather).map(|r| r.bytes).sum();
    assert_eq!(gathered, 2.0 * 2.0 * 3.0 * state);
    // The backward pass reads the gate of the next place and the state of the one before.
    let halos: f64 = of(CollectiveKind::Permute).map(|r| r.bytes).sum();
    assert!(halos <= 2.0 * state, "{halos}");
}

/// A bias of both positions is computed where it is needed: what goes round are keys and values, as without it.
#[test]
fn a_ring_with_a_bias_sends_no_more() {
    let net = |bias: bool| {
        format!(
            "use nn.{{MultiHeadAttention}}\nuse optim.{{sgd}}
dim batch = 2, pos = 16, d = 8, heads = 2, hd = 4
model Net(x: [batch, pos, d], y: [batch, pos, d]) {{
    let attention = MultiHeadAttention[pos, d, heads, hd, linear_bias = {bias}]
    loss mean[batch, pos, d](square(attention(x) - y))
}}
train Net {{\n    optimizer sgd(lr = 0.5)\n    steps 1\n    seed 3\n}}\n"
        )
    };
    let plan = "mesh cp = 4\nshard pos by cp { gather = ring }";
    let (graph, _) = program(&net(true), plan);
    let round = |o: &&Operation| matches!(&o.op, Op::Collective(c) if c.hops > 0);
    assert!(graph.ops.iter().filter(round).count() > 0);
    let total = |bias| program(&net(bias), plan).1.iter().flatten().map(|r| r.bytes).sum::<f64>();
    assert_eq!(total(true), total(false));
}

/// The k largest of cut classes take k candidates of each rank, not the scores.
#[test]
fn the_best_of_cut_classes_gathers_candidates() {
    let net = "use nn.{Linear}\nuse optim.{sgd}
dim batch = 8, inner = 4, classes = 4000, pick = 2
model Net(x: [batch, inner], y: [batch, pick]) {
    let head = Linear[inner, classes]
    let (best, at) = top_k[classes -> pick](head(x))
    loss mean[batch, pick](square(best - y))
}
train Net {\n    optimizer sgd(lr = 0.1)\n    steps 1\n    seed 3\n}\n";
    let (_, reasons) = program(net, "mesh tp = 4\nshard classes by tp");
    // Values and places of three others; the chosen values are summed.
    let candidates = 3.0 * 8.0 * 2.0 * (4.0 + 4.0);
    let total: f64 = reasons.iter().flatten().map(|r| r.bytes).sum();
    assert!(total <= candidates + 1.5 * 8.0 * 2.0 * 4.0 + 8.0, "{total}");
}
