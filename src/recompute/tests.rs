//! Values that policies drop, and what stands for them, in graphs as text.

use super::*;
use crate::interp;
use crate::ir::{parse::parse, print::print, verify::verify};
use crate::kernel::tests::{compare, graphs};
use crate::source::FileId;
use crate::types::DType;

fn after(text: &str, what: What, keep_collectives: bool) -> String {
    let mut graph = parse(text).unwrap();
    verify(&graph).unwrap();
    let span = Span::new(FileId(0), 0, 0);
    let origins = recompute(&mut graph, &Policy { what, keep_collectives, span });
    verify(&graph).unwrap();
    assert_eq!(origins.len(), graph.ops.len());
    print(&graph)
}

/// The operations of a program by their words, with the pass of each that is not of the forward pass.
fn words(text: &str) -> Vec<String> {
    let word = |l: &str| {
        let head = l.split_once(" = ")?.1.split(['(', '[', ' ']).next()?.to_string();
        let note = l.split_once("// ").map_or("", |n| n.1);
        let pass = note.split(' ').find(|w| ["again", "backward"].contains(w)).map(|p| format!(" {p}"));
        l.trim_start().starts_with('%').then(|| head + &pass.unwrap_or_default())
    };
    text.lines().filter_map(word).collect()
}

/// Two layers, each with a draw of its own and with something that its backward pass reads.
const LAYERS: &str = "dim a = 2
scope 1 block.0 Block in 0
scope 2 block.0.inner Inner in 1
scope 3 block.1 Block in 0
param 0 w: f32[a]
input 0 x: f32[a]
%0 x: f32[a] = input[0 x]
%1: f32[a] = param[0 w]
%2: f32[a] = mul(%0, %1)  // @1 block.0
%3: bool[a] = random[bernoulli 0.5; stream = 7; a]  // @2 block.0.inner
%4: f32[a] = tanh(%2)  // @2 block.0.inner
%5 h: f32[a] = where(%3, %4, %2)  // @1 block.0
%6: f32[a] = exp(%5)  // @3 block.1
%7: f32[a] = mul(%6, %1)  // @3 block.1
%8: f32 = reduce_sum[a](%7)
%9: f32[a] = mul(%6, %7)  // @3 backward block.1
%10: f32[a] = where(%3, %9, %4)  // @1 backward block.0
%11: f32[a] = mul(%10, %2)  // @1 backward block.0
output loss loss = %8
output param[0] w = %11
";

#[test]
fn a_turn_keeps_what_enters_it() {
    let found = words(&after(LAYERS, What::Full, false));
    let want = [
        "input",
        "param",
        "mul",
        "random",
        "tanh",
        "where",
        "exp",
        "mul",
        "reduce_sum",
        "exp again",
        // What it takes the sum of leaves the last layer.
        "mul backward",
        "random again",
        "mul again",
        "tanh again",
        "where backward",
        "mul backward",
    ];
    assert_eq!(found, want);
}

#[test]
fn an_instance_keeps_what_leaves_it() {
    // The draw and the result of the layer are read outside.
    assert!(!after(LAYERS, What::Parts(vec![Part::Inside(vec![ScopeId(2)])]), false).contains("again"));
    // Of an inner instance and an outer one the outer one counts.
    let both = What::Parts(vec![Part::Inside(vec![ScopeId(1), ScopeId(2)])]);
    let found = words(&after(LAYERS, both, false));
    assert_eq!(found.iter().filter(|w| w.ends_with(" again")).count(), 3);
}

#[test]
fn a_named_value_is_made_again_with_what_comes_of_it_element_by_element() {
    let text = LAYERS.replace("%4: f32[a] = tanh", "%4 t: f32[a] = tanh");
    let named = |scope: u32| What::Parts(vec![Part::Named("t".into(), vec![ScopeId(scope)])]);
    let found = words(&after(&text, named(2), false));
    let again: Vec<&String> = found.iter().filter(|w| w.ends_with(" again")).collect();
    assert_eq!(again, ["tanh again", "where again", "exp again", "mul again"]);
    assert!(!after(&text, named(1), false).contains("again"));
}

/// What leads to a value alone would be kept in its place.
#[test]
fn a_named_value_is_made_again_from_the_last_product() {
    let text = "dim a = 2
scope 1 block.0 Block in 0
param 0 w: f32[a]
input 0 x: f32[a]
%0 x: f32[a] = input[0 x]
%1: f32[a] = param[0 w]
%2: f32[a] = exp(%0)  // @1 block.0
%3: f32[a] = cumsum[a](%2)  // @1 block.0
%4: f32[a] = mul(%3, %1)  // @1 block.0
%5: f32[a] = add(%4, %2)  // @1 block.0
%6 wide: f32[a] = add(%5, %4)  // @1 block.0
%7: f32 = reduce_sum[a](%6)
%8: f32[a] = mul(%6, %3)  // @1 backward block.0
output loss loss = %7
output param[0] w = %8
";
    let found = words(&after(text, What::Parts(vec![Part::Named("wide".into(), vec![ScopeId(1)])]), false));
    let again: Vec<&str> = found.iter().filter_map(|w| w.strip_suffix(" again")).collect();
    // %2 is read by the sums, too.
    assert_eq!(again, ["cumsum", "mul", "add", "add"]);
}

/// Two ranks: a value in parts is gathered, and summed.
const RANKS: &str = "axis tp = 2
dim a = 4
dim a.tp = 2 of 4 by tp
scope 1 block.0 Block in 0
param 0 w: f32[a]
input 0 x: f32[a.tp]
%0 x: f32[a.tp] = input[0 x]
%1: f32[a] = param[0 w]
%2: f32[a.tp] = exp(%0)  // @1 block.0
%3: f32[a] = collective[all_gather tp; a.tp -> a](%2)  // @1 block.0
%4: f32[a] = mul(%3, %1)  // @1 block.0
%5: f32[a] = tanh(%4)  // @1 block.0
%6: f32 = reduce_sum[a](%5)
%7: f32[a] = mul(%5, %3)  // @1 backward block.0
output loss loss = %6
output param[0] w = %7
";

#[test]
fn exchanges_are_repeated_or_kept() {
    let again = |what: What, keep: bool| -> Vec<String> {
        words(&after(RANKS, what, keep))
            .into_iter()
            .filter_map(|w| w.strip_suffix(" again").map(str::to_string))
            .collect()
    };
    // The last result leaves the layer.
    assert_eq!(again(What::Full, false), ["exp", "collective"]);
    assert_eq!(again(What::Full, true), Vec::<String>::new());
    assert_eq!(again(What::Gathers, false), ["collective"]);
}

#[test]
fn loops_are_repeated_with_their_bodies() {
    let text = "dim t = 3
scope 1 block.0 Block in 0
input 0 x: f32[t]
%0 x: f32[t] = input[0 x]
%1: f32 = constant[1.0]
%2: f32, %3: f32[t] = loop[t](%1; %0) {  // @1 block.0
  params(%4: int, %5: f32, %6: f32[t])
  %7: f32 = gather[t; error](%6, %4)  // @1 block.0
  %8: f32 = mul(%5, %7)  // @1 block.0
  results(%8; %5)
}
%9: f32 = exp(%2)  // @1 block.0
%10: f32[t] = mul(%3, %9)  // @1 backward block.0
%11: f32 = tanh(%9)
output loss loss = %11
output value y = %10
";
    let found = after(text, What::Full, false);
    // The forward loop does not collect its carries any more.
    let loops: Vec<&str> = found.lines().filter(|l| l.contains("loop[t]")).collect();
    assert_eq!(loops.len(), 2, "{found}");
    assert!(!loops[0].contains("f32[t]") && loops[1].contains("again"), "{found}");
    assert_eq!(found.matches("mul(").count(), 3);
}

/// Programs of all operations, of which the later part is the backward pass, with values dropped by chance.
#[test]
fn random_programs_compute_the_same_whatever_is_dropped() {
    let mut repeated = 0;
    for seed in 0..200 {
        let mut case = graphs::random_case(seed, DType::F64, 16, &[]);
        let mut rng = graphs::Rng(seed ^ 0xd4);
        for block in case.graph.blocks.clone() {
            let late = block.ops.len() * (3 + seed as usize % 5) / 10;
            for id in &block.ops[late..] {
                case.graph.ops[id.index()].phase = Phase::Backward;
            }
        }
        let wanted = interp::run(&case.graph, &case.env);
        let mut dropped = vec![false; case.graph.values.len()];
        for op in case.graph.ops.iter().filter(|op| op.phase == Phase::Forward && rng.below(2) == 0) {
            op.results.iter().for_each(|r| dropped[r.index()] = true);
        }
        let origins = repeat(&mut case.graph, &dropped);
        verify(&case.graph).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", print(&case.graph)));
        assert_eq!(origins.len(), case.graph.ops.len());
        repeated += case.graph.ops.iter().filter(|op| op.again).count();
        if let Ok(wanted) = wanted {
            let found = interp::run(&case.graph, &case.env).expect("it runs as before");
            let bits = |t: &interp::Tensor| t.data.iter().map(|x| x.to_bits()).collect::<Vec<u64>>();
            let same = wanted.iter().map(bits).eq(found.iter().map(bits));
            assert!(same, "seed {seed}:\n{}", print(&case.graph));
            compare(seed, &case, &crate::kernel::Options::default(), |_| {});
        }
    }
    assert!(repeated > 300, "{repeated}");
}
