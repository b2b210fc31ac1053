//! A program under construction: routines lowered so far and what they share (kernels, constants, slots, places in the
//! text).

use super::{Kernel, Options, lower};
use crate::ir::prune::prune;
use crate::ir::{self, Graph, OpId, Operation};
use crate::program::{self, ALIGN, Access, Place, Program, Role, Site, Slot, Source, SourceId, Work};
use crate::source::{SourceMap, Span};
use crate::types::DType;
use crate::types::rng::Dist;
use indexmap::IndexMap;
use std::collections::HashMap;

/// Everything but machine code and arena offsets. Equal kernels are kept once, whichever routine they come from.
pub struct Module<'s> {
    texts: &'s SourceMap,
    pub program: Program,
    /// What `program`'s launches call, by `Launch::function`.
    pub kernels: Vec<Kernel>,
    known: HashMap<Vec<u8>, u32>,
    /// What launching a kernel takes, by the kernel as it was before it was simplified, and the sizes of its arguments.
    launches: HashMap<Vec<u8>, Launching>,
    /// Numbers of parameters and states by path.
    paths: [HashMap<String, u32>; 2],
    /// Tables whose slots were found last.
    found: (ir::Table<ir::Param>, ir::Table<ir::State>, Slots),
    sources: IndexMap<Source, SourceId>,
    places: HashMap<Option<Span>, (String, u32, u32)>,
    constants: HashMap<Vec<u8>, usize>,
}

impl<'s> Module<'s> {
    pub fn new(texts: &'s SourceMap) -> Module<'s> {
        let mut module = Module {
            texts,
            program: Program { version: program::VERSION, ..Program::default() },
            kernels: Vec::new(),
            known: HashMap::new(),
            launches: HashMap::new(),
            paths: Default::default(),
            found: Default::default(),
            sources: IndexMap::new(),
            places: HashMap::new(),
            constants: HashMap::new(),
        };
        module.source(None, "", None);
        module
    }

    /// Lowers a graph as one more routine and returns its index. Parameters and states are the program's by path.
    pub fn add(&mut self, name: &str, graph: &Graph, options: &Options) -> usize {
        self.add_pruned(name, prune(graph), options)
    }

    /// The same for a graph that [`prune`] has left.
    pub fn add_pruned(&mut self, name: &str, graph: Graph, options: &Options) -> usize {
        if !graph.mesh.axes.is_empty() {
            self.program.mesh = graph.mesh.clone();
        }
        let routine = lower::lower(self, name, graph, options);
        self.program.routines.push(routine);
        self.program.routines.len() - 1
    }

    /// The number of a kernel, new or known.
    pub(super) fn kernel(&mut self, mut kernel: Kernel) -> u32 {
        let name = std::mem::take(&mut kernel.name);
        let key = postcard::to_stdvec(&kernel).expect("a kernel is plain data");
        *self.known.entry(key).or_insert_with(|| {
            self.kernels.push(Kernel { name, ..kernel });
            self.kernels.len() as u32 - 1
        })
    }

    /// What launching a kernel on arguments of these sizes takes: made once, however many layers have such a kernel.
    pub(super) fn launching(
        &mut self,
        mut kernel: Kernel,
        elements: &[usize],
        make: impl FnOnce(&mut Module, Kernel) -> Launching,
    ) -> Launching {
        let name = std::mem::take(&mut kernel.name);
        let key = postcard::to_stdvec(&(&kernel, elements)).expect("a kernel is plain data");
        if let Some(known) = self.launches.get(&key) {
            return known.clone();
        }
        let made = make(self, Kernel { name, ..kernel });
        self.launches.insert(key, made.clone());
        made
    }

    /// The place of an operation.
    pub(super) fn source_of(&mut self, graph: &Graph, op: OpId) -> SourceId {
        let Operation { span, scope, .. } = *graph.op(op);
        let path = graph.scopes.get(scope.index()).map_or("", |s| s.path.as_str());
        self.source(span, path, graph.called(op, self.texts))
    }

    /// `called`: the program's own call that led there, where the library holds the place.
    pub(super) fn source(&mut self, span: Option<Span>, scope: &str, called: Option<Span>) -> SourceId {
        let texts = self.texts;
        let (file, line, column) = self
            .places
            .entry(span)
            .or_insert_with(|| match span {
                Some(s) if texts.files().any(|(id, _)| id == s.file) => {
                    let file = texts.file(s.file);
                    let (line, column) = file.line_column(s.start);
                    (file.name.clone(), line as u32, column as u32)
                }
                _ => (String::new(), 0, 0),
            })
            .clone();
        let called = called.map_or(String::new(), |s| texts.place(s));
        let source = Source { file, line, column, scope: scope.to_string(), called };
        let next = SourceId(self.sources.len() as u32);
        let program = &mut self.program;
        *self.sources.entry(source).or_insert_with_key(|source| {
            program.sources.push(source.clone());
            next
        })
    }

    pub(super) fn site(&mut self, source: SourceId, dim: &str, size: usize, ragged: bool) -> u32 {
        let site = Site { source, dim: dim.to_string(), size, ragged };
        let sites = &mut self.program.sites;
        let at = sites.iter().position(|s| *s == site).unwrap_or_else(|| {
            sites.push(site);
            sites.len() - 1
        });
        at as u32
    }

    /// Offset of these bytes in the pool.
    pub(super) fn constant(&mut self, bytes: Vec<u8>) -> usize {
        let pool = &mut self.program.constants;
        *self.constants.entry(bytes).or_insert_with_key(|bytes| {
            let at = pool.len().next_multiple_of(ALIGN);
            pool.resize(at, 0);
            pool.extend_from_slice(bytes);
            at
        })
    }

    /// Slots of a graph's parameters, states and inputs, in the order of its tables.
    pub(super) fn slots(&mut self, graph: &Graph) -> Slots {
        let mut out = Slots::default();
        // Most are known: functions of a step have the tables of all of it.
        let (params, states, found) = std::mem::take(&mut self.found);
        for (k, p) in graph.params.iter().enumerate() {
            let same = params.shares(&graph.params, k);
            let known = if same { Some(found.params[k]) } else { self.paths[0].get(&p.path).copied() };
            let at = match known {
                Some(known) => known,
                None => {
                    let slot = self.slot(graph, &p.path, p.dtype, &p.dims, Role::Param, p.span);
                    self.program.params.push(slot);
                    let at = self.program.params.len() as u32 - 1;
                    self.paths[0].insert(p.path.clone(), at);
                    at
                }
            };
            out.params.push(at);
        }
        let mut arguments = 0..;
        for (k, s) in graph.states.iter().enumerate() {
            let same = states.shares(&graph.states, k);
            let known = match same {
                true => Some(found.states[k]),
                false => self.paths[1].get(&s.path).map(|n| Place::State(*n)),
            };
            let place = match (role_of(s.kind), known) {
                (None, _) => Place::Argument(arguments.next().expect("without end")),
                (Some(_), Some(known)) => known,
                (Some(role), None) => {
                    let slot = self.slot(graph, &s.path, s.dtype, &s.dims, role, s.span);
                    self.program.states.push(slot);
                    let at = self.program.states.len() as u32 - 1;
                    self.paths[1].insert(s.path.clone(), at);
                    Place::State(at)
                }
            };
            out.states.push(place);
        }
        for i in &graph.inputs {
            let slot = self.slot(graph, &i.name, i.dtype, &i.dims, Role::Input, i.span);
            let same =
                |s: &Slot| (&s.path, &s.shape, &s.cut, s.dtype) == (&slot.path, &slot.shape, &slot.cut, slot.dtype);
            let at = self.program.inputs.iter().position(same).unwrap_or_else(|| {
                self.program.inputs.push(slot);
                self.program.inputs.len() - 1
            });
            out.inputs.push(at as u32);
        }
        self.found = (graph.params.clone(), graph.states.clone(), out.clone());
        out
    }

    fn slot(
        &mut self,
        graph: &Graph,
        path: &str,
        dtype: DType,
        dims: &[ir::DimId],
        role: Role,
        span: Option<Span>,
    ) -> Slot {
        Slot {
            path: path.to_string(),
            dtype,
            dims: dims.iter().map(|d| graph.dim(*d).name.clone()).collect(),
            shape: dims.iter().map(|d| graph.size(*d)).collect(),
            cut: lower::ranks::parts(graph, dims),
            role,
            source: self.source(span, "", None),
            host: false,
            on: Vec::new(),
            copied: false,
        }
    }
}

/// Where the parameters, states and inputs of a graph are; states that are arguments by their order.
#[derive(Clone, Default)]
pub(super) struct Slots {
    pub params: Vec<u32>,
    pub states: Vec<Place>,
    pub inputs: Vec<u32>,
}

/// How a kernel is run.
#[derive(Clone)]
pub(super) enum Launching {
    /// It does nothing but fill its only argument with draws, which the runtime does by itself.
    Fill(Dist),
    Kernel {
        function: u32,
        accesses: Vec<Access>,
        rows: usize,
        grain: usize,
        work: Work,
    },
}

/// None for what is no slot of the program.
fn role_of(kind: ir::StateKind) -> Option<Role> {
    Some(match kind {
        ir::StateKind::Model => Role::Model,
        ir::StateKind::Optimizer => Role::Optimizer,
        ir::StateKind::Average | ir::StateKind::Latest => Role::Average,
        ir::StateKind::Scaling => Role::Scaling,
        ir::StateKind::Cache => Role::Cache,
        ir::StateKind::Argument => return None,
    })
}
