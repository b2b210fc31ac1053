//! Matrix instructions: `mma.sync`, `ldmatrix`, `stmatrix`. How lanes hold the matrices is in the PTX ISA, 9.7.14.5.

use super::env::{Env, addresses};
use super::half::{Bf16, F16, Half};
use super::lanes::{Flow, LANES, Op, Run};
use super::memory::{WIDE_ADDRESS, unaligned};
use super::warp::Warp;
use crate::check::banks;
use crate::check::fault::Kind;
use crate::check::races::How;
use crate::lane_fn;
use crate::ptx::tree::{Instr, Ty};

fn whole(op: &Op, w: &Warp, env: &mut Env) -> bool {
    if w.exec != u32::MAX {
        env.fail(op, !w.exec, Kind::DivergentBarrier, "lanes of the warp take no part in a matrix instruction".into());
    }
    w.exec == u32::MAX
}

/// The parts of an `mma`: shape, and registers of A, B, and C or D.
pub struct Shape {
    pub k: usize,
    pub a: usize,
    pub b: usize,
    pub c: usize,
}

/// `more` holds the rows of D, A, B and C, in this order.
pub fn mma_fn(instr: &Instr) -> Option<(Run, Shape)> {
    let shape = instr.parts.iter().find(|p| p.starts_with('m') && p.contains('n') && p.contains('k'))?.as_str();
    let s = |k, a, b, c| Shape { k, a, b, c };
    let types = instr.types();
    let [d, a, b, c] = types[..] else { return None };
    if d != c || a != b || !instr.has("row") || !instr.has("col") {
        return None;
    }
    macro_rules! half {
        ($k:literal, $h:ty, $single:literal) => {
            lane_fn!(|op, w, env| halves::<$k, $h, $single>(op, w, env))
        };
    }
    Some(match (shape, d, a) {
        ("m16n8k16", Ty::F32, Ty::Bf16) => (half!(16, Bf16, true), s(16, 4, 2, 4)),
        ("m16n8k16", Ty::F32, Ty::F16) => (half!(16, F16, true), s(16, 4, 2, 4)),
        ("m16n8k16", Ty::F16, Ty::F16) => (half!(16, F16, false), s(16, 4, 2, 2)),
        ("m16n8k8", Ty::F32, Ty::Bf16) => (half!(8, Bf16, true), s(8, 2, 1, 4)),
        ("m16n8k8", Ty::F32, Ty::F16) => (half!(8, F16, true), s(8, 2, 1, 4)),
        ("m16n8k8", Ty::F16, Ty::F16) => (half!(8, F16, false), s(8, 2, 1, 2)),
        ("m16n8k8", Ty::F32, Ty::Tf32) => (lane_fn!(|op, w, env| tf32::<8>(op, w, env)), s(8, 4, 2, 4)),
        ("m16n8k4", Ty::F32, Ty::Tf32) => (lane_fn!(|op, w, env| tf32::<4>(op, w, env)), s(4, 2, 1, 4)),
        ("m8n8k4", Ty::F64, Ty::F64) => (lane_fn!(|op, w, env| doubles::<8, 4>(op, w, env)), s(4, 1, 1, 2)),
        ("m16n8k4", Ty::F64, Ty::F64) => (lane_fn!(|op, w, env| doubles::<16, 4>(op, w, env)), s(4, 2, 1, 4)),
        ("m16n8k8", Ty::F64, Ty::F64) => (lane_fn!(|op, w, env| doubles::<16, 8>(op, w, env)), s(8, 4, 2, 4)),
        ("m16n8k16", Ty::F64, Ty::F64) => (lane_fn!(|op, w, env| doubles::<16, 16>(op, w, env)), s(16, 8, 4, 4)),
        ("m16n8k32", Ty::S32, Ty::S8) => (lane_fn!(|op, w, env| bytes(op, w, env)), s(32, 4, 2, 4)),
        _ => return None,
    })
}

/// D = C + A B, by fused steps along k in f32.
#[inline(always)]
fn product<const K: usize>(a: &[[f32; K]; 16], b: &[[f32; 8]; K], c: &mut [[f32; 8]; 16]) {
    for (row, sums) in a.iter().zip(c.iter_mut()) {
        let mut acc = *sums;
        for (x, columns) in row.iter().zip(b) {
            for n in 0..8 {
                acc[n] = x.mul_add(columns[n], acc[n]);
            }
        }
        *sums = acc;
    }
}

#[inline(always)]
fn read_sums(w: &Warp, rows: &[u32]) -> [[f32; 8]; 16] {
    let mut c = [[0f32; 8]; 16];
    for (i, row) in rows.iter().enumerate() {
        let values = &w.rows[*row as usize].0;
        for l in 0..LANES {
            c[l / 4 + 8 * (i / 2)][(l % 4) * 2 + i % 2] = f32::from_bits(values[l]);
        }
    }
    c
}

#[inline(always)]
fn write_sums(w: &mut Warp, rows: &[u32], c: &[[f32; 8]; 16]) {
    for (i, row) in rows.iter().enumerate() {
        let values = std::array::from_fn(|l| c[l / 4 + 8 * (i / 2)][(l % 4) * 2 + i % 2].to_bits());
        w.put32(*row, &values);
    }
}

#[inline(always)]
fn halves<const K: usize, H: Half, const SINGLE: bool>(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    if !whole(op, w, env) {
        return Flow::Fault;
    }
    let (n, parts) = (if SINGLE { 4 } else { 2 }, K / 4);
    let (d, rest) = op.more.split_at(n);
    let (ra, rest) = rest.split_at(parts);
    let (rb, rc) = rest.split_at(parts / 2);
    let (mut a, mut b) = ([[0f32; K]; 16], [[0f32; 8]; K]);
    for (i, row) in ra.iter().enumerate() {
        let values = &w.rows[*row as usize].0;
        for l in 0..LANES {
            let (m, k) = (l / 4 + 8 * (i % 2), (l % 4) * 2 + 8 * (i / 2));
            a[m][k] = H::to_f32(values[l] as u16);
            a[m][k + 1] = H::to_f32((values[l] >> 16) as u16);
        }
    }
    for (i, row) in rb.iter().enumerate() {
        let values = &w.rows[*row as usize].0;
        for l in 0..LANES {
            let k = (l % 4) * 2 + 8 * i;
            b[k][l / 4] = H::to_f32(values[l] as u16);
            b[k + 1][l / 4] = H::to_f32((values[l] >> 16) as u16);
        }
    }
    if SINGLE {
        let mut c = read_sums(w, rc);
        product(&a, &b, &mut c);
        write_sums(w, d, &c);
    } else {
        let mut c = [[0f32; 8]; 16];
        for (i, row) in rc.iter().enumerate() {
            let values = &w.rows[*row as usize].0;
            for l in 0..LANES {
                let (m, n) = (l / 4 + 8 * i, (l % 4) * 2);
                c[m][n] = H::to_f32(values[l] as u16);
                c[m][n + 1] = H::to_f32((values[l] >> 16) as u16);
            }
        }
        product(&a, &b, &mut c);
        for (i, row) in d.iter().enumerate() {
            let values = std::array::from_fn(|l| {
                let (m, n) = (l / 4 + 8 * i, (l % 4) * 2);
                u32::from(H::of_f32(c[m][n])) | u32::from(H::of_f32(c[m][n + 1])) << 16
            });
            w.put32(*row, &values);
        }
    }
    Flow::Next
}

/// The upper 19 bits count, as on devices.
#[inline(always)]
fn tf32<const K: usize>(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    if !whole(op, w, env) {
        return Flow::Fault;
    }
    let (d, rest) = op.more.split_at(4);
    let (ra, rest) = rest.split_at(K / 2);
    let (rb, rc) = rest.split_at(K / 4);
    let (mut a, mut b) = ([[0f32; K]; 16], [[0f32; 8]; K]);
    for (i, row) in ra.iter().enumerate() {
        let values = &w.rows[*row as usize].0;
        for l in 0..LANES {
            a[l / 4 + 8 * (i % 2)][l % 4 + 4 * (i / 2)] = f32::from_bits(values[l] & !0x1fff);
        }
    }
    for (i, row) in rb.iter().enumerate() {
        let values = &w.rows[*row as usize].0;
        for l in 0..LANES {
            b[l % 4 + 4 * i][l / 4] = f32::from_bits(values[l] & !0x1fff);
        }
    }
    let mut c = read_sums(w, rc);
    product(&a, &b, &mut c);
    write_sums(w, d, &c);
    Flow::Next
}

#[inline(always)]
fn doubles<const M: usize, const K: usize>(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    if !whole(op, w, env) {
        return Flow::Fault;
    }
    let high = M / 8;
    let (d, rest) = op.more.split_at(2 * high);
    let (ra, rest) = rest.split_at(high * K / 4);
    let (rb, rc) = rest.split_at(K / 4);
    let (mut a, mut b, mut c) = ([[0f64; K]; M], [[0f64; 8]; K], [[0f64; 8]; M]);
    let value = |w: &Warp, row: u32, l: usize| f64::from_bits(w.wide(row)[l]);
    for l in 0..LANES {
        for (i, row) in ra.iter().enumerate() {
            a[l / 4 + 8 * (i % high)][l % 4 + 4 * (i / high)] = value(w, *row, l);
        }
        for (i, row) in rb.iter().enumerate() {
            b[l % 4 + 4 * i][l / 4] = value(w, *row, l);
        }
        for (i, row) in rc.iter().enumerate() {
            c[l / 4 + 8 * (i / 2)][(l % 4) * 2 + i % 2] = value(w, *row, l);
        }
    }
    for m in 0..M {
        for k in 0..K {
            for n in 0..8 {
                c[m][n] = a[m][k].mul_add(b[k][n], c[m][n]);
            }
        }
    }
    for (i, row) in d.iter().enumerate() {
        let values = std::array::from_fn(|l| c[l / 4 + 8 * (i / 2)][(l % 4) * 2 + i % 2].to_bits());
        w.put64(*row, &values);
    }
    Flow::Next
}

fn bytes(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    if !whole(op, w, env) {
        return Flow::Fault;
    }
    let (d, rest) = op.more.split_at(4);
    let (ra, rest) = rest.split_at(4);
    let (rb, rc) = rest.split_at(2);
    let byte = |w: &Warp, row: u32, l: usize, i: usize| i32::from((w.rows[row as usize].0[l] >> (8 * i)) as i8);
    let (mut a, mut b) = ([[0i32; 32]; 16], [[0i32; 8]; 32]);
    for l in 0..LANES {
        for i in 0..4 {
            for (r, row) in ra.iter().enumerate() {
                a[l / 4 + 8 * (r % 2)][(l % 4) * 4 + i + 16 * (r / 2)] = byte(w, *row, l, i);
            }
            for (r, row) in rb.iter().enumerate() {
                b[(l % 4) * 4 + i + 16 * r][l / 4] = byte(w, *row, l, i);
            }
        }
    }
    for i in 0..4 {
        let c = w.rows[rc[i] as usize].0;
        let values = std::array::from_fn(|l| {
            let (m, n) = (l / 4 + 8 * (i / 2), (l % 4) * 2 + i % 2);
            (0..32).fold(c[l] as i32, |sum, k| sum.wrapping_add(a[m][k] * b[k][n])) as u32
        });
        w.put32(d[i], &values);
    }
    Flow::Next
}

/// Rows of 16 bytes of 8x8 matrices of 16-bit elements in shared memory, from the addresses of the lanes.
fn matrix_rows(op: &Op, w: &Warp, env: &mut Env, count: usize, how: How) -> Option<[u64; LANES]> {
    if !whole(op, w, env) {
        return None;
    }
    let mut at = addresses(w, op.a, op.c & WIDE_ADDRESS != 0, op.imm);
    // The addresses of other lanes do not count.
    at[8 * count..].fill(0);
    let lanes = u32::MAX >> (32 - 8 * count);
    let wrong = (0..8 * count).filter(|l| !at[*l].is_multiple_of(16)).fold(0, |m, l| m | 1 << l);
    if wrong != 0 {
        unaligned(op, env, wrong, &at, 16);
        return None;
    }
    for (l, a) in at.iter().enumerate().take(8 * count) {
        if a.checked_add(16).is_none_or(|end| end > env.shared.data.len() as u64) {
            let message = format!("16 bytes at byte {a} of {} bytes of shared memory", env.shared.data.len());
            env.fail(op, 1 << l, Kind::OutOfBounds, message);
            return None;
        }
        if !env.note_shared(op, l, *a as u32, 16, how) {
            return None;
        }
    }
    if env.shared.count_banks {
        let (parts, cycles) = banks::cycles(&at.map(|a| a as u32), 16, lanes);
        env.counters.shared_accesses += parts;
        env.counters.shared_cycles += cycles;
    }
    Some(at)
}

/// `more`: the rows of the matrices' registers. `b` is 1 for `.trans`.
fn load_matrices(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    let Some(at) = matrix_rows(op, w, env, op.more.len(), How::Read) else { return Flow::Fault };
    for (i, row) in op.more.iter().enumerate() {
        let mut matrix = [[0u16; 8]; 8];
        for (r, into) in matrix.iter_mut().enumerate() {
            let bytes = &env.shared.data[at[8 * i + r] as usize..][..16];
            for (c, half) in into.iter_mut().enumerate() {
                *half = u16::from_le_bytes([bytes[2 * c], bytes[2 * c + 1]]);
            }
        }
        let mut values = [0u32; LANES];
        for (l, value) in values.iter_mut().enumerate() {
            let (r, c) = (l / 4, 2 * (l % 4));
            let (low, high) =
                if op.b == 1 { (matrix[c][r], matrix[c + 1][r]) } else { (matrix[r][c], matrix[r][c + 1]) };
            *value = u32::from(low) | u32::from(high) << 16;
        }
        w.put32(*row, &values);
    }
    Flow::Next
}

fn store_matrices(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    let Some(at) = matrix_rows(op, w, env, op.more.len(), How::Write) else { return Flow::Fault };
    for (i, row) in op.more.iter().enumerate() {
        let values = w.rows[*row as usize].0;
        for (l, value) in values.iter().enumerate() {
            let (r, c) = (l / 4, 2 * (l % 4));
            for (k, half) in [*value as u16, (*value >> 16) as u16].into_iter().enumerate() {
                let (r, c) = if op.b == 1 { (c + k, r) } else { (r, c + k) };
                let a = at[8 * i + r] as usize + 2 * c;
                env.shared.data[a..a + 2].copy_from_slice(&half.to_le_bytes());
            }
        }
    }
    Flow::Next
}

pub fn load_matrices_fn() -> Run {
    lane_fn!(|op, w, env| load_matrices(op, w, env))
}

pub fn store_matrices_fn() -> Run {
    lane_fn!(|op, w, env| store_matrices(op, w, env))
}
