//! Collectives as programs call them: through NCCL's interface, on streams of cudarc, between threads and between processes.

#[path = "common/nccl.rs"]
mod nccl;

use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut};
use nccl::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use std::mem::MaybeUninit;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const RANKS: usize = 4;

fn ready() {
    for (name, value) in [("SIMCUDA_DEVICES", "4"), ("SIMCUDA_MEMORY", "64M"), ("SIMCUDA_TIMEOUT", "8")] {
        if std::env::var(name).is_err() {
            // SAFETY: every test of this file sets the same values before the library reads them.
            unsafe { std::env::set_var(name, value) };
        }
    }
    simcuda::place::preload();
}

fn id() -> nccl::ncclUniqueId {
    let mut id = MaybeUninit::uninit();
    // SAFETY: room for an id.
    unsafe {
        assert_eq!(nccl::ncclGetUniqueId(id.as_mut_ptr()), ncclResult_t::ncclSuccess);
        id.assume_init()
    }
}

struct Rank {
    comm: ncclComm_t,
    rank: usize,
    stream: Arc<CudaStream>,
}

impl Rank {
    fn join(id: nccl::ncclUniqueId, rank: usize, ranks: usize, device: usize) -> Rank {
        let gpu = CudaContext::new(device).expect("a device");
        let stream = gpu.new_stream().expect("a stream");
        let mut comm = MaybeUninit::uninit();
        // SAFETY: room for a handle, the thread's context is that of the device.
        let comm = unsafe {
            let code = nccl::ncclCommInitRank(comm.as_mut_ptr(), ranks as i32, id, rank as i32);
            assert_eq!(code, ncclResult_t::ncclSuccess);
            comm.assume_init()
        };
        Rank { comm, rank, stream }
    }

    fn all_reduce<T: cudarc::driver::DeviceRepr + Clone + Default>(
        &self,
        values: &[T],
        ty: ncclDataType_t,
        by: ncclRedOp_t,
    ) -> Result<Vec<T>, String> {
        let from = self.stream.clone_htod(values).map_err(|e| e.to_string())?;
        let mut to = self.stream.clone_htod(values).map_err(|e| e.to_string())?;
        let (n, on) = (values.len(), self.stream.cu_stream().cast());
        let (f, _g) = from.device_ptr(&self.stream);
        {
            let (t, _h) = to.device_ptr_mut(&self.stream);
            // SAFETY: both buffers have `n` elements.
            let code = unsafe { nccl::ncclAllReduce(f as *const _, t as *mut _, n, ty, by, self.comm, on) };
            if code != ncclResult_t::ncclSuccess {
                return Err(format!("{code:?}"));
            }
        }
        self.stream.synchronize().map_err(|e| e.to_string())?;
        self.stream.clone_dtoh(&to).map_err(|e| e.to_string())
    }

    fn error(&self) -> ncclResult_t {
        let mut error = ncclResult_t::ncclSuccess;
        // SAFETY: a handle that is alive, room for a result.
        unsafe { nccl::ncclCommGetAsyncError(self.comm, &mut error) };
        error
    }

    fn last(&self) -> String {
        // SAFETY: the text lives on.
        unsafe { std::ffi::CStr::from_ptr(nccl::ncclGetLastError(self.comm)) }.to_string_lossy().into_owned()
    }

    /// Waits for the communicator's error, aborts it, and gives what was said.
    fn fails(&self) -> String {
        let begin = Instant::now();
        while self.error() == ncclResult_t::ncclSuccess {
            assert!(begin.elapsed() < Duration::from_secs(6), "no error comes");
            std::thread::sleep(Duration::from_millis(5));
        }
        let text = self.last();
        self.abort();
        text
    }

    fn abort(&self) {
        // SAFETY: the handle is not used any more.
        unsafe { nccl::ncclCommAbort(self.comm) };
    }

    fn destroy(&self) {
        // SAFETY: the handle is not used any more.
        assert_eq!(unsafe { nccl::ncclCommDestroy(self.comm) }, ncclResult_t::ncclSuccess);
    }
}

/// Runs all ranks as threads.
fn threads<R: Send>(ranks: usize, f: impl Fn(Rank) -> R + Sync) -> Vec<R> {
    ready();
    let id = id();
    std::thread::scope(|s| {
        let f = &f;
        let started: Vec<_> = (0..ranks).map(|r| s.spawn(move || f(Rank::join(id, r, ranks, r)))).collect();
        started.into_iter().map(|t| t.join().expect("a rank does not panic")).collect()
    })
}

#[test]
fn all_reduce_of_types_and_operations() {
    threads(RANKS, |r| {
        let mine = |i: usize| (r.rank + 1) as f32 * (i % 7 + 1) as f32;
        let x: Vec<f32> = (0..100_000).map(mine).collect();
        let sum = r.all_reduce(&x, ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum).expect("it comes about");
        assert!(sum.iter().enumerate().all(|(i, s)| *s == 10.0 * (i % 7 + 1) as f32));
        let avg = r.all_reduce(&[x[1]], ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclAvg).expect("it comes about");
        assert_eq!(avg, [5.0]);
        let max = r.all_reduce(&[r.rank as i64 - 2], ncclDataType_t::ncclInt64, ncclRedOp_t::ncclMax).expect("it does");
        assert_eq!(max, [1]);
        let bf = half::bf16::from_f32(1.5).to_bits();
        let sum = r.all_reduce(&[bf; 3], ncclDataType_t::ncclBfloat16, ncclRedOp_t::ncclSum).expect("it does");
        assert_eq!(sum, [half::bf16::from_f32(6.0).to_bits(); 3]);
        let product = r.all_reduce(&[2f64], ncclDataType_t::ncclFloat64, ncclRedOp_t::ncclProd).expect("it does");
        assert_eq!(product, [16.0]);
        r.destroy();
    });
}

#[test]
fn gathers_scatters_messages_and_splits() {
    threads(RANKS, |r| {
        let me = r.rank as u32;
        let s = &r.stream;
        let on = s.cu_stream().cast();
        let ty = ncclDataType_t::ncclUint32;
        let small = s.clone_htod(&[me * 10, me * 10 + 1]).expect("a copy");
        let mut all = s.alloc_zeros::<u32>(8).expect("room");
        let from = small.device_ptr(s).0;
        let to = all.device_ptr_mut(s).0;
        let ok = |code| assert_eq!(code, ncclResult_t::ncclSuccess);
        // SAFETY: buffers have the sizes that the calls need.
        unsafe {
            ok(nccl::ncclAllGather(from as *const _, to as *mut _, 2, ty, r.comm, on));
            assert_eq!(s.clone_dtoh(&all).expect("a copy"), [0, 1, 10, 11, 20, 21, 30, 31]);
            // Each rank's pair of sums, into the first two elements.
            ok(nccl::ncclReduceScatter(to as *const _, from as *mut _, 2, ty, ncclRedOp_t::ncclSum, r.comm, on));
            assert_eq!(s.clone_dtoh(&small).expect("a copy"), [4 * me * 10, 4 * (me * 10 + 1)]);
            ok(nccl::ncclBroadcast(from as *const _, from as *mut _, 2, ty, 2, r.comm, on));
            assert_eq!(s.clone_dtoh(&small).expect("a copy"), [80, 84]);
            // All to all as messages: rank r sends (r, p) to rank p.
            let out: Vec<u32> = (0..4).map(|p| me * 100 + p).collect();
            let out = s.clone_htod(&out).expect("a copy");
            let at = out.device_ptr(s).0;
            ok(nccl::ncclGroupStart());
            for p in 0..4u64 {
                ok(nccl::ncclSend((at + 4 * p) as *const _, 1, ty, p as i32, r.comm, on));
                ok(nccl::ncclRecv((to + 4 * p) as *mut _, 1, ty, p as i32, r.comm, on));
            }
            ok(nccl::ncclGroupEnd());
            let want: Vec<u32> = (0..4).map(|p| p * 100 + me).collect();
            assert_eq!(s.clone_dtoh(&all).expect("a copy")[..4], want);
            // Columns of a 2 x 2 mesh.
            let mut column = MaybeUninit::uninit();
            ok(nccl::ncclCommSplit(r.comm, (me % 2) as i32, -(me as i32), column.as_mut_ptr(), std::ptr::null_mut()));
            let column = Rank { comm: column.assume_init(), rank: r.rank, stream: s.clone() };
            let (mut n, mut rank) = (0, 0);
            ok(nccl::ncclCommCount(column.comm, &mut n));
            ok(nccl::ncclCommUserRank(column.comm, &mut rank));
            assert_eq!((n, rank), (2, i32::from(me < 2)));
            let sum = column.all_reduce(&[me], ty, ncclRedOp_t::ncclSum).expect("it comes about");
            assert_eq!(sum, [2 + me % 2 * 2]);
            column.destroy();
        }
        r.destroy();
    });
}

#[test]
fn calls_that_do_not_match_are_said_with_both() {
    let said = threads(2, |r| {
        let n = if r.rank == 0 { 100 } else { 60 };
        let x = r.stream.clone_htod(&vec![1f32; n]).expect("a copy");
        let (at, on) = (x.device_ptr(&r.stream).0, r.stream.cu_stream().cast());
        let (ty, by) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
        // SAFETY: the buffer has as many elements.
        unsafe { nccl::ncclAllReduce(at as *const _, at as *mut _, n, ty, by, r.comm, on) };
        r.fails()
    });
    let found =
        said.iter().find(|s| s.contains("all-reduce of 100 f32 by sum") && s.contains("all-reduce of 60 f32 by sum"));
    assert!(found.is_some(), "{said:?}");
}

#[test]
fn ranks_that_all_wait_are_said() {
    let said = threads(2, |r| {
        // Both send first and outside of a group, more than a channel holds.
        let x = r.stream.clone_htod(&vec![1u8; 1 << 20]).expect("a copy");
        let at = x.device_ptr(&r.stream).0;
        let (peer, on) = (1 - r.rank as i32, r.stream.cu_stream().cast());
        // SAFETY: the buffer has as many bytes.
        unsafe {
            nccl::ncclSend(at as *const _, 1 << 20, ncclDataType_t::ncclUint8, peer, r.comm, on);
            nccl::ncclRecv(at as *mut _, 1 << 20, ncclDataType_t::ncclUint8, peer, r.comm, on);
        }
        let text = r.fails();
        // Aborted, the stream goes on and the device is whole.
        r.stream.synchronize().expect("an aborted collective is no fault of the device");
        text
    });
    assert!(said.iter().any(|s| s.contains("nothing has moved") && s.contains("send of 1048576 u8")), "{said:?}");
}

#[test]
fn a_buffer_that_is_too_short_is_said() {
    let said = threads(2, |r| {
        let x = r.stream.clone_htod(&[1f32; 100]).expect("a copy");
        let at = x.device_ptr(&r.stream).0;
        let on = r.stream.cu_stream().cast();
        let (ty, by) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
        // SAFETY: it reads past the end of the buffer, which the software GPU finds before it happens.
        unsafe { nccl::ncclAllReduce(at as *const _, at as *mut _, 101, ty, by, r.comm, on) };
        r.fails()
    });
    assert!(
        said.iter().any(|s| s.contains("404 bytes at byte 0, across the end of an allocation of 400 bytes")),
        "{said:?}"
    );
}

/// Starts a rank of a test of this file as a process.
fn process(test: &str, id: &str, rank: usize, ranks: usize) -> Child {
    let exe = std::env::current_exe().expect("a process knows its binary");
    Command::new(exe)
        .args(["--exact", test, "--nocapture", "--ignored"])
        .env("RANK", rank.to_string())
        .env("RANKS", ranks.to_string())
        .env("ID", id)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process can be started")
}

fn hex(id: &nccl::ncclUniqueId) -> String {
    id.internal.iter().map(|b| format!("{:02x}", *b as u8)).collect()
}

/// The rank of this process, or nothing where it was not started as one.
fn own_rank() -> Rank {
    ready();
    let number = |name: &str| std::env::var(name).expect("it is set").parse::<usize>().expect("a number");
    let text = std::env::var("ID").expect("it is set");
    let mut id = id();
    for (i, b) in id.internal.iter_mut().enumerate() {
        *b = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex") as _;
    }
    Rank::join(id, number("RANK"), number("RANKS"), number("RANK"))
}

fn started(test: &str) -> Vec<(bool, String)> {
    ready();
    let id = hex(&id());
    let children: Vec<Child> = (0..2).map(|r| process(test, &id, r, 2)).collect();
    let end = |c: Child| {
        let o = c.wait_with_output().expect("it ends");
        (o.status.success(), String::from_utf8_lossy(&o.stdout).into_owned() + &String::from_utf8_lossy(&o.stderr))
    };
    children.into_iter().map(end).collect()
}

#[test]
fn ranks_can_be_processes() {
    for (good, text) in started("child_process") {
        assert!(good && text.contains("1 passed"), "{text}");
    }
}

#[test]
#[ignore = "run by ranks_can_be_processes"]
fn child_process() {
    let r = own_rank();
    for i in 0..20 {
        let x = vec![(r.rank + i) as f32; 200_000];
        let sum = r.all_reduce(&x, ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum).expect("it comes about");
        assert!(sum.iter().all(|s| *s == (2 * i + 1) as f32));
    }
    r.destroy();
}

#[test]
fn a_process_that_dies_is_an_error_of_the_others() {
    let ended = started("child_dies");
    assert!(!ended[1].0);
    assert!(ended[0].0, "{}", ended[0].1);
}

#[test]
#[ignore = "run by a_process_that_dies_is_an_error_of_the_others"]
fn child_dies() {
    let r = own_rank();
    r.all_reduce(&[1f32], ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum).expect("both are there");
    if r.rank == 1 {
        std::process::abort();
    }
    let begin = Instant::now();
    assert!(r.all_reduce(&[1f32], ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum).is_err());
    assert!(begin.elapsed() < Duration::from_secs(7));
    assert!(r.last().contains("its process is gone"), "{}", r.last());
    r.abort();
}

#[test]
fn one_thread_can_drive_all_ranks_and_collectives_can_be_captured() {
    one_thread();
    let exe = std::env::current_exe().expect("a process knows its binary");
    let late = Command::new(exe)
        .args(["--exact", "child_late", "--nocapture", "--ignored"])
        .env("SIMCUDA_STREAMS", "late")
        .output()
        .expect("a process can be started");
    assert!(late.status.success(), "{}", String::from_utf8_lossy(&late.stderr));
}

#[test]
#[ignore = "run by one_thread_can_drive_all_ranks_and_collectives_can_be_captured"]
fn child_late() {
    one_thread();
}

fn one_thread() {
    use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
    ready();
    let n = 3usize;
    let gpus: Vec<Arc<CudaContext>> = (0..n).map(|d| CudaContext::new(d).expect("a device")).collect();
    let streams: Vec<Arc<CudaStream>> = gpus.iter().map(|g| g.new_stream().expect("a stream")).collect();
    let mut comms: Vec<ncclComm_t> = vec![std::ptr::null_mut(); n];
    let ok = |code| assert_eq!(code, ncclResult_t::ncclSuccess);
    // SAFETY: room for as many handles.
    ok(unsafe { nccl::ncclCommInitAll(comms.as_mut_ptr(), n as i32, std::ptr::null()) });
    let mut x = Vec::new();
    for s in &streams {
        // SAFETY: the streams of this test are ordered by hand.
        unsafe { s.context().disable_event_tracking() };
        x.push(s.clone_htod(&[1f32, 2.0]).expect("a copy"));
        s.synchronize().expect("no fault");
    }
    let reduce = || {
        // SAFETY: buffers of two elements.
        unsafe {
            ok(nccl::ncclGroupStart());
            for r in 0..n {
                let (at, _keep) = x[r].device_ptr(&streams[r]);
                let on = streams[r].cu_stream().cast();
                let (ty, by) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
                ok(nccl::ncclAllReduce(at as *const _, at as *mut _, 2, ty, by, comms[r], on));
            }
            ok(nccl::ncclGroupEnd());
        }
    };
    reduce();
    for r in 0..n {
        assert_eq!(streams[r].clone_dtoh(&x[r]).expect("a copy"), [3.0, 6.0]);
    }
    for s in &streams {
        s.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("a capture");
    }
    reduce();
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graphs: Vec<_> =
        streams.iter().map(|s| s.end_capture(flags).expect("a graph").expect("something was captured")).collect();
    for _ in 0..2 {
        graphs.iter().for_each(|g| g.launch().expect("a launch"));
    }
    for r in 0..n {
        assert_eq!(streams[r].clone_dtoh(&x[r]).expect("a copy"), [27.0, 54.0]);
    }
}
