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
                compare(seed * 1000 + kind as u64, &case, &Options { fuse, ..Options::default() }, |_| {});
            }
        }
    }
}

#[test]
fn random_graphs_lower_to_what_they_mean() {
    for seed in 0..80 {
        let case = graphs::random_case(seed, DType::F64, 12, &[]);
        for fuse in [false, true] {
            compare(seed, &case, &Options { fuse, ..Options::default() }, |_| {});
        }
    }
}

/// The same graph, of which the later part is another pass: it has to compute again what the first did not keep for it.
#[test]
fn what_is_computed_again_is_the_same() {
    let always = Options { recompute_from: 0, ..Options::default() };
    let never = Options { recompute_from: 1 << 40, ..Options::default() };
    let mut different = 0;
    for seed in 0..80 {
        let mut case = graphs::random_case(seed, DType::F64, 16, &[]);
        for block in case.graph.blocks.clone() {
            let late = block.ops.len() * (3 + seed as usize % 5) / 10;
            for id in &block.ops[late..] {
                case.graph.ops[id.index()].phase = ir::Phase::Backward;
            }
        }
        compare(seed, &case, &always, |_| {});
        let shown = |options: &Options| {
            let texts = SourceMap::default();
            let mut module = Module::new(&texts);
            module.add("test", &case.graph, options);
            print::print(&module)
        };
        different += usize::from(shown(&always) != shown(&never));
    }
    assert!(different >= 20, "{different} graphs compute anything again");
}

/// Products of which a few rows at a time are there.
#[test]
fn what_is_made_band_by_band_is_the_same() {
    for rows in [1, 2] {
        let bands = Bands { least: 0, bytes: 0, rows, wider: 0 };
        let small = Options { bands, ..Options::default() };
        for seed in 0..300 {
            let mut case = graphs::random_case(seed, DType::F64, 14, &[0, 1, 2, 3, 4, 6, 6, 6]);
            let ops = case.graph.block(ir::ENTRY).ops.clone();
            for id in &ops[ops.len() * (seed as usize % 3) / 3..] {
                case.graph.ops[id.index()].phase = ir::Phase::Backward;
            }
            compare(seed, &case, &small, |_| {});
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

/// Lowers a graph of one routine.
fn lower_one(graph: &ir::Graph, look: impl FnOnce(&Module<'_>, &program::Routine)) {
    let texts = SourceMap::default();
    let mut module = Module::new(&texts);
    module.add("test", graph, &Options::default());
    look(&module, &module.program.routines[0]);
}

fn input(b: &mut ir::Builder, name: &str, dims: &[ir::DimId]) -> ir::ValueId {
    let input = ir::Input { name: name.into(), dtype: DType::F32, dims: dims.to_vec(), span: None };
    let id = b.add_input(input);
    b.input(id)
}

fn param(b: &mut ir::Builder, path: &str, dims: &[ir::DimId]) -> (ir::ParamId, ir::ValueId) {
    let param = ir::Param { path: path.into(), dtype: DType::F32, dims: dims.to_vec(), map: None, span: None };
    let id = b.add_param(param);
    (id, b.param(id))
}

#[test]
fn a_normalisation_with_residual_and_scale_is_one_kernel() {
    let mut b = ir::Builder::default();
    let (rows, n) = (b.add_dim("rows", 64, false), b.add_dim("n", 32, false));
    let (x, y) = (input(&mut b, "x", &[rows, n]), input(&mut b, "y", &[rows, n]));
    let (_, scale) = param(&mut b, "scale", &[n]);
    let h = b.add(x, y);
    let sum = b.sum(&[n], h);
    let mean = b.map_scalar(MapOp::Div, sum, 32.0);
    let centred = b.sub(h, mean);
    let square = b.map(MapOp::Square, &[centred]);
    let var = b.sum(&[n], square);
    let var = b.map_scalar(MapOp::Add, var, 1e-5);
    let inverse = b.map(MapOp::Rsqrt, &[var]);
    let normal = b.mul(centred, inverse);
    let out = b.mul(normal, scale);
    b.output(Kind::Value, "h", h);
    b.output(Kind::Value, "out", out);
    lower_one(&b.finish(), |module, routine| {
        assert_eq!(launches(routine), 1, "{}", print::print(module));
        assert_eq!(routine.steps.len(), 1);
    });
}

#[test]
fn an_optimizer_writes_into_its_slots_by_one_kernel() {
    let mut b = ir::Builder::default();
    let (rows, n) = (b.add_dim("rows", 64, false), b.add_dim("n", 32, false));
    let g = input(&mut b, "g", &[rows, n]);
    let (p, old) = param(&mut b, "w", &[rows, n]);
    let state = |b: &mut ir::Builder, path: &str| {
        let kind = ir::StateKind::Optimizer;
        let dims = vec![rows, n];
        let id = b.add_state(ir::State { path: path.into(), dtype: DType::F32, dims, kind, span: None });
        (id, b.state(id))
    };
    let (m_id, m) = state(&mut b, "m");
    let (v_id, v) = state(&mut b, "v");
    b.phase = ir::Phase::Update;
    let m = b.map_scalar(MapOp::Mul, m, 0.9);
    let m = b.add(m, g);
    let square = b.map(MapOp::Square, &[g]);
    let v = b.map_scalar(MapOp::Mul, v, 0.99);
    let v = b.add(v, square);
    let root = b.map(MapOp::Sqrt, &[v]);
    let change = b.div(m, root);
    let new = b.sub(old, change);
    // The old parameter is read once more; the update waits for it.
    let squares = b.map(MapOp::Square, &[old]);
    let norm = b.sum(&[rows], squares);
    b.output(Kind::Value, "norm", norm);
    b.output(Kind::Param(p), "w", new);
    b.output(Kind::State(m_id), "m", m);
    b.output(Kind::State(v_id), "v", v);
    lower_one(&b.finish(), |module, routine| {
        let shown = print::print(module);
        assert_eq!(routine.steps.len(), 2, "{shown}");
        let Action::Launch(last) = &routine.steps[1].action else { panic!("{shown}") };
        let written: Vec<program::Place> =
            last.args.iter().filter(|a| a.access.writes()).map(|a| routine.buffer(a.buffer).place).collect();
        let slots = [program::Place::State(0), program::Place::State(1), program::Place::Param(0)];
        assert!(slots.iter().all(|s| written.contains(s)), "{shown}");
    });
}

/// A graph that keeps `x` of two new positions in a cache of five; `look` may use the old cache once more.
fn cached(look: impl FnOnce(&mut ir::Builder, [ir::DimId; 3], ir::ValueId)) -> graphs::Case {
    let mut b = ir::Builder::default();
    let (rows, key, n) = (b.add_dim("rows", 2, false), b.add_dim("key", 5, false), b.add_dim("n", 3, false));
    let part = b.add_dim("part", 2, false);
    let x = input(&mut b, "x", &[rows, part, n]);
    let state = ir::State {
        path: "cache".into(),
        dtype: DType::F64,
        dims: vec![rows, key, n],
        kind: ir::StateKind::Cache,
        span: None,
    };
    let id = b.add_state(state);
    let old = b.state(id);
    let x = b.map(MapOp::Cast(DType::F64), &[x]);
    let x = b.map_scalar(MapOp::Mul, x, 2.0);
    let at = b.emit(ir::Op::Position, &[], &[(DType::I32, vec![])])[0];
    let write = ir::Op::WriteAt { dim: key, part };
    let new = b.emit(write, &[old, x, at], &[(DType::F64, vec![rows, key, n])])[0];
    let sum = b.sum(&[key], new);
    look(&mut b, [rows, key, n], old);
    b.output(Kind::State(id), "cache", new);
    b.output(Kind::Value, "sum", sum);
    let draw = |count: usize| (0..count).map(|i| i as f64 - 4.0).collect();
    let env = interp::Env {
        states: vec![interp::Tensor::new(DType::F64, vec![2, 5, 3], draw(30))],
        inputs: vec![interp::Tensor::new(DType::F32, vec![2, 2, 3], draw(12))],
        position: 3,
        ..interp::Env::default()
    };
    graphs::Case { graph: b.finish(), env, recipe: Vec::new() }
}

#[test]
fn a_kept_array_gets_its_new_elements_alone() {
    let case = cached(|_, _, _| {});
    compare(0, &case, &Options::default(), |routine| {
        let Action::Launch(write) = &routine.steps[0].action else { panic!("{:?}", routine.steps[0]) };
        assert!(write.args.iter().all(|a| routine.buffer(a.buffer).elements != 30 || !a.access.reads()));
        assert_eq!(routine.steps.len(), 2, "no copy");
    });
}

#[test]
fn an_old_array_that_is_read_too_stays_until_then() {
    let case = cached(|b, [_, key, _], old| {
        let before = b.sum(&[key], old);
        b.output(Kind::Value, "before", before);
    });
    for fuse in [false, true] {
        compare(0, &case, &Options { fuse, ..Options::default() }, |_| {});
    }
}

#[test]
fn heads_are_stored_so_that_the_projection_is_one_product() {
    let mut b = ir::Builder::default();
    let dims: Vec<ir::DimId> = [("batch", 2), ("seq", 16), ("key", 16), ("heads", 4), ("head_dim", 8), ("embed", 32)]
        .iter()
        .map(|(name, n)| b.add_dim(name, *n, false))
        .collect();
    let [batch, seq, key, heads, head_dim, embed] = dims[..] else { unreachable!("six dims") };
    let prob = input(&mut b, "prob", &[batch, heads, seq, key]);
    let value = input(&mut b, "value", &[batch, key, heads, head_dim]);
    let (_, wo) = param(&mut b, "wo", &[heads, head_dim, embed]);
    let mixed = b.dot(&[key], prob, value, DType::F32);
    let out = b.dot(&[heads, head_dim], mixed, wo, DType::F32);
    b.output(Kind::Value, "out", out);
    lower_one(&b.finish(), |module, routine| {
        let shown = print::print(module);
        assert_eq!(routine.steps.len(), 2, "{shown}");
        let Action::Gemm(projection) = &routine.steps[1].action else { panic!("{shown}") };
        assert_eq!((projection.m, projection.n, projection.k), (32, 32, 32), "{shown}");
        assert!(projection.batch.is_empty() && projection.sums.is_empty(), "{shown}");
    });
}

/// A one-hot array comes from nowhere: it is computed in the order of what it is added to.
#[test]
fn results_lie_like_the_arrays_that_they_are_made_of() {
    let mut b = ir::Builder::default();
    let (rows, n, k) = (b.add_dim("rows", 64, false), b.add_dim("n", 32, false), b.add_dim("k", 8, false));
    let target = ir::Input { name: "target".into(), dtype: DType::I32, dims: vec![rows], span: None };
    let target = b.add_input(target);
    let target = b.input(target);
    let places = b.iota(n);
    let hit = b.map(MapOp::Eq, &[places, target]);
    let (one, zero) = (b.splat_of(1.0, DType::F32, &[]), b.splat_of(0.0, DType::F32, &[]));
    let picked = b.map(MapOp::Where, &[hit, one, zero]);
    let x = input(&mut b, "x", &[rows, n]);
    let e = b.map(MapOp::Exp, &[x]);
    let y = b.sub(picked, e);
    let w = input(&mut b, "w", &[n, k]);
    let out = b.dot(&[n], y, w, DType::F32);
    b.output(Kind::Value, "out", out);
    lower_one(&b.finish(), |module, routine| {
        assert_eq!(launches(routine), 1);
        let kernel = &module.kernels[0];
        let Statement::Pass(pass) = &kernel.body[0] else { panic!("{kernel:?}") };
        let step = pass.stores[0].at.loops.iter().find(|(l, _)| Some(l) == pass.loops.last());
        assert_eq!(step.map(|s| s.1), Some(1), "{}", print::print(module));
        let loads = kernel.exprs.iter().filter_map(|e| match &e.node {
            Node::Load { at, .. } if at.loops.len() > 1 => Some(at),
            _ => None,
        });
        assert_eq!(loads.collect::<Vec<_>>(), [&pass.stores[0].at]);
    });
}

#[test]
fn equal_layers_share_their_kernels() {
    let mut b = ir::Builder::default();
    let (rows, n) = (b.add_dim("rows", 64, false), b.add_dim("n", 32, false));
    let out = b.add_dim("out", 32, false);
    let mut h = input(&mut b, "x", &[rows, n]);
    for i in 0..4 {
        let (_, w) = param(&mut b, &format!("w{i}"), &[n, out]);
        let y = b.dot(&[n], h, w, DType::F32);
        let y = b.map(MapOp::Tanh, &[y]);
        let y = b.rename(out, n, y);
        h = b.add(y, h);
    }
    b.output(Kind::Value, "h", h);
    lower_one(&b.finish(), |module, routine| {
        assert_eq!(launches(routine), 4);
        assert_eq!(module.kernels.len(), 1, "{}", print::print(module));
    });
}

/// Shapes that are cut into rows, or reduced in two steps.
#[test]
fn large_arrays_lower_to_what_they_mean() {
    for (i, sizes) in [[2, 3, 4096], [3, 40, 150], [1, 2, 1009]].into_iter().enumerate() {
        for dtype in if i == 1 { &[DType::F64, DType::BF16][..] } else { &[DType::F64] } {
            let dtype = *dtype;
            let mut rng = graphs::Rng(i as u64);
            let mut b = ir::Builder::default();
            let dims: Vec<ir::DimId> =
                sizes.iter().enumerate().map(|(k, n)| b.add_dim(&format!("d{k}"), *n, false)).collect();
            let mut env = interp::Env::default();
            let mut leaf = |b: &mut ir::Builder, env: &mut interp::Env, dims: &[ir::DimId]| {
                let shape: Vec<usize> = dims.iter().map(|d| b.size(*d)).collect();
                let data = (0..shape.iter().product()).map(|_| rng.below(9) as f64 / 8.0).collect();
                env.inputs.push(interp::Tensor::new(dtype, shape, data));
                let name = format!("x{}", env.inputs.len());
                let id = b.add_input(ir::Input { name, dtype, dims: dims.to_vec(), span: None });
                b.input(id)
            };
            let x = leaf(&mut b, &mut env, &dims);
            let bias = leaf(&mut b, &mut env, &dims[2..]);
            let y = b.add(x, bias);
            b.output(Kind::Value, "y", y);
            let turned: Vec<ir::DimId> = dims.iter().rev().copied().collect();
            let other = leaf(&mut b, &mut env, &turned);
            let both = b.mul(x, other);
            b.output(Kind::Value, "both", both);
            for kind in [ReduceKind::Max, ReduceKind::Sum, ReduceKind::ArgMax] {
                for reduced in [&dims[..], &dims[1..], &dims[..2]] {
                    // Sums of few different eighths are exact in every order.
                    let r = b.reduce(kind, reduced, x);
                    b.output(Kind::Value, "r", r);
                }
            }
            let case = graphs::Case { graph: b.finish(), env, recipe: vec![] };
            compare(i as u64, &case, &Options::default(), |_| {});
        }
    }
}

/// A case of F64 inputs with the given dims; `make` uses them.
fn with_inputs(
    dims: &[Vec<ir::DimId>],
    mut b: ir::Builder,
    make: impl FnOnce(&mut ir::Builder, &[ir::ValueId]),
) -> graphs::Case {
    let (mut rng, mut env) = (graphs::Rng(5), interp::Env::default());
    let mut inputs = Vec::new();
    for (i, dims) in dims.iter().enumerate() {
        let shape: Vec<usize> = dims.iter().map(|d| b.size(*d)).collect();
        let data = (0..shape.iter().product()).map(|_| rng.unit()).collect();
        env.inputs.push(interp::Tensor::new(DType::F64, shape, data));
        let name = format!("x{i}");
        let id = b.add_input(ir::Input { name, dtype: DType::F64, dims: dims.clone(), span: None });
        inputs.push(b.input(id));
    }
    make(&mut b, &inputs);
    graphs::Case { graph: b.finish(), env, recipe: vec![] }
}

/// Tokens that go to several experts each, and what comes back from them: neither is repeated or turned around first.
#[test]
fn a_scatter_reads_its_operand_where_it_is() {
    for pick_first in [true, false] {
        let mut b = ir::Builder::default();
        let [batch, seq, pick, n] =
            [("batch", 2), ("seq", 6), ("pick", 2), ("n", 5)].map(|(name, size)| b.add_dim(name, size, false));
        let slot = b.add_dim("slot", 7, false);
        let dims = [vec![batch, seq, n], vec![batch, seq, pick]];
        let case = with_inputs(&dims, b, |b, inputs| {
            let removed = if pick_first { [pick, seq] } else { [seq, pick] };
            let flat = b.flat_iota(&removed);
            let index = b.map_scalar(MapOp::Rem, flat, 7.0);
            let index = b.broadcast(index, &[batch]);
            let packed = b.scatter(ReduceKind::Sum, &removed, &[slot], inputs[0], &[index]);
            b.output(Kind::Value, "packed", packed);
            let weighted = b.mul(inputs[0], inputs[1]);
            let packed = b.scatter(ReduceKind::Sum, &removed, &[slot], weighted, &[index]);
            b.output(Kind::Value, "weighted", packed);
        });
        compare(0, &case, &Options::default(), |_| {});
        lower_one(&case.graph, |module, routine| {
            let shown = print::print(module);
            let labels: Vec<&str> = routine.steps.iter().map(|s| s.label.as_str()).collect();
            assert!(!labels.contains(&"copy"), "{labels:?}\n{shown}");
            let made = labels.iter().filter(|l| **l == "mul").count();
            assert_eq!(made, 1, "{labels:?}\n{shown}");
        });
    }
}

/// The gradient of a bias: sums of parts of the rows, so that each thread goes through memory that lies together.
#[test]
fn long_sums_to_a_gradient_come_in_two_steps() {
    let mut b = ir::Builder::default();
    let [batch, seq, n] = [("batch", 16), ("seq", 64), ("n", 48)].map(|(name, size)| b.add_dim(name, size, false));
    let p = b.add_param(ir::Param { path: "bias".into(), dtype: DType::F64, dims: vec![n], map: None, span: None });
    let mut case = with_inputs(&[vec![batch, seq, n]], b, |b, inputs| {
        let old = b.param(p);
        b.phase = ir::Phase::Backward;
        let g = b.sum(&[batch, seq], inputs[0]);
        b.phase = ir::Phase::Update;
        let new = b.sub(old, g);
        b.output(Kind::Param(p), "bias", new);
    });
    case.env.params.push(interp::Tensor::new(DType::F64, vec![48], vec![0.5; 48]));
    compare(0, &case, &Options::default(), |_| {});
    lower_one(&case.graph, |module, routine| {
        let rows = routine.steps.iter().map(|s| match &s.action {
            Action::Launch(l) => l.rows,
            other => panic!("{other:?}"),
        });
        assert_eq!(rows.collect::<Vec<_>>(), [16 * 48, 48], "{}", print::print(module));
    });
}
