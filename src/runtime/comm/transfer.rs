//! Moves the elements of an exchange, once it is known where the others' arrays are.

use super::plan::{Block, Exchange, Source};
use crate::runtime::device::library::Element;
use crate::types::ReduceKind;

/// Elements that are accumulated at a time: they stay in the first cache.
const CHUNK: usize = 512;

/// Copies or reduces elements `begin..end` of the result, counted through all transfers. `from` gives the array of a rank.
///
/// # Safety
/// The arrays hold all that the exchange reaches, nobody writes what is read, and nobody else touches what is written.
pub unsafe fn fetch<T: Element>(
    e: &Exchange,
    (begin, end): (usize, usize),
    from: &dyn Fn(usize) -> *const T,
    to: *mut T,
) {
    let mut first = 0;
    for t in &e.transfers {
        for block in &t.blocks {
            let count = block.elements();
            let (b, e_) = (begin.clamp(first, first + count) - first, end.clamp(first, first + count) - first);
            first += count;
            match e.reduce {
                Some(kind) if t.sources.len() > 1 => block.runs(b, e_, &mut |at, place, len| {
                    // SAFETY: inside of the arrays, as the caller has seen to.
                    unsafe { reduce(kind, &t.sources, from, at, to.add(place), len) }
                }),
                _ => {
                    let source = from(t.sources[0].rank);
                    block.runs(b, e_, &mut |at, place, len| {
                        // SAFETY: as above. The two may be one array, where a rank's own part stays in place.
                        unsafe { std::ptr::copy(source.add(at), to.add(place), len) }
                    });
                }
            }
        }
    }
}

/// Copies elements `begin..end` of the result from a rank that has the same one.
///
/// # Safety
/// As for [`fetch`].
pub unsafe fn repeat<T: Element>(e: &Exchange, (begin, end): (usize, usize), from: *const T, to: *mut T) {
    let mut first = 0;
    for block in e.transfers.iter().flat_map(|t| &t.blocks) {
        let count = block.elements();
        let (b, e) = (begin.clamp(first, first + count) - first, end.clamp(first, first + count) - first);
        first += count;
        block.runs(b, e, &mut |_, place, len| {
            // SAFETY: as the caller has seen to.
            unsafe { std::ptr::copy_nonoverlapping(from.add(place), to.add(place), len) }
        });
    }
}

/// Writes 0 to all that is not real.
///
/// # Safety
/// The array holds all blocks, and nobody else touches them.
pub unsafe fn clear<T: Element>(dead: &[Block], to: *mut T) {
    for block in dead {
        block.runs(0, block.elements(), &mut |_, place, len| {
            // SAFETY: as the caller has seen to; zero bytes are 0 of every type.
            unsafe { std::ptr::write_bytes(to.add(place), 0, len) }
        });
    }
}

/// Combines a run of all sources, in their order, with the widest vectors of the processor. All give the same bits.
///
/// # Safety
/// As for [`fetch`].
#[cfg(target_arch = "x86_64")]
unsafe fn reduce<T: Element>(
    kind: ReduceKind,
    sources: &[Source],
    from: &dyn Fn(usize) -> *const T,
    at: usize,
    to: *mut T,
    len: usize,
) {
    type Run<'f, T> = (ReduceKind, &'f [Source], &'f dyn Fn(usize) -> *const T, usize, *mut T, usize);
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
    unsafe fn avx512<T: Element>((kind, sources, from, at, to, len): Run<'_, T>) {
        // SAFETY: as the caller has seen to.
        unsafe { reduce_plain(kind, sources, from, at, to, len) }
    }
    #[target_feature(enable = "avx2")]
    unsafe fn avx2<T: Element>((kind, sources, from, at, to, len): Run<'_, T>) {
        // SAFETY: as above.
        unsafe { reduce_plain(kind, sources, from, at, to, len) }
    }
    let wide = is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw");
    let run = (kind, sources, from, at, to, len);
    // SAFETY: the processor has these features (each of the wide ones implies avx512f); the rest as the caller has seen to.
    unsafe {
        if wide {
            avx512(run);
        } else if is_x86_feature_detected!("avx2") {
            avx2(run);
        } else {
            reduce_plain(kind, sources, from, at, to, len);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
use reduce_plain as reduce;

/// The same with whatever vectors the function around it may use.
///
/// # Safety
/// As for [`fetch`].
#[inline(always)]
unsafe fn reduce_plain<T: Element>(
    kind: ReduceKind,
    sources: &[Source],
    from: &dyn Fn(usize) -> *const T,
    at: usize,
    to: *mut T,
    len: usize,
) {
    let mut sums = [T::zero(); CHUNK];
    let mut done = 0;
    while done < len {
        let n = CHUNK.min(len - done);
        let sums = &mut sums[..n];
        for (k, source) in sources.iter().enumerate() {
            // SAFETY: a run of the source's array.
            let part = unsafe { std::slice::from_raw_parts(from(source.rank).add(at + done).offset(source.skip), n) };
            match k {
                0 => sums.iter_mut().zip(part).for_each(|(s, x)| *s = x.widen()),
                _ => combine(kind, sums, part),
            }
        }
        // SAFETY: a run of the result, which no source shares but at the same elements, read by now.
        let out = unsafe { std::slice::from_raw_parts_mut(to.add(done), n) };
        out.iter_mut().zip(&*sums).for_each(|(x, s)| *x = T::narrow(*s));
        done += n;
    }
}

/// One loop for each operator, so that each becomes vectors.
#[inline(always)]
fn combine<T: Element>(kind: ReduceKind, sums: &mut [T::Sum], part: &[T]) {
    let all = sums.iter_mut().zip(part);
    match kind {
        ReduceKind::Sum => all.for_each(|(s, x)| *s = T::add(*s, x.widen())),
        ReduceKind::Prod => all.for_each(|(s, x)| *s = T::times(*s, x.widen())),
        ReduceKind::Max | ReduceKind::Any => all.for_each(|(s, x)| *s = T::larger(*s, x.widen())),
        ReduceKind::Min | ReduceKind::All => all.for_each(|(s, x)| *s = T::smaller(*s, x.widen())),
        ReduceKind::ArgMax | ReduceKind::ArgMin => unreachable!("no operator of parts"),
    }
}
