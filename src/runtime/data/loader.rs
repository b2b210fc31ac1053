//! Batches as a function of (seed, step): matches sources to inputs, checks that they fit, and fills buffers.

use super::array::Numbers;
use super::batch::Batch;
use super::chars::CharTable;
use super::expr::Compiled;
use super::file::pipes_once;
use super::lines::Lines;
use super::order::{Permutation, offset};
use super::spec::{Bound, DataSpec, Expr, Input, STREAM_FIELDS, Source, SourceKind};
use super::stream::Stream;
use crate::runtime::error::{Result, RuntimeError};
use crate::types::{DType, counted};

/// In which order samples come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Epoch after epoch without end, each sample once an epoch; shuffled unless the source says otherwise.
    Train { seed: u64 },
    /// Once, as they stand in the file, whole batches only.
    Pass,
}

/// Gives the batch of any step.
#[derive(Debug)]
pub struct Loader {
    inputs: Vec<Input>,
    batch: usize,
    /// Samples of an epoch or of the pass.
    samples: u64,
    order: Order,
    shuffle: bool,
    part: Part,
    /// Of the epoch that was needed last.
    permutation: Option<(u64, Permutation)>,
}

#[derive(Debug)]
enum Part {
    Stream(StreamPart),
    Lines(Lines, StreamBuffers),
    /// One expression for each input, in their order.
    Arrays(Vec<Compiled>),
}

#[derive(Debug)]
struct StreamPart {
    stream: Stream,
    seq: u64,
    /// The first window of an epoch begins at `0..=slack`.
    slack: u64,
    ids: Vec<u32>,
    buffers: StreamBuffers,
}

/// One sample's fields, and which of them each input takes.
#[derive(Debug)]
struct StreamBuffers {
    fields: [Vec<i32>; 4],
    takes: Vec<usize>,
    values: Vec<f64>,
}

impl Loader {
    /// `inputs` are those to be fed, all with the same number of samples. `chars` is the numbering of characters to use
    /// instead of the file's own (that of the training data, or of a checkpoint).
    pub fn open(spec: &DataSpec, inputs: &[Input], order: Order, chars: Option<&CharTable>) -> Result<Loader> {
        let batch = batch_size(inputs)?;
        pipes_once(&spec.paths())?;
        let (part, samples, shuffle) = match spec {
            DataSpec::Whole(source) if !source.kind.is_array() => {
                let random = matches!(order, Order::Train { .. }) && source.shuffle;
                let (part, samples) = open_stream(source, inputs, random, chars)?;
                (part, samples, source.shuffle)
            }
            DataSpec::Whole(source) => {
                let [input] = inputs else {
                    let names: Vec<&str> = inputs.iter().map(|i| i.name.as_str()).collect();
                    return Err(RuntimeError::new(
                        "E0803",
                        format!(
                            "`{}` gives one array, the model has the inputs {}",
                            source.kind.name(),
                            names.join(", ")
                        ),
                    )
                    .help("write `data { input = .., other = .. }`"));
                };
                let fields = [(input.name.clone(), Expr::Source(source.clone()))];
                open_arrays(&fields, inputs)?
            }
            DataSpec::Fields(fields) => open_arrays(fields, inputs)?,
        };
        if samples < batch as u64 {
            return Err(too_short(spec, samples, batch));
        }
        let samples = match &part {
            // at least one window is there at every offset, or the offset's range is smaller
            Part::Stream(p) if p.slack > 0 => (p.stream.len() - 1 - p.slack) / p.seq,
            _ => samples,
        };
        let shuffle = shuffle && matches!(order, Order::Train { .. });
        Ok(Loader { inputs: inputs.to_vec(), batch, samples, order, shuffle, part, permutation: None })
    }

    /// Samples of an epoch, or of the pass.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Samples of a batch.
    pub fn batch_size(&self) -> usize {
        self.batch
    }

    /// Whole batches of a pass.
    pub fn batches(&self) -> u64 {
        self.samples / self.batch as u64
    }

    /// Samples at the end of a pass that do not fill a batch.
    pub fn left_out(&self) -> u64 {
        self.samples % self.batch as u64
    }

    /// The numbering of characters, for `chars`.
    pub fn chars(&self) -> Option<&CharTable> {
        match &self.part {
            Part::Stream(p) => p.stream.chars.as_ref(),
            Part::Lines(..) | Part::Arrays(_) => None,
        }
    }

    /// Buffers of the right sizes.
    pub fn new_batch(&self) -> Batch {
        Batch::new(&self.inputs)
    }

    /// The batch of a step, counted from 0. In a pass, steps below `batches()`.
    pub fn batch(&mut self, step: u64) -> Result<Batch> {
        let mut batch = self.new_batch();
        self.fill(step, &mut batch)?;
        Ok(batch)
    }

    /// As `batch`, into buffers that `new_batch` made.
    pub fn fill(&mut self, step: u64, batch: &mut Batch) -> Result<()> {
        if self.order == Order::Pass && step >= self.batches() {
            return Err(RuntimeError::internal(format!("batch {step} of a pass of {}", self.batches())));
        }
        batch.step = step;
        for row in 0..self.batch {
            let position = u128::from(step) * self.batch as u128 + row as u128;
            let epoch = (position / u128::from(self.samples)) as u64;
            let within = (position % u128::from(self.samples)) as u64;
            let sample = self.sample(epoch, within);
            match &mut self.part {
                Part::Stream(part) => {
                    let first = match self.order {
                        Order::Train { seed } if self.shuffle => offset(seed, epoch, part.slack),
                        _ => 0,
                    };
                    part.read(first + sample * part.seq)?;
                    part.buffers.write(row, batch);
                }
                Part::Lines(lines, buffers) => {
                    let [tokens, targets, document, position] = &mut buffers.fields;
                    lines.read(sample, tokens, targets, document);
                    for (i, p) in position.iter_mut().enumerate() {
                        *p = i as i32;
                    }
                    buffers.write(row, batch);
                }
                Part::Arrays(fields) => {
                    for ((compiled, input), field) in fields.iter_mut().zip(&self.inputs).zip(&mut batch.fields) {
                        let values = compiled.eval(sample)?;
                        if let Some(i) = values.iter().position(|&v| !fits(v, input)) {
                            let value = values[i];
                            return Err(unfit(compiled, input, sample, i, value));
                        }
                        field.write(row, values);
                    }
                }
            }
        }
        Ok(())
    }

    fn sample(&mut self, epoch: u64, within: u64) -> u64 {
        let Order::Train { seed } = self.order else { return within };
        if !self.shuffle {
            return within;
        }
        let cached = match self.permutation.take() {
            Some((e, p)) if e == epoch => p,
            _ => Permutation::new(seed, epoch, self.samples),
        };
        let sample = cached.at(within);
        self.permutation = Some((epoch, cached));
        sample
    }
}

impl StreamPart {
    /// The window that begins at `at`.
    fn read(&mut self, at: u64) -> Result<()> {
        self.stream.read(at, &mut self.ids)?;
        let [tokens, targets, document, position] = &mut self.buffers.fields;
        let (mut number, mut since) = (0, 0);
        for i in 0..tokens.len() {
            tokens[i] = self.ids[i] as i32;
            targets[i] = self.ids[i + 1] as i32;
            document[i] = number;
            position[i] = since;
            since += 1;
            if self.stream.end == Some(self.ids[i]) {
                number += 1;
                since = 0;
            }
        }
        Ok(())
    }
}

impl StreamBuffers {
    fn new(inputs: &[Input], seq: usize) -> Result<StreamBuffers> {
        let takes = inputs.iter().map(|i| field_index(&i.name)).collect::<Result<_>>()?;
        Ok(StreamBuffers { fields: std::array::from_fn(|_| vec![0; seq]), takes, values: vec![0.0; seq] })
    }

    fn write(&mut self, row: usize, batch: &mut Batch) {
        for (&take, field) in self.takes.iter().zip(&mut batch.fields) {
            for (v, &id) in self.values.iter_mut().zip(&self.fields[take]) {
                *v = f64::from(id);
            }
            field.write(row, &self.values);
        }
    }
}

/// The range of samples or elements that a source's fractions leave: start and length, not empty.
pub(super) fn part(source: &Source, total: u64) -> Result<(u64, u64)> {
    let path = source.path.display();
    if total == 0 {
        return Err(RuntimeError::new("E0804", format!("data file `{path}` holds no data"))
            .place(path)
            .help("see that it was written, or give another with `--data FILE`"));
    }
    let (from, to) = (source.from, source.to);
    if !(0.0 <= from && from < to && to <= 1.0) {
        return Err(RuntimeError::new("E0803", format!("`from = {from}, to = {to}` is no part of `{path}`"))
            .help("write fractions with 0 <= from < to <= 1"));
    }
    let at = |fraction: f64| ((fraction * total as f64).floor() as u64).min(total);
    let (start, end) = (at(from), at(to));
    if start >= end {
        let all = if total == 1 { "1 sample or element".to_string() } else { format!("{total} samples or elements") };
        return Err(RuntimeError::new(
            "E0804",
            format!("`from = {from}, to = {to}` takes nothing of `{path}`, which has {all}"),
        )
        .place(path)
        .help("take a larger part"));
    }
    Ok((start, end - start))
}

fn batch_size(inputs: &[Input]) -> Result<usize> {
    let Some(first) = inputs.first() else {
        return Err(RuntimeError::new("E0803", "the model has no input that data could feed"));
    };
    for input in inputs {
        if input.sample >= input.dims.len() || input.dims[input.sample].size == 0 {
            return Err(RuntimeError::internal(format!("input {} without samples", input.describe())));
        }
        if input.dims[input.sample] != first.dims[first.sample] {
            return Err(RuntimeError::new(
                "E0803",
                format!("inputs {} and {} have different sample dims", first.describe(), input.describe()),
            )
            .help("every fed input needs the dim named after `samples`"));
        }
    }
    Ok(first.dims[first.sample].size)
}

fn field_index(name: &str) -> Result<usize> {
    STREAM_FIELDS.iter().position(|f| *f == name).ok_or_else(|| {
        RuntimeError::new("E0803", format!("a stream of tokens has no field for input `{name}`"))
            .note(format!("its fields are {}", STREAM_FIELDS.join(", ")))
            .help("name the inputs so, or use `data { .. }` with arrays")
    })
}

fn open_stream(source: &Source, inputs: &[Input], random: bool, chars: Option<&CharTable>) -> Result<(Part, u64)> {
    let seq = inputs[0].sample_len();
    for input in inputs {
        if input.dims.len() != 2 || input.sample_len() != seq || seq == 0 {
            return Err(RuntimeError::new(
                "E0803",
                format!("`{}` gives sequences, input {} takes none of {seq}", source.kind.name(), input.describe()),
            )
            .help("inputs fed by a stream have the sample dim and one sequence dim, the same for all"));
        }
        if input.dtype == DType::Bool {
            return Err(wrong_type(source.kind.name(), "int", input));
        }
    }
    let buffers = StreamBuffers::new(inputs, seq)?;
    // all fields of ids come from the same ids, so the tightest bound holds for them
    let bound = inputs
        .iter()
        .filter(|i| matches!(i.name.as_str(), "tokens" | "targets"))
        .filter_map(|i| i.bound.as_ref())
        .min_by_key(|b| b.size);
    if source.kind == SourceKind::Lines {
        let lines = Lines::open(source, seq, bound)?;
        let count = lines.len();
        return Ok((Part::Lines(lines, buffers), count));
    }
    let stream = Stream::open(source, bound, chars)?;
    let seq = seq as u64;
    if stream.len() < seq + 1 {
        return Err(RuntimeError::new(
            "E0804",
            format!(
                "`{}` has {} here, a sample takes {} (a sequence of {seq} and the next)",
                source.path.display(),
                counted(stream.len(), "element"),
                seq + 1
            ),
        )
        .place(source.path.display())
        .help("use more data or a shorter sequence"));
    }
    let windows = (stream.len() - 1) / seq;
    // An offset up to seq - 1 may cost the last window; a single window may only move as far as it has room.
    let slack = match (random, windows) {
        (false, _) => 0,
        (true, 1) => stream.len() - 1 - seq,
        (true, _) => seq - 1,
    };
    let ids = vec![0; seq as usize + 1];
    Ok((Part::Stream(StreamPart { stream, seq, slack, ids, buffers }), windows))
}

fn open_arrays(fields: &[(String, Expr)], inputs: &[Input]) -> Result<(Part, u64, bool)> {
    let mut compiled = vec![];
    for input in inputs {
        let Some((_, expr)) = fields.iter().find(|(name, _)| *name == input.name) else {
            return Err(RuntimeError::new("E0803", format!("no data for input `{}`", input.name))
                .help(format!("add `{} = ..` to `data`", input.name)));
        };
        let named = |e: RuntimeError| e.of_input(&input.name);
        let one = Compiled::new(expr).map_err(named)?;
        check_shape(&one, input, expr).map_err(named)?;
        check_type(&one, input).map_err(named)?;
        compiled.push(one);
    }
    let first = compiled[0].array();
    let samples = first.len();
    if let Some(other) = compiled.iter().map(Compiled::array).find(|a| a.len() != samples) {
        return Err(RuntimeError::new(
            "E0803",
            format!(
                "`{}` has {}, `{}` has {}",
                first.path().display(),
                counted(samples, "sample"),
                other.path().display(),
                other.len()
            ),
        )
        .help("all arrays of `data` need the same samples in the same order"));
    }
    let shuffle = fields.iter().all(|(_, e)| shuffled(e));
    Ok((Part::Arrays(compiled), samples, shuffle))
}

/// One source in file order keeps all in file order.
fn shuffled(expr: &Expr) -> bool {
    match expr {
        Expr::Source(source) => source.shuffle,
        Expr::Int(_) | Expr::Float(_) | Expr::Bool(_) => true,
        Expr::Map(_, operands) => operands.iter().all(shuffled),
    }
}

/// Axes must be the input's, in declared order; those of size 1 may be there or not, and one flat axis (columns of a
/// table) may stand for all.
fn check_shape(compiled: &Compiled, input: &Input, expr: &Expr) -> Result<()> {
    let array = compiled.array();
    let has: Vec<usize> = array.sample_shape().iter().copied().filter(|&n| n != 1).collect();
    let wants: Vec<usize> =
        input.dims.iter().enumerate().filter(|(i, d)| *i != input.sample && d.size != 1).map(|(_, d)| d.size).collect();
    let flat = has.len() == 1 && has[0] == input.sample_len();
    if has == wants || flat {
        return Ok(());
    }
    let cure = if tabular(expr) {
        match input.sample_len() {
            1 => "take one column: `csv(.., column = 0)`".to_string(),
            n => format!("take as many columns as the input has elements: `csv(.., column = 0, count = {n})`"),
        }
    } else {
        match in_order(&has, input) {
            Some(dims) => format!("declare the input's dims in the file's order: `{}: [{dims}]`", input.name),
            None => "declare the dims so, or store the array so".to_string(),
        }
    };
    Err(RuntimeError::new(
        "E0803",
        format!(
            "a sample of `{}` has shape {:?}, input {} needs {wants:?}",
            array.path().display(),
            array.sample_shape(),
            input.describe()
        ),
    )
    .place(array.path().display())
    .note("axes of a file stand in the declared order of the input's dims, samples first")
    .help(cure))
}

/// Whether an expression reads columns of tables.
fn tabular(expr: &Expr) -> bool {
    match expr {
        Expr::Source(source) => matches!(source.kind, SourceKind::Csv { .. }),
        Expr::Int(_) | Expr::Float(_) | Expr::Bool(_) => false,
        Expr::Map(_, operands) => operands.iter().any(tabular),
    }
}

/// An input's dims in the order of a file's axes, if they are the same but for the order.
fn in_order(has: &[usize], input: &Input) -> Option<String> {
    let sample = input.dims[input.sample].name.clone();
    let mut rest: Vec<_> = input.dims.iter().enumerate().filter(|(i, _)| *i != input.sample).map(|d| d.1).collect();
    let mut out = vec![sample];
    for size in has {
        let at = rest.iter().position(|d| d.size == *size)?;
        out.push(rest.remove(at).name.clone());
    }
    out.extend(rest.iter().map(|d| d.name.clone()));
    rest.iter().all(|d| d.size == 1).then(|| out.join(", "))
}

fn check_type(compiled: &Compiled, input: &Input) -> Result<()> {
    let ok = match input.dtype {
        // whole numbers are checked one by one
        DType::Bool | DType::I32 => compiled.numbers <= Numbers::Int,
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => true,
    };
    if ok {
        return Ok(());
    }
    let error = wrong_type(&format!("`{}`", compiled.array().path().display()), "float", input)
        .place(compiled.array().path().display());
    Err(match compiled.fraction_at() {
        Some(at) => error.note(format!("the first value that is no whole number is at {at}")),
        None => error,
    })
}

fn wrong_type(what: &str, gives: &str, input: &Input) -> RuntimeError {
    let error =
        RuntimeError::new("E0803", format!("{what} gives {gives}, input {} does not take it", input.describe()));
    match input.dtype {
        DType::I32 => error.help(format!("write `{} = int(..)` to cut off fractions", input.name)),
        DType::Bool => error.help(format!("declare `{}` as int or float", input.name)),
        _ => error,
    }
}

pub(super) fn fits(v: f64, input: &Input) -> bool {
    match input.dtype {
        DType::Bool => v == 0.0 || v == 1.0,
        DType::I32 => {
            let in_bound = |b: &Bound| v < b.size as f64 && (v >= 0.0 || b.negative);
            (-2_147_483_648.0..2_147_483_648.0).contains(&v) && input.bound.as_ref().is_none_or(in_bound)
        }
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => true,
    }
}

/// Why a value does not fit; goes on from "value x for input `y`".
pub(super) fn misfit(input: &Input) -> String {
    match (&input.bound, input.dtype) {
        (_, DType::Bool) => "is neither 0 nor 1".to_string(),
        (Some(b), _) if b.negative => format!("is not below dim {} = {}", b.dim, b.size),
        (Some(b), _) => format!("is not in 0 .. dim {} = {}", b.dim, b.size),
        (None, _) => "does not fit a 32-bit int".to_string(),
    }
}

fn unfit(compiled: &Compiled, input: &Input, sample: u64, element: usize, value: f64) -> RuntimeError {
    let array = compiled.array();
    let why = misfit(input);
    RuntimeError::new(
        "E0803",
        format!(
            "value {value} for input `{}` {why}: sample {}, element {} of `{}`, counted from 1",
            input.name,
            array.file_index(sample) + 1,
            element + 1,
            array.path().display()
        ),
    )
    .place(array.path().display())
    .help(match input.bound {
        Some(_) => "mend the data, or enlarge the dim that it indexes",
        None => "mend the data, or convert it under `data`",
    })
}

fn too_short(spec: &DataSpec, samples: u64, batch: usize) -> RuntimeError {
    let path = match spec {
        DataSpec::Whole(source) => format!("`{}`", source.path.display()),
        DataSpec::Fields(_) => "the data".to_string(),
    };
    RuntimeError::new("E0804", format!("{path} has {} here, fewer than a batch of {batch}", counted(samples, "sample")))
        .help("use more data, a smaller batch or a shorter sequence")
}
