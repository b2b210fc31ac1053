//! A program under construction: routines lowered so far and what they share (kernels, constants, slots, places in the
//! text).

use super::{Kernel, Options, lower};
use crate::ir::{self, Graph, OpId, Operation};
use crate::program::{self, ALIGN, Program, Role, Site, Slot, Source, SourceId};
use crate::source::{SourceMap, Span};
use indexmap::IndexMap;
use std::collections::HashMap;

/// Everything but machine code and arena offsets. Equal kernels are kept once, whichever routine they come from.
pub struct Module<'s> {
    texts: &'s SourceMap,
    pub program: Program,
    /// What `program`'s launches call, by `Launch::function`.
    pub kernels: Vec<Kernel>,
    known: HashMap<Vec<u8>, u32>,
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
            sources: IndexMap::new(),
            places: HashMap::new(),
            constants: HashMap::new(),
        };
        module.source(None, "", None);
        module
    }

    /// Lowers a graph as one more routine and returns its index. Parameters and states are the program's by path.
    pub fn add(&mut self, name: &str, graph: &Graph, options: &Options) -> usize {
        let routine = lower::lower(self, name, graph, options);
        self.program.routines.push(routine);
        self.program.routines.len() - 1
    }

    /// The number of a kernel, new or known.
    pub(super) fn kernel(&mut self, kernel: Kernel) -> u32 {
        let mut bare = kernel.clone();
        bare.name.clear();
        let key = postcard::to_stdvec(&bare).expect("a kernel is plain data");
        *self.known.entry(key).or_insert_with(|| {
            self.kernels.push(kernel);
            self.kernels.len() as u32 - 1
        })
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

    pub(super) fn site(&mut self, source: SourceId, dim: &str, size: usize) -> u32 {
        let site = Site { source, dim: dim.to_string(), size };
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
    pub(super) fn slots(&mut self, graph: &Graph) -> [Vec<u32>; 3] {
        let names = |dims: &[ir::DimId]| -> (Vec<String>, Vec<usize>) {
            (dims.iter().map(|d| graph.dim(*d).name.clone()).collect(), dims.iter().map(|d| graph.size(*d)).collect())
        };
        let mut slot = |path: &str, dtype, dims: &[ir::DimId], role, span| {
            let (dims, shape) = names(dims);
            Slot { path: path.to_string(), dtype, dims, shape, role, source: self.source(span, "", None) }
        };
        let params: Vec<Slot> =
            graph.params.iter().map(|p| slot(&p.path, p.dtype, &p.dims, Role::Param, p.span)).collect();
        let states: Vec<Slot> =
            graph.states.iter().map(|s| slot(&s.path, s.dtype, &s.dims, role_of(s.kind), s.span)).collect();
        let inputs: Vec<Slot> =
            graph.inputs.iter().map(|i| slot(&i.name, i.dtype, &i.dims, Role::Input, i.span)).collect();
        let shared = |known: &mut Vec<Slot>, slot: Slot, same: fn(&Slot, &Slot) -> bool| {
            let at = known.iter().position(|s| same(s, &slot)).unwrap_or_else(|| {
                known.push(slot);
                known.len() - 1
            });
            at as u32
        };
        let by_path = |a: &Slot, b: &Slot| a.path == b.path;
        let by_type = |a: &Slot, b: &Slot| a.path == b.path && a.shape == b.shape && a.dtype == b.dtype;
        let program = &mut self.program;
        [
            params.into_iter().map(|s| shared(&mut program.params, s, by_path)).collect(),
            states.into_iter().map(|s| shared(&mut program.states, s, by_path)).collect(),
            inputs.into_iter().map(|s| shared(&mut program.inputs, s, by_type)).collect(),
        ]
    }
}

fn role_of(kind: ir::StateKind) -> Role {
    match kind {
        ir::StateKind::Model => Role::Model,
        ir::StateKind::Optimizer => Role::Optimizer,
        ir::StateKind::Average => Role::Average,
        ir::StateKind::Scaling => Role::Scaling,
        ir::StateKind::Cache => Role::Cache,
    }
}
