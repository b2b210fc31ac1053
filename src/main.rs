//! The `partita` command: see `cli`.

fn main() -> std::process::ExitCode {
    partita::cli::main()
}
