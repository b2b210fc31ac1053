//! Attention as text, for one shape each: forward without stored scores, and backward, which computes them again.
//!
//! A block has a tile of queries (for cotangents of keys and values: of keys); four neighbouring threads have a row of it. Rows of the
//! other side come by tiles to shared memory. Sums are in f32 (f64).

use super::types::{constant, stored};
use crate::program::{Attention, AttentionGrad, BufferId, Strided};
use crate::types::DType;
use std::fmt::Write;

/// A function, how it is launched, and the arrays that it is called with.
pub struct Call {
    pub text: String,
    pub blocks: usize,
    pub threads: u32,
    pub shared: usize,
    pub args: Vec<Operand>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Operand {
    Buffer(BufferId),
    /// Of each query, how much its weights' cotangents are in common.
    Level,
}

/// An attention under way to text.
struct Emitter<'a> {
    of: &'a Attention,
    /// Type of sums.
    real: &'static str,
    tile: usize,
    out: String,
    params: Vec<String>,
    args: Vec<Operand>,
    /// Arrays by the names of their parameters.
    arrays: Vec<(&'static str, &'a Strided)>,
}

/// Rows of a tile.
fn tile(a: &Attention) -> usize {
    let bytes = if a.dtype == DType::F64 { 8 } else { 4 };
    if (a.features + a.width) * bytes > 1024 { 16 } else { 32 }
}

/// Bytes of the levels of a backward pass.
pub fn level_bytes(a: &Attention) -> usize {
    rows(a) * a.queries * if a.dtype == DType::F64 { 8 } else { 4 }
}

/// Combinations of batch and group.
fn rows(a: &Attention) -> usize {
    a.batch.iter().chain(&a.group).product()
}

impl<'a> Emitter<'a> {
    fn new(of: &'a Attention) -> Emitter<'a> {
        let real = if of.dtype == DType::F64 { "double" } else { "float" };
        let (out, params, args, arrays) = Default::default();
        Emitter { of, real, tile: tile(of), out, params, args, arrays }
    }

    fn line(&mut self, text: impl AsRef<str>) {
        for l in text.as_ref().lines() {
            let _ = writeln!(self.out, "    {l}");
        }
    }

    fn array(&mut self, name: &'static str, s: &'a Strided, ty: &str) {
        self.params.push(format!("{ty} *{name}"));
        self.args.push(Operand::Buffer(s.buffer));
        self.arrays.push((name, s));
    }

    /// What decides which scores there are.
    fn conditions(&mut self) {
        let of = self.of;
        let ty = format!("const {}", stored(of.dtype));
        if let Some([x, y]) = &of.documents {
            self.array("doc_q", x, "const int");
            self.array("doc_k", y, "const int");
        }
        if let Some(m) = &of.mask {
            self.array("mask", m, "const u8");
        }
        if let Some(b) = &of.bias {
            self.array("bias", b, &ty);
        }
        if let Some(f) = of.first {
            self.params.push("const int *first_at".to_string());
            self.args.push(Operand::Buffer(f));
        }
    }

    /// Moves all arrays to combination `n` of the outer dims `from..to`.
    fn outer(&mut self, from: usize, to: usize) {
        let extents: Vec<usize> = self.of.batch.iter().chain(&self.of.group).copied().collect();
        let mut behind = 1;
        let mut lines = String::new();
        for d in (from..to).rev() {
            for (name, s) in self.arrays.iter().filter(|(_, s)| s.steps[d] != 0) {
                let _ = writeln!(lines, "{name} += (i64)(n / {behind} % {}) * {};", extents[d], s.steps[d]);
            }
            behind *= extents[d].max(1);
        }
        self.line(lines);
    }

    /// The address of an element by query, key, feature and value.
    fn at(&self, name: &str, [query, key, feature, value]: [&str; 4]) -> String {
        let Some((_, s)) = self.arrays.iter().find(|(n, _)| *n == name) else { return String::new() };
        let own = self.of.batch.len() + self.of.group.len();
        let terms: Vec<String> = [query, key, feature, value]
            .iter()
            .zip(&s.steps[own..])
            .filter(|(x, step)| **step != 0 && !x.is_empty())
            .map(|(x, step)| format!("(i64)({x}) * {step}"))
            .collect();
        if terms.is_empty() { "0".to_string() } else { terms.join(" + ") }
    }

    /// `score`: of a product of a query and a key, and its slope by the product; minus infinity where the query does not see the key.
    fn score(&mut self) {
        let of = self.of;
        let real = self.real;
        let number = |x: f64| constant(if real == "double" { DType::F64 } else { DType::F32 }, x);
        let first = if of.first.is_some() { "first_at[0]" } else { "0" };
        self.line(format!("const int first = {first};"));
        let mut body = format!(
            "auto score = [&]({real} product, int query, int key, {real} &slope) -> {real} {{
    slope = {};
    if (query >= {} || key >= {}) return -INFINITE;
",
            number(of.scale),
            of.queries,
            of.keys
        );
        if of.causal {
            body.push_str("    if (key > first + query) return -INFINITE;\n");
        }
        if let Some(reach) = of.reach {
            let _ = writeln!(body, "    if (key <= first + query - {reach}) return -INFINITE;");
        }
        let at = |name| self.at(name, ["query", "key", "", ""]);
        if of.documents.is_some() {
            let _ = writeln!(body, "    if (doc_q[{}] != doc_k[{}]) return -INFINITE;", at("doc_q"), at("doc_k"));
        }
        if of.mask.is_some() {
            let _ = writeln!(body, "    if (!mask[{}]) return -INFINITE;", at("mask"));
        }
        let _ = writeln!(body, "    {real} s = product * slope;");
        if of.cap > 0.0 {
            let tanh = if real == "double" { "tanh" } else { "tanhf" };
            let (cap, one) = (number(of.cap), number(1.0));
            let _ = writeln!(
                body,
                "    const {real} t = {tanh}(s / {cap});\n    s = {cap} * t;\n    slope *= {one} - t * t;"
            );
        }
        if of.bias.is_some() {
            let _ = writeln!(body, "    s += wide(bias[{}]);", at("bias"));
        }
        body.push_str("    return s;\n};");
        self.line(body);
    }

    /// Brings rows `from..from + tile` of an array to shared memory; those that are not real are zeros.
    fn fill(&self, to: &str, name: &str, from: &str, by_query: bool, width: usize) -> String {
        let most = if by_query { self.of.queries } else { self.of.keys };
        let row = format!("{from} + r");
        let (query, key) = if by_query { (row.as_str(), "") } else { ("", row.as_str()) };
        let inner = if matches!(name, "q" | "k") { [query, key, "d", ""] } else { [query, key, "", "d"] };
        let (tile, threads, real) = (self.tile, 4 * self.tile, self.real);
        format!(
            "for (int e = threadIdx.x; e < {}; e += {threads}) {{
    const int r = e / {width}, d = e % {width};
    {to}[r * {} + d] = {row} < {most} ? ({real})wide({name}[{}]) : 0;
}}",
            tile * width,
            width + 1,
            self.at(name, inner)
        )
    }

    /// Products of this thread's row of `x` with every fourth row of `y`.
    fn products(&self, x: &str, y: &str, width: usize) -> String {
        let (real, each) = (self.real, self.tile / 4);
        let fma = if real == "double" { "fma" } else { "fmaf" };
        format!(
            "{real} {x}{y}[{each}] = {{}};
for (int d = 0; d < {width}; ++d) {{
    const {real} x = {x}[row * {0} + d];
#pragma unroll
    for (int j = 0; j < {each}; ++j) {x}{y}[j] = {fma}(x, {y}[(part + 4 * j) * {0} + d], {x}{y}[j]);
}}",
            width + 1
        )
    }

    /// Adds to `sums` the rows of `y`, each times a weight of this thread's row.
    fn weighted(&self, sums: &str, weights: &str, y: &str, width: usize) -> String {
        let (real, tile) = (self.real, self.tile);
        let fma = if real == "double" { "fma" } else { "fmaf" };
        format!(
            "for (int c = 0; c < {tile}; ++c) {{
    const {real} w = {weights}[row * {} + c];
#pragma unroll
    for (int j = 0; j < {}; ++j) if (part + 4 * j < {width}) {sums}[j] = {fma}(w, {y}[c * {} + part + 4 * j], {sums}[j]);
}}",
            tile + 1,
            width.div_ceil(4),
            width + 1
        )
    }

    /// Shared memory for arrays of these names and widths, each of a tile's rows.
    fn shared(&mut self, arrays: &[(&str, usize)]) -> usize {
        let real = self.real;
        self.line("extern __shared__ __align__(16) u8 room[];");
        let mut at = 0;
        for (name, width) in arrays {
            self.line(format!("{real} *{name} = ({real} *)room + {at};"));
            at += self.tile * (width + 1);
        }
        at * if real == "double" { 8 } else { 4 }
    }

    fn rows_of_threads(&mut self) {
        self.line("const int row = threadIdx.x / 4, part = threadIdx.x % 4;");
    }

    /// The keys that a tile of queries from `q0` on may see: `begin..end`.
    fn seen(&mut self) {
        let (of, tile) = (self.of, self.tile);
        let end = match of.causal {
            true => format!("min({}, max(0, first + min(q0 + {tile}, {})))", of.keys, of.queries),
            false => of.keys.to_string(),
        };
        let begin = match of.reach {
            Some(reach) => format!("max(0, first + q0 + 1 - {reach}) / {tile} * {tile}"),
            None => "0".to_string(),
        };
        self.line(format!("const int begin = {begin}, end = {end};"));
    }

    fn finish(self, title: &str, name: &str, blocks: usize, shared: usize) -> Call {
        let threads = 4 * self.tile as u32;
        let text = format!(
            "// {title}\nextern \"C\" __global__ void __launch_bounds__({threads}) {name}({}) {{\n{}}}\n",
            self.params.join(", "),
            self.out
        );
        Call { text, blocks: blocks.max(1), threads, shared, args: self.args }
    }
}

fn title(a: &Attention, what: &str) -> String {
    format!(
        "{what}: {} batch x {} group, {} queries, {} keys, {} features, {} values, {}{}",
        a.batch.iter().product::<usize>(),
        a.group.iter().product::<usize>(),
        a.queries,
        a.keys,
        a.features,
        a.width,
        a.dtype,
        if a.causal { ", causal" } else { "" }
    )
}

/// out, and the logsumexp of the scores.
pub fn forward(a: &Attention, name: &str) -> Call {
    let mut e = Emitter::new(a);
    let ty = stored(a.dtype);
    let read = format!("const {ty}");
    for (name, s) in [("q", &a.q), ("k", &a.k), ("v", &a.v)] {
        e.array(name, s, &read);
    }
    e.array("out", &a.out, ty);
    let real = e.real;
    if let Some(log) = &a.log {
        e.array("logs", log, real);
    }
    e.conditions();
    offsets(&mut e);
    let (d, w, tile) = (a.features, a.width, e.tile);
    let tiles = a.queries.div_ceil(tile);
    let each = tile / 4;
    let (exp, log) = if real == "double" { ("exp", "log") } else { ("expf", "logf") };
    let shared = e.shared(&[("qs", d), ("ks", d.max(w)), ("ps", tile)]);
    e.line(format!("const int n = blockIdx.x / {tiles}, q0 = blockIdx.x % {tiles} * {tile};"));
    e.outer(0, a.batch.len() + a.group.len());
    e.rows_of_threads();
    e.score();
    e.seen();
    e.line(e.fill("qs", "q", "q0", true, d));
    e.line(format!("{real} sums[{}] = {{}}, top = -INFINITE, total = 0;", w.div_ceil(4)));
    e.line(format!("for (int k0 = begin; k0 < end; k0 += {tile}) {{"));
    e.line("__syncthreads();");
    e.line(e.fill("ks", "k", "k0", false, d));
    e.line("__syncthreads();");
    e.line(e.products("qs", "ks", d));
    e.line(format!(
        "{real} best = -INFINITE, slope;
#pragma unroll
for (int j = 0; j < {each}; ++j) {{
    qsks[j] = score(qsks[j], q0 + row, k0 + part + 4 * j, slope);
    best = larger(best, qsks[j]);
}}
best = larger(best, swapped(best, 1));
best = larger(best, swapped(best, 2));
if (best > top) {{
    const {real} less = {exp}(top - best);
    total *= less;
#pragma unroll
    for (int j = 0; j < {0}; ++j) sums[j] *= less;
    top = best;
}}
#pragma unroll
for (int j = 0; j < {each}; ++j) {{
    const {real} weight = qsks[j] == -INFINITE ? 0 : {exp}(qsks[j] - top);
    total += weight;
    ps[row * {1} + part + 4 * j] = weight;
}}
__syncthreads();",
        w.div_ceil(4),
        tile + 1
    ));
    e.line(e.fill("ks", "v", "k0", false, w));
    e.line("__syncthreads();");
    e.line(e.weighted("sums", "ps", "ks", w));
    e.line("}");
    e.line(format!(
        "total += swapped(total, 1);
total += swapped(total, 2);
const int query = q0 + row;
if (query < {}) {{
#pragma unroll
    for (int j = 0; j < {}; ++j) {{
        const int d = part + 4 * j;
        if (d < {w}) put(out + ({}), total == 0 ? 0 : sums[j] / total);
    }}",
        a.queries,
        w.div_ceil(4),
        e.at("out", ["query", "", "", "d"])
    ));
    if a.log.is_some() {
        let at = e.at("logs", ["query", "", "", ""]);
        e.line(format!("    if (part == 0) logs[{at}] = total == 0 ? INFINITE : top + {log}(total);"));
    }
    e.line("}");
    e.finish(&title(a, "attention"), name, rows(a) * tiles, shared)
}

/// Moves arrays to their first element.
fn offsets(e: &mut Emitter<'_>) {
    let lines: Vec<String> =
        e.arrays.iter().filter(|(_, s)| s.offset != 0).map(|(n, s)| format!("{n} += {};", s.offset)).collect();
    e.line(lines.join("\n"));
}

/// The kernels of a backward pass, in their order. `name` is that of each by its number.
pub fn backward(g: &AttentionGrad, name: impl Fn(usize) -> String) -> Vec<Call> {
    let mut all = vec![levels(g, &name(0))];
    if g.dk.is_some() || g.dv.is_some() {
        all.push(of_keys(g, &name(1)));
    }
    if let Some(dq) = &g.dq {
        all.push(of_queries(g, dq, &name(2)));
    }
    all
}

/// The sum over values of result times cotangent, of each query.
fn levels(g: &AttentionGrad, name: &str) -> Call {
    let a = &g.of;
    let mut e = Emitter::new(a);
    let read = format!("const {}", stored(a.dtype));
    e.array("out", &a.out, &read);
    e.array("d_out", &g.d_out, &read);
    let real = e.real;
    e.params.push(format!("{real} *levels"));
    e.args.push(Operand::Level);
    offsets(&mut e);
    let (tile, w) = (e.tile, a.width);
    let tiles = a.queries.div_ceil(tile);
    e.line(format!("const int n = blockIdx.x / {tiles}, q0 = blockIdx.x % {tiles} * {tile};"));
    e.outer(0, a.batch.len() + a.group.len());
    e.rows_of_threads();
    let (x, y) = (e.at("out", ["query", "", "", "d"]), e.at("d_out", ["query", "", "", "d"]));
    e.line(format!(
        "const int query = q0 + row;
{real} sum = 0;
if (query < {0}) for (int d = part; d < {w}; d += 4) sum += ({real})wide(out[{x}]) * wide(d_out[{y}]);
sum += swapped(sum, 1);
sum += swapped(sum, 2);
if (query < {0} && part == 0) levels[(i64)n * {0} + query] = sum;",
        a.queries
    ));
    e.finish(&title(a, "attention, backward: levels"), name, rows(a) * tiles, 0)
}

/// Operands of the two kernels that compute scores again.
fn operands<'a>(e: &mut Emitter<'a>, g: &'a AttentionGrad) {
    let read = format!("const {}", stored(g.of.dtype));
    for (name, s) in [("q", &g.of.q), ("k", &g.of.k), ("v", &g.of.v), ("d_out", &g.d_out)] {
        e.array(name, s, &read);
    }
    let logs = format!("const {}", e.real);
    if let Some(log) = &g.of.log {
        e.array("logs", log, &logs);
    }
    e.params.push(format!("const {} *levels", e.real));
    e.args.push(Operand::Level);
}

/// From products `x` of scores and `y` of cotangents: weights to `ps` (if wanted), cotangents of products to `ds`.
fn cotangents(e: &Emitter<'_>, (x, y): (&str, &str), (query, key): (&str, &str), level: &str, weights: bool) -> String {
    let (real, tile) = (e.real, e.tile);
    let exp = if real == "double" { "exp" } else { "expf" };
    let log = e.at("logs", ["at", "", "", ""]);
    let keep = if weights { format!("    ps[row * {} + part + 4 * j] = weight;\n", tile + 1) } else { String::new() };
    format!(
        "#pragma unroll
for (int j = 0; j < {}; ++j) {{
    {real} slope;
    const int query = {query}, key = {key};
    const {real} s = score({x}[j], query, key, slope);
    // Of queries that are not real nothing is read.
    const int at = min(query, {});
    const {real} weight = s == -INFINITE ? 0 : {exp}(s - logs[{log}]);
{keep}    ds[row * {} + part + 4 * j] = weight * ({y}[j] - levels[{level} + at]) * slope;
}}
__syncwarp();",
        tile / 4,
        e.of.queries.saturating_sub(1),
        tile + 1
    )
}

/// dk and dv: of a tile of keys, over all queries of all groups.
fn of_keys(g: &AttentionGrad, name: &str) -> Call {
    let a = &g.of;
    let mut e = Emitter::new(a);
    operands(&mut e, g);
    let ty = stored(a.dtype);
    for (name, s) in [("dk", &g.dk), ("dv", &g.dv)] {
        if let Some(s) = s {
            e.array(name, s, ty);
        }
    }
    e.conditions();
    offsets(&mut e);
    let (d, w, tile, real) = (a.features, a.width, e.tile, e.real);
    let tiles = a.keys.div_ceil(tile);
    let groups: usize = a.group.iter().product();
    let shared = e.shared(&[("ks", d), ("vs", w), ("qs", d), ("os", w), ("ps", tile), ("ds", tile)]);
    e.line(format!("int n = blockIdx.x / {tiles};\nconst int batch = n, k0 = blockIdx.x % {tiles} * {tile};"));
    e.outer(0, a.batch.len());
    e.rows_of_threads();
    e.line(e.fill("ks", "k", "k0", false, d));
    e.line(e.fill("vs", "v", "k0", false, w));
    e.line(format!("{real} of_k[{}] = {{}}, of_v[{}] = {{}};", d.div_ceil(4), w.div_ceil(4)));
    // The queries that see one of these keys.
    let first = if a.first.is_some() { "first_at[0]" } else { "0" };
    let begin = if a.causal { format!("max(0, k0 - {first}) / {tile} * {tile}") } else { "0".into() };
    let end = match a.reach {
        Some(reach) => format!("max(0, min({}, k0 + {} - {first}))", a.queries, tile - 1 + reach as usize),
        None => a.queries.to_string(),
    };
    e.line(format!("const int begin = {begin}, end = {end};"));
    e.line(format!("for (n = 0; n < {groups}; ++n) {{"));
    // Arrays of this group alone; those that lack its dims stay.
    let outer: Vec<&str> = e.arrays.iter().map(|(n, _)| *n).filter(|n| !matches!(*n, "dk" | "dv")).collect();
    let shadow: Vec<String> = outer.iter().map(|n| format!("auto {n}_all = {n};")).collect();
    e.line(shadow.join(" "));
    e.outer(a.batch.len(), a.batch.len() + a.group.len());
    e.line("{");
    e.score();
    e.line(format!("for (int q0 = begin; q0 < end; q0 += {tile}) {{"));
    e.line("__syncthreads();");
    e.line(e.fill("qs", "q", "q0", true, d));
    e.line(e.fill("os", "d_out", "q0", true, w));
    e.line("__syncthreads();");
    e.line(e.products("ks", "qs", d));
    e.line(e.products("vs", "os", w));
    let level = format!("((i64)batch * {groups} + n) * {}", a.queries);
    e.line(cotangents(&e, ("ksqs", "vsos"), ("q0 + part + 4 * j", "k0 + row"), &level, true));
    if g.dk.is_some() {
        e.line(e.weighted("of_k", "ds", "qs", d));
    }
    if g.dv.is_some() {
        e.line(e.weighted("of_v", "ps", "os", w));
    }
    e.line("}\n}");
    let back: Vec<String> = outer.iter().map(|n| format!("{n} = {n}_all;")).collect();
    e.line(back.join(" "));
    e.line("}");
    e.line(format!("const int key = k0 + row;\nif (key < {}) {{", a.keys));
    for (name, sums, width, there) in [("dk", "of_k", d, g.dk.is_some()), ("dv", "of_v", w, g.dv.is_some())] {
        if there {
            let inner = if name == "dk" { ["", "key", "d", ""] } else { ["", "key", "", "d"] };
            let at = e.at(name, inner);
            e.line(format!(
                "#pragma unroll\nfor (int j = 0; j < {}; ++j) {{\n    const int d = part + 4 * j;\n    if (d < {width}) put({name} + ({at}), {sums}[j]);\n}}",
                width.div_ceil(4)
            ));
        }
    }
    e.line("}");
    let batches: usize = a.batch.iter().product();
    e.finish(&title(a, "attention, backward: keys and values"), name, batches * tiles, shared)
}

/// dq: of a tile of queries, over all keys.
fn of_queries(g: &AttentionGrad, dq: &Strided, name: &str) -> Call {
    let a = &g.of;
    let mut e = Emitter::new(a);
    operands(&mut e, g);
    e.array("dq", dq, stored(a.dtype));
    e.conditions();
    offsets(&mut e);
    let (d, w, tile, real) = (a.features, a.width, e.tile, e.real);
    let tiles = a.queries.div_ceil(tile);
    let shared = e.shared(&[("ks", d), ("vs", w), ("qs", d), ("os", w), ("ds", tile)]);
    e.line(format!("const int n = blockIdx.x / {tiles}, q0 = blockIdx.x % {tiles} * {tile};"));
    e.outer(0, a.batch.len() + a.group.len());
    e.rows_of_threads();
    e.score();
    e.seen();
    e.line(e.fill("qs", "q", "q0", true, d));
    e.line(e.fill("os", "d_out", "q0", true, w));
    e.line(format!("{real} of_q[{}] = {{}};", d.div_ceil(4)));
    e.line(format!("for (int k0 = begin; k0 < end; k0 += {tile}) {{"));
    e.line("__syncthreads();");
    e.line(e.fill("ks", "k", "k0", false, d));
    e.line(e.fill("vs", "v", "k0", false, w));
    e.line("__syncthreads();");
    e.line(e.products("qs", "ks", d));
    e.line(e.products("os", "vs", w));
    let level = format!("(i64)n * {}", a.queries);
    e.line(cotangents(&e, ("qsks", "osvs"), ("q0 + row", "k0 + part + 4 * j"), &level, false));
    e.line(e.weighted("of_q", "ds", "ks", d));
    e.line("}");
    let at = e.at("dq", ["query", "", "d", ""]);
    e.line(format!(
        "const int query = q0 + row;\nif (query < {}) {{\n#pragma unroll\n    for (int j = 0; j < {}; ++j) {{\n        const int d = part + 4 * j;\n        if (d < {d}) put(dq + ({at}), of_q[j]);\n    }}\n}}",
        a.queries,
        d.div_ceil(4)
    ));
    e.finish(&title(a, "attention, backward: queries"), name, rows(a) * tiles, shared)
}
