//! Which plan is meant, and what of it takes effect on any number of ranks: its precision and its microbatches.

use super::check;
use super::findings::Outcome;
use super::options::Options;
use super::pipeline::{sound, with};
use crate::check::plan::{given_twice, schedule as schedule_of, whole};
use crate::diag::{Diagnostic, Sink};
use crate::elaborate::plan;
use crate::resolve::Program;
use crate::schedule::Schedule;
use crate::source::{Span, World};
use crate::syntax::ast::{PlanKind, PlanValue};
use crate::types::DType;

/// What of a plan takes effect on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Single {
    pub precision: DType,
    /// How many, and where the plan says so.
    pub microbatches: Option<(u64, Span)>,
    /// Where the plan has a step compute with the parameters of the step before.
    pub delayed: Option<Span>,
}

/// The plan of the options, on one device.
pub fn single(options: &Options, program: &Program) -> Result<Single, Diagnostic> {
    let mut out = Single { precision: DType::F32, microbatches: None, delayed: None };
    if let Some(d) = given_twice(&options.mesh) {
        return Err(d);
    }
    if let Some(name) = &options.plan {
        let plan = plan::find(program, name)?;
        for line in &plan.lines {
            match &line.kind {
                PlanKind::Precision { name, .. } => {
                    out.precision = precision(&name.text).ok_or_else(|| {
                        Diagnostic::error("E0506", format!("`{}` is no precision", name.text))
                            .at(name.span, "unknown")
                            .help("precisions are f64, f32, bf16, f16")
                    })?;
                }
                PlanKind::Microbatches((n, span)) => out.microbatches = Some((*n, *span)),
                PlanKind::Pipeline { opts, .. } => {
                    let given = opts.iter().find(|o| o.name.text == "microbatches");
                    let count = given.and_then(|o| Some((whole(&o.value, &mut Sink::default())?, o.value.span)));
                    out.microbatches = count.or(out.microbatches);
                    let schedule = opts.iter().find(|o| o.name.text == "schedule");
                    let chosen = |v: &PlanValue| schedule_of(v, &mut Sink::default()) == Some(Schedule::TwoBw);
                    out.delayed = schedule.filter(|o| chosen(&o.value)).map(|o| o.value.span);
                }
                _ => {}
            }
        }
    } else if let Some((axis, _)) = options.mesh.iter().find(|(_, n)| *n != 1) {
        return Err(Diagnostic::error(
            "E0507",
            format!("`--mesh {axis}=..` asks for several ranks, but no plan is named"),
        )
        .with_note("a plan says what its ranks share: `plan p { mesh dp = 2; shard batch by dp }`")
        .help("name one with `--plan NAME`, or leave `--mesh` out"));
    }
    if let Some(p) = options.precision {
        out.precision = p;
    }
    Ok(out)
}

/// The options with a plan: the one that they name, else the file's only one. Its ranks may be many.
pub fn spread(options: &Options, world: &dyn World) -> Outcome<Options> {
    let mut out = options.clone();
    if out.plan.is_some() {
        return Ok(out);
    }
    let c = sound(check::load(&options.request, world))?;
    let plans = plan::all(&c.program);
    let d = match &plans[..] {
        [only] => {
            out.plan = Some(only.name.text.clone());
            return Ok(out);
        }
        [] => match options.mesh.first() {
            // A mesh without a plan, of which no statement can use an axis.
            Some((axis, _)) => Diagnostic::error("E0502", format!("axis `{axis}` of `--mesh` divides nothing"))
                .with_note("the file has no plan")
                .help(format!(
                    "add `plan NAME {{ mesh {axis} = ..; shard DIM by {axis} }}` to the file, or leave `--mesh` out"
                )),
            None => Diagnostic::error("E0509", "the file has no plan")
                .help("add `plan NAME { mesh dp = 2; shard DIM by dp }` to the file"),
        },
        several => {
            let names: Vec<&str> = several.iter().map(|p| p.name.text.as_str()).collect();
            Diagnostic::error("E0509", "the file has several plans")
                .help(format!("choose one with `--plan NAME`: {}", names.join(", ")))
        }
    };
    Err(with(d, &c.sources))
}

/// Names and sizes of the axes of the options' plan, and what is wrong with them.
pub fn axes(options: &Options, program: &Program, found: &mut Sink) -> Vec<(String, u64)> {
    let Some(Ok(ast)) = options.plan.as_ref().map(|name| plan::find(program, name)) else { return Vec::new() };
    let axes = crate::check::plan::mesh(ast, &options.mesh, found);
    axes.into_iter().map(|a| (a.name, a.size)).collect()
}

/// A precision by its name.
pub fn precision(name: &str) -> Option<DType> {
    DType::parse(name).filter(|t| t.is_float())
}
