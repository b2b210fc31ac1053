//! Which threads compute a row of a kernel together.

use crate::codegen::plan::stride;
use crate::kernel::{Index, Kernel, LoopId, Node, Pass, Statement};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Team {
    /// A thread has a row of its own.
    One,
    /// A warp has a row; its lanes share the turns of each pass.
    Warp,
    /// A block of so many threads has a row.
    Block(u32),
    /// A block has 32 neighbouring rows, each a column of so many threads.
    Column(u32),
}

/// Threads of a block, where each or each warp has a row of its own.
pub const THREADS: u32 = 256;

/// A kernel's rows as one list of loops, and who computes one.
pub struct Shape {
    /// Major first; those of the only pass of a kernel without results for the whole row are among them.
    pub rows: Vec<LoopId>,
    /// Whether that pass has no loops left.
    pub flat: bool,
    pub team: Team,
}

impl Shape {
    pub fn of(kernel: &Kernel) -> Shape {
        let mut rows: Vec<LoopId> = (0..kernel.rows as u32).map(LoopId).collect();
        if let [Statement::Pass(p)] = &kernel.body[..]
            && p.carries.is_empty()
            && p.reductions.is_empty()
        {
            rows.extend(&p.loops);
            fastest_last(kernel, &mut rows);
            return Shape { rows, flat: true, team: Team::One };
        }
        let passes = passes(&kernel.body);
        let turns = |p: &&Pass| p.loops.iter().map(|l| kernel.extents[l.index()]).product::<usize>();
        let longest = passes.iter().map(turns).max().unwrap_or(1);
        let count = kernel.row_count();
        let one_by_one = passes.iter().any(|p| !p.carries.is_empty()) || longest <= 4;
        let by_rows = rows.last().is_some_and(|r| weight(kernel, &passes, Some(*r)) > weight(kernel, &passes, None));
        let team = match () {
            () if one_by_one => Team::One,
            () if by_rows && count >= 1 << 16 => Team::One,
            () if by_rows && count >= 8 => {
                Team::Column((longest as u32 / 4).next_power_of_two().clamp(2, if count < 1 << 13 { 32 } else { 8 }))
            }
            () if longest <= 1024 && count >= 64 => Team::Warp,
            () if longest <= 1 << 14 => Team::Block(THREADS),
            () => Team::Block(1024),
        };
        Shape { rows, flat: false, team }
    }

    /// How many there are.
    pub fn count(&self, kernel: &Kernel) -> usize {
        self.rows.iter().map(|l| kernel.extents[l.index()]).product()
    }

    /// Threads of a block, and the rows that a block computes at a time.
    pub fn block(&self) -> (u32, u32) {
        match self.team {
            Team::One => (THREADS, THREADS),
            Team::Warp => (THREADS, THREADS / 32),
            Team::Block(threads) => (threads, 1),
            Team::Column(height) => (32 * height, 32),
        }
    }
}

pub fn passes(body: &[Statement]) -> Vec<&Pass> {
    let mut all = Vec::new();
    for statement in body {
        match statement {
            Statement::For { body, .. } => all.extend(passes(body)),
            Statement::Pass(p) => all.push(p),
        }
    }
    all
}

/// Accesses at neighbouring addresses where the loop, or without one the innermost loop of each pass, goes on by one, less those far apart.
fn weight(kernel: &Kernel, passes: &[&Pass], by: Option<LoopId>) -> i64 {
    let mut sum = 0;
    for pass in passes {
        let Some(inner) = pass.loops.last() else { continue };
        let by = by.unwrap_or(*inner);
        let mut count = |at: &Index| match stride(at, by).abs() {
            0 => {}
            1 => sum += 1,
            _ => sum -= 1,
        };
        for e in kernel.needed(pass) {
            if let Node::Load { at, .. } = &kernel.expr(e).node {
                count(at);
            }
        }
        pass.stores.iter().for_each(|s| count(&s.at));
    }
    sum
}

/// Puts the loop last along which most accesses are at neighbouring addresses.
fn fastest_last(kernel: &Kernel, rows: &mut Vec<LoopId>) {
    let passes = passes(&kernel.body);
    let score = |l: LoopId| {
        let mut sum = 0;
        for pass in &passes {
            for e in kernel.needed(pass) {
                if let Node::Load { at, .. } = &kernel.expr(e).node {
                    sum += i64::from(stride(at, l) == 1);
                }
            }
            pass.stores.iter().for_each(|s| sum += 2 * i64::from(stride(&s.at, l) == 1));
        }
        sum
    };
    rows.retain(|l| kernel.extents[l.index()] != 1);
    // Of equals the last.
    if let Some(best) = (0..rows.len()).max_by_key(|i| (score(rows[*i]), *i)) {
        let l = rows.remove(best);
        rows.push(l);
    }
}
