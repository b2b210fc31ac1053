//! Replays the stored fuzz corpus, then mutates it and the sources of the repository for a while: token by token,
//! byte by byte, and by layouts that mean the same. Runs a few seconds; `PARTITA_FUZZ_MINUTES` makes it longer, and
//! `PARTITA_FUZZ_SEED` different. A long run goes on after what it finds, and shows all of it at the end.

#[path = "fuzz/checks.rs"]
mod checks;

use std::path::Path;
use std::time::{Duration, Instant};

/// The corpus first, then the sources.
fn texts() -> Vec<(String, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for folder in ["tests/fuzz/corpus", "stdlib", "examples"] {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else { continue };
        let mut paths: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_file()).collect();
        paths.sort();
        for path in paths.into_iter().filter(|p| p.extension().is_some_and(|e| e == "pta")) {
            let bytes = std::fs::read(&path).expect("a readable file");
            found.push((path.display().to_string(), bytes));
        }
    }
    found
}

#[test]
fn the_corpus_passes_all_checks() {
    let texts = texts();
    assert!(texts.iter().any(|(name, _)| name.ends_with("everything.pta")));
    for (name, bytes) in texts {
        println!("{name}");
        let sound = checks::parse(&bytes);
        assert_eq!(sound, !name.ends_with("broken.pta"), "{name}");
        checks::fmt_idempotent(&bytes);
        if name.contains("corpus") {
            checks::check_source(&bytes);
        }
    }
}

#[test]
fn mutated_programs_are_checked_in_peace() {
    let programs: Vec<String> = texts().into_iter().filter_map(|(_, b)| String::from_utf8(b).ok()).collect();
    let pieces: Vec<&str> = programs.iter().flat_map(|t| pieces(t)).collect();
    let small: Vec<&String> = programs.iter().filter(|p| p.len() < 5000).collect();
    let mut rng = Rng(0xD1B5_4A32_D192_ED03 ^ seed());
    let deadline = deadline();
    let mut found = Vec::new();
    while Instant::now() < deadline && found.len() < MOST {
        let text = tokens_changed(small[rng.below(small.len())], &pieces, &mut rng);
        let start = Instant::now();
        if std::panic::catch_unwind(|| checks::check_source(text.as_bytes())).is_err() {
            found.push(format!("panics:\n{text}"));
        } else if start.elapsed() > SLOW {
            found.push(format!("takes {:?}:\n{text}", start.elapsed()));
        }
    }
    assert!(found.is_empty(), "{} programs\n{}", found.len(), found.join("\n----\n"));
}

/// Findings that are enough for one run.
const MOST: usize = 10;
/// No program of this size should need so long, even in a build without optimisation on a busy machine.
const SLOW: Duration = Duration::from_secs(20);

#[test]
fn mutated_sources_pass_all_checks() {
    let texts: Vec<String> = texts().into_iter().filter_map(|(_, b)| String::from_utf8(b).ok()).collect();
    let pieces: Vec<&str> = texts.iter().flat_map(|t| pieces(t)).collect();
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ seed());
    let deadline = deadline();
    let (mut tried, mut sound) = (0, 0);
    while Instant::now() < deadline {
        let piece = pieces[rng.below(pieces.len())];
        let text = match rng.below(4) {
            0 => bytes_changed(piece, &mut rng),
            1 => tokens_changed(piece, &pieces, &mut rng),
            _ => laid_out_anew(piece, &mut rng),
        };
        tried += 1;
        sound += usize::from(checks::parse(text.as_bytes()));
        checks::fmt_idempotent(text.as_bytes());
    }
    // Without texts that parse the formatter would not be tested.
    assert!(sound > tried / 10, "{sound} of {tried} mutated texts parse");
}

fn deadline() -> Instant {
    let minutes: Option<f64> = std::env::var("PARTITA_FUZZ_MINUTES").ok().and_then(|m| m.parse().ok());
    Instant::now() + minutes.map_or(Duration::from_secs(4), |m| Duration::from_secs_f64(60.0 * m))
}

fn seed() -> u64 {
    std::env::var("PARTITA_FUZZ_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0)
}

/// A small generator, so that every run does the same.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Items, roughly: cut where a blank line or a closing brace ends one. Small texts find more in the same time.
fn pieces(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut begin = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        at += line.len();
        if line.starts_with('}') || line.trim().is_empty() {
            found.push(&text[begin..at]);
            begin = at;
        }
    }
    found.push(&text[begin..]);
    found.retain(|piece| !piece.trim().is_empty());
    found
}

fn bytes_changed(text: &str, rng: &mut Rng) -> String {
    const SPICE: &[u8] = b"()[]{}<>=+-*/%.,:;@#\"\\ \n\tabE01_\xc3\xa9\0";
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len());
        match rng.below(3) {
            0 if !bytes.is_empty() => bytes[at] = SPICE[rng.below(SPICE.len())],
            1 if !bytes.is_empty() => drop(bytes.remove(at)),
            _ => bytes.insert(at, SPICE[rng.below(SPICE.len())]),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn tokens_changed(text: &str, pieces: &[&str], rng: &mut Rng) -> String {
    let mut tokens = tokens(text);
    for _ in 0..=rng.below(4) {
        let (a, b) = (rng.below(tokens.len()), rng.below(tokens.len()));
        match rng.below(5) {
            0 => tokens.swap(a, b),
            1 => drop(tokens.remove(a)),
            2 => tokens.insert(a, tokens[b]),
            3 => {
                let run: Vec<&str> = tokens[a..(a + 1 + rng.below(12)).min(tokens.len())].to_vec();
                tokens.splice(b..b, run);
            }
            _ => {
                let other = self::tokens(pieces[rng.below(pieces.len())]);
                tokens[a] = other[rng.below(other.len())];
            }
        }
        if tokens.is_empty() {
            break;
        }
    }
    tokens.concat()
}

/// The same tokens with other blanks, line ends and comments, mostly where they are allowed.
fn laid_out_anew(text: &str, rng: &mut Rng) -> String {
    let mut out = String::new();
    for token in tokens(text) {
        let blank = token.chars().all(|c| c == ' ');
        if blank {
            out.push_str(["", " ", " ", "   ", "\t"][rng.below(5)]);
            if out.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                out.push(' ');
            }
            continue;
        }
        let closes = matches!(token, ")" | "]" | "}");
        if closes && rng.one_in(12) {
            out.push_str([",\n", "\n", " // closes\n", "\n// closes\n", ","][rng.below(5)]);
        }
        out.push_str(token);
        let breaks = matches!(token, "," | "=" | "->" | "(" | "[" | "{" | "+" | "*" | "and" | "==" | "-");
        if breaks && rng.one_in(10) {
            out.push_str(["\n", " // why\n", "\n\n// own\n", "\n // one\n // two\n\n", "\n\n"][rng.below(5)]);
        }
        if token == "\n" && rng.one_in(4) {
            out.push_str(["\n\n", "// line\n", "   // line\n\n", ";", "\n;\n"][rng.below(5)]);
        }
    }
    out
}

/// Cuts a text into words, marks and blanks.
fn tokens(text: &str) -> Vec<&str> {
    let kind = |c: char| match c {
        c if c.is_alphanumeric() || c == '_' => 0,
        ' ' => 1,
        _ => 2,
    };
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let double = ["->", "..", "**", "==", "!=", "<=", ">=", "//"].iter().any(|d| rest.starts_with(d));
        let len = match kind(first) {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if double => 2,
            2 => first.len_utf8(),
            k => rest.find(|c| kind(c) != k).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(len);
        found.push(token);
        rest = after;
    }
    found
}
