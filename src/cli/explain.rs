//! `partita explain CODE`: the page of a code.

use super::output::Output;
use super::{Code, ERROR, OK};
use crate::diag::{Diagnostic, codes, did_you_mean, explain};
use crate::driver::Findings;

pub fn run(code: &str, out: &mut Output) -> Code {
    let wanted = code.to_ascii_uppercase();
    if let Some(page) = explain::page(&wanted) {
        out.text(page);
        return OK;
    }
    let d = Diagnostic::error("E0902", format!("there is no code `{code}`"));
    let near = did_you_mean(&wanted, codes::CODES.iter().map(|c| c.code));
    out.findings(&Findings::of(match near {
        Some(n) => d.help(format!("did you mean {n}?")),
        None => d.help("codes are written like E0301 and W0001"),
    }));
    ERROR
}
