//! Collectives as a table for people.

use super::comm::{Comm, Entry, phase_name};
use super::sends;
use crate::ir::{CollectiveKind, Phase};
use crate::types::grouped;
use std::fmt::Write;

/// A line: a collective, and how many there are like it in other turns of a loop of the source.
struct Row<'a> {
    entry: &'a Entry,
    layer: String,
    alike: usize,
    bytes: f64,
}

/// A path or name with `*` for the numbers of turns.
pub(super) fn without_turns(text: &str) -> String {
    let plain = |part: &str| {
        // `gradient of block.0.wq`: words, each a path, or a number such as `0.25`.
        let words = part.split(' ').map(|w| {
            let path = !w.starts_with(|c: char| c.is_ascii_digit());
            let parts = w.split('.').map(|p| if path && p.parse::<u32>().is_ok() { "*" } else { p });
            parts.collect::<Vec<_>>().join(".")
        });
        words.collect::<Vec<_>>().join(" ")
    };
    plain(text)
}

/// Collectives that differ in the turn alone are one row.
fn rows(c: &Comm) -> Vec<Row<'_>> {
    let mut out: Vec<Row<'_>> = Vec::new();
    for e in &c.collectives {
        let layer = without_turns(&e.layer);
        let turns = layer != e.layer || without_turns(&e.value) != e.value;
        let alike = |r: &&mut Row<'_>| {
            let o = r.entry;
            turns
                && r.layer == layer
                && without_turns(&o.value) == without_turns(&e.value)
                && without_turns(&o.reason) == without_turns(&e.reason)
                && (o.kind, &o.axes, &o.layouts, &o.source) == (e.kind, &e.axes, &e.layouts, &e.source)
                && (o.phase, o.count, o.wire_bytes, o.dtype) == (e.phase, e.count, e.wire_bytes, e.dtype)
                // Two of one layer are two.
                && (o.layer != e.layer || o.value != e.value)
        };
        match out.iter_mut().find(alike) {
            Some(r) => (r.alike, r.bytes) = (r.alike + 1, r.bytes + e.wire_bytes),
            None => out.push(Row { entry: e, layer, alike: 1, bytes: e.wire_bytes }),
        }
    }
    out
}

/// Bytes, which uneven parts make fractional.
pub fn bytes(x: f64) -> String {
    let whole = grouped(x as u64);
    let rest = (x.fract() * 10.0).round() as u32;
    match rest {
        0 => whole,
        10 => grouped(x as u64 + 1),
        n => format!("{whole}.{n}"),
    }
}

/// `after every 100 steps`
pub(super) fn each(steps: u64) -> String {
    if steps == 1 { "after every step".to_string() } else { format!("after every {steps} steps") }
}

const HEADS: [&str; 9] = ["#", "collective", "axes", "sent bytes", "phase", "layer", "value", "source", "reason"];

impl Comm {
    fn cells(&self) -> Vec<[String; 9]> {
        let cells = |r: Row<'_>| {
            let e = r.entry;
            let kind = e.reduce.map_or_else(
                || e.kind.name().to_string(),
                |op| {
                    if op.name() == "sum" {
                        e.kind.name().to_string()
                    } else {
                        format!("{} {}", e.kind.name(), op.name())
                    }
                },
            );
            let times = if r.alike > 1 { format!(" x{}", r.alike) } else { String::new() };
            let (layer, value) = match r.alike {
                1 => (e.layer.clone(), e.value.clone()),
                _ => (r.layer.clone(), without_turns(&e.value)),
            };
            let turns = if e.count > 1 { format!(" ({} turns)", e.count) } else { String::new() };
            [
                e.id.to_string(),
                kind,
                e.axes.join(","),
                bytes(r.bytes),
                phase_name(e.phase).to_string(),
                format!("{layer}{times}{turns}").trim_start().to_string(),
                format!("{value}{}", if e.shape.is_empty() { "" } else { &e.layouts[1] }),
                e.source.as_ref().map_or_else(String::new, |p| format!("{}:{}", p.file, p.line)),
                if r.alike > 1 { without_turns(&e.reason) } else { e.reason.clone() },
            ]
        };
        rows(self).into_iter().map(cells).collect()
    }

    /// `plan p, dp = 2, tp = 4 (8 ranks), train step`
    pub fn title(&self) -> String {
        let axes: Vec<String> = self.mesh.iter().map(|(n, s)| format!("{n} = {s}")).collect();
        let ranks = self.ranks();
        let mesh = if axes.is_empty() { "no mesh".to_string() } else { axes.join(", ") };
        let count = if ranks == 1 { "1 rank".to_string() } else { format!("{ranks} ranks") };
        let step = if self.step == "train" { "training step" } else { "evaluation step" };
        format!("plan {}: {mesh} ({count}), {step}", self.plan)
    }

    /// The table and totals.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.title());
        if self.collectives.is_empty() && self.sent.is_empty() {
            out += match self.ranks() {
                1 => "one rank: nothing is exchanged\n",
                _ => "nothing is exchanged\n",
            };
            return out;
        }
        self.table(&mut out);
        let _ = writeln!(out, "\nsent per rank and step: {} bytes", bytes(self.wire_bytes()));
        for (name, totals) in [("by kind", self.by_kind()), ("by axis", self.by_axis())] {
            let all: Vec<String> = totals.iter().map(|(k, x)| format!("{k} {}", bytes(*x))).collect();
            let _ = writeln!(out, "  {name}: {}", all.join(";  "));
        }
        if let Some((every, outer)) = &self.outer {
            let _ = writeln!(out, "\nthe outer step, {}:", each(*every));
            outer.table(&mut out);
            let (once, mean) = (bytes(outer.wire_bytes()), bytes(self.mean_bytes()));
            let _ = writeln!(out, "\nsent per rank and outer step: {once} bytes; {mean} a step, with all others");
        }
        self.stages(&mut out);
        out
    }

    /// The collectives, a line each.
    fn table(&self, out: &mut String) {
        let mut table = vec![HEADS.map(str::to_string)];
        table.extend(self.cells());
        if let Some((axis, ranks)) = &self.pipeline {
            table.extend(sends::cells(&self.sent, self.first_sent(), (axis, *ranks)));
        }
        let width = |k: usize| table.iter().map(|r| r[k].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
        out.push('\n');
        for row in &table {
            let mut line = String::new();
            for (k, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Numbers to the right.
                let right = k == 0 || k == 3;
                let gap = if k == 0 { "" } else { "  " };
                let _ = if right { write!(line, "{gap}{cell:>width$}") } else { write!(line, "{gap}{cell:<width$}") };
            }
            *out += line.trim_end();
            out.push('\n');
        }
    }

    fn stages(&self, out: &mut String) {
        if self.pipeline.is_none() {
            return;
        }
        let _ = writeln!(
            out,
            "\nbetween stages, sent in a step (above: collectives of all stages, and means over the ranks):"
        );
        for (at, (sends, sent)) in self.by_stage().into_iter().enumerate() {
            let arrays = if sends == 1 { "array" } else { "arrays" };
            let _ = writeln!(out, "  rank {at} of the pipeline: {sends} {arrays}, {} bytes", bytes(sent as f64));
        }
    }
}

impl Entry {
    /// What is the same of collectives in other turns of a loop, or of other sizes.
    pub fn class(&self) -> (CollectiveKind, Vec<String>, Phase, String, String) {
        (self.kind, self.axes.clone(), self.phase, without_turns(&self.layer), without_turns(&self.value))
    }

    /// `3: all_gather over tp of n[batch, seq@tp, embed]: 2,048 bytes sent per rank, forward, block.0`
    pub fn title(&self, each: &str) -> String {
        let layer = if self.layer.is_empty() { String::new() } else { format!(", {}", self.layer) };
        format!(
            "{}: {} over {} of {}{}: {} bytes sent per rank and {each}, {}{layer}",
            self.id,
            self.kind.name(),
            self.axes.join(","),
            self.value,
            self.layouts[0],
            bytes(self.wire_bytes),
            phase_name(self.phase),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_numbers_between_points() {
        assert_eq!(without_turns("gradient of block.3.w2"), "gradient of block.*.w2");
        assert_eq!(without_turns("dot[embed]"), "dot[embed]");
        assert_eq!(without_turns("attention[key; scale = 0.25]"), "attention[key; scale = 0.25]");
    }

    #[test]
    fn bytes_have_a_digit_where_they_are_not_whole() {
        assert_eq!([1234.0, 0.5, 1234.96, 7.04].map(bytes), ["1,234", "0.5", "1,235", "7"]);
    }
}
