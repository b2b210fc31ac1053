//! A kernel as one list of instructions: device functions are inlined, variables have addresses, labels are indices.

use super::tree::{Function, Init, Instr, Item, Module, Operand, Reg, Space, Ty, Variable};
use super::{PtxError, error};
use std::collections::HashMap;

/// Where the generic addresses of shared, local and parameter memory begin.
pub const SHARED_WINDOW: u64 = 1 << 56;
pub const LOCAL_WINDOW: u64 = 2 << 56;
pub const PARAM_WINDOW: u64 = 3 << 56;

#[derive(Debug, Clone)]
pub struct Step {
    pub instr: Instr,
    /// Where a branch goes, as indices of steps.
    pub targets: Vec<u32>,
}

/// A kernel without calls and names.
#[derive(Debug, Clone)]
pub struct Linked {
    pub name: String,
    pub steps: Vec<Step>,
    pub regs: Vec<Ty>,
    /// Offset and bytes of each parameter.
    pub params: Vec<(usize, usize)>,
    pub param_bytes: usize,
    /// Bytes of the arrays in shared memory whose size the text gives; what the launch asks for follows them.
    pub shared_bytes: usize,
    pub local_bytes: usize,
    pub max_threads: u32,
}

/// Addresses of the variables of a module in device memory.
pub type Globals = HashMap<String, u64>;

pub fn link(module: &Module, entry: &str, globals: &Globals) -> Result<Linked, PtxError> {
    let Some(function) = module.functions.iter().find(|f| f.entry && f.name == entry) else {
        return error(1, format!("there is no kernel `{entry}`"));
    };
    let mut linker = Linker {
        module,
        globals,
        out: Vec::new(),
        labels: Vec::new(),
        places: Vec::new(),
        regs: Vec::new(),
        shared: HashMap::new(),
        shared_bytes: 0,
        external: Vec::new(),
        local_bytes: 0,
        depth: 0,
    };
    let (mut params, mut param_bytes) = (Vec::new(), 0usize);
    let mut names = HashMap::new();
    for p in &function.params {
        param_bytes = param_bytes.next_multiple_of(p.align);
        names.insert(p.name.clone(), (Space::Param, param_bytes as u64));
        params.push((param_bytes, p.bytes()));
        param_bytes += p.bytes();
    }
    linker.inline(function, names, None)?;
    let shared_bytes = linker.shared_bytes.next_multiple_of(16);
    let external = std::mem::take(&mut linker.external);
    let mut steps = linker.finish()?;
    for (step, operand) in external {
        place(&mut steps[step as usize].instr.operands[operand], shared_bytes as u64);
    }
    Ok(Linked {
        name: entry.to_string(),
        steps: steps.into_iter().collect(),
        regs: linker.regs,
        params,
        param_bytes,
        shared_bytes,
        local_bytes: linker.local_bytes,
        max_threads: function.max_threads,
    })
}

/// Puts the begin of the launch's shared memory where a name of unknown size stood.
fn place(operand: &mut Operand, begin: u64) {
    match operand {
        Operand::Imm { bits, .. } => *bits = bits.wrapping_add(begin),
        Operand::Mem { base, .. } => place(base, begin),
        _ => {}
    }
}

struct Linker<'a> {
    module: &'a Module,
    globals: &'a Globals,
    out: Vec<(Instr, Vec<usize>)>,
    /// Step of each label that was asked for.
    labels: Vec<Option<u32>>,
    /// Spots whose label was never found: (label, name, line).
    places: Vec<(usize, String, u32)>,
    regs: Vec<Ty>,
    shared: HashMap<String, u64>,
    shared_bytes: usize,
    /// Operands that name shared memory of the launch's size: (step, operand).
    external: Vec<(u32, usize)>,
    local_bytes: usize,
    depth: u32,
}

type Names = HashMap<String, (Space, u64)>;

impl Linker<'_> {
    fn label(&mut self) -> usize {
        self.labels.push(None);
        self.labels.len() - 1
    }

    fn here(&mut self, label: usize) {
        self.labels[label] = Some(self.out.len() as u32);
    }

    fn shared_at(&mut self, v: &Variable) -> u64 {
        if let Some(at) = self.shared.get(&v.name) {
            return *at;
        }
        let at = self.shared_bytes.next_multiple_of(v.align);
        self.shared_bytes = at + v.bytes();
        self.shared.insert(v.name.clone(), at as u64);
        at as u64
    }

    /// Appends a function's instructions; `end` is where a `ret` of an inlined one goes.
    fn inline(&mut self, function: &Function, mut names: Names, end: Option<usize>) -> Result<(), PtxError> {
        let line = function.items.first().map_or(1, |i| match i {
            Item::Instr(i) => i.line,
            Item::Label(_, line) => *line,
        });
        if self.depth > 32 || self.out.len() > 4_000_000 {
            return error(line, format!("`{}` calls itself, which is not supported", function.name));
        }
        self.depth += 1;
        let first = self.regs.len() as Reg;
        self.regs.extend(&function.regs);
        for v in &function.variables {
            match v.space {
                Space::Local | Space::Param => {
                    self.local_bytes = self.local_bytes.next_multiple_of(v.align.max(4));
                    names.insert(v.name.clone(), (Space::Local, self.local_bytes as u64));
                    self.local_bytes += v.bytes().next_multiple_of(4);
                }
                Space::Shared if v.count.is_some() => {
                    let named = Variable { name: format!("{}.{}", function.name, v.name), ..v.clone() };
                    let at = self.shared_at(&named);
                    names.insert(v.name.clone(), (Space::Shared, at));
                }
                _ => return error(line, format!("`{}` cannot be declared in a function", v.name)),
            }
        }
        let mut labels: HashMap<&str, usize> = HashMap::new();
        for item in &function.items {
            match item {
                Item::Label(name, _) => {
                    let label = *labels.entry(name).or_insert_with(|| self.label_of());
                    self.here(label);
                }
                Item::Instr(instr) => self.instr(function, instr, first, &names, &mut labels, end)?,
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn label_of(&mut self) -> usize {
        self.label()
    }

    fn instr<'f>(
        &mut self,
        function: &'f Function,
        instr: &'f Instr,
        first: Reg,
        names: &Names,
        labels: &mut HashMap<&'f str, usize>,
        end: Option<usize>,
    ) -> Result<(), PtxError> {
        let mut new = instr.clone();
        new.guard = instr.guard.map(|(r, negated)| (r + first, negated));
        match instr.parts[0].as_str() {
            "call" => return self.call(instr, new.guard, first, names),
            "ret" if end.is_some() => {
                new.parts = vec!["bra".into()];
                new.operands.clear();
                self.out.push((new, end.into_iter().collect()));
                return Ok(());
            }
            "bra" | "brx" => {
                let Some(Operand::Name(name, _)) = instr.operands.last() else {
                    return error(instr.line, "a branch without a label");
                };
                let mut wanted: Vec<&'f str> = vec![name];
                if instr.parts[0] == "brx" {
                    let Some(list) = function.targets.get(name) else {
                        return error(instr.line, format!("there is no list of labels `{name}`"));
                    };
                    wanted = list.iter().map(String::as_str).collect();
                }
                let mut targets = Vec::new();
                for name in wanted {
                    let label = *labels.entry(name).or_insert_with(|| self.label_of());
                    self.places.push((label, name.to_string(), instr.line));
                    targets.push(label);
                }
                new.operands.pop();
                for operand in &mut new.operands {
                    self.resolve(operand, first, names, instr.line)?;
                }
                self.out.push((new, targets));
                return Ok(());
            }
            _ => {}
        }
        for (i, operand) in new.operands.iter_mut().enumerate() {
            if let Some(space) = self.resolve(operand, first, names, instr.line)? {
                match space {
                    Resolved::Launch => self.external.push((self.out.len() as u32, i)),
                    // A parameter of a call lies in local memory.
                    Resolved::At(Space::Local) if new.parts.get(1).is_some_and(|p| p.starts_with("param")) => {
                        new.parts[1] = "local".into();
                    }
                    Resolved::At(_) => {}
                }
            }
        }
        self.out.push((new, Vec::new()));
        Ok(())
    }

    fn call(&mut self, instr: &Instr, guard: Option<(Reg, bool)>, first: Reg, names: &Names) -> Result<(), PtxError> {
        let line = instr.line;
        let mut lists = Vec::new();
        let mut callee = None;
        for operand in &instr.operands {
            match operand {
                Operand::List(list) if callee.is_none() => lists.insert(0, list.clone()),
                Operand::List(list) => lists.push(list.clone()),
                Operand::Name(name, _) if callee.is_none() => {
                    if lists.is_empty() {
                        lists.push(Vec::new());
                    }
                    callee = Some(name);
                }
                Operand::Name(..) => {}
                _ => return error(line, "calls through pointers are not supported"),
            }
        }
        let Some(name) = callee else { return error(line, "calls through pointers are not supported") };
        let after = self.label();
        if let Some((reg, negated)) = guard {
            let around = Instr { line, guard: Some((reg, !negated)), parts: vec!["bra".into()], operands: Vec::new() };
            self.out.push((around, vec![after]));
        }
        let module = self.module;
        let found = module.functions.iter().find(|f| !f.entry && f.name == *name && !f.declared_only);
        let Some(function) = found else {
            if name == "__assertfail" {
                let trap = Instr { line, guard: None, parts: vec!["trap".into()], operands: Vec::new() };
                self.out.push((trap, Vec::new()));
                self.here(after);
                return Ok(());
            }
            return error(line, format!("the function `{name}` has no text here"));
        };
        let wanted: Vec<&Variable> = function.returns.iter().chain(&function.params).collect();
        let given: Vec<Operand> = lists.into_iter().flatten().collect();
        if wanted.len() != given.len() {
            return error(line, format!("`{name}` takes other arguments than these"));
        }
        let mut inner = Names::new();
        for (v, operand) in wanted.iter().zip(&given) {
            let place = match operand {
                Operand::Name(name, _) => names.get(name).copied(),
                _ => None,
            };
            let Some(place) = place else { return error(line, "an argument that is no `.param` variable") };
            inner.insert(v.name.clone(), place);
        }
        let _ = first;
        self.inline(function, inner, Some(after))?;
        self.here(after);
        Ok(())
    }

    /// Renumbers registers and puts addresses in the place of names.
    fn resolve(
        &mut self,
        operand: &mut Operand,
        first: Reg,
        names: &Names,
        line: u32,
    ) -> Result<Option<Resolved>, PtxError> {
        match operand {
            Operand::Reg(r) | Operand::Not(r) => *r += first,
            Operand::Pair(a, b) => {
                self.resolve(a, first, names, line)?;
                self.resolve(b, first, names, line)?;
            }
            Operand::Mem { base, .. } => return self.resolve(base, first, names, line),
            Operand::Vector(list) | Operand::List(list) => {
                for o in list {
                    self.resolve(o, first, names, line)?;
                }
            }
            Operand::Imm { .. } | Operand::Special(_) | Operand::Sink => {}
            Operand::Name(name, offset) => {
                let module = self.module;
                let (space, at) = if let Some(found) = names.get(name) {
                    *found
                } else if let Some(at) = self.globals.get(name) {
                    (Space::Global, *at)
                } else if let Some(v) = module.variables.iter().find(|v| v.name == *name && v.space == Space::Shared) {
                    if v.count.is_none() {
                        *operand = Operand::Imm { bits: *offset as u64, single: false };
                        return Ok(Some(Resolved::Launch));
                    }
                    (Space::Shared, self.shared_at(v))
                } else {
                    return error(line, format!("`{name}` is not declared"));
                };
                *operand = Operand::Imm { bits: at.wrapping_add(*offset as u64), single: false };
                return Ok(Some(Resolved::At(space)));
            }
        }
        Ok(None)
    }

    fn finish(&mut self) -> Result<Vec<Step>, PtxError> {
        let line = self.out.last().map_or(1, |o| o.0.line);
        let exit = Instr { line, guard: None, parts: vec!["exit".into()], operands: Vec::new() };
        self.out.push((exit, Vec::new()));
        if let Some((_, name, line)) = self.places.iter().find(|p| self.labels[p.0].is_none()) {
            return error(*line, format!("there is no label `{name}`"));
        }
        let target = |l: &usize| self.labels[*l].unwrap_or(0);
        let out = std::mem::take(&mut self.out);
        Ok(out.into_iter().map(|(instr, to)| Step { instr, targets: to.iter().map(target).collect() }).collect())
    }
}

enum Resolved {
    At(Space),
    /// In the shared memory whose size the launch gives.
    Launch,
}

/// The bytes that a module's variables begin with; `addresses` are those of all variables.
pub fn initial(v: &Variable, addresses: &Globals) -> Result<Vec<u8>, PtxError> {
    let mut bytes = vec![0u8; v.bytes()];
    let size = v.ty.bytes();
    for (chunk, init) in bytes.chunks_mut(size).zip(&v.init) {
        let value = match init {
            Init::Bits(bits) => *bits,
            Init::Address(name, offset) => match addresses.get(name) {
                Some(at) => at.wrapping_add(*offset as u64),
                None => return error(1, format!("`{name}`, with which `{}` begins, is not declared", v.name)),
            },
        };
        chunk.copy_from_slice(&value.to_le_bytes()[..size]);
    }
    Ok(bytes)
}
