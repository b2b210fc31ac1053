//! What environment variables choose. `docs/testing.md` lists them.

use std::sync::OnceLock;

#[derive(Debug, Clone)]
pub struct Config {
    /// `SIMCUDA_DEVICES`, 1.
    pub devices: usize,
    /// `SIMCUDA_MEMORY`, bytes of each device, with a suffix K, M or G; 1G.
    pub memory: usize,
    /// `SIMCUDA_ARCH`, 80 or 90 for compute capability 8.0, 9.0; 90.
    pub arch: u32,
    /// `SIMCUDA_CHECK`, a list of `uninitialised`, `races`, `warps`, `counters`, or `all`, or `bounds` for none of them; all.
    pub uninitialised: bool,
    pub races: bool,
    pub warp_races: bool,
    pub counters: bool,
    /// `SIMCUDA_STREAMS=late`: work waits until something needs it.
    pub late: bool,
    /// `SIMCUDA_ORDER=backwards`: blocks and warps run from the last to the first.
    pub backwards: bool,
    /// `SIMCUDA_LOSE=N` or `D:N`: the device (D, else the first) is lost at its launch N, counted from 1.
    pub lose: Option<(usize, u64)>,
    /// `SIMCUDA_BUDGET`, instructions of a warp in one block.
    pub budget: u64,
    /// `SIMCUDA_REPORT`, a file that the report is written to when the process ends or `simcuda_report` is called.
    pub report: Option<String>,
    /// `SIMCUDA_QUIET`: faults are not printed.
    pub quiet: bool,
    /// `SIMCUDA_TIMEOUT`, seconds that a collective waits for other ranks; 30.
    pub timeout: f64,
}

/// The checks that a list names.
pub struct Checks {
    pub uninitialised: bool,
    pub races: bool,
    pub warps: bool,
    pub counters: bool,
}

pub fn checks(list: &str) -> Checks {
    let has = |name: &str| list.split(',').any(|w| w.trim() == name || w.trim() == "all");
    Checks { uninitialised: has("uninitialised"), races: has("races"), warps: has("warps"), counters: has("counters") }
}

fn bytes(text: &str) -> Option<usize> {
    let (digits, unit) = match text.trim().char_indices().last()? {
        (i, 'K' | 'k') => (&text.trim()[..i], 1 << 10),
        (i, 'M' | 'm') => (&text.trim()[..i], 1 << 20),
        (i, 'G' | 'g') => (&text.trim()[..i], 1 << 30),
        _ => (text.trim(), 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

impl Config {
    /// Reads the variables through `get`. What cannot be read counts as not set.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Config {
        let number = |name: &str| get(name).and_then(|v| v.trim().parse::<u64>().ok());
        let checks = checks(&get("SIMCUDA_CHECK").unwrap_or_else(|| "all".into()));
        let lose = get("SIMCUDA_LOSE").and_then(|v| {
            let (device, launch) = v.split_once(':').unwrap_or(("0", &v));
            Some((device.trim().parse().ok()?, launch.trim().parse().ok()?))
        });
        Config {
            devices: number("SIMCUDA_DEVICES").unwrap_or(1).min(64) as usize,
            memory: get("SIMCUDA_MEMORY").and_then(|v| bytes(&v)).unwrap_or(1 << 30).max(1 << 16),
            arch: number("SIMCUDA_ARCH").unwrap_or(90) as u32,
            uninitialised: checks.uninitialised,
            races: checks.races,
            warp_races: checks.warps,
            counters: checks.counters,
            late: get("SIMCUDA_STREAMS").is_some_and(|v| v == "late"),
            backwards: get("SIMCUDA_ORDER").is_some_and(|v| v == "backwards"),
            lose,
            budget: number("SIMCUDA_BUDGET").unwrap_or(1 << 30),
            report: get("SIMCUDA_REPORT").filter(|v| !v.is_empty()),
            quiet: get("SIMCUDA_QUIET").is_some_and(|v| v != "0"),
            timeout: get("SIMCUDA_TIMEOUT").and_then(|v| v.parse().ok()).unwrap_or(30.0),
        }
    }

    /// The configuration of this process, read once.
    pub fn get() -> &'static Config {
        static CONFIG: OnceLock<Config> = OnceLock::new();
        CONFIG.get_or_init(|| Config::read(|name| std::env::var(name).ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_choose_and_nonsense_counts_as_not_set() {
        let set = |name: &str| {
            let value = match name {
                "SIMCUDA_DEVICES" => "4",
                "SIMCUDA_MEMORY" => "64M",
                "SIMCUDA_CHECK" => "races, counters",
                "SIMCUDA_LOSE" => "2:17",
                "SIMCUDA_ARCH" => "x",
                _ => return None,
            };
            Some(value.to_string())
        };
        let c = Config::read(set);
        assert_eq!((c.devices, c.memory, c.arch, c.lose), (4, 64 << 20, 90, Some((2, 17))));
        assert!(c.races && c.counters && !c.uninitialised && !c.warp_races && !c.late);
    }
}
