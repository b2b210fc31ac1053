//! Whole models, cut into stages, beside one device.

use super::models::{arrays, compiled, feed, near, program, started};
use super::{plans, support};
use partita::driver::{Options, sharding, stages};
use partita::kernel::{self, Module};
use partita::pipeline::Holders;
use partita::program::Program;
use partita::runtime::exec::RunArgs;
use partita::source::SourceMap;
use partita::types::DType;
use std::sync::Arc;

/// The program of all stages, and that of one device. `alone`: without evaluation, and what it holds where.
fn programs(source: &str, plan: &str, precision: DType, alone: bool) -> [Arc<Program>; 2] {
    let (world, options) = plans::planned(source, plan);
    let g = plans::graphs(&(world, Options { precision: Some(precision), ..options }), plan);
    let p = plans::sound(plan, sharding::programs(&g)).expect("many ranks");
    let lowering = kernel::Options::default();
    let mut staged = plans::sound(plan, stages::staged(&g, &p, &lowering));
    if let (true, Some(staged)) = (alone, &mut staged) {
        let train = stages::step(&g, &p.train.graph, false, &Holders::new(), &lowering);
        staged.train = plans::sound(plan, train).expect("stages");
    }
    let texts = SourceMap::default();
    let mut module = Module::new(&texts);
    let outer = p.outer.as_ref().map(|o| &o.graph);
    let routines = ["train", "init", "outer", "eval"];
    match staged {
        Some(s) => {
            let routines = &routines[..4 - usize::from(alone)];
            s.lower_into(&mut module, (&p.init.graph, outer), routines, &lowering);
        }
        None => {
            let graphs = [Some(&p.train.graph), Some(&p.init.graph), outer];
            routines.into_iter().zip(graphs).filter_map(|(n, g)| Some((n, g?))).for_each(|(name, graph)| {
                module.add(name, graph, &lowering);
            });
        }
    }
    [compiled(module), program(&g.train, &g.init, g.outer.as_ref().map(|o| &o.1))]
}

/// Outer steps follow every second step. True: steps go over into each other.
pub fn compare(source: &str, plan: &str, precision: DType, vocabulary: usize, tolerance: f64) -> bool {
    compare_programs(programs(source, plan, precision, false), plan, vocabulary, tolerance)
}

fn compare_programs(programs: [Arc<Program>; 2], plan: &str, vocabulary: usize, tolerance: f64) -> bool {
    let [many, one] = programs.map(started);
    let mut both = [one, many];
    assert_eq!(arrays(&both[0]), arrays(&both[1]), "initial values: {plan}");
    // Steps that go over into each other, and some that do not.
    let goes_on = both[1].program().routines.iter().any(|r| r.onward.is_some());
    let ahead = |step: u64| goes_on && [0, 1, 2, 4].contains(&step);
    for step in 0..if goes_on { 7 } else { 3 } {
        let values = both.each_mut().map(|ranks| {
            feed(ranks, step, vocabulary);
            let train = ranks.routine("train").expect("a step");
            let begun = step > 0 && ahead(step - 1);
            let args = RunArgs { seed: 5, step, begun, ahead: ahead(step), ..RunArgs::default() };
            support::measured_run(ranks, train, args, step == 1).unwrap_or_else(|e| panic!("{plan}: {e}"));
            let program = ranks.program().clone();
            let routine = &program.routines[train];
            let value = |n: usize| {
                let mut bytes = Vec::new();
                ranks.output(train, n, &mut bytes);
                let out = &routine.outputs[n];
                (out.name.clone(), support::unpack(routine.buffer(out.buffer).dtype, &bytes))
            };
            let values = (0..routine.outputs.len()).map(value).collect::<Vec<_>>();
            if let (Some(outer), 1) = (ranks.routine("outer"), step % 2) {
                ranks
                    .run(outer, RunArgs { seed: 5, step, position: 0, ..RunArgs::default() })
                    .unwrap_or_else(|e| panic!("{plan}: {e}"));
            }
            values
        });
        for (a, b) in values[0].iter().zip(&values[1]) {
            assert_eq!(a.0, b.0);
            near(&a.1, &b.1, tolerance, &format!("{plan}\nstep {step}, output {}", a.0));
        }
        for (a, b) in arrays(&both[0]).iter().zip(arrays(&both[1])) {
            assert_eq!(a.0, b.0);
            near(&a.1, &b.1, tolerance, &format!("{plan}\nstep {step}, {}", a.0));
        }
    }
    goes_on
}

/// A GPT with a tied head and dropout.
pub fn gpt(depth: usize) -> String {
    let sizes = format!("batch = 8, seq = 6, vocab = 13, embed = 8, heads = 2, depth = {depth}");
    let gpt = plans::gpt(&sizes, "adamw(lr = 1e-2)");
    gpt.replace("nn.{", "nn.{dropout, ")
        .replace("h + down(gelu_tanh(up(norm2(h))))", "h + dropout[p = 0.2](down(gelu_tanh(up(norm2(h)))))")
        .replace("seed 1\n", "seed 1\n    clip 0.5\n")
}

pub fn plan(ranks: usize, schedule: &str, microbatches: usize, mesh: &str, more: &str) -> String {
    format!(
        "mesh pp = {ranks}{mesh}\npipeline depth by pp {{ schedule = {schedule}, microbatches = {microbatches} }}\n{more}"
    )
}

/// All schedules of so many ranks, with the stages that they need.
pub fn schedules(ranks: usize) -> Vec<(&'static str, usize)> {
    let one = ["gpipe", "1f1b", "zb_h1", "zb_h2", "dualpipe"].map(|s| (s, ranks));
    let two = ["interleaved(2)", "looped_bfs(2)", "zb_v", "v_half", "v_min", "dualpipe_v"].map(|s| (s, 2 * ranks));
    [&one[..], &two[..]].concat()
}

#[test]
fn a_gpt_in_stages_trains_as_on_one_device_whatever_the_schedule() {
    for (schedule, stages) in schedules(2) {
        compare(&gpt(stages), &plan(2, schedule, 4, "", ""), DType::F64, 13, 1e-9);
    }
}

#[test]
fn stages_go_with_all_that_layouts_do() {
    let data = "shard batch by dp\n";
    for (schedule, stages) in [("1f1b", 2), ("zb_v", 4), ("dualpipe", 2)] {
        for (mesh, more) in [
            (", dp = 2", data.to_string()),
            (", dp = 2", format!("{data}zero 1 by dp")),
            (", dp = 2", format!("{data}zero 2 by dp")),
            (", dp = 2", format!("{data}zero 3 by dp")),
            (", tp = 2", "shard heads, mlp, vocab by tp\nshard seq by tp in LayerNorm".into()),
            (", dp = 2, tp = 2", format!("{data}shard heads, mlp by tp\nzero 3 by dp")),
        ] {
            compare(&gpt(stages), &plan(2, schedule, 4, mesh, &more), DType::F64, 13, 1e-9);
        }
    }
}

#[test]
fn four_ranks_and_numbers_that_do_not_divide() {
    for (schedule, stages) in schedules(4) {
        compare(&gpt(stages + 1), &plan(4, schedule, 8, "", ""), DType::F64, 13, 1e-9);
    }
    for microbatches in [1, 2, 4] {
        compare(&gpt(4), &plan(4, "1f1b", microbatches, "", ""), DType::F64, 13, 1e-9);
    }
}

/// What enters the layers is added again in each of them, and their last two turns are loops of their own.
fn skips() -> String {
    "use optim.{sgd}
dim batch = 8, embed = 6, first = 2, second = 2
layer Mix(x: [batch, embed]) -> [batch, embed] {
    dim mid = embed
    param up: [embed -> mid] = normal(0.3)
    param down: [mid -> embed] = normal(0.3)
    param bias: [embed] = normal(0.1)
    dot[mid](tanh(dot[embed](x, up)), down) + bias
}
model Deep(x: [batch, embed], y: [batch, embed]) {
    param begin: [embed] = normal(0.5)
    let x0 = x * begin
    let h = x0
    for i in first { h = tanh(h) + Mix(h) + 0.1 * x0 }
    let middle = h
    for i in second { h = h + Mix(h) * middle }
    metric size = mean[batch, embed](abs(middle))
    loss mean[batch, embed](square(h * begin - y))
    loss regular = 0.01 * mean[embed](square(begin))
}
train Deep {
    optimizer sgd(lr = 0.1, momentum = 0.9)
    steps 3
    seed 1
    clip 1.0
}
"
    .into()
}

#[test]
fn values_cross_as_many_stages_as_they_must() {
    for (ranks, schedule) in
        [(2, "1f1b"), (2, "interleaved(2)"), (4, "zb_h1"), (4, "gpipe"), (2, "zb_v"), (2, "dualpipe")]
    {
        let plan = plan(ranks, schedule, 4, "", "").replace("pipeline depth", "pipeline first, second");
        compare(&skips(), &plan, DType::F64, 13, 1e-9);
    }
}

/// A metric of each sample is put together from what the stages of each microbatch give.
#[test]
fn what_each_sample_gives_leaves_a_pipeline() {
    let each = "metric size = mean[embed](abs(middle))\n    metric last = max[embed](h)";
    let source = skips().replace("metric size = mean[batch, embed](abs(middle))", each);
    for (ranks, schedule, mesh, more) in [
        (2, "1f1b", "", ""),
        (4, "zb_h1", "", ""),
        (2, "dualpipe", "", ""),
        (2, "1f1b", ", dp = 2", "shard batch by dp"),
        (2, "2bw", "", ""),
    ] {
        let plan = plan(ranks, schedule, 4, mesh, more).replace("pipeline depth", "pipeline first, second");
        compare(&source, &plan, DType::F64, 13, 1e-9);
    }
}

/// The example, small.
fn mixtral(depth: usize) -> String {
    let source = include_str!("../../examples/mixtral.pta");
    let sizes = "dim batch = 8, seq = 6, vocab = 13\ndim embed = 8, kv = 2, group = 1, heads = (kv, group), head_dim = 4, mlp = 6";
    let from = source.find("dim batch").expect("sizes");
    let to = source.find("const capacity").expect("a constant");
    let end = source.find("weights ").unwrap_or(source.len());
    format!("{}{sizes}, depth = {depth}\ndim experts = 4, pick = 2\n{}", &source[..from], &source[to..end])
}

/// F3: what a stage computes again is what it computed, with dropout on and other microbatches in between. All of a block computed again is
/// in other kernels, whose sums may have another order.
#[test]
fn f3_masks_are_the_same_in_stages() {
    let trained = |schedule: &str, more: &str| {
        let tp = "shard heads, mlp, vocab by tp\nshard seq by tp in LayerNorm\n";
        let plan = plan(2, schedule, 4, ", tp = 2", &format!("{tp}recompute {more}\n"));
        let [many, _] = programs(&gpt(4), &plan, DType::F64, false);
        let mut ranks = started(many);
        for step in 0..2 {
            feed(&mut ranks, step, 13);
            let train = ranks.routine("train").expect("a step");
            let args = RunArgs { seed: 5, step, ..RunArgs::default() };
            ranks.run(train, args).unwrap_or_else(|e| panic!("{plan}: {e}"));
        }
        arrays(&ranks)
    };
    for schedule in ["1f1b", "zb_v"] {
        let plain = trained(schedule, "none");
        for policy in ["dropout", "Attention", "full"] {
            let again = trained(schedule, policy);
            for (a, b) in plain.iter().zip(&again) {
                assert_eq!(a.0, b.0);
                near(&a.1, &b.1, if policy == "full" { 1e-12 } else { 0.0 }, &format!("{schedule}, {policy}, {}", a.0));
            }
        }
    }
}

/// A GPT with experts whose balance loss is a statistic of a slice of the batch.
fn moe(depth: usize) -> String {
    let source = include_str!("../../examples/moe.pta");
    let from = source.find("dim batch").expect("sizes");
    let to = source.find("const capacity").expect("a constant");
    let end = source.find("train Gpt").expect("a train item");
    format!(
        "{}dim batch = 8, seq = 6, vocab = 13, embed = 8, heads = 2, head_dim = embed / heads, mlp = 6, depth = {depth}\n\
         dim experts = 4, pick = 2\n{}train Gpt {{\n    optimizer adamw(lr = 1e-2)\n    samples batch in 4 slices\n    \
         clip 1.0\n    steps 20\n    seed 1\n}}\n",
        &source[..from],
        &source[to..end]
    )
}

#[test]
fn experts_balanced_over_slices_go_with_stages() {
    let experts = "shard batch by ep\nshard experts by ep in Experts";
    for (schedule, stages) in [("1f1b", 2), ("interleaved(2)", 4), ("dualpipe", 2)] {
        compare(&moe(stages), &plan(2, schedule, 2, ", ep = 2", experts), DType::F64, 13, 1e-9);
    }
}

#[test]
fn experts_go_with_stages() {
    let experts = "shard batch by ep\nshard experts by ep in Experts";
    for (schedule, stages) in [("1f1b", 2), ("interleaved(2)", 4), ("dualpipe", 2)] {
        compare(&mixtral(stages), &plan(2, schedule, 2, ", ep = 2", experts), DType::F64, 13, 1e-9);
    }
}

/// What two ranks add to the gradient of a tied table is joined once a step, also where it is cut.
#[test]
fn tied_gradients_do_not_cross_with_every_microbatch() {
    let sent = |microbatches: usize, zero: &str| {
        let plan = plan(2, "1f1b", microbatches, ", dp = 2", &format!("shard batch by dp\n{zero}"));
        let [program, _] = programs(&gpt(2), &plan, DType::F32, false);
        let bytes = |r: &partita::program::Routine| -> usize {
            let sends = r.steps.iter().filter_map(|s| match &s.action {
                partita::program::Action::Send(t) => Some(r.buffer(t.buffer).bytes()),
                _ => None,
            });
            sends.sum()
        };
        let train = program.routines.iter().find(|r| r.name == "train").expect("a step");
        train.variants.iter().map(|v| bytes(&program.routines[*v as usize])).sum::<usize>()
    };
    for zero in ["", "zero 1 by dp", "zero 2 by dp", "zero 3 by dp"] {
        // The same samples in all: what goes through the layers is as large, however it is divided.
        let [two, four] = [2, 4].map(|m| sent(m, zero));
        assert!(four <= two + 64, "{zero}: {two} and {four} bytes");
    }
}

/// Averages of weights, weights that two optimizers divide, and loss scaling in 16 bits.
#[test]
fn what_a_step_keeps_beside_weights_is_kept_in_stages() {
    let average = gpt(4)
        .replace("    steps 20\n", "    average ema(decay = 0.5)\n    steps 20\n")
        .replace("optim.{", "optim.{ema, ");
    for (ranks, more) in [(2, ""), (4, ""), (2, "zero 2 by dp\nshard batch by dp")] {
        let mesh = if more.is_empty() { "" } else { ", dp = 2" };
        compare(&average, &plan(ranks, "1f1b", 4, mesh, more), DType::F64, 13, 1e-9);
        // Biases of keys have no gradient but rounding, which the other optimizer makes steps of.
        let plain = average.replace("adamw(lr = 1e-2)", "sgd(lr = 0.1, momentum = 0.9)");
        compare(&plain, &plan(ranks, "zb_h1", 4, mesh, more), DType::F32, 13, 2e-4);
    }
    let plain = gpt(2).replace("adamw(lr = 1e-2)", "sgd(lr = 0.1, momentum = 0.9)");
    compare(&plain, &plan(2, "1f1b", 4, "", ""), DType::F16, 13, 2e-2);
}

/// A metric that waits for another rank's loss reads the weights of before the update, whatever is updated while it waits.
#[test]
fn parameters_are_read_before_they_are_new() {
    let source = gpt(2)
        .replace("    clip 0.5\n", "")
        .replace("adamw(lr = 1e-2)", "sgd(lr = 0.5)")
        .replace("let h = wte(tokens) + wpe()\n", "let start = wte(tokens) + wpe()\n    let h = start\n")
        .replace(
            "    loss mean[batch, seq](cross_entropy[vocab](logits, targets))\n",
            "    let mean_loss = mean[batch, seq](cross_entropy[vocab](logits, targets))
    metric first = sum[seq, embed](wpe.table * wpe.table * exp(mean_loss))
    metric last = sum[embed](norm.scale * exp(mean[batch, seq, embed](start)))
    loss mean_loss
",
        );
    assert!(source.contains("metric first") && source.contains("let start"));
    let plan = plan(2, "1f1b", 4, "", "");
    compare_programs(programs(&source, &plan, DType::F64, true), &plan, 13, 1e-9);
    compare(&source, &plan, DType::F64, 13, 1e-9);
}

/// A8: each of two times two microbatches has the gradient 1, on both stages: so has the batch if its loss is a mean, and 4 times that if
/// it is a sum, whatever the schedule; nothing is divided twice, or after each microbatch.
#[test]
fn gradients_of_microbatches_are_scaled_once() {
    let source = |loss: &str| {
        format!(
            "use optim.{{sgd}}
dim batch = 4, embed = 1, depth = 2
layer Shift(x: [batch, embed]) -> [batch, embed] {{
    param by: [embed] = 0
    x + by
}}
model Line(x: [batch, embed]) {{
    let h = x
    for i in depth {{ h = Shift(h) }}
    loss {loss}[batch, embed](h)
}}
train Line {{
    optimizer sgd(lr = 1.0)
    steps 4
}}
"
        )
    };
    for (loss, gradient) in [("mean", 1.0), ("sum", 4.0)] {
        for (schedule, _) in schedules(2).into_iter().filter(|s| s.1 == 2) {
            let [many, _] = programs(&source(loss), &plan(2, schedule, 4, "", ""), DType::F64, false);
            let mut ranks = started(many);
            feed(&mut ranks, 0, 1);
            let train = ranks.routine("train").expect("a step");
            ranks
                .run(train, RunArgs { seed: 1, step: 0, position: 0, ..RunArgs::default() })
                .unwrap_or_else(|e| panic!("{schedule}: {e}"));
            let shifts: Vec<(String, Vec<f64>)> =
                arrays(&ranks).into_iter().filter(|(name, _)| name.ends_with(".by")).collect();
            assert_eq!(shifts.len(), 2, "{shifts:?}");
            assert!(shifts.iter().all(|(_, x)| *x == [-gradient]), "{schedule} of a {loss}: {shifts:?}");
        }
    }
}

/// A parameter that all layers share: each rank has all sums that microbatches make.
#[test]
fn layers_that_share_a_parameter_are_on_several_stages() {
    let source = |depth: usize, param: &str, layer: &str| {
        format!(
            "use optim.{{sgd}}
dim batch = 8, wide = 4, mid = wide, depth = {depth}
model Net(x: [batch, wide]) {{
    param w: {param}
    let h = x
    for i in depth {{ h = {layer} }}
    loss mean[batch, wide](square(h))
}}
train Net {{
    optimizer sgd(lr = 1e-2)
    steps 20
}}
"
        )
    };
    for (depth, ranks, schedule) in [(2, 2, "1f1b"), (4, 4, "gpipe"), (3, 2, "zb_h1"), (2, 2, "dualpipe")] {
        compare(&source(depth, "[wide] = 1.1", "h * w"), &plan(ranks, schedule, 4, "", ""), DType::F64, 1, 1e-9);
        // What goes from layer to layer is cheap enough to be computed again, but not by the stage that waits for it.
        let product = source(depth, "[wide -> mid] = normal(0.5)", "tanh(dot[wide](h, w))[mid -> wide]");
        compare(&product, &plan(ranks, schedule, 4, "", ""), DType::F64, 1, 1e-9);
    }
}
