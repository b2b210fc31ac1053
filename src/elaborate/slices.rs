//! Statistics of the batch by slices: asks for them where a train item does.
//!
//! The rewrite itself comes from outside ([`Slices`]), since this room does not know `stage`.

use super::value::DimSet;
use super::{Elab, Settings};
use crate::check::constant::Const;
use crate::diag::Diagnostic;
use crate::ir::{Builder, Dim, DimId, Graph, OutputKind};
use crate::resolve::ItemRef;
use crate::source::Span;
use crate::types::counted;

/// Makes statistics of the batch per slice: takes the graph of the model, that of the same model on one slice, the sample dim and
/// the number of slices; the outputs get their new values.
pub type Slices<'f> = &'f dyn Fn(&mut Builder, &Graph, DimId, usize) -> Result<(), Box<Diagnostic>>;

impl<'a> Elab<'a> {
    /// The settings of the walk with another size of the sample dim; none where it is no dim of the file.
    pub fn with_samples(&self, sample: DimId, size: usize) -> Option<Settings> {
        let own = |set: &Option<DimSet>| set.as_ref().is_some_and(|s| s.ids == [sample] && !s.group);
        let (at, _) = self.global_dims.iter().find(|(_, set)| own(set))?;
        let mut settings = self.settings.clone();
        settings.values.insert(*at, Const::int(size as i64));
        Some(settings)
    }

    /// `samples NAME in N slices`
    pub(super) fn in_slices(&mut self, model: ItemRef, sample: DimId, count: usize, span: Span, slices: Slices<'_>) {
        let Dim { name, size, .. } = self.b.graph.dim(sample).clone();
        if !size.is_multiple_of(count) {
            let why = format!("the size {size} of the sample dim `{name}` does not divide into {count} slices");
            let cure = format!("choose a number of slices that divides {size}");
            self.error(Diagnostic::error("E0304", why).at(span, "asked for here").help(cure));
            return;
        }
        let Some(settings) = self.with_samples(sample, size / count) else {
            let why = format!("the sample dim `{name}` is no dim of the file, so it has no slices");
            self.error(Diagnostic::error("E0710", why).at(span, "asked for here").help("declare it: `dim batch = 32`"));
            return;
        };
        // The model as it is on one slice: its constants and sizes are those of statistics per slice.
        let mut part = Elab::new(self.program, settings, self.mode, self.precision);
        part.fed = self.fed.clone();
        part.model(model);
        if part.failed() {
            for d in part.sink.sorted() {
                self.sink.push(d.with_note(format!("in a slice of {}", counted(size / count, "sample"))));
            }
            return;
        }
        match slices(&mut self.b, &part.b.graph, sample, count) {
            Ok(()) => {
                let found = self.b.graph.outputs.iter().filter(|o| o.kind == OutputKind::Loss);
                for (l, o) in self.losses.iter_mut().zip(found) {
                    l.value = o.value;
                }
                let known = self.init.graph.dims.len();
                let more = self.b.graph.dims.iter().skip(known).cloned();
                more.for_each(|d| self.init.graph.dims.push(d));
            }
            Err(d) if d.primary.is_some() => self.error(d.and(span, "slices are asked for here")),
            Err(d) => self.error(d.at(span, "slices are asked for here")),
        }
    }
}
