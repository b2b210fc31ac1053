//! Standard output and standard error. A reader that has gone away ends printing quietly; it is no error.

use super::args::ColorChoice;
use super::{Code, ERROR, OK};
use crate::diag::{Diagnostic, Severity, render};
use crate::driver::Findings;
use crate::runtime::data::reason;
use std::io::{ErrorKind, IsTerminal, Write};

/// Where a command prints to.
pub struct Output {
    color_err: bool,
    /// Standard output takes no more.
    closed: bool,
    /// Why, unless its reader has gone away.
    failure: Option<std::io::Error>,
}

impl Output {
    pub fn new(color: ColorChoice) -> Output {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let wanted = |terminal: bool| match color {
            ColorChoice::Auto => terminal && !plain,
            ColorChoice::Always => true,
            ColorChoice::Never => false,
        };
        Output { color_err: wanted(std::io::stderr().is_terminal()), closed: false, failure: None }
    }

    /// A result, as it is.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let mut stdout = std::io::stdout().lock();
        if !self.closed
            && let Err(e) = stdout.write_all(bytes).and_then(|()| stdout.flush())
        {
            self.closed = true;
            self.failure = Some(e).filter(|e| e.kind() != ErrorKind::BrokenPipe);
        }
    }

    /// Whether printing still has a reader.
    pub fn open(&self) -> bool {
        !self.closed
    }

    /// The exit code of a command that ended with `code`: a result that was not written is an error, unless the command
    /// has done more than to print it.
    pub fn end(self, code: Code, printed: bool) -> Code {
        let Some(e) = &self.failure else { return code };
        let mut d = Diagnostic::error("E0813", format!("cannot write standard output: {}", reason(e)));
        if !printed {
            d.severity = Severity::Warning;
        }
        let failed = self.findings(&Findings::of(d.help("see that the disk has space, or print elsewhere")));
        code.max(failed)
    }

    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// A line of a result.
    pub fn line(&mut self, text: impl AsRef<str>) {
        self.text(&format!("{}\n", text.as_ref()));
    }

    /// Columns of the terminal, or of a page.
    pub fn width(&self) -> usize {
        let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
        columns.filter(|c| *c >= 20).unwrap_or(80)
    }

    /// A line about what goes on.
    pub fn say(&self, text: impl AsRef<str>) {
        let _ = writeln!(std::io::stderr().lock(), "{}", text.as_ref());
    }

    /// Shows findings, and counts errors.
    pub fn findings(&self, f: &Findings) -> Code {
        let _ = std::io::stderr().lock().write_all(render::text(&f.sink, &f.sources, self.color_err).as_bytes());
        match f.sink.error_count() {
            0 => OK,
            1 => ERROR,
            n => {
                self.say(format!("{n} errors"));
                ERROR
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::types::grouped;

    #[test]
    fn digits_are_grouped_by_three() {
        let all = [0, 12, 123, 1234, 837_888, 1_000_000].map(grouped);
        assert_eq!(all, ["0", "12", "123", "1,234", "837,888", "1,000,000"]);
    }
}
