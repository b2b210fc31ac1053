//! The parser from outside: every file of the repository parses, mistakes get their code and cure, limits hold.

use partita::diag::{Diagnostic, Sink};
use partita::source::FileId;
use partita::syntax::{ast, parse_file, print};
use std::path::{Path, PathBuf};

fn parse(text: &str) -> (ast::File, Vec<Diagnostic>) {
    let mut sink = Sink::default();
    let file = parse_file(text, FileId(0), &mut sink);
    (file, sink.sorted())
}

fn sound(text: &str) -> ast::File {
    let (file, found) = parse(text);
    assert!(found.is_empty(), "{text}\n{found:#?}");
    file
}

/// The only diagnostic of a text.
fn mistake(text: &str) -> Diagnostic {
    let (_, mut found) = parse(text);
    assert_eq!(found.len(), 1, "{text}\n{found:#?}");
    found.remove(0)
}

/// The text under a diagnostic's primary label.
fn marked<'a>(text: &'a str, diagnostic: &Diagnostic) -> &'a str {
    let span = diagnostic.primary.as_ref().expect("a syntax error has a place").span;
    &text[span.start as usize..span.end as usize]
}

fn body(stmts: &str) -> String {
    format!("fn f(x: [..]) -> [..] {{\n{stmts}\n}}\n")
}

/// The dump of one expression.
fn tree(expression: &str) -> String {
    let file = sound(&body(expression));
    let ast::ItemKind::Def(def) = &file.items[0].kind else { panic!("a function") };
    let ast::StmtKind::Expr(value) = &def.body.stmts[0].kind else { panic!("an expression: {expression}") };
    print::expr(value)
}

fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<PathBuf> = ["stdlib", "examples"]
        .iter()
        .filter_map(|folder| std::fs::read_dir(root.join(folder)).ok())
        .flatten()
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "pta"))
        .collect();
    found.sort();
    found
}

#[test]
fn every_source_of_the_repository_parses() {
    let sources = sources();
    assert!(sources.len() >= 4, "the standard library has four files");
    for path in sources {
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let (file, found) = parse(&text);
        assert!(found.is_empty(), "{}: {found:#?}", path.display());
        assert!(!file.items.is_empty(), "{}", path.display());
    }
}

#[test]
fn operators_bind_as_the_table_says() {
    assert_eq!(tree("a + b * c - d"), "((a + (b * c)) - d)");
    assert_eq!(tree("-x ** 2"), "(-(x ** 2))");
    assert_eq!(tree("a ** b ** c"), "(a ** (b ** c))");
    assert_eq!(tree("a ** -b * c"), "((a ** (-b)) * c)");
    assert_eq!(tree("-a * b"), "((-a) * b)");
    assert_eq!(tree("a * -b"), "(a * (-b))");
    assert_eq!(tree("not a == b and c or d"), "(((not (a == b)) and c) or d)");
    assert_eq!(tree("a and not b or not not c"), "((a and (not b)) or (not (not c)))");
    assert_eq!(tree("a < b + 1 and c >= d"), "((a < (b + 1)) and (c >= d))");
    assert_eq!(tree("a % b / c"), "((a % b) / c)");
    assert_eq!(tree("-f(x)[a].b"), "(-f(x)[a].b)");
}

#[test]
fn numbers_and_ranges_are_told_apart() {
    assert_eq!(tree("600_000 + 0.5 + 1e-3 + 1E6 + 2.5e+3"), "((((600000 + 0.5) + 1e-3) + 1E6) + 2.5e+3)");
    assert_eq!(tree("for i in 0..n { i }"), "for i in 0..n {\n    value i\n  }");
    assert_eq!(tree("for i in 1 .. 5 { i }"), "for i in 1..5 {\n    value i\n  }");
    assert_eq!(tree("scan t in reverse seq { t }"), "scan t in reverse seq {\n    value t\n  }");
    assert_eq!(tree("scan t in reverse { t }"), "scan t in reverse {\n    value t\n  }");
}

#[test]
fn brackets_are_sorted_by_what_stands_in_them() {
    assert_eq!(tree("x[a -> b, (c, d) -> e]"), "x[a -> b, (c, d) -> e]");
    assert_eq!(tree("x[a = i, b = lo.. -> c]"), "x[a = i, b = lo.. -> c]");
    assert_eq!(tree("x[(e = i, s) -> a]"), "x[(e = i, s) -> a]");
    assert_eq!(tree("sum[..](x)"), "sum[..](x)");
    assert_eq!(tree("x[3]"), "x[other 3]");
    assert_eq!(tree("x[(a), b]"), "x[(a), b]");
    assert_eq!(tree("x[(a, 2)]"), "x[other tuple(a, 2)]");
    assert_eq!(
        tree("f[eps = if a { 1 } else { 2 }](x)").replace('\n', "").replace("  ", ""),
        "f[eps = if a {value 1} else {value 2}](x)"
    );
}

#[test]
fn postfixes_stand_on_the_line_of_what_they_follow() {
    let file = sound(&body("let a = x\n(b + c)\n[1, 2]\n-a"));
    let ast::ItemKind::Def(def) = &file.items[0].kind else { panic!("a function") };
    assert_eq!(def.body.stmts.len(), 4);
}

#[test]
fn lines_break_where_they_may() {
    sound(
        "fn f(\n    x: [\n..,\n], // first\n    y: [..] =\n 1,\n)\n    -> [..] {\n    let a =\n        x +\n        y\n\n    g(\n\n a,\n    b\n    )\n}\n",
    );
    sound(&body("if a {\n b\n} else if c { d } else {\n e }"));
    sound("dim a = 1,\n    b = 2; dim c = (a, b)\n;;\n");
}

#[test]
fn line_breaks_elsewhere_are_refused() {
    for text in ["let a\n = x", "g(a\n, b)", "if a {\n b\n}\nelse { c }", "g\n.h(x)"] {
        let (_, found) = parse(&body(text));
        assert!(!found.is_empty(), "{text}");
    }
}

#[test]
fn words_of_items_and_lines_stay_free_as_names() {
    sound(&body(
        "let weights = x\nlet step = mask + data\nlength = text\nfn + layer + plan + sample + every + by + use",
    ));
    sound("sample G {\n    text = 3\n    text bytes\n    length 10\n    feed tokens[seq] = length\n}\n");
}

#[test]
fn docs_and_attributes_belong_to_items() {
    let file = sound("// no doc\n\n/// First.\n///  Second.\n@kernel(fast)\nfn f() -> [] { x }\ndim a = 1\n");
    assert_eq!(file.items[0].doc.as_deref(), Some("First.\n Second."));
    let (name, argument) = file.items[0].attribute.as_ref().expect("an attribute");
    assert_eq!((name.text.as_str(), argument.text.as_str()), ("kernel", "fast"));
    assert_eq!(file.items[1].doc, None);
}

#[test]
fn spans_cover_what_was_written_and_no_blanks_behind_it() {
    let text = "fn f() -> [] { let a = g(x)   // why\n }   // end\n";
    let file = sound(text);
    let cut = |span: partita::source::Span| &text[span.start as usize..span.end as usize];
    let ast::ItemKind::Def(def) = &file.items[0].kind else { panic!("a function") };
    assert_eq!(cut(def.head), "fn f() -> []");
    assert_eq!(cut(def.body.stmts[0].span), "let a = g(x)");
    assert_eq!(cut(file.items[0].span), "fn f() -> [] { let a = g(x)   // why\n }");
}

#[test]
fn mistakes_have_their_code_place_and_cure() {
    let cases = [
        ("let state = x", "E0103", "state", "choose another name"),
        ("x + update", "E0103", "update", "choose another name"),
        ("a < b == c", "E0104", "==", "write `a < b and b == ..`"),
        ("let a = x\n+ y", "E0105", "+", "end the line before with `+`"),
        ("g(a\n   and b)", "E0105", "and", "end the line before with `and`"),
        ("g(x)\n.h", "E0105", ".", "one line"),
        ("x @ w", "E0106", "@", "write dot[dim](x, w)"),
        ("a @ b + c", "E0106", "@", "write dot[dim](x, w)"),
        ("a == not b", "E0101", "not", "write `(not x)`"),
        ("x ^ 2", "E0101", "^", "`x ** 2`"),
        ("if x = 3 { x }", "E0101", "=", "write `==`"),
        ("return x", "E0101", "x", "last statement"),
        ("let a = \"abc", "E0101", "\"abc", "end it with"),
        ("let a = \"a\\qc\"", "E0101", "\\q", "write one of"),
        ("x[a + 1 -> b]", "E0101", "a + 1", "a -> b"),
        ("if a { b }\nelse { c }", "E0101", "else", "one line"),
        ("for i in 3 { i }", "E0101", "3", "for i in 0..3"),
        ("while x { y }", "E0101", "x", "for i in 0..n"),
        ("let z = x if a else y", "E0101", "if", "where(c, a, b)"),
        ("let y = x[:, 0]", "E0101", ":", "`x[dim = 0]`"),
        ("let y = mean(x, dim = 1)", "E0103", "dim", "`mean[dim](x)`"),
        ("g((a = 3))", "E0101", "a", "settings go into brackets"),
        ("g(x /)", "E0101", ")", "what stands on the right of `/`"),
        ("let = x", "E0101", "=", "`let name = ..`"),
        ("let a = ,", "E0101", ",", "an expression is a value"),
        ("let a: = x", "E0101", "=", "a type is written"),
        ("x y", "E0101", "y", "an operator between two expressions"),
        ("g(x]", "E0101", "]", "write `)` before `]`"),
        ("g(x)) + 1", "E0101", ")", "take `)` away"),
    ];
    for (stmts, code, place, cure) in cases {
        let text = body(stmts);
        let found = mistake(&text);
        assert_eq!((found.code, marked(&text, &found)), (code, place), "{stmts}: {found:#?}");
        assert!(found.help.as_deref().unwrap_or("").contains(cure), "{stmts}: {found:#?}");
    }
}

#[test]
fn messages_are_in_words() {
    let cases = [
        ("g(x y)", "expected an operator, `,` or `)`, found `y`"),
        ("g(x,, y)", "expected an expression or `)`, found `,`"),
        ("let a", "expected `,`, `:` or `=`, found the end of the line"),
        ("g(x]", "expected `)`, found `]`"),
        ("not )", "expected an expression, found `)`"),
    ];
    for (stmts, message) in cases {
        assert_eq!(mistake(&body(stmts)).message, message, "{stmts}");
    }
    let unclosed = "fn f() -> [] {\n    let a = 3\ndim b = 3\nfn g() -> [] { x }\n";
    let found = mistake(unclosed);
    assert_eq!((found.message.as_str(), marked(unclosed, &found)), ("`{` is not closed", "{"));
    let large = mistake("plan p {\n    microbatches 99999999999999999999\n}\n");
    assert!(large.help.is_some_and(|h| h.contains("a larger number is a float")));
    assert_eq!(mistake("modl M() { }\n").help.as_deref(), Some("did you mean `model`?"));
    assert_eq!(mistake("plan p {\n    shrd a by b\n}\n").help.as_deref(), Some("did you mean `shard`?"));
    assert_eq!(mistake("train T {\n    step 3\n}\n").help.as_deref(), Some("did you mean `steps`?"));
}

#[test]
fn one_bad_item_hides_no_others() {
    let text = "dim a = 1\nfn f() -> [] { x + }\n@kernel(k)\nfn g() -> [] { y }\nlayer L( -> [] {\n    (\n}\nfn h() -> [] { a < b < c }\ndim b = )\nconst c = 2\n";
    let (file, found) = parse(text);
    assert_eq!(found.iter().map(|d| d.code).collect::<Vec<_>>(), ["E0101", "E0101", "E0104", "E0101"], "{found:#?}");
    let dump = print::ast(&file);
    for kept in ["dim a = 1", "@kernel(k)\nfn g", "const c = 2", "fn h"] {
        assert!(dump.contains(kept), "{kept} in\n{dump}");
    }
}

#[test]
fn nesting_is_accepted_up_to_the_limit_and_refused_beyond() {
    // Each pattern opens one bracket a level; the body of the function is the first level.
    let patterns = [
        ("(", ")"),
        ("f(", ")"),
        ("x[a = ", "]"),
        ("[", "]"),
        ("-(-", ")"),
        ("f(a = x[(e = ", ", s)])"),
        ("if c { ", " }"),
        ("x[b](1 + ", ")"),
    ];
    for (open, close) in patterns {
        let width = open.matches(['(', '[', '{']).count() - open.matches([')', ']']).count();
        let deepest = 127 / width;
        let nested = |levels: usize| body(&format!("{}x{}", open.repeat(levels), close.repeat(levels)));
        sound(&nested(deepest));
        assert_eq!(mistake(&nested(deepest + width)).code, "E0102", "{open}");
        assert_eq!(mistake(&nested(50_000)).code, "E0102", "{open}");
    }
}

#[test]
fn nesting_that_fails_to_parse_fails_in_linear_time() {
    for (open, close) in [
        ("(", ")"),
        ("x[(e = ", ")]"),
        ("f(a = ", ")"),
        ("x[a = ", ".. -> ]"),
        ("if c { text ", " }"),
        ("for i in ", " { 0 }"),
    ] {
        let levels = 127 / open.matches(['(', '[', '{']).count().max(1);
        let text = format!("sample S {{ text {}~{} }}\n", open.repeat(levels), close.repeat(levels));
        assert!(!parse(&text).1.is_empty(), "{open}");
    }
}

#[test]
fn long_chains_neither_overflow_nor_hang() {
    let accepted = |text: &str| parse(&body(text)).1.is_empty();
    let refused = |text: &str| assert_eq!(mistake(&body(text)).code, "E0102");
    assert!(accepted(&format!("x{}", " + x".repeat(500))));
    refused(&format!("x{}", " + x".repeat(20_000)));
    refused(&format!("x{}", " ** x".repeat(20_000)));
    refused(&format!("{}x", "-".repeat(20_000)));
    refused(&format!("{}x", "not ".repeat(20_000)));
    refused(&format!("x{}", ".y".repeat(20_000)));
    refused(&format!("x{}", "(y)".repeat(20_000)));
    refused(&format!("if c {{ x }}{}", " else if c { x }".repeat(5_000)));
    assert!(accepted(&"x = y; ".repeat(5_000)));
    assert!(accepted(&format!("g({})", "x, ".repeat(5_000))));
}

#[test]
fn size_is_limited() {
    let item = "dim a = 1\n//";
    let padded = |bytes: usize| format!("{item}{}", " ".repeat(bytes - item.len()));
    sound(&padded(1 << 20));
    assert_eq!(mistake(&padded((1 << 20) + 1)).code, "E0102");
}

#[test]
fn brackets_in_strings_and_comments_do_not_count() {
    sound(&body(&format!("let a = \"{}\\\"(((\" // {}", "(".repeat(500), "[".repeat(500))));
}

#[test]
fn odd_texts_are_parsed_or_refused_in_peace() {
    for text in ["", "\n", "\u{feff}dim a = 1\n", "dim a = 1\r\ndim b = 2\r\n", "//", "/// doc", "\t;\n;", "dim a = 1"]
    {
        sound(text);
    }
    for text in [
        "\0",
        "\u{a0}",
        "é",
        "\"",
        "\"\\",
        "@",
        "dim",
        "dim a = \u{1F600}",
        "fn f(",
        "}{",
        "\\",
        "dim a = 1.",
        "dim a = 99e",
    ] {
        assert!(!parse(text).1.is_empty(), "{text:?}");
    }
}
