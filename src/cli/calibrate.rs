//! `partita calibrate`: what this machine reaches.

use super::args::CalibrateArgs;
use super::output::Output;
use super::{Code, OK};
use crate::driver::options::processors;
use crate::driver::{calibrate, overwrite};

pub fn run(args: &CalibrateArgs, threads: usize, out: &mut Output) -> Code {
    let ranks = usize::from(args.ranks);
    let threads = if threads == 0 { (processors() / ranks).max(1) } else { threads };
    let machine = match calibrate::calibrated(ranks, threads) {
        Ok(m) => m,
        Err(findings) => return out.findings(&findings),
    };
    let text = format!("{:#}\n", serde_json::json!(machine));
    match args.output.as_ref().map(|path| (path, std::fs::write(path, &text))) {
        None => out.text(&text),
        Some((_, Ok(()))) => {}
        Some((path, Err(e))) => return out.findings(&overwrite::unwritten(path, &e)),
    }
    OK
}
