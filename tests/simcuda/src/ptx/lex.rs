//! PTX text to tokens.

use super::{PtxError, error};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token<'a> {
    /// Opcodes, directives, names and registers, with their dots: `ld.global.f32`, `.reg`, `%tid.x`, `$L__BB0_1`.
    Word(&'a str),
    /// An integer.
    Int(u64),
    /// The bits of an f32 or (`false`) of an f64.
    Float(u64, bool),
    Text(&'a str),
    Mark(u8),
}

/// A token and its line, 1-based.
pub type Spot<'a> = (Token<'a>, u32);

fn starts_word(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

fn in_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

pub fn lex(text: &str) -> Result<Vec<Spot<'_>>, PtxError> {
    let bytes = text.as_bytes();
    let (mut tokens, mut line, mut i) = (Vec::with_capacity(text.len() / 4), 1u32, 0usize);
    while let Some(&c) = bytes.get(i) {
        let begin = i;
        match c {
            b'\n' => {
                line += 1;
                i += 1;
            }
            c if c.is_ascii_whitespace() => i += 1,
            b'/' if bytes.get(i + 1) == Some(&b'/') => {
                while bytes.get(i).is_some_and(|c| *c != b'\n') {
                    i += 1;
                }
            }
            b'/' if bytes.get(i + 1) == Some(&b'*') => {
                let Some(end) = text[i..].find("*/") else { return error(line, "a comment that does not end") };
                line += text[i..i + end].matches('\n').count() as u32;
                i += end + 2;
            }
            b'"' => {
                let Some(end) = text[i + 1..].find('"') else { return error(line, "a string that does not end") };
                tokens.push((Token::Text(&text[i + 1..i + 1 + end]), line));
                i += end + 2;
            }
            b'0'..=b'9' => {
                while bytes.get(i).is_some_and(|c| c.is_ascii_alphanumeric() || *c == b'.') {
                    i += 1;
                }
                tokens.push((number(&text[begin..i], line)?, line));
            }
            c if starts_word(c) => {
                while bytes.get(i).is_some_and(|c| in_word(*c)) || is_double_colon(bytes, i) {
                    i += if bytes[i] == b':' { 2 } else { 1 };
                }
                tokens.push((Token::Word(&text[begin..i]), line));
            }
            _ if c.is_ascii_punctuation() => {
                tokens.push((Token::Mark(c), line));
                i += 1;
            }
            _ => return error(line, format!("the byte {c:#04x} is no part of PTX")),
        }
    }
    Ok(tokens)
}

/// `::` within a modifier (`.shared::cta`, `.L2::128B`).
fn is_double_colon(bytes: &[u8], i: usize) -> bool {
    bytes.get(i) == Some(&b':') && bytes.get(i + 1) == Some(&b':')
}

fn number<'a>(word: &str, line: u32) -> Result<Token<'a>, PtxError> {
    let bad = || PtxError { line, reason: format!("`{word}` is no number") };
    let lower = word.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0f").filter(|h| h.len() == 8) {
        return Ok(Token::Float(u64::from_str_radix(hex, 16).map_err(|_| bad())?, true));
    }
    if let Some(hex) = lower.strip_prefix("0d").filter(|h| h.len() == 16) {
        return Ok(Token::Float(u64::from_str_radix(hex, 16).map_err(|_| bad())?, false));
    }
    if lower.contains('.') && !lower.starts_with("0x") {
        return Ok(Token::Float(lower.parse::<f64>().map_err(|_| bad())?.to_bits(), false));
    }
    let digits = lower.trim_end_matches('u');
    let value = if let Some(hex) = digits.strip_prefix("0x") {
        u64::from_str_radix(hex, 16)
    } else if let Some(bits) = digits.strip_prefix("0b") {
        u64::from_str_radix(bits, 2)
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(&digits[1..], 8)
    } else {
        digits.parse()
    };
    value.map(Token::Int).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_dots_and_numbers_their_kinds() {
        let tokens =
            lex("cp.async.cg.shared.global.L2::128B [%r1+0x10], 0f3F800000; // x\n$L_1: 1U 010").expect("it lexes");
        let plain: Vec<Token> = tokens.iter().map(|t| t.0).collect();
        assert_eq!(plain[0], Token::Word("cp.async.cg.shared.global.L2::128B"));
        assert_eq!(plain[2], Token::Word("%r1"));
        assert_eq!(plain[4], Token::Int(16));
        assert_eq!(plain[7], Token::Float(0x3f80_0000, true));
        assert_eq!(tokens[9], (Token::Word("$L_1"), 2));
        assert_eq!(plain[11..], [Token::Int(1), Token::Int(8)]);
    }

    #[test]
    fn what_is_no_ptx_is_said_with_its_line() {
        assert_eq!(lex("\n\u{e4}").expect_err("no PTX").line, 2);
        assert!(lex("/* open").is_err());
        assert!(lex("0x").is_err());
    }
}
