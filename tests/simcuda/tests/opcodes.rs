//! Instructions one by one, written by hand, against Rust's arithmetic.

mod common;

use common::{Arg, Gpu, kernel, pseudo};
use half::{bf16, f16};

/// Runs `code` on three 32-bit inputs a lane (`%r1`..`%r3`, also as `%f1`..`%f3`) and gives `%r4` (or `%f4` with `float`).
fn words(code: &str, float: bool, inputs: [&[u32; 32]; 3]) -> Vec<u32> {
    let gpu = Gpu::new();
    let at: Vec<u64> = inputs.iter().map(|i| gpu.put(&i[..])).collect();
    let out = gpu.room(128);
    let loads: String = (0..3)
        .map(|i| {
            format!("mad.wide.u32 %rd5, %r0, 4, %rd{i};\nld.global.b32 %r{0}, [%rd5];\nmov.b32 %f{0}, %r{0};\n", i + 1)
        })
        .collect();
    let last = if float { "mov.b32 %r4, %f4;" } else { "" };
    let text =
        kernel(4, &format!("{loads}{code}\n{last}\nmad.wide.u32 %rd5, %r0, 4, %rd3;\nst.global.b32 [%rd5], %r4;"));
    let mut args: Vec<Arg> = at.into_iter().map(Arg::Pointer).collect();
    args.push(Arg::Pointer(out));
    gpu.launch(&text, "k", [1, 1, 1], [32, 1, 1], 0, &args).unwrap_or_else(|f| panic!("{code}: {f}"));
    gpu.get(out, 32)
}

fn inputs(seed: u32) -> [[u32; 32]; 3] {
    let mut next = pseudo(seed);
    let special = [0, 1, u32::MAX, 0x8000_0000, 0x7fff_ffff, 31, 32, 33];
    let mut made: [[u32; 32]; 3] = std::array::from_fn(|_| std::array::from_fn(|_| next()));
    for (i, s) in special.iter().enumerate() {
        made[0][i] = *s;
        made[1][(i + 3) % 8] = *s;
        made[2][(i + 5) % 8] = *s;
    }
    made
}

fn check(code: &str, want: impl Fn(u32, u32, u32) -> u32) {
    for seed in 1..4 {
        let [a, b, c] = inputs(seed);
        let got = words(code, false, [&a, &b, &c]);
        for l in 0..32 {
            let w = want(a[l], b[l], c[l]);
            assert_eq!(got[l], w, "{code}: {:#x} {:#x} {:#x}", a[l], b[l], c[l]);
        }
    }
}

/// Floats: equal bits, or both NaN.
fn check_floats(code: &str, want: impl Fn(f32, f32, f32) -> f32) {
    let mut next = pseudo(9);
    let special = [0.0, -0.0, 1.0, -1.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40];
    let mut made: [[u32; 32]; 3] =
        std::array::from_fn(|_| std::array::from_fn(|_| ((next() as f32 / u32::MAX as f32 - 0.5) * 8.0).to_bits()));
    for (i, s) in special.iter().enumerate() {
        made[0][i] = s.to_bits();
        made[1][(i + 3) % 8] = s.to_bits();
        made[2][(i + 6) % 8] = s.to_bits();
    }
    let got = words(code, true, [&made[0], &made[1], &made[2]]);
    for l in 0..32 {
        let [a, b, c] = [made[0][l], made[1][l], made[2][l]].map(f32::from_bits);
        let (g, w) = (f32::from_bits(got[l]), want(a, b, c));
        assert!(g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan(), "{code}: {a:e} {b:e} {c:e}: {g:e} {w:e}");
    }
}

#[test]
fn integers() {
    check("add.u32 %r4, %r1, %r2;", |a, b, _| a.wrapping_add(b));
    check("sub.s32 %r4, %r1, 7;", |a, _, _| a.wrapping_sub(7));
    check("mul.lo.u32 %r4, %r1, %r2;", u32_mul);
    check("mul.hi.u32 %r4, %r1, %r2;", |a, b, _| ((u64::from(a) * u64::from(b)) >> 32) as u32);
    check("mul.hi.s32 %r4, %r1, %r2;", |a, b, _| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32);
    check("mad.lo.s32 %r4, %r1, %r2, %r3;", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    check("mad.hi.u32 %r4, %r1, %r2, %r3;", |a, b, c| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c));
    check("min.s32 %r4, %r1, %r2;", |a, b, _| (a as i32).min(b as i32) as u32);
    check("max.u32 %r4, %r1, %r2;", |a, b, _| a.max(b));
    check("abs.s32 %r4, %r1;", |a, _, _| (a as i32).wrapping_abs() as u32);
    check("neg.s32 %r4, %r1;", |a, _, _| a.wrapping_neg());
    check("div.u32 %r4, %r1, %r2;", |a, b, _| a.checked_div(b).unwrap_or(u32::MAX));
    check("rem.s32 %r4, %r1, 13;", |a, _, _| (a as i32 % 13) as u32);
    check("shl.b32 %r4, %r1, %r2;", |a, b, _| a.checked_shl(b).unwrap_or(0));
    check("shr.s32 %r4, %r1, %r2;", |a, b, _| ((a as i32) >> b.min(31)) as u32);
    check("shf.l.wrap.b32 %r4, %r1, %r2, %r3;", |a, b, c| {
        ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32
    });
    check("shf.r.clamp.b32 %r4, %r1, %r2, %r3;", |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32);
    check("popc.b32 %r4, %r1;", |a, _, _| a.count_ones());
    check("clz.b32 %r4, %r1;", |a, _, _| a.leading_zeros());
    check("brev.b32 %r4, %r1;", |a, _, _| a.reverse_bits());
    check("bfind.u32 %r4, %r1;", |a, _, _| if a == 0 { u32::MAX } else { 31 - a.leading_zeros() });
    check("bfe.u32 %r4, %r1, 5, 9;", |a, _, _| a >> 5 & 0x1ff);
    check("bfe.s32 %r4, %r1, 5, 9;", |a, _, _| (((a >> 5 & 0x1ff) << 23) as i32 >> 23) as u32);
    check("bfi.b32 %r4, %r1, %r2, 8, 12;", |a, b, _| b & !(0xfff << 8) | (a & 0xfff) << 8);
    check("prmt.b32 %r4, %r1, %r2, 0x7604;", |a, b, _| (a & 255) << 8 | b & 255 | (b >> 16) << 16);
    check("lop3.b32 %r4, %r1, %r2, %r3, 0xca;", |a, b, c| a & b | !a & c);
    check("xor.b32 %r4, %r1, -1;", |a, _, _| !a);
    check("not.b32 %r4, %r1;", |a, _, _| !a);
    check("sad.u32 %r4, %r1, %r2, %r3;", |a, b, c| a.abs_diff(b).wrapping_add(c));
    let dot =
        |a: u32, b: u32, c: u32| (0..4).fold(c, |s, i| s.wrapping_add((a >> (8 * i) & 255) * (b >> (8 * i) & 255)));
    check("dp4a.u32.u32 %r4, %r1, %r2, %r3;", dot);
}

fn u32_mul(a: u32, b: u32, _: u32) -> u32 {
    a.wrapping_mul(b)
}

#[test]
fn carries_and_wide_products() {
    // 64-bit sums by halves, and (a * b) of 64 bits by 32-bit steps with carries.
    let sum = "add.cc.u32 %r5, %r1, %r2;\naddc.u32 %r4, %r3, %r1;";
    check(sum, |a, b, c| c.wrapping_add(a).wrapping_add(u32::from(a.checked_add(b).is_none())));
    let difference = "sub.cc.u32 %r5, %r1, %r2;\nsubc.u32 %r4, %r3, %r1;";
    check(difference, |a, b, c| c.wrapping_sub(a).wrapping_sub(u32::from(a < b)));
    let product = "mad.lo.cc.u32 %r5, %r1, %r2, %r3;\nmadc.hi.u32 %r4, %r1, %r2, 5;";
    check(product, |a, b, c| ((u64::from(a) * u64::from(b) + u64::from(c)) >> 32).wrapping_add(5) as u32);
    let wide = "mul.wide.s32 %rd6, %r1, %r2;\nshr.s64 %rd6, %rd6, 17;\ncvt.u32.u64 %r4, %rd6;";
    check(wide, |a, b, _| ((i64::from(a as i32) * i64::from(b as i32)) >> 17) as u32);
    let pack = "mov.b64 %rd6, {%r1, %r2};\nrem.u64 %rd6, %rd6, 1000003;\ncvt.u32.u64 %r4, %rd6;";
    check(pack, |a, b, _| ((u64::from(b) << 32 | u64::from(a)) % 1_000_003) as u32);
    let split = "mov.b32 {%h1, %h2}, %r1;\nmul.wide.u16 %r5, %h1, %h2;\nmov.b32 %r4, %r5;";
    check(split, |a, _, _| (a & 0xffff) * (a >> 16));
}

#[test]
fn comparisons_and_selections() {
    check(
        "setp.lt.s32 %p1, %r1, %r2;\nselp.b32 %r4, %r1, %r3, %p1;",
        |a, b, c| if (a as i32) < b as i32 { a } else { c },
    );
    check(
        "setp.hi.u32 %p1, %r1, %r2;\n@%p1 mov.u32 %r4, 1;\n@!%p1 mov.u32 %r4, 2;",
        |a, b, _| if a > b { 1 } else { 2 },
    );
    let joined = "setp.eq.u32 %p2, %r3, 0;\nsetp.ge.and.u32 %p1|%p3, %r1, %r2, !%p2;\nselp.u32 %r4, 1, 0, %p1;\n@%p3 add.u32 %r4, %r4, 2;";
    check(joined, |a, b, c| u32::from(a >= b && c != 0) + 2 * u32::from(a < b && c != 0));
    check("set.ne.u32.u32 %r4, %r1, %r2;", |a, b, _| if a != b { u32::MAX } else { 0 });
    check("slct.b32.s32 %r4, %r1, %r2, %r3;", |a, b, c| if c as i32 >= 0 { a } else { b });
    check_floats("setp.ltu.f32 %p1, %f1, %f2;\nselp.f32 %f4, 0f3F800000, 0f00000000, %p1;", |a, b, _| {
        f32::from(u8::from(a < b || a.is_nan() || b.is_nan()))
    });
    check_floats("setp.neu.f32 %p1, %f1, %f2;\nselp.f32 %f4, 0f3F800000, 0f00000000, %p1;", |a, b, _| {
        f32::from(u8::from(a != b))
    });
}

#[test]
fn single_floats() {
    check_floats("add.f32 %f4, %f1, %f2;", |a, b, _| a + b);
    check_floats("fma.rn.f32 %f4, %f1, %f2, %f3;", |a, b, c| a.mul_add(b, c));
    check_floats("div.rn.f32 %f4, %f1, %f2;", |a, b, _| a / b);
    check_floats("sqrt.rn.f32 %f4, %f1;", |a, _, _| a.sqrt());
    check_floats("rcp.rn.f32 %f4, %f1;", |a, _, _| 1.0 / a);
    check_floats("neg.f32 %f4, %f1;", |a, _, _| -a);
    check_floats("add.ftz.f32 %f4, %f1, %f1;", |a, _, _| if a.is_subnormal() { 0.0 } else { a + a });
    check_floats("add.sat.f32 %f4, %f1, %f2;", |a, b, _| {
        let s = a + b;
        if s.is_nan() || s <= 0.0 { 0.0 } else { s.min(1.0) }
    });
    check_floats("copysign.f32 %f4, %f1, %f2;", |a, b, _| b.copysign(a));
    check_floats("max.f32 %f4, %f1, %f2;", |a, b, _| match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == 0.0 && b == 0.0 => a + b,
        _ => a.max(b),
    });
    check_floats("min.NaN.f32 %f4, %f1, %f2;", |a, b, _| match () {
        () if a.is_nan() || b.is_nan() => f32::NAN,
        () if a == 0.0 && b == 0.0 => -((-a) + (-b)),
        () => a.min(b),
    });
    // Down and up: the nearest sum, moved where the exact one lies on the other side.
    // What the sum lacks: exact in f64, but for a subnormal addend, whose sign decides.
    let lacks = |a: f32, b: f32| {
        let rest = f64::from(a) + f64::from(b) - f64::from(a + b);
        let tiny = [a, b].into_iter().find(|x| x.is_subnormal()).map_or(0.0, f64::from);
        if rest == 0.0 && a != 0.0 && b != 0.0 { tiny } else { rest }
    };
    check_floats("add.rm.f32 %f4, %f1, %f2;", |a, b, _| {
        let s = a + b;
        if s.is_finite() && lacks(a, b) < 0.0 { s.next_down() } else { s }
    });
    check_floats("add.rp.f32 %f4, %f1, %f2;", |a, b, _| {
        let s = a + b;
        if s.is_finite() && lacks(a, b) > 0.0 { s.next_up() } else { s }
    });
    check_floats("cvt.rzi.s32.f32 %r5, %f1;\ncvt.rn.f32.s32 %f4, %r5;", |a, _, _| a as i32 as f32);
    check_floats("cvt.rni.f32.f32 %f4, %f1;", |a, _, _| a.round_ties_even());
    check_floats(
        "cvt.f64.f32 %d1, %f1;\ncvt.f64.f32 %d2, %f2;\nfma.rn.f64 %d3, %d1, %d2, %d1;\ncvt.rn.f32.f64 %f4, %d3;",
        |a, b, _| f64::from(a).mul_add(f64::from(b), f64::from(a)) as f32,
    );
}

#[test]
fn functions_of_floats_are_close() {
    let x: [u32; 32] = std::array::from_fn(|l| (0.1f32 + l as f32 * 0.37).to_bits());
    type Case = (&'static str, fn(f64) -> f64);
    let cases: [Case; 9] = [
        ("ex2.approx.f32 %f4, %f1;", f64::exp2),
        ("ex2.approx.ftz.f32 %f4, %f1;", f64::exp2),
        ("lg2.approx.f32 %f4, %f1;", f64::log2),
        ("rsqrt.approx.f32 %f4, %f1;", |x| 1.0 / x.sqrt()),
        ("sqrt.approx.f32 %f4, %f1;", f64::sqrt),
        ("rcp.approx.ftz.f32 %f4, %f1;", f64::recip),
        ("tanh.approx.f32 %f4, %f1;", f64::tanh),
        ("sin.approx.f32 %f4, %f1;", f64::sin),
        ("cos.approx.f32 %f4, %f1;", f64::cos),
    ];
    for (code, f) in cases {
        for (l, got) in words(code, true, [&x, &x, &x]).iter().enumerate() {
            let want = f(f64::from(f32::from_bits(x[l])));
            let got = f64::from(f32::from_bits(*got));
            assert!((got - want).abs() <= 1.2e-7 * want.abs().max(1e-3), "{code}: {got} {want}");
        }
    }
    let y = x.map(|b| (f32::from_bits(b) * 1.7).to_bits());
    for code in ["div.full.f32 %f4, %f1, %f2;", "div.approx.f32 %f4, %f1, %f2;"] {
        for (l, got) in words(code, true, [&x, &y, &y]).iter().enumerate() {
            assert_eq!(f32::from_bits(*got), f32::from_bits(x[l]) / f32::from_bits(y[l]), "{code}");
        }
    }
}

#[test]
fn halves_scalar_and_packed() {
    let make = |seed: u32| {
        let mut next = pseudo(seed);
        let mut one = move || f32::from(next() as i16) / 4096.0;
        let pairs: [(f32, f32); 32] = std::array::from_fn(|_| (one(), one()));
        pairs
    };
    let (a, b, c) = (make(1), make(2), make(3));
    let bf = |p: (f32, f32)| u32::from(bf16::from_f32(p.0).to_bits()) | u32::from(bf16::from_f32(p.1).to_bits()) << 16;
    let hf = |p: (f32, f32)| u32::from(f16::from_f32(p.0).to_bits()) | u32::from(f16::from_f32(p.1).to_bits()) << 16;
    let of_bf = |x: u32| [x as u16, (x >> 16) as u16].map(|h| bf16::from_bits(h).to_f64());
    let of_hf = |x: u32| [x as u16, (x >> 16) as u16].map(|h| f16::from_bits(h).to_f64());
    type Case = (&'static str, fn(f64, f64, f64) -> f64);
    let cases: [Case; 7] = [
        ("fma.rn.T %r4, %r1, %r2, %r3;", |a, b, c| a * b + c),
        ("add.T %r4, %r1, %r2;", |a, b, _| a + b),
        ("mul.T %r4, %r1, %r2;", |a, b, _| a * b),
        ("sub.T %r4, %r1, %r2;", |a, b, _| a - b),
        ("max.T %r4, %r1, %r2;", |a, b, _| a.max(b)),
        ("min.NaN.T %r4, %r1, %r2;", |a, b, _| a.min(b)),
        ("fma.rn.relu.T %r4, %r1, %r2, %r3;", |a, b, c| (a * b + c).max(0.0)),
    ];
    for (code, f) in cases {
        let (x, y, z) = (a.map(bf), b.map(bf), c.map(bf));
        for (l, got) in words(&code.replace('T', "bf16x2"), false, [&x, &y, &z]).iter().enumerate() {
            for i in 0..2 {
                let want = bf16::from_f64(f(of_bf(x[l])[i], of_bf(y[l])[i], of_bf(z[l])[i]));
                assert_eq!(of_bf(*got)[i], want.to_f64(), "{code} bf16");
            }
        }
        let (x, y, z) = (a.map(hf), b.map(hf), c.map(hf));
        for (l, got) in words(&code.replace('T', "f16x2"), false, [&x, &y, &z]).iter().enumerate() {
            for i in 0..2 {
                let want = f16::from_f64(f(of_hf(x[l])[i], of_hf(y[l])[i], of_hf(z[l])[i]));
                assert_eq!(of_hf(*got)[i], want.to_f64(), "{code} f16");
            }
        }
    }
    let x = a.map(|p| p.0.to_bits());
    let y = b.map(|p| p.1.to_bits());
    for (l, got) in words("cvt.rn.bf16x2.f32 %r4, %f1, %f2;", false, [&x, &y, &y]).iter().enumerate() {
        assert_eq!(*got, bf((f32::from_bits(y[l]), f32::from_bits(x[l]))));
    }
    let round_trip = "cvt.rn.f16.f32 %h1, %f1;\ncvt.f32.f16 %f4, %h1;";
    for (l, got) in words(round_trip, true, [&x, &y, &y]).iter().enumerate() {
        assert_eq!(f32::from_bits(*got), f16::from_f32(f32::from_bits(x[l])).to_f32());
    }
    let shortened = "cvt.rn.bf16.f32 %h1, %f1;\nmov.b32 %r4, {%h1, %h1};";
    for (l, got) in words(shortened, false, [&x, &y, &y]).iter().enumerate() {
        let h = u32::from(bf16::from_f32(f32::from_bits(x[l])).to_bits());
        assert_eq!(*got, h | h << 16);
    }
    let functions = "tanh.approx.bf16x2 %r5, %r1;\nex2.approx.ftz.bf16x2 %r4, %r5;";
    let x = a.map(bf);
    for (l, got) in words(functions, false, [&x, &x, &x]).iter().enumerate() {
        for i in 0..2 {
            let tanh = bf16::from_f64(of_bf(x[l])[i].tanh()).to_f64();
            assert!((of_bf(*got)[i] - tanh.exp2()).abs() < 0.01);
        }
    }
}

#[test]
fn lanes_talk_to_each_other() {
    let lane = |l: usize| l as u32;
    let x: [u32; 32] = std::array::from_fn(|l| lane(l) * 10 + 1);
    let run = |code: &str| words(code, false, [&x, &x, &x]);
    let each = |f: &dyn Fn(usize) -> u32| (0..32).map(f).collect::<Vec<u32>>();
    assert_eq!(run("shfl.sync.bfly.b32 %r4, %r1, 5, 31, -1;"), each(&|l| x[l ^ 5]));
    assert_eq!(
        run("shfl.sync.down.b32 %r4|%p1, %r1, 3, 31, -1;\n@!%p1 mov.u32 %r4, 7;"),
        each(&|l| if l < 29 { x[l + 3] } else { 7 })
    );
    assert_eq!(run("shfl.sync.up.b32 %r4, %r1, 2, 0, -1;"), each(&|l| if l >= 2 { x[l - 2] } else { x[l] }));
    assert_eq!(run("shfl.sync.idx.b32 %r4, %r1, 9, 31, -1;"), each(&|_| x[9]));
    // Segments of eight lanes.
    assert_eq!(run("shfl.sync.idx.b32 %r4, %r1, 2, 6175, -1;"), each(&|l| x[l / 8 * 8 + 2]));
    assert_eq!(
        run("and.b32 %r5, %r0, 3;\nsetp.eq.u32 %p1, %r5, 1;\nvote.sync.ballot.b32 %r4, %p1, -1;"),
        each(&|_| 0x2222_2222)
    );
    assert_eq!(
        run("setp.lt.u32 %p1, %r0, 40;\nvote.sync.all.pred %p2, %p1, -1;\nselp.u32 %r4, 1, 0, %p2;"),
        each(&|_| 1)
    );
    assert_eq!(run("redux.sync.add.s32 %r4, %r1, -1;"), each(&|_| x.iter().sum()));
    assert_eq!(run("redux.sync.max.u32 %r4, %r1, -1;"), each(&|_| 311));
    assert_eq!(run("shr.u32 %r5, %r0, 2;\nmatch.any.sync.b32 %r4, %r5, -1;"), each(&|l| 15 << (l / 4 * 4)));
    assert_eq!(run("mov.u32 %r4, %lanemask_lt;"), each(&|l| (1u32 << l) - 1));
    let some =
        "mov.u32 %r4, 0;\nsetp.gt.u32 %p1, %r0, 11;\n@%p1 bra L1;\nactivemask.b32 %r4;\nL1:\nadd.u32 %r4, %r4, 1;";
    assert_eq!(run(some), each(&|l| if l > 11 { 1 } else { 0x1000 }));
}

#[test]
fn branches_part_and_meet() {
    // The Collatz steps of each lane: loops of different length, calls and returns, a switch.
    let code = "
mov.u32 %r4, 0;
add.u32 %r5, %r0, 1;
L0:
setp.eq.u32 %p1, %r5, 1;
@%p1 bra L3;
and.b32 %r6, %r5, 1;
setp.eq.u32 %p2, %r6, 0;
@%p2 bra L1;
mad.lo.u32 %r5, %r5, 3, 1;
bra L2;
L1:
shr.u32 %r5, %r5, 1;
L2:
add.u32 %r4, %r4, 1;
bra.uni L0;
L3:
activemask.b32 %r7;
setp.ne.u32 %p3, %r7, -1;
@%p3 trap;
and.b32 %r8, %r0, 3;
ts: .branchtargets C0, C1, C2, C3;
brx.idx %r8, ts;
C0: add.u32 %r4, %r4, 1000; bra D;
C1: add.u32 %r4, %r4, 2000; bra D;
C2: add.u32 %r4, %r4, 3000; bra D;
C3: add.u32 %r4, %r4, 4000;
D:
bar.warp.sync -1;";
    let zero = [0u32; 32];
    let got = words(code, false, [&zero, &zero, &zero]);
    for (l, got) in got.iter().enumerate() {
        let (mut n, mut steps) = (l as u32 + 1, 0);
        while n != 1 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        assert_eq!(*got, steps + 1000 * (l as u32 % 4 + 1));
    }
}

#[test]
fn narrow_and_vector_accesses() {
    let gpu = Gpu::new();
    let bytes: Vec<u8> = (0..=255).collect();
    let (from, to) = (gpu.put(&bytes), gpu.put(&[0u8; 512]));
    let text = kernel(
        2,
        "cvt.u64.u32 %rd5, %r0;
         add.s64 %rd6, %rd0, %rd5;
         ld.global.s8 %h1, [%rd6+120];
         cvt.s32.s16 %r1, %h1;
         ld.global.u8 %r2, [%rd6+120];
         mad.wide.u32 %rd7, %r0, 16, %rd1;
         mad.wide.u32 %rd8, %r0, 8, %rd0;
         ld.global.nc.v4.u16 {%h2, %h3, %h4, %h5}, [%rd8];
         mov.b32 %r3, {%h2, %h3};
         mov.b32 %r4, {%h4, %h5};
         st.global.v4.b32 [%rd7], {%r1, %r2, %r3, %r4};",
    );
    gpu.launch(&text, "k", [1, 1, 1], [32, 1, 1], 0, &[Arg::Pointer(from), Arg::Pointer(to)]).expect("no fault");
    let got = gpu.get::<u32>(to, 128);
    for l in 0..32usize {
        let b = (120 + l) as u8;
        let word = |i: usize| u32::from_le_bytes(bytes[8 * l + 4 * i..][..4].try_into().expect("four"));
        assert_eq!(got[4 * l..4 * l + 4], [b as i8 as i32 as u32, u32::from(b), word(0), word(1)]);
    }
}

#[test]
fn atomics_of_all_kinds() {
    let gpu = Gpu::new();
    let at = gpu.put(&[0u32, 0, 5, u32::MAX, 0, 0, 0, 0, 0, 0]);
    let text = kernel(
        1,
        "red.global.add.u32 [%rd0], %r0;
         atom.global.max.u32 %r1, [%rd0+4], %r0;
         atom.global.exch.b32 %r1, [%rd0+8], %r0;
         atom.global.cas.b32 %r1, [%rd0+12], -1, %r0;
         cvt.rn.f32.u32 %f1, %r0;
         red.global.add.f32 [%rd0+16], %f1;
         cvt.f64.f32 %d1, %f1;
         atom.global.add.f64 %d2, [%rd0+24], %d1;
         mov.b32 %r2, 0x3f803f80;
         red.global.add.noftz.bf16x2 [%rd0+32], %r2;
         atom.global.inc.u32 %r3, [%rd0+20], 9;",
    );
    gpu.launch(&text, "k", [1, 1, 1], [32, 1, 1], 0, &[Arg::Pointer(at)]).expect("no fault");
    let got = gpu.get::<u32>(at, 10);
    assert_eq!(got[..4], [496, 31, 31, 0]);
    assert_eq!(f32::from_bits(got[4]), 496.0);
    assert_eq!(got[5], 2);
    assert_eq!(f64::from_bits(u64::from(got[7]) << 32 | u64::from(got[6])), 496.0);
    assert_eq!(bf16::from_bits(got[8] as u16).to_f32(), 32.0);
}

/// One `mma` on fragments as the PTX ISA lays them out, against a plain product.
fn mma(
    shape: &str,
    types: &str,
    k: usize,
    a_regs: usize,
    b_regs: usize,
    place: &dyn Fn(bool, usize, usize) -> Vec<(usize, usize)>,
    pack: &dyn Fn(&[f32]) -> u32,
) {
    let gpu = Gpu::new();
    let mut next = pseudo(k as u32);
    let mut small = || f32::from(next() as i8) / 32.0;
    let a: Vec<f32> = (0..16 * k).map(|_| small()).collect();
    let b: Vec<f32> = (0..k * 8).map(|_| small()).collect();
    let frag = |m: &[f32], width: usize, regs: usize, is_a: bool| -> Vec<u32> {
        let mut out = Vec::new();
        for l in 0..32 {
            for r in 0..regs {
                let values: Vec<f32> = place(is_a, l, r).iter().map(|(i, j)| m[i * width + j]).collect();
                out.push(pack(&values));
            }
        }
        out
    };
    let (pa, pb) = (gpu.put(&frag(&a, k, a_regs, true)), gpu.put(&frag(&b, 8, b_regs, false)));
    let out = gpu.room(16 * 8 * 4);
    let mut code = String::new();
    let list = |first: usize, n: usize| (first..first + n).map(|r| format!("%r{r}")).collect::<Vec<_>>().join(", ");
    code += &format!("mad.wide.u32 %rd5, %r0, {}, %rd0;\nmad.wide.u32 %rd6, %r0, {}, %rd1;\n", 4 * a_regs, 4 * b_regs);
    for r in 0..a_regs {
        code += &format!("ld.global.u32 %r{}, [%rd5+{}];\n", 10 + r, 4 * r);
    }
    for r in 0..b_regs {
        code += &format!("ld.global.u32 %r{}, [%rd6+{}];\n", 20 + r, 4 * r);
    }
    code += &format!(
        "mov.f32 %f1, 0f3F800000;\nmma.sync.aligned.{shape}.row.col.{types} {{%f2, %f3, %f4, %f5}}, {{{}}}, {{{}}}, {{%f1, %f1, %f1, %f1}};\n\
         mad.wide.u32 %rd7, %r0, 16, %rd2;\nst.global.v4.f32 [%rd7], {{%f2, %f3, %f4, %f5}};",
        list(10, a_regs),
        list(20, b_regs)
    );
    let args = [Arg::Pointer(pa), Arg::Pointer(pb), Arg::Pointer(out)];
    gpu.launch(&kernel(3, &code), "k", [1, 1, 1], [32, 1, 1], 0, &args).unwrap_or_else(|f| panic!("{f}"));
    let got = gpu.get::<f32>(out, 128);
    for l in 0..32 {
        for i in 0..4 {
            let (m, n) = (l / 4 + 8 * (i / 2), l % 4 * 2 + i % 2);
            let want = 1.0 + (0..k).map(|p| a[m * k + p] * b[p * 8 + n]).sum::<f32>();
            assert!((got[4 * l + i] - want).abs() < 1e-4, "{shape} {types}: {} {want}", got[4 * l + i]);
        }
    }
}

#[test]
fn matrix_instructions() {
    let halves = |is_a: bool, l: usize, r: usize| {
        let (g, t) = (l / 4, l % 4 * 2);
        let at = if is_a { (g + 8 * (r % 2), t + 8 * (r / 2)) } else { (t + 8 * r, g) };
        if is_a { vec![at, (at.0, at.1 + 1)] } else { vec![at, (at.0 + 1, at.1)] }
    };
    let singles = |is_a: bool, l: usize, r: usize| {
        let (g, t) = (l / 4, l % 4);
        vec![if is_a { (g + 8 * (r % 2), t + 4 * (r / 2)) } else { (t + 4 * r, g) }]
    };
    let bf = |v: &[f32]| u32::from(bf16::from_f32(v[0]).to_bits()) | u32::from(bf16::from_f32(v[1]).to_bits()) << 16;
    let hf = |v: &[f32]| u32::from(f16::from_f32(v[0]).to_bits()) | u32::from(f16::from_f32(v[1]).to_bits()) << 16;
    let tf = |v: &[f32]| v[0].to_bits();
    mma("m16n8k16", "f32.bf16.bf16.f32", 16, 4, 2, &halves, &bf);
    mma("m16n8k16", "f32.f16.f16.f32", 16, 4, 2, &halves, &hf);
    mma("m16n8k8", "f32.bf16.bf16.f32", 8, 2, 1, &halves, &bf);
    mma("m16n8k8", "f32.f16.f16.f32", 8, 2, 1, &halves, &hf);
    mma("m16n8k8", "f32.tf32.tf32.f32", 8, 4, 2, &singles, &tf);
    mma("m16n8k4", "f32.tf32.tf32.f32", 4, 2, 1, &singles, &tf);
}

#[test]
fn matrices_of_doubles() {
    let gpu = Gpu::new();
    let mut next = pseudo(5);
    let mut numbers = |n: usize| (0..n).map(|_| f64::from(next() as i16) / 64.0).collect::<Vec<f64>>();
    let (a, b) = (numbers(32), numbers(32));
    // Lane l holds A[l / 4][l % 4] and B[l % 4][l / 4].
    let columns: Vec<f64> = (0..32).map(|l| b[l % 4 * 8 + l / 4]).collect();
    let (pa, pb, out) = (gpu.put(&a), gpu.put(&columns), gpu.room(64 * 8));
    let text = kernel(
        3,
        "mad.wide.u32 %rd5, %r0, 8, %rd0;\nld.global.f64 %d1, [%rd5];\nmad.wide.u32 %rd6, %r0, 8, %rd1;\nld.global.f64 %d2, [%rd6];
         mov.f64 %d3, 0d3FF0000000000000;
         mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d4, %d5}, {%d1}, {%d2}, {%d3, %d3};
         mad.wide.u32 %rd7, %r0, 16, %rd2;\nst.global.v2.f64 [%rd7], {%d4, %d5};",
    );
    let args = [pa, pb, out].map(Arg::Pointer);
    gpu.launch(&text, "k", [1, 1, 1], [32, 1, 1], 0, &args).expect("no fault");
    let got = gpu.get::<f64>(out, 64);
    for (i, got) in got.iter().enumerate() {
        let want = 1.0 + (0..4).map(|k| a[i / 8 * 4 + k] * b[k * 8 + i % 8]).sum::<f64>();
        assert!((got - want).abs() < 1e-9 * want.abs().max(1.0));
    }
}

#[test]
fn matrices_move_between_shared_memory_and_registers() {
    // Four matrices of 8 x 8 halves are loaded, stored transposed elsewhere, and read from there.
    let gpu = Gpu::new();
    let halves: Vec<u16> = (0..256).collect();
    let (from, to) = (gpu.put(&halves), gpu.room(512));
    let text = kernel(
        2,
        "mad.wide.u32 %rd5, %r0, 16, %rd0;
         ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd5];
         mov.u32 %r5, buffer;
         mad.lo.u32 %r6, %r0, 16, %r5;
         st.shared.v4.b32 [%r6], {%r1, %r2, %r3, %r4};
         bar.warp.sync -1;
         ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r7, %r8, %r9, %r10}, [%r6];
         stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r6+512], {%r7, %r8, %r9, %r10};
         bar.warp.sync -1;
         ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r6+512];
         mad.wide.u32 %rd6, %r0, 16, %rd1;
         st.global.v4.b32 [%rd6], {%r1, %r2, %r3, %r4};",
    );
    let text = text.replace(".visible", ".shared .align 16 .b8 buffer[1024];\n.visible");
    gpu.launch(&text, "k", [1, 1, 1], [32, 1, 1], 0, &[Arg::Pointer(from), Arg::Pointer(to)]).expect("no fault");
    let got = gpu.get::<u16>(to, 256);
    for (i, got) in got.iter().enumerate() {
        let (m, r, c) = (i / 64, i / 8 % 8, i % 8);
        assert_eq!(usize::from(*got), 64 * m + 8 * c + r);
    }
}

#[test]
fn unknown_instructions_are_named_with_their_line() {
    let text = kernel(0, "wgmma.fence.sync.aligned;");
    let module = simcuda::ptx::parse::parse(&text).expect("it parses");
    let linked = simcuda::ptx::link::link(&module, "k", &Default::default()).expect("it links");
    let error = simcuda::exec::decode::decode(&linked).err().expect("it is not known");
    let line = text.lines().position(|l| l.contains("wgmma")).expect("it is there") as u32 + 1;
    assert_eq!(error.line, line);
    assert!(error.reason.contains("wgmma.fence.sync.aligned"), "{error}");
}
