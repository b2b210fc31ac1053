//! Memory: allocations, copies, fills.

use super::{context, give, put, stream};
use crate::check::fault::{Fault, Kind};
use crate::driver::codes::{Code, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::driver::device::{Device, current, of_address};
use crate::driver::stream::Stream;
use crate::driver::{graph, pinned};
use crate::report;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

fn allocate(bytes: usize) -> Result<u64, Code> {
    let device = current()?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    device.memory.allocate(bytes).ok_or(OUT_OF_MEMORY)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(at: *mut u64, bytes: usize) -> u32 {
    give(graph::forbid().and_then(|_| allocate(bytes)).and_then(|a| unsafe { put(at, a) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocManaged(at: *mut u64, bytes: usize, _flags: c_uint) -> u32 {
    give(allocate(bytes).and_then(|a| {
        // The host may write it without a call.
        current()?.memory.fill(a, &[0], bytes).map_err(Kind::code)?;
        unsafe { put(at, a) }
    }))
}

fn free(at: u64) -> Result<(), Code> {
    if at == 0 {
        return Ok(());
    }
    let device = of_address(at).ok_or(INVALID_VALUE)?;
    if device.memory.free(at) { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Waits for the device, as drivers do.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(at: u64) -> u32 {
    give(graph::forbid().and_then(|_| current()).and_then(|d| d.synchronise()).and_then(|_| free(at)))
}

/// The address is given at once; that the memory is free from its place in the stream on is left to the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(at: *mut u64, bytes: usize, handle: usize) -> u32 {
    give(stream(handle).and_then(|s| {
        if s.capturing() {
            return Err(NOT_SUPPORTED);
        }
        let found = if bytes == 0 { Err(INVALID_VALUE) } else { s.device.memory.allocate(bytes).ok_or(OUT_OF_MEMORY) };
        // What waits to be freed is freed first.
        let found = match found {
            Err(OUT_OF_MEMORY) => {
                s.device.synchronise()?;
                s.device.memory.allocate(bytes).ok_or(OUT_OF_MEMORY)
            }
            found => found,
        };
        unsafe { put(at, found?) }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(at: *mut u64, bytes: usize, _pool: usize, handle: usize) -> u32 {
    unsafe { cuMemAllocAsync(at, bytes, handle) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(at: u64, handle: usize) -> u32 {
    give(stream(handle).and_then(|s| {
        if of_address(at).and_then(|d| d.memory.allocation(at)).is_none_or(|(begin, _)| begin != at) {
            return Err(INVALID_VALUE);
        }
        s.push(Arc::new(move |_: &'static Device| free(at).map_err(|_| invalid("memory is freed twice"))))
    }))
}

fn invalid(message: &str) -> Fault {
    Fault { kind: Kind::Invalid, place: None, message: message.into() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    give(current().and_then(|d| unsafe { put(free, d.memory.free_bytes()).and(put(total, d.memory.size())) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(begin: *mut u64, bytes: *mut usize, at: u64) -> u32 {
    give(of_address(at).and_then(|d| d.memory.allocation(at)).ok_or(NOT_FOUND).and_then(|(b, n)| {
        let first = if begin.is_null() { Ok(()) } else { unsafe { put(begin, b) } };
        first.and(if bytes.is_null() { Ok(()) } else { unsafe { put(bytes, n) } })
    }))
}

use crate::driver::codes::NOT_FOUND;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(at: *mut usize, bytes: usize, _flags: c_uint) -> u32 {
    give(current().and_then(|_| pinned::allocate(bytes).ok_or(OUT_OF_MEMORY)).and_then(|a| unsafe { put(at, a) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(at: *mut usize, bytes: usize) -> u32 {
    unsafe { cuMemHostAlloc(at, bytes, 0) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(at: usize) -> u32 {
    give(current().and_then(|d| {
        d.synchronise()?;
        if pinned::free(at) { Ok(()) } else { Err(INVALID_VALUE) }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(at: usize, bytes: usize, _flags: c_uint) -> u32 {
    pinned::register(at, bytes);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(at: usize) -> u32 {
    give(if pinned::unregister(at) { Ok(()) } else { Err(INVALID_VALUE) })
}

/// A place that a copy reads or writes.
#[derive(Clone, Copy)]
enum Place {
    Device(u64),
    Host(usize),
}

fn place(at: usize) -> Place {
    if of_address(at as u64).is_some() { Place::Device(at as u64) } else { Place::Host(at) }
}

fn refusal(at: u64, bytes: usize, kind: Kind) -> Fault {
    let what = of_address(at).map_or(String::from("an address of no device"), |d| d.memory.describe(at, bytes));
    Fault { kind, place: None, message: format!("a copy of {what}") }
}

/// Copies now. Host ranges are the caller's, and alive: that is the contract of the driver's copies.
fn copy(to: Place, from: Place, bytes: usize) -> Result<(), Fault> {
    let on = |at: u64| of_address(at).ok_or_else(|| refusal(at, bytes, Kind::OutOfBounds));
    match (to, from) {
        (Place::Device(to), Place::Device(from)) => {
            let (target, source) = (on(to)?, on(from)?);
            target.memory.copy_from(to, &source.memory, from, bytes).map_err(|k| {
                let at = if source.memory.check(from, bytes).is_err() { from } else { to };
                refusal(at, bytes, k)
            })
        }
        (Place::Device(to), Place::Host(from)) => {
            // SAFETY: see above.
            let slice = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
            on(to)?.memory.copy_in(to, slice).map_err(|k| refusal(to, bytes, k))
        }
        (Place::Host(to), Place::Device(from)) => {
            let device = on(from)?;
            // SAFETY: see above.
            let slice = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, bytes) };
            device.memory.copy_out(from, slice).map_err(|k| refusal(from, bytes, k))?;
            if device.memory.find_uninitialised && !device.memory.written(from, bytes) {
                report::note(format!(
                    "a copy to the host of {} was not all written",
                    device.memory.describe(from, bytes)
                ));
            }
            Ok(())
        }
        (Place::Host(to), Place::Host(from)) => {
            // SAFETY: see above.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            Ok(())
        }
    }
}

fn copy_range(at: Place, bytes: usize) -> Result<(), Code> {
    match at {
        Place::Device(a) => match of_address(a).map(|d| d.memory.check(a, bytes)) {
            Some(Ok(())) => Ok(()),
            _ => Err(INVALID_VALUE),
        },
        Place::Host(a) => {
            if a == 0 {
                Err(INVALID_VALUE)
            } else {
                Ok(())
            }
        }
    }
}

/// A copy in a stream. Host memory that is not pinned is read before the call returns, and written before it returns.
fn copy_async(to: Place, from: Place, bytes: usize, s: &Arc<Stream>) -> Result<(), Code> {
    if bytes == 0 {
        return Ok(());
    }
    copy_range(to, bytes)?;
    copy_range(from, bytes)?;
    let capturing = s.capturing();
    match (to, from) {
        (Place::Device(_), Place::Host(at)) if !pinned::contains(at, bytes) && !capturing => {
            // SAFETY: the caller's range, alive during this call.
            let staged = unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }.to_vec();
            s.push(Arc::new(move |_: &'static Device| copy(to, Place::Host(staged.as_ptr() as usize), bytes)))
        }
        (Place::Host(at), Place::Device(_)) if !pinned::contains(at, bytes) && !capturing => {
            s.push(Arc::new(move |_: &'static Device| copy(to, from, bytes)))?;
            s.synchronise()
        }
        _ => s.push(Arc::new(move |_: &'static Device| copy(to, from, bytes))),
    }
}

/// A copy that is done when the call returns, in the order of the legacy stream.
fn copy_now(to: Place, from: Place, bytes: usize) -> Result<(), Code> {
    graph::forbid()?;
    let legacy = current()?.legacy();
    copy_async(to, from, bytes, legacy)?;
    legacy.synchronise()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(to: u64, from: usize, bytes: usize) -> u32 {
    give(copy_now(Place::Device(to), Place::Host(from), bytes))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(to: usize, from: u64, bytes: usize) -> u32 {
    give(copy_now(Place::Host(to), Place::Device(from), bytes))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> u32 {
    give(copy_now(Place::Device(to), Place::Device(from), bytes))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpy(to: usize, from: usize, bytes: usize) -> u32 {
    give(copy_now(place(to), place(from), bytes))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, handle: usize) -> u32 {
    give(stream(handle).and_then(|s| copy_async(Place::Device(to), Place::Host(from), bytes, &s)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, handle: usize) -> u32 {
    give(stream(handle).and_then(|s| copy_async(Place::Host(to), Place::Device(from), bytes, &s)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, handle: usize) -> u32 {
    give(stream(handle).and_then(|s| copy_async(Place::Device(to), Place::Device(from), bytes, &s)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyAsync(to: usize, from: usize, bytes: usize, handle: usize) -> u32 {
    give(stream(handle).and_then(|s| copy_async(place(to), place(from), bytes, &s)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeer(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize) -> u32 {
    let known = context(to_context).and(context(from_context));
    give(known.and_then(|_| copy_now(Place::Device(to), Place::Device(from), bytes)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    to_context: usize,
    from: u64,
    from_context: usize,
    bytes: usize,
    handle: usize,
) -> u32 {
    let known = context(to_context).and(context(from_context)).and_then(|_| stream(handle));
    give(known.and_then(|s| copy_async(Place::Device(to), Place::Device(from), bytes, &s)))
}

fn fill(at: u64, pattern: Vec<u8>, count: usize, s: &Arc<Stream>) -> Result<(), Code> {
    if count == 0 {
        return Ok(());
    }
    if !at.is_multiple_of(pattern.len() as u64) {
        return Err(INVALID_VALUE);
    }
    copy_range(Place::Device(at), pattern.len() * count)?;
    s.push(Arc::new(move |_: &'static Device| {
        let refuse = |kind| refusal(at, pattern.len() * count, kind);
        let device = of_address(at).ok_or_else(|| refuse(Kind::OutOfBounds))?;
        device.memory.fill(at, &pattern, count).map_err(refuse)
    }))
}

fn fill_now(at: u64, pattern: Vec<u8>, count: usize) -> Result<(), Code> {
    graph::forbid()?;
    fill(at, pattern, count, current()?.legacy())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(at: u64, value: u8, count: usize) -> u32 {
    give(fill_now(at, vec![value], count))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16_v2(at: u64, value: u16, count: usize) -> u32 {
    give(fill_now(at, value.to_le_bytes().into(), count))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32_v2(at: u64, value: u32, count: usize) -> u32 {
    give(fill_now(at, value.to_le_bytes().into(), count))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(at: u64, value: u8, count: usize, handle: usize) -> u32 {
    give(stream(handle).and_then(|s| fill(at, vec![value], count, &s)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16Async(at: u64, value: u16, count: usize, handle: usize) -> u32 {
    give(stream(handle).and_then(|s| fill(at, value.to_le_bytes().into(), count, &s)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(at: u64, value: u32, count: usize, handle: usize) -> u32 {
    give(stream(handle).and_then(|s| fill(at, value.to_le_bytes().into(), count, &s)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPrefetchAsync_v2(_at: u64, _bytes: usize, _place: u64, _flags: c_uint, handle: usize) -> u32 {
    give(stream(handle).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAdvise_v2(_at: u64, _bytes: usize, _advice: u32, _place: u64) -> u32 {
    give(current().map(|_| ()))
}

/// There is one pool for each device, and it has no settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut usize, ordinal: c_int) -> u32 {
    unsafe { cuDeviceGetMemPool(pool, ordinal) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetMemPool(pool: *mut usize, ordinal: c_int) -> u32 {
    let device = crate::driver::device::device(ordinal);
    give(device.and_then(|d| unsafe { put(pool, 0x5080_0000 + 16 * d.index) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(_pool: usize, _bytes: usize) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAttribute(_pool: usize, _which: u32, _value: *mut c_void) -> u32 {
    0
}
