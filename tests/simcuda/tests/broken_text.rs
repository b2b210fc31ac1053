//! Texts with mistakes: whatever is changed in PTX, it is read or refused with a line, and what is read either runs or
//! faults. Nothing panics and nothing hangs. `CASES=20000` tries more.

mod common;

use common::pseudo;
use simcuda::check::device::Memory;
use simcuda::config::Config;
use simcuda::exec::decode::decode;
use simcuda::exec::launch::{Launch, run};
use simcuda::ptx::link::{Globals, link};
use simcuda::ptx::parse::parse;
use std::sync::Arc;

const TEXTS: [&str; 3] = [
    include_str!("../kernels/basic.ptx"),
    include_str!("../kernels/products.ptx"),
    include_str!("../kernels/attention.ptx"),
];

/// One word taken from another place of the text, left out, or cut.
fn change(text: &str, next: &mut impl FnMut() -> u32) -> String {
    let words: Vec<&str> = text.split_inclusive([' ', ',', ';', '\n', '\t']).collect();
    let mut pick = || next() as usize % words.len();
    let (at, other) = (pick(), pick());
    let mut out: Vec<&str> = words.clone();
    match pick() % 4 {
        0 => out[at] = words[other],
        1 => out[at] = "",
        2 => out.swap(at, other),
        _ => out.truncate(at),
    }
    out.concat()
}

#[test]
fn changed_texts_are_read_run_or_refused() {
    let variables = |name: &str| match name {
        "SIMCUDA_BUDGET" => Some("20000".to_string()),
        _ => None,
    };
    let config = Config::read(variables);
    let memory = Memory::new(1 << 20, true).expect("there is room");
    let buffer = memory.allocate(1 << 16).expect("there is room");
    memory.fill(buffer, &[0], 1 << 16).expect("it was allocated");
    let mut next = pseudo(1);
    let (mut refused, mut ran) = (0, 0);
    let cases = std::env::var("CASES").ok().and_then(|c| c.parse().ok()).unwrap_or(600);
    for round in 0..cases {
        let text = change(TEXTS[round % 3], &mut next);
        let module = match parse(&text) {
            Ok(module) => module,
            Err(e) => {
                assert!(e.line >= 1 && !e.reason.is_empty());
                refused += 1;
                continue;
            }
        };
        let addresses: Globals = module.variables.iter().map(|v| (v.name.clone(), buffer)).collect();
        for f in module.functions.iter().filter(|f| f.entry) {
            match link(&module, &f.name, &addresses).and_then(|l| decode(&l)) {
                Err(e) => {
                    assert!(e.line >= 1 && !e.reason.is_empty());
                    refused += 1;
                }
                Ok(kernel) if round % 10 < 3 => {
                    let mut params = vec![0u8; kernel.param_bytes];
                    for (at, bytes) in &kernel.params {
                        let value = if *bytes == 8 { buffer } else { 64 };
                        let n = (*bytes).min(8);
                        params[*at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
                    }
                    let kernel = Arc::new(kernel);
                    let launch = Launch { kernel, grid: [1, 1, 1], threads: [128, 1, 1], dynamic: 27_648, params };
                    let (_, fault) = run(&launch, &memory, &config);
                    ran += 1;
                    assert!(fault.is_none_or(|f| !f.message.is_empty()));
                }
                Ok(_) => {}
            }
        }
    }
    assert!(refused > 50 && ran > 50, "{refused} refused, {ran} run");
}
