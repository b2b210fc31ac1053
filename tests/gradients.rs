//! Derivatives of every operation against central differences in f64, over random shapes, in the reference interpreter.
//! Every graph made here must also verify and survive its text form.

use partita::autodiff;
use partita::interp::{self, Env, Tensor};
use partita::ir::{
    Attention, Builder, DimId, GatherMode, Input, InputId, Op, OutputKind, Param, ParamId, ValueId, WindowAxis,
};
use partita::types::rng::{self, Dist};
use partita::types::{DType, MapOp, ReduceKind, ScanKind};

/// A forward graph under construction, with the data that it is tried on.
struct Case {
    b: Builder,
    env: Env,
    seed: u64,
    drawn: u64,
}

impl Case {
    fn new(seed: u64) -> Case {
        Case { b: Builder::default(), env: Env { exact: true, seed, ..Env::default() }, seed, drawn: 0 }
    }

    fn normal(&mut self) -> f64 {
        self.drawn += 1;
        f64::from(rng::draw(Dist::Normal { std: 1.0 }, rng::key(self.seed, 1, 2, 3), self.drawn))
    }

    fn below(&mut self, n: usize) -> usize {
        self.drawn += 1;
        rng::draw_int(n as u32, rng::key(self.seed, 4, 5, 6), self.drawn) as usize
    }

    fn dim(&mut self, name: &str) -> DimId {
        let size = 1 + self.below(4);
        self.b.add_dim(name, size, false)
    }

    fn sized(&mut self, name: &str, size: usize) -> DimId {
        self.b.add_dim(name, size, false)
    }

    fn shape(&self, dims: &[DimId]) -> Vec<usize> {
        dims.iter().map(|d| self.b.size(*d)).collect()
    }

    fn param_of(&mut self, dtype: DType, dims: &[DimId], data: Vec<f64>) -> ValueId {
        let shape = self.shape(dims);
        self.env.params.push(Tensor { dtype, shape, data });
        let path = format!("p{}", self.env.params.len());
        let id = self.b.add_param(Param { path, dtype, dims: dims.to_vec(), map: None, span: None });
        self.b.param(id)
    }

    /// A parameter of normal numbers.
    fn param(&mut self, dims: &[DimId]) -> ValueId {
        let data = (0..self.b.graph.elements(dims)).map(|_| self.normal()).collect();
        self.param_of(DType::F32, dims, data)
    }

    /// A parameter of positive numbers.
    fn positive(&mut self, dims: &[DimId]) -> ValueId {
        let data = (0..self.b.graph.elements(dims)).map(|_| 0.3 + self.normal().abs()).collect();
        self.param_of(DType::F32, dims, data)
    }

    fn ints(&mut self, dims: &[DimId], low: i64, n: usize) -> ValueId {
        let data = (0..self.b.graph.elements(dims)).map(|_| (low + self.below(n) as i64) as f64).collect();
        self.env.inputs.push(Tensor { dtype: DType::I32, shape: self.shape(dims), data });
        let name = format!("i{}", self.env.inputs.len());
        let id: InputId = self.b.add_input(Input { name, dtype: DType::I32, dims: dims.to_vec(), span: None });
        self.b.input(id)
    }

    /// The value against random weights, summed.
    fn loss(&mut self, out: ValueId) -> ValueId {
        let dims = self.b.dims(out).to_vec();
        let weights = (0..self.b.graph.elements(&dims)).map(|_| self.normal()).collect();
        let weights = self.b.elements(weights, DType::F32, dims.clone());
        let out = self.b.cast(out, DType::F32);
        let weighted = self.b.mul(out, weights);
        self.b.sum(&dims, weighted)
    }

    /// Compares the gradients of all parameters with central differences.
    fn check(mut self, name: &str, out: ValueId) {
        let loss = self.loss(out);
        self.b.output(OutputKind::Loss, "loss", loss);
        let forward = self.b.graph.clone();
        let params: Vec<ParamId> = (0..forward.params.len() as u32).map(ParamId).collect();
        let grads = autodiff::gradients_of_params(&mut self.b, &[loss], &params);
        for (p, g) in params.iter().zip(&grads) {
            // As a parameter's new value it comes back in declared order.
            self.b.output(OutputKind::Param(*p), "g", *g);
        }
        let graph = self.b.finish();
        sound(name, &forward);
        sound(name, &graph);
        let seed = self.seed;
        let value =
            |env: &Env| interp::run(&forward, env).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"))[0].item();
        let pruned = partita::ir::prune::prune(&graph);
        sound(name, &pruned);
        assert!(pruned.ops.len() <= graph.ops.len());
        let found = interp::run(&graph, &self.env).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
        assert_eq!(interp::run(&pruned, &self.env).unwrap(), found, "{name}, seed {seed}, pruned");
        for (p, g) in found[1..].iter().enumerate() {
            let n = g.data.len();
            for i in (0..n).step_by(n.div_ceil(12)) {
                // Central differences at two steps, extrapolated: what is left is of the fourth order.
                let slope = |h: f64| {
                    let mut env = self.env.clone();
                    env.params[p].data[i] += h;
                    let up = value(&env);
                    env.params[p].data[i] -= 2.0 * h;
                    (up - value(&env)) / (2.0 * h)
                };
                let want = (4.0 * slope(5e-5) - slope(1e-4)) / 3.0;
                let scale = 1.0 + want.abs() + value(&self.env).abs();
                assert!(
                    (g.data[i] - want).abs() < 2e-8 * scale,
                    "{name}, seed {seed}, parameter {p} [{i}]: {} instead of {want}\n{}",
                    g.data[i],
                    partita::ir::print::print(&graph)
                );
            }
        }
    }
}

fn sound(name: &str, graph: &partita::ir::Graph) {
    let text = partita::ir::print::print(graph);
    partita::ir::verify::verify(graph).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    let again = partita::ir::parse::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
    assert_eq!(partita::ir::print::print(&again), text, "{name}");
    partita::ir::verify::verify(&again).unwrap_or_else(|e| panic!("{name}, read back: {e}\n{text}"));
}

/// Runs a case on several shapes.
fn each(name: &str, build: impl Fn(&mut Case) -> ValueId) {
    for seed in 0..6 {
        let mut c = Case::new(seed);
        let out = build(&mut c);
        c.check(name, out);
    }
}

#[test]
fn elementwise_functions_of_one_operand() {
    use MapOp::*;
    for op in [Neg, Exp, Expm1, Square, Abs, Tanh, Sigmoid, Softplus, Erf, Sin, Cos, Floor, Ceil, Round, Sign] {
        each(op.name(), |c| {
            let (a, b) = (c.dim("a"), c.dim("b"));
            let x = c.param(&[a, b]);
            c.b.map(op, &[x])
        });
    }
    for op in [Log, Log1p, Sqrt, Rsqrt] {
        each(op.name(), |c| {
            let a = c.dim("a");
            let x = c.positive(&[a]);
            c.b.map(op, &[x])
        });
    }
    each("cast", |c| {
        let a = c.dim("a");
        let x = c.param(&[a]);
        let half = c.b.cast(x, DType::BF16);
        let square = c.b.map(Square, &[half]);
        c.b.cast(square, DType::F64)
    });
}

#[test]
fn elementwise_functions_of_more_operands_match_by_name() {
    use MapOp::*;
    for op in [Add, Sub, Mul, Div, Rem, Max, Min] {
        each(op.name(), |c| {
            let (a, b, d) = (c.dim("a"), c.dim("b"), c.dim("d"));
            let x = c.param(&[a, b]);
            let y = c.positive(&[b, d]);
            c.b.map(op, &[x, y])
        });
    }
    each("pow", |c| {
        let (a, b) = (c.dim("a"), c.dim("b"));
        let (x, y) = (c.positive(&[a]), c.param(&[b]));
        c.b.map(Pow, &[x, y])
    });
    each("pow by a constant", |c| {
        let a = c.dim("a");
        let x = c.param(&[a]);
        c.b.map_scalar(Pow, x, 3.0)
    });
    each("where", |c| {
        let (a, b) = (c.dim("a"), c.dim("b"));
        let (x, y, z) = (c.param(&[a]), c.param(&[b]), c.param(&[a, b]));
        let zero = c.b.scalar(0.0, DType::F32);
        let cond = c.b.map(Gt, &[z, zero]);
        c.b.select(cond, x, y)
    });
    each("one value as both operands", |c| {
        let a = c.dim("a");
        let x = c.param(&[a]);
        let square = c.b.mul(x, x);
        c.b.add(square, x)
    });
}

#[test]
fn slopes_at_special_points() {
    let slope = |op: &dyn Fn(&mut Builder, ValueId) -> ValueId, x: f64| -> f64 {
        let mut c = Case::new(0);
        let p = c.param_of(DType::F32, &[], vec![x]);
        let y = op(&mut c.b, p);
        let g = autodiff::gradients(&mut c.b, y, &[p])[0];
        c.b.output(OutputKind::Value, "g", g);
        interp::run(&c.b.finish(), &c.env).unwrap()[0].item()
    };
    // max(x, 0) and min(x, 0) pass to the second operand at equality; |x| is flat at 0; 0 ** 0 and 0 ** 2 are flat.
    assert_eq!(slope(&|b, x| b.map_scalar(MapOp::Max, x, 0.0), 0.0), 0.0);
    assert_eq!(slope(&|b, x| b.map_scalar(MapOp::Min, x, 0.0), 0.0), 0.0);
    assert_eq!(slope(&|b, x| b.map(MapOp::Abs, &[x]), 0.0), 0.0);
    assert_eq!(slope(&|b, x| b.map_scalar(MapOp::Pow, x, 0.0), 0.0), 0.0);
    assert_eq!(slope(&|b, x| b.map_scalar(MapOp::Pow, x, 2.0), 0.0), 0.0);
    let clamp = |b: &mut Builder, x| {
        let above = b.scalar(-1.0, DType::F32);
        let up = b.map(MapOp::Max, &[above, x]);
        let below = b.scalar(1.0, DType::F32);
        b.map(MapOp::Min, &[below, up])
    };
    // Written with the bound first, a clamp has slope 1 on its bounds.
    assert_eq!((slope(&clamp, -1.0), slope(&clamp, 1.0), slope(&clamp, 2.0)), (1.0, 1.0, 0.0));
    assert_eq!(slope(&|b, x| b.stop_gradient(x), 3.0), 0.0);
}

#[test]
fn largest_and_smallest_go_to_the_lowest_index() {
    for kind in [ReduceKind::Max, ReduceKind::Min] {
        let mut c = Case::new(0);
        let (a, b) = (c.sized("a", 2), c.sized("b", 2));
        let x = c.param_of(DType::F32, &[a, b], vec![1.0; 4]);
        let y = c.b.reduce(kind, &[b, a], x);
        let g = autodiff::gradients(&mut c.b, y, &[x])[0];
        c.b.output(OutputKind::Param(ParamId(0)), "g", g);
        assert_eq!(interp::run(&c.b.finish(), &c.env).unwrap()[0].data, [1.0, 0.0, 0.0, 0.0]);
    }
    // The same for a scatter: of equal elements at one target the first.
    let mut c = Case::new(0);
    let (t, v) = (c.sized("t", 4), c.sized("v", 2));
    let x = c.param_of(DType::F32, &[t], vec![5.0, 7.0, 5.0, 7.0]);
    let at = c.b.elements(vec![1.0, 0.0, 1.0, 0.0], DType::I32, vec![t]);
    let y = c.b.scatter(ReduceKind::Max, &[t], &[v], x, &[at]);
    let sum = c.b.sum(&[v], y);
    let g = autodiff::gradients(&mut c.b, sum, &[x])[0];
    c.b.output(OutputKind::Param(ParamId(0)), "g", g);
    assert_eq!(interp::run(&c.b.finish(), &c.env).unwrap()[0].data, [1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn reductions() {
    for kind in [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min] {
        each(kind.name(), |c| {
            let (a, b, d) = (c.dim("a"), c.dim("b"), c.dim("d"));
            let x = c.param(&[a, b, d]);
            c.b.reduce(kind, &[d, a], x)
        });
        each(kind.name(), |c| {
            let (a, b) = (c.dim("a"), c.dim("b"));
            let x = c.param(&[a, b]);
            let y = c.b.reduce(kind, &[b], x);
            c.b.mul(y, x)
        });
    }
    each("a product with zeros", |c| {
        let a = c.sized("a", 4);
        let zeros = c.below(3);
        let data = (0..4).map(|i| if i < zeros { 0.0 } else { 1.5 }).collect();
        let x = c.param_of(DType::F32, &[a], data);
        c.b.reduce(ReduceKind::Prod, &[a], x)
    });
    each("a sum of what lacks a dim elsewhere", |c| {
        let (a, b) = (c.dim("a"), c.dim("b"));
        let (x, y) = (c.param(&[a]), c.param(&[a, b]));
        let s = c.b.sum(&[a], x);
        let z = c.b.mul(s, y);
        let total = c.b.sum(&[a, b], z);
        let more = c.b.broadcast(total, &[b]);
        c.b.add(more, s)
    });
}

#[test]
fn products() {
    each("dot with batch dims", |c| {
        let (n, i, j, k, l) = (c.dim("n"), c.dim("i"), c.dim("j"), c.dim("k"), c.dim("l"));
        let x = c.param(&[n, i, k, l]);
        let y = c.param(&[l, n, j, k]);
        c.b.dot(&[k, l], x, y, DType::F32)
    });
    each("dot of a value with itself, renamed", |c| {
        let (i, k) = (c.dim("i"), c.dim("k"));
        let j = c.sized("j", c.b.size(i));
        let x = c.param(&[i, k]);
        let y = c.b.rename(i, j, x);
        c.b.dot(&[k], x, y, DType::F32)
    });
    each("dot of vectors, and with a vector", |c| {
        let (i, k) = (c.dim("i"), c.dim("k"));
        let (x, y) = (c.param(&[k]), c.param(&[k]));
        let w = c.param(&[i, k]);
        let s = c.b.dot(&[k], x, y, DType::F32);
        let v = c.b.dot(&[k], w, x, DType::F32);
        c.b.mul(s, v)
    });
    each("dot whose cotangent lacks a contracted dim", |c| {
        let (i, j, k) = (c.dim("i"), c.dim("j"), c.dim("k"));
        let (x, y) = (c.param(&[i, k]), c.param(&[j, k]));
        let z = c.b.dot(&[k], x, y, DType::F32);
        c.b.sum(&[i, j], z)
    });
}

#[test]
fn reshapes_and_windows() {
    each("split, merge, rename", |c| {
        let (a, b, d) = (c.dim("a"), c.dim("b"), c.dim("d"));
        let ab = c.sized("ab", c.b.size(a) * c.b.size(b));
        let e = c.sized("e", c.b.size(d));
        let x = c.param(&[ab, d]);
        let y = c.b.reshape(&[(vec![ab], vec![b, a]), (vec![d], vec![e])], x);
        let z = c.b.map(MapOp::Square, &[y]);
        let eb = c.sized("eb", c.b.size(e) * c.b.size(b));
        c.b.reshape(&[(vec![e, b], vec![eb])], z)
    });
    each("a sum before a reshape", |c| {
        let (a, b, d) = (c.dim("a"), c.dim("b"), c.dim("d"));
        let ab = c.sized("ab", c.b.size(a) * c.b.size(b));
        let x = c.param(&[ab, d]);
        let y = c.b.reshape(&[(vec![ab], vec![a, b])], x);
        c.b.sum(&[b], y)
    });
    each("convolution window", |c| {
        let a = c.sized("a", 7);
        let (stride, dilation, before) = (1 + c.below(2) as i64, 1 + c.below(2) as i64, c.below(3) as i64);
        let k = c.sized("k", 2);
        let n = (7 + before - dilation - 1) / stride + 1;
        let (o, m) = (c.sized("o", n as usize), c.dim("m"));
        let x = c.param(&[a, m]);
        let axis = WindowAxis { input: a, offset: -before, dynamic: false, terms: vec![(o, stride), (k, dilation)] };
        let y = c.b.window(vec![axis], 0.5, x, &[]);
        let w = c.param(&[k, m]);
        c.b.dot(&[k], y, w, DType::F32)
    });
    each("fold", |c| {
        let (o, k, a) = (c.dim("o"), c.sized("k", 3), c.sized("a", 6));
        let x = c.param(&[o, k]);
        let axis = WindowAxis { input: a, offset: -1, dynamic: false, terms: vec![(o, 2), (k, 1)] };
        c.b.fold_window(vec![axis], x)
    });
    each("slice, index, pad, shift, flip", |c| {
        let (a, d) = (c.sized("a", 5), c.dim("d"));
        let (s, p) = (c.sized("s", 3), c.sized("p", 8));
        let x = c.param(&[a, d]);
        let sliced = c.b.slice(a, 1, s, x);
        let one = c.b.index(s, 2, sliced);
        let pad = WindowAxis { input: a, offset: -2, dynamic: false, terms: vec![(p, 1)] };
        let padded = c.b.window(vec![pad], 0.0, x, &[]);
        let moved = c.b.shift(p, 2, 1.0, padded);
        let turned = c.b.flip(p, moved);
        let both = c.b.mul(turned, padded);
        c.b.mul(both, one)
    });
    each("every second element, backwards", |c| {
        let (a, o) = (c.sized("a", 5), c.sized("o", 3));
        let x = c.param(&[a]);
        let axis = WindowAxis { input: a, offset: 4, dynamic: false, terms: vec![(o, -2)] };
        c.b.window(vec![axis], 0.0, x, &[])
    });
    each("an offset known at run time", |c| {
        let (a, d) = (c.sized("a", 5), c.sized("d", 3));
        let (s, e) = (c.sized("s", 3), c.sized("e", 5));
        let x = c.param(&[a, d]);
        let at = c.ints(&[], -1, 6);
        let moving = WindowAxis { input: a, offset: 1, dynamic: true, terms: vec![(s, 1)] };
        let padded = WindowAxis { input: d, offset: -1, dynamic: false, terms: vec![(e, 1)] };
        c.b.window(vec![moving, padded], 2.0, x, &[at])
    });
    each("concat and stack", |c| {
        let (a, b, d, s) = (c.dim("a"), c.dim("b"), c.dim("d"), c.sized("s", 2));
        let n = c.sized("n", 2 * c.b.size(a) + c.b.size(b));
        let (x, y) = (c.param(&[a, d]), c.param(&[d, b]));
        let joined = c.b.concat(&[a, b, a], n, &[x, y, x]);
        let square = c.b.map(MapOp::Square, &[joined]);
        c.b.stack(s, &[joined, square])
    });
}

#[test]
fn gathers_and_scatters() {
    each("embedding", |c| {
        let (v, n, t, d) = (c.dim("v"), c.dim("n"), c.dim("t"), c.dim("d"));
        let table = c.param(&[v, d]);
        let at = c.ints(&[n, t], 0, c.b.size(v));
        let rows = c.b.gather(&[v], GatherMode::Error, table, &[at]);
        c.b.map(MapOp::Square, &[rows])
    });
    each("picking a logit; nothing for negative indices", |c| {
        let (v, t) = (c.dim("v"), c.dim("t"));
        let x = c.param(&[t, v]);
        let at = c.ints(&[t], -1, c.b.size(v) + 1);
        c.b.gather(&[v], GatherMode::Zero, x, &[at])
    });
    each("two indices, one aligned with a dim of x", |c| {
        let (u, v, t, n) = (c.dim("u"), c.dim("v"), c.dim("t"), c.dim("n"));
        let x = c.param(&[u, t, v]);
        let (i, j) = (c.ints(&[t, n], 0, c.b.size(u)), c.ints(&[n], 0, c.b.size(v)));
        c.b.gather(&[u, v], GatherMode::Error, x, &[i, j])
    });
    each("a dim indexed by itself", |c| {
        let (a, d) = (c.dim("a"), c.dim("d"));
        let x = c.param(&[a, d]);
        let at = c.ints(&[a], 0, c.b.size(a));
        c.b.gather(&[a], GatherMode::Error, x, &[at])
    });
    for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
        each("segments", |c| {
            let (t, n, e, d) = (c.dim("t"), c.dim("n"), c.dim("e"), c.dim("d"));
            let x = c.param(&[t, n, d]);
            let at = c.ints(&[n, t], -1, c.b.size(e) + 1);
            let y = c.b.scatter(kind, &[t], &[e], x, &[at]);
            // Targets that nothing reaches hold an infinity, which the loss must not see.
            let finite = c.b.map(MapOp::IsFinite, &[y]);
            let zero = c.b.scalar(0.0, DType::F32);
            c.b.select(finite, y, zero)
        });
    }
    each("a scatter that repeats x along a dim that it lacks, and removes one that the index lacks", |c| {
        let (t, k, e, d) = (c.dim("t"), c.dim("k"), c.dim("e"), c.dim("d"));
        let x = c.param(&[t, d]);
        let at = c.ints(&[t, k], 0, c.b.size(e));
        c.b.scatter(ReduceKind::Sum, &[t, k, d], &[e], x, &[at])
    });
    each("pack and unpack", |c| {
        let (t, k, e, s, d) = (c.sized("t", 4), c.sized("k", 2), c.sized("e", 3), c.sized("s", 3), c.dim("d"));
        let x = c.param(&[t, d]);
        let router = c.param(&[t, e]);
        let chosen = c.b.top_k(e, k, router);
        let weight = c.b.gather(&[e], GatherMode::Error, router, &[chosen]);
        let place = c.b.pack_place(&[t, k], 3, chosen);
        let nowhere = c.b.scalar(-1.0, DType::I32);
        let zero = c.b.scalar(0.0, DType::I32);
        let fits = c.b.map(MapOp::Ge, &[place, zero]);
        let expert = c.b.select(fits, chosen, nowhere);
        let rows = c.b.scatter(ReduceKind::Sum, &[t, k], &[e, s], x, &[expert, place]);
        let w = c.param(&[e, d]);
        let out = c.b.mul(rows, w);
        let out = c.b.map(MapOp::Tanh, &[out]);
        let back = c.b.gather(&[e, s], GatherMode::Zero, out, &[expert, place]);
        let scaled = c.b.mul(back, weight);
        c.b.sum(&[k], scaled)
    });
    each("sorted values", |c| {
        let (a, d) = (c.dim("a"), c.dim("d"));
        let x = c.param(&[a, d]);
        let order = c.b.arg_sort(a, x);
        c.b.gather(&[a], GatherMode::Error, x, &[order])
    });
}

#[test]
fn scans() {
    for kind in [ScanKind::Sum, ScanKind::Prod, ScanKind::Max] {
        for (exclusive, reverse) in [(false, false), (false, true), (true, false), (true, true)] {
            each(kind.name(), |c| {
                let (a, d) = (c.dim("a"), c.dim("d"));
                let x = c.param(&[d, a]);
                let y = c.b.scan(kind, a, exclusive, reverse, x);
                // An exclusive maximum begins with an infinity.
                let finite = c.b.map(MapOp::IsFinite, &[y]);
                let zero = c.b.scalar(0.0, DType::F32);
                c.b.select(finite, y, zero)
            });
        }
    }
    each("a running product with zeros", |c| {
        let a = c.sized("a", 5);
        let zeros = c.below(3);
        let data = (0..5).map(|i| if i % 2 == 1 && i / 2 < zeros { 0.0 } else { 1.5 }).collect();
        let x = c.param_of(DType::F32, &[a], data);
        c.b.scan(ScanKind::Prod, a, false, zeros == 2, x)
    });
    for reverse in [false, true] {
        each("linear scan", |c| {
            let (a, d) = (c.dim("a"), c.dim("d"));
            let (g, x) = (c.param(&[a, d]), c.param(&[a]));
            c.b.linear_scan(a, reverse, g, x)
        });
        each("linear scan of a constant gate", |c| {
            let (a, d) = (c.dim("a"), c.dim("d"));
            let (g, x) = (c.param(&[d]), c.param(&[a]));
            c.b.linear_scan(a, reverse, g, x)
        });
    }
}

#[test]
fn softmax_compositions() {
    each("cross-entropy with a mask", |c| {
        let (n, t, v) = (c.dim("n"), c.dim("t"), c.sized("v", 4));
        let x = c.param(&[n, t, v]);
        let at = c.ints(&[n, t], -1, 5);
        let top = c.b.reduce(ReduceKind::Max, &[v], x);
        let top = c.b.stop_gradient(top);
        let moved = c.b.sub(x, top);
        let e = c.b.map(MapOp::Exp, &[moved]);
        let total = c.b.sum(&[v], e);
        let log = c.b.map(MapOp::Log, &[total]);
        let lse = c.b.add(log, top);
        let picked = c.b.gather(&[v], GatherMode::Zero, x, &[at]);
        let loss = c.b.sub(lse, picked);
        let zero = c.b.scalar(0.0, DType::I32);
        let counts = c.b.map(MapOp::Ge, &[at, zero]);
        let nothing = c.b.scalar(0.0, DType::F32);
        c.b.select(counts, loss, nothing)
    });
    each("attention", |c| {
        let (q, k, d, h) = (c.sized("q", 3), c.sized("k", 3), c.dim("d"), c.dim("h"));
        let x = c.param(&[q, d]);
        let (wq, wk, wv) = (c.param(&[d, h]), c.param(&[d, h]), c.param(&[d, h]));
        let query = c.b.dot(&[d], x, wq, DType::F32);
        let key = c.b.dot(&[d], x, wk, DType::F32);
        let value = c.b.dot(&[d], x, wv, DType::F32);
        let (key, value) = (c.b.rename(q, k, key), c.b.rename(q, k, value));
        let score = c.b.dot(&[h], query, key, DType::F32);
        let (row, column) = (c.b.iota(q), c.b.iota(k));
        let seen = c.b.map(MapOp::Le, &[column, row]);
        let never = c.b.scalar(f64::NEG_INFINITY, DType::F32);
        let score = c.b.select(seen, score, never);
        let top = c.b.reduce(ReduceKind::Max, &[k], score);
        let moved = c.b.sub(score, top);
        let e = c.b.map(MapOp::Exp, &[moved]);
        let total = c.b.sum(&[k], e);
        let p = c.b.div(e, total);
        c.b.dot(&[k], p, value, DType::F32)
    });
    each("layer norm", |c| {
        let (n, d) = (c.dim("n"), c.sized("d", 4));
        let (x, gain, bias) = (c.param(&[n, d]), c.param(&[d]), c.param(&[d]));
        let s = c.b.sum(&[d], x);
        let mean = c.b.map_scalar(MapOp::Div, s, 4.0);
        let moved = c.b.sub(x, mean);
        let square = c.b.map(MapOp::Square, &[moved]);
        let var = c.b.sum(&[d], square);
        let var = c.b.map_scalar(MapOp::Add, var, 1e-3);
        let r = c.b.map(MapOp::Rsqrt, &[var]);
        let y = c.b.mul(moved, r);
        let y = c.b.mul(y, gain);
        c.b.add(y, bias)
    });
}

/// One turn of an LSTM's cell: gates from the input and the last output.
fn cell(
    c: &mut Case,
    x: ValueId,
    h: ValueId,
    s: ValueId,
    w: [ValueId; 4],
    u: [ValueId; 4],
    dims: [DimId; 3],
) -> (ValueId, ValueId) {
    let [d, m, m2] = dims;
    let gates: Vec<ValueId> = (0..4)
        .map(|i| {
            let a = c.b.dot(&[d], x, w[i], DType::F32);
            let h2 = c.b.rename(m, m2, h);
            let r = c.b.dot(&[m2], h2, u[i], DType::F32);
            let sum = c.b.add(a, r);
            c.b.map(if i == 3 { MapOp::Tanh } else { MapOp::Sigmoid }, &[sum])
        })
        .collect();
    let kept = c.b.mul(gates[0], s);
    let new = c.b.mul(gates[1], gates[3]);
    let s = c.b.add(kept, new);
    let t = c.b.map(MapOp::Tanh, &[s]);
    (c.b.mul(gates[2], t), s)
}

#[test]
fn loops() {
    for reverse in [false, true] {
        each("lstm", |c| {
            let (t, n, d, m) = (c.sized("t", 3), c.dim("n"), c.dim("d"), c.dim("m"));
            let m2 = c.sized("m2", c.b.size(m));
            let x = c.param(&[n, t, d]);
            let w = [0; 4].map(|_| c.param(&[d, m]));
            let u = [0; 4].map(|_| c.param(&[m2, m]));
            let (h0, s0) = (c.param(&[n, m]), c.b.splat_of(0.0, DType::F32, &[n, m]));
            let frame = c.b.begin_loop(t, reverse, &[h0, s0]);
            let axis = WindowAxis { input: t, offset: 0, dynamic: true, terms: vec![] };
            let now = c.b.window(vec![axis], 0.0, x, &[frame.turn]);
            let (h, s) = (frame.carries[0], frame.carries[1]);
            let (h, s) = cell(c, now, h, s, w, u, [d, m, m2]);
            let (finals, all) = c.b.end_loop(frame, &[h, s], &[h]);
            let y = c.b.mul(all[0], finals[1]);
            c.b.add(y, finals[0])
        });
    }
    each("a read by gather, and other uses of what is read", |c| {
        let (t, d) = (c.dim("t"), c.dim("d"));
        let x = c.param(&[t, d]);
        let start = c.b.splat_of(0.5, DType::F32, &[d]);
        let frame = c.b.begin_loop(t, false, &[start]);
        let now = c.b.gather(&[t], GatherMode::Error, x, &[frame.turn]);
        let all = c.b.sum(&[t], x);
        let y = c.b.mul(now, frame.carries[0]);
        let y = c.b.add(y, all);
        let y = c.b.map(MapOp::Sin, &[y]);
        let (finals, _) = c.b.end_loop(frame, &[y], &[]);
        finals[0]
    });
    each("parameters read inside, integer carries, results that are captures", |c| {
        let (t, d) = (c.sized("t", 4), c.dim("d"));
        let outer = c.param(&[d]);
        let start = c.b.splat_of(1.0, DType::F32, &[d]);
        let count = c.b.scalar(0.0, DType::I32);
        let frame = c.b.begin_loop(t, false, &[start, count]);
        let again = c.b.param(ParamId(0));
        let (h, n) = (frame.carries[0], frame.carries[1]);
        let n2 = c.b.map_scalar(MapOp::Add, n, 2.0);
        let scale = c.b.cast(n2, DType::F32);
        let y = c.b.mul(h, again);
        let y = c.b.mul(y, scale);
        let y = c.b.map(MapOp::Tanh, &[y]);
        let (finals, all) = c.b.end_loop(frame, &[y, n2], &[outer, h]);
        let z = c.b.mul(all[0], all[1]);
        c.b.add(z, finals[0])
    });
    each("a loop in a loop", |c| {
        let (t, u, d) = (c.dim("t"), c.dim("u"), c.dim("d"));
        let (x, w) = (c.param(&[t, u]), c.param(&[d]));
        let start = c.b.splat_of(0.1, DType::F32, &[d]);
        let outer = c.b.begin_loop(t, false, &[start]);
        let row = c.b.gather(&[t], GatherMode::Error, x, &[outer.turn]);
        let noise = c.b.random(Dist::Normal { std: 1.0 }, 9, &[d], &[outer.turn]);
        let inner = c.b.begin_loop(u, true, &[outer.carries[0]]);
        let one = c.b.gather(&[u], GatherMode::Error, row, &[inner.turn]);
        let y = c.b.mul(inner.carries[0], w);
        let y = c.b.add(y, one);
        let y = c.b.mul(y, noise);
        let y = c.b.map(MapOp::Sin, &[y]);
        let (finals, all) = c.b.end_loop(inner, &[y], &[y]);
        let sum = c.b.sum(&[u], all[0]);
        let next = c.b.add(finals[0], sum);
        let (finals, all) = c.b.end_loop(outer, &[next], &[sum]);
        let s = c.b.sum(&[t], all[0]);
        c.b.add(s, finals[0])
    });
    each("a carry that has the loop's own dim", |c| {
        let (t, w) = (c.sized("t", 3), c.param(&[]));
        let x = c.param(&[t]);
        let frame = c.b.begin_loop(t, false, &[x]);
        let moved = c.b.shift(t, 1, 0.0, frame.carries[0]);
        let y = c.b.mul(moved, w);
        let y = c.b.add(y, frame.carries[0]);
        let y = c.b.map(MapOp::Sin, &[y]);
        let (finals, _) = c.b.end_loop(frame, &[y], &[]);
        finals[0]
    });
    each("carries that pass to each other", |c| {
        let t = c.sized("t", 3);
        let (x, y, z) = (c.param(&[]), c.param(&[]), c.param(&[]));
        let frame = c.b.begin_loop(t, false, &[x, y]);
        let next = c.b.mul(frame.carries[1], z);
        let (a, _) = (frame.carries[0], ());
        let (finals, _) = c.b.end_loop(frame, &[next, a], &[]);
        c.b.sub(finals[0], finals[1])
    });
}

#[test]
fn what_does_not_matter_has_zeros_and_no_operations() {
    let mut c = Case::new(0);
    let a = c.sized("a", 2);
    let (x, y) = (c.param(&[a]), c.param(&[a]));
    let unrelated = c.b.map(MapOp::Exp, &[y]);
    let loss = c.b.sum(&[a], x);
    let before = c.b.graph.ops.len();
    let grads = autodiff::gradients(&mut c.b, loss, &[x, y]);
    // Ones for x, zeros for y: two constants and their broadcasts.
    assert_eq!(c.b.graph.ops.len() - before, 4, "{}", partita::ir::print::print(&c.b.graph));
    assert!(matches!(c.b.graph.def_op(grads[1]).unwrap().op, Op::Broadcast { .. }));
    assert_eq!(c.b.splat(grads[0]), Some(1.0));
    assert_eq!(c.b.splat(grads[1]), Some(0.0));
    assert!(matches!(c.b.graph.def_op(unrelated).unwrap().op, Op::Map(MapOp::Exp)));
}

#[test]
fn constants_of_16_bit_floats_become_one_where_nothing_is_rounded() {
    let mut c = Case::new(0);
    for dtype in [DType::BF16, DType::F16] {
        let of = |c: &mut Case, x: f64| c.b.splat_of(x, dtype, &[]);
        let (three, one, tenth) = (of(&mut c, 3.0), of(&mut c, 1.0), of(&mut c, 0.1));
        let (two, rounded) = (c.b.sub(three, one), c.b.add(one, tenth));
        assert_eq!(c.b.splat(two), Some(2.0));
        // 0.1 is not a number of 16 bits.
        assert_eq!(c.b.splat(rounded), None);
        let a = c.sized("a", 2);
        let x = c.param_of(dtype, &[a], vec![1.5, -2.0]);
        let cube = c.b.map(MapOp::Pow, &[x, three]);
        let loss = c.b.sum(&[a], cube);
        autodiff::gradients(&mut c.b, loss, &[x]);
        let powers = c.b.graph.ops.iter().filter(|o| matches!(o.op, Op::Map(MapOp::Pow)));
        assert!(powers.into_iter().all(|o| c.b.splat(o.args[1]).is_some()));
    }
}

#[test]
fn sixteen_bit_contributions_are_summed_in_f32() {
    // 512 contributions of 1 to a parameter read in bf16: bf16 sums stall at 256.
    for through_rows in [false, true] {
        let mut c = Case::new(0);
        c.env.exact = false;
        let (n, v) = (c.sized("n", 512), c.sized("v", 1));
        let w = c.param_of(DType::F32, &[v], vec![1.0]);
        let half = c.b.cast(w, DType::BF16);
        let used = if through_rows {
            let at = c.b.splat_of(0.0, DType::I32, &[n]);
            c.b.gather(&[v], GatherMode::Error, half, &[at])
        } else {
            let ones = c.b.splat_of(1.0, DType::BF16, &[n]);
            c.b.mul(half, ones)
        };
        let used = c.b.map(MapOp::Tanh, &[used]);
        let used = c.b.cast(used, DType::F32);
        let all = c.b.dims(used).to_vec();
        let s = c.b.sum(&all, used);
        let g = autodiff::gradients(&mut c.b, s, &[w])[0];
        assert_eq!(c.b.dtype(g), DType::F32);
        c.b.output(OutputKind::Param(ParamId(0)), "g", g);
        let g = interp::run(&c.b.finish(), &c.env).unwrap()[0].item();
        // tanh'(1) in bf16 arithmetic is 0.421875.
        assert!((g / 512.0 - 0.421875).abs() < 0.004, "{g}");
    }
    // A product gives the gradient of a 16-bit copy in f32 at once.
    let mut c = Case::new(1);
    let (n, k) = (c.sized("n", 3), c.sized("k", 2));
    let (w, x) = (c.param(&[k]), c.param(&[n, k]));
    let (w16, x16) = (c.b.cast(w, DType::BF16), c.b.cast(x, DType::BF16));
    let y = c.b.dot(&[k], x16, w16, DType::BF16);
    let y = c.b.map(MapOp::Square, &[y]);
    let y = c.b.cast(y, DType::F32);
    let s = c.b.sum(&[n], y);
    let g = autodiff::gradients(&mut c.b, s, &[w])[0];
    assert!(matches!(c.b.graph.def_op(g).unwrap().op, Op::Dot { .. }));
}

#[test]
fn gradients_stand_where_their_forward_operations_stand() {
    let mut c = Case::new(0);
    let a = c.sized("a", 2);
    let span = partita::source::Span::new(partita::source::FileId(0), 1, 2);
    let x = c.param(&[a]);
    c.b.span = Some(span);
    let y = c.b.map(MapOp::Exp, &[x]);
    c.b.span = None;
    let s = c.b.sum(&[a], y);
    let g = autodiff::gradients(&mut c.b, s, &[x])[0];
    let mut op = c.b.graph.def_op(g).unwrap();
    if let Op::Broadcast { .. } = op.op {
        op = c.b.graph.def_op(op.args[0]).unwrap();
    }
    // exp' = 1 * y folds to y itself, which is the forward value.
    assert_eq!(op.span, Some(span));
}

/// A random program over a few dims, from smooth operations.
fn random_program(c: &mut Case) -> ValueId {
    let dims = [c.dim("a"), c.dim("b"), c.dim("d")];
    let twin = c.sized("twin", c.b.size(dims[0]));
    let mut pool = vec![c.param(&dims), c.param(&dims[..2]), c.param(&dims[1..]), c.param(&[dims[0]])];
    for _ in 0..14 {
        let x = pool[c.below(pool.len())];
        let y = pool[c.below(pool.len())];
        let has = |c: &Case, v: ValueId, d: DimId| c.b.dims(v).contains(&d);
        let d = dims[c.below(3)];
        let (coin, third) = (c.below(2) == 1, c.below(3));
        let new = match c.below(12) {
            0 => c.b.add(x, y),
            1 => c.b.mul(x, y),
            2 => c.b.map(MapOp::Tanh, &[x]),
            3 => c.b.map(MapOp::Sin, &[x]),
            4 if has(c, x, d) => c.b.sum(&[d], x),
            5 if has(c, x, d) && has(c, y, d) => c.b.dot(&[d], x, y, DType::F32),
            6 if has(c, x, d) => c.b.scan(ScanKind::Sum, d, coin, third == 1, x),
            7 if has(c, x, d) => c.b.shift(d, third as i64 - 1, 0.25, x),
            8 if has(c, x, d) => c.b.reduce(ReduceKind::Max, &[d], x),
            9 if has(c, x, dims[0]) && !has(c, x, twin) => c.b.rename(dims[0], twin, x),
            10 if has(c, x, d) => {
                let at = c.ints(&[d], 0, c.b.size(d));
                c.b.gather(&[d], GatherMode::Error, x, &[at])
            }
            11 if has(c, x, d) && !has(c, y, d) => {
                let frame = c.b.begin_loop(d, coin, &[y]);
                let now = c.b.gather(&[d], GatherMode::Error, x, &[frame.turn]);
                let small = c.b.map(MapOp::Tanh, &[now]);
                let all: Vec<DimId> = c.b.dims(small).to_vec();
                let mean = c.b.sum(&all, small);
                let next = c.b.mul(frame.carries[0], mean);
                let next = c.b.map(MapOp::Sin, &[next]);
                let (finals, stacked) = c.b.end_loop(frame, &[next], &[mean]);
                c.b.add(finals[0], stacked[0])
            }
            _ => c.b.map_scalar(MapOp::Mul, x, 0.5),
        };
        pool.push(new);
    }
    let last = pool.split_off(pool.len() - 4);
    last.into_iter().reduce(|x, y| c.b.add(x, y)).unwrap()
}

#[test]
fn random_programs() {
    for seed in 100..140 {
        let mut c = Case::new(seed);
        let out = random_program(&mut c);
        c.check("random program", out);
    }
}

#[test]
fn emission_is_deterministic() {
    let text = || {
        let mut c = Case::new(7);
        let out = random_program(&mut c);
        let loss = c.loss(out);
        let params: Vec<ParamId> = (0..4).map(ParamId).collect();
        autodiff::gradients_of_params(&mut c.b, &[loss], &params);
        partita::ir::print::print(&c.b.finish())
    };
    assert_eq!(text(), text());
}

#[test]
fn attention() {
    // Each option alone and all together, with and without dims that queries share keys over.
    for option in 0..8 {
        let on = |n: usize| option == n || option == 7;
        each("attention", |c| {
            let (batch, group) = (c.dim("batch"), c.dim("group"));
            let (query, key) = (c.dim("query"), c.sized("key", 3));
            let (feature, value) = (c.dim("feature"), c.dim("value"));
            let q = c.param(&[batch, query, group, feature]);
            let keys = c.param(&[batch, key, feature]);
            let values = c.param(&[value, batch, key]);
            let mut args = vec![q, keys, values];
            if on(1) {
                let own = c.ints(&[batch, query], 0, 2);
                args.push(own);
                args.push(c.ints(&[key], 0, 2));
            }
            if on(2) {
                let (x, zero) = (c.ints(&[group, key, query], 0, 3), c.b.scalar(0.0, DType::I32));
                args.push(c.b.map(MapOp::Gt, &[x, zero]));
            }
            if on(3) {
                let data = (0..c.b.graph.elements(&[query, key])).map(|_| c.normal()).collect();
                args.push(c.b.elements(data, DType::F32, vec![query, key]));
            }
            let a = Attention {
                query,
                key,
                feature,
                value,
                scale: if on(4) { -0.7 } else { 0.4 },
                cap: if on(5) { 0.8 } else { 0.0 },
                causal: on(6),
                reach: on(6).then_some(2),
                documents: on(1),
                mask: on(2),
                bias: on(3),
                first: false,
            };
            c.b.attention(&a, &args)[0]
        });
    }
}
