//! Machine code of kernels by Cranelift.
//!
//! In: kernels. Out: a [`Code`]: bytes that run wherever they are put, since they hold no addresses; what they call they
//! find in the table of helpers. A function is called as `f(buffers, scalars, helpers, begin, end)`: rows `begin..end`;
//! `scalars` holds the kernel's keys, then the address of the status cell (see `program::Failure`).
//!
//! Invariant: a row is computed in the same way, bit for bit, whatever rows are computed by the same call.
//!
//! Reading order: `plan.rs` (what becomes vectors), `nest.rs` (loops and statements), `expr.rs` (expressions), `ops.rs`
//! (arithmetic on one or four elements), then `map.rs`, `math.rs`, `convert.rs`, `random.rs`.

mod convert;
mod expr;
mod map;
mod math;
mod nest;
mod ops;
mod plan;
mod random;

use crate::codegen::plan::{facts, merge_loops};
use crate::codegen::wide::Width;
use crate::kernel::Kernel;
use crate::program::Code;
use crate::types::cpu::Vectors;
use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{AbiParam, Function, Signature, UserFuncName};
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The code of one function, or why there is none.
type CodeOrWhy = Result<Vec<u8>, String>;

/// Every function begins at a multiple of so many bytes.
const FUNCTION_ALIGN: usize = 64;

/// Features of Cranelift that are AVX-512.
const AVX512: &[&str] = &["avx512bitalg", "avx512dq", "avx512vl", "avx512vbmi", "avx512f", "avx512vnni"];

/// The processor that code is made for.
pub struct Target {
    isa: OwnedTargetIsa,
    fused: bool,
    /// The width of the vectors of [`crate::codegen::wide`], where the processor has such; it makes the code of most kernels.
    wide: Option<Width>,
    /// As in [`Code::target`]: the architecture and the features that code may use.
    name: String,
}

impl Target {
    /// The processor that this runs on. An error is a sentence about why there is no code for it.
    pub fn host() -> Result<Target, String> {
        Target::host_with(Width::host())
    }

    /// The same with vectors of a width that it has, or with Cranelift alone.
    pub fn host_with(wide: Option<Width>) -> Result<Target, String> {
        let mut builder = cranelift_native::builder()?;
        if builder.triple().architecture.to_string() == "x86_64" {
            let without: &[&str] = match () {
                () if !Vectors::Avx2.allowed() => &[&["avx", "avx2", "fma", "avx_vnni"], AVX512].concat(),
                () if !Vectors::Avx512.allowed() => AVX512,
                () => &[],
            };
            for feature in without {
                builder.set(&format!("has_{feature}"), "false").map_err(|e| e.to_string())?;
            }
        }
        let mut target = Target::of(builder)?;
        for feature in wide.iter().flat_map(|w| w.features()) {
            if !target.name.split(' ').any(|known| known == *feature) {
                target.name = format!("{} {feature}", target.name);
            }
        }
        target.wide = wide;
        Ok(target)
    }

    /// The plainest processor of an architecture, as `aarch64` or `x86_64`, to see what code for it looks like.
    pub fn named(arch: &str) -> Result<Target, String> {
        let mut builder = isa::lookup_by_name(arch).map_err(|e| format!("no code for `{arch}`: {e}"))?;
        if arch == "x86_64" {
            for feature in ["has_sse3", "has_ssse3", "has_sse41"] {
                builder.enable(feature).map_err(|e| e.to_string())?;
            }
        }
        Target::of(builder)
    }

    fn of(builder: isa::Builder) -> Result<Target, String> {
        let mut flags = settings::builder();
        let verify = if cfg!(debug_assertions) { "true" } else { "false" };
        let wanted = [
            ("opt_level", "speed"),
            ("enable_probestack", "false"),
            ("unwind_info", "false"),
            ("enable_verifier", verify),
        ];
        for (name, value) in wanted {
            flags.set(name, value).map_err(|e| e.to_string())?;
        }
        let isa = builder.finish(settings::Flags::new(flags)).map_err(|e| e.to_string())?;
        let features: Vec<&str> = isa
            .isa_flags()
            .iter()
            .filter(|f| f.as_bool() == Some(true))
            .filter_map(|f| f.name.strip_prefix("has_"))
            .collect();
        let arch = isa.triple().architecture.to_string();
        if arch == "x86_64" && !features.contains(&"sse41") {
            return Err("code for x86-64 needs a processor with SSE 4.1".to_string());
        }
        let fused = arch != "x86_64" || features.contains(&"fma");
        let name = std::iter::once(arch.as_str()).chain(features).collect::<Vec<_>>().join(" ");
        Ok(Target { isa, fused, wide: None, name })
    }

    /// The architecture and the features that code may use: [`Code::target`].
    pub fn name(&self) -> &str {
        &self.name
    }

    fn function(&self, kernel: &Kernel) -> Function {
        let kernel = merge_loops(kernel);
        let mut signature = Signature::new(self.isa.default_call_conv());
        signature.params.extend((0..5).map(|_| AbiParam::new(I64)));
        let mut function = Function::with_name_signature(UserFuncName::user(0, 0), signature);
        let mut context = FunctionBuilderContext::new();
        let facts = facts(&kernel);
        let lanes = plan::lanes(&kernel, &facts);
        nest::emit(FunctionBuilder::new(&mut function, &mut context), &kernel, &facts, lanes, self.fused, &*self.isa);
        function
    }

    fn compile_one(&self, kernel: &Kernel) -> Result<Vec<u8>, String> {
        if let Some(code) = self.wide.and_then(|w| w.compile(kernel)) {
            return Ok(code);
        }
        let mut context = Context::for_function(self.function(kernel));
        let compiled = context
            .compile(&*self.isa, &mut ControlPlane::default())
            .map_err(|e| format!("kernel `{}`: {:?}", kernel.name, e.inner))?;
        if !compiled.buffer.relocs().is_empty() {
            return Err(format!("the code of kernel `{}` is not self-contained", kernel.name));
        }
        Ok(compiled.code_buffer().to_vec())
    }

    /// Machine code of all kernels; `functions[k]` is the entry of kernel k. Equal kernels share their code.
    pub fn compile(&self, kernels: &[Kernel], threads: usize) -> Result<Code, String> {
        let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut unique: Vec<&Kernel> = Vec::new();
        let places: Vec<usize> = kernels
            .iter()
            .map(|kernel| {
                let nameless = Kernel { name: String::new(), ..kernel.clone() };
                let bytes = postcard::to_stdvec(&nameless).expect("a kernel is plain data");
                *known.entry(bytes).or_insert_with(|| {
                    unique.push(kernel);
                    unique.len() - 1
                })
            })
            .collect();
        let next = AtomicUsize::new(0);
        let results: Mutex<Vec<Option<CodeOrWhy>>> = Mutex::new(vec![None; unique.len()]);
        let put = |n: usize, code| results.lock().unwrap_or_else(PoisonError::into_inner)[n] = Some(code);
        std::thread::scope(|scope| {
            let work = || {
                while let (n, Some(kernel)) = next_of(&unique, &next) {
                    // A gap in the code generator is an error of this kernel, not of the process.
                    let code = catch_unwind(AssertUnwindSafe(|| self.compile_one(kernel)));
                    put(n, code.unwrap_or_else(|_| Err(format!("the code generator failed on `{}`", kernel.name))));
                }
            };
            for _ in 1..threads.min(unique.len()) {
                // Where the system refuses more threads, those that there are do the work.
                if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        let mut bytes = Vec::new();
        let mut starts = Vec::with_capacity(unique.len());
        for code in results.into_inner().unwrap_or_else(PoisonError::into_inner) {
            bytes.resize(bytes.len().next_multiple_of(FUNCTION_ALIGN), 0);
            starts.push(bytes.len() as u64);
            bytes.extend(code.expect("every kernel is compiled")?);
        }
        let functions = places.iter().map(|n| starts[*n]).collect();
        Ok(Code { target: self.name.clone(), bytes, functions, relocations: Vec::new() })
    }

    /// The text of a kernel's function before Cranelift's own passes.
    pub fn clif(&self, kernel: &Kernel) -> String {
        self.function(kernel).display().to_string()
    }
}

/// The next of a list that several threads take from, with its number.
fn next_of<'l, T>(list: &'l [T], next: &AtomicUsize) -> (usize, Option<&'l T>) {
    let n = next.fetch_add(1, Ordering::Relaxed);
    (n, list.get(n))
}
