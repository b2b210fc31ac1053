//! Random programs of all operations, spread over random meshes by random rules, against one device.

#[path = "support/graphs.rs"]
#[allow(dead_code)]
mod graphs;

pub use partita;

use graphs::{KINDS, Rng, random_case};
use partita::driver::verify::{part, places};
use partita::interp::{Env, run, run_ranks};
use partita::ir::{DimId, Graph, OutputKind, Phase, print, prune, verify};
use partita::mesh::{Atom, Axis, Entry, Mesh, Order};
use partita::recompute;
use partita::shard::{self, Pin, Rules, Strength};
use partita::source::{FileId, Span};
use partita::types::DType;

/// A mesh of up to 12 ranks, one to three axes.
fn mesh(rng: &mut Rng) -> Mesh {
    let shapes: [&[usize]; 9] = [&[2], &[3], &[4], &[2, 2], &[2, 3], &[3, 2], &[5], &[2, 2, 3], &[3, 4]];
    let sizes = shapes[rng.below(shapes.len())];
    Mesh { axes: sizes.iter().enumerate().map(|(i, n)| Axis::new(&format!("a{i}"), *n)).collect() }
}

/// Every axis cuts one or two dims wherever they occur; one dim may be cut by several axes.
fn rules(rng: &mut Rng, g: &Graph) -> Rules {
    let mesh = mesh(rng);
    let mut cuts: Vec<Vec<Entry>> = vec![Vec::new(); g.dims.len()];
    for a in mesh.atoms() {
        for _ in 0..1 + rng.below(2) {
            let d = rng.below(g.dims.len());
            if !cuts[d].iter().any(|e| e.atom == a) {
                cuts[d].push(Entry::new(a));
            }
        }
    }
    if rng.below(5) == 0 {
        let d = rng.below(g.dims.len());
        if let Some(last) = cuts[d].last_mut() {
            last.order = Order::Zigzag;
        }
    }
    let span = Span::new(FileId(0), 0, 0);
    let pins = cuts.into_iter().enumerate().filter(|(_, c)| !c.is_empty()).map(|(d, entries)| Pin {
        dim: DimId(d as u32),
        entries,
        place: None,
        strength: Strength::Statement,
        span,
    });
    let ring = if rng.below(2) == 0 { mesh.atoms().collect() } else { Vec::new() };
    Rules { pins: pins.collect(), mesh, ring, ..Rules::default() }
}

/// Has a later part of the program compute again what chance says.
fn repeat_some(rng: &mut Rng, g: &mut Graph) {
    for block in g.blocks.clone() {
        let late = block.ops.len() * (2 + rng.below(6)) / 10;
        block.ops[late..].iter().for_each(|id| g.ops[id.index()].phase = Phase::Backward);
    }
    let mut dropped = vec![false; g.values.len()];
    for op in g.ops.iter().filter(|op| op.phase == Phase::Forward && rng.below(2) == 0) {
        op.results.iter().for_each(|r| dropped[r.index()] = true);
    }
    recompute::repeat(g, &dropped);
}

fn one(seed: u64) -> Result<(), String> {
    let mut rng = Rng(seed ^ 0x5eed);
    let only: Vec<usize> = if rng.below(3) == 0 { vec![rng.below(KINDS), rng.below(KINDS)] } else { Vec::new() };
    let length = 4 + rng.below(14);
    let case = random_case(seed, DType::F64, length, &only);
    let graph = prune::prune(&case.graph);
    verify::verify(&graph).map_err(|e| format!("not a graph: {e}"))?;
    let env = case.env;
    // What stops on one device stops anywhere.
    let Ok(wanted) = run(&graph, &env) else { return Ok(()) };
    let rules = rules(&mut rng, &graph);
    let storage = shard::storage(&graph, &rules);
    let mut out = shard::spread(&graph, &rules, &storage).graph;
    if rng.below(2) == 0 {
        repeat_some(&mut rng, &mut out);
    }
    let g = &shard::ordered(out);
    shard::verify(g).map_err(|e| format!("{e}\n{}", print::print(g)))?;
    let envs: Vec<Env> = (0..g.mesh.ranks())
        .map(|rank| Env {
            rank,
            params: g.params.iter().zip(&env.params).map(|(p, t)| part(g, &p.dims, t, rank)).collect(),
            states: g.states.iter().zip(&env.states).map(|(s, t)| part(g, &s.dims, t, rank)).collect(),
            inputs: g.inputs.iter().zip(&env.inputs).map(|(i, t)| part(g, &i.dims, t, rank)).collect(),
            ..env.clone()
        })
        .collect();
    let found = run_ranks(g, &envs).map_err(|e| format!("{e}\n{}", print::print(g)))?;
    for (k, (o, whole)) in g.outputs.iter().zip(&wanted).enumerate() {
        let dims = match o.kind {
            OutputKind::Param(p) | OutputKind::InitParam(p) => &g.params[p.index()].dims,
            OutputKind::State(s) | OutputKind::InitState(s) => &g.states[s.index()].dims,
            _ => &g.value(o.value).dims,
        };
        for (rank, values) in found.iter().enumerate() {
            let own = part(g, dims, whole, rank);
            let real = places(g, dims, rank);
            for (i, (x, y)) in values[k].data.iter().zip(&own.data).enumerate() {
                let near = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-9 * y.abs().max(1.0);
                if real[i].is_some() && !near {
                    let text = print::print(g);
                    return Err(format!(
                        "output {k} `{}` on rank {rank} at {i}: {x} for {y}\n{}\n{text}",
                        o.name,
                        print::print(&graph)
                    ));
                }
            }
        }
    }
    Ok(())
}

fn all(from: u64, count: u64) -> Vec<String> {
    (from..from + count)
        .filter_map(|seed| {
            let result = std::panic::catch_unwind(|| one(seed));
            let text = match result {
                Ok(Ok(())) => return None,
                Ok(Err(why)) => why,
                Err(p) => format!("panic: {}", p.downcast_ref::<String>().cloned().unwrap_or_default()),
            };
            Some(format!("seed {seed}: {text}"))
        })
        .collect()
}

#[test]
fn random_programs_compute_the_same_on_any_mesh() {
    let count = std::env::var("CASES").ok().and_then(|c| c.parse().ok()).unwrap_or(300);
    let from = std::env::var("FROM").ok().and_then(|c| c.parse().ok()).unwrap_or(0);
    let wrong = all(from, count);
    let short: Vec<&str> = wrong.iter().map(|w| w.lines().next().unwrap_or("")).collect();
    assert!(wrong.is_empty(), "{} of {count}:\n{}\n\n{}", wrong.len(), short.join("\n"), wrong[0]);
}

#[test]
fn atoms_are_numbered_through_the_mesh() {
    let mesh = Mesh { axes: vec![Axis { atoms: vec![2, 3], ..Axis::new("a", 6) }, Axis::new("b", 5)] };
    assert_eq!(mesh.size(Atom(2)), 5);
    assert_eq!(mesh.ranks(), 30);
}
