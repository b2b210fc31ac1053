//! Wholes in parts compute what the interpreter computes, and nothing copies their parts.

use crate::interp::{Env, Tensor};
use crate::ir::{self, Builder, DimId, OutputKind as Kind, Phase, ValueId, WindowAxis};
use crate::kernel::tests::{compare, graphs};
use crate::kernel::{Module, Options, print};
use crate::program::{Action, Library, Routine};
use crate::source::SourceMap;
use crate::types::{DType, MapOp};

fn lower(graph: &ir::Graph, assemble_from: usize, look: impl FnOnce(&Module<'_>, &Routine)) {
    let texts = SourceMap::default();
    let mut module = Module::new(&texts);
    module.add("test", graph, &Options { assemble_from, ..Options::default() });
    look(&module, &module.program.routines[0]);
}

#[test]
fn random_graphs_with_parts_in_place_mean_the_same() {
    let always = Options { assemble_from: 0, ..Options::default() };
    for seed in 0..100 {
        let mut case = graphs::random_case(seed, DType::F64, 14, &[0, 1, 3, 6, 6, 7, 8, 9, 11, 13, 13, 14, 14, 19, 22]);
        let ops = case.graph.block(ir::ENTRY).ops.clone();
        for id in &ops[ops.len() * (seed as usize % 3) / 3..] {
            case.graph.ops[id.index()].phase = Phase::Backward;
        }
        compare(seed, &case, &always, |_| {});
    }
}

struct Maker {
    b: Builder,
    env: Env,
    rng: graphs::Rng,
}

impl Maker {
    fn input(&mut self, dims: &[DimId]) -> ValueId {
        let shape: Vec<usize> = dims.iter().map(|d| self.b.size(*d)).collect();
        let data = (0..shape.iter().product()).map(|_| self.rng.unit()).collect();
        self.env.inputs.push(Tensor::new(DType::F64, shape, data));
        let name = format!("x{}", self.env.inputs.len());
        let id = self.b.add_input(ir::Input { name, dtype: DType::F64, dims: dims.to_vec(), span: None });
        self.b.input(id)
    }

    /// A part made in one way or another; `others` may be read for it.
    fn change(&mut self, x: ValueId, others: &[ValueId]) -> ValueId {
        match self.rng.below(6) {
            0 => x,
            1 => self.b.map(MapOp::Tanh, &[x]),
            2 => {
                let other = others[self.rng.below(others.len())];
                let half = self.b.map_scalar(MapOp::Mul, other, 0.5);
                self.b.sub(x, half)
            }
            3 => others[self.rng.below(others.len())],
            4 => {
                let twice = self.b.add(x, x);
                self.b.output(Kind::Value, "part", twice);
                twice
            }
            _ => {
                let d = self.b.dims(x)[0];
                let to = self.b.add_dim("to", self.b.size(d), false);
                let w = self.input(&[d, to]);
                let y = self.b.dot(&[d], x, w, DType::F64);
                self.b.rename(to, d, y)
            }
        }
    }
}

/// Something is split, its parts change, and they are put together again: by one operation or by a sum of pieces, as
/// gradients of what was split come.
fn split_case(seed: u64) -> graphs::Case {
    let mut m = Maker { b: Builder::default(), env: Env::default(), rng: graphs::Rng(seed) };
    let count = 2 + m.rng.below(4);
    let (rows, n, out) = (m.b.add_dim("rows", 3, false), m.b.add_dim("n", 4, false), m.b.add_dim("out", 5, false));
    let slices = m.rng.below(2) == 0;
    let sizes: Vec<usize> = (0..count).map(|_| if slices { 2 } else { 1 }).collect();
    let along = m.b.add_dim("along", sizes.iter().sum(), false);
    let part = m.b.add_dim("part", 2, false);
    let x = m.input(&[along, rows, n]);
    let parts: Vec<ValueId> =
        (0..count).map(|k| if slices { m.b.slice(along, 2 * k, part, x) } else { m.b.index(along, k, x) }).collect();
    m.b.phase = if m.rng.below(2) == 0 { Phase::Forward } else { Phase::Backward };
    let changed: Vec<ValueId> = parts.iter().map(|p| m.change(*p, &parts)).collect();
    let whole = match (m.rng.below(2), slices) {
        (0, true) => m.b.concat(&vec![part; count], along, &changed),
        (0, false) => m.b.stack(along, &changed),
        (_, true) => {
            let placed = changed.iter().enumerate().map(|(k, v)| {
                let axis = WindowAxis { input: part, offset: -2 * k as i64, dynamic: false, terms: vec![(along, 1)] };
                m.b.window(vec![axis], 0.0, *v, &[])
            });
            let placed: Vec<ValueId> = placed.collect();
            placed.into_iter().reduce(|x, y| m.b.add(x, y)).expect("there are parts")
        }
        (_, false) => {
            let placed = changed.iter().enumerate().map(|(k, v)| {
                let (place, at) = (m.b.iota(along), m.b.scalar(k as f64, DType::I32));
                let here = m.b.map(MapOp::Eq, &[place, at]);
                let nothing = m.b.scalar(0.0, DType::F64);
                m.b.select(here, *v, nothing)
            });
            let placed: Vec<ValueId> = placed.collect();
            placed.into_iter().rev().reduce(|x, y| m.b.add(x, y)).expect("there are parts")
        }
    };
    let uses = 1 + m.rng.below(7);
    if uses & 1 != 0 {
        let w = m.input(&[along, out]);
        let y = m.b.dot(&[along], whole, w, DType::F64);
        m.b.output(Kind::Value, "product", y);
        // A part is used again when the whole has been.
        let y = m.b.sum(&[out], y);
        let late = m.b.mul(y, changed[0]);
        m.b.output(Kind::Value, "late", late);
    }
    if uses & 2 != 0 {
        let merged = m.b.add_dim("merged", m.b.size(along) * 4, false);
        let (major, minor) = if m.rng.below(2) == 0 { (along, n) } else { (n, along) };
        let y = m.b.reshape(&[(vec![major, minor], vec![merged])], whole);
        let w = m.input(&[merged, out]);
        let y = m.b.dot(&[merged], y, w, DType::F64);
        m.b.output(Kind::Value, "product of merged", y);
    }
    if uses & 4 != 0 {
        let y = m.b.map(MapOp::Exp, &[whole]);
        let y = m.b.sum(&[along], y);
        let y = m.b.add(y, changed[count - 1]);
        m.b.output(Kind::Value, "sum", y);
        m.b.output(Kind::Value, "whole", whole);
    }
    graphs::Case { graph: m.b.finish(), env: m.env, recipe: vec![] }
}

#[test]
fn what_is_put_together_again_is_the_same() {
    let mut different = 0;
    for seed in 0..200 {
        let case = split_case(seed);
        for assemble_from in [0, 1 << 12] {
            compare(seed, &case, &Options { assemble_from, ..Options::default() }, |_| {});
        }
        let text = |least| {
            let mut text = String::new();
            lower(&case.graph, least, |module, _| text = print::print(module));
            text
        };
        different += usize::from(text(0) != text(1 << 12));
    }
    assert!(different >= 100, "{different} wholes are made in parts");
}

/// The steps of a routine by class.
fn classes(routine: &Routine) -> Vec<&'static str> {
    let class = |a: &Action| match a {
        Action::Launch(_) => "kernel",
        Action::Gemm(_) | Action::Finished(_) => "product",
        Action::Library(Library::Attention(_)) => "attention",
        Action::Library(Library::AttentionGrad(_)) => "attention_grad",
        _ => "other",
    };
    routine.steps.iter().map(|s| class(&s.action)).collect()
}

fn input(b: &mut Builder, name: &str, dims: &[DimId]) -> ValueId {
    let id = b.add_input(ir::Input { name: name.into(), dtype: DType::F32, dims: dims.to_vec(), span: None });
    b.input(id)
}

/// What a rotation of halves gives back to the product before it: one kernel, in the place of what it reads.
#[test]
fn the_gradient_of_a_rotation_is_one_kernel_in_place() {
    let mut b = Builder::default();
    let [batch, seq, embed] = [("batch", 8), ("seq", 32), ("embed", 24)].map(|(n, s)| b.add_dim(n, s, false));
    let [heads, feature, half] = [("heads", 4), ("feature", 16), ("half", 8)].map(|(n, s)| b.add_dim(n, s, false));
    let two = b.add_dim("two", 2, false);
    let (g, back) = (input(&mut b, "g", &[batch, seq, embed]), input(&mut b, "back", &[heads, feature, embed]));
    let (w, cos) = (input(&mut b, "w", &[embed, heads, feature]), input(&mut b, "cos", &[seq, half]));
    let sin = input(&mut b, "sin", &[seq, half]);
    b.phase = Phase::Backward;
    let dq = b.dot(&[embed], g, back, DType::F32);
    let pairs = b.reshape(&[(vec![feature], vec![two, half])], dq);
    let [x, y] = [0, 1].map(|k| b.index(two, k, pairs));
    let mut placed = Vec::new();
    for (k, (u, v, op)) in [(x, y, MapOp::Add), (y, x, MapOp::Sub)].into_iter().enumerate() {
        let (u, v) = (b.mul(u, cos), b.mul(v, sin));
        let turned = b.map(op, &[u, v]);
        let (place, at, nothing) = (b.iota(two), b.scalar(k as f64, DType::I32), b.scalar(0.0, DType::F32));
        let here = b.map(MapOp::Eq, &[place, at]);
        placed.push(b.select(here, turned, nothing));
    }
    let both = b.add(placed[0], placed[1]);
    let turned = b.reshape(&[(vec![two, half], vec![feature])], both);
    let dx = b.dot(&[heads, feature], turned, w, DType::F32);
    b.output(Kind::Value, "dx", dx);
    lower(&b.finish(), 1 << 12, |module, routine| {
        let shown = print::print(module);
        assert_eq!(classes(routine), ["product", "kernel", "product"], "{shown}");
        let Action::Launch(launch) = &routine.steps[1].action else { panic!("{shown}") };
        let Action::Gemm(first) = &routine.steps[0].action else { panic!("{shown}") };
        let written: Vec<_> = launch.args.iter().filter(|a| a.access.writes()).map(|a| a.buffer).collect();
        assert_eq!(written, [first.c.buffer], "{shown}");
        let Action::Gemm(last) = &routine.steps[2].action else { panic!("{shown}") };
        assert!(last.batch.is_empty() && last.sums.is_empty(), "{shown}");
    });
}

/// Queries, keys and values by one product: their gradients are written side by side, for the products that read them.
#[test]
fn gradients_of_fused_projections_are_not_put_together() {
    let mut b = Builder::default();
    let [batch, seq, key, embed] =
        [("batch", 4), ("seq", 32), ("key", 32), ("embed", 24)].map(|(n, s)| b.add_dim(n, s, false));
    let [part, heads, feature] = [("part", 3), ("heads", 4), ("feature", 8)].map(|(n, s)| b.add_dim(n, s, false));
    let (x, w) = (input(&mut b, "x", &[batch, seq, embed]), input(&mut b, "w", &[embed, part, heads, feature]));
    let d_out = input(&mut b, "d_out", &[batch, seq, heads, feature]);
    let y = b.dot(&[embed], x, w, DType::F32);
    let [q, k, v] = [0, 1, 2].map(|i| b.index(part, i, y));
    let (k, v) = (b.rename(seq, key, k), b.rename(seq, key, v));
    let a = ir::Attention {
        query: seq,
        key,
        feature,
        value: feature,
        scale: 0.5,
        cap: 0.0,
        causal: true,
        reach: None,
        documents: false,
        mask: false,
        bias: false,
        first: false,
    };
    let [out, log] = b.attention(&a, &[q, k, v]);
    b.phase = Phase::Backward;
    let [dq, dk, dv] = b.attention_grad(&a, &[q, k, v, out, log, d_out]);
    let (dk, dv) = (b.rename(key, seq, dk), b.rename(key, seq, dv));
    let mut total = None;
    for (i, d) in [(2, dv), (1, dk), (0, dq)] {
        let (place, at, nothing) = (b.iota(part), b.scalar(f64::from(i), DType::I32), b.scalar(0.0, DType::F32));
        let here = b.map(MapOp::Eq, &[place, at]);
        let placed = b.select(here, d, nothing);
        total = Some(total.map_or(placed, |t| b.add(t, placed)));
    }
    let dy = total.expect("there are parts");
    let dx = b.dot(&[part, heads, feature], dy, w, DType::F32);
    let dw = b.dot(&[batch, seq], dy, x, DType::F32);
    b.output(Kind::Value, "dx", dx);
    b.output(Kind::Value, "dw", dw);
    lower(&b.finish(), 1 << 12, |module, routine| {
        let shown = print::print(module);
        let steps = classes(routine);
        // The last kernel lays dw out as an output.
        let made = steps.iter().position(|s| *s == "attention_grad").expect("a gradient of attention");
        let products = routine.steps[made + 1..].iter().filter_map(|s| match &s.action {
            Action::Gemm(g) => Some((g.batch.len(), g.sums.len())),
            _ => None,
        });
        assert_eq!(products.collect::<Vec<_>>(), [(0, 0); 2], "{shown}");
        assert_eq!(steps[..made + 3], ["product", "attention", "attention_grad", "product", "product"], "{shown}");
    });
}
