//! Faults of other systems that many ranks show, as small programs with the right answer, by the interpreter and on the executor.

use super::spread::{Spread, spread};
use partita::types::DType::{BF16, F32, F64};

/// A model of these lines, trained by plain descent at rate 1: a new weight is the old one less its gradient.
fn descent(dims: &str, inputs: &str, body: &str) -> String {
    format!(
        "use nn.{{attention, rope, softmax, Linear, Embedding, LayerNorm}}\nuse losses.{{cross_entropy}}\nuse optim.{{sgd}}
dim {dims}
model M({inputs}) {{
{body}
}}
train M {{ optimizer sgd(lr = 1.0); steps 1 }}\n"
    )
}

fn sent(s: &Spread, kind: &str) -> Vec<String> {
    s.exchanged().into_iter().filter(|c| c.starts_with(kind)).collect()
}

fn ramp(n: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 37 + 11) % 29) as f64 / 29.0 - 0.45).collect()
}

/// A1: what a norm's gain gets from each part of the sequence is added up, and so is a bias after a product cut along its rows.
#[test]
fn a1_gains_and_biases_of_cut_sequences() {
    let body = "    param g: [width] = 1\n    loss sum[seq, width](x * g)";
    let s = spread(
        &descent("seq = 2, width = 2", "x: [seq, width]", body),
        "mesh tp = 2\nshard seq by tp",
        F64,
        &[("x", vec![1., 2., 3., 4.])],
    );
    s.expect("param g", &[1.0 - 4.0, 1.0 - 6.0], 0.0);
    // The gradient of two numbers and the loss; nothing of the size of x.
    assert_eq!(s.exchanged(), ["all_reduce tp []", "all_reduce tp [width]"]);
    let body =
        "    param w: [inner -> width] = 1\n    param b: [width] = 0\n    let y = (dot[inner](x, w) + b) @ [seq: tp]
    loss sum[seq, width](y * f32(iota[seq] + 1))";
    let source = descent("seq = 2, inner = 2, width = 2", "x: [seq, inner]", body);
    let s = spread(&source, "mesh tp = 2\nshard inner by tp", F64, &[("x", vec![1., 2., 3., 4.])]);
    s.expect("param b", &[-3.0, -3.0], 0.0);
    s.expect("param w", &[-6.0, -6.0, -9.0, -9.0], 0.0);
}

/// A4: a table that is used twice is one parameter, with one gradient that is reduced once.
#[test]
fn a4_tied_table() {
    let body = "    let e = Embedding[vocab, width]\n    output logits = dot[width](e(tokens), e.table)
    loss mean[batch](cross_entropy[vocab](logits, targets))";
    let source = descent("batch = 4, vocab = 5, width = 2", "tokens: int[batch], targets: int[batch]", body);
    let data = [("tokens", vec![0., 3., 4., 3.]), ("targets", vec![1., 3., 0., 4.])];
    for zero in ["", "zero 1 by dp", "zero 2 by dp", "zero 3 by dp"] {
        let s = spread(&source, &format!("mesh dp = 2\nshard batch by dp\n{zero}"), F64, &data);
        s.as_alone(1e-12);
        let of_table = |c: &&String| c.contains("reduce") && c.contains("width");
        assert_eq!(s.exchanged().iter().filter(of_table).count(), 1, "{:?}", s.exchanged());
    }
}

/// A7: a mean over counted tokens divides by the count of the whole batch on any mesh.
#[test]
fn a7_mean_over_uneven_tokens() {
    let source = descent(
        "batch = 4, seq = 4",
        "x: [batch, seq], counted: int[batch, seq]",
        "    param w: f32[] = 1\n    loss mean[batch, seq](x * w, mask = counted != 0)",
    );
    let x: Vec<f64> = (0..16).map(|i| f64::from(i) + 1.0).collect();
    // Rows count 0, 1, 2 and 4 elements: a rank may count nothing.
    let counted = vec![0., 0., 0., 0., 1., 0., 0., 0., 1., 1., 0., 0., 1., 1., 1., 1.];
    let mean = x.iter().zip(&counted).map(|(a, b)| a * b).sum::<f64>() / 7.0;
    for plan in [
        "mesh dp = 4\nshard batch by dp",
        "mesh dp = 3\nshard batch by dp",
        "mesh dp = 2\nshard batch by dp\nmicrobatches 2",
        "mesh cp = 2\nshard seq by cp",
        "mesh cp = 2\nshard seq by cp\nmicrobatches 4",
        "mesh dp = 2, cp = 2\nshard batch by dp\nshard seq by cp { order = zigzag }",
    ] {
        let s = spread(&source, plan, F64, &[("x", x.clone()), ("counted", counted.clone())]);
        s.expect("loss", &[mean], 1e-12);
        s.expect("grad_norm", &[mean], 1e-12);
        s.expect("param w", &[1.0 - mean], 1e-12);
    }
}

/// A9: gradients of sums add up over ranks and microbatches, those of means are means.
#[test]
fn a9_sum_and_mean_losses() {
    for (reduction, gradient) in [("sum", 10.0), ("mean", 2.5)] {
        let body = format!("    param w: f32[] = 0.5\n    loss {reduction}[batch](x * w)");
        let source = descent("batch = 4", "x: [batch]", &body);
        for plan in [
            "mesh dp = 2\nshard batch by dp",
            "mesh dp = 2\nshard batch by dp\nmicrobatches 2",
            "mesh dp = 4\nshard batch by dp",
        ] {
            let s = spread(&source, plan, F64, &[("x", vec![1., 2., 3., 4.])]);
            s.expect("param w", &[0.5 - gradient], 1e-12);
        }
    }
}

/// A14: what is added to a sum of parts is added once, and its gradient is no multiple.
#[test]
fn a14_added_once() {
    let body = "    param w: [n] = 1\n    param b: f32[] = 10\n    loss sum[n](x * w) + b";
    let x: Vec<f64> = (0..10).map(f64::from).collect();
    let s = spread(&descent("n = 10", "x: [n]", body), "mesh tp = 2\nshard n by tp", F64, &[("x", x.clone())]);
    s.expect("loss", &[55.0], 0.0);
    s.expect("param b", &[9.0], 0.0);
    s.expect("param w", &x.iter().map(|x| 1.0 - x).collect::<Vec<_>>(), 0.0);
    let body = "    param x: [batch, inner] = normal(1.0)\n    param w: [inner -> out] = normal(1.0)\n    param b: [out] = normal(1.0)
    let y = dot[inner](x, w) + b\n    loss sum[batch, out](square(y))";
    let source =
        descent("batch = 3, inner = 6, out = 4", "unused: [batch]", &body.replace("square(y)", "square(y) * unused"));
    for plan in ["mesh tp = 2\nshard inner by tp", "mesh tp = 4\nshard inner by tp"] {
        spread(&source, plan, F64, &[("unused", vec![1., 2., 3.])]).as_alone(1e-12);
    }
}

/// A16: no reduction is lost where a sum of parts over two axes is to be cut by one of them, nor in the table of an embedding.
#[test]
fn a16_parts_over_two_axes() {
    let body = "    param w: [k, m -> n] = 1\n    let y = dot[k, m](x, w) @ [n: a]\n    metric y = y\n    loss sum[n](square(y))";
    let source = descent("k = 4, m = 6, n = 4", "x: [k, m]", body);
    let x: Vec<f64> = (1..=24).map(f64::from).collect();
    let s = spread(&source, "mesh a = 2, b = 2\nshard k by a\nshard m by b", F64, &[("x", x)]);
    s.expect("y", &[300.0; 4], 0.0);
    s.expect("loss", &[360_000.0], 0.0);
    s.as_alone(1e-12);
    let body = "    let e = Embedding[vocab, width]\n    loss sum[batch, width](square(e(tokens)))";
    let source = descent("batch = 4, vocab = 5, width = 3", "tokens: int[batch]", body);
    for plan in [
        "mesh dp = 2, tp = 2\nshard batch by dp\nshard vocab by tp",
        "mesh dp = 2, tp = 3\nshard batch by dp\nshard vocab by tp",
    ] {
        spread(&source, plan, F64, &[("tokens", vec![4., 0., 4., 3.])]).as_alone(1e-12);
    }
}

/// A18: 512 gradients of 1 are 512 though the work is in bf16, which stalls at 256; the next step begins from nothing.
#[test]
fn a18_sums_of_many_small_gradients() {
    let source = descent("batch = 512", "x: [batch]", "    param w: [] = 1\n    loss sum[batch](x * w)")
        .replace("lr = 1.0", "lr = 0.0");
    for plan in [
        "mesh dp = 2\nshard batch by dp\nmicrobatches 256",
        "mesh dp = 2\nshard batch by dp\nzero 2 by dp\nmicrobatches 64",
    ] {
        let mut s = spread(&source, plan, BF16, &[("x", vec![1.0; 512])]);
        for _ in 0..2 {
            s.expect("grad_norm", &[512.0], 0.0);
            s.advance();
        }
    }
}

/// B1: in the norm of all gradients each number counts once, however many ranks hold it.
#[test]
fn b1_norm_counts_once() {
    let body = "    param r: f32[] = 0\n    param t: [n] = 0\n    loss mean[batch](3 * r + sum[n](x * t))";
    let source = descent("batch = 2, n = 2", "x: [batch, n]", body);
    for plan in [
        "mesh tp = 2\nshard n by tp",
        "mesh tp = 4\nshard n by tp",
        "mesh dp = 2, tp = 2\nshard n by tp\nzero 1 by dp",
        "mesh dp = 2, tp = 2\nshard n by tp\nzero 3 by dp",
    ] {
        spread(&source, plan, F64, &[("x", vec![8., 0., 0., 0.])]).expect("grad_norm", &[5.0], 1e-15);
    }
}

/// C1: a dim of 17 over 8 ranks is 3, 3, 3, 3, 3, 2, 0, 0, and no rank has more.
#[test]
fn c1_seventeen_over_eight() {
    let body = "    let e = Embedding[vocab, width]\n    loss sum[batch, width](square(e(tokens)))";
    let source = descent("batch = 4, vocab = 17, width = 2", "tokens: int[batch]", body);
    let s = spread(&source, "mesh dp = 8\nshard vocab by dp", F64, &[("tokens", vec![16., 0., 15., 3.])]);
    let vocab = s.graph.params[0].dims[0];
    assert_eq!((s.graph.dim(vocab).name.as_str(), s.graph.size(vocab), s.graph.extent(vocab)), ("vocab.dp", 3, 17));
    let rows = |rank: usize| s.graph.places(vocab, rank).iter().flatten().count();
    assert_eq!((0..8).map(rows).collect::<Vec<_>>(), [3, 3, 3, 3, 3, 2, 0, 0]);
    s.as_alone(1e-12);
}

/// C2: what is cut unevenly and gathered is what it was; ranks without rows take part.
#[test]
fn c2_gathered_after_an_uneven_cut() {
    let body = "    param w: [rows, cols] = 1\n    let cut = (x * w) @ [rows: a]\n    metric back = cut @ [cols: a]\n    loss sum[rows, cols](square(cut))";
    let source = descent("rows = 5, cols = 10", "x: [rows, cols]", body);
    let x: Vec<f64> = (0..50).map(f64::from).collect();
    let s = spread(&source, "mesh a = 4", F64, &[("x", x.clone())]);
    s.expect("back", &x, 0.0);
    s.as_alone(1e-12);
    let s = spread(&source, "mesh a = 4\nshard rows by a", F64, &[("x", x.clone())]);
    let rows = s.graph.params[0].dims[0];
    let held = |rank: usize| s.graph.places(rows, rank).iter().flatten().count();
    assert_eq!((0..4).map(held).collect::<Vec<_>>(), [2, 2, 1, 0]);
    s.expect("back", &x, 0.0);
    s.as_alone(1e-12);
}

/// C5: classes that are not there, where the vocabulary does not divide, take no part in the softmax and get no gradient.
#[test]
fn c5_uneven_vocabulary() {
    let body =
        "    param z: [width -> vocab] = 0\n    let logits: [batch, vocab] = dot[width](x, z) + f32(iota[vocab] + 1)
    loss mean[batch](cross_entropy[vocab](logits, target))";
    let source = descent("batch = 1, width = 2, vocab = 3", "x: [batch, width], target: int[batch]", body);
    for tp in [2, 3, 4] {
        let plan = format!("mesh tp = {tp}\nshard vocab by tp");
        let s = spread(&source, &plan, F64, &[("x", vec![1., 1.]), ("target", vec![2.])]);
        s.expect("loss", &[0.407_605_964_444_380_13], 1e-12);
        assert_eq!(s.interpreted()["param z"].len(), 6, "as many as there are, on any mesh");
        s.as_alone(1e-12);
    }
}

/// A vocabulary of 257 over 4 ranks, in the lookup and in the head.
#[test]
fn a_tied_table_of_257_rows() {
    let body = "    let e = Embedding[vocab, width]\n    output logits = dot[width](e(tokens), e.table)
    loss mean[batch](cross_entropy[vocab](logits, targets))";
    let source = descent("batch = 4, vocab = 257, width = 3", "tokens: int[batch], targets: int[batch]", body);
    let data = [("tokens", vec![256., 65., 194., 0.]), ("targets", vec![195., 256., 64., 130.])];
    for (plan, rows) in [
        ("mesh tp = 4\nshard vocab by tp", vec![65, 65, 65, 62]),
        ("mesh tp = 3\nshard vocab by tp", vec![86, 86, 85]),
        ("mesh dp = 2, tp = 4\nshard batch by dp\nshard vocab by tp", vec![65, 65, 65, 62, 65, 65, 65, 62]),
    ] {
        let s = spread(&source, plan, F64, &data);
        let vocab = s.graph.params[0].dims[0];
        let held = |rank: usize| s.graph.places(vocab, rank).iter().flatten().count();
        assert_eq!((0..rows.len()).map(held).collect::<Vec<_>>(), rows, "{plan}");
        s.as_alone(1e-12);
        assert_eq!(sent(&s, "all_gather"), Vec::<String>::new(), "{plan}");
    }
}

/// C7: ranks that are more than the heads of keys share them, in order.
#[test]
fn c7_fewer_heads_of_keys_than_ranks() {
    let text = |kv: usize, group: usize| {
        descent(
            &format!("batch = 2, seq = 4, embed = 6, kv = {kv}, group = {group}, head_dim = 2, heads = (kv, group)"),
            "x: [batch, seq, embed]",
            "    dim key = seq\n    param wq: [embed -> heads, head_dim] = normal(0.4)\n    param wk, wv: [embed -> kv, head_dim] = normal(0.4)
    let k = dot[embed](x, wk)[seq -> key]\n    let v = dot[embed](x, wv)[seq -> key]
    let y = attention[key, head_dim, head_dim, scale = 1.0](dot[embed](x, wq), k, v)\n    metric y = y
    loss sum[batch, seq, heads, head_dim](square(y))",
        )
    };
    let plan = "mesh tp = 4\nshard heads by tp";
    let s = spread(&text(2, 4), plan, F64, &[("x", ramp(48))]);
    s.as_alone(1e-12);
    let wk = s.graph.params.iter().find(|p| p.path == "wk").expect("a parameter");
    let kv = wk.dims.iter().find(|d| s.graph.dim(**d).name.starts_with("kv")).expect("a dim");
    let head = |rank: usize| s.graph.places(*kv, rank);
    assert_eq!((0..4).map(head).collect::<Vec<_>>(), [[Some(0)], [Some(0)], [Some(1)], [Some(1)]]);
    let said = crate::refused(&text(3, 2), plan);
    assert!(said.contains("E0505") && said.contains("3, 2"), "{said}");
}

/// D1: the index of a maximum is that in the whole; of equal ones the lowest.
#[test]
fn d1_index_of_a_maximum() {
    let body = "    param w: [n] = 1\n    let y = x * w\n    metric at = argmax[n](y)\n    metric low = argmin[n](y)\n    metric top = max[n](y)\n    loss max[n](y)";
    let source = descent("n = 4", "x: [n]", body);
    for (x, at, low) in [
        ([10., 5., 3., 8.], 0., 2.),
        ([1., 7., 3., 7.], 1., 0.),
        ([2., 2., 2., 2.], 0., 0.),
        ([1., 2., 3., 4.], 3., 0.),
    ] {
        for n in [2, 3, 4] {
            let s = spread(&source, &format!("mesh tp = {n}\nshard n by tp"), F64, &[("x", x.to_vec())]);
            s.expect("at", &[at], 0.0);
            s.expect("low", &[low], 0.0);
            s.as_alone(0.0);
        }
    }
}

/// D3: a softmax over cut classes exchanges its maximum and its sum, never the logits.
#[test]
fn d3_softmax_over_cut_classes() {
    let body = "    param z: [classes] = 0\n    let logits: [batch, classes] = z + f32(iota[classes])
    metric prob = softmax[classes](logits)\n    loss sum[batch](cross_entropy[classes](logits, target))";
    let source = descent("batch = 1, classes = 4", "target: int[batch]", body);
    let without = source.replace("metric prob = softmax[classes](logits)\n", "");
    let prob = [0.032_058_603_280_084_99, 0.087_144_318_742_032_57, 0.236_882_818_089_910_13, 0.643_914_259_887_972_2];
    let new: Vec<f64> = prob.iter().enumerate().map(|(i, p)| -(p - f64::from(u8::from(i == 1)))).collect();
    for n in [2, 3, 4] {
        let s = spread(&source, &format!("mesh tp = {n}\nshard classes by tp"), F64, &[("target", vec![1.0])]);
        s.expect("prob", &prob, 1e-12);
        s.expect("loss", &[2.440_189_698_561_195_6], 1e-12);
        s.expect("param z", &new, 1e-12);
        // A metric leaves as a whole; without it, only a maximum and sums are sent.
        let s = spread(&without, &format!("mesh tp = {n}\nshard classes by tp"), F64, &[("target", vec![1.0])]);
        assert_eq!(sent(&s, "all_gather"), Vec::<String>::new());
        assert!(s.exchanged().iter().all(|c| !c.contains("classes")), "{:?}", s.exchanged());
    }
}

/// D6: a variance over a cut dim is that of all elements; large means do not eat it.
#[test]
fn d6_variance_over_a_cut_dim() {
    let body = "    param w: f32[] = 1\n    metric m = mean[n](x)\n    metric v = var[n](x)\n    loss w * sum[n](x)";
    let source = descent("n = 4", "x: f32[n]", body);
    for (x, mean, var) in [
        ([1.0, 2.0, 3.0, 6.0], 3.0, 3.5),
        ([0.0, 0.0, 0.0, 4.0], 1.0, 3.0),
        ([1e4, 1e4 + 1.0, 1e4 + 2.0, 1e4 + 3.0], 1e4 + 1.5, 1.25),
    ] {
        for n in [2, 3] {
            let s = spread(&source, &format!("mesh tp = {n}\nshard n by tp"), F32, &[("x", x.to_vec())]);
            s.expect("m", &[mean], 1e-6);
            s.expect("v", &[var], 1e-6);
        }
    }
    let body = "    let norm = LayerNorm[width]\n    loss sum[batch, width](square(norm(x)) * f32(iota[width] + 1))";
    let source = descent("batch = 2, width = 5", "x: [batch, width]", body);
    for n in [2, 3] {
        spread(&source, &format!("mesh tp = {n}\nshard width by tp"), F64, &[("x", ramp(10))]).as_alone(1e-11);
    }
}

/// E1, E2: positions of rotary embeddings, documents and labels are those of the whole sequence, however it is cut.
#[test]
fn e1_e2_positions_and_labels_of_cut_sequences() {
    let body = "    dim key = seq\n    param w: [width -> head] = normal(0.5)\n    let e = Embedding[vocab, width]\n    let x = dot[width](e(tokens), w)
    let at: int[batch, seq] = iota[seq] - max[key](where(document != document[seq -> key] and iota[key] <= iota[seq], iota[key] + 1, 0))
    let labels = shift[seq, by = -1, fill = -100](tokens)\n    metric labels = labels\n    metric at = at
    let q = rope[seq, head](x, at = at)\n    let k = rope[seq, head](x)[seq -> key]
    let y = attention[key, head, head, scale = 0.5](q, k, k, mask = iota[key] <= iota[seq] and document == document[seq -> key])
    loss mean[batch, seq](cross_entropy[head](y, labels % head), mask = labels != -100)";
    let source = descent(
        "batch = 1, seq = 8, vocab = 9, width = 6, head = 4",
        "tokens: int[batch, seq], document: int[batch, seq]",
        body,
    );
    let data = [("tokens", vec![1., 2., 3., 4., 5., 6., 7., 8.]), ("document", vec![0., 0., 0., 1., 1., 1., 1., 2.])];
    for plan in [
        "mesh cp = 2\nshard seq by cp",
        "mesh cp = 2\nshard seq by cp { order = zigzag }",
        "mesh cp = 3\nshard seq by cp",
    ] {
        let s = spread(&source, plan, F64, &data);
        s.expect("labels", &[2., 3., 4., 5., 6., 7., 8., -100.], 0.0);
        s.expect("at", &[0., 1., 2., 0., 1., 2., 3., 0.], 0.0);
        s.as_alone(1e-12);
    }
}

/// E5: a row with nothing to attend to is 0 and disturbs nothing, where a rank's whole block is masked out, too.
#[test]
fn e5_fully_masked_rows_and_blocks() {
    let body = "    param w: [width] = 1\n    let y = attention[key, width, width, scale = 1.0](q * w, k, k, mask = seen != 0)\n    metric rows = y
    let counted = any[key](seen != 0)\n    loss mean[batch, query](sum[width](y), mask = counted)";
    let source = descent(
        "batch = 1, query = 4, key = 4, width = 2",
        "q: [batch, query, width], k: [batch, key, width], seen: int[batch, query, key]",
        body,
    );
    // The first row sees nothing, the second one the first half of the keys alone, the third one the second half.
    let seen = vec![0., 0., 0., 0., 1., 1., 0., 0., 0., 0., 0., 1., 1., 1., 1., 1.];
    let data = [("q", ramp(8)), ("k", ramp(8)), ("seen", seen)];
    for plan in [
        "mesh cp = 2\nshard key by cp",
        "mesh cp = 2\nshard query by cp",
        "mesh a = 2, b = 2\nshard key by a\nshard query by b",
    ] {
        let s = spread(&source, plan, F64, &data);
        for results in [s.interpreted(), s.compiled()] {
            assert_eq!(results["rows"][..2], [0.0, 0.0]);
            assert!(results.values().flatten().all(|x| x.is_finite()), "{results:?}");
        }
        s.as_alone(1e-12);
    }
}

/// H3: a rank whose tokens skip an expert takes part in its exchanges, and gives it nothing.
#[test]
fn h3_experts_that_a_rank_does_not_use() {
    let body = "    param w: [experts, (width -> out)] = normal(0.5)\n    let (rows, at) = pack[batch -> (experts = pick, slot)](x)
    let y = unpack[(experts = pick, slot = at)](dot[width](rows, w))\n    loss sum[batch, out](square(y))";
    let source = descent(
        "batch = 4, experts = 3, slot = ragged(batch), width = 3, out = 2",
        "x: [batch, width], pick: int[batch]",
        body,
    );
    // The first rank's samples use expert 0, the second one's 0 and 1; nobody uses expert 2.
    let data = [("x", ramp(12)), ("pick", vec![0., 0., 1., 0.])];
    for plan in ["mesh dp = 2\nshard batch by dp\nzero 3 by dp", "mesh dp = 2\nshard batch by dp"] {
        let s = spread(&source, plan, F64, &data);
        s.as_alone(1e-12);
        let (old, new) = (&s.before("w"), &s.interpreted()["param w"]);
        assert_eq!(old[12..], new[12..], "an expert that nobody uses keeps its weights");
        assert_ne!(old[..6], new[..6]);
    }
}

/// I1: a cut that goes to other dims is exchanged, and never gathered whole.
#[test]
fn i1_cuts_that_move() {
    let body = "    param w: f32[] = 1\n    let from = (d * w) @ [i: y, k: x]\n    let to = from @ [j: (x, y)]\n    loss sum[i, j, k](square(to))";
    let source = descent("i = 16, j = 16, k = 16", "d: [i, j, k]", body);
    let s = spread(&source, "mesh x = 4, y = 2", F64, &[("d", ramp(4096))]);
    assert_eq!(sent(&s, "all_gather"), Vec::<String>::new(), "{:?}", s.exchanged());
    assert_eq!(sent(&s, "all_to_all").len(), 1, "{:?}", s.exchanged());
    s.as_alone(1e-12);
}

/// I3: rows of a table cut along its vocabulary are looked up where they are, and their sum is what is sent; a token that is none is an
/// error that names it.
#[test]
fn i3_lookup_in_a_cut_table() {
    let body = "    let e = Embedding[vocab, width]\n    loss sum[batch, seq, width](square(e(tokens)))";
    let source = descent("batch = 4, seq = 3, vocab = 8, width = 2", "tokens: int[batch, seq]", body);
    let tokens: Vec<f64> = (0..12).map(|i| f64::from(i * 5 % 8)).collect();
    let plan = "mesh dp = 2, tp = 2\nshard batch by dp\nshard vocab by tp";
    let s = spread(&source, plan, F64, &[("tokens", tokens.clone())]);
    s.as_alone(1e-12);
    assert_eq!(sent(&s, "all_gather"), Vec::<String>::new());
    // Forward: the rows, over tp. Backward: the table's gradient, over dp alone.
    assert_eq!(
        s.exchanged(),
        [
            "all_reduce tp [batch.dp, seq, width]",
            "all_reduce dp []",
            "all_reduce dp [vocab.tp, width]",
            "all_reduce tp []"
        ]
    );
    let mut wrong = tokens;
    wrong[7] = 8.0;
    let s = spread(&source, plan, F64, &[("tokens", wrong)]);
    let said = s.failure();
    assert!(said.contains("index 8 is out of range for dim `vocab` of size 8"), "{said}");
}

/// I6: a convolution over a cut dim sees its neighbours.
#[test]
fn i6_convolution_over_a_cut_dim() {
    let body = "    param kernel: [side] = 1\n    let y = dot[side](window[pos -> (pos, side), pad = 1](x), kernel * (1 - f32(iota[side])))
    metric y = y\n    loss sum[pos](square(y))";
    let source = descent("pos = 8, side = 3", "x: [pos]", body);
    for n in [2, 3] {
        let x: Vec<f64> = (1..=8).map(f64::from).collect();
        let s = spread(&source, &format!("mesh a = {n}\nshard pos by a"), F64, &[("x", x)]);
        s.expect("y", &[-2., -2., -2., -2., -2., -2., -2., 7.], 0.0);
        s.as_alone(1e-12);
    }
    let stem =
        "use nn.{Conv2d}\nuse optim.{sgd}\ndim batch = 4, row = 8, col = 8, colour = 3, row2 = 4, col2 = 4, width = 2
model M(x: [batch, row, col, colour]) {
    let y = Conv2d[row, col, colour, row2, col2, width, side = 7, stride = 2, pad = 3](x)
    loss sum[batch, row2, col2, width](square(y))
}
train M { optimizer sgd(lr = 1.0); steps 1 }\n";
    let data = [("x", ramp(4 * 8 * 8 * 3))];
    let s = spread(stem, "mesh dp = 2\nshard batch by dp", F64, &data);
    assert_eq!(sent(&s, "all_gather"), Vec::<String>::new());
    s.as_alone(1e-11);
    spread(stem, "mesh a = 2\nshard row by a", F64, &data).as_alone(1e-11);
}
