//! What ranks of a pipeline hold, and when: layers, tied tables, microbatches in flight (cases C9, A4 and G1).

use super::plans;
use partita::driver::Options;
use partita::driver::memory::{Needed, needed};
use partita::schedule::{Costs, Schedule, Work};
use std::collections::HashSet;

fn of(sizes: &str, plan: &str) -> Needed {
    let sizes = format!("seq = 6, vocab = 13, embed = 8, heads = 2, {sizes}");
    let (world, options) = plans::planned(&plans::gpt(&sizes, "adamw(lr = 1e-2)"), plan);
    plans::sound(plan, needed(&Options { threads: 1, ..options }, &world))
}

fn plan(ranks: usize, schedule: &str, microbatches: usize) -> String {
    format!("mesh pp = {ranks}\npipeline depth by pp {{ schedule = {schedule}, microbatches = {microbatches} }}")
}

/// C9: 30 layers over 4 ranks, 80 over 16 in two chunks, 40 over 8 in two: each layer is held by one rank, with all of its parameters, and
/// by no other.
#[test]
fn c9_every_layer_is_on_one_rank() {
    for (depth, ranks, schedule, chunks) in
        [(30, 4, "1f1b", 1), (80, 16, "interleaved(2)", 2), (40, 8, "interleaved(2)", 2), (15, 4, "zb_v", 2)]
    {
        let n = of(&format!("batch = 16, depth = {depth}"), &plan(ranks, schedule, 16));
        let mut held = vec![0; ranks];
        for layer in 0..depth {
            let begin = format!("block.{layer}.");
            let own: Vec<_> = n.program.params.iter().filter(|p| p.path.starts_with(&begin)).collect();
            assert_eq!(own.len(), 16, "{schedule}: parameters of layer {layer}");
            let on: HashSet<&[u32]> = own.iter().map(|p| p.on.as_slice()).collect();
            let ranks: Vec<&[u32]> = on.into_iter().collect();
            assert!(ranks.len() == 1 && ranks[0].len() == 1, "{schedule}: layer {layer} is on {ranks:?}");
            held[ranks[0][0] as usize] += 1;
        }
        assert_eq!(held.iter().sum::<usize>(), depth);
        // Table and head count as load: the ends may have less, the others differ by one a chunk at most.
        let middle = &held[1..ranks - 1];
        let [least, most] = [middle.iter().min(), middle.iter().max()].map(|n| n.copied().unwrap_or(0));
        assert!(least > 0 && most - least <= chunks, "{schedule}: {held:?}");
    }
}

/// A4: a tied table is held by the first and the last rank, and once where both of its uses are on one rank.
#[test]
fn a4_a_tied_table_is_where_it_is_used() {
    for (schedule, depth, wanted) in [
        ("1f1b", 2, &[0, 1][..]),
        ("gpipe", 2, &[0, 1]),
        ("interleaved(2)", 4, &[0, 1]),
        ("zb_v", 4, &[0]),
        ("v_min", 4, &[0]),
    ] {
        let n = of(&format!("batch = 4, depth = {depth}"), &plan(2, schedule, 4));
        let table = n.program.params.iter().find(|p| p.path == "wte.table").expect("a table");
        assert_eq!(table.on, wanted, "{schedule}");
    }
}

/// G1: with 1, 2, 4 and 5 microbatches over 4 ranks, as many are in flight as there are ranks from here to the last one, or microbatches.
#[test]
fn g1_fewer_microbatches_than_stages() {
    for m in [1, 2, 4, 5] {
        let n = of("batch = 20, depth = 4", &plan(4, "1f1b", m));
        let flying = |k: usize| {
            let train = plans::sound("", n.running(&n.stages[k], "train"));
            n.instants(&train).in_flight()
        };
        // Without a loop there is nothing to count.
        let found: Vec<usize> = (0..4).map(flying).collect();
        let wanted: Vec<usize> = (0..4).map(|k| m.min(4 - k)).collect();
        assert_eq!(found, wanted, "{m} microbatches");
    }
}

/// Of every schedule, as many microbatches are in flight on a rank as its list says: from the first forward action to the last backward
/// one.
#[test]
fn microbatches_in_flight_are_those_of_the_table() {
    let cases = [
        (Schedule::GPipe, "gpipe"),
        (Schedule::OneFOneB, "1f1b"),
        (Schedule::Interleaved(2), "interleaved(2)"),
        (Schedule::LoopedBfs(2), "looped_bfs(2)"),
        (Schedule::ZbH1, "zb_h1"),
        (Schedule::ZbV, "zb_v"),
        (Schedule::VMin, "v_min"),
    ];
    let (ranks, m) = (4, 8);
    for (schedule, word) in cases {
        let stages = schedule.stages(ranks, 0, None).expect("a schedule of its own");
        let n = of(&format!("batch = 8, depth = {stages}"), &plan(ranks, word, m));
        let table = schedule.table(ranks, m, &Costs::unit(stages), &|_| Err(String::new())).expect("a table");
        for (k, list) in table.ranks.iter().enumerate() {
            let train = plans::sound(word, n.running(&n.stages[k], "train"));
            let instants = n.instants(&train);
            // The same actions in the same order.
            let told: Vec<String> =
                list.iter().map(|a| format!("{}{}.{}", a.op.name(), a.stage, a.microbatch)).collect();
            let ran: Vec<String> = instants.moments.iter().map(|m| m.name()).filter(|n| told.contains(n)).collect();
            assert_eq!(ran, told, "{word}, rank {k}");
            let backward = |a: &&partita::schedule::Action| a.op != Work::F;
            let last =
                |m: usize| list.iter().rposition(|a| a.microbatch == m && backward(&a)).expect("a backward action");
            let first = |m: usize| list.iter().position(|a| a.microbatch == m).expect("a forward action");
            let now = |at: usize| (0..m).filter(|m| first(*m) <= at && at <= last(*m)).count();
            let most = (0..list.len()).map(now).max().unwrap_or(0);
            assert!(
                instants.in_flight() <= most && instants.in_flight() + 1 >= most,
                "{word}, rank {k}: {} of {most}",
                instants.in_flight()
            );
        }
    }
}
