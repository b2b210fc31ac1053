//! `partita memory`: the exact peak of each rank, who is to blame, and what is there at any instant.

use super::args::MemoryArgs;
use super::output::Output;
use super::{Code, OK, schedule, train};
use crate::driver::Outcome;
use crate::driver::memory::{self, More, Needed, Shown, Stage, told};
use crate::source::Disk;
use crate::types::{counted, grouped};

/// Lines by source, and arrays that are alive, that are shown.
const SHOWN: usize = 20;

pub fn run(args: &MemoryArgs, threads: usize, out: &mut Output) -> Code {
    let needed = match memory::needed(&args.compile.options(threads), &Disk) {
        Ok(n) => n,
        Err(findings) => return out.findings(&findings),
    };
    train::warnings(&needed.graphs.findings, out);
    if let Err(findings) = show(&needed, args, out) {
        return out.findings(&findings);
    }
    match needed.short().or_else(|| args.limit.and_then(|limit| needed.over(limit))) {
        Some(findings) => out.findings(&findings),
        None => OK,
    }
}

fn show(n: &Needed, args: &MemoryArgs, out: &mut Output) -> Outcome<()> {
    let stage = n.of_rank(args.rank)?;
    let other = args.routine.as_ref().map(|routine| n.running(stage, routine)).transpose()?;
    let stage = other.as_ref().unwrap_or(stage);
    let shown = args.at.as_ref().map(|at| n.at(stage, at)).transpose()?;
    let text = if args.json {
        let alive = shown.as_ref().map(|s| (stage, s));
        let only = (args.rank.is_some() || args.routine.is_some()).then_some(stage);
        format!("{:#}\n", n.json(More { only, alive, timeline: args.timeline }))
    } else if args.html {
        n.page().html()
    } else {
        let mut text = Text(String::new());
        match &shown {
            Some(shown) => alive(n, stage, shown, args.all, &mut text),
            None if args.timeline => timeline(n, stage, &mut text),
            None => table(n, stage, args, &mut text),
        }
        text.0
    };
    match &args.output {
        Some(path) => schedule::write(path, &text, &n.graphs.findings.sources),
        None => {
            out.text(&text);
            Ok(())
        }
    }
}

/// Lines so far.
struct Text(String);

impl Text {
    fn line(&mut self, line: impl AsRef<str>) {
        self.0.push_str(line.as_ref());
        self.0.push('\n');
    }
}

/// The first lines of all forms: of which ranks it is.
fn plan(n: &Needed, stage: &Stage, asked: bool, out: &mut Text) {
    let Some(plan) = n.plan.as_ref().filter(|_| n.ranks > 1) else { return };
    let mesh: Vec<String> = n.mesh.iter().map(|(name, size)| format!("{name} = {size}")).collect();
    let which = match (n.stages.len(), asked) {
        (1, _) => ", all alike".to_string(),
        (_, true) => format!("; figures are of {}", told(&stage.ranks)),
        _ => format!("; figures are of {}, which {} most", told(&stage.ranks), needs(&stage.ranks)),
    };
    out.line(format!("plan {plan}: {} ({}){which}", mesh.join(", "), counted(n.ranks, "rank")));
}

fn needs(ranks: &[usize]) -> &'static str {
    if ranks.len() == 1 { "needs" } else { "need" }
}

fn table(n: &Needed, stage: &Stage, args: &MemoryArgs, out: &mut Text) {
    let r = &stage.report;
    let peak = r.peak_bytes as u64;
    let many = n.ranks > 1;
    plan(n, stage, args.rank.is_some(), out);
    let of = if many { " of each rank" } else { "" };
    out.line(format!("peak{of} {} ({} bytes)", memory::show(peak), grouped(peak)));
    out.line(format!("in {}, at `{}`", r.peak_at.told(), r.peak_at.value));
    if r.offloaded_bytes > 0 {
        out.line(format!("beside it {} in files", memory::show(r.offloaded_bytes as u64)));
    }
    if n.scratch_bytes > 0 {
        out.line(format!("beside it {} of working memory of the threads", memory::show(n.scratch_bytes as u64)));
    }
    let once = if many { ", once for all ranks of a process" } else { "" };
    out.line(format!("while a checkpoint is written {} more{once}", memory::show(n.checkpoint_bytes as u64)));
    if let Some(one) = n.one_device {
        let all: usize = n.stages.iter().map(|s| s.ranks.len() * s.report.peak_bytes).sum();
        let (share, all) = (peak as f64 / one as f64, all as f64 / one as f64);
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
    if n.stages.len() > 1 {
        by_stage(n, out);
    }
    out.line("\nby category");
    for (name, bytes) in r.by_category.iter().filter(|(_, b)| **b > 0) {
        out.line(format!("  {name:<18} {:>14}", grouped(*bytes as u64)));
    }
    out.line("\nby source");
    let shown = if args.all { r.by_source.len() } else { SHOWN.min(r.by_source.len()) };
    for e in &r.by_source[..shown] {
        out.line(format!("  {:>14}  {:<16} {}  {}", grouped(e.bytes as u64), e.category, e.value, e.place()));
    }
    if shown < r.by_source.len() {
        let rest: usize = r.by_source[shown..].iter().map(|e| e.bytes).sum();
        out.line(format!("  {:>14}  {} further places (--all)", grouped(rest as u64), r.by_source.len() - shown));
    }
}

/// A line for the ranks of each stage.
fn by_stage(n: &Needed, out: &mut Text) {
    out.line(format!("\n{:<24} {:>14} {:>14} {:>10}  at", "by rank", "bytes", "activations", "in flight"));
    for s in &n.stages {
        let r = &s.report;
        out.line(format!(
            "  {:<22} {:>14} {:>14} {:>10}  {}",
            told(&s.ranks),
            grouped(r.peak_bytes as u64),
            grouped(r.by_category["activations"] as u64),
            n.instants(s).in_flight(),
            r.peak_at.told()
        ));
    }
}

/// What is there at an instant, array by array.
fn alive(n: &Needed, stage: &Stage, shown: &Shown, all: bool, out: &mut Text) {
    let m = &shown.moment;
    plan(n, stage, true, out);
    out.line(format!(
        "{} bytes in use at instant {}, of {} that a rank has: in {}, at `{}`",
        grouped(shown.in_use as u64),
        m.number,
        grouped(shown.bytes as u64),
        m.name(),
        m.value
    ));
    if !m.in_flight.is_empty() {
        let each: Vec<String> = m.in_flight.iter().map(|(m, b)| format!("{m}: {}", grouped(*b as u64))).collect();
        out.line(format!("activations of {} in flight, {}", counted(m.in_flight.len(), "microbatch"), each.join("; ")));
    }
    out.line(format!("\n{:>16}  {:<19} {:>10}  value", "bytes", "category", "microbatch"));
    let count = if all { shown.alive.len() } else { SHOWN.min(shown.alive.len()) };
    for l in &shown.alive[..count] {
        let e = &l.entry;
        let microbatch = l.microbatch.map_or_else(String::new, |m| m.to_string());
        let layer = if l.layer.is_empty() { String::new() } else { format!(" in {}", l.layer) };
        let line = format!(
            "{:>16}  {:<19} {microbatch:>10}  {}{layer}  {}",
            grouped(e.bytes as u64),
            e.category,
            e.value,
            e.place()
        );
        out.line(line.trim_end());
    }
    if count < shown.alive.len() {
        let rest: usize = shown.alive[count..].iter().map(|l| l.entry.bytes).sum();
        out.line(format!("{:>16}  {} further arrays (--all)", grouped(rest as u64), shown.alive.len() - count));
    }
}

/// A line for each instant.
fn timeline(n: &Needed, stage: &Stage, out: &mut Text) {
    let instants = n.instants(stage);
    let categories = instants.categories();
    plan(n, stage, true, out);
    let heads: String =
        categories.iter().map(|c| format!("  {:>14}", c.name().replace("gathered_parameters", "gathered"))).collect();
    out.line(format!("{:>7}  {:<12} {:>14}{heads}  value", "instant", "action", "bytes"));
    for m in &instants.moments {
        let all = instants.by_category(m);
        let each: String = categories.iter().map(|c| format!("  {:>14}", grouped(all[*c as usize] as u64))).collect();
        let sum = grouped(all.iter().sum::<usize>() as u64);
        out.line(format!("{:>7}  {:<12} {sum:>14}{each}  {}", m.number, m.name(), m.value));
    }
}
