//! The driver as programs call it: through cudarc, which finds the software GPU under the name of the real library.

mod common;

use common::{difference, floats};
use cudarc::driver::sys::{self, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use std::process::{Command, Output};
use std::sync::Arc;

const BASIC: &str = include_str!("../kernels/basic.ptx");

/// Kernels for streams: one that waits for nothing and doubles, one that never ends.
const SMALL: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 p, .param .u32 n) {
.reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n];
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;
setp.ge.u32 %p1, %r5, %r1;
@%p1 ret;
mad.wide.u32 %rd2, %r5, 4, %rd1;
ld.global.u32 %r1, [%rd2]; shl.b32 %r1, %r1, 1; st.global.u32 [%rd2], %r1;
ret;
}
.visible .entry past(.param .u64 p) {
.reg .b32 %r<2>; .reg .b64 %rd<2>;
ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [%rd1+4096];
ret;
}";

fn context(ordinal: usize) -> Arc<CudaContext> {
    if std::env::var("SIMCUDA_DEVICES").is_err() {
        // SAFETY: nextest runs a test in a process of its own, `cargo test` sets the same value in each thread, before the
        // library reads it.
        unsafe { std::env::set_var("SIMCUDA_DEVICES", "2") };
    }
    simcuda::place::preload();
    // SAFETY: it only tries to load a library.
    assert!(unsafe { sys::is_culib_present() });
    CudaContext::new(ordinal).expect("the software GPU is there")
}

/// Runs a test of this file in a process with these variables.
fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    let exe = std::env::current_exe().expect("a process knows its binary");
    let mut command = Command::new(exe);
    command.args(["--exact", test, "--nocapture", "--ignored"]).env("SIMCUDA_DEVICES", "2");
    command.envs(variables.iter().copied());
    command.output().expect("a test can be started")
}

fn passes(test: &str, variables: &[(&str, &str)]) -> String {
    let output = child(test, variables);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {text}");
    text
}

#[test]
fn devices_have_properties() {
    let gpu = context(1);
    assert_eq!(CudaContext::device_count(), Ok(2));
    assert_eq!(gpu.name().expect("a name"), "Software GPU 1 sm_90");
    assert_eq!(gpu.compute_capability(), Ok((9, 0)));
    assert_eq!(gpu.total_mem(), Ok(1 << 30));
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    assert_eq!(gpu.attribute(attribute), Ok(227 << 10));
    assert!(CudaContext::new(2).is_err());
    let e = CudaContext::new(7).expect_err("there are two");
    assert_eq!(e.error_name().expect("a name").to_str(), Ok("CUDA_ERROR_INVALID_DEVICE"));
}

#[test]
fn kernels_run_through_cudarc() {
    let gpu = context(0);
    let stream = gpu.new_stream().expect("a stream");
    let (rows, cols) = (7usize, 130usize);
    let x = floats(1, rows * cols);
    let on_device = stream.clone_htod(&x).expect("a copy");
    let mut out = stream.alloc_zeros::<f32>(rows * cols).expect("room");
    let module = gpu.load_module(Ptx::from_src(BASIC)).expect("a module");
    let softmax = module.load_function("softmax").expect("a kernel");
    assert!(module.load_function("no_such").is_err());
    let config = LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (64, 1, 1), shared_mem_bytes: 0 };
    let n = cols as i32;
    let mut launch = stream.launch_builder(&softmax);
    launch.arg(&on_device).arg(&mut out).arg(&n);
    // SAFETY: the arguments are those of the kernel.
    unsafe { launch.launch(config) }.expect("a launch");
    let got = stream.clone_dtoh(&out).expect("a copy");
    let mut want = Vec::new();
    for row in x.chunks(cols) {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        want.extend(row.iter().map(|x| f64::from(*x).exp() / sum));
    }
    assert!(difference(&got, &want) < 1e-6);
    let report = simcuda::place::report();
    assert!(report.contains("\"name\": \"softmax\", \"launches\": 1,"), "{report}");
    let too_many = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (2048, 1, 1), shared_mem_bytes: 0 };
    let mut launch = stream.launch_builder(&softmax);
    launch.arg(&on_device).arg(&mut out).arg(&n);
    // SAFETY: as above.
    assert!(unsafe { launch.launch(too_many) }.is_err());
}

#[test]
fn memory_is_counted_and_runs_out() {
    let gpu = context(0);
    let stream = gpu.new_stream().expect("a stream");
    let e = stream.alloc_zeros::<u8>(2 << 30).map(|_| ()).expect_err("more than there is");
    assert_eq!(e.0, sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY);
    let mut pinned = unsafe { gpu.alloc_pinned::<u32>(1000) }.expect("room");
    pinned.as_mut_slice().expect("it is free").iter_mut().enumerate().for_each(|(i, x)| *x = i as u32);
    let copy = stream.clone_htod(&pinned).expect("a copy");
    assert_eq!(stream.clone_dtoh(&copy).expect("a copy")[999], 999);
    let (free, total) = gpu.mem_get_info().expect("figures");
    assert!(free < total && total == 1 << 30);
}

#[test]
fn copies_between_devices_and_fills() {
    let (first, second) = (context(0), context(1));
    let (a, b) = (first.new_stream().expect("a stream"), second.new_stream().expect("a stream"));
    let x = a.clone_htod(&[7u32, 8, 9]).expect("a copy");
    a.synchronize().expect("no fault");
    second.bind_to_thread().expect("a context");
    let mut y = b.alloc_zeros::<u32>(3).expect("room");
    {
        let (from, to) = (x.device_ptr(&a).0, y.device_ptr_mut(&b).0);
        // SAFETY: both have as many bytes, and the contexts are theirs.
        let code = unsafe { sys::cuMemcpyPeerAsync(to, second.cu_ctx(), from, first.cu_ctx(), 12, b.cu_stream()) };
        assert_eq!(code, sys::cudaError_enum::CUDA_SUCCESS);
    }
    assert_eq!(b.clone_dtoh(&y).expect("a copy"), [7, 8, 9]);
    b.memset_zeros(&mut y).expect("a fill");
    assert_eq!(b.clone_dtoh(&y).expect("a copy"), [0; 3]);
}

#[test]
fn modules_that_cannot_run_are_refused() {
    let gpu = context(0);
    let future = SMALL.replace("sm_80", "sm_100");
    let e = gpu.load_module(Ptx::from_src(future)).map(|_| ()).expect_err("it is for another device");
    assert_eq!(e.0, sys::cudaError_enum::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let e = gpu.load_module(Ptx::from_src("no ptx")).map(|_| ()).expect_err("it is no PTX");
    assert_eq!(e.0, sys::cudaError_enum::CUDA_ERROR_INVALID_PTX);
}

#[test]
fn graphs_are_captured_and_launched_again() {
    let gpu = context(0);
    let (main, side) = (gpu.new_stream().expect("a stream"), gpu.new_stream().expect("a stream"));
    // SAFETY: the streams are ordered by events below.
    unsafe { gpu.disable_event_tracking() };
    let module = gpu.load_module(Ptx::from_src(SMALL)).expect("a module");
    let twice = module.load_function("twice").expect("a kernel");
    let mut x = main.clone_htod(&[1u32; 100]).expect("a copy");
    let mut y = main.clone_htod(&[3u32; 100]).expect("a copy");
    main.synchronize().expect("no fault");
    main.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("a capture");
    assert!(main.synchronize().is_err() || main.capture_status().is_ok());
    let _ = main.end_capture(sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    main.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("a capture");
    let n = 100u32;
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments are those of the kernel.
    unsafe { main.launch_builder(&twice).arg(&mut x).arg(&n).launch(config) }.expect("a launch");
    let forked = main.record_event(None).expect("an event");
    side.wait(&forked).expect("a wait");
    // SAFETY: as above.
    unsafe { side.launch_builder(&twice).arg(&mut y).arg(&n).launch(config) }.expect("a launch");
    let joined = side.record_event(None).expect("an event");
    main.wait(&joined).expect("a wait");
    // SAFETY: as above.
    unsafe { main.launch_builder(&twice).arg(&mut y).arg(&n).launch(config) }.expect("a launch");
    let graph = main
        .end_capture(sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        .expect("a graph")
        .expect("something was captured");
    // Nothing has run yet.
    assert_eq!(main.clone_dtoh(&x).expect("a copy")[0], 1);
    for _ in 0..3 {
        graph.launch().expect("a launch");
    }
    assert_eq!(main.clone_dtoh(&x).expect("a copy"), [8; 100]);
    assert_eq!(main.clone_dtoh(&y).expect("a copy"), [3 * 64; 100]);
}

/// Doubles on one stream and copies on another, with or without a wait between them.
fn across_streams(waits: bool) -> u32 {
    let gpu = context(0);
    let (first, second) = (gpu.new_stream().expect("a stream"), gpu.new_stream().expect("a stream"));
    // SAFETY: whether the streams are ordered is what is tested.
    unsafe { gpu.disable_event_tracking() };
    let module = gpu.load_module(Ptx::from_src(SMALL)).expect("a module");
    let twice = module.load_function("twice").expect("a kernel");
    let mut x = first.clone_htod(&[21u32; 100]).expect("a copy");
    first.synchronize().expect("no fault");
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments are those of the kernel.
    unsafe { first.launch_builder(&twice).arg(&mut x).arg(&100u32).launch(config) }.expect("a launch");
    if waits {
        second.wait(&first.record_event(None).expect("an event")).expect("a wait");
    }
    let mut host = [0u32; 100];
    second.memcpy_dtoh(&x, &mut host).expect("a copy");
    second.synchronize().expect("no fault");
    host[99]
}

#[test]
fn late_streams_show_a_missing_wait() {
    passes("child_ordered", &[("SIMCUDA_STREAMS", "late")]);
    passes("child_ordered", &[]);
    passes("child_unordered_late", &[("SIMCUDA_STREAMS", "late")]);
}

#[test]
#[ignore = "run by late_streams_show_a_missing_wait"]
fn child_ordered() {
    assert_eq!(across_streams(true), 42);
}

#[test]
#[ignore = "run by late_streams_show_a_missing_wait"]
fn child_unordered_late() {
    assert_eq!(across_streams(false), 21);
}

#[test]
fn faults_stay_and_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let text = passes("child_fault", &[("SIMCUDA_REPORT", file.to_str().expect("a path"))]);
    assert!(text.contains("software GPU 0: out of bounds in kernel `past`, PTX line"), "{text}");
    let report = std::fs::read_to_string(&file).expect("a report is written at the end");
    assert!(report.contains("\"kind\": \"out of bounds\", \"kernel\": \"past\""), "{report}");
}

#[test]
#[ignore = "run by faults_stay_and_are_reported"]
fn child_fault() {
    let gpu = context(0);
    let stream = gpu.new_stream().expect("a stream");
    let module = gpu.load_module(Ptx::from_src(SMALL)).expect("a module");
    let past = module.load_function("past").expect("a kernel");
    let x = stream.clone_htod(&[1u32; 100]).expect("a copy");
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the argument is that of the kernel.
    let launched = unsafe { stream.launch_builder(&past).arg(&x).launch(config) };
    let e = launched.and_then(|_| stream.synchronize()).expect_err("the kernel has failed");
    assert_eq!(e.0, sys::cudaError_enum::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(stream.clone_dtoh(&x).is_err(), "the context is of no use after a fault");
    // Another device goes on.
    let other = context(1);
    assert_eq!(
        other.default_stream().clone_htod(&[5u32]).and_then(|x| other.default_stream().clone_dtoh(&x)),
        Ok(vec![5])
    );
}

#[test]
fn a_device_can_be_lost() {
    passes("child_lost", &[("SIMCUDA_LOSE", "0:3")]);
}

#[test]
#[ignore = "run by a_device_can_be_lost"]
fn child_lost() {
    let gpu = context(0);
    let stream = gpu.new_stream().expect("a stream");
    let module = gpu.load_module(Ptx::from_src(SMALL)).expect("a module");
    let twice = module.load_function("twice").expect("a kernel");
    let mut x = stream.clone_htod(&[1u32; 100]).expect("a copy");
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };
    for i in 1..=3 {
        // SAFETY: the arguments are those of the kernel.
        let launched = unsafe { stream.launch_builder(&twice).arg(&mut x).arg(&100u32).launch(config) };
        // The loss may be seen while the launch's event is recorded.
        let ended = launched.and_then(|_| stream.synchronize());
        assert_eq!(ended.is_ok(), i < 3, "launch {i}: {ended:?}");
    }
}

#[test]
fn no_device_is_no_crash() {
    passes("child_none", &[("SIMCUDA_DEVICES", "0")]);
}

#[test]
#[ignore = "run by no_device_is_no_crash"]
fn child_none() {
    simcuda::place::preload();
    let e = CudaContext::new(0).map(|_| ()).expect_err("there is none");
    assert_eq!(e.0, sys::cudaError_enum::CUDA_ERROR_NO_DEVICE);
}
