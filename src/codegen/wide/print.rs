//! The vector IR as text, stable from run to run.

use super::ir::{Address, Class, Constant, Function, Inst, Op, Reg};
use std::fmt::Write;

pub fn print(f: &Function) -> String {
    let mut out = String::new();
    let mut depth = 1;
    for inst in &f.code {
        if matches!(inst.op, Op::AgainBelow(_) | Op::End) {
            depth -= 1;
        }
        let _ = writeln!(out, "{}{}", "  ".repeat(depth), line(f, inst));
        if matches!(inst.op, Op::Begin | Op::IfBelow(_) | Op::IfNotBelow(_) | Op::IfAny) {
            depth += 1;
        }
    }
    out
}

fn line(f: &Function, inst: &Inst) -> String {
    let mut text = String::new();
    if let Some(to) = inst.to.some() {
        text = format!("{} = ", register(f, to));
    }
    text.push_str(&word(inst.op));
    let mut operands: Vec<String> = inst.args.iter().filter_map(|r| r.some()).map(|r| register(f, r)).collect();
    if let Some(at) = &inst.at {
        operands.push(address(f, at));
    }
    if !operands.is_empty() {
        let _ = write!(text, " {}", operands.join(", "));
    }
    match inst.op {
        Op::AgainBelow(Some(n)) | Op::IfBelow(Some(n)) | Op::IfNotBelow(Some(n)) => {
            let _ = write!(text, ", {n}");
        }
        _ => {}
    }
    if let Some(mask) = inst.mask.some() {
        let _ = write!(text, " where {}", register(f, mask));
    }
    text
}

/// The name of an operation with its numbers.
fn word(op: Op) -> String {
    let debug = match op {
        Op::AgainBelow(_) => "again_below".to_string(),
        Op::IfBelow(_) => "if_below".to_string(),
        Op::IfNotBelow(_) => "if_not_below".to_string(),
        op => format!("{op:?}"),
    };
    let mut out = String::new();
    for (i, c) in debug.chars().enumerate() {
        match c {
            '(' => out.push(' '),
            ')' => {}
            c if c.is_uppercase() => {
                if i > 0 && !out.ends_with(' ') && !out.ends_with(|c: char| c.is_uppercase()) {
                    out.push('_');
                }
                out.extend(c.to_lowercase());
            }
            c => out.push(c),
        }
    }
    out
}

fn register(f: &Function, r: Reg) -> String {
    match f.constant_of(r) {
        Some(Constant::Splat { bits, float: true }) => format!("{:?}", f32::from_bits(*bits)),
        Some(Constant::Splat { bits, float: false }) => format!("{}", *bits as i32),
        Some(Constant::Mask(bits)) => format!("{bits:#b}"),
        Some(Constant::Lanes(lanes)) => {
            let lanes: Vec<String> = lanes.iter().map(|x| (*x as i32).to_string()).collect();
            format!("({})", lanes.join(" "))
        }
        Some(Constant::Longs(lanes)) => {
            let lanes: Vec<String> = lanes.iter().map(u64::to_string).collect();
            format!("({})", lanes.join(" "))
        }
        None => match f.class(r) {
            Class::Vector => format!("v{}", r.0),
            Class::Mask => format!("m{}", r.0),
            Class::Word => format!("w{}", r.0),
        },
    }
}

fn address(f: &Function, at: &Address) -> String {
    let mut text = format!("[{}", register(f, at.base));
    if let Some(index) = at.index.some() {
        let _ = write!(text, " + {}*{}", at.bytes, register(f, index));
    }
    match at.disp {
        0 => {}
        d if d < 0 => {
            let _ = write!(text, " - {}", -i64::from(d));
        }
        d => {
            let _ = write!(text, " + {d}");
        }
    }
    text.push(']');
    text
}
