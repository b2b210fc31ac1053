//! Element types and reductions. 16-bit floats are rounded after each step, as when a ring passes sums on.

use crate::exec::half::{Bf16, F16, Half};

/// `ncclDataType_t` (nccl.h) by its number: name and bytes.
pub const TYPES: [(&str, usize); 10] = [
    ("i8", 1),
    ("u8", 1),
    ("i32", 4),
    ("u32", 4),
    ("i64", 8),
    ("u64", 8),
    ("f16", 2),
    ("f32", 4),
    ("f64", 8),
    ("bf16", 2),
];

/// `ncclRedOp_t` by its number.
pub const OPERATIONS: [&str; 5] = ["sum", "prod", "max", "min", "avg"];

const AVG: u32 = 4;

macro_rules! numbers {
    ($t:ty, $acc:expr, $from:expr, $op:expr, $add:expr, $mul:expr) => {{
        const N: usize = size_of::<$t>();
        for (a, b) in $acc.chunks_exact_mut(N).zip($from.chunks_exact(N)) {
            let x = <$t>::from_le_bytes(a.try_into().expect("N bytes"));
            let y = <$t>::from_le_bytes(b.try_into().expect("N bytes"));
            let z = match $op {
                1 => $mul(x, y),
                2 => {
                    if y > x {
                        y
                    } else {
                        x
                    }
                }
                3 => {
                    if y < x {
                        y
                    } else {
                        x
                    }
                }
                _ => $add(x, y),
            };
            a.copy_from_slice(&z.to_le_bytes());
        }
    }};
}

fn halves<H: Half>(acc: &mut [u8], from: &[u8], op: u32) {
    for (a, b) in acc.chunks_exact_mut(2).zip(from.chunks_exact(2)) {
        let x = H::to_f32(u16::from_le_bytes([a[0], a[1]]));
        let y = H::to_f32(u16::from_le_bytes([b[0], b[1]]));
        let z = match op {
            1 => x * y,
            2 => x.max(y),
            3 => x.min(y),
            _ => x + y,
        };
        a.copy_from_slice(&H::of_f32(z).to_le_bytes());
    }
}

/// `acc = acc op from`, elements of type `ty`.
pub fn combine(acc: &mut [u8], from: &[u8], ty: u32, op: u32) {
    macro_rules! ints {
        ($t:ty) => {
            numbers!($t, acc, from, op, |x: $t, y: $t| x.wrapping_add(y), |x: $t, y: $t| x.wrapping_mul(y))
        };
    }
    macro_rules! reals {
        ($t:ty) => {
            numbers!($t, acc, from, op, |x: $t, y: $t| x + y, |x: $t, y: $t| x * y)
        };
    }
    match ty {
        0 => ints!(i8),
        1 => ints!(u8),
        2 => ints!(i32),
        3 => ints!(u32),
        4 => ints!(i64),
        5 => ints!(u64),
        6 => halves::<F16>(acc, from, op),
        7 => reals!(f32),
        8 => reals!(f64),
        _ => halves::<Bf16>(acc, from, op),
    }
}

/// What is left to do when all ranks' elements are combined: an average is divided.
pub fn finish(acc: &mut [u8], ty: u32, op: u32, ranks: usize) {
    if op != AVG {
        return;
    }
    macro_rules! divide {
        ($t:ty) => {{
            for a in acc.chunks_exact_mut(size_of::<$t>()) {
                let x = <$t>::from_le_bytes((&*a).try_into().expect("its bytes"));
                a.copy_from_slice(&(x / ranks as $t).to_le_bytes());
            }
        }};
    }
    fn half<H: Half>(acc: &mut [u8], ranks: usize) {
        for a in acc.chunks_exact_mut(2) {
            let x = H::to_f32(u16::from_le_bytes([a[0], a[1]])) / ranks as f32;
            a.copy_from_slice(&H::of_f32(x).to_le_bytes());
        }
    }
    match ty {
        0 => divide!(i8),
        1 => divide!(u8),
        2 => divide!(i32),
        3 => divide!(u32),
        4 => divide!(i64),
        5 => divide!(u64),
        6 => half::<F16>(acc, ranks),
        7 => divide!(f32),
        8 => divide!(f64),
        _ => half::<Bf16>(acc, ranks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_reduces_by_every_operation() {
        let mut a: Vec<u8> = [3.0f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let b: Vec<u8> = [5.0f32, 7.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        combine(&mut a, &b, 7, AVG);
        finish(&mut a, 7, AVG, 2);
        assert_eq!(a, [4.0f32, 2.5].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        for ty in 0..10u32 {
            for op in 0..5 {
                let n = TYPES[ty as usize].1;
                let (mut x, y) = (vec![0u8; 2 * n], vec![0u8; 2 * n]);
                combine(&mut x, &y, ty, op);
                finish(&mut x, ty, op, 2);
                assert_eq!(x, y);
            }
        }
        let mut h = 0x3f80u16.to_le_bytes().to_vec();
        combine(&mut h, &0x4000u16.to_le_bytes(), 9, 0);
        assert_eq!(h, 0x4040u16.to_le_bytes());
    }
}
