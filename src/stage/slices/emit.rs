//! Emits what losses, metrics and updates need anew: first marks it from the outputs backwards, then builds it in order.

use super::facts::Facts;
use super::pair::{kept_operand, splat};
use crate::diag::Diagnostic;
use crate::ir::*;
use crate::types::{DType, MapOp, ReduceKind};
use std::collections::HashMap;

type Outcome<T> = Result<T, Box<Diagnostic>>;

/// What an old value becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// The value of the whole batch, given statistics per slice.
    Whole,
    /// One value a slice.
    Slice,
    /// A loss: of the whole batch, with means over slices of the terms that are not affine.
    Loss,
}

/// How a form of a value comes about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// It is the old value.
    Old,
    /// Another form of the same value: slices split off or joined, or their mean.
    From(Form),
    /// Its operation, on operands of this form.
    Copy(Form),
}

pub struct Emission<'a, 'b> {
    b: &'b mut Builder,
    g: &'a Graph,
    part: &'a Graph,
    pairs: &'a [Option<OpId>],
    facts: &'a Facts<'a>,
    count: usize,
    sample: DimId,
    /// The dim of slices, once something needs it.
    slice: Option<DimId>,
    /// A dim whose size depends on the number of samples -> the same in a slice.
    local: HashMap<DimId, DimId>,
    wanted: [Vec<bool>; 3],
    made: [HashMap<ValueId, ValueId>; 3],
}

impl<'a, 'b> Emission<'a, 'b> {
    pub fn new(
        b: &'b mut Builder,
        g: &'a Graph,
        part: &'a Graph,
        pairs: &'a [Option<OpId>],
        facts: &'a Facts<'a>,
        sample: DimId,
        count: usize,
    ) -> Emission<'a, 'b> {
        let wanted = std::array::from_fn(|_| vec![false; g.values.len()]);
        let (slice, local, made) = (None, HashMap::new(), Default::default());
        Emission { b, g, part, pairs, facts, count, sample, slice, local, wanted, made }
    }

    /// The new values of the outputs.
    pub fn emit(mut self) -> Outcome<Vec<ValueId>> {
        let form = |o: &Output| match o.kind {
            OutputKind::Loss => Form::Loss,
            // A state with an element a sample is no statistic.
            OutputKind::State(_) if self.facts.whole(o.value) => Form::Slice,
            _ => Form::Whole,
        };
        let forms: Vec<Form> = self.g.outputs.iter().map(form).collect();
        for (o, form) in self.g.outputs.iter().zip(&forms) {
            self.wanted[*form as usize][o.value.index()] = true;
        }
        self.mark();
        for id in &self.g.block(ENTRY).ops {
            for form in [Form::Slice, Form::Whole, Form::Loss] {
                self.build(self.g.op(*id), form)?;
            }
        }
        let mut out = Vec::new();
        for (o, form) in self.g.outputs.iter().zip(forms) {
            let mut v = self.get(o.value, form);
            if form == Form::Slice {
                (self.b.span, self.b.scope) = (o.span, ROOT);
                v = self.mean(v)?;
            }
            out.push(v);
        }
        Ok(out)
    }

    // ---- what is needed

    fn mark(&mut self) {
        for id in self.g.block(ENTRY).ops.iter().rev() {
            let op = self.g.op(*id);
            for form in [Form::Loss, Form::Whole, Form::Slice] {
                for r in op.results.iter().filter(|r| self.wanted[form as usize][r.index()]).collect::<Vec<_>>() {
                    match self.way(op, *r, form) {
                        Way::Old => {}
                        Way::From(Form::Whole) if form == Form::Slice => {}
                        Way::From(other) => self.wanted[other as usize][r.index()] = true,
                        Way::Copy(form) => {
                            op.args.iter().for_each(|a| self.wanted[form as usize][a.index()] = true);
                        }
                    }
                }
            }
        }
    }

    fn way(&self, op: &Operation, v: ValueId, form: Form) -> Way {
        let (f, i) = (self.facts, v.index());
        match form {
            Form::Slice if splat(self.g, v).is_some() => Way::Old,
            Form::Slice if f.same[i] && !f.of_batch[i] => Way::Old,
            // Its samples are what they are in the batch.
            Form::Slice if f.plain[i] => Way::From(Form::Whole),
            Form::Slice => Way::Copy(Form::Slice),
            Form::Whole if !f.cut[i] => Way::Old,
            Form::Whole if f.needed[i] && !f.global[i] && f.sample_dims(v).len() == 1 => Way::From(Form::Slice),
            Form::Whole => Way::Copy(Form::Whole),
            Form::Loss if !f.curved[i] => Way::From(Form::Whole),
            Form::Loss if self.adds(op) => Way::Copy(Form::Loss),
            Form::Loss => Way::From(Form::Slice),
        }
    }

    /// Whether a term of a loss is a sum of further terms, with coefficients that no sample takes part in.
    fn adds(&self, op: &Operation) -> bool {
        let of_batch = |i: usize| self.facts.of_batch[op.args[i].index()];
        let whole = op.args.iter().all(|a| !self.facts.of_batch[a.index()] || self.facts.whole(*a));
        whole && super::super::samplewise::linear(op, &of_batch, &|i| !of_batch(i), &|_| true)
    }

    // ---- building

    fn get(&self, v: ValueId, form: Form) -> ValueId {
        self.made[form as usize].get(&v).copied().unwrap_or(v)
    }

    fn build(&mut self, op: &'a Operation, form: Form) -> Outcome<()> {
        let mut copied: Option<Vec<ValueId>> = None;
        for (k, r) in op.results.iter().enumerate() {
            if !self.wanted[form as usize][r.index()] {
                continue;
            }
            self.stamp(op);
            let new = match self.way(op, *r, form) {
                Way::Old => continue,
                Way::From(Form::Whole) if form == Form::Slice => self.split(*r, op)?,
                Way::From(Form::Slice) if form == Form::Whole => self.join(*r),
                Way::From(Form::Slice) => self.mean(self.get(*r, Form::Slice))?,
                Way::From(other) => self.get(*r, other),
                Way::Copy(_) => match &copied {
                    Some(results) => results[k],
                    None => copied.insert(self.copy(op, form)?)[k],
                },
            };
            if let Some(name) = &self.g.value(*r).name {
                self.b.name(new, name);
            }
            self.made[form as usize].insert(*r, new);
        }
        Ok(())
    }

    fn stamp(&mut self, op: &Operation) {
        (self.b.span, self.b.scope) = (op.span, op.scope);
    }

    fn refuse(&self, op: &Operation, what: &str) -> Box<Diagnostic> {
        let name = &self.g.dim(self.sample).name;
        let d = Diagnostic::error("E0601", format!("{what}, so it cannot be computed per slice"));
        let d = match op.span {
            Some(span) => d.at(span, format!("needs the whole of `{name}`")),
            None => d,
        };
        Box::new(d.help(format!("leave out the slices: `samples {name}`")))
    }

    fn slice_dim(&mut self) -> DimId {
        let name = super::slices_name(&self.g.dim(self.sample).name);
        *self.slice.get_or_insert_with(|| self.b.add_dim(&name, self.count, false))
    }

    /// The dim in a slice.
    fn local(&mut self, d: DimId) -> DimId {
        let size = self.part.size(d);
        if size == self.g.size(d) {
            return d;
        }
        let Dim { name, ragged, .. } = self.g.dim(d);
        *self.local.entry(d).or_insert_with(|| self.b.add_dim(&super::slice_name(name), size, *ragged))
    }

    fn locals(&mut self, dims: &[DimId]) -> Vec<DimId> {
        dims.iter().map(|d| self.local(*d)).collect()
    }

    /// An old value of samples, by slices.
    fn split(&mut self, v: ValueId, op: &Operation) -> Outcome<ValueId> {
        let new = self.made[Form::Whole as usize].get(&v).copied().unwrap_or(v);
        self.split_off(new, op)
    }

    fn split_off(&mut self, v: ValueId, op: &Operation) -> Outcome<ValueId> {
        let dims: Vec<DimId> = self.b.dims(v).to_vec();
        let changed: Vec<DimId> = dims.into_iter().filter(|d| self.g.size(*d) != self.part.size(*d)).collect();
        let [d] = changed[..] else {
            return Err(self.refuse(op, "a value has several dims that depend on the number of samples"));
        };
        let (slice, own) = (self.slice_dim(), self.local(d));
        Ok(self.b.reshape(&[(vec![d], vec![slice, own])], v))
    }

    /// A value per slice with one sample dim, of the whole batch.
    fn join(&mut self, v: ValueId) -> ValueId {
        let d = self.facts.sample_dims(v)[0];
        let (slice, own) = (self.slice_dim(), self.local(d));
        let per_slice = self.get(v, Form::Slice);
        self.b.reshape(&[(vec![slice, own], vec![d])], per_slice)
    }

    fn mean(&mut self, v: ValueId) -> Outcome<ValueId> {
        let slice = self.slice_dim();
        if !self.b.dims(v).contains(&slice) {
            return Ok(v);
        }
        let dtype = self.b.dtype(v);
        if !dtype.is_float() {
            let d = Diagnostic::error("E0601", "a state that is no float has no mean over slices");
            let d = match self.b.span {
                Some(span) => d.at(span, "updated from values of the batch"),
                None => d,
            };
            return Err(Box::new(d.help("make the state a float, or leave out the slices")));
        }
        let wide = if dtype.bytes() == 2 { DType::F32 } else { dtype };
        let v = self.b.cast(v, wide);
        let sum = self.b.sum(&[slice], v);
        let mean = self.b.map_scalar(MapOp::Div, sum, self.count as f64);
        Ok(self.b.cast(mean, dtype))
    }

    /// The operation on operands of a form; in the form of slices it is that of the model of one slice.
    fn copy(&mut self, op: &'a Operation, form: Form) -> Outcome<Vec<ValueId>> {
        self.stamp(op);
        let other = self.pairs_of(op);
        let mut args = Vec::new();
        for (k, a) in op.args.iter().enumerate() {
            let constant = other.and_then(|q| splat(self.part, q.args[k])).filter(|_| form == Form::Slice);
            args.push(match constant {
                Some(x) => self.b.scalar(x, self.g.value(*a).dtype),
                None => self.get(*a, form),
            });
        }
        if let Op::Loop { body, dim, reverse, carries } = op.op {
            return self.copy_loop(op, &args, form, (body, dim, reverse, carries as usize));
        }
        match (form, other) {
            (Form::Slice, Some(other)) => self.per_slice(op, other, args),
            (Form::Slice, None) => {
                let constant =
                    splat(self.g, op.results[0]).map(|x| self.b.scalar(x, self.g.value(op.results[0]).dtype));
                let kept = || kept_operand(self.g, op).expect("an operation without a counterpart keeps an operand");
                Ok(vec![constant.unwrap_or_else(|| self.get(kept(), form))])
            }
            _ => {
                let types: Vec<(DType, Vec<DimId>)> =
                    op.results.iter().map(|r| (self.g.value(*r).dtype, self.g.value(*r).dims.clone())).collect();
                Ok(self.b.emit(op.op.clone(), &args, &types))
            }
        }
    }

    fn pairs_of(&self, op: &Operation) -> Option<&'a Operation> {
        let Def::Op(id, _) = self.g.value(op.results[0]).def else { return None };
        self.pairs[id.index()].map(|q| self.part.op(q))
    }

    fn copy_loop(
        &mut self,
        op: &'a Operation,
        args: &[ValueId],
        form: Form,
        (body, dim, reverse, carries): (BlockId, DimId, bool, usize),
    ) -> Outcome<Vec<ValueId>> {
        let block = self.g.block(body);
        let sliced = |e: &Self, p: ValueId| form == Form::Slice && e.facts.of_batch[p.index()];
        let mut initial = args[..carries].to_vec();
        for (v, p) in initial.iter_mut().zip(&block.params[1..]) {
            *v = self.with_slices(*v, sliced(self, *p));
        }
        let dim = if form == Form::Slice { self.local(dim) } else { dim };
        let frame = self.b.begin_loop(dim, reverse, &initial);
        let inside = frame.carries.iter().chain(&args[carries..]).copied();
        let bound: Vec<ValueId> = std::iter::once(frame.turn).chain(inside).collect();
        self.made[form as usize].extend(block.params.iter().copied().zip(bound));
        for id in &block.ops {
            let inner = self.g.op(*id);
            let new = self.copy(inner, form)?;
            self.made[form as usize].extend(inner.results.iter().copied().zip(new));
        }
        self.stamp(op);
        let mut results: Vec<ValueId> = block.results.iter().map(|r| self.get(*r, form)).collect();
        for (v, p) in results[..carries].iter_mut().zip(&block.params[1..]) {
            *v = self.with_slices(*v, sliced(self, *p));
        }
        let (finals, collected) = self.b.end_loop(frame, &results[..carries], &results[carries..]);
        Ok([finals, collected].concat())
    }

    fn with_slices(&mut self, v: ValueId, wanted: bool) -> ValueId {
        if !wanted {
            return v;
        }
        let slice = self.slice_dim();
        self.b.broadcast(v, &[slice])
    }

    /// A plain operation once a slice.
    fn per_slice(&mut self, op: &Operation, other: &Operation, mut args: Vec<ValueId>) -> Outcome<Vec<ValueId>> {
        let y = op.results[0];
        let Value { dtype, dims, .. } = self.g.value(y).clone();
        let of_samples = !self.facts.sample_dims(y).is_empty();
        match &op.op {
            Op::Param(_) | Op::State(_) | Op::Input(_) | Op::Random { .. } if !self.facts.same[y.index()] => {
                return Err(self.refuse(op, "what is read or drawn here depends on the number of samples"));
            }
            Op::Random { .. } | Op::Iota(_) | Op::Constant(Constant::Elements(_)) if of_samples => {
                let all = self.b.emit(op.op.clone(), &args, &[(dtype, dims)])[0];
                return Ok(vec![self.split_off(all, op)?]);
            }
            _ => {}
        }
        self.numbers_in(op, &mut args);
        let slice = self.slice_dim();
        let sliced = args.iter().any(|a| self.b.dims(*a).contains(&slice));
        if let (Op::Attention(_), true) = (&op.op, sliced) {
            // Queries have every dim that keys and values have, and these the same ones.
            args[..3].iter_mut().for_each(|x| *x = self.b.broadcast(*x, &[slice]));
        }
        let mut types = Vec::new();
        for r in &other.results {
            let Value { dtype, dims, .. } = self.part.value(*r);
            let mut dims = self.locals(dims);
            if sliced {
                dims.insert(0, slice);
            }
            types.push((*dtype, dims));
        }
        let mut named = Vec::new();
        other.op.map_dims(&mut |d| {
            named.push(d);
            d
        });
        self.locals(&named);
        let local = &self.local;
        let mapped = other.op.map_dims(&mut |d| local.get(&d).copied().unwrap_or(d));
        let mut out = Vec::new();
        for (r, v) in op.results.iter().zip(self.b.emit(mapped, &args, &types)) {
            let v = self.numbers_out(op, v)?;
            out.push(self.with_slices(v, self.facts.of_batch[r.index()]));
        }
        Ok(out)
    }

    /// Numbers of samples count from the start of the batch: indices into a slice count from its own.
    fn numbers_in(&mut self, op: &Operation, args: &mut [ValueId]) {
        let (Op::Gather { dims, .. } | Op::Scatter { targets: dims, .. }) = &op.op else { return };
        for (k, d) in dims.iter().enumerate() {
            if self.facts.counts_samples(*d) {
                let start = self.start(*d);
                args[1 + k] = self.b.sub(args[1 + k], start);
            }
        }
    }

    fn numbers_out(&mut self, op: &Operation, v: ValueId) -> Outcome<ValueId> {
        let along = match &op.op {
            Op::ArgSort { dim } | Op::TopK { dim, .. } | Op::Draw { dim, .. } => vec![*dim],
            Op::Scan { kind: crate::types::ScanKind::ArgMax, dim, .. } => vec![*dim],
            Op::Reduce { kind: ReduceKind::ArgMax | ReduceKind::ArgMin, dims } => dims.clone(),
            _ => vec![],
        };
        match along[..] {
            [d] if self.facts.counts_samples(d) => {
                let start = self.start(d);
                Ok(self.b.add(v, start))
            }
            _ if along.iter().any(|d| self.g.size(*d) != self.part.size(*d)) => {
                Err(self.refuse(op, "this number depends on the number of samples"))
            }
            _ => Ok(v),
        }
    }

    /// By slice: the number of its first sample.
    fn start(&mut self, d: DimId) -> ValueId {
        let slice = self.slice_dim();
        let k = self.b.iota(slice);
        self.b.map_scalar(MapOp::Mul, k, self.part.size(d) as f64)
    }
}
