//! Tables as text: one line a rank, cells with commas between them, in the vocabulary of PyTorch's schedules.
//!
//! A cell is stage, action, microbatch: `0F3`. An empty cell is idle time and means nothing, for ranks wait for what they
//! need. `(0F4;3B1)OVERLAP_F_B` are the actions of the brackets in this order. Lines that are empty or begin with `#` are no ranks. What
//! ranks send each other is derived, so cells such as `0SEND_F3` are refused.

use super::{Action, Fault, Problem, Table, Work};
use std::ops::Range;

/// Larger numbers of stages times microbatches are refused.
const MAX_WORK: usize = 1 << 22;

/// A table, and where in its text each entry stands.
#[derive(Clone, Debug)]
pub struct Written {
    pub table: Table,
    /// Bytes of the text, by rank and entry.
    pub places: Vec<Vec<Range<usize>>>,
}

/// Reads a table. Whether it can be run is another question.
pub fn parse(text: &str) -> Result<Written, Problem> {
    let mut ranks: Vec<Vec<Action>> = Vec::new();
    let mut places: Vec<Vec<Range<usize>>> = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let here = start;
        start += line.len();
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let (mut actions, mut at) = (Vec::new(), Vec::new());
        let mut cell_start = here;
        for cell in line.split(',') {
            for (bytes, action) in cell_actions(text, cell_start, cell)? {
                actions.push(action);
                at.push(bytes);
            }
            cell_start += cell.len() + 1;
        }
        ranks.push(actions);
        places.push(at);
    }
    let all = || ranks.iter().flatten();
    if all().next().is_none() {
        return Err(unreadable(text, 0..0, "the table is empty".to_string()));
    }
    let most = |f: fn(&Action) -> usize| all().map(f).max().map_or(0, |n| n.saturating_add(1));
    let (stages, microbatches) = (most(|a| a.stage), most(|a| a.microbatch));
    if stages.saturating_mul(microbatches) > MAX_WORK {
        let why = format!("{stages} stages of {microbatches} microbatches are more than a table can have");
        let numbered = ranks.iter().flatten().zip(places.iter().flatten());
        let at = numbered.max_by_key(|(a, _)| a.stage.max(a.microbatch)).map(|(_, bytes)| bytes.clone());
        return Err(unreadable(text, at.unwrap_or(0..0), why));
    }
    let holds = |s: usize| (0..ranks.len()).filter(|r| ranks[*r].iter().any(|a| a.stage == s)).collect();
    let mut rank_of: Vec<Vec<usize>> = vec![Vec::new(); stages];
    for (rank, list) in ranks.iter().enumerate() {
        for a in list.iter().filter(|a| a.op == Work::F) {
            if rank_of[a.stage].last() != Some(&rank) {
                rank_of[a.stage].push(rank);
            }
        }
    }
    // A stage without forward work: who names it holds it.
    for (s, held) in rank_of.iter_mut().enumerate().filter(|(_, held)| held.is_empty()) {
        *held = holds(s);
    }
    Ok(Written { table: Table { stages, microbatches, rank_of, ranks }, places })
}

/// The table as a text that [`parse`] reads.
pub fn print(table: &Table) -> String {
    let mut out = String::new();
    for list in &table.ranks {
        let cells: Vec<String> = list.iter().map(Action::to_string).collect();
        out += &cells.join(",");
        out.push('\n');
    }
    out
}

/// The actions of a cell, with the bytes of each.
fn cell_actions(text: &str, start: usize, cell: &str) -> Result<Vec<(Range<usize>, Action)>, Problem> {
    let trimmed = cell.trim();
    if trimmed.is_empty() {
        return Ok(Vec::new());
    }
    let start = start + (cell.len() - cell.trim_start().len());
    let Some(inner) = trimmed.strip_prefix('(') else {
        let bytes = start..start + trimmed.len();
        return Ok(vec![(bytes.clone(), action(text, bytes)?)]);
    };
    let whole = start..start + trimmed.len();
    let Some(inner) = inner.strip_suffix(")OVERLAP_F_B").or_else(|| inner.strip_suffix(')')) else {
        return Err(unreadable(text, whole, "`(` without `)`".to_string()));
    };
    let mut out = Vec::new();
    let mut at = start + 1;
    for part in inner.split(';') {
        let bytes = at..at + part.len();
        out.push((bytes.clone(), action(text, bytes)?));
        at += part.len() + 1;
    }
    Ok(out)
}

/// `0F3`
fn action(text: &str, bytes: Range<usize>) -> Result<Action, Problem> {
    let whole = &text[bytes.clone()];
    let cell = whole.trim();
    let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
    let (stage, rest) = cell.split_at(digits(cell));
    let word = rest.trim_end_matches(|c: char| c.is_ascii_digit());
    let microbatch = &rest[word.len()..];
    let why = match Work::ALL.into_iter().find(|w| w.name() == word) {
        Some(op) => match (stage.parse(), microbatch.parse()) {
            (Ok(stage), Ok(microbatch)) => return Ok(Action { op, stage, microbatch }),
            _ if stage.is_empty() || microbatch.is_empty() => {
                format!("`{cell}` lacks a number: stage, action, microbatch, as `0F3`")
            }
            _ => format!("`{cell}` has a number that is too large"),
        },
        None if ["SEND", "RECV", "UNSHARD", "RESHARD", "REDUCE"].iter().any(|w| word.starts_with(w)) => {
            format!("`{cell}` is communication, which is derived: leave it out")
        }
        None => format!("`{cell}` is no action: stage, `F`, `I`, `W` or `B`, microbatch, as `0F3`"),
    };
    Err(unreadable(text, bytes, why))
}

fn unreadable(text: &str, bytes: Range<usize>, why: String) -> Problem {
    let before = &text[..bytes.start];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |s| s.chars().count()) + 1;
    Problem::new(Fault::Unreadable { bytes, line, column, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        let text = "# two ranks\n0F0,0F1,,0B0,,0B1\r\n,1F0, 1I0 ,1W0,1F1,1B1\n";
        let w = parse(text).expect("a table");
        assert_eq!((w.table.stages, w.table.microbatches), (2, 2));
        assert_eq!(w.table.rank_of, [[0], [1]]);
        assert_eq!(print(&w.table), "0F0,0F1,0B0,0B1\n1F0,1I0,1W0,1F1,1B1\n");
        assert_eq!(&text[w.places[1][1].clone()], "1I0");
        assert_eq!(parse(&print(&w.table)).expect("a table").table, w.table);
    }

    #[test]
    fn pairs_are_two_actions() {
        let w = parse("0F0,(0F1;0B0)OVERLAP_F_B,0B1").expect("a table");
        assert_eq!(print(&w.table), "0F0,0F1,0B0,0B1\n");
        assert_eq!(w.places[0][2], 9..12);
    }

    #[test]
    fn mistakes_have_places() {
        for (text, line, column, word) in [
            ("0F0,0B0\n1F0, 1Q0\n", 2, 6, "no action"),
            ("0F0,F0", 1, 5, "lacks a number"),
            ("0F0,0B", 1, 5, "lacks a number"),
            ("0F0,0SEND_F0", 1, 5, "derived"),
            ("0F0,0F99999999999999999999", 1, 5, "too large"),
            ("0F0,0F99999999", 1, 5, "more than"),
            ("0F0,(0F1;0B0", 1, 5, "without"),
            ("ä,0F0", 1, 1, "no action"),
            ("0F0,ä", 1, 5, "no action"),
            ("\n# nothing\n", 1, 1, "empty"),
        ] {
            match parse(text).expect_err(text).fault {
                Fault::Unreadable { line: l, column: c, why, .. } => {
                    assert_eq!((l, c), (line, column), "{text}");
                    assert!(why.contains(word), "{text}: {why}");
                }
                f => panic!("{text}: {f:?}"),
            }
        }
    }
}
