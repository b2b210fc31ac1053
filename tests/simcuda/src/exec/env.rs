//! What a warp's operations see of their block, their launch and their device.

use super::lanes::{LANES, Op};
use super::launch::Launch;
use super::warp::Warp;
use crate::check::counters::Counters;
use crate::check::device::Memory;
use crate::check::fault::{Fault, Kind, Place};
use crate::check::races::{How, Races};

/// Shared memory of the block that runs.
pub struct Shared {
    pub data: Vec<u8>,
    /// 1 where a byte has been written.
    pub written: Vec<u8>,
    pub races: Option<Races>,
    pub find_uninitialised: bool,
    pub count_banks: bool,
}

pub struct Env<'a> {
    pub launch: &'a Launch,
    pub memory: &'a Memory,
    pub shared: Shared,
    pub block: [u32; 3],
    /// The warp that runs.
    pub warp: u32,
    pub counters: Counters,
    pub fault: Option<Fault>,
    /// Instructions of a warp after which a kernel is held to be endless.
    pub budget: u64,
}

impl Env<'_> {
    /// Notes a fault of the first lane among `lanes`.
    #[cold]
    pub fn fail(&mut self, op: &Op, lanes: u32, kind: Kind, message: String) {
        let thread = self.warp * LANES as u32 + lanes.trailing_zeros().min(31);
        let kernel = self.launch.kernel.name.clone();
        let place = Some(Place { kernel, line: op.line, block: self.block, thread });
        self.fault.get_or_insert(Fault { kind, place, message });
    }

    /// Checks and notes a lane's access to shared memory, but for its bounds.
    #[inline(always)]
    pub fn note_shared(&mut self, op: &Op, lane: usize, at: u32, bytes: u32, how: How) -> bool {
        let range = at as usize..(at + bytes) as usize;
        if how == How::Write {
            self.shared.written[range].fill(1);
        } else if self.shared.find_uninitialised && self.shared.written[range].iter().fold(1, |all, w| all & w) == 0 {
            let message = format!("{bytes} bytes at byte {at} of shared memory were not written by this block");
            self.fail(op, 1 << lane, Kind::Uninitialised, message);
            return false;
        }
        let Some(races) = &mut self.shared.races else { return true };
        let Some(other) = races.access(self.warp, lane as u32, at, bytes, how) else { return true };
        let verb = if matches!(how, How::Read | How::ReadByAll) { "reads" } else { "writes" };
        let did = if other.wrote { "wrote" } else { "read" };
        let message = format!(
            "{verb} {bytes} bytes at byte {at} of shared memory, which thread {} {did} with no barrier between",
            other.thread
        );
        self.fail(op, 1 << lane, Kind::Race, message);
        false
    }
}

/// Addresses of 64 bits in each lane: a register's value, of 32 or 64 bits, plus the instruction's offset.
#[inline(always)]
pub fn addresses(w: &Warp, row: u32, wide: bool, offset: u64) -> [u64; LANES] {
    if wide {
        let raw = w.wide(row);
        std::array::from_fn(|l| raw[l].wrapping_add(offset))
    } else {
        let raw = &w.rows[row as usize].0;
        std::array::from_fn(|l| u64::from(raw[l]).wrapping_add(offset))
    }
}
