//! The compiled artefact: what the compiler hands to the runtime, and the only type that is serialised for it.
//!
//! In: steps and buffers from `kernel`, offsets from `memory`, machine code from `codegen`. Out: a [`Program`] that
//! `runtime` executes in this process or, appended to the runtime's binary, in another one.
//!
//! A program has persistent storage (parameters, states, inputs: one slot each, allocated once by the runtime and
//! shared by all routines), a pool of constants, a blob of machine code, and several [`Routine`]s (initial values, train
//! step, evaluation step, sampling step). A routine is a flat list of [`Step`]s over [`Buffer`]s; its temporary buffers
//! lie in one arena of a size known beforehand. Nothing is allocated while it runs.
//!
//! Invariants:
//! - every access of a step lies within its buffers; buffers that are live at one time do not overlap in the arena,
//!   except where one is a [`Place::Slice`] of another;
//! - arena and constant offsets are multiples of [`ALIGN`];
//! - a step reads only what an earlier step of the same run has written, or what is persistent;
//! - results do not depend on the number of threads: rows of a kernel are independent, sums have a fixed order.

mod attention;
mod file;
mod gpu;
mod helper;
mod step;
mod work;

pub use attention::{Attention, AttentionGrad, Strided};
pub use file::{FileError, MAGIC};
pub use gpu::{Gpu, GpuArg, GpuLaunch};
pub use helper::{Failure, Helper, ZEROS};
pub use step::*;
pub use work::Work;

use crate::mesh::{Atom, Cut, Mesh};
use crate::types::DType;
use serde::{Deserialize, Serialize};

/// Alignment in bytes of buffers in the arena and in the pool of constants: one cache line, one AVX-512 register.
pub const ALIGN: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Raised whenever the meaning of a field changes.
    pub version: u32,
    pub params: Vec<Slot>,
    pub states: Vec<Slot>,
    pub inputs: Vec<Slot>,
    /// Read-only data, addressed by [`Place::Constant`].
    pub constants: Vec<u8>,
    pub code: Code,
    /// What GPUs run instead; a program is made for one or the other.
    pub gpu: Option<Gpu>,
    pub routines: Vec<Routine>,
    /// Where steps, buffers and checks come from. Entry 0 is "nowhere" (no file).
    pub sources: Vec<Source>,
    /// What a kernel reports when an index is out of range; numbers are the `site` of the check.
    pub sites: Vec<Site>,
    /// Files that the program needs and carries.
    pub files: Vec<CarriedFile>,
    /// Of the ranks that run it, all of them the same steps but for those along `pipeline`; without axes there is one.
    pub mesh: Mesh,
    /// The atoms of the axis along which ranks hold different stages of a model, major first; empty without a pipeline.
    pub pipeline: Vec<Atom>,
    /// Settings of the driver (data, schedule, names of routines, text of the program ..) as JSON; opaque here.
    pub settings: String,
}

/// Version of the format written by this build.
pub const VERSION: u32 = 16;

/// A file by the path under which the settings name it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CarriedFile {
    pub path: String,
    pub content: Vec<u8>,
}

/// Machine code of all kernels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Code {
    /// The target and the processor features that the code needs, as the code generator spells them.
    pub target: String,
    pub bytes: Vec<u8>,
    /// Offset in `bytes` of each function's entry; [`Launch::function`] indexes it.
    pub functions: Vec<u64>,
    /// What the loader still has to fill in (addresses of runtime functions), in the code generator's own terms.
    pub relocations: Vec<Relocation>,
}

/// The eight bytes at `at` become the address of the runtime function `symbol` plus `addend`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Relocation {
    pub at: u64,
    pub symbol: String,
    pub addend: i64,
}

/// A persistent array: parameter, state or input. Stored row-major in the order of `shape`, on every rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slot {
    /// `block.3.attention.wq`; of an input its name.
    pub path: String,
    pub dtype: DType,
    /// Names of the dims, major first.
    pub dims: Vec<String>,
    pub shape: Vec<usize>,
    /// For each dim of which `shape` is only a part: the whole that the ranks hold together.
    pub cut: Vec<Option<Part>>,
    pub role: Role,
    pub source: SourceId,
    /// It lies in a file instead of memory of the device.
    pub host: bool,
    /// Coordinates along the pipeline of the ranks that hold it; empty: all do.
    pub on: Vec<u32>,
    /// The other ranks have a copy of what was last written from outside, for routines that are not cut into stages.
    pub copied: bool,
}

/// A dim that the mesh cuts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// The extent of the whole.
    pub extent: usize,
    pub cut: Cut,
}

impl Slot {
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    /// Bytes of the whole that ranks hold parts of.
    pub fn whole_bytes(&self) -> usize {
        self.whole_shape().product::<usize>() * self.dtype.bytes()
    }

    /// The shape of that whole.
    pub fn whole_shape(&self) -> impl Iterator<Item = usize> {
        self.shape.iter().zip(&self.cut).map(|(n, c)| c.as_ref().map_or(*n, |c| c.extent))
    }

    /// Bytes set aside for it: whole cache lines.
    pub fn reserved(&self) -> usize {
        self.bytes().next_multiple_of(ALIGN)
    }
}

impl Slot {
    /// Whether ranks of this stage of the pipeline hold it.
    pub fn is_on(&self, coordinate: usize) -> bool {
        self.on.is_empty() || self.on.contains(&(coordinate as u32))
    }

    /// Whether ranks of this stage have memory for it.
    pub fn is_at(&self, coordinate: usize) -> bool {
        self.copied || self.is_on(coordinate)
    }
}

impl Program {
    /// Where a rank is along the pipeline; 0 without one.
    pub fn stage(&self, rank: usize) -> usize {
        self.pipeline.iter().fold(0, |n, a| n * self.mesh.size(*a) + self.mesh.coordinate(rank, *a))
    }

    /// How many coordinates there are along the pipeline; 1 without one.
    pub fn stages(&self) -> usize {
        self.pipeline.iter().map(|a| self.mesh.size(*a)).product()
    }

    /// The rank that differs from another one only in where it is along the pipeline.
    pub fn at_stage(&self, rank: usize, stage: usize) -> usize {
        let row = self.mesh.members(rank, &self.pipeline);
        row[stage]
    }

    /// What ranks of a stage run where a routine is asked for.
    pub fn variant(&self, routine: usize, stage: usize) -> usize {
        self.routines[routine].variants.get(stage).map_or(routine, |v| *v as usize)
    }

    /// The routines that ranks of a stage may be asked for, as they run them, by number: not those that others call, nor variants of
    /// other stages.
    pub fn routines_at(&self, stage: usize) -> Vec<usize> {
        let mut entries = vec![true; self.routines.len()];
        for r in &self.routines {
            r.called().for_each(|c| entries[c as usize] = false);
            r.variants.iter().skip(1).for_each(|v| entries[*v as usize] = false);
        }
        (0..entries.len()).filter(|r| entries[*r]).map(|r| self.variant(r, stage)).collect()
    }

    /// Bytes of the arena on ranks of a stage, which all routines share.
    pub fn arena_bytes(&self, stage: usize) -> usize {
        self.routines_at(stage).iter().map(|r| self.routines[*r].arena).max().unwrap_or(0)
    }

    /// Bytes of everything but arenas and files on ranks of a stage: slots, constants and cells.
    pub fn persistent_bytes(&self, stage: usize) -> usize {
        let slots = self.slots().filter(|s| !s.host && s.is_at(stage)).map(Slot::reserved).sum::<usize>();
        slots + self.constants.len().next_multiple_of(ALIGN) + self.cells_bytes()
    }

    /// Bytes of the cells that the runtime writes: step, position, and where the rank is along each atom; a cache line each.
    pub fn cells_bytes(&self) -> usize {
        (2 + self.mesh.atoms().count()) * ALIGN
    }

    /// Bytes of the file of temporaries on ranks of a stage, which all routines share.
    pub fn host_bytes(&self, stage: usize) -> usize {
        self.routines_at(stage).iter().map(|r| self.routines[*r].host).max().unwrap_or(0)
    }

    /// Bytes of all files on ranks of a stage.
    pub fn offloaded_bytes(&self, stage: usize) -> usize {
        let slots = self.slots().filter(|s| s.host && s.is_at(stage)).map(Slot::reserved).sum::<usize>();
        slots + self.host_bytes(stage)
    }

    /// All persistent arrays.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.params.iter().chain(&self.states).chain(&self.inputs)
    }
}

/// What a persistent array is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Role {
    Param,
    /// State of the model (running means).
    Model,
    Optimizer,
    /// A second set of weights.
    Average,
    /// Loss scale and counters.
    Scaling,
    /// What sampling keeps from position to position.
    Cache,
    /// What a step that is begun early leaves to its own run: values of microbatches, and sums of them.
    InFlight,
    Sum,
    Input,
}

/// A place in the user's text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Source {
    /// As shown to the user; empty: nowhere.
    pub file: String,
    pub line: u32,
    pub column: u32,
    /// The instance path of the layer that holds it, `block.3.attention`; may be empty.
    pub scope: String,
    /// In the standard library: the line and column of the program's own call, `gpt.pta:12:5`; else empty.
    pub called: String,
}

/// Index into [`Program::sources`]; 0 is nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct SourceId(pub u32);

/// One entry point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Routine {
    /// `init`, `train`, `eval`, `sample`, ..
    pub name: String,
    pub buffers: Vec<Buffer>,
    pub steps: Vec<Step>,
    /// Bytes of the arena. The high-water mark of a run equals it exactly.
    pub arena: usize,
    /// Bytes of the file of temporaries that are not in the arena.
    pub host: usize,
    /// The inputs that it reads, by index into [`Program::inputs`] (which may hold one name twice, with different shapes).
    pub inputs: Vec<u32>,
    /// What the caller may read after a run, until the next run.
    pub outputs: Vec<Output>,
    /// By coordinate along the pipeline: the routine that ranks there run when this one is asked for, with the same outputs. Empty: all run
    /// this one.
    pub variants: Vec<u32>,
    /// Where its runs may begin the next step: the inputs of that, each with the one of this step that it becomes.
    pub onward: Option<Vec<NextInput>>,
}

/// Numbers of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextInput {
    pub next: u32,
    pub of: u32,
}

impl Routine {
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// What the caller asks for when this runs: variants are called `train.1`.
    pub fn entry(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }

    /// The routines that it calls, by number; each as often as it does.
    pub fn called(&self) -> impl Iterator<Item = u32> {
        let call = |s: &Step| match &s.action {
            Action::Call(c) => Some(c.routine),
            _ => None,
        };
        self.steps.iter().filter_map(call)
    }
}

/// Index into [`Routine::buffers`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct BufferId(pub u32);

impl BufferId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for BufferId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b{}", self.0)
    }
}

/// A run of elements in memory. Steps carry their own shapes and strides; a buffer is only a range of bytes with a type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    pub place: Place,
    pub dtype: DType,
    pub elements: usize,
    /// A name from the source or of the operation, for reports.
    pub name: String,
    pub category: Category,
    /// What it holds is of this microbatch of a step in stages.
    pub microbatch: Option<u32>,
    pub source: SourceId,
}

impl Buffer {
    pub fn bytes(&self) -> usize {
        self.elements * self.dtype.bytes()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Place {
    /// Byte offset in the routine's arena.
    Arena(usize),
    /// Byte offset in the routine's file.
    Host(usize),
    /// A whole persistent slot.
    Param(u32),
    State(u32),
    Input(u32),
    /// Byte offset in the pool of constants.
    Constant(usize),
    /// A cell with the number of this step (I32), written by the runtime before the routine starts.
    Step,
    /// A cell with the position of sampling (I32), written by the runtime before the routine starts.
    Position,
    /// A cell with where the rank is along an atom of the mesh (I32), written by the runtime once.
    Coordinate(Atom),
    /// What the caller of the routine gives it by this number: see [`Call`].
    Argument(u32),
    /// Nowhere as a whole: see [`Finished`]. A block of it lies in the scratch memory of the thread that made it.
    Strip,
    /// Part of another buffer that moves with a loop: it begins `offset + value * stride` bytes after `base`'s start, where
    /// `value` is the I32 in the cell `turn` at the time the step starts.
    Slice {
        base: BufferId,
        turn: BufferId,
        offset: i64,
        stride: i64,
    },
}

/// What memory is used for, in reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Category {
    Parameters,
    GatheredParameters,
    Gradients,
    OptimizerState,
    State,
    Activations,
    Staging,
    Workspace,
    Data,
}

impl Category {
    pub const ALL: [Category; 9] = [
        Category::Parameters,
        Category::GatheredParameters,
        Category::Gradients,
        Category::OptimizerState,
        Category::State,
        Category::Activations,
        Category::Staging,
        Category::Workspace,
        Category::Data,
    ];

    /// The key in JSON reports.
    pub fn name(self) -> &'static str {
        match self {
            Category::Parameters => "parameters",
            Category::GatheredParameters => "gathered_parameters",
            Category::Gradients => "gradients",
            Category::OptimizerState => "optimizer_state",
            Category::State => "state",
            Category::Activations => "activations",
            Category::Staging => "staging",
            Category::Workspace => "workspace",
            Category::Data => "data",
        }
    }
}

/// A value that leaves a routine. New parameters and states are not among them: they are written into their slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    pub kind: OutputKind,
    pub name: String,
    pub buffer: BufferId,
    /// Row-major.
    pub dims: Vec<String>,
    pub shape: Vec<usize>,
    /// As of a slot.
    pub cut: Vec<Option<Part>>,
    pub source: SourceId,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum OutputKind {
    Loss,
    Metric,
    Value,
}

/// A check of an index at run time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Site {
    pub source: SourceId,
    /// The name of the dim that was indexed, and its size, on all ranks together: indices must be in 0..size.
    pub dim: String,
    pub size: usize,
    /// Of rows of which there may be fewer than their buffer has room for: one beyond it is one too many.
    pub ragged: bool,
}
