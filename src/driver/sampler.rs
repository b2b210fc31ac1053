//! Sampling: weights of a checkpoint, a prompt, and one new element after another; or the outputs of a written-out
//! sampler.

use super::engine::{Compiled, Machine, stop};
use super::findings::Stop;
use super::recipe::Recipe;
use super::sample::{CHUNK, Fed, PRELUDE, STEP, SampleRecipe, TextForm, WHOLE};
use super::weights::{self, AVERAGE, MODEL};
use crate::diag::did_you_mean;
use crate::elaborate::sample::{NEXT, TEMPERATURE};
use crate::program::{Action, Library, OutputKind, Program, Slot};
use crate::runtime::RuntimeError;
use crate::runtime::checkpoint::{Checkpoint, TensorInfo};
use crate::runtime::data::{CharTable, Input, given};
use crate::runtime::exec::{Array, ExecOptions, RunArgs};
use crate::runtime::tokenizer::{Bytes, Chars, Codec, Ids, Tokenizer};
use crate::stage::replicas::model_path;

/// What the command line says of the draw.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Draws {
    /// 0: the most likely element always.
    pub temperature: Option<f64>,
    pub top_k: Option<u32>,
    pub top_p: Option<f64>,
}

/// The weights to sample with.
pub enum Weights<'w> {
    Trained(&'w Checkpoint),
    /// Those that this train item begins with.
    Initial(&'w Recipe),
}

pub struct Sampler {
    machine: Machine,
    recipe: SampleRecipe,
    chars: Option<CharTable>,
    seed: u64,
}

/// An output of a written-out sampler.
pub struct Sampled {
    pub name: String,
    pub dtype: crate::types::DType,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Sampler {
    /// Opens a program; for initial weights it has the routine that computes them.
    pub fn open(
        mut program: Program,
        recipe: SampleRecipe,
        from: Weights,
        draws: Draws,
        seed: u64,
        options: ExecOptions,
    ) -> Result<Sampler, Stop> {
        let temperature = settle(&mut program, &recipe, draws)?;
        let mut out = match from {
            Weights::Trained(from) => {
                let machine = Machine::open(program, options)?;
                let mut out = Sampler { machine, recipe, chars: from.index.chars.clone(), seed };
                out.restore(from)?;
                out
            }
            Weights::Initial(item) => {
                let mut engine = Compiled::open(program, item, options)?;
                weights::begin(item, &mut engine, item.seed)?;
                Sampler { machine: engine.into_machine(), recipe, chars: None, seed }
            }
        };
        let states = &out.machine.program().states;
        if let Some(n) = states.iter().position(|s| s.path == TEMPERATURE) {
            let bytes = match states[n].whole_bytes() {
                8 => temperature.to_ne_bytes().to_vec(),
                _ => (temperature as f32).to_ne_bytes().to_vec(),
            };
            out.machine.write(Array::State(n), &bytes)?;
        }
        Ok(out)
    }

    pub fn recipe(&self) -> &SampleRecipe {
        &self.recipe
    }

    /// What runs the sampler, to ask what its runs took.
    pub fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Parameters and model states by name; averages, where the checkpoint has them, in the place of parameters.
    fn restore(&mut self, from: &Checkpoint) -> Result<(), RuntimeError> {
        let have: Vec<TensorInfo> = from.tensors(MODEL).into_iter().cloned().collect();
        for want in self.recipe.params.iter().chain(&self.recipe.states) {
            match have.iter().find(|t| t.name == want.name) {
                Some(t) if t.shape == want.shape && t.dtype == want.dtype => {}
                Some(t) => {
                    let why = format!(": `{}` is {} there, {} here", t.name, t.describe(), want.describe());
                    return Err(self.recipe.author.blamed(from.another_model(why), from));
                }
                None => {
                    let e = from.another_model(format!(": it has no `{}`", want.name));
                    return Err(self.recipe.author.blamed(e, from));
                }
            }
        }
        let program = self.machine.program();
        let machine = &mut self.machine;
        from.read_each(MODEL, &mut |info, bytes| {
            // A program that trains, too, may have copies in the place of the parameter.
            let model = model_path(&info.name);
            if let Some(n) = program.states.iter().position(|s| s.path == model) {
                machine.write(Array::State(n), bytes)?;
            } else if let Some(n) = program.params.iter().position(|p| p.path == info.name) {
                machine.write(Array::Param(n), bytes)?;
            } else if let Some(n) = program.states.iter().position(|s| s.path == info.name) {
                machine.write(Array::State(n), bytes)?;
            }
            Ok(())
        })?;
        if from.groups().contains(&AVERAGE) {
            from.read_each(AVERAGE, &mut |info, bytes| {
                let path = info.name.strip_prefix("average:").unwrap_or(&info.name);
                if let Some(n) = program.params.iter().position(|p| p.path == path) {
                    machine.write(Array::Param(n), bytes)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// How ids are written as text.
    pub fn codec(&self) -> Result<Box<dyn Codec>, RuntimeError> {
        Ok(match &self.recipe.text {
            None | Some(TextForm::Bytes) => Box::new(Bytes),
            Some(TextForm::Ids) => Box::new(Ids),
            Some(TextForm::Chars) => match &self.chars {
                Some(table) => Box::new(Chars(table.clone())),
                None => {
                    return Err(RuntimeError::new(
                        "E0807",
                        "there is no table of characters: it comes with a checkpoint",
                    )
                    .help("sample from one that was trained with `data chars(..)`, or write `text bytes`"));
                }
            },
            Some(TextForm::Tokenizer(file)) => Box::new(Tokenizer::open(file)?),
        })
    }

    /// Gives every input other than the fed one its value, as the command line says it.
    pub fn set_inputs(&mut self, values: &[(String, String)]) -> Result<(), RuntimeError> {
        let fed = self.recipe.fed.as_ref().map(|f| f.input.as_str());
        let inputs: Vec<Input> = self.recipe.inputs.iter().filter(|i| Some(i.name.as_str()) != fed).cloned().collect();
        for (n, (name, _)) in values.iter().enumerate() {
            let names: Vec<&str> = inputs.iter().map(|i| i.name.as_str()).collect();
            let (message, help) = if Some(name.as_str()) == fed {
                (format!("the sample item feeds `{name}` itself"), "give its beginning with `--prompt`".to_string())
            } else if !names.contains(&name.as_str()) {
                let help = match did_you_mean(name, names.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None if names.is_empty() => "leave out `--input`".to_string(),
                    None => format!("its inputs: {}", names.join(", ")),
                };
                (format!("the sample item reads no input `{name}`"), help)
            } else if values[..n].iter().any(|(other, _)| other == name) {
                (format!("input `{name}` is given twice"), "keep one".to_string())
            } else {
                continue;
            };
            return Err(RuntimeError::new("E0902", message).help(help));
        }
        for input in &inputs {
            let Some((name, text)) = values.iter().find(|(name, _)| *name == input.name) else {
                return Err(RuntimeError::new(
                    "E0803",
                    format!("the sample item needs its input {}", input.describe()),
                )
                .help(format!("give it with `--input {}=FILE.npy`, or a default in the program", input.name)));
            };
            let bytes = given(input, text, &|| self.codec())?;
            let shape: Vec<usize> = input.dims.iter().map(|d| d.size).collect();
            // A program may have inputs of this name and other sizes: of training, or of the model.
            let program = self.machine.program();
            let same =
                |s: &Slot| s.path == *name && s.whole_shape().eq(shape.iter().copied()) && s.dtype == input.dtype;
            for (n, _) in program.inputs.iter().enumerate().filter(|(_, s)| same(s)) {
                self.machine.write(Array::Input(n), &bytes)?;
            }
        }
        Ok(())
    }

    /// Goes on from a prompt of at least one id: up to `length` new ids, each given to `take` as it comes, until that says
    /// stop. When the model's positions are full, it goes on from the later half of what it has seen.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        length: u64,
        number: u64,
        take: &mut dyn FnMut(u32) -> Result<bool, RuntimeError>,
    ) -> Result<(), Stop> {
        let Some(fed) = self.recipe.fed.clone() else {
            return Err(RuntimeError::internal("a written-out sampler feeds nothing back").into());
        };
        if self.recipe.prelude {
            self.run(PRELUDE, number, 0)?;
        }
        let mut seen: Vec<u32> = prompt.to_vec();
        let keep = fed.capacity.div_ceil(2);
        let mut window = 0u64;
        // What the model's positions hold is seen[start..start + position].
        let mut start = seen.len().saturating_sub(if seen.len() > fed.capacity { keep } else { fed.capacity });
        let mut position = 0;
        for _ in 0..length {
            if seen.len() - start > fed.capacity {
                start = seen.len() - keep;
                position = 0;
                window += 1;
            }
            let mut next = 0;
            while start + position < seen.len() {
                let left = seen.len() - start - position;
                let n = if left >= fed.chunk && fed.chunk > 1 { fed.chunk } else { 1 };
                let ids = seen[start + position..start + position + n].to_vec();
                next = self.step(&fed, &ids, position, number << 24 | window)?;
                position += n;
            }
            seen.push(next);
            if !take(next)? {
                break;
            }
        }
        Ok(())
    }

    fn step(&mut self, fed: &Fed, ids: &[u32], position: usize, step: u64) -> Result<u32, Stop> {
        let name = if ids.len() == 1 { STEP } else { CHUNK };
        let routine = self.routine(name)?;
        let program = self.machine.program();
        for slot in &program.routines[routine].inputs {
            let to = &program.inputs[*slot as usize];
            if to.path == fed.input {
                let bytes: Vec<u8> = ids.iter().flat_map(|i| (*i as i32).to_ne_bytes()).collect();
                if to.whole_bytes() != bytes.len() {
                    return Err(RuntimeError::new("E0803", format!("input `{}` is not one row of ids", fed.input))
                        .help("sampling feeds one sequence of ints at a time")
                        .into());
                }
                self.machine.write(Array::Input(*slot as usize), &bytes)?;
            }
        }
        let args = RunArgs { seed: self.seed, step, position: position as i32, ..RunArgs::default() };
        self.machine.run(routine, args).map_err(stop)?;
        let next = program.routines[routine].outputs.iter().position(|o| o.name == NEXT && o.kind == OutputKind::Value);
        let Some(k) = next else { return Err(RuntimeError::internal("no next input").into()) };
        let (_, bytes) = self.machine.output(routine, k)?;
        let last: &[u8] = &bytes[bytes.len() - 4..];
        Ok(bytemuck::pod_read_unaligned::<i32>(last).max(0) as u32)
    }

    fn routine(&self, name: &str) -> Result<usize, RuntimeError> {
        let routines = &self.machine.program().routines;
        let found = routines.iter().position(|r| r.name == name);
        found.ok_or_else(|| RuntimeError::internal(format!("the program has no routine `{name}`")))
    }

    fn run(&mut self, name: &str, number: u64, position: i32) -> Result<usize, Stop> {
        let routine = self.routine(name)?;
        self.machine
            .run(routine, RunArgs { seed: self.seed, step: number, position, ..RunArgs::default() })
            .map_err(stop)?;
        Ok(routine)
    }

    /// Runs a written-out sampler once.
    pub fn whole(&mut self, number: u64) -> Result<Vec<Sampled>, Stop> {
        let routine = self.run(WHOLE, number, 0)?;
        let program = self.machine.program();
        let outputs = program.routines[routine].outputs.iter().enumerate();
        let sampled = outputs.filter(|(_, o)| o.kind == OutputKind::Value).map(|(k, o)| {
            let (shape, bytes) = self.machine.output(routine, k)?;
            let dtype = program.routines[routine].buffer(o.buffer).dtype;
            Ok(Sampled { name: o.name.clone(), dtype, shape, bytes })
        });
        Ok(sampled.collect::<Result<_, RuntimeError>>()?)
    }
}

/// Below this temperature the draw would hang on how logits of 32 bits are rounded, and they would overflow: the most
/// likely element is taken.
const COLDEST: f64 = 1e-6;

/// Writes the wanted top-k and top-p into the program's draws; returns the temperature.
fn settle(program: &mut Program, recipe: &SampleRecipe, draws: Draws) -> Result<f64, RuntimeError> {
    let bad = |what: &str| Err(RuntimeError::new("E0902", what.to_string()));
    if draws.temperature.is_some_and(|t| !t.is_finite() || t < 0.0) {
        return bad("`--temperature` is a number from 0");
    }
    if draws.top_p.is_some_and(|p| !(p > 0.0 && p <= 1.0)) {
        return bad("`--top-p` is a number above 0 and at most 1");
    }
    if draws != Draws::default() && recipe.temperature.is_none() {
        return Err(RuntimeError::new("E0902", "the sample item draws nothing")
            .help("leave out `--temperature`, `--top-k` and `--top-p`, or feed `draw[..](logits)`"));
    }
    let greedy = draws.temperature.or(recipe.temperature).is_some_and(|t| t < COLDEST);
    for routine in &mut program.routines {
        for step in &mut routine.steps {
            if let Action::Library(Library::Draw { top_k, top_p, .. }) = &mut step.action {
                *top_k = if greedy { 1 } else { draws.top_k.unwrap_or(*top_k) };
                *top_p = draws.top_p.unwrap_or(*top_p);
            }
        }
    }
    let written = recipe.temperature.unwrap_or(1.0);
    Ok(if greedy { 1.0 } else { draws.temperature.unwrap_or(written) })
}
