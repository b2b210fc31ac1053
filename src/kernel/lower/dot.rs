//! Matrix products: the dims of a contraction become m, n, k and batch loops with strides, without copies where possible.

use super::Lowerer;
use crate::ir::*;
use crate::program::{Action, BatchDim, Gemm, Matrix, Step};

/// One loop of a product: extent and strides in a, b, c.
#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    strides: [i64; 3],
}

impl Lowerer<'_, '_> {
    pub(super) fn emit_dot(&mut self, id: OpId, steps: &mut Vec<Step>) {
        let Operation { op, args, results, .. } = self.graph.op(id).clone();
        let Op::Dot { contract } = op else { unreachable!("a dot node holds a dot") };
        let (a, b, c) = (args[0], args[1], results[0]);
        let has = |v: ValueId, d: DimId| self.graph.value(v).dims.contains(&d);
        let axis = |d: DimId| Axis {
            extent: self.graph.size(d),
            strides: [self.stride(a, d), self.stride(b, d), self.stride(c, d)],
        };
        let out = self.graph.value(c).dims.clone();
        let real = |d: &&DimId| self.graph.size(**d) != 1;
        let mut m: Vec<Axis> = out.iter().filter(real).filter(|d| !has(b, **d)).map(|d| axis(*d)).collect();
        let mut n: Vec<Axis> = out.iter().filter(real).filter(|d| !has(a, **d)).map(|d| axis(*d)).collect();
        let batch: Vec<Axis> =
            out.iter().filter(real).filter(|d| has(a, **d) && has(b, **d)).map(|d| axis(*d)).collect();
        let mut k: Vec<Axis> = contract.iter().filter(real).map(|d| axis(*d)).collect();
        merge(&mut m, 0, 2);
        merge(&mut n, 1, 2);
        merge(&mut k, 0, 1);
        let mut batch = batch;
        merge_batch(&mut batch);
        let main_m = take_largest(&mut m);
        let main_n = take_largest(&mut n);
        let main_k = take_largest(&mut k);
        let dtype = self.graph.value(a).dtype;
        let wide = self.graph.value(c).dtype.bytes() >= 4;
        if !k.is_empty() && !wide {
            // A 16-bit result cannot be summed in parts: lay the operands out so that k is one run.
            return self.dot_of_copies(id, &contract, steps);
        }
        batch.extend(m);
        batch.extend(n);
        let [a_view, b_view, c_view] = [a, b, c].map(|v| self.view(v).clone());
        let gemm = Gemm {
            a: Matrix {
                buffer: self.buffer(a_view.root),
                offset: a_view.offset as usize,
                rows: main_m.strides[0] as isize,
                cols: main_k.strides[0] as isize,
            },
            b: Matrix {
                buffer: self.buffer(b_view.root),
                offset: b_view.offset as usize,
                rows: main_k.strides[1] as isize,
                cols: main_n.strides[1] as isize,
            },
            c: Matrix {
                buffer: self.buffer(c_view.root),
                offset: c_view.offset as usize,
                rows: main_m.strides[2] as isize,
                cols: main_n.strides[2] as isize,
            },
            m: main_m.extent,
            n: main_n.extent,
            k: main_k.extent,
            batch: batch.iter().map(batch_dim).collect(),
            sums: k.iter().map(batch_dim).collect(),
            dtype,
            out: self.graph.value(c).dtype,
            accumulate: false,
        };
        let step = self.step(Action::Gemm(gemm), id, "dot".to_string());
        steps.push(step);
    }

    fn dot_of_copies(&mut self, id: OpId, contract: &[DimId], steps: &mut Vec<Step>) {
        for (i, v) in self.graph.op(id).args.clone().into_iter().enumerate() {
            let mut order: Vec<DimId> =
                self.graph.value(v).dims.iter().copied().filter(|d| !contract.contains(d)).collect();
            order.extend(contract);
            let Value { dtype, dims, .. } = self.graph.value(v).clone();
            let elements = self.graph.elements(&dims);
            let to = self.temporary("copy", dtype, elements, id);
            self.copy(v, &order, to, id, steps);
            // A value of its own for the copy.
            let copy = ValueId(self.graph.values.len() as u32);
            let block = self.graph.value(v).block;
            self.graph.values.push(Value { dtype, dims, block, def: Def::BlockParam(u32::MAX), name: None });
            self.users.push(Vec::new());
            self.need.push(true);
            self.status.push(super::Status::Memory);
            self.views.push(None);
            self.buffers.push(Some(to));
            self.inputs.push(Vec::new());
            self.cost.push(0);
            self.place_root(copy, &order, super::Status::Memory);
            self.graph.ops[id.index()].args[i] = copy;
        }
        self.emit_dot(id, steps);
    }
}

fn batch_dim(axis: &Axis) -> BatchDim {
    let [a, b, c] = axis.strides.map(|s| s as isize);
    BatchDim { extent: axis.extent, a, b, c }
}

/// Merges axes that are one run in both arrays; afterwards major first by the second array's strides.
fn merge(axes: &mut Vec<Axis>, one: usize, other: usize) {
    axes.sort_by_key(|x| std::cmp::Reverse((x.strides[other].abs(), x.strides[one].abs())));
    merge_neighbours(axes, |x, y| {
        let n = y.extent as i64;
        x.strides[one] == n * y.strides[one] && x.strides[other] == n * y.strides[other]
    });
}

fn merge_batch(axes: &mut Vec<Axis>) {
    axes.sort_by_key(|x| std::cmp::Reverse(x.strides[2].abs()));
    merge_neighbours(axes, |x, y| (0..3).all(|i| x.strides[i] == y.extent as i64 * y.strides[i]));
}

fn merge_neighbours(axes: &mut Vec<Axis>, as_one: impl Fn(&Axis, &Axis) -> bool) {
    let mut i = 0;
    while i + 1 < axes.len() {
        if as_one(&axes[i], &axes[i + 1]) {
            axes[i + 1].extent *= axes[i].extent;
            axes.remove(i);
        } else {
            i += 1;
        }
    }
}

/// Takes out the longest axis; a dummy of extent 1 where there is none.
fn take_largest(axes: &mut Vec<Axis>) -> Axis {
    let best = (0..axes.len()).max_by_key(|i| (axes[*i].extent, *i));
    best.map_or(Axis { extent: 1, strides: [0, 0, 0] }, |i| axes.remove(i))
}
