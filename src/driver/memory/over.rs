//! Limits: the errors of what does not fit.

use super::{Needed, Stage, show};
use crate::diag::Diagnostic;
use crate::driver::findings::{Findings, span_of};
use crate::memory::Entry;
use crate::program::Source;

impl Needed {
    /// The error where the peak of a run, which writes a checkpoint at its end at the latest, is over a limit: it points at
    /// what takes most. Of several ranks each has the limit for itself, and the checkpoint is not of one of them.
    pub fn over(&self, limit: u64) -> Option<Box<Findings>> {
        let copy = if self.ranks == 1 { self.checkpoint_bytes } else { 0 };
        let need = |s: &Stage| (s.report.peak_bytes + self.scratch_bytes + copy) as u64;
        let most = self.most();
        if need(most) <= limit {
            return None;
        }
        let who = match (self.ranks, self.stages.len()) {
            (1, _) => "the program needs".to_string(),
            (_, 1) => "each rank needs".to_string(),
            _ => needs(&most.ranks),
        };
        let (needed, limits) = (show(need(most)), show(limit));
        let mut d = Diagnostic::error("E0604", format!("{who} {needed}, more than the limit of {limits}"));
        let sources = &self.graphs.findings.sources;
        let place = |e: &Entry| {
            span_of(&Source { file: e.file.clone(), line: e.line, column: e.column, ..Source::default() }, sources)
        };
        let placed = most.report.by_source.iter().filter_map(|e| place(e).map(|span| (e, span)));
        for (shown, (e, span)) in placed.take(3).enumerate() {
            let text = format!("{} of {}: `{}`", show(e.bytes as u64), e.category, e.value);
            d = if shown == 0 { d.at(span, text) } else { d.and(span, text) };
        }
        if self.stages.len() > 1 {
            let at = &most.report.peak_at;
            d = d.with_note(format!("in {}, at `{}`", at.told(), at.value));
        }
        let others = self.stages.iter().filter(|s| s.coordinate != most.coordinate && need(s) > limit);
        for s in others.take(8) {
            d = d.with_note(format!("{} {}", needs(&s.ranks), show(need(s))));
        }
        if copy > 0 {
            let copy = show(copy as u64);
            d = d.with_note(format!(
                "{copy} of it are a copy, while a checkpoint is written: `train --no-save` takes none"
            ));
        }
        let cure = match (self.ranks, self.stages.len()) {
            (1, _) => {
                "use a smaller batch, `microbatches` or `recompute auto(memory = ..)` in a plan, or a lower precision"
            }
            (_, 1) => {
                "use more ranks, a higher level of `zero`, `recompute auto(memory = ..)`, `microbatches`, or a lower precision"
            }
            _ => {
                "use more stages or microbatches, a schedule that keeps less, as `1f1b` or `v_min`, `recompute`, a higher level of `zero`, or a lower precision"
            }
        };
        let mut f = Findings { sources: sources.clone(), ..Findings::default() };
        f.sink.push(d.help(cure));
        Some(Box::new(f))
    }

    /// The error where no recomputation has it fit into what the plan allows.
    pub fn short(&self) -> Option<Box<Findings>> {
        let mut f = Findings { sources: self.graphs.findings.sources.clone(), ..Findings::default() };
        f.sink.push(self.graphs.short.clone()?);
        Some(Box::new(f))
    }
}

fn needs(ranks: &[usize]) -> String {
    let verb = if ranks.len() == 1 { "needs" } else { "need" };
    format!("{} {verb}", told(ranks))
}

/// Ranks by number: `rank 3`, `ranks 4 to 7`, `ranks 0, 2, 4 and 5 more`.
pub fn told(ranks: &[usize]) -> String {
    const SHOWN: usize = 4;
    let list = |part: &[usize]| part.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match ranks {
        [one] => format!("rank {one}"),
        [first, .., last] if ranks.len() > 2 && last - first + 1 == ranks.len() => format!("ranks {first} to {last}"),
        _ if ranks.len() <= SHOWN => format!("ranks {}", list(ranks)),
        _ => format!("ranks {} and {} more", list(&ranks[..SHOWN - 1]), ranks.len() - SHOWN + 1),
    }
}
