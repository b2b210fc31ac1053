//! A linked kernel to operations: each instruction is given its function and the rows of its operands, once.

use super::lanes::{LANES, NONE, Op, Row, Run};
use super::special::{self, Special};
use super::{barrier, compare, convert, float, half, int, shuffle};
use crate::check::fault::Kind;
use crate::lane_fn;
use crate::ptx::alloc::{Rows, allocate};
use crate::ptx::link::{Linked, Step};
use crate::ptx::tree::{Instr, Operand, Reg, Ty};
use crate::ptx::{PtxError, error};
use std::collections::HashMap;

use super::lanes::Flow;

/// A kernel that can be launched.
pub struct Kernel {
    pub name: String,
    pub ops: Vec<Op>,
    /// Rows of a warp's register file, and what those of constants hold.
    pub rows: u32,
    pub constants: Vec<(u32, u64, bool)>,
    pub specials: Vec<(u32, Special)>,
    pub predicates: u32,
    pub params: Vec<(usize, usize)>,
    pub param_bytes: usize,
    pub shared_bytes: usize,
    pub local_bytes: usize,
    pub max_threads: u32,
}

pub fn decode(linked: &Linked) -> Result<Kernel, PtxError> {
    let rows = allocate(linked);
    // One predicate and two rows take what nobody reads, one predicate is always true.
    let next = rows.rows + 2;
    let mut d = Decoder {
        linked,
        sink: rows.rows,
        no_predicate: rows.predicates,
        rows,
        next,
        constants: HashMap::new(),
        specials: Vec::new(),
    };
    let ops = linked.steps.iter().map(|s| d.op(s)).collect::<Result<Vec<Op>, PtxError>>()?;
    let mut constants: Vec<(u32, u64, bool)> = d.constants.iter().map(|((v, wide), r)| (*r, *v, *wide)).collect();
    constants.sort_unstable();
    Ok(Kernel {
        name: linked.name.clone(),
        ops,
        rows: d.next,
        constants,
        specials: d.specials,
        predicates: d.no_predicate + 2,
        params: linked.params.clone(),
        param_bytes: linked.param_bytes,
        shared_bytes: linked.shared_bytes,
        local_bytes: linked.local_bytes.next_multiple_of(16),
        max_threads: linked.max_threads,
    })
}

impl Kernel {
    /// Fills rows with their constants.
    pub fn fill(&self, rows: &mut [Row]) {
        for (row, value, wide) in &self.constants {
            if *wide {
                let two: &mut [Row; 2] = (&mut rows[*row as usize..][..2]).try_into().expect("two rows");
                *bytemuck::cast_mut::<[Row; 2], [u64; LANES]>(two) = [*value; LANES];
            } else {
                rows[*row as usize] = Row([*value as u32; LANES]);
            }
        }
    }
}

pub(super) struct Decoder<'a> {
    linked: &'a Linked,
    rows: Rows,
    next: u32,
    sink: u32,
    no_predicate: u32,
    constants: HashMap<(u64, bool), u32>,
    specials: Vec<(u32, Special)>,
}

/// An operation under construction, with nothing but its function.
pub(super) fn op(run: Run) -> Op {
    Op { run, d: NONE, a: NONE, b: NONE, c: NONE, guard: NONE, imm: 0, more: Box::default(), line: 0 }
}

impl Decoder<'_> {
    pub(super) fn ty(&self, r: Reg) -> Ty {
        self.linked.regs[r as usize]
    }

    pub(super) fn row(&self, r: Reg) -> u32 {
        self.rows.row[r as usize]
    }

    pub(super) fn constant(&mut self, value: u64, wide: bool) -> u32 {
        let next = &mut self.next;
        *self.constants.entry((value, wide)).or_insert_with(|| {
            let at = *next;
            *next += if wide { 2 } else { 1 };
            at
        })
    }

    /// The row of an operand that is read, as a value of type `ty`.
    pub(super) fn source(&mut self, operand: &Operand, ty: Ty) -> Option<u32> {
        let wide = ty.bytes() == 8;
        Some(match operand {
            Operand::Reg(r) if self.ty(*r) != Ty::Pred && (self.ty(*r).bytes() == 8) == wide => self.row(*r),
            Operand::Imm { bits, single } => {
                let bits = match (ty, single) {
                    (Ty::F32 | Ty::Tf32, false) if *bits > u64::from(u32::MAX) => {
                        u64::from((f64::from_bits(*bits) as f32).to_bits())
                    }
                    (Ty::F64, true) => f64::from(f32::from_bits(*bits as u32)).to_bits(),
                    _ => *bits,
                };
                let kept = match ty.bytes() {
                    1 | 2 => bits & 0xffff,
                    4 => bits & 0xffff_ffff,
                    _ => bits,
                };
                self.constant(kept, wide)
            }
            Operand::Special(name) => {
                if name == "WARP_SZ" {
                    return Some(self.constant(LANES as u64, wide));
                }
                let special = Special::parse(name)?;
                if let Some((row, _)) = self.specials.iter().find(|s| s.1 == special) {
                    return Some(*row);
                }
                self.specials.push((self.next, special));
                self.next += 2;
                self.next - 2
            }
            _ => return None,
        })
    }

    pub(super) fn target(&self, operand: &Operand) -> Option<u32> {
        match operand {
            Operand::Reg(r) if self.ty(*r) != Ty::Pred => Some(self.row(*r)),
            Operand::Sink => Some(self.sink),
            _ => None,
        }
    }

    /// A predicate that is read: twice its number, plus one where it is negated. Constants are of the true one.
    fn predicate(&self, operand: &Operand) -> Option<u32> {
        match operand {
            Operand::Reg(r) if self.ty(*r) == Ty::Pred => Some(self.row(*r) << 1),
            Operand::Not(r) if self.ty(*r) == Ty::Pred => Some(self.row(*r) << 1 | 1),
            Operand::Imm { bits, .. } => Some((self.no_predicate + 1) << 1 | u32::from(*bits == 0)),
            _ => None,
        }
    }

    fn predicate_target(&self, operand: &Operand) -> Option<u32> {
        match operand {
            Operand::Reg(r) if self.ty(*r) == Ty::Pred => Some(self.row(*r)),
            Operand::Sink => Some(self.no_predicate),
            _ => None,
        }
    }

    fn op(&mut self, step: &Step) -> Result<Op, PtxError> {
        let instr = &step.instr;
        let Some(mut op) = self.any(step) else {
            return error(instr.line, format!("`{}` is not known to the software GPU", instr.name()));
        };
        op.line = instr.line;
        if let Some((r, negated)) = instr.guard {
            if self.ty(r) != Ty::Pred {
                return error(instr.line, "the guard is no predicate");
            }
            op.guard = self.row(r) << 1 | u32::from(negated);
        }
        Ok(op)
    }

    fn any(&mut self, step: &Step) -> Option<Op> {
        let instr = &step.instr;
        let o = &instr.operands;
        let types = instr.types();
        let ty = types.last().copied().unwrap_or(Ty::B32);
        match instr.parts[0].as_str() {
            "mov" => self.copy(instr, ty),
            "cvta" => self.window(instr, ty),
            "ld" | "ldu" | "st" => self.memory(instr, ty),
            "atom" | "red" => self.atomic(instr, ty),
            "cp" => self.async_copy(instr),
            "bra" => Some(Op { imm: u64::from(*step.targets.first()?), ..op(lane_fn!(|op, w, env| Flow::Branch)) }),
            "brx" => {
                let a = self.source(o.first()?, Ty::U32)?;
                let more = step.targets.clone().into();
                let run = lane_fn!(|op, w, env| {
                    let at = w.rows[op.a as usize].0;
                    if let Some(l) = (0..LANES).find(|l| w.exec >> l & 1 != 0 && at[*l] as usize >= op.more.len()) {
                        env.fail(op, 1 << l, Kind::Trap, "a branch past the end of its list".into());
                        return Flow::Fault;
                    }
                    for l in (0..LANES).filter(|l| w.exec >> l & 1 != 0) {
                        w.switch[l] = op.more[at[l] as usize];
                    }
                    Flow::Switch
                });
                Some(Op { a, more, ..op(run) })
            }
            "exit" | "ret" => Some(op(lane_fn!(|op, w, env| Flow::Exit))),
            "trap" => Some(op(lane_fn!(|op, w, env| {
                let lanes = w.exec;
                env.fail(op, lanes, Kind::Trap, "the kernel traps".into());
                Flow::Fault
            }))),
            "membar" | "fence" | "nanosleep" | "brkpt" | "prefetch" | "prefetchu" | "discard" | "applypriority"
            | "griddepcontrol" | "pmevent" => Some(op(lane_fn!(|op, w, env| Flow::Next))),
            "bar" | "barrier" => self.barrier(instr),
            "setp" | "set" => self.compare(instr, ty),
            "testp" => {
                let (d, a) = (self.predicate_target(o.first()?)?, self.source(o.get(1)?, ty)?);
                Some(Op { d, a, ..op(compare::test(instr, ty)?) })
            }
            "selp" => {
                let (d, c) = (self.target(o.first()?)?, self.predicate(o.get(3)?)?);
                let (a, b) = (self.source(o.get(1)?, ty)?, self.source(o.get(2)?, ty)?);
                Some(Op { d, a, b, c, ..op(compare::select(ty)) })
            }
            "slct" => {
                let [of, by] = types[..] else { return None };
                let (d, c) = (self.target(o.first()?)?, self.source(o.get(3)?, by)?);
                let (a, b) = (self.source(o.get(1)?, of)?, self.source(o.get(2)?, of)?);
                Some(Op { d, a, b, c, ..op(compare::select_by_sign(of, by)?) })
            }
            "cvt" => self.convert(instr, &types),
            "shfl" => self.shuffle(instr),
            "vote" | "match" | "redux" | "elect" | "activemask" => self.gather(instr, ty),
            "mma" => self.mma(instr),
            "ldmatrix" | "stmatrix" => self.matrices(instr),
            "lop3" => {
                let (d, a, b) = self.two(o, ty)?;
                let c = self.source(o.get(3)?, ty)?;
                let Operand::Imm { bits, .. } = o.get(4)? else { return None };
                Some(Op { d, a, b, c, imm: *bits, ..op(int::lop3()) })
            }
            "bfi" => {
                let (d, a, b) = self.two(o, ty)?;
                let (c, last) = (self.source(o.get(3)?, Ty::U32)?, self.source(o.get(4)?, Ty::U32)?);
                Some(Op { d, a, b, c, more: [last].into(), ..op(int::bfi(ty)?) })
            }
            "addc" | "subc" | "madc" => self.carry(instr, ty),
            "add" | "sub" | "mad" if instr.has("cc") => self.carry(instr, ty),
            _ => self.plain(instr, ty),
        }
    }

    fn two(&mut self, o: &[Operand], ty: Ty) -> Option<(u32, u32, u32)> {
        Some((self.target(o.first()?)?, self.source(o.get(1)?, ty)?, self.source(o.get(2)?, ty)?))
    }

    /// Arithmetic of one, two or three operands.
    fn plain(&mut self, instr: &Instr, ty: Ty) -> Option<Op> {
        let o = &instr.operands;
        let opcode = instr.parts[0].as_str();
        if ty == Ty::Pred {
            let d = self.predicate_target(o.first()?)?;
            let a = self.predicate(o.get(1)?)?;
            return if o.len() == 2 {
                Some(Op { d, a, ..op(int::unary(instr, ty)?) })
            } else {
                Some(Op { d, a, b: self.predicate(o.get(2)?)?, ..op(int::binary(instr, ty)?) })
            };
        }
        let d = self.target(o.first()?)?;
        // Operands whose types are not that of the instruction.
        let shift = matches!(opcode, "shl" | "shr" | "bfe");
        let second = if shift { Ty::U32 } else { ty };
        let third = match ty {
            _ if shift => Ty::U32,
            Ty::U16 | Ty::S16 if instr.has("wide") => Ty::U32,
            Ty::U32 | Ty::S32 if instr.has("wide") => Ty::U64,
            _ => ty,
        };
        let a = self.source(o.get(1)?, ty)?;
        let small = matches!(ty, Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2);
        match o.len() {
            2 => {
                let run = match ty {
                    _ if small => half::unary(instr, ty)?,
                    Ty::F32 | Ty::F64 => float::unary(instr, ty)?,
                    _ => int::unary(instr, ty)?,
                };
                Some(Op { d, a, ..op(run) })
            }
            3 => {
                let b = self.source(o.get(2)?, second)?;
                let run = match ty {
                    _ if small => half::binary(instr, ty)?,
                    Ty::F32 | Ty::F64 => float::binary(instr, ty)?,
                    _ => int::binary(instr, ty)?,
                };
                Some(Op { d, a, b, ..op(run) })
            }
            4 => {
                let (b, c) = (self.source(o.get(2)?, second)?, self.source(o.get(3)?, third)?);
                let run = match ty {
                    _ if small => half::ternary(instr, ty)?,
                    Ty::F32 | Ty::F64 => float::ternary(instr, ty)?,
                    _ => int::ternary(instr, ty)?,
                };
                Some(Op { d, a, b, c, ..op(run) })
            }
            _ => None,
        }
    }

    fn carry(&mut self, instr: &Instr, ty: Ty) -> Option<Op> {
        let (d, a, b) = self.two(&instr.operands, ty)?;
        let opcode = instr.parts[0].as_str();
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        let imm = flag(opcode.ends_with('c'), 1) | flag(instr.has("cc"), 2) | flag(opcode.starts_with("sub"), 4);
        if opcode.starts_with("mad") {
            let c = self.source(instr.operands.get(3)?, ty)?;
            let imm = imm | flag(instr.has("hi"), 8) | flag(ty.signed(), 16);
            return Some(Op { d, a, b, c, imm, ..op(int::mad_carry(ty)?) });
        }
        Some(Op { d, a, b, imm, ..op(int::carry(ty)?) })
    }

    fn copy(&mut self, instr: &Instr, ty: Ty) -> Option<Op> {
        let (to, from) = (instr.operands.first()?, instr.operands.get(1)?);
        if ty == Ty::Pred {
            let (d, a) = (self.predicate_target(to)?, self.predicate(from)?);
            let run = lane_fn!(|op, w, env| {
                let mask = w.predicate(op.a);
                w.put_predicate(op.d, mask);
                Flow::Next
            });
            return Some(Op { d, a, ..op(run) });
        }
        let bits = 8 * ty.bytes();
        match (to, from) {
            (Operand::Vector(parts), _) => {
                let imm = (bits / parts.len()) as u64;
                let rows = parts.iter().map(|p| if *p == Operand::Sink { Some(NONE) } else { self.target(p) });
                let more = rows.collect::<Option<Vec<u32>>>()?.into();
                Some(Op { a: self.source(from, ty)?, imm, more, ..op(convert::split()) })
            }
            (_, Operand::Vector(parts)) => {
                let imm = (bits / parts.len()) as u64;
                let part = if imm == 32 { Ty::B32 } else { Ty::B16 };
                let rows = parts.iter().map(|p| self.source(p, part));
                let more = rows.collect::<Option<Vec<u32>>>()?.into();
                Some(Op { d: self.target(to)?, imm, more, ..op(convert::join()) })
            }
            (_, Operand::Special(name)) if name.starts_with("clock") || name.starts_with("globaltimer") => {
                Some(Op { d: self.target(to)?, ..op(special::clock(ty.bytes() == 8)) })
            }
            _ => Some(Op { d: self.target(to)?, a: self.source(from, ty)?, ..op(convert::copy(ty.bytes() == 8)) }),
        }
    }

    fn barrier(&mut self, instr: &Instr) -> Option<Op> {
        let o = &instr.operands;
        if instr.has("warp") {
            return Some(Op { a: self.source(o.first()?, Ty::U32)?, ..op(shuffle::sync_fn()) });
        }
        if instr.has("cluster") {
            return None;
        }
        let mut made = op(barrier::barrier_fn());
        let mut rest = o.as_slice();
        made.imm = match () {
            () if instr.has("arrive") => barrier::ARRIVE,
            () if instr.has("popc") => barrier::COUNT,
            () if instr.has("and") => barrier::ALL,
            () if instr.has("or") => barrier::ANY,
            () => barrier::SYNC,
        };
        if instr.has("red") {
            made.d = if made.imm == barrier::COUNT {
                self.target(rest.first()?)?
            } else {
                self.predicate_target(rest.first()?)?
            };
            made.c = self.predicate(rest.last()?)?;
            rest = &rest[1..rest.len() - 1];
        }
        if instr.parts[0] == "bar" || instr.has("aligned") {
            made.imm |= barrier::ALIGNED;
        }
        made.a = self.source(rest.first()?, Ty::U32)?;
        if let Some(threads) = rest.get(1) {
            made.b = self.source(threads, Ty::U32)?;
        }
        Some(made)
    }

    fn compare(&mut self, instr: &Instr, ty: Ty) -> Option<Op> {
        let o = &instr.operands;
        let mut made = op(compare::compare_fn(instr, ty)?);
        let mut second = NONE;
        if instr.parts[0] == "set" {
            made.d = self.target(o.first()?)?;
            made.imm = if instr.types()[0] == Ty::F32 { compare::TO_F32 } else { compare::TO_U32 };
        } else {
            let first = match o.first()? {
                Operand::Pair(p, q) => {
                    second = self.predicate_target(q)?;
                    p
                }
                one => one,
            };
            made.d = self.predicate_target(first)?;
        }
        (made.a, made.b) = (self.source(o.get(1)?, ty)?, self.source(o.get(2)?, ty)?);
        made.more = match o.get(3) {
            Some(joined) => {
                let how = compare::JOINS.iter().position(|j| instr.has(j))? as u32;
                [second, how, self.predicate(joined)?].into()
            }
            None => [second].into(),
        };
        Some(made)
    }

    fn convert(&mut self, instr: &Instr, types: &[Ty]) -> Option<Op> {
        let o = &instr.operands;
        if let Some(to) = types.first().filter(|t| matches!(t, Ty::F16x2 | Ty::Bf16x2)) {
            let (d, a, b) = self.two(o, Ty::F32)?;
            return Some(Op { d, a, b, ..op(convert::pack(instr, *to)?) });
        }
        let [to, from] = types[..] else { return None };
        let Operand::Reg(target) = o.first()? else { return None };
        let held = match o.get(1)? {
            Operand::Reg(r) => self.ty(*r),
            _ => from,
        };
        let (wide_from, wide_to) = (held.bytes() == 8, self.ty(*target).bytes() == 8);
        let (run, imm) = convert::convert(instr, wide_from, wide_to)?;
        let a = self.source(o.get(1)?, held)?;
        let _ = to;
        Some(Op { d: self.row(*target), a, c: self.ty(*target).bytes() as u32, imm, ..op(run) })
    }

    /// `d|p`: both destinations.
    fn with_predicate(&self, operand: &Operand) -> Option<(u32, u32)> {
        match operand {
            Operand::Pair(d, p) => Some((self.target(d)?, self.predicate_target(p)?)),
            one => Some((self.target(one)?, NONE)),
        }
    }

    fn shuffle(&mut self, instr: &Instr) -> Option<Op> {
        let o = &instr.operands;
        let (d, p) = self.with_predicate(o.first()?)?;
        let (run, imm) = shuffle::shuffle_fn(instr)?;
        let row = |s: &mut Self, i: usize| s.source(o.get(i)?, Ty::B32);
        let (a, b, c) = (row(self, 1)?, row(self, 2)?, row(self, 3)?);
        let mask = if instr.has("sync") { row(self, 4)? } else { NONE };
        Some(Op { d, a, b, c, imm, more: [p, mask].into(), ..op(run) })
    }

    fn gather(&mut self, instr: &Instr, ty: Ty) -> Option<Op> {
        let o = &instr.operands;
        let u32s = Ty::U32;
        Some(match instr.parts[0].as_str() {
            "activemask" => Op { d: self.target(o.first()?)?, ..op(shuffle::active_fn()) },
            "elect" => {
                let (d, p) = self.with_predicate(o.first()?)?;
                let p = if p == NONE { self.no_predicate } else { p };
                Op { d, a: self.source(o.get(1)?, u32s)?, more: [p].into(), ..op(shuffle::elect_fn()) }
            }
            "vote" => {
                let ballot = instr.has("ballot");
                let d = if ballot { self.target(o.first()?)? } else { self.predicate_target(o.first()?)? };
                let c = if instr.has("sync") { self.source(o.get(2)?, u32s)? } else { NONE };
                Op { d, a: self.predicate(o.get(1)?)?, c, ..op(shuffle::vote_fn(instr)?) }
            }
            "redux" => {
                let d = self.target(o.first()?)?;
                let (a, c) = (self.source(o.get(1)?, ty)?, self.source(o.get(2)?, u32s)?);
                Op { d, a, c, ..op(shuffle::redux_fn(instr, ty)?) }
            }
            _ => {
                let (d, p) = self.with_predicate(o.first()?)?;
                let (a, c) = (self.source(o.get(1)?, ty)?, self.source(o.get(2)?, u32s)?);
                let imm = ty.bytes() as u64 | if instr.has("all") { 16 } else { 0 };
                Op { d, a, c, imm, more: [p].into(), ..op(shuffle::match_fn()) }
            }
        })
    }
}
