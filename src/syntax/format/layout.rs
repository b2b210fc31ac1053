//! From the tree of tokens to a document: blanks, places where lines may break, comments, blank lines.

use super::super::build::Rule;
use super::doc::{Doc, Piece};
use super::tree::{Node, Token};

/// A comment and where it stands.
struct Comment<'t> {
    text: &'t str,
    start: usize,
    end: usize,
    /// Code stands before it on its line.
    trailing: bool,
    /// The column where it begins.
    column: usize,
}

pub struct Layout<'t> {
    text: &'t str,
}

/// Where tokens of a level may be separated, weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Comma,
    Arrow,
    Or,
    And,
    Comparison,
    Sum,
    Product,
}

fn level(token: &Token) -> Option<Level> {
    Some(match token.rule {
        Rule::comma => Level::Comma,
        Rule::arrow if token.parent != Rule::def => Level::Arrow,
        Rule::infix => match token.text {
            "or" => Level::Or,
            "and" => Level::And,
            "+" | "-" => Level::Sum,
            "*" | "/" | "%" => Level::Product,
            "**" => return None,
            _ => Level::Comparison,
        },
        _ => return None,
    })
}

impl<'t> Layout<'t> {
    pub fn new(text: &'t str) -> Layout<'t> {
        Layout { text }
    }

    pub fn file(&self, items: &[Vec<Node<'t>>]) -> Doc<'t> {
        let begin = if self.text.starts_with('\u{FEFF}') { '\u{FEFF}'.len_utf8() } else { 0 };
        let mut docs = self.lines(items, begin, self.text.len(), None);
        if !docs.is_empty() {
            docs.push(Doc::Hard);
        }
        Doc::Concat(docs)
    }

    /// Statements and comments between two places, each on a line of its own. `open` is the brace before them.
    fn lines(&self, lines: &[Vec<Node<'t>>], begin: usize, end: usize, open: Option<&Token<'t>>) -> Vec<Doc<'t>> {
        let mut docs: Vec<Doc> = Vec::new();
        let mut at = begin;
        let mut fresh = open.is_none();
        let mut separate = |docs: &mut Vec<Doc<'t>>, from: usize, to: usize| {
            if !fresh {
                docs.push(Doc::Hard);
                let after_open = open.is_some_and(|o| o.end == from);
                if !after_open && self.text[from..to].matches('\n').count() > 1 {
                    docs.push(Doc::Hard);
                }
            }
            fresh = false;
        };
        let stops = lines.iter().filter_map(|l| Some((l.first()?.first().start, Some(l)))).chain([(end, None)]);
        for (stop, line) in stops {
            let mut first = true;
            for comment in self.comments(at, stop) {
                // A comment behind the opening brace or a statement; the beginning of a file has nothing before it.
                let behind = first && comment.trailing && at > 0 && !(docs.is_empty() && open.is_none());
                if behind {
                    docs.push(Doc::Comment(comment.text, comment.column));
                } else {
                    separate(&mut docs, at, comment.start);
                    docs.push(Doc::Text(comment.text));
                }
                first = false;
                at = comment.end;
            }
            if let (Some(line), Some(last)) = (line, line.and_then(|l| l.last())) {
                separate(&mut docs, at, stop);
                docs.push(self.statement(line));
                at = last.last().end;
            }
        }
        docs
    }

    fn statement(&self, nodes: &[Node<'t>]) -> Doc<'t> {
        // An attribute stands on its own line.
        let attribute = nodes.iter().take_while(|n| n.last().parent == Rule::attribute).count();
        if attribute > 0 && attribute < nodes.len() {
            let (before, after) = nodes.split_at(attribute);
            let gap = self.gap(&before[attribute - 1], &after[0]).unwrap_or(Doc::Hard);
            return Doc::Concat(vec![self.concat(before), gap, self.statement(after)]);
        }
        let lists = matches!(nodes[0].first().rule, Rule::kw_dim | Rule::kw_const | Rule::kw_mesh);
        let doc = if lists { self.level(nodes, true) } else { self.assignment(nodes, true) };
        Doc::group(doc)
    }

    /// `.. = value`, or a level without an assignment.
    fn assignment(&self, nodes: &[Node<'t>], nested: bool) -> Doc<'t> {
        let sign = nodes.iter().position(|n| matches!(n, Node::Token(t) if t.rule == Rule::equals));
        match sign.map(|s| nodes.split_at(s + 1)) {
            Some((head, value)) if !value.is_empty() => {
                let head_doc = self.level(head, nested);
                let value_doc = self.level(value, true);
                match self.gap(&head[head.len() - 1], &value[0]) {
                    Some(comments) => {
                        let rest = Doc::nest(Doc::Concat(vec![comments, value_doc]));
                        Doc::Concat(vec![head_doc, rest])
                    }
                    None => Doc::Concat(vec![head_doc, Doc::assign(Doc::group(value_doc))]),
                }
            }
            _ => self.level(nodes, nested),
        }
    }

    /// Breaks after the weakest separators of the level; lines after the first are further in if `nested`.
    fn level(&self, nodes: &[Node<'t>], nested: bool) -> Doc<'t> {
        let of = |node: &Node| match node {
            Node::Token(token) => level(token),
            _ => None,
        };
        let Some(weakest) = nodes.iter().filter_map(of).min() else { return self.concat(nodes) };
        let mut pieces: Vec<Piece> = Vec::new();
        let mut begin = 0;
        for (i, node) in nodes.iter().enumerate() {
            let last = i + 1 == nodes.len();
            if !last && of(node) != Some(weakest) {
                continue;
            }
            let doc = self.piece(&nodes[begin..=i], weakest);
            let before = (begin > 0).then(|| self.gap(&nodes[begin - 1], &nodes[begin])).flatten();
            pieces.push(Piece { before, doc: Doc::group(doc) });
            begin = i + 1;
        }
        let fill = Doc::Fill(pieces);
        if nested { Doc::nest(fill) } else { fill }
    }

    /// A piece of a level, with the separator that may end it.
    fn piece(&self, piece: &[Node<'t>], separator: Level) -> Doc<'t> {
        let inner = |nodes: &[Node<'t>]| match separator {
            Level::Comma => self.assignment(nodes, true),
            _ => self.level(nodes, true),
        };
        match piece.split_last() {
            Some((Node::Token(sign), before)) if level(sign) == Some(separator) => {
                let mut docs = Vec::new();
                if let Some(last) = before.last() {
                    docs.push(inner(before));
                    docs.extend(space(last.last(), sign).then_some(Doc::Text(" ")));
                }
                docs.push(Doc::Text(sign.text));
                Doc::Concat(docs)
            }
            _ => inner(piece),
        }
    }

    /// Nodes side by side.
    fn concat(&self, nodes: &[Node<'t>]) -> Doc<'t> {
        let mut docs = Vec::new();
        for (i, node) in nodes.iter().enumerate() {
            docs.extend(i.checked_sub(1).and_then(|b| self.blank(&nodes[b], node)));
            docs.push(match node {
                Node::Token(token) => Doc::Text(token.text),
                Node::Bracket { open, inner, close } => self.bracket(open, inner, close),
                Node::Block { .. } => self.block(node),
                Node::Compound(nodes) => self.compound(nodes),
            });
        }
        Doc::Concat(docs)
    }

    /// What stands between two nodes that no line end may separate, unless there are comments.
    fn blank(&self, before: &Node<'t>, after: &Node<'t>) -> Option<Doc<'t>> {
        match self.gap(before, after) {
            Some(comments) => Some(Doc::nest(comments)),
            None => space(before.last(), after.first()).then_some(Doc::Text(" ")),
        }
    }

    /// `if c {..} else {..}`, `for i in d {..}`. Blocks that all stand on one line stay there together or break
    /// together; beside a block of several lines each does as it fits.
    fn compound(&self, nodes: &[Node<'t>]) -> Doc<'t> {
        let together = nodes.iter().all(|n| self.on_one_line(n));
        let mut docs = Vec::new();
        let mut begin = 0usize;
        for (i, node) in nodes.iter().enumerate().filter(|(_, n)| matches!(n, Node::Block { .. })) {
            docs.extend(begin.checked_sub(1).and_then(|b| self.blank(&nodes[b], &nodes[begin])));
            docs.push(Doc::group(self.level(&nodes[begin..i], true)));
            docs.extend(i.checked_sub(1).and_then(|b| self.blank(&nodes[b], node)));
            let block = self.block(node);
            docs.push(if together { block } else { Doc::group(block) });
            begin = i + 1;
        }
        Doc::group(Doc::Concat(docs))
    }

    /// False for a block of several lines.
    fn on_one_line(&self, node: &Node) -> bool {
        !matches!(node, Node::Block { open, close, .. } if self.text[open.end..close.start].contains('\n'))
    }

    fn bracket(&self, open: &Token<'t>, inner: &[Node<'t>], close: &Token<'t>) -> Doc<'t> {
        let blank = if matches!(open.parent, Rule::settings | Rule::opts) { " " } else { "" };
        let (Some(first), Some(last)) = (inner.first(), inner.last()) else {
            let comments = self.between(open.end, close.start);
            let mut docs = vec![Doc::Text(open.text)];
            if !comments.is_empty() {
                docs.extend([Doc::nest(Doc::Concat(comments)), Doc::Hard]);
            }
            docs.push(Doc::Text(close.text));
            return Doc::group(Doc::Concat(docs));
        };
        let one_a_line =
            matches!(open.parent, Rule::call | Rule::args | Rule::settings | Rule::opts | Rule::value_call);
        let mut content = Vec::new();
        let comments = self.between(open.end, first.first().start);
        if comments.is_empty() {
            content.push(Doc::Line(blank));
        } else {
            content.extend(comments);
            content.push(Doc::Hard);
        }
        content.push(if one_a_line { self.rows(inner) } else { self.items(inner) });
        let comments = self.between(last.last().end, close.start);
        let end = if comments.is_empty() { Doc::Line(blank) } else { Doc::Hard };
        content.extend(comments);
        let nested = Doc::nest(Doc::Concat(content));
        let whole = Doc::Concat(vec![Doc::Text(open.text), nested, end, Doc::Text(close.text)]);
        if one_a_line { Doc::late(whole) } else { Doc::group(whole) }
    }

    /// The content of a bracket, as many as fit on a line.
    fn items(&self, inner: &[Node<'t>]) -> Doc<'t> {
        let listed = inner.iter().any(|n| matches!(n, Node::Token(t) if t.rule == Rule::comma));
        if listed { self.level(inner, false) } else { self.assignment(inner, true) }
    }

    /// The content of a bracket on one line, or one element a line.
    fn rows(&self, inner: &[Node<'t>]) -> Doc<'t> {
        let mut docs = Vec::new();
        for (i, row) in inner.split_inclusive(|n| matches!(n, Node::Token(t) if t.rule == Rule::comma)).enumerate() {
            if i > 0 {
                let at = row[0].first().start;
                let before = self.before(inner, at);
                docs.push(before.and_then(|b| self.gap(b, &row[0])).unwrap_or(Doc::Line(" ")));
            }
            docs.push(Doc::group(self.assignment(row, true)));
        }
        Doc::group(Doc::Concat(docs))
    }

    /// The node that ends before a place.
    fn before<'n>(&self, nodes: &'n [Node<'t>], place: usize) -> Option<&'n Node<'t>> {
        let next = nodes.partition_point(|n| n.first().start < place);
        next.checked_sub(1).map(|i| &nodes[i])
    }

    /// A block's lines belong to the group around it.
    fn block(&self, node: &Node<'t>) -> Doc<'t> {
        let Node::Block { open, lines, close } = node else { return Doc::Concat(Vec::new()) };
        let mut docs = vec![Doc::Text(open.text)];
        if self.on_one_line(node) {
            let mut inner = Vec::new();
            for (i, line) in lines.iter().enumerate() {
                inner.push(if i == 0 { Doc::Line(" ") } else { Doc::Line("; ") });
                inner.push(self.statement(line));
            }
            docs.push(Doc::nest(Doc::Concat(inner)));
            docs.extend((!lines.is_empty()).then_some(Doc::Line(" ")));
        } else {
            let inner = self.lines(lines, open.end, close.start, Some(open));
            if !inner.is_empty() {
                docs.extend([Doc::nest(Doc::Concat(inner)), Doc::Hard]);
            }
        }
        docs.push(Doc::Text(close.text));
        Doc::Concat(docs)
    }

    /// The comments between two nodes with the line ends they need, if there are any.
    fn gap(&self, before: &Node<'t>, after: &Node<'t>) -> Option<Doc<'t>> {
        let mut docs = self.between(before.last().end, after.first().start);
        if docs.is_empty() {
            return None;
        }
        docs.push(Doc::Hard);
        Some(Doc::Concat(docs))
    }

    /// The comments between two places inside a statement, without the line end behind them.
    fn between(&self, from: usize, to: usize) -> Vec<Doc<'t>> {
        let mut docs = Vec::new();
        for comment in self.comments(from, to) {
            if comment.trailing && docs.is_empty() {
                docs.push(Doc::Comment(comment.text, comment.column));
            } else {
                docs.extend([Doc::Hard, Doc::Text(comment.text)]);
            }
        }
        docs
    }

    /// The comments between two places, among which there are no tokens but separators and needless commas.
    fn comments(&self, from: usize, to: usize) -> Vec<Comment<'t>> {
        let mut found = Vec::new();
        let mut at = from;
        while let Some(start) = self.text[at..to].find("//").map(|i| at + i) {
            let end = self.text[start..to].find('\n').map_or(to, |i| start + i);
            let line = self.text[..start].rfind('\n').map_or(0, |i| i + 1);
            let before = &self.text[line..start];
            found.push(Comment {
                text: self.text[start..end].trim_end(),
                start,
                end,
                trailing: !before.trim().is_empty(),
                column: before.chars().count(),
            });
            at = end;
        }
        found
    }
}

/// Whether a blank stands between two tokens on one line.
fn space(a: &Token, b: &Token) -> bool {
    if matches!(a.rule, Rule::point | Rule::use_local | Rule::neg) || b.rule == Rule::point {
        return false;
    }
    let range = |t: &Token| t.rule == Rule::dots && t.parent == Rule::loop_over;
    if range(a) || range(b) || (a.rule == Rule::at && a.parent == Rule::attribute) {
        return false;
    }
    match b.rule {
        Rule::comma | Rule::last_comma | Rule::colon => false,
        Rule::dots => b.parent != Rule::index_named,
        Rule::lparen => !matches!(b.parent, Rule::call | Rule::args | Rule::value_call | Rule::attribute),
        Rule::lbrack => match b.parent {
            Rule::index | Rule::statics | Rule::scope | Rule::feed_line => false,
            Rule::ty_dims => a.rule != Rule::dtype,
            _ => true,
        },
        _ => true,
    }
}
