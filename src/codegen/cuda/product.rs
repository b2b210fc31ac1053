//! Matrix products as text, for one shape each.
//!
//! A block computes a tile of the result, and goes over the sum in steps for which both operands' tiles lie in shared memory. 16-bit
//! operands are multiplied by tensor cores (`tensor.rs`), all others by ordinary arithmetic (here).

use super::tensor;
use super::types::{held, stored};
use crate::program::{BatchDim, Gemm};
use crate::types::DType;
use std::fmt::Write;

/// A function and how it is launched.
pub struct Product {
    pub text: String,
    pub blocks: u32,
    pub threads: u32,
}

/// A product whose result is row-major where possible: else that of the transposed operands.
pub struct Shape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// (rows, cols) of each: distances of neighbours.
    pub a: (isize, isize),
    pub b: (isize, isize),
    pub c: (isize, isize),
    pub batch: Vec<BatchDim>,
    pub sums: Vec<BatchDim>,
    pub dtype: DType,
    pub out: DType,
    pub accumulate: bool,
    /// The operands have changed places.
    pub swapped: bool,
}

impl Shape {
    pub fn of(g: &Gemm) -> Shape {
        let swapped = g.c.cols != 1 && g.c.rows == 1;
        let flip = |m: &crate::program::Matrix| if swapped { (m.cols, m.rows) } else { (m.rows, m.cols) };
        let dims = |dims: &[BatchDim]| -> Vec<BatchDim> {
            let flip = |d: &BatchDim| if swapped { BatchDim { a: d.b, b: d.a, ..*d } } else { *d };
            dims.iter().map(flip).collect()
        };
        let (a, b) = if swapped { (&g.b, &g.a) } else { (&g.a, &g.b) };
        let (m, n) = if swapped { (g.n, g.m) } else { (g.m, g.n) };
        Shape {
            m,
            n,
            k: g.k,
            a: flip(a),
            b: flip(b),
            c: flip(&g.c),
            batch: dims(&g.batch),
            sums: dims(&g.sums),
            dtype: g.dtype,
            out: g.out,
            accumulate: g.accumulate,
            swapped,
        }
    }

    pub fn batches(&self) -> usize {
        self.batch.iter().map(|d| d.extent).product()
    }

    /// Turns of the sum's outer dims.
    pub fn outer_sums(&self) -> usize {
        self.sums.iter().map(|d| d.extent).product()
    }

    fn title(&self) -> String {
        let Shape { m, n, k, dtype, out, .. } = self;
        let of = |name: &str, dims: &[BatchDim]| match dims {
            [] => String::new(),
            dims => format!(", {name} {}", dims.iter().map(|d| d.extent.to_string()).collect::<Vec<_>>().join(" x ")),
        };
        let sign = if self.accumulate { "+=" } else { "=" };
        let (batch, sums) = (of("batch", &self.batch), of("further sums", &self.sums));
        format!("// c[{m}, {n}] {sign} a[{m}, {k}] . b[{k}, {n}]: {dtype} to {out}{batch}{sums}\n")
    }

    /// The head of a function, to where a block knows its tile and the starts of its matrices.
    pub fn head(&self, name: &str, threads: u32, (height, width): (usize, usize)) -> String {
        let mut out = self.title();
        let (read, written) = (stored(self.dtype), stored(self.out));
        let _ = writeln!(
            out,
            "extern \"C\" __global__ void __launch_bounds__({threads}) {name}(const {read} *a, const {read} *b, {written} *c) {{"
        );
        let (across, down) = (self.n.div_ceil(width).max(1), self.m.div_ceil(height).max(1));
        let _ = writeln!(out, "    int tile = blockIdx.x;");
        let _ = writeln!(out, "    const int col0 = tile % {across} * {width};\n    tile /= {across};");
        let _ = writeln!(out, "    const int row0 = tile % {down} * {height};\n    tile /= {down};");
        for d in self.batch.iter().rev() {
            let _ = writeln!(out, "    {{\n        const i64 i = tile % {0};\n        tile /= {0};", d.extent);
            for (name, step) in [("a", d.a), ("b", d.b), ("c", d.c)].iter().filter(|(_, s)| *s != 0) {
                let _ = writeln!(out, "        {name} += i * {step};");
            }
            out.push_str("    }\n");
        }
        out
    }

    pub fn blocks(&self, (height, width): (usize, usize)) -> u32 {
        (self.batches() * self.n.div_ceil(width) * self.m.div_ceil(height)).max(1) as u32
    }

    /// The operands' starts for a turn `s` of the further sums.
    pub fn starts(&self) -> String {
        let ty = stored(self.dtype);
        let mut out = format!("const {ty} *as = a, *bs = b;\n");
        let mut behind = 1;
        for d in self.sums.iter().rev() {
            for (name, step) in [("as", d.a), ("bs", d.b)].iter().filter(|(_, s)| *s != 0) {
                let _ = writeln!(out, "{name} += (i64)(s / {behind} % {}) * {step};", d.extent);
            }
            behind *= d.extent.max(1);
        }
        out
    }
}

pub fn emit(shape: &Shape, name: &str, aligned: [usize; 2]) -> Product {
    match shape.dtype {
        DType::F16 | DType::BF16 if shape.k > 0 => tensor::emit(shape, name, aligned),
        _ => plain(shape, name),
    }
}

/// Tiles of 64 by 64, of which a thread has 4 by 4, in steps of 16.
fn plain(shape: &Shape, name: &str) -> Product {
    let (tile, step, threads) = ((64, 64), 16, 256);
    let ty = held(shape.dtype);
    let sum = if matches!(shape.dtype, DType::Bool) { "int" } else { ty };
    let (multiply, zero) = match shape.dtype {
        DType::F64 => ("sums[i][j] = fma(x[i], y[j], sums[i][j]);", "0."),
        DType::I32 | DType::Bool => ("sums[i][j] = (int)((u32)sums[i][j] + (u32)x[i] * (u32)y[j]);", "0"),
        _ => ("sums[i][j] = fmaf(x[i], y[j], sums[i][j]);", "0.f"),
    };
    let mut out = shape.head(name, threads, tile);
    let Shape { m, n, k, .. } = shape;
    let _ = writeln!(out, "    __shared__ {ty} at[{step}][68], bt[{step}][68];");
    let _ = writeln!(out, "    {sum} sums[4][4] = {{}};");
    let _ = writeln!(out, "    const int x0 = threadIdx.x % 16 * 4, y0 = threadIdx.x / 16 * 4;");
    let _ = writeln!(out, "    for (int s = 0; s < {}; ++s) {{", shape.outer_sums());
    shape.starts().lines().for_each(|l| {
        let _ = writeln!(out, "        {l}");
    });
    let _ = writeln!(out, "        for (int k0 = 0; k0 < {k}; k0 += {step}) {{");
    let mut fill = |to: &str, from: &str, first: &str, most: usize, across: isize, along: isize| {
        // Neighbouring threads read neighbouring elements.
        let (i, kk) = if along == 1 { ("e / 16", "e % 16") } else { ("e % 64", "e / 64") };
        let _ = writeln!(out, "            for (int e = threadIdx.x; e < {}; e += {threads}) {{", 64 * step);
        let _ = writeln!(out, "                const int i = {i}, kk = {kk};");
        let _ = writeln!(out, "                const bool real = {first} + i < {most} && k0 + kk < {k};");
        let address = format!("(i64)({first} + i) * {across} + (i64)(k0 + kk) * {along}");
        let _ = writeln!(out, "                {to}[kk][i] = real ? wide({from}[{address}]) : {zero};");
        let _ = writeln!(out, "            }}");
    };
    fill("at", "as", "row0", *m, shape.a.0, shape.a.1);
    fill("bt", "bs", "col0", *n, shape.b.1, shape.b.0);
    let _ = write!(
        out,
        "            __syncthreads();
#pragma unroll
            for (int kk = 0; kk < {step}; ++kk) {{
                {ty} x[4], y[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) x[i] = at[kk][y0 + i], y[i] = bt[kk][x0 + i];
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {multiply}
            }}
            __syncthreads();
        }}
    }}
"
    );
    let add = if shape.accumulate { "wide(*to) + " } else { "" };
    let _ = write!(
        out,
        "#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {{
            const int row = row0 + y0 + i, col = col0 + x0 + j;
            if (row < {m} && col < {n}) {{
                {} *to = c + ((i64)row * {} + (i64)col * {});
                put(to, {add}sums[i][j]);
            }}
        }}
}}
",
        stored(shape.out),
        shape.c.0,
        shape.c.1
    );
    Product { text: out, blocks: shape.blocks(tile), threads }
}
