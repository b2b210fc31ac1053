//! Planned routines never overwrite what is still read; reports add up.

use super::*;
use crate::kernel::tests::{compare, graphs};
use crate::kernel::{Module, Options};
use crate::program::Category;
use crate::source::SourceMap;
use crate::types::DType;

#[test]
fn planned_routines_overwrite_nothing_that_is_still_read() {
    for seed in 1000..1080 {
        let case = graphs::random_case(seed, DType::F64, 16, &[]);
        compare(seed, &case, &Options::default(), plan);
    }
    for seed in 0..40 {
        let loops = graphs::random_case(seed, DType::F64, 6, &[19, 3, 6, 1]);
        compare(seed, &loops, &Options { fuse: seed % 2 == 0, ..Options::default() }, plan);
    }
}

#[test]
fn reports_sum_to_the_peak() {
    let texts = SourceMap::default();
    for seed in 0..20 {
        let case = graphs::random_case(seed, DType::F32, 16, &[]);
        let mut module = Module::new(&texts);
        module.add("train", &case.graph, &Options::default());
        plan(&mut module.program.routines[0]);
        let routine = &module.program.routines[0];
        let report = report(&module.program, routine, 0);
        assert_eq!(report.peak_bytes, module.program.persistent_bytes(0) + routine.arena);
        assert_eq!(report.by_category.values().sum::<usize>(), report.peak_bytes);
        assert_eq!(report.by_source.iter().map(|e| e.bytes).sum::<usize>(), report.peak_bytes);
        assert_eq!(report.by_category.len(), Category::ALL.len());
        assert_eq!(report.by_category["parameters"], module.program.params[0].bytes());
        assert_eq!(report.peak_at.action, "train");
    }
}
