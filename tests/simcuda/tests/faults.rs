//! Planted faults: each is found, and said with kernel, line, block and thread.

mod common;

use common::{Arg, Gpu, bf16s, floats, kernel};
use simcuda::check::fault::{Fault, Kind};

const PRODUCTS: &str = include_str!("../kernels/products.ptx");

/// Runs a body with one pointer to 128 initialised bytes, 64 threads, 256 bytes of shared memory.
fn run(gpu: &Gpu, body: &str) -> Option<Fault> {
    let at = gpu.put(&[1u32; 32]);
    let text = kernel(1, body).replace(".visible", ".shared .align 16 .b8 buffer[256];\n.visible");
    gpu.launch(&text, "k", [2, 1, 1], [64, 1, 1], 0, &[Arg::Pointer(at)]).err()
}

fn finds(body: &str, kind: Kind, says: &str) {
    let fault = run(&Gpu::new(), body).unwrap_or_else(|| panic!("nothing is found in: {body}"));
    assert_eq!(fault.kind, kind, "{fault}");
    assert!(fault.to_string().contains(says), "{fault}");
    assert_eq!(fault.place.as_ref().expect("a place").kernel, "k");
}

#[test]
fn memory_faults() {
    finds(
        "mad.wide.u32 %rd5, %r0, 4, %rd0;\nld.global.u32 %r1, [%rd5];",
        Kind::OutOfBounds,
        "thread 32 (warp 1, lane 0)",
    );
    finds("st.global.u32 [%rd0+126], %r0;", Kind::Misaligned, "no multiple of 4");
    finds("st.global.u16 [%rd0+128], %h1;", Kind::OutOfBounds, "0 past the end of an allocation of 128 bytes");
    finds("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+8];", Kind::Misaligned, "16 bytes");
    finds("st.shared.u32 [buffer+256], %r0;", Kind::OutOfBounds, "256 bytes of shared memory");
    finds("ld.shared.u32 %r1, [buffer];", Kind::Uninitialised, "were not written by this block");
    finds("mov.u64 %rd5, 64;\nld.global.u32 %r1, [%rd5];", Kind::OutOfBounds, "no memory of this device");
    finds("trap;", Kind::Trap, "traps");
    let gpu = Gpu::with(&[("SIMCUDA_BUDGET", "100000")]);
    assert_eq!(run(&gpu, "L: bra L;").expect("it never ends").kind, Kind::Endless);
}

#[test]
fn freed_and_unwritten_memory() {
    let gpu = Gpu::new();
    let at = gpu.room(64);
    let text = kernel(1, "ld.global.u32 %r1, [%rd0];");
    let launch = |gpu: &Gpu| gpu.launch(&text, "k", [1, 1, 1], [1, 1, 1], 0, &[Arg::Pointer(at)]);
    assert_eq!(launch(&gpu).expect_err("not written").kind, Kind::Uninitialised);
    gpu.memory.copy_in(at, &[0; 4]).expect("allocated");
    launch(&gpu).expect("it is written now");
    assert!(gpu.memory.free(at));
    let fault = launch(&gpu).expect_err("freed");
    assert_eq!(fault.kind, Kind::UseAfterFree);
    assert!(fault.message.contains("of an allocation of 64 bytes that was freed"), "{fault}");
}

#[test]
fn barriers() {
    finds("setp.lt.u32 %p1, %r0, 7;\n@%p1 bra L;\nbar.sync 0;\nL:", Kind::DivergentBarrier, "are not at this barrier");
    finds(
        "setp.lt.u32 %p1, %r0, 32;\n@%p1 bra L;\nbar.sync 1;\nL:\n@%p1 bar.sync 0;",
        Kind::MissingBarrier,
        "wait at barrier 1",
    );
    finds(
        "setp.lt.u32 %p1, %r0, 7;\n@%p1 bra L;\nshfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;\nL:",
        Kind::DivergentBarrier,
        "elsewhere",
    );
    // Warps that end early are no fault, barriers of a part of the block are none either.
    let good = "setp.ge.u32 %p1, %r0, 32;\n@%p1 ret;\nbar.sync 0;\nbar.sync 1, 32;";
    assert_eq!(run(&Gpu::new(), good), None);
    let count = "setp.lt.u32 %p1, %r0, 40;\nbar.red.popc.u32 %r1, 0, %p1;\nsetp.ne.u32 %p2, %r1, 40;\n@%p2 trap;\n\
                 bar.red.and.pred %p3, 0, %p1;\n@%p3 trap;\nbar.red.or.pred %p4, 0, %p1;\n@!%p4 trap;";
    assert_eq!(run(&Gpu::new(), count), None);
}

#[test]
fn races() {
    let store = "shl.b32 %r1, %r0, 2;\nmov.u32 %r2, buffer;\nadd.u32 %r1, %r1, %r2;\nst.shared.u32 [%r1], %r0;\n";
    let load = "xor.b32 %r3, %r1, 128;\nld.shared.u32 %r4, [%r3];\n";
    finds(&format!("{store}{load}"), Kind::Uninitialised, "thread 0");
    let twice = format!("{store}bar.sync 0;\n{load}st.shared.u32 [%r1], %r4;");
    finds(&twice, Kind::Race, "with no barrier between");
    let good = format!("{store}bar.sync 0;\n{load}bar.sync 0;\nst.shared.u32 [%r1], %r4;");
    assert_eq!(run(&Gpu::new(), &good), None);
    // Lanes of one warp: `bar.warp.sync` is enough, nothing is not.
    let near = "xor.b32 %r3, %r1, 4;\nld.shared.u32 %r4, [%r3];\n";
    finds(&format!("{store}{near}"), Kind::Race, "reads 4 bytes");
    assert_eq!(run(&Gpu::new(), &format!("{store}bar.warp.sync -1;\n{near}")), None);
    assert_eq!(run(&Gpu::with(&[("SIMCUDA_CHECK", "races")]), &format!("{store}{near}")), None);
    // All threads write the same value: no order makes a difference.
    assert_eq!(run(&Gpu::new(), "mov.u32 %r1, 3;\nst.shared.u32 [buffer], %r1;"), None);
    finds("st.shared.u32 [buffer], %r0;", Kind::Race, "writes 4 bytes");
}

/// The product with one line of its text changed.
fn product_with(change: impl Fn(&str) -> Option<String>) -> Result<f64, Fault> {
    let mut lines: Vec<String> = PRODUCTS.lines().map(str::to_string).collect();
    let begin = lines.iter().position(|l| l.contains(".entry mma_bf16")).expect("the kernel is there");
    let changed = lines[begin..].iter_mut().find_map(|l| change(l).map(|new| *l = new));
    assert!(changed.is_some(), "no line was changed");
    let gpu = Gpu::new();
    let (m, n, k) = (64, 64, 128);
    let (a, b) = (bf16s(1, m * k), bf16s(2, k * n));
    let (pa, pb, pc) = (gpu.put(&a), gpu.put(&b), gpu.room(m * n * 4));
    let args = [Arg::Pointer(pa), Arg::Pointer(pb), Arg::Pointer(pc), Arg::U32(64), Arg::U32(64), Arg::U32(128)];
    gpu.launch(&lines.join("\n"), "mma_bf16", [1, 1, 1], [128, 1, 1], 0, &args)?;
    Ok(gpu.get::<f32>(pc, m * n).iter().map(|x| f64::from(x.abs())).sum())
}

#[test]
fn pipelines_without_a_wait_or_a_barrier() {
    assert!(product_with(|l| l.contains("cp.async.wait_group 1").then(|| l.to_string())).is_ok());
    let no_wait = |l: &str| l.contains("cp.async.wait_group 1").then(|| "cp.async.wait_group 7;".to_string());
    assert_eq!(product_with(no_wait).expect_err("it reads what has not come").kind, Kind::Uninitialised);
    let no_barrier = |l: &str| l.contains("bar.sync").then(String::new);
    let fault = product_with(no_barrier).expect_err("warps read what others copy");
    assert!(matches!(fault.kind, Kind::Race | Kind::Uninitialised), "{fault}");
}

#[test]
fn order_of_blocks_can_be_turned() {
    // The last block to come decides: a kernel whose result depends on that is told apart.
    let text = kernel(1, "mov.u32 %r1, %ctaid.x;\nst.global.u32 [%rd0], %r1;");
    for (order, want) in [("forwards", 3), ("backwards", 0)] {
        let gpu = Gpu::with(&[("SIMCUDA_ORDER", order), ("SIMCUDA_CHECK", "all")]);
        let at = gpu.put(&[9u32]);
        gpu.launch(&text, "k", [4, 1, 1], [1, 1, 1], 0, &[Arg::Pointer(at)]).expect("no fault");
        assert_eq!(gpu.get::<u32>(at, 1), [want]);
    }
    let _ = floats(1, 1);
}
