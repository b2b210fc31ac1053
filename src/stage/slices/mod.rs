//! Statistics of the batch by slices: rewrites a model's forward pass for `samples NAME in N slices`.
//!
//! In: a model's graph before gradients are taken, and the graph of the same model with the sample dim as large as one
//! slice. Out: further operations in the first, whose outputs are now these. Slice k holds samples
//! k * size .. (k + 1) * size. A value *per slice* has the slices as a dim of its own, the sample dim being
//! that of a slice; since dims have names, operations carry the slices along. Its operation is that of the slice's graph, so constants
//! that count samples (the divisor of a mean) are right. Draws and positions are those of the whole batch.
//!
//! - Statistics, and what depends on them for its samples, are per slice.
//! - A loss stays a value of the whole batch; terms of it that are not affine in whole values are means over slices.
//! - An `update` is the mean over slices.
//! - Metrics and outputs are values of the whole batch. Without statistics and updates nothing changes.
//!
//! Reading order: `facts.rs` (what is a statistic), `pair.rs`, `emit.rs`.

mod emit;
mod facts;
mod pair;

use super::samplewise::Samples;
use crate::diag::Diagnostic;
use crate::ir::*;

fn slices_name(sample: &str) -> String {
    format!("{sample}.slices")
}

fn slice_name(sample: &str) -> String {
    format!("{sample}.slice")
}

/// Of a sample dim that is in slices: the dim of the slices, and that of the places in one.
pub fn dims_of(graph: &Graph, sample: DimId) -> Option<[DimId; 2]> {
    let sample = &graph.dim(sample).name;
    let named = |name: String| graph.dims.iter().position(|d| d.name == name).map(|i| DimId(i as u32));
    Some([named(slices_name(sample))?, named(slice_name(sample))?])
}

/// The model in `count` slices along `sample`; `count` divides its size. Its outputs get the new values.
pub fn slices(b: &mut Builder, part: &Graph, sample: DimId, count: usize) -> Result<(), Box<Diagnostic>> {
    let whole = b.graph.clone();
    let samples = Samples::discover(&whole, sample, count);
    let sized = samples.dims.iter().all(|(d, size)| part.dims.get(d.index()).is_some_and(|p| p.size == *size));
    let Some(pairs) = pair::pair(&whole, part).filter(|_| sized) else {
        let Dim { name, size, .. } = whole.dim(sample);
        let n = size / count;
        let why =
            format!("with {n} samples in `{name}` the model has another form, so it cannot be computed per slice");
        let cure = format!("choose fewer slices, or keep the model's form apart from the size of `{name}`");
        return Err(Box::new(Diagnostic::error("E0601", why).help(cure)));
    };
    let facts = facts::Facts::new(&whole, part, &pairs, &samples);
    let place = (b.span, b.scope);
    let values = emit::Emission::new(b, &whole, part, &pairs, &facts, sample, count).emit()?;
    (b.span, b.scope) = place;
    for (o, v) in b.graph.outputs.iter_mut().zip(values) {
        o.value = v;
    }
    Ok(())
}
