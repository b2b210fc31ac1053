//! Initialisation, devices, contexts, errors.

use super::{context, give, put};
use crate::config::Config;
use crate::driver::codes::{INVALID_VALUE, NAMES, NOT_FOUND, NOT_SUPPORTED};
use crate::driver::device::{
    context_handle, current, current_any, current_index, device, devices, initialise, set_current,
};
use crate::driver::graph;
use crate::driver::launch::{SHARED, shared_opt_in};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};

thread_local! {
    /// `cuCtxPushCurrent` and `cuCtxPopCurrent`.
    static STACK: RefCell<Vec<Option<usize>>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> u32 {
    give(initialise())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    give(unsafe { put(version, 12080) })
}

/// NVRTC asks for tables of functions that are not documented, and goes on without them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(_table: *mut *const c_void, _id: *const c_void) -> u32 {
    NOT_FOUND
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: u32, name: *mut *const c_char) -> u32 {
    let found = NAMES.iter().find(|n| n.0 == code);
    give(match found {
        Some(n) => unsafe { put(name, n.1.as_ptr().cast()) },
        None => Err(INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: u32, text: *mut *const c_char) -> u32 {
    let found = NAMES.iter().find(|n| n.0 == code);
    give(match found {
        Some(n) => unsafe { put(text, n.2.as_ptr().cast()) },
        None => Err(INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    give(devices().and_then(|d| unsafe { put(count, d.len() as c_int) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(handle: *mut c_int, ordinal: c_int) -> u32 {
    give(device(ordinal).and_then(|_| unsafe { put(handle, ordinal) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, handle: c_int) -> u32 {
    give(device(handle).and_then(|d| {
        let text = format!("Software GPU {} sm_{}", d.index, Config::get().arch);
        let room = usize::try_from(room).unwrap_or(0);
        if name.is_null() || room == 0 {
            return Err(INVALID_VALUE);
        }
        let n = text.len().min(room - 1);
        // SAFETY: the caller gives `room` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, n);
            name.add(n).write(0);
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], handle: c_int) -> u32 {
    let bytes = |i: usize| std::array::from_fn(|k| if k == 15 { i as u8 } else { b"software gpu    "[k] });
    give(device(handle).and_then(|d| unsafe { put(uuid, bytes(d.index)) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], handle: c_int) -> u32 {
    unsafe { cuDeviceGetUuid(uuid, handle) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, handle: c_int) -> u32 {
    give(device(handle).and_then(|d| unsafe { put(bytes, d.memory.size()) }))
}

/// Values of `CUdevice_attribute` (cuda.h), as an A100 (8.0) or an H100 (9.0) has them.
fn attribute(which: u32) -> c_int {
    let arch = Config::get().arch;
    match which {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => SHARED as c_int,
        9 => 65536,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65536,
        13 => 1_410_000,
        14 => 512,
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 83 | 90 | 101 | 115 => 1,
        16 => {
            if arch >= 90 {
                132
            } else {
                108
            }
        }
        36 => 1_215_000,
        37 => 5120,
        38 => {
            if arch >= 90 {
                50 << 20
            } else {
                40 << 20
            }
        }
        39 => 2048,
        40 => 2,
        75 => (arch / 10) as c_int,
        76 => (arch % 10) as c_int,
        81 => shared_opt_in(arch) as c_int + 1024,
        97 => shared_opt_in(arch) as c_int,
        106 => 32,
        111 => 1024,
        _ => 0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: u32, handle: c_int) -> u32 {
    give(device(handle).and_then(|_| unsafe { put(value, attribute(which)) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, from: c_int, to: c_int) -> u32 {
    // Kernels reach the memory of their own device alone; copies reach all.
    give(device(from).and(device(to)).and_then(|_| unsafe { put(can, 0) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(_peer: usize, _flags: c_uint) -> u32 {
    // CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
    217
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(handle: *mut usize, ordinal: c_int) -> u32 {
    give(device(ordinal).and_then(|d| unsafe { put(handle, context_handle(d)) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) -> u32 {
    give(device(ordinal).map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: *mut c_uint, active: *mut c_int) -> u32 {
    give(device(ordinal).and_then(|_| unsafe { put(flags, 0).and(put(active, 1)) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(handle: *mut usize, _flags: c_uint, ordinal: c_int) -> u32 {
    give(device(ordinal).and_then(|d| {
        set_current(Some(d));
        unsafe { put(handle, context_handle(d)) }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v3(
    handle: *mut usize,
    _affinity: *mut c_void,
    _count: c_int,
    flags: c_uint,
    ordinal: c_int,
) -> u32 {
    unsafe { cuCtxCreate_v2(handle, flags, ordinal) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v4(
    handle: *mut usize,
    _params: *mut c_void,
    flags: c_uint,
    ordinal: c_int,
) -> u32 {
    unsafe { cuCtxCreate_v2(handle, flags, ordinal) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(handle: usize) -> u32 {
    give(context(handle).map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(handle: *mut usize) -> u32 {
    let now = current_any().map_or(0, context_handle);
    give(devices().and_then(|_| unsafe { put(handle, now) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(handle: usize) -> u32 {
    if handle == 0 {
        set_current(None);
        return 0;
    }
    give(context(handle).map(|d| set_current(Some(d))))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(handle: usize) -> u32 {
    give(context(handle).map(|d| {
        STACK.with_borrow_mut(|s| s.push(current_index()));
        set_current(Some(d));
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(handle: *mut usize) -> u32 {
    give(current_any().and_then(|d| {
        let before = STACK.with_borrow_mut(Vec::pop).flatten();
        let devices = devices()?;
        set_current(before.and_then(|i| devices.get(i)));
        if handle.is_null() { Ok(()) } else { unsafe { put(handle, context_handle(d)) } }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(ordinal: *mut c_int) -> u32 {
    give(current_any().and_then(|d| unsafe { put(ordinal, d.index as c_int) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> u32 {
    give(graph::forbid().and_then(|_| current()).and_then(|d| d.synchronise()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetFlags(_flags: c_uint) -> u32 {
    give(current().map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetLimit(value: *mut usize, _limit: u32) -> u32 {
    give(current().and_then(|_| unsafe { put(value, 1 << 20) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetLimit(_limit: u32, _value: usize) -> u32 {
    give(current().map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCacheConfig(config: *mut u32) -> u32 {
    give(current().and_then(|_| unsafe { put(config, 0) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCacheConfig(_config: u32) -> u32 {
    give(current().map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> u32 {
    give(current().and_then(|_| unsafe { put(least, 0).and(put(greatest, -5)) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuProfilerStart() -> u32 {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuProfilerStop() -> u32 {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuImportExternalMemory(_out: *mut c_void, _description: *const c_void) -> u32 {
    NOT_SUPPORTED
}
