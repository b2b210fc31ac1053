//! Runs kernels as machine code.

#[path = "bytes.rs"]
mod bytes;

pub use bytes::{pack, unpack};
use partita::codegen::cpu::Target;
use partita::codegen::wide::Width;
use partita::kernel::*;
use partita::runtime::device::{code::Code, helpers};

thread_local! {
    static WIDTH: std::cell::Cell<Option<Width>> = const { std::cell::Cell::new(None) };
}

/// Calls a test with each code generator that this processor can run the code of.
pub fn with_each_generator(test: fn()) {
    for width in Width::ALL.into_iter().filter(|w| w.is_here()).map(Some).chain([None]) {
        with_generator(width, test);
    }
}

/// Calls a test with vectors of a width, or with Cranelift.
pub fn with_generator(width: Option<Width>, test: impl Fn()) {
    WIDTH.set(width);
    test();
}

/// Compiles a kernel and runs the given pieces of its rows over the buffers; returns what the status cell holds then.
pub fn run_pieces(kernel: &Kernel, buffers: &mut [Vec<u8>], keys: &[u64], pieces: &[(usize, usize)]) -> u64 {
    let target = Target::host_with(WIDTH.get()).expect("a supported processor");
    let compiled = target.compile(std::slice::from_ref(kernel), 1).expect("compiles");
    let code = Code::new(&compiled.bytes).expect("executable memory");
    // Guards catch writes beyond a buffer.
    let mut guarded: Vec<Vec<u8>> =
        buffers.iter().map(|b| [&[0xA5; 64][..], b.as_slice(), &[0xA5; 64][..]].concat()).collect();
    let pointers: Vec<*mut u8> = guarded.iter_mut().map(|b| unsafe { b.as_mut_ptr().add(64) }).collect();
    let mut status = 0u64;
    let mut scalars = keys.to_vec();
    scalars.push(&raw mut status as u64);
    let table = helpers::table();
    for (begin, end) in pieces {
        // SAFETY: the kernel was compiled for this processor, and the test gives it buffers that hold its accesses.
        unsafe {
            code.kernel(compiled.functions[0] as usize)(
                pointers.as_ptr(),
                scalars.as_ptr(),
                table.as_ptr(),
                *begin as u64,
                *end as u64,
            );
        }
    }
    for (buffer, guarded) in buffers.iter_mut().zip(&guarded) {
        let n = buffer.len();
        assert!(guarded[..64].iter().chain(&guarded[64 + n..]).all(|b| *b == 0xA5), "a write outside of a buffer");
        buffer.copy_from_slice(&guarded[64..64 + n]);
    }
    unsafe { std::ptr::read_volatile(&raw const status) }
}

pub fn run(kernel: &Kernel, buffers: &mut [Vec<u8>], keys: &[u64]) -> u64 {
    run_pieces(kernel, buffers, keys, &[(0, kernel.row_count())])
}
