//! Import and export by a map: strided copies between parameters and a file's tensors, with conversion of types.
//!
//! No files are touched here: the caller reads and writes tensors by name. Every tensor is checked before its first
//! element is copied.

use super::{Entry, Piece, Target, WeightsMap};
use crate::diag::Diagnostic;
use crate::types::DType;
use half::{bf16, f16};
use indexmap::IndexMap;
use std::borrow::Cow;

/// A tensor of a file, row-major, in little-endian bytes.
#[derive(Clone, Debug)]
pub struct FileTensor<'a> {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: Cow<'a, [u8]>,
}

/// Where parameters and states lie in memory: row-major over their declared dims.
pub trait Store {
    fn get(&self, target: Target) -> Option<(DType, &[u8])>;
    fn get_mut(&mut self, target: Target) -> Option<(DType, &mut [u8])>;
}

/// A store of its own memory.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Buffers(pub IndexMap<Target, (DType, Vec<u8>)>);

impl Buffers {
    /// Zeros for every parameter and state that a map knows.
    pub fn zeros(map: &WeightsMap) -> Buffers {
        let zero = |s: &super::Slot| (s.target, (s.dtype, vec![0; s.elements() * s.dtype.bytes()]));
        Buffers(map.slots.iter().map(zero).collect())
    }
}

impl Store for Buffers {
    fn get(&self, target: Target) -> Option<(DType, &[u8])> {
        self.0.get(&target).map(|(t, b)| (*t, &b[..]))
    }

    fn get_mut(&mut self, target: Target) -> Option<(DType, &mut [u8])> {
        self.0.get_mut(&target).map(|(t, b)| (*t, &mut b[..]))
    }
}

/// Fills the wanted parameters and states from tensors that `read` finds by name. `file`: what messages call the file.
/// Entries that touch nothing wanted are not read. All problems are reported; nothing is copied from a tensor that has one.
pub fn import<'t>(
    map: &WeightsMap,
    file: &str,
    wanted: &dyn Fn(Target) -> bool,
    read: &mut dyn FnMut(&str) -> Option<FileTensor<'t>>,
    store: &mut dyn Store,
) -> Result<(), Vec<Diagnostic>> {
    let mut problems = Vec::new();
    let mut unlike: Vec<Unlike> = Vec::new();
    let own = map.name.is_empty();
    for e in &map.entries {
        if !e.pieces.iter().any(|p| wanted(p.target)) {
            continue;
        }
        let Some(tensor) = read(&e.file_name) else {
            match own {
                true => unlike.push((e, None)),
                false => problems.push(missing(map, e, file)),
            }
            continue;
        };
        if own && plain(&tensor.shape) != plain(&e.shape) {
            unlike.push((e, Some(tensor.shape)));
            continue;
        }
        if let Some(d) = unfit(map, e, file, &tensor) {
            problems.push(d);
            continue;
        }
        for p in e.pieces.iter().filter(|p| wanted(p.target)) {
            if let Some((dtype, bytes)) = store.get_mut(p.target) {
                copy(p, true, (dtype, bytes), (tensor.dtype, &tensor.bytes));
            }
        }
    }
    problems.extend(other_model(&unlike, file));
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// A parameter that a file of Partita's own names lacks, or has in another shape.
type Unlike<'m> = (&'m Entry, Option<Vec<usize>>);

/// Differences and selectors that an error names.
const SHOWN: usize = 5;

/// The error of a file of another model, with what to leave out so that the rest can be loaded. Its place is the `load`.
fn other_model(unlike: &[Unlike], file: &str) -> Option<Diagnostic> {
    let said = |(e, shape): &Unlike| match shape {
        Some(shape) => format!("`{}` has shape {shape:?}, in the model {:?}", e.file_name, e.shape),
        None => format!("it has no `{}`", e.file_name),
    };
    let (first, others) = unlike.split_first()?;
    let code = if unlike.iter().any(|u| u.1.is_some()) { "E0807" } else { "E0805" };
    let mut d = Diagnostic::error(code, format!("the weights in `{file}` are another model's: {}", said(first)));
    for other in others.iter().take(SHOWN - 1) {
        d = d.with_note(said(other));
    }
    if unlike.len() > SHOWN {
        d = d.with_note(format!("and {} further differences", unlike.len() - SHOWN));
    }
    // What belongs together goes together.
    let layer = |(e, _): &Unlike| match e.file_name.rsplit_once('.') {
        Some((layer, _)) => format!("\"{layer}.**\""),
        None => format!("\"{}\"", e.file_name),
    };
    let mut layers: Vec<String> = unlike.iter().map(layer).collect();
    layers.dedup();
    let help = match layers.len() <= SHOWN {
        true => format!("load the rest alone: `load \"..\" on \"**\" except {}`", layers.join(", ")),
        false => "load a part of it: `load \"..\" on \"block.**\"`".to_string(),
    };
    Some(d.help(format!("{help}; or set the model's dims to those of the file")))
}

/// Axes of size 1 have no influence on the order of elements; files differ in them.
fn plain(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|n| *n != 1).collect()
}

/// The tensor of one entry, in the type asked for (None: that of its first parameter). None: the store lacks a parameter
/// of it.
pub fn export(entry: &Entry, dtype: Option<DType>, store: &dyn Store) -> Option<FileTensor<'static>> {
    let first = store.get(entry.pieces.first()?.target)?.0;
    let dtype = dtype.unwrap_or(first);
    let mut bytes = vec![0u8; entry.shape.iter().product::<usize>() * dtype.bytes()];
    for p in &entry.pieces {
        let (own, source) = store.get(p.target)?;
        copy(p, false, (dtype, &mut bytes), (own, source));
    }
    Some(FileTensor { dtype, shape: entry.shape.clone(), bytes: Cow::Owned(bytes) })
}

fn missing(map: &WeightsMap, e: &Entry, file: &str) -> Diagnostic {
    Diagnostic::error("E0805", format!("`{file}` has no tensor `{}`", e.file_name))
        .at(e.span, format!("named by `{}`", map.name))
        .help("check the names in the `weights` item, or load fewer parameters: `load \"..\" with .. on \"glob\"`")
}

fn unfit(map: &WeightsMap, e: &Entry, file: &str, t: &FileTensor) -> Option<Diagnostic> {
    if plain(&t.shape) != plain(&e.shape) {
        let d = Diagnostic::error("E0807", format!("tensor `{}` of `{file}` has another shape", e.file_name))
            .at(e.span, format!("`{}` says {:?}, the file has {:?}", map.name, e.shape, t.shape));
        return Some(d.help("set the model's dims to those of the file, or correct the order of axes"));
    }
    let size = e.shape.iter().product::<usize>() * t.dtype.bytes();
    (t.bytes.len() != size).then(|| {
        Diagnostic::error("E0806", format!("tensor `{}` of `{file}` has {} bytes", e.file_name, t.bytes.len()))
            .at(e.span, format!("{size} bytes are expected"))
            .help("fetch or convert the file again")
    })
}

/// All pairs of places (in the parameter, in the file) of a piece.
pub fn walk(p: &Piece, f: &mut dyn FnMut(usize, usize)) {
    let n = p.factors.len();
    let mut at = vec![0usize; n];
    let (mut t, mut s) = (p.target_offset, p.file_offset);
    loop {
        f(t, s);
        let mut k = n;
        loop {
            if k == 0 {
                return;
            }
            k -= 1;
            let d = &p.factors[k];
            at[k] += 1;
            t += d.target_stride;
            s += d.file_stride;
            if at[k] < d.size {
                break;
            }
            t -= d.size * d.target_stride;
            s -= d.size * d.file_stride;
            at[k] = 0;
        }
    }
}

/// Copies a piece: into the parameter (`import`), or into the file's tensor.
fn copy(p: &Piece, import: bool, to: (DType, &mut [u8]), from: (DType, &[u8])) {
    // The innermost digit in a loop of its own.
    let mut outer = p.clone();
    let inner = outer.factors.pop().unwrap_or(super::Factor { size: 1, target_stride: 1, file_stride: 1 });
    let (to_step, from_step) = match import {
        true => (inner.target_stride, inner.file_stride),
        false => (inner.file_stride, inner.target_stride),
    };
    let (to_type, to) = to;
    let (from_type, from) = from;
    walk(&outer, &mut |t, f| {
        let (a, b) = if import { (t, f) } else { (f, t) };
        row(inner.size, (to_type, to, a, to_step), (from_type, from, b, from_step));
    });
}

fn row(n: usize, to: (DType, &mut [u8], usize, usize), from: (DType, &[u8], usize, usize)) {
    let (to_type, to, a, sa) = to;
    let (from_type, from, b, sb) = from;
    let w = to_type.bytes();
    if to_type == from_type {
        if sa == 1 && sb == 1 {
            to[a * w..(a + n) * w].copy_from_slice(&from[b * w..(b + n) * w]);
            return;
        }
        for i in 0..n {
            let (x, y) = ((a + i * sa) * w, (b + i * sb) * w);
            to[x..x + w].copy_from_slice(&from[y..y + w]);
        }
        return;
    }
    for i in 0..n {
        write(to_type, to, a + i * sa, element(from_type, from, b + i * sb));
    }
}

/// f64 holds every value of every type exactly.
fn element(t: DType, bytes: &[u8], i: usize) -> f64 {
    fn take<const N: usize>(bytes: &[u8], i: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&bytes[i * N..(i + 1) * N]);
        out
    }
    match t {
        DType::Bool => f64::from(bytes[i] != 0),
        DType::I32 => f64::from(i32::from_le_bytes(take(bytes, i))),
        DType::F16 => f16::from_le_bytes(take(bytes, i)).to_f64(),
        DType::BF16 => bf16::from_le_bytes(take(bytes, i)).to_f64(),
        DType::F32 => f64::from(f32::from_le_bytes(take(bytes, i))),
        DType::F64 => f64::from_le_bytes(take(bytes, i)),
    }
}

fn write(t: DType, bytes: &mut [u8], i: usize, x: f64) {
    let w = t.bytes();
    let to = &mut bytes[i * w..(i + 1) * w];
    match t {
        DType::Bool => to[0] = u8::from(x != 0.0),
        DType::I32 => to.copy_from_slice(&(x as i32).to_le_bytes()),
        DType::F16 => to.copy_from_slice(&f16::from_f64(x).to_le_bytes()),
        DType::BF16 => to.copy_from_slice(&bf16::from_f64(x).to_le_bytes()),
        DType::F32 => to.copy_from_slice(&(x as f32).to_le_bytes()),
        DType::F64 => to.copy_from_slice(&x.to_le_bytes()),
    }
}
