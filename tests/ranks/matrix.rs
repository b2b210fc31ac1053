//! Every schedule with everything that goes with one: data and tensor parallelism, ZeRO, recomputation.
//!
//! All of the combinations are too many for every run: one in [`PART`] of them, spread over all; `PART=1` runs every one, and `FROM=n` begins elsewhere.

use super::stages::{compare, gpt, plan, schedules};
use partita::types::DType;

const PART: usize = 31;

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[test]
fn schedules_go_with_every_combination_of_layouts_and_recomputation() {
    let (part, mut k) = (number("PART", PART).max(1), number("FROM", 0));
    let mut run = 0;
    for ranks in [2, 4] {
        for (schedule, stages) in schedules(ranks) {
            for dp in [1, 2] {
                for zero in 0..4 {
                    for tp in [1, 2] {
                        for recompute in ["none", "full", "Attention"] {
                            k += 1;
                            // Without copies there is nothing to divide.
                            if !k.is_multiple_of(part) || (dp == 1 && zero > 0) {
                                continue;
                            }
                            let (mut mesh, mut more) = (String::new(), String::new());
                            if dp > 1 {
                                mesh += ", dp = 2";
                                more += &format!("shard batch by dp\nzero {zero} by dp\n");
                            }
                            if tp > 1 {
                                mesh += ", tp = 2";
                                more += "shard heads, mlp, vocab by tp\nshard seq by tp in LayerNorm\n";
                            }
                            more += &format!("recompute {recompute}\n");
                            compare(&gpt(stages), &plan(ranks, schedule, 4, &mesh, &more), DType::F64, 13, 1e-9);
                            run += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(run > 10, "{run}");
}
