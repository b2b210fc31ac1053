//! Tokens of the text form of a graph.

use super::ValueId;

#[derive(Clone, PartialEq, Debug)]
pub enum Token {
    Word(String),
    /// A quoted name.
    Text(String),
    Number(String),
    Value(u32),
    Mark(&'static str),
    Comment(String),
    End,
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Word(w) | Token::Number(w) => write!(f, "`{w}`"),
            Token::Text(t) => write!(f, "{t:?}"),
            Token::Value(v) => write!(f, "`%{v}`"),
            Token::Mark(m) => write!(f, "`{m}`"),
            Token::Comment(_) => f.write_str("a comment"),
            Token::End => f.write_str("the end of the text"),
        }
    }
}

const MARKS: [&str; 14] = ["->", "(", ")", "[", "]", "{", "}", ",", ":", ";", "=", "+", "*", "-"];

pub struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    ahead: Option<Token>,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0, line: 1, ahead: None }
    }

    /// The line that has been read to, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    pub fn peek(&mut self) -> Result<Token, String> {
        if self.ahead.is_none() {
            self.ahead = Some(self.scan()?);
        }
        Ok(self.ahead.clone().unwrap_or(Token::End))
    }

    pub fn next(&mut self) -> Result<Token, String> {
        match self.ahead.take() {
            Some(t) => Ok(t),
            None => self.scan(),
        }
    }

    /// The longest beginning of the rest whose characters all satisfy `f`.
    fn take(&mut self, mut f: impl FnMut(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !f(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn scan(&mut self) -> Result<Token, String> {
        let space = self.take(char::is_whitespace);
        self.line += space.matches('\n').count();
        let rest = &self.text[self.at..];
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        if rest.starts_with("//") {
            return Ok(Token::Comment(self.take(|c| c != '\n')[2..].to_string()));
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let word = self.take(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '#'));
            return Ok(Token::Word(word.to_string()));
        }
        let signed_digit = first == '-' && rest[1..].starts_with(|c: char| c.is_ascii_digit());
        if first.is_ascii_digit() || signed_digit {
            return Ok(Token::Number(self.number().to_string()));
        }
        if first == '%' {
            self.at += 1;
            let digits = self.take(|c| c.is_ascii_digit());
            return digits.parse().map(Token::Value).map_err(|_| format!("`%{digits}` is no value"));
        }
        if first == '"' {
            return self.quoted();
        }
        for m in MARKS {
            if rest.starts_with(m) {
                self.at += m.len();
                return Ok(Token::Mark(m));
            }
        }
        Err(format!("unexpected {first:?}"))
    }

    fn number(&mut self) -> &'a str {
        let start = self.at;
        if self.text[self.at..].starts_with('-') {
            self.at += 1;
        }
        self.take(|c| c.is_ascii_digit() || c == '.');
        if self.text[self.at..].starts_with(['e', 'E']) {
            self.at += 1;
            if self.text[self.at..].starts_with(['-', '+']) {
                self.at += 1;
            }
            self.take(|c| c.is_ascii_digit());
        }
        &self.text[start..self.at]
    }

    /// A quoted name with the escapes of `str::escape_default`.
    fn quoted(&mut self) -> Result<Token, String> {
        let mut chars = self.text[self.at + 1..].char_indices();
        let start = self.at + 1;
        let mut out = String::new();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at = start + i + 1;
                    return Ok(Token::Text(out));
                }
                '\n' => break,
                '\\' => match chars.next().map(|(_, c)| c) {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some('r') => out.push('\r'),
                    Some('u') => {
                        let mut code = 0u32;
                        for (_, c) in chars.by_ref() {
                            match c {
                                '{' => {}
                                '}' => break,
                                _ => {
                                    let digit = c.to_digit(16).ok_or("bad escape in a name")?;
                                    code =
                                        code.checked_mul(16).and_then(|n| n.checked_add(digit)).ok_or("bad escape")?;
                                }
                            }
                        }
                        out.push(char::from_u32(code).ok_or("bad escape in a name")?);
                    }
                    Some(c @ ('"' | '\\' | '\'')) => out.push(c),
                    _ => return Err("bad escape in a name".into()),
                },
                c => out.push(c),
            }
        }
        Err("a quoted name does not end on its line".into())
    }

    pub fn at(&mut self, mark: &str) -> bool {
        matches!(self.peek(), Ok(Token::Mark(m)) if m == mark)
    }

    pub fn accept(&mut self, mark: &str) -> Result<bool, String> {
        if let Token::Mark(m) = self.peek()?
            && m == mark
        {
            self.next()?;
            return Ok(true);
        }
        Ok(false)
    }

    pub fn expect(&mut self, mark: &str) -> Result<(), String> {
        if self.accept(mark)? { Ok(()) } else { Err(format!("expected `{mark}`, found {}", self.peek()?)) }
    }

    pub fn accept_word(&mut self, word: &str) -> Result<bool, String> {
        if matches!(self.peek()?, Token::Word(w) if w == word) {
            self.next()?;
            return Ok(true);
        }
        Ok(false)
    }

    /// A name, plain or quoted.
    pub fn word(&mut self) -> Result<String, String> {
        match self.next()? {
            Token::Word(w) | Token::Text(w) => Ok(w),
            other => Err(format!("expected a name, found {other}")),
        }
    }

    pub fn value(&mut self) -> Result<ValueId, String> {
        match self.next()? {
            Token::Value(v) => Ok(ValueId(v)),
            other => Err(format!("expected a value, found {other}")),
        }
    }

    pub fn whole<T: std::str::FromStr>(&mut self) -> Result<T, String> {
        match self.next()? {
            Token::Number(n) => n.parse().map_err(|_| format!("`{n}` is no whole number that fits here")),
            other => Err(format!("expected a whole number, found {other}")),
        }
    }

    pub fn float(&mut self) -> Result<f64, String> {
        let negative = self.accept("-")?;
        let x = match self.next()? {
            Token::Number(n) => n.parse().map_err(|_| format!("`{n}` is no number"))?,
            Token::Word(w) if w == "inf" => f64::INFINITY,
            Token::Word(w) if w == "NaN" => f64::NAN,
            other => return Err(format!("expected a number, found {other}")),
        };
        Ok(if negative { -x } else { x })
    }
}
