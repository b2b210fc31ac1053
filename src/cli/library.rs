//! `partita std MODULE`: what the standard library has.

use super::output::Output;
use super::{Code, ERROR, OK};
use crate::diag::{Diagnostic, did_you_mean};
use crate::driver::Findings;
use crate::driver::library::{modules, page, source};

pub fn run(module: Option<&str>, plain: bool, out: &mut Output) -> Code {
    let Some(module) = module else {
        for name in modules() {
            out.line(name);
        }
        return OK;
    };
    let text = if plain { source(module).map(str::to_string) } else { page(module) };
    if let Some(text) = text {
        out.text(&text);
        return OK;
    }
    let d = Diagnostic::error("E0902", format!("the standard library has no module `{module}`"));
    let known: Vec<&str> = modules().collect();
    out.findings(&Findings::of(match did_you_mean(module, known.iter().copied()) {
        Some(near) => d.help(format!("did you mean {near}?")),
        None => d.help(format!("its modules are {}", known.join(", "))),
    }));
    ERROR
}
