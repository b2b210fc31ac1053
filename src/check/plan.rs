//! The words of plans: meshes, schedules, options and sizes. What needs a model (dims, scopes, values) is resolved by
//! `elaborate::plan`.
//!
//! In: the lines of a plan. Out: plain values. Diagnostics: E0506 and its neighbours, each with the words that exist.

use crate::diag::{Diagnostic, Sink, did_you_mean};
use crate::schedule::{Schedule, WITH_ARGUMENT, WORDS};
use crate::source::Span;
use crate::syntax::ast::{self, Name, PlanKind, PlanOpt, PlanValue, PlanValueKind};
use crate::types::DType;

/// Meshes larger than this are refused.
pub const MAX_RANKS: u64 = 1 << 24;

/// An axis of the device grid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeshAxis {
    pub name: String,
    pub size: u64,
    pub link: Option<Link>,
    pub span: Span,
}

/// What connects the ranks along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    NvLink,
    Pcie,
    InfiniBand,
    Ethernet,
}

const LINKS: &[(&str, Link)] =
    &[("nvlink", Link::NvLink), ("pcie", Link::Pcie), ("infiniband", Link::InfiniBand), ("ethernet", Link::Ethernet)];

/// In which order an axis deals out the blocks of a dim.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Order {
    #[default]
    Block,
    Zigzag,
}

/// How a cut dim is brought together where it is reduced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gather {
    Ring,
    Whole,
}

/// When the parameters of `zero 3` are gathered.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Regather {
    #[default]
    Backward,
    Never,
    Step,
}

const ORDERS: &[(&str, Order)] = &[("zigzag", Order::Zigzag), ("block", Order::Block)];
const GATHERS: &[(&str, Gather)] = &[("ring", Gather::Ring), ("whole", Gather::Whole)];
const REGATHERS: &[(&str, Regather)] =
    &[("backward", Regather::Backward), ("never", Regather::Never), ("step", Regather::Step)];
const PRECISIONS: &[(&str, DType)] =
    &[("bf16", DType::BF16), ("f32", DType::F32), ("f16", DType::F16), ("f64", DType::F64)];
const UNITS: &[(&str, u64)] = &[("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// The precision that a plan asks for, before any model is walked. f32 without a valid line.
pub fn precision_of(plan: &ast::Plan) -> DType {
    let line = plan.lines.iter().find_map(|l| match &l.kind {
        PlanKind::Precision { name, .. } => PRECISIONS.iter().find(|p| p.0 == name.text),
        _ => None,
    });
    line.map_or(DType::F32, |p| p.1)
}

/// What is wrong with sizes of axes that the command line gives: one is there twice.
pub fn given_twice(sizes: &[(String, u64)]) -> Option<Diagnostic> {
    let twice = sizes.iter().enumerate().find(|(i, s)| sizes[..*i].iter().any(|t| t.0 == s.0));
    let (_, (name, _)) = twice?;
    let d = Diagnostic::error("E0202", format!("`--mesh {name}=..` is given twice"));
    Some(d.help("give every axis one size"))
}

/// The axes of a plan, with the sizes that the command line gives instead.
pub fn mesh(plan: &ast::Plan, sizes: &[(String, u64)], sink: &mut Sink) -> Vec<MeshAxis> {
    let mut out: Vec<MeshAxis> = Vec::new();
    let mut line: Option<Span> = None;
    for l in &plan.lines {
        let PlanKind::Mesh(axes) = &l.kind else { continue };
        if let Some(first) = line {
            sink.push(
                malformed("a plan has one mesh", l.span, "second mesh").and(first, "first one").help("write one line"),
            );
        }
        line = line.or(Some(l.span));
        for a in axes {
            if let Some(first) = out.iter().find(|m| m.name == a.name.text) {
                sink.push(
                    Diagnostic::error("E0202", format!("mesh axis `{}` is defined twice", a.name.text))
                        .at(a.name.span, "second definition")
                        .and(first.span, "first definition")
                        .help("rename one of them"),
                );
                continue;
            }
            let given = sizes.iter().find(|s| s.0 == a.name.text).map(|s| s.1);
            let size = given.unwrap_or(a.size.0);
            if size == 0 {
                sink.push(
                    Diagnostic::error("E0505", format!("mesh axis `{}` has size 0", a.name.text))
                        .at(a.size.1, "no ranks")
                        .help("give it a size of at least 1"),
                );
            }
            if size == 1 {
                sink.push(
                    Diagnostic::note("W0006", format!("mesh axis `{}` has size 1 and divides nothing", a.name.text))
                        .at(a.name.span, "of size 1")
                        .help("fine while trying out sizes; remove the axis otherwise"),
                );
            }
            let link = a.link.as_ref().and_then(|l| word_of("link class", LINKS, &l.text, l.span, sink));
            out.push(MeshAxis { name: a.name.text.clone(), size: size.max(1), link, span: a.name.span });
        }
    }
    if let Some(d) = given_twice(sizes) {
        sink.push(d.at(plan.name.span, format!("plan `{}`", plan.name.text)));
    }
    for (name, _) in sizes {
        if !out.iter().any(|a| a.name == *name) {
            let d = Diagnostic::error("E0501", format!("`--mesh {name}=..`: the plan has no axis `{name}`"))
                .at(plan.name.span, format!("plan `{}`", plan.name.text));
            sink.push(axis_help(d, name, &out));
        }
    }
    let ranks = out.iter().fold(1u64, |n, a| n.saturating_mul(a.size));
    if ranks > MAX_RANKS {
        let span = line.unwrap_or(plan.name.span);
        sink.push(
            Diagnostic::error("E0505", format!("a mesh of {ranks} ranks"))
                .at(span, format!("the limit is {MAX_RANKS}"))
                .help("make the axes smaller"),
        );
    }
    out
}

/// Numbers of axes, major first. None: one is unknown.
pub fn axes(names: &[Name], mesh: &[MeshAxis], sink: &mut Sink) -> Option<Vec<usize>> {
    let mut out: Vec<usize> = Vec::new();
    let mut good = true;
    for n in names {
        match mesh.iter().position(|a| a.name == n.text) {
            Some(k) if out.contains(&k) => {
                sink.push(
                    Diagnostic::error("E0202", format!("axis `{}` stands twice in one list", n.text))
                        .at(n.span, "a second time")
                        .help("an axis cuts a dim once"),
                );
                good = false;
            }
            Some(k) => out.push(k),
            None => {
                let d = Diagnostic::error("E0501", format!("unknown mesh axis `{}`", n.text))
                    .at(n.span, "not in the plan's mesh");
                let d = match (mesh.first(), mesh.last()) {
                    (Some(a), Some(b)) => d.and(a.span.to(b.span), "the mesh"),
                    _ => d,
                };
                sink.push(axis_help(d, &n.text, mesh));
                good = false;
            }
        }
    }
    good.then_some(out)
}

fn axis_help(d: Diagnostic, name: &str, mesh: &[MeshAxis]) -> Diagnostic {
    match did_you_mean(name, mesh.iter().map(|a| a.name.as_str())) {
        Some(n) => d.help(format!("did you mean `{n}`?")),
        None if mesh.is_empty() => d.help(format!("declare it: `mesh {name} = ..`")),
        None => {
            let names: Vec<&str> = mesh.iter().map(|a| a.name.as_str()).collect();
            d.help(format!("the mesh has {}; declare it there: `mesh .., {name} = ..`", names.join(", ")))
        }
    }
}

// ---- values

/// The form of a statement is wrong.
pub fn malformed(what: impl Into<String>, span: Span, label: impl Into<String>) -> Diagnostic {
    Diagnostic::error("E0506", what).at(span, label)
}

/// The options of a statement by name. Reports others.
pub fn options<'p>(opts: &'p [PlanOpt], known: &[&'static str], sink: &mut Sink) -> Vec<(&'static str, &'p PlanValue)> {
    let mut out: Vec<(&'static str, &'p PlanValue)> = Vec::new();
    for o in opts {
        let Some(name) = known.iter().find(|k| **k == o.name.text) else {
            let d = malformed(format!("there is no option `{}` here", o.name.text), o.name.span, "unknown option");
            sink.push(match (did_you_mean(&o.name.text, known.iter().copied()), known) {
                (Some(n), _) => d.help(format!("did you mean `{n}`?")),
                (None, []) => d.help("this statement has no options"),
                (None, _) => d.help(format!("options of this statement: {}", known.join(", "))),
            });
            continue;
        };
        if out.iter().any(|x| x.0 == *name) {
            sink.push(malformed(format!("option `{name}` is given twice"), o.name.span, "a second time"));
            continue;
        }
        out.push((name, &o.value));
    }
    out
}

/// A word of a table.
fn word_of<T: Clone>(what: &str, table: &[(&str, T)], text: &str, span: Span, sink: &mut Sink) -> Option<T> {
    if let Some((_, v)) = table.iter().find(|t| t.0 == text) {
        return Some(v.clone());
    }
    let names: Vec<&str> = table.iter().map(|t| t.0).collect();
    unknown_word(what, &names, text, span, sink);
    None
}

fn unknown_word(what: &str, names: &[&str], text: &str, span: Span, sink: &mut Sink) {
    let d = malformed(format!("unknown {what} `{text}`"), span, format!("no {what}"));
    sink.push(match did_you_mean(text, names.iter().copied()) {
        Some(n) => d.help(format!("did you mean `{n}`?")),
        None => d.help(format!("one of: {}", names.join(", "))),
    });
}

/// A value that is one word.
pub fn word(v: &PlanValue) -> Option<&str> {
    match &v.kind {
        PlanValueKind::Word(path) => match &path[..] {
            [one] => Some(&one.text),
            _ => None,
        },
        _ => None,
    }
}

fn choose<T: Clone>(what: &str, table: &[(&str, T)], v: &PlanValue, sink: &mut Sink) -> Option<T> {
    match word(v) {
        Some(w) => word_of(what, table, w, v.span, sink),
        None => {
            let names: Vec<&str> = table.iter().map(|t| t.0).collect();
            sink.push(
                malformed(format!("a {what} is a word"), v.span, "no word")
                    .help(format!("one of: {}", names.join(", "))),
            );
            None
        }
    }
}

pub fn order(v: &PlanValue, sink: &mut Sink) -> Option<Order> {
    choose("order", ORDERS, v, sink)
}

pub fn gather(v: &PlanValue, sink: &mut Sink) -> Option<Gather> {
    choose("way to gather", GATHERS, v, sink)
}

pub fn regather(v: &PlanValue, sink: &mut Sink) -> Option<Regather> {
    choose("time to gather", REGATHERS, v, sink)
}

pub fn precision(name: &Name, sink: &mut Sink) -> Option<DType> {
    word_of("precision", PRECISIONS, &name.text, name.span, sink)
}

/// `gradients = f32`
pub fn precision_value(v: &PlanValue, sink: &mut Sink) -> Option<DType> {
    choose("precision", PRECISIONS, v, sink)
}

/// A number without a unit.
pub fn number(v: &PlanValue, sink: &mut Sink) -> Option<f64> {
    let found = match &v.kind {
        PlanValueKind::Number { text, unit: None } => text.parse::<f64>().ok().filter(|x| x.is_finite()),
        _ => None,
    };
    if found.is_none() {
        sink.push(
            malformed("a number is needed here", v.span, "no plain number").help("write a number, without a unit"),
        );
    }
    found
}

/// A positive whole number.
pub fn whole(v: &PlanValue, sink: &mut Sink) -> Option<u64> {
    let found = match &v.kind {
        PlanValueKind::Number { text, unit: None } => text.parse::<u64>().ok().filter(|n| *n > 0),
        _ => None,
    };
    if found.is_none() {
        sink.push(
            malformed("a positive whole number is needed here", v.span, "not one")
                .help("write a number, for example 8"),
        );
    }
    found
}

/// `70 GiB` in bytes.
pub fn bytes(v: &PlanValue, sink: &mut Sink) -> Option<u64> {
    let PlanValueKind::Number { text, unit } = &v.kind else {
        sink.push(malformed("a size is needed here", v.span, "no size").help("write a number and a unit: `70 GiB`"));
        return None;
    };
    let Some(unit) = unit else {
        sink.push(malformed("a size needs its unit", v.span, "no unit").help(format!("write `{text} GiB`")));
        return None;
    };
    let unit = word_of("unit", UNITS, &unit.text, unit.span, sink)?;
    let x: f64 = text.parse().ok()?;
    let bytes = x * unit as f64;
    if bytes >= 2f64.powi(63) {
        sink.push(malformed("a size beyond any memory", v.span, "too large").help("write for example `70 GiB`"));
        return None;
    }
    Some(bytes as u64)
}

/// The arguments of `name(..)`: one without a name, or with the name given.
fn argument<'p>(args: &'p [(Option<Name>, PlanValue)], name: &str) -> Option<&'p PlanValue> {
    match args {
        [(None, v)] => Some(v),
        [(Some(n), v)] if n.text == name => Some(v),
        _ => None,
    }
}

/// `name(n)` or `name(word = n)`: for example `local(steps = 100)`.
pub fn call_with<'p>(v: &'p PlanValue, call: &str, argument_name: &str, sink: &mut Sink) -> Option<&'p PlanValue> {
    if let PlanValueKind::Call { name, args } = &v.kind
        && name.text == call
        && let Some(v) = argument(args, argument_name)
    {
        return Some(v);
    }
    sink.push(
        malformed(format!("`{call}` has one argument"), v.span, "another form")
            .help(format!("write `{call}({argument_name} = ..)`")),
    );
    None
}

pub fn schedule(v: &PlanValue, sink: &mut Sink) -> Option<Schedule> {
    let all: Vec<&str> = WORDS.iter().map(|s| s.0).chain(WITH_ARGUMENT.iter().copied()).collect();
    match &v.kind {
        PlanValueKind::Call { name, args } => {
            let chunks = |sink: &mut Sink| match argument(args, "chunks") {
                Some(v) => whole(v, sink),
                None => {
                    sink.push(
                        malformed(
                            format!("`{}` takes the number of stages a rank holds", name.text),
                            v.span,
                            "one number",
                        )
                        .help(format!("write `{}(2)`", name.text)),
                    );
                    None
                }
            };
            match name.text.as_str() {
                "interleaved" => chunks(sink).map(Schedule::Interleaved),
                "looped_bfs" => chunks(sink).map(Schedule::LoopedBfs),
                "auto" => match argument(args, "activations") {
                    Some(n) => whole(n, sink).map(Schedule::Within),
                    None => {
                        let d = malformed(
                            "`auto` takes the most microbatches whose activations a rank keeps",
                            v.span,
                            "one number, or none",
                        );
                        sink.push(d.help("write `auto(4)`, or `auto` for as many as there are ranks"));
                        None
                    }
                },
                "file" => match argument(args, "path").map(|v| &v.kind) {
                    Some(PlanValueKind::Str(s)) => Some(Schedule::File(s.clone())),
                    _ => {
                        sink.push(
                            malformed("`file` takes a path", v.span, "a string is needed")
                                .help("write `file(\"schedule.csv\")`"),
                        );
                        None
                    }
                },
                other if WORDS.iter().any(|s| s.0 == other) => {
                    sink.push(
                        malformed(format!("schedule `{other}` has no arguments"), v.span, "an argument")
                            .help(format!("write `{other}`")),
                    );
                    None
                }
                other => {
                    unknown_word("schedule", &all, other, name.span, sink);
                    None
                }
            }
        }
        _ => match word(v) {
            Some(w) if WITH_ARGUMENT.contains(&w) => {
                let cure = if w == "file" { "file(\"schedule.csv\")".to_string() } else { format!("{w}(2)") };
                sink.push(
                    malformed(format!("schedule `{w}` needs its argument"), v.span, "no argument")
                        .help(format!("write `{cure}`")),
                );
                None
            }
            Some(w) => match WORDS.iter().find(|s| s.0 == w) {
                Some((_, s)) => Some(s.clone()),
                None => {
                    unknown_word("schedule", &all, w, v.span, sink);
                    None
                }
            },
            None => {
                sink.push(
                    malformed("a schedule is a word", v.span, "no word").help(format!("one of: {}", all.join(", "))),
                );
                None
            }
        },
    }
}

/// `[7, repeat(8, 14), 7]`: turns a stage.
pub fn stages(v: &PlanValue, sink: &mut Sink) -> Option<Vec<u64>> {
    const MAX_STAGES: u64 = 1 << 16;
    let PlanValueKind::List(items) = &v.kind else {
        sink.push(malformed("`stages` is a list", v.span, "no list").help("write `[7, repeat(8, 14), 7]`"));
        return None;
    };
    let mut out: Vec<u64> = Vec::new();
    for item in items {
        match &item.kind {
            PlanValueKind::Call { name, args } if name.text == "repeat" => {
                let [(None, n), (None, times)] = &args[..] else {
                    sink.push(
                        malformed("`repeat` takes turns and stages", item.span, "two numbers are needed")
                            .help("write `repeat(8, 14)`: 14 stages of 8 turns"),
                    );
                    return None;
                };
                let (n, k) = (whole(n, sink)?, whole(times, sink)?);
                if k > MAX_STAGES {
                    sink.push(malformed(format!("{k} stages"), times.span, format!("the limit is {MAX_STAGES}")));
                    return None;
                }
                out.extend(std::iter::repeat_n(n, k as usize));
            }
            _ => out.push(whole(item, sink)?),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meshes_of_the_command_line() {
        let sizes = |names: &[&str]| names.iter().map(|n| (n.to_string(), 2)).collect::<Vec<_>>();
        assert!(given_twice(&sizes(&["dp", "tp"])).is_none());
        assert_eq!(given_twice(&sizes(&["dp", "tp", "dp"])).unwrap().code, "E0202");
    }
}
