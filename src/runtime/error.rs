//! The one error type of the runtime: a registered code, what is wrong, and how to mend it. `driver` turns it into a
//! diagnostic, with a span where the description that led here came from source text.

use std::fmt;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuntimeError {
    /// A code of the registry (`E08xx` nearly always).
    pub code: &'static str,
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// Further facts, one sentence each.
    pub notes: Vec<String>,
    /// What to do about it.
    pub help: Option<String>,
    /// Where in the outside world: a path, or `path:line`.
    pub place: Option<String>,
    /// Where in the standard library, if `place` is the program's call that led there.
    pub within: Option<String>,
    /// The input whose data it concerns.
    pub input: Option<String>,
}

pub type Result<T> = std::result::Result<T, RuntimeError>;

impl RuntimeError {
    pub fn new(code: &'static str, message: impl Into<String>) -> RuntimeError {
        let message = message.into();
        RuntimeError { code, message, notes: vec![], help: None, place: None, within: None, input: None }
    }

    /// A broken invariant of our own.
    pub fn internal(message: impl Into<String>) -> RuntimeError {
        RuntimeError::new("E0901", message).help("this is a mistake in partita, please report it")
    }

    /// An index of the data, or computed of them, that a dim does not have.
    pub fn out_of_range(index: i64, dim: &str, size: usize) -> RuntimeError {
        let last = size.saturating_sub(1);
        RuntimeError::new("E0809", format!("index {index} is out of range for dim `{dim}` of size {size}"))
            .help(format!("indices of `{dim}` are 0 to {last}"))
    }

    /// A row behind all that a buffer of packed rows has room for.
    pub fn overfull(index: i64, dim: &str, size: usize) -> RuntimeError {
        let message =
            format!("more rows were packed than `bound` allows: row {index} of `{dim}`, which has room for {size}");
        RuntimeError::new("E0816", message)
            .note("no row is ever dropped: without room for one the run stops")
            .help("raise `bound` in the plan, leave it out (room for the worst case), or give each expert a capacity")
    }

    /// The program's own call, where the place of the error lies in the standard library: lines there say little alone.
    pub fn called_at(mut self, place: &str) -> RuntimeError {
        self.within = self.place.replace(place.to_string());
        self
    }

    /// Data of an input.
    pub fn of_input(mut self, name: &str) -> RuntimeError {
        self.input = Some(name.to_string());
        self
    }

    pub fn note(mut self, note: impl Into<String>) -> RuntimeError {
        self.notes.push(note.into());
        self
    }

    pub fn help(mut self, help: impl Into<String>) -> RuntimeError {
        self.help = Some(help.into());
        self
    }

    pub fn place(mut self, place: impl fmt::Display) -> RuntimeError {
        self.place = Some(place.to_string());
        self
    }
}

/// The system starts no further thread.
pub fn no_thread(name: &str, e: &std::io::Error) -> RuntimeError {
    RuntimeError::new("E0811", format!("cannot start the {name} thread: {e}"))
        .help("end other programs, or allow more processes (`ulimit -u`) and memory (`ulimit -v`)")
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        if let Some(place) = &self.place {
            write!(f, " ({place})")?;
        }
        if let Some(within) = &self.within {
            write!(f, "\n  note: in the library at {within}")?;
        }
        for note in &self.notes {
            write!(f, "\n  note: {note}")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for RuntimeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_code_message_place_notes_and_help() {
        let e = RuntimeError::new("E0801", "no such file").place("a.txt").note("looked in `.`").help("create it");
        assert_eq!(e.to_string(), "E0801: no such file (a.txt)\n  note: looked in `.`\n  help: create it");
    }
}
