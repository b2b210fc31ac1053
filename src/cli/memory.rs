//! `partita memory`: the exact peak, and who is to blame.

use super::args::MemoryArgs;
use super::output::Output;
use super::{Code, OK, train};
use crate::driver::memory::{self, Needed};
use crate::source::Disk;
use crate::types::{counted, grouped};

/// Lines by source that are shown.
const SHOWN: usize = 20;

pub fn run(args: &MemoryArgs, threads: usize, out: &mut Output) -> Code {
    let needed = match memory::needed(&args.compile.options(threads), &Disk) {
        Ok(n) => n,
        Err(findings) => return out.findings(&findings),
    };
    train::warnings(&needed.graphs.findings, out);
    if args.json {
        out.line(format!("{:#}", needed.json()));
    } else {
        table(&needed, args.all, out);
    }
    match needed.short().or_else(|| args.limit.and_then(|limit| needed.over(limit))) {
        Some(findings) => out.findings(&findings),
        None => OK,
    }
}

fn table(n: &Needed, all: bool, out: &mut Output) {
    let r = &n.report;
    let peak = r.peak_bytes as u64;
    let many = n.ranks > 1;
    if let Some(plan) = n.plan.as_ref().filter(|_| many) {
        let mesh: Vec<String> = n.mesh.iter().map(|(name, size)| format!("{name} = {size}")).collect();
        let staged = n.graphs.sharding.as_ref().is_some_and(|s| s.table.is_some());
        let which = if staged { "; figures are of the stage that needs most" } else { ", all alike" };
        out.line(format!("plan {plan}: {} ({}){which}", mesh.join(", "), counted(n.ranks, "rank")));
    }
    let of = if many { " of each rank" } else { "" };
    out.line(format!("peak{of} {} ({} bytes)", memory::show(peak), grouped(peak)));
    out.line(format!("in {}, at `{}`", r.peak_at.action, r.peak_at.value));
    if r.offloaded_bytes > 0 {
        out.line(format!("beside it {} in files", memory::show(r.offloaded_bytes as u64)));
    }
    if n.scratch_bytes > 0 {
        out.line(format!("beside it {} of working memory of the threads", memory::show(n.scratch_bytes as u64)));
    }
    let once = if many { ", once for all ranks of a process" } else { "" };
    out.line(format!("while a checkpoint is written {} more{once}", memory::show(n.checkpoint_bytes as u64)));
    if let Some(one) = n.one_device {
        let (share, all) = (peak as f64 / one as f64, n.ranks as f64 * peak as f64 / one as f64);
        let one = memory::show(one as u64);
        let share = match 100.0 * share {
            percent if percent < 0.1 => format!("{percent:.1e}"),
            percent => format!("{percent:.1}"),
        };
        out.line(format!("one device needs {one}: {share} % of it on each rank, {all:.2} times as much in all"));
    }
    for line in &n.uneven {
        out.line(format!("uneven: {line}; every rank has room for the largest"));
    }
    match &n.again {
        Some(again) => {
            out.line(format!("computed again in the backward pass: {}", again.more()));
            again.lines().into_iter().for_each(|line| out.line(format!("  {line}")));
        }
        None if n.graphs.again.is_some() => out.line("computed again in the backward pass: nothing"),
        None => {}
    }
    out.line("\nby category");
    for (name, bytes) in r.by_category.iter().filter(|(_, b)| **b > 0) {
        out.line(format!("  {name:<18} {:>14}", grouped(*bytes as u64)));
    }
    out.line("\nby source");
    let shown = if all { r.by_source.len() } else { SHOWN.min(r.by_source.len()) };
    for e in &r.by_source[..shown] {
        let place = if e.file.is_empty() { String::new() } else { format!("{}:{}:{}", e.file, e.line, e.column) };
        out.line(format!("  {:>14}  {:<16} {}  {place}", grouped(e.bytes as u64), e.category, e.value));
    }
    if shown < r.by_source.len() {
        let rest: usize = r.by_source[shown..].iter().map(|e| e.bytes).sum();
        out.line(format!("  {:>14}  {} further places (--all)", grouped(rest as u64), r.by_source.len() - shown));
    }
}
