//! Streams, their capture into graphs, and the launch of graphs.

use super::{STREAMS, give, put, stream};
use crate::driver::codes::{INVALID_VALUE, NOT_READY};
use crate::driver::device::{Device, current};
use crate::driver::graph::{self, Graph};
use crate::driver::stream::Stream;
use crate::driver::table::Table;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;

static GRAPHS: Table<Graph> = Table::new();
static EXECUTABLES: Table<Graph> = Table::new();

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: c_uint = 1;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(handle: *mut usize, flags: c_uint) -> u32 {
    give(current().and_then(|device| {
        let stream = Stream::new(device, flags & NON_BLOCKING == 0);
        device.add_stream(&stream);
        unsafe { put(handle, STREAMS.insert(stream)) }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(handle: *mut usize, flags: c_uint, _priority: c_int) -> u32 {
    unsafe { cuStreamCreate(handle, flags) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(handle: usize) -> u32 {
    give(STREAMS.remove(handle).map(|s| s.close()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(handle: usize) -> u32 {
    give(graph::forbid().and_then(|_| stream(handle)).and_then(|s| s.synchronise()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(handle: usize) -> u32 {
    give(stream(handle).and_then(|s| if s.idle() { s.device.check() } else { Err(NOT_READY) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetPriority(handle: usize, priority: *mut c_int) -> u32 {
    give(stream(handle).and_then(|_| unsafe { put(priority, 0) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetFlags(handle: usize, flags: *mut c_uint) -> u32 {
    give(stream(handle).and_then(|s| unsafe { put(flags, u32::from(!s.blocking)) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamAttachMemAsync(handle: usize, _at: u64, _bytes: usize, _flags: c_uint) -> u32 {
    give(stream(handle).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc(handle: usize, function: Option<extern "C" fn(*mut c_void)>, data: usize) -> u32 {
    give(stream(handle).and_then(|s| {
        let function = function.ok_or(INVALID_VALUE)?;
        s.push(Arc::new(move |_: &'static Device| {
            function(data as *mut c_void);
            Ok(())
        }))
    }))
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const RELAXED: u32 = 2;

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(handle: usize, mode: u32) -> u32 {
    give(stream(handle).and_then(|s| graph::begin(&s, mode == RELAXED)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(handle: usize, graph: *mut usize) -> u32 {
    let ended = stream(handle).and_then(|s| graph::end(&s));
    give(ended.and_then(|g| unsafe { put(graph, GRAPHS.insert(Arc::new(g))) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(handle: usize, status: *mut u32) -> u32 {
    give(stream(handle).and_then(|s| unsafe { put(status, u32::from(s.capturing())) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, _flags: c_ulonglong) -> u32 {
    give(GRAPHS.get(graph).and_then(|g| unsafe { put(exec, EXECUTABLES.insert(g)) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiate_v2(
    exec: *mut usize,
    graph: usize,
    _node: *mut c_void,
    _log: *mut c_char,
    _room: usize,
) -> u32 {
    unsafe { cuGraphInstantiateWithFlags(exec, graph, 0) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(exec: usize, handle: usize) -> u32 {
    give(EXECUTABLES.get(exec).and_then(|_| stream(handle)).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(exec: usize, handle: usize) -> u32 {
    give(EXECUTABLES.get(exec).and_then(|g| graph::launch(&g, &stream(handle)?)))
}

/// The number of nodes; their handles are not given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) -> u32 {
    give(GRAPHS.get(graph).and_then(|g| {
        if !nodes.is_null() {
            return Err(crate::driver::codes::NOT_SUPPORTED);
        }
        unsafe { put(count, g.order.len()) }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: usize) -> u32 {
    give(GRAPHS.remove(graph).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(exec: usize) -> u32 {
    give(EXECUTABLES.remove(exec).map(|_| ()))
}
