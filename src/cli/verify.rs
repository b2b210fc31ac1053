//! `partita verify`: a plan's program against the program of one device.

use super::args::VerifyArgs;
use super::output::Output;
use super::{Code, ERROR, OK};
use crate::driver::scale::{self, Verified};
use crate::source::Disk;
use crate::types::counted;
use crate::types::grouped;

pub fn run(args: &VerifyArgs, threads: usize, out: &mut Output) -> Code {
    let done = match scale::verified(&args.compile.options(threads), args.steps, args.full, &Disk) {
        Ok(d) => d,
        Err(findings) => return out.findings(&findings),
    };
    out.findings(&done.findings);
    said(&done, out);
    if done.report.differs.is_none() { OK } else { ERROR }
}

fn said(done: &Verified, out: &mut Output) {
    let r = &done.report;
    out.line(format!("plan {}: {} ({})", done.plan, done.mesh, counted(r.ranks, "rank")));
    if !done.sizes.is_empty() {
        let all: Vec<String> = done.sizes.iter().map(|(n, s)| format!("{n} = {s}")).collect();
        out.line(format!("sizes: {}", all.join(", ")));
    }
    done.notes.iter().for_each(|n| out.line(n));
    let compared = grouped(r.compared as u64);
    let steps = counted(r.steps, "step");
    if let Some(most) = r.noisy.iter().map(|n| n.1).max_by(f64::total_cmp) {
        let names: Vec<String> = r.noisy.iter().take(3).map(|n| format!("`{}`", n.0)).collect();
        let more = if r.noisy.len() > 3 { format!(" and {} more", r.noisy.len() - 3) } else { String::new() };
        let names = names.join(", ");
        out.line(format!(
            "differences of {names}{more} are at most {most:.1e}, no more than noise in the last bits makes of them"
        ));
    }
    match &r.differs {
        None if r.compared == 0 => out.line("nothing was compared"),
        None => {
            out.line(format!(
                "the same as one device: {compared} arrays over {steps}, largest difference {:.1e}",
                r.largest
            ));
        }
        Some(d) => {
            let at: Vec<String> = d.coordinate.iter().map(usize::to_string).collect();
            let cut = if r.in_stages { ", cut into stages" } else { "" };
            let when = if d.step == 0 { "initial values".to_string() } else { format!("step {}", d.step) };
            out.line(format!(
                "differs from one device{cut}, {when}: `{}`[{}] on rank {}",
                d.name,
                at.join(", "),
                d.rank
            ));
            out.line(format!("  one device {:e}, rank {} {:e}", d.one, d.rank, d.many));
            if let Some(place) = &done.place {
                out.line(format!("  {place}"));
            }
        }
    }
}
