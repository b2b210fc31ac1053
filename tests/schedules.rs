//! Tables of pipeline schedules: every one of them can be run, and takes the time and the memory that its authors' formulas say.

use partita::schedule::check::check;
use partita::schedule::{Costs, Schedule, Simulation, Table, simulate};

fn table(s: &Schedule, p: usize, m: usize) -> Table {
    let stages = s.stages(p, 0, None).expect("a schedule of its own");
    s.table(p, m, &Costs::unit(stages), &|_| Err("no files".into())).unwrap_or_else(|e| panic!("{s} {p} {m}: {e:?}"))
}

fn built_in() -> Vec<Schedule> {
    let mut all = vec![Schedule::GPipe, Schedule::OneFOneB];
    for v in 1..=4 {
        all.extend([Schedule::Interleaved(v), Schedule::LoopedBfs(v)]);
    }
    all.extend([Schedule::ZbH1, Schedule::ZbH2, Schedule::ZbV, Schedule::VHalf, Schedule::VMin]);
    all.extend([Schedule::DualPipe, Schedule::DualPipeV]);
    all
}

fn simulated(s: &Schedule, p: usize, m: usize) -> Simulation {
    let t = table(s, p, m);
    simulate(&t, &Costs::unit(t.stages)).unwrap_or_else(|e| panic!("{s} {p} {m}: {}", e.message(&t)))
}

#[test]
fn every_table_can_be_run() {
    for s in built_in() {
        for p in 1..=8 {
            for m in 1..=33 {
                if s.refuses(p, m).is_some() {
                    continue;
                }
                let t = table(&s, p, m);
                let found = check(&t);
                assert!(found.is_empty(), "{s} {p} {m}: {}", found[0].message(&t));
                simulated(&s, p, m);
            }
        }
    }
}

/// Idle time of every rank together, per rank, in units.
fn idle(s: &Schedule, x: &Simulation) -> f64 {
    let work: f64 = x.busy.iter().sum();
    let ranks = x.busy.len() as f64;
    assert!((x.bubble_fraction() - (1.0 - work / (ranks * x.makespan))).abs() < 1e-12, "{s}");
    x.makespan - work / ranks
}

/// The formulas of the papers, by ranks, microbatches and chunks a rank: idle units of a rank from the beginning of the step to its end, and
/// the activations of stages that a rank keeps at most. Papers that count each rank from its first to its last action call a schedule without
/// idle time that has `p - 1` units here: the last rank cannot begin before.
#[test]
fn time_and_memory_are_those_of_the_formulas() {
    for p in 2..=8usize {
        for m in 1..=32usize {
            let (pf, mf) = (p as f64, m as f64);
            // The share of time that is idle.
            let share = |idle: f64, work: f64| idle / (work + idle);
            let run = |s: Schedule| {
                let x = simulated(&s, p, m);
                (idle(&s, &x), x)
            };
            let peak = |x: &Simulation| *x.peak_activations.iter().max().unwrap();
            for s in [Schedule::GPipe, Schedule::OneFOneB] {
                let (_, x) = run(s.clone());
                assert!((x.bubble_fraction() - (pf - 1.0) / (mf + pf - 1.0)).abs() < 1e-12, "{s} {p} {m}");
                for (rank, n) in x.peak_activations.iter().enumerate() {
                    let formula = if s == Schedule::GPipe { m } else { m.min(p - rank) };
                    assert_eq!(*n, formula, "{s} {p} {m} {rank}");
                }
            }
            for v in 1..=4usize {
                // The papers give this for whole rounds of microbatches; here it holds for any number of them.
                if m >= p {
                    let (gap, x) = run(Schedule::Interleaved(v as u64));
                    let work = (3 * v * m) as f64;
                    assert!((gap / work - (pf - 1.0) / (v * m) as f64).abs() < 1e-12, "interleaved({v}) {p} {m}");
                    // In units of a rank's whole layers: p (1 + (p - 1) / (p v)) microbatches.
                    let formula = if v == 1 { p } else { (v * p + p - 1).min(v * m) };
                    let more = if v == 1 { 0 } else { (v - 1) * (m.div_ceil(m / p) - p) };
                    assert!(peak(&x) <= (formula + more).min(v * m), "interleaved({v}) {p} {m}: {}", peak(&x));
                    assert!(m % p != 0 || peak(&x) == formula, "interleaved({v}) {p} {m}");
                }
                if m >= p {
                    let (gap, x) = run(Schedule::LoopedBfs(v as u64));
                    assert_eq!((gap, peak(&x)), (3.0 * (pf - 1.0), v * m), "looped_bfs({v}) {p} {m}");
                }
            }
            if m >= p {
                let (gap, x) = run(Schedule::ZbH1);
                assert_eq!((gap, peak(&x)), (pf - 1.0, p), "zb_h1 {p} {m}");
                assert!((x.bubble_fraction() - share(pf - 1.0, 3.0 * mf)).abs() < 1e-12);
            }
            // Also where there are fewer microbatches than the papers' forms need.
            if m >= p {
                for (s, most) in
                    [(Schedule::ZbH2, m.min(2 * p - 1)), (Schedule::ZbV, 2 * p), (Schedule::DualPipeV, 2 * p + 1)]
                {
                    let (gap, x) = run(s.clone());
                    assert!(gap == pf - 1.0 && peak(&x) <= most, "{s} {p} {m}: {gap}, {}", peak(&x));
                }
            }
            if m >= 2 * p - 1 {
                let (gap, x) = run(Schedule::ZbH2);
                assert_eq!((gap, peak(&x)), (pf - 1.0, 2 * p - 1), "zb_h2 {p} {m}");
                // No rank waits between its first action and its last: the papers' count.
                assert!((0..p).all(|r| x.span(r) == 3.0 * mf), "zb_h2 {p} {m}");
            }
            if m >= 2 * p {
                let (gap, x) = run(Schedule::ZbV);
                assert_eq!((gap, peak(&x)), (pf - 1.0, 2 * p), "zb_v {p} {m}");
                let (gap, x) = run(Schedule::DualPipeV);
                assert_eq!((gap, peak(&x)), (pf - 1.0, 2 * p + 1), "dualpipe_v {p} {m}");
            }
            if p % 2 == 0 && m % 2 == 0 && m >= 2 * p {
                // (p/2 - 1)(F&B + B - 3W) with F&B = F + B = 3 is what the authors name; ranks that do not wait for each other
                // at every slot take half of it, the time until the middle ranks have something to do.
                let (gap, x) = run(Schedule::DualPipe);
                assert_eq!((gap, peak(&x)), (pf / 2.0 - 1.0, p + 1), "dualpipe {p} {m}");
                assert!(gap <= (pf / 2.0 - 1.0) * 2.0);
            }
            // 1F1B over the same two chunks of a rank is idle for 6 (p - 1), and keeps 2 p activations of them.
            let (gap, x) = run(Schedule::VMin);
            assert_eq!(gap, 4.0 * pf - 5.0, "v_min {p} {m}");
            assert!(gap <= 6.0 * (pf - 1.0) * 2.0 / 3.0 && peak(&x) <= 2 * ((p + 4) / 3), "v_min {p} {m}");
            let (gap, x) = run(Schedule::VHalf);
            assert!(peak(&x) <= 2 * ((p + 2) / 2), "v_half {p} {m}");
            if m >= p.div_ceil(2) {
                assert!(gap <= 6.0 * (pf - 1.0) / 2.0, "v_half {p} {m}: {gap}");
            }
            if m > p / 2 {
                let formula = 3.0 * pf - if p == 2 || p % 2 == 1 { 4.0 } else { 5.0 };
                assert_eq!(gap, formula, "v_half {p} {m}");
            }
        }
    }
}

/// Fewer microbatches than stages.
#[test]
fn few_microbatches_go() {
    for m in [1, 2, 4, 5] {
        for s in built_in() {
            let x = simulated(&s, 4, m);
            if matches!(s, Schedule::GPipe | Schedule::OneFOneB) {
                assert!((x.bubble_fraction() - 3.0 / (m as f64 + 3.0)).abs() < 1e-12, "{s} {m}");
            } else {
                // No schedule is idler than one that does one microbatch after the other.
                assert!(x.bubble_fraction() <= 0.75 + 1e-12, "{s} {m}: {}", x.bubble_fraction());
            }
        }
    }
}

/// Name; ranks, microbatches, stages a rank; makespan; activations by rank.
type Row = (&'static str, [usize; 3], f64, &'static [usize]);

/// PyTorch 2.15's schedules, simulated in the same units.
const TORCH: &[Row] = &[
    ("gpipe", [4, 8, 1], 33.0, &[8; 4]),
    ("1f1b", [4, 8, 1], 33.0, &[4, 3, 2, 1]),
    ("looped_bfs(2)", [4, 8, 2], 57.0, &[16; 4]),
    ("interleaved(2)", [4, 8, 2], 57.0, &[11, 9, 7, 5]),
    ("interleaved(4)", [4, 8, 4], 105.0, &[19, 17, 15, 13]),
    ("zb_v", [4, 8, 2], 51.0, &[8; 4]),
    ("dualpipe_v", [4, 8, 2], 51.0, &[9; 4]),
    ("gpipe", [8, 32, 1], 117.0, &[32; 8]),
    ("1f1b", [8, 32, 1], 117.0, &[8, 7, 6, 5, 4, 3, 2, 1]),
    ("looped_bfs(2)", [8, 32, 2], 213.0, &[64; 8]),
    ("interleaved(2)", [8, 32, 2], 213.0, &[23, 21, 19, 17, 15, 13, 11, 9]),
    ("interleaved(4)", [8, 32, 4], 405.0, &[39, 37, 35, 33, 31, 29, 27, 25]),
    ("zb_v", [8, 32, 2], 199.0, &[16; 8]),
    ("dualpipe_v", [8, 32, 2], 199.0, &[17; 8]),
];

#[test]
fn none_takes_more_than_in_torch() {
    for (name, [p, m, v], makespan, peaks) in TORCH {
        let s = built_in().into_iter().find(|s| s.to_string() == *name).expect("a schedule");
        assert_eq!(s.chunks(), Some(*v as u64));
        let x = simulated(&s, *p, *m);
        assert!(x.makespan <= *makespan, "{name} {p} {m}: {}", x.makespan);
        assert!(x.peak_activations.iter().zip(*peaks).all(|(a, b)| a <= b), "{name}: {:?}", x.peak_activations);
    }
}

/// Idle shares where the backward pass is divided 1.2 to 0.8; the second ones are of a schedule that is not built in, with the stages of `zb_v`.
const TORCH_DIVIDED: &[(&str, [usize; 2], f64)] = &[
    ("gpipe", [4, 8], 0.2727),
    ("1f1b", [4, 8], 0.2727),
    ("looped_bfs(2)", [4, 8], 0.1579),
    ("interleaved(2)", [4, 8], 0.1579),
    ("interleaved(4)", [4, 8], 0.0857),
    ("zb_v", [4, 8], 0.0698),
    ("zb_v", [4, 8], 0.0805),
    ("dualpipe_v", [4, 8], 0.0805),
    ("gpipe", [8, 32], 0.1795),
    ("1f1b", [8, 32], 0.1795),
    ("looped_bfs(2)", [8, 32], 0.0986),
    ("interleaved(2)", [8, 32], 0.0986),
    ("interleaved(4)", [8, 32], 0.0519),
    ("zb_v", [8, 32], 0.0419),
    ("zb_v", [8, 32], 0.0486),
    ("dualpipe_v", [8, 32], 0.0504),
];

#[test]
fn none_idles_more_than_in_torch_where_halves_differ() {
    for (name, [p, m], bubble) in TORCH_DIVIDED {
        let s = built_in().into_iter().find(|s| s.to_string() == *name).expect("a schedule");
        let t = table(&s, *p, *m);
        let mut costs = Costs::unit(t.stages);
        costs.stages.iter_mut().for_each(|s| (s.input, s.weight) = (1.2, 0.8));
        let x = simulate(&t, &costs).unwrap_or_else(|e| panic!("{s} {p} {m}: {}", e.message(&t)));
        assert!(x.bubble_fraction() <= bubble + 5e-5, "{name} {p} {m}: {}", x.bubble_fraction());
    }
}

/// Random costs that differ from stage to stage, transfers included.
fn costs(random: &mut impl FnMut() -> f64, stages: usize) -> Costs {
    let mut costs = Costs::unit(stages);
    let [input, weight, transfer, kept] = [0.5 + random(), 0.2 + random(), random() * 0.6, 0.3 + 0.7 * random()];
    for s in &mut costs.stages {
        let size = 0.7 + 0.6 * random();
        (s.forward, s.input, s.weight) = (size, size * input, size * weight);
        s.kept = s.held * kept;
    }
    costs.transfer.iter_mut().for_each(|t| *t = [transfer * random(), transfer]);
    costs
}

#[test]
fn what_is_found_is_never_worse_than_what_is_built_in() {
    let mut state = 5u64;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let none = |_: &str| Err("no files".to_string());
    let (mut better, mut refused) = (0, 0);
    for round in 0..300 {
        let (p, v, m) = (1 + round % 5, 1 + round / 5 % 3, 1 + (random() * 12.0) as usize);
        let mut costs = costs(&mut random, p * v);
        costs.cap = [None, Some((0.3 + 2.0 * random()) * (p * v) as f64)][round % 2];
        let limit = partita::schedule::cap(p, &costs) * (1.0 + 1e-9);
        let rivals: Vec<(String, f64)> = built_in()
            .into_iter()
            .filter(|s| s.stages(p, 0, None) == Some(p * v) && *s != Schedule::DualPipe)
            .map(|s| (s.to_string(), simulate(&table(&s, p, m), &costs).expect("a table that can be run")))
            .filter(|(_, x)| x.peak_memory.iter().all(|b| *b <= limit))
            .map(|(s, x)| (s, x.makespan))
            .collect();
        let best = rivals.iter().map(|r| r.1).fold(f64::INFINITY, f64::min);
        let found = match Schedule::Auto.table(p, m, &costs, &none) {
            Ok(t) => t,
            Err(e) => {
                assert!(rivals.is_empty(), "{rivals:?} {e:?}");
                refused += 1;
                continue;
            }
        };
        assert_eq!(check(&found), []);
        let x = simulate(&found, &costs).expect("a table that can be run");
        assert!(x.peak_memory.iter().all(|b| *b <= limit), "{:?} {limit}", x.peak_memory);
        assert!(x.makespan <= best * (1.0 + 1e-12), "{} {rivals:?}", x.makespan);
        assert!(Schedule::Auto.table(p, m, &costs, &none) == Ok(found), "another table for the same question");
        better += usize::from(x.makespan < best * 0.99 && best.is_finite());
    }
    println!("better by a hundredth in {better} of 300, impossible in {refused}");
    assert!(better > 60 && refused > 5 && refused < 100, "{better} {refused}");
}

/// Below one microbatch's activations nothing runs, and the answer says what the least is.
#[test]
fn a_cap_that_is_too_low_is_refused() {
    let costs = Costs { cap: Some(1.5), ..Costs::unit(4) };
    let e = Schedule::Auto.table(2, 4, &costs, &|_| Err(String::new())).expect_err("two stages a rank");
    let message = format!("{:?}", e.fault);
    assert!(message.contains("1.500") && message.contains("2.000"), "{message}");
}
