//! The values of the fed inputs for one step, in buffers that are reused.

use half::{bf16, f16};

use super::spec::Input;
use crate::types::DType;

/// One step's inputs.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The step (or, in a pass, the batch's number) that it was filled for.
    pub step: u64,
    /// In the order of the inputs that the loader was opened with.
    pub fields: Vec<Field>,
}

/// The value of one input: row-major over its dims in declared order, native byte order.
#[derive(Clone, Debug)]
pub struct Field {
    pub name: String,
    pub dtype: DType,
    pub sizes: Vec<usize>,
    /// Whole words keep every element type aligned.
    words: Vec<u64>,
    bytes: usize,
    /// Elements before and after the sample dim.
    outer: usize,
    inner: usize,
    samples: usize,
}

impl Batch {
    pub fn new(inputs: &[Input]) -> Batch {
        Batch { step: 0, fields: inputs.iter().map(Field::new).collect() }
    }

    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|f| f.name == name)
    }
}

impl Field {
    pub(super) fn new(input: &Input) -> Field {
        let sizes: Vec<usize> = input.dims.iter().map(|d| d.size).collect();
        let bytes = sizes.iter().product::<usize>() * input.dtype.bytes();
        Field {
            name: input.name.clone(),
            dtype: input.dtype,
            words: vec![0; bytes.div_ceil(8)],
            bytes,
            outer: sizes[..input.sample].iter().product(),
            inner: sizes[input.sample + 1..].iter().product(),
            samples: sizes[input.sample],
            sizes,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    /// The elements as numbers, for tests and inspection.
    pub fn values(&self) -> Vec<f64> {
        let bytes = self.bytes();
        match self.dtype {
            DType::Bool => bytes.iter().map(|&b| f64::from(b)).collect(),
            DType::I32 => bytemuck::cast_slice::<_, i32>(bytes).iter().map(|&v| f64::from(v)).collect(),
            DType::F16 => bytemuck::cast_slice::<_, f16>(bytes).iter().map(|v| v.to_f64()).collect(),
            DType::BF16 => bytemuck::cast_slice::<_, bf16>(bytes).iter().map(|v| v.to_f64()).collect(),
            DType::F32 => bytemuck::cast_slice::<_, f32>(bytes).iter().map(|&v| f64::from(v)).collect(),
            DType::F64 => bytemuck::cast_slice(bytes).to_vec(),
        }
    }

    /// Writes a sample whose values already fit the type.
    pub fn write(&mut self, row: usize, sample: &[f64]) {
        let (outer, inner, samples) = (self.outer, self.inner, self.samples);
        let bytes = &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes];
        fn scatter<T: bytemuck::Pod>(
            bytes: &mut [u8],
            at: impl Fn(usize) -> usize,
            inner: usize,
            sample: &[f64],
            convert: impl Fn(f64) -> T,
        ) {
            let out: &mut [T] = bytemuck::cast_slice_mut(bytes);
            for (o, values) in sample.chunks_exact(inner).enumerate() {
                let start = at(o);
                for (to, &v) in out[start..start + inner].iter_mut().zip(values) {
                    *to = convert(v);
                }
            }
        }
        debug_assert_eq!(sample.len(), outer * inner);
        let at = |o: usize| (o * samples + row) * inner;
        match self.dtype {
            DType::Bool => scatter(bytes, at, inner, sample, |v| u8::from(v != 0.0)),
            DType::I32 => scatter(bytes, at, inner, sample, |v| v as i32),
            DType::F16 => scatter(bytes, at, inner, sample, f16::from_f64),
            DType::BF16 => scatter(bytes, at, inner, sample, bf16::from_f64),
            DType::F32 => scatter(bytes, at, inner, sample, |v| v as f32),
            DType::F64 => scatter(bytes, at, inner, sample, |v| v),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::Dim;
    use super::*;

    #[test]
    fn the_sample_dim_may_stand_anywhere() {
        let dim = |name: &str, size| Dim { name: name.into(), size };
        for dtype in [DType::I32, DType::F16, DType::BF16, DType::F32, DType::F64] {
            let input = Input {
                name: "x".into(),
                dtype,
                dims: vec![dim("a", 2), dim("batch", 3), dim("b", 2)],
                sample: 1,
                bound: None,
            };
            let mut batch = Batch::new(&[input]);
            for row in 0..3 {
                let base = row as f64 * 10.0;
                batch.fields[0].write(row, &[base, base + 1.0, base + 2.0, base + 3.0]);
            }
            assert_eq!(
                batch.fields[0].values(),
                [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 2.0, 3.0, 12.0, 13.0, 22.0, 23.0],
                "{dtype:?}"
            );
        }
    }

    #[test]
    fn bools_take_a_byte_each() {
        let dims = vec![Dim { name: "batch".into(), size: 3 }];
        let mut batch = Batch::new(&[Input { name: "m".into(), dtype: DType::Bool, dims, sample: 0, bound: None }]);
        batch.fields[0].write(1, &[1.0]);
        assert_eq!(batch.field("m").unwrap().bytes(), [0, 1, 0]);
    }
}
