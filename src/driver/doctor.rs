//! What this machine offers to programs.

use super::cache::Cache;
use super::options::processors;
use super::show;
use crate::codegen::cpu::Target;
use crate::runtime::device::cuda;
use crate::runtime::device::product::Unit;
use crate::types::counted;

pub struct Report {
    pub facts: Vec<(&'static str, String)>,
    /// Why nothing can be run here.
    pub problem: Option<String>,
}

/// `threads` as asked for; 0 for all. `cache`: where compiled programs are kept.
pub fn report(threads: usize, cache: Option<&Cache>) -> Report {
    let mut facts = vec![("partita", env!("CARGO_PKG_VERSION").to_string())];
    let target = Target::host();
    let problem = match &target {
        Ok(t) => {
            facts.push(("target", t.name().to_string()));
            None
        }
        Err(why) => Some(why.clone()),
    };
    facts.push(("products", Unit::best().name().to_string()));
    facts.push(("processors", processors().to_string()));
    facts.push(("threads", if threads == 0 { processors() } else { threads }.to_string()));
    if let Some((total, free)) = memory() {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        facts.push(("memory", format!("{:.1} of {:.1} GiB free", gib(free), gib(total))));
    }
    facts.extend(cuda::report());
    facts.push(("cache", cache.map_or("off".to_string(), kept)));
    Report { facts, problem }
}

/// The folder of the cache and what it holds.
fn kept(cache: &Cache) -> String {
    let folder = cache.folder().display();
    match cache.held() {
        Ok(held) => format!("{folder}: {}, {}", counted(held.entries, "program"), show::bytes(held.bytes)),
        Err(why) => format!("{folder}: not used, {why}"),
    }
}

/// Bytes of memory in all, and available.
pub fn memory() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find(|l| l.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|k| k * 1024)
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}
