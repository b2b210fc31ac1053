//! Arithmetic and logic of integers.

use super::lanes::{Flow, LANES, Run};
use crate::ptx::tree::{Instr, Ty};
use crate::{lane_fn, op1, op2, op3};

/// Runs `$body` with `T` as the Rust type of `$ty`.
macro_rules! with_int {
    ($ty:expr, $body:expr) => {
        match $ty {
            Ty::U16 | Ty::B16 => {
                type T = u16;
                $body
            }
            Ty::S16 => {
                type T = i16;
                $body
            }
            Ty::U32 | Ty::B32 => {
                type T = u32;
                $body
            }
            Ty::S32 => {
                type T = i32;
                $body
            }
            Ty::U64 | Ty::B64 => {
                type T = u64;
                $body
            }
            Ty::S64 => {
                type T = i64;
                $body
            }
            _ => return None,
        }
    };
}

/// Instructions of two integers and one result. `None`: no such instruction.
pub fn binary(instr: &Instr, ty: Ty) -> Option<Run> {
    let opcode = instr.parts[0].as_str();
    Some(match opcode {
        "add" if instr.has("sat") => op2!(i32 => i32, |a, b| a.saturating_add(b)),
        "sub" if instr.has("sat") => op2!(i32 => i32, |a, b| a.saturating_sub(b)),
        "add" => with_int!(ty, op2!(T => T, |a, b| a.wrapping_add(b))),
        "sub" => with_int!(ty, op2!(T => T, |a, b| a.wrapping_sub(b))),
        "mul" if instr.has("hi") => high(ty)?,
        "mul" if instr.has("wide") => wide(ty)?,
        "mul" => with_int!(ty, op2!(T => T, |a, b| a.wrapping_mul(b))),
        "mul24" if instr.has("lo") && ty == Ty::U32 => {
            op2!(u32 => u32, |a, b| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff))
        }
        "mul24" if instr.has("lo") => op2!(i32 => i32, |a, b| (a << 8 >> 8).wrapping_mul(b << 8 >> 8)),
        // A division by zero gives all ones, as devices do.
        "div" => with_int!(ty, op2!(T => T, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) })),
        "rem" => with_int!(ty, op2!(T => T, |a, b| if b == 0 { a } else { a.wrapping_rem(b) })),
        "min" if instr.has("relu") => op2!(i32 => i32, |a, b| a.min(b).max(0)),
        "max" if instr.has("relu") => op2!(i32 => i32, |a, b| a.max(b).max(0)),
        "min" => with_int!(ty, op2!(T => T, |a, b| a.min(b))),
        "max" => with_int!(ty, op2!(T => T, |a, b| a.max(b))),
        "shl" => shift_left(ty)?,
        "shr" => shift_right(ty)?,
        "and" => logic(ty, 0)?,
        "or" => logic(ty, 1)?,
        "xor" => logic(ty, 2)?,
        "bmsk" => op2!(u32 => u32, |a, b| {
            let (a, b) = (a.min(32), b.min(32));
            ((1u64 << (a + b).min(32)) - (1u64 << a)) as u32
        }),
        _ => return None,
    })
}

fn high(ty: Ty) -> Option<Run> {
    Some(match ty {
        Ty::U16 => op2!(u16 => u16, |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16),
        Ty::S16 => op2!(i16 => i16, |a, b| ((i32::from(a) * i32::from(b)) >> 16) as i16),
        Ty::U32 => op2!(u32 => u32, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        Ty::S32 => op2!(i32 => i32, |a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        Ty::U64 => op2!(u64 => u64, |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        Ty::S64 => op2!(i64 => i64, |a, b| ((i128::from(a) * i128::from(b)) >> 64) as i64),
        _ => return None,
    })
}

fn wide(ty: Ty) -> Option<Run> {
    Some(match ty {
        Ty::U16 => op2!(u16 => u32, |a, b| u32::from(a) * u32::from(b)),
        Ty::S16 => op2!(i16 => i32, |a, b| i32::from(a) * i32::from(b)),
        Ty::U32 => op2!(u32 => u64, |a, b| u64::from(a) * u64::from(b)),
        Ty::S32 => op2!(i32 => i64, |a, b| i64::from(a) * i64::from(b)),
        _ => return None,
    })
}

/// Shifts by the width or more give zero, or the sign.
fn shift_left(ty: Ty) -> Option<Run> {
    Some(match ty.bytes() {
        2 => op2!(u16, u32 => u16, |a, b| if b > 15 { 0 } else { a << b }),
        4 => op2!(u32, u32 => u32, |a, b| if b > 31 { 0 } else { a << b }),
        8 => op2!(u64, u32 => u64, |a, b| if b > 63 { 0 } else { a << b }),
        _ => return None,
    })
}

fn shift_right(ty: Ty) -> Option<Run> {
    Some(match ty {
        Ty::S16 => op2!(i16, u32 => i16, |a, b| a >> b.min(15)),
        Ty::S32 => op2!(i32, u32 => i32, |a, b| a >> b.min(31)),
        Ty::S64 => op2!(i64, u32 => i64, |a, b| a >> b.min(63)),
        Ty::U16 | Ty::B16 => op2!(u16, u32 => u16, |a, b| if b > 15 { 0 } else { a >> b }),
        Ty::U32 | Ty::B32 => op2!(u32, u32 => u32, |a, b| if b > 31 { 0 } else { a >> b }),
        Ty::U64 | Ty::B64 => op2!(u64, u32 => u64, |a, b| if b > 63 { 0 } else { a >> b }),
        _ => return None,
    })
}

fn logic(ty: Ty, which: u32) -> Option<Run> {
    if ty == Ty::Pred {
        return Some(match which {
            0 => lane_fn!(|op, w, env| predicates(op, w, |a, b| a & b)),
            1 => lane_fn!(|op, w, env| predicates(op, w, |a, b| a | b)),
            _ => lane_fn!(|op, w, env| predicates(op, w, |a, b| a ^ b)),
        });
    }
    Some(match (which, ty.bytes()) {
        (0, 2) => op2!(u16 => u16, |a, b| a & b),
        (1, 2) => op2!(u16 => u16, |a, b| a | b),
        (2, 2) => op2!(u16 => u16, |a, b| a ^ b),
        (0, 4) => op2!(u32 => u32, |a, b| a & b),
        (1, 4) => op2!(u32 => u32, |a, b| a | b),
        (2, 4) => op2!(u32 => u32, |a, b| a ^ b),
        (0, 8) => op2!(u64 => u64, |a, b| a & b),
        (1, 8) => op2!(u64 => u64, |a, b| a | b),
        (2, 8) => op2!(u64 => u64, |a, b| a ^ b),
        _ => return None,
    })
}

/// Logic of predicates; the operands are coded with their negations.
fn predicates(op: &super::lanes::Op, w: &mut super::warp::Warp, f: impl Fn(u32, u32) -> u32) -> Flow {
    let mask = f(w.predicate(op.a), w.predicate(op.b));
    w.put_predicate(op.d, mask);
    Flow::Next
}

/// Instructions of one integer.
pub fn unary(instr: &Instr, ty: Ty) -> Option<Run> {
    Some(match instr.parts[0].as_str() {
        "neg" => with_int!(ty, op1!(T => T, |a| T::wrapping_sub(0, a))),
        "abs" => match ty {
            Ty::S16 => op1!(i16 => i16, |a| a.wrapping_abs()),
            Ty::S32 => op1!(i32 => i32, |a| a.wrapping_abs()),
            Ty::S64 => op1!(i64 => i64, |a| a.wrapping_abs()),
            _ => return None,
        },
        "not" if ty == Ty::Pred => lane_fn!(|op, w, env| {
            let mask = !w.predicate(op.a);
            w.put_predicate(op.d, mask);
            Flow::Next
        }),
        "not" => match ty.bytes() {
            2 => op1!(u16 => u16, |a| !a),
            4 => op1!(u32 => u32, |a| !a),
            _ => op1!(u64 => u64, |a| !a),
        },
        "cnot" => with_int!(ty, op1!(T => T, |a| T::from(a == 0))),
        "popc" if ty == Ty::B64 => op1!(u64 => u32, |a| a.count_ones()),
        "popc" => op1!(u32 => u32, |a| a.count_ones()),
        "clz" if ty == Ty::B64 => op1!(u64 => u32, |a| a.leading_zeros()),
        "clz" => op1!(u32 => u32, |a| a.leading_zeros()),
        "brev" if ty == Ty::B64 => op1!(u64 => u64, |a| a.reverse_bits()),
        "brev" => op1!(u32 => u32, |a| a.reverse_bits()),
        "bfind" => bfind(instr.has("shiftamt"), ty)?,
        _ => return None,
    })
}

/// The place of the highest bit that differs from the sign; all ones where there is none.
fn bfind(amount: bool, ty: Ty) -> Option<Run> {
    fn place(x: u64, width: u32, amount: bool) -> u32 {
        if x == 0 {
            return u32::MAX;
        }
        let at = 63 - x.leading_zeros();
        if amount { width - 1 - at } else { at }
    }
    Some(match (ty, amount) {
        (Ty::U32, false) => op1!(u32 => u32, |a| place(u64::from(a), 32, false)),
        (Ty::U32, true) => op1!(u32 => u32, |a| place(u64::from(a), 32, true)),
        (Ty::S32, false) => op1!(i32 => u32, |a| place(u64::from((a ^ (a >> 31)) as u32), 32, false)),
        (Ty::S32, true) => op1!(i32 => u32, |a| place(u64::from((a ^ (a >> 31)) as u32), 32, true)),
        (Ty::U64, false) => op1!(u64 => u32, |a| place(a, 64, false)),
        (Ty::U64, true) => op1!(u64 => u32, |a| place(a, 64, true)),
        (Ty::S64, false) => op1!(i64 => u32, |a| place((a ^ (a >> 63)) as u64, 64, false)),
        (Ty::S64, true) => op1!(i64 => u32, |a| place((a ^ (a >> 63)) as u64, 64, true)),
        _ => return None,
    })
}

/// Instructions of three integers.
pub fn ternary(instr: &Instr, ty: Ty) -> Option<Run> {
    Some(match instr.parts[0].as_str() {
        "mad" if instr.has("hi") => match ty {
            Ty::U32 => op3!(u32 => u32, |a, b, c| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)),
            Ty::S32 => op3!(i32 => i32, |a, b, c| (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c)),
            Ty::U64 => op3!(u64 => u64, |a, b, c| (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)),
            Ty::S64 => op3!(i64 => i64, |a, b, c| (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c)),
            _ => return None,
        },
        "mad" if instr.has("wide") => match ty {
            Ty::U16 => op3!(u16, u16, u32 => u32, |a, b, c| (u32::from(a) * u32::from(b)).wrapping_add(c)),
            Ty::S16 => op3!(i16, i16, i32 => i32, |a, b, c| (i32::from(a) * i32::from(b)).wrapping_add(c)),
            Ty::U32 => op3!(u32, u32, u64 => u64, |a, b, c| (u64::from(a) * u64::from(b)).wrapping_add(c)),
            Ty::S32 => op3!(i32, i32, i64 => i64, |a, b, c| (i64::from(a) * i64::from(b)).wrapping_add(c)),
            _ => return None,
        },
        "mad" => with_int!(ty, op3!(T => T, |a, b, c| a.wrapping_mul(b).wrapping_add(c))),
        "sad" => match ty {
            Ty::U32 => op3!(u32 => u32, |a, b, c| a.abs_diff(b).wrapping_add(c)),
            Ty::S32 => op3!(i32, i32, u32 => u32, |a, b, c| a.abs_diff(b).wrapping_add(c)),
            _ => return None,
        },
        "bfe" => match ty {
            Ty::U32 => op3!(u32 => u32, |a, b, c| extract(u64::from(a), b, c, 32, false) as u32),
            Ty::S32 => op3!(i32, u32, u32 => u32, |a, b, c| extract(a as i64 as u64, b, c, 32, true) as u32),
            Ty::U64 => op3!(u64, u32, u32 => u64, |a, b, c| extract(a, b, c, 64, false)),
            Ty::S64 => op3!(u64, u32, u32 => u64, |a, b, c| extract(a, b, c, 64, true)),
            _ => return None,
        },
        "prmt" => op3!(u32 => u32, |a, b, c| {
            let bytes = u64::from(a) | u64::from(b) << 32;
            let mut out = 0u32;
            for i in 0..4 {
                let pick = c >> (4 * i) & 15;
                let byte = (bytes >> (8 * (pick & 7))) as u8;
                let byte = if pick & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
                out |= u32::from(byte) << (8 * i);
            }
            out
        }),
        "shf" => match (instr.has("l"), instr.has("wrap")) {
            (true, wrap) => {
                if wrap {
                    op3!(u32 => u32, |a, b, c| ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32)
                } else {
                    op3!(u32 => u32, |a, b, c| ((u64::from(b) << 32 | u64::from(a)) << c.min(32) >> 32) as u32)
                }
            }
            (false, true) => op3!(u32 => u32, |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32),
            (false, false) => op3!(u32 => u32, |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32),
        },
        "dp4a" => match instr.types().as_slice() {
            [Ty::U32, Ty::U32] => op3!(u32 => u32, |a, b, c| {
                let dot: u32 = (0..4).map(|i| (a >> (8 * i) & 255) * (b >> (8 * i) & 255)).sum();
                c.wrapping_add(dot)
            }),
            [Ty::S32, Ty::S32] => op3!(i32 => i32, |a, b, c| {
                let byte = |x: i32, i: i32| i32::from((x >> (8 * i)) as i8);
                c.wrapping_add((0..4).map(|i| byte(a, i) * byte(b, i)).sum::<i32>())
            }),
            _ => return None,
        },
        _ => return None,
    })
}

/// `bfe` (PTX ISA 9.7.1.17): `length` bits from `at`, the sign bit repeated above them.
fn extract(a: u64, at: u32, length: u32, width: u32, signed: bool) -> u64 {
    let (at, length) = (at & 255, length & 255);
    if length == 0 {
        return 0;
    }
    let sign_at = (at + length - 1).min(width - 1);
    let sign = signed && a >> sign_at & 1 != 0;
    let kept = if at >= width { 0 } else { length.min(width - at) };
    let mask = if kept >= 64 { u64::MAX } else { (1u64 << kept) - 1 };
    let value = if at >= 64 { 0 } else { a >> at & mask };
    if sign { value | !mask } else { value }
}

/// `bfi`: `length` bits of `a` put into `b` at `at`; `more` has the row of the length.
pub fn bfi(ty: Ty) -> Option<Run> {
    fn insert(a: u64, b: u64, at: u32, length: u32, width: u32) -> u64 {
        let (at, length) = (at & 255, length & 255);
        if at >= width || length == 0 {
            return b;
        }
        let kept = length.min(width - at);
        let mask = (if kept >= 64 { u64::MAX } else { (1u64 << kept) - 1 }) << at;
        b & !mask | a << at & mask
    }
    Some(match ty {
        Ty::B32 => lane_fn!(|op, w, env| {
            let row = |w: &super::warp::Warp, r: u32| w.rows[r as usize].0;
            let (a, b, c, d) = (row(w, op.a), row(w, op.b), row(w, op.c), row(w, op.more[0]));
            let out: [u32; LANES] =
                std::array::from_fn(|l| insert(u64::from(a[l]), u64::from(b[l]), c[l], d[l], 32) as u32);
            w.put32(op.d, &out);
            Flow::Next
        }),
        Ty::B64 => lane_fn!(|op, w, env| {
            let (a, b) = (*w.wide(op.a), *w.wide(op.b));
            let (c, d) = (w.rows[op.c as usize].0, w.rows[op.more[0] as usize].0);
            let out: [u64; LANES] = std::array::from_fn(|l| insert(a[l], b[l], c[l], d[l], 64));
            w.put64(op.d, &out);
            Flow::Next
        }),
        _ => return None,
    })
}

/// `lop3`: `imm` is the table of the eight cases.
pub fn lop3() -> Run {
    lane_fn!(|op, w, env| {
        let row = |r: u32| w.rows[r as usize].0;
        let (a, b, c) = (row(op.a), row(op.b), row(op.c));
        let mut out = [0u32; LANES];
        for case in (0..8u32).filter(|i| op.imm >> i & 1 != 0) {
            let flip = |bit: u32| if case >> bit & 1 != 0 { 0 } else { u32::MAX };
            for l in 0..LANES {
                out[l] |= (a[l] ^ flip(2)) & (b[l] ^ flip(1)) & (c[l] ^ flip(0));
            }
        }
        w.put32(op.d, &out);
        Flow::Next
    })
}

/// What is added to or taken from: sums with carry. `imm`: 1 reads the flag, 2 writes it, 4 subtracts.
pub fn carry(ty: Ty) -> Option<Run> {
    Some(match ty.bytes() {
        4 => lane_fn!(|op, w, env| {
            let (a, b) = (w.rows[op.a as usize].0.map(u64::from), w.rows[op.b as usize].0.map(u64::from));
            let out = with_carry(op.imm, w, |l, flag, subtract| {
                let sum = if subtract { a[l].wrapping_sub(b[l]).wrapping_sub(flag) } else { a[l] + b[l] + flag };
                (sum & 0xffff_ffff, sum >> 32 & 1 != 0)
            });
            w.put32(op.d, &out.map(|x| x as u32));
            Flow::Next
        }),
        8 => lane_fn!(|op, w, env| {
            let (a, b) = (*w.wide(op.a), *w.wide(op.b));
            let out = with_carry(op.imm, w, |l, flag, subtract| {
                let (a, b, flag) = (u128::from(a[l]), u128::from(b[l]), u128::from(flag));
                let sum = if subtract { a.wrapping_sub(b).wrapping_sub(flag) } else { a + b + flag };
                (sum as u64, sum >> 64 & 1 != 0)
            });
            w.put64(op.d, &out);
            Flow::Next
        }),
        _ => return None,
    })
}

#[inline(always)]
fn with_carry(how: u64, w: &mut super::warp::Warp, f: impl Fn(usize, u64, bool) -> (u64, bool)) -> [u64; LANES] {
    let mut carry = w.carry;
    let out = std::array::from_fn(|l| {
        let flag = if how & 1 != 0 { u64::from(w.carry >> l & 1) } else { 0 };
        let (sum, out) = f(l, flag, how & 4 != 0);
        if how & 2 != 0 && w.exec >> l & 1 != 0 {
            carry = carry & !(1 << l) | u32::from(out) << l;
        }
        sum
    });
    w.carry = carry;
    out
}

/// `mad.lo.cc`, `madc.hi` and their like: `imm` as for `carry`, 8: the high half of the product.
pub fn mad_carry(ty: Ty) -> Option<Run> {
    Some(match ty {
        Ty::U32 | Ty::S32 => lane_fn!(|op, w, env| {
            let row = |r: u32| w.rows[r as usize].0;
            let (a, b, c, signed) = (row(op.a), row(op.b), row(op.c), op.imm & 16 != 0);
            let out = with_carry(op.imm, w, |l, flag, _| {
                let product = if signed {
                    (i64::from(a[l] as i32) * i64::from(b[l] as i32)) as u64
                } else {
                    u64::from(a[l]) * u64::from(b[l])
                };
                let half = if op.imm & 8 != 0 { product >> 32 } else { product & 0xffff_ffff };
                let sum = half + u64::from(c[l]) + flag;
                (sum & 0xffff_ffff, sum >> 32 != 0)
            });
            w.put32(op.d, &out.map(|x| x as u32));
            Flow::Next
        }),
        Ty::U64 => lane_fn!(|op, w, env| {
            let (a, b, c) = (*w.wide(op.a), *w.wide(op.b), *w.wide(op.c));
            let out = with_carry(op.imm, w, |l, flag, _| {
                let product = u128::from(a[l]) * u128::from(b[l]);
                let half = if op.imm & 8 != 0 { product >> 64 } else { product & u128::from(u64::MAX) };
                let sum = half + u128::from(c[l]) + u128::from(flag);
                (sum as u64, sum >> 64 != 0)
            });
            w.put64(op.d, &out);
            Flow::Next
        }),
        _ => return None,
    })
}
