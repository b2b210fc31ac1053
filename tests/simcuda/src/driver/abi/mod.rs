//! The exported functions of `libcuda.so.1`, as cuda.h declares them (CUDA 12.8). Every pointer of a caller is checked for
//! null and read or written here; nothing behind this room sees one.

// What callers must keep to is what the headers of CUDA and NCCL say of each function.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

pub mod context;
pub mod event;
pub mod memory;
pub mod module;
pub mod stream;

use super::codes::{Code, INVALID_VALUE};
use super::device::{Device, current, of_context};
use super::stream::Stream;
use super::table::Table;
use std::sync::Arc;

pub(super) static STREAMS: Table<Stream> = Table::new();

/// The code of a result.
pub(crate) fn give(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(0)
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// `at` is null or points to room for a `T`.
pub(crate) unsafe fn put<T>(at: *mut T, value: T) -> Result<(), Code> {
    if at.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; the caller of the exported function vouches for it.
    unsafe { at.write(value) };
    Ok(())
}

/// A C string of the caller.
///
/// # Safety
/// `at` is null or points to a string that ends in a zero byte.
pub(crate) unsafe fn text<'a>(at: *const std::ffi::c_char) -> Result<&'a str, Code> {
    if at.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; the caller of the exported function vouches for its end.
    unsafe { std::ffi::CStr::from_ptr(at) }.to_str().map_err(|_| INVALID_VALUE)
}

/// The stream of a handle: 0 and 1 are the legacy stream, 2 (per thread) is taken for it too.
pub(crate) fn stream(handle: usize) -> Result<Arc<Stream>, Code> {
    if handle <= 2 {
        return Ok(current()?.legacy().clone());
    }
    let stream = STREAMS.get(handle)?;
    stream.device.check()?;
    Ok(stream)
}

pub(crate) fn context(handle: usize) -> Result<&'static Device, Code> {
    of_context(handle)
}
