//! Text form of a graph: stable, readable, read back by `parse`.
//!
//! ```text
//! dim seq = 128
//! scope 1 block.0.attention Attention in 0
//! param 0 wq: f32[embed, heads] (embed -> heads)
//! input 0 tokens: int[batch, seq]
//! %12 score: f32[batch, seq, heads] = dot[embed](%3, %7)    // @1 block.0.attention backward
//! %20: f32, %21: f32[seq] = loop[seq reverse](%3; %4) {      // initial carries; captures
//!   params(%5: int, %6: f32, %7: f32[seq])                   // turn, carries, captures
//!   results(%8; %9)                                          // next carries; collected
//! }
//! output loss loss = %20
//! ```
//! A comment after an operation gives its scope and its phase (none for the root and for forward; `again` for what the backward
//! pass computes once more); what follows there is
//! for people: the scope's path, and the place in the source where [`print_with_places`] is told it.

use super::*;
use crate::mesh::Order;
use std::fmt::Write;

pub fn print(graph: &Graph) -> String {
    print_with_places(graph, &|_| None)
}

/// As [`print`], with `place` called for the spans of operations.
pub fn print_with_places(graph: &Graph, place: &dyn Fn(Span) -> Option<String>) -> String {
    let mut p = Printer { g: graph, place, out: String::new() };
    p.tables();
    p.block(ENTRY, 0);
    for o in &graph.outputs {
        let kind = match o.kind {
            OutputKind::Loss => "loss".to_string(),
            OutputKind::Metric => "metric".to_string(),
            OutputKind::Value => "value".to_string(),
            OutputKind::Param(p) => format!("param[{}]", p.0),
            OutputKind::State(s) => format!("state[{}]", s.0),
            OutputKind::InitParam(p) => format!("init_param[{}]", p.0),
            OutputKind::InitState(s) => format!("init_state[{}]", s.0),
        };
        let _ = writeln!(p.out, "output {kind} {} = {}", word(&o.name), o.value);
    }
    p.out
}

/// The word of an operation in text, for messages.
pub fn op_name(graph: &Graph, op: &Op) -> String {
    let place = |_: Span| None;
    Printer { g: graph, place: &place, out: String::new() }.head(op)
}

pub(super) fn kind_name(kind: StateKind) -> &'static str {
    match kind {
        StateKind::Model => "model",
        StateKind::Optimizer => "optimizer",
        StateKind::Average => "average",
        StateKind::Latest => "latest",
        StateKind::Scaling => "scaling",
        StateKind::Cache => "cache",
        StateKind::Argument => "argument",
    }
}

/// A name as it stands, or quoted if it would not read back as one word.
fn word(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '#'));
    if plain { name.to_string() } else { format!("\"{}\"", name.escape_default()) }
}

/// The word for an atom.
pub(super) fn atom_word(mesh: &Mesh, atom: Atom) -> String {
    match mesh.atoms().any(|a| a == atom) {
        true => mesh.name(atom).replace(':', "."),
        false => format!("atom.{}", atom.0),
    }
}

struct Printer<'a> {
    g: &'a Graph,
    place: &'a dyn Fn(Span) -> Option<String>,
    out: String,
}

impl Printer<'_> {
    fn dim(&self, d: DimId) -> String {
        self.g.dims.get(d.index()).map_or_else(|| d.to_string(), |dim| word(&dim.name))
    }

    fn dims(&self, dims: &[DimId]) -> String {
        dims.iter().map(|d| self.dim(*d)).collect::<Vec<_>>().join(", ")
    }

    /// `dp, tp.1`: an atom of an axis in one piece is named like it.
    fn atoms(&self, atoms: &[Atom]) -> String {
        let names = atoms.iter().map(|a| atom_word(&self.g.mesh, *a));
        names.collect::<Vec<_>>().join(", ")
    }

    fn ty(&self, dtype: DType, dims: &[DimId]) -> String {
        if dims.is_empty() { dtype.to_string() } else { format!("{dtype}[{}]", self.dims(dims)) }
    }

    /// ` of 10 by dp, tp.0 * 2 zigzag`
    fn cut(&self, d: &Dim) -> String {
        let Some(cut) = &d.cut else { return String::new() };
        let entries = cut.entries.iter().map(|e| {
            let unit = if e.unit == 1 { String::new() } else { format!(" * {}", e.unit) };
            let order = match e.order {
                Order::Block => String::new(),
                Order::Zigzag => " zigzag".into(),
                Order::Ring { len } => format!(" ring {len}"),
                Order::Halo { step, lead, len } => format!(" halo {len} step {step} lead {lead}"),
            };
            format!("{}{unit}{order}", atom_word(&self.g.mesh, e.atom))
        });
        format!(" of {} by {}", cut.extent, entries.collect::<Vec<_>>().join(", "))
    }

    fn tables(&mut self) {
        let g = self.g;
        let mut out = String::new();
        for a in &g.mesh.axes {
            let sizes: Vec<String> = a.atoms.iter().map(usize::to_string).collect();
            let weight = if a.weight == 1 { String::new() } else { format!(" weight {}", a.weight) };
            let _ = writeln!(out, "axis {} = {}{weight}", word(&a.name), sizes.join(" * "));
        }
        for d in &g.dims {
            let ragged = if d.ragged { " ragged" } else { "" };
            let _ = writeln!(out, "dim {} = {}{ragged}{}", word(&d.name), d.size, self.cut(d));
        }
        for (i, s) in g.scopes.iter().enumerate() {
            // The root alone is what every graph has.
            if i == 0 && *s == Scope::default() {
                continue;
            }
            let parent = s.parent.map_or(String::new(), |p| format!(" in {}", p.0));
            let _ = writeln!(out, "scope {i} {} {}{parent}", word(&s.path), word(&s.definition));
        }
        for (i, p) in g.params.iter().enumerate() {
            let map = match &p.map {
                Some((from, to)) => format!(" ({} -> {})", self.dims(from), self.dims(to)),
                None => String::new(),
            };
            let _ = writeln!(out, "param {i} {}: {}{map}", word(&p.path), self.ty(p.dtype, &p.dims));
        }
        for (i, s) in g.states.iter().enumerate() {
            let ty = self.ty(s.dtype, &s.dims);
            let _ = writeln!(out, "state {i} {}: {ty} {}", word(&s.path), kind_name(s.kind));
        }
        for (i, input) in g.inputs.iter().enumerate() {
            let _ = writeln!(out, "input {i} {}: {}", word(&input.name), self.ty(input.dtype, &input.dims));
        }
        self.out += &out;
    }

    fn value(&self, v: ValueId) -> String {
        let Some(value) = self.g.values.get(v.index()) else { return v.to_string() };
        let name = value.name.as_ref().map_or(String::new(), |n| format!(" {}", word(n)));
        format!("{v}{name}: {}", self.ty(value.dtype, &value.dims))
    }

    fn block(&mut self, id: BlockId, depth: usize) {
        let g = self.g;
        for op_id in &g.block(id).ops {
            let op = g.op(*op_id);
            let results = op.results.iter().map(|r| self.value(*r)).collect::<Vec<_>>().join(", ");
            let indent = "  ".repeat(depth);
            let head = self.head(&op.op);
            let note = self.note(op);
            let args = |args: &[ValueId]| args.iter().map(ValueId::to_string).collect::<Vec<_>>().join(", ");
            let Op::Loop { body, carries, .. } = op.op else {
                let args = if op.args.is_empty() { String::new() } else { format!("({})", args(&op.args)) };
                let _ = writeln!(self.out, "{indent}{results} = {head}{args}{note}");
                continue;
            };
            let split = |all: &[ValueId]| {
                let (a, b) = all.split_at((carries as usize).min(all.len()));
                if b.is_empty() { format!("{};", args(a)) } else { format!("{}; {}", args(a), args(b)) }
            };
            let _ = writeln!(self.out, "{indent}{results} = {head}({}) {{{note}", split(&op.args));
            let block = g.block(body);
            let params = block.params.iter().map(|p| self.value(*p)).collect::<Vec<_>>().join(", ");
            let _ = writeln!(self.out, "{indent}  params({params})");
            self.block(body, depth + 1);
            let _ = writeln!(self.out, "{indent}  results({})\n{indent}}}", split(&block.results));
        }
    }

    fn note(&self, op: &Operation) -> String {
        let mut parts = Vec::new();
        if op.scope != ROOT {
            parts.push(format!("@{}", op.scope.0));
        }
        match op.phase {
            Phase::Forward => {}
            Phase::Backward if op.again => parts.push("again".into()),
            Phase::Backward => parts.push("backward".into()),
            Phase::Update => parts.push("update".into()),
        }
        if let Some(s) = self.g.scopes.get(op.scope.index()).filter(|s| !s.path.is_empty()) {
            parts.push(s.path.replace('\n', " "));
        }
        if let Some(place) = op.span.and_then(self.place) {
            parts.push(place);
        }
        if parts.is_empty() { String::new() } else { format!("  // {}", parts.join(" ")) }
    }

    fn axes(&self, axes: &[WindowAxis]) -> String {
        axes.iter()
            .map(|a| {
                let terms: String = a.terms.iter().map(|(d, c)| format!(" + {c}*{}", self.dim(*d))).collect();
                let dynamic = if a.dynamic { "dynamic " } else { "" };
                format!("{} = {dynamic}{}{terms}", self.dim(a.input), a.offset)
            })
            .collect::<Vec<_>>()
            .join(", ")
    }

    fn attention(&self, a: &Attention) -> String {
        let [query, key, feature, value] = [a.query, a.key, a.feature, a.value].map(|d| self.dim(d));
        let mut text = format!("{query}, {key}, {feature}, {value}; scale = {:?}; cap = {:?};", a.scale, a.cap);
        if a.causal {
            text += " causal";
        }
        if let Some(reach) = a.reach {
            let _ = write!(text, " reach {reach}");
        }
        for (word, there) in [("documents", a.documents), ("mask", a.mask), ("bias", a.bias), ("first", a.first)] {
            if there {
                let _ = write!(text, " {word}");
            }
        }
        text
    }

    fn head(&self, op: &Op) -> String {
        let g = self.g;
        let flags = |list: &[(&str, bool)]| -> String {
            list.iter().filter(|(_, on)| *on).map(|(name, _)| format!(" {name}")).collect()
        };
        let path = |name: Option<&String>| name.map_or(String::new(), |n| format!(" {}", word(n)));
        match op {
            Op::Param(p) => format!("param[{}{}]", p.0, path(g.params.get(p.index()).map(|p| &p.path))),
            Op::State(s) => format!("state[{}{}]", s.0, path(g.states.get(s.index()).map(|s| &s.path))),
            Op::Input(i) => format!("input[{}{}]", i.0, path(g.inputs.get(i.index()).map(|i| &i.name))),
            Op::Constant(Constant::Splat(x)) => format!("constant[{x:?}]"),
            Op::Constant(Constant::Elements(data)) => {
                let list: Vec<String> = data.iter().map(|x| format!("{x:?}")).collect();
                format!("constant[{{{}}}]", list.join(", "))
            }
            Op::Iota(d) => format!("iota[{}]", self.dim(*d)),
            Op::Step => "step".into(),
            Op::Position => "position".into(),
            Op::Random { dist, stream, dims } => {
                let dist = match dist {
                    Dist::Uniform { lo, hi } => format!("uniform {lo:?} {hi:?}"),
                    Dist::Normal { std } => format!("normal {std:?}"),
                    Dist::TruncNormal { std } => format!("trunc_normal {std:?}"),
                    Dist::RandInt { n } => format!("randint {n}"),
                    Dist::Bernoulli { p } => format!("bernoulli {p:?}"),
                };
                format!("random[{dist}; stream = {stream}; {}]", self.dims(dims))
            }
            Op::Map(m) => m.name().into(),
            Op::Broadcast { dims } => format!("broadcast[{}]", self.dims(dims)),
            Op::Reduce { kind, dims } => format!("reduce_{}[{}]", kind.name(), self.dims(dims)),
            Op::Dot { contract } => format!("dot[{}]", self.dims(contract)),
            Op::Reshape { groups } => {
                let list: Vec<String> =
                    groups.iter().map(|(f, t)| format!("({}) -> ({})", self.dims(f), self.dims(t))).collect();
                format!("reshape[{}]", list.join(", "))
            }
            Op::Window { axes, fill } => {
                let fill = if fill.to_bits() == 0 { String::new() } else { format!("; fill = {fill:?}") };
                format!("window[{}{fill}]", self.axes(axes))
            }
            Op::Fold { axes } => format!("fold[{}]", self.axes(axes)),
            Op::Gather { dims, mode } => {
                let mode = match mode {
                    GatherMode::Error => "error",
                    GatherMode::Zero => "zero",
                };
                format!("gather[{}; {mode}]", self.dims(dims))
            }
            Op::Scatter { kind, removed, targets } => {
                format!("scatter_{}[{} -> {}]", kind.name(), self.dims(removed), self.dims(targets))
            }
            Op::Concat { parts, to } => format!("concat[{} -> {}]", self.dims(parts), self.dim(*to)),
            Op::Stack { dim } => format!("stack[{}]", self.dim(*dim)),
            Op::Scan { kind, dim, exclusive, reverse } => {
                let flags = flags(&[("exclusive", *exclusive), ("reverse", *reverse)]);
                format!("{}[{}{flags}]", kind.name(), self.dim(*dim))
            }
            Op::LinearScan { dim, reverse } => {
                format!("linear_scan[{}{}]", self.dim(*dim), flags(&[("reverse", *reverse)]))
            }
            Op::ArgSort { dim } => format!("arg_sort[{}]", self.dim(*dim)),
            Op::TopK { dim, k } => format!("top_k[{} -> {}]", self.dim(*dim), self.dim(*k)),
            Op::PackPlace { packed, limit } => format!("pack_place[{}; limit = {limit}]", self.dims(packed)),
            Op::Draw { dim, top_k, top_p, stream, dims } => format!(
                "draw[{}; top_k = {top_k}; top_p = {top_p:?}; stream = {stream}; {}]",
                self.dim(*dim),
                self.dims(dims)
            ),
            Op::Attention(a) => format!("attention[{}]", self.attention(a)),
            Op::AttentionGrad(a) => format!("attention_grad[{}]", self.attention(a)),
            Op::StopGradient => "stop_gradient".into(),
            Op::Loop { dim, reverse, .. } => format!("loop[{}{}]", self.dim(*dim), flags(&[("reverse", *reverse)])),
            Op::WriteAt { dim, part } => format!("write_at[{} -> {}]", self.dim(*part), self.dim(*dim)),
            Op::Coordinate(atom) => format!("coordinate[{}]", self.atoms(&[*atom])),
            Op::Collective(c) => {
                let over =
                    |atoms: &[Atom]| if atoms.is_empty() { String::new() } else { format!(" {}", self.atoms(atoms)) };
                let reduce = c
                    .reduce
                    .as_ref()
                    .map_or_else(String::new, |(op, atoms)| format!("; {} {}", op.name(), self.atoms(atoms)));
                let moves: Vec<String> =
                    c.dims.iter().map(|(from, to)| format!("{} -> {}", self.dim(*from), self.dim(*to))).collect();
                let hops = if c.hops == 0 { String::new() } else { format!(" hops {}", c.hops) };
                let bucket = if c.bucket > 0 { format!("; bucket {}", c.bucket) } else { String::new() };
                format!("collective[{}{}{hops}{reduce}; {}{bucket}]", c.kind.name(), over(&c.atoms), moves.join(", "))
            }
        }
    }
}
