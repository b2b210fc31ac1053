//! Events.

use super::{give, put, stream};
use crate::driver::codes::{INVALID_HANDLE, NOT_READY};
use crate::driver::device::current;
use crate::driver::graph;
use crate::driver::stream::Event;
use crate::driver::table::Table;
use std::ffi::c_uint;
use std::sync::Arc;

static EVENTS: Table<Event> = Table::new();

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(handle: *mut usize, _flags: c_uint) -> u32 {
    give(current().and_then(|_| unsafe { put(handle, EVENTS.insert(Arc::new(Event::default()))) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(handle: usize) -> u32 {
    give(EVENTS.remove(handle).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(handle: usize, on: usize) -> u32 {
    give(EVENTS.get(handle).and_then(|e| {
        graph::record(&e, &stream(on)?);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(handle: usize, on: usize, _flags: c_uint) -> u32 {
    cuEventRecord(handle, on)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(on: usize, handle: usize, _flags: c_uint) -> u32 {
    give(EVENTS.get(handle).and_then(|e| graph::wait(&stream(on)?, &e)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(handle: usize) -> u32 {
    give(EVENTS.get(handle).and_then(|e| match graph::mark_of(&e)? {
        Some(mark) => {
            // Who asks wants it to come: the stream may run up to here.
            mark.demand();
            if mark.done().is_some() { Ok(()) } else { Err(NOT_READY) }
        }
        None => Ok(()),
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(handle: usize) -> u32 {
    give(graph::forbid().and_then(|_| EVENTS.get(handle)).and_then(|e| {
        if let Some(mark) = graph::mark_of(&e)? {
            mark.wait();
        }
        current().map(|_| ())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, begin: usize, end: usize) -> u32 {
    give(EVENTS.get(begin).and_then(|b| {
        let e = EVENTS.get(end)?;
        let (Some(b), Some(e)) = (graph::mark_of(&b)?, graph::mark_of(&e)?) else { return Err(INVALID_HANDLE) };
        let (Some(b), Some(e)) = (b.done(), e.done()) else { return Err(NOT_READY) };
        let time = e.saturating_duration_since(b).as_secs_f64() - b.saturating_duration_since(e).as_secs_f64();
        unsafe { put(milliseconds, (time * 1e3) as f32) }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, begin: usize, end: usize) -> u32 {
    unsafe { cuEventElapsedTime(milliseconds, begin, end) }
}
