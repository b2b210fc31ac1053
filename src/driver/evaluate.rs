//! Passes over validation data.

use super::engine::{Engine, Figure, Routine};
use super::findings::{DataPlaces, Stop};
use super::recipe::Recipe;
use crate::diag::Diagnostic;
use crate::program::OutputKind;
use crate::runtime::data::{Batch, CharTable, DataSpec, Loader, Order};
use crate::runtime::stop::StopFlag;

/// Validation data, opened once for all passes.
pub struct Pass {
    /// Where the program names the data.
    at: DataPlaces,
    /// None where the model has no inputs.
    loader: Option<Loader>,
    /// The name of the sample dim.
    sample: Option<String>,
    batch: Batch,
    batches: u64,
}

/// Means over the batches of a pass.
#[derive(Clone, PartialEq, Debug)]
pub struct Evaluation {
    pub loss: f64,
    /// Loss terms where there are several, and metrics.
    pub figures: Vec<(String, f64)>,
    pub batches: u64,
    /// Outputs that were asked for, over all batches: the first axis counts samples, or batches where there is no sample
    /// dim; the other axes follow in the value's own order.
    pub outputs: Vec<Figure>,
}

impl Pass {
    /// `data` with its place in the program; `limit`: at most so many batches.
    pub fn open(
        recipe: &Recipe,
        (data, at): (&DataSpec, &DataPlaces),
        chars: Option<&CharTable>,
        limit: Option<u64>,
    ) -> Result<Pass, Stop> {
        let at = at.clone();
        if recipe.inputs.is_empty() {
            return Ok(Pass { at, loader: None, sample: None, batch: Batch::new(&[]), batches: limit.unwrap_or(1) });
        }
        let loader = Loader::open(data, &recipe.inputs, Order::Pass, chars)
            .map_err(|e| Stop::of_data(recipe.with_option(e), &at))?;
        let batches = limit.map_or(loader.batches(), |n| n.min(loader.batches()));
        let sample = recipe.inputs.first().map(|i| i.dims[i.sample].name.clone());
        Ok(Pass { at, batch: loader.new_batch(), loader: Some(loader), sample, batches })
    }

    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Says so where samples at the end do not fill a batch, and how to evaluate all of them: by this command, if any can.
    pub fn left_out(&self, eval: Option<&str>) -> Option<Diagnostic> {
        let loader = self.loader.as_ref().filter(|l| l.left_out() > 0)?;
        let (left, batch) = (loader.left_out(), loader.batch_size() as u64);
        let of = if left == 1 { "sample".to_string() } else { format!("{left} samples") };
        let (fill, are) = if left == 1 { ("fills", "is") } else { ("fill", "are") };
        let message = format!("the last {of} of the validation data {fill} no batch and {are} left out");
        let all = loader.samples();
        let divisor = (1..=batch).rev().find(|d| all.is_multiple_of(*d))?;
        let sample = self.sample.as_deref()?;
        let d = Diagnostic::warning("W0007", message);
        Some(match eval {
            Some(eval) => d.help(format!("to evaluate a checkpoint on all {all}: `{eval} --set {sample}={divisor}`")),
            None => d.help(format!(
                "to evaluate a checkpoint on all {all}, build the program with `--set {sample}={divisor}`"
            )),
        })
    }

    /// One pass; `each` is told the number of every batch that is done. None if it was stopped.
    pub fn run(
        &mut self,
        engine: &mut dyn Engine,
        seed: u64,
        stop: &StopFlag,
        each: &mut dyn FnMut(u64),
    ) -> Result<Option<Evaluation>, Stop> {
        let mut sums: Vec<(Figure, f64)> = Vec::new();
        let mut outputs: Vec<Figure> = Vec::new();
        for n in 0..self.batches {
            if stop.requested() {
                return Ok(None);
            }
            if let Some(loader) = &mut self.loader {
                loader.fill(n, &mut self.batch).map_err(|e| Stop::of_data(e, &self.at))?;
            }
            let (values, figures): (Vec<Figure>, Vec<Figure>) =
                engine.run(Routine::Eval, seed, n, &self.batch)?.into_iter().partition(|f| f.kind == OutputKind::Value);
            for mut value in values {
                if let Some(at) = value.dims.iter().position(|d| Some(d) == self.sample.as_ref()) {
                    first(&mut value, at);
                }
                match outputs.iter_mut().find(|o| o.name == value.name) {
                    Some(all) => all.values.extend(value.values),
                    None => outputs.push(value),
                }
            }
            match sums.is_empty() {
                true => sums = figures.into_iter().map(|f| (f, 1.0)).collect(),
                false => {
                    for ((sum, count), f) in sums.iter_mut().zip(figures) {
                        sum.values.iter_mut().zip(f.values).for_each(|(s, x)| *s += x);
                        *count += 1.0;
                    }
                }
            }
            each(n + 1);
        }
        let means: Vec<Figure> =
            sums.into_iter().map(|(f, n)| Figure { values: f.values.iter().map(|x| x / n).collect(), ..f }).collect();
        for o in &mut outputs {
            match o.dims.first() == self.sample.as_ref() && !o.dims.is_empty() {
                true => o.shape[0] *= self.batches as usize,
                false => {
                    o.dims.insert(0, "batches".to_string());
                    o.shape.insert(0, self.batches as usize);
                }
            }
        }
        Ok(Some(Evaluation { loss: total(&means), figures: named(&means), batches: self.batches, outputs }))
    }
}

/// Makes axis `at` the first one.
fn first(value: &mut Figure, at: usize) {
    let (outer, middle) = (value.shape[..at].iter().product::<usize>(), value.shape[at]);
    let inner = value.shape[at + 1..].iter().product::<usize>();
    let old = std::mem::take(&mut value.values);
    for m in 0..middle {
        for o in 0..outer {
            let start = (o * middle + m) * inner;
            value.values.extend_from_slice(&old[start..start + inner]);
        }
    }
    value.shape[..=at].rotate_right(1);
    value.dims[..=at].rotate_right(1);
}

/// The sum of all loss terms, in f64.
pub fn total(figures: &[Figure]) -> f64 {
    figures.iter().filter(|f| f.is_loss()).map(|f| f.values.iter().sum::<f64>()).sum()
}

/// Elements of a metric with dims that are reported one by one; of larger ones the mean is.
const LARGEST: usize = 64;

/// What is reported beside the total: loss terms where there are several, and metrics.
pub fn named(figures: &[Figure]) -> Vec<(String, f64)> {
    let several = figures.iter().filter(|f| f.is_loss()).count() > 1;
    let mut out: Vec<(String, f64)> = Vec::new();
    for f in figures.iter().filter(|f| !f.is_loss() || several) {
        let name = match f.name.as_str() {
            // The total has this name.
            "loss" if f.is_loss() => "loss.main".to_string(),
            other => other.to_string(),
        };
        // A layer that is called twice has two figures of one path.
        let taken = |n: &str| out.iter().any(|o| o.0 == n || o.0.strip_prefix(n).is_some_and(|r| r.starts_with('[')));
        let name = match taken(&name) {
            true => (2..).map(|i| format!("{name}.{i}")).find(|n| !taken(n)).unwrap_or(name),
            false => name,
        };
        match &f.values[..] {
            [x] => out.push((name, *x)),
            all if all.len() <= LARGEST => {
                out.extend(all.iter().enumerate().map(|(i, x)| (format!("{name}[{i}]"), *x)));
            }
            all => out.push((name, all.iter().sum::<f64>() / all.len() as f64)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DType;

    fn metric(name: &str, values: Vec<f64>) -> Figure {
        let shape = vec![values.len()];
        Figure { kind: OutputKind::Metric, name: name.into(), dtype: DType::F32, dims: vec!["a".into()], shape, values }
    }

    #[test]
    fn figures_of_one_path_keep_apart() {
        let all = named(&[
            metric("m", vec![1.0]),
            metric("m", vec![2.0]),
            metric("n", vec![3.0, 4.0]),
            metric("n", vec![5.0]),
        ]);
        let names: Vec<&str> = all.iter().map(|f| f.0.as_str()).collect();
        assert_eq!(names, ["m", "m.2", "n[0]", "n[1]", "n.2"]);
    }

    #[test]
    fn an_axis_becomes_the_first() {
        let mut f = metric("m", (0..12).map(f64::from).collect());
        (f.shape, f.dims) = (vec![2, 3, 2], ["a", "b", "c"].map(String::from).to_vec());
        first(&mut f, 1);
        assert_eq!((&f.shape[..], f.dims.join(" ")), (&[3, 2, 2][..], "b a c".to_string()));
        assert_eq!(f.values, [0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 8.0, 9.0, 4.0, 5.0, 10.0, 11.0]);
        first(&mut f, 0);
        assert_eq!(f.shape, [3, 2, 2]);
    }
}
