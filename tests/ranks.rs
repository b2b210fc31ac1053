//! Programs of many ranks: every collective on the executor against the interpreter.

#[path = "ranks/instants.rs"]
mod instants;
#[path = "ranks/matrix.rs"]
mod matrix;
#[path = "ranks/memory.rs"]
mod memory;
#[path = "ranks/models.rs"]
mod models;
#[path = "support/plans.rs"]
mod plans;
#[path = "ranks/programs.rs"]
mod programs;
#[path = "ranks/published.rs"]
mod published;
#[path = "ranks/replicas.rs"]
mod replicas;
#[path = "ranks/stages.rs"]
mod stages;
#[path = "support/ranks.rs"]
mod support;

use partita::interp::Env;
use partita::ir::{CollectiveKind as Kind, print};
use partita::mesh::{Atom, Cut, Entry, Mesh, Order, cut};
use partita::types::{DType, ReduceKind};
use support::{both, graph, part};

/// One collective: dims of the whole with how each is cut before and after.
struct Case {
    mesh: Mesh,
    kind: Kind,
    atoms: Vec<Atom>,
    reduce: Option<(ReduceKind, Vec<Atom>)>,
    dtype: DType,
    dims: Vec<(usize, Cut, Cut)>,
}

const A: Atom = Atom(0);
const B: Atom = Atom(1);

fn by(atoms: &[Atom]) -> Cut {
    atoms.iter().map(|a| Entry::new(*a)).collect()
}

fn zigzag(atom: Atom) -> Cut {
    vec![Entry { order: Order::Zigzag, ..Entry::new(atom) }]
}

fn units(atom: Atom, unit: u32) -> Cut {
    vec![Entry { unit, ..Entry::new(atom) }]
}

impl Case {
    fn text(&self) -> String {
        let Case { mesh, kind, atoms, reduce, dtype, dims } = self;
        let names = |atoms: &[Atom]| atoms.iter().map(|a| mesh.name(*a)).collect::<Vec<_>>().join(", ");
        let mut text = String::new();
        mesh.axes.iter().for_each(|a| text += &format!("axis {} = {}\n", a.name, a.size()));
        let mut dim = |name: String, extent: usize, cut: &Cut| {
            let size = cut::nominal(mesh, cut, extent).max(1);
            let entry = |e: &Entry| {
                let unit = if e.unit == 1 { String::new() } else { format!(" * {}", e.unit) };
                let order = if e.order == Order::Zigzag { " zigzag" } else { "" };
                format!("{}{unit}{order}", mesh.name(e.atom))
            };
            let by = cut.iter().map(entry).collect::<Vec<_>>().join(", ");
            let of = if cut.is_empty() { String::new() } else { format!(" of {extent} by {by}") };
            text += &format!("dim {name} = {size}{of}\n");
        };
        let (mut before, mut after, mut moves) = (vec![], vec![], vec![]);
        for (d, (extent, from, to)) in dims.iter().enumerate() {
            dim(format!("x{d}"), *extent, from);
            before.push(format!("x{d}"));
            if from == to {
                after.push(format!("x{d}"));
                continue;
            }
            dim(format!("y{d}"), *extent, to);
            after.push(format!("y{d}"));
            moves.push(format!("x{d} -> y{d}"));
        }
        let over = if atoms.is_empty() { String::new() } else { format!(" {}", names(atoms)) };
        let reduce = reduce.as_ref().map_or(String::new(), |(op, a)| format!("; {} {}", op.name(), names(a)));
        let (from, to) = (before.join(", "), after.join(", "));
        text += &format!("input 0 x: {dtype}[{from}]\n%0: {dtype}[{from}] = input[0 x]\n");
        text += &format!(
            "%1: {dtype}[{to}] = collective[{}{over}{reduce}; {}](%0)\noutput value y = %1\n",
            kind.name(),
            moves.join(", ")
        );
        text
    }

    /// Small whole numbers, so that sums are exact in every type; what is not real is not a number where there is one.
    fn envs(&self) -> Vec<Env> {
        let Case { mesh, reduce, dtype, dims, .. } = self;
        let before: Vec<(usize, Cut)> = dims.iter().map(|(n, from, _)| (*n, from.clone())).collect();
        let env = |rank: usize| {
            let part_of: usize =
                reduce.iter().flat_map(|(_, a)| a).fold(0, |n, a| n * mesh.size(*a) + mesh.coordinate(rank, *a));
            let element = |index: &[usize]| {
                let n = index.iter().fold(part_of * 31 + 7, |n, i| (n * 13 + i * 5 + 3) % 97);
                match (dtype, reduce) {
                    (DType::Bool, _) => f64::from(u8::from(n % 3 == 0)),
                    (_, Some((ReduceKind::Prod, _))) => {
                        [1.0, -1.0, 1.0, 2.0, 1.0][if part_of < 4 { n % 5 } else { n % 3 }]
                    }
                    _ => (n % 11) as f64 - 4.0,
                }
            };
            let dead = if dtype.is_float() { f64::NAN } else { 1.0 };
            Env { rank, inputs: vec![part(mesh, rank, *dtype, &before, dead, &element)], ..Env::default() }
        };
        (0..mesh.ranks()).map(env).collect()
    }

    fn check(&self) {
        let text = self.text();
        let graph = graph(&text);
        assert_eq!(print::print(&graph), text);
        let (wanted, found) = both(&graph, &self.envs());
        for (rank, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
            assert_eq!(wanted, found, "rank {rank} of\n{text}");
        }
    }
}

const ALL: [DType; 6] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::Bool];

fn reductions(dtype: DType) -> Vec<ReduceKind> {
    match dtype {
        DType::Bool => vec![ReduceKind::Any, ReduceKind::All],
        _ => vec![ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min],
    }
}

#[test]
fn one_axis_of_any_number_of_ranks() {
    for ranks in [1, 2, 3, 4, 16] {
        let mesh = Mesh::of(&[("dp", ranks)]);
        for dtype in ALL {
            let case = |kind, reduce: Option<ReduceKind>, dims: Vec<(usize, Cut, Cut)>| {
                let reduce = reduce.map(|r| (r, vec![A]));
                let atoms = if kind == Kind::Slice { vec![] } else { vec![A] };
                Case { mesh: mesh.clone(), kind, atoms, reduce, dtype, dims }.check();
            };
            let (whole, cut) = (Cut::new(), by(&[A]));
            // Uneven, and with ranks that hold nothing.
            for n in if ranks < 4 { vec![1, 5, 33] } else { vec![3 * ranks / 2] } {
                case(Kind::AllGather, None, vec![(3, whole.clone(), whole.clone()), (n, cut.clone(), whole.clone())]);
                case(Kind::Slice, None, vec![(n, whole.clone(), cut.clone()), (2, whole.clone(), whole.clone())]);
                case(Kind::AllToAll, None, vec![(n, cut.clone(), whole.clone()), (6, whole.clone(), cut.clone())]);
                case(Kind::Permute, None, vec![(n, zigzag(A), cut.clone())]);
                for op in reductions(dtype) {
                    case(Kind::AllReduce, Some(op), vec![(n, whole.clone(), whole.clone())]);
                    case(
                        Kind::ReduceScatter,
                        Some(op),
                        vec![(2, whole.clone(), whole.clone()), (n, whole.clone(), cut.clone())],
                    );
                }
            }
        }
    }
}

#[test]
fn two_axes_move_together_and_apart() {
    let mesh = Mesh::of(&[("dp", 2), ("tp", 3)]);
    let none = Cut::new;
    let case = |kind, atoms: &[Atom], reduce: Option<(ReduceKind, Vec<Atom>)>, dims: Vec<(usize, Cut, Cut)>| {
        Case { mesh: mesh.clone(), kind, atoms: atoms.to_vec(), reduce, dtype: DType::F32, dims }.check();
    };
    let sum = |atoms: &[Atom]| Some((ReduceKind::Sum, atoms.to_vec()));
    for (n, m) in [(6, 12), (7, 5), (1, 2), (64, 30)] {
        // Within the rows or columns of the mesh alone.
        case(Kind::AllReduce, &[B], sum(&[B]), vec![(n, by(&[A]), by(&[A])), (m, none(), none())]);
        case(Kind::AllGather, &[A], None, vec![(n, by(&[A]), none()), (m, by(&[B]), by(&[B]))]);
        // Both at once, in either order of major and minor.
        case(Kind::AllReduce, &[A, B], sum(&[A, B]), vec![(n, none(), none())]);
        case(Kind::AllReduce, &[B, A], sum(&[B, A]), vec![(n, none(), none()), (m, none(), none())]);
        case(Kind::AllGather, &[A, B], None, vec![(n, by(&[A, B]), none()), (m, none(), none())]);
        case(Kind::AllGather, &[A, B], None, vec![(n, by(&[B]), none()), (m, by(&[A]), none())]);
        case(Kind::AllGather, &[B], None, vec![(n, by(&[A, B]), by(&[A]))]);
        case(Kind::ReduceScatter, &[A, B], sum(&[A, B]), vec![(n, none(), by(&[B, A]))]);
        // Reduced over one, of which the other one keeps a part, or which is gathered on the way.
        case(Kind::ReduceScatter, &[A, B], sum(&[A, B]), vec![(n, none(), by(&[A])), (m, none(), none())]);
        case(Kind::AllReduce, &[A, B], sum(&[A]), vec![(n, by(&[B]), none()), (m, none(), none())]);
        case(Kind::AllToAll, &[A, B], sum(&[A]), vec![(n, by(&[B]), by(&[A])), (m, none(), by(&[B]))]);
        // One axis moves to another dim, takes the other's place, or changes its rank in the order.
        case(Kind::AllToAll, &[B], None, vec![(n, by(&[A, B]), by(&[A])), (m, none(), by(&[B]))]);
        case(Kind::AllToAll, &[A, B], None, vec![(n, by(&[A]), by(&[B])), (m, by(&[B]), by(&[A]))]);
        case(Kind::Permute, &[A, B], None, vec![(n, by(&[A, B]), by(&[B, A])), (m, none(), none())]);
        case(Kind::Permute, &[A, B], None, vec![(n, by(&[A]), by(&[B])), (m, none(), none())]);
        case(Kind::Slice, &[], None, vec![(n, none(), by(&[A])), (m, by(&[B]), by(&[B]))]);
        case(Kind::Slice, &[], None, vec![(n, by(&[A]), by(&[A, B]))]);
    }
}

#[test]
fn blocks_of_units_and_from_both_ends() {
    for ranks in [2, 4] {
        let mesh = Mesh::of(&[("cp", ranks)]);
        let none = Cut::new;
        let case = |kind, reduce: Option<ReduceKind>, dims: Vec<(usize, Cut, Cut)>| {
            let reduce = reduce.map(|r| (r, vec![A]));
            Case { mesh: mesh.clone(), kind, atoms: vec![A], reduce, dtype: DType::BF16, dims }.check();
        };
        for n in [6, 16, 23] {
            case(Kind::AllGather, None, vec![(2, none(), none()), (n, zigzag(A), none()), (3, none(), none())]);
            case(Kind::Permute, None, vec![(n, by(&[A]), zigzag(A)), (3, none(), none())]);
            case(Kind::Permute, None, vec![(n, units(A, 3), units(A, 2))]);
            case(Kind::ReduceScatter, Some(ReduceKind::Sum), vec![(n, none(), zigzag(A)), (2, none(), none())]);
            case(Kind::AllToAll, None, vec![(n, zigzag(A), none()), (9, none(), units(A, 2))]);
        }
    }
}

#[test]
fn large_arrays_go_in_chunks_and_shares() {
    let mesh = Mesh::of(&[("dp", 3)]);
    for dtype in [DType::F32, DType::BF16, DType::I32] {
        let reduce = Some((ReduceKind::Sum, vec![A]));
        let dims = vec![(29, Cut::new(), Cut::new()), (701, Cut::new(), Cut::new())];
        Case { mesh: mesh.clone(), kind: Kind::AllReduce, atoms: vec![A], reduce, dtype, dims }.check();
        let dims = vec![(30, Cut::new(), Cut::new()), (401, by(&[A]), Cut::new())];
        Case { mesh: mesh.clone(), kind: Kind::AllGather, atoms: vec![A], reduce: None, dtype, dims }.check();
    }
}
