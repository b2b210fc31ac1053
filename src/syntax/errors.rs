//! A failed parse in words. pest tells the farthest place it reached and which rules it tried there; this file turns
//! that into one diagnostic that names what was expected, what was found and, where the mistake is a known one, the cure.

use super::build::{Grammar, Rule};
use super::{guard, habits};
use crate::diag::{Diagnostic, did_you_mean};
use crate::source::{FileId, Span};
use pest::Parser;
use pest::error::{Error, ErrorVariant, InputLocation};
use std::ops::Range;

/// Turns pest's error over a piece of a file into a diagnostic.
pub fn explain(error: &Error<Rule>, text: &str, piece: Range<usize>, file: FileId) -> Diagnostic {
    let at = match error.location {
        InputLocation::Pos(at) | InputLocation::Span((at, _)) => piece.start + at,
    };
    match &error.variant {
        ErrorVariant::ParsingError { positives, .. } => Failure { text, piece, file, at, positives }.diagnostic(),
        ErrorVariant::CustomError { message } => Diagnostic::error("E0102", "text is too involved to parse")
            .at(Span::new(file, piece.start, piece.start), "in the item that begins here")
            .with_note(format!("the parser stopped: {message}"))
            .help("split the item into smaller ones"),
    }
}

struct Failure<'a> {
    text: &'a str,
    piece: Range<usize>,
    file: FileId,
    /// Where no rule went on.
    at: usize,
    /// What could have stood there.
    positives: &'a [Rule],
}

/// The word or mark at a place, and how to call it.
struct Found<'a> {
    token: &'a str,
    words: String,
}

impl Failure<'_> {
    fn diagnostic(&self) -> Diagnostic {
        let found = self.found();
        self.product(&found)
            .or_else(|| self.line_begins_with_operator())
            .or_else(|| self.reserved(&found))
            .or_else(|| self.unclosed(&found))
            .or_else(|| self.broken_string(&found))
            .or_else(|| self.train_line(&found))
            .unwrap_or_else(|| self.unexpected(&found))
    }

    fn span(&self, start: usize, len: usize) -> Span {
        Span::new(self.file, start, start + len)
    }

    fn found(&self) -> Found<'_> {
        let token = token_at(self.text, self.at);
        let words = match token.chars().next() {
            _ if self.at == self.text.len() => "the end of the file".to_string(),
            _ if self.at == self.piece.end => "the end of the item".to_string(),
            Some('\n') => "the end of the line".to_string(),
            Some(c) if c.is_control() || (c.is_whitespace() && !c.is_ascii()) => {
                format!("the character U+{:04X}", u32::from(c))
            }
            _ => format!("`{token}`"),
        };
        Found { token, words }
    }

    fn expects(&self, rules: &[Rule]) -> bool {
        self.positives.iter().any(|p| rules.contains(p))
    }

    /// Whether an expression has just ended, so that an operator could follow.
    fn after_expression(&self) -> bool {
        self.expects(&[Rule::infix, Rule::call, Rule::member])
    }

    /// Whether a name could stand here, alone or as the beginning of something.
    fn expects_name(&self) -> bool {
        use Rule::*;
        self.expects(&[name, names, let_tuple, expr, term, call_arg, paren_part, index_item, ty_dim, ty_map, group])
            || self
                .expects(&[use_name, dim_def, const_def, static_def, arg, setting, entry, axes, mesh_axis, scope, opt])
    }

    /// `x @ w`
    fn product(&self, found: &Found) -> Option<Diagnostic> {
        let before = self.text[self.piece.start..self.at].trim_end_matches([' ', '\t']);
        if !self.expects(&[Rule::entries, Rule::lbrack]) || !before.ends_with('@') || found.token == "[" {
            return None;
        }
        let at = self.piece.start + before.len() - 1;
        Some(
            Diagnostic::error("E0106", "`@` is no matrix product")
                .at(self.span(at, 1), "a layout in brackets must follow, as in `x @ [seq: tp]`")
                .help("write dot[dim](x, w), naming the dim that is summed over"),
        )
    }

    fn line_begins_with_operator(&self) -> Option<Diagnostic> {
        // Inside brackets the end of the line is the first thing that does not fit; outside, the operator is.
        let rest = &self.text[self.at..self.piece.end];
        let at = if rest.starts_with('\n') { self.at + rest.len() - rest.trim_start().len() } else { self.at };
        let begins = self.text[..at].trim_end_matches([' ', '\t', '\r']).ends_with('\n');
        let token = token_at(self.text, at);
        let operators = ["+", "*", "/", "%", "<", ">", "==", "!=", "<=", ">=", "**", "and", "or", ".", "=", "->", "@"];
        if !begins || !operators.contains(&token) {
            return None;
        }
        let operator = self.span(at, token.len());
        let diagnostic = Diagnostic::error("E0105", format!("line begins with `{token}`"))
            .at(operator, "a line end separates statements, so this begins a new one");
        Some(match token {
            "." => diagnostic.help("put the whole chain on one line, or name its beginning with `let`"),
            _ => diagnostic.help(format!("end the line before with `{token}` instead")),
        })
    }

    fn reserved(&self, found: &Found) -> Option<Diagnostic> {
        if !self.expects_name() || Grammar::parse(Rule::reserved, found.token).is_err() {
            return None;
        }
        let opened = self.opened();
        let inside = opened.map_or("", |(before, _)| &self.text[self.piece.start + before.len() + 1..self.at]);
        let axis = found.token == "dim" && self.expects(&[Rule::call_arg]);
        let cure = if axis { habits::dims_in_brackets(opened, inside) } else { None };
        Some(
            Diagnostic::error("E0103", format!("`{}` is a reserved word", found.token))
                .at(self.span(self.at, found.token.len()), "cannot be used as a name")
                .help(cure.unwrap_or_else(|| format!("choose another name, such as `{}_`", found.token))),
        )
    }

    /// The piece up to the innermost bracket that is open here, and that bracket.
    fn opened(&self) -> Option<(&str, u8)> {
        let &(place, byte) = self.open().last()?;
        Some((&self.text[self.piece.start..place], byte))
    }

    /// The parenthesis or bracket of an earlier line that could be closed here.
    fn open_before(&self) -> Option<(usize, char)> {
        let &(place, byte) = self.open().last()?;
        let closes = match byte {
            b'(' => self.expects(&[Rule::rparen]),
            b'[' => self.expects(&[Rule::rbrack]),
            _ => false,
        };
        (closes && self.text[place..self.at].contains('\n')).then_some((place, char::from(byte)))
    }

    /// The brackets of the piece that are open where no rule went on.
    fn open(&self) -> Vec<(usize, u8)> {
        let mut open: Vec<(usize, u8)> = Vec::new();
        for (place, byte) in guard::code_bytes(self.text) {
            if place >= self.at {
                break;
            }
            match byte {
                _ if place < self.piece.start => {}
                b'(' | b'[' | b'{' => open.push((place, byte)),
                b')' | b']' | b'}' => {
                    open.pop();
                }
                _ => {}
            }
        }
        open
    }

    /// The end came before a bracket was closed, or a bracket closes another kind.
    fn unclosed(&self, found: &Found) -> Option<Diagnostic> {
        let open = self.open();
        let close = |byte: u8| match byte {
            b'(' => ")",
            b'[' => "]",
            _ => "}",
        };
        let ended = self.at == self.piece.end;
        let closing = self.expects(&[Rule::rparen, Rule::rbrack, Rule::rbrace]);
        match open.last() {
            Some((place, byte)) if ended || (closing && matches!(found.token, ")" | "]" | "}")) => {
                let bracket = char::from(*byte);
                if ended {
                    return Some(
                        Diagnostic::error("E0101", format!("`{bracket}` is not closed"))
                            .at(self.span(*place, 1), format!("no `{}` follows", close(*byte)))
                            .and(self.span(self.at, 0), format!("expected {} here", self.expected()))
                            .help(match close(*byte) {
                                "}" => "write `}` after the last line of the block".to_string(),
                                close => format!("write `{close}` after the last element inside"),
                            }),
                    );
                }
                if found.token == close(*byte) {
                    return None;
                }
                Some(
                    Diagnostic::error("E0101", format!("expected `{}`, found {}", close(*byte), found.words))
                        .at(self.span(self.at, found.token.len()), "unexpected")
                        .and(self.span(*place, 1), format!("this `{bracket}` is not closed"))
                        .help(match close(*byte) {
                            "}" => format!("take {} away, or open a bracket before it", found.words),
                            close => format!("write `{close}` before {}", found.words),
                        }),
                )
            }
            None if matches!(found.token, ")" | "]" | "}") => Some(
                Diagnostic::error("E0101", format!("`{}` closes nothing", found.token))
                    .at(self.span(self.at, 1), "no bracket of this kind is open")
                    .help("take it away, or open a bracket before it"),
            ),
            _ => None,
        }
    }

    fn broken_string(&self, found: &Found) -> Option<Diagnostic> {
        if found.token != "\"" {
            return None;
        }
        let line = self.text[self.at..].lines().next().unwrap_or("");
        let mut chars = line.char_indices().skip(1);
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => return None,
                '\\' => match chars.next() {
                    Some((_, '"' | '\\' | 'n' | 't')) => {}
                    Some((_, other)) => {
                        return Some(
                            Diagnostic::error("E0101", format!("unknown escape `\\{other}` in a string"))
                                .at(self.span(self.at + i, 1 + other.len_utf8()), "unexpected")
                                .help("write one of `\\\"`, `\\\\`, `\\n`, `\\t`"),
                        );
                    }
                    None => {}
                },
                _ => {}
            }
        }
        Some(
            Diagnostic::error("E0101", "string is not closed on its line")
                .at(self.span(self.at, line.len()), "begins here")
                .help("end it with `\"`; a line end inside a string is written `\\n`"),
        )
    }

    /// A line of a train item or plan that begins with no known word, or has a `=` after it.
    fn train_line(&self, found: &Found) -> Option<Diagnostic> {
        let before = self.text[self.piece.start..self.at].trim_end_matches([' ', '\t']);
        let line = before.rsplit(['\n', ';', '{']).next().unwrap_or("").trim();
        let words = match self.text[self.piece.clone()].split([' ', '\t']).next() {
            Some("train") => Some(("train item", TRAIN_WORDS)),
            Some("plan") => Some(("plan", PLAN_WORDS)),
            _ => None,
        };
        if found.token == "="
            && line != "let"
            && let Some((item, _)) = words.filter(|(_, words)| words.contains(&line))
        {
            let value = self.text[self.at + 1..].split(['\n', ';', '}']).next().unwrap_or("");
            let value = value.split("//").next().unwrap_or("").trim();
            return Some(
                Diagnostic::error("E0101", format!("`{line}` of a {item} takes no `=`"))
                    .at(self.span(self.at, 1), "unexpected")
                    .help(format!("write `{line} {value}`")),
            );
        }
        let word = found.token.starts_with(|c: char| c.is_ascii_alphabetic());
        if !word || !self.expects(&[Rule::train_line]) {
            return None;
        }
        let rest = self.text[self.at + found.token.len()..self.piece.end].split(['\n', ';', '}']).next().unwrap_or("");
        let rest = rest.split("//").next().unwrap_or("").trim().trim_start_matches('=').trim_start();
        let lines = || format!("its lines begin with {}", TRAIN_WORDS.join(", "));
        Some(
            Diagnostic::error("E0101", format!("a train item has no line `{}`", found.token))
                .at(self.span(self.at, found.token.len()), "unknown")
                .help(
                    habits::train_line(found.token, rest)
                        .or_else(|| near(found.token, TRAIN_WORDS))
                        .unwrap_or_else(lines),
                ),
        )
    }

    fn unexpected(&self, found: &Found) -> Diagnostic {
        let message = format!("expected {}, found {}", self.expected(), found.words);
        let len = if found.token == "\n" { 0 } else { found.token.len() };
        let mut diagnostic = Diagnostic::error("E0101", message).at(self.span(self.at, len), "unexpected");
        if let Some((place, bracket)) = self.open_before() {
            diagnostic = diagnostic.and(self.span(place, 1), format!("this `{bracket}` is not closed"));
        }
        diagnostic.help(self.cure(found).unwrap_or_else(|| self.plain_cure(found)))
    }

    /// What to write where nothing tells what was meant: an example of what is expected.
    fn plain_cure(&self, found: &Found) -> String {
        use Rule::*;
        let definition =
            ["fn", "layer", "model", "optimizer"].iter().any(|w| self.text[self.piece.clone()].starts_with(w));
        if let Some((_, bracket)) = self.open_before() {
            return format!("write `{}` at the end of the line before", if bracket == '(' { ')' } else { ']' });
        }
        if self.after_expression() {
            return "write an operator between two expressions, or begin a new line".to_string();
        }
        let before = self.text[self.piece.start..self.at].trim_end();
        let operator = ["**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "<", ">"];
        if let Some(operator) = operator.iter().find(|o| before.ends_with(**o) && !before.ends_with("->")) {
            return format!("write what stands on the right of `{operator}`, or take it away");
        }
        let example = if self.expects(&[expr, term, neg, not, call_arg, paren_part, index_item]) {
            "an expression is a value, such as `x`, `2.0` or `f(x)`"
        } else if self.expects(&[ty, ty_dims, dtype]) {
            "a type is written `[batch, embed]`, `int[batch]` or `f32`"
        } else if self.expects(&[static_kind]) {
            "a setting is written `width: int` or `eps = 1e-5`"
        } else if definition && self.expects(&[colon]) {
            "an argument is written with its type: `x: [batch, embed]`"
        } else if self.expects_name() || self.expects(&[names, opt]) {
            "a name is of letters, digits and `_`, and does not begin with a digit"
        } else if found.token == "\n" || self.at == self.piece.end {
            return format!("go on with {}", self.expected());
        } else {
            return format!("write {} before {}, or take that away", self.expected(), found.words);
        };
        example.to_string()
    }

    /// What to write instead, for mistakes that come from other languages or are easily made.
    fn cure(&self, found: &Found) -> Option<String> {
        let before = self.text[self.piece.start..self.at].trim_end_matches([' ', '\t']);
        let word_before = before.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or("");
        let line = before.rsplit(['\n', ';', '{']).next().unwrap_or("").trim_start();
        let declares = ["param ", "state "].iter().any(|w| line.starts_with(w));
        if let Some(cure) = habits::cure(before, found.token, self.opened()) {
            return Some(cure);
        }
        let cure = match found.token {
            "\n" if declares && self.expects(&[Rule::equals]) => {
                "give an initial value, such as `= normal(std = 0.02)` or `= 0`"
            }
            "=" if line == "loss" => "write `loss ..`, without `=`",
            "=" if ["metric", "output", "let", "const"].contains(&line) => {
                return Some(format!("write `{line} name = ..`"));
            }
            "." => {
                let digits = self.text[self.at + 1..].split(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
                return (!digits.is_empty()).then(|| format!("write `0.{digits}`"));
            }
            "\n" if self.after_expression() => {
                "a line may break after an operator, a comma, `=`, `->` or an opening bracket, and before a closing one"
            }
            "else" => "`} else {` stands on one line",
            "elif" => "write `else if`",
            "&" => "write `and`",
            "|" => "write `or`",
            "!" => "write `not`",
            "^" => "powers are written `x ** 2`",
            "#" => "comments begin with `//`",
            "'" => "strings are written with `\"`",
            "=" if before.ends_with(['+', '-', '*', '/']) => "write `x = x + y`",
            "=" if self.after_expression() => "to compare, write `==`; to name a value, write `let name = ..`",
            token if self.expects(&[Rule::ty_dim]) && token.starts_with(|c: char| c.is_ascii_digit()) => {
                "dims are always named: declare one, as in `dim part = 3`"
            }
            token if token.starts_with(|c: char| c.is_ascii_digit()) && token.contains(char::is_alphabetic) => {
                "a name cannot begin with a digit"
            }
            _ if self.after_expression() && matches!(word_before, "var" | "val" | "const") => "write `let name = ..`",
            _ if self.expects(&[Rule::file, Rule::item, Rule::attribute]) => return self.item_cure(found),
            _ if word_before == before.rsplit('\n').next().unwrap_or("").trim() => {
                return [PLAN_WORDS, STATEMENT_WORDS, SAMPLE_WORDS].into_iter().find_map(|w| near(word_before, w));
            }
            _ => return None,
        };
        Some(cure.to_string())
    }

    fn item_cure(&self, found: &Found) -> Option<String> {
        let word = match found.token {
            "def" | "func" | "function" | "fun" => "fn",
            "class" | "module" | "struct" => "layer",
            "import" | "from" | "include" => "use",
            "let" | "var" => "const",
            _ => return near(found.token, ITEM_WORDS),
        };
        Some(format!("write `{word}`"))
    }

    /// `an operator, `,` or `)``
    fn expected(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        for rule in self.positives {
            let word = describe(*rule);
            // The end of a piece is no place that the user knows.
            let inner_end = *rule == Rule::EOI && self.positives.contains(&Rule::sep);
            if !inner_end && !words.contains(&word) {
                words.push(word);
            }
        }
        // What is possible after every expression says little beside what is particular to this one.
        let vague: &[&str] =
            if self.after_expression() { &["`@`", "`(`", "`[`", "`=`"] } else { &["the end of the line"] };
        words.retain(|w| !vague.contains(&w.as_str()));
        words.sort_by_key(|w| (w.starts_with('`'), w.starts_with("the end")));
        match words.split_last() {
            None => "something else".to_string(),
            Some((last, [])) => last.clone(),
            Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        }
    }
}

const ITEM_WORDS: &[&str] =
    &["use", "dim", "const", "fn", "layer", "optimizer", "model", "preset", "plan", "train", "sample", "weights"];
const TRAIN_WORDS: &[&str] = &[
    "data",
    "valid",
    "samples",
    "let",
    "optimizer",
    "freeze",
    "clip",
    "gradient",
    "average",
    "steps",
    "seed",
    "save",
    "log",
    "load",
];
const PLAN_WORDS: &[&str] =
    &["mesh", "shard", "replicate", "layout", "pipeline", "microbatches", "precision", "zero", "recompute", "offload"];
const SAMPLE_WORDS: &[&str] = &["feed", "text", "stop", "length"];
const STATEMENT_WORDS: &[&str] = &["let", "param", "state", "update", "loss", "metric", "output", "dim", "for", "scan"];

fn near(word: &str, words: &[&str]) -> Option<String> {
    did_you_mean(word, words.iter().copied()).map(|w| format!("did you mean `{w}`?"))
}

/// The token that begins at a place, cut as the grammar would; a line end stands for itself.
fn token_at(text: &str, at: usize) -> &str {
    let rest = &text[at..];
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let len = match rest.chars().next() {
        None => 0,
        Some(c) if word(c) => rest.find(|c| !word(c)).unwrap_or(rest.len()),
        Some(c) => {
            let double = ["==", "!=", "<=", ">=", "**", "->", ".."];
            double.iter().find(|d| rest.starts_with(**d)).map_or(c.len_utf8(), |d| d.len())
        }
    };
    &rest[..len]
}

/// A rule in human words.
fn describe(rule: Rule) -> String {
    use Rule::*;
    let words = match rule {
        file | item | attribute => "an item",
        stmt | feed_line | setting_line | rebind => "a statement",
        train_line => "a line of a train item",
        plan_line => "a statement of a plan",
        weights_line => "an entry of a weights item",
        expr | term | neg | not | call_arg | paren_part | index_item | index_named | reverse | loop_over => {
            "an expression"
        }
        infix | call | index | member | layout | point => "an operator",
        name | use_name | dim_def | const_def | static_def | setting | mesh_axis | opt | names | let_tuple | unit => {
            "a name"
        }
        arg => "an argument",
        args => "arguments in `(..)`",
        statics => "settings in `[..]`",
        ty | ty_dims | result | dtype => "a type",
        ty_dim | ty_map | group | group_part | ty_outs => "a dim",
        entry | entries => "a layout in `[..]`",
        axes => "an axis of the mesh",
        static_kind => "`int`, `float`, `bool` or `str`",
        block | weights_block | sample_block | settings | opts => "`{`",
        use_names => "names in `{..}`",
        turn => "`{name}`",
        value | value_arg | word => "a value",
        value_call | value_list | value_word => "a value",
        select | terms | select_term | select_word => "`matrix`, `vector`, `rest` or a path in quotes",
        scope | scopes => "a layer or function",
        int | float | number => "a number",
        string => "a string",
        EOI => "the end of the file",
        sep => "the end of the line",
        comma | last_comma => "`,`",
        colon | weights_axes => "`:`",
        equals => "`=`",
        arrow => "`->`",
        at => "`@`",
        dots => "`..`",
        lparen => "`(`",
        rparen => "`)`",
        lbrack => "`[`",
        rbrack => "`]`",
        lbrace => "`{`",
        rbrace => "`}`",
        _ => "",
    };
    let rule = format!("{rule:?}");
    match rule.strip_prefix("kw_") {
        Some(keyword) if words.is_empty() => format!("`{keyword}`"),
        _ if words.is_empty() => format!("`{rule}`"),
        _ => words.to_string(),
    }
}
