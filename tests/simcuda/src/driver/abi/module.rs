//! Modules, functions, launches, occupancy; and the report, which is no part of CUDA.

use super::{give, put, stream, text};
use crate::config::Config;
use crate::driver::codes::{Code, INVALID_PTX, INVALID_VALUE, NO_BINARY_FOR_GPU, NOT_SUPPORTED};
use crate::driver::device::current;
use crate::driver::launch::{SHARED, launch, shared_opt_in};
use crate::driver::module::{Function, Module, Refusal};
use crate::driver::table::Table;
use crate::report;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

static MODULES: Table<Module> = Table::new();
static FUNCTIONS: Table<Function> = Table::new();

/// Says why, where whoever runs a test sees it, and gives the code.
fn said(refusal: Refusal) -> Code {
    if !Config::get().quiet {
        eprintln!("software GPU: {}", refusal.1);
    }
    refusal.0
}

/// The text of a module's image.
///
/// # Safety
/// `image` is null or points to PTX text that ends in a zero byte, or to an ELF file or a fat binary.
unsafe fn image_text<'a>(image: *const c_void) -> Result<&'a str, Refusal> {
    if image.is_null() {
        return Err((INVALID_VALUE, "a module without an image".into()));
    }
    // SAFETY: any image has four bytes.
    let first = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), 4) };
    if first == b"\x7fELF" || first == [0x50, 0xed, 0x55, 0xba] {
        return Err((NO_BINARY_FOR_GPU, "machine code cannot be run here: load PTX".into()));
    }
    // SAFETY: as this function requires.
    unsafe { text(image.cast()) }.map_err(|_| (INVALID_PTX, "the image is no text".into()))
}

unsafe fn load(module: *mut usize, image: *const c_void) -> Result<(), Refusal> {
    let device = current().map_err(|c| (c, format!("the device gives error {c}")))?;
    let made = Module::load(device, unsafe { image_text(image) }?)?;
    unsafe { put(module, MODULES.insert(Arc::new(made))) }.map_err(|c| (c, "no room for the handle".into()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_void) -> u32 {
    give(unsafe { load(module, image) }.map_err(said))
}

/// `CU_JIT_ERROR_LOG_BUFFER` and the option that gives its size are obeyed, the others passed over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut usize,
    image: *const c_void,
    count: c_uint,
    options: *const u32,
    values: *const *mut c_void,
) -> u32 {
    let Err((code, why)) = (unsafe { load(module, image) }) else { return 0 };
    let (mut log, mut room) = (std::ptr::null_mut::<u8>(), 0usize);
    for i in 0..count as usize {
        // SAFETY: the caller gives `count` options and values.
        let (option, value) = unsafe { (*options.add(i), *values.add(i)) };
        match option {
            5 => log = value.cast(),
            6 => room = value as usize,
            _ => {}
        }
    }
    if !log.is_null() && room > 0 {
        let n = why.len().min(room - 1);
        // SAFETY: the caller gives `room` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(why.as_ptr(), log, n);
            log.add(n).write(0);
        }
    }
    said((code, why))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoad(module: *mut usize, path: *const c_char) -> u32 {
    give(unsafe { text(path) }.and_then(|path| {
        // CUDA_ERROR_FILE_NOT_FOUND
        let mut bytes = std::fs::read(path).map_err(|_| 301u32)?;
        bytes.push(0);
        unsafe { load(module, bytes.as_ptr().cast()) }.map_err(said)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: usize) -> u32 {
    give(MODULES.remove(module).map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> u32 {
    give(MODULES.get(module).and_then(|m| {
        let kernel = m.kernel(unsafe { text(name) }?).map_err(said)?;
        unsafe { put(function, FUNCTIONS.insert(Arc::new(Function::new(m, kernel)))) }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunctionCount(count: *mut c_uint, module: usize) -> u32 {
    give(MODULES.get(module).and_then(|m| unsafe { put(count, m.names().len() as c_uint) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetGlobal_v2(
    at: *mut u64,
    bytes: *mut usize,
    module: usize,
    name: *const c_char,
) -> u32 {
    give(MODULES.get(module).and_then(|m| {
        let (address, size) = m.global(unsafe { text(name) }?)?;
        let first = if at.is_null() { Ok(()) } else { unsafe { put(at, address) } };
        first.and(if bytes.is_null() { Ok(()) } else { unsafe { put(bytes, size) } })
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, which: u32, function: usize) -> u32 {
    give(FUNCTIONS.get(function).and_then(|f| unsafe { put(value, f.attribute(which).ok_or(INVALID_VALUE)?) }))
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const MAX_DYNAMIC: u32 = 8;

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: usize, which: u32, value: c_int) -> u32 {
    give(FUNCTIONS.get(function).and_then(|f| {
        if which == MAX_DYNAMIC {
            let most = shared_opt_in(Config::get().arch) - f.kernel.shared_bytes.min(SHARED);
            if value < 0 || value as usize > most {
                return Err(INVALID_VALUE);
            }
            f.max_dynamic.store(value, Ordering::Relaxed);
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetCacheConfig(function: usize, _config: u32) -> u32 {
    give(FUNCTIONS.get(function).map(|_| ()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    handle: usize,
    values: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> u32 {
    give(FUNCTIONS.get(function).and_then(|f| {
        let mut params = vec![0u8; f.kernel.param_bytes];
        if !extra.is_null() {
            return Err(NOT_SUPPORTED);
        }
        for (i, (at, bytes)) in f.kernel.params.iter().enumerate() {
            // SAFETY: the caller gives as many values as the kernel has parameters, each of its size.
            let value = unsafe {
                if values.is_null() {
                    return Err(INVALID_VALUE);
                }
                *values.add(i)
            };
            if value.is_null() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: as above.
            params[*at..at + bytes].copy_from_slice(unsafe { std::slice::from_raw_parts(value.cast(), *bytes) });
        }
        let grid = [grid_x, grid_y, grid_z];
        launch(&f, grid, [block_x, block_y, block_z], shared as usize, params, &stream(handle)?)
    }))
}

/// Blocks run one after the other, so a grid cannot wait for itself.
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchCooperativeKernel() -> u32 {
    NOT_SUPPORTED
}

/// Blocks of a multiprocessor, by threads and shared memory alone: registers are not counted here.
fn blocks(function: usize, threads: c_int, dynamic: usize) -> Result<c_int, Code> {
    let f = FUNCTIONS.get(function)?;
    if threads <= 0 {
        return Err(INVALID_VALUE);
    }
    let warps = (threads as usize).div_ceil(32) * 32;
    let shared = f.kernel.shared_bytes + dynamic + 1024;
    let by_shared = (shared_opt_in(Config::get().arch) + 1024) / shared;
    Ok((2048 / warps).min(by_shared).min(32) as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    count: *mut c_int,
    function: usize,
    threads: c_int,
    dynamic: usize,
) -> u32 {
    give(blocks(function, threads, dynamic).and_then(|n| unsafe { put(count, n) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    count: *mut c_int,
    function: usize,
    threads: c_int,
    dynamic: usize,
    _flags: c_uint,
) -> u32 {
    unsafe { cuOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, dynamic) }
}

/// The report of this process as JSON, also written to the file of `SIMCUDA_REPORT`. At most `room` bytes go to `into`, a
/// zero last; the length of the whole text is given, without the zero.
///
/// # Safety
/// `into` is null or points to `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simcuda_report(into: *mut u8, room: usize) -> usize {
    report::write();
    let text = report::json();
    if !into.is_null() && room > 0 {
        let n = text.len().min(room - 1);
        // SAFETY: as required.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), into, n);
            into.add(n).write(0);
        }
    }
    text.len()
}

/// Begins the report anew.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_reset() {
    report::reset();
}
