//! Names: which item, dim, constant or instance a name in the source stands for.
pub mod stdlib;
