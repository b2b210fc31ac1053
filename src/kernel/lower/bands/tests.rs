//! Graphs in bands are sound and mean the same; what mixes rows is left alone.

use super::*;
use crate::interp;
use crate::kernel::tests::graphs::random_case;
use crate::types::DType;

const SMALL: Bands = Bands { least: 0, bytes: 0, rows: 1, wider: 0 };

fn loops(graph: &Graph) -> usize {
    graph.ops.iter().filter(|o| matches!(o.op, Op::Loop { .. })).count()
}

#[test]
fn graphs_in_bands_mean_the_same() {
    let (mut cut, mut totals, mut collected) = (0, 0, 0);
    for seed in 0..900 {
        let kinds: &[usize] = if seed % 3 == 0 { &[] } else { &[0, 1, 2, 3, 4, 6, 6, 6, 9, 11, 13] };
        let case = random_case(seed, DType::F64, 14, kinds);
        let mut graph = crate::ir::prune::prune(&case.graph);
        let before = loops(&graph);
        cut_bands(&mut graph, &Bands { rows: 1 + seed as usize % 2, ..SMALL });
        let graph = prune::prune(&graph);
        verify::verify(&graph).unwrap_or_else(|why| panic!("seed {seed}: {why}\n{}", print::print(&graph)));
        if loops(&graph) == before {
            continue;
        }
        cut += 1;
        for op in &graph.ops {
            if let Op::Loop { carries, .. } = op.op {
                totals += usize::from(carries > 0);
                collected += usize::from(op.results.len() > carries as usize);
            }
        }
        let expected = interp::run(&case.graph, &case.env).expect("evaluates");
        let got = interp::run(&graph, &case.env).expect("evaluates");
        for ((e, g), o) in expected.iter().zip(&got).zip(&graph.outputs) {
            assert_eq!(e.shape, g.shape);
            for (x, y) in e.data.iter().zip(&g.data) {
                let near = (x - y).abs() <= 1e-9 * (1.0 + x.abs()) || x.is_nan() && y.is_nan();
                assert!(near, "seed {seed}, {}: {y}, expected {x}\n{}", o.name, print::print(&graph));
            }
        }
    }
    assert!(cut >= 50 && totals >= 20 && collected >= 20, "{cut} graphs are cut, {totals}, {collected}");
}
