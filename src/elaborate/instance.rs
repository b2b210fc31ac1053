//! Instances of layers: their paths, children, parameters and states.

use super::value::{DimSet, StaticVal};
use crate::ir::{ParamId, StateId};
use crate::resolve::ItemRef;
use crate::source::Span;
use indexmap::IndexMap;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct InstanceId(pub u32);

#[derive(Clone, Debug)]
pub struct Instance {
    /// `block.3.attention`; empty for the model itself.
    pub path: String,
    pub def: ItemRef,
    pub statics: Vec<(String, StaticVal)>,
    /// By the last part(s) of the path, relative to this instance: `norm1`, `block.3`.
    pub children: IndexMap<String, InstanceId>,
    pub params: IndexMap<String, ParamId>,
    pub states: IndexMap<String, StateId>,
    /// Local dims of its body, for `weights` items.
    pub dims: IndexMap<String, (DimSet, Span)>,
    /// Where a state was updated, by name.
    pub updates: IndexMap<String, Span>,
    pub span: Span,
    /// How often it was called so far in this elaboration.
    pub calls: u32,
}

impl Instance {
    /// An instance that nothing was found out of yet.
    pub fn new(path: String, def: ItemRef, statics: Vec<(String, StaticVal)>, span: Span) -> Instance {
        Instance {
            path,
            def,
            statics,
            children: IndexMap::new(),
            params: IndexMap::new(),
            states: IndexMap::new(),
            dims: IndexMap::new(),
            updates: IndexMap::new(),
            span,
            calls: 0,
        }
    }

    pub fn join(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }
}
