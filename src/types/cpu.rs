//! How much of the processor's vector instructions may be used: all that there is, or less, so that the code for lesser processors can be
//! tried, and two machines compute alike.
//!
//! A fact about the whole process: it is settled once, before anything asks.

use std::sync::OnceLock;

/// Sets of instructions, each with those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Vectors {
    /// What the compilers make of plain code.
    Plain,
    Avx2,
    Avx512,
    /// Matrix units and whatever else there is.
    All,
}

static ALLOWED: OnceLock<Vectors> = OnceLock::new();

impl Vectors {
    pub const NAMES: [(&'static str, Vectors); 4] =
        [("plain", Vectors::Plain), ("avx2", Vectors::Avx2), ("avx512", Vectors::Avx512), ("all", Vectors::All)];

    pub fn named(name: &str) -> Option<Vectors> {
        Vectors::NAMES.into_iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// Allows no more than this from now on. Only the first call, before anything has asked, has an effect.
    pub fn allow(self) {
        let _ = ALLOWED.set(self);
    }

    /// Whether this set may be used, if the processor has it.
    pub fn allowed(self) -> bool {
        self <= *ALLOWED.get_or_init(|| Vectors::All)
    }
}
