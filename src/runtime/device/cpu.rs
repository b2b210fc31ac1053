//! What the processor that this runs on can do.

use crate::types::cpu::Vectors;

/// Whether code for `target` (see `program::Code::target`) runs here; else what is missing.
pub fn supports(target: &str) -> Result<(), String> {
    let mut words = target.split_whitespace();
    let arch = words.next().unwrap_or_default();
    if arch != std::env::consts::ARCH {
        return Err(format!("it is for {arch}, this is {}", std::env::consts::ARCH));
    }
    match words.find(|feature| !(has(feature) && set_of(feature).allowed())) {
        Some(feature) if has(feature) => Err(format!("it uses `{feature}`, which PARTITA_CPU does not allow")),
        Some(feature) => Err(format!("it uses `{feature}`, which this processor lacks")),
        None => Ok(()),
    }
}

/// The least set of instructions with a feature.
fn set_of(feature: &str) -> Vectors {
    match feature {
        _ if feature.starts_with("avx512") => Vectors::Avx512,
        "avx" | "avx2" | "avx_vnni" | "fma" => Vectors::Avx2,
        _ => Vectors::Plain,
    }
}

/// Features by the names of the code generator.
#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    macro_rules! detected {
        ($($name:literal $std:tt)*) => {
            match feature {
                $($name => std::is_x86_feature_detected!($std),)*
                _ => false,
            }
        };
    }
    detected! {
        "cmpxchg16b" "cmpxchg16b" "sse3" "sse3" "ssse3" "ssse3" "sse41" "sse4.1" "sse42" "sse4.2" "popcnt" "popcnt"
        "avx" "avx" "avx2" "avx2" "fma" "fma" "f16c" "f16c" "avx512bw" "avx512bw" "avx_vnni" "avxvnni" "avx512vnni" "avx512vnni" "bmi1" "bmi1" "bmi2" "bmi2"
        "avx512bitalg" "avx512bitalg" "avx512dq" "avx512dq" "avx512f" "avx512f" "avx512vl" "avx512vl"
        "avx512vbmi" "avx512vbmi" "lzcnt" "lzcnt"
    }
}

#[cfg(target_arch = "aarch64")]
fn has(feature: &str) -> bool {
    match feature {
        "lse" => std::arch::is_aarch64_feature_detected!("lse"),
        "pauth" => std::arch::is_aarch64_feature_detected!("paca"),
        "fp16" => std::arch::is_aarch64_feature_detected!("fp16"),
        "dotprod" => std::arch::is_aarch64_feature_detected!("dotprod"),
        "i8mm" => std::arch::is_aarch64_feature_detected!("i8mm"),
        _ => false,
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has(_feature: &str) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_code_is_refused() {
        assert_eq!(supports(std::env::consts::ARCH), Ok(()));
        assert!(supports("pdp11").is_err());
        let unknown = format!("{} telepathy", std::env::consts::ARCH);
        assert_eq!(supports(&unknown), Err("it uses `telepathy`, which this processor lacks".to_string()));
    }
}
