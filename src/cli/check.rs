//! `partita check`: findings, and how large each model is.

use super::args::CheckArgs;
use super::output::Output;
use super::{Code, ERROR, OK};
use crate::diag::render;
use crate::driver::{Findings, Options, check};
use crate::source::Disk;
use crate::types::counted;
use crate::types::grouped;

pub fn run(args: &CheckArgs, out: &mut Output) -> Code {
    let request = args.source.request();
    let c = match args.plan.is_some() || !args.mesh.is_empty() {
        true => {
            let (plan, mesh) = (args.plan.clone(), args.mesh.clone());
            check::check_with_plan(&Options { request, plan, mesh, ..Options::default() }, &Disk)
        }
        false => check::check(&request, &Disk),
    };
    let failed = c.sink.has_errors();
    if args.json {
        out.text(&render::json(&c.sink, &c.sources));
        for m in &c.models {
            let line = serde_json::json!({"model": m.name, "parameters": m.parameters, "states": m.states,
                "tensors": m.tensors});
            out.line(line.to_string());
        }
        return if failed { ERROR } else { OK };
    }
    for m in &c.models {
        let mut line = format!("{}: {}", m.name, counted(grouped(m.parameters), "parameter"));
        if m.states > 0 {
            line += &format!(", {} values of state", grouped(m.states));
        }
        out.line(line);
    }
    if c.models.is_empty() && !failed {
        let path = args.source.request().path;
        out.line(format!("{}: ok, {} and no model", path.display(), counted(c.definitions(), "definition")));
    }
    out.findings(&Findings { sources: c.sources, sink: c.sink })
}
