//! Evaluates routines plainly, in f64: what lowering is tested with, before any machine code exists.

mod attention;

use super::*;
use crate::program::{self, Action, BufferId, Gemm, Launch, Library, Place, Program, Routine, Step};
use crate::types::{ReduceKind, rng};
use std::collections::HashMap;

/// Memory as numbers: one array per root buffer.
pub struct Machine<'a> {
    pub program: &'a Program,
    pub kernels: &'a [Kernel],
    pub routine: &'a Routine,
    pub params: Vec<Vec<f64>>,
    pub states: Vec<Vec<f64>>,
    pub inputs: Vec<Vec<f64>>,
    /// Temporaries of a routine without places.
    pub temporaries: HashMap<BufferId, Vec<f64>>,
    /// The arena of a planned routine: for each byte, the element that was written there last.
    pub arena: HashMap<usize, (BufferId, usize, f64)>,
    pub seed: u64,
    pub step: i32,
    pub position: i32,
    pub reports: Vec<(u32, i64)>,
}

impl Machine<'_> {
    fn place(&self, b: BufferId) -> (BufferId, i64) {
        match self.routine.buffer(b).place {
            Place::Slice { base, turn, offset, stride } => {
                let (root, at) = self.place(base);
                let bytes = self.routine.buffer(b).dtype.bytes() as i64;
                (root, at + (offset + stride * self.get(turn, 0) as i64) / bytes)
            }
            _ => (b, 0),
        }
    }

    pub fn get(&self, b: BufferId, i: i64) -> f64 {
        let (root, at) = self.place(b);
        let i = usize::try_from(i + at).expect("in range");
        let buffer = self.routine.buffer(root);
        match buffer.place {
            Place::Strip | Place::Host(_) | Place::Arena(usize::MAX) => {
                self.temporaries.get(&root).expect("written before")[i]
            }
            Place::Arena(at) => {
                let size = buffer.dtype.bytes();
                let mut bytes = (at + i * size..at + (i + 1) * size).map(|b| self.arena.get(&b));
                let (owner, index, x) =
                    bytes.next().flatten().unwrap_or_else(|| panic!("{root}[{i}] was never written"));
                let whole = bytes.all(|b| b.is_some_and(|(o, n, _)| (o, n) == (owner, index)));
                assert!(whole && (*owner, *index) == (root, i), "{root}[{i}] was overwritten by {owner}[{index}]");
                *x
            }
            Place::Param(n) => self.params[n as usize][i],
            Place::State(n) => self.states[n as usize][i],
            Place::Input(n) => self.inputs[n as usize][i],
            Place::Constant(at) => constant(&self.program.constants[at..], buffer.dtype, i),
            Place::Step => f64::from(self.step),
            Place::Position => f64::from(self.position),
            // One rank.
            Place::Coordinate(_) => 0.0,
            Place::Argument(_) => unreachable!("functions of pipelines run in `tests/ranks.rs`"),
            Place::Slice { .. } => unreachable!("resolved"),
        }
    }

    fn set(&mut self, b: BufferId, i: i64, x: f64) {
        let (root, at) = self.place(b);
        let buffer = self.routine.buffer(root);
        let i = usize::try_from(i + at).expect("in range");
        let array = match buffer.place {
            Place::Arena(at) if at != usize::MAX => {
                let size = buffer.dtype.bytes();
                assert!(at + (i + 1) * size <= self.routine.arena);
                let x = crate::interp::round(buffer.dtype, x);
                (at + i * size..at + (i + 1) * size).for_each(|b| {
                    self.arena.insert(b, (root, i, x));
                });
                return;
            }
            Place::Strip | Place::Host(_) | Place::Arena(_) => {
                self.temporaries.entry(root).or_insert_with(|| vec![f64::NAN; buffer.elements])
            }
            Place::Param(n) => &mut self.params[n as usize],
            Place::State(n) => &mut self.states[n as usize],
            other => panic!("{other:?} is written"),
        };
        array[i] = crate::interp::round(buffer.dtype, x);
    }

    pub fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match &step.action {
                Action::Launch(launch) => self.launch(launch),
                Action::Gemm(gemm) => self.gemm(gemm),
                Action::Finished(f) => {
                    self.gemm(&f.gemm);
                    self.launch(&f.launch);
                }
                Action::Copy { from, to } => self.copy(*from, *to),
                Action::Library(library) => self.library(library),
                Action::Collective(_)
                | Action::Wait(_)
                | Action::Call(_)
                | Action::Send(_)
                | Action::Receive(_)
                | Action::Sent(_) => {
                    unreachable!("programs of many ranks run in `tests/ranks.rs`")
                }
                Action::Loop(l) => {
                    for i in 0..l.trip {
                        let turn = if l.reverse { l.trip - 1 - i } else { i };
                        self.set(l.turn, 0, turn as f64);
                        self.run(&l.body);
                        for (from, to) in &l.moves {
                            self.copy(*from, *to);
                        }
                    }
                }
            }
        }
    }

    fn copy(&mut self, from: BufferId, to: BufferId) {
        let n = self.routine.buffer(to).elements;
        assert_eq!(n, self.routine.buffer(from).elements);
        for i in 0..n as i64 {
            let x = self.get(from, i);
            self.set(to, i, x);
        }
    }

    fn key(&self, key: &program::Key) -> u64 {
        let turns: Vec<i32> = key.turns.iter().map(|t| self.get(*t, 0) as i32).collect();
        rng::key(self.seed, self.step as u64, key.stream, rng::turns(&turns))
    }

    fn scalar(&self, scalar: &program::Scalar) -> u64 {
        match scalar {
            program::Scalar::Key(key) => self.key(key),
            // One rank.
            program::Scalar::Origin(_) => 0,
        }
    }

    fn launch(&mut self, launch: &Launch) {
        let kernel = &self.kernels[launch.function as usize];
        assert_eq!(kernel.row_count(), launch.rows);
        let scalars: Vec<u64> = launch.scalars.iter().map(|s| self.scalar(s)).collect();
        let buffers: Vec<BufferId> = launch.args.iter().map(|a| a.buffer).collect();
        // Rows from last to first: none may depend on an earlier one.
        for row in (0..launch.rows).rev() {
            let mut run = Run {
                machine: self,
                kernel,
                buffers: &buffers,
                scalars: &scalars,
                at: vec![0; kernel.extents.len()],
                registers: vec![0.0; kernel.registers.len()],
            };
            let mut rest = row;
            for l in (0..kernel.rows).rev() {
                run.at[l] = (rest % kernel.extents[l]) as i64;
                rest /= kernel.extents[l];
            }
            run.statements(&kernel.body);
        }
    }

    fn gemm(&mut self, g: &Gemm) {
        let mut batch = vec![0; g.batch.len()];
        loop {
            let offset = |f: fn(&program::BatchDim) -> isize, at: &[usize], dims: &[program::BatchDim]| -> i64 {
                at.iter().zip(dims).map(|(i, d)| *i as i64 * f(d) as i64).sum()
            };
            let (oa, ob, oc) = (
                offset(|d| d.a, &batch, &g.batch),
                offset(|d| d.b, &batch, &g.batch),
                offset(|d| d.c, &batch, &g.batch),
            );
            for i in 0..g.m as i64 {
                for j in 0..g.n as i64 {
                    let to = g.c.offset as i64 + oc + i * g.c.rows as i64 + j * g.c.cols as i64;
                    let mut sum = if g.accumulate { self.get(g.c.buffer, to) } else { 0.0 };
                    let mut sums = vec![0; g.sums.len()];
                    loop {
                        let (sa, sb) = (offset(|d| d.a, &sums, &g.sums), offset(|d| d.b, &sums, &g.sums));
                        for k in 0..g.k as i64 {
                            let a = g.a.offset as i64 + oa + sa + i * g.a.rows as i64 + k * g.a.cols as i64;
                            let b = g.b.offset as i64 + ob + sb + k * g.b.rows as i64 + j * g.b.cols as i64;
                            sum += self.get(g.a.buffer, a) * self.get(g.b.buffer, b);
                        }
                        if !advance(&mut sums, &g.sums) {
                            break;
                        }
                    }
                    self.set(g.c.buffer, to, sum);
                }
            }
            if !advance(&mut batch, &g.batch) {
                return;
            }
        }
    }

    fn library(&mut self, library: &Library) {
        match *library {
            Library::ArgSort { x, out, rows, n } => self.sorted(x, out, rows, n, n, false),
            Library::TopK { x, out, rows, n, k } => self.sorted(x, out, rows, n, k, true),
            Library::PackPlace { index, out, rows, n, limit } => {
                for r in 0..rows {
                    let row: Vec<i64> = (0..n).map(|i| self.get(index, (r * n + i) as i64) as i64).collect();
                    for i in 0..n {
                        let before = row[..i].iter().filter(|e| **e == row[i]).count();
                        let full = row[i] < 0 || before >= limit;
                        self.set(out, (r * n + i) as i64, if full { -1.0 } else { before as f64 });
                    }
                }
            }
            Library::Attention(ref a) => self.attention(a),
            Library::AttentionGrad(ref g) => self.attention_grad(g),
            Library::Draw { .. } => unreachable!("draws of classes run in `tests/exec.rs`"),
            Library::Random { out, dist, ref key } => {
                let key = self.key(key);
                for i in 0..self.routine.buffer(out).elements {
                    self.set(out, i as i64, f64::from(rng::draw(dist, key, i as u64)));
                }
            }
            Library::Scatter { kind, x, index, out, batch, m, targets, width, times, each, add } => {
                let dtype = self.routine.buffer(out).dtype;
                let start = match kind {
                    ReduceKind::Sum => 0.0,
                    ReduceKind::Max if dtype == DType::I32 => f64::from(i32::MIN),
                    ReduceKind::Min if dtype == DType::I32 => f64::from(i32::MAX),
                    ReduceKind::Max => f64::NEG_INFINITY,
                    _ => f64::INFINITY,
                };
                let mut all = vec![start; batch * targets * width];
                if add {
                    all.iter_mut().enumerate().for_each(|(i, value)| *value = self.get(out, i as i64));
                }
                for b in 0..batch {
                    for i in 0..m {
                        let t = self.get(index, (b * m + i) as i64);
                        if t < 0.0 {
                            continue;
                        }
                        for w in 0..width {
                            let row = b * m / times + i / (each * times) * each + i % each;
                            let value = self.get(x, (row * width + w) as i64);
                            let cell = &mut all[(b * targets + t as usize) * width + w];
                            *cell = reduce(kind, *cell, value);
                        }
                    }
                }
                for (i, value) in all.into_iter().enumerate() {
                    self.set(out, i as i64, value);
                }
            }
        }
    }

    fn sorted(&mut self, x: BufferId, out: BufferId, rows: usize, n: usize, k: usize, descending: bool) {
        for r in 0..rows {
            let row: Vec<f64> = (0..n).map(|i| self.get(x, (r * n + i) as i64)).collect();
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|a, b| {
                let by = row[*a].partial_cmp(&row[*b]).expect("numbers");
                if descending { by.reverse() } else { by }
            });
            for (place, i) in order.into_iter().take(k).enumerate() {
                self.set(out, (r * k + place) as i64, i as f64);
            }
        }
    }
}

fn advance(at: &mut [usize], dims: &[program::BatchDim]) -> bool {
    for (i, d) in at.iter_mut().zip(dims).rev() {
        *i += 1;
        if *i < d.extent {
            return true;
        }
        *i = 0;
    }
    false
}

fn constant(bytes: &[u8], dtype: DType, i: usize) -> f64 {
    let n = dtype.bytes();
    let b = &bytes[i * n..(i + 1) * n];
    match dtype {
        DType::Bool => f64::from(b[0]),
        DType::I32 => f64::from(i32::from_le_bytes(b.try_into().expect("four"))),
        DType::F16 => half::f16::from_le_bytes(b.try_into().expect("two")).to_f64(),
        DType::BF16 => half::bf16::from_le_bytes(b.try_into().expect("two")).to_f64(),
        DType::F32 => f64::from(f32::from_le_bytes(b.try_into().expect("four"))),
        DType::F64 => f64::from_le_bytes(b.try_into().expect("eight")),
    }
}

fn reduce(kind: ReduceKind, a: f64, x: f64) -> f64 {
    match kind {
        ReduceKind::Sum => a + x,
        ReduceKind::Prod => a * x,
        ReduceKind::Max => {
            if x > a || x.is_nan() {
                x
            } else {
                a
            }
        }
        ReduceKind::Min => {
            if x < a || x.is_nan() {
                x
            } else {
                a
            }
        }
        ReduceKind::Any => f64::from(a != 0.0 || x != 0.0),
        ReduceKind::All => f64::from(a != 0.0 && x != 0.0),
        ReduceKind::ArgMax | ReduceKind::ArgMin => panic!("{kind:?} in a kernel"),
    }
}

fn neutral(kind: ReduceKind, dtype: DType) -> f64 {
    match kind {
        ReduceKind::Sum | ReduceKind::Any => 0.0,
        ReduceKind::Prod | ReduceKind::All => 1.0,
        ReduceKind::Max if dtype == DType::I32 => f64::from(i32::MIN),
        ReduceKind::Min if dtype == DType::I32 => f64::from(i32::MAX),
        ReduceKind::Max => f64::NEG_INFINITY,
        _ => f64::INFINITY,
    }
}

struct Run<'r, 'a> {
    machine: &'r mut Machine<'a>,
    kernel: &'r Kernel,
    buffers: &'r [BufferId],
    scalars: &'r [u64],
    at: Vec<i64>,
    registers: Vec<f64>,
}

impl Run<'_, '_> {
    fn statements(&mut self, body: &[Statement]) {
        for statement in body {
            match statement {
                Statement::For { index, body } => {
                    for i in 0..self.kernel.extents[index.index()] {
                        self.at[index.index()] = i as i64;
                        self.statements(body);
                    }
                    self.at[index.index()] = 0;
                }
                Statement::Pass(pass) => self.pass(pass),
            }
        }
    }

    fn pass(&mut self, pass: &Pass) {
        for c in &pass.carries {
            self.registers[c.register.index()] = self.expr(c.initial);
        }
        let mut sums: Vec<f64> =
            pass.reductions.iter().map(|r| neutral(r.kind, self.kernel.registers[r.register.index()])).collect();
        let total: usize = pass.loops.iter().map(|l| self.kernel.extents[l.index()]).product();
        for i in 0..total {
            let mut rest = i;
            for l in pass.loops.iter().rev() {
                let n = self.kernel.extents[l.index()];
                self.at[l.index()] = (rest % n) as i64;
                rest /= n;
            }
            let next: Vec<f64> = pass.carries.iter().map(|c| self.expr(c.next)).collect();
            for (sum, r) in sums.iter_mut().zip(&pass.reductions) {
                let x = self.expr(r.value);
                *sum = reduce(r.kind, *sum, x);
                if self.kernel.registers[r.register.index()] == DType::I32 {
                    *sum = crate::interp::round(DType::I32, *sum);
                }
            }
            let stores: Vec<Option<(BufferId, i64, f64)>> = pass
                .stores
                .iter()
                .map(|s| {
                    let on = s.when.is_none_or(|w| self.expr(w) != 0.0);
                    on.then(|| (self.buffers[s.buffer.index()], self.index(&s.at), self.expr(s.value)))
                })
                .collect();
            for (buffer, at, x) in stores.into_iter().flatten() {
                self.machine.set(buffer, at, x);
            }
            for (c, x) in pass.carries.iter().zip(next) {
                self.registers[c.register.index()] = x;
            }
        }
        for (sum, r) in sums.into_iter().zip(&pass.reductions) {
            self.registers[r.register.index()] = sum;
        }
    }

    fn index(&mut self, index: &Index) -> i64 {
        let mut at = index.base;
        for (l, k) in &index.loops {
            at += self.at[l.index()] * k;
        }
        for (e, k) in &index.exprs {
            at += self.expr(*e) as i64 * k;
        }
        at
    }

    fn expr(&mut self, id: ExprId) -> f64 {
        let Expr { node, dtype } = self.kernel.expr(id).clone();
        match node {
            Node::Const(x) => crate::interp::round(dtype, x),
            Node::Index(index) => self.index(&index) as f64,
            Node::Load { buffer, at, when, fill } => {
                if when.is_some_and(|w| self.expr(w) == 0.0) {
                    return fill;
                }
                let at = self.index(&at);
                self.machine.get(self.buffers[buffer.index()], at)
            }
            Node::Map(op, args) => {
                let xs: Vec<f64> = args.iter().map(|a| self.expr(*a)).collect();
                let from = self.kernel.expr(args[args.len() - 1]).dtype;
                crate::interp::eval_map(op, wide(from), &xs)
            }
            Node::Register(r) => self.registers[r.index()],
            Node::Random { dist, key, counter, origin } => {
                let first = origin.map_or(0, |n| self.scalars[n as usize]);
                let at = (self.index(&counter) as u64).wrapping_add(first);
                let key = self.scalars[key as usize];
                match dist {
                    Dist::RandInt { n } => f64::from(rng::draw_int(n, key, at)),
                    _ => f64::from(rng::draw(dist, key, at)),
                }
            }
            Node::Check { index, size, site } => {
                let i = self.expr(index) as i64;
                if (0..size as i64).contains(&i) {
                    i as f64
                } else {
                    self.machine.reports.push((site, i));
                    0.0
                }
            }
        }
    }
}

/// The type that arithmetic on a type happens in; the evaluator does not model rounding of f32.
fn wide(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { dtype }
}
