//! As `partita memory --html` shows it.

use super::{Needed, told};
use crate::inspect::memory::{Moment, Page, Ranks, Row};
use crate::program::Category;

/// Arrays at the peak that are listed.
const LISTED: usize = 200;

impl Needed {
    pub fn page(&self) -> Page {
        let file = self.graphs.findings.sources.files().next().map_or("", |(_, f)| f.name.as_str());
        let mesh: Vec<String> = self.mesh.iter().map(|(name, size)| format!("{name} = {size}")).collect();
        let title = match self.plan.as_ref().filter(|_| self.ranks > 1) {
            Some(plan) => format!("memory of {file}, plan {plan}: {}", mesh.join(", ")),
            None => format!("memory of {file}"),
        };
        let mut order: Vec<_> = self.stages.iter().collect();
        order.sort_by_key(|s| std::cmp::Reverse(s.report.peak_bytes));
        let all: Vec<_> = order.iter().map(|s| self.instants(s)).collect();
        let categories: Vec<Category> =
            Category::ALL.into_iter().filter(|c| all.iter().any(|i| i.categories().contains(c))).collect();
        let ranks = order.iter().zip(&all).map(|(s, instants)| {
            let moment = |m: &crate::memory::Moment| {
                let bytes = instants.by_category(m);
                Moment {
                    action: m.name(),
                    value: m.value.clone(),
                    bytes: categories.iter().map(|c| bytes[*c as usize]).collect(),
                    in_flight: m.in_flight.len(),
                }
            };
            let alive = self.at(s, "peak").map_or_else(|_| Vec::new(), |shown| shown.alive);
            let row = |l: &crate::memory::Living| Row {
                bytes: l.entry.bytes,
                category: l.entry.category,
                value: l.entry.value.clone(),
                layer: l.layer.clone(),
                microbatch: l.microbatch,
                place: l.entry.place(),
            };
            Ranks {
                name: told(&s.ranks),
                peak: s.report.peak_bytes,
                moments: instants.moments.iter().map(moment).collect(),
                largest: alive.iter().take(LISTED).map(row).collect(),
            }
        });
        Page { title, ranks: ranks.collect(), categories: categories.iter().map(|c| c.name()).collect() }
    }
}
