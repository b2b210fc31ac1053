//! Random loop nests, with reductions, carries, guards and scattered accesses, in machine code of every generator against
//! the plain reading of the kernel IR.

#[path = "support/plain.rs"]
mod plain;
#[path = "support/kernel.rs"]
mod support;

use partita::kernel::*;
use partita::program::Access;
use partita::types::rng::{self, Dist};
use partita::types::{DType, MapOp, ReduceKind};
use plain::Plain;
use support::{pack, run, run_pieces, unpack, with_each_generator};

struct Draw {
    key: u64,
    count: u64,
}

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.count += 1;
        rng::draw_int(n as u32, self.key, self.count) as usize
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

struct Nest {
    draw: Draw,
    kernel: Kernel,
    data: Vec<Vec<u8>>,
}

impl Nest {
    fn expr(&mut self, node: Node, dtype: DType) -> ExprId {
        self.kernel.exprs.push(Expr { node, dtype });
        ExprId(self.kernel.exprs.len() as u32 - 1)
    }

    fn map(&mut self, op: MapOp, args: &[ExprId], dtype: DType) -> ExprId {
        self.expr(Node::Map(op, args.to_vec()), dtype)
    }

    /// An index that walks these loops in a random order of memory, and the number of its elements.
    fn walk(&mut self, loops: &[usize]) -> (Index, usize) {
        let mut rest = loops.to_vec();
        let (mut step, mut terms) = (1, Vec::new());
        while !rest.is_empty() {
            let l = rest.remove(self.draw.below(rest.len()));
            terms.push((LoopId(l as u32), step as i64));
            step *= self.kernel.extents[l];
        }
        terms.sort_unstable();
        (Index { base: 0, loops: terms, exprs: vec![] }, step)
    }

    fn buffer(&mut self, dtype: DType, access: Access, elements: usize) -> ArgId {
        self.kernel.buffers.push(KernelBuffer { dtype, access });
        let seed = self.kernel.buffers.len() as u64;
        let values: Vec<f64> = (0..elements as u64)
            .map(|i| {
                let x = f64::from(rng::draw(Dist::Normal { std: 1.0 }, self.draw.key ^ (seed << 32) | 1, i));
                match dtype {
                    _ if access == Access::Write => 0.0,
                    DType::Bool => f64::from(u8::from(x > 0.3)),
                    DType::I32 => (x * 3.0).round(),
                    _ => x,
                }
            })
            .collect();
        self.data.push(pack(dtype, &values));
        ArgId(self.kernel.buffers.len() as u32 - 1)
    }

    /// A float that depends on some of these loops.
    fn load(&mut self, loops: &[usize]) -> ExprId {
        let some: Vec<usize> = loops.iter().copied().filter(|_| self.draw.below(4) != 0).collect();
        let dtype = self.draw.of(&[DType::F32, DType::F32, DType::BF16, DType::F16, DType::I32, DType::Bool]);
        let (mut at, n) = self.walk(&some);
        let buffer = self.buffer(dtype, Access::Read, n);
        let (mut when, mut fill) = (None, 0.0);
        if let Some((l, step)) = at.loops.first().copied() {
            match self.draw.below(4) {
                // Shifted by one turn, with something else where that is out of bounds.
                0 => {
                    at.base -= step;
                    let index = self.expr(Node::Index(Index::of_loop(l)), DType::I32);
                    let one = self.expr(Node::Const(1.0), DType::I32);
                    when = Some(self.map(MapOp::Ge, &[index, one], DType::Bool));
                    fill = self.draw.of(&[0.0, 1.0]);
                }
                // At an index that is loaded, which is often out of bounds.
                1 => {
                    let elements = self.kernel.extents[l.index()];
                    let indices = self.buffer(DType::I32, Access::Read, elements);
                    let loaded = self
                        .expr(Node::Load { buffer: indices, at: Index::of_loop(l), when: None, fill: 0.0 }, DType::I32);
                    let checked = self.expr(Node::Check { index: loaded, size: elements, site: 1 }, DType::I32);
                    at.loops.retain(|(x, _)| *x != l);
                    at.exprs.push((checked, step));
                }
                // Backwards.
                2 => {
                    at.base += step * (self.kernel.extents[l.index()] as i64 - 1);
                    at.loops[0].1 = -step;
                }
                _ => {}
            }
        }
        let loaded = self.expr(Node::Load { buffer, at, when, fill }, dtype);
        if dtype == DType::F32 { loaded } else { self.map(MapOp::Cast(DType::F32), &[loaded], DType::F32) }
    }

    /// A float over these loops and the floats that are known.
    fn value(&mut self, loops: &[usize], known: &[ExprId]) -> ExprId {
        let mut all: Vec<ExprId> = (0..1 + self.draw.below(3)).map(|_| self.load(loops)).collect();
        all.extend(known);
        for _ in 0..self.draw.below(6) {
            let op =
                self.draw.of(&[MapOp::Add, MapOp::Sub, MapOp::Mul, MapOp::Max, MapOp::Min, MapOp::Sigmoid, MapOp::Neg]);
            let args: Vec<ExprId> = (0..op.arity()).map(|_| self.draw.of(&all)).collect();
            let e = self.map(op, &args, DType::F32);
            // Bounded, so that rounding stays small beside the numbers.
            all.push(if op == MapOp::Mul { self.map(MapOp::Sigmoid, &[e], DType::F32) } else { e });
        }
        *all.last().expect("there is one")
    }

    fn register(&mut self) -> RegisterId {
        self.kernel.registers.push(DType::F32);
        RegisterId(self.kernel.registers.len() as u32 - 1)
    }
}

fn nest(seed: u64) -> Nest {
    let draw = Draw { key: rng::stream("nest") ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, count: 0 };
    let mut n = Nest { draw, kernel: Kernel { name: format!("nest {seed}"), ..Kernel::default() }, data: Vec::new() };
    let (rows, inner) = (n.draw.below(3), 1 + n.draw.below(2));
    let sizes = [1, 2, 3, 5, 9, 16, 17, 33, 70, 130];
    // The number of elements stays small.
    let mut left = 4000;
    for _ in 0..rows + inner {
        let fitting: Vec<usize> = sizes.iter().copied().filter(|s| *s <= left).collect();
        let size = n.draw.of(&fitting);
        left /= size;
        n.kernel.extents.push(size);
    }
    n.kernel.rows = rows;
    let row_loops: Vec<usize> = (0..rows).collect();
    let all_loops: Vec<usize> = (0..rows + inner).collect();
    let loops: Vec<LoopId> = (rows..rows + inner).map(|l| LoopId(l as u32)).collect();
    let mut known = Vec::new();
    for turn in 0..1 + n.draw.below(3) {
        let mut pass = Pass { loops: loops.clone(), ..Pass::default() };
        let before = known.clone();
        for _ in 0..1 + n.draw.below(3) {
            let kind = n.draw.of(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min]);
            let value = n.value(&all_loops, &before);
            let register = n.register();
            pass.reductions.push(Reduction { register, kind, value });
            known.push(n.expr(Node::Register(register), DType::F32));
        }
        if n.draw.below(5) == 0 {
            let (register, value) = (n.register(), n.value(&all_loops, &before));
            let initial = n.value(&row_loops, &before);
            let old = n.expr(Node::Register(register), DType::F32);
            let greater = n.map(MapOp::Gt, &[value, old], DType::Bool);
            let next = n.map(MapOp::Where, &[greater, value, old], DType::F32);
            pass.carries.push(Carry { register, initial, next });
            known.push(old);
        }
        if n.draw.below(2) == 0 || turn > 0 {
            let value = n.value(&all_loops, &before);
            let (at, size) = n.walk(&all_loops);
            let dtype = n.draw.of(&[DType::F32, DType::F32, DType::BF16, DType::F16]);
            let buffer = n.buffer(dtype, Access::Write, size);
            let zero = n.expr(Node::Const(0.0), DType::F32);
            let positive = n.map(MapOp::Gt, &[value, zero], DType::Bool);
            let when = (n.draw.below(3) == 0).then_some(positive);
            pass.stores.push(Store { buffer, at, value, when });
        }
        n.kernel.body.push(Statement::Pass(pass));
    }
    let value = n.value(&row_loops, &known.clone());
    let (at, size) = n.walk(&row_loops);
    let buffer = n.buffer(DType::F32, Access::Write, size);
    n.kernel
        .body
        .push(Statement::Pass(Pass { stores: vec![Store { buffer, at, value, when: None }], ..Pass::default() }));
    n
}

fn random_nests() {
    for seed in 0..250 {
        let Nest { kernel, data, .. } = nest(seed);
        let mut plain = Plain::new(&kernel, &data, &[]);
        plain.run();
        let mut whole = data.clone();
        run(&kernel, &mut whole, &[]);
        let (mut all, mut wrong) = (0, 0);
        for (k, b) in kernel.buffers.iter().enumerate().filter(|(_, b)| b.access == Access::Write) {
            let tolerance = if b.dtype == DType::F32 { 1e-3 } else { 2e-2 };
            for (got, want) in unpack(b.dtype, &whole[k]).iter().zip(&plain.buffers[k]) {
                all += 1;
                wrong +=
                    usize::from((got - want).abs().is_nan() || (got - want).abs() > tolerance * want.abs().max(1.0));
            }
        }
        // A guard may fall on either side after different roundings.
        assert!(wrong * 50 <= all, "seed {seed}: {wrong} of {all} elements are wrong\n{kernel}");
        let rows = kernel.row_count();
        let mut parts = data.clone();
        run_pieces(&kernel, &mut parts, &[], &[(rows / 3, rows), (0, rows / 3)]);
        assert!(whole == parts, "seed {seed}: pieces of rows differ from the whole\n{kernel}");
    }
}

#[test]
fn random_nests_by_each_generator() {
    with_each_generator(random_nests);
}
