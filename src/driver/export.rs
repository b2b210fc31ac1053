//! Weights of a checkpoint in a file of their own, under a `weights` item's names or Partita's own.

use super::findings::{Findings, Outcome};
use super::options::Options;
use super::origin::Author;
use super::pipeline::{sound, train_item, with};
use super::weights::{AVERAGE, MODEL};
use super::{check, overwrite, plan};
use crate::diag::{Diagnostic, Sink};
use crate::elaborate::weights::transfer::{self, Buffers};
use crate::elaborate::weights::{self, WeightsMap};
use crate::elaborate::{Elab, Mode};
use crate::resolve::{Entity, MAIN};
use crate::runtime::RuntimeError;
use crate::runtime::checkpoint::{self, Checkpoint, TensorInfo, TensorView};
use crate::source::World;
use crate::types::DType;
use std::path::PathBuf;

/// What to write where.
#[derive(Clone, Debug, Default)]
pub struct ExportRequest {
    /// Without one, that of the train item's run.
    pub checkpoint: Option<PathBuf>,
    /// A `weights` item.
    pub map: Option<String>,
    pub to: PathBuf,
    /// None: as the parameters are.
    pub dtype: Option<DType>,
    /// The weights themselves, even where there are averages.
    pub raw: bool,
}

/// Larger files are cut, in Hugging Face's manner.
const SHARD_BYTES: usize = 5_000_000_000;

/// The files that were written, and what there is to say of them.
pub struct Exported {
    pub files: Vec<PathBuf>,
    pub warning: Option<Diagnostic>,
}

pub fn export(options: &Options, request: &ExportRequest, world: &dyn World) -> Outcome<Exported> {
    let c = sound(check::load(&options.request, world))?;
    let single = plan::single(options, &c.program).map_err(|d| with(d, &c.sources))?;
    let item = train_item(options, &c).map_err(|d| with(d, &c.sources))?;
    let name = &item.name.as_ref().unwrap_or(&item.model).text;
    let Some(Entity::Model(model)) = c.program.module(MAIN).names.get(&item.model.text).map(|b| b.entity) else {
        return Err(Findings::of(Diagnostic::error("E0711", format!("there is no model `{}`", item.model.text))));
    };
    let mut sink = Sink::default();
    plan::axes(options, &c.program, &mut sink);
    let map = match &request.map {
        Some(map) => weights::map(&c.program, &c.settings, model, map, None, single.precision, &mut sink),
        None => {
            let mut e = Elab::new(&c.program, c.settings.clone(), Mode::EVAL, single.precision);
            e.model(model);
            sink.extend(std::mem::take(&mut e.sink));
            Some(WeightsMap::own(&e.b.graph))
        }
    };
    let map = match map {
        Some(map) if !sink.has_errors() => map,
        _ => return Err(Box::new(Findings { sources: c.sources, sink })),
    };
    let from = Checkpoint::open(&request.checkpoint.clone().unwrap_or_else(|| PathBuf::from("runs").join(name)))?;
    let own: Vec<PathBuf> = std::fs::read_dir(from.path()).into_iter().flatten().flatten().map(|e| e.path()).collect();
    overwrite::refuse(&request.to, &c.sources, &own)?;
    let author = Author::of(&c, &options.request.path);
    let store = read(&map, &from, request.raw).map_err(|e| author.blamed(e, &from))?;
    let mut tensors: Vec<(TensorInfo, Vec<u8>)> = Vec::new();
    for entry in &map.entries {
        let tensor = transfer::export(entry, request.dtype, &store)
            .ok_or_else(|| RuntimeError::internal(format!("no weights for `{}`", entry.file_name)))?;
        let info = TensorInfo::new(entry.file_name.clone(), tensor.dtype, tensor.shape);
        tensors.push((info, tensor.bytes.into_owned()));
    }
    let views: Vec<TensorView> = tensors.iter().map(|(info, bytes)| TensorView { info, bytes }).collect();
    Ok(Exported { files: checkpoint::export(&request.to, &views, SHARD_BYTES)?, warning: author.warning(&from) })
}

/// Parameters and states of a checkpoint, averages in the place of weights.
fn read(map: &WeightsMap, from: &Checkpoint, raw: bool) -> Result<Buffers, RuntimeError> {
    let mut store = Buffers::zeros(map);
    let have = from.tensors(MODEL);
    for slot in &map.slots {
        let same = |t: &&&TensorInfo| t.name == slot.path && t.shape == slot.shape && t.dtype == slot.dtype;
        if have.iter().find(same).is_none() {
            return Err(from.another_model(format!(": it has no such `{}`", slot.path)));
        }
    }
    let groups: &[&str] = if raw || !from.groups().contains(&AVERAGE) { &[MODEL] } else { &[MODEL, AVERAGE] };
    for group in groups {
        from.read_each(group, &mut |info, bytes| {
            let path = info.name.strip_prefix("average:").unwrap_or(&info.name);
            let slot = map.slots.iter().find(|s| s.path == path);
            if let Some((_, to)) = slot.and_then(|s| store.0.get_mut(&s.target)) {
                to.copy_from_slice(bytes);
            }
            Ok(())
        })?;
    }
    Ok(store)
}
