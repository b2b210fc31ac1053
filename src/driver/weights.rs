//! The state of a run as tensors: into snapshots and out of checkpoints, and weights to begin with.

use super::engine::{Engine, Slot, numbers};
use super::findings::Stop;
use super::recipe::{Load, Recipe};
use crate::elaborate::weights::Target;
use crate::elaborate::weights::transfer::{self, Buffers, FileTensor};
use crate::program::Role;
use crate::runtime::RuntimeError;
use crate::runtime::checkpoint::{Checkpoint, Group, Tensor, TensorInfo, Weights};
use crate::types::DType;

/// Groups of a checkpoint: weights and model state are what evaluation and sampling need.
pub const MODEL: &str = "model";
pub const OPTIMIZER: &str = "optimizer";
pub const AVERAGE: &str = "average";

fn group_of(role: Role) -> &'static str {
    match role {
        Role::Param | Role::Model | Role::Input => MODEL,
        Role::Optimizer | Role::Scaling | Role::Cache | Role::InFlight | Role::Sum => OPTIMIZER,
        Role::Average => AVERAGE,
    }
}

/// Where a parameter of the model is: what the program computes with may be copies.
fn model(recipe: &Recipe, param: usize) -> Slot {
    recipe.copied.iter().find(|c| c.param == param).map_or(Slot::Param(param), |c| Slot::State(c.model))
}

/// All persistent arrays of a group.
fn slots<'r>(recipe: &'r Recipe, group: &str) -> Vec<(Slot, &'r TensorInfo)> {
    let models = |state: usize| recipe.copied.iter().any(|c| c.model == state);
    let params = recipe.params.iter().enumerate().filter(|_| group == MODEL).map(|(i, t)| (model(recipe, i), t));
    let states = recipe.states.iter().enumerate().filter(|(i, (_, role))| group_of(*role) == group && !models(*i));
    let copies = recipe.copied.iter().filter(|_| group == OPTIMIZER).map(|c| (Slot::Param(c.param), &c.info));
    params.chain(states.map(|(i, (t, _))| (Slot::State(i), t))).chain(copies).collect()
}

/// Bytes that [`save`] copies.
pub fn saved_bytes(recipe: &Recipe) -> usize {
    let all = [MODEL, OPTIMIZER, AVERAGE].into_iter().flat_map(|group| slots(recipe, group));
    all.map(|(_, info)| info.size().unwrap_or(usize::MAX)).fold(0, usize::saturating_add)
}

/// Copies everything out; `spare` gives buffers of an earlier snapshot.
pub fn save(recipe: &Recipe, engine: &dyn Engine, spare: Vec<Group>) -> Result<Vec<Group>, RuntimeError> {
    let mut buffers = spare.into_iter().flat_map(|g| g.tensors).map(|t| t.bytes);
    let mut groups = Vec::new();
    for name in [MODEL, OPTIMIZER, AVERAGE] {
        let mut tensors = Vec::new();
        for (slot, info) in slots(recipe, name) {
            let mut bytes = buffers.next().unwrap_or_default();
            engine.read(slot, &mut bytes)?;
            tensors.push(Tensor { info: info.clone(), bytes });
        }
        if !tensors.is_empty() {
            groups.push(Group { name: name.to_string(), tensors });
        }
    }
    Ok(groups)
}

/// The first parameter of a snapshot, or copy of one, with a value that is not finite, and that value.
pub fn not_finite<'g>(recipe: &Recipe, groups: &'g [Group]) -> Option<(&'g str, f64)> {
    let tensors = |name: &str| groups.iter().find(|g| g.name == name).map_or(&[][..], |g| &g.tensors);
    let copies = tensors(OPTIMIZER).iter().filter(|t| recipe.copied.iter().any(|c| c.info.name == t.info.name));
    let params = tensors(MODEL).iter().take(recipe.params.len());
    let bad = |bytes: &[u8], dtype: DType| -> Option<f64> {
        // Whole blocks without an exponent of ones are passed over quickly.
        let suspect = match dtype {
            DType::F32 => {
                let ones = |b: &[u8]| bytemuck::pod_read_unaligned::<u32>(b) & 0x7f80_0000 == 0x7f80_0000;
                bytes.chunks_exact(4).any(ones)
            }
            _ => dtype.is_float(),
        };
        suspect.then(|| numbers(dtype, bytes).into_iter().find(|x| !x.is_finite())).flatten()
    };
    params.chain(copies).find_map(|t| Some((t.info.name.as_str(), bad(&t.bytes, t.info.dtype)?)))
}

/// Reads all of a run's state into the engine. Copies that a checkpoint has none of begin at the model: it is of a run without them.
pub fn resume(recipe: &Recipe, engine: &mut dyn Engine, from: &Checkpoint) -> Result<(), RuntimeError> {
    let has = from.tensors(OPTIMIZER);
    let copies = recipe.copied.iter().any(|c| has.iter().any(|t| t.name == c.info.name));
    let kept = |slot: Slot| copies || !recipe.copied.iter().any(|c| slot == Slot::Param(c.param));
    let own = [MODEL, OPTIMIZER, AVERAGE].into_iter();
    let own = own.filter(|group| slots(recipe, group).iter().any(|(slot, _)| *group == MODEL || kept(*slot)));
    let mut groups: Vec<&str> = from.groups();
    groups.extend(own.filter(|group| !from.groups().contains(group)).collect::<Vec<_>>());
    restore_slots(recipe, engine, from, &groups, &|group, slot| group != OPTIMIZER || kept(slot))?;
    if !copies {
        begin_copies(recipe, engine)?;
    }
    Ok(())
}

/// Reads groups of a checkpoint into the engine.
pub fn restore(
    recipe: &Recipe,
    engine: &mut dyn Engine,
    from: &Checkpoint,
    groups: &[&str],
) -> Result<(), RuntimeError> {
    restore_slots(recipe, engine, from, groups, &|_, _| true)
}

fn restore_slots(
    recipe: &Recipe,
    engine: &mut dyn Engine,
    from: &Checkpoint,
    groups: &[&str],
    wanted: &dyn Fn(&str, Slot) -> bool,
) -> Result<(), RuntimeError> {
    let slots = |group: &str| {
        let mut all = slots(recipe, group);
        all.retain(|(slot, _)| wanted(group, *slot));
        all
    };
    // Nothing is written before everything is known to fit.
    for group in groups {
        let infos: Vec<TensorInfo> = slots(group).into_iter().map(|(_, t)| t.clone()).collect();
        from.expect(group, &infos)?;
    }
    for group in groups {
        let slots = slots(group);
        from.read_each(group, &mut |info, bytes| {
            if let Some((slot, _)) = slots.iter().find(|(_, t)| t.name == info.name) {
                engine.write(*slot, bytes)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The groups that evaluation and sampling need.
pub fn groups_of_use(recipe: &Recipe) -> Vec<&'static str> {
    if recipe.averages.is_empty() { vec![MODEL] } else { vec![MODEL, AVERAGE] }
}

/// Sets parameters and states to what training begins with: initial values, and weights of files over them.
pub fn begin(recipe: &Recipe, engine: &mut dyn Engine, seed: u64) -> Result<(), Stop> {
    engine.init(seed)?;
    recipe.loads.iter().try_for_each(|l| load(recipe, engine, l))
}

/// Sets parameters to weights of a file.
fn load(recipe: &Recipe, engine: &mut dyn Engine, load: &Load) -> Result<(), Stop> {
    let weights = Weights::open(&load.path).map_err(|e| Stop::at(e, &load.at))?;
    let wanted = |t: Target| match t {
        Target::Param(p) => load.params.contains(&p.index()),
        Target::State(s) => load.states.contains(&s.index()),
    };
    // What the file leaves out keeps its value.
    let mut buffers = Buffers::default();
    for slot in load.map.slots.iter().filter(|s| wanted(s.target)) {
        let mut bytes = Vec::new();
        engine.read(place(recipe, slot.target), &mut bytes)?;
        buffers.0.insert(slot.target, (slot.dtype, bytes));
    }
    let mut failed: Option<RuntimeError> = None;
    let mut read = |name: &str| {
        let (_, shape) = weights.info(name)?;
        // Master weights are as wide as they get; narrower files are widened without loss.
        let dtype = recipe.params.first().map_or(DType::F32, |p| p.dtype);
        match weights.read(name, dtype) {
            Ok(bytes) => Some(FileTensor { dtype, shape: shape.to_vec(), bytes: bytes.into() }),
            Err(e) => {
                failed.get_or_insert(e);
                None
            }
        }
    };
    let outcome = transfer::import(&load.map, &load.path.display().to_string(), &wanted, &mut read, &mut buffers);
    if let Some(e) = failed {
        return Err(Stop::at(e, &load.at));
    }
    outcome.map_err(|found| Stop { found, at: Some(load.at.clone()), within: None })?;
    for (target, (_, bytes)) in &buffers.0 {
        engine.write(place(recipe, *target), bytes)?;
    }
    begin_copies(recipe, engine)?;
    begin_averages(recipe, engine)?;
    Ok(())
}

fn place(recipe: &Recipe, target: Target) -> Slot {
    match target {
        Target::Param(p) => model(recipe, p.index()),
        Target::State(s) => Slot::State(s.index()),
    }
}

/// Copies begin at the model.
fn begin_copies(recipe: &Recipe, engine: &mut dyn Engine) -> Result<(), RuntimeError> {
    let mut bytes = Vec::new();
    for c in &recipe.copied {
        engine.read(Slot::State(c.model), &mut bytes)?;
        let count = c.info.size().unwrap_or(0) / bytes.len().max(1);
        engine.write(Slot::Param(c.param), &bytes.repeat(count))?;
    }
    Ok(())
}

/// Averages begin at the weights.
fn begin_averages(recipe: &Recipe, engine: &mut dyn Engine) -> Result<(), RuntimeError> {
    let mut bytes = Vec::new();
    for (param, state) in &recipe.averages {
        engine.read(Slot::Param(*param), &mut bytes)?;
        engine.write(Slot::State(*state), &bytes)?;
    }
    Ok(())
}
