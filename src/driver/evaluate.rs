//! Passes over validation data.

use super::engine::{Engine, Figure, Routine};
use super::findings::Stop;
use super::recipe::Recipe;
use crate::program::OutputKind;
use crate::runtime::RuntimeError;
use crate::runtime::data::{Batch, CharTable, DataSpec, Loader, Order};
use crate::runtime::stop::StopFlag;

/// Validation data, opened once for all passes.
pub struct Pass {
    /// None where the model has no inputs.
    loader: Option<Loader>,
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
    /// Outputs that were asked for, batch after batch.
    pub outputs: Vec<Figure>,
}

impl Pass {
    /// `limit`: at most so many batches.
    pub fn open(
        recipe: &Recipe,
        data: &DataSpec,
        chars: Option<&CharTable>,
        limit: Option<u64>,
    ) -> Result<Pass, RuntimeError> {
        if recipe.inputs.is_empty() {
            return Ok(Pass { loader: None, batch: Batch::new(&[]), batches: limit.unwrap_or(1) });
        }
        let loader = Loader::open(data, &recipe.inputs, Order::Pass, chars)?;
        let batches = limit.map_or(loader.batches(), |n| n.min(loader.batches()));
        Ok(Pass { batch: loader.new_batch(), loader: Some(loader), batches })
    }

    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Samples at the end that do not fill a batch.
    pub fn left_out(&self) -> u64 {
        self.loader.as_ref().map_or(0, Loader::left_out)
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
                loader.fill(n, &mut self.batch)?;
            }
            let (values, figures): (Vec<Figure>, Vec<Figure>) =
                engine.run(Routine::Eval, seed, n, &self.batch)?.into_iter().partition(|f| f.kind == OutputKind::Value);
            for value in values {
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
        outputs.iter_mut().for_each(|o| o.shape.insert(0, self.batches as usize));
        Ok(Some(Evaluation { loss: total(&means), figures: named(&means), batches: self.batches, outputs }))
    }
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
