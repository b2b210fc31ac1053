//! Every code has a page, and the examples of pages do what the pages say.

use partita::diag::{codes::CODES, explain::page};
use partita::driver::check_source;
use partita::source::FileId;
use partita::syntax::parse_file;

/// The program that a page shows, and whether the front end alone shows the code for it.
fn example(page: &str) -> Option<(&str, bool)> {
    let (_, rest) = page.split_once("```pta")?;
    let (kind, rest) = rest.split_once('\n')?;
    let (example, _) = rest.split_once("```")?;
    Some((example, kind.trim() == "checked"))
}

#[test]
fn every_code_has_a_page_with_title_example_and_cure() {
    for code in CODES {
        let page = page(code.code).unwrap_or_else(|| panic!("{} has no page", code.code));
        let title = format!("# {}: {}\n\n", code.code, code.title);
        assert!(page.starts_with(&title), "the page of {} begins with its title", code.code);
        let parts: Vec<&str> = page.split("```").map(str::trim).collect();
        let [_, example, .., cure] = parts[..] else { panic!("the page of {} has no example", code.code) };
        assert!(example.lines().count() > 1 && cure.len() > 20, "the page of {} is too short", code.code);
        assert!(page.lines().all(|l| l.chars().count() <= 120 || l.starts_with("fn deep")), "{}", code.code);
    }
    assert_eq!(page("E9999"), None);
}

#[test]
fn there_are_no_other_pages() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/errors");
    let mut found: Vec<String> = std::fs::read_dir(folder)
        .expect("the folder of pages")
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".md").map(str::to_string))
        .collect();
    found.sort();
    assert_eq!(found, CODES.iter().map(|c| c.code).collect::<Vec<_>>());
}

#[test]
fn checked_examples_show_their_code() {
    let mut checked = 0;
    for code in CODES {
        let Some((text, true)) = page(code.code).and_then(example) else { continue };
        let found: Vec<_> = check_source(text).sorted().iter().map(|d| d.code).collect();
        assert!(found.contains(&code.code), "{}: found {found:?} for\n{text}", code.code);
        checked += 1;
    }
    assert!(checked >= 30, "only {checked} examples are checked");
}

#[test]
fn examples_parse_unless_they_show_that_they_do_not() {
    for code in CODES.iter().filter(|c| !c.code.starts_with("E01")) {
        let Some((text, _)) = page(code.code).and_then(example) else { continue };
        let mut sink = Default::default();
        parse_file(text, FileId(0), &mut sink);
        assert!(!sink.has_errors(), "{}: {:?}", code.code, sink.sorted());
    }
}
