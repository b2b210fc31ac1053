//! Compile-time constants: exact rational numbers where possible, f64 otherwise.

use crate::syntax::ast::BinaryOp;
use std::cmp::Ordering;

#[derive(Clone, PartialEq, Debug)]
pub enum Const {
    /// numerator / denominator in lowest terms, denominator positive. A whole number is an integer of the language.
    Exact(i128, i128),
    Float(f64),
    Bool(bool),
    Str(String),
    /// The value is not known: a definition is checked with open dims. Silences what depends on it.
    Unknown,
}

impl Const {
    pub fn int(n: i64) -> Const {
        Const::Exact(n as i128, 1)
    }

    pub fn size(n: usize) -> Const {
        Const::Exact(n as i128, 1)
    }

    fn ratio(n: i128, d: i128) -> Option<Const> {
        if d == 0 {
            return None;
        }
        let g = gcd(n.unsigned_abs(), d.unsigned_abs()).max(1) as i128;
        let s = if d < 0 { -1 } else { 1 };
        let (n, d) = (s * (n / g), s * (d / g));
        // Beyond this, products could overflow: go on in floating point.
        if n.unsigned_abs() > 1 << 62 || d > 1 << 62 { None } else { Some(Const::Exact(n, d)) }
    }

    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Const::Exact(n, d) => Some(*n as f64 / *d as f64),
            Const::Float(x) => Some(*x),
            Const::Bool(_) | Const::Str(_) | Const::Unknown => None,
        }
    }

    /// A whole number that fits; also a float that is whole.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Const::Exact(n, 1) => i64::try_from(*n).ok(),
            Const::Float(x) if x.fract() == 0.0 && x.abs() < 9e15 => Some(*x as i64),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Const::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// Whether the language takes it for an integer where types matter.
    pub fn is_int(&self) -> bool {
        matches!(self, Const::Exact(_, 1))
    }

    pub fn is_number(&self) -> bool {
        matches!(self, Const::Exact(..) | Const::Float(_))
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Const::Exact(_, 1) => "a whole number",
            Const::Exact(..) | Const::Float(_) => "a number",
            Const::Bool(_) => "a bool",
            Const::Str(_) => "a string",
            Const::Unknown => "unknown",
        }
    }
}

impl std::fmt::Display for Const {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Const::Exact(n, 1) => write!(f, "{n}"),
            Const::Exact(n, d) => write!(f, "{}", *n as f64 / *d as f64),
            Const::Float(x) => write!(f, "{x}"),
            Const::Bool(b) => write!(f, "{b}"),
            Const::Str(s) => write!(f, "{s:?}"),
            Const::Unknown => write!(f, "?"),
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A literal as written: `16`, `0.5`, `1e-3`.
pub fn literal(text: &str) -> Const {
    if let Ok(n) = text.parse::<i128>() {
        return Const::ratio(n, 1).unwrap_or(Const::Float(n as f64));
    }
    Const::Float(text.parse().unwrap_or(f64::NAN))
}

/// Why an operation on constants has no value.
#[derive(Clone, PartialEq, Debug)]
pub enum Problem {
    /// Operands of the wrong kind, named.
    Kinds(&'static str, &'static str),
    DivisionByZero,
    /// Beyond the largest f64.
    Overflow,
    /// A function that is not one of constants.
    NoFunction,
    Arity(usize),
}

pub fn binary(op: BinaryOp, a: &Const, b: &Const) -> Result<Const, Problem> {
    use BinaryOp::*;
    if *a == Const::Unknown || *b == Const::Unknown {
        return Ok(Const::Unknown);
    }
    let kinds = || Problem::Kinds(a.kind(), b.kind());
    match op {
        And | Or => match (a, b) {
            (Const::Bool(x), Const::Bool(y)) => Ok(Const::Bool(if op == And { *x && *y } else { *x || *y })),
            _ => Err(kinds()),
        },
        Eq | Ne => {
            let same = match (a, b) {
                (Const::Bool(x), Const::Bool(y)) => x == y,
                (Const::Str(x), Const::Str(y)) => x == y,
                _ if a.is_number() && b.is_number() => order(a, b) == Some(Ordering::Equal),
                _ => return Err(kinds()),
            };
            Ok(Const::Bool(same == (op == Eq)))
        }
        Lt | Le | Gt | Ge => {
            if !a.is_number() || !b.is_number() {
                return Err(kinds());
            }
            let o = order(a, b);
            Ok(Const::Bool(match op {
                Lt => o == Some(Ordering::Less),
                Le => matches!(o, Some(Ordering::Less | Ordering::Equal)),
                Gt => o == Some(Ordering::Greater),
                _ => matches!(o, Some(Ordering::Greater | Ordering::Equal)),
            }))
        }
        Add | Sub | Mul | Div | Rem | Pow => arithmetic(op, a, b),
    }
}

fn order(a: &Const, b: &Const) -> Option<Ordering> {
    match (a, b) {
        (Const::Exact(n, d), Const::Exact(m, e)) => Some((n * e).cmp(&(m * d))),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

fn arithmetic(op: BinaryOp, a: &Const, b: &Const) -> Result<Const, Problem> {
    use BinaryOp::*;
    let (Some(x), Some(y)) = (a.as_f64(), b.as_f64()) else {
        return Err(Problem::Kinds(a.kind(), b.kind()));
    };
    if let (Const::Exact(n, d), Const::Exact(m, e)) = (a, b) {
        let exact = match op {
            Add => Const::ratio(n * e + m * d, d * e),
            Sub => Const::ratio(n * e - m * d, d * e),
            Mul => Const::ratio(n * m, d * e),
            Div if *m == 0 => return Err(Problem::DivisionByZero),
            Div => Const::ratio(n * e, d * m),
            Rem if *m == 0 => return Err(Problem::DivisionByZero),
            // a - b floor(a / b)
            Rem if *m > 0 => Const::ratio(n * e - m * d * (n * e).div_euclid(m * d), d * e),
            Pow if *e == 1 && (0..=64).contains(m) => power(*n, *d, *m as u32),
            _ => None,
        };
        if let Some(c) = exact {
            return Ok(c);
        }
    }
    if matches!(op, Div | Rem) && y == 0.0 && x.is_finite() {
        return Err(Problem::DivisionByZero);
    }
    let out = match op {
        Add => x + y,
        Sub => x - y,
        Mul => x * y,
        Div => x / y,
        Rem => x - y * (x / y).floor(),
        _ => x.powf(y),
    };
    // `inf` itself may be computed with.
    if out.is_infinite() && x.is_finite() && y.is_finite() { Err(Problem::Overflow) } else { Ok(Const::Float(out)) }
}

fn power(n: i128, d: i128, k: u32) -> Option<Const> {
    Const::ratio(n.checked_pow(k)?, d.checked_pow(k)?)
}

pub fn negate(a: &Const) -> Result<Const, Problem> {
    match a {
        Const::Exact(n, d) => Ok(Const::Exact(-n, *d)),
        Const::Float(x) => Ok(Const::Float(-x)),
        Const::Unknown => Ok(Const::Unknown),
        _ => Err(Problem::Kinds(a.kind(), a.kind())),
    }
}

pub fn not(a: &Const) -> Result<Const, Problem> {
    match a {
        Const::Bool(b) => Ok(Const::Bool(!b)),
        Const::Unknown => Ok(Const::Unknown),
        _ => Err(Problem::Kinds(a.kind(), a.kind())),
    }
}

/// Functions of constants, by name. `None`: there is no such function.
pub fn function(name: &str, args: &[Const]) -> Option<Result<Const, Problem>> {
    let arity = match name {
        "ceil" | "floor" | "round" | "sqrt" | "rsqrt" | "exp" | "expm1" | "log" | "log1p" | "abs" | "sin" | "cos"
        | "tanh" | "square" | "sigmoid" | "softplus" | "erf" | "sign" | "int" => 1,
        "min" | "max" | "ceil_div" | "floor_div" | "round_up" => 2,
        "where" | "clamp" => 3,
        _ => return None,
    };
    if args.len() != arity {
        return Some(Err(Problem::Arity(arity)));
    }
    if args.contains(&Const::Unknown) {
        return Some(Ok(Const::Unknown));
    }
    Some(known_function(name, args))
}

fn known_function(name: &str, args: &[Const]) -> Result<Const, Problem> {
    if name == "where" {
        let c = args[0].as_bool().ok_or(Problem::Kinds(args[0].kind(), args[1].kind()))?;
        return Ok(args[if c { 1 } else { 2 }].clone());
    }
    let mut x = Vec::new();
    for a in args {
        x.push(a.as_f64().ok_or(Problem::Kinds(a.kind(), a.kind()))?);
    }
    let whole = |v: f64| if v.abs() < 9e15 { Const::int(v as i64) } else { Const::Float(v) };
    let divide = || match (&args[0], &args[1]) {
        (Const::Exact(n, d), Const::Exact(m, e)) if *m != 0 => {
            let (p, q) = if *m < 0 { (-(n * e), -(d * m)) } else { (n * e, d * m) };
            Ok((p.div_euclid(q), p.rem_euclid(q) != 0))
        }
        _ if x[1] == 0.0 => Err(Problem::DivisionByZero),
        _ => Ok(((x[0] / x[1]).floor() as i128, (x[0] / x[1]).fract() != 0.0)),
    };
    let pick = |first: bool| args[if first { 0 } else { 1 }].clone();
    Ok(match name {
        "ceil" => match &args[0] {
            Const::Exact(n, d) => Const::Exact(n.div_euclid(*d) + i128::from(n.rem_euclid(*d) != 0), 1),
            _ => whole(x[0].ceil()),
        },
        "floor" => match &args[0] {
            Const::Exact(n, d) => Const::Exact(n.div_euclid(*d), 1),
            _ => whole(x[0].floor()),
        },
        "round" => whole(x[0].round_ties_even()),
        "int" => whole(x[0].trunc()),
        "min" => pick(x[0] <= x[1]),
        "max" => pick(x[0] >= x[1]),
        "clamp" => {
            if x[0] < x[1] {
                args[1].clone()
            } else if x[0] > x[2] {
                args[2].clone()
            } else {
                args[0].clone()
            }
        }
        "floor_div" => Const::Exact(divide()?.0, 1),
        "ceil_div" => {
            let (q, rest) = divide()?;
            Const::Exact(q + i128::from(rest), 1)
        }
        "round_up" => {
            let (q, rest) = divide()?;
            return arithmetic(BinaryOp::Mul, &Const::Exact(q + i128::from(rest), 1), &args[1]);
        }
        "abs" => match &args[0] {
            Const::Exact(n, d) => Const::Exact(n.abs(), *d),
            _ => Const::Float(x[0].abs()),
        },
        "square" => return arithmetic(BinaryOp::Mul, &args[0], &args[0]),
        "sign" => Const::int(if x[0] > 0.0 { 1 } else { -i64::from(x[0] < 0.0) }),
        "sqrt" => Const::Float(x[0].sqrt()),
        "rsqrt" => Const::Float(1.0 / x[0].sqrt()),
        "exp" | "expm1" if x[0].is_finite() && x[0].exp().is_infinite() => return Err(Problem::Overflow),
        "exp" => Const::Float(x[0].exp()),
        "expm1" => Const::Float(x[0].exp_m1()),
        "log" => Const::Float(x[0].ln()),
        "log1p" => Const::Float(x[0].ln_1p()),
        "sin" => Const::Float(x[0].sin()),
        "cos" => Const::Float(x[0].cos()),
        "tanh" => Const::Float(x[0].tanh()),
        "sigmoid" => Const::Float(1.0 / (1.0 + (-x[0]).exp())),
        "softplus" => Const::Float(x[0].max(0.0) + (-x[0].abs()).exp().ln_1p()),
        _ => return Err(Problem::NoFunction),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_of_whole_numbers_is_exact() {
        let third = binary(BinaryOp::Div, &Const::int(1), &Const::int(3)).unwrap();
        assert_eq!(binary(BinaryOp::Mul, &third, &Const::int(3)).unwrap(), Const::int(1));
        assert_eq!(binary(BinaryOp::Div, &Const::int(1), &Const::int(2)).unwrap().as_f64(), Some(0.5));
        assert_eq!(binary(BinaryOp::Div, &Const::int(1), &Const::int(0)), Err(Problem::DivisionByZero));
    }

    #[test]
    fn remainder_and_helpers() {
        assert_eq!(binary(BinaryOp::Rem, &Const::int(7), &Const::int(3)).unwrap(), Const::int(1));
        assert_eq!(binary(BinaryOp::Rem, &Const::int(-7), &Const::int(3)).unwrap(), Const::int(2));
        let call = |n: &str, a: i64, b: i64| function(n, &[Const::int(a), Const::int(b)]).unwrap().unwrap();
        assert_eq!(call("ceil_div", 7, 2), Const::int(4));
        assert_eq!(call("round_up", 10, 8), Const::int(16));
        assert_eq!(call("floor_div", -7, 2), Const::int(-4));
        assert_eq!(function("ceil", &[Const::Float(1.2)]).unwrap().unwrap(), Const::int(2));
        assert!(function("no_such", &[]).is_none());
    }

    #[test]
    fn huge_powers_go_on_in_floating_point() {
        let big = binary(BinaryOp::Pow, &Const::int(10), &Const::int(30)).unwrap();
        assert_eq!(big.as_f64(), Some(1e30));
        assert_eq!(binary(BinaryOp::Pow, &big, &Const::int(100)), Err(Problem::Overflow));
        let infinite = Const::Float(f64::INFINITY);
        assert_eq!(binary(BinaryOp::Mul, &big, &infinite), Ok(infinite));
        let huge = binary(BinaryOp::Mul, &big, &big).unwrap();
        assert!((huge.as_f64().unwrap() / 1e60 - 1.0).abs() < 1e-12);
    }
}
