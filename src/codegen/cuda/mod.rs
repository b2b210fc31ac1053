//! CUDA C of a program: text alone, made without any GPU.
//!
//! In: a planned program and its kernels. Out: [`Gpu`]: the text, and for every step of every routine what it launches. Equal
//! functions are there once.
//!
//! Every operation rounds by itself, as on the CPU: the text is compiled without contraction, and says where it means a fused one.
//!
//! Reading order: `prelude.cu` (what all kernels share), `types.rs`, `team.rs` (who computes a row), `nest.rs` (loop nests), `keep.rs` (what
//! stays in registers), `expr.rs` (expressions), `product.rs` and `tensor.rs` (products), `attention.rs`, `library.rs`; `exchange.rs` (moving what ranks exchange).

mod attention;
mod exchange;
mod expr;
mod keep;
mod library;
mod nest;
mod product;
mod team;
mod tensor;
mod types;

use crate::kernel::Kernel;
use crate::program::{
    Action, BufferId, Gemm, Gpu, GpuArg, GpuLaunch, Launch, Library, Place, Program, Routine, Scalar, Source, Step,
};
use attention::Operand;
use indexmap::{IndexMap, IndexSet};
use nest::Nest;

/// The common part of all texts.
const PRELUDE: &str = include_str!("prelude.cu");

/// Most places of a kernel that its text names.
const PLACES: usize = 3;

/// Text and launches of all routines.
pub fn generate(program: &Program, kernels: &[Kernel]) -> Gpu {
    let mut g = Generator {
        program,
        kernels,
        given: given(program),
        aligned: vec![Vec::new(); kernels.len()],
        nests: vec![None; kernels.len()],
        functions: IndexMap::new(),
        scratch: 0,
    };
    for (n, r) in program.routines.iter().enumerate() {
        g.note_alignment(n, &r.steps);
    }
    let routines = program.routines.iter().enumerate();
    let steps = routines.map(|(n, r)| {
        let mut all = Vec::new();
        g.steps(n, &r.steps, &mut all);
        all
    });
    let steps = steps.collect();
    let (helpers, moves) = exchange::functions(program);
    let mut text = g.text(&helpers);
    moves.iter().for_each(|(_, function)| text.push_str(&format!("\n{function}")));
    let kernels = g.functions.values().map(|f| f.name.clone()).chain(moves.into_iter().map(|(name, _)| name));
    Gpu { kernels: kernels.collect(), text, steps, scratch: g.scratch, ..Gpu::default() }
}

/// A function of the text.
struct Function {
    name: String,
    /// What it does and where that is written.
    label: String,
    places: IndexSet<String>,
}

struct Generator<'p> {
    program: &'p Program,
    kernels: &'p [Kernel],
    /// By routine and number of an argument: what all callers' buffers are aligned to.
    given: Vec<Vec<usize>>,
    /// The same of the arguments of kernels.
    aligned: Vec<Vec<usize>>,
    /// The functions of the kernels that were met, with their numbers.
    nests: Vec<Option<Vec<(usize, Nest)>>>,
    /// By text, in which `KERNEL` stands for the name.
    functions: IndexMap<String, Function>,
    scratch: usize,
}

/// Alignment of arguments of routines that others call.
fn given(program: &Program) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new(); program.routines.len()];
    for routine in &program.routines {
        for step in &routine.steps {
            let Action::Call(call) = &step.action else { continue };
            let known = &mut all[call.routine as usize];
            for (n, arg) in call.args.iter().enumerate() {
                let own = alignment(routine, arg.buffer, &[]);
                match known.get_mut(n) {
                    Some(known) => *known = own.min(*known),
                    None => known.push(own),
                }
            }
        }
    }
    all
}

/// A power of two, 16 at most, that the address of a buffer's start is a multiple of.
fn alignment(routine: &Routine, buffer: BufferId, given: &[usize]) -> usize {
    match routine.buffer(buffer).place {
        Place::Slice { base, offset, stride, .. } => {
            let own = 1usize << (offset | stride | 16).trailing_zeros();
            own.min(alignment(routine, base, given))
        }
        Place::Argument(n) => given.get(n as usize).copied().unwrap_or(16),
        _ => 16,
    }
}

impl Generator<'_> {
    fn alignment(&self, routine: usize, buffer: BufferId) -> usize {
        alignment(&self.program.routines[routine], buffer, &self.given[routine])
    }

    /// Notes how the arguments of kernels are aligned at least.
    fn note_alignment(&mut self, routine: usize, steps: &[Step]) {
        for step in steps {
            let launch = match &step.action {
                Action::Launch(l) => l,
                Action::Finished(f) => &f.launch,
                Action::Loop(l) => {
                    self.note_alignment(routine, &l.body);
                    continue;
                }
                _ => continue,
            };
            let own: Vec<usize> = launch.args.iter().map(|a| self.alignment(routine, a.buffer)).collect();
            let known = &mut self.aligned[launch.function as usize];
            match known.is_empty() {
                true => *known = own,
                false => known.iter_mut().zip(own).for_each(|(k, n)| *k = n.min(*k)),
            }
        }
    }

    fn steps(&mut self, routine: usize, steps: &[Step], all: &mut Vec<Vec<GpuLaunch>>) {
        for step in steps {
            let launches = self.step(routine, step);
            all.push(launches);
            if let Action::Loop(l) = &step.action {
                self.steps(routine, &l.body, all);
            }
        }
    }

    fn step(&mut self, routine: usize, step: &Step) -> Vec<GpuLaunch> {
        match &step.action {
            Action::Launch(launch) => self.launch(routine, launch, step, None),
            // Without elements there is nothing to launch.
            Action::Gemm(g) if g.m * g.n * g.batch.iter().map(|d| d.extent).product::<usize>() == 0 => Vec::new(),
            Action::Gemm(g) => vec![self.product(routine, g, step, None)],
            Action::Finished(f) => {
                // The result is there as a whole, in scratch memory.
                self.scratch = self.scratch.max(f.gemm.m * f.gemm.n * f.gemm.out.bytes());
                let c = f.gemm.c.buffer;
                let product = self.product(routine, &f.gemm, step, Some(c));
                std::iter::once(product).chain(self.launch(routine, &f.launch, step, Some(c))).collect()
            }
            Action::Library(Library::Attention(a)) => {
                let call = attention::forward(a, "KERNEL");
                vec![self.attention(call, step)]
            }
            Action::Library(Library::AttentionGrad(g)) => {
                self.scratch = self.scratch.max(attention::level_bytes(&g.of));
                let calls = attention::backward(g, |_| "KERNEL".to_string());
                calls.into_iter().map(|c| self.attention(c, step)).collect()
            }
            Action::Library(call) => {
                let routine = &self.program.routines[routine];
                let (pieces, scratch) = library::pieces(call, routine).unwrap_or_default();
                self.scratch = self.scratch.max(scratch);
                let launch = |p: library::Piece| GpuLaunch {
                    kernel: self.function(p.stem, p.text, step),
                    blocks: p.blocks as u32,
                    threads: p.threads,
                    shared: p.shared as u32,
                    args: p.args,
                    scalars: p.scalars,
                };
                pieces.into_iter().map(launch).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The number of a function, new or known.
    fn function(&mut self, stem: &str, text: String, step: &Step) -> u32 {
        let next = self.functions.len();
        let entry = self.functions.entry(text);
        let number = entry.index();
        let function = entry.or_insert_with(|| Function {
            name: format!("k{next}_{}", types::name(stem)),
            label: step.label.clone(),
            places: IndexSet::new(),
        });
        let place = place(&self.program.sources[step.source.0 as usize]);
        function.places.extend(place);
        number as u32
    }

    /// A kernel; what it reads or writes of `scratch` is in scratch memory.
    fn launch(&mut self, routine: usize, launch: &Launch, step: &Step, scratch: Option<BufferId>) -> Vec<GpuLaunch> {
        let n = launch.function as usize;
        let kernel = &self.kernels[n];
        let buffers = &self.program.routines[routine].buffers;
        let nests = match self.nests[n].clone() {
            Some(known) => {
                let place = place(&self.program.sources[step.source.0 as usize]);
                known.iter().for_each(|(number, _)| self.functions[*number].places.extend(place.clone()));
                known
            }
            None => {
                let notes: Vec<String> = launch.args.iter().map(|a| comment(&buffers[a.buffer.index()].name)).collect();
                let made = nest::emit(kernel, "KERNEL", &notes, &self.aligned[n]);
                let number = |nest: Nest| (self.function(&kernel.name, nest.text.clone(), step) as usize, nest);
                let made: Vec<(usize, Nest)> = made.into_iter().map(number).collect();
                self.nests[n].insert(made).clone()
            }
        };
        // Behind a product's result, where that is in scratch memory.
        let behind = scratch.map_or(0, |b| buffers[b.index()].bytes().next_multiple_of(16));
        if nests.iter().any(|(_, nest)| nest.partials) {
            self.scratch = self.scratch.max(behind + nest::partial_bytes(kernel));
        }
        let arg = |b: BufferId| if Some(b) == scratch { GpuArg::Scratch(0) } else { GpuArg::Buffer(b, 0) };
        let one = |(number, nest): (usize, Nest)| {
            let args = launch.args.iter().map(|a| arg(a.buffer)).chain([GpuArg::Scalars, GpuArg::Status]);
            let args = args.chain(nest.partials.then_some(GpuArg::Scratch(behind as u64))).collect();
            let Nest { blocks, threads, .. } = nest;
            GpuLaunch { kernel: number as u32, blocks, threads, shared: 0, args, scalars: launch.scalars.clone() }
        };
        nests.into_iter().map(one).collect()
    }

    fn product(&mut self, routine: usize, g: &Gemm, step: &Step, scratch: Option<BufferId>) -> GpuLaunch {
        let shape = product::Shape::of(g);
        let (a, b) = if shape.swapped { (&g.b, &g.a) } else { (&g.a, &g.b) };
        let (read, written) = (g.dtype.bytes(), g.out.bytes());
        let aligned = [a, b].map(|m| {
            let offset = 1usize << ((m.offset * read) | 16).trailing_zeros();
            offset.min(self.alignment(routine, m.buffer))
        });
        let made = product::emit(&shape, "KERNEL", aligned);
        let operand = |m: &crate::program::Matrix, bytes: usize| GpuArg::Buffer(m.buffer, (m.offset * bytes) as u64);
        let c = if scratch.is_some() { GpuArg::Scratch(0) } else { operand(&g.c, written) };
        GpuLaunch {
            kernel: self.function("product", made.text, step),
            blocks: made.blocks,
            threads: made.threads,
            shared: 0,
            args: vec![operand(a, read), operand(b, read), c],
            scalars: Vec::new(),
        }
    }

    fn attention(&mut self, call: attention::Call, step: &Step) -> GpuLaunch {
        let arg = |o: &Operand| match o {
            Operand::Buffer(b) => GpuArg::Buffer(*b, 0),
            Operand::Level => GpuArg::Scratch(0),
        };
        GpuLaunch {
            kernel: self.function("attention", call.text, step),
            blocks: call.blocks as u32,
            threads: call.threads,
            shared: call.shared as u32,
            args: call.args.iter().map(arg).collect(),
            scalars: Vec::<Scalar>::new(),
        }
    }

    fn text(&self, helpers: &str) -> String {
        let mut out = format!("{PRELUDE}{}{}{helpers}", library::HELPERS, tensor::HELPERS);
        for (text, f) in &self.functions {
            let shown: Vec<&str> = f.places.iter().take(PLACES).map(String::as_str).collect();
            let more = match f.places.len().saturating_sub(PLACES) {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            let at = if shown.is_empty() { String::new() } else { format!(": {}{more}", shown.join(", ")) };
            out.push_str(&format!("\n// {}{at}\n", comment(&f.label)));
            out.push_str(&text.replacen("KERNEL", &f.name, 1));
        }
        out
    }
}

/// Where in the program something is.
fn place(source: &Source) -> Option<String> {
    let at = if source.called.is_empty() {
        (!source.file.is_empty()).then(|| format!("{}:{}", source.file, source.line))?
    } else {
        source.called.clone()
    };
    Some(comment(&at))
}

/// A text that does not end a comment's line, nor continues it.
fn comment(text: &str) -> String {
    text.replace(['\n', '\r', '\\'], " ")
}
