//! How much of the processor's vector instructions this run may use.

use crate::diag::Diagnostic;
use crate::driver::Findings;
use crate::types::cpu::Vectors;

/// One of [`Vectors::NAMES`].
const VARIABLE: &str = "PARTITA_CPU";

/// Takes the limit from the environment, if there is one.
pub fn allow() -> Result<(), Box<Findings>> {
    let Some(wanted) = std::env::var_os(VARIABLE).filter(|v| !v.is_empty()) else { return Ok(()) };
    match wanted.to_str().and_then(Vectors::named) {
        Some(vectors) => vectors.allow(),
        None => {
            let message = format!("{VARIABLE} is `{}`, which names no set of instructions", wanted.display());
            let names = Vectors::NAMES.map(|(name, _)| name).join(", ");
            let d = Diagnostic::error("E0902", message).help(format!("set it to one of: {names}; or unset it"));
            return Err(Findings::of(d));
        }
    }
    Ok(())
}
