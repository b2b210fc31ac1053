//! `partita explain CODE`.

use super::output::Output;
use super::{Code, ERROR, OK};
use crate::diag::{Diagnostic, codes, did_you_mean};
use crate::driver::Findings;

pub fn run(code: &str, out: &mut Output) -> Code {
    let wanted = code.to_ascii_uppercase();
    match codes::find(&wanted) {
        Some(c) => {
            out.line(format!("{}: {}", c.code, c.title));
            OK
        }
        None => {
            let d = Diagnostic::error("E0902", format!("there is no code `{code}`"));
            let near = did_you_mean(&wanted, codes::CODES.iter().map(|c| c.code));
            out.findings(&Findings::of(match near {
                Some(n) => d.help(format!("did you mean {n}?")),
                None => d.help("codes are written like E0301 and W0001"),
            }));
            ERROR
        }
    }
}
