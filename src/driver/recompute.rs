//! What a plan has computed again, in terms of graphs; and which values, where it asks for as few as fit into a memory.

use super::findings::Outcome;
use super::options::Options;
use super::pipeline::{self, Graphs};
use super::{doctor, memory, sharding, show, stages};
use crate::diag::{Diagnostic, Severity};
use crate::elaborate::plan::{PlanScope, Recompute, ResolvedPlan};
use crate::ir::{Graph, Op, Operation, ScopeId, work};
use crate::kernel::Module;
use crate::pipeline::Holders;
use crate::recompute::{Market, Part, Policy, Prices, What, is_exchange, repeat};
use crate::shard::{self, Sharded};
use crate::source::Span;
use indexmap::IndexMap;

/// What is asked for.
pub enum Asked {
    Policy(Policy),
    /// As little as has a rank need no more than so many bytes (none: than this machine has for it).
    Fit {
        limit: Option<u64>,
        keep_collectives: bool,
        span: Span,
    },
}

/// What a plan asks for that was resolved against a graph; none where it asks for nothing.
pub fn asked(plan: &ResolvedPlan, g: &Graph) -> Option<Asked> {
    let (span, keep_collectives) = (plan.recompute_span?, plan.keep_collectives);
    let what = match &plan.recompute {
        Recompute::None => return None,
        Recompute::Auto(limit) => return Some(Asked::Fit { limit: *limit, keep_collectives, span }),
        Recompute::Gathers => What::Gathers,
        Recompute::Full => What::Full,
        Recompute::Scopes(scopes) => What::Parts(scopes.iter().flat_map(|s| parts(s, g)).collect()),
    };
    Some(Asked::Policy(Policy { what, keep_collectives, span }))
}

fn parts(s: &PlanScope, g: &Graph) -> Vec<Part> {
    let mut named: IndexMap<&str, Vec<ScopeId>> = IndexMap::new();
    for v in &s.values {
        let name = g.value(*v).name.as_deref().or_else(|| s.text.rsplit('.').next());
        let (Some(name), Some(op)) = (name, g.def_op(*v)) else { continue };
        named.entry(name).or_default().push(op.scope);
    }
    let inside = (!s.roots.is_empty()).then(|| Part::Inside(s.roots.clone()));
    inside.into_iter().chain(named.into_iter().map(|(n, scopes)| Part::Named(n.to_string(), scopes))).collect()
}

/// What is to be said of a program that a policy was applied to: that it has no effect, or what was chosen.
pub fn notes(g: &Graph, policy: &Policy) -> Option<Diagnostic> {
    let Some(repeated) = Repeated::of(g) else {
        let help = match policy.what {
            What::Gathers => "ranks gather no activations under this plan: leave the line out",
            What::Full => "the model repeats no layer by `for`: name layers or values, as in `recompute Attention`",
            What::Parts(_) => {
                "the backward pass needs nothing that they make: leave the line out, or name other layers or values"
            }
            What::Priced(_) => "all that the backward pass reads can be kept",
        };
        return Some(
            Diagnostic::note("W0014", "nothing is computed again").at(policy.span, "has no effect").help(help),
        );
    };
    let What::Priced(_) = policy.what else { return None };
    let more = repeated.more();
    let d = Diagnostic::note("W0015", format!("chosen to be computed again: {more}")).at(policy.span, "to fit");
    Some(repeated.lines().into_iter().fold(d, Diagnostic::with_note))
}

/// Takes what is asked for into the graphs.
pub fn apply(asked: Option<Asked>, g: &mut Graphs, options: &Options) -> Outcome<()> {
    let Some(asked) = asked else { return Ok(()) };
    let policy = match asked {
        Asked::Policy(policy) => policy,
        Asked::Fit { limit, keep_collectives, span } => fit(limit, keep_collectives, span, g, options)?,
    };
    // What ranks hold is computed again where it is known what that is.
    if g.sharding.is_none() {
        crate::recompute::recompute(&mut g.train, &policy);
        // That it does not fit says as much.
        let note = notes(&g.train, &policy).filter(|_| g.short.is_none());
        note.into_iter().for_each(|d| g.findings.sink.push(d));
    }
    g.again = Some(policy);
    Ok(())
}

/// The cheapest choice with which a rank needs no more than the limit; if there is none, that with which it needs least.
fn fit(limit: Option<u64>, keep_collectives: bool, span: Span, g: &mut Graphs, options: &Options) -> Outcome<Policy> {
    let judge = Judge::new(g, options)?;
    let limit = limit.unwrap_or_else(|| doctor::memory().map_or(u64::MAX, |m| m.0) / judge.ranks() as u64);
    let market = Market::new(&judge.train.graph, keep_collectives);
    let levels = market.levels();
    let uniform = |k: usize| Prices { low: levels[k], high: levels[k], turns: 0 };
    let need = |prices: Prices| judge.peak(&market.dropped(prices));
    let fits = |prices: Prices| need(prices) <= limit;
    // Needs fall with the price, as a rule: the first level that fits is looked for by halves.
    let (mut below, mut above) = (0, levels.len());
    if fits(uniform(0)) {
        above = 0;
    }
    while below + 1 < above {
        let middle = (below + above) / 2;
        if fits(uniform(middle)) { above = middle } else { below = middle }
    }
    let prices = if above == levels.len() {
        let least = (0..levels.len()).map(|k| (need(uniform(k)), k)).min().unwrap_or((0, 0));
        g.short = Some(short(least.0, limit, span));
        uniform(least.1)
    } else if above == 0 {
        uniform(0)
    } else {
        let mixed = |turns: u32| Prices { low: levels[below], high: levels[above], turns };
        let (mut few, mut enough) = (0, market.units());
        while few + 1 < enough {
            let middle = few + (enough - few) / 2;
            if fits(mixed(middle)) { enough = middle } else { few = middle }
        }
        // Where the last of them made it worse after all.
        if fits(mixed(enough)) { mixed(enough) } else { uniform(above) }
    };
    Ok(Policy { what: What::Priced(prices), keep_collectives, span })
}

/// Tells what a rank needs if certain values are computed again.
struct Judge<'g> {
    g: &'g Graphs,
    options: &'g Options,
    train: Sharded,
    /// Who holds what for evaluation.
    holders: Holders,
    /// By coordinate along the pipeline.
    besides: Vec<Besides>,
}

/// What ranks need beside a training step.
struct Besides {
    /// Of other routines.
    arena: usize,
    /// Of what is there between steps.
    persistent: usize,
}

impl<'g> Judge<'g> {
    fn new(g: &'g Graphs, options: &'g Options) -> Outcome<Judge<'g>> {
        let programs = sharding::programs(g)?;
        let sources = &g.findings.sources;
        let mut program = pipeline::of_rank(g, programs.as_ref(), sources, options)?.program;
        memory::plan(&mut program, g.offload);
        let besides = |stage: usize| {
            let own = program.routines_at(stage).into_iter().map(|r| &program.routines[r]);
            let arena = own.filter(|r| r.entry() != pipeline::TRAIN).map(|r| r.arena).max().unwrap_or(0);
            Besides { arena, persistent: program.persistent_bytes(stage) }
        };
        let besides = (0..program.stages()).map(besides).collect();
        let holders = match programs.as_ref().filter(|_| program.stages() > 1) {
            Some(p) => stages::holders(g, &p.eval.graph, &options.lowering())?,
            None => Holders::new(),
        };
        let train = match &g.sharding {
            Some(s) => shard::spread(&g.train, &s.train, &s.storage),
            None => Sharded { graph: g.train.clone(), ..Sharded::default() },
        };
        Ok(Judge { g, options, train, holders, besides })
    }

    fn ranks(&self) -> usize {
        self.train.graph.mesh.ranks()
    }

    /// Of the ranks that need most. What cannot be cut into stages does not fit anywhere.
    fn peak(&self, dropped: &[bool]) -> u64 {
        let mut graph = self.train.graph.clone();
        repeat(&mut graph, dropped);
        let graph = shard::ordered(graph);
        let lowering = self.options.lowering();
        let mut module = Module::new(&self.g.findings.sources);
        match stages::step(self.g, &graph, false, &self.holders, &lowering) {
            Ok(Some(step)) => module.add_pipelined(pipeline::TRAIN, &step, &lowering),
            Ok(None) => module.add_pruned(pipeline::TRAIN, graph, &lowering),
            Err(_) => return u64::MAX,
        };
        memory::plan(&mut module.program, self.g.offload);
        let needs = |(stage, b): (usize, &Besides)| b.persistent + b.arena.max(module.program.arena_bytes(stage));
        self.besides.iter().enumerate().map(needs).max().unwrap_or(0) as u64
    }
}

/// The error that nothing makes a program fit.
fn short(least: u64, limit: u64, span: Span) -> Diagnostic {
    let message = format!(
        "with all that is worth it computed again each rank needs {}, more than {}",
        show::bytes(least),
        show::bytes(limit)
    );
    Diagnostic::error("E0604", message).at(span, "asked for here").help(
        "allow more memory, use more `microbatches`, more ranks or a higher level of `zero`, or a lower precision",
    )
}

/// Of what is found in the program of a rank: nothing of what is computed again, where that it does not fit is told.
pub fn besides<'a>(found: &'a [Diagnostic], short: Option<&'a Diagnostic>) -> impl Iterator<Item = &'a Diagnostic> {
    found.iter().filter(move |d| short.is_none() || !["W0014", "W0015"].contains(&d.code))
}

/// The same as a warning, of commands that show a plan and need no memory for it.
pub fn unmet(short: &Diagnostic) -> Diagnostic {
    let d = Diagnostic { code: "W0015", severity: Severity::Warning, ..short.clone() };
    d.with_note("`train` and `memory` refuse the plan (E0604); it is shown with what needs least")
}

/// What a program computes again, to be told.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Repeated {
    /// Operations on floats of what is computed again, by those of the same step without it.
    pub share: f64,
    /// `y of block.*.up`, and in how many layers: products and the like, and exchanges.
    pub values: Vec<(String, usize)>,
}

impl Repeated {
    /// None where a program computes nothing again.
    pub fn of(g: &Graph) -> Option<Repeated> {
        let mut values: IndexMap<String, usize> = IndexMap::new();
        let (mut again, mut once) = (0.0, 0.0);
        for (block, turns) in blocks(g) {
            for op in g.blocks[block].ops.iter().map(|id| g.op(*id)) {
                let flops = match op.op {
                    Op::Loop { .. } => 0.0,
                    _ => turns * work::flops_of(g, op),
                };
                match op.again {
                    false => once += flops,
                    true => again += flops,
                }
                if op.again && is_told(op) {
                    *values.entry(told(g, op)).or_default() += 1;
                }
            }
        }
        g.ops.iter().any(|op| op.again).then(|| Repeated { share: again / once, values: values.into_iter().collect() })
    }
}

impl Repeated {
    /// In few words.
    pub fn more(&self) -> String {
        format!("{:.1} % more floating-point operations", 100.0 * self.share)
    }

    /// A line for each value.
    pub fn lines(&self) -> Vec<String> {
        let line = |(what, n): &(String, usize)| match n {
            1 => what.clone(),
            _ => format!("{what}, {n} times"),
        };
        self.values.iter().map(line).collect()
    }
}

/// Blocks with the number of times that each runs in a step.
fn blocks(g: &Graph) -> Vec<(usize, f64)> {
    let mut out = vec![(0, 1.0)];
    let mut at = 0;
    while at < out.len() {
        let (block, turns) = out[at];
        for id in &g.blocks[block].ops {
            if let Op::Loop { body, dim, .. } = g.op(*id).op {
                out.push((body.index(), turns * g.size(dim) as f64));
            }
        }
        at += 1;
    }
    out
}

/// Whether it is more than a pass over elements.
fn is_told(op: &Operation) -> bool {
    let light = matches!(
        op.op,
        Op::Map(_)
            | Op::Reshape { .. }
            | Op::Broadcast { .. }
            | Op::Window { .. }
            | Op::Reduce { .. }
            | Op::StopGradient
            | Op::Random { .. }
    );
    !light && (!matches!(op.op, Op::Collective(_)) || is_exchange(op))
}

fn told(g: &Graph, op: &Operation) -> String {
    let path = &g.scopes[op.scope.index()].path;
    let any = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".to_string() } else { part.to_string() };
    let layer = path.split('.').map(any).collect::<Vec<_>>().join(".");
    let what = match &op.op {
        Op::Collective(c) => c.kind.name().to_string(),
        _ => String::new(),
    };
    let name = op.results.iter().find_map(|r| g.value(*r).name.clone());
    let word = || crate::ir::print::op_name(g, &op.op).split(['[', ' ']).next().unwrap_or_default().to_string();
    let name = name.unwrap_or_else(word);
    let made = if what.is_empty() || what == name { name } else { format!("{what} of {name}") };
    if layer.is_empty() { made } else { format!("{made} in {layer}") }
}
