//! The tokens of a text as a tree of brackets and blocks. Structure comes from the parser; comments and blank lines
//! are found in the text between tokens.

use super::super::build::{Rule, is_mark};
use pest::iterators::Pair;

#[derive(Clone, Copy, Debug)]
pub struct Token<'t> {
    pub rule: Rule,
    /// The rule that the token is a part of: tells `f(x)` from `a (b)`.
    pub parent: Rule,
    pub text: &'t str,
    pub start: usize,
    pub end: usize,
}

#[derive(Debug)]
pub enum Node<'t> {
    Token(Token<'t>),
    Bracket {
        open: Token<'t>,
        inner: Vec<Node<'t>>,
        close: Token<'t>,
    },
    Block {
        open: Token<'t>,
        lines: Vec<Vec<Node<'t>>>,
        close: Token<'t>,
    },
    /// A whole `if`, `for` or `scan`: its head and its blocks. Never empty.
    Compound(Vec<Node<'t>>),
}

impl<'t> Node<'t> {
    pub fn first(&self) -> &Token<'t> {
        match self {
            Node::Token(token) => token,
            Node::Bracket { open, .. } | Node::Block { open, .. } => open,
            Node::Compound(nodes) => nodes[0].first(),
        }
    }

    pub fn last(&self) -> &Token<'t> {
        match self {
            Node::Token(token) => token,
            Node::Bracket { close, .. } | Node::Block { close, .. } => close,
            Node::Compound(nodes) => nodes[nodes.len() - 1].last(),
        }
    }
}

/// The items of a parsed file.
pub fn items(file: Pair<'_, Rule>) -> Vec<Vec<Node<'_>>> {
    lines(file.into_inner().collect())
}

/// The nodes of each statement among separators.
fn lines(parts: Vec<Pair<'_, Rule>>) -> Vec<Vec<Node<'_>>> {
    parts
        .into_iter()
        .filter(|p| !matches!(p.as_rule(), Rule::sep | Rule::EOI))
        .map(|p| {
            let mut out = Vec::new();
            flatten(p, Rule::file, &mut out);
            out
        })
        .collect()
}

fn flatten<'t>(pair: Pair<'t, Rule>, parent: Rule, out: &mut Vec<Node<'t>>) {
    let rule = pair.as_rule();
    let parts: Vec<Pair<Rule>> = pair.clone().into_inner().collect();
    if parts.is_empty() {
        return out.push(Node::Token(token(&pair, parent)));
    }
    if matches!(rule, Rule::if_expr | Rule::loop_expr | Rule::weights_if | Rule::weights_for) {
        let mut nodes = Vec::new();
        parts.into_iter().for_each(|p| flatten(p, rule, &mut nodes));
        return out.push(Node::Compound(nodes));
    }
    let keeps_comma = rule == Rule::paren && parts.iter().filter(|p| p.as_rule() == Rule::paren_part).count() == 1;
    // Each bracket closes among the parts of the rule that opens it.
    let mut open: Option<(Token, Vec<Pair<Rule>>)> = None;
    let mut rest = parts.into_iter().peekable();
    while let Some(part) = rest.next() {
        let kind = part.as_rule();
        let needless = match kind {
            Rule::last_comma => !keeps_comma,
            Rule::comma => rest.peek().is_none_or(|next| is_mark(next.as_rule()) || next.as_rule() == Rule::opts),
            _ => false,
        };
        match kind {
            _ if needless => {}
            Rule::lparen | Rule::lbrack | Rule::lbrace => open = Some((token(&part, rule), Vec::new())),
            Rule::rparen | Rule::rbrack | Rule::rbrace => {
                let Some((open, inner)) = open.take() else { continue };
                let close = token(&part, rule);
                out.push(if is_block(rule) {
                    Node::Block { open, lines: lines(inner), close }
                } else {
                    let mut nodes = Vec::new();
                    inner.into_iter().for_each(|p| flatten(p, rule, &mut nodes));
                    Node::Bracket { open, inner: nodes, close }
                });
            }
            _ => match &mut open {
                Some((_, inner)) => inner.push(part),
                None => flatten(part, rule, out),
            },
        }
    }
}

fn token<'t>(pair: &Pair<'t, Rule>, parent: Rule) -> Token<'t> {
    let span = pair.as_span();
    Token { rule: pair.as_rule(), parent, text: span.as_str(), start: span.start(), end: span.end() }
}

/// Whether the braces of this rule hold statements.
fn is_block(rule: Rule) -> bool {
    matches!(rule, Rule::block | Rule::sample_block | Rule::weights_block | Rule::train | Rule::plan)
}
