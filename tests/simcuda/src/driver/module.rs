//! Modules: PTX text read once, its variables placed in device memory, its kernels decoded when they are asked for.

use super::codes::{Code, INVALID_PTX, NO_BINARY_FOR_GPU, NOT_FOUND, OUT_OF_MEMORY};
use super::device::Device;
use crate::config::Config;
use crate::exec::decode::{Kernel, decode};
use crate::ptx::link::{Globals, initial, link};
use crate::ptx::parse::parse;
use crate::ptx::tree::{self, Space};
use crate::ptx::{PtxError, tree::Variable};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

pub struct Module {
    pub device: &'static Device,
    tree: tree::Module,
    globals: Globals,
    sizes: HashMap<String, usize>,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

pub struct Function {
    pub module: Arc<Module>,
    pub kernel: Arc<Kernel>,
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
    pub max_dynamic: AtomicI32,
}

/// What a module's loading failed with: the code, and the text for whoever looks.
pub type Refusal = (Code, String);

fn refused(e: PtxError) -> Refusal {
    (INVALID_PTX, e.to_string())
}

impl Module {
    pub fn load(device: &'static Device, text: &str) -> Result<Module, Refusal> {
        let tree = parse(text).map_err(refused)?;
        let arch = Config::get().arch;
        if tree.target > arch {
            return Err((NO_BINARY_FOR_GPU, format!("PTX for sm_{} on a device of sm_{arch}", tree.target)));
        }
        let mut globals = Globals::new();
        let mut sizes = HashMap::new();
        let placed = |v: &&Variable| matches!(v.space, Space::Global | Space::Const) && v.count.is_some();
        for v in tree.variables.iter().filter(placed) {
            let Some(at) = device.memory.allocate(v.bytes().max(1)) else {
                return Err((OUT_OF_MEMORY, format!("no room for `{}`", v.name)));
            };
            globals.insert(v.name.clone(), at);
            sizes.insert(v.name.clone(), v.bytes());
        }
        for v in tree.variables.iter().filter(placed) {
            // Variables without a value begin with zeros.
            let bytes = initial(v, &globals).map_err(refused)?;
            device.memory.copy_in(globals[&v.name], &bytes).map_err(|k| (k.code(), v.name.clone()))?;
        }
        Ok(Module { device, tree, globals, sizes, kernels: Mutex::default() })
    }

    pub fn kernel(&self, name: &str) -> Result<Arc<Kernel>, Refusal> {
        let mut kernels = self.kernels.lock().expect("no panic holds it");
        if let Some(kernel) = kernels.get(name) {
            return Ok(kernel.clone());
        }
        if !self.tree.functions.iter().any(|f| f.entry && f.name == name) {
            return Err((NOT_FOUND, format!("there is no kernel `{name}`")));
        }
        let linked = link(&self.tree, name, &self.globals).map_err(refused)?;
        let kernel = Arc::new(decode(&linked).map_err(refused)?);
        kernels.insert(name.to_string(), kernel.clone());
        Ok(kernel)
    }

    pub fn names(&self) -> Vec<&str> {
        self.tree.functions.iter().filter(|f| f.entry).map(|f| f.name.as_str()).collect()
    }

    /// Address and bytes of a variable.
    pub fn global(&self, name: &str) -> Result<(u64, usize), Code> {
        Ok((*self.globals.get(name).ok_or(NOT_FOUND)?, *self.sizes.get(name).ok_or(NOT_FOUND)?))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        for at in self.globals.values() {
            self.device.memory.free(*at);
        }
    }
}

impl Function {
    pub fn new(module: Arc<Module>, kernel: Arc<Kernel>) -> Function {
        Function { module, kernel, max_dynamic: AtomicI32::new(0) }
    }

    /// A value of `CUfunction_attribute` (cuda.h).
    pub fn attribute(&self, which: u32) -> Option<i32> {
        Some(match which {
            0 => {
                if self.kernel.max_threads > 0 {
                    self.kernel.max_threads as i32
                } else {
                    1024
                }
            }
            1 => self.kernel.shared_bytes as i32,
            2 => 0,
            3 => self.kernel.local_bytes as i32,
            // Registers are virtual here: rows of the interpreter, which have no limit.
            4 => (self.kernel.rows as i32).min(255),
            5 => 80,
            6 => Config::get().arch as i32,
            7 | 9 => 0,
            8 => self.max_dynamic.load(Ordering::Relaxed),
            10..=15 => 0,
            _ => return None,
        })
    }
}
