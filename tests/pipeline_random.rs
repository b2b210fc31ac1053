//! Random programs of all operations, cut into stages at random, against the same programs in one piece.

#[path = "support/graphs.rs"]
#[allow(dead_code)]
mod graphs;

pub use partita;

use graphs::{KINDS, Rng, random_case};
use partita::driver::emulate::{self, Onward};
use partita::interp::{Env, run};
use partita::ir::{Dim, DimId, Graph, Phase, Scope, ScopeId, print, prune, verify};
use partita::mesh::Mesh;
use partita::pipeline::{Holders, Turns, pipelined};
use partita::schedule::{Costs, Schedule};
use partita::types::DType;

/// Adds a loop's dim, and a scope for each of its turns.
fn turns(g: &mut Graph, count: usize) -> (DimId, Vec<ScopeId>) {
    let dim = DimId(g.dims.len() as u32);
    g.dims.push(Dim { name: "depth".into(), size: count, ..g.dims[0].clone() });
    let first = g.scopes.len();
    for turn in 0..count {
        let path = format!("block.{turn}");
        let scope = Scope { path, turns: vec![(dim, turn as u32)], ..g.scopes[0].clone() };
        g.scopes.push(scope);
    }
    (dim, (first..g.scopes.len()).map(|s| ScopeId(s as u32)).collect())
}

/// Some operations go forward through the turns, the next ones back through them, the last ones update; a few belong to no turn.
fn divide(rng: &mut Rng, g: &mut Graph, scopes: &[ScopeId]) {
    let ops = g.blocks[0].ops.clone();
    let forward = ops.len() * (3 + rng.below(6)) / 10;
    let backward = forward + (ops.len() - forward) * rng.below(11) / 10;
    let turn_of = |k: usize, n: usize| (k * scopes.len() / n.max(1)).min(scopes.len() - 1);
    for (k, id) in ops.iter().enumerate() {
        let outside = rng.below(5) == 0;
        let (phase, turn) = if k < forward {
            (Phase::Forward, turn_of(k, forward))
        } else if k < backward {
            (Phase::Backward, scopes.len() - 1 - turn_of(k - forward, backward - forward))
        } else {
            (Phase::Update, 0)
        };
        let inside = phase != Phase::Update && !outside;
        // Bodies of loops go with them.
        let mut open = vec![*id];
        while let Some(id) = open.pop() {
            let op = &mut g.ops[id.index()];
            op.phase = phase;
            if inside {
                op.scope = scopes[turn];
            }
            if let partita::ir::Op::Loop { body, .. } = op.op {
                open.extend(g.blocks[body.index()].ops.iter().copied());
            }
        }
    }
}

fn one(seed: u64) -> Result<(), String> {
    let mut rng = Rng(seed ^ 0xc07);
    let only: Vec<usize> = if rng.below(3) == 0 { vec![rng.below(KINDS), rng.below(KINDS)] } else { Vec::new() };
    let length = 6 + rng.below(20);
    let case = random_case(seed, DType::F64, length, &only);
    let mut graph = prune::prune(&case.graph);
    let schedules = [
        Schedule::GPipe,
        Schedule::OneFOneB,
        Schedule::ZbH1,
        Schedule::Interleaved(2),
        Schedule::ZbV,
        Schedule::DualPipe,
    ];
    let (schedule, ranks) = (&schedules[rng.below(schedules.len())], 2 + 2 * rng.below(2));
    let stages = schedule.stages(ranks, 8, None).expect("stages");
    let (dim, scopes) = turns(&mut graph, stages);
    divide(&mut rng, &mut graph, &scopes);
    graph.mesh = Mesh::of(&[("pp", ranks)]);
    verify::verify(&graph).map_err(|e| format!("not a graph: {e}"))?;
    // What stops in one piece stops in many.
    let Ok(wanted) = run(&graph, &case.env) else { return Ok(()) };
    let told = |why: String| format!("{why}\n{schedule} on {ranks}\n{}", print::print(&graph));
    let table =
        schedule.table(ranks, 1, &Costs::unit(stages), &|_| Err("no file".into())).map_err(|e| format!("{e:?}"))?;
    let cut = Turns { loops: vec![(dim, 0)], stage: (0..stages).collect() };
    let p = pipelined(&graph, &cut, &table, None, &Holders::new()).map_err(told)?;
    for f in &p.functions {
        verify::verify(&f.graph).map_err(|e| told(format!("{}: {e}", f.name)))?;
    }
    let mut envs: Vec<Env> = (0..ranks).map(|rank| Env { rank, ..case.env.clone() }).collect();
    let atoms = graph.mesh.atoms_of(0);
    let found = emulate::run(&p, &atoms, &mut envs, &mut Onward::default()).map_err(|e| told(e.to_string()))?;
    for (k, whole) in wanted.iter().enumerate() {
        for (rank, values) in found.iter().enumerate() {
            let near =
                |(x, y): (&f64, &f64)| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-9 * y.abs().max(1.0);
            if values[k].data.len() != whole.data.len() || !values[k].data.iter().zip(&whole.data).all(near) {
                return Err(told(format!("output {k} `{}` on rank {rank}", graph.outputs[k].name)));
            }
        }
    }
    Ok(())
}

#[test]
fn random_programs_compute_the_same_in_stages() {
    let count = std::env::var("CASES").ok().and_then(|c| c.parse().ok()).unwrap_or(300);
    let from: u64 = std::env::var("FROM").ok().and_then(|c| c.parse().ok()).unwrap_or(0);
    let wrong: Vec<String> = (from..from + count)
        .filter_map(|seed| {
            let text = match std::panic::catch_unwind(|| one(seed)) {
                Ok(Ok(())) => return None,
                Ok(Err(why)) => why,
                Err(p) => format!("panic: {}", p.downcast_ref::<String>().cloned().unwrap_or_default()),
            };
            Some(format!("seed {seed}: {text}"))
        })
        .collect();
    let short: Vec<&str> = wrong.iter().map(|w| w.lines().next().unwrap_or("")).collect();
    assert!(wrong.is_empty(), "{} of {count}:\n{}\n\n{}", wrong.len(), short.join("\n"), wrong[0]);
}
