//! The figures of a run in files: JSON lines where they are asked for, and an event file. A file that cannot be written is
//! given up with one warning, since it is worth less than the training.

use super::train::{Event, Tell};
use crate::diag::{Diagnostic, Severity};
use crate::runtime::RuntimeError;
use crate::runtime::metrics::{EventFile, JsonLines, Record};
use serde_json::{Value, json};
use std::path::Path;

pub struct Metrics {
    lines: Option<JsonLines>,
    events: Option<EventFile>,
}

impl Metrics {
    /// `resumed`: records of later steps than this go from a file that is there.
    pub fn open(lines: Option<&Path>, resumed: Option<u64>, tell: Tell) -> Result<Metrics, RuntimeError> {
        // Nothing is trained yet: a file that was asked for and cannot be made is an error.
        let lines = match (lines, resumed) {
            (Some(path), Some(step)) => Some(JsonLines::resume(path, step)?),
            (Some(path), None) => {
                let (lines, aside) = JsonLines::create(path)?;
                if let Some(aside) = aside {
                    tell(Event::Note(format!("older metrics are now in {}", aside.display())));
                }
                Some(lines)
            }
            (None, _) => None,
        };
        Ok(Metrics { lines, events: None })
    }

    /// Begins an event file, too.
    pub fn open_events(&mut self, dir: &Path, tell: Tell) {
        self.events = EventFile::create(dir).map_err(|e| given_up(e, tell)).ok();
    }

    pub fn line(&mut self, record: &Record, tell: Tell) {
        if let Some(Err(e)) = self.lines.as_mut().map(|lines| lines.write(record)) {
            self.lines = None;
            given_up(e, tell);
        }
    }

    pub fn event(&mut self, record: &Record, tell: Tell) {
        if let Some(Err(e)) = self.events.as_mut().map(|events| events.write(record)) {
            self.events = None;
            given_up(e, tell);
        }
    }
}

fn given_up(e: RuntimeError, tell: Tell) {
    let e = e.note("training goes on without this file");
    let d = super::findings::diagnostic(e);
    tell(Event::Warning(Diagnostic { severity: Severity::Warning, ..d }));
}

/// A record for a checkpoint. Numbers are kept by their bits, for JSON may lose the last one.
pub fn kept(record: &Record) -> Value {
    record.values().map(|(name, x)| json!([name, x.to_bits()])).collect()
}

/// What [`kept`] has kept, of this step.
pub fn restored(step: u64, from: &Value) -> Option<Record> {
    let mut record = Record { step, ..Record::default() };
    for pair in from.as_array()? {
        let (name, x) = (pair[0].as_str()?, f64::from_bits(pair[1].as_u64()?));
        match name {
            "loss" => record.loss = Some(x),
            "grad_norm" => record.grad_norm = Some(x),
            "tokens_per_s" => record.tokens_per_s = Some(x),
            _ => record.others.push((name.to_string(), x)),
        }
    }
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_a_checkpoint() {
        let record = Record {
            step: 7,
            loss: Some(0.1 + 0.2),
            grad_norm: Some(f64::INFINITY),
            tokens_per_s: Some(1e-310),
            others: vec![("right".into(), 1.0 / 3.0)],
            ..Record::default()
        };
        let text = kept(&record).to_string();
        let value: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(restored(7, &value), Some(record));
        assert_eq!(restored(7, &json!([["loss"]])), None);
    }
}
