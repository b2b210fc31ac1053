//! The timeline as text: one row a rank, one column a unit of time.

use super::{Timeline, time};
use crate::schedule::Work;
use crate::schedule::certify::Certificate;
use std::fmt::Write;

/// Rows of more characters than about this are cut in the middle.
const MAX_COLUMNS: usize = 240;

/// With more units of time than this there is no column for each.
const MOST_COLUMNS: usize = 1 << 16;

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Timeline {
    pub fn text(&self) -> String {
        let mut out = format!("{}\n\n", self.title());
        match self.grid() {
            Some(rows) => self.columns(rows, &mut out),
            None => self.lists(&mut out),
        }
        let s = &self.simulation;
        if self.unit != "units" {
            let all: Vec<String> = self.turns.iter().map(u64::to_string).collect();
            let _ = write!(out, "\nturns of the loop, by stage: {}", all.join(" "));
        }
        let modelled = self.machine.as_ref().map_or(String::new(), |m| format!(", modelled for {m}"));
        let _ = writeln!(
            out,
            "\nmakespan {} {}, bubble {:.2} %{modelled}",
            time(s.makespan),
            self.unit,
            100.0 * s.bubble_fraction()
        );
        if self.steps > 1 {
            let (took, bubble) = (time(self.between), 100.0 * self.bubble_between());
            let _ = writeln!(out, "a step between others takes {took} {}, bubble {bubble:.2} %", self.unit);
        }
        let peaks = |all: &[usize]| {
            let same = all.windows(2).all(|w| w[0] == w[1]);
            if same && all.len() > 1 {
                return format!("{} on all", all[0]);
            }
            all.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
        };
        let _ = write!(out, "activations of a stage in memory, at most, by rank: {}", peaks(&s.peak_activations));
        if s.peak_until_input != s.peak_activations {
            let _ = write!(out, " (until I: {})", peaks(&s.peak_until_input));
        }
        out.push('\n');
        out
    }

    /// What was shown of the step's communication.
    pub fn certificate_text(&self) -> String {
        let mut out = format!(
            "certified free of deadlock, with no buffers: {} obligations\n{}",
            self.certificate.obligations(),
            shown(&self.certificate)
        );
        if let Some(c) = &self.of_ranks {
            let _ = writeln!(
                out,
                "so are the lists of functions, sends and receives that the ranks run: {} obligations\n{}",
                c.obligations(),
                shown(c).trim_end()
            );
        }
        out
    }

    /// The cells of each rank's row where all times are whole; a cell is the largest time that they are multiples of.
    fn grid(&self) -> Option<Vec<Vec<String>>> {
        let chunked = self.chunked();
        let mut unit = 0;
        for x in self.simulation.times.iter().flatten().flatten() {
            if x.fract() != 0.0 || *x > 1e9 {
                return None;
            }
            unit = gcd(unit, *x as usize);
        }
        let (unit, end) = (unit.max(1), self.simulation.makespan as usize);
        if end / unit > MOST_COLUMNS {
            return None;
        }
        let row = |rank: usize| {
            let mut cells = vec![".".to_string(); end / unit];
            for (a, [start, end]) in self.actions(rank) {
                for (k, at) in (start as usize / unit..end as usize / unit).enumerate() {
                    cells[at] = if k == 0 { self.name(a, chunked) } else { "=".to_string() };
                }
            }
            cells
        };
        Some((0..self.table.ranks.len()).map(row).collect())
    }

    fn columns(&self, rows: Vec<Vec<String>>, out: &mut String) {
        let width = rows.iter().flatten().map(String::len).max().unwrap_or(1);
        let numbers = (rows.len().saturating_sub(1)).to_string().len();
        let shown = (MAX_COLUMNS / (width + 1)).max(16);
        for (rank, row) in rows.iter().enumerate() {
            let mut line = format!("rank {rank:>numbers$} ");
            // Of long rows the beginning and the end say what they are like.
            let (head, tail) =
                if row.len() > shown { (shown * 2 / 3, row.len() - shown / 3) } else { (row.len(), row.len()) };
            for cell in &row[..head] {
                let _ = write!(line, " {cell:<width$}");
            }
            if head < tail {
                line += " ..";
            }
            for cell in &row[tail..] {
                let _ = write!(line, " {cell:<width$}");
            }
            *out += line.trim_end();
            out.push('\n');
        }
        if self.table.ranks.iter().flatten().any(|a| a.op == Work::B) {
            *out += "B is I and W in one, `=` the rest of an action, `.` idle time\n";
        } else {
            *out += "`.` is idle time\n";
        }
    }

    /// Where times are no whole numbers: actions in order, with a point where the rank waits.
    fn lists(&self, out: &mut String) {
        let chunked = self.chunked();
        for rank in 0..self.table.ranks.len() {
            let _ = write!(out, "rank {rank} ");
            let mut last = 0.0;
            for (a, [start, end]) in self.actions(rank) {
                *out += if start > last { " . " } else { " " };
                *out += &self.name(a, chunked);
                last = end;
            }
            out.push('\n');
        }
    }
}

/// What a certificate shows, a line each.
fn shown(c: &Certificate) -> String {
    let mut out = String::new();
    let told = [
        ("events end, for no ranks wait in a circle", c.events),
        ("receives meet the send of the same message, shape and size", c.rendezvous),
        ("collectives are called alike by all their members", c.collectives),
        ("orders of communicators with common ranks are the same on them", c.launches),
        ("reads find the message that they need", c.reads),
        ("slots are written again after their last reader", c.reuses),
        ("waits between streams are signalled", c.waits),
    ];
    for (what, n) in told.into_iter().filter(|t| t.1 > 0) {
        let _ = writeln!(out, "{n:>8}  {what}");
    }
    out
}
