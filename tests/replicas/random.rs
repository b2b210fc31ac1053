//! Random programs of all operations: what replicas compute together is what each computes on its own.

use super::graphs::{KINDS, Rng, random_case};
use partita::interp::{Env, Tensor, run};
use partita::ir::{DimId, Graph, Op, OutputKind, prune, verify};
use partita::stage::replicas::{Outer, Step, local};
use partita::types::DType;

/// None where the program cannot be run so.
fn one(seed: u64) -> Result<Option<()>, String> {
    let mut rng = Rng(seed ^ 0x2e91);
    let only: Vec<usize> = if rng.below(2) == 0 { vec![rng.below(KINDS), rng.below(KINDS)] } else { Vec::new() };
    let case = random_case(seed, DType::F64, 4 + rng.below(14), &only);
    let mut graph = prune::prune(&case.graph);
    // Of others there is no mean.
    let floats = |g: &Graph, v| g.value(v).dtype.is_float();
    let kept: Vec<bool> = graph.outputs.iter().map(|o| floats(&graph, o.value)).collect();
    let mut kept = kept.into_iter();
    graph.outputs.retain(|_| kept.next().expect("one each"));
    let dims: Vec<_> = graph.inputs.iter().flat_map(|i| i.dims.clone()).collect();
    let persistent: Vec<DimId> =
        graph.params.iter().map(|p| &p.dims).chain(graph.states.iter().map(|s| &s.dims)).flatten().copied().collect();
    let dims: Vec<_> = dims.into_iter().filter(|d| !persistent.contains(d)).collect();
    if dims.is_empty() || graph.outputs.is_empty() {
        return Ok(None);
    }
    let sample = dims[rng.below(dims.len())];
    // Draws for samples are those of the whole batch.
    if graph.ops.iter().any(|o| matches!(o.op, Op::Random { .. } | Op::Draw { .. })) {
        return Ok(None);
    }
    let count = 2 + rng.below(2);
    let step = Step { graph: &graph, sample, count };
    // Nothing is initialised: tables alone.
    let mut init =
        Graph { ops: Vec::new(), values: Vec::new(), inputs: Vec::new(), outputs: Vec::new(), ..graph.clone() };
    init.blocks = vec![Default::default()];
    let made = match local(step, &init, Outer { lr: 1.0, momentum: 0.0 }) {
        Ok(made) => prune::prune(&made.step),
        // A window whose place depends on samples.
        Err(d) if d.code == "E0606" => return Ok(None),
        Err(d) => return Err(d.message),
    };
    verify::verify(&made).map_err(|e| format!("not a graph: {e}"))?;
    let derived = |g: &Graph, k: usize| made.inputs[k].dims.len() > g.inputs[k].dims.len();
    // Others have the same numbers, turned round.
    let turned = |t: &Tensor, by: usize| {
        let mut data = t.data.clone();
        let n = data.len().max(1);
        data.rotate_left(by % n);
        Tensor { data, ..t.clone() }
    };
    let mut envs = Vec::new();
    for k in 0..count {
        let inputs = case
            .env
            .inputs
            .iter()
            .enumerate()
            .map(|(i, t)| if derived(&graph, i) { turned(t, 3 * k) } else { t.clone() });
        let params = case
            .env
            .params
            .iter()
            .zip(&made.params)
            .zip(&graph.params)
            .map(|((t, new), old)| if new.dims.len() > old.dims.len() { turned(t, k) } else { t.clone() });
        let params = params.collect();
        envs.push(Env { inputs: inputs.collect(), params, ..case.env.clone() });
    }
    let mut wanted: Vec<Vec<Tensor>> = Vec::new();
    for env in &envs {
        let Ok(values) = run(&graph, env) else { return Ok(None) };
        wanted.push(values);
    }
    // The samples of all: replica by replica where the sample dim is.
    let mut whole = case.env.clone();
    for (i, input) in made.inputs.iter().enumerate() {
        let shape: Vec<usize> = input.dims.iter().map(|d| made.size(*d)).collect();
        if !derived(&graph, i) {
            continue;
        }
        let at = input.dims.iter().position(|d| made.dim(*d).name == "replica").expect("replicas");
        let inner: usize = shape[at + 1..].iter().product();
        let outer: usize = shape[..at].iter().product();
        let mut data = Vec::new();
        for o in 0..outer {
            for env in &envs {
                data.extend_from_slice(&env.inputs[i].data[o * inner..(o + 1) * inner]);
            }
        }
        whole.inputs[i] = Tensor { data, shape, ..whole.inputs[i].clone() };
    }
    for (i, p) in made.params.iter().enumerate().filter(|(i, p)| p.dims.len() > graph.params[*i].dims.len()) {
        let shape = p.dims.iter().map(|d| made.size(*d)).collect();
        let data = envs.iter().flat_map(|e| e.params[i].data.clone()).collect();
        whole.params[i] = Tensor { data, shape, ..whole.params[i].clone() };
    }
    // States that are made for the model are not read.
    for s in made.states.iter().skip(graph.states.len()) {
        let shape = s.dims.iter().map(|d| made.size(*d)).collect();
        whole.states.push(Tensor::filled(s.dtype, shape, 0.0));
    }
    let found = run(&made, &whole).map_err(|e| e.to_string())?;
    for (k, (o, values)) in graph.outputs.iter().zip(&found).enumerate() {
        let own = matches!(o.kind, OutputKind::Param(_));
        for (i, x) in values.data.iter().enumerate() {
            let each = wanted[0][k].data.len();
            let want = match own {
                true => wanted[i / each][k].data[i % each],
                false => wanted.iter().map(|w| w[k].data[i]).sum::<f64>() / count as f64,
            };
            let same = *x == want || x.is_nan() && want.is_nan() || (x - want).abs() <= 1e-9 * want.abs().max(1.0);
            if !same {
                return Err(format!("output {k} at {i}: {x}, alone {want}\n{}", partita::ir::print::print(&graph)));
            }
        }
    }
    Ok(Some(()))
}

#[test]
fn random_programs_compute_the_same_as_replicas() {
    let count = std::env::var("CASES").ok().and_then(|c| c.parse().ok()).unwrap_or(400);
    let from = std::env::var("FROM").ok().and_then(|c| c.parse().ok()).unwrap_or(0);
    let (mut ran, mut wrong) = (0, Vec::new());
    for seed in from..from + count {
        match std::panic::catch_unwind(|| one(seed)) {
            Ok(Ok(done)) => ran += u64::from(done.is_some()),
            Ok(Err(why)) => wrong.push(format!("seed {seed}: {why}")),
            Err(_) => wrong.push(format!("seed {seed}: it panics")),
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong[..wrong.len().min(4)].join("\n"));
    assert!(ran * 3 > count, "only {ran} of {count} programs ran");
}
