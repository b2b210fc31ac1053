//! `partita fmt`: files in one style, in place.

use super::args::FmtArgs;
use super::output::Output;
use super::{Code, ERROR, OK};
use crate::diag::Diagnostic;
use crate::driver::{Findings, format};
use std::io::Read;
use std::path::Path;

pub fn run(args: &FmtArgs, out: &mut Output) -> Code {
    let mut code = OK;
    for path in &args.files {
        let one = if path == Path::new("-") { standard_input(args.check, out) } else { file(path, args.check, out) };
        let one = one.unwrap_or_else(|findings| out.findings(&findings));
        code = code.max(one);
    }
    code
}

fn file(path: &Path, check: bool, out: &mut Output) -> Result<Code, Box<Findings>> {
    let cannot = |code, what: &str, e: std::io::Error| {
        Findings::of(Diagnostic::error(code, format!("cannot {what} `{}`: {e}", path.display())).help("check the path"))
    };
    let text = std::fs::read_to_string(path).map_err(|e| cannot("E0207", "read", e))?;
    let formatted = format::text(&path.display().to_string(), &text)?;
    if formatted == text {
        return Ok(OK);
    }
    out.line(path.display().to_string());
    if check {
        return Ok(ERROR);
    }
    format::write(path, &formatted).map_err(|e| cannot("E0813", "write", e))?;
    Ok(OK)
}

fn standard_input(check: bool, out: &mut Output) -> Result<Code, Box<Findings>> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text).map_err(|e| {
        Findings::of(Diagnostic::error("E0207", format!("cannot read standard input: {e}")).help("it must be UTF-8"))
    })?;
    let formatted = format::text("<stdin>", &text)?;
    if check {
        return Ok(if formatted == text { OK } else { ERROR });
    }
    out.text(&formatted);
    Ok(OK)
}
