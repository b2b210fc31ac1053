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
                let figures: Vec<String> =
                    p.figures.iter().map(|(n, x)| format!("  {n} {}", show::number(*x))).collect();
                out.line(format!(
                    "step {}/{}  loss {}{}  {rate}  {} left",
                    p.step,
                    p.steps,
                    show::number(p.loss),
                    figures.concat(),
                    show::duration(p.left)
                ));
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
