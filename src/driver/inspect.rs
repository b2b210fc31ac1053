//! Intermediate forms of a program as text, stable from run to run.

use super::check::{self, Checked};
use super::findings::{Findings, Outcome};
use super::options::Options;
use super::pipeline::{self, sound, with};
use super::{plan, schedule, sharding};
use crate::codegen::cuda;
use crate::codegen::wide::Width;
use crate::diag::{Diagnostic, did_you_mean};
use crate::elaborate::{Elab, Mode};
use crate::inspect::layouts;
use crate::ir::print;
use crate::kernel;
use crate::resolve::ItemRef;
use crate::runtime::device::cuda::nvrtc;
use crate::source::World;
use crate::syntax;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    Ast,
    Check,
    Graph,
    Backward,
    Kernel,
    Clif,
    Vector,
    Cuda,
    Ptx,
    Layouts,
    Spmd,
    Schedule,
}

/// One form of a program; `model` chooses among several for the stages before gradients.
pub fn text(stage: Stage, model: Option<&str>, options: &Options, world: &dyn World) -> Outcome<String> {
    match stage {
        Stage::Ast => {
            let c = sound(check::load(&options.request, world))?;
            Ok(c.program.modules.first().map_or(String::new(), |m| syntax::print::ast(&m.ast)))
        }
        Stage::Check => {
            let c = sound(check::check(&options.request, world))?;
            let models = match model {
                Some(name) => vec![find(&c, Some(name)).map_err(|d| with(d, &c.sources))?],
                None => c.program.models(),
            };
            Ok(super::summary::text(&c, &models))
        }
        Stage::Graph => forward(model, options, world),
        Stage::Backward => {
            let g = pipeline::graphs(options, world)?;
            Ok(print::print_with_places(&g.train, &|span| Some(g.findings.sources.place(span))))
        }
        Stage::Layouts | Stage::Spmd => {
            let g = pipeline::graphs(&plan::spread(options, world)?, world)?;
            let program = sharding::train(&g)?;
            let sources = &g.findings.sources;
            Ok(match stage {
                Stage::Layouts => layouts::text(&program.story, sources),
                _ => print::print_with_places(&program.graph, &|span| Some(sources.place(span))),
            })
        }
        Stage::Schedule => Ok(schedule::shown(options, &schedule::Clock::Turns, world)?.program.text()),
        Stage::Kernel => {
            let g = pipeline::graphs(options, world)?;
            let p = sharding::programs(&g)?;
            Ok(kernel::print::print(&pipeline::of_rank(&g, p.as_ref(), &g.findings.sources, options)?))
        }
        Stage::Clif => {
            let g = pipeline::graphs(options, world)?;
            let target = pipeline::target()?;
            let p = sharding::programs(&g)?;
            let module = pipeline::of_rank(&g, p.as_ref(), &g.findings.sources, options)?;
            let one = |(i, k): (usize, &kernel::Kernel)| format!("; k{i} {}\n{}", k.name, target.clif(k));
            Ok(module.kernels.iter().enumerate().map(one).collect::<Vec<_>>().join("\n"))
        }
        Stage::Vector => {
            let g = pipeline::graphs(options, world)?;
            let p = sharding::programs(&g)?;
            Ok(vector_text(&pipeline::of_rank(&g, p.as_ref(), &g.findings.sources, options)?))
        }
        Stage::Cuda | Stage::Ptx => {
            let g = pipeline::graphs(options, world)?;
            let p = sharding::programs(&g)?;
            let module = pipeline::of_rank(&g, p.as_ref(), &g.findings.sources, options)?;
            let text = cuda::generate(&module.program, &module.kernels).text;
            if stage == Stage::Cuda {
                return Ok(text);
            }
            Ok(nvrtc::compile(&text, super::gpu::arch()?)?)
        }
    }
}

/// The vector IR of kernels for the widest vectors, whatever processor this is.
fn vector_text(module: &kernel::Module<'_>) -> String {
    let one = |(i, k): (usize, &kernel::Kernel)| match Width::W512.text(k) {
        Some(text) => format!("k{i} {}\n{text}", k.name),
        None => format!("k{i} {}: not by vectors of this width\n", k.name),
    };
    module.kernels.iter().enumerate().map(one).collect::<Vec<_>>().join("\n")
}

fn forward(model: Option<&str>, options: &Options, world: &dyn World) -> Outcome<String> {
    let c = sound(check::load(&options.request, world))?;
    let at = find(&c, model).map_err(|d| with(d, &c.sources))?;
    let single = plan::single(options, &c.program).map_err(|d| with(d, &c.sources))?;
    let mut e = Elab::new(&c.program, c.settings.clone(), Mode::TRAIN, single.precision);
    e.model(at);
    if e.failed() {
        return Err(Box::new(Findings { sources: c.sources.clone(), sink: std::mem::take(&mut e.sink) }));
    }
    Ok(print::print_with_places(&e.b.graph, &|span| Some(c.sources.place(span))))
}

/// The model of a name; without one the only model, or the last, which may use the others.
fn find(c: &Checked, name: Option<&str>) -> Result<ItemRef, Diagnostic> {
    let models = c.program.models();
    let names: Vec<&str> = models.iter().map(|m| c.program.model(*m).name.text.as_str()).collect();
    let Some(wanted) = name else {
        return models.last().copied().ok_or_else(|| {
            Diagnostic::error("E0711", "the file has no model").help("add `model Name(inputs) { .. loss .. }`")
        });
    };
    match names.iter().position(|n| *n == wanted) {
        Some(i) => Ok(models[i]),
        None => {
            let d = Diagnostic::error("E0711", format!("the file has no model `{wanted}`"));
            Err(match did_you_mean(wanted, names.iter().copied()) {
                Some(n) => d.help(format!("did you mean `{n}`?")),
                None if names.is_empty() => d.help("it has no models"),
                None => d.help(format!("its models: {}", names.join(", "))),
            })
        }
    }
}
