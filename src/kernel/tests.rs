//! Lowered routines compute what the interpreter computes; their kernels are what one expects.

use super::eval::Machine;
use super::*;
use crate as partita;
use crate::interp;
use crate::ir::{self, OutputKind as Kind};
use crate::program::{self, Action};
use crate::source::SourceMap;

#[path = "../../tests/support/graphs.rs"]
pub(crate) mod graphs;

/// Runs a graph through lowering and the plain evaluator; outputs in the graph's order. With the variable `SHOW` set to
/// the seed of a failure, prints the case. `finish` sees the routine before it runs.
fn run(seed: u64, case: &graphs::Case, options: &Options, finish: fn(&mut program::Routine)) -> Vec<Vec<f64>> {
    let texts = SourceMap::default();
    let mut module = Module::new(&texts);
    let at = module.add("test", &case.graph, options);
    finish(&mut module.program.routines[at]);
    let data = |list: &[interp::Tensor]| list.iter().map(|t| t.data.clone()).collect();
    let mut machine = Machine {
        program: &module.program,
        kernels: &module.kernels,
        routine: &module.program.routines[at],
        params: data(&case.env.params),
        states: data(&case.env.states),
        inputs: data(&case.env.inputs),
        temporaries: Default::default(),
        arena: Default::default(),
        seed: case.env.seed,
        step: case.env.step as i32,
        position: case.env.position,
        reports: vec![],
    };
    let routine = machine.routine;
    if std::env::var("SHOW").is_ok_and(|s| s == seed.to_string()) {
        eprintln!("{}\n{}", crate::ir::print::print(&case.graph), print::print(&module));
    }
    machine.run(&routine.steps);
    assert_eq!(machine.reports, vec![]);
    let mut values = routine.outputs.iter();
    let mut value = |machine: &Machine| {
        let out = values.next().expect("as many values");
        (0..routine.buffer(out.buffer).elements as i64).map(|i| machine.get(out.buffer, i)).collect()
    };
    case.graph
        .outputs
        .iter()
        .map(|o| match o.kind {
            Kind::Param(p) | Kind::InitParam(p) => machine.params[p.index()].clone(),
            Kind::State(s) | Kind::InitState(s) => machine.states[s.index()].clone(),
            _ => value(&machine),
        })
        .collect()
}

/// Compares with the interpreter.
pub(crate) fn compare(seed: u64, case: &graphs::Case, options: &Options, finish: fn(&mut program::Routine)) {
    ir::verify::verify(&case.graph).expect("a sound graph");
    let expected = interp::run(&case.graph, &case.env).expect("evaluates");
    let got = run(seed, case, options, finish);
    for (o, (e, g)) in case.graph.outputs.iter().zip(expected.iter().zip(&got)) {
        assert_eq!(e.data.len(), g.len());
        for (i, (x, y)) in e.data.iter().zip(g).enumerate() {
            let near = (x - y).abs() <= 1e-9 * (1.0 + x.abs()) || (x.is_nan() && y.is_nan());
            assert!(near, "seed {seed}, {options:?}, {:?}: {} [{i}] is {y}, expected {x}", case.recipe, o.name);
        }
    }
}

#[test]
fn each_kind_of_operation_lowers_to_what_it_means() {
    for kind in 0..graphs::KINDS {
        for seed in 0..12 {
            let case = graphs::random_case(seed * 1000 + kind as u64, DType::F64, 2, &[kind]);
            for fuse in [false, true] {
                compare(seed * 1000 + kind as u64, &case, &Options { fuse }, |_| {});
            }
        }
    }
}

#[test]
fn random_graphs_lower_to_what_they_mean() {
    for seed in 0..80 {
        let case = graphs::random_case(seed, DType::F64, 12, &[]);
        for fuse in [false, true] {
            compare(seed, &case, &Options { fuse }, |_| {});
        }
    }
}

/// How many kernels a routine calls.
fn launches(routine: &program::Routine) -> usize {
    routine.steps.iter().filter(|s| matches!(s.action, Action::Launch(_))).count()
}

#[test]
fn softmax_is_one_kernel() {
    let mut b = ir::Builder::default();
    let (rows, n) = (b.add_dim("rows", 64, false), b.add_dim("n", 32, false));
    let x = b.add_input(ir::Input { name: "x".into(), dtype: DType::F32, dims: vec![rows, n], span: None });
    let x = b.input(x);
    let top = b.reduce(ReduceKind::Max, &[n], x);
    let shifted = b.sub(x, top);
    let e = b.map(MapOp::Exp, &[shifted]);
    let sum = b.sum(&[n], e);
    let y = b.div(e, sum);
    b.output(Kind::Value, "y", y);
    let texts = SourceMap::default();
    let mut module = Module::new(&texts);
    module.add("test", &b.finish(), &Options::default());
    assert_eq!(launches(&module.program.routines[0]), 1);
    assert_eq!(module.kernels[0].body.len(), 3);
}
