//! The `partita` command: see `cli`.

/// Planning for many ranks makes millions of small vectors: a third of its time with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    partita::cli::main()
}
