//! How training goes: a line that changes in a terminal, lines now and then elsewhere.

use super::output::Output;
use crate::driver::{show, train};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

pub struct Progress {
    /// Only where standard error is a terminal.
    bar: Option<ProgressBar>,
    unit: String,
    /// The loss over the last steps, in which the past fades.
    smooth: Option<f64>,
}

impl Progress {
    pub fn new(unit: &str) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            let style = ProgressStyle::with_template("{pos}/{len} {wide_bar:.green} {msg}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Progress { bar, unit: unit.to_string(), smooth: None }
    }

    pub fn begin(&mut self, first: u64, steps: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(steps);
            bar.set_position(first);
        }
    }

    pub fn step(&mut self, p: &train::Progress, out: &mut Output) {
        let smooth = self.smooth.map_or(p.loss, |s| s + 0.1 * (p.loss - s));
        self.smooth = Some(smooth);
        let rate = format!("{} {}/s", show::rate(p.rate), self.unit);
        match &self.bar {
            Some(bar) => {
                bar.set_position(p.step);
                bar.set_message(format!("loss {:.4}  {rate}  {} left", smooth, show::duration(p.left)));
            }
            None if p.logged => {
                let start = format!("step {}/{}  loss {}", p.step, p.steps, show::number(p.loss));
                let end = format!("  {rate}  {} left", show::duration(p.left));
                let figures = fitting(&p.figures, "  ", out.width().max(LINE).saturating_sub(start.len() + end.len()));
                out.line(format!("{start}{figures}{end}"));
            }
            None => {}
        }
    }

    /// A line of the result.
    pub fn line(&self, out: &mut Output, text: &str) {
        self.hidden(|| out.line(text));
    }

    /// A line about what goes on.
    pub fn say(&self, out: &Output, text: &str) {
        self.hidden(|| out.say(text));
    }

    /// Prints something while the changing line is away.
    pub fn hidden<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Columns that a line has where it goes to no terminal.
const LINE: usize = 100;

/// Figures as they follow a loss, each after `before`: as many as there is room for, the norm of gradients above all. The
/// file of metrics has them all.
pub fn fitting(figures: &[(String, f64)], before: &str, room: usize) -> String {
    let (first, others): (Vec<_>, Vec<_>) = figures.iter().partition(|f| f.0 == "grad_norm");
    let mut out = String::new();
    for (name, x) in first.into_iter().chain(others) {
        let text = format!("{before}{name} {}", show::number(*x));
        if name == "grad_norm" || out.len() + text.len() <= room {
            out += &text;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::fitting;

    #[test]
    fn a_line_has_as_many_figures_as_fit() {
        let figures: Vec<(String, f64)> =
            [("long.name.of.a.metric", 1.0), ("m", 2.0), ("grad_norm", 3.0)].map(|(n, x)| (n.to_string(), x)).to_vec();
        let names = |room: usize| fitting(&figures, "  ", room);
        assert!(names(0).starts_with("  grad_norm 3") && !names(0).contains("m 2"), "{}", names(0));
        assert!(names(30).contains("  m 2") && !names(30).contains("long"), "{}", names(30));
        assert!(names(90).contains("long.name.of.a.metric 1"), "{}", names(90));
    }
}
