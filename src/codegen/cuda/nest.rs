//! Loop nests: a kernel of the kernel IR as one function.
//!
//! Threads are put together in teams (`team.rs`). All threads of a team keep all registers; they share the turns of a pass,
//! combine its reductions, and the first of them stores what a pass without loops stores. Barriers stand where a pass reads
//! what other threads of the team have stored, or stores where they may have read.

use super::expr;
use super::keep::Kept;
use super::team::{Shape, Team, passes};
use super::types::{constant, held, stored};
use crate::codegen::plan::{Facts, facts, levels, merge_loops, stride};
use crate::kernel::{Carry, ExprId, Index, Kernel, LoopId, Node, Pass, Reduction, Statement, Store};
use crate::types::{DType, ReduceKind};
use std::fmt::Write;

/// A kernel as text, and how it is launched.
#[derive(Clone)]
pub struct Nest {
    pub text: String,
    pub blocks: u32,
    pub threads: u32,
    /// Whether it has a further argument: memory for what blocks hand to the next kernel.
    pub partials: bool,
}

/// Bytes of that memory, for kernels with so many registers.
pub fn partial_bytes(kernel: &Kernel) -> usize {
    8 * kernel.registers.len() * MANY_BLOCKS as usize
}

/// Most blocks of a launch; each then computes several rows.
const MOST_BLOCKS: usize = 1 << 14;
/// Blocks that share the passes of a kernel's only row, and turns of these that are worth it.
const MANY_BLOCKS: u32 = 128;
const MANY_TURNS: usize = 1 << 15;

/// What of a kernel is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// Passes with loops, by many blocks, each of which leaves what it has reduced.
    Partial,
    /// All else, by one block.
    Rest,
}

/// One function, or two where many blocks share a row. `notes`: for each buffer what it is, for people. `aligned`: so many bytes is each at
/// least aligned to.
pub fn emit(kernel: &Kernel, name: &str, notes: &[String], aligned: &[usize]) -> Vec<Nest> {
    let kernel = &merge_loops(kernel);
    let parts: &[Part] = if is_shared(kernel) { &[Part::Partial, Part::Rest] } else { &[Part::Whole] };
    parts.iter().map(|part| emit_part(kernel, name, notes, aligned, *part)).collect()
}

/// Whether many blocks share the passes of a kernel's only row: these store nothing, and read nothing that others of them have reduced.
fn is_shared(kernel: &Kernel) -> bool {
    let facts = facts(kernel);
    let mut turns = 0;
    let alone = kernel.row_count() == 1
        && kernel.body.iter().all(|s| match s {
            Statement::For { .. } => false,
            Statement::Pass(p) if p.loops.is_empty() => p.carries.is_empty() && p.reductions.is_empty(),
            Statement::Pass(p) => {
                turns += p.loops.iter().map(|l| kernel.extents[l.index()]).product::<usize>();
                let reads = |r: &Reduction| !facts[r.value.index()].registers.is_empty();
                p.carries.is_empty() && p.stores.is_empty() && !p.reductions.iter().any(reads)
            }
        });
    // A pass without loops may store what a later one with loops reads.
    let first_rest = kernel.body.iter().position(|s| matches!(s, Statement::Pass(p) if !p.stores.is_empty()));
    let looped = kernel.body.iter().rposition(|s| matches!(s, Statement::Pass(p) if !p.loops.is_empty()));
    let in_order = match (first_rest, looped) {
        (Some(rest), Some(looped)) if rest < looped => !stored_is_read(kernel),
        _ => true,
    };
    let mut reduced: Vec<_> = passes(&kernel.body).iter().flat_map(|p| &p.reductions).map(|r| r.register).collect();
    let count = reduced.len();
    reduced.sort_unstable();
    reduced.dedup();
    alone && in_order && turns >= MANY_TURNS && reduced.len() == count
}

/// Whether a kernel may read what it has stored: two arguments may be one memory.
fn stored_is_read(kernel: &Kernel) -> bool {
    kernel.buffers.iter().any(|b| b.access == crate::program::Access::ReadWrite)
}

fn emit_part(kernel: &Kernel, name: &str, notes: &[String], aligned: &[usize], part: Part) -> Nest {
    let mut shape = Shape::of(kernel);
    if part != Part::Whole {
        shape.team = Team::Block(1024);
    }
    let facts = facts(kernel);
    let (threads, rows) = shape.block();
    let pack = if shape.flat { pack(kernel, &shape, aligned) } else { 1 };
    let count = shape.count(kernel) / pack;
    let blocks = match part {
        Part::Partial => MANY_BLOCKS,
        _ => count.div_ceil(rows as usize).clamp(1, MOST_BLOCKS) as u32,
    };
    let kept = if part == Part::Whole { Kept::of(kernel, &facts, shape.team) } else { Kept::default() };
    let mut e = Emitter {
        kernel,
        facts,
        kept,
        loaded_before: Vec::new(),
        keeping: false,
        shape,
        pack,
        count,
        out: String::new(),
        depth: 1,
        stored: false,
        loaded: false,
        packed: Vec::new(),
        part,
    };
    e.function(name, notes, threads, rows);
    Nest { text: e.out, blocks, threads, partials: part != Part::Whole }
}

struct Emitter<'k> {
    kernel: &'k Kernel,
    facts: Vec<Facts>,
    kept: Kept,
    /// Those of `kept` that are in registers already.
    loaded_before: Vec<ExprId>,
    /// Whether the pass under way has them.
    keeping: bool,
    shape: Shape,
    /// Neighbouring elements that a thread computes together.
    pack: usize,
    /// Rows, of packs.
    count: usize,
    out: String,
    depth: usize,
    /// Whether passes since the last barrier have stored, and loaded.
    stored: bool,
    loaded: bool,
    /// Loads that come from a pack.
    packed: Vec<ExprId>,
    part: Part,
}

/// How many neighbouring elements the threads of a flat kernel compute together: what 16 bytes hold, where all addresses allow it.
fn pack(kernel: &Kernel, shape: &Shape, aligned: &[usize]) -> usize {
    let Some(fast) = shape.rows.last() else { return 1 };
    let [Statement::Pass(pass)] = &kernel.body[..] else { return 1 };
    let mut widest = 0;
    let mut most = usize::MAX;
    let mut access = |buffer: usize, at: &Index| {
        if stride(at, *fast) == 1 && at.exprs.is_empty() {
            let bytes = kernel.buffers[buffer].dtype.bytes();
            widest = widest.max(bytes);
            // Every other term keeps packs whole.
            let mut whole = at.base;
            at.loops.iter().filter(|(l, _)| l != fast).for_each(|(_, k)| whole |= k);
            let even = if whole == 0 { 16 } else { 1 << whole.trailing_zeros().min(4) };
            most = most.min(even).min(aligned[buffer] / bytes);
        }
    };
    for e in kernel.needed(pass) {
        if let Node::Load { buffer, at, when: None, .. } = &kernel.expr(e).node {
            access(buffer.index(), at);
        }
    }
    for s in pass.stores.iter().filter(|s| s.when.is_none()) {
        access(s.buffer.index(), &s.at);
    }
    if widest == 0 {
        return 1;
    }
    let mut n = (16 / widest).min(most).max(1);
    while !kernel.extents[fast.index()].is_multiple_of(n) {
        n /= 2;
    }
    n
}

impl Emitter<'_> {
    fn line(&mut self, text: impl AsRef<str>) {
        let _ = writeln!(self.out, "{:1$}{2}", "", 4 * self.depth, text.as_ref());
    }

    fn open(&mut self, text: impl AsRef<str>) {
        self.line(format!("{} {{", text.as_ref()).trim_start());
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }

    fn function(&mut self, name: &str, notes: &[String], threads: u32, rows: u32) {
        let params: Vec<String> = self
            .kernel
            .buffers
            .iter()
            .zip(notes)
            .enumerate()
            .map(|(n, (b, note))| {
                let constant = if b.access.writes() { "" } else { "const " };
                format!("    {constant}{} *p{n}, // {note}\n", stored(b.dtype))
            })
            .collect();
        let _ = write!(
            self.out,
            "extern \"C\" __global__ void __launch_bounds__({threads}) {name}(\n{}    const u64 *scalars, u64 *status{}) {{\n",
            params.concat(),
            if self.part == Part::Whole { "" } else { ", u64 *partials" }
        );
        match self.shape.team {
            Team::One => {}
            Team::Warp => self.line("const int lane = threadIdx.x & 31, team = 32;"),
            Team::Block(n) => {
                self.line(format!("const int lane = threadIdx.x, team = {n};"));
                self.line(format!("__shared__ u64 room[{}];", n / 32));
            }
            Team::Column(height) => {
                self.line(format!("const int lane = threadIdx.x >> 5, team = {height};"));
                self.line(format!("__shared__ u64 room[{}];", 32 * height));
            }
        }
        self.rows(rows);
        self.out.push_str("}\n");
    }

    /// The loop over rows, and what is done for each.
    fn rows(&mut self, rows: u32) {
        let (count, kernel) = (self.count, self.kernel);
        let far = count as u64 + (u64::from(rows) << 14) >= 1 << 31;
        let (ty, rows) = if far { ("i64", format!("{rows}ll")) } else { ("int", rows.to_string()) };
        let step = match self.shape.team {
            Team::One => format!("{ty} row = blockIdx.x * {rows} + threadIdx.x; row < {count}"),
            Team::Warp => format!("{ty} row = blockIdx.x * {rows} + (threadIdx.x >> 5); row < {count}"),
            Team::Block(_) if self.part == Part::Partial => "int row = 0; row < 1".to_string(),
            Team::Block(_) => format!("{ty} row = blockIdx.x; row < {count}"),
            // All columns reach the barriers: those without a row compute the last one, and store nothing.
            Team::Column(_) => format!("{ty} first = blockIdx.x * {rows}; first < {count}"),
        };
        let name = if matches!(self.shape.team, Team::Column(_)) { "first" } else { "row" };
        match self.part {
            Part::Partial => self.open(format!("for ({step}; ++row)")),
            _ => self.open(format!("for ({step}; {name} += gridDim.x * {rows})")),
        }
        if let Team::Column(_) = self.shape.team {
            self.line(format!("const {ty} own = first + (threadIdx.x & 31);"));
            self.line(format!("const bool active = own < {count};"));
            self.line(format!("const {ty} row = active ? own : {};", count - 1));
        }
        let loops = self.shape.rows.clone();
        let mut behind = 1;
        for (n, l) in loops.iter().enumerate().rev() {
            let last = n + 1 == loops.len();
            let pack = if last { self.pack } else { 1 };
            let extent = kernel.extents[l.index()] / pack;
            let mut at = if behind == 1 { "row".to_string() } else { format!("row / {behind}") };
            if n > 0 {
                at = format!("{at} % {extent}");
            }
            let scale = if pack > 1 { format!(" * {pack}") } else { String::new() };
            self.line(format!("int {l} = (int)({at}){scale};"));
            behind *= extent.max(1);
        }
        // Loops of one turn.
        let all = if self.shape.flat { kernel.extents.len() } else { kernel.rows };
        let others = (0..all as u32).map(LoopId).filter(|l| !loops.contains(l)).collect::<Vec<_>>();
        others.iter().for_each(|l| self.line(format!("const int {l} = 0;")));
        for (n, dtype) in kernel.registers.iter().enumerate() {
            self.line(format!("{} r{n} = {};", held(*dtype), constant(*dtype, 0.0)));
        }
        for e in self.kept.loads.clone() {
            self.line(format!("{} kept_{e}[{}];", held(kernel.expr(e).dtype), self.kept.turns));
        }
        self.loaded_before.clear();
        match (&kernel.body[..], self.pack) {
            ([Statement::Pass(pass)], 2..) => self.packs(pass),
            (body, _) => {
                self.body(body);
                self.turn_ends();
            }
        }
        self.close();
    }

    fn body(&mut self, body: &[Statement]) {
        for statement in body {
            match statement {
                Statement::Pass(pass) => self.pass(pass),
                Statement::For { index, body } => {
                    let extent = self.kernel.extents[index.index()];
                    self.open(format!("for (int {index} = 0; {index} < {extent}; ++{index})"));
                    self.body(body);
                    self.turn_ends();
                    self.close();
                }
            }
        }
    }

    /// The next turn of a loop must not overtake this one.
    fn turn_ends(&mut self) {
        if self.stored && !matches!(self.shape.team, Team::One) {
            self.barrier();
        }
    }

    fn barrier(&mut self) {
        match self.shape.team {
            Team::One => {}
            Team::Warp => self.line("__syncwarp();"),
            Team::Block(_) | Team::Column(_) => self.line("__syncthreads();"),
        }
        (self.stored, self.loaded) = (false, false);
    }

    fn pass(&mut self, pass: &Pass) {
        let kernel = self.kernel;
        match (self.part, pass.loops.is_empty()) {
            (Part::Partial, true) => return,
            (Part::Rest, false) => return pass.reductions.iter().for_each(|r| self.put_together(r)),
            _ => {}
        }
        let loads = kernel.needed(pass).iter().any(|e| matches!(kernel.expr(*e).node, Node::Load { .. }));
        let stores = !pass.stores.is_empty();
        if !matches!(self.shape.team, Team::One) && ((loads && self.stored) || (stores && (self.loaded || self.stored)))
        {
            self.barrier();
        }
        self.line(format!("// pass{}", pass.loops.iter().map(|l| format!(" {l}")).collect::<String>()));
        if !pass.carries.is_empty() {
            self.starts(&pass.carries);
        }
        for r in &pass.reductions {
            let dtype = kernel.registers[r.register.index()];
            self.line(format!("{} = {};", r.register, constant(dtype, r.kind.neutral(dtype))));
        }
        self.open("");
        match self.shape.team {
            Team::One => self.nested(pass),
            _ => self.shared(pass),
        }
        self.close();
        if !pass.loops.is_empty() && !self.shape.flat {
            pass.reductions.iter().for_each(|r| self.combined(r));
        }
        if self.part == Part::Partial {
            self.open("if (lane == 0)");
            for r in &pass.reductions {
                let (register, ty) = (r.register, held(kernel.registers[r.register.index()]));
                self.line(format!("*({ty} *)(partials + {} + blockIdx.x) = {register};", r.register.0 * MANY_BLOCKS));
            }
            self.close();
        }
        self.stored |= stores;
        self.loaded |= loads;
    }

    /// The first values of carries.
    fn starts(&mut self, carries: &[Carry]) {
        let kernel = self.kernel;
        let mut wanted = vec![false; kernel.exprs.len()];
        carries.iter().for_each(|c| wanted[c.initial.index()] = true);
        for n in (0..wanted.len()).rev().filter(|n| wanted[*n]).collect::<Vec<_>>() {
            mark(kernel, ExprId(n as u32), &mut wanted);
        }
        self.open("");
        (0..wanted.len()).filter(|n| wanted[*n]).for_each(|n| self.define(ExprId(n as u32)));
        carries.iter().for_each(|c| self.line(format!("{} = {};", c.register, c.initial)));
        self.close();
    }

    fn define(&mut self, e: ExprId) {
        let dtype = self.kernel.expr(e).dtype;
        let value = match self.packed.contains(&e) {
            true => format!("wide(x{}.of[v])", e.0),
            false if self.keeping && self.loaded_before.contains(&e) => format!("kept_{e}[n]"),
            false => expr::value(self.kernel, e),
        };
        self.line(format!("const {} {e} = {value};", held(dtype)));
    }

    /// A pass of one thread: its loops one in the other.
    fn nested(&mut self, pass: &Pass) {
        let loops: &[LoopId] = if self.shape.flat { &[] } else { &pass.loops };
        let levels = self.levels(pass);
        let at = |level: usize| levels.iter().filter(move |(_, l)| *l == level).map(|(e, _)| *e).collect::<Vec<_>>();
        at(0).into_iter().for_each(|e| self.define(e));
        for (n, l) in loops.iter().enumerate() {
            let extent = self.kernel.extents[l.index()];
            self.open(format!("for (int {l} = 0; {l} < {extent}; ++{l})"));
            at(n + 1).into_iter().for_each(|e| self.define(e));
        }
        self.turn(pass);
        loops.iter().for_each(|_| self.close());
    }

    /// A pass whose turns a team shares.
    fn shared(&mut self, pass: &Pass) {
        self.keeping = self.kept.is_in(pass);
        let innermost = pass.loops.len();
        let levels = self.levels(pass);
        let outside = |(_, level): &&(ExprId, usize)| *level == 0 && innermost > 0;
        levels.iter().filter(outside).for_each(|(e, _)| self.define(*e));
        if innermost > 0 {
            let total: usize = pass.loops.iter().map(|l| self.kernel.extents[l.index()]).product();
            match self.part {
                _ if self.keeping => {
                    self.line("#pragma unroll");
                    self.open(format!("for (int n = 0; n < {}; ++n)", self.kept.turns));
                    self.line("const int t = lane + n * team;");
                    self.line(format!("if (t >= {total}) break;"));
                }
                Part::Partial => {
                    self.open(format!("for (int t = blockIdx.x * team + lane; t < {total}; t += {MANY_BLOCKS} * team)"))
                }
                _ => self.open(format!("for (int t = lane; t < {total}; t += team)")),
            }
            let mut behind = 1;
            for (n, l) in pass.loops.iter().enumerate().rev() {
                let extent = self.kernel.extents[l.index()];
                let at = if behind == 1 { "t".to_string() } else { format!("t / {behind}") };
                self.line(format!(
                    "const int {l} = {at}{};",
                    if n > 0 { format!(" % {extent}") } else { String::new() }
                ));
                behind *= extent.max(1);
            }
        }
        let inside = |(_, level): &&(ExprId, usize)| *level > 0 || innermost == 0;
        levels.iter().filter(inside).for_each(|(e, _)| self.define(*e));
        if self.keeping {
            for e in levels.iter().map(|(e, _)| *e).filter(|e| self.kept.loads.contains(e)).collect::<Vec<_>>() {
                if !self.loaded_before.contains(&e) {
                    self.line(format!("kept_{e}[n] = {e};"));
                    self.loaded_before.push(e);
                }
            }
        }
        self.turn(pass);
        if innermost > 0 {
            self.close();
        }
        self.keeping = false;
    }

    /// Expressions with the number of loops around them.
    fn levels(&self, pass: &Pass) -> Vec<(ExprId, usize)> {
        match self.shape.flat {
            true => self.kernel.needed(pass).into_iter().map(|e| (e, 0)).collect(),
            false => levels(self.kernel, &self.facts, pass),
        }
    }

    /// What an innermost iteration does with its expressions.
    fn turn(&mut self, pass: &Pass) {
        for c in &pass.carries {
            let dtype = self.kernel.registers[c.register.index()];
            self.line(format!("const {} next_{} = {};", held(dtype), c.register, c.next));
        }
        pass.reductions.iter().for_each(|r| self.accumulate(r));
        let mut conditions: Vec<&str> = Vec::new();
        let alone = pass.loops.is_empty() && !matches!(self.shape.team, Team::One);
        if alone {
            conditions.push("lane == 0");
        }
        if matches!(self.shape.team, Team::Column(_)) {
            conditions.push("active");
        }
        for s in &pass.stores {
            let when = s.when.map(|w| w.to_string());
            let all: Vec<&str> = conditions.iter().copied().chain(when.as_deref()).collect();
            let guard = if all.is_empty() { String::new() } else { format!("if ({}) ", all.join(" && ")) };
            self.line(format!("{guard}put({} + ({}), {});", s.buffer, expr::index(self.kernel, &s.at), s.value));
        }
        pass.carries.iter().for_each(|c| self.line(format!("{0} = next_{0};", c.register)));
    }

    /// A register of what many blocks have left.
    fn put_together(&mut self, r: &Reduction) {
        let dtype = self.kernel.registers[r.register.index()];
        let (x, ty) = (r.register, held(dtype));
        self.line(format!("{x} = {};", constant(dtype, r.kind.neutral(dtype))));
        let at = format!("partials + {} + lane", x.0 * MANY_BLOCKS);
        self.line(format!("if (lane < {MANY_BLOCKS}) {x} = *(const {ty} *)({at});"));
        self.combined(r);
    }

    fn accumulate(&mut self, r: &Reduction) {
        let int = self.kernel.registers[r.register.index()] == DType::I32;
        let (to, x) = (r.register, r.value);
        let value = match r.kind {
            ReduceKind::Sum if int => format!("(int)((u32){to} + (u32){x})"),
            ReduceKind::Prod if int => format!("(int)((u32){to} * (u32){x})"),
            ReduceKind::Sum => format!("{to} + {x}"),
            ReduceKind::Prod => format!("{to} * {x}"),
            ReduceKind::Max => format!("larger({to}, {x})"),
            ReduceKind::Min => format!("smaller({to}, {x})"),
            ReduceKind::Any => format!("{to} || {x}"),
            ReduceKind::All => format!("{to} && {x}"),
            ReduceKind::ArgMax | ReduceKind::ArgMin => unreachable!("made of carries"),
        };
        self.line(format!("{to} = {value};"));
    }

    /// One value of those of all threads of the team.
    fn combined(&mut self, r: &Reduction) {
        let kind = match r.kind {
            ReduceKind::Sum => "Sum",
            ReduceKind::Prod => "Prod",
            ReduceKind::Max => "Max",
            ReduceKind::Min => "Min",
            ReduceKind::Any => "Any",
            ReduceKind::All => "All",
            ReduceKind::ArgMax | ReduceKind::ArgMin => unreachable!("made of carries"),
        };
        let x = r.register;
        match self.shape.team {
            Team::One => {}
            Team::Warp => self.line(format!("{x} = of_warp<{kind}>({x});")),
            Team::Block(n) => self.line(format!("{x} = of_block<{kind}, {}>({x}, room);", n / 32)),
            Team::Column(height) => self.line(format!("{x} = of_column<{kind}, {height}>({x}, room);")),
        }
    }

    /// The pass of a flat kernel, for several neighbouring elements: loaded and stored at once, computed one after the other.
    fn packs(&mut self, pass: &Pass) {
        let (kernel, n) = (self.kernel, self.pack);
        let Some(fast) = self.shape.rows.last().copied() else { return };
        let whole = |at: &Index| stride(at, fast) == 1 && at.exprs.is_empty();
        for e in kernel.needed(pass) {
            if let Node::Load { buffer, at, when: None, .. } = &kernel.expr(e).node
                && whole(at)
            {
                let ty = stored(kernel.buffers[buffer.index()].dtype);
                let at = expr::index(kernel, at);
                self.line(format!("const Pack<{ty}, {n}> x{} = *(const Pack<{ty}, {n}> *)({buffer} + ({at}));", e.0));
                self.packed.push(e);
            }
        }
        let at_once: Vec<bool> = pass.stores.iter().map(|s| s.when.is_none() && whole(&s.at)).collect();
        let ty = |s: &Store| stored(kernel.buffers[s.buffer.index()].dtype);
        for (k, s) in pass.stores.iter().enumerate().filter(|(k, _)| at_once[*k]) {
            self.line(format!("Pack<{}, {n}> y{k};", ty(s)));
        }
        self.line(format!("const int first_{fast} = {fast};"));
        self.line("#pragma unroll");
        self.open(format!("for (int v = 0; v < {n}; ++v)"));
        self.line(format!("{fast} = first_{fast} + v;"));
        kernel.needed(pass).into_iter().for_each(|e| self.define(e));
        for (k, s) in pass.stores.iter().enumerate() {
            let guard = s.when.map_or(String::new(), |w| format!("if ({w}) "));
            match at_once[k] {
                true => self.line(format!("put(&y{k}.of[v], {});", s.value)),
                false => {
                    self.line(format!("{guard}put({} + ({}), {});", s.buffer, expr::index(kernel, &s.at), s.value));
                }
            }
        }
        self.close();
        self.line(format!("{fast} = first_{fast};"));
        for (k, s) in pass.stores.iter().enumerate().filter(|(k, _)| at_once[*k]) {
            let at = expr::index(kernel, &s.at);
            self.line(format!("*(Pack<{}, {n}> *)({} + ({at})) = y{k};", ty(s), s.buffer));
        }
    }
}

/// Marks all operands of a marked expression.
fn mark(kernel: &Kernel, e: ExprId, wanted: &mut [bool]) {
    kernel.expr(e).operands(&mut |o| {
        if !std::mem::replace(&mut wanted[o.index()], true) {
            mark(kernel, o, wanted);
        }
    });
}
