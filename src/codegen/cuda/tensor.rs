//! Products of 16-bit matrices by tensor cores, with sums in f32.
//!
//! Eight warps, two down and four across, each with a part of the block's tile as 16 by 8 pieces (`mma.m16n8k16`). An operand's tile
//! lies in shared memory as it does in memory (the sum's dim inside or outside), and `ldmatrix` turns it where it must. Where rows
//! are whole vectors of 16 bytes, the next step's tiles come by `cp.async` while this step's are multiplied.

use super::product::{Product, Shape};
use super::types::stored;
use crate::types::DType;
use std::fmt::Write;

/// What of the sum one step takes.
const STEP: usize = 32;
/// Elements between the rows of a tile, so that eight of them lie in different banks.
const PAD: usize = 8;
const THREADS: u32 = 256;

/// Device functions that the kernels share.
pub const HELPERS: &str = r#"
// ---- tensor cores
DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
// 16 bytes to shared memory, later; zeros where there are none.
DEVICE void copy_later(void *to, const void *from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(real ? 16 : 0) : "memory");
}
DEVICE void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void wait_for_all_but() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
DEVICE void matrices(u32 (&x)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void matrices_turned(u32 (&x)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, f16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
"#;

/// How an operand's tile is brought to shared memory.
struct Operand {
    /// `a` or `b`.
    name: &'static str,
    /// The variable with the first line, and how many lines there are in all.
    first: &'static str,
    most: usize,
    lines: usize,
    /// Distances of neighbouring lines, and of neighbours along the sum.
    across: isize,
    along: isize,
    /// Whether neighbours along the sum lie side by side in shared memory.
    inside: bool,
    /// Whether it comes as vectors of 16 bytes.
    vectors: bool,
}

impl Operand {
    fn new(
        name: &'static str,
        first: &'static str,
        (most, lines): (usize, usize),
        (across, along): (isize, isize),
        (k, shape, aligned): (usize, &Shape, usize),
    ) -> Operand {
        let inside = along == 1 || across != 1;
        let (near, far, side) = if inside { (along, across, k) } else { (across, along, most) };
        let steps = shape.batch.iter().chain(&shape.sums).map(|d| if name == "a" { d.a } else { d.b });
        let whole = steps.chain([far]).all(|s| s % 8 == 0);
        let vectors = near == 1 && side.is_multiple_of(8) && whole && aligned.is_multiple_of(16);
        Operand { name, first, most, lines, across, along, inside, vectors }
    }

    /// Rows and columns in shared memory.
    fn extents(&self) -> (usize, usize) {
        if self.inside { (self.lines, STEP) } else { (STEP, self.lines) }
    }

    /// Statements that fill stage `stage` for the sum from `k0` on.
    fn fill(&self, k: usize, ty: &str) -> String {
        let Operand { name, first, most, across, along, .. } = self;
        let (rows, cols) = self.extents();
        let each = if self.vectors { 8 } else { 1 };
        let mut out = String::new();
        let _ = writeln!(
            out,
            "for (int e = threadIdx.x; e < {}; e += {THREADS}) {{\n    const int r = e / {1}, q = e % {1} * {each};",
            rows * cols / each,
            cols / each
        );
        let (line, kk) = if self.inside { ("r", "q") } else { ("q", "r") };
        let _ = writeln!(out, "    const bool real = {first} + {line} < {most} && k0 + {kk} < {k};");
        let address = format!("(i64)({first} + {line}) * {across} + (i64)(k0 + {kk}) * {along}");
        match self.vectors {
            true => {
                let _ = writeln!(
                    out,
                    "    copy_later(&{name}t[stage][r][q], real ? {name}s + ({address}) : {name}s, real);\n}}"
                );
            }
            false => {
                let _ = writeln!(out, "    {name}t[stage][r][q] = real ? {name}s[{address}] : {ty}{{0}};\n}}");
            }
        }
        out
    }
}

/// `aligned`: so many bytes are the starts of a and b at least aligned to.
pub fn emit(shape: &Shape, name: &str, aligned: [usize; 2]) -> Product {
    let tiles = |size: usize| shape.batches() * shape.m.div_ceil(size) * shape.n.div_ceil(size);
    let size = if tiles(128) >= 128 { 128 } else { 64 };
    let (down, across) = (size / 2 / 16, size / 4 / 8);
    let ty = if shape.dtype == DType::BF16 { "bf16" } else { "f16" };
    let k = shape.k;
    let a = Operand::new("a", "row0", (shape.m, size), shape.a, (k, shape, aligned[0]));
    let b = Operand::new("b", "col0", (shape.n, size), (shape.b.1, shape.b.0), (k, shape, aligned[1]));
    let steps = k.div_ceil(STEP);
    let all = steps * shape.outer_sums();
    let mut out = shape.head(name, THREADS, (size, size));
    for o in [&a, &b] {
        let (rows, cols) = o.extents();
        let _ = writeln!(out, "    __shared__ __align__(16) {ty} {}t[2][{rows}][{}];", o.name, cols + PAD);
    }
    let _ = write!(
        out,
        "    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 8, line = lane % 8;
    const int row1 = warp / 4 * {}, col1 = warp % 4 * {};
    float sums[{down}][{across}][4] = {{}};
    auto fill = [&](int turn, int stage) {{
        const int s = turn / {steps}, k0 = turn % {steps} * {STEP};
        (void)s;
",
        size / 2,
        size / 4
    );
    for l in shape.starts().lines().chain(a.fill(k, ty).lines()).chain(b.fill(k, ty).lines()) {
        let _ = writeln!(out, "        {l}");
    }
    let (a_load, a_at) = match a.inside {
        true => ("matrices", "at[stage][row1 + i * 16 + (group & 1) * 8 + line][kk + (group >> 1) * 8]"),
        false => ("matrices_turned", "at[stage][kk + (group >> 1) * 8 + line][row1 + i * 16 + (group & 1) * 8]"),
    };
    let (b_load, b_at) = match b.inside {
        true => ("matrices", "bt[stage][col1 + j * 8 + (group >> 1) * 8 + line][kk + (group & 1) * 8]"),
        false => ("matrices_turned", "bt[stage][kk + (group & 1) * 8 + line][col1 + j * 8 + (group >> 1) * 8]"),
    };
    let _ = write!(
        out,
        "        copies_end();
    }};
    fill(0, 0);
    for (int turn = 0; turn < {all}; ++turn) {{
        const int stage = turn & 1;
        if (turn + 1 < {all}) {{
            fill(turn + 1, stage ^ 1);
            wait_for_all_but<1>();
        }} else {{
            wait_for_all_but<0>();
        }}
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < {STEP}; kk += 16) {{
            u32 x[{down}][4], y[{across}][2];
#pragma unroll
            for (int i = 0; i < {down}; ++i) {a_load}(x[i], &{a_at});
#pragma unroll
            for (int j = 0; j < {across}; j += 2) {{
                u32 two[4];
                {b_load}(two, &{b_at});
                y[j][0] = two[0], y[j][1] = two[1], y[j + 1][0] = two[2], y[j + 1][1] = two[3];
            }}
#pragma unroll
            for (int i = 0; i < {down}; ++i)
#pragma unroll
                for (int j = 0; j < {across}; ++j) multiply(sums[i][j], x[i], y[j][0], y[j][1], {ty}());
        }}
        __syncthreads();
    }}
"
    );
    let add = if shape.accumulate { "wide(*to) + " } else { "" };
    let (m, n) = (shape.m, shape.n);
    let _ = write!(
        out,
        "#pragma unroll
    for (int i = 0; i < {down}; ++i)
#pragma unroll
        for (int j = 0; j < {across}; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {{
                const int row = row0 + row1 + i * 16 + lane / 4 + e / 2 * 8, col = col0 + col1 + j * 8 + lane % 4 * 2 + e % 2;
                if (row < {m} && col < {n}) {{
                    {} *to = c + ((i64)row * {} + (i64)col * {});
                    put(to, {add}sums[i][j][e]);
                }}
            }}
}}
",
        stored(shape.out),
        shape.c.0,
        shape.c.1
    );
    Product { text: out, blocks: shape.blocks((size, size)), threads: THREADS }
}
