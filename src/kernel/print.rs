//! Kernels and routines as text, stable from run to run.

use super::*;
use crate::mesh::{Atom, Cut};
use crate::program::{
    Access, Action, Arg, Attention, BatchDim, Buffer, Collective, Gemm, Launch, Library, Matrix, Place, Program,
    Routine, Step, Strided,
};
use std::fmt::{Display, Formatter, Result, Write};

/// All kernels, then all routines.
pub fn print(module: &Module<'_>) -> String {
    let mut out = String::new();
    for (i, kernel) in module.kernels.iter().enumerate() {
        let _ = writeln!(out, "kernel k{i} {kernel}");
    }
    for routine in &module.program.routines {
        out.push_str(&print_routine(routine, &module.program));
    }
    out
}

fn list<T>(items: impl IntoIterator<Item = T>, show: impl Fn(T) -> String) -> String {
    items.into_iter().map(show).collect::<Vec<_>>().join(", ")
}

fn number(x: f64) -> String {
    if x == x.trunc() && x.abs() < 1e15 { format!("{x:.0}") } else { format!("{x:?}") }
}

impl Display for Index {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut terms: Vec<(i64, String)> = self.loops.iter().map(|(l, k)| (*k, l.to_string())).collect();
        terms.extend(self.exprs.iter().map(|(e, k)| (*k, e.to_string())));
        let mut first = true;
        for (k, name) in terms {
            let sign = match (first, k < 0) {
                (true, true) => "-",
                (true, false) => "",
                (false, true) => " - ",
                (false, false) => " + ",
            };
            f.write_str(sign)?;
            if k.abs() != 1 {
                write!(f, "{}*", k.abs())?;
            }
            f.write_str(&name)?;
            first = false;
        }
        match (first, self.base) {
            (true, base) => write!(f, "{base}"),
            (false, 0) => Ok(()),
            (false, base) if base < 0 => write!(f, " - {}", -base),
            (false, base) => write!(f, " + {base}"),
        }
    }
}

impl Display for Kernel {
    /// ```text
    /// max+exp+sum: rows i0=64, loops i1=32, r0 f32, r1 f32
    ///   p0 f32 read, p1 f32 write
    ///   e0 f32 = p0[32*i0 + i1]
    ///   pass i1
    ///     r0 = max e0
    /// ```
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let extent = |i: usize| format!("i{i}={}", self.extents[i]);
        write!(f, "{}:", self.name)?;
        if self.rows > 0 {
            write!(f, " rows {}", list(0..self.rows, extent))?;
        }
        if self.extents.len() > self.rows {
            write!(f, " loops {}", list(self.rows..self.extents.len(), extent))?;
        }
        if !self.registers.is_empty() {
            write!(f, " registers {}", list(self.registers.iter().enumerate(), |(i, t)| format!("r{i} {t}")))?;
        }
        if self.scalars > 0 {
            write!(f, " scalars {}", self.scalars)?;
        }
        writeln!(f)?;
        let buffer = |(i, b): (usize, &KernelBuffer)| format!("p{i} {} {}", b.dtype, access(b.access));
        writeln!(f, "  {}", list(self.buffers.iter().enumerate(), buffer))?;
        for (i, expr) in self.exprs.iter().enumerate() {
            writeln!(f, "  e{i} {} = {}", expr.dtype, expr.node)?;
        }
        self.body.iter().try_for_each(|s| statement(f, s, 1))
    }
}

impl Display for Node {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Node::Const(x) => f.write_str(&number(*x)),
            Node::Index(index) => write!(f, "index {index}"),
            Node::Load { buffer, at, when: None, .. } => write!(f, "{buffer}[{at}]"),
            Node::Load { buffer, at, when: Some(w), fill } => {
                write!(f, "{buffer}[{at}] if {w} else {}", number(*fill))
            }
            Node::Map(op, args) => write!(f, "{}({})", op.name(), list(args, ExprId::to_string)),
            Node::Register(r) => write!(f, "{r}"),
            Node::Random { dist, key, counter, origin } => {
                write!(f, "random {dist:?} key {key} at {counter}")?;
                origin.map_or(Ok(()), |n| write!(f, " from {n}"))
            }
            Node::Check { index, size, site } => write!(f, "check {index} in 0..{size} site {site}"),
        }
    }
}

fn statement(f: &mut Formatter<'_>, s: &Statement, depth: usize) -> Result {
    let indent = "  ".repeat(depth);
    match s {
        Statement::For { index, body } => {
            writeln!(f, "{indent}for {index}")?;
            body.iter().try_for_each(|s| statement(f, s, depth + 1))
        }
        Statement::Pass(pass) => {
            let space = if pass.loops.is_empty() { "" } else { " " };
            writeln!(f, "{indent}pass{space}{}", list(&pass.loops, LoopId::to_string))?;
            for c in &pass.carries {
                writeln!(f, "{indent}  {} = {} then {}", c.register, c.initial, c.next)?;
            }
            for r in &pass.reductions {
                writeln!(f, "{indent}  {} = {} {}", r.register, r.kind.name(), r.value)?;
            }
            for s in &pass.stores {
                let when = s.when.map_or(String::new(), |w| format!(" if {w}"));
                writeln!(f, "{indent}  {}[{}] = {}{when}", s.buffer, s.at, s.value)?;
            }
            Ok(())
        }
    }
}

fn access(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
        Access::ReadWrite => "read write",
    }
}

/// One routine: its buffers, then its steps.
pub fn print_routine(routine: &Routine, program: &Program) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "routine {} arena {}", routine.name, routine.arena);
    for (i, b) in routine.buffers.iter().enumerate() {
        let _ = writeln!(out, "  b{i} {}[{}] {} {} \"{}\"", b.dtype, b.elements, place(b), b.category.name(), b.name);
    }
    routine.steps.iter().for_each(|s| step(&mut out, s, program, 1));
    for o in &routine.outputs {
        let kind = format!("{:?}", o.kind).to_lowercase();
        let _ = writeln!(out, "  {kind} {} = {}[{}]", o.name, o.buffer, o.dims.join(", "));
    }
    out
}

fn place(buffer: &Buffer) -> String {
    match buffer.place {
        Place::Arena(usize::MAX) => "arena".to_string(),
        Place::Arena(at) => format!("arena {at}"),
        Place::Host(at) => format!("host {at}"),
        Place::Param(i) => format!("param {i}"),
        Place::State(i) => format!("state {i}"),
        Place::Input(i) => format!("input {i}"),
        Place::Constant(at) => format!("constant {at}"),
        Place::Argument(n) => format!("argument {n}"),
        Place::Strip => "strip".to_string(),
        Place::Step => "step".to_string(),
        Place::Position => "position".to_string(),
        Place::Coordinate(atom) => format!("coordinate {}", atom.0),
        Place::Slice { base, turn, offset, stride } => format!("slice {base} + {offset} + {stride}*{turn}"),
    }
}

fn step(out: &mut String, s: &Step, program: &Program, depth: usize) {
    let indent = "  ".repeat(depth);
    let text = match &s.action {
        Action::Launch(l) => launch(l),
        Action::Gemm(g) => gemm(g),
        Action::Finished(f) => format!("{}, block by block then {}", gemm(&f.gemm), launch(&f.launch)),
        Action::Copy { from, to } => format!("copy {to} = {from}"),
        Action::Library(l) => library(l),
        Action::Collective(c) => format!("begin {}: {}", c.number, collective(c)),
        Action::Wait(all) => format!("wait for {}", list(all, |b| b.number.to_string())),
        Action::Call(c) => {
            let args = list(&c.args, |a| a.buffer.to_string());
            format!("call {} ({args}) in {}", program.routines[c.routine as usize].name, c.workspace)
        }
        Action::Send(t) => format!("send {}: {} to {}", t.number, t.buffer, t.peer),
        Action::Receive(t) => format!("receive {}: {} from {}", t.number, t.buffer, t.peer),
        Action::Sent(t) => format!("wait for send {}", t.number),
        Action::Loop(l) => format!("loop {} turn {}{}", l.trip, l.turn, if l.reverse { " reverse" } else { "" }),
    };
    let source = &program.sources[s.source.0 as usize];
    let from = if source.file.is_empty() { String::new() } else { format!("  // {}:{}", source.file, source.line) };
    let _ = writeln!(out, "{indent}{text}{from}");
    if let Action::Loop(l) = &s.action {
        l.body.iter().for_each(|s| step(out, s, program, depth + 1));
        for (from, to) in &l.moves {
            let _ = writeln!(out, "{indent}  move {to} = {from}");
        }
    }
}

fn launch(l: &Launch) -> String {
    let arg = |a: &Arg| match a.access {
        Access::Read => a.buffer.to_string(),
        Access::Write => format!("out {}", a.buffer),
        Access::ReadWrite => format!("inout {}", a.buffer),
    };
    format!("launch k{}({}) rows {} grain {}", l.function, list(&l.args, arg), l.rows, l.grain)
}

fn gemm(g: &Gemm) -> String {
    let matrix = |m: &Matrix| format!("{}+{}[{}, {}]", m.buffer, m.offset, m.rows, m.cols);
    let dim = |d: &BatchDim| format!("{}:{}/{}/{}", d.extent, d.a, d.b, d.c);
    let (c, a, b) = (matrix(&g.c), matrix(&g.a), matrix(&g.b));
    let sign = if g.accumulate { "+=" } else { "=" };
    let mut text = format!("gemm {} {}x{}x{} {c} {sign} {a} * {b}", g.dtype, g.m, g.n, g.k);
    if !g.batch.is_empty() {
        let _ = write!(text, " batch {}", list(&g.batch, dim));
    }
    if !g.sums.is_empty() {
        let _ = write!(text, " sums {}", list(&g.sums, dim));
    }
    text
}

fn library(l: &Library) -> String {
    match l {
        Library::ArgSort { x, out, rows, n } => format!("argsort {out} = {x} [{rows}, {n}]"),
        Library::TopK { x, out, rows, n, k } => format!("top_k {out} = {x} [{rows}, {n}] k {k}"),
        Library::PackPlace { index, out, rows, n, limit } => {
            format!("pack_place {out} = {index} [{rows}, {n}] limit {limit}")
        }
        Library::Draw { logits, out, rows, n, top_k, top_p, .. } => {
            format!("draw {out} = {logits} [{rows}, {n}] top_k {top_k} top_p {top_p}")
        }
        Library::Random { out, dist, .. } => format!("random {out} {dist:?}"),
        Library::Scatter { kind, x, index, out, batch, m, targets, width, times, each, add } => {
            let (kind, sign) = (kind.name(), if *add { "+=" } else { "=" });
            let repeated = if *times > 1 { format!(" each {each} {times} times") } else { String::new() };
            format!("scatter {kind} {out} {sign} {x}{repeated} at {index} [{batch}, {m} -> {targets}, {width}]")
        }
        Library::Attention(a) => {
            let log = a.log.as_ref().map_or(String::new(), |l| format!(", {}", l.buffer));
            format!("attention {}{log} = {}", a.out.buffer, attention(a))
        }
        Library::AttentionGrad(g) => {
            let name = |s: &Option<Strided>| s.as_ref().map_or("-".to_string(), |s| s.buffer.to_string());
            let [dq, dk, dv] = [&g.dq, &g.dk, &g.dv].map(name);
            format!("attention_grad {dq}, {dk}, {dv} = {} of {}", g.d_out.buffer, attention(&g.of))
        }
    }
}

fn collective(c: &Collective) -> String {
    let numbers = |atoms: &[Atom]| list(atoms, |a| a.0.to_string());
    let cut = |cut: &Cut| match cut.is_empty() {
        true => String::new(),
        false => format!("@({})", list(cut, |e| e.atom.0.to_string())),
    };
    let dims = list(&c.dims, |d| format!("{}{} -> {}{}", d.extent, cut(&d.from), d.extent, cut(&d.to)));
    let reduce = c.reduce.as_ref().map_or_else(String::new, |(op, atoms)| format!(" {} {}", op.name(), numbers(atoms)));
    format!("{} {} = {} over ({}){reduce} [{dims}]", c.kind.name(), c.to, c.from, numbers(&c.atoms))
}

/// Operands, extents and what is seen.
fn attention(a: &Attention) -> String {
    let mut text = format!("{}, {}, {}", a.q.buffer, a.k.buffer, a.v.buffer);
    let sizes = |list: &[usize]| list.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    let _ = write!(
        text,
        " batch [{}] group [{}] queries {} keys {} features {} values {} scale {}",
        sizes(&a.batch),
        sizes(&a.group),
        a.queries,
        a.keys,
        a.features,
        a.width,
        a.scale
    );
    if a.cap > 0.0 {
        let _ = write!(text, " cap {}", a.cap);
    }
    if a.causal {
        text += " causal";
    }
    if let Some(reach) = a.reach {
        let _ = write!(text, " reach {reach}");
    }
    if let Some([q, k]) = &a.documents {
        let _ = write!(text, " documents {}, {}", q.buffer, k.buffer);
    }
    for (word, array) in [("mask", &a.mask), ("bias", &a.bias)] {
        if let Some(array) = array {
            let _ = write!(text, " {word} {}", array.buffer);
        }
    }
    text
}
