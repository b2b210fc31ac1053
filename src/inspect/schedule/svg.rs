//! The timeline as a picture.

use super::Timeline;
use crate::inspect::html::plain;
use crate::schedule::Work;
use std::fmt::Write;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 34.0;
const ROW: f64 = 26.0;

/// What an action is painted in: lighter in later chunks of a rank.
pub fn colour(op: Work, chunk: usize, chunks: usize) -> String {
    let (hue, saturation) = match op {
        Work::F => (212, 70),
        Work::I => (168, 55),
        Work::W => (95, 45),
        Work::B => (140, 50),
    };
    let light = 58.0 + 24.0 * chunk as f64 / (chunks.max(2) - 1) as f64;
    format!("hsl({hue} {saturation}% {light:.0}%)")
}

impl Timeline {
    pub fn svg(&self) -> String {
        let ranks = self.table.ranks.len();
        let scale = (WIDTH - LEFT - 10.0) / self.simulation.makespan.max(f64::MIN_POSITIVE);
        let height = TOP + ROW * ranks as f64 + 10.0;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui,sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"8\" y=\"18\" font-size=\"13\">{}; bubble {:.2} %</text>\n",
            plain(&self.title()),
            100.0 * self.simulation.bubble_fraction()
        );
        let chunked = self.chunked();
        for rank in 0..ranks {
            let y = TOP + ROW * rank as f64;
            let chunks = self.table.stages_of(rank).len();
            let _ = writeln!(
                out,
                "<text x=\"8\" y=\"{}\">rank {rank}</text><rect x=\"{LEFT}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"#eef1f6\"/>",
                y + 15.0,
                WIDTH - LEFT - 10.0,
                ROW - 4.0
            );
            for (a, [start, end]) in self.actions(rank) {
                let (x, w) = (LEFT + start * scale, (end - start) * scale);
                let fill = colour(a.op, self.chunk(rank, a), chunks);
                let name = self.name(a, chunked);
                let _ = write!(
                    out,
                    "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{w:.2}\" height=\"{}\" fill=\"{fill}\" stroke=\"#fff\" stroke-width=\".5\"/>",
                    ROW - 4.0
                );
                // A name that does not fit would cover its neighbours.
                if w >= 6.5 * name.len() as f64 {
                    let _ = write!(
                        out,
                        "<text x=\"{:.2}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
                        x + w / 2.0,
                        y + 15.0
                    );
                }
                out.push('\n');
            }
        }
        out += "</svg>\n";
        out
    }
}
