//! The exported functions of `libnccl.so.2`, as nccl.h declares them (2.26).

// What callers must keep to is what the headers of CUDA and NCCL say of each function.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

use super::comm::{Code, Comm, INVALID_ARGUMENT, INVALID_USAGE};
use super::exchange::{Call, What};
use super::group::{self, Deferred};
use super::reduce::{OPERATIONS, TYPES};
use crate::config::Config;
use crate::driver::abi::{put, stream};
use crate::driver::device::{current_any, device, initialise};
use crate::driver::table::Table;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

static COMMS: Table<Comm> = Table::new();
/// What was said last, kept alive for the pointers that were given out.
static LAST: Mutex<Option<CString>> = Mutex::new(None);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

const CUDA: Code = 1;

fn said((code, message): (Code, String)) -> Code {
    if !Config::get().quiet {
        eprintln!("software NCCL: {message}");
    }
    // The old text is left alive: a caller may still read it.
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    if let Some(old) = LAST.lock().expect("no panic holds it").replace(text) {
        std::mem::forget(old);
    }
    code
}

fn give(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(0)
}

unsafe fn out<T>(at: *mut T, value: T) -> Result<(), Code> {
    unsafe { put(at, value) }.map_err(|_| INVALID_ARGUMENT)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Code {
    give(unsafe { out(version, 22602) })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    let text = match code {
        0 => "no error\0",
        1 => "unhandled cuda error\0",
        2 => "unhandled system error\0",
        3 => "internal error\0",
        4 => "invalid argument\0",
        5 => "invalid usage\0",
        6 => "remote process exited or there was a network error\0",
        7 => "NCCL operation in progress\0",
        _ => "unknown result code\0",
    };
    text.as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(handle: usize) -> *const c_char {
    if let Ok(comm) = COMMS.get(handle)
        && !comm.said().is_empty()
    {
        let text = CString::new(comm.said()).unwrap_or_default();
        if let Some(old) = LAST.lock().expect("no panic holds it").replace(text) {
            std::mem::forget(old);
        }
    }
    LAST.lock().expect("no panic holds it").as_ref().map_or(c"".as_ptr(), |t| t.as_ptr())
}

/// An id that no other has: process, time, count.
fn fresh() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_nanos());
    format!("{:x}-{time:x}-{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Code {
    let mut bytes = [0u8; 128];
    let text = fresh();
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    give(unsafe { out(id, UniqueId(bytes)) })
}

fn join(id: &str, rank: usize, ranks: usize) -> Result<usize, Code> {
    initialise().map_err(|_| CUDA)?;
    let device = current_any().map_err(|_| CUDA)?;
    device.check().map_err(|_| CUDA)?;
    let comm = Comm::join(id, rank, ranks, device).map_err(said)?;
    let handle = COMMS.insert(comm.clone());
    if let Some(Deferred::Join(comm)) = group::defer(Deferred::Join(comm)) {
        comm.all_joined().map_err(said)?;
    }
    Ok(handle)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(handle: *mut usize, ranks: c_int, id: UniqueId, rank: c_int) -> Code {
    let end = id.0.iter().position(|b| *b == 0).unwrap_or(128);
    let Ok(id) = std::str::from_utf8(&id.0[..end]) else { return INVALID_ARGUMENT };
    let odd = id.is_empty() || !id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let (Ok(ranks), Ok(rank), false) = (usize::try_from(ranks), usize::try_from(rank), odd) else {
        return said((INVALID_ARGUMENT, "the unique id was not made by this library, or a rank is negative".into()));
    };
    give(join(id, rank, ranks).and_then(|h| unsafe { out(handle, h) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    handle: *mut usize,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    _config: *mut c_void,
) -> Code {
    unsafe { ncclCommInitRank(handle, ranks, id, rank) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitAll(handles: *mut usize, count: c_int, devices: *const c_int) -> Code {
    let id = fresh();
    if handles.is_null() || count <= 0 {
        return INVALID_ARGUMENT;
    }
    for rank in 0..count as usize {
        // SAFETY: the caller gives `count` devices, or none, and room for as many handles.
        let ordinal = unsafe { if devices.is_null() { rank as c_int } else { *devices.add(rank) } };
        let Ok(device) = initialise().and_then(|_| device(ordinal)) else { return INVALID_ARGUMENT };
        match Comm::join(&id, rank, count as usize, device) {
            // SAFETY: as above.
            Ok(comm) => unsafe { handles.add(rank).write(COMMS.insert(comm)) },
            Err(e) => return said(e),
        }
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    handle: usize,
    color: c_int,
    key: c_int,
    new: *mut usize,
    _config: *mut c_void,
) -> Code {
    let Ok(comm) = COMMS.get(handle) else { return INVALID_ARGUMENT };
    if new.is_null() {
        return INVALID_ARGUMENT;
    }
    let number = match comm.begin_split(color, key) {
        Ok(number) => number,
        Err(e) => return said(e),
    };
    let put_off = Deferred::Split(comm, number, new as usize);
    group::defer(put_off).map_or(0, |d| give(finish(vec![d])))
}

/// What a group has put off: communicators first, then what is to be exchanged.
fn finish(list: Vec<Deferred>) -> Result<(), Code> {
    let (mut calls, mut joins) = (Vec::new(), Vec::new());
    for item in list {
        match item {
            Deferred::Call(call, stream) => calls.push((call, stream)),
            Deferred::Join(comm) => joins.push(comm),
            Deferred::Split(comm, number, new) => {
                let made = match comm.end_split(number).map_err(said)? {
                    Some(part) => {
                        let comm = Comm::join(&part.id, part.rank, part.ranks, comm.device).map_err(said)?;
                        joins.push(comm.clone());
                        COMMS.insert(comm)
                    }
                    None => 0,
                };
                // SAFETY: the place that the caller of `ncclCommSplit` gave, which NCCL too fills at the group's end.
                unsafe { (new as *mut usize).write(made) };
            }
        }
    }
    for comm in joins {
        comm.all_joined().map_err(said)?;
    }
    group::post(calls)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> Code {
    group::start();
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> Code {
    give(group::end().and_then(finish))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(handle: usize) -> Code {
    give(COMMS.get(handle).map_err(|_| INVALID_ARGUMENT).map(|c| c.flush()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(handle: usize) -> Code {
    give(COMMS.remove(handle).map_err(|_| INVALID_ARGUMENT).map(|c| {
        c.flush();
        c.leave();
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(handle: usize) -> Code {
    give(COMMS.remove(handle).map_err(|_| INVALID_ARGUMENT).map(|c| c.abort()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(handle: usize, error: *mut Code) -> Code {
    give(COMMS.get(handle).map_err(|_| INVALID_ARGUMENT).and_then(|c| unsafe { out(error, c.error()) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(handle: usize, count: *mut c_int) -> Code {
    give(COMMS.get(handle).map_err(|_| INVALID_ARGUMENT).and_then(|c| unsafe { out(count, c.ranks as c_int) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(handle: usize, rank: *mut c_int) -> Code {
    give(COMMS.get(handle).map_err(|_| INVALID_ARGUMENT).and_then(|c| unsafe { out(rank, c.rank as c_int) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCuDevice(handle: usize, ordinal: *mut c_int) -> Code {
    let comm = COMMS.get(handle).map_err(|_| INVALID_ARGUMENT);
    give(comm.and_then(|c| unsafe { out(ordinal, c.device.index as c_int) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRegister(_handle: usize, _at: *mut c_void, _bytes: usize, token: *mut usize) -> Code {
    give(unsafe { out(token, 1) })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDeregister(_handle: usize, _token: usize) -> Code {
    0
}

/// Puts a call into a stream, or into the group of the thread.
#[allow(clippy::too_many_arguments)]
fn call(
    what: What,
    send: u64,
    receive: u64,
    count: usize,
    ty: u32,
    operation: u32,
    root: c_int,
    handle: usize,
    on: usize,
) -> Code {
    let Ok(comm) = COMMS.get(handle) else {
        return said((INVALID_ARGUMENT, format!("{}: there is no such communicator", what.name())));
    };
    if comm.error() != 0 || comm.aborted() {
        return said((comm.error().max(INVALID_USAGE), format!("{}: the communicator has failed", what.name())));
    }
    let root_ok = usize::try_from(root).is_ok_and(|r| r < comm.ranks);
    if ty as usize >= TYPES.len() || operation as usize >= OPERATIONS.len() || !root_ok {
        let text = format!("{}: type {ty}, operation {operation}, rank {root} of {}", what.name(), comm.ranks);
        return said((INVALID_ARGUMENT, text));
    }
    let on = if on <= 2 { Ok(comm.device.legacy().clone()) } else { stream(on) };
    let Ok(stream) = on else { return CUDA };
    if stream.device.index != comm.device.index {
        return said((INVALID_USAGE, format!("{}: the stream is of another device than the rank", what.name())));
    }
    let call = Call { comm, what, send, receive, count, ty, operation, root: root as usize };
    group::defer(Deferred::Call(call, stream)).map_or(0, |d| give(finish(vec![d])))
}

macro_rules! collective {
    ($name:ident, $what:expr, ($($arg:ident: $t:ty),*), $operation:expr, $root:expr) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(
            send: u64, receive: u64, count: usize, ty: u32, $($arg: $t,)* comm: usize, on: usize,
        ) -> Code {
            call($what, send, receive, count, ty, $operation, $root, comm, on)
        }
    };
}

collective!(ncclAllReduce, What::AllReduce, (op: u32), op, 0);
collective!(ncclAllGather, What::AllGather, (), 0, 0);
collective!(ncclReduceScatter, What::ReduceScatter, (op: u32), op, 0);
collective!(ncclBroadcast, What::Broadcast, (root: c_int), 0, root);
collective!(ncclReduce, What::Reduce, (op: u32, root: c_int), op, root);
collective!(ncclAlltoAll, What::AllToAll, (), 0, 0);
collective!(ncclGather, What::Gather, (root: c_int), 0, root);
collective!(ncclScatter, What::Scatter, (root: c_int), 0, root);

#[unsafe(no_mangle)]
pub extern "C" fn ncclBcast(at: u64, count: usize, ty: u32, root: c_int, comm: usize, on: usize) -> Code {
    call(What::Broadcast, at, at, count, ty, 0, root, comm, on)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(at: u64, count: usize, ty: u32, peer: c_int, comm: usize, on: usize) -> Code {
    call(What::Send, at, 0, count, ty, 0, peer, comm, on)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(at: u64, count: usize, ty: u32, peer: c_int, comm: usize, on: usize) -> Code {
    call(What::Receive, 0, at, count, ty, 0, peer, comm, on)
}
