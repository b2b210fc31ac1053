//! Smaller sizes: all dims at once, each made as small as the rest of them; where that gives no program that is worth running, one dim
//! after the other.

use super::sizes::{Sized, TRIES, dims, few, pattern};
use super::{MOST_RANKS_SCALED, run, small_enough};
use crate::diag::{Diagnostic, Severity};
use crate::driver::findings::Outcome;
use crate::driver::options::Options;
use crate::driver::pipeline::{self, Graphs, with};
use crate::driver::sharding::{self, Sharding};
use crate::driver::{check, verify};
use crate::inspect::Comm;
use crate::ir::{CollectiveKind, Phase};
use crate::mesh::Axis;
use crate::source::World;
use std::cell::Cell;

/// Most programs that are compiled on the way from large dims to small ones.
const MOST_COMPILED: usize = 120;

/// A program of smaller sizes, run.
pub struct Smaller {
    pub graphs: Graphs,
    /// Whether it exchanges what the program as it is does, and its dims divide alike.
    pub alike: bool,
    pub report: verify::Report,
}

/// Sizes of mesh axes and of dims, of those that change.
#[derive(Clone, PartialEq)]
struct Sizes {
    mesh: Vec<(String, u64)>,
    dims: Vec<(String, usize)>,
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let axes = self.mesh.iter().map(|(n, size)| format!("{n} = {size}"));
        let dims = self.dims.iter().map(|(n, size)| format!("{n} = {size}"));
        f.write_str(&axes.chain(dims).collect::<Vec<String>>().join(", "))
    }
}

struct Search<'a> {
    options: &'a Options,
    world: &'a dyn World,
    g: &'a Graphs,
    s: &'a Sharding,
    /// Dims of the file with the sizes in its text, but those that the user has set.
    dims: Vec<(String, usize)>,
    wanted: Vec<Class>,
    pattern: Vec<(String, bool, bool)>,
    /// What dims must have for the numbers that the program computes with.
    least: Vec<(String, usize)>,
    /// Whether only programs that are alike are looked for.
    strict: bool,
    /// How many more programs are compiled while dims are made smaller one by one.
    left: Cell<usize>,
    /// Sizes that are not good, and why.
    tried: Vec<(Sizes, String)>,
}

/// The smallest sizes that are tried and found good, else the best, run. Else what was wrong with the sizes; `large`: with its own.
pub fn smaller(options: &Options, g: &Graphs, steps: u64, large: Diagnostic, world: &dyn World) -> Outcome<Smaller> {
    let c = check::load(&options.request, world);
    let Some(s) = &g.sharding else { return Err(with(large, &g.findings.sources)) };
    let mut all = dims(&c.program, &c.sources);
    all.retain(|(name, _)| !options.request.sets.iter().any(|(n, _)| n == name));
    let mut search = Search {
        options,
        world,
        g,
        s,
        dims: all,
        wanted: exchanged(g)?,
        pattern: pattern(&g.train, s),
        least: Vec::new(),
        strict: true,
        left: Cell::new(MOST_COMPILED),
        tried: Vec::new(),
    };
    // With fewer layers, everything else is found sooner.
    let turning = |(name, written): &(String, usize)| search.of(name, *written).turning();
    let (turns, rest): (Vec<_>, Vec<_>) = search.dims.iter().cloned().partition(turning);
    search.dims = [turns, rest].concat();
    let mut others = Vec::new();
    if let Some(found) = search.at_once(steps, &mut others)? {
        return Ok(found);
    }
    if let Some(found) = search.one_by_one(steps)? {
        return Ok(found);
    }
    while let Some(graphs) = others.pop() {
        if let Ok(report) = run(&graphs, steps)? {
            return Ok(Smaller { graphs, alike: false, report });
        }
    }
    (search.strict, search.left) = (false, Cell::new(MOST_COMPILED));
    if let Some(found) = search.one_by_one(steps)? {
        return Ok(Smaller { alike: search.alike(&found.graphs)?, ..found });
    }
    let mut d = large;
    for (sizes, why) in search.tried.iter().rev().take(2) {
        d = d.with_note(format!("{sizes}: {why}"));
    }
    Err(with(d, &g.findings.sources))
}

impl Search<'_> {
    /// All dims at once; what could be run, but is not alike, is for later.
    fn at_once(&mut self, steps: u64, others: &mut Vec<Graphs>) -> Outcome<Option<Smaller>> {
        let mut tries = TRIES.iter().peekable();
        let mut last: Option<Sizes> = None;
        // Each is left when the same sizes come again.
        while let Some(each) = tries.peek() {
            let resized =
                |(name, written): &(String, usize)| Some((name.clone(), self.of(name, *written).resized(**each)?));
            let sizes = Sizes { mesh: self.mesh(), dims: self.dims.iter().filter_map(resized).collect() };
            if last.as_ref() == Some(&sizes) {
                tries.next();
                continue;
            }
            last = Some(sizes.clone());
            let Some(graphs) = self.graphs(&sizes)? else { continue };
            if let Err(d) = small_enough(&graphs, MOST_RANKS_SCALED) {
                self.tried.push((sizes, d.message));
                continue;
            }
            if !self.alike(&graphs)? {
                others.push(graphs);
                tries.next();
                continue;
            }
            if let Some(found) = self.run(graphs, &sizes, steps)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// From sizes with which the program is good, one dim after the other as small as it can be.
    fn one_by_one(&mut self, steps: u64) -> Outcome<Option<Smaller>> {
        let own =
            self.s.mesh().axes.iter().map(|a| (a.name.clone(), a.atoms.iter().product::<usize>() as u64)).collect();
        let starts = [Sizes { mesh: self.mesh(), dims: Vec::new() }, Sizes { mesh: own, dims: Vec::new() }];
        for start in starts {
            loop {
                let known = self.least.len();
                let Some((sizes, graphs)) = self.descend(start.clone())? else { break };
                if let Err(d) = small_enough(&graphs, MOST_RANKS_SCALED) {
                    self.tried.push((sizes, d.message));
                    break;
                }
                if let Some(found) = self.run(graphs, &sizes, steps)? {
                    return Ok(Some(found));
                }
                if self.least.len() == known {
                    break;
                }
            }
        }
        Ok(None)
    }

    /// None if what it begins with is no good.
    fn descend(&self, start: Sizes) -> Outcome<Option<(Sizes, Graphs)>> {
        let Some(mut graphs) = self.good(&start)? else { return Ok(None) };
        let mut sizes = start;
        loop {
            let before = sizes.clone();
            for (name, written) in &self.dims {
                let now = sizes.dims.iter().find(|d| d.0 == *name).map_or(usize::MAX, |d| d.1);
                for new in self.of(name, *written).ladder().into_iter().take_while(|n| *n < now) {
                    if self.left.replace(self.left.get().saturating_sub(1)) == 0 {
                        break;
                    }
                    let mut less = sizes.clone();
                    less.dims.retain(|d| d.0 != *name);
                    less.dims.push((name.clone(), new));
                    if let Some(found) = self.good(&less)? {
                        (sizes, graphs) = (less, found);
                        break;
                    }
                }
            }
            if sizes == before || small_enough(&graphs, MOST_RANKS_SCALED).is_ok() {
                return Ok(Some((sizes, graphs)));
            }
        }
    }

    fn good(&self, sizes: &Sizes) -> Outcome<Option<Graphs>> {
        match self.compiled(sizes)? {
            Ok(graphs) if !self.strict || self.alike(&graphs)? => Ok(Some(graphs)),
            _ => Ok(None),
        }
    }

    fn of<'s>(&'s self, name: &'s str, written: usize) -> Sized<'s> {
        let least = self.least.iter().filter(|l| l.0 == name).map(|l| l.1).max().unwrap_or(0);
        Sized { g: &self.g.train, s: self.s, name, written, least }
    }

    fn mesh(&self) -> Vec<(String, u64)> {
        let axis = |a: &Axis| (a.name.clone(), a.atoms.iter().map(|n| few(*n) as u64).product());
        self.s.mesh().axes.iter().map(axis).collect()
    }

    /// The program with these sizes, or why there is none. Sizes that do not fit each other are no finding of the user's.
    fn compiled(&self, sizes: &Sizes) -> Outcome<Result<Graphs, String>> {
        let mut smaller = Options { mesh: sizes.mesh.clone(), ..self.options.clone() };
        smaller.request.sets.extend(sizes.dims.iter().map(|(name, n)| (name.clone(), n.to_string())));
        Ok(match pipeline::graphs(&smaller, self.world) {
            Ok(graphs) if graphs.sharding.is_none() => Err("nothing is spread over ranks".into()),
            Ok(graphs) => Ok(graphs),
            Err(f) => {
                let first = f.sink.sorted().iter().find(|d| d.severity == Severity::Error).map(|d| d.message.clone());
                Err(first.unwrap_or_default())
            }
        })
    }

    /// The same; why there is none is kept.
    fn graphs(&mut self, sizes: &Sizes) -> Outcome<Option<Graphs>> {
        let found = self.compiled(sizes)?.map_err(|why| self.tried.push((sizes.clone(), why)));
        Ok(found.ok())
    }

    fn alike(&self, graphs: &Graphs) -> Outcome<bool> {
        let s = graphs.sharding.as_ref().expect("programs of several ranks");
        Ok(pattern(&graphs.train, s) == self.pattern && exchanged(graphs)? == self.wanted)
    }

    /// None, and why, where it cannot be run.
    fn run(&mut self, graphs: Graphs, sizes: &Sizes, steps: u64) -> Outcome<Option<Smaller>> {
        match run(&graphs, steps)? {
            Ok(report) => Ok(Some(Smaller { graphs, alike: true, report })),
            Err(e) => {
                // Once a dim: a program may miss at any size.
                let least = &mut self.least;
                least.extend(e.needs().filter(|n| least.iter().all(|l| l.0 != n.0)));
                self.tried.push((sizes.clone(), e.why));
                Ok(None)
            }
        }
    }
}

type Class = (CollectiveKind, Vec<String>, Phase, String, String);

/// The collectives of the training step, alike ones once.
fn exchanged(g: &Graphs) -> Outcome<Vec<Class>> {
    let program = sharding::train(g)?;
    let comm = Comm::of("", Vec::new(), "train", Some((&program, &g.findings.sources)));
    let mut out: Vec<Class> = Vec::new();
    for class in comm.collectives.iter().map(|e| e.class()) {
        if !out.contains(&class) {
            out.push(class);
        }
    }
    Ok(out)
}
