//! Random graphs over all operations, for comparing backends with the interpreter.

use super::partita::interp::{Env, Tensor};
use super::partita::ir::*;
use super::partita::types::rng::Dist;
use super::partita::types::{DType, MapOp, ReduceKind, ScanKind};

/// A small generator of its own (SplitMix64), so that a seed means the same graph everywhere.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In -1..1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }
}

pub struct Case {
    pub graph: Graph,
    pub env: Env,
    /// What was put in, for messages.
    pub recipe: Vec<&'static str>,
}

struct Maker {
    b: Builder,
    env: Env,
    rng: Rng,
    dtype: DType,
    /// Plain dims, and for each a second one of the same size.
    dims: Vec<DimId>,
    twins: Vec<DimId>,
    values: Vec<ValueId>,
    recipe: Vec<&'static str>,
}

/// Kinds of operations by number; `KINDS` of them.
pub const KINDS: usize = 23;

/// A graph of about `length` operations whose floats have the given type. `only` restricts the kinds.
pub fn random_case(seed: u64, dtype: DType, length: usize, only: &[usize]) -> Case {
    let mut rng = Rng(seed);
    let mut b = Builder::default();
    let sizes: Vec<usize> = (0..4).map(|_| 1 + rng.below(6)).collect();
    let dims: Vec<DimId> = sizes.iter().enumerate().map(|(i, n)| b.add_dim(&format!("d{i}"), *n, false)).collect();
    let twins: Vec<DimId> = sizes.iter().enumerate().map(|(i, n)| b.add_dim(&format!("t{i}"), *n, false)).collect();
    let mut m = Maker { b, env: Env::default(), rng, dtype, dims, twins, values: vec![], recipe: vec![] };
    m.env.seed = 7;
    m.env.step = 3;
    for i in 0..3 {
        m.leaf(i);
    }
    for _ in 0..length {
        let kind = if only.is_empty() { m.rng.below(KINDS) } else { m.rng.pick(only) };
        m.add(kind);
    }
    m.finish()
}

impl Maker {
    fn subset(&mut self) -> Vec<DimId> {
        let mut dims = self.dims.clone();
        for i in (1..dims.len()).rev() {
            let j = self.rng.below(i + 1);
            dims.swap(i, j);
        }
        let n = self.rng.below(4);
        dims.truncate(n.max(1));
        dims
    }

    fn leaf(&mut self, which: usize) {
        let dims = self.subset();
        let shape: Vec<usize> = dims.iter().map(|d| self.b.size(*d)).collect();
        let n = shape.iter().product();
        let data = (0..n).map(|_| self.rng.unit()).collect();
        let tensor = Tensor::new(self.dtype, shape, data);
        let v = match which {
            0 => {
                self.env.params.push(tensor);
                let path = format!("p{}", self.env.params.len());
                let id = self.b.add_param(Param { path, dtype: self.dtype, dims, map: None, span: None });
                self.b.param(id)
            }
            1 => {
                self.env.states.push(tensor);
                let path = format!("s{}", self.env.states.len());
                let kind = StateKind::Model;
                let id = self.b.add_state(State { path, dtype: self.dtype, dims, kind, span: None });
                self.b.state(id)
            }
            _ => {
                self.env.inputs.push(tensor);
                let name = format!("x{}", self.env.inputs.len());
                let id = self.b.add_input(Input { name, dtype: self.dtype, dims, span: None });
                self.b.input(id)
            }
        };
        self.values.push(v);
    }

    fn any(&mut self) -> ValueId {
        // Recent values more often: chains.
        let n = self.values.len();
        let i = if self.rng.below(2) == 0 { n - 1 - self.rng.below(n.min(3)) } else { self.rng.below(n) };
        self.values[i]
    }

    /// A value that has a dim, and that dim.
    fn with_dim(&mut self) -> (ValueId, DimId) {
        loop {
            let v = self.any();
            let dims = self.b.dims(v).to_vec();
            if !dims.is_empty() {
                return (v, self.rng.pick(&dims));
            }
            self.leaf(2);
        }
    }

    /// An index in 0..size over a few dims.
    fn index(&mut self, size: usize) -> ValueId {
        let d = self.rng.pick(&self.dims.clone());
        let i = self.b.iota(d);
        let i = if self.rng.below(2) == 0 {
            let v = self.any();
            let scaled = self.b.map_scalar(MapOp::Mul, v, 10.0);
            let x = self.b.cast(scaled, DType::I32);
            self.b.add(x, i)
        } else {
            let k = 1 + self.rng.below(4);
            self.b.map_scalar(MapOp::Mul, i, k as f64)
        };
        self.b.map_scalar(MapOp::Rem, i, size as f64)
    }

    /// Keeps magnitudes small, so that errors stay comparable.
    fn push(&mut self, v: ValueId) {
        let v = if self.b.dtype(v) == self.dtype { v } else { self.b.cast(v, self.dtype) };
        let elements = self.b.graph.elements(self.b.dims(v));
        if elements > 4000 {
            return;
        }
        let v = self.b.map(MapOp::Tanh, &[v]);
        self.values.push(v);
    }

    fn float(&self, x: f64) -> f64 {
        x
    }

    fn add(&mut self, kind: usize) {
        let names = [
            "unary",
            "binary",
            "where",
            "reduce",
            "softmax",
            "norm",
            "dot",
            "rename",
            "split",
            "window",
            "fold",
            "gather",
            "scatter",
            "concat",
            "stack",
            "scan",
            "linear_scan",
            "order",
            "random",
            "loop",
            "arg",
            "conv",
            "attention",
        ];
        self.recipe.push(names[kind]);
        match kind {
            0 => self.unary(),
            1 => {
                let (x, y) = (self.any(), self.any());
                let op = self.rng.pick(&[MapOp::Add, MapOp::Sub, MapOp::Mul, MapOp::Max, MapOp::Min]);
                let v = self.b.map(op, &[x, y]);
                self.push(v);
            }
            2 => {
                let (x, y, z) = (self.any(), self.any(), self.any());
                let op = self.rng.pick(&[MapOp::Lt, MapOp::Ge, MapOp::Ne]);
                let c = self.b.map(op, &[x, y]);
                let v = self.b.select(c, x, z);
                self.push(v);
            }
            3 => {
                let (x, _) = self.with_dim();
                let dims = self.part_of(x);
                let kind = self.rng.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod]);
                let v = self.b.reduce(kind, &dims, x);
                self.push(v);
            }
            4 => {
                let (x, d) = self.with_dim();
                let top = self.b.reduce(ReduceKind::Max, &[d], x);
                let shifted = self.b.sub(x, top);
                let e = self.b.map(MapOp::Exp, &[shifted]);
                let sum = self.b.sum(&[d], e);
                let v = self.b.div(e, sum);
                self.push(v);
            }
            5 => {
                let (x, d) = self.with_dim();
                let n = self.b.size(d) as f64;
                let sum = self.b.sum(&[d], x);
                let mean = self.b.map_scalar(MapOp::Div, sum, n);
                let centred = self.b.sub(x, mean);
                let square = self.b.map(MapOp::Square, &[centred]);
                let var = self.b.sum(&[d], square);
                let var = self.b.map_scalar(MapOp::Add, var, 0.1);
                let scale = self.b.map(MapOp::Rsqrt, &[var]);
                let v = self.b.mul(centred, scale);
                self.push(v);
                self.push(mean);
            }
            6 => self.dot(),
            7 => {
                let (x, d) = self.with_dim();
                let Some(i) = self.dims.iter().position(|e| *e == d) else { return };
                let twin = self.twins[i];
                if self.b.dims(x).contains(&twin) {
                    return;
                }
                let v = self.b.rename(d, twin, x);
                if self.rng.below(2) == 0 {
                    // Both at once: an outer comparison.
                    let v = self.b.mul(v, x);
                    let v = self.b.sum(&[twin], v);
                    self.push(v);
                } else {
                    let v = self.b.map_scalar(MapOp::Mul, v, 0.5);
                    let v = self.b.rename(twin, d, v);
                    self.push(v);
                }
            }
            8 => {
                let (x, _) = self.with_dim();
                let dims = self.part_of(x);
                let n = self.b.graph.elements(&dims);
                let flat = self.b.add_dim("flat", n, false);
                let merged = self.b.reshape(&[(dims.clone(), vec![flat])], x);
                let changed = match self.rng.below(3) {
                    0 => merged,
                    1 => self.b.map(MapOp::Square, &[merged]),
                    _ => self.b.flip(flat, merged),
                };
                let v = self.b.reshape(&[(vec![flat], dims)], changed);
                self.push(v);
            }
            9 => self.window(false),
            10 => self.window(true),
            11 => {
                let (x, d) = self.with_dim();
                let index = self.index(self.b.size(d));
                let v = self.b.gather(&[d], GatherMode::Error, x, &[index]);
                self.push(v);
                if self.rng.below(2) == 0 {
                    let less = self.b.map_scalar(MapOp::Sub, index, 1.0);
                    let v = self.b.gather(&[d], GatherMode::Zero, x, &[less]);
                    self.push(v);
                }
            }
            12 => {
                let (x, d) = self.with_dim();
                let n = 1 + self.rng.below(5);
                let target = self.b.add_dim("target", n, false);
                let back = self.rng.pick(&self.dims.clone());
                let i = self.b.iota(d);
                let i = self.b.map_scalar(MapOp::Mul, i, 3.0);
                let index = self.b.map_scalar(MapOp::Rem, i, n as f64);
                let index = if self.rng.below(3) == 0 { self.b.map_scalar(MapOp::Sub, index, 1.0) } else { index };
                let kind = self.rng.pick(&[ReduceKind::Sum, ReduceKind::Sum, ReduceKind::Max]);
                let v = self.b.scatter(kind, &[d], &[target], x, &[index]);
                let v = self.b.map(MapOp::Tanh, &[v]);
                let at = self.b.iota(back);
                let at = self.b.map_scalar(MapOp::Rem, at, n as f64);
                let v = self.b.gather(&[target], GatherMode::Error, v, &[at]);
                self.push(v);
            }
            13 => {
                let (x, d) = self.with_dim();
                let y = self.b.map_scalar(MapOp::Add, x, 0.25);
                let n = self.b.size(d);
                let parts = 2 + self.rng.below(2);
                let long = self.b.add_dim("long", parts * n, false);
                let values: Vec<ValueId> = (0..parts).map(|i| if i % 2 == 0 { x } else { y }).collect();
                let v = self.b.concat(&vec![d; parts], long, &values);
                let lo = self.rng.below((parts - 1) * n + 1);
                let v = self.b.slice(long, lo, d, v);
                self.push(v);
            }
            14 => {
                let x = self.any();
                let y = self.b.map(MapOp::Neg, &[x]);
                let z = self.b.map_scalar(MapOp::Mul, x, 0.5);
                let s = self.b.add_dim("stacked", 3, false);
                let v = self.b.stack(s, &[x, y, z]);
                let v = if self.rng.below(2) == 0 {
                    self.b.index(s, 1, v)
                } else {
                    self.b.reduce(ReduceKind::Max, &[s], v)
                };
                self.push(v);
            }
            15 => {
                let (x, d) = self.with_dim();
                let kind = self.rng.pick(&[ScanKind::Sum, ScanKind::Prod, ScanKind::Max, ScanKind::ArgMax]);
                let (exclusive, reverse) = (self.rng.below(2) == 0, self.rng.below(2) == 0);
                // An exclusive maximum begins with minus infinity.
                let v = self.b.scan(kind, d, exclusive, reverse, x);
                self.push(v);
            }
            16 => {
                let (x, d) = self.with_dim();
                let g = self.any();
                let reverse = self.rng.below(2) == 0;
                let v = self.b.linear_scan(d, reverse, g, x);
                self.push(v);
            }
            17 => {
                let (x, d) = self.with_dim();
                match self.rng.below(3) {
                    0 => {
                        let order = self.b.arg_sort(d, x);
                        let v = self.b.gather(&[d], GatherMode::Error, x, &[order]);
                        self.push(v);
                    }
                    1 => {
                        let k = 1 + self.rng.below(self.b.size(d));
                        let k = self.b.add_dim("k", k, false);
                        let order = self.b.top_k(d, k, x);
                        let v = self.b.gather(&[d], GatherMode::Error, x, &[order]);
                        let v = self.b.sum(&[k], v);
                        self.push(v);
                    }
                    _ => {
                        let scaled = self.b.map_scalar(MapOp::Mul, x, 3.0);
                        let expert = self.b.cast(scaled, DType::I32);
                        let v = self.b.pack_place(&[d], 2, expert);
                        self.push(v);
                    }
                }
            }
            18 => {
                let x = self.any();
                let dims = self.subset();
                let stream = self.rng.next();
                let dist = self.rng.pick(&[
                    Dist::Uniform { lo: -1.0, hi: 2.0 },
                    Dist::Normal { std: 0.5 },
                    Dist::TruncNormal { std: 0.5 },
                    Dist::RandInt { n: 5 },
                    Dist::Bernoulli { p: 0.3 },
                ]);
                let r = self.b.random(dist, stream, &dims, &[]);
                let r = self.b.cast(r, self.dtype);
                let v = self.b.mul(r, x);
                self.push(v);
            }
            19 => self.repeat(),
            20 => {
                let (x, _) = self.with_dim();
                let dims = self.part_of(x);
                let kind = self.rng.pick(&[ReduceKind::ArgMax, ReduceKind::ArgMin]);
                let v = self.b.reduce(kind, &dims, x);
                self.push(v);
                let positive = self.b.map_scalar(MapOp::Gt, x, 0.1);
                let kind = self.rng.pick(&[ReduceKind::Any, ReduceKind::All]);
                let v = self.b.reduce(kind, &dims, positive);
                self.push(v);
            }
            21 => self.convolution(),
            _ => self.attention(),
        }
    }

    fn part_of(&mut self, x: ValueId) -> Vec<DimId> {
        let mut dims = self.b.dims(x).to_vec();
        let n = 1 + self.rng.below(dims.len());
        while dims.len() > n {
            let i = self.rng.below(dims.len());
            dims.remove(i);
        }
        if self.rng.below(2) == 0 {
            dims.reverse();
        }
        dims
    }

    fn unary(&mut self) {
        let x = self.any();
        use MapOp::*;
        let op = self.rng.pick(&[
            Neg, Exp, Expm1, Square, Abs, Sign, Sigmoid, Softplus, Erf, Sin, Cos, Floor, Ceil, Round, Log, Log1p, Sqrt,
            Rsqrt, Pow, Rem, Div,
        ]);
        let v = match op {
            Log | Log1p | Sqrt | Rsqrt => {
                let s = self.b.map(Square, &[x]);
                let s = self.b.map_scalar(Add, s, 0.5);
                self.b.map(op, &[s])
            }
            Pow => {
                let s = self.b.map(Square, &[x]);
                let s = self.b.map_scalar(Add, s, 0.5);
                self.b.map_scalar(Pow, s, 1.5)
            }
            Floor | Ceil | Round | Rem => {
                let s = self.b.map_scalar(Mul, x, self.float(2.7));
                if op == Rem { self.b.map_scalar(Rem, s, 0.75) } else { self.b.map(op, &[s]) }
            }
            Div => {
                let s = self.b.map(Square, &[x]);
                let s = self.b.map_scalar(Add, s, 0.5);
                self.b.div(x, s)
            }
            op => self.b.map(op, &[x]),
        };
        self.push(v);
    }

    fn dot(&mut self) {
        let (x, y) = (self.any(), self.any());
        let shared: Vec<DimId> = self.b.dims(x).iter().copied().filter(|d| self.b.dims(y).contains(d)).collect();
        let n = self.rng.below(shared.len() + 1);
        let mut contract = shared;
        while contract.len() > n {
            let i = self.rng.below(contract.len());
            contract.remove(i);
        }
        if contract.is_empty() && self.b.graph.elements(&self.b.union(&[x, y])) > 2000 {
            return;
        }
        let v = self.b.dot(&contract, x, y, self.dtype);
        self.push(v);
    }

    fn window(&mut self, fold: bool) {
        let (x, d) = self.with_dim();
        let n = self.b.size(d);
        let axis = |offset, terms| WindowAxis { input: d, offset, dynamic: false, terms };
        let fill = if self.rng.below(2) == 0 || fold { 0.0 } else { 0.5 };
        match self.rng.below(5) {
            0 => {
                let by = self.rng.below(2 * n + 1) as i64 - n as i64;
                let v = if fold {
                    self.b.fold_window(vec![axis(-by, vec![(d, 1)])], x)
                } else {
                    self.b.shift(d, by, fill, x)
                };
                self.push(v);
            }
            1 => {
                let axes = vec![axis(n as i64 - 1, vec![(d, -1)])];
                let v = if fold { self.b.fold_window(axes, x) } else { self.b.window(axes, 0.0, x, &[]) };
                self.push(v);
            }
            2 if fold => {
                // An element put back to its place among zeros.
                let at = self.rng.below(n);
                let one = self.b.index(d, at, x);
                let v = self.b.fold_window(vec![axis(at as i64, vec![])], one);
                self.push(v);
            }
            2 => {
                let at = self.rng.below(n);
                let v = self.b.index(d, at, x);
                self.push(v);
            }
            3 if !fold => {
                let offset = self.index(n + 2);
                let other: Vec<DimId> = self.b.dims(offset).to_vec();
                let offset = self.b.reduce(ReduceKind::Max, &other, offset);
                let size = 1 + self.rng.below(n);
                let part = self.b.add_dim("part", size, false);
                let axes = vec![WindowAxis { input: d, offset: 0, dynamic: true, terms: vec![(part, 1)] }];
                let v = self.b.window(axes, 0.0, x, &[offset]);
                let v = self.b.sum(&[part], v);
                self.push(v);
            }
            _ => {
                // Windows of two dims, strided and dilated, partly outside; summed, or folded back.
                let (k, s, dil) = (1 + self.rng.below(3), 1 + self.rng.below(2), 1 + self.rng.below(2));
                let out = 1 + n / s;
                let (o, w) = (self.b.add_dim("out", out, false), self.b.add_dim("tap", k, false));
                let axes = vec![axis(-1, vec![(o, s as i64), (w, dil as i64)])];
                let windows = self.b.window(axes.clone(), if fold { 0.0 } else { fill }, x, &[]);
                let v = if fold {
                    let scaled = self.b.map(MapOp::Sin, &[windows]);
                    self.b.fold_window(axes, scaled)
                } else {
                    let v = self.b.sum(&[w], windows);
                    self.b.reduce(ReduceKind::Max, &[o], v)
                };
                self.push(v);
            }
        }
    }

    fn convolution(&mut self) {
        let (x, d) = self.with_dim();
        let n = self.b.size(d);
        let k = 1 + self.rng.below(n);
        let out = n - k + 1;
        let (o, w) = (self.b.add_dim("out", out, false), self.b.add_dim("tap", k, false));
        let channel = self.b.add_dim("channel", 3, false);
        let axes = vec![WindowAxis { input: d, offset: 0, dynamic: false, terms: vec![(o, 1), (w, 1)] }];
        let windows = self.b.window(axes, 0.0, x, &[]);
        let data: Vec<f64> = (0..k * 3).map(|_| self.rng.unit()).collect();
        let weights = self.b.elements(data, self.dtype, vec![w, channel]);
        let y = self.b.dot(&[w], windows, weights, self.dtype);
        let v = self.b.reduce(ReduceKind::Max, &[channel, o], y);
        self.push(v);
    }

    /// Attention and its gradient, by values that get the dims that it needs.
    fn attention(&mut self) {
        let at = self.rng.below(4);
        let (query, key) = (self.dims[at], self.twins[at]);
        let feature = self.dims[(at + 1 + self.rng.below(3)) % 4];
        let (x, y, z) = (self.any(), self.any(), self.any());
        let q = self.b.broadcast(x, &[query, feature]);
        let rows = self.b.dims(q).to_vec();
        if rows.contains(&key) || self.b.graph.elements(&rows) > 1000 {
            return;
        }
        let [keys, values] = [y, z].map(|v| {
            let v = self.b.broadcast(v, &[query, feature]);
            let more: Vec<DimId> = self.b.dims(v).iter().copied().filter(|d| !rows.contains(d)).collect();
            let v = self.b.sum(&more, v);
            self.b.rename(query, key, v)
        });
        let own = |m: &Self, v: ValueId| m.b.dims(v).iter().copied().filter(|d| *d != key).collect::<Vec<_>>();
        let shared = [own(self, keys), own(self, values)].concat();
        let mut args = vec![q, self.b.broadcast(keys, &shared), self.b.broadcast(values, &shared)];
        let mask = self.rng.below(2) == 0;
        if mask {
            let limit = self.b.scalar(0.1, self.dtype);
            let score = self.b.index(feature, 0, q);
            args.push(self.b.map(MapOp::Lt, &[score, limit]));
        }
        let a = Attention {
            query,
            key,
            feature,
            value: feature,
            scale: 0.7,
            cap: [0.0, 0.9][self.rng.below(2)],
            causal: self.rng.below(2) == 0,
            reach: [None, Some(2)][self.rng.below(2)],
            documents: false,
            mask,
            bias: false,
            first: false,
        };
        let [out, log] = self.b.attention(&a, &args);
        let position = self.b.scalar(self.rng.below(4) as f64, DType::I32);
        let later = self.b.attention(&Attention { first: true, ..a.clone() }, &[&args[..], &[position]].concat())[0];
        let g = self.b.map_scalar(MapOp::Mul, out, 0.5);
        args.extend([out, log, g]);
        let grads = self.b.attention_grad(&a, &args);
        for (n, v) in std::iter::once(out).chain(grads).chain([later]).enumerate() {
            // As it is, to be compared ..
            let exact = self.b.map(MapOp::Tanh, &[v]);
            let name = format!("attention{}.{n}", self.values.len());
            self.b.output(OutputKind::Value, &name, exact);
            // .. and even, to be used: elements may be equal but for the order of sums, which an arg min would tell apart.
            let even = if self.dtype == DType::F64 {
                let scaled = self.b.map_scalar(MapOp::Mul, v, 65536.0);
                let whole = self.b.map(MapOp::Round, &[scaled]);
                self.b.map_scalar(MapOp::Div, whole, 65536.0)
            } else {
                v
            };
            self.push(even);
        }
    }

    fn repeat(&mut self) {
        let (x, d) = self.with_dim();
        let first = self.b.index(d, 0, x);
        let reverse = self.rng.below(2) == 0;
        let y = self.any();
        let frame = self.b.begin_loop(d, reverse, &[first]);
        let turn = frame.turn;
        let carry = frame.carries[0];
        let row = self.b.gather(&[d], GatherMode::Error, x, &[turn]);
        let mixed = self.b.mul(carry, row);
        let noise = self.b.random(Dist::Uniform { lo: 0.0, hi: 1.0 }, 99, &[], &[turn]);
        let noise = self.b.cast(noise, self.dtype);
        let mixed = self.b.add(mixed, noise);
        let captured = self.b.map_scalar(MapOp::Mul, y, 0.5);
        let total: Vec<DimId> = self.b.dims(captured).to_vec();
        let s = self.b.sum(&total, captured);
        let next = self.b.sub(mixed, s);
        let next = self.b.map(MapOp::Tanh, &[next]);
        let collected = self.b.map(MapOp::Square, &[next]);
        let (finals, stacked) = self.b.end_loop(frame, &[next], &[collected, next]);
        self.push(finals[0]);
        self.push(stacked[0]);
        let v = self.b.map_scalar(MapOp::Mul, stacked[1], 2.0);
        self.push(v);
    }

    fn finish(mut self) -> Case {
        // Some values leave, some become new parameters and states of their shapes.
        let n = self.values.len();
        for (i, v) in self.values.clone().into_iter().enumerate() {
            if i + 4 >= n || self.rng.below(4) == 0 {
                self.b.output(OutputKind::Value, &format!("v{i}"), v);
            }
        }
        for p in 0..self.b.graph.params.len() {
            let old = self.b.param(ParamId(p as u32));
            let v = self.any();
            let dims: Vec<DimId> = self.b.dims(v).iter().copied().filter(|d| !self.b.dims(old).contains(d)).collect();
            let g = self.b.sum(&dims, v);
            let new = self.b.sub(old, g);
            self.b.output(OutputKind::Param(ParamId(p as u32)), "p", new);
        }
        for s in 0..self.b.graph.states.len() {
            let old = self.b.state(StateId(s as u32));
            let new = self.b.map_scalar(MapOp::Mul, old, 0.5);
            let v = if self.rng.below(2) == 0 {
                new
            } else {
                let dims: Vec<DimId> = self.b.dims(old).to_vec();
                let sum = self.b.sum(&dims, old);
                self.b.add(new, sum)
            };
            self.b.output(OutputKind::State(StateId(s as u32)), "s", v);
        }
        Case { graph: self.b.finish(), env: self.env, recipe: self.recipe }
    }
}
