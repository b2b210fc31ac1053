//! Expressions as CUDA C.

use super::types::{constant, float, held};
use crate::codegen::plan::small_power;
use crate::kernel::{ExprId, Index, Kernel, Node};
use crate::types::rng::{Dist, TWO_SIGMA_MASS};
use crate::types::{DType, MapOp};

/// Whether an address may need more than 31 bits.
fn is_far(kernel: &Kernel, index: &Index) -> bool {
    let reach = |(l, k): &(crate::kernel::LoopId, i64)| k.unsigned_abs() as u128 * kernel.extents[l.index()] as u128;
    !index.exprs.is_empty()
        || index.base.unsigned_abs() as u128 + index.loops.iter().map(reach).sum::<u128>() >= 1 << 31
}

/// The value of an index, where `extra` is added to one loop's.
pub fn index(kernel: &Kernel, index: &Index) -> String {
    let far = is_far(kernel, index);
    let mut out = String::new();
    let mut term = |k: i64, name: String| {
        let sign = match (out.is_empty(), k < 0) {
            (true, true) => "-",
            (true, false) => "",
            (false, true) => " - ",
            (false, false) => " + ",
        };
        out.push_str(sign);
        if k.abs() != 1 {
            out.push_str(&format!("{} * ", k.unsigned_abs()));
        }
        out.push_str(&name);
    };
    let wide = |name: String| if far { format!("(i64){name}") } else { name };
    index.loops.iter().for_each(|(l, k)| term(*k, wide(l.to_string())));
    index.exprs.iter().for_each(|(e, k)| term(*k, wide(e.to_string())));
    match (out.is_empty(), index.base) {
        (true, base) => format!("{base}{}", if far { "ll" } else { "" }),
        (false, 0) => out,
        (false, base) if base < 0 => format!("{out} - {}", base.unsigned_abs()),
        (false, base) => format!("{out} + {base}"),
    }
}

/// The value of an expression whose operands are variables of their own names.
pub fn value(kernel: &Kernel, id: ExprId) -> String {
    let expr = kernel.expr(id);
    match &expr.node {
        Node::Const(x) => constant(expr.dtype, *x),
        Node::Index(at) => format!("(int)({})", index(kernel, at)),
        Node::Load { buffer, at, when, fill } => {
            let load = format!("wide({buffer}[{}])", index(kernel, at));
            match when {
                Some(w) => {
                    let dtype = kernel.buffers[buffer.index()].dtype;
                    format!("{w} ? {load} : {}", constant(dtype, *fill))
                }
                None => load,
            }
        }
        Node::Map(op, args) => map(kernel, id, *op, args),
        Node::Register(r) => r.to_string(),
        Node::Random { dist, key, counter, origin } => {
            let at = index(kernel, counter);
            let at = match origin {
                Some(n) => format!("(u64)({at}) + scalars[{n}]"),
                None => format!("(u64)({at})"),
            };
            draw(*dist, &format!("scalars[{key}]"), &at)
        }
        Node::Check { index, size, site } => {
            format!("checked({index}, {}, {site}, status)", i32::try_from(*size).unwrap_or(i32::MAX))
        }
    }
}

/// A random number of a key (u64) at a counter (u64).
pub fn draw(dist: Dist, key: &str, at: &str) -> String {
    let scale = |std: f64| float(std as f32 * std::f32::consts::SQRT_2);
    match dist {
        Dist::Uniform { lo, hi } => {
            format!("random_uniform({}, {}, {key}, {at})", float(lo as f32), float((hi - lo) as f32))
        }
        Dist::Normal { std } => format!("random_normal({}, 1.f, {key}, {at})", scale(std)),
        Dist::TruncNormal { std } => {
            format!("random_normal({}, {}, {key}, {at})", scale(std), float(TWO_SIGMA_MASS))
        }
        Dist::RandInt { n } => format!("random_int({n}u, {key}, {at})"),
        Dist::Bernoulli { p } => format!("random_event({p:?}, {key}, {at})"),
    }
}

fn map(kernel: &Kernel, id: ExprId, op: MapOp, args: &[ExprId]) -> String {
    use MapOp::*;
    let dtype = kernel.expr(args[args.len() - 1]).dtype;
    let (double, int) = (dtype == DType::F64, dtype == DType::I32);
    let a = args[0];
    let b = args.get(1).copied().unwrap_or(a);
    // A function of the mathematical library: with an f for float.
    let math = |name: &str| format!("{name}{}({a})", if double { "" } else { "f" });
    let call = |name: &str| format!("{name}({a}, {b})");
    let infix = |sign: &str| format!("{a} {sign} {b}");
    // Integers wrap.
    let wrap = |sign: &str| match int {
        true => format!("(int)((u32){a} {sign} (u32){b})"),
        false => infix(sign),
    };
    if let Some(n) = small_power(kernel, id) {
        let one = if double { "1." } else { "1.f" };
        return match n as i64 {
            -2 => format!("{one} / ({a} * {a})"),
            -1 => format!("{one} / {a}"),
            1 => a.to_string(),
            2 => format!("{a} * {a}"),
            3 => format!("{a} * {a} * {a}"),
            _ => format!("({a} * {a}) * ({a} * {a})"),
        };
    }
    match op {
        Neg if int => format!("(int)(0u - (u32){a})"),
        Neg => format!("-{a}"),
        Not => format!("!{a}"),
        Exp => math("exp"),
        Expm1 => math("expm1"),
        Log => math("log"),
        Log1p => math("log1p"),
        Sqrt => math("sqrt"),
        Rsqrt if double => format!("1. / sqrt({a})"),
        Rsqrt => format!("1.f / sqrtf({a})"),
        Square if int => format!("(int)((u32){a} * (u32){a})"),
        Square => format!("{a} * {a}"),
        Abs if int => format!("({a} < 0 ? (int)(0u - (u32){a}) : {a})"),
        Abs => math("fabs"),
        Sign => format!("sign_of({a})"),
        Tanh => math("tanh"),
        Sigmoid => format!("sigmoid({a})"),
        Softplus => format!("softplus({a})"),
        Erf => math("erf"),
        Sin => math("sin"),
        Cos => math("cos"),
        Floor | Ceil | Round if int => a.to_string(),
        Floor => math("floor"),
        Ceil => math("ceil"),
        Round => math("rint"),
        Cast(to) => cast(dtype, to, a),
        IsFinite if dtype.is_float() => format!("finite_number({a})"),
        IsFinite => "true".to_string(),
        Add => wrap("+"),
        Sub => wrap("-"),
        Mul if dtype == DType::Bool => infix("&&"),
        Mul => wrap("*"),
        Div => infix("/"),
        FloorDiv if int => call("floor_div"),
        FloorDiv => format!("floor{}({a} / {b})", if double { "" } else { "f" }),
        Rem => call("modulo"),
        Pow if int => call("power"),
        Pow => format!("pow{}({a}, {b})", if double { "" } else { "f" }),
        Max if dtype == DType::Bool => infix("||"),
        Min if dtype == DType::Bool => infix("&&"),
        Max => call("larger"),
        Min => call("smaller"),
        And => infix("&&"),
        Or => infix("||"),
        Eq => infix("=="),
        Ne => infix("!="),
        Lt => infix("<"),
        Le => infix("<="),
        Gt => infix(">"),
        Ge => infix(">="),
        Where => format!("{a} ? {b} : {}", args[2]),
    }
}

fn cast(from: DType, to: DType, a: ExprId) -> String {
    if from == to {
        return a.to_string();
    }
    match to {
        DType::Bool => format!("{a} != 0"),
        DType::I32 if from == DType::Bool => format!("(int){a}"),
        DType::I32 => format!("to_int({a})"),
        DType::F16 => format!("wide(to_f16((float){a}))"),
        DType::BF16 => format!("wide(to_bf16((float){a}))"),
        DType::F32 | DType::F64 => format!("({}){a}", held(to)),
    }
}
