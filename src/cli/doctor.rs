//! `partita doctor`: what this machine offers.

use super::output::Output;
use super::{Code, ERROR, OK, cache};
use crate::driver::doctor;

pub fn run(threads: usize, out: &mut Output) -> Code {
    let report = doctor::report(threads, cache::cache().as_ref());
    for (name, value) in &report.facts {
        out.line(format!("{name:<12} {value}"));
    }
    match report.problem {
        None => OK,
        Some(problem) => {
            out.say(format!("error: {problem}"));
            ERROR
        }
    }
}
