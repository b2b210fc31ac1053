//! Source texts as they are shown around a finding: very long lines are cut to what lies around a label.

use super::{Diagnostic, Label};
use crate::source::SourceMap;
use codespan_reporting::files::{Error, Files, Location, SimpleFiles};
use std::ops::Range;

/// Lines of more bytes are cut.
const LONG: usize = 320;
/// What is shown of a cut line before and after the start of its label.
const BEFORE: usize = 60;
const AFTER: usize = 160;
/// Stands for what was left out.
const GAP: &str = "...";

/// All texts, each whole.
pub(super) struct Texts<'a> {
    files: SimpleFiles<&'a str, &'a str>,
    /// Whether a file has a long line.
    long: Vec<bool>,
}

impl<'a> Texts<'a> {
    pub(super) fn new(sources: &'a SourceMap) -> Texts<'a> {
        let mut files = SimpleFiles::new();
        let mut long = Vec::new();
        for (_, f) in sources.files() {
            files.add(f.name.as_str(), f.text.as_str());
            long.push(f.text.split('\n').any(|l| l.len() > LONG));
        }
        Texts { files, long }
    }

    /// The texts for one finding.
    pub(super) fn around<'b>(&'b self, d: &Diagnostic) -> View<'a, 'b> {
        let mut labels: Vec<&Label> = d.primary.iter().chain(&d.secondary).collect();
        labels.retain(|l| self.long.get(l.span.file.0 as usize).copied().unwrap_or(false));
        let mut cut: Vec<Option<Cut>> = self.long.iter().map(|_| None).collect();
        for l in &labels {
            let file = l.span.file.0 as usize;
            if let (None, Ok(text)) = (&cut[file], self.files.source(file)) {
                let starts: Vec<usize> =
                    labels.iter().filter(|o| o.span.file == l.span.file).map(|o| o.span.start as usize).collect();
                cut[file] = Some(Cut::new(text, &starts));
            }
        }
        View { texts: self, cut }
    }
}

/// The texts as one finding shows them.
pub(super) struct View<'a, 'b> {
    texts: &'b Texts<'a>,
    cut: Vec<Option<Cut>>,
}

impl View<'_, '_> {
    /// Where a label lies in the shown text.
    pub(super) fn range(&self, l: &Label) -> (usize, Range<usize>) {
        let (file, start, end) = (l.span.file.0 as usize, l.span.start as usize, l.span.end as usize);
        match &self.cut[file] {
            Some(c) => (file, c.shown(start)..c.shown(end)),
            None => (file, start..end),
        }
    }
}

impl<'v> Files<'v> for View<'_, '_> {
    type FileId = usize;
    type Name = &'v str;
    type Source = &'v str;

    fn name(&'v self, id: usize) -> Result<&'v str, Error> {
        self.texts.files.name(id)
    }

    fn source(&'v self, id: usize) -> Result<&'v str, Error> {
        match &self.cut[id] {
            Some(c) => Ok(&c.text),
            None => self.texts.files.source(id),
        }
    }

    fn line_index(&'v self, id: usize, byte: usize) -> Result<usize, Error> {
        match &self.cut[id] {
            Some(c) => Ok(c.lines.partition_point(|l| l.shown <= byte).saturating_sub(1)),
            None => self.texts.files.line_index(id, byte),
        }
    }

    fn line_range(&'v self, id: usize, line: usize) -> Result<Range<usize>, Error> {
        let Some(c) = &self.cut[id] else { return self.texts.files.line_range(id, line) };
        let max = c.lines.len() - 1;
        let start = c.lines.get(line).ok_or(Error::LineTooLarge { given: line, max })?.shown;
        Ok(start..c.lines.get(line + 1).map_or(c.text.len(), |l| l.shown))
    }

    /// Line and column of the text as it was written.
    fn location(&'v self, id: usize, byte: usize) -> Result<Location, Error> {
        let byte = match &self.cut[id] {
            Some(c) => c.written(byte),
            None => byte,
        };
        self.texts.files.location(id, byte)
    }
}

/// A text whose long lines are cut.
struct Cut {
    text: String,
    lines: Vec<Line>,
}

/// A line: where it begins as shown and as written, and of the written one what is shown.
struct Line {
    shown: usize,
    /// Bytes that stand for what was left out before.
    gap: usize,
    kept: Range<usize>,
}

impl Cut {
    /// `labels`: where labels begin.
    fn new(written: &str, labels: &[usize]) -> Cut {
        let (mut text, mut lines, mut at) = (String::new(), Vec::new(), 0);
        for line in written.split_inclusive('\n') {
            let (start, end) = (at, at + line.len());
            at = end;
            let shown = text.len();
            let mut kept = start..end;
            if line.len() > LONG {
                let label = labels.iter().copied().find(|l| (start..end).contains(l)).unwrap_or(start);
                let near = |byte: usize| (0..=byte).rev().find(|b| written.is_char_boundary(*b)).unwrap_or(0);
                kept = near(label.saturating_sub(BEFORE)).max(start)..near((label + AFTER).min(end));
            }
            let gap = if kept.start > start { GAP.len() } else { 0 };
            text += &GAP[..gap];
            text += &written[kept.clone()];
            if kept.end < end {
                text += GAP;
                text.push('\n');
            }
            lines.push(Line { shown, gap, kept });
        }
        // After a last line end there is an empty line, where a label may stand.
        if lines.is_empty() || written.ends_with('\n') {
            lines.push(Line { shown: text.len(), gap: 0, kept: at..at });
        }
        Cut { text, lines }
    }

    fn shown(&self, written: usize) -> usize {
        let i = self.lines.partition_point(|l| l.kept.start.saturating_sub(l.gap) <= written).saturating_sub(1);
        let l = &self.lines[i];
        l.shown + l.gap + written.clamp(l.kept.start, l.kept.end) - l.kept.start
    }

    fn written(&self, shown: usize) -> usize {
        let l = &self.lines[self.lines.partition_point(|l| l.shown <= shown).saturating_sub(1)];
        (l.kept.start + shown.saturating_sub(l.shown + l.gap)).min(l.kept.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_of_a_cut_text_is_found_in_both_directions() {
        let long = "x".repeat(10_000);
        let written = format!("first\n{long}\nthird\n");
        let cut = Cut::new(&written, &[5_006]);
        assert!(cut.text.len() < 400, "{}", cut.text);
        let places = [0, 3, 5_006, 5_100, 10_007, written.len()];
        assert_eq!(places.map(|p| cut.written(cut.shown(p))), places);
        // What is left out is shown at the edge of what is kept.
        assert_eq!(cut.written(cut.shown(9_000)), 5_006 + AFTER);
        assert_eq!(&cut.text[cut.shown(10_007)..cut.shown(10_012)], "third");
    }
}
