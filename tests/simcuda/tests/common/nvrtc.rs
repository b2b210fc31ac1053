//! The real NVRTC, where it is installed: `SIMCUDA_NVRTC` names the library (or the folder that pip has installed it into).

use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use std::path::{Path, PathBuf};

/// A library of this name below a folder.
fn below(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|e| e.path());
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|p| p.is_dir());
    let found = files.into_iter().find(|f| f.file_name().is_some_and(|n| n == name));
    found.or_else(|| folders.iter().find_map(|f| below(f, name)))
}

/// Loads NVRTC. `false`, and a line that says so, where there is none.
pub fn present() -> bool {
    let set = std::env::var_os("SIMCUDA_NVRTC").map(PathBuf::from);
    let path = set.as_ref().map(|p| below(p, "libnvrtc.so.12").unwrap_or_else(|| p.clone()));
    if let Some(path) = &path {
        // SAFETY: loading NVIDIA's library, which the variable names.
        match unsafe { libloading::Library::new(path) } {
            Ok(library) => std::mem::forget(library),
            Err(e) => panic!("SIMCUDA_NVRTC: {e}"),
        }
    }
    // SAFETY: it only tries to load a library.
    let present = unsafe { cudarc::nvrtc::sys::is_culib_present() };
    if !present {
        println!("skipped: NVRTC is not installed (pip install nvidia-cuda-nvrtc-cu12==12.9.86, SIMCUDA_NVRTC=folder)");
    }
    present
}

/// PTX of a source. `options` as on NVRTC's command line.
pub fn compile(source: &str, arch: &'static str, options: &[&str]) -> String {
    let options = options.iter().map(|o| o.to_string()).collect();
    let options = CompileOptions { arch: Some(arch), options, ..CompileOptions::default() };
    compile_ptx_with_opts(source, options).unwrap_or_else(|e| panic!("{e:?}")).to_src()
}
