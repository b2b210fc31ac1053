//! Expressions: operator precedence, postfix chains, and what stands in brackets.

use super::ast::*;
use super::build::{Builder, Parts, Rule, parts};
use crate::diag::Diagnostic;
use crate::source::Span;
use pest::iterators::Pair;

/// No expression is nested deeper than this, so that every walk over the tree may recurse. Brackets alone nest at most
/// 128 deep; the rest is for chains such as `a + b + ..`, which lean to the left.
pub const MAX_HEIGHT: u32 = 512;

/// An operator that waits for its right operand.
#[derive(Clone, Copy)]
struct Waiting {
    op: Op,
    level: u8,
    span: Span,
}

#[derive(Clone, Copy)]
enum Op {
    Unary(UnaryOp),
    Binary(BinaryOp),
}

const NOT: u8 = 3;
const COMPARISON: u8 = 4;
const NEG: u8 = 7;
const POW: u8 = 8;

fn binary(sign: &str) -> Option<(BinaryOp, u8)> {
    Some(match sign {
        "or" => (BinaryOp::Or, 1),
        "and" => (BinaryOp::And, 2),
        "==" => (BinaryOp::Eq, COMPARISON),
        "!=" => (BinaryOp::Ne, COMPARISON),
        "<" => (BinaryOp::Lt, COMPARISON),
        "<=" => (BinaryOp::Le, COMPARISON),
        ">" => (BinaryOp::Gt, COMPARISON),
        ">=" => (BinaryOp::Ge, COMPARISON),
        "+" => (BinaryOp::Add, 5),
        "-" => (BinaryOp::Sub, 5),
        "*" => (BinaryOp::Mul, 6),
        "/" => (BinaryOp::Div, 6),
        "%" => (BinaryOp::Rem, 6),
        "**" => (BinaryOp::Pow, POW),
        _ => return None,
    })
}

/// Operands and operators of one `expr`, reduced without recursion: a long chain costs no stack.
#[derive(Default)]
struct Operands {
    values: Vec<(Expr, u32)>,
    waiting: Vec<Waiting>,
    /// A chain of comparisons is reported once.
    chained: bool,
}

impl<'t> Builder<'t> {
    pub fn expr(&mut self, pair: Pair<'t, Rule>) -> Expr {
        let mut state = Operands::default();
        let mut after: Option<Waiting> = None;
        for part in pair.into_inner() {
            let (rule, span) = (part.as_rule(), self.span(&part));
            if rule == Rule::term {
                let value = self.term(part);
                state.values.push((value, self.height));
                after = None;
                continue;
            }
            let next = match (rule, binary(part.as_str())) {
                (Rule::neg, _) => Waiting { op: Op::Unary(UnaryOp::Neg), level: NEG, span },
                (Rule::not, _) => Waiting { op: Op::Unary(UnaryOp::Not), level: NOT, span },
                (_, Some((op, level))) => Waiting { op: Op::Binary(op), level, span },
                _ => unreachable!("an expression consists of terms and operators"),
            };
            match (next.op, after) {
                (Op::Binary(_), _) => self.reduce(&mut state, Some(next)),
                (Op::Unary(UnaryOp::Not), Some(before)) if before.level > NOT => self.report(
                    Diagnostic::error("E0101", "`not` binds weaker than the operator before it")
                        .at(span, "needs parentheses")
                        .and(before.span, "this operator comes first")
                        .help("write `(not x)`"),
                ),
                _ => {}
            }
            state.waiting.push(next);
            after = Some(next);
        }
        self.reduce(&mut state, None);
        let (value, height) = state.values.pop().expect("an expression has a term");
        self.height = height;
        value
    }

    /// Applies the operators that bind tighter than the coming one (all of them at the end).
    fn reduce(&mut self, state: &mut Operands, coming: Option<Waiting>) {
        while let Some(top) = state.waiting.last().copied() {
            if let Some(next) = coming {
                let tighter = top.level > next.level || (top.level == next.level && next.level != POW);
                if !tighter {
                    return;
                }
                if top.level == COMPARISON && next.level == COMPARISON && !state.chained {
                    state.chained = true;
                    self.refuse_chain(state, top, next);
                }
            }
            state.waiting.pop();
            let (right, right_height) = state.values.pop().expect("every operator has a right operand");
            let (kind, span, height) = match top.op {
                Op::Unary(op) => {
                    let span = top.span.to(right.span);
                    (ExprKind::Unary { op, value: right }, span, right_height)
                }
                Op::Binary(op) => {
                    let (left, left_height) = state.values.pop().expect("every binary operator has a left operand");
                    let span = left.span.to(right.span);
                    (ExprKind::Binary { op, op_span: top.span, left, right }, span, left_height.max(right_height))
                }
            };
            let value = self.node(kind, span, height);
            state.values.push((value, self.height));
        }
    }

    fn refuse_chain(&mut self, state: &Operands, first: Waiting, second: Waiting) {
        let text = self.text;
        let word = |span: Span| text.get(span.start as usize..span.end as usize).unwrap_or("..");
        let operands: Vec<&str> = state.values.iter().rev().take(2).map(|(v, _)| word(v.span)).collect();
        let [middle, left] = operands[..] else { return };
        let (one, two) = (word(first.span), word(second.span));
        self.report(
            Diagnostic::error("E0104", "comparisons do not chain")
                .at(second.span, "second comparison of the chain")
                .and(first.span, "first comparison")
                .help(format!("write `{left} {one} {middle} and {middle} {two} ..`")),
        );
    }

    /// Makes a node over children of the given height. Beyond the limit the children are dropped with a diagnostic.
    fn node(&mut self, kind: ExprKind, span: Span, height: u32) -> Expr {
        if height < MAX_HEIGHT {
            self.height = height + 1;
            return Expr { kind: Box::new(kind), span };
        }
        self.height = 1;
        if !self.too_high {
            self.too_high = true;
            self.report(
                Diagnostic::error("E0102", "expression is nested too deeply")
                    .at(span, format!("more than {MAX_HEIGHT} levels of operators and calls"))
                    .help("give parts of it names with `let`"),
            );
        }
        Expr { kind: Box::new(ExprKind::Tuple(Vec::new())), span }
    }

    pub fn term(&mut self, pair: Pair<'t, Rule>) -> Expr {
        let mut inner = pair.into_inner();
        let first = inner.next().expect("a term has a primary");
        let mut value = self.primary(first);
        for part in inner {
            let base_height = self.height;
            let span = value.span.to(self.span(&part));
            let (kind, height) = match part.as_rule() {
                Rule::call => {
                    let (args, height) = self.call_args(part);
                    (ExprKind::Call { callee: value, args }, height)
                }
                Rule::index => {
                    let (items, height) = self.index_items(part);
                    (ExprKind::Index { base: value, items }, height)
                }
                Rule::member => {
                    let member = parts(part).must();
                    match member.as_rule() {
                        Rule::turn => {
                            let name = self.name(parts(member).must());
                            (ExprKind::Turn { base: value, name }, 0)
                        }
                        _ => (ExprKind::Member { base: value, name: self.name(member) }, 0),
                    }
                }
                _ => {
                    let entries = self.entries(parts(part).must());
                    (ExprKind::Layout { base: value, entries }, 0)
                }
            };
            value = self.node(kind, span, base_height.max(height));
        }
        value
    }

    fn primary(&mut self, pair: Pair<'t, Rule>) -> Expr {
        let span = self.span(&pair);
        self.height = 0;
        let digits = || pair.as_str().replace('_', "");
        let (kind, height) = match pair.as_rule() {
            Rule::int => (ExprKind::Int(digits()), 0),
            Rule::float => (ExprKind::Float(digits()), 0),
            Rule::string => (ExprKind::Str(self.string(&pair)), 0),
            Rule::boolean => (ExprKind::Bool(pair.as_str() == "true"), 0),
            Rule::dtype => (ExprKind::Type(type_name(pair.as_str())), 0),
            Rule::name => (ExprKind::Name(pair.as_str().to_string()), 0),
            Rule::paren => self.paren(pair),
            Rule::array => {
                let (values, height) = self.exprs(parts(pair));
                (ExprKind::Array(values), height)
            }
            Rule::if_expr => return self.if_expr(pair),
            _ => self.loop_expr(pair),
        };
        self.node(kind, span, height)
    }

    fn exprs(&mut self, list: Parts<'t>) -> (Vec<Expr>, u32) {
        let mut height = 0;
        let mut values = Vec::new();
        for part in list.rest() {
            values.push(self.expr(part));
            height = height.max(self.height);
        }
        (values, height)
    }

    fn paren(&mut self, pair: Pair<'t, Rule>) -> (ExprKind, u32) {
        let (mut values, mut height, mut trailing) = (Vec::new(), 0, false);
        for part in parts(pair).rest() {
            if part.as_rule() == Rule::last_comma {
                trailing = true;
                continue;
            }
            let mut inner = parts(part);
            if let Some(name) = inner.take(Rule::name) {
                let span = self.span(&name);
                self.report(
                    Diagnostic::error("E0101", "a named part stands only in a group of dims inside brackets")
                        .at(span, "unexpected name")
                        .help(
                            "settings go into brackets, `f[name = value](x)`; arguments follow the name of a function",
                        ),
                );
            }
            values.push(self.expr(inner.must()));
            height = height.max(self.height);
        }
        if values.len() == 1 && !trailing {
            (ExprKind::Paren(values.remove(0)), height)
        } else {
            (ExprKind::Tuple(values), height)
        }
    }

    fn if_expr(&mut self, pair: Pair<'t, Rule>) -> Expr {
        let end = self.span(&pair).end as usize;
        let mut arms = Vec::new();
        let mut other = None;
        // The words mark where an arm begins: `if c {..} else if d {..} else {..}`.
        let mut begin = None;
        let mut cond = None;
        for part in pair.into_inner() {
            match part.as_rule() {
                Rule::kw_if => begin = Some(self.span(&part)),
                Rule::expr => cond = Some((self.expr(part), self.height)),
                Rule::block => {
                    let block = self.block(part);
                    match (begin.take(), cond.take()) {
                        (Some(begin), Some((cond, height))) => arms.push((begin, cond, block, height.max(self.height))),
                        _ => other = Some((Else::Block(block), self.height)),
                    }
                }
                _ => {}
            }
        }
        let mut whole = None;
        for (begin, cond, then, mut height) in arms.into_iter().rev() {
            if let Some(inner) = whole.take() {
                other = Some((Else::If(inner), self.height));
            }
            let other = other.take().map(|(other, other_height)| {
                height = height.max(other_height);
                other
            });
            let span = Span::new(self.file, begin.start as usize, end);
            whole = Some(self.node(ExprKind::If { cond, then, other }, span, height));
        }
        whole.expect("an if has a condition")
    }

    fn loop_expr(&mut self, pair: Pair<'t, Rule>) -> (ExprKind, u32) {
        let mut inner = parts(pair);
        let kind = loop_kind(inner.must().as_str());
        let var = self.name(inner.must());
        let (over, reverse, over_height) = self.loop_over(inner.must());
        if reverse && kind == LoopKind::For {
            let span = var.span;
            self.report(
                Diagnostic::error("E0101", "only `scan` runs in reverse")
                    .at(span, "in this loop")
                    .help("turns of a `for` are no order in time; reverse the dim with `flip[dim](x)`"),
            );
        }
        let body = self.block(inner.must());
        (ExprKind::For { kind, var, reverse, over, body }, over_height.max(self.height))
    }

    pub fn loop_over(&mut self, pair: Pair<'t, Rule>) -> (LoopRange, bool, u32) {
        let span = self.span(&pair);
        let mut inner = parts(pair);
        if inner.take(Rule::reverse).is_some() {
            return (LoopRange::Dim(self.name(inner.must())), true, 0);
        }
        let first = inner.must();
        let dim = self.bare_name(&first);
        let low = self.expr(first);
        let height = self.height;
        if inner.take(Rule::dots).is_some() {
            let high = self.expr(inner.must());
            return (LoopRange::Range(low, high), false, height.max(self.height));
        }
        let dim = dim.unwrap_or_else(|| {
            let d = Diagnostic::error("E0101", "a loop runs over a dim or a range")
                .at(span, "neither the name of a dim nor `low..high`");
            self.report(match self.counted(&low) {
                Some(range) => d.help(format!("write `for i in {range} {{..}}`")),
                None => d.help("write `for i in depth {..}` or `for i in 0..n {..}`"),
            });
            // A name that nobody can write: what comes later says nothing of it.
            Name { text: String::new(), span }
        });
        (LoopRange::Dim(dim), false, height)
    }

    /// `range(3)` or `3` as it is written here: `0..3`.
    fn counted(&self, over: &Expr) -> Option<String> {
        let text = |span: Span| &self.text[span.start as usize..span.end as usize];
        let ExprKind::Call { callee, args } = &*over.kind else {
            return matches!(&*over.kind, ExprKind::Int(_)).then(|| format!("0..{}", text(over.span)));
        };
        match &args[..] {
            _ if text(callee.span) != "range" => None,
            [high] => Some(format!("0..{}", text(high.value.span))),
            [low, high] => Some(format!("{}..{}", text(low.value.span), text(high.value.span))),
            _ => None,
        }
    }

    fn call_args(&mut self, pair: Pair<'t, Rule>) -> (Vec<CallArg>, u32) {
        let (mut args, mut height) = (Vec::new(), 0);
        for part in parts(pair).rest() {
            let mut inner = parts(part);
            let name = inner.take(Rule::name).map(|n| self.name(n));
            let value = self.expr(inner.must());
            height = height.max(self.height);
            args.push(CallArg { name, value });
        }
        (args, height)
    }

    fn index_items(&mut self, pair: Pair<'t, Rule>) -> (Vec<IndexItem>, u32) {
        let (mut items, mut height) = (Vec::new(), 0);
        for part in parts(pair).rest() {
            let span = self.span(&part);
            self.height = 0;
            let kind = self.index_item(part);
            height = height.max(self.height);
            items.push(IndexItem { kind, span });
        }
        (items, height)
    }

    fn index_item(&mut self, pair: Pair<'t, Rule>) -> IndexKind {
        let mut inner = parts(pair);
        let first = inner.must();
        match first.as_rule() {
            Rule::dots => IndexKind::Rest,
            Rule::index_named => {
                let mut inner = parts(first);
                let name = self.name(inner.must());
                let value = self.expr(inner.must());
                let slice = inner.take(Rule::dots).is_some();
                let to = inner.maybe().map(|n| self.name(n));
                IndexKind::Equals { name, value, slice, to }
            }
            _ => match inner.maybe() {
                None => match self.as_group(&first) {
                    Some(group) => IndexKind::Group { from: group, to: None },
                    None => IndexKind::Other(self.expr(first)),
                },
                Some(to) => {
                    let from = self.group_or_error(first);
                    let height = self.height;
                    let to = self.group_or_error(to);
                    self.height = self.height.max(height);
                    IndexKind::Group { from, to: Some(to) }
                }
            },
        }
    }

    fn group_or_error(&mut self, pair: Pair<'t, Rule>) -> Group {
        self.as_group(&pair).unwrap_or_else(|| {
            let span = self.span(&pair);
            self.report(
                Diagnostic::error("E0101", "expected a dim or a group of dims beside `->`")
                    .at(span, "found another expression")
                    .help("write `a -> b`, `a -> (b, c)` or `(b, c) -> a`"),
            );
            Group { parts: Vec::new(), paren: false, span }
        })
    }

    /// The expression as a group of dims, if it has the form of one: `a`, `(a, b)`, `(e = i, s)`.
    fn as_group(&mut self, pair: &Pair<'t, Rule>) -> Option<Group> {
        let span = self.span(pair);
        self.height = 0;
        let only = only_primary(pair)?;
        if only.as_rule() == Rule::name {
            let part = GroupPart { name: self.name(only), value: None };
            return Some(Group { parts: vec![part], paren: false, span });
        }
        let is_paren = only.as_rule() == Rule::paren;
        let list: Vec<_> = parts(only).rest().filter(|p| p.as_rule() == Rule::paren_part).collect();
        let fits = |part: &Pair<'t, Rule>| {
            let mut inner = parts(part.clone());
            inner.take(Rule::name).is_some() || only_primary(&inner.must()).is_some_and(|p| p.as_rule() == Rule::name)
        };
        if !is_paren || !list.iter().all(fits) {
            return None;
        }
        let mut height = 0;
        let mut out = Vec::new();
        for part in list {
            let mut inner = parts(part);
            let part = match inner.take(Rule::name) {
                Some(name) => {
                    let name = self.name(name);
                    let value = Some(self.expr(inner.must()));
                    height = height.max(self.height);
                    GroupPart { name, value }
                }
                None => GroupPart { name: self.name(only_primary(&inner.must())?), value: None },
            };
            out.push(part);
        }
        self.height = height;
        Some(Group { parts: out, paren: true, span })
    }

    /// The name, if the expression is nothing else.
    fn bare_name(&self, pair: &Pair<'t, Rule>) -> Option<Name> {
        only_primary(pair).filter(|p| p.as_rule() == Rule::name).map(|p| self.name(p))
    }

    pub fn entries(&mut self, pair: Pair<'t, Rule>) -> Vec<LayoutEntry> {
        parts(pair)
            .rest()
            .map(|entry| {
                let mut inner = parts(entry);
                let dim = self.name(inner.must());
                let axes = parts(inner.must())
                    .rest()
                    .flat_map(|a| if a.as_rule() == Rule::names { self.names(a) } else { vec![self.name(a)] })
                    .collect();
                LayoutEntry { dim, axes }
            })
            .collect()
    }
}

/// The primary of an expression without operators and postfixes.
fn only_primary<'t>(pair: &Pair<'t, Rule>) -> Option<Pair<'t, Rule>> {
    let mut inner = pair.clone().into_inner();
    let term = inner.next().filter(|t| t.as_rule() == Rule::term)?;
    if inner.next().is_some() {
        return None;
    }
    let mut inner = term.into_inner();
    let primary = inner.next()?;
    inner.next().is_none().then_some(primary)
}

pub fn type_name(word: &str) -> TypeName {
    match word {
        "bool" => TypeName::Bool,
        "int" => TypeName::Int,
        "float" => TypeName::Float,
        "f16" => TypeName::F16,
        "bf16" => TypeName::BF16,
        "f64" => TypeName::F64,
        _ => TypeName::F32,
    }
}

pub fn loop_kind(word: &str) -> LoopKind {
    if word == "scan" { LoopKind::Scan } else { LoopKind::For }
}
