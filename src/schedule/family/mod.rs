//! Generators of tables, one family a file. Each gives a table for any number of ranks and microbatches.

pub mod dual;
pub mod interleaved;
pub mod looped;
pub mod place;
mod row;
pub mod v_shape;
pub mod zero_bubble;
pub mod zero_bubble_v;
