//! CUDA C through the real NVRTC, where it is installed: the stored texts are what it gives, and faults planted in the
//! source are found.

mod common;
#[path = "common/nvrtc.rs"]
mod nvrtc;

use common::{Arg, Gpu, bf16s, difference, of_bf16};
use nvrtc::{compile, present};
use simcuda::check::fault::{Fault, Kind};

const SOURCES: [(&str, &str, &str); 3] = [
    ("basic", include_str!("../kernels/basic.cu"), include_str!("../kernels/basic.ptx")),
    ("products", include_str!("../kernels/products.cu"), include_str!("../kernels/products.ptx")),
    ("attention", include_str!("../kernels/attention.cu"), include_str!("../kernels/attention.ptx")),
];

/// The instructions of a text, without comments, which name versions.
fn instructions(text: &str) -> Vec<&str> {
    text.lines()
        .map(str::trim)
        .filter(|l| !l.starts_with("//") && !l.starts_with(".version") && !l.is_empty())
        .collect()
}

#[test]
fn stored_texts_are_those_of_nvrtc() {
    if !present() {
        return;
    }
    for (name, source, stored) in SOURCES {
        let text = compile(source, "compute_80", &[]);
        if std::env::var_os("BLESS").is_some() {
            let path = format!("{}/kernels/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
            std::fs::write(path, &text).expect("the folder can be written");
        } else {
            assert!(instructions(&text) == instructions(stored), "kernels/{name}.ptx: renew it with BLESS=1");
        }
    }
}

#[test]
fn all_kernels_are_known_for_newer_devices_and_fast_mathematics() {
    if !present() {
        return;
    }
    for (name, source, _) in SOURCES {
        for (arch, options) in
            [("compute_90", &[][..]), ("compute_80", &["--use_fast_math"][..]), ("compute_90", &["-G"][..])]
        {
            let text = compile(source, arch, options);
            let module = simcuda::ptx::parse::parse(&text).unwrap_or_else(|e| panic!("{name} {arch} {options:?}: {e}"));
            let addresses = module.variables.iter().map(|v| (v.name.clone(), 4096)).collect();
            for f in module.functions.iter().filter(|f| f.entry) {
                let linked = simcuda::ptx::link::link(&module, &f.name, &addresses);
                let decoded = linked.and_then(|l| simcuda::exec::decode::decode(&l));
                decoded.map(|_| ()).unwrap_or_else(|e| panic!("{name} {arch} {options:?} {}: {e}", f.name));
            }
        }
    }
}

/// The tensor-core product of a changed source.
fn product(source: &str, options: &[&str]) -> Result<f64, Fault> {
    let text = compile(source, "compute_80", options);
    let gpu = Gpu::new();
    let (m, n, k) = (64usize, 128usize, 160usize);
    let (a, b) = (bf16s(1, m * k), bf16s(2, k * n));
    let (pa, pb, pc) = (gpu.put(&a), gpu.put(&b), gpu.room(m * n * 4));
    let dims = [m, n, k].map(|d| Arg::U32(d as u32));
    let args: Vec<Arg> = [pa, pb, pc].map(Arg::Pointer).into_iter().chain(dims).collect();
    gpu.launch(&text, "mma_bf16", [2, 1, 1], [128, 1, 1], 0, &args)?;
    let mut want = vec![0f64; m * n];
    for i in 0..m {
        for p in 0..k {
            for j in 0..n {
                want[i * n + j] += f64::from(of_bf16(a[i * k + p])) * f64::from(of_bf16(b[p * n + j]));
            }
        }
    }
    Ok(difference(&gpu.get(pc, m * n), &want))
}

#[test]
fn faults_planted_in_the_source_are_found() {
    if !present() {
        return;
    }
    let source = SOURCES[1].1;
    assert!(product(source, &[]).expect("no fault") < 1e-6);
    assert!(product(source, &["--use_fast_math"]).expect("no fault") < 1e-6);
    assert!(product(source, &["-G"]).expect("no fault") < 1e-6);
    assert_eq!(product(source, &["-DDROP_WAIT"]).expect_err("no wait").kind, Kind::Uninitialised);
    assert_eq!(product(source, &["-DDROP_BARRIER"]).expect_err("no barrier").kind, Kind::Race);
    let short = source.replace("bm + i / 4) * K + k0", "bm + i / 4 + 1) * K + k0");
    let fault = product(&short, &[]).expect_err("a row too far");
    assert_eq!(fault.kind, Kind::OutOfBounds);
    assert!(fault.place.is_some_and(|p| p.kernel == "mma_bf16"));
    // Rows of 72 bytes, to which 16 bytes at once cannot be copied.
    let odd = source.replace("[40]", "[36]");
    assert_eq!(product(&odd, &[]).expect_err("no multiple of 16").kind, Kind::Misaligned);
}

#[test]
fn nvrtc_and_the_software_driver_live_in_one_process() {
    // NVRTC asks a driver that it finds for tables that no header names.
    simcuda::place::preload();
    if present() {
        assert!(cudarc::driver::CudaContext::new(0).is_ok());
        assert!(compile("extern \"C\" __global__ void k() {}", "compute_80", &[]).contains(".entry k"));
    }
}
