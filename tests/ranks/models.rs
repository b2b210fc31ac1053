//! Whole models, spread by plans over the ranks of this process, beside one device.

use super::{plans, support};
use partita::codegen::cpu::Target;
use partita::driver::{Options, sharding};
use partita::ir::Graph;
use partita::kernel::{self, Module};
use partita::memory;
use partita::program::{Program, Role};
use partita::runtime::exec::{Array, ExecOptions, RankOptions, Ranks, RunArgs};
use partita::source::SourceMap;
use partita::types::DType;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn program(train: &Graph, init: &Graph, outer: Option<&Graph>) -> Arc<Program> {
    let texts = SourceMap::default();
    let mut module = Module::new(&texts);
    module.add("train", train, &kernel::Options::default());
    module.add("init", init, &kernel::Options::default());
    outer.into_iter().for_each(|g| {
        module.add("outer", g, &kernel::Options::default());
    });
    compiled(module)
}

pub(super) fn compiled(module: Module<'_>) -> Arc<Program> {
    let (mut program, kernels) = (module.program, module.kernels);
    memory::plan_all(&mut program);
    program.code = Target::host().expect("a supported processor").compile(&kernels, 2).expect("compiles");
    Arc::new(program)
}

/// Ranks with their initial values.
pub(super) fn started(program: Arc<Program>) -> Ranks {
    joined(program, None)
}

/// The same; `behind`: by threads beside them.
pub(super) fn joined(program: Arc<Program>, behind: Option<bool>) -> Ranks {
    let exec = ExecOptions { threads: 2, ..ExecOptions::default() };
    let mut ranks = Ranks::new(program, RankOptions { exec, behind, limit: Duration::from_secs(30) }).expect("ranks");
    let seed = RunArgs { seed: 5, ..RunArgs::default() };
    let init = ranks.routine("init").expect("initial values");
    support::measured_run(&mut ranks, init, seed, false).unwrap_or_else(|e| panic!("{e}"));
    ranks
}

pub(super) fn feed(ranks: &mut Ranks, step: u64, vocabulary: usize) {
    let program = ranks.program().clone();
    let next = program.routines.iter().filter_map(|r| r.onward.as_ref()).flatten();
    let next: HashMap<usize, usize> = next.map(|i| (i.next as usize, i.of as usize)).collect();
    for (n, slot) in program.inputs.iter().enumerate() {
        let (at, step) = next.get(&n).map_or((n, step), |of| (*of, step + 1));
        let count: usize = ranks.shape(Array::Input(n)).iter().product();
        let value = |i: usize| {
            let x = (i * 7919 + at * 104_729 + step as usize * 31 + 17) * 2_654_435_761 % 1_000_003;
            if slot.dtype == DType::I32 { (x % vocabulary) as f64 } else { x as f64 / 500_000.0 - 1.0 }
        };
        ranks.scatter(Array::Input(n), &support::pack(slot.dtype, &(0..count).map(value).collect::<Vec<_>>()));
    }
}

/// All parameters and states by path, wholes.
pub(super) fn arrays(ranks: &Ranks) -> Vec<(String, Vec<f64>)> {
    let program = ranks.program().clone();
    let params = program.params.iter().enumerate().map(|(n, s)| (s, Array::Param(n)));
    let states = program.states.iter().enumerate().map(|(n, s)| (s, Array::State(n)));
    // What runs leave to each other is none of the model's.
    let states = states.filter(|(s, _)| !matches!(s.role, Role::InFlight | Role::Sum));
    let mut all: Vec<_> = params.chain(states).map(|(s, a)| (s.path.clone(), support::gathered(ranks, a))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn compare(source: &str, plan: &str, precision: DType, vocabulary: usize, tolerance: f64) {
    let (world, options) = plans::planned(source, plan);
    let g = plans::graphs(&(world, Options { precision: Some(precision), ..options }), plan);
    let p = plans::sound(plan, sharding::programs(&g)).expect("many ranks");
    let mut one = started(program(&g.train, &g.init, None));
    let mut many = started(program(&p.train.graph, &p.init.graph, None));
    assert_eq!((one.ranks(), many.ranks()), (1, p.train.graph.mesh.ranks()));
    assert_eq!(arrays(&one), arrays(&many), "initial values: {plan}");
    for step in 0..3 {
        for ranks in [&mut one, &mut many] {
            feed(ranks, step, vocabulary);
            let args = RunArgs { seed: 5, step, position: 0, ..RunArgs::default() };
            support::measured_run(ranks, 0, args, step == 1).unwrap_or_else(|e| panic!("{plan}: {e}"));
        }
        let outputs = one.program().routines[0].outputs.len();
        for n in 0..outputs {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            assert_eq!(one.output(0, n, &mut a), many.output(0, n, &mut b));
            let out = &one.program().routines[0].outputs[n];
            let dtype = one.program().routines[0].buffer(out.buffer).dtype;
            let [a, b] = [a, b].map(|bytes| support::unpack(dtype, &bytes));
            near(&a, &b, tolerance, &format!("{plan}\nstep {step}, output {}", out.name));
        }
        for (a, b) in arrays(&one).iter().zip(arrays(&many)) {
            assert_eq!(a.0, b.0);
            near(&a.1, &b.1, tolerance, &format!("{plan}\nstep {step}, {}", a.0));
        }
    }
}

/// Relative to the largest element.
pub(super) fn near(one: &[f64], many: &[f64], tolerance: f64, what: &str) {
    assert_eq!(one.len(), many.len(), "{what}");
    let scale = one.iter().fold(1e-4f64, |m, x| m.max(x.abs()));
    for (i, (a, b)) in one.iter().zip(many).enumerate() {
        assert!((a - b).abs() <= tolerance * scale, "{what} at {i}: {a} on one, {b} on many");
    }
}

fn gpt() -> String {
    plans::gpt("batch = 5, seq = 8, vocab = 33, embed = 16, heads = 4, depth = 2", "sgd(lr = 0.5, momentum = 0.9)")
}

const PLANS: [&str; 10] = [
    "mesh dp = 2\nshard batch by dp",
    "mesh dp = 3\nshard batch by dp",
    "mesh tp = 2\nshard heads, mlp by tp",
    "mesh tp = 4\nshard heads, mlp, vocab by tp",
    "mesh dp = 2, tp = 2\nshard batch by dp\nshard heads, mlp, vocab by tp\nshard seq by tp in LayerNorm",
    "mesh dp = 2\nshard batch by dp\nzero 1 by dp",
    "mesh dp = 4\nshard batch by dp\nzero 3 by dp",
    "mesh tp = 3\nshard heads, mlp, vocab by tp",
    "mesh cp = 3\nshard seq by cp { gather = ring }",
    "mesh cp = 2\nshard seq by cp { gather = ring, order = zigzag }",
];

#[test]
fn a_gpt_on_many_ranks_trains_as_on_one() {
    for plan in PLANS {
        compare(&gpt(), plan, DType::F64, 33, 1e-9);
    }
}

#[test]
fn a_gpt_in_f32_on_many_ranks_trains_as_on_one() {
    for plan in [PLANS[1], PLANS[4], PLANS[6], PLANS[8]] {
        compare(&gpt(), plan, DType::F32, 33, 2e-4);
    }
}

#[test]
fn threads_beside_the_ranks_exchange_the_same_bits() {
    for plan in [PLANS[0], PLANS[4], PLANS[6], PLANS[9]] {
        let (world, options) = plans::planned(&gpt(), plan);
        let options = Options { precision: Some(DType::F32), ..options };
        let p = plans::sound(plan, sharding::programs(&plans::graphs(&(world, options), plan))).expect("ranks");
        let program = program(&p.train.graph, &p.init.graph, None);
        let mut both = [false, true].map(|behind| joined(program.clone(), Some(behind)));
        for step in 0..4 {
            for ranks in &mut both {
                feed(ranks, step, 33);
                ranks
                    .run(0, RunArgs { seed: 5, step, position: 0, ..RunArgs::default() })
                    .unwrap_or_else(|e| panic!("{plan}: {e}"));
            }
            assert!(arrays(&both[0]) == arrays(&both[1]), "step {step}: {plan}");
        }
    }
}

#[test]
fn convolutions_on_many_ranks_train_as_on_one() {
    let whole = "mesh sp = 3\nshard row, half, quarter, up by sp";
    let both = "mesh dp = 2, sp = 2\nshard batch by dp\nshard row, half by sp";
    for plan in [whole, both] {
        compare(&plans::convolutions(9), plan, DType::F64, 5, 1e-9);
    }
    compare(&plans::convolutions(8), whole, DType::F32, 5, 2e-4);
}
