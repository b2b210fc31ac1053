//! For tests: where the library lies, and a folder in which it has the names that programs look for.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The names under which programs look for the driver and for NCCL.
const NAMES: [&str; 4] = ["libcuda.so.1", "libcuda.so", "libnccl.so.2", "libnccl.so"];

/// The library that was built with this test: beside the test's binary, or one folder up.
///
/// # Panics
/// Where it is at neither place.
pub fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a process knows its binary");
    let found = exe.ancestors().skip(1).take(3).map(|f| f.join("libsimcuda.so")).find(|p| p.is_file());
    found.unwrap_or_else(|| panic!("libsimcuda.so is not beside {}", exe.display()))
}

/// A folder for `LD_LIBRARY_PATH`, or to load from by full path.
pub fn folder() -> PathBuf {
    let library = library();
    let folder = library.with_file_name("simcuda-as-cuda");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    for name in NAMES {
        let link = folder.join(name);
        if std::fs::read_link(&link).ok().as_deref() != Some(library.as_path()) {
            // Put in place in one step: other tests may do the same now.
            let new = folder.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
            std::os::unix::fs::symlink(&library, &new).expect("a link can be made");
            std::fs::rename(&new, &link).expect("a link can be renamed");
        }
    }
    folder
}

fn open(path: &Path) -> *mut libc::c_void {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path has no zero");
    // SAFETY: a library of this crate; it has no constructor that depends on anything.
    unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }
}

/// Loads the library into this process, so that loaders which ask for `libcuda.so.1` find it without a search path. Set the
/// variables of the configuration before.
///
/// # Panics
/// Where it cannot be loaded.
pub fn preload() -> &'static Path {
    static LOADED: OnceLock<PathBuf> = OnceLock::new();
    LOADED.get_or_init(|| {
        let path = folder().join("libcuda.so.1");
        assert!(!open(&path).is_null(), "{} cannot be loaded", path.display());
        path
    })
}

fn symbol(name: &str) -> *mut libc::c_void {
    let handle = open(preload());
    let name = CString::new(name).expect("a name has no zero");
    // SAFETY: a handle of `dlopen` and a string with its end.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// The report of the library in this process (`report::json` says what is in it).
pub fn report() -> String {
    let at = symbol("simcuda_report");
    assert!(!at.is_null(), "the library has no report");
    // SAFETY: the signature of `driver::abi::module::simcuda_report`.
    let f: unsafe extern "C" fn(*mut u8, usize) -> usize = unsafe { std::mem::transmute(at) };
    let mut text = vec![0u8; 1 << 20];
    loop {
        // SAFETY: room for as many bytes as are said.
        let n = unsafe { f(text.as_mut_ptr(), text.len()) };
        if n < text.len() {
            text.truncate(n);
            return String::from_utf8(text).expect("a report is UTF-8");
        }
        text.resize(n + 1024, 0);
    }
}

/// Begins the report of the library in this process anew.
pub fn reset_report() {
    let at = symbol("simcuda_reset");
    assert!(!at.is_null(), "the library has no report");
    // SAFETY: the signature of `driver::abi::module::simcuda_reset`.
    let f: extern "C" fn() = unsafe { std::mem::transmute(at) };
    f();
}
