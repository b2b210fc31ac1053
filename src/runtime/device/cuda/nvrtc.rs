//! CUDA C to PTX by NVRTC.

use super::load::{Absent, Wanted, functions};
use crate::runtime::RuntimeError;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

type Handle = *mut c_void;

functions! {
    /// As nvrtc.h declares them.
    Nvrtc {
        version = "nvrtcVersion" (*mut c_int, *mut c_int);
        create = "nvrtcCreateProgram" (
            *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        );
        destroy = "nvrtcDestroyProgram" (*mut Handle);
        compile = "nvrtcCompileProgram" (Handle, c_int, *const *const c_char);
        ptx_size = "nvrtcGetPTXSize" (Handle, *mut usize);
        ptx = "nvrtcGetPTX" (Handle, *mut c_char);
        log_size = "nvrtcGetProgramLogSize" (Handle, *mut usize);
        log = "nvrtcGetProgramLog" (Handle, *mut c_char);
        archs = "nvrtcGetNumSupportedArchs" (*mut c_int);
        list = "nvrtcGetSupportedArchs" (*mut c_int);
    }
}

const WANTED: Wanted = Wanted {
    what: "NVIDIA's compiler (NVRTC)",
    variable: "PARTITA_NVRTC",
    names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll"],
    packages: &["nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib"],
};

fn nvrtc() -> Result<&'static Nvrtc, &'static Absent> {
    static NVRTC: OnceLock<Result<Nvrtc, Absent>> = OnceLock::new();
    NVRTC.get_or_init(|| Nvrtc::open(&WANTED)).as_ref()
}

/// Whether it is there.
pub fn is_there() -> bool {
    nvrtc().is_ok()
}

/// Its version and place, or what is missing.
pub fn told() -> String {
    match nvrtc() {
        Ok(n) => {
            let (mut major, mut minor) = (0, 0);
            // SAFETY: two numbers to write to.
            unsafe { (n.version)(&mut major, &mut minor) };
            format!("{major}.{minor} ({})", n.path)
        }
        Err(absent) => absent.error().message,
    }
}

/// The newest architecture that it knows, as 90 for 9.0, but no newer than a device's.
pub fn newest(device: u32) -> Result<u32, RuntimeError> {
    let n = nvrtc().map_err(|a| a.error())?;
    let mut count = 0;
    // SAFETY: a number to write to; then a list of as many.
    let known = unsafe {
        (n.archs)(&mut count);
        let mut list = vec![0; usize::try_from(count).unwrap_or(0)];
        (n.list)(list.as_mut_ptr());
        list
    };
    let fits = known.iter().filter_map(|a| u32::try_from(*a).ok()).filter(|a| *a <= device);
    fits.max().ok_or_else(|| {
        RuntimeError::new("E0817", format!("NVRTC at {} knows no architecture like sm_{device}", n.path))
            .help("install an NVRTC that fits the device")
    })
}

/// PTX of a text for an architecture. The text rounds every operation by itself.
pub fn compile(text: &str, arch: u32) -> Result<String, RuntimeError> {
    let n = nvrtc().map_err(|a| a.error())?;
    let broken = |why: String| RuntimeError::internal(format!("NVRTC ({}): {why}", n.path));
    let text = CString::new(text).map_err(|_| broken("the text holds a zero".into()))?;
    let options = [
        format!("--gpu-architecture=compute_{arch}"),
        "--std=c++17".into(),
        "--fmad=false".into(),
        "--diag-suppress=177,550".into(),
    ];
    let options: Vec<CString> = options.into_iter().filter_map(|o| CString::new(o).ok()).collect();
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program: Handle = std::ptr::null_mut();
    // SAFETY: strings with their ends, that live through the calls; sizes are asked for before what has them.
    unsafe {
        let name = c"kernels.cu";
        let made = (n.create)(&mut program, text.as_ptr(), name.as_ptr(), 0, std::ptr::null(), std::ptr::null());
        if made != 0 {
            return Err(broken(format!("no program, error {made}")));
        }
        let failed = (n.compile)(program, pointers.len() as c_int, pointers.as_ptr());
        let result = match failed {
            0 => read(program, n.ptx_size, n.ptx),
            code => {
                let log = read(program, n.log_size, n.log);
                Err(format!(
                    "error {code}: {}",
                    log.unwrap_or_default().lines().take(20).collect::<Vec<_>>().join("\n")
                ))
            }
        };
        (n.destroy)(&mut program);
        result.map_err(broken)
    }
}

/// A text that a program has, by its size and its content.
///
/// # Safety
/// The functions are those of the program's library.
unsafe fn read(
    program: Handle,
    size: unsafe extern "C" fn(Handle, *mut usize) -> u32,
    content: unsafe extern "C" fn(Handle, *mut c_char) -> u32,
) -> Result<String, String> {
    let mut n = 0usize;
    // SAFETY: as asked of the caller.
    unsafe {
        match size(program, &mut n) {
            0 => {}
            code => return Err(format!("no size, error {code}")),
        }
        let mut bytes = vec![0u8; n];
        match content(program, bytes.as_mut_ptr().cast()) {
            0 => {}
            code => return Err(format!("no text, error {code}")),
        }
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        String::from_utf8(bytes).map_err(|e| e.to_string())
    }
}
