//! Files and names: reads the main file and all it imports, and binds every item's name.
//!
//! In: a path and a [`World`]. Out: a [`Program`]: modules with their syntax trees and name tables. Diagnostics: files that
//! cannot be read, cyclic imports, names that are defined twice or unknown in an import.
//! Invariant: every [`Entity`] of a table points to an item that exists.
//! Reading order: this file, then `stdlib.rs` (the embedded standard library).

pub mod stdlib;

use crate::diag::{Diagnostic, Sink, did_you_mean, some_of};
use crate::source::{FileId, SourceMap, Span, World, normalise, text_of};
use crate::syntax::{self, ast};
use ast::{ItemKind, Name};
use indexmap::{IndexMap, IndexSet};
use std::path::{Path, PathBuf};

/// At most so many files may take part in one program.
pub const MAX_FILES: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ModuleId(pub u32);

/// A place in a module's item list; `sub` numbers the definitions of one `dim` or `const` item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ItemRef {
    pub module: ModuleId,
    pub item: u32,
    pub sub: u32,
}

/// What a name at the top of a file means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Entity {
    Dim(ItemRef),
    Const(ItemRef),
    Def(ItemRef),
    Model(ItemRef),
    Module(ModuleId),
}

#[derive(Clone, Debug)]
pub struct Binding {
    pub entity: Entity,
    /// Where the name was bound: the definition, or the import.
    pub span: Span,
    pub imported: bool,
}

#[derive(Debug)]
pub struct Module {
    pub file: FileId,
    /// Path on disk; None for the standard library.
    pub path: Option<PathBuf>,
    /// `nn` of the standard library; the file's stem otherwise.
    pub name: String,
    pub ast: ast::File,
    pub names: IndexMap<String, Binding>,
    /// Names of imports that failed, which was reported.
    failed: IndexSet<String>,
}

/// All files of one compilation. Module 0 is the main file.
#[derive(Debug, Default)]
pub struct Program {
    pub modules: Vec<Module>,
}

pub const MAIN: ModuleId = ModuleId(0);

impl Program {
    pub fn module(&self, id: ModuleId) -> &Module {
        &self.modules[id.0 as usize]
    }

    /// Whether a name is unknown in a file only because of a mistake that was reported: its definition does not parse, or
    /// its import failed.
    pub fn is_lost(&self, id: ModuleId, name: &str) -> bool {
        let module = self.module(id);
        !module.names.contains_key(name) && (module.failed.contains(name) || module.ast.lost.holds(name))
    }

    /// A name that a module lacks; nothing to say where a mistake that was reported hides it.
    pub fn unknown_item(&self, target: ModuleId, name: &Name, flooded: bool) -> Option<Diagnostic> {
        let module = self.module(target);
        // A definition that did not parse hides its name: the syntax error is what the user needs to see.
        if self.is_lost(target, &name.text) {
            return None;
        }
        let names = module.names.keys().map(String::as_str).filter(|_| !flooded);
        let d = Diagnostic::error("E0201", format!("`{}` has no item `{}`", module.name, name.text))
            .at(name.span, "unknown name");
        Some(match did_you_mean(&name.text, names) {
            Some(n) => d.help(format!("did you mean `{n}`?")),
            None if module.path.is_none() => d.help(format!("`partita std {}` lists what it has", module.name)),
            None if module.names.is_empty() => d.help("it defines nothing"),
            None => d.help(format!("it defines {}", some_of(module.names.keys().map(String::as_str)))),
        })
    }

    pub fn item(&self, at: ItemRef) -> &ast::Item {
        &self.module(at.module).ast.items[at.item as usize]
    }

    pub fn def(&self, at: ItemRef) -> &ast::Def {
        match &self.item(at).kind {
            ItemKind::Def(d) => d,
            other => unreachable!("not a definition: {other:?}"),
        }
    }

    pub fn model(&self, at: ItemRef) -> &ast::Model {
        match &self.item(at).kind {
            ItemKind::Model(m) => m,
            other => unreachable!("not a model: {other:?}"),
        }
    }

    pub fn dim(&self, at: ItemRef) -> &ast::DimDef {
        match &self.item(at).kind {
            ItemKind::Dims(d) => &d[at.sub as usize],
            other => unreachable!("not a dim: {other:?}"),
        }
    }

    pub fn constant(&self, at: ItemRef) -> &ast::ConstDef {
        match &self.item(at).kind {
            ItemKind::Consts(c) => &c[at.sub as usize],
            other => unreachable!("not a constant: {other:?}"),
        }
    }

    /// Items of the main file of one kind, in order.
    pub fn main_items<'a, T>(&'a self, pick: impl Fn(&'a ItemKind) -> Option<T>) -> Vec<T> {
        self.modules.first().map_or(Vec::new(), |m| m.ast.items.iter().filter_map(|i| pick(&i.kind)).collect())
    }

    pub fn models(&self) -> Vec<ItemRef> {
        let items = self.modules.first().map_or(&[][..], |m| &m.ast.items);
        let models = items.iter().enumerate().filter(|(_, i)| matches!(i.kind, ItemKind::Model(_)));
        models.map(|(i, _)| ItemRef { module: MAIN, item: i as u32, sub: 0 }).collect()
    }
}

/// Reads and binds a program. Errors go to the sink; what could be bound is returned all the same.
pub fn load(path: &Path, world: &dyn World, sources: &mut SourceMap, sink: &mut Sink) -> Program {
    let mut loader = Loader { world, sources, sink, program: Program::default(), stack: Vec::new(), too_many: false };
    loader.file(&normalise(path), None);
    loader.program
}

struct Loader<'a> {
    world: &'a dyn World,
    sources: &'a mut SourceMap,
    sink: &'a mut Sink,
    program: Program,
    /// Modules whose imports are being read, for cycles.
    stack: Vec<ModuleId>,
    /// Whether the limit of files was passed.
    too_many: bool,
}

impl Loader<'_> {
    fn file(&mut self, path: &Path, from: Option<Span>) -> Option<ModuleId> {
        if let Some(i) = self.program.modules.iter().position(|m| m.path.as_deref() == Some(path)) {
            return self.known(ModuleId(i as u32), from);
        }
        let shown = path.display().to_string();
        let text = match self.world.read(path) {
            Ok(bytes) => match text_of(bytes) {
                Ok(text) => text,
                Err(at) => {
                    self.unreadable(&shown, &format!("it is not UTF-8 text (first bad byte at offset {at})"), from);
                    return None;
                }
            },
            Err(reason) => {
                self.unreadable(&shown, &reason, from);
                return None;
            }
        };
        let stem = path.file_stem().map_or(String::new(), |s| s.to_string_lossy().into_owned());
        self.add(shown, text, Some(path.to_path_buf()), stem, from)
    }

    fn library(&mut self, name: &str, from: Span) -> Option<ModuleId> {
        if let Some(i) = self.program.modules.iter().position(|m| m.path.is_none() && m.name == name) {
            return self.known(ModuleId(i as u32), Some(from));
        }
        let text = stdlib::text(name)?;
        self.add(format!("<std>/{name}.pta"), text.to_string(), None, name.to_string(), Some(from))
    }

    fn unreadable(&mut self, shown: &str, reason: &str, from: Option<Span>) {
        let mut d = Diagnostic::error("E0207", format!("cannot read `{shown}`: {reason}"));
        if let Some(span) = from {
            d = d.at(span, "imported here");
        }
        self.sink.push(d.help("check the path; it is relative to the file that names it"));
    }

    fn known(&mut self, id: ModuleId, from: Option<Span>) -> Option<ModuleId> {
        if let (true, Some(span)) = (self.stack.contains(&id), from) {
            let start = self.stack.iter().position(|m| *m == id).unwrap_or(0);
            let mut chain: Vec<&str> =
                self.stack[start..].iter().map(|m| self.program.module(*m).name.as_str()).collect();
            chain.push(self.program.module(id).name.as_str());
            self.sink.push(
                Diagnostic::error("E0204", format!("files import each other: {}", chain.join(" -> ")))
                    .at(span, "closes the cycle")
                    .help("move what both need to a third file"),
            );
            return None;
        }
        Some(id)
    }

    fn add(
        &mut self,
        shown: String,
        text: String,
        path: Option<PathBuf>,
        name: String,
        from: Option<Span>,
    ) -> Option<ModuleId> {
        if self.program.modules.len() >= MAX_FILES {
            // Said of the first one only.
            if !std::mem::replace(&mut self.too_many, true) {
                let d = Diagnostic::error("E0102", format!("a program may have at most {MAX_FILES} files"))
                    .help("put definitions that belong together into one file");
                self.sink.push(match from {
                    Some(span) => d.at(span, "this import goes over the limit"),
                    None => d,
                });
            }
            return None;
        }
        let file = self.sources.add(shown, text);
        let text = self.sources.file(file).text.clone();
        let ast = syntax::parse_file(&text, file, self.sink);
        let id = ModuleId(self.program.modules.len() as u32);
        self.program.modules.push(Module { file, path, name, ast, names: IndexMap::new(), failed: IndexSet::new() });
        self.stack.push(id);
        self.bind_items(id);
        self.bind_uses(id);
        self.stack.pop();
        Some(id)
    }

    fn bind_items(&mut self, id: ModuleId) {
        let mut found: Vec<(Name, Entity)> = Vec::new();
        let mut others: IndexMap<(&'static str, String), Span> = IndexMap::new();
        let mut twice: Vec<(Name, Span)> = Vec::new();
        for (i, item) in self.program.module(id).ast.items.iter().enumerate() {
            let at = |sub: usize| ItemRef { module: id, item: i as u32, sub: sub as u32 };
            // Presets, plans, trains, samples and weights have name tables of their own.
            let mut own = |kind: &'static str, name: &Name| {
                if let Some(first) = others.get(&(kind, name.text.clone())) {
                    twice.push((name.clone(), *first));
                } else {
                    others.insert((kind, name.text.clone()), name.span);
                }
            };
            match &item.kind {
                ItemKind::Use(_) => {}
                ItemKind::Dims(d) => {
                    found.extend(d.iter().enumerate().map(|(k, d)| (d.name.clone(), Entity::Dim(at(k)))));
                }
                ItemKind::Consts(c) => {
                    found.extend(c.iter().enumerate().map(|(k, c)| (c.name.clone(), Entity::Const(at(k)))));
                }
                ItemKind::Def(d) => found.push((d.name.clone(), Entity::Def(at(0)))),
                ItemKind::Model(m) => found.push((m.name.clone(), Entity::Model(at(0)))),
                ItemKind::Preset(p) => own("preset", &p.name),
                ItemKind::Plan(p) => own("plan", &p.name),
                ItemKind::Train(t) => own("train", t.name.as_ref().unwrap_or(&t.model)),
                ItemKind::Sample(s) => own("sample", s.name.as_ref().unwrap_or(&s.model)),
                ItemKind::Weights(w) => {
                    let name = Name { text: format!("{} of {}", w.name.text, w.of.text), span: w.name.span };
                    own("weights", &name);
                }
            }
        }
        for (name, entity) in found {
            self.bind(id, &name, entity, false);
        }
        for (name, first) in twice {
            self.twice(&name, first);
        }
    }

    fn twice(&mut self, name: &Name, first: Span) {
        self.sink.push(
            Diagnostic::error("E0202", format!("`{}` is defined twice", name.text))
                .at(name.span, "second definition")
                .and(first, "first definition")
                .help("rename one of them"),
        );
    }

    fn bind(&mut self, id: ModuleId, name: &Name, entity: Entity, imported: bool) {
        if let Some(first) = self.program.module(id).names.get(&name.text) {
            if first.entity != entity || !imported {
                let first = first.span;
                self.twice(name, first);
            }
            return;
        }
        let binding = Binding { entity, span: name.span, imported };
        self.program.modules[id.0 as usize].names.insert(name.text.clone(), binding);
    }

    fn bind_uses(&mut self, id: ModuleId) {
        let uses: Vec<ast::Use> = (self.program.module(id).ast.items.iter())
            .filter_map(|i| match &i.kind {
                ItemKind::Use(u) => Some(u.clone()),
                _ => None,
            })
            .collect();
        for u in uses {
            let (Some(first), Some(last)) = (u.path.first(), u.path.last()) else { continue };
            let span = first.span.to(last.span);
            let Some(target) = self.target(id, &u, span) else {
                let listed = u.names.iter().flatten().map(|n| n.alias.as_ref().unwrap_or(&n.name));
                let failed = if u.names.is_none() { vec![last] } else { listed.collect() };
                let module = &mut self.program.modules[id.0 as usize];
                module.failed.extend(failed.into_iter().map(|n| n.text.clone()));
                continue;
            };
            let Some(names) = &u.names else {
                self.bind(id, last, Entity::Module(target), true);
                continue;
            };
            for n in names {
                let bound = n.alias.as_ref().unwrap_or(&n.name);
                match self.program.module(target).names.get(&n.name.text).map(|b| b.entity) {
                    Some(entity) => self.bind(id, bound, entity, true),
                    None => {
                        self.unknown_import(target, &n.name);
                        self.program.modules[id.0 as usize].failed.insert(bound.text.clone());
                    }
                }
            }
        }
    }

    fn unknown_import(&mut self, target: ModuleId, name: &Name) {
        if let Some(d) = self.program.unknown_item(target, name, self.sink.is_flooded()) {
            self.sink.push(d);
        }
    }

    fn target(&mut self, id: ModuleId, u: &ast::Use, span: Span) -> Option<ModuleId> {
        if !u.local {
            let name = u.path.iter().map(|n| n.text.as_str()).collect::<Vec<_>>().join("/");
            if let [module, item] = &u.path[..]
                && stdlib::defines(&module.text, &item.text)
            {
                self.sink.push(
                    Diagnostic::error("E0201", format!("`{}` is an item of the module `{}`", item.text, module.text))
                        .at(span, "no module")
                        .help(format!("write `use {}.{{{}}}`", module.text, item.text)),
                );
                return None;
            }
            if stdlib::text(&name).is_none() {
                let near = did_you_mean(&name, stdlib::MODULES.iter().map(|(n, _)| *n));
                let d = Diagnostic::error("E0201", format!("the standard library has no module `{name}`"))
                    .at(span, "unknown module");
                self.sink.push(match near {
                    Some(n) => d.help(format!("did you mean `{n}`?")),
                    None => d.help(format!(
                        "its modules: {}; for a file beside this one write `use .{}`",
                        stdlib::MODULES.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", "),
                        name.replace('/', ".")
                    )),
                });
                return None;
            }
            return self.library(&name, span);
        }
        let Some(here) = self.program.module(id).path.clone() else {
            self.unreadable("a local file", "the standard library imports no local files", Some(span));
            return None;
        };
        let mut path = here.parent().map(Path::to_path_buf).unwrap_or_default();
        for n in &u.path {
            path.push(&n.text);
        }
        path.set_extension("pta");
        self.file(&normalise(&path), Some(span))
    }
}
