//! The reference of the standard library, read from its sources: headings, signatures and what is said of them.

use crate::resolve::stdlib;
use std::fmt::Write;

/// The names of the modules, in order.
pub fn modules() -> impl Iterator<Item = &'static str> {
    stdlib::MODULES.iter().map(|(name, _)| *name)
}

/// A module's source.
pub fn source(module: &str) -> Option<&'static str> {
    stdlib::text(module)
}

/// A module's page: its introduction, then every definition with its signature as in the source and its documentation.
pub fn page(module: &str) -> Option<String> {
    let text = stdlib::text(module)?;
    let mut page = format!("## {module}\n");
    let mut blocks = text.split("\n\n");
    let introduction = prose(blocks.next().unwrap_or(""), "//");
    let own_name = format!("Standard library `{module}`");
    let introduction = introduction.trim_start_matches(&own_name).trim_start_matches(['.', ':', ' ']);
    let _ = write!(page, "\n{}\n", capital(introduction));
    for block in blocks {
        if let Some(heading) = block.strip_prefix("// ---- ") {
            let (title, more) = heading.split_once(". ").unwrap_or((heading, ""));
            let _ = write!(page, "\n### {}\n", capital(title.trim()));
            if !more.is_empty() {
                let _ = write!(page, "\n{}\n", prose(more, "//"));
            }
        } else if let Some(signature) = signature(block) {
            let _ = write!(page, "\n```\n{signature}\n```\n\n{}\n", prose(block, "///"));
        }
    }
    Some(page)
}

/// A definition from its keyword to the brace of its body.
fn signature(block: &str) -> Option<&str> {
    let starts = |l: &str| ["fn ", "layer ", "optimizer "].iter().any(|k| l.starts_with(k));
    let line = block.lines().find(|l| starts(l))?;
    let (signature, _) = block[block.find(line)?..].split_once(" {")?;
    Some(signature)
}

/// The text of the lines that begin with a mark of comments, without the mark. A heading's first line has lost its own.
fn prose(block: &str, mark: &str) -> String {
    let lines = block.lines().filter_map(|l| match l.strip_prefix(mark) {
        Some(rest) => Some(rest.strip_prefix(' ').unwrap_or(rest)),
        None => (mark == "//").then_some(l),
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn capital(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map_or(String::new(), |c| c.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_is_on_its_page_with_its_documentation() {
        for module in modules() {
            let page = page(module).expect("a module has a page");
            let text = source(module).expect("a module has a source");
            let definitions = text.lines().filter(|l| ["fn ", "layer ", "optimizer "].iter().any(|k| l.starts_with(k)));
            let mut count = 0;
            for line in definitions {
                let start = line.split(" {").next().unwrap_or(line);
                assert!(page.contains(start), "{module}: {start}");
                count += 1;
            }
            assert_eq!(page.matches("```\n\n").count(), count, "{module}");
            assert!(!page.contains("```\n\n\n"), "{module} has a definition without documentation");
        }
        assert!(page("torch").is_none());
    }

    #[test]
    fn a_signature_may_have_several_lines() {
        let page = page("nn").expect("nn is a module");
        assert!(
            page.contains("layer Moe[\n    pos, d, e, ff, pick,")
                && page.contains("(x: [.., pos, d]) -> [.., pos, d]\n```")
        );
    }
}
