//! The runtime's own kernels as text: sorting, queues, draws of classes, random numbers, scatters.
//!
//! Orders are found by counting, for each element, those that come before it: many comparisons, but no thread waits for another, and
//! the result is one order, whatever runs first. A scatter has the elements of each target in ascending order that way.

use super::expr::draw;
use super::types::{constant, held, stored};
use crate::program::{BufferId, GpuArg, Key, Library, Routine, Scalar};
use crate::types::{DType, ReduceKind};

/// A function with a place for its name (`KERNEL`), and one launch of it.
pub struct Piece {
    pub stem: &'static str,
    pub text: String,
    pub blocks: usize,
    pub threads: u32,
    pub shared: usize,
    pub args: Vec<GpuArg>,
    pub scalars: Vec<Scalar>,
}

const THREADS: u32 = 256;
/// Most blocks of a loop over elements.
const MOST_BLOCKS: usize = 1 << 14;

/// Device functions that the kernels share.
pub const HELPERS: &str = r#"
// ---- orders: NaN is above all numbers
template <class T> DEVICE bool below(T a, T b) { return a < b || (a == a && b != b); }
"#;

fn piece(stem: &'static str, elements: usize, params: &str, body: &str, args: Vec<GpuArg>) -> Piece {
    let text = format!(
        "extern \"C\" __global__ void __launch_bounds__({THREADS}) KERNEL({params}) {{
    for (i64 n = blockIdx.x * (i64){THREADS} + threadIdx.x; n < {elements}ll; n += gridDim.x * (i64){THREADS}) {{
{body}    }}
}}
"
    );
    let blocks = elements.div_ceil(THREADS as usize).clamp(1, MOST_BLOCKS);
    Piece { stem, text, blocks, threads: THREADS, shared: 0, args, scalars: Vec::new() }
}

fn whole(b: BufferId) -> GpuArg {
    GpuArg::Buffer(b, 0)
}

/// The kernels of a call, in order, and the bytes of scratch that they share. None for attention, which has a file of its own.
pub fn pieces(call: &Library, routine: &Routine) -> Option<(Vec<Piece>, usize)> {
    let dtype = |b: BufferId| routine.buffer(b).dtype;
    Some(match call {
        Library::ArgSort { x, out, rows, n } => (vec![sorted(dtype(*x), (*x, whole(*out)), (*rows, *n, *n), false)], 0),
        Library::TopK { x, out, rows, n, k } => (vec![sorted(dtype(*x), (*x, whole(*out)), (*rows, *n, *k), true)], 0),
        Library::PackPlace { index, out, rows, n, limit } => {
            let body = format!(
                "        const int *row = index + n / {n} * {n};
        const int own = (int)(n % {n}), mine = row[own];
        int before = 0;
        for (int j = 0; j < own; ++j) before += row[j] == mine;
        out[n] = mine < 0 || before >= {limit} ? -1 : before;
"
            );
            let args = vec![whole(*index), whole(*out)];
            (vec![piece("places", rows * n, "const int *index, int *out", &body, args)], 0)
        }
        Library::Random { out, dist, key } => {
            let value = draw(*dist, "scalars[0]", "(u64)n");
            let body = format!("        put(out + n, {value});\n");
            let elements = routine.buffer(*out).elements;
            let args = vec![whole(*out), GpuArg::Scalars];
            let mut p = piece("random", elements, "float *out, const u64 *scalars", &body, args);
            p.scalars.push(Scalar::Key(key.clone()));
            (vec![p], 0)
        }
        Library::Draw { logits, out, rows, n, key, .. } => drawn(dtype(*logits), (*logits, *out), (*rows, *n), key),
        Library::Scatter { kind, x, index, out, batch, m, targets, width, times, each, add } => {
            let order = ranked(*index, (*batch, *m, *targets));
            let shape = (*batch, *m, *targets, *width, *times, *each);
            let sums = scattered(*kind, dtype(*x), (*x, *out), shape, *add);
            (vec![order, sums], 2 * 4 * batch * m)
        }
        Library::Attention(_) | Library::AttentionGrad(_) => return None,
    })
}

/// Indices of the `k` smallest (largest) of each row, in order.
fn sorted(dtype: DType, (x, out): (BufferId, GpuArg), (rows, n, k): (usize, usize, usize), largest: bool) -> Piece {
    let (ty, before) = (held(dtype), if largest { "below(mine, other)" } else { "below(other, mine)" });
    let body = format!(
        "        const {0} *row = x + n / {n} * {n};
        const int own = (int)(n % {n});
        const {ty} mine = wide(row[own]);
        int place = 0;
        for (int j = 0; j < {n}; ++j) {{
            const {ty} other = wide(row[j]);
            const bool equal = !below(mine, other) && !below(other, mine);
            place += {before} || (equal && j < own);
        }}
        if (place < {k}) out[n / {n} * {k} + place] = own;
",
        stored(dtype)
    );
    let params = format!("const {} *x, int *out", stored(dtype));
    piece("order", rows * n, &params, &body, vec![whole(x), out])
}

/// A class of each row, drawn as the host draws: see `Library::Draw`. Who may be drawn is known when it runs: scalars 1 and 2 are how
/// many of the largest, and the bits of their part of the probability.
fn drawn(
    dtype: DType,
    (logits, out): (BufferId, BufferId),
    (rows, n): (usize, usize),
    key: &Key,
) -> (Vec<Piece>, usize) {
    let (ty, weights) = (held(dtype), rows * n * 8);
    let limits = format!(
        "const int top_k = (int)scalars[1], first = top_k == 0 || top_k > {n} ? {n} : top_k;
    const double top_p = __longlong_as_double((i64)scalars[2]);
    const bool limited = first < {n} || top_p < 1;
"
    );
    let mut order = sorted(dtype, (logits, GpuArg::Scratch(weights as u64)), (rows, n, n), true);
    order.stem = "draw_order";
    order.text = order.text.replacen("int *out)", "int *out, const u64 *scalars)", 1).replacen(
        " {\n",
        &format!(" {{\n    {limits}    if (!limited || top_k == 1) return;\n"),
        1,
    );
    order.args.push(GpuArg::Scalars);
    order.scalars.push(Scalar::Key(key.clone()));
    // Rows are few, and sums are in the host's order.
    let text = format!(
        "extern \"C\" __global__ void KERNEL(const {0} *logits, int *out, double *weights, const int *order, const u64 *scalars) {{
    const int r = blockIdx.x;
    logits += (i64)r * {n}, weights += (i64)r * {n}, order += (i64)r * {n};
    {limits}    int largest = 0;
    for (int i = 1; i < {n}; ++i) if (below<{ty}>(wide(logits[largest]), wide(logits[i]))) largest = i;
    if (top_k == 1) {{
        out[r] = largest;
        return;
    }}
    const double top = wide(logits[largest]);
    auto weight = [&](int i) {{ const double x = wide(logits[i]); return x == top ? 1. : exp(x - top); }};
    double mass = 0;
    if (limited) {{
        double all = 0;
        for (int j = 0; j < first; ++j) all += weight(order[j]);
        for (int i = 0; i < {n}; ++i) weights[i] = 0;
        for (int j = 0; j < first && !(mass > 0 && mass >= top_p * all); ++j) mass += weights[order[j]] = weight(order[j]);
    }} else {{
        for (int i = 0; i < {n}; ++i) mass += weights[i] = weight(i);
    }}
    const double goal = random_unit(scalars[0], r) * mass;
    double sum = 0;
    int chosen = largest;
    for (int i = 0; i < {n} && !(sum > goal); ++i) {{
        sum += weights[i];
        if (weights[i] > 0) chosen = i;
    }}
    out[r] = chosen;
}}
",
        stored(dtype)
    );
    let args = vec![whole(logits), whole(out), GpuArg::Scratch(0), GpuArg::Scratch(weights as u64), GpuArg::Scalars];
    let scalars = vec![Scalar::Key(key.clone())];
    let draw = Piece { stem: "draw", text, blocks: rows.max(1), threads: 1, shared: 0, args, scalars };
    (vec![order, draw], weights + rows * n * 4)
}

/// To scratch memory: targets in ascending order, and beside each the element that goes there; of equals in order.
fn ranked(index: BufferId, (batch, m, targets): (usize, usize, usize)) -> Piece {
    let body = format!(
        "        const int *row = index + n / {m} * {m};
        const int own = (int)(n % {m});
        const u32 mine = min((u32)row[own], {targets}u);
        int place = 0;
        for (int j = 0; j < {m}; ++j) {{
            const u32 other = min((u32)row[j], {targets}u);
            place += other < mine || (other == mine && j < own);
        }}
        target[n / {m} * {m} + place] = (int)mine;
        element[n / {m} * {m} + place] = own;
"
    );
    let bytes = (4 * batch * m) as u64;
    let args = vec![whole(index), GpuArg::Scratch(0), GpuArg::Scratch(bytes)];
    piece("targets", batch * m, "const int *index, int *target, int *element", &body, args)
}

/// What goes to each target, put together.
fn scattered(
    kind: ReduceKind,
    dtype: DType,
    (x, out): (BufferId, BufferId),
    (batch, m, targets, width, times, each): (usize, usize, usize, usize, usize, usize),
    add: bool,
) -> Piece {
    let (ty, sum) = (stored(dtype), held(dtype));
    let start = match add {
        true => "wide(out[n])".to_string(),
        false => constant(dtype, kind.neutral(dtype)),
    };
    let combine = match kind {
        ReduceKind::Max => "larger(sum, value)",
        ReduceKind::Min => "smaller(sum, value)",
        _ => "sum + value",
    };
    let row = match times {
        1 => "i".to_string(),
        _ => format!("i / {} * {each} + i % {each}", each * times),
    };
    let rows = m / times;
    let body = format!(
        "        const int w = (int)(n % {width}), own = (int)(n / {width} % {targets});
        const i64 b = n / {per};
        const int *t = target + b * {m}, *e = element + b * {m};
        int low = 0, high = {m};
        while (low < high) {{
            const int middle = (low + high) / 2;
            if (t[middle] < own) low = middle + 1; else high = middle;
        }}
        {sum} sum = {start};
        for (; low < {m} && t[low] == own; ++low) {{
            const int i = e[low];
            const {sum} value = wide(x[(b * {rows} + ({row})) * {width} + w]);
            sum = {combine};
        }}
        put(out + n, sum);
",
        per = (width * targets).max(1)
    );
    let bytes = (4 * batch * m) as u64;
    let params = format!("const {ty} *x, const int *target, const int *element, {ty} *out");
    let args = vec![whole(x), GpuArg::Scratch(0), GpuArg::Scratch(bytes), whole(out)];
    piece("scatter", batch * targets * width, &params, &body, args)
}
