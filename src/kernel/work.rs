//! How much a launch of a kernel does, for profiles: operations on floats, and bytes that it must touch.

use super::{ExprId, Index, Kernel, LoopId, Node, Pass, Statement};
use crate::program::Work;
use crate::types::DType;

impl Kernel {
    /// `elements`: of the buffer behind each argument. A function counts as one operation, whatever it is; an element that
    /// is loaded several times counts once where its address shows it.
    pub fn work(&self, elements: &[usize]) -> Work {
        let loops: Vec<Vec<LoopId>> = self.dependence();
        let rows: Vec<LoopId> = (0..self.rows as u32).map(LoopId).collect();
        let mut count = Count { kernel: self, loops: &loops, flops: 0.0, touched: vec![0.0; self.buffers.len()] };
        count.statements(&self.body, &rows);
        let bytes = self.buffers.iter().zip(elements).zip(&count.touched);
        Work {
            flops: count.flops as u64,
            bytes: bytes.map(|((b, n), touched)| touched.min(*n as f64) as u64 * b.dtype.bytes() as u64).sum(),
        }
    }

    /// The loops that each expression depends on, by [`ExprId`].
    fn dependence(&self) -> Vec<Vec<LoopId>> {
        let mut all: Vec<Vec<LoopId>> = Vec::with_capacity(self.exprs.len());
        for expr in &self.exprs {
            let mut own: Vec<LoopId> = Vec::new();
            let index = |at: &Index, own: &mut Vec<LoopId>| {
                own.extend(at.loops.iter().map(|(l, _)| *l));
                at.exprs.iter().for_each(|(e, _)| own.extend(&all[e.index()]));
            };
            match &expr.node {
                Node::Index(at) | Node::Random { counter: at, .. } => index(at, &mut own),
                Node::Load { at, when, .. } => {
                    index(at, &mut own);
                    when.iter().for_each(|e| own.extend(&all[e.index()]));
                }
                Node::Map(_, args) => args.iter().for_each(|e| own.extend(&all[e.index()])),
                Node::Check { index, .. } => own.extend(&all[index.index()]),
                // Registers change from row to row, and from turn to turn of the loops around their pass.
                Node::Register(_) => own.extend((0..self.rows as u32).map(LoopId)),
                Node::Const(_) => {}
            }
            own.sort_unstable();
            own.dedup();
            all.push(own);
        }
        all
    }
}

struct Count<'k> {
    kernel: &'k Kernel,
    loops: &'k [Vec<LoopId>],
    flops: f64,
    /// Elements of each buffer.
    touched: Vec<f64>,
}

impl Count<'_> {
    fn statements(&mut self, body: &[Statement], around: &[LoopId]) {
        for statement in body {
            match statement {
                Statement::For { index, body } => {
                    let inner: Vec<LoopId> = around.iter().copied().chain([*index]).collect();
                    self.statements(body, &inner);
                }
                Statement::Pass(pass) => {
                    let inner: Vec<LoopId> = around.iter().copied().chain(pass.loops.iter().copied()).collect();
                    self.pass(pass, &inner);
                }
            }
        }
    }

    fn turns(&self, loops: &[LoopId]) -> f64 {
        loops.iter().map(|l| self.kernel.extents[l.index()] as f64).product()
    }

    fn pass(&mut self, pass: &Pass, around: &[LoopId]) {
        let all = self.turns(around);
        self.flops += all * (pass.reductions.len() + pass.carries.len()) as f64;
        for e in self.kernel.needed(pass) {
            let expr = self.kernel.expr(e);
            let inside: Vec<LoopId> = self.loops[e.index()].iter().copied().filter(|l| around.contains(l)).collect();
            match &expr.node {
                Node::Map(..) if expr.dtype.is_float() || expr.dtype == DType::Bool => {
                    self.flops += self.turns(&inside);
                }
                Node::Load { buffer, at, .. } => self.touch(*buffer, at),
                _ => {}
            }
        }
        for store in &pass.stores {
            self.touch(store.buffer, &store.at);
        }
    }

    /// Elements at distinct addresses of one access; of several accesses to a buffer the largest counts.
    fn touch(&mut self, buffer: super::ArgId, at: &Index) {
        let mut loops: Vec<LoopId> = at.loops.iter().map(|(l, _)| *l).collect();
        at.exprs.iter().for_each(|(e, _): &(ExprId, i64)| loops.extend(&self.loops[e.index()]));
        loops.sort_unstable();
        loops.dedup();
        let turns = self.turns(&loops);
        let touched = &mut self.touched[buffer.index()];
        *touched = touched.max(turns);
    }
}
