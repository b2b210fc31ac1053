//! A warp's registers as rows of 32 lanes, and how operations read and write them.

use super::env::Env;
use super::warp::Warp;
use bytemuck::{Pod, Zeroable};

/// Lanes of a warp.
pub const LANES: usize = 32;

/// 32 lanes of 32 bits. 64-bit registers take two rows that follow each other, as 32 lanes of 64 bits.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
pub struct Row(pub [u32; LANES]);

/// What happens after an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Next,
    Branch,
    /// To one of several targets, by lane (`brx.idx`).
    Switch,
    Exit,
    Barrier,
    /// `env.fault` says what went wrong.
    Fault,
}

/// The function of an operation.
///
/// # Safety
/// The processor must have what `lane_fn!` enables, which `cuInit` checks before any kernel is loaded.
pub type Run = unsafe fn(&Op, &mut Warp, &mut Env) -> Flow;

/// No guard, no register.
pub const NONE: u32 = u32::MAX;

/// A decoded instruction. `d`, `a`, `b`, `c` are rows, or numbers of predicates.
#[derive(Clone)]
pub struct Op {
    pub run: Run,
    pub d: u32,
    pub a: u32,
    pub b: u32,
    pub c: u32,
    /// Twice the number of a predicate, plus one where its negation is meant.
    pub guard: u32,
    /// What else the function needs: an offset, a shift, packed modifiers.
    pub imm: u64,
    /// More rows, in a list of the kernel.
    pub more: Box<[u32]>,
    pub line: u32,
}

/// Values that a register holds in each lane.
pub trait Lane: Copy {
    fn get(w: &Warp, row: u32) -> [Self; LANES];
    fn put(w: &mut Warp, row: u32, values: &[Self; LANES]);
}

macro_rules! lane32 {
    ($t:ty, $from:expr, $to:expr) => {
        impl Lane for $t {
            #[inline(always)]
            fn get(w: &Warp, row: u32) -> [Self; LANES] {
                let raw = &w.rows[row as usize].0;
                std::array::from_fn(|l| $from(raw[l]))
            }

            #[inline(always)]
            fn put(w: &mut Warp, row: u32, values: &[Self; LANES]) {
                let raw: [u32; LANES] = std::array::from_fn(|l| $to(values[l]));
                w.put32(row, &raw);
            }
        }
    };
}

lane32!(u32, |x: u32| x, |x: u32| x);
lane32!(i32, |x: u32| x as i32, |x: i32| x as u32);
lane32!(f32, f32::from_bits, f32::to_bits);
lane32!(u16, |x: u32| x as u16, u32::from);
lane32!(i16, |x: u32| x as i16, |x: i16| u32::from(x as u16));

macro_rules! lane64 {
    ($t:ty, $from:expr, $to:expr) => {
        impl Lane for $t {
            #[inline(always)]
            fn get(w: &Warp, row: u32) -> [Self; LANES] {
                let raw = w.wide(row);
                std::array::from_fn(|l| $from(raw[l]))
            }

            #[inline(always)]
            fn put(w: &mut Warp, row: u32, values: &[Self; LANES]) {
                let raw: [u64; LANES] = std::array::from_fn(|l| $to(values[l]));
                w.put64(row, &raw);
            }
        }
    };
}

lane64!(u64, |x: u64| x, |x: u64| x);
lane64!(i64, |x: u64| x as i64, |x: i64| x as u64);
lane64!(f64, f64::from_bits, f64::to_bits);

#[inline(always)]
pub fn map1<A: Lane, R: Lane>(op: &Op, w: &mut Warp, f: impl Fn(A) -> R) -> Flow {
    let a = A::get(w, op.a);
    R::put(w, op.d, &std::array::from_fn(|l| f(a[l])));
    Flow::Next
}

#[inline(always)]
pub fn map2<A: Lane, B: Lane, R: Lane>(op: &Op, w: &mut Warp, f: impl Fn(A, B) -> R) -> Flow {
    let (a, b) = (A::get(w, op.a), B::get(w, op.b));
    R::put(w, op.d, &std::array::from_fn(|l| f(a[l], b[l])));
    Flow::Next
}

#[inline(always)]
pub fn map3<A: Lane, B: Lane, C: Lane, R: Lane>(op: &Op, w: &mut Warp, f: impl Fn(A, B, C) -> R) -> Flow {
    let (a, b, c) = (A::get(w, op.a), B::get(w, op.b), C::get(w, op.c));
    R::put(w, op.d, &std::array::from_fn(|l| f(a[l], b[l], c[l])));
    Flow::Next
}

/// A mask from a condition of each lane.
#[inline(always)]
pub fn mask2<A: Lane>(a: &[A; LANES], b: &[A; LANES], f: impl Fn(A, A) -> bool) -> u32 {
    let mut mask = 0u32;
    for l in 0..LANES {
        mask |= u32::from(f(a[l], b[l])) << l;
    }
    mask
}

/// A function of an operation, compiled for what the processors that this runs on have.
#[macro_export]
macro_rules! lane_fn {
    (|$op:ident, $w:ident, $env:ident| $body:expr) => {{
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt"))]
        #[allow(unused_variables)]
        fn run(
            $op: &$crate::exec::lanes::Op,
            $w: &mut $crate::exec::warp::Warp,
            $env: &mut $crate::exec::env::Env,
        ) -> $crate::exec::lanes::Flow {
            $body
        }
        run as $crate::exec::lanes::Run
    }};
}

/// `op1!(f32 => f32, |a| ..)`: a function of one operand in each lane.
#[macro_export]
macro_rules! op1 {
    ($a:ty => $r:ty, $f:expr) => {
        $crate::lane_fn!(|op, w, env| $crate::exec::lanes::map1::<$a, $r>(op, w, $f))
    };
}

#[macro_export]
macro_rules! op2 {
    ($t:ty => $r:ty, $f:expr) => {
        $crate::lane_fn!(|op, w, env| $crate::exec::lanes::map2::<$t, $t, $r>(op, w, $f))
    };
    ($a:ty, $b:ty => $r:ty, $f:expr) => {
        $crate::lane_fn!(|op, w, env| $crate::exec::lanes::map2::<$a, $b, $r>(op, w, $f))
    };
}

#[macro_export]
macro_rules! op3 {
    ($t:ty => $r:ty, $f:expr) => {
        $crate::lane_fn!(|op, w, env| $crate::exec::lanes::map3::<$t, $t, $t, $r>(op, w, $f))
    };
    ($a:ty, $b:ty, $c:ty => $r:ty, $f:expr) => {
        $crate::lane_fn!(|op, w, env| $crate::exec::lanes::map3::<$a, $b, $c, $r>(op, w, $f))
    };
}

/// Whether this processor has what the operations are compiled for.
pub fn processor_suffices() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("lzcnt")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        true
    }
}
