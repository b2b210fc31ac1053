//! Checks a program and instantiates it with concrete sizes: syntax trees -> graph IR.
//!
//! In: a resolved [`Program`], settings (`--set`, presets), a mode and a precision. Out: an [`ir::Graph`](crate::ir::Graph)
//! with parameters, states, inputs and outputs, and a second graph that computes initial values.
//! Checking and instantiation are one walk: the language checks a definition at each distinct use, so a checked use
//! *is* an instantiated one. Definitions that nothing uses are walked once with open dims (`model.rs`).
//! Invariants: the graph passes `ir::verify`; after an error the value is [`Val::Error`], which silences what follows;
//! nothing here recurses deeper than the nesting limit of the syntax times the number of nested definitions.
//! Reading order: `value.rs`, `frame.rs`, `expr.rs`; `call.rs` with `statics.rs` and `arguments.rs`; `stmt.rs` with `declare.rs`
//! and `member.rs`; `builtin/`, `model.rs`; `train.rs` with `optimizer.rs` and `average.rs`; `slices.rs`.

mod arguments;
mod attention;
mod average;
mod budget;
pub mod builtin;
pub mod call;
mod declare;
pub mod dims;
pub mod elementwise;
pub mod expr;
pub mod feed;
pub mod frame;
mod globals;
mod habits;
pub mod index;
pub mod instance;
pub mod loops;
mod member;
pub mod model;
mod optimizer;
pub mod ordinals;
pub mod plan;
pub mod sample;
pub mod settings;
pub mod slices;
mod statics;
pub mod stmt;
pub mod train;
pub mod value;
pub mod weights;

use crate::check::constant::Const;
use crate::diag::{Diagnostic, Sink};
use crate::ir::{Builder, DimId, InputId, ParamId, ScopeId, StateId, ValueId};
use crate::resolve::{Entity, ItemRef, ModuleId, Program};
use crate::source::Span;
use crate::syntax::ast::Name;
use crate::types::DType;
use frame::{Body, Frame, Ordinals};
use indexmap::{IndexMap, IndexSet};
use instance::{Instance, InstanceId};
pub use settings::Settings;
use std::collections::HashMap;
use std::rc::Rc;
use value::{DimSet, Val};

/// Nested definitions (there is no recursion, so only generated programs come near).
pub const MAX_CALL_DEPTH: usize = 64;

/// What the constants `training` and `streaming` are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode {
    pub training: bool,
    pub streaming: bool,
}

impl Mode {
    pub const TRAIN: Mode = Mode { training: true, streaming: false };
    pub const EVAL: Mode = Mode { training: false, streaming: false };
    pub const STREAM: Mode = Mode { training: false, streaming: true };
}

/// A loss term: its path (`block.0.moe.balance`, `words`; `loss` where it has no name) and its value.
#[derive(Clone, Debug)]
pub struct Loss {
    pub path: String,
    pub value: ValueId,
    pub span: Span,
}

/// A layout written in an expression. It applies in plans that have the axes.
#[derive(Clone, Debug)]
pub struct InlineLayout {
    pub value: ValueId,
    /// The value that was there without layouts.
    pub of: ValueId,
    pub entries: Vec<(DimSet, Vec<Name>)>,
    pub span: Span,
}

/// The walk over one program in one mode.
pub struct Elab<'a> {
    pub program: &'a Program,
    pub sink: Sink,
    /// Whether something failed by a mistake that was reported before the walk.
    lost: bool,
    /// Mistakes met so far: those of the sink, and again where they were reported before.
    mistakes: usize,
    pub b: Builder,
    /// Computes initial values; shares dims, parameters and states with `b` by number.
    pub init: Builder,
    pub mode: Mode,
    /// The working precision.
    pub precision: DType,
    pub settings: Settings,
    pub losses: Vec<Loss>,
    /// Values of `output` statements, by name.
    pub outputs: IndexMap<String, (ValueId, Span)>,
    pub instances: Vec<Instance>,
    pub used_defs: IndexSet<ItemRef>,
    /// The bodies that were walked, by definition; with the dims that only they know (parameters and local ones).
    pub uses: IndexMap<ItemRef, Vec<ScopeId>>,
    pub scope_dims: IndexMap<ScopeId, IndexMap<String, DimSet>>,
    /// Values by the name that a body gives them.
    pub named: Vec<(ScopeId, String, ValueId)>,
    /// Dims that a `for` of the model goes over.
    pub loop_dims: IndexMap<DimId, Span>,
    /// `x @ [seq: tp]` in expressions.
    pub inline_layouts: Vec<InlineLayout>,
    /// Names of `use`d or defined entities that were looked up, per module.
    pub used_names: IndexSet<(ModuleId, String)>,
    /// Names that the data can feed; inputs with a default that are not among them take it. None: all are fed.
    pub fed: Option<Vec<String>>,
    frames: Vec<Frame>,
    global_dims: HashMap<ItemRef, Option<DimSet>>,
    local_dims: HashMap<(Option<ItemRef>, String, usize), DimId>,
    pub dim_spans: HashMap<DimId, Span>,
    /// Dims of definitions that are checked without a use: their sizes are unknown.
    opaque: IndexSet<DimId>,
    constants: HashMap<ItemRef, Val>,
    evaluating: Vec<ItemRef>,
    /// Turns of the enclosing `scan`s, outermost first.
    scans: Vec<ValueId>,
    reads: HashMap<(ReadKey, DType), ValueId>,
    ordinals: HashMap<Span, Ordinals>,
    saw_ragged: bool,
    /// An initial value is being walked: `b` is the graph of initial values.
    in_initial: bool,
    budget: budget::Budget,
    /// A limit was passed and reported; the rest of the walk is empty.
    too_large: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReadKey {
    Param(ParamId),
    State(StateId),
    Input(InputId),
    Step,
}

impl<'a> Elab<'a> {
    pub fn new(program: &'a Program, settings: Settings, mode: Mode, precision: DType) -> Elab<'a> {
        Elab {
            program,
            sink: Sink::default(),
            lost: false,
            mistakes: 0,
            b: Builder::default(),
            init: Builder::default(),
            mode,
            precision,
            settings,
            losses: Vec::new(),
            outputs: IndexMap::new(),
            instances: Vec::new(),
            used_defs: IndexSet::new(),
            uses: IndexMap::new(),
            scope_dims: IndexMap::new(),
            named: Vec::new(),
            loop_dims: IndexMap::new(),
            inline_layouts: Vec::new(),
            used_names: IndexSet::new(),
            fed: None,
            frames: Vec::new(),
            global_dims: HashMap::new(),
            local_dims: HashMap::new(),
            dim_spans: HashMap::new(),
            opaque: IndexSet::new(),
            constants: HashMap::new(),
            evaluating: Vec::new(),
            scans: Vec::new(),
            reads: HashMap::new(),
            ordinals: HashMap::new(),
            saw_ragged: false,
            in_initial: false,
            budget: budget::Budget::default(),
            too_large: false,
        }
    }

    /// f32, or f64 under `precision f64`.
    pub fn single(&self) -> DType {
        if self.precision == DType::F64 { DType::F64 } else { DType::F32 }
    }

    fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("a body is being walked")
    }

    fn error(&mut self, d: Diagnostic) {
        self.mistakes += 1;
        // Name the chain of calls that led into a shared definition.
        let mut d = d;
        let here = self.frames.last().map(|f| f.name.clone());
        let callers: Vec<(String, Span)> =
            self.frames.iter().rev().take(4).filter_map(|f| f.called_from.map(|s| (f.name.clone(), s))).collect();
        if here.is_some() {
            for (name, span) in callers {
                if d.secondary.len() < 4 && d.primary.as_ref().is_none_or(|p| p.span != span) {
                    d = d.and(span, format!("in `{name}`, called from here"));
                }
            }
        }
        self.sink.push(d);
    }

    fn open_frame(&self, module: ModuleId, body: Body, name: &str) -> Frame {
        Frame {
            module,
            body,
            name: name.to_string(),
            def: None,
            dims: IndexMap::new(),
            scopes: vec![IndexMap::new()],
            outer: 0,
            rest: None,
            float: self.precision,
            instance: None,
            turns: Vec::new(),
            model_turns: Vec::new(),
            stream: String::new(),
            ordinals: Rc::default(),
            scope: crate::ir::ROOT,
            mapped: Vec::new(),
            called_from: None,
        }
    }

    /// Runs `f` in a frame of its own.
    fn within<T>(&mut self, frame: Frame, f: impl FnOnce(&mut Self) -> T) -> T {
        let (span, scope) = (self.b.span, self.b.scope);
        self.b.scope = frame.scope;
        self.frames.push(frame);
        let out = f(self);
        self.frames.pop();
        self.b.span = span;
        self.b.scope = scope;
        out
    }

    fn instance(&mut self, id: InstanceId) -> &mut Instance {
        &mut self.instances[id.0 as usize]
    }

    fn entity(&mut self, module: ModuleId, name: &str) -> Option<Entity> {
        let found = self.program.module(module).names.get(name)?.entity;
        self.used_names.insert((module, name.to_string()));
        Some(found)
    }

    /// Names of dims for messages: `[batch, seq]`.
    pub fn show_dims(&self, dims: &[DimId]) -> String {
        let names: Vec<&str> = dims.iter().map(|d| self.b.graph.dim(*d).name.as_str()).collect();
        format!("[{}]", names.join(", "))
    }

    pub fn dim_name(&self, d: DimId) -> String {
        self.b.graph.dim(d).name.clone()
    }

    /// The size of a dim as a constant: unknown where a definition is checked without a use.
    fn size_const(&self, dims: &[DimId]) -> Const {
        if dims.iter().any(|d| self.opaque.contains(d)) {
            return Const::Unknown;
        }
        Const::size(self.b.graph.elements(dims))
    }

    /// Emits in the program's own block, whatever loop is open, and remembers the value.
    fn read(&mut self, key: ReadKey, dtype: DType) -> ValueId {
        if let Some(v) = self.reads.get(&(key, dtype)) {
            return *v;
        }
        let v = self.b.hoisted(|b| {
            let v = match key {
                ReadKey::Param(p) => b.param(p),
                ReadKey::State(s) => b.state(s),
                ReadKey::Input(i) => b.input(i),
                ReadKey::Step => b.step(),
            };
            b.cast(v, dtype)
        });
        self.reads.insert((key, dtype), v);
        v
    }

    /// Whether any error was found.
    pub fn failed(&self) -> bool {
        self.sink.has_errors() || self.lost
    }

    /// Whether a name is unknown by a mistake that was reported; what depends on it has an error of which nothing is said.
    fn is_lost(&mut self, name: &str) -> bool {
        let lost = self.program.is_lost(self.frame().module, name);
        if lost {
            self.lose();
        }
        lost
    }

    /// What is walked fails by a mistake that was reported before.
    fn lose(&mut self) {
        self.lost = true;
        self.mistakes += 1;
    }
}
