//! Collectives of NVIDIA's library (NCCL), on streams.

use super::context::Stream;
use super::load::{Absent, Wanted, functions};
use crate::runtime::RuntimeError;
use crate::types::{DType, ReduceKind};
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

type Handle = *mut c_void;

/// What ranks that form a communicator have in common.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Id([u8; 128]);

functions! {
    /// As nccl.h declares them.
    Nccl {
        version = "ncclGetVersion" (*mut c_int);
        id = "ncclGetUniqueId" (*mut Id);
        join = "ncclCommInitRank" (*mut Handle, c_int, Id, c_int);
        abort = "ncclCommAbort" (Handle);
        destroy = "ncclCommDestroy" (Handle);
        async_error = "ncclCommGetAsyncError" (Handle, *mut u32);
        all_reduce = "ncclAllReduce" (u64, u64, usize, u32, u32, Handle, Handle);
        all_gather = "ncclAllGather" (u64, u64, usize, u32, Handle, Handle);
        reduce_scatter = "ncclReduceScatter" (u64, u64, usize, u32, u32, Handle, Handle);
        send = "ncclSend" (u64, usize, u32, c_int, Handle, Handle);
        receive = "ncclRecv" (u64, usize, u32, c_int, Handle, Handle);
        group_start = "ncclGroupStart" ();
        group_end = "ncclGroupEnd" ();
    }
}

const WANTED: Wanted = Wanted {
    what: "NVIDIA's library of collectives (NCCL)",
    variable: "PARTITA_NCCL",
    names: &["libnccl.so.2", "libnccl.so"],
    packages: &["nvidia/nccl/lib"],
};

fn nccl() -> Result<&'static Nccl, &'static Absent> {
    static NCCL: OnceLock<Result<Nccl, Absent>> = OnceLock::new();
    NCCL.get_or_init(|| Nccl::open(&WANTED)).as_ref()
}

/// Its version and place, or what is missing.
pub fn told() -> String {
    match nccl() {
        Ok(n) => {
            let mut version = 0;
            // SAFETY: a number to write to.
            unsafe { (n.version)(&mut version) };
            format!("{}.{}.{} ({})", version / 10000, version / 100 % 100, version % 100, n.path)
        }
        Err(absent) => absent.error().message,
    }
}

fn text(code: u32) -> &'static str {
    match code {
        1 => "unhandled CUDA error",
        2 => "system error",
        3 => "internal error",
        4 => "invalid argument",
        5 => "invalid usage",
        6 => "a remote process has ended, or the network failed",
        _ => "unknown error",
    }
}

fn check(code: u32, doing: &str) -> Result<(), RuntimeError> {
    match code {
        0 => Ok(()),
        _ => Err(RuntimeError::new("E0818", format!("NCCL failed at {doing}: {} ({code})", text(code)))
            .help("NCCL_DEBUG=INFO has it tell more")),
    }
}

impl Id {
    pub fn new() -> Result<Id, RuntimeError> {
        let n = nccl().map_err(|a| a.error())?;
        let mut id = Id([0; 128]);
        // SAFETY: a place to write to.
        check(unsafe { (n.id)(&mut id) }, "making a communicator")?;
        Ok(id)
    }
}

/// A type as NCCL numbers them.
fn number(dtype: DType) -> u32 {
    match dtype {
        DType::Bool => 1,
        DType::I32 => 2,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
    }
}

/// A reduction as NCCL numbers them. Conditions are 0 or 1.
fn operation(kind: ReduceKind) -> Option<u32> {
    match kind {
        ReduceKind::Sum => Some(0),
        ReduceKind::Prod => Some(1),
        ReduceKind::Max | ReduceKind::Any => Some(2),
        ReduceKind::Min | ReduceKind::All => Some(3),
        ReduceKind::ArgMax | ReduceKind::ArgMin => None,
    }
}

/// One rank's end of a communicator.
pub struct Comm {
    n: &'static Nccl,
    handle: Handle,
}

// SAFETY: a communicator is used by one thread at a time.
unsafe impl Send for Comm {}

impl Comm {
    /// Joins others; returns when all have. The device is the thread's current one.
    pub fn join(id: Id, ranks: usize, rank: usize) -> Result<Comm, RuntimeError> {
        let n = nccl().map_err(|a| a.error())?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a place to write to.
        let code = unsafe { (n.join)(&mut handle, ranks as c_int, id, rank as c_int) };
        check(code, &format!("joining a communicator of {ranks} ranks"))?;
        Ok(Comm { n, handle })
    }

    /// Reduces `count` elements of all ranks. NaN in maxima: as the library has it.
    pub fn all_reduce(
        &self,
        (from, to): (u64, u64),
        count: usize,
        dtype: DType,
        kind: ReduceKind,
        stream: &Stream,
    ) -> Result<(), RuntimeError> {
        let op = operation(kind).ok_or_else(|| RuntimeError::internal("a reduction that NCCL lacks"))?;
        // SAFETY: addresses of devices; the host does not read through them.
        let code = unsafe { (self.n.all_reduce)(from, to, count, number(dtype), op, self.handle, stream.handle()) };
        check(code, "all_reduce")
    }

    /// `count` elements of each rank, one after the other.
    pub fn all_gather(
        &self,
        (from, to): (u64, u64),
        count: usize,
        dtype: DType,
        stream: &Stream,
    ) -> Result<(), RuntimeError> {
        // SAFETY: as above.
        let code = unsafe { (self.n.all_gather)(from, to, count, number(dtype), self.handle, stream.handle()) };
        check(code, "all_gather")
    }

    /// Of `count` elements for each rank the reduced ones of this one.
    pub fn reduce_scatter(
        &self,
        (from, to): (u64, u64),
        count: usize,
        dtype: DType,
        kind: ReduceKind,
        stream: &Stream,
    ) -> Result<(), RuntimeError> {
        let op = operation(kind).ok_or_else(|| RuntimeError::internal("a reduction that NCCL lacks"))?;
        // SAFETY: as above.
        let code = unsafe { (self.n.reduce_scatter)(from, to, count, number(dtype), op, self.handle, stream.handle()) };
        check(code, "reduce_scatter")
    }

    /// Bytes to another rank of the communicator.
    pub fn send(&self, from: u64, bytes: usize, to: usize, stream: &Stream) -> Result<(), RuntimeError> {
        // SAFETY: as above.
        let code = unsafe { (self.n.send)(from, bytes, 1, to as c_int, self.handle, stream.handle()) };
        check(code, "send")
    }

    /// Bytes of another rank of the communicator.
    pub fn receive(&self, to: u64, bytes: usize, from: usize, stream: &Stream) -> Result<(), RuntimeError> {
        // SAFETY: as above.
        let code = unsafe { (self.n.receive)(to, bytes, 1, from as c_int, self.handle, stream.handle()) };
        check(code, "receive")
    }

    /// Does all that `calls` does at once, as sends and receives must be that wait for each other.
    pub fn together(&self, calls: impl FnOnce() -> Result<(), RuntimeError>) -> Result<(), RuntimeError> {
        // SAFETY: no arguments.
        check(unsafe { (self.n.group_start)() }, "beginning a group")?;
        let done = calls();
        // SAFETY: as above.
        let ended = check(unsafe { (self.n.group_end)() }, "ending a group");
        done.and(ended)
    }

    /// What has gone wrong meanwhile.
    pub fn trouble(&self) -> Result<(), RuntimeError> {
        const IN_PROGRESS: u32 = 7;
        let mut code = 0;
        // SAFETY: a place to write to.
        let asked = unsafe { (self.n.async_error)(self.handle, &mut code) };
        check(asked, "asking for errors")?;
        if code == IN_PROGRESS { Ok(()) } else { check(code, "an exchange") }
    }

    /// Ends it without waiting for others, whose calls fail then. It cannot be used any more.
    pub fn abort(&mut self) {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if !handle.is_null() {
            // SAFETY: it was joined once, and is not used any more.
            unsafe { (self.n.abort)(handle) };
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: it was joined once.
            unsafe { (self.n.destroy)(self.handle) };
        }
    }
}
