//! Moving what ranks exchange, where it does not lie side by side: packed, unpacked, reduced, cleared.
//!
//! All of them take a geometry: the length of a run, the number of loops around it, and for each loop (major first) how often it turns
//! and how far apart its turns are on both sides. Elements are counted row-major.

use super::types::{constant, held, stored};
use crate::program::{Action, Program, Step};
use crate::types::{DType, ReduceKind};
use indexmap::IndexSet;

const HELPERS: &str = r#"
// ---- exchanges between ranks
struct Places { i64 from, to; };
DEVICE Places places(i64 n, const i64 *geometry) {
    i64 number = n / geometry[0];
    Places p = {n % geometry[0], n % geometry[0]};
    for (int l = (int)geometry[1] - 1; l >= 0; --l) {
        const i64 *loop = geometry + 2 + 3 * l, i = number % loop[0];
        number /= loop[0];
        p.from += i * loop[1];
        p.to += i * loop[2];
    }
    return p;
}
"#;

/// Names and texts of the kernels that a program's exchanges need; none for one rank.
pub fn functions(program: &Program) -> (String, Vec<(String, String)>) {
    if program.mesh.ranks() <= 1 {
        return (String::new(), Vec::new());
    }
    let mut all = Vec::new();
    for (bytes, ty) in [(1, "u8"), (2, "unsigned short"), (4, "u32"), (8, "u64")] {
        let name = format!("exchange_copy_{bytes}");
        let body = "const Places p = places(n, geometry);\n        to[p.to] = from[p.from];";
        all.push((name.clone(), function(&name, &format!("const {ty} *from, {ty} *to"), body)));
        let name = format!("exchange_clear_{bytes}");
        all.push((name.clone(), function(&name, &format!("{ty} *to"), "to[places(n, geometry).to] = 0;")));
    }
    let mut reduced: IndexSet<(ReduceKind, DType)> = IndexSet::new();
    program.routines.iter().for_each(|r| kinds(&r.steps, &mut reduced));
    for (kind, dtype) in reduced {
        let name = format!("exchange_{}_{}", kind.name(), dtype.name());
        let (ty, sum) = (stored(dtype), held(dtype));
        let x = "wide(parts[part * stride + n])";
        let combine = match kind {
            ReduceKind::Sum => format!("sum + {x}"),
            ReduceKind::Prod => format!("sum * {x}"),
            ReduceKind::Max | ReduceKind::ArgMax => format!("larger(sum, {x})"),
            ReduceKind::Min | ReduceKind::ArgMin => format!("smaller(sum, {x})"),
            ReduceKind::Any => format!("sum || {x}"),
            ReduceKind::All => format!("sum && {x}"),
        };
        let start = constant(dtype, kind.neutral(dtype));
        let body = format!(
            "{sum} sum = {start};
        for (i64 part = 0; part < count; ++part) sum = {combine};
        put(to + places(n, geometry).to, sum);"
        );
        let params = format!("const {ty} *parts, {ty} *to, i64 count, i64 stride");
        all.push((name.clone(), function(&name, &params, &body)));
    }
    (HELPERS.to_string(), all)
}

fn function(name: &str, params: &str, body: &str) -> String {
    format!(
        "extern \"C\" __global__ void __launch_bounds__(256) {name}({params}, i64 elements, const i64 *geometry) {{
    for (i64 n = blockIdx.x * 256ll + threadIdx.x; n < elements; n += gridDim.x * 256ll) {{
        {body}
    }}
}}
"
    )
}

fn kinds(steps: &[Step], all: &mut IndexSet<(ReduceKind, DType)>) {
    for step in steps {
        match &step.action {
            Action::Collective(c) => all.extend(c.reduce.as_ref().map(|(kind, _)| (*kind, c.dtype))),
            Action::Loop(l) => kinds(&l.body, all),
            _ => {}
        }
    }
}
