//! What the usual moves send, and cases of other systems' faults.

use super::super::{Entry, Layout, Mesh, Order, Partial};
use super::{Cost, Kind, Step, cost, path};
use crate::types::ReduceKind;
use std::cmp::Ordering;

/// `layout(&mesh, &["a b", ""], "c")`: the first dim by a and b, sums over c.
fn layout(mesh: &Mesh, dims: &[&str], partial: &str) -> Layout {
    layout_by(mesh, dims, partial, ReduceKind::Sum)
}

fn layout_by(mesh: &Mesh, dims: &[&str], partial: &str, op: ReduceKind) -> Layout {
    let atoms = |names: &str| {
        let of = |name| mesh.atoms_of(mesh.axis(name).expect("an axis"));
        names.split_whitespace().flat_map(of).collect::<Vec<_>>()
    };
    Layout {
        dims: dims.iter().map(|d| atoms(d).into_iter().map(Entry::new).collect()).collect(),
        partial: atoms(partial).into_iter().map(|atom| Partial { atom, op }).collect(),
    }
}

/// Kinds, groups and bytes of a path, elements being of four bytes.
fn moves(mesh: &Mesh, shape: &[usize], from: &Layout, to: &Layout) -> Vec<(Kind, String, f64)> {
    let steps = path(mesh, shape, 4, from, to).expect("a path");
    steps.into_iter().map(|s: Step| (s.kind, mesh.names(&s.atoms).join(" "), s.bytes)).collect()
}

#[test]
fn bytes_are_those_of_rings() {
    let mesh = Mesh::of(&[("a", 4), ("b", 2)]);
    let shape = [16, 10];
    let whole = 16.0 * 10.0 * 4.0;
    let at = |dims: [&str; 2], partial| layout(&mesh, &dims, partial);
    let one = |from: Layout, to: Layout| match &moves(&mesh, &shape, &from, &to)[..] {
        [(kind, atoms, bytes)] => (*kind, atoms.clone(), *bytes),
        other => panic!("{other:?}"),
    };
    let is = |kind, atoms: &str, bytes| (kind, atoms.to_string(), bytes);
    assert_eq!(one(at(["", ""], "a"), at(["", ""], "")), is(Kind::AllReduce, "a", 2.0 * 0.75 * whole));
    assert_eq!(one(at(["", ""], "a b"), at(["", ""], "")), is(Kind::AllReduce, "a b", 2.0 * 7.0 / 8.0 * whole));
    assert_eq!(one(at(["", ""], "a"), at(["a", ""], "")), is(Kind::ReduceScatter, "a", 0.75 * whole));
    // Ten by four is three, three, three and one, and yet the mean is what it would be if it were even.
    assert_eq!(one(at(["", ""], "a"), at(["", "a"], "")), is(Kind::ReduceScatter, "a", 0.75 * whole));
    assert_eq!(one(at(["", "a"], ""), at(["", ""], "")), is(Kind::AllGather, "a", 0.75 * whole));
    assert_eq!(one(at(["b", "a"], ""), at(["b", ""], "")), is(Kind::AllGather, "a", 0.75 * whole / 2.0));
    assert_eq!(one(at(["b", "a"], ""), at(["", ""], "")), is(Kind::AllGather, "b a", 7.0 / 8.0 * whole));
    assert_eq!(one(at(["b", ""], ""), at(["", "b"], "")), is(Kind::AllToAll, "b", 0.5 * whole / 2.0));
    assert_eq!(one(at(["a", ""], ""), at(["", "a"], "")), is(Kind::AllToAll, "a", 0.75 * whole / 4.0));
    assert_eq!(one(at(["a", ""], "b"), at(["", "a"], "b")), is(Kind::AllToAll, "a", 0.75 * whole / 4.0));
    // Of eight blocks all but the first and the last are another's.
    assert_eq!(one(at(["a b", ""], ""), at(["b a", ""], "")), is(Kind::Permute, "a b", 6.0 / 8.0 * whole / 8.0));
    assert_eq!(one(at(["", ""], ""), at(["a", "b"], "")), is(Kind::Slice, "", 0.0));
    assert_eq!(one(at(["", ""], ""), at(["", ""], "a")), is(Kind::MakePartial, "", 0.0));
    assert_eq!(one(at(["a", ""], ""), at(["", ""], "a")), is(Kind::ShardToPartial, "", 0.0));
    assert_eq!(moves(&mesh, &shape, &at(["a", ""], "b"), &at(["a", ""], "b")), []);
}

#[test]
fn an_uneven_exchange_sends_what_is_lacking() {
    let mesh = Mesh::of(&[("a", 4)]);
    let (rows, columns) = (layout(&mesh, &["a", ""], ""), layout(&mesh, &["", "a"], ""));
    // 5 rows are 2, 2, 1, 0 and 10 columns 3, 3, 3, 1: 50 elements are needed, 6 + 6 + 3 + 0 are there.
    assert_eq!(moves(&mesh, &[5, 10], &rows, &columns), [(Kind::AllToAll, "a".to_string(), 35.0 / 4.0 * 4.0)]);
    // Blocks of two for blocks of one element: of 4 by 4 ranks 0 and 1 lack one element each.
    let mut pairs = rows.clone();
    pairs.dims[0][0].unit = 2;
    assert_eq!(moves(&mesh, &[4, 1], &rows, &pairs), [(Kind::AllToAll, "a".to_string(), 3.0)]);
}

#[test]
fn dealing_from_both_ends_moves_all_but_what_is_in_place() {
    let mesh = Mesh::of(&[("cp", 4)]);
    let block = layout(&mesh, &["cp"], "");
    let mut zigzag = block.clone();
    zigzag.dims[0][0].order = Order::Zigzag;
    // Of eight halves 0 stays with rank 0 and 5 with rank 2; the other six are four elements each.
    assert_eq!(moves(&mesh, &[32], &block, &zigzag), [(Kind::AllToAll, "cp".to_string(), 6.0 * 4.0)]);
}

#[test]
fn sums_over_two_axes_scatter_over_one_before_they_reduce_over_the_other() {
    let mesh = Mesh::of(&[("a", 2), ("b", 2)]);
    let (from, to) = (layout(&mesh, &[""], "a b"), layout(&mesh, &["a"], ""));
    let wanted = [(Kind::ReduceScatter, "a".to_string(), 32.0), (Kind::AllReduce, "b".to_string(), 32.0)];
    assert_eq!(moves(&mesh, &[16], &from, &to), wanted);
}

#[test]
fn gathering_an_uneven_cut_sends_real_rows_only() {
    let mesh = Mesh::of(&[("a", 4)]);
    let (from, to) = (layout(&mesh, &["a", ""], ""), layout(&mesh, &["", ""], ""));
    assert_eq!(moves(&mesh, &[5, 10], &from, &to), [(Kind::AllGather, "a".to_string(), 0.75 * 50.0 * 4.0)]);
}

#[test]
fn cut_otherwise_a_tensor_is_never_gathered_whole() {
    let mesh = Mesh::of(&[("x", 4), ("y", 2)]);
    let (from, to) = (layout(&mesh, &["y", "", "x"], ""), layout(&mesh, &["", "x y", ""], ""));
    let local = 16.0 * 16.0 * 16.0 / 8.0 * 4.0;
    assert_eq!(moves(&mesh, &[16, 16, 16], &from, &to), [(Kind::AllToAll, "y x".to_string(), 7.0 / 8.0 * local)]);
}

#[test]
fn slow_links_carry_what_fast_ones_have_scattered() {
    let mut mesh = Mesh::of(&[("dp", 2), ("tp", 4)]);
    mesh.axes[0].weight = 10;
    let (from, to) = (layout(&mesh, &["", ""], "dp tp"), layout(&mesh, &["", ""], ""));
    let whole = 64.0 * 4.0;
    let wanted = [
        (Kind::ReduceScatter, "tp".to_string(), 0.75 * whole),
        (Kind::AllReduce, "dp".to_string(), whole / 4.0),
        (Kind::AllGather, "tp".to_string(), 0.75 * whole),
    ];
    assert_eq!(moves(&mesh, &[8, 8], &from, &to), wanted);
    let taken = cost(&mesh, &[8, 8], 4, &from, &to).expect("a path");
    assert_eq!((taken.weighted, taken.bytes), (1.5 * whole + 2.5 * whole, 1.75 * whole));
    // Over links of one kind at once.
    mesh.axes[0].weight = 1;
    assert_eq!(moves(&mesh, &[8, 8], &from, &to), [(Kind::AllReduce, "dp tp".to_string(), 1.75 * whole)]);
}

#[test]
fn axes_of_one_rank_need_nobody() {
    let mesh = Mesh::of(&[("a", 1), ("b", 2)]);
    let (sum, whole) = (layout(&mesh, &["a"], "b"), layout(&mesh, &[""], ""));
    assert_eq!(moves(&mesh, &[6], &layout(&mesh, &["b"], "a"), &layout(&mesh, &["b a"], "")).len(), 1);
    let kinds: Vec<_> = moves(&mesh, &[6], &sum, &whole).into_iter().map(|m| (m.0, m.1)).collect();
    assert_eq!(kinds, [(Kind::AllReduce, "b".to_string()), (Kind::Slice, String::new())]);
}

#[test]
fn some_layouts_have_no_path() {
    let mesh = Mesh::of(&[("a", 2), ("b", 2)]);
    let of = |partial, op| layout_by(&mesh, &[""], partial, op);
    let (sum, largest) = (of("a", ReduceKind::Sum), of("a", ReduceKind::Max));
    let index = of("a", ReduceKind::ArgMax);
    let whole = layout(&mesh, &[""], "");
    let to = |from: &Layout, to: &Layout| path(&mesh, &[4], 4, from, to);
    assert_eq!(to(&index, &whole), None);
    assert_eq!(to(&whole, &index), None);
    assert_eq!(to(&index, &index), Some(Vec::new()));
    let mut mixed = sum.clone();
    mixed.partial.push(of("b", ReduceKind::Max).partial[0]);
    assert_eq!(to(&mixed, &whole), None);
    assert_eq!(to(&whole, &mixed), None);
    // By way of its blocks, which is half of what an all-reduce sends.
    let kinds: Vec<_> = to(&largest, &sum).expect("a path").iter().map(|s| s.kind).collect();
    assert_eq!(kinds, [Kind::ReduceScatter, Kind::ShardToPartial]);
    let products = of("b", ReduceKind::Prod);
    assert_eq!(to(&whole, &products).expect("a path")[0].kind, Kind::MakePartial);
}

#[test]
fn the_mesh_being_huge_makes_no_difference() {
    let mesh = Mesh::of(&[("pp", 16), ("dp", 128), ("tp", 8)]);
    let from = layout(&mesh, &["dp", "", "tp"], "");
    let to = layout(&mesh, &["dp", "tp", ""], "");
    let local = (1024.0 / 128.0) * 4096.0 * 16384.0 / 8.0 * 4.0;
    assert_eq!(moves(&mesh, &[1024, 4096, 16384], &from, &to), [(Kind::AllToAll, "tp".to_string(), 0.875 * local)]);
    let sum = layout(&mesh, &["dp", "", ""], "tp");
    assert_eq!(cost(&mesh, &[1024, 4096, 16384], 2, &sum, &to).map(|c| c.bytes), Some(0.875 * local * 4.0));
}

#[test]
fn costs_compare_by_weight_first_and_not_by_rounding() {
    let of = |weighted, collectives, peak| Cost { weighted, collectives, peak, ..Cost::default() };
    assert_eq!(of(1.0, 3, 9.0).order(&of(2.0, 1, 1.0)), Ordering::Less);
    assert_eq!(of(0.1 + 0.2, 1, 9.0).order(&of(0.3, 2, 1.0)), Ordering::Less);
    assert_eq!(of(0.3, 1, 2.0).order(&of(0.3, 1, 1.0)), Ordering::Greater);
    let sum = of(1.0, 2, 8.0).then(of(2.0, 1, 4.0));
    assert_eq!((sum.weighted, sum.collectives, sum.peak), (3.0, 3, 8.0));
}
