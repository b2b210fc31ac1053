//! Looks on while steps run: which is the first to make a value that is not finite.

use super::parts::Held;
use super::profile::Times;
use super::{ExecOptions, Executor, placed};
use crate::program::{BufferId, OutputKind, Program, Slot, SourceId, Step};
use crate::runtime::RuntimeError;
use crate::runtime::device::library::Element;
use crate::with_element;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the arenas of routines, by routine and step.
pub type Free = Vec<Vec<Vec<Range<usize>>>>;

pub struct Watch {
    check_finite: bool,
    /// None where nothing is measured.
    pub(super) times: Option<Times>,
    /// What to overwrite before each step, and with what.
    spoils: Option<(Arc<Free>, u8)>,
    /// What the step under way is about to write, as it was before.
    before: Vec<(BufferId, Vec<u8>)>,
    /// The first step of this run that made an infinity of finite operands ..
    infinite: Option<Bad>,
    /// .. and the first that made a NaN.
    nan: Option<Bad>,
}

/// A value that is not finite.
struct Bad {
    value: f64,
    element: usize,
    buffer: String,
    label: String,
    source: SourceId,
}

impl Watch {
    pub fn new(program: &Program, options: ExecOptions) -> Watch {
        let times = options.timing.then(|| Times::new(program));
        Watch { check_finite: options.check_finite, times, spoils: None, before: Vec::new(), infinite: None, nan: None }
    }

    pub fn begin(&mut self, routine: usize) {
        (self.infinite, self.nan) = (None, None);
        if let Some(times) = &mut self.times {
            times.begin(routine);
        }
    }
}

impl Executor {
    /// Has all runs from now on overwrite bytes of the arena before each step, by routine and step: a test that nothing needs them.
    pub fn spoil(&mut self, free: Option<(Arc<Free>, u8)>) {
        self.watch.spoils = free;
    }

    pub(super) fn spoil_before(&mut self, routine: usize, number: usize) {
        if let Some((free, byte)) = &self.watch.spoils {
            free[routine][number].iter().for_each(|range| self.memory.overwrite(range, *byte));
        }
    }

    /// Keeps what the step is about to overwrite: only elements that it changes are its own doing, since it need not write
    /// all of a buffer.
    pub(super) fn watch_before(&mut self, routine: usize, step: &Step) {
        if !self.watch.check_finite {
            return;
        }
        let r = &self.program.routines[routine];
        let (memory, spots) = (&self.memory, &self.spots[routine]);
        let mut before = Vec::new();
        step.action.accesses(|buffer, access| {
            if access.writes() && r.buffer(buffer).dtype.is_float() {
                let start = memory.locate(spots, buffer);
                // SAFETY: a buffer of the executor; no step is under way.
                let bytes = unsafe { std::slice::from_raw_parts(start, r.buffer(buffer).bytes()) };
                before.push((buffer, bytes.to_vec()));
            }
        });
        self.watch.before = before;
    }

    /// Notes the first NaN and the first infinity.
    pub(super) fn watch_after(&mut self, routine: usize, step: &Step) {
        if !self.watch.check_finite {
            return;
        }
        let program = self.program.clone();
        let r = &program.routines[routine];
        let before = std::mem::take(&mut self.watch.before);
        for (buffer, before) in &before {
            let dtype = r.buffer(*buffer).dtype;
            let start = self.memory.locate(&self.spots[routine], *buffer);
            // SAFETY: a buffer of the executor; no step is under way.
            let now = unsafe { std::slice::from_raw_parts(start, before.len()) };
            let bad = with_element!(dtype, E => {
                let size = std::mem::size_of::<E>();
                let changed = |i: usize| now[i * size..(i + 1) * size] != before[i * size..(i + 1) * size];
                // SAFETY: elements of the buffer's own type.
                let values = unsafe { std::slice::from_raw_parts(start.cast::<E>(), now.len() / size) };
                let find = |wanted: fn(f64) -> bool| {
                    values.iter().map(|x| x.value()).enumerate().find(|(i, x)| wanted(*x) && changed(*i))
                };
                find(f64::is_nan).or_else(|| find(f64::is_infinite))
            });
            let Some((element, value)) = bad else { continue };
            let bad = Bad {
                value,
                element,
                buffer: r.buffer(*buffer).name.clone(),
                label: step.label.clone(),
                source: step.source,
            };
            let first = if value.is_nan() { &mut self.watch.nan } else { &mut self.watch.infinite };
            first.get_or_insert(bad);
        }
    }

    /// At the end of a run: such values matter (an infinity is often a mask, a NaN may be left out by a condition, an
    /// overflow of f16 is skipped) only if they reached a loss, a parameter or a state.
    pub(super) fn finish_watch(&mut self, routine: usize) -> Result<(), RuntimeError> {
        let (nan, infinite) = (self.watch.nan.take(), self.watch.infinite.take());
        if (nan.is_none() && infinite.is_none()) || !self.is_spoilt(routine) {
            return Ok(());
        }
        Err(match (nan, infinite) {
            (Some(nan), Some(origin)) => self.not_finite(&nan).note(self.describe(&origin)),
            (Some(bad), None) | (None, Some(bad)) => self.not_finite(&bad),
            (None, None) => return Ok(()),
        })
    }

    fn is_spoilt(&self, routine: usize) -> bool {
        let outputs = &self.program.routines[routine].outputs;
        let mut losses = (0..outputs.len()).filter(|n| outputs[*n].kind == OutputKind::Loss);
        let slots = |slots: &[Slot], arrays: &[super::Slab]| {
            slots.iter().zip(arrays).any(|(slot, array)| {
                slot.dtype.is_float()
                    && with_element!(slot.dtype, E => {
                        // SAFETY: an array of the slot's own type, and no step is under way.
                        let values =
                            unsafe { std::slice::from_raw_parts(array.bytes().as_ptr().cast::<E>(), slot.elements()) };
                        let mut spoilt = false;
                        // What is not real of a part may be anything.
                        for b in Held::of(&self.program, slot).blocks(self.links.rank) {
                            b.runs(0, b.elements(), &mut |_, at, len| {
                                spoilt |= values[at..at + len].iter().any(|x| !x.value().is_finite());
                            });
                        }
                        spoilt
                    })
            })
        };
        losses.any(|n| !self.scalar(routine, n).is_finite())
            || slots(&self.program.params, &self.memory.params)
            || slots(&self.program.states, &self.memory.states)
    }

    fn not_finite(&self, bad: &Bad) -> RuntimeError {
        placed(&self.program, bad.source, RuntimeError::new("E0810", self.describe(bad)))
    }

    fn describe(&self, bad: &Bad) -> String {
        let scope = self.program.sources.get(bad.source.0 as usize).map_or("", |s| s.scope.as_str());
        let within = if scope.is_empty() { String::new() } else { format!(" in `{scope}`") };
        let Bad { value, element, buffer, label, .. } = bad;
        format!("`{label}`{within} gave {value} at element {element} of `{buffer}`")
    }
}
