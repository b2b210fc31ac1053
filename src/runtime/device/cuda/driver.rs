//! The functions of `libcuda` that we call.

use super::load::{Absent, Wanted, functions};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

type Handle = *mut c_void;

functions! {
    /// As cuda.h declares them.
    Driver {
        init = "cuInit" (c_uint);
        version = "cuDriverGetVersion" (*mut c_int);
        count = "cuDeviceGetCount" (*mut c_int);
        get = "cuDeviceGet" (*mut c_int, c_int);
        name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
        attribute = "cuDeviceGetAttribute" (*mut c_int, c_uint, c_int);
        retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
        release = "cuDevicePrimaryCtxRelease_v2" (c_int);
        set_current = "cuCtxSetCurrent" (Handle);
        memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
        allocate = "cuMemAlloc_v2" (*mut u64, usize);
        free = "cuMemFree_v2" (u64);
        to_device = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
        to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
        copy = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, Handle);
        set_bytes = "cuMemsetD8Async" (u64, u8, usize, Handle);
        set_words = "cuMemsetD32Async" (u64, c_uint, usize, Handle);
        stream_new = "cuStreamCreate" (*mut Handle, c_uint);
        stream_free = "cuStreamDestroy_v2" (Handle);
        stream_sync = "cuStreamSynchronize" (Handle);
        stream_query = "cuStreamQuery" (Handle);
        stream_wait = "cuStreamWaitEvent" (Handle, Handle, c_uint);
        event_new = "cuEventCreate" (*mut Handle, c_uint);
        event_free = "cuEventDestroy_v2" (Handle);
        event_record = "cuEventRecord" (Handle, Handle);
        event_elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle);
        module_load = "cuModuleLoadDataEx" (*mut Handle, *const c_void, c_uint, *mut c_uint, *mut Handle);
        module_free = "cuModuleUnload" (Handle);
        function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
        function_set = "cuFuncSetAttribute" (Handle, c_uint, c_int);
        launch = "cuLaunchKernel" (
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, *mut Handle
        );
        capture_begin = "cuStreamBeginCapture_v2" (Handle, c_uint);
        capture_end = "cuStreamEndCapture" (Handle, *mut Handle);
        graph_instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
        graph_launch = "cuGraphLaunch" (Handle, Handle);
        graph_free = "cuGraphDestroy" (Handle);
        graph_exec_free = "cuGraphExecDestroy" (Handle);
        error_name = "cuGetErrorName" (u32, *mut *const c_char);
        error_text = "cuGetErrorString" (u32, *mut *const c_char);
    }
}

const WANTED: Wanted = Wanted {
    what: "NVIDIA's driver (libcuda)",
    variable: "PARTITA_LIBCUDA",
    names: &["libcuda.so.1", "libcuda.so", "nvcuda.dll"],
    packages: &[],
};

/// The driver, loaded at the first call.
pub fn driver() -> Result<&'static Driver, &'static Absent> {
    static DRIVER: OnceLock<Result<Driver, Absent>> = OnceLock::new();
    DRIVER.get_or_init(|| Driver::open(&WANTED)).as_ref()
}
