//! A mistake of a kernel or of a call, with its place.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    OutOfBounds,
    UseAfterFree,
    Uninitialised,
    Misaligned,
    Race,
    DivergentBarrier,
    MissingBarrier,
    Trap,
    Endless,
    /// A call or an instruction that a device would refuse.
    Invalid,
    Lost,
    /// Of the collectives: calls that do not match, or a rank that is gone.
    Collective,
}

impl Kind {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::OutOfBounds => "out of bounds",
            Kind::UseAfterFree => "use after free",
            Kind::Uninitialised => "uninitialised read",
            Kind::Misaligned => "misaligned access",
            Kind::Race => "race in shared memory",
            Kind::DivergentBarrier => "divergent barrier",
            Kind::MissingBarrier => "missing barrier",
            Kind::Trap => "trap",
            Kind::Endless => "endless kernel",
            Kind::Invalid => "invalid use",
            Kind::Lost => "device lost",
            Kind::Collective => "collective",
        }
    }

    /// The `CUresult` that a driver gives (cuda.h).
    pub fn code(self) -> u32 {
        match self {
            Kind::OutOfBounds | Kind::UseAfterFree => 700,
            Kind::Misaligned => 716,
            Kind::Trap => 710,
            Kind::Endless => 702,
            Kind::Uninitialised | Kind::Race | Kind::DivergentBarrier | Kind::MissingBarrier => 719,
            Kind::Invalid => 1,
            Kind::Lost => 46,
            Kind::Collective => 999,
        }
    }
}

/// Where in a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub kernel: String,
    /// Line of the PTX text, 1-based.
    pub line: u32,
    pub block: [u32; 3],
    /// The thread in the block, counted through its dims.
    pub thread: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    pub place: Option<Place>,
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind.name())?;
        if let Some(p) = &self.place {
            let [x, y, z] = p.block;
            write!(f, " in kernel `{}`, PTX line {}, block ({x}, {y}, {z}), ", p.kernel, p.line)?;
            write!(f, "thread {} (warp {}, lane {})", p.thread, p.thread / 32, p.thread % 32)?;
        }
        write!(f, ": {}", self.message)
    }
}
