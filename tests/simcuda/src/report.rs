//! What the process has done on its software devices: counts of each kernel, and faults. As JSON.

use crate::check::counters::Counters;
use crate::check::fault::Fault;
use crate::config::Config;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;

#[derive(Default)]
struct Report {
    /// By device and kernel.
    kernels: BTreeMap<(usize, String), Counters>,
    faults: Vec<(usize, Fault)>,
    /// Collectives: by name, calls and bytes that this process sent into them.
    collectives: BTreeMap<String, (u64, u64)>,
    /// What is no error but is worth a look, each once.
    notes: Vec<String>,
}

static REPORT: Mutex<Option<Report>> = Mutex::new(None);

fn with<R>(f: impl FnOnce(&mut Report) -> R) -> R {
    let mut guard = REPORT.lock().unwrap_or_else(|p| p.into_inner());
    f(guard.get_or_insert_default())
}

pub fn kernel(device: usize, name: &str, counters: &Counters) {
    with(|r| match r.kernels.get_mut(&(device, name.to_string())) {
        Some(sums) => sums.add(counters),
        None => {
            r.kernels.insert((device, name.to_string()), *counters);
        }
    });
}

/// Notes a fault and prints it, for whoever looks at the output of a test that failed.
pub fn fault(device: usize, fault: &Fault) {
    if !Config::get().quiet {
        eprintln!("software GPU {device}: {fault}");
    }
    with(|r| r.faults.push((device, fault.clone())));
}

pub fn note(text: String) {
    with(|r| {
        if !r.notes.contains(&text) {
            r.notes.push(text);
        }
    });
}

pub fn collective(name: &str, bytes: u64) {
    with(|r| {
        let sums = r.collectives.entry(name.to_string()).or_default();
        sums.0 += 1;
        sums.1 += bytes;
    });
}

/// Forgets everything.
pub fn reset() {
    with(|r| *r = Report::default());
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if (c as u32) < 32 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// `{"kernels": [{"device", "name", counts ..}], "collectives": [..], "faults": [{"device", "kind", "kernel", "line",
/// "block", "thread", "message"}], "notes": [..]}`
pub fn json() -> String {
    with(|r| {
        let kernels = r.kernels.iter().map(|((device, name), c)| {
            let counts: String = c.fields().iter().map(|(k, v)| format!(", {}: {v}", quoted(k))).collect();
            format!("{{\"device\": {device}, \"name\": {}{counts}}}", quoted(name))
        });
        let faults = r.faults.iter().map(|(device, f)| {
            let place = f.place.as_ref().map_or(String::new(), |p| {
                let [x, y, z] = p.block;
                format!(
                    ", \"kernel\": {}, \"line\": {}, \"block\": [{x}, {y}, {z}], \"thread\": {}",
                    quoted(&p.kernel),
                    p.line,
                    p.thread
                )
            });
            let (kind, message) = (quoted(f.kind.name()), quoted(&f.message));
            format!("{{\"device\": {device}, \"kind\": {kind}{place}, \"message\": {message}}}")
        });
        let collectives = r.collectives.iter().map(|(name, (calls, bytes))| {
            format!("{{\"name\": {}, \"calls\": {calls}, \"bytes\": {bytes}}}", quoted(name))
        });
        let list = |items: Vec<String>| {
            if items.is_empty() { "[]".to_string() } else { format!("[\n    {}\n  ]", items.join(",\n    ")) }
        };
        format!(
            "{{\n  \"kernels\": {},\n  \"collectives\": {},\n  \"faults\": {},\n  \"notes\": {}\n}}\n",
            list(kernels.collect()),
            list(collectives.collect()),
            list(faults.collect()),
            list(r.notes.iter().map(|n| quoted(n)).collect())
        )
    })
}

/// Writes the report to the file that `SIMCUDA_REPORT` names; `%p` there is the process's number.
pub fn write() {
    if let Some(path) = &Config::get().report {
        let path = path.replace("%p", &std::process::id().to_string());
        if let Err(e) = std::fs::write(&path, json()) {
            eprintln!("software GPU: {path}: {e}");
        }
    }
}
