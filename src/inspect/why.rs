//! One collective explained: the rule it goes back to, the operation that needs it, the steps between them, what else was weighed,
//! and the smallest edit that would remove it.

use super::comm::{Entry, Place, phase_name};
use super::names::{Names, stored, word};
use super::table::bytes;
use crate::ir::*;
use crate::mesh::Atom;
use crate::shard::{Along, Link, Reason, Regather, Rules, Sharded, Why};
use crate::source::{SourceMap, Span};
use std::fmt::Write;

/// What explains a collective.
#[derive(Clone, Debug, Default)]
pub struct Explained {
    /// What is needed, by which operation.
    pub need: Vec<Line>,
    /// From the operation back to rules.
    pub chain: Vec<Line>,
    /// The rules, as written.
    pub rules: Vec<Line>,
    pub alternatives: Vec<String>,
    /// Rules without which it might not be there: numbers of `Rules::pins` and of `Rules::zero`.
    pub pins: Vec<usize>,
    pub zero: Vec<usize>,
    /// What to write instead of something.
    pub edits: Vec<String>,
}

/// A fact and its place.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    pub text: String,
    pub place: Option<Place>,
}

/// Steps that are followed at most: loops of derivation do not exist, but long ones tell nothing.
const MOST_STEPS: usize = 40;

pub fn explain(entry: &Entry, s: &Sharded, rules: &Rules, sources: &SourceMap) -> Option<Explained> {
    let reason = s.reasons.get(entry.operation.index())?.as_ref()?;
    let Op::Collective(c) = &s.graph.op(entry.operation).op else { return None };
    let names = Names::new(&s.story.graph);
    let mut t = Teller { s, rules, sources, names, out: Explained::default() };
    t.tell(entry, c, reason);
    Some(t.out)
}

struct Teller<'a> {
    s: &'a Sharded,
    rules: &'a Rules,
    sources: &'a SourceMap,
    names: Names<'a>,
    out: Explained,
}

impl Teller<'_> {
    fn place(&self, span: Option<Span>) -> Option<Place> {
        span.map(|s| Place::of(s, self.sources))
    }

    /// `dot[embed]` in block.0.attention
    fn operation(&self, id: OpId) -> Line {
        let g = &self.s.story.graph;
        let op = g.op(id);
        let scope = g.scopes.get(op.scope.index()).map_or("", |s| &s.path);
        let within = if scope.is_empty() { String::new() } else { format!(" in {scope}") };
        let phase = if op.phase == Phase::Forward { String::new() } else { format!(", {}", phase_name(op.phase)) };
        let span = g.called(id, self.sources).or(op.span);
        Line { text: format!("`{}`{within}{phase}", word(&self.s.story, id)), place: self.place(span) }
    }

    fn shown(&self, v: ValueId) -> String {
        let story = &self.s.story;
        format!("{}{}", self.names.of(v), story.layout(v).show(&story.mesh, &story.dims(v)))
    }

    fn tell(&mut self, entry: &Entry, c: &Collective, r: &Reason) {
        let story = &self.s.story;
        if let Some(path) = stored(story, r.value) {
            self.storage(path.to_string(), c);
            return;
        }
        let partial: Vec<Atom> = c.reduce.iter().flat_map(|(_, atoms)| atoms.clone()).collect();
        if !partial.is_empty() {
            self.reduction(r.value, &partial);
        }
        if let Some(span) = r.again {
            let text = format!(
                "what came of `{}` in the forward pass was not kept: the backward pass makes it again",
                entry.value
            );
            self.out.need.push(Line { text, place: None });
            let (text, place) = (self.sources.text(span).to_string(), self.place(Some(span)));
            self.out.edits.push(format!("leave out `{text}`: what it speaks of is kept then"));
            self.out.rules.push(Line { text, place });
        }
        if r.why == Why::Output {
            self.output(r.value, c);
        } else if r.why != Why::Reduction {
            let Line { text, place } = self.operation(r.operation);
            let cuts = self.work(r.operation);
            let [before, after] = &entry.layouts;
            let need = match r.why {
                Why::Ring => format!(
                    "{text} has `{}` in blocks that go round its {} ranks, a hop a turn: all queries meet all keys",
                    entry.value, entry.group_size
                ),
                Why::Chain if matches!(self.s.story.graph.op(r.operation).op, Op::TopK { .. }) => {
                    format!("{text} takes the best of what is best in each block: of `{}`", entry.value)
                }
                Why::Chain => format!(
                    "{text} goes on from what the blocks before a rank's own come to: totals of `{}`",
                    entry.value
                ),
                _ => format!("{text} needs `{}` as {after}; it is {before}", entry.value),
            };
            self.out.need.push(Line { text: need, place });
            self.out.need.push(Line { text: cuts, place: None });
            for a in c.atoms.iter().filter(|a| !partial.contains(a)) {
                self.moved(r.value, r.operation, *a);
            }
        } else {
            for a in c.atoms.iter().filter(|a| !partial.contains(a)) {
                self.moved(r.value, r.operation, *a);
            }
        }
    }

    /// How the work of an operation is cut.
    fn work(&self, id: OpId) -> String {
        let story = &self.s.story;
        let (n, cuts) = (story.nest(id), story.loops(id));
        let one = |(k, cut): (usize, &crate::mesh::Cut)| {
            let atoms: Vec<Atom> = cut.iter().map(|e| e.atom).collect();
            (!atoms.is_empty())
                .then(|| format!("{}@{}", story.loop_name(id, &n, k), story.mesh.names(&atoms).join(",")))
        };
        let all: Vec<String> = cuts.iter().enumerate().filter_map(one).collect();
        if all.is_empty() { "its work is not cut".into() } else { format!("its work is cut along {}", all.join(", ")) }
    }

    /// A parameter that is stored in parts.
    fn storage(&mut self, path: String, c: &Collective) {
        let g = &self.s.story.graph;
        let span = g.params.iter().find(|p| p.path == path).and_then(|p| p.span);
        let place = self.place(span);
        self.out.need.push(Line { text: format!("parameter `{path}` is stored in parts and used as a whole"), place });
        for (k, z) in self.rules.zero.iter().enumerate() {
            if z.atoms.iter().any(|a| c.atoms.contains(a)) {
                self.out.zero.push(k);
                let place = self.place(Some(z.span));
                self.out.rules.push(Line { text: self.sources.text(z.span).to_string(), place });
                if z.level >= 3 && z.regather == Regather::Backward {
                    self.out.edits.push(
                        "`{ regather = never }` gathers once for both passes and keeps what is gathered, `step` once for all microbatches"
                            .into(),
                    );
                }
            }
        }
        self.out
            .edits
            .push("`zero 2` stores parameters whole: no gather before use, one of new parameters per step".into());
    }

    /// What leaves the step.
    fn output(&mut self, v: ValueId, c: &Collective) {
        let g = &self.s.story.graph;
        let output = g.outputs.iter().find(|o| o.value == v);
        let name = output.map_or_else(|| self.names.of(v), |o| o.name.clone());
        let place = self.place(output.and_then(|o| o.span));
        let what = match output.map(|o| o.kind) {
            Some(OutputKind::Param(_) | OutputKind::InitParam(_)) => "new parameter",
            Some(OutputKind::State(_) | OutputKind::InitState(_)) => "new state",
            _ => "output",
        };
        let form =
            if c.reduce.is_some() { "is needed in one piece on every rank" } else { "is kept whole on every rank" };
        self.out.need.push(Line { text: format!("{what} `{name}` {form}"), place });
        let mut of_zero = false;
        for (k, z) in self.rules.zero.iter().enumerate() {
            if c.reduce.is_none() && z.level < 3 && z.atoms.iter().any(|a| c.atoms.contains(a)) {
                of_zero = true;
                self.out.zero.push(k);
                let place = self.place(Some(z.span));
                self.out.rules.push(Line { text: self.sources.text(z.span).to_string(), place });
            }
        }
        if of_zero {
            self.out.edits.push("`zero 3` stores it in parts, and gathers it before each use".into());
        } else if c.reduce.is_none() {
            for a in &c.atoms {
                self.holds(v, *a);
            }
        }
    }

    /// Why a value is in parts.
    fn reduction(&mut self, v: ValueId, atoms: &[Atom]) {
        let story = &self.s.story;
        for a in atoms {
            let axis = story.mesh.name(*a);
            let sources = story.sources(v, *a);
            for id in &sources {
                let dims = story.contracted(*id, &[*a]);
                let Line { text, place } = self.operation(*id);
                let line = Line { text: format!("{text} adds up {}, which `{axis}` cuts", dims.join(", ")), place };
                if !self.out.need.contains(&line) {
                    self.out.need.push(line);
                }
            }
            if let Some(first) = sources.first() {
                self.of_loop(*first, *a);
            }
            let share = |(b, n): (f64, usize)| format!("{} bytes in {n}", bytes(b));
            if let Some([early, late]) = story.earliest_and_latest(v, *a) {
                self.out.alternatives.push(format!("over `{axis}` where the parts are made: {}", share(early)));
                self.out
                    .alternatives
                    .push(format!("over `{axis}` at the last places that take parts: {}", share(late)));
            }
        }
    }

    /// What cuts a loop of an operation: the operand or result that has the atom there.
    fn of_loop(&mut self, id: OpId, atom: Atom) {
        let story = &self.s.story;
        let Some(l) = story.loop_of(id, atom) else { return };
        let op = story.graph.op(id);
        let n = story.nest(id);
        let all: Vec<ValueId> = op.args.iter().chain(&op.results).copied().collect();
        for (v, place) in all.iter().zip(&n.loops[l].slots) {
            let Some(place) = place else { continue };
            if story.layout(*v).dims[place.at].iter().any(|e| e.atom == atom) {
                return self.follow(*v, place.at, atom);
            }
        }
        self.weighed(id, atom);
    }

    /// Where a value has an atom from.
    fn holds(&mut self, v: ValueId, atom: Atom) {
        let layout = self.s.story.layout(v);
        if let Some(at) = layout.dim_of(atom) {
            self.follow(v, at, atom);
        }
    }

    /// A value is cut by an atom otherwise than an operation needs it.
    fn moved(&mut self, v: ValueId, id: OpId, atom: Atom) {
        self.holds(v, atom);
        self.weighed(id, atom);
        // What cuts the operation another way is half of the cause.
        if self.s.story.choice(id, atom).is_some_and(|c| c.priced.is_empty()) {
            self.of_loop(id, atom);
        }
    }

    /// The candidates of an operation, with their bytes.
    fn weighed(&mut self, id: OpId, atom: Atom) {
        let story = &self.s.story;
        let Some(choice) = story.choice(id, atom) else { return };
        let n = story.nest(id);
        let axis = story.mesh.name(atom);
        for p in &choice.priced {
            let at = match p.at {
                Some(l) => {
                    let how = if matches!(n.loops[l].along, Along::Contract(_)) { ", adding up parts" } else { "" };
                    format!("cut {} by `{axis}`{how}", story.loop_name(id, &n, l))
                }
                None => format!("not cut by `{axis}`"),
            };
            let mark = if p.at == choice.taken { " (taken)" } else { "" };
            self.out.alternatives.push(format!("{at}: {} bytes, forward and back{mark}", bytes(p.bytes)));
        }
    }

    /// The chain of steps from a dim of a value back to a rule.
    fn follow(&mut self, v: ValueId, at: usize, atom: Atom) {
        let story = &self.s.story;
        let (mut v, mut at) = (v, at);
        for _ in 0..MOST_STEPS {
            let dim = story.graph.dim(story.graph.value(v).dims[at]).name.clone();
            match story.link(v, at, atom, self.rules) {
                Link::Rule(k) => {
                    let line = Line { text: format!("{} is pinned: `{dim}`", self.shown(v)), place: None };
                    self.step(line);
                    if !self.out.pins.contains(&k) {
                        self.out.pins.push(k);
                        let span = self.rules.pins[k].span;
                        let place = self.place(Some(span));
                        self.out.rules.push(Line { text: self.sources.text(span).to_string(), place });
                    }
                    return;
                }
                Link::Zero(k) => {
                    self.step(Line { text: format!("{} is stored so", self.shown(v)), place: None });
                    if !self.out.zero.contains(&k) {
                        self.out.zero.push(k);
                        let span = self.rules.zero[k].span;
                        let place = self.place(Some(span));
                        self.out.rules.push(Line { text: self.sources.text(span).to_string(), place });
                    }
                    return;
                }
                Link::Spread { value, operation } => {
                    let Line { text, place } = self.operation(operation);
                    let next = story.same_dim(operation, v, at, value);
                    let from = self.shown(value);
                    self.step(Line { text: format!("{} has `{dim}` like {from}, by {text}", self.shown(v)), place });
                    let Some(next) = next else { return };
                    (v, at) = (value, next);
                }
                Link::Chosen { operation } => {
                    let Line { text, place } = self.operation(operation);
                    self.step(Line { text: format!("{} is made so by {text}", self.shown(v)), place });
                    let Some(l) = story.loop_of(operation, atom) else { return };
                    let op = story.graph.op(operation);
                    let n = story.nest(operation);
                    let found = op.args.iter().zip(&n.loops[l].slots).find_map(|(a, place)| {
                        let at = (*place)?.at;
                        story.layout(*a).dims[at].iter().any(|e| e.atom == atom).then_some((*a, at))
                    });
                    let Some(next) = found else { return };
                    (v, at) = next;
                }
                Link::Open => return,
            }
        }
    }

    fn step(&mut self, line: Line) {
        if !self.out.chain.contains(&line) {
            self.out.chain.push(line);
        }
    }
}

/// What a rule is called that is left out: all of its statement, or one dim of it.
pub fn left_out(rules: &Rules, g: &Graph, k: usize, sources: &SourceMap) -> String {
    let pin = &rules.pins[k];
    let text = sources.text(pin.span);
    let name = g.known_as(pin.dim);
    let others = rules.pins.iter().any(|p| p.span == pin.span && g.known_as(p.dim) != name);
    if others { format!("leave `{name}` out of `{text}`") } else { format!("leave out `{text}`") }
}

impl Explained {
    /// `title`: of the collective. `removals`: what it takes to be without it, found by trying.
    pub fn text(&self, title: &str, removals: &[String]) -> String {
        let mut out = format!("{title}\n");
        let line = |out: &mut String, l: &Line| {
            let place = l.place.as_ref().map_or_else(String::new, |p| format!("  ({p})"));
            let _ = writeln!(out, "  {}{place}", l.text);
        };
        for (head, lines) in [
            ("why", &self.need),
            ("from the operation back to the plan", &self.chain),
            ("said in the plan", &self.rules),
        ] {
            if !lines.is_empty() {
                let _ = writeln!(out, "\n{head}");
                lines.iter().for_each(|l| line(&mut out, l));
            }
        }
        let edits: Vec<String> = removals.iter().chain(&self.edits).cloned().collect();
        for (head, lines) in [("weighed, bytes sent per rank", &self.alternatives), ("to be without it", &edits)] {
            if !lines.is_empty() {
                let _ = writeln!(out, "\n{head}");
                for l in lines {
                    let _ = writeln!(out, "  {l}");
                }
            }
        }
        out
    }
}
