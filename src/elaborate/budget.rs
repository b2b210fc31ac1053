//! How much a walk may do: loops are unrolled and bodies walked at each use, so a short text can ask for any amount of work.
//!
//! Counted as it happens: turns of `for`, calls and instances, expressions, operations. The report names the loop or the definition
//! that was walked most.

use super::Elab;
use crate::diag::Diagnostic;
use crate::source::Span;
use std::collections::HashMap;

/// Turns of all `for`s of one walk together.
pub const MAX_TURNS: u64 = 100_000;
/// Bodies that are walked, and instances that are made.
pub const MAX_CALLS: u64 = 100_000;
/// Operations in one graph.
pub const MAX_OPS: usize = 1_000_000;
/// Expressions that are evaluated.
pub const MAX_EXPRESSIONS: u64 = 2_000_000;

/// What has been done so far.
#[derive(Debug, Default)]
pub struct Budget {
    turns: u64,
    calls: u64,
    expressions: u64,
    /// Turns of each loop and calls of each definition.
    places: HashMap<Span, u64>,
}

impl<'a> Elab<'a> {
    /// One turn of a `for`. False: the limit is passed, and that was reported.
    pub(super) fn spend_turn(&mut self, span: Span) -> bool {
        self.budget.turns += 1;
        *self.budget.places.entry(span).or_default() += 1;
        if self.budget.turns > MAX_TURNS {
            self.overspent(&format!("the loops take more than {MAX_TURNS} turns together"), span);
        }
        !self.too_large
    }

    /// A `for` from `lo` to `hi` that alone is within the limit. False: it is not, and that was reported.
    pub(super) fn few_turns(&mut self, lo: i64, hi: i64, span: Span) -> bool {
        let turns = hi.saturating_sub(lo).max(0) as u64;
        if turns <= MAX_TURNS {
            return true;
        }
        self.error(
            Diagnostic::error("E0410", format!("a `for` of {turns} turns"))
                .at(span, format!("the limit is {MAX_TURNS}"))
                .help("use `scan`, a loop at run time"),
        );
        false
    }

    /// One more body or instance of the definition named at `def`. False: the limit is passed.
    pub(super) fn spend_call(&mut self, def: Span, site: Span) -> bool {
        self.budget.calls += 1;
        *self.budget.places.entry(def).or_default() += 1;
        if self.budget.calls > MAX_CALLS {
            self.overspent(&format!("more than {MAX_CALLS} calls and instances"), site);
        }
        !self.too_large
    }

    /// Some expressions, or work that is worth as much. False: the limit is passed.
    pub(super) fn spend(&mut self, expressions: u64, span: Span) -> bool {
        self.budget.expressions += expressions;
        if self.b.graph.ops.len() > MAX_OPS {
            self.overspent(&format!("the program has more than {MAX_OPS} operations"), span);
        } else if self.budget.expressions > MAX_EXPRESSIONS {
            self.overspent(&format!("more than {MAX_EXPRESSIONS} expressions are to be evaluated"), span);
        }
        !self.too_large
    }

    fn overspent(&mut self, message: &str, span: Span) {
        if std::mem::replace(&mut self.too_large, true) {
            return;
        }
        // The first of equals, so that the report does not depend on the order of a hash table.
        let most = self.budget.places.iter().max_by_key(|(span, n)| (**n, std::cmp::Reverse(**span)));
        let mut d = Diagnostic::error("E0410", message).at(span, "the limit was passed here");
        if let Some((place, n)) = most.filter(|(place, _)| **place != span) {
            d = d.and(*place, format!("walked most: {n} times"));
        }
        self.error(d.help("use `scan`, a loop at run time, fewer turns, or fewer calls inside calls"));
    }
}
