//! What each value of a step is to the batch: outside of it, of samples, or a total over samples.
//!
//! A *sample dim* is the dim that counts samples, or one that a rename, split or merge makes of it with the samples major (so that
//! a microbatch is a run of it). An operation is *samplewise* if what it computes for a sample needs that sample alone.

use crate::diag::Diagnostic;
use crate::ir::*;
use crate::types::{MapOp, ReduceKind, ScanKind};
use indexmap::IndexMap;

/// How partial results of microbatches make the result of the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Combine {
    Reduce(ReduceKind),
    /// Every microbatch computes the same.
    Same,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// No sample takes part.
    Outside,
    /// Computed anew in each microbatch; with its sample dim, or none: then it is the same in all of them.
    Region(Option<DimId>),
    /// Combined from all samples. Inside the body of a loop: a part of a sum over samples, which only linear operations may touch.
    Total(Combine),
}

const SUM: Class = Class::Total(Combine::Reduce(ReduceKind::Sum));

/// The sample dims and their sizes in a microbatch.
pub struct Samples {
    pub dims: IndexMap<DimId, usize>,
}

impl Samples {
    /// `parts` divides the size of `sample`.
    pub fn discover(g: &Graph, sample: DimId, parts: usize) -> Samples {
        let mut dims = IndexMap::new();
        dims.insert(sample, g.size(sample) / parts);
        // Operations of inner blocks stand after the loop's own; a dim may be made in one and used in an earlier one.
        loop {
            let before = dims.len();
            for op in &g.ops {
                let Op::Reshape { groups } = &op.op else { continue };
                for (from, to) in groups {
                    let (Some(f), Some(t)) = (from.first(), to.first()) else { continue };
                    if dims.contains_key(f) && g.size(*t).is_multiple_of(parts) {
                        dims.entry(*t).or_insert(g.size(*t) / parts);
                    }
                }
            }
            if dims.len() == before {
                return Samples { dims };
            }
        }
    }

    pub fn contains(&self, d: DimId) -> bool {
        self.dims.contains_key(&d)
    }

    /// The sample dims among some dims.
    fn among(&self, dims: &[DimId]) -> Vec<DimId> {
        dims.iter().copied().filter(|d| self.contains(*d)).collect()
    }
}

/// The class of every value (by id), or the first operation that mixes samples.
pub fn classify(g: &Graph, samples: &Samples) -> Result<Vec<Class>, Box<Diagnostic>> {
    let mut c = Classifier { g, samples, classes: vec![Class::Outside; g.values.len()], may_sum: vec![] };
    c.block(ENTRY)?;
    Ok(c.classes)
}

struct Classifier<'a> {
    g: &'a Graph,
    samples: &'a Samples,
    classes: Vec<Class>,
    /// Carries of loops under classification that begin with zero: they may turn out to be parts of sums.
    may_sum: Vec<ValueId>,
}

impl Classifier<'_> {
    fn block(&mut self, id: BlockId) -> Result<(), Box<Diagnostic>> {
        for op_id in &self.g.block(id).ops {
            let op = self.g.op(*op_id);
            self.operation(op, id != ENTRY).map_err(|what| self.complaint(op, &what))?;
        }
        Ok(())
    }

    fn complaint(&self, op: &Operation, what: &str) -> Box<Diagnostic> {
        let name = &self.g.dim(*self.samples.dims.first().expect("a sample dim").0).name;
        let d = Diagnostic::error("E0601", format!("{what}, so the batch cannot be cut into microbatches here"));
        let d = match op.span {
            Some(span) => d.at(span, format!("works across samples of `{name}`")),
            None => d,
        };
        Box::new(d.help(format!(
            "leave out `microbatches`, or write `samples {name} in N slices` in the train item, with a multiple of the \
             microbatches: then statistics are per slice"
        )))
    }

    fn class(&self, v: ValueId) -> Class {
        self.classes[v.index()]
    }

    fn dims(&self, v: ValueId) -> &[DimId] {
        &self.g.value(v).dims
    }

    fn operation(&mut self, op: &Operation, inner: bool) -> Result<(), String> {
        if let Op::Loop { body, dim, carries, .. } = op.op {
            return self.looped(op, body, dim, carries as usize, inner);
        }
        for y in &op.results {
            self.classes[y.index()] = self.class_of(op, *y, inner)?;
        }
        Ok(())
    }

    fn class_of(&self, op: &Operation, y: ValueId, inner: bool) -> Result<Class, String> {
        let is_total = |a: &ValueId| matches!(self.class(*a), Class::Total(_));
        if inner && op.args.iter().any(is_total) {
            if !self.linear(op) {
                return Err("a sum over samples is used other than linearly in a loop".into());
            }
            return Ok(SUM);
        }
        if op.args.iter().any(|a| matches!(self.class(*a), Class::Region(_)))
            || !self.samples.among(self.dims(y)).is_empty()
        {
            return match samplewise(self.g, self.samples, op, y)? {
                Class::Total(c) if inner && c != Combine::Reduce(ReduceKind::Sum) => {
                    Err("a reduction over samples that is no sum stands in a loop".into())
                }
                class => Ok(class),
            };
        }
        Ok(Class::Outside)
    }

    /// Whether an operation with partial sums among its operands is linear in them, with other operands that are the same
    /// for all samples.
    fn linear(&self, op: &Operation) -> bool {
        let class = |i: usize| self.class(op.args[i]);
        linear(op, &|i| class(i) == SUM, &|i| class(i) == Class::Outside, &|i| self.zero(op.args[i]))
    }
    /// A constant zero.
    fn zero(&self, v: ValueId) -> bool {
        if self.may_sum.contains(&v) {
            return true;
        }
        match self.g.def_op(v) {
            Some(op) => match &op.op {
                Op::Constant(Constant::Splat(x)) => *x == 0.0,
                Op::Broadcast { .. } | Op::Map(MapOp::Cast(_)) => self.zero(op.args[0]),
                _ => false,
            },
            None => false,
        }
    }

    fn looped(&mut self, op: &Operation, body: BlockId, dim: DimId, carries: usize, inner: bool) -> Result<(), String> {
        let block = self.g.block(body);
        // In the program's block totals are complete before they are used; in a loop's body they are parts.
        let of_samples = self.touches_samples(body)
            || op.args.iter().any(|a| match self.class(*a) {
                Class::Outside => false,
                Class::Region(_) => true,
                Class::Total(_) => inner,
            });
        if !of_samples {
            return Ok(());
        }
        if self.samples.contains(dim) {
            return Err("a loop goes along the samples".into());
        }
        for (i, p) in block.params[1..].iter().enumerate() {
            let arg = op.args[i];
            let samples = self.samples.among(self.dims(*p));
            self.classes[p.index()] = match (samples.as_slice(), self.class(arg)) {
                ([], SUM) if inner && i < carries => SUM,
                ([], SUM) if inner => return Err("a sum over samples enters a loop".into()),
                ([], _) => Class::Outside,
                ([d], _) => Class::Region(Some(*d)),
                _ => return Err("samples are paired with each other".into()),
            };
        }
        let candidates = (0..carries).filter(|c| self.zero(op.args[*c])).map(|c| block.params[1 + c]);
        let candidates: Vec<ValueId> = candidates.collect();
        loop {
            let outer = self.may_sum.len();
            self.may_sum.extend(candidates.iter().copied().filter(|p| self.classes[p.index()] == Class::Outside));
            for id in &block.ops {
                self.operation(self.g.op(*id), true)?;
            }
            self.may_sum.truncate(outer);
            let mut grown = false;
            for c in 0..carries {
                let (before, after) = (block.params[1 + c], block.results[c]);
                match (self.class(before), self.class(after)) {
                    (Class::Outside, SUM) if self.zero(op.args[c]) => {
                        self.classes[before.index()] = SUM;
                        grown = true;
                    }
                    (Class::Outside, SUM) | (SUM, Class::Outside) => {
                        return Err("a carry of a loop mixes sums over samples with other values".into());
                    }
                    _ => {}
                }
            }
            if !grown {
                break;
            }
        }
        // Once more without the benefit of the doubt.
        for id in &block.ops {
            self.operation(self.g.op(*id), true)?;
        }
        for (r, result) in op.results.iter().zip(&block.results) {
            self.classes[r.index()] = match self.class(*result) {
                Class::Outside if inner => Class::Outside,
                Class::Outside => Class::Region(None),
                class => class,
            };
        }
        Ok(())
    }

    fn touches_samples(&self, body: BlockId) -> bool {
        let mut blocks = vec![body];
        while let Some(id) = blocks.pop() {
            for op in &self.g.block(id).ops {
                let op = self.g.op(*op);
                if op.results.iter().any(|r| !self.samples.among(self.dims(*r)).is_empty()) {
                    return true;
                }
                if let Op::Loop { body, .. } = op.op {
                    blocks.push(body);
                }
            }
        }
        false
    }
}

/// The class of a result of an operation with operands or results of samples; or what it does across samples.
pub fn samplewise(g: &Graph, samples: &Samples, op: &Operation, y: ValueId) -> Result<Class, String> {
    let dims = |v: ValueId| g.value(v).dims.as_slice();
    let mut found: Vec<DimId> = Vec::new();
    for v in op.args.iter().chain(&op.results) {
        let own = samples.among(dims(*v));
        if own.len() > 1 {
            return Err("samples are paired with each other".into());
        }
        found.extend(own.into_iter().filter(|d| !found.contains(d)).collect::<Vec<_>>());
    }
    let sample = |d: &DimId| samples.contains(*d);
    let kept = Class::Region(samples.among(dims(y)).first().copied());
    if let Op::Reshape { groups } = &op.op {
        for (from, to) in groups {
            let aligned = match (from.as_slice(), to.as_slice()) {
                ([f, rest @ ..], [t, more @ ..]) if sample(f) => {
                    sample(t) && !rest.iter().any(sample) && !more.iter().any(sample)
                }
                _ => !from.iter().chain(to).any(sample),
            };
            if !aligned {
                return Err("a split or merge tears samples apart".into());
            }
        }
        return Ok(kept);
    }
    if found.len() > 1 {
        return Err("samples are paired with each other".into());
    }
    let whole = |along: &[DimId], what: &str| -> Result<Class, String> {
        if along.iter().any(sample) { Err(format!("{what} goes along the samples")) } else { Ok(kept) }
    };
    match &op.op {
        Op::Map(_) | Op::Broadcast { .. } | Op::StopGradient => Ok(kept),
        Op::Param(_) | Op::State(_) | Op::Input(_) | Op::Constant(_) | Op::Random { .. } | Op::Iota(_) => Ok(kept),
        Op::Reduce { kind, dims } if dims.iter().any(sample) => match kind {
            ReduceKind::ArgMax | ReduceKind::ArgMin => Err(format!("{} goes along the samples", kind.name())),
            _ => Ok(Class::Total(Combine::Reduce(*kind))),
        },
        Op::Reduce { .. } => Ok(kept),
        Op::Dot { contract } if contract.iter().any(sample) => Ok(SUM),
        Op::Dot { .. } => Ok(kept),
        Op::Window { axes, .. } | Op::Fold { axes } => {
            let all: Vec<DimId> =
                axes.iter().flat_map(|a| std::iter::once(a.input).chain(a.terms.iter().map(|t| t.0))).collect();
            whole(&all, "a slice, shift or window")
        }
        Op::Gather { dims, .. } => whole(dims, "a gather"),
        Op::Scatter { targets, .. } if targets.iter().any(sample) => whole(targets, "a scatter"),
        Op::Scatter { kind, removed, .. } if removed.iter().any(sample) => Ok(Class::Total(Combine::Reduce(*kind))),
        Op::Scatter { .. } => Ok(kept),
        Op::Concat { parts, to } => whole(&[parts.as_slice(), &[*to]].concat(), "a concatenation"),
        Op::Stack { dim } => whole(&[*dim], "a stack"),
        Op::Scan { dim, .. } | Op::LinearScan { dim, .. } => whole(&[*dim], "a scan"),
        Op::ArgSort { dim } => whole(&[*dim], "a sort"),
        Op::TopK { dim, k } => whole(&[*dim, *k], "a choice of the largest"),
        Op::PackPlace { packed, .. } => whole(packed, "a queue"),
        Op::Draw { dim, dims, .. } => whole(&[&[*dim], dims.as_slice()].concat(), "a draw"),
        Op::Attention(a) | Op::AttentionGrad(a) => {
            let kept = whole(&[a.query, a.key, a.feature, a.value], "attention")?;
            // Keys and values that all samples share.
            let summed = matches!(op.op, Op::AttentionGrad(_)) && samples.among(dims(y)).is_empty();
            Ok(if summed { SUM } else { kept })
        }
        Op::WriteAt { dim, part } => whole(&[*dim, *part], "a write"),
        Op::Step | Op::Position | Op::Coordinate(_) => Ok(kept),
        Op::Collective(_) => Err("collectives come later".into()),
        Op::Reshape { .. } | Op::Loop { .. } => Err("a reshape or loop is no plain operation".into()),
    }
}

/// Whether an operation is linear in the operands for which `part` holds: others are its coefficients, which must be
/// allowed, or addends.
pub fn linear(
    op: &Operation,
    part: &dyn Fn(usize) -> bool,
    coefficient: &dyn Fn(usize) -> bool,
    addend: &dyn Fn(usize) -> bool,
) -> bool {
    let term = |i: usize| part(i) || addend(i);
    let first = || part(0) && (1..op.args.len()).all(coefficient);
    match &op.op {
        Op::Map(MapOp::Neg) => true,
        Op::Map(MapOp::Cast(t)) => t.is_float(),
        Op::Map(MapOp::Add | MapOp::Sub) => term(0) && term(1),
        Op::Map(MapOp::Mul) | Op::Dot { .. } => (part(0) && coefficient(1)) || (coefficient(0) && part(1)),
        Op::Map(MapOp::Div) => first(),
        Op::Map(MapOp::Where) => coefficient(0) && term(1) && term(2),
        Op::Broadcast { .. } | Op::Reshape { .. } | Op::Fold { .. } | Op::StopGradient => true,
        Op::Reduce { kind, .. } => *kind == ReduceKind::Sum,
        Op::Window { fill, .. } => *fill == 0.0 && first(),
        Op::Gather { .. } => first(),
        Op::Scatter { kind, .. } => *kind == ReduceKind::Sum && first(),
        Op::Scan { kind, .. } => *kind == ScanKind::Sum,
        Op::LinearScan { .. } => coefficient(0) && part(1),
        Op::Concat { .. } | Op::Stack { .. } => (0..op.args.len()).all(term),
        _ => false,
    }
}
