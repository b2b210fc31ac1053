//! Runs kernels plainly, by the letter of the kernel IR.

use super::support::unpack;
use partita::interp::{eval_map, round};
use partita::kernel::*;
use partita::types::rng::{self, Dist};
use partita::types::{DType, MapOp, ReduceKind};

/// The plain reading of the kernel IR; values are f64, rounded to each expression's type.
pub struct Plain<'a> {
    pub kernel: &'a Kernel,
    pub buffers: Vec<Vec<f64>>,
    pub keys: Vec<u64>,
    index: Vec<usize>,
    registers: Vec<f64>,
}

impl<'a> Plain<'a> {
    pub fn new(kernel: &'a Kernel, buffers: &[Vec<u8>], keys: &[u64]) -> Plain<'a> {
        Plain {
            kernel,
            buffers: kernel.buffers.iter().zip(buffers).map(|(b, bytes)| unpack(b.dtype, bytes)).collect(),
            keys: keys.to_vec(),
            index: vec![0; kernel.extents.len()],
            registers: vec![0.0; kernel.registers.len()],
        }
    }

    pub fn run(&mut self) {
        for row in 0..self.kernel.row_count() {
            let mut rest = row;
            for n in (0..self.kernel.rows).rev() {
                self.index[n] = rest % self.kernel.extents[n];
                rest /= self.kernel.extents[n];
            }
            let kernel = self.kernel;
            self.statements(&kernel.body);
        }
    }

    fn statements(&mut self, body: &[Statement]) {
        for statement in body {
            match statement {
                Statement::For { index, body } => {
                    for i in 0..self.kernel.extents[index.index()] {
                        self.index[index.index()] = i;
                        self.statements(body);
                    }
                }
                Statement::Pass(pass) => {
                    for c in &pass.carries {
                        self.registers[c.register.index()] = self.eval(c.initial);
                    }
                    for r in &pass.reductions {
                        let int = self.kernel.registers[r.register.index()] == DType::I32;
                        self.registers[r.register.index()] = match r.kind {
                            ReduceKind::Sum | ReduceKind::Any => 0.0,
                            ReduceKind::Prod | ReduceKind::All => 1.0,
                            ReduceKind::Max => {
                                if int {
                                    f64::from(i32::MIN)
                                } else {
                                    f64::NEG_INFINITY
                                }
                            }
                            ReduceKind::Min => {
                                if int {
                                    f64::from(i32::MAX)
                                } else {
                                    f64::INFINITY
                                }
                            }
                            ReduceKind::ArgMax | ReduceKind::ArgMin => unreachable!(),
                        };
                    }
                    self.nest(pass, 0);
                }
            }
        }
    }

    fn nest(&mut self, pass: &Pass, level: usize) {
        if let Some(l) = pass.loops.get(level) {
            for i in 0..self.kernel.extents[l.index()] {
                self.index[l.index()] = i;
                self.nest(pass, level + 1);
            }
            return;
        }
        let next: Vec<f64> = pass.carries.iter().map(|c| self.eval(c.next)).collect();
        let values: Vec<f64> = pass.reductions.iter().map(|r| self.eval(r.value)).collect();
        let stores: Vec<(usize, usize, f64)> = pass
            .stores
            .iter()
            .filter(|s| s.when.is_none_or(|w| self.eval(w) != 0.0))
            .map(|s| {
                let value = round(self.kernel.buffers[s.buffer.index()].dtype, self.eval(s.value));
                (s.buffer.index(), self.at(&s.at) as usize, value)
            })
            .collect();
        for (buffer, at, value) in stores {
            self.buffers[buffer][at] = value;
        }
        for (c, value) in pass.carries.iter().zip(next) {
            self.registers[c.register.index()] = value;
        }
        for (r, value) in pass.reductions.iter().zip(values) {
            let dtype = self.kernel.registers[r.register.index()];
            let op = match r.kind {
                ReduceKind::Sum => MapOp::Add,
                ReduceKind::Prod => MapOp::Mul,
                ReduceKind::Max => MapOp::Max,
                ReduceKind::Min => MapOp::Min,
                ReduceKind::Any => MapOp::Or,
                ReduceKind::All => MapOp::And,
                ReduceKind::ArgMax | ReduceKind::ArgMin => unreachable!(),
            };
            let wide = if dtype.is_float() { DType::F64 } else { dtype };
            let slot = &mut self.registers[r.register.index()];
            *slot = eval_map(op, wide, &[*slot, value]);
        }
    }

    fn at(&self, index: &Index) -> i64 {
        let loops: i64 = index.loops.iter().map(|(l, c)| self.index[l.index()] as i64 * c).sum();
        let exprs: i64 = index.exprs.iter().map(|(e, c)| self.eval(*e) as i64 * c).sum();
        index.base + loops + exprs
    }

    fn eval(&self, id: ExprId) -> f64 {
        let expr = self.kernel.expr(id);
        match &expr.node {
            Node::Const(x) => round(expr.dtype, *x),
            Node::Index(index) => round(DType::I32, self.at(index) as f64),
            Node::Load { buffer, at, when, fill } => {
                if when.is_none_or(|w| self.eval(w) != 0.0) {
                    self.buffers[buffer.index()][self.at(at) as usize]
                } else {
                    round(self.kernel.buffers[buffer.index()].dtype, *fill)
                }
            }
            Node::Map(op, args) => {
                let x: Vec<f64> = args.iter().map(|a| self.eval(*a)).collect();
                let dtype = self.kernel.expr(*args.last().unwrap()).dtype;
                // 16-bit floats are computed in f32.
                let dtype = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
                eval_map(*op, dtype, &x)
            }
            Node::Register(r) => self.registers[r.index()],
            Node::Random { dist, key, counter, origin } => {
                let first = origin.map_or(0, |n| self.keys[n as usize]);
                let (key, at) = (self.keys[*key as usize], (self.at(counter) as u64).wrapping_add(first));
                match dist {
                    Dist::RandInt { n } => f64::from(rng::draw_int(*n, key, at)),
                    _ => f64::from(rng::draw(*dist, key, at)),
                }
            }
            Node::Check { index, size, .. } => {
                let i = self.eval(*index);
                if i >= 0.0 && (i as usize) < *size { i } else { 0.0 }
            }
        }
    }
}
