//! The formatter by examples: what it changes, what it keeps, where it breaks lines.

use partita::syntax::format::format_source;
use std::path::Path;

fn format(text: &str) -> String {
    format_source(text).unwrap_or_else(|sink| panic!("{text}\n{:?}", sink.sorted()))
}

/// Formats the statements of a body.
fn body(stmts: &str) -> String {
    let text = format(&format!("fn f() -> [] {{\n{stmts}\n}}\n"));
    let inner = text.strip_prefix("fn f() -> [] {\n").and_then(|t| t.strip_suffix("}\n")).expect("a body");
    inner.lines().map(|l| format!("{}\n", l.strip_prefix("    ").unwrap_or(l))).collect()
}

#[test]
fn blanks_are_set_by_what_tokens_mean() {
    let text = "let y :f32[ ..,d ]=x [ a->( b ,c ) ] . w( p=- 1,q )*2**- 3+( not a and b)";
    assert_eq!(body(text), "let y: f32[.., d] = x[a -> (b, c)].w(p = -1, q) * 2 ** -3 + (not a and b)\n");
    assert_eq!(
        body("for i in 0 .. n{h=h+x [a=i .. -> b]@[ c : d ]}"),
        "for i in 0..n { h = h + x[a = i.. -> b] @ [c: d] }\n"
    );
    assert_eq!(body("x[ .. ]( )\ny\n[ a ]"), "x[..]()\ny\n[a]\n");
    assert_eq!(body("metric m=( a , )\nlet b=( a ,b, )"), "metric m = (a,)\nlet b = (a, b)\n");
    assert_eq!(
        format("use . a . b . { c as d , }\n@ k( l ) fn f( )->[ ]{ }"),
        "use .a.b.{c as d}\n@k(l)\nfn f() -> [] {}\n"
    );
    assert_eq!(
        format("plan p{mesh a=2,b=3@l;shard( a,b ) by c{ x=1f1b,y=f( 70 GiB )}}"),
        "plan p { mesh a = 2, b = 3 @ l; shard (a, b) by c { x = 1f1b, y = f(70 GiB) } }\n"
    );
}

#[test]
fn blank_lines_are_kept_one_by_one_and_never_at_the_edges_of_a_block() {
    assert_eq!(body("\n\nlet a = x\n\n\n\nlet b = x\nlet c = x\n\n"), "let a = x\n\nlet b = x\nlet c = x\n");
    assert_eq!(format("\n\ndim a = 1\n\n\n\ndim b = 2\n\n\n"), "dim a = 1\n\ndim b = 2\n");
    assert_eq!(format(""), "");
    assert_eq!(format("\n\n"), "");
}

#[test]
fn comments_stay_where_they_are() {
    let text = "// head\n\ndim a = 1      // kept at its column\n/// doc\ndim bbbbbbbbbbbbbbbbbbb = 2 // c\n// end\n";
    assert_eq!(format(text), text);
    assert_eq!(
        body("let a = f( // why\nx, // first\n\n// own\ny)"),
        "let a = f( // why\n    x, // first\n    // own\n    y\n)\n"
    );
    assert_eq!(format("dim a = 1 // last"), "dim a = 1 // last\n");
    assert_eq!(format("// only"), "// only\n");
    assert_eq!(body("if a { // why\n}"), "if a { // why\n}\n");
}

#[test]
fn blocks_on_one_line_stay_while_they_fit() {
    assert_eq!(body("if a { b } else { c }"), "if a { b } else { c }\n");
    assert_eq!(body("if a { b; c }"), "if a { b; c }\n");
    assert_eq!(body("if a {\nb } else { c }"), "if a {\n    b\n} else { c }\n");
    let long = format!("if a {{ {} }} else {{ c }}", "b + ".repeat(27) + "b");
    assert_eq!(body(&long), format!("if a {{\n    {}b\n}} else {{\n    c\n}}\n", "b + ".repeat(27)));
}

#[test]
fn long_lines_break_where_it_is_allowed() {
    let names: Vec<String> = (0..16).map(|i| format!("argument{i}")).collect();
    let short = names[..8].join(", ");
    let many = names.join(", ");
    let one_a_line = names.join(",\n    ");
    assert_eq!(
        body(&format!("let result = function_of_many[d]({short}, {})", names[8])),
        format!("let result = function_of_many[d](\n    {short}, {}\n)\n", names[8])
    );
    assert_eq!(body(&format!("f({many})")), format!("f(\n    {one_a_line}\n)\n"));
    let sum = "some_value * other_value + ".repeat(5);
    let broken = body(&format!("let x = {sum}last"));
    assert!(broken.lines().count() == 2 && broken.lines().next().is_some_and(|l| l.ends_with(" +")), "{broken}");
    let dims: Vec<String> = (0..12).map(|i| format!("dimension{i} = {i}1")).collect();
    let broken = format(&format!("dim {}\n", dims.join(", ")));
    assert!(broken.lines().count() == 2 && broken.lines().nth(1).is_some_and(|l| l.starts_with("    dim")), "{broken}");
    let head = format!("layer Long[{}](x: [{}]) -> [..] {{ x }}\n", names[..6].join(", "), names[..5].join(", "));
    let broken = format(&head);
    assert!(broken.contains("](\n    x: [") && broken.contains("\n) -> [..] {\n    x\n}\n"), "{broken}");
}

/// `BLESS=1` formats them.
#[test]
fn the_sources_of_the_repository_are_formatted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut odd = Vec::new();
    for folder in ["stdlib", "examples"] {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else { continue };
        let paths = entries.filter_map(|e| e.ok().map(|e| e.path()));
        for path in paths.filter(|p| p.extension().is_some_and(|e| e == "pta")) {
            let text = std::fs::read_to_string(&path).expect("a readable file");
            let formatted = format(&text);
            let long = formatted.lines().find(|l| l.chars().count() > 120 && !l.trim_start().starts_with("//"));
            assert_eq!(long, None, "{}", path.display());
            if formatted != text && std::env::var_os("BLESS").is_some() {
                std::fs::write(&path, &formatted).expect("a writable file");
            } else if formatted != text {
                odd.push(path);
            }
        }
    }
    assert!(odd.is_empty(), "not formatted: {odd:?}");
}

#[test]
fn a_text_with_errors_is_not_formatted() {
    let sink = format_source("dim a = \ndim b = )\n").expect_err("two errors");
    assert_eq!(sink.error_count(), 2);
    assert!(format_source("fn f() -> [] { a < b < c }\n").is_err());
}
