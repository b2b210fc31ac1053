//! Dims that ranks do not hold equal parts of.

use crate::ir::{CutDim, Graph};
use crate::mesh::{Atom, Mesh, cut};
use crate::types::grouped;

/// Dims of which ranks have unequal parts, with the sizes of the parts.
pub fn uneven(graph: &Graph) -> Vec<String> {
    let mesh = &graph.mesh;
    let mut out: Vec<String> = Vec::new();
    for dim in &graph.dims {
        // Blocks that pass by and rows of neighbours are no parts of a dim.
        let lies = |c: &&CutDim| !c.entries.iter().any(|e| e.order.is_passing());
        let Some(cut) = dim.cut.as_ref().filter(lies).filter(|c| !cut::even(mesh, &c.entries, c.extent)) else {
            continue;
        };
        let atoms: Vec<Atom> = cut.entries.iter().map(|e| e.atom).collect();
        let sizes = part_sizes(mesh, cut);
        let [most, least] = [sizes.iter().max(), sizes.iter().min()].map(|n| n.copied().unwrap_or(0) as u64);
        let axes = mesh.names(&atoms);
        // A cut dim has the name of the whole one, and of the axes behind it.
        let name =
            dim.name.find(&format!(".{}", axes.join(".").replace(':', "."))).map_or(&*dim.name, |n| &dim.name[..n]);
        let (by, extent) = (axes.join(", "), grouped(cut.extent as u64));
        let line = format!("{name} {extent} by {by}: parts of {} to {}", grouped(most), grouped(least));
        if !out.contains(&line) {
            out.push(line);
        }
    }
    out
}

/// How many elements of a dim each coordinate of its cut holds.
fn part_sizes(mesh: &Mesh, dim: &CutDim) -> Vec<usize> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    for e in &dim.entries {
        let size = mesh.size(e.atom);
        all = all.iter().flat_map(|c| (0..size).map(move |i| [&c[..], &[i]].concat())).collect();
    }
    let held = |c: &Vec<usize>| cut::spans(mesh, &dim.entries, dim.extent, c).iter().map(|s| s.len).sum();
    all.iter().map(held).collect()
}
