//! Collectives as one page that needs nothing else; a click on a heading sorts by it.

use super::comm::{Comm, phase_name};
use super::sends::Sent;
use super::table::{bytes, each};
use std::fmt::Write;

const STYLE: &str = "body{font:14px/1.45 system-ui,sans-serif;margin:2em;color:#1c2330}\
h1{font-size:1.2em}table{border-collapse:collapse;margin:1em 0}\
th,td{padding:.25em .7em;border-bottom:1px solid #d8dde6;text-align:left;vertical-align:top}\
th{cursor:pointer;background:#eef1f6;position:sticky;top:0}td.n{text-align:right;font-variant-numeric:tabular-nums}\
code{font:12.5px ui-monospace,monospace}tr:hover td{background:#f6f8fb}";

/// Sorts the rows of the first table by the column of the heading that is clicked; numbers by size.
const SCRIPT: &str = "document.querySelectorAll('#all th').forEach((th,k)=>{let up=1;th.onclick=()=>{\
const body=document.querySelector('#all tbody');const key=r=>r.cells[k].dataset.v??r.cells[k].textContent;\
[...body.rows].sort((a,b)=>{const x=key(a),y=key(b);const d=x-y;return up*(isNaN(d)?x.localeCompare(y):d)})\
.forEach(r=>body.append(r));up=-up}})";

/// Text as it stands in a page.
pub(super) fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number, by which rows are sorted, and how it is written.
fn number(x: f64, text: String) -> String {
    format!("<td class=\"n\" data-v=\"{x}\">{text}</td>")
}

fn cell(text: &str) -> String {
    format!("<td>{}</td>", plain(text))
}

impl Sent {
    fn row(&self, id: usize, (axis, ranks): (&str, u64)) -> String {
        let mean = self.bytes as f64 / ranks as f64;
        [
            number(id as f64, id.to_string()),
            cell("send"),
            cell(axis),
            number(2.0, "2".into()),
            cell(self.dtype.name()),
            number(mean, bytes(mean)),
            number(self.bytes as f64, bytes(self.bytes as f64)),
            number(self.count as f64, self.count.to_string()),
            cell(phase_name(self.phase)),
            cell(&self.layer),
            format!("<td>{}<br><code>{}</code></td>", plain(&self.value), plain(&self.layout)),
            cell(&self.source.as_ref().map_or_else(String::new, |p| p.to_string())),
            cell(&self.reason()),
        ]
        .concat()
        .replacen("<td", "<tr><td", 1)
            + "</tr>\n"
    }
}

impl Comm {
    pub fn html(&self) -> String {
        let title = plain(&self.title());
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n<p>sent per rank and step: <b>{}</b> bytes</p>\n",
            bytes(self.wire_bytes())
        );
        if let Some((every, outer)) = &self.outer {
            let (once, mean) = (bytes(outer.wire_bytes()), bytes(self.mean_bytes()));
            let _ = writeln!(
                out,
                "<p>outer step, {}: <b>{once}</b> bytes; <b>{mean}</b> a step, with all others</p>",
                each(*every)
            );
        }
        for (head, totals) in [("kind", self.by_kind()), ("axis", self.by_axis())] {
            let _ = write!(out, "<table><tr><th>{head}</th><th>sent bytes</th></tr>");
            for (name, x) in totals {
                let _ = write!(out, "<tr><td>{}</td><td class=\"n\">{}</td></tr>", plain(&name), bytes(x));
            }
            out += "</table>\n";
        }
        out += "<table id=\"all\"><thead><tr>";
        for head in [
            "#",
            "collective",
            "axes",
            "ranks",
            "type",
            "sent bytes",
            "whole bytes",
            "times",
            "phase",
            "layer",
            "value",
            "source",
            "reason",
        ] {
            let _ = write!(out, "<th>{head}</th>");
        }
        out += "</tr></thead><tbody>\n";
        let outer = self.outer.iter().flat_map(|(_, o)| &o.collectives);
        for (e, phase) in self.collectives.iter().map(|e| (e, phase_name(e.phase))).chain(outer.map(|e| (e, "outer"))) {
            let op = e.reduce.map_or_else(String::new, |r| format!(" {}", r.name()));
            out += "<tr>";
            out += &number(e.id as f64, e.id.to_string());
            out += &cell(&format!("{}{op}", e.kind.name()));
            out += &cell(&e.axes.join(","));
            out += &number(e.group_size as f64, e.group_size.to_string());
            out += &cell(e.dtype.name());
            out += &number(e.wire_bytes, bytes(e.wire_bytes));
            out += &number(e.payload_bytes as f64, bytes(e.payload_bytes as f64));
            out += &number(e.count as f64, e.count.to_string());
            out += &cell(phase);
            out += &cell(&e.layer);
            let [before, after] = &e.layouts;
            let _ = write!(
                out,
                "<td>{}<br><code>{}</code><br><code>&rarr; {}</code></td>",
                plain(&e.value),
                plain(before),
                plain(after)
            );
            out += &cell(&e.source.as_ref().map_or_else(String::new, |p| p.to_string()));
            out += &cell(&e.reason);
            out += "</tr>\n";
        }
        if let Some((axis, ranks)) = &self.pipeline {
            for (k, s) in self.sent.iter().enumerate() {
                out += &s.row(self.first_sent() + k, (axis, *ranks));
            }
        }
        let _ = write!(out, "</tbody></table>\n<script>{SCRIPT}</script></body></html>\n");
        out
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_is_no_markup() {
        assert_eq!(super::plain("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
    }
}
