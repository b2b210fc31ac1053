//! Matrix products: the dims of a contraction become m, n, k and batch loops with strides, without copies where possible.

use super::{Lowerer, Status};
use crate::ir::*;
use crate::program::{Action, BatchDim, Gemm, Matrix, Step};

/// One loop of a product: extent and strides in a, b, c. An array that has no layout yet has no strides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    extent: usize,
    strides: [Option<i64>; 3],
}

/// A product's loops, neighbours merged; of m, n and k the longest and what is left.
pub(super) struct Plan {
    m: Axis,
    n: Axis,
    k: Axis,
    batch: Vec<Axis>,
    sums: Vec<Axis>,
}

impl Plan {
    /// `stride` gives the strides of a dim in a, b and c.
    pub fn new(
        graph: &Graph,
        dims: [&[DimId]; 2],
        contract: &[DimId],
        stride: impl Fn(DimId) -> [Option<i64>; 3],
    ) -> Plan {
        let [a, b] = dims;
        let (mut m, mut n, mut k, mut batch) = (vec![], vec![], vec![], vec![]);
        for d in a.iter().chain(b.iter().filter(|d| !a.contains(d))) {
            let axis = Axis { extent: graph.size(*d), strides: stride(*d) };
            let list = match (a.contains(d), b.contains(d)) {
                _ if axis.extent == 1 => continue,
                (true, true) if contract.contains(d) => &mut k,
                (true, true) => &mut batch,
                (true, false) => &mut m,
                _ => &mut n,
            };
            list.push(axis);
        }
        merge(&mut m, &[2, 0]);
        merge(&mut n, &[2, 1]);
        merge(&mut k, &[0, 1]);
        merge(&mut batch, &[2, 0, 1]);
        let (main_m, main_n, main_k) = (take_longest(&mut m), take_longest(&mut n), take_longest(&mut k));
        batch.extend(m);
        batch.extend(n);
        Plan { m: main_m, n: main_n, k: main_k, batch, sums: k }
    }

    /// How many calls it takes, and a little for each array that no loop goes through element by element.
    pub fn cost(&self) -> f64 {
        let calls: f64 = self.batch.iter().chain(&self.sums).map(|x| x.extent as f64).product();
        let unit = |x: &Axis, array: usize| x.extent > 1 && x.strides[array] == Some(1);
        let known = |array: usize| [&self.m, &self.n, &self.k].iter().any(|x| x.strides[array].is_some());
        let [m, n, k] = [&self.m, &self.n, &self.k];
        let scattered = [(0, m, k), (1, k, n), (2, m, n)]
            .iter()
            .filter(|(array, x, y)| known(*array) && !unit(x, *array) && !unit(y, *array))
            .count();
        calls.ln() + 0.5 * scattered as f64
    }
}

/// Merges axes that are one run in all of the given arrays; afterwards major first.
fn merge(axes: &mut Vec<Axis>, arrays: &[usize]) {
    let key = |x: &Axis| arrays.iter().map(|i| x.strides[*i].map(i64::abs)).collect::<Vec<_>>();
    axes.sort_by_key(|x| std::cmp::Reverse(key(x)));
    let mut i = 0;
    while i + 1 < axes.len() {
        let (x, y) = (axes[i], axes[i + 1]);
        let as_one = arrays.iter().all(|a| match (x.strides[*a], y.strides[*a]) {
            (Some(x), Some(inner)) => x == y.extent as i64 * inner,
            _ => true,
        });
        if as_one {
            axes[i + 1].extent *= x.extent;
            axes.remove(i);
        } else {
            i += 1;
        }
    }
}

/// Takes out the longest axis; a dummy of extent 1 where there is none.
fn take_longest(axes: &mut Vec<Axis>) -> Axis {
    let best = (0..axes.len()).max_by_key(|i| (axes[*i].extent, *i));
    best.map_or(Axis { extent: 1, strides: [Some(0); 3] }, |i| axes.remove(i))
}

fn stride(axis: &Axis, array: usize) -> isize {
    axis.strides[array].unwrap_or(0) as isize
}

fn batch_dim(axis: &Axis) -> BatchDim {
    BatchDim { extent: axis.extent, a: stride(axis, 0), b: stride(axis, 1), c: stride(axis, 2) }
}

impl Lowerer<'_, '_> {
    pub(super) fn emit_dot(&mut self, id: OpId, steps: &mut Vec<Step>) {
        let Operation { op, args, results, .. } = self.graph.op(id).clone();
        let Op::Dot { contract } = op else { unreachable!("a dot node holds a dot") };
        let all = [args[0], args[1], results[0]];
        let dims = [args[0], args[1]].map(|v| self.graph.value(v).dims.as_slice());
        let plan = Plan::new(&self.graph, dims, &contract, |d| all.map(|v| Some(self.stride(v, d))));
        let out = self.graph.value(results[0]).dtype;
        if !plan.sums.is_empty() && out.bytes() < 4 {
            // A 16-bit result cannot be summed in parts: lay the operands out so that k is one run.
            return self.dot_of_copies(id, &contract, steps);
        }
        let dtype = self.graph.value(args[0]).dtype;
        let mut matrix = |array: usize, rows: &Axis, cols: &Axis| {
            let view = self.view(all[array]).clone();
            Matrix {
                buffer: self.buffer(view.root),
                offset: view.offset as usize,
                rows: stride(rows, array),
                cols: stride(cols, array),
            }
        };
        let gemm = Gemm {
            a: matrix(0, &plan.m, &plan.k),
            b: matrix(1, &plan.k, &plan.n),
            c: matrix(2, &plan.m, &plan.n),
            m: plan.m.extent,
            n: plan.n.extent,
            k: plan.k.extent,
            batch: plan.batch.iter().map(batch_dim).collect(),
            sums: plan.sums.iter().map(batch_dim).collect(),
            dtype,
            out,
            accumulate: self.adds.contains(&id),
        };
        let step = self.step(Action::Gemm(gemm), id, "dot".to_string());
        steps.push(step);
    }

    fn dot_of_copies(&mut self, id: OpId, contract: &[DimId], steps: &mut Vec<Step>) {
        for (i, v) in self.graph.op(id).args.clone().into_iter().enumerate() {
            let Value { dtype, dims, block, .. } = self.graph.value(v).clone();
            let mut order: Vec<DimId> = dims.iter().copied().filter(|d| !contract.contains(d)).collect();
            order.extend(contract);
            let to = self.temporary("copy", dtype, self.graph.elements(&dims), id);
            self.copy(v, &order, to, id, steps);
            // A value of its own for the copy.
            let copy = ValueId(self.graph.values.len() as u32);
            self.graph.values.push(Value { dtype, dims, block, def: Def::BlockParam(u32::MAX), name: None });
            self.users.push(Vec::new());
            self.need.push(true);
            self.status.push(Status::Memory);
            self.views.push(None);
            self.orders.push(order.clone());
            self.buffers.push(Some(to));
            self.inputs.push(Vec::new());
            self.cost.push(0);
            self.place_root(copy, &order, Status::Memory);
            self.graph.ops[id.index()].args[i] = copy;
        }
        self.emit_dot(id, steps);
    }
}
