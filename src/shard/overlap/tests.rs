//! Where exchanges begin and are waited for, seen in the order of operations.

use super::*;
use crate::ir::parse::parse;
use crate::ir::verify;

/// A graph with its operations in order, each by the number of its first result.
fn ordered(text: &str) -> (Graph, Vec<u32>) {
    let mut g = parse(text).unwrap_or_else(|e| panic!("{e}"));
    overlap(&mut g);
    verify::verify(&g).unwrap_or_else(|e| panic!("{e}"));
    let order = g.block(ENTRY).ops.iter().map(|op| g.op(*op).results[0].0).collect();
    (g, order)
}

fn bucket(g: &Graph, v: u32) -> u32 {
    exchange(g, g.def(v)).expect("an exchange").bucket
}

impl Graph {
    /// What makes a value.
    fn def(&self, v: u32) -> OpId {
        match self.value(ValueId(v)).def {
            Def::Op(op, _) => op,
            Def::BlockParam(_) => panic!("%{v} is a parameter of a block"),
        }
    }
}

/// Three gradients of `n` x `n` elements, each a product with what came before, reduced and added to a parameter in the end.
fn backward(n: usize) -> String {
    let mut text = format!("axis dp = 2\ndim a = {n}\ndim b = {n}\ndim k = {n}\n");
    for i in 0..3 {
        text += &format!("param {i} p{i}: f32[a, b]\n");
    }
    text += "input 0 x: f32[a, k]\ninput 1 y: f32[k, b]\n%0: f32[a, k] = input[0 x]\n%1: f32[k, b] = input[1 y]\n";
    for i in 0..3 {
        let v = 2 + 2 * i;
        text += &format!("%{v}: f32[a, b] = dot[k](%0, %1) // backward\n");
        text += &format!("%{}: f32[a, b] = collective[all_reduce dp; sum dp; ](%{v}) // backward\n", v + 1);
    }
    for i in 0..3 {
        let (g, p) = (3 + 2 * i, 8 + 2 * i);
        text += &format!("%{p}: f32[a, b] = param[{i} p{i}] // update\n");
        text += &format!("%{}: f32[a, b] = sub(%{p}, %{g}) // update\n", p + 1);
    }
    for i in 0..3 {
        text += &format!("output param[{i}] p{i} = %{}\n", 9 + 2 * i);
    }
    text
}

#[test]
fn small_gradients_are_reduced_in_one_bucket_behind_the_backward_pass() {
    let (g, order) = ordered(&backward(8));
    let place = |v: u32| order.iter().position(|x| *x == v).unwrap();
    let buckets = [3, 5, 7].map(|v| bucket(&g, v));
    assert!(buckets[0] > 0 && buckets.iter().all(|b| *b == buckets[0]), "{buckets:?}");
    for update in [9, 11, 13] {
        assert!(place(update) > place(7), "{order:?}");
    }
    let over = overlapped(&g);
    assert_eq!([3, 5, 7].map(|v| over[g.def(v).index()]), [true, true, false]);
}

#[test]
fn large_gradients_are_waited_for_when_the_next_is_there() {
    // Each of 9 MiB.
    let (g, order) = ordered(&backward(1536));
    let place = |v: u32| order.iter().position(|x| *x == v).unwrap();
    let buckets = [3, 5, 7].map(|v| bucket(&g, v));
    assert!(buckets[0] != buckets[1] && buckets[1] != buckets[2], "{buckets:?}");
    // The product of the next one stands between an exchange and its use, and no further one.
    assert!(place(3) < place(4) && place(5) < place(9) && place(9) < place(6), "{order:?}");
    assert!(place(7) < place(11) && place(11) < place(13), "{order:?}");
    let over = overlapped(&g);
    assert_eq!([3, 5, 7].map(|v| over[g.def(v).index()]), [true, true, false]);
}

#[test]
fn what_is_used_at_once_waits_for_nothing_else() {
    let text = "axis tp = 2\ndim a = 4\ndim b = 4\ndim k = 4\ninput 0 x: f32[a, k]\ninput 1 y: f32[k, b]\n\
                %0: f32[a, k] = input[0 x]\n%1: f32[k, b] = input[1 y]\n%2: f32[a, b] = dot[k](%0, %1)\n\
                %3: f32[a, b] = collective[all_reduce tp; sum tp; ](%2)\n%4: f32[a] = reduce_sum[b](%3)\noutput value l = %4\n";
    let (g, order) = ordered(text);
    assert_eq!(order, [0, 1, 2, 3, 4]);
    assert_eq!((bucket(&g, 3), overlapped(&g)[g.def(3).index()]), (0, false));
}

#[test]
fn parameters_are_gathered_one_layer_ahead() {
    let mut text = "axis dp = 2\ndim a = 4\ndim b = 4\ndim k = 4\ndim part = 2 of 4 by dp\n".to_string();
    for i in 0..4 {
        text += &format!("scope {} block.{i} Block\n", i + 1);
    }
    for i in 0..4 {
        text += &format!("param {i} block.{i}.w: f32[part, b]\n");
    }
    text += "input 0 x: f32[k, a]\n%0: f32[k, a] = input[0 x]\n";
    for i in 0..4u32 {
        let (v, x) = (1 + 4 * i, if i == 0 { 0 } else { 4 * i });
        let s = i + 1;
        text += &format!("%{v}: f32[part, b] = param[{i} block.{i}.w] // @{s}\n");
        text += &format!("%{}: f32[a, b] = collective[all_gather dp; part -> a](%{v}) // @{s}\n", v + 1);
        text += &format!("%{}: f32[k, b] = dot[a](%{x}, %{}) // @{s}\n", v + 2, v + 1);
        text += &format!("%{}: f32[k, a] = reshape[(b) -> (a)](%{}) // @{s}\n", v + 3, v + 2);
    }
    text += "output value y = %16\n";
    let (g, order) = ordered(&text);
    let place = |v: u32| order.iter().position(|x| *x == v).unwrap();
    // Layer 2's begins where layer 1 begins, behind layer 0's product and before layer 1's.
    assert!(place(10) > place(3) && place(10) < place(7), "{order:?}");
    assert!(place(14) > place(7) && place(14) < place(11), "{order:?}");
    let over = overlapped(&g);
    assert_eq!([6, 10, 14].map(|v| over[g.def(v).index()]), [true; 3]);
    assert_eq!(bucket(&g, 10), 0);
}
