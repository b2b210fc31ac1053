//! Statements and loops of a kernel in the vector IR.
//!
//! Either the innermost row loop fills lanes (then every statement handles several rows at once), or each pass fills them
//! by its own innermost loop, and everything else is the same in all lanes. What is left over of the loop is masked.

use super::ir::*;
use super::plan::{self, Fill};
use crate::codegen::plan::{Facts, Set, facts, levels, merge_loops, stride};
use crate::kernel::{ExprId, Index, Kernel, LoopId, Node, Pass, Statement};
use crate::types::{DType, ReduceKind};

/// The terms of an index that are the same in all lanes.
pub type Terms = (Vec<(LoopId, i64)>, Vec<(ExprId, i64)>);

pub struct Build<'k> {
    pub f: Function,
    pub kernel: &'k Kernel,
    pub facts: &'k [Facts],
    pub pointers: Vec<Reg>,
    /// The current index of each loop, of the one that fills lanes that of the first lane; none: 0.
    pub counters: Vec<Option<Reg>>,
    /// The loop that fills lanes at the moment.
    pub lanes: Option<LoopId>,
    /// Lanes that are there; none: all.
    pub active: Option<Reg>,
    /// Which of several vectors is handled.
    pub group: usize,
    fill: Fill,
    /// Vectors of rows that are handled together, where rows fill lanes; else 1.
    run_groups: usize,
    /// Registers of the kernel: one variable, or one for each group where rows fill lanes.
    pub registers: Vec<Vec<Reg>>,
    /// What an iteration of the pass evaluates, operands first: nothing recurs deeply.
    order: Vec<ExprId>,
    /// Expressions that the current place can read, by group (what is the same in all lanes is in the first).
    memo: Vec<Vec<Option<Reg>>>,
    log: Vec<(usize, ExprId)>,
    /// Sums of terms that the current place can read.
    pub words: Vec<(Terms, Reg)>,
}

/// Most vectors of a loop that are written out one after the other.
const MAX_GROUPS: usize = 8;

/// How the innermost loop of a pass fills lanes.
struct Filled {
    index: LoopId,
    groups: usize,
    /// For each reduction a variable for each group.
    sums: Vec<Vec<Reg>>,
}

#[derive(Clone, Copy)]
struct Mark(usize, usize);

/// The function of a kernel, if all that it needs is known here.
pub fn build(kernel: &Kernel, lanes: usize) -> Option<Function> {
    if !plan::is_supported(kernel) {
        return None;
    }
    let kernel = merge_loops(kernel);
    let facts = facts(&kernel);
    let fill = plan::fill(&kernel, &facts, lanes);
    let mut b = Build {
        f: Function::new(lanes, &kernel),
        kernel: &kernel,
        facts: &facts,
        pointers: Vec::new(),
        counters: vec![None; kernel.extents.len()],
        lanes: None,
        active: None,
        group: 0,
        fill,
        run_groups: 1,
        registers: Vec::new(),
        order: Vec::new(),
        memo: vec![vec![None; kernel.exprs.len()]; MAX_GROUPS],
        log: Vec::new(),
        words: Vec::new(),
    };
    b.pointers = (0..kernel.buffers.len()).map(|n| b.f.op(Op::Pointer(n as u32), &[])).collect();
    b.rows();
    Some(b.f)
}

impl Build<'_> {
    // ---- rows

    fn rows(&mut self) {
        let kernel = self.kernel;
        if kernel.extents[..kernel.rows].contains(&0) {
            return;
        }
        let row = self.f.op(Op::Argument(Argument::Begin), &[]);
        let end = self.f.op(Op::Argument(Argument::End), &[]);
        self.f.effect(Op::IfBelow(None), &[row, end]);
        let mut rest = row;
        for n in (0..kernel.rows).rev() {
            let extent = kernel.extents[n] as i64;
            if extent == 1 {
                continue;
            }
            let counter = self.f.register(Class::Word);
            if kernel.extents[..n].iter().all(|e| *e == 1) {
                self.f.set(counter, Op::Copy, &[rest]);
            } else {
                let quotient = self.f.op(Op::DivConst(extent as u64), &[rest]);
                let product = self.f.op(Op::MulConst(extent), &[quotient]);
                self.f.set(counter, Op::SubWord, &[rest, product]);
                rest = quotient;
            }
            self.counters[n] = Some(counter);
        }
        self.invariants();
        let mark = self.mark();
        self.f.effect(Op::Begin, &[]);
        if self.fill == Fill::Rows {
            let last = kernel.rows - 1;
            let done = self.row_run(LoopId(last as u32), row, end);
            self.f.set(row, Op::AddWord, &[row, done]);
            if let Some(counter) = self.counters[last] {
                self.f.set(counter, Op::WordConst(0), &[]);
            }
            self.count_up(last);
        } else {
            self.set_registers(1);
            self.statements(&kernel.body);
            self.f.set(row, Op::AddConst(1), &[row]);
            self.count_up(kernel.rows);
        }
        self.f.effect(Op::AgainBelow(None), &[row, end]);
        self.forget(mark);
        self.f.effect(Op::End, &[]);
    }

    /// Moves the indices of the first row loops on by one.
    fn count_up(&mut self, loops: usize) {
        let counters: Vec<(Reg, usize)> =
            (0..loops).rev().filter_map(|n| Some((self.counters[n]?, self.kernel.extents[n]))).collect();
        for (counter, extent) in &counters {
            self.f.set(*counter, Op::AddConst(1), &[*counter]);
            self.f.effect(Op::IfNotBelow(Some(*extent as u64)), &[*counter]);
            self.f.set(*counter, Op::WordConst(0), &[]);
        }
        counters.iter().for_each(|_| self.f.effect(Op::End, &[]));
    }

    /// What neither rows nor loops nor stores change is evaluated once.
    fn invariants(&mut self) {
        let kernel = self.kernel;
        let mut stored = Set::default();
        let mut passes = Vec::new();
        collect(kernel, &kernel.body, &mut passes);
        passes.iter().for_each(|p| p.stores.iter().for_each(|s| stored.insert(s.buffer.index())));
        for pass in passes {
            for e in kernel.needed(pass) {
                let f = &self.facts[e.index()];
                let fixed = f.loops.is_empty() && f.registers.is_empty() && !f.loads.meets(&stored);
                if fixed && !matches!(kernel.expr(e).node, Node::Const(_)) {
                    self.eval(e);
                }
            }
        }
    }

    /// As many rows as the innermost row loop still has, or are left; returns their number.
    fn row_run(&mut self, inner: LoopId, row: Reg, end: Reg) -> Reg {
        let kernel = self.kernel;
        let extent = kernel.extents[inner.index()];
        let lanes = self.f.lanes;
        let from = self.counters[inner.index()].expect("a loop of several rows has a counter");
        let left = self.f.op(Op::SubWord, &[end, row]);
        let size = self.f.op(Op::WordConst(extent as i64), &[]);
        let room = self.f.op(Op::SubWord, &[size, from]);
        let count = self.f.op(Op::MinWord, &[left, room]);
        let to = self.f.op(Op::AddWord, &[from, count]);
        // Rows are often split in two, each part of which should have whole groups.
        let mut groups = self.row_groups();
        while groups > 1 && groups * lanes * 2 > extent {
            groups /= 2;
        }
        let width = groups * lanes;
        self.lanes = Some(inner);
        self.f.effect(Op::IfNotBelow(Some(width as u64)), &[count]);
        let stop = self.f.op(Op::AddConst(1 - width as i64), &[to]);
        self.f.effect(Op::Begin, &[]);
        self.run_of_rows(groups);
        self.f.set(from, Op::AddConst(width as i64), &[from]);
        self.f.effect(Op::AgainBelow(None), &[from, stop]);
        self.f.effect(Op::End, &[]);
        self.f.effect(Op::IfBelow(None), &[from, to]);
        self.f.effect(Op::Begin, &[]);
        let left = self.f.op(Op::SubWord, &[to, from]);
        let most = self.f.op(Op::WordConst(lanes as i64), &[]);
        let some = self.f.op(Op::MinWord, &[left, most]);
        self.active = Some(self.f.op(Op::FirstLanes, &[some]));
        self.run_of_rows(1);
        self.active = None;
        self.f.set(from, Op::AddConst(lanes as i64), &[from]);
        self.f.effect(Op::AgainBelow(None), &[from, to]);
        self.f.effect(Op::End, &[]);
        self.lanes = None;
        count
    }

    fn run_of_rows(&mut self, groups: usize) {
        let mark = self.mark();
        self.set_registers(groups);
        let kernel = self.kernel;
        self.statements(&kernel.body);
        self.forget(mark);
    }

    fn row_groups(&self) -> usize {
        let mut passes = Vec::new();
        collect(self.kernel, &self.kernel.body, &mut passes);
        let looped = passes.iter().any(|p| !p.loops.is_empty());
        passes
            .iter()
            .filter(|p| !looped || !p.loops.is_empty())
            .map(|p| {
                let exprs = levels(self.kernel, self.facts, p);
                let innermost = exprs.iter().filter(|(e, l)| *l == p.loops.len() && self.is_work(*e)).count();
                plan::groups(innermost, p.reductions.len() + p.carries.len())
            })
            .min()
            .unwrap_or(1)
    }

    fn is_work(&self, e: ExprId) -> bool {
        !matches!(self.kernel.expr(e).node, Node::Const(_) | Node::Register(_))
    }

    /// Gives every register of the kernel its variables.
    fn set_registers(&mut self, groups: usize) {
        let kernel = self.kernel;
        self.run_groups = groups;
        self.registers = kernel
            .registers
            .iter()
            .map(|dtype| {
                let class = if *dtype == DType::Bool { Class::Mask } else { Class::Vector };
                (0..groups).map(|_| self.f.register(class)).collect()
            })
            .collect();
        // Variables are written before any loop, whatever pass computes them.
        if kernel.body.iter().all(|s| matches!(s, Statement::Pass(_))) {
            return;
        }
        for (dtype, variables) in kernel.registers.iter().zip(self.registers.clone()) {
            let zero = if *dtype == DType::Bool { self.f.mask(0) } else { self.f.i32(0) };
            variables.iter().for_each(|v| self.f.set(*v, Op::Copy, &[zero]));
        }
    }

    // ---- statements

    fn statements(&mut self, body: &[Statement]) {
        for statement in body {
            match statement {
                Statement::For { index, body } => {
                    self.turns(*index, &[], |b| b.statements(body));
                }
                Statement::Pass(pass) => self.pass(pass),
            }
        }
    }

    fn pass(&mut self, pass: &Pass) {
        let start = self.mark();
        for group in 0..self.run_groups {
            self.group = group;
            let initial: Vec<Reg> = pass.carries.iter().map(|c| self.settled(c.initial)).collect();
            for (carry, value) in pass.carries.iter().zip(initial) {
                let to = self.registers[carry.register.index()][group];
                self.f.set(to, Op::Copy, &[value]);
            }
            for r in &pass.reductions {
                let neutral = self.neutral(r.kind, self.kernel.registers[r.register.index()]);
                let to = self.registers[r.register.index()][group];
                self.f.set(to, Op::Copy, &[neutral]);
            }
        }
        self.group = 0;
        if pass.loops.iter().all(|l| self.kernel.extents[l.index()] > 0) {
            let levels = levels(self.kernel, self.facts, pass);
            let innermost = |(e, l): &(ExprId, usize)| (*l == pass.loops.len() && self.is_work(*e)).then_some(*e);
            self.order = levels.iter().filter_map(innermost).collect();
            let filled = self.fill == Fill::Inner && plan::inner(self.kernel, self.facts, self.f.lanes, pass).0;
            if filled {
                self.filled(pass, &levels);
            } else {
                self.nest(pass, &levels, 0, None);
            }
        }
        self.forget(start);
    }

    /// The loops of a pass from the given one inwards.
    fn nest(&mut self, pass: &Pass, levels: &[(ExprId, usize)], level: usize, filled: Option<&Filled>) {
        let mark = self.mark();
        if level < pass.loops.len() {
            for group in 0..self.run_groups {
                self.group = group;
                for (e, _) in levels.iter().filter(|(_, l)| *l == level) {
                    if self.is_work(*e) {
                        self.eval(*e);
                    }
                }
            }
            self.group = 0;
        }
        match (pass.loops.get(level), filled) {
            (None, _) => {
                for group in 0..self.run_groups {
                    self.group = group;
                    self.iteration(pass);
                }
                self.group = 0;
            }
            (Some(_), Some(filled)) if level + 1 == pass.loops.len() => self.filled_loop(pass, filled),
            (Some(index), _) => {
                let terms = if level + 1 == pass.loops.len() { self.terms_of(pass, *index) } else { Vec::new() };
                self.turns(*index, &terms, |b| b.nest(pass, levels, level + 1, filled));
            }
        }
        self.forget(mark);
    }

    /// The terms of all indices of a pass that move with a loop, but for the bare loop.
    fn terms_of(&self, pass: &Pass, index: LoopId) -> Vec<Vec<(LoopId, i64)>> {
        let mut all: Vec<Vec<(LoopId, i64)>> = Vec::new();
        let mut add = |at: &Index| {
            // Loops that stand at 0 are left out.
            let terms = |(l, _): &&(LoopId, i64)| *l == index || self.counters[l.index()].is_some();
            let terms: Vec<(LoopId, i64)> = at.loops.iter().filter(terms).copied().collect();
            let moves = terms.iter().any(|(l, _)| *l == index) && terms != [(index, 1)];
            if moves && !all.contains(&terms) {
                all.push(terms);
            }
        };
        for e in self.kernel.needed(pass) {
            if let Some(at) = self.kernel.expr(e).node.index() {
                add(at);
            }
        }
        pass.stores.iter().for_each(|s| add(&s.at));
        all
    }

    /// The innermost loop of a pass fills lanes.
    fn filled(&mut self, pass: &Pass, levels: &[(ExprId, usize)]) {
        let index = *pass.loops.last().expect("a pass with a loop");
        let extent = self.kernel.extents[index.index()];
        let innermost = pass.loops.len();
        let exprs = levels.iter().filter(|(e, l)| *l == innermost && self.is_work(*e)).count();
        let groups = plan::groups(exprs, pass.reductions.len()).min(extent.div_ceil(self.f.lanes));
        let mut sums: Vec<Vec<Reg>> = Vec::new();
        for r in &pass.reductions {
            let neutral = self.neutral(r.kind, self.kernel.registers[r.register.index()]);
            let class = self.f.class(neutral);
            let variables: Vec<Reg> = (0..groups).map(|_| self.f.register(class)).collect();
            variables.iter().for_each(|v| self.f.set(*v, Op::Copy, &[neutral]));
            sums.push(variables);
        }
        let filled = Filled { index, groups, sums };
        self.nest(pass, levels, 0, Some(&filled));
        for (r, sums) in pass.reductions.iter().zip(filled.sums) {
            let total = self.total(r.kind, self.kernel.registers[r.register.index()], sums);
            let to = self.registers[r.register.index()][0];
            self.f.set(to, Op::Copy, &[total]);
        }
    }

    fn filled_loop(&mut self, pass: &Pass, filled: &Filled) {
        let index = filled.index;
        let lanes = self.f.lanes;
        let mut rest = self.kernel.extents[index.index()];
        let width = filled.groups * lanes;
        let whole = rest / width;
        self.lanes = Some(index);
        let mark = self.mark();
        // A short loop is no loop: all of its vectors are written out.
        if whole >= 2 {
            let terms = self.terms_of(pass, index);
            let bumps = self.enter(index, &terms);
            self.f.effect(Op::Begin, &[]);
            let inside = self.mark();
            for group in 0..filled.groups {
                self.group = group;
                self.vector_iteration(pass, filled);
            }
            self.forget(inside);
            self.step(&bumps, width, (whole * width) as u64);
            rest -= whole * width;
        }
        for group in 0..rest.div_ceil(lanes) {
            let left = rest - group * lanes;
            self.group = group;
            self.active = (left < lanes).then(|| self.f.mask(left));
            self.vector_iteration(pass, filled);
        }
        self.active = None;
        self.group = 0;
        self.forget(mark);
        self.counters[index.index()] = None;
        self.lanes = None;
    }

    /// One vector of a loop that fills lanes.
    fn vector_iteration(&mut self, pass: &Pass, filled: &Filled) {
        self.evaluate();
        let values: Vec<Reg> = pass.reductions.iter().map(|r| self.eval(r.value)).collect();
        self.stores(pass);
        for ((r, value), sums) in pass.reductions.iter().zip(values).zip(&filled.sums) {
            let sum = sums[self.group % filled.groups];
            let new = self.combine(r.kind, self.kernel.registers[r.register.index()], sum, value);
            let new = match self.active {
                Some(active) => self.pick(active, new, sum),
                None => new,
            };
            self.f.move_last(sum, new);
        }
    }

    /// One iteration: everything is evaluated, then stored, then registers change.
    fn iteration(&mut self, pass: &Pass) {
        let group = self.group;
        self.evaluate();
        let next: Vec<Reg> = pass.carries.iter().map(|c| self.settled(c.next)).collect();
        let values: Vec<Reg> = pass.reductions.iter().map(|r| self.eval(r.value)).collect();
        self.stores(pass);
        for (r, value) in pass.reductions.iter().zip(values) {
            let to = self.registers[r.register.index()][group];
            let new = self.combine(r.kind, self.kernel.registers[r.register.index()], to, value);
            self.f.move_last(to, new);
        }
        for (carry, value) in pass.carries.iter().zip(next) {
            let to = self.registers[carry.register.index()][group];
            self.f.set(to, Op::Copy, &[value]);
        }
    }

    /// Evaluates what one iteration needs.
    fn evaluate(&mut self) {
        for n in 0..self.order.len() {
            self.eval(self.order[n]);
        }
    }

    /// A value that no later write to a register of the kernel changes.
    fn settled(&mut self, e: ExprId) -> Reg {
        let value = self.eval(e);
        if self.registers.iter().flatten().all(|r| *r != value) {
            return value;
        }
        let copy = self.f.register(self.f.class(value));
        self.f.set(copy, Op::Copy, &[value]);
        copy
    }

    fn stores(&mut self, pass: &Pass) {
        for store in &pass.stores {
            self.eval(store.value);
            store.when.iter().for_each(|w| {
                self.eval(*w);
            });
            store.at.exprs.iter().for_each(|(e, _)| {
                self.eval(*e);
            });
        }
        for store in &pass.stores {
            self.store(store);
        }
    }

    /// The whole of several sums of lanes, in every lane.
    fn total(&mut self, kind: ReduceKind, dtype: DType, mut sums: Vec<Reg>) -> Reg {
        while sums.len() > 1 {
            sums = sums
                .chunks(2)
                .map(|p| if p.len() == 2 { self.combine(kind, dtype, p[0], p[1]) } else { p[0] })
                .collect();
        }
        let mut sum = sums[0];
        if dtype == DType::Bool {
            return self.f.op(if kind == ReduceKind::Any { Op::Any } else { Op::All }, &[sum]);
        }
        let mut distance = self.f.lanes / 2;
        while distance > 0 {
            let other = self.f.op(Op::Exchange(distance as u8), &[sum]);
            sum = self.combine(kind, dtype, sum, other);
            distance /= 2;
        }
        // Lanes may differ in the sign of a zero.
        self.f.op(Op::SplatFirst, &[sum])
    }

    // ---- loops

    /// All turns of a loop, one at a time. `terms`: of indices that move with it.
    fn turns(&mut self, index: LoopId, terms: &[Vec<(LoopId, i64)>], body: impl FnOnce(&mut Self)) {
        let extent = self.kernel.extents[index.index()];
        let mark = self.mark();
        match extent {
            0 => {}
            1 => body(self),
            _ => {
                let bumps = self.enter(index, terms);
                self.f.effect(Op::Begin, &[]);
                let inside = self.mark();
                body(self);
                self.forget(inside);
                self.step(&bumps, 1, extent as u64);
            }
        }
        self.forget(mark);
        self.counters[index.index()] = None;
    }

    /// Gives a loop its counter, and each of the terms a variable that moves with it.
    fn enter(&mut self, index: LoopId, terms: &[Vec<(LoopId, i64)>]) -> Vec<(Reg, i64)> {
        let mut bumps = Vec::new();
        let mut words = Vec::new();
        for terms in terms {
            let start = self.sum_of(terms, &[]);
            let variable = self.f.register(Class::Word);
            match start {
                Some(start) => self.f.set(variable, Op::Copy, &[start]),
                None => self.f.set(variable, Op::WordConst(0), &[]),
            }
            bumps.push((variable, terms.iter().find(|(l, _)| *l == index).map_or(0, |(_, c)| *c)));
            words.push(((terms.clone(), Vec::new()), variable));
        }
        let counter = self.f.register(Class::Word);
        self.f.set(counter, Op::WordConst(0), &[]);
        self.counters[index.index()] = Some(counter);
        self.words.extend(words);
        bumps.push((counter, 1));
        bumps
    }

    /// The end of a loop that [`Build::enter`] began.
    fn step(&mut self, bumps: &[(Reg, i64)], by: usize, limit: u64) {
        for (variable, factor) in bumps {
            self.f.set(*variable, Op::AddConst(factor * by as i64), &[*variable]);
        }
        let (counter, _) = bumps.last().expect("a loop has a counter");
        self.f.effect(Op::AgainBelow(Some(limit)), &[*counter]);
    }

    // ---- what is known

    fn mark(&self) -> Mark {
        Mark(self.log.len(), self.words.len())
    }

    /// Forgets what was evaluated since a mark: the place where it was is left.
    fn forget(&mut self, mark: Mark) {
        for (group, e) in self.log.drain(mark.0..) {
            self.memo[group][e.index()] = None;
        }
        self.words.truncate(mark.1);
    }

    /// The value of an expression for the group that is handled.
    pub fn eval(&mut self, e: ExprId) -> Reg {
        let group = if self.varies(e) { self.group } else { 0 };
        if let Some(known) = self.memo[group][e.index()] {
            return known;
        }
        let value = self.compute(e);
        self.memo[group][e.index()] = Some(value);
        self.log.push((group, e));
        value
    }

    /// Whether an expression may differ from lane to lane.
    pub fn varies(&self, e: ExprId) -> bool {
        let Some(of) = self.lanes else { return false };
        let f = &self.facts[e.index()];
        f.loops.contains(of.index()) || (self.fill == Fill::Rows && !f.registers.is_empty())
    }

    /// How an index moves from lane to lane by the loop that fills them.
    pub fn lane_stride(&self, at: &Index) -> i64 {
        self.lanes.map_or(0, |of| stride(at, of))
    }
}

/// The passes of a body that run at all.
fn collect<'s>(kernel: &Kernel, body: &'s [Statement], passes: &mut Vec<&'s Pass>) {
    for statement in body {
        match statement {
            Statement::For { index, body } if kernel.extents[index.index()] > 0 => collect(kernel, body, passes),
            Statement::For { .. } => {}
            Statement::Pass(pass) => {
                if pass.loops.iter().all(|l| kernel.extents[l.index()] > 0) {
                    passes.push(pass);
                }
            }
        }
    }
}
