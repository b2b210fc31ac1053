//! Functions of the runtime, called lane by lane. One routine behind the code does it for every place: it keeps all
//! registers, so that the code around need not know of calls.

use super::asm::*;
use super::emit::{Emit, Kept, LOAD, STORE, WORDS};
use super::ir::{Inst, Op};
use crate::program::Helper;

/// Whether there are calls, and where the routine for them is.
#[derive(Default)]
pub struct Calls {
    routine: Option<Label>,
}

/// Vectors that the routine keeps.
fn vectors(wide: bool) -> u8 {
    if wide { 32 } else { 16 }
}

impl Emit<'_> {
    fn has_calls(&self) -> bool {
        self.f.code.iter().any(|i| matches!(i.op, Op::Call(_)))
    }

    /// Bytes of the frame that the routine needs: vectors, then masks, then words.
    pub fn call_area(&self) -> i32 {
        if !self.has_calls() {
            return 0;
        }
        64 + i32::from(vectors(self.a.wide)) * self.bytes() + 8 * 8 + (WORDS.len() as i32 + 1) * 8
    }

    /// `to = helper(a, b)`: operands and results pass through the temporaries, the helper's number through `rax`.
    pub fn call_lanes(&mut self, i: &Inst, helper: Helper) {
        let operands = i.args.into_iter().filter_map(|r| r.some());
        for (n, r) in operands.enumerate() {
            let (x, to) = (self.vector(r, 0), self.temporary(n as i32));
            self.a.vector(STORE, x, 0, Rm::Mem(to), None);
        }
        self.a.constant(RAX, helper as i64);
        let routine = match self.calls.routine {
            Some(routine) => routine,
            None => {
                let label = self.a.label();
                self.calls.routine = Some(label);
                label
            }
        };
        self.a.call(routine);
        let (from, to) = (self.temporary(0), self.target(i.to));
        self.a.vector(LOAD, to, 0, Rm::Mem(from), None);
        self.done(i.to, to);
    }

    /// The routine, if anything calls it. Its own return address lies below the frame, so that offsets are 8 more.
    pub fn call_routine(&mut self) {
        let Some(routine) = self.calls.routine else { return };
        self.a.place(routine);
        // Aligns the stack to 16 for calls: one address and one word.
        self.a.push(RAX);
        let shift = 16;
        let here = |m: Mem| Mem { disp: m.disp + shift, ..m };
        let base = self.frame_end() + shift;
        let count = vectors(self.a.wide);
        let masks = base + i32::from(count) * self.bytes();
        let words = masks + 64;
        self.keep(base, masks, words, STORE, 0x91, 0x89);
        let helpers = self.kept(Kept::Helpers);
        self.a.mov(RCX, Rm::Mem(here(helpers)));
        self.a.mov(RBX, Rm::Mem(Mem { base: RCX, index: Some(RAX), scale: 3, disp: 0 }));
        // r12: the lane; r13d: whether operands are integers.
        self.a.constant(12, 0);
        let (top, ints, joined) = (self.a.label(), self.a.label(), self.a.label());
        self.a.mov(13, Rm::Reg(RAX));
        self.a.place(top);
        self.a.compare_constant(Rm::Reg(13), Helper::PowInt as i32);
        self.a.jump_if(Condition::Zero, ints);
        let cell = |e: &Self, n: i32| {
            let at = here(e.temporary(n));
            Rm::Mem(Mem { index: Some(12), scale: 2, ..at })
        };
        let (first, second) = (cell(self, 0), cell(self, 1));
        // vcvtss2sd, the call, vcvtsd2ss
        let (widen, narrow) = (code(1, 2, 0x5A), code(1, 3, 0x5A));
        self.a.vex(widen, Length::X, 0, 0, first, None);
        self.a.vex(widen, Length::X, 1, 1, second, None);
        // vzeroupper
        self.a.bytes.extend([0xC5, 0xF8, 0x77]);
        self.a.general(false, &[0xFF], 2, Rm::Reg(RBX), &[]);
        self.a.vex(narrow, Length::X, 0, 0, Rm::Reg(0), None);
        self.a.vex(code(1, 2, 0x11), Length::X, 0, 0, first, None);
        self.a.jump(joined);
        self.a.place(ints);
        self.a.bytes.extend([0xC5, 0xF8, 0x77]);
        self.a.general(false, &[0x8B], RDI, first, &[]);
        self.a.general(false, &[0x8B], RSI, second, &[]);
        self.a.general(false, &[0xFF], 2, Rm::Reg(RBX), &[]);
        let Rm::Mem(to) = first else { unreachable!("a cell is in memory") };
        self.a.general(false, &[0x89], RAX, Rm::Mem(to), &[]);
        self.a.place(joined);
        self.a.add_constant(Rm::Reg(12), 1);
        self.a.compare_constant(Rm::Reg(12), self.f.lanes as i32);
        self.a.jump_if(Condition::Below, top);
        self.keep(base, masks, words, LOAD, 0x90, 0x8B);
        self.a.pop(RAX);
        self.a.bytes.push(0xC3);
    }

    /// Moves all registers to or from the frame.
    fn keep(&mut self, vectors_at: i32, masks_at: i32, words_at: i32, vector: Code, mask: u8, word: u8) {
        for n in 0..vectors(self.a.wide) {
            let at = Mem::at(RSP, vectors_at + i32::from(n) * self.bytes());
            self.a.vector(vector, n, 0, Rm::Mem(at), None);
        }
        if self.a.wide {
            for n in 0..8 {
                let at = Mem::at(RSP, masks_at + i32::from(n) * 8);
                self.a.vex(code(1, 0, mask), Length::X, n, 0, Rm::Mem(at), None);
            }
        }
        for (n, r) in WORDS.into_iter().chain([RDI]).enumerate() {
            let at = Mem::at(RSP, words_at + n as i32 * 8);
            self.a.general(true, &[word], r, Rm::Mem(at), &[]);
        }
    }
}
