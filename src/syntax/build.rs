//! What all functions that turn pest's pairs into the tree share: spans, names, and a walk over a rule's parts.

use super::ast::Name;
use crate::diag::{Diagnostic, Sink};
use crate::source::{FileId, Span};
use pest::iterators::{Pair, Pairs};

/// The generated parser. The derive makes `Rule` beside it.
#[derive(pest_derive::Parser)]
#[grammar = "../grammar/partita.pest"]
pub struct Grammar;

/// Builds the tree of one parsed text, which may be a piece of a file.
pub struct Builder<'t> {
    /// The whole file.
    pub text: &'t str,
    pub file: FileId,
    /// Where the parsed piece begins in the file.
    pub offset: usize,
    pub sink: Sink,
    /// Whether an expression was too high; one report of that is enough.
    pub too_high: bool,
    /// Height of the expression that was built last (see `expr`).
    pub height: u32,
}

/// More mistakes than this in one piece of text are not told.
pub const MAX_REPORTS: usize = 100;

impl<'t> Builder<'t> {
    pub fn new(text: &'t str, file: FileId, offset: usize) -> Builder<'t> {
        Builder { text, file, offset, sink: Sink::default(), too_high: false, height: 0 }
    }

    pub fn report(&mut self, found: Diagnostic) {
        if self.sink.error_count() < MAX_REPORTS {
            self.sink.push(found);
        }
    }

    /// The place of a rule. pest's own span of a rule that ends in something optional also covers the blanks and
    /// comments behind it; the last token is where the rule ends.
    pub fn span(&self, pair: &Pair<'t, Rule>) -> Span {
        let start = pair.as_span().start();
        let mut last = pair.clone();
        while let Some(inner) = last.clone().into_inner().next_back() {
            last = inner;
        }
        Span::new(self.file, self.offset + start, self.offset + last.as_span().end())
    }

    pub fn name(&self, pair: Pair<'t, Rule>) -> Name {
        Name { text: pair.as_str().to_string(), span: self.span(&pair) }
    }

    pub fn names(&self, pair: Pair<'t, Rule>) -> Vec<Name> {
        parts(pair).rest().map(|p| self.name(p)).collect()
    }

    /// A whole number that the grammar has recognised as `int`.
    pub fn whole(&mut self, pair: Pair<'t, Rule>) -> (u64, Span) {
        let span = self.span(&pair);
        let value =
            pair.as_str().replace('_', "").parse().unwrap_or_else(|_| {
                self.report(Diagnostic::error("E0101", "number is too large").at(span, "does not fit 64 bits").help(
                    "whole numbers are at most 18446744073709551615; a larger number is a float, such as `1e20`",
                ));
                0
            });
        (value, span)
    }

    /// The text of a string, its escapes resolved.
    pub fn string(&self, pair: &Pair<'t, Rule>) -> String {
        let quoted = pair.as_str();
        let mut out = String::with_capacity(quoted.len());
        let mut chars = quoted[1..quoted.len() - 1].chars();
        while let Some(c) = chars.next() {
            match (c, c == '\\') {
                (_, true) => match chars.next() {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some(other) => out.push(other),
                    None => {}
                },
                _ => out.push(c),
            }
        }
        out
    }
}

/// The parts of a rule in order, without commas, brackets and words that carry no meaning once the rule is known.
pub struct Parts<'t> {
    pairs: Pairs<'t, Rule>,
}

pub fn parts(pair: Pair<'_, Rule>) -> Parts<'_> {
    Parts { pairs: pair.into_inner() }
}

impl<'t> Parts<'t> {
    /// The next part, which the grammar guarantees.
    pub fn must(&mut self) -> Pair<'t, Rule> {
        self.maybe().expect("the grammar guarantees this part")
    }

    pub fn maybe(&mut self) -> Option<Pair<'t, Rule>> {
        self.pairs.find(|p| !is_mark(p.as_rule()))
    }

    /// The next part if it is of this rule.
    pub fn take(&mut self, rule: Rule) -> Option<Pair<'t, Rule>> {
        (self.peek() == Some(rule)).then(|| self.must())
    }

    pub fn peek(&mut self) -> Option<Rule> {
        self.pairs.clone().map(|p| p.as_rule()).find(|r| !is_mark(*r))
    }

    pub fn rest(self) -> impl Iterator<Item = Pair<'t, Rule>> {
        self.pairs.filter(|p| !is_mark(p.as_rule()))
    }
}

/// Whether a token says nothing once the rule around it is known. Tokens are rules so that errors can name them.
pub fn is_mark(rule: Rule) -> bool {
    use Rule::*;
    matches!(
        rule,
        EOI | sep
            | comma
            | colon
            | equals
            | arrow
            | at
            | point
            | lparen
            | rparen
            | lbrack
            | rbrack
            | lbrace
            | rbrace
            | kw_use
            | kw_as
            | kw_dim
            | kw_const
            | kw_model
            | kw_preset
            | kw_plan
            | kw_train
            | kw_sample
            | kw_weights
            | kw_of
            | kw_let
            | kw_param
            | kw_state
            | kw_update
            | kw_loss
            | kw_metric
            | kw_output
            | kw_feed
            | kw_if
            | kw_else
            | kw_in
            | kw_samples
            | kw_slices
            | kw_optimizer
            | kw_on
            | kw_minimizes
            | kw_freeze
            | kw_except
            | kw_every
            | kw_batches
            | kw_save
            | kw_keep
            | kw_log
            | kw_load
            | kw_with
            | kw_mesh
            | kw_shard
            | kw_replicate
            | kw_layout
            | kw_pipeline
            | kw_microbatches
            | kw_precision
            | kw_zero
            | kw_recompute
            | kw_offload
            | kw_by
            | kw_to
    )
}
