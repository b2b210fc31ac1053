//! Globs over parameter paths: `*` one element or a part of one, `**` any number of elements.

/// Whether a path such as `block.3.attention.wq` matches a glob such as `block.*.attention.*` or `wte.**`.
pub fn glob(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('.').collect();
    let path: Vec<&str> = path.split('.').collect();
    // rest[j]: whether pattern[i..] matches path[j..], for i from the end.
    let mut rest: Vec<bool> = (0..=path.len()).map(|j| j == path.len()).collect();
    for p in pattern.iter().rev() {
        let mut now = vec![false; path.len() + 1];
        for j in (0..=path.len()).rev() {
            now[j] = if *p == "**" {
                rest[j] || (j < path.len() && now[j + 1])
            } else {
                j < path.len() && element(p, path[j]) && rest[j + 1]
            };
        }
        rest = now;
    }
    rest[0]
}

fn element(pattern: &str, text: &str) -> bool {
    let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let mut rest: Vec<bool> = (0..=t.len()).map(|j| j == t.len()).collect();
    for c in p.iter().rev() {
        let mut now = vec![false; t.len() + 1];
        for j in (0..=t.len()).rev() {
            now[j] = if *c == '*' {
                rest[j] || (j < t.len() && now[j + 1])
            } else {
                j < t.len() && *c == t[j] && rest[j + 1]
            };
        }
        rest = now;
    }
    rest[0]
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn stars_match_parts_elements_and_any_depth() {
        assert!(glob("wte.**", "wte.table"));
        assert!(glob("**", "block.3.attention.wq"));
        assert!(glob("**.lora_*", "block.3.attention.q.lora_a"));
        assert!(glob("block.*.attention.w*", "block.3.attention.wq"));
        assert!(!glob("block.*.wq", "block.3.attention.wq"));
        assert!(!glob("wte", "wte.table"));
        assert!(glob("**.table", "table"));
    }
}
