//! Collectives among kernels, in loops, in training steps; failures; persistent arrays in parts.

use super::support::{self, both, gathered, graph, part, ranks};
use super::{A, B, by, units, zigzag};
use partita::interp::{Env, Tensor};
use partita::mesh::{Cut, Mesh};
use partita::program::{Action, Step};
use partita::runtime::exec::{Array, RunArgs};
use partita::types::DType;
use std::time::{Duration, Instant};

fn close(wanted: &[Vec<Tensor>], found: &[Vec<Tensor>], tolerance: f64) {
    for (rank, (wanted, found)) in wanted.iter().zip(found).enumerate() {
        for (n, (wanted, found)) in wanted.iter().zip(found).enumerate() {
            assert_eq!((wanted.dtype, &wanted.shape), (found.dtype, &found.shape));
            for (i, (w, f)) in wanted.data.iter().zip(&found.data).enumerate() {
                assert!((w - f).abs() <= tolerance * w.abs().max(1.0), "rank {rank} output {n} at {i}: {w} {f}");
            }
        }
    }
}

fn wave(seed: usize) -> impl Fn(&[usize]) -> f64 {
    move |index| {
        let n = index.iter().fold(seed, |n, i| n * 31 + i + 1);
        ((n * 37 % 101) as f64 / 50.0) - 1.0
    }
}

/// A step of training by samples that ranks share unevenly: 7 over dp = 3, the weights over tp = 2.
const STEP: &str = "axis dp = 3
axis tp = 2
dim batch = 3 of 7 by dp
dim in = 5
dim out = 2 of 4 by tp
dim whole = 4
param 0 w: f32[in, out]
state 0 m: f32[in, out] optimizer
input 0 x: f32[batch, in]
input 1 y: f32[batch, out]
%0: f32[in, out] = param[0 w]
%1: f32[in, out] = state[0 m]
%2: f32[batch, in] = input[0 x]
%3: f32[batch, out] = input[1 y]
%4: f32[batch, out] = dot[in](%2, %0)
%5: f32[batch, out] = sub(%4, %3)
%6: f32[batch, whole] = collective[all_gather tp; out -> whole](%5)
%7: int = coordinate[dp]
%8: int = constant[3.0]
%9: int = mul(%7, %8)
%10: int[batch] = iota[batch]
%11: int[batch] = add(%10, %9)
%12: int = constant[7.0]
%13: bool[batch] = lt(%11, %12)
%14: f32 = constant[0.0]
%15: f32[batch, whole] = square(%6)
%16: f32[batch, whole] = where(%13, %15, %14)
%17: f32 = reduce_sum[batch, whole](%16)
%18: f32 = collective[all_reduce dp; sum dp; ](%17)
%19: f32[batch, out] = where(%13, %5, %14)
%20: f32[in, out] = dot[batch](%2, %19)  // backward
%21: f32[in, out] = collective[all_reduce dp; sum dp; ](%20)  // backward
%22: f32 = constant[0.9]
%23: f32[in, out] = mul(%1, %22)  // update
%24: f32[in, out] = add(%23, %21)  // update
%25: f32 = constant[0.01]
%26: f32[in, out] = mul(%24, %25)  // update
%27: f32[in, out] = sub(%0, %26)  // update
output loss loss = %18
output param[0] w = %27
output state[0] m = %24
";

#[test]
fn a_step_of_training_on_two_axes() {
    let graph = graph(STEP);
    let mesh = graph.mesh.clone();
    let (batch, out) = (by(&[A]), by(&[B]));
    let env = |rank: usize| {
        let array = |dims: &[(usize, Cut)], seed| part(&mesh, rank, DType::F32, dims, 9.0, &wave(seed));
        Env {
            rank,
            params: vec![array(&[(5, Cut::new()), (4, out.clone())], 1)],
            states: vec![array(&[(5, Cut::new()), (4, out.clone())], 2)],
            inputs: vec![
                array(&[(7, batch.clone()), (5, Cut::new())], 3),
                array(&[(7, batch.clone()), (4, out.clone())], 4),
            ],
            ..Env::default()
        }
    };
    let envs: Vec<Env> = (0..6).map(env).collect();
    let (wanted, found) = both(&graph, &envs);
    close(&wanted, &found, 1e-5);
    // What is reduced is the same on all ranks that have it, bit for bit.
    (1..6).for_each(|r| assert_eq!(found[0][0], found[r][0]));
    [2, 4].into_iter().for_each(|r| assert_eq!(found[0][1..], found[r][1..]));
}

#[test]
fn operands_and_results_in_other_orders_and_inside_of_kernels() {
    // A transposed product, a value that would be computed where it is used, a view, and kernels that read the results.
    let text = "axis tp = 4
dim a = 6
dim b = 2 of 7 by tp
dim c = 7
dim k = 3
dim e = 2 of 6 by tp
input 0 x: f32[a, k]
input 1 w: f32[k, b]
%0: f32[a, k] = input[0 x]
%1: f32[k, b] = input[1 w]
%2: f32[b, a] = dot[k](%1, %0)
%3: f32[b, a] = tanh(%2)
%4: f32[c, a] = collective[all_gather tp; b -> c](%3)
%5: f32[a, b] = dot[k](%0, %1)
%6: f32[e, c] = collective[all_to_all tp; a -> e, b -> c](%5)
%7: f32[e, c] = exp(%6)
%8: f32[c] = reduce_sum[e](%7)
%9: f32[c] = collective[all_reduce tp; max tp; ](%8)
%10: f32[a, c] = mul(%4, %9)
%11: f32[a, c] = collective[all_reduce tp; sum tp; ](%10)
%12: f32[a] = reduce_max[c](%11)
%13: f32[e] = collective[slice; a -> e](%12)
%14: f32[e] = collective[reduce_scatter tp; sum tp; a -> e](%12)
%15: f32[e] = add(%13, %14)
output value y = %15
output value z = %4
output value u = %11
";
    let graph = graph(text);
    let env = |rank: usize| {
        let inputs = vec![
            part(&graph.mesh, rank, DType::F32, &[(6, Cut::new()), (3, Cut::new())], 0.0, &wave(5)),
            part(&graph.mesh, rank, DType::F32, &[(3, Cut::new()), (7, by(&[A]))], 0.0, &wave(6)),
        ];
        Env { rank, inputs, ..Env::default() }
    };
    let envs: Vec<Env> = (0..4).map(env).collect();
    let (wanted, found) = both(&graph, &envs);
    // Rank 3 holds nothing of e: its first output is not real there.
    close(&wanted[..3], &found[..3], 1e-5);
}

#[test]
fn collectives_in_loops() {
    // Each turn: a sum over ranks into a carry, a gathered row collected, and a collective of what was carried.
    let text = "axis dp = 3
dim t = 4
dim n = 2 of 5 by dp
dim all = 5
input 0 x: f32[t, n]
input 1 s: f32[all]
%0: f32[t, n] = input[0 x]
%1: f32[all] = input[1 s]
%2: f32[all], %3: f32[t, all] = loop[t](%1; %0) {
  params(%4: int, %5: f32[all], %6: f32[t, n])
  %7: f32[n] = gather[t; error](%6, %4)
  %8: f32[all] = collective[all_gather dp; n -> all](%7)
  %9: f32[all] = mul(%5, %8)
  %10: f32[all] = collective[all_reduce dp; sum dp; ](%9)
  %11: f32[all] = tanh(%10)
  results(%11; %8)
}
%12: f32[n] = collective[reduce_scatter dp; sum dp; all -> n](%2)
output value a = %2
output value b = %3
output value c = %12
";
    let graph = graph(text);
    let env = |rank: usize| {
        let x = part(&graph.mesh, rank, DType::F32, &[(4, Cut::new()), (5, by(&[A]))], 3.0, &wave(7));
        let s = part(&graph.mesh, rank, DType::F32, &[(5, Cut::new())], 0.0, &wave(8));
        Env { rank, inputs: vec![x, s], ..Env::default() }
    };
    let envs: Vec<Env> = (0..3).map(env).collect();
    let (wanted, found) = both(&graph, &envs);
    close(&wanted, &found, 1e-5);
}

#[test]
fn draws_are_those_of_one_device() {
    let dists = ["uniform -1.0 2.0", "normal 0.5", "trunc_normal 0.5", "randint 7", "bernoulli 0.3"];
    let cuts: [(usize, usize, &str, &str, Cut, Cut); 4] = [
        (4, 2, "3 of 11 by a", "5", by(&[A]), Cut::new()),
        (3, 3, "4 of 11 by b", "2 of 5 by a", by(&[B]), by(&[A])),
        (4, 2, "2 of 11 by a, b", "5", by(&[A, B]), Cut::new()),
        (3, 2, "4 of 11 by a zigzag", "3 of 5 by b", zigzag(A), by(&[B])),
    ];
    for (ranks_a, ranks_b, x, y, cut_x, cut_y) in &cuts {
        for dist in dists {
            let dtype = match dist.split(' ').next() {
                Some("randint") => DType::I32,
                Some("bernoulli") => DType::Bool,
                _ => DType::F32,
            };
            // Alone; in a loop, by its turn; and within a kernel that reads something else.
            let join = if dtype == DType::Bool { "or" } else { "max" };
            let body = |tail: &str| {
                format!(
                    "{tail}dim t = 2\ninput 0 i: {dtype}[y, x]\n%0: {dtype}[y, x] = input[0 i]\n\
                     %1: {dtype}[x, y] = random[{dist}; stream = 11; x, y]\n\
                     %2: {dtype}[y, x] = {join}(%0, %1)\n\
                     %3: {dtype}[t, x, y] = loop[t](; ) {{\nparams(%4: int)\n\
                     %5: {dtype}[x, y] = random[{dist}; stream = 12; y, x](%4)\nresults(; %5)\n}}\n\
                     output value a = %1\noutput value b = %2\noutput value c = %3\n"
                )
            };
            let many = body(&format!("axis a = {ranks_a}\naxis b = {ranks_b}\ndim x = {x}\ndim y = {y}\n"));
            let one = body("dim x = 11\ndim y = 5\n");
            check_draws(&many, &one, dtype, cut_x, cut_y);
        }
    }
}

fn check_draws(many: &str, one: &str, dtype: DType, cut_x: &Cut, cut_y: &Cut) {
    let (many, one) = (graph(many), graph(one));
    let mesh = many.mesh.clone();
    let element = |index: &[usize]| if dtype == DType::Bool { 0.0 } else { wave(9)(index).round() };
    let array = |mesh: &Mesh, rank, cuts: [&Cut; 2]| {
        part(mesh, rank, dtype, &[(5, cuts[0].clone()), (11, cuts[1].clone())], 0.0, &element)
    };
    let env = |rank: usize, input| Env { rank, seed: 99, step: 3, inputs: vec![input], ..Env::default() };
    let none = Cut::new();
    let (_, alone) = both(&one, &[env(0, array(&Mesh::default(), 0, [&none, &none]))]);
    let envs: Vec<Env> = (0..mesh.ranks()).map(|r| env(r, array(&mesh, r, [cut_y, cut_x]))).collect();
    let (_, found) = both(&many, &envs);
    for (rank, found) in found.iter().enumerate() {
        let [a, b, c] = &alone[0][..] else { panic!("three outputs") };
        let (x, y) = ((11, cut_x.clone()), (5, cut_y.clone()));
        let expect = |dims: &[(usize, Cut)], whole: &Tensor| {
            let at = |index: &[usize]| whole.data[index.iter().zip(&whole.shape).fold(0, |n, (i, s)| n * s + i)];
            part(&mesh, rank, dtype, dims, f64::NAN, &at)
        };
        let t = (2, Cut::new());
        let wanted = [
            expect(&[x.clone(), y.clone()], a),
            expect(&[y.clone(), x.clone()], b),
            expect(&[t, x.clone(), y.clone()], c),
        ];
        let real = part(&mesh, rank, DType::F32, &[x, y], 0.0, &|_| 1.0).data;
        for (n, (wanted, found)) in wanted.iter().zip(found).enumerate() {
            assert_eq!(wanted.shape, found.shape);
            let of = |i: usize| match n {
                0 => real[i],
                1 => real[i % wanted.shape[1] * wanted.shape[0] + i / wanted.shape[1]],
                _ => real[i % real.len()],
            };
            for i in (0..wanted.data.len()).filter(|i| of(*i) == 1.0) {
                assert_eq!(wanted.data[i].to_bits(), found.data[i].to_bits(), "rank {rank}, output {n} at {i}");
            }
        }
    }
}

#[test]
fn arrays_are_cut_and_put_together_again() {
    let cuts: Vec<[Cut; 3]> = vec![
        [by(&[A]), Cut::new(), by(&[B])],
        [by(&[B, A]), Cut::new(), Cut::new()],
        [Cut::new(), zigzag(B), by(&[A])],
        [units(A, 2), units(B, 3), Cut::new()],
        [Cut::new(), Cut::new(), Cut::new()],
    ];
    let mesh = Mesh::of(&[("dp", 2), ("tp", 3)]);
    let extents = [7, 10, 3];
    for cuts in cuts {
        let mut text = "axis dp = 2\naxis tp = 3\n".to_string();
        for ((name, n), cut) in ["a", "b", "c"].iter().zip(extents).zip(&cuts) {
            let size = partita::mesh::cut::nominal(&mesh, cut, n);
            let entries: Vec<String> = cut
                .iter()
                .map(|e| {
                    let zigzag = if e.order == partita::mesh::Order::Zigzag { " zigzag" } else { "" };
                    format!("{} * {}{zigzag}", mesh.name(e.atom), e.unit)
                })
                .collect();
            let of = if cut.is_empty() { String::new() } else { format!(" of {n} by {}", entries.join(", ")) };
            text += &format!("dim {name} = {size}{of}\n");
        }
        text += "param 0 w: bf16[a, b, c]\n%0: bf16[a, b, c] = param[0 w]\n%1: bf16[a, b, c] = neg(%0)\n\
                 output param[0] w = %1\n";
        let mut all = ranks(&graph(&text), 1);
        let whole: Vec<f64> = (0..210).map(f64::from).collect();
        let bytes = support::pack(DType::BF16, &whole);
        all.scatter(Array::Param(0), &bytes);
        let dims: Vec<(usize, Cut)> = extents.into_iter().zip(cuts.clone()).collect();
        for rank in 0..6 {
            let at = |index: &[usize]| whole[(index[0] * 10 + index[1]) * 3 + index[2]];
            let wanted = part(&mesh, rank, DType::BF16, &dims, 0.0, &at);
            let found = support::unpack(DType::BF16, all.executor(rank).param(0));
            assert_eq!(found, wanted.data, "rank {rank}");
        }
        assert_eq!(gathered(&all, Array::Param(0)), whole);
        all.run(0, RunArgs::default()).unwrap();
        let negated: Vec<f64> = whole.iter().map(|x| -x).collect();
        assert_eq!(gathered(&all, Array::Param(0)), negated);
        // Of ranks that hold the same the first one counts.
        if cuts.iter().all(Cut::is_empty) {
            all.executor(1).param_mut(0).fill(0xff);
            assert_eq!(gathered(&all, Array::Param(0)), negated);
        }
    }
}

#[test]
fn a_sum_over_ranks_takes_the_place_of_its_parts() {
    let text = |dims: &str, over: &str| {
        format!(
            "axis dp = 2\naxis tp = 2\n{dims}input 0 x: f32[n]\n%0: f32[n] = input[0 x]\n%1: f32[n] = tanh(%0)\n\
             %2: f32[n] = collective[all_reduce {over}; sum dp; ](%1)\n%3: f32[n] = collective[all_reduce tp; max tp; ](%2)\n\
             output value y = %3\n"
        )
    };
    let in_place = |text: &str| {
        let graph = graph(text);
        let input = |rank: usize| (0..999).map(|i| ((rank / 2 * 7 + i * 3) % 13) as f64).collect();
        let env = |rank| Env { rank, inputs: vec![Tensor::new(DType::F32, vec![999], input(rank))], ..Env::default() };
        let envs: Vec<Env> = (0..4).map(env).collect();
        let (wanted, found) = both(&graph, &envs);
        close(&wanted, &found, 1e-5);
        let all = ranks(&graph, 1);
        let steps = &all.program().routines[0].steps;
        let in_place = |s: &&Step| matches!(&s.action, Action::Collective(c) if c.from == c.to);
        steps.iter().filter(in_place).count()
    };
    // The second one's result is read after the run and has a place of its own.
    assert_eq!(in_place(&text("dim n = 999\n", "dp")), 1);
    // Who has a wider group than it reduces over may read more than parts: there it stays apart.
    assert_eq!(in_place(&text("dim n = 999\n", "dp, tp")), 0);
}

#[test]
fn outputs_are_put_together() {
    let text = "axis dp = 2\naxis tp = 2\ndim n = 3 of 5 by dp\ndim m = 2\ninput 0 x: f32[m, n]\n\
                %0: f32[m, n] = input[0 x]\n%1: f32[m, n] = neg(%0)\noutput value y = %1\n";
    let mut all = ranks(&graph(text), 1);
    let whole: Vec<f64> = (0..10).map(f64::from).collect();
    all.scatter(Array::Input(0), &support::pack(DType::F32, &whole));
    all.run(0, RunArgs::default()).unwrap();
    let mut bytes = Vec::new();
    assert_eq!(all.output(0, 0, &mut bytes), [2, 5]);
    assert_eq!(support::unpack(DType::F32, &bytes), whole.iter().map(|x| -x).collect::<Vec<_>>());
    assert_eq!(all.shape(Array::Input(0)), [2, 5]);
}

#[test]
fn an_index_out_of_range_on_one_rank_ends_all() {
    let text = "axis dp = 4
dim n = 5
dim k = 3
input 0 x: f32[n]
input 1 i: int[k]
%0: f32[n] = input[0 x]
%1: int[k] = input[1 i]
%2: f32[n] = collective[all_reduce dp; sum dp; ](%0)
%3: f32[k] = gather[n; error](%2, %1)
%4: f32[k] = collective[all_reduce dp; sum dp; ](%3)
output value y = %4
";
    let mut all = ranks(&graph(text), 2);
    for bad in [2, 0, 3, 1] {
        for rank in 0..4 {
            let index = if rank == bad { [0, 9, 1] } else { [0, 1, 2] };
            let bytes: Vec<u8> = index.into_iter().flat_map(i32::to_ne_bytes).collect();
            all.executor(rank).input_mut(1).copy_from_slice(&bytes);
        }
        let start = Instant::now();
        let e = all.run(0, RunArgs::default()).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!((e.code, e.message.as_str()), ("E0809", "index 9 is out of range for dim `n` of size 5"));
        assert_eq!(e.notes[0], format!("on rank {bad} (dp = {bad})"));
        assert!(
            e.notes[1].contains(&format!("rank {bad} (dp = {bad}) failed while others were at `all_reduce`")),
            "{e}"
        );
    }
    // Good data again: all is as before.
    for rank in 0..4 {
        let bytes: Vec<u8> = [0i32, 1, 2].into_iter().flat_map(i32::to_ne_bytes).collect();
        all.executor(rank).input_mut(1).copy_from_slice(&bytes);
    }
    all.run(0, RunArgs::default()).unwrap();
}

#[test]
fn sixteen_ranks_exchange_for_long_in_little_memory() {
    // Temporaries take each other's places from step to step, so that a rank which ran ahead would spoil what others read.
    let mut text =
        "axis dp = 4\naxis tp = 4\ndim n = 40\ndim m = 10 of 40 by tp\ndim l = 10 of 40 by dp\ninput 0 x: int[n]\n\
                    %0: int[n] = input[0 x]\n%1: int = constant[1000.0]\n"
            .to_string();
    let mut v = 0;
    for i in 0..12 {
        let (axis, part) = if i % 2 == 0 { ("tp", "m") } else { ("dp", "l") };
        let n = 2 + 3 * i;
        text += &format!("%{n}: int[{part}] = collective[reduce_scatter {axis}; sum {axis}; n -> {part}](%{v})\n");
        text += &format!("%{}: int[{part}] = rem(%{n}, %1)\n", n + 1);
        text += &format!("%{}: int[n] = collective[all_gather {axis}; {part} -> n](%{})\n", n + 2, n + 1);
        v = n + 2;
    }
    text += &format!("output value y = %{v}\n");
    let graph = graph(&text);
    let env = |rank: usize| {
        let data = (0..40).map(|i| ((rank * 41 + i * 7) % 100) as f64).collect();
        Env { rank, inputs: vec![Tensor::new(DType::I32, vec![40], data)], ..Env::default() }
    };
    let envs: Vec<Env> = (0..16).map(env).collect();
    let (wanted, found) = both(&graph, &envs);
    assert_eq!(wanted, found);
    let mut all = ranks(&graph, 2);
    support::feed(&all, &envs);
    for _ in 0..50 {
        all.run(0, RunArgs::default()).unwrap();
        assert_eq!(support::results(&all, &graph), found);
    }
}
