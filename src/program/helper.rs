//! The table of what machine code of kernels may call or read: the contract between code generation and runtime.

/// An entry of the table; its number is its place. Functions use the C calling convention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Helper {
    /// Not a function: the address of [`ZEROS`] readable bytes, all zero, for loads that must not touch their buffer.
    Zeros,
    // f64 -> f64
    Exp,
    Expm1,
    Log,
    Log1p,
    Tanh,
    Sigmoid,
    Softplus,
    Erf,
    Sin,
    Cos,
    /// f64, f64 -> f64
    Pow,
    /// i32, i32 -> i32: wraps; a negative exponent gives the quotient's whole part.
    PowInt,
}

/// Bytes at [`Helper::Zeros`].
pub const ZEROS: usize = 64;

impl Helper {
    pub const ALL: [Helper; 13] = [
        Helper::Zeros,
        Helper::Exp,
        Helper::Expm1,
        Helper::Log,
        Helper::Log1p,
        Helper::Tanh,
        Helper::Sigmoid,
        Helper::Softplus,
        Helper::Erf,
        Helper::Sin,
        Helper::Cos,
        Helper::Pow,
        Helper::PowInt,
    ];
}

/// What a kernel leaves in its status cell (a u64, 0 before the call): the first failed check that it noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Index into [`super::Program::sites`].
    pub site: u32,
    /// The index that was out of range.
    pub value: i32,
}

impl Failure {
    /// Reads a cell: the upper half is the site's number plus one, the lower half the value.
    pub fn of_cell(cell: u64) -> Option<Failure> {
        let site = ((cell >> 32) as u32).checked_sub(1)?;
        Some(Failure { site, value: cell as u32 as i32 })
    }
}
