//! Numbers of things in words.

use std::fmt::Display;

/// `1 sample`, `2 samples`, `1,000 batches`; the number may be text already.
pub fn counted(n: impl Display, thing: &str) -> String {
    let n = n.to_string();
    let ending = match (&n[..], thing.ends_with("ch")) {
        ("1", _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{n} {thing}{ending}")
}

/// 837888 as `837,888`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_singular() {
        assert_eq!([counted(1, "dim"), counted(0, "dim"), counted("1", "batch")], ["1 dim", "0 dims", "1 batch"]);
        assert_eq!([counted("1,000", "batch"), counted(11, "sample")], ["1,000 batches", "11 samples"]);
    }
}
