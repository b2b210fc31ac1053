//! The golden models' inputs: weights and data that are functions of an index, written as the files that the train
//! items name, and the reference figures of `tests/golden_losses`.
#![allow(dead_code, reason = "each test binary uses a part")]

use serde_json::Value;
use std::path::{Path, PathBuf};

/// One variant of a golden model: its configuration and what it must reproduce.
pub struct Golden {
    pub model: String,
    pub variant: String,
    pub facts: Value,
}

impl Golden {
    /// `tests/golden_losses/gpt_tiny.json` for `gpt`, `tiny`.
    pub fn load(model: &str, variant: &str) -> Golden {
        let path = root().join(format!("tests/golden_losses/{model}_{variant}.json"));
        let text = std::fs::read_to_string(&path).expect("the reference is part of the repository");
        let facts = serde_json::from_str(&text).expect("the reference is JSON");
        Golden { model: model.to_string(), variant: variant.to_string(), facts }
    }

    pub fn losses(&self) -> Vec<f64> {
        numbers(&self.facts["loss"])
    }

    pub fn grad_norms(&self) -> Vec<f64> {
        numbers(&self.facts["grad_norm"])
    }

    pub fn config(&self, key: &str) -> usize {
        self.facts["config"][key].as_u64().expect("the configuration names it") as usize
    }

    /// Writes the model, its initial weights (f64) and `steps` batches of data into a folder; gives the model's path.
    pub fn write(&self, folder: &Path, steps: usize) -> PathBuf {
        let model = folder.join(format!("{}.pta", self.model));
        std::fs::copy(root().join(format!("tests/golden_models/{}.pta", self.model)), &model)
            .expect("the model is there");
        write_weights(&self.facts["tensors"], &folder.join("init.safetensors"));
        let (b, t, v) = (self.config("B"), self.config("T"), self.config("V") as u64);
        let token = |row: usize, at: usize| {
            let j = (row * (t + 1) + at) as u64;
            ((7 * j * j + 3 * j) % v) as i32
        };
        let rows = steps * b;
        let tokens: Vec<i32> = (0..rows).flat_map(|r| (0..t).map(move |p| token(r, p))).collect();
        let targets: Vec<i32> = (0..rows).flat_map(|r| (0..t).map(move |p| token(r, p + 1))).collect();
        write_npy(&folder.join("tokens.npy"), &tokens, &[rows, t]);
        write_npy(&folder.join("targets.npy"), &targets, &[rows, t]);
        model
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|n| n.as_f64().expect("a number")).collect()
}

/// Element `i` of tensor number `tensor`, in [-1, 1): the 32-bit murmur3 finaliser of the index.
pub fn hashed(tensor: u32, i: u32) -> f64 {
    let mut x = i.wrapping_add(0x9E37_79B9u32.wrapping_mul(tensor.wrapping_add(1)));
    x ^= x >> 16;
    x = x.wrapping_mul(0x85EB_CA6B);
    x ^= x >> 13;
    x = x.wrapping_mul(0xC2B2_AE35);
    x ^= x >> 16;
    f64::from(x) / f64::from(1u32 << 31) - 1.0
}

/// `tensors`: a list of [name, shape, kind]; kinds are weights `w`, biases `b` and gains `g`.
fn write_weights(tensors: &Value, path: &Path) {
    let mut all = Vec::new();
    for (number, entry) in tensors.as_array().expect("a list of tensors").iter().enumerate() {
        let name = entry[0].as_str().expect("a name").to_string();
        let shape: Vec<usize> = numbers(&entry[1]).iter().map(|n| *n as usize).collect();
        let count: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..count)
            .map(|i| hashed(number as u32, i as u32))
            .map(|r| match entry[2].as_str() {
                Some("w") => 0.1 * r,
                Some("b") => 0.05 * r,
                _ => 1.0 + 0.1 * r,
            })
            .flat_map(f64::to_le_bytes)
            .collect();
        all.push((name, shape, bytes));
    }
    write_safetensors(path, &all);
}

/// A safetensors file of f64 tensors: name, shape and little-endian bytes.
pub fn write_safetensors(path: &Path, tensors: &[(String, Vec<usize>, Vec<u8>)]) {
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F64, shape.clone(), bytes);
        (name.as_str(), view.expect("the bytes fit the shape"))
    });
    let data = safetensors::serialize(views, None).expect("the tensors can be written");
    std::fs::write(path, data).expect("the folder can be written");
}

/// A `.npy` file of little-endian i32.
pub fn write_npy(path: &Path, values: &[i32], shape: &[usize]) {
    assert_eq!(values.len(), shape.iter().product::<usize>());
    let shape: Vec<String> = shape.iter().map(|n| format!("{n},")).collect();
    let mut head = format!("{{'descr': '<i4', 'fortran_order': False, 'shape': ({}), }}", shape.join(" "));
    while (10 + head.len() + 1) % 64 != 0 {
        head.push(' ');
    }
    head.push('\n');
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((head.len() as u16).to_le_bytes());
    out.extend(head.as_bytes());
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    std::fs::write(path, out).expect("the folder can be written");
}
