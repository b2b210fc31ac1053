//! Statements and loops of a kernel.
//!
//! The function walks rows `begin..end`. Either the innermost row loop fills vectors (then every statement of the body
//! handles several rows at once, and single rows at the end), or each pass fills them by its own innermost loop.

use super::convert::{scalar_type, vector_type};
use super::expr::Val;
use super::map::neutral;
use super::ops::{LANES, Ops};
use super::plan::{self, Lanes};
use crate::codegen::plan::{Facts, levels};
use crate::kernel::{ExprId, Kernel, LoopId, Pass, Statement, Store};
use crate::types::{DType, ReduceKind};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type, Value};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, Variable};

/// Most vectors that one iteration handles.
pub const MAX_GROUPS: usize = 4;

/// The loop that fills lanes at the moment.
#[derive(Clone, Copy)]
pub struct VectorLoop {
    pub index: LoopId,
    pub groups: usize,
}

pub struct Emitter<'f, 'k> {
    pub ops: Ops<'f>,
    pub kernel: &'k Kernel,
    facts: &'k [Facts],
    /// Start of each buffer.
    pub pointers: Vec<Value>,
    /// Keys of random streams.
    pub scalars: Value,
    /// The cell that checks report to.
    pub status: Value,
    /// Current index of each loop (of the one that fills lanes: that of the first lane).
    pub index: Vec<Option<Value>>,
    pub vector: Option<VectorLoop>,
    /// Variables of each register: one, or one vector for each group.
    pub registers: Vec<Vec<Variable>>,
    pub vector_registers: bool,
    /// Whether these are the rows that are left over where rows fill lanes: they must be summed in the order of a lane.
    single_rows: bool,
    /// Expressions that the current place can read.
    pub memo: Vec<Option<Val>>,
    /// Those in `memo`, in the order in which they came.
    pub log: Vec<ExprId>,
}

/// Fills in the body of a kernel's function.
pub fn emit(mut b: FunctionBuilder, kernel: &Kernel, facts: &[Facts], lanes: Lanes, fused: bool, isa: &dyn TargetIsa) {
    let call_conv = b.func.signature.call_conv;
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    b.seal_block(entry);
    let &[buffers, scalars, helpers, begin, end] = b.block_params(entry) else {
        unreachable!("a kernel has five parameters")
    };
    let flags = MemFlagsData::trusted().with_readonly().with_can_move();
    let pointers = (0..kernel.buffers.len()).map(|n| b.ins().load(I64, flags, buffers, (n * 8) as i32)).collect();
    let status = b.ins().load(I64, flags, scalars, (kernel.scalars * 8) as i32);
    let mut emitter = Emitter {
        ops: Ops::new(b, fused, helpers, call_conv),
        kernel,
        facts,
        pointers,
        scalars,
        status,
        index: vec![None; kernel.extents.len()],
        vector: None,
        registers: Vec::new(),
        vector_registers: false,
        single_rows: false,
        memo: vec![None; kernel.exprs.len()],
        log: Vec::new(),
    };
    emitter.rows(begin, end, lanes);
    emitter.ops.b.ins().return_(&[]);
    emitter.ops.b.finalize(isa.frontend_config());
}

impl<'f> Emitter<'f, '_> {
    // ---- rows

    fn rows(&mut self, begin: Value, end: Value, lanes: Lanes) {
        let kernel = self.kernel;
        if kernel.extents[..kernel.rows].contains(&0) {
            return;
        }
        let row = self.variable(I64, begin);
        // The indices of row loops, counted up by hand: no division but at the start.
        let mut rest = begin;
        let mut counters: Vec<Option<Variable>> = vec![None; kernel.rows];
        for n in (0..kernel.rows).rev() {
            let extent = kernel.extents[n] as i64;
            if extent == 1 {
                self.index[n] = Some(self.ops.i64(0));
                continue;
            }
            let outermost = (0..n).all(|m| kernel.extents[m] == 1);
            let index = if outermost { rest } else { self.ops.b.ins().urem_imm_s(rest, extent) };
            counters[n] = Some(self.variable(I64, index));
            if !outermost {
                rest = self.ops.b.ins().udiv_imm_s(rest, extent);
            }
        }
        let (body, exit) = (self.ops.b.create_block(), self.ops.b.create_block());
        let some = self.ops.b.ins().icmp(IntCC::UnsignedLessThan, begin, end);
        self.ops.b.ins().brif(some, body, &[], exit, &[]);
        self.ops.b.switch_to_block(body);
        for (n, counter) in counters.iter().enumerate() {
            if let Some(counter) = counter {
                self.index[n] = Some(self.ops.b.use_var(*counter));
            }
        }
        let at = self.ops.b.use_var(row);
        let last = kernel.rows.wrapping_sub(1);
        let (done, carry_from) = if lanes == Lanes::Rows {
            (self.row_run(LoopId(last as u32), at, end), last)
        } else {
            self.set_registers(None);
            self.statements(&kernel.body);
            (self.ops.i64(1), kernel.rows)
        };
        let next = self.ops.b.ins().iadd(at, done);
        self.ops.b.def_var(row, next);
        if lanes == Lanes::Rows
            && let Some(counter) = counters[last]
        {
            let zero = self.ops.i64(0);
            self.ops.b.def_var(counter, zero);
        }
        self.count_up(&counters[..carry_from]);
        let more = self.ops.b.ins().icmp(IntCC::UnsignedLessThan, next, end);
        self.ops.b.ins().brif(more, body, &[], exit, &[]);
        self.ops.b.seal_block(body);
        self.ops.b.switch_to_block(exit);
        self.ops.b.seal_block(exit);
    }

    /// Moves the indices of row loops on by one.
    fn count_up(&mut self, counters: &[Option<Variable>]) {
        let done = self.ops.b.create_block();
        for (n, counter) in counters.iter().enumerate().rev() {
            let Some(counter) = *counter else { continue };
            let index = self.ops.b.use_var(counter);
            let next = self.ops.b.ins().iadd_imm_s(index, 1);
            self.ops.b.def_var(counter, next);
            let inside = self.ops.b.ins().icmp_imm_s(IntCC::UnsignedLessThan, next, self.kernel.extents[n] as i64);
            let wrapped = self.ops.b.create_block();
            self.ops.b.ins().brif(inside, done, &[], wrapped, &[]);
            self.ops.b.switch_to_block(wrapped);
            self.ops.b.seal_block(wrapped);
            let zero = self.ops.i64(0);
            self.ops.b.def_var(counter, zero);
        }
        self.ops.b.ins().jump(done, &[]);
        self.ops.b.switch_to_block(done);
        self.ops.b.seal_block(done);
    }

    /// As many rows as the innermost row loop still has, or are left; returns their number.
    fn row_run(&mut self, inner: LoopId, row: Value, end: Value) -> Value {
        let kernel = self.kernel;
        let extent = kernel.extents[inner.index()];
        let from = self.index[inner.index()].expect("set by the caller");
        let size = self.ops.i64(extent as i64);
        let room = self.ops.b.ins().isub(size, from);
        let left = self.ops.b.ins().isub(end, row);
        let fits = self.ops.b.ins().icmp(IntCC::UnsignedLessThan, left, room);
        let count = self.ops.b.ins().select(fits, left, room);
        let to = self.ops.b.ins().iadd(from, count);
        let groups = plan::groups(extent, kernel.exprs.len());
        let width = groups * LANES;
        let position = self.variable(I64, from);
        let limit = self.ops.b.ins().iadd_imm_s(to, 1 - width as i64);
        self.count(position, limit, width, false, |s, i| {
            s.index[inner.index()] = Some(i);
            s.vector = Some(VectorLoop { index: inner, groups });
            s.set_registers(Some(groups));
            s.statements(&kernel.body);
            s.vector = None;
        });
        self.count(position, to, 1, false, |s, i| {
            s.index[inner.index()] = Some(i);
            s.set_registers(None);
            s.single_rows = true;
            s.statements(&kernel.body);
            s.single_rows = false;
        });
        count
    }

    // ---- statements

    fn statements(&mut self, body: &[Statement]) {
        for statement in body {
            match statement {
                Statement::For { index, body } => {
                    let extent = self.kernel.extents[index.index()];
                    self.turns(*index, extent, |s| s.statements(body));
                }
                Statement::Pass(pass) => self.pass(pass),
            }
        }
    }

    fn pass(&mut self, pass: &Pass) {
        let start = self.log.len();
        let initial: Vec<Val> = pass.carries.iter().map(|c| self.eval(c.initial)).collect();
        for (carry, value) in pass.carries.iter().zip(initial) {
            for g in 0..self.registers[carry.register.index()].len() {
                let value = match value {
                    Val::One(x) if self.vector_registers => self.ops.splat(x),
                    Val::One(x) => x,
                    Val::Many(all) => all[g],
                };
                self.ops.b.def_var(self.registers[carry.register.index()][g], value);
            }
        }
        for reduction in &pass.reductions {
            let dtype = self.kernel.registers[reduction.register.index()];
            for g in 0..self.registers[reduction.register.index()].len() {
                let value = self.start_value(reduction.kind, dtype, self.vector_registers);
                self.ops.b.def_var(self.registers[reduction.register.index()][g], value);
            }
        }
        if pass.loops.iter().all(|l| self.kernel.extents[l.index()] > 0) {
            let levels = levels(self.kernel, self.facts, pass);
            self.nest(pass, &levels, 0);
        }
        self.forget(start);
    }

    /// The loops of a pass from the given one inwards.
    fn nest(&mut self, pass: &Pass, levels: &[(ExprId, usize)], level: usize) {
        let mark = self.log.len();
        for (e, _) in levels.iter().filter(|(_, l)| *l == level) {
            if !matches!(self.kernel.expr(*e).node, crate::kernel::Node::Const(_)) {
                self.eval(*e);
            }
        }
        match pass.loops.get(level) {
            None => self.iteration(pass),
            Some(index) => {
                let extent = self.kernel.extents[index.index()];
                let fills_lanes = level + 1 == pass.loops.len()
                    && self.vector.is_none()
                    && !self.single_rows
                    && plan::inner_loop(self.kernel, self.facts, pass).is_some();
                if fills_lanes {
                    self.vector_loop(pass, levels, *index);
                } else {
                    self.turns(*index, extent, |s| s.nest(pass, levels, level + 1));
                }
            }
        }
        self.forget(mark);
    }

    /// The innermost loop of a pass, several turns at once.
    fn vector_loop(&mut self, pass: &Pass, levels: &[(ExprId, usize)], index: LoopId) {
        let extent = self.kernel.extents[index.index()];
        let innermost = pass.loops.len();
        let groups = plan::groups(extent, levels.iter().filter(|(_, l)| *l == innermost).count());
        let width = groups * LANES;
        let accumulators: Vec<Vec<Variable>> = pass
            .reductions
            .iter()
            .map(|r| {
                let dtype = self.kernel.registers[r.register.index()];
                (0..groups)
                    .map(|_| {
                        let start = self.start_value(r.kind, dtype, true);
                        let ty = self.ops.ty(start);
                        self.variable(ty, start)
                    })
                    .collect()
            })
            .collect();
        let zero = self.ops.i64(0);
        let position = self.variable(I64, zero);
        let whole = extent / width * width;
        let limit = self.ops.i64(whole as i64);
        self.count(position, limit, width, whole > 0, |s, i| {
            s.index[index.index()] = Some(i);
            s.vector = Some(VectorLoop { index, groups });
            let mark = s.log.len();
            let values: Vec<Vec<Value>> =
                pass.reductions.iter().map(|r| (0..groups).map(|g| s.vector_of(r.value, g)).collect()).collect();
            s.evaluate_stores(pass);
            s.stores(pass);
            for (n, r) in pass.reductions.iter().enumerate() {
                let dtype = s.kernel.registers[r.register.index()];
                for g in 0..groups {
                    let sum = s.ops.b.use_var(accumulators[n][g]);
                    let sum = s.ops.combine(r.kind, dtype, sum, values[n][g]);
                    s.ops.b.def_var(accumulators[n][g], sum);
                }
            }
            s.forget(mark);
            s.vector = None;
        });
        for (r, accumulators) in pass.reductions.iter().zip(&accumulators) {
            let dtype = self.kernel.registers[r.register.index()];
            let mut sums: Vec<Value> = accumulators.iter().map(|v| self.ops.b.use_var(*v)).collect();
            while sums.len() > 1 {
                sums = sums.chunks(2).map(|p| self.ops.combine(r.kind, dtype, p[0], p[1])).collect();
            }
            let mut lanes: Vec<Value> = (0..LANES).map(|n| self.ops.lane(sums[0], n, dtype == DType::Bool)).collect();
            while lanes.len() > 1 {
                lanes = lanes.chunks(2).map(|p| self.ops.combine(r.kind, dtype, p[0], p[1])).collect();
            }
            let register = self.registers[r.register.index()][0];
            let before = self.ops.b.use_var(register);
            let sum = self.ops.combine(r.kind, dtype, before, lanes[0]);
            self.ops.b.def_var(register, sum);
        }
        if whole < extent {
            let limit = self.ops.i64(extent as i64);
            self.count(position, limit, 1, true, |s, i| {
                s.index[index.index()] = Some(i);
                s.nest(pass, levels, innermost);
            });
        }
        self.index[index.index()] = None;
    }

    /// One iteration: everything is evaluated, then stored, then registers change.
    fn iteration(&mut self, pass: &Pass) {
        let groups = self.groups();
        let mut updates: Vec<(Variable, Value)> = Vec::new();
        for carry in &pass.carries {
            for g in 0..groups {
                let value = self.register_value(carry.next, g);
                updates.push((self.registers[carry.register.index()][g], value));
            }
        }
        for r in &pass.reductions {
            let dtype = self.kernel.registers[r.register.index()];
            for g in 0..groups {
                let value = self.register_value(r.value, g);
                let variable = self.registers[r.register.index()][g];
                let sum = self.ops.b.use_var(variable);
                let sum = self.ops.combine(r.kind, dtype, sum, value);
                updates.push((variable, sum));
            }
        }
        self.evaluate_stores(pass);
        self.stores(pass);
        for (variable, value) in updates {
            self.ops.b.def_var(variable, value);
        }
    }

    fn register_value(&mut self, id: ExprId, group: usize) -> Value {
        if self.vector_registers {
            self.vector_of(id, group)
        } else {
            let value = self.eval(id);
            self.one(value)
        }
    }

    fn evaluate_stores(&mut self, pass: &Pass) {
        for store in &pass.stores {
            self.eval(store.value);
            store.when.iter().for_each(|w| {
                self.eval(*w);
            });
            store.at.exprs.iter().for_each(|(e, _)| {
                self.eval(*e);
            });
        }
    }

    fn stores(&mut self, pass: &Pass) {
        for store in &pass.stores {
            self.store(store);
        }
    }

    /// Stores values that have been evaluated.
    fn store(&mut self, store: &Store) {
        let dtype = self.kernel.buffers[store.buffer.index()].dtype;
        let start = self.address(store.buffer, &store.at);
        if self.vector.is_none() {
            let value = self.eval(store.value);
            let value = self.one(value);
            let condition = store.when.map(|w| self.lane_of(w, 0, 0));
            self.guarded_store(dtype, value, start, condition);
            return;
        }
        if store.when.is_none() && self.is_contiguous(&store.at) {
            for g in 0..self.groups() {
                let value = self.vector_of(store.value, g);
                self.ops.store(dtype, value, start, (g * LANES * dtype.bytes()) as i32);
            }
            return;
        }
        for g in 0..self.groups() {
            for lane in 0..LANES {
                let value = self.lane_of(store.value, g, lane);
                let address = self.lane_address(start, store.buffer, &store.at, g, lane);
                let condition = store.when.map(|w| self.lane_of(w, g, lane));
                self.guarded_store(dtype, value, address, condition);
            }
        }
    }

    fn guarded_store(&mut self, dtype: DType, value: Value, address: Value, condition: Option<Value>) {
        let Some(condition) = condition else {
            self.ops.store(dtype, value, address, 0);
            return;
        };
        let (yes, join) = (self.ops.b.create_block(), self.ops.b.create_block());
        self.ops.b.ins().brif(condition, yes, &[], join, &[]);
        self.ops.b.switch_to_block(yes);
        self.ops.b.seal_block(yes);
        self.ops.store(dtype, value, address, 0);
        self.ops.b.ins().jump(join, &[]);
        self.ops.b.switch_to_block(join);
        self.ops.b.seal_block(join);
    }

    // ---- registers

    /// Gives every register its variables: one, or a vector for each of `groups`. They are zero until a pass defines them.
    fn set_registers(&mut self, groups: Option<usize>) {
        self.vector_registers = groups.is_some();
        let kernel = self.kernel;
        self.registers = kernel
            .registers
            .iter()
            .map(|dtype| {
                let ty = match groups {
                    Some(_) => vector_type(*dtype).expect("a kernel with f64 has no lanes of rows"),
                    None => scalar_type(*dtype),
                };
                (0..groups.unwrap_or(1)).map(|_| self.ops.b.declare_var(ty)).collect()
            })
            .collect();
    }

    /// What a reduction starts from.
    fn start_value(&mut self, kind: ReduceKind, dtype: DType, vector: bool) -> Value {
        let x = neutral(kind, dtype);
        if vector { self.ops.vector_constant(dtype, x) } else { self.ops.constant(dtype, x) }
    }

    // ---- loops

    fn variable(&mut self, ty: Type, value: Value) -> Variable {
        let variable = self.ops.b.declare_var(ty);
        self.ops.b.def_var(variable, value);
        variable
    }

    /// All turns of a loop, one at a time.
    fn turns(&mut self, index: LoopId, extent: usize, body: impl FnOnce(&mut Self)) {
        let (zero, limit) = (self.ops.i64(0), self.ops.i64(extent as i64));
        let position = self.variable(I64, zero);
        self.count(position, limit, 1, extent > 0, |s, i| {
            s.index[index.index()] = Some(i);
            let mark = s.log.len();
            body(s);
            s.forget(mark);
        });
        self.index[index.index()] = None;
    }

    /// Runs `body` while `position` is below `limit` (signed), adding `step` after each turn. `certain`: there is a first
    /// turn.
    fn count(
        &mut self,
        position: Variable,
        limit: Value,
        step: usize,
        certain: bool,
        body: impl FnOnce(&mut Self, Value),
    ) {
        let (inside, exit) = (self.ops.b.create_block(), self.ops.b.create_block());
        if certain {
            self.ops.b.ins().jump(inside, &[]);
        } else {
            let first = self.ops.b.use_var(position);
            let some = self.ops.b.ins().icmp(IntCC::SignedLessThan, first, limit);
            self.ops.b.ins().brif(some, inside, &[], exit, &[]);
        }
        self.ops.b.switch_to_block(inside);
        let i = self.ops.b.use_var(position);
        let mark = self.log.len();
        body(self, i);
        self.forget(mark);
        let next = self.ops.b.ins().iadd_imm_s(i, step as i64);
        self.ops.b.def_var(position, next);
        let more = self.ops.b.ins().icmp(IntCC::SignedLessThan, next, limit);
        self.ops.b.ins().brif(more, inside, &[], exit, &[]);
        self.ops.b.seal_block(inside);
        self.ops.b.switch_to_block(exit);
        self.ops.b.seal_block(exit);
    }

    /// Forgets the expressions evaluated since a mark: the place where they were is left.
    fn forget(&mut self, mark: usize) {
        for e in self.log.drain(mark..) {
            self.memo[e.index()] = None;
        }
    }
}
