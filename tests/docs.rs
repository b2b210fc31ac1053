//! The documentation holds what it says: its programs check, the commands that it shows exist, its generated parts are
//! up to date.

#[path = "common/run.rs"]
mod run;

use partita::diag::codes::CODES;
use partita::diag::render;
use partita::driver::{self, Request};
use partita::schedule::{Continued, Costs, Schedule, WORDS, simulate};
use partita::source::Memory;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README and the pages of `docs/`, without those of single errors.
fn pages() -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root().join("docs"))
        .expect("there is documentation")
        .map(|e| e.expect("a folder can be listed").path())
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
        .collect();
    paths.push(root().join("README.md"));
    paths.sort();
    let name = |p: &PathBuf| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
    paths.iter().map(|p| (name(p), std::fs::read_to_string(p).expect("a page is UTF-8"))).collect()
}

/// The texts of a page's fences of one language, with the line on which each begins.
fn fences(page: &str, language: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open: Option<bool> = None;
    for (number, line) in page.lines().enumerate() {
        if let Some(word) = line.strip_prefix("```") {
            open = match open {
                None => Some(word.trim() == language),
                Some(_) => None,
            };
            if open == Some(true) {
                found.push((number + 1, String::new()));
            }
        } else if open == Some(true)
            && let Some((_, text)) = found.last_mut()
        {
            text.push_str(line);
            text.push('\n');
        }
    }
    found
}

/// The file under which a page's program is to be saved, if its first line says so.
fn name_of(program: &str) -> Option<&str> {
    program.lines().next()?.strip_prefix("// ").filter(|n| n.ends_with(".pta") && !n.contains(' '))
}

/// The kernels that the page about them shows are those of its program.
#[test]
fn shown_kernels_are_those_of_the_program() {
    let path = root().join("docs/kernels.md");
    let mut page = std::fs::read_to_string(&path).expect("the page");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_, program) = fences(&page, "pta").remove(0);
    std::fs::write(folder.path().join("norm.pta"), program).expect("written");
    for (stage, begin) in [("kernel", "kernel k0"), ("cuda", "// sum: norm.pta")] {
        let text = run::succeeds(folder.path(), &["ir", "norm.pta", "--stage", stage]);
        let from = &text[text.find(begin).unwrap_or_else(|| panic!("no `{begin}` in\n{text}"))..];
        let end = from.find("\n\n").map_or(from.len(), |n| n + 1);
        let (_, shown) = fences(&page, stage).remove(0);
        page = page.replacen(&format!("```{stage}\n{shown}```"), &format!("```{stage}\n{}```", &from[..end]), 1);
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &page).expect("written");
    }
    let there = std::fs::read_to_string(&path).expect("the page");
    assert!(there == page, "docs/kernels.md is out of date (BLESS=1 cargo test --test docs):\n{page}");
}

#[test]
fn programs_on_the_pages_check() {
    let mut wrong = String::new();
    let mut seen = 0;
    for (name, page) in pages() {
        let programs = fences(&page, "pta");
        // Programs of a page may import each other.
        let mut world = Memory::default();
        for (_, text) in &programs {
            if let Some(path) = name_of(text) {
                assert!(world.0.insert(path.into(), text.clone()).is_none(), "{name} has two programs {path}");
            }
        }
        for (line, text) in &programs {
            seen += 1;
            let path = PathBuf::from(name_of(text).unwrap_or("page.pta"));
            world.0.insert(path.clone(), text.clone());
            let checked = driver::check::check(&Request { path, ..Request::default() }, &world);
            if checked.sink.has_errors() {
                wrong += &format!("{name}:{line}\n{}", render::text(&checked.sink, &checked.sources, false));
            }
        }
    }
    assert!(seen > 4, "only {seen} programs found");
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn programs_to_begin_with_train_where_they_are_saved() {
    let mut trained = 0;
    for (name, page) in pages().into_iter().filter(|(n, _)| ["README.md", "tutorial.md"].contains(&n.as_str())) {
        for (line, text) in fences(&page, "pta") {
            let imported =
                name_of(&text).is_some_and(|n| page.contains(&format!("use .{}.", n.trim_end_matches(".pta"))));
            assert!(imported || text.contains("\ntrain "), "{name}:{line}: a program without a train item");
            for source in ["csv(\"", "idx(\"", "npy(\"", "bytes(\"", "chars(\"", "lines(\""] {
                for rest in text.split(source).skip(1) {
                    let path = rest.split('"').next().unwrap_or("");
                    assert!(root().join(path).is_file(), "{name}:{line}: there is no {path}");
                    trained += 1;
                }
            }
        }
    }
    assert!(trained >= 10, "only {trained} files of data found");
}

#[test]
fn fine_tuning_goes_as_the_tutorial_says() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    std::fs::create_dir_all(at.join("examples/data")).expect("a folder");
    let data = "examples/data/digits.csv.gz";
    std::fs::copy(root().join(data), at.join(data)).expect("the data");
    let page = std::fs::read_to_string(root().join("docs/tutorial.md")).expect("the page");
    for (_, text) in fences(&page, "pta") {
        if let Some(name @ ("perceptron.pta" | "parity.pta")) = name_of(&text) {
            std::fs::write(at.join(name), text).expect("the program");
        }
    }
    run::succeeds(at, &["train", "perceptron.pta", "--steps", "60"]);
    let right = |text: &str| -> f64 {
        serde_json::from_str::<serde_json::Value>(text).expect("an object")["right"].as_f64().expect("a metric")
    };
    run::succeeds(at, &["train", "parity.pta", "--steps", "60"]);
    let tuned = right(&run::succeeds(at, &["eval", "parity.pta", "--json"]));
    assert!(tuned > 0.8, "{tuned}");
    // What was frozen is what was loaded.
    for (program, file) in [("perceptron.pta", "a.safetensors"), ("parity.pta", "b.safetensors")] {
        run::succeeds(at, &["export", program, "-o", file]);
    }
    let weights = |file: &str| partita::runtime::checkpoint::Weights::open(&at.join(file)).expect("weights");
    let read = |file: &str, name: &str| weights(file).read(name, partita::types::DType::F32).expect("a tensor");
    for name in ["first.weight", "first.shift"] {
        assert!(read("a.safetensors", name) == read("b.safetensors", name), "{name}");
    }
}

#[test]
fn commands_on_the_pages_exist() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut names: Vec<String> = Vec::new();
    for (name, page) in pages() {
        for (line, text) in fences(&page, "sh") {
            for command in text.lines().flat_map(|l| l.split("&&")) {
                let words: Vec<&str> = command.split_whitespace().collect();
                let sub = match words[..] {
                    ["partita", sub, ..] => sub,
                    ["cargo", "run", "--release", "--", sub, ..] => sub,
                    ["cargo", "test", "--release", "--workspace"] | ["cargo", "install", "--path", "."] | [] => {
                        continue;
                    }
                    _ => panic!("{name}:{line}: `{command}` is no known command"),
                };
                for file in words.iter().filter(|w| w.ends_with(".pta")) {
                    let on_page = fences(&page, "pta").iter().any(|(_, text)| name_of(text) == Some(file));
                    assert!(on_page || root().join(file).exists(), "{name}:{line}: {file} does not exist");
                }
                names.push(sub.to_string());
            }
        }
    }
    names.sort();
    names.dedup();
    assert!(names.len() >= 5, "only {names:?} found");
    for name in names {
        run::succeeds(folder.path(), &[&name, "--help"]);
    }
}

/// Whether a command prints what a page shows of it: `..` stands for any lines, and at the end of a line for its rest.
fn shows(shown: &[&str], printed: &[&str]) -> bool {
    match (shown, printed) {
        ([], _) => printed.is_empty(),
        (["..", rest @ ..], _) => (0..=printed.len()).any(|n| shows(rest, &printed[n..])),
        ([a, rest @ ..], [b, others @ ..]) => {
            let alike = a.strip_suffix("..").map_or(a == b, |begin| b.starts_with(begin));
            alike && shows(rest, others)
        }
        _ => false,
    }
}

#[test]
fn commands_on_the_page_on_parallelism_print_what_it_shows() {
    let seen = prints_what_it_shows("parallelism.md");
    assert!(seen > 10, "only {seen} commands found");
}

#[test]
fn commands_on_the_page_on_schedules_print_what_it_shows() {
    let seen = prints_what_it_shows("schedules.md");
    assert!(seen > 10, "only {seen} commands found");
}

#[test]
fn commands_on_the_page_on_memory_print_what_it_shows() {
    let seen = prints_what_it_shows("memory.md");
    assert!(seen > 5, "only {seen} commands found");
}

#[test]
fn commands_on_the_page_on_replicas_print_what_it_shows() {
    let seen = prints_what_it_shows("replicas.md");
    assert!(seen > 2, "only {seen} commands found");
}

/// The commands in fences without a language, in a folder with the page's programs. Plans stand in fences of their own and belong to the
/// first program. `BLESS=1` writes what differs, without anything left out. Gives the number of commands.
fn prints_what_it_shows(name: &str) -> usize {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let data = "examples/data/fables.txt";
    std::fs::create_dir_all(at.join("examples/data")).expect("a folder");
    std::fs::copy(root().join(data), at.join(data)).expect("the data");
    let path = root().join("docs").join(name);
    let page = std::fs::read_to_string(&path).expect("the page");
    let plans: String = fences(&page, "plan").into_iter().map(|(_, text)| text).collect();
    for (k, (line, text)) in fences(&page, "pta").into_iter().enumerate() {
        let name = name_of(&text).unwrap_or_else(|| panic!("line {line}: a program without a name"));
        let more = if k == 0 { plans.as_str() } else { "" };
        std::fs::write(at.join(name), format!("{text}{more}")).expect("the program");
    }
    let (mut right, mut wrong, mut seen) = (page.clone(), String::new(), 0);
    for (line, text) in fences(&page, "") {
        let Some((command, shown)) = text.split_once('\n') else { continue };
        let Some(words) = command.strip_prefix("$ partita ") else { continue };
        seen += 1;
        let printed = run::succeeds(at, &words.split_whitespace().collect::<Vec<_>>());
        if !shows(&shown.lines().collect::<Vec<_>>(), &printed.lines().collect::<Vec<_>>()) {
            wrong += &format!("line {line}: {command}\n{printed}\n");
            right = right.replacen(&text, &format!("{command}\n{printed}"), 1);
        }
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, right).expect("the page can be written");
    } else {
        assert!(wrong.is_empty(), "docs/{name} is out of date (BLESS=1 cargo test --test docs):\n{wrong}");
    }
    seen
}

/// Idle units, bubble and activations of the built-in schedules, as the page compares them.
#[test]
fn figures_of_the_page_on_schedules_are_simulated() {
    const BEGIN: &str = "<!-- figures -->\n";
    const END: &str = "<!-- end of figures -->";
    let sizes = [(4, 8), (8, 32)];
    let heads = sizes.map(|(p, m)| format!("{p} ranks, {m} microbatches: idle | bubble | microbatches kept"));
    let mut table = format!("| schedule | chunks | {} |\n|---|{}\n", heads.join(" | "), "--:|".repeat(7));
    let named = WORDS.iter().map(|w| w.1.clone()).filter(|s| *s != Schedule::Auto);
    let all = named.chain([2, 4].map(Schedule::Interleaved)).chain([Schedule::LoopedBfs(2)]);
    for s in all {
        let chunks = if s == Schedule::DualPipe { 2 } else { s.chunks().unwrap_or(1) };
        table += &format!("| `{s}` | {chunks} |");
        for (p, m) in sizes {
            let costs = Costs::unit(s.stages(p, 0, None).expect("a schedule of its own"));
            let t = s.table(p, m, &costs, &|_| Err(String::new())).expect("a table");
            let mut x = simulate(&t, &costs).expect("a table that can be run");
            if let (Schedule::TwoBw, Some(c)) = (&s, Continued::new(p, m)) {
                // A step between others.
                let [two, three] = [2, 3].map(|n| simulate(&c.steps(n), &costs).expect("a table that can be run"));
                x.makespan = three.makespan - two.makespan;
            }
            let peak = x.peak_activations.iter().max().copied().unwrap_or(0) as f64;
            // Stages of several a rank are smaller. A rank of DualPipe computes one of its two for each microbatch.
            let parts = s.chunks().unwrap_or(1) as f64;
            let (idle, kept) = ((x.makespan - x.busy[0]) / parts, peak / parts);
            table += &format!(" {idle} | {:.2} % | {kept} |", 100.0 * x.bubble_fraction());
        }
        table.push('\n');
    }
    let path = root().join("docs/schedules.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (before, rest) = page.split_once(BEGIN).expect("the beginning of the figures");
    let (shown, after) = rest.split_once(END).expect("the end of the figures");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).expect("the page can be written");
    } else {
        assert!(shown == table, "docs/schedules.md is out of date (BLESS=1 cargo test --test docs):\n{table}");
    }
}

#[test]
fn what_is_left_out_on_a_page_may_be_anything() {
    assert!(
        shows(&["a", "..", "d"], &["a", "b", "c", "d"]) && shows(&["a", ".."], &["a"]) && shows(&["a .."], &["a 1"])
    );
    assert!(!shows(&["a", "..", "d"], &["a", "b"]) && !shows(&["a"], &["a", "b"]) && !shows(&["b .."], &["a 1"]));
}

/// A page that is made from something else: `BLESS=1` writes it.
fn is_up_to_date(name: &str, text: &str) {
    let path = root().join("docs").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).expect("the page can be written");
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == text, "docs/{name} is out of date; to write it: BLESS=1 cargo test --test docs");
}

#[test]
fn the_reference_of_the_standard_library_is_complete() {
    let mut text = String::from(
        "# The standard library\n\nWritten in the language; `partita std MODULE` prints a module's part of this page and \
         `--source` its source, which is\nin `stdlib/` too. `use nn.{Linear, softmax}` imports names. In brackets stand dims \
         by position, then settings by name\n(`Linear[embed, mlp, bias = false]`); `..` is all other dims of the arguments. \
         This page is written by a test.\n",
    );
    for module in driver::library::modules() {
        text += "\n";
        text += &driver::library::page(module).expect("a module has a page");
    }
    is_up_to_date("stdlib.md", &text);
}

#[test]
fn the_index_of_diagnostics_is_complete() {
    let mut index = String::from(
        "# Diagnostics\n\nEvery error, warning and note has a code; `partita explain CODE` prints its page. This index is \
         written by a test.\n\n| code | kind |\n|---|---|\n",
    );
    for code in CODES {
        index += &format!("| [{0}](errors/{0}.md) | {1} |\n", code.code, code.title);
    }
    is_up_to_date("errors.md", &index);
}
