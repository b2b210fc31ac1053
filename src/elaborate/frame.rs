//! The names in scope while one definition's body is walked.

use super::instance::InstanceId;
use super::value::{DimSet, Val};
use crate::ir::{DimId, ScopeId};
use crate::resolve::{ItemRef, ModuleId};
use crate::source::Span;
use crate::types::DType;
use indexmap::IndexMap;
use std::collections::HashMap;
use std::rc::Rc;

/// What kind of body is walked: decides which statements may stand in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// Constants of a file: no values.
    File,
    Fn,
    Layer,
    Model,
    Optimizer,
    Sample,
    Init,
}

/// A name in a block.
#[derive(Clone, Debug)]
pub struct Local {
    pub val: Val,
    pub span: Span,
    pub used: bool,
    /// The loop depth at which it was made: a rebinding further in is carried.
    pub scan_depth: usize,
}

/// A call site's name and its number among the calls of that name in the body.
pub type Ordinals = Rc<HashMap<Span, (String, u32)>>;

#[derive(Clone, Debug)]
pub struct Frame {
    pub module: ModuleId,
    pub body: Body,
    /// The definition, for messages and local dims.
    pub name: String,
    pub def: Option<ItemRef>,
    pub dims: IndexMap<String, (DimSet, Span)>,
    pub scopes: Vec<IndexMap<String, Local>>,
    /// While an initial value is walked: how many of the scopes lie outside it. What they hold at run time is out of sight.
    pub outer: usize,
    /// The dims that `..` stands for.
    pub rest: Option<Vec<DimId>>,
    /// What an unannotated float type of this signature means at this call.
    pub float: DType,
    /// The layer instance whose body this is.
    pub instance: Option<InstanceId>,
    /// Turns of the enclosing `for`s of this body.
    pub turns: Vec<String>,
    /// Of those that go over a dim in a model's body: dims, and turns.
    pub model_turns: Vec<(DimId, u32)>,
    /// Random stream: instance path, then the chain of call sites.
    pub stream: String,
    pub ordinals: Ordinals,
    pub scope: ScopeId,
    /// Dims of an optimizer's parameter that are mapped over.
    pub mapped: Vec<DimId>,
    /// The place this body was called from.
    pub called_from: Option<Span>,
}

impl Frame {
    pub fn lookup(&mut self, name: &str) -> Option<Val> {
        let (at, local) = self.nearest(name)?;
        local.used = true;
        let val = local.val.clone();
        (at >= self.outer || !run_time(&val)).then_some(val)
    }

    pub fn find(&mut self, name: &str) -> Option<&mut Local> {
        let outer = self.outer;
        self.nearest(name).filter(|(at, local)| *at >= outer || !run_time(&local.val)).map(|(_, local)| local)
    }

    /// A local that lies outside the initial value that is walked.
    pub fn outside(&mut self, name: &str) -> Option<&mut Local> {
        let outer = self.outer;
        self.nearest(name).filter(|(at, _)| *at < outer).map(|(_, local)| local)
    }

    fn nearest(&mut self, name: &str) -> Option<(usize, &mut Local)> {
        self.scopes.iter_mut().enumerate().rev().find_map(|(i, s)| s.get_mut(name).map(|l| (i, l)))
    }

    pub fn names(&self) -> Vec<String> {
        self.scopes.iter().flat_map(|s| s.keys().cloned()).collect()
    }

    /// `name`, or `name.3` inside a `for`.
    pub fn with_turns(&self, name: &str) -> String {
        let mut out = name.to_string();
        for t in &self.turns {
            out.push('.');
            out.push_str(t);
        }
        out
    }
}

/// Whether a value belongs to the graph of the program, or has parts that do.
pub fn run_time(val: &Val) -> bool {
    match val {
        Val::Tensor(_) | Val::Instance(_) => true,
        Val::Tuple(vals) => vals.iter().any(run_time),
        Val::Const(_) | Val::Array(_) | Val::Error | Val::Nothing => false,
    }
}
