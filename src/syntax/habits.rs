//! Forms of other languages that do not parse here, and what to write instead.

/// The cure for what stands around a place where a parse ended. `token` is the one that did not fit, `open` the text
/// before the innermost bracket that is open there, with that bracket.
pub(super) fn cure(before: &str, token: &str, open: Option<(&str, u8)>) -> Option<String> {
    let line = before.rsplit(['\n', ';', '{']).next().unwrap_or("").trim_start();
    let indexed = open.filter(|(_, bracket)| *bracket == b'[').map(|(text, _)| last_name(text));
    match (token, indexed) {
        (":", Some(of)) => {
            let of = if of.is_empty() { "x" } else { of };
            return Some(format!(
                "dims have names: `{of}[dim = 0]` is one element along `dim`, `{of}[dim = 2.. -> part]` a slice"
            ));
        }
        (".", Some(of)) if before.ends_with("..") => {
            return Some(format!("dims that are not named stay as they are: write `{of}[dim = 0]`"));
        }
        _ => {}
    }
    if line.starts_with("use ") && token == "/" {
        return Some("parts of a path are joined by points: `use .folder.file`".to_string());
    }
    let first = line.split([' ', '\t', '(']).next().unwrap_or("");
    let cure = match (first, token) {
        ("while", _) => "a loop runs over a dim or a range: `for i in 0..n {..}`, `scan t in seq {..}`",
        ("return", _) => "the value of a body is its last statement",
        (_, "if") => "write `if c { a } else { b }` where `c` is a constant, `where(c, a, b)` where it is a value",
        _ => return None,
    };
    Some(cure.to_string())
}

/// `dim = ..` among the arguments of a call: the call as it is written here.
pub(super) fn dims_in_brackets(open: Option<(&str, u8)>, inside: &str) -> Option<String> {
    let (text, b'(') = open? else { return None };
    let callee = last_name(text);
    if callee.is_empty() {
        return None;
    }
    // `x.mean(dim = 1)`
    let of = text.trim_end_matches(callee).strip_suffix('.').map(last_name).filter(|of| !of.is_empty());
    let first = inside.split(',').next().unwrap_or("").trim();
    let x = match of {
        Some(of) => of,
        None if !first.is_empty() && first.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => first,
        None => "..",
    };
    Some(format!("dims are named in brackets: write `{callee}[dim]({x})` with the dim's own name"))
}

/// The name that a text ends with.
fn last_name(text: &str) -> &str {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let start = text.rfind(|c| !word(c)).map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    &text[start..]
}

/// A line of a train item that other tools have.
pub(super) fn train_line(word: &str, rest: &str) -> Option<String> {
    let value = if rest.is_empty() { ".." } else { rest };
    let plan = |line: &str| Some(format!("a plan says this: `plan p {{ {line} {value} }}`, taken by `--plan p`"));
    match word {
        "microbatches" | "precision" | "recompute" | "zero" | "mesh" | "shard" => plan(word),
        "grad_accumulation"
        | "gradient_accumulation"
        | "accumulate"
        | "accumulation"
        | "accumulation_steps"
        | "grad_accumulation_steps"
        | "gradient_accumulation_steps" => plan("microbatches"),
        "dtype" | "amp" | "autocast" => plan("precision"),
        "lr" | "learning_rate" => Some(format!("a setting of the optimizer: `optimizer adamw(lr = {value})`")),
        "weight_decay" => Some("a setting of the optimizer: see `partita std optim`".to_string()),
        "batch" | "batch_size" => Some(format!("the size of the batch is that of a dim: `dim batch = {value}`")),
        "epochs" | "epoch" => Some("write `steps N`: an epoch is as many steps as the data has batches".to_string()),
        "loss" | "metric" => Some(format!("the model says this: `{word} ..` in its body")),
        _ => None,
    }
}
