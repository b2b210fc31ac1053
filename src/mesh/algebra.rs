//! What operators of partial values obey: which of them combine in any grouping from an element that changes nothing.

use crate::types::{DType, ReduceKind};

/// Whether arrays of values alone can be combined, in any grouping. Of the index of the largest they cannot: it takes the
/// values beside the indices.
pub fn is_monoid(op: ReduceKind) -> bool {
    !matches!(op, ReduceKind::ArgMax | ReduceKind::ArgMin)
}

/// What changes nothing when combined with a value of the type; of monoids only.
pub fn identity(op: ReduceKind, dtype: DType) -> Option<f64> {
    is_monoid(op).then(|| op.neutral(dtype))
}

/// Whether a value combined with itself is itself, so that a replicated array is a partial one as it stands.
pub fn idempotent(op: ReduceKind) -> bool {
    matches!(op, ReduceKind::Max | ReduceKind::Min | ReduceKind::Any | ReduceKind::All)
}

/// Two values made one; of monoids only. Truth is one and zero, and what is not a number stays so.
pub fn combine(op: ReduceKind, a: f64, b: f64) -> Option<f64> {
    let pick = |first: bool| if a.is_nan() || first { a } else { b };
    match op {
        ReduceKind::Sum => Some(a + b),
        ReduceKind::Prod => Some(a * b),
        ReduceKind::Max => Some(pick(a > b)),
        ReduceKind::Min => Some(pick(a < b)),
        ReduceKind::Any => Some(f64::from(a != 0.0 || b != 0.0)),
        ReduceKind::All => Some(f64::from(a != 0.0 && b != 0.0)),
        ReduceKind::ArgMax | ReduceKind::ArgMin => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monoids_have_an_identity_and_combine_in_any_grouping() {
        for op in ReduceKind::ALL.into_iter().filter(|op| is_monoid(*op)) {
            let truth = matches!(op, ReduceKind::Any | ReduceKind::All);
            let values: &[f64] = if truth { &[0.0, 1.0] } else { &[-3.0, 0.0, 1.0, 2.5, 7.0] };
            let dtype = if truth { DType::Bool } else { DType::F32 };
            let of = |a, b| combine(op, a, b).expect("a monoid");
            let one = identity(op, dtype).expect("a monoid");
            for &a in values {
                assert_eq!((of(a, one), of(one, a)), (a, a), "{op:?}");
                for &b in values {
                    for &c in values {
                        assert_eq!(of(of(a, b), c), of(a, of(b, c)), "{op:?}");
                    }
                }
            }
            assert_eq!(values.iter().all(|v| of(*v, *v) == *v), idempotent(op), "{op:?}");
        }
        assert_eq!(identity(ReduceKind::Max, DType::I32), Some(f64::from(i32::MIN)));
    }

    #[test]
    fn the_index_of_the_largest_is_no_monoid_by_itself() {
        assert_eq!((identity(ReduceKind::ArgMax, DType::I32), combine(ReduceKind::ArgMin, 1.0, 2.0)), (None, None));
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        for op in [ReduceKind::Max, ReduceKind::Min] {
            assert!(combine(op, f64::NAN, 1.0).is_some_and(f64::is_nan));
            assert!(combine(op, 1.0, f64::NAN).is_some_and(f64::is_nan));
        }
    }
}
