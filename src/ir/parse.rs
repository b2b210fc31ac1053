//! Reads the text form of a graph; see `print.rs` for what it looks like.
//!
//! Never panics: whatever is wrong with the text is an error with its line. The graph may still break the invariants of a
//! graph, which is for `verify` to say. Spans are not part of the text.

use super::lex::{Lexer, Token};
use super::*;
use crate::mesh::{Axis, Order};
use indexmap::IndexMap;

/// Deepest nesting of loops.
const MAX_DEPTH: usize = 64;

pub fn parse(text: &str) -> Result<Graph, String> {
    let mut p = Parser {
        lex: Lexer::new(text),
        graph: Graph { blocks: vec![Block::default()], scopes: vec![Scope::default()].into(), ..Graph::default() },
        dims: IndexMap::new(),
        values: IndexMap::new(),
        depth: 0,
    };
    p.program().map_err(|e| format!("line {}: {e}", p.lex.line()))?;
    p.settle()
}

struct Parser<'a> {
    lex: Lexer<'a>,
    graph: Graph,
    dims: IndexMap<String, DimId>,
    /// Values by their number in the text, in the order in which they are defined there.
    values: IndexMap<u32, Value>,
    depth: usize,
}

type Parsed<T> = Result<T, String>;

impl Parser<'_> {
    fn program(&mut self) -> Parsed<()> {
        loop {
            match self.lex.peek()? {
                Token::End => return Ok(()),
                Token::Comment(_) => {
                    self.lex.next()?;
                }
                Token::Value(_) => self.operation(ENTRY)?,
                Token::Word(_) => self.table()?,
                other => return Err(format!("{other} is out of place")),
            }
        }
    }

    /// Puts the values into the graph by their numbers.
    fn settle(mut self) -> Parsed<Graph> {
        self.values.sort_unstable_keys();
        for (i, (number, value)) in std::mem::take(&mut self.values).into_iter().enumerate() {
            if number as usize != i {
                return Err(format!("%{i} is not defined"));
            }
            self.graph.values.push(value);
        }
        let count = self.graph.values.len();
        let used = (self.graph.ops.iter().flat_map(|o| &o.args))
            .chain(self.graph.blocks.iter().flat_map(|b| &b.results))
            .chain(self.graph.outputs.iter().map(|o| &o.value));
        for v in used {
            if v.index() >= count {
                return Err(format!("{v} is not defined"));
            }
        }
        Ok(self.graph)
    }

    fn table(&mut self) -> Parsed<()> {
        let head = self.lex.word()?;
        match head.as_str() {
            "dim" => {
                let name = self.lex.word()?;
                self.lex.expect("=")?;
                let size = self.lex.whole()?;
                let ragged = self.lex.accept_word("ragged")?;
                let cut = if self.lex.accept_word("of")? { Some(self.cut()?) } else { None };
                let id = DimId(self.graph.dims.len() as u32);
                if self.dims.insert(name.clone(), id).is_some() {
                    return Err(format!("two dims are named `{name}`"));
                }
                self.graph.dims.push(Dim { name, size, ragged, cut });
            }
            "axis" => {
                let name = self.lex.word()?;
                self.lex.expect("=")?;
                let mut atoms: Vec<usize> = vec![self.lex.whole()?];
                while self.lex.accept("*")? {
                    atoms.push(self.lex.whole()?);
                }
                let weight = if self.lex.accept_word("weight")? { self.lex.whole()? } else { 1 };
                self.graph.mesh.axes.push(Axis { name, atoms, weight });
            }
            "scope" => {
                let i: usize = self.lex.whole()?;
                let (path, definition) = (self.lex.word()?, self.lex.word()?);
                let parent = if self.lex.accept_word("in")? { Some(ScopeId(self.lex.whole()?)) } else { None };
                let scope = Scope { path, definition, parent, site: None, turns: Vec::new() };
                if i == 0 {
                    self.graph.scopes[0] = scope;
                } else if i == self.graph.scopes.len() {
                    self.graph.scopes.push(scope);
                } else {
                    return Err(format!("scope {i} is out of order"));
                }
            }
            "param" => {
                self.number(self.graph.params.len())?;
                let path = self.lex.word()?;
                self.lex.expect(":")?;
                let (dtype, dims) = self.ty()?;
                let map = if self.lex.accept("(")? {
                    let from = self.dim_list()?;
                    self.lex.expect("->")?;
                    let to = self.dim_list()?;
                    self.lex.expect(")")?;
                    Some((from, to))
                } else {
                    None
                };
                self.graph.params.push(Param { path, dtype, dims, map, span: None });
            }
            "state" => {
                self.number(self.graph.states.len())?;
                let path = self.lex.word()?;
                self.lex.expect(":")?;
                let (dtype, dims) = self.ty()?;
                let kind = self.lex.word()?;
                let kinds = [
                    StateKind::Model,
                    StateKind::Optimizer,
                    StateKind::Average,
                    StateKind::Latest,
                    StateKind::Scaling,
                    StateKind::Cache,
                    StateKind::Argument,
                ];
                let Some(kind) = kinds.into_iter().find(|k| print::kind_name(*k) == kind) else {
                    return Err(format!("`{kind}` is no kind of state"));
                };
                self.graph.states.push(State { path, dtype, dims, kind, span: None });
            }
            "input" => {
                self.number(self.graph.inputs.len())?;
                let name = self.lex.word()?;
                self.lex.expect(":")?;
                let (dtype, dims) = self.ty()?;
                self.graph.inputs.push(Input { name, dtype, dims, span: None });
            }
            "output" => {
                let word = self.lex.word()?;
                let mut index = || -> Parsed<u32> {
                    self.lex.expect("[")?;
                    let i = self.lex.whole()?;
                    self.lex.expect("]")?;
                    Ok(i)
                };
                let kind = match word.as_str() {
                    "loss" => OutputKind::Loss,
                    "metric" => OutputKind::Metric,
                    "value" => OutputKind::Value,
                    "param" => OutputKind::Param(ParamId(index()?)),
                    "state" => OutputKind::State(StateId(index()?)),
                    "init_param" => OutputKind::InitParam(ParamId(index()?)),
                    "init_state" => OutputKind::InitState(StateId(index()?)),
                    other => return Err(format!("`{other}` is no kind of output")),
                };
                let name = self.lex.word()?;
                self.lex.expect("=")?;
                let value = self.lex.value()?;
                self.graph.outputs.push(Output { kind, name, value, span: None });
            }
            other => return Err(format!("`{other}` begins no line")),
        }
        Ok(())
    }

    /// `10 by dp, tp.0 * 2 zigzag`
    fn cut(&mut self) -> Parsed<CutDim> {
        let extent = self.lex.whole()?;
        if !self.lex.accept_word("by")? {
            return Err("`by` and atoms are expected".into());
        }
        let mut entries = Vec::new();
        loop {
            let atom = self.atom()?;
            let unit = if self.lex.accept("*")? { self.lex.whole()? } else { 1 };
            let order = self.order()?;
            entries.push(Entry { atom, unit, order });
            if !self.lex.accept(",")? {
                return Ok(CutDim { extent, entries });
            }
        }
    }

    fn order(&mut self) -> Parsed<Order> {
        if self.lex.accept_word("zigzag")? {
            return Ok(Order::Zigzag);
        }
        if self.lex.accept_word("ring")? {
            return Ok(Order::Ring { len: self.lex.whole()? });
        }
        if !self.lex.accept_word("halo")? {
            return Ok(Order::Block);
        }
        let len = self.lex.whole()?;
        let mut number = |word: &str| match self.lex.accept_word(word)? {
            true => self.lex.whole::<i32>(),
            false => Err(format!("`{word}` is expected")),
        };
        let (step, lead) = (number("step")?, number("lead")?);
        let step = step.try_into().map_err(|_| format!("a step of {step}"))?;
        Ok(Order::Halo { step, lead, len })
    }

    fn atom(&mut self) -> Parsed<Atom> {
        let word = self.lex.word()?;
        let mesh = &self.graph.mesh;
        mesh.atoms().find(|a| print::atom_word(mesh, *a) == word).ok_or_else(|| format!("the mesh has no `{word}`"))
    }

    fn atoms(&mut self) -> Parsed<Vec<Atom>> {
        let mut atoms = Vec::new();
        while matches!(self.lex.peek()?, Token::Word(_) | Token::Text(_)) {
            atoms.push(self.atom()?);
            if !self.lex.accept(",")? {
                break;
            }
        }
        Ok(atoms)
    }

    fn collective(&mut self) -> Parsed<Collective> {
        let name = self.lex.word()?;
        let kind = CollectiveKind::ALL.into_iter().find(|k| k.name() == name);
        let kind = kind.ok_or_else(|| format!("`{name}` is no collective"))?;
        let atoms = self.atoms()?;
        let hops = if self.lex.accept_word("hops")? { self.lex.whole()? } else { 0 };
        let mut c = Collective { kind, atoms, reduce: None, dims: Vec::new(), hops, bucket: 0 };
        self.lex.expect(";")?;
        if let Token::Word(first) = self.lex.peek()? {
            let reduced = ReduceKind::ALL.into_iter().find(|k| k.name() == first);
            if let Some(op) = reduced.filter(|_| !self.dims.contains_key(&first)) {
                self.lex.next()?;
                c.reduce = Some((op, self.atoms()?));
                self.lex.expect(";")?;
            }
        }
        while matches!(self.lex.peek()?, Token::Word(_) | Token::Text(_)) {
            let from = self.dim()?;
            self.lex.expect("->")?;
            c.dims.push((from, self.dim()?));
            if !self.lex.accept(",")? {
                break;
            }
        }
        if self.lex.accept(";")? {
            self.lex.expect("bucket")?;
            c.bucket = self.lex.whole()?;
        }
        Ok(c)
    }

    /// The running number of a table's line.
    fn number(&mut self, want: usize) -> Parsed<()> {
        let i: usize = self.lex.whole()?;
        if i == want { Ok(()) } else { Err(format!("number {i} is out of order, expected {want}")) }
    }

    fn dim(&mut self) -> Parsed<DimId> {
        let name = self.lex.word()?;
        self.dims.get(&name).copied().ok_or_else(|| format!("there is no dim `{name}`"))
    }

    /// Dims up to something that is no name.
    fn dim_list(&mut self) -> Parsed<Vec<DimId>> {
        let mut dims = Vec::new();
        while matches!(self.lex.peek()?, Token::Word(_) | Token::Text(_)) {
            dims.push(self.dim()?);
            if !self.lex.accept(",")? {
                break;
            }
        }
        Ok(dims)
    }

    fn ty(&mut self) -> Parsed<(DType, Vec<DimId>)> {
        let name = self.lex.word()?;
        let dtype = DType::parse(&name).ok_or_else(|| format!("`{name}` is no type of element"))?;
        let mut dims = Vec::new();
        if self.lex.accept("[")? {
            dims = self.dim_list()?;
            self.lex.expect("]")?;
        }
        Ok((dtype, dims))
    }

    /// `%3 name: f32[a]`
    fn define(&mut self, block: BlockId, def: Def) -> Parsed<ValueId> {
        let id = self.lex.value()?;
        let name =
            if matches!(self.lex.peek()?, Token::Word(_) | Token::Text(_)) { Some(self.lex.word()?) } else { None };
        self.lex.expect(":")?;
        let (dtype, dims) = self.ty()?;
        if self.values.insert(id.0, Value { dtype, dims, block, def, name }).is_some() {
            return Err(format!("{id} is defined twice"));
        }
        Ok(id)
    }

    fn values_until(&mut self, ends: &[&str]) -> Parsed<Vec<ValueId>> {
        let mut list = Vec::new();
        loop {
            if ends.iter().any(|e| self.lex.at(e)) {
                return Ok(list);
            }
            list.push(self.lex.value()?);
            if !self.lex.accept(",")? && !ends.iter().any(|e| self.lex.at(e)) {
                return Err(format!("{} is out of place", self.lex.peek()?));
            }
        }
    }

    fn operation(&mut self, block: BlockId) -> Parsed<()> {
        let id = OpId(self.graph.ops.len() as u32);
        // The place is taken now: the operations of a loop's body come after the loop.
        self.graph.ops.push(Operation {
            op: Op::Step,
            args: vec![],
            results: vec![],
            block,
            span: None,
            scope: ROOT,
            phase: Phase::Forward,
            again: false,
        });
        self.graph.blocks[block.index()].ops.push(id);
        let mut results = vec![self.define(block, Def::Op(id, 0))?];
        while self.lex.accept(",")? {
            results.push(self.define(block, Def::Op(id, results.len() as u32))?);
        }
        self.lex.expect("=")?;
        let head = self.lex.word()?;
        if head == "loop" {
            return self.looped(id, results);
        }
        let op = self.head(&head)?;
        let mut args = Vec::new();
        if self.lex.accept("(")? {
            args = self.values_until(&[")"])?;
            self.lex.expect(")")?;
        }
        self.note(id)?;
        let slot = &mut self.graph.ops[id.index()];
        (slot.op, slot.args, slot.results) = (op, args, results);
        Ok(())
    }

    fn note(&mut self, id: OpId) -> Parsed<()> {
        let Token::Comment(text) = self.lex.peek()? else { return Ok(()) };
        self.lex.next()?;
        let mut words = text.split_whitespace().peekable();
        if let Some(scope) = words.peek().and_then(|w| w.strip_prefix('@')) {
            let scope: u32 = scope.parse().map_err(|_| format!("`@{scope}` is no scope"))?;
            self.graph.ops[id.index()].scope = ScopeId(scope);
            words.next();
        }
        let (phase, again) = match words.next() {
            Some("backward") => (Phase::Backward, false),
            Some("again") => (Phase::Backward, true),
            Some("update") => (Phase::Update, false),
            _ => return Ok(()),
        };
        (self.graph.ops[id.index()].phase, self.graph.ops[id.index()].again) = (phase, again);
        Ok(())
    }

    fn looped(&mut self, id: OpId, results: Vec<ValueId>) -> Parsed<()> {
        if self.depth == MAX_DEPTH {
            return Err(format!("loops are nested deeper than {MAX_DEPTH}"));
        }
        self.depth += 1;
        self.lex.expect("[")?;
        let dim = self.dim()?;
        let reverse = self.lex.accept_word("reverse")?;
        self.lex.expect("]")?;
        self.lex.expect("(")?;
        let mut args = self.values_until(&[";"])?;
        let carries = args.len() as u32;
        self.lex.expect(";")?;
        args.extend(self.values_until(&[")"])?);
        self.lex.expect(")")?;
        self.lex.expect("{")?;
        self.note(id)?;
        let body = BlockId(self.graph.blocks.len() as u32);
        self.graph.blocks.push(Block::default());
        let slot = &mut self.graph.ops[id.index()];
        (slot.op, slot.args, slot.results) = (Op::Loop { body, dim, reverse, carries }, args, results);
        if !self.lex.accept_word("params")? {
            return Err("the body of a loop begins with `params`".into());
        }
        self.lex.expect("(")?;
        let mut params = Vec::new();
        while !self.lex.at(")") {
            params.push(self.define(body, Def::BlockParam(params.len() as u32))?);
            if !self.lex.accept(",")? {
                break;
            }
        }
        self.lex.expect(")")?;
        self.graph.blocks[body.index()].params = params;
        while matches!(self.lex.peek()?, Token::Value(_)) {
            self.operation(body)?;
        }
        if !self.lex.accept_word("results")? {
            return Err("the body of a loop ends with `results`".into());
        }
        self.lex.expect("(")?;
        let mut all = self.values_until(&[";"])?;
        self.lex.expect(";")?;
        all.extend(self.values_until(&[")"])?);
        self.lex.expect(")")?;
        self.lex.expect("}")?;
        self.graph.blocks[body.index()].results = all;
        self.depth -= 1;
        Ok(())
    }

    /// The operation with its static arguments.
    fn head(&mut self, head: &str) -> Parsed<Op> {
        let reduce = |name: &str| ReduceKind::ALL.into_iter().find(|k| k.name() == name);
        match head {
            "step" => return Ok(Op::Step),
            "position" => return Ok(Op::Position),
            "stop_gradient" => return Ok(Op::StopGradient),
            _ => {}
        }
        if !self.lex.at("[") {
            return match MapOp::parse(head) {
                Some(op) => Ok(Op::Map(op)),
                None => Err(format!("`{head}` is no operation")),
            };
        }
        self.lex.expect("[")?;
        let op = match head {
            "param" => Op::Param(ParamId(self.reference()?)),
            "state" => Op::State(StateId(self.reference()?)),
            "input" => Op::Input(InputId(self.reference()?)),
            "constant" => Op::Constant(if self.lex.accept("{")? {
                let mut data = Vec::new();
                while !self.lex.at("}") {
                    data.push(self.lex.float()?);
                    if !self.lex.accept(",")? {
                        break;
                    }
                }
                self.lex.expect("}")?;
                Constant::Elements(data)
            } else {
                Constant::Splat(self.lex.float()?)
            }),
            "iota" => Op::Iota(self.dim()?),
            "random" => {
                let name = self.lex.word()?;
                let dist = match name.as_str() {
                    "uniform" => Dist::Uniform { lo: self.lex.float()?, hi: self.lex.float()? },
                    "normal" => Dist::Normal { std: self.lex.float()? },
                    "trunc_normal" => Dist::TruncNormal { std: self.lex.float()? },
                    "randint" => Dist::RandInt { n: self.lex.whole()? },
                    "bernoulli" => Dist::Bernoulli { p: self.lex.float()? },
                    other => return Err(format!("`{other}` is no distribution")),
                };
                self.lex.expect(";")?;
                let stream = self.named("stream")?;
                self.lex.expect(";")?;
                Op::Random { dist, stream, dims: self.dim_list()? }
            }
            "broadcast" => Op::Broadcast { dims: self.dim_list()? },
            "dot" => Op::Dot { contract: self.dim_list()? },
            "reshape" => {
                let mut groups = Vec::new();
                while self.lex.accept("(")? {
                    let from = self.dim_list()?;
                    for t in [")", "->", "("] {
                        self.lex.expect(t)?;
                    }
                    let to = self.dim_list()?;
                    self.lex.expect(")")?;
                    groups.push((from, to));
                    if !self.lex.accept(",")? {
                        break;
                    }
                }
                Op::Reshape { groups }
            }
            "window" => {
                let axes = self.axes()?;
                let mut fill = 0.0;
                if self.lex.accept(";")? {
                    fill = self.named_float("fill")?;
                }
                Op::Window { axes, fill }
            }
            "fold" => Op::Fold { axes: self.axes()? },
            "gather" => {
                let dims = self.dim_list()?;
                self.lex.expect(";")?;
                let mode = match self.lex.word()?.as_str() {
                    "error" => GatherMode::Error,
                    "zero" => GatherMode::Zero,
                    other => return Err(format!("`{other}` is no mode of gather")),
                };
                Op::Gather { dims, mode }
            }
            "concat" => {
                let parts = self.dim_list()?;
                self.lex.expect("->")?;
                Op::Concat { parts, to: self.dim()? }
            }
            "stack" => Op::Stack { dim: self.dim()? },
            "linear_scan" => Op::LinearScan { dim: self.dim()?, reverse: self.lex.accept_word("reverse")? },
            "arg_sort" => Op::ArgSort { dim: self.dim()? },
            "top_k" => {
                let dim = self.dim()?;
                self.lex.expect("->")?;
                Op::TopK { dim, k: self.dim()? }
            }
            "pack_place" => {
                let packed = self.dim_list()?;
                self.lex.expect(";")?;
                Op::PackPlace { packed, limit: self.named("limit")? as usize }
            }
            "draw" => {
                let dim = self.dim()?;
                self.lex.expect(";")?;
                let top_k = u32::try_from(self.named("top_k")?).map_err(|_| "top_k is too large")?;
                self.lex.expect(";")?;
                let top_p = self.named_float("top_p")?;
                self.lex.expect(";")?;
                let stream = self.named("stream")?;
                self.lex.expect(";")?;
                Op::Draw { dim, top_k, top_p, stream, dims: self.dim_list()? }
            }
            "coordinate" => Op::Coordinate(self.atom()?),
            "collective" => Op::Collective(self.collective()?),
            "attention" => Op::Attention(self.attention()?),
            "attention_grad" => Op::AttentionGrad(self.attention()?),
            "write_at" => {
                let part = self.dim()?;
                self.lex.expect("->")?;
                Op::WriteAt { part, dim: self.dim()? }
            }
            _ => {
                if let Some(kind) = head.strip_prefix("reduce_").and_then(reduce) {
                    Op::Reduce { kind, dims: self.dim_list()? }
                } else if let Some(kind) = head.strip_prefix("scatter_").and_then(reduce) {
                    let removed = self.dim_list()?;
                    self.lex.expect("->")?;
                    Op::Scatter { kind, removed, targets: self.dim_list()? }
                } else if let Some(kind) = ScanKind::ALL.into_iter().find(|k| k.name() == head) {
                    let dim = self.dim()?;
                    let exclusive = self.lex.accept_word("exclusive")?;
                    Op::Scan { kind, dim, exclusive, reverse: self.lex.accept_word("reverse")? }
                } else {
                    return Err(format!("`{head}` is no operation"));
                }
            }
        };
        self.lex.expect("]")?;
        Ok(op)
    }

    fn attention(&mut self) -> Parsed<Attention> {
        let dims = self.dim_list()?;
        let [query, key, feature, value] = dims[..] else { return Err("attention has four dims".into()) };
        self.lex.expect(";")?;
        let scale = self.named_float("scale")?;
        self.lex.expect(";")?;
        let cap = self.named_float("cap")?;
        self.lex.expect(";")?;
        let causal = self.lex.accept_word("causal")?;
        let reach = if self.lex.accept_word("reach")? { Some(self.lex.whole()?) } else { None };
        let documents = self.lex.accept_word("documents")?;
        let (mask, bias) = (self.lex.accept_word("mask")?, self.lex.accept_word("bias")?);
        let first = self.lex.accept_word("first")?;
        Ok(Attention { query, key, feature, value, scale, cap, causal, reach, documents, mask, bias, first })
    }

    fn named_float(&mut self, name: &str) -> Parsed<f64> {
        if !self.lex.accept_word(name)? {
            return Err(format!("expected `{name}`"));
        }
        self.lex.expect("=")?;
        self.lex.float()
    }

    /// `3 name`: the name is for people.
    fn reference(&mut self) -> Parsed<u32> {
        let i = self.lex.whole()?;
        if !self.lex.at("]") {
            self.lex.word()?;
        }
        Ok(i)
    }

    fn named(&mut self, name: &str) -> Parsed<u64> {
        if !self.lex.accept_word(name)? {
            return Err(format!("expected `{name}`"));
        }
        self.lex.expect("=")?;
        self.lex.whole()
    }

    fn axes(&mut self) -> Parsed<Vec<WindowAxis>> {
        let mut axes = Vec::new();
        while matches!(self.lex.peek()?, Token::Word(_) | Token::Text(_)) {
            let input = self.dim()?;
            self.lex.expect("=")?;
            let dynamic = self.lex.accept_word("dynamic")?;
            let offset = self.lex.whole()?;
            let mut terms = Vec::new();
            while self.lex.accept("+")? {
                let coefficient: i64 = self.lex.whole()?;
                self.lex.expect("*")?;
                terms.push((self.dim()?, coefficient));
            }
            axes.push(WindowAxis { input, offset, dynamic, terms });
            if !self.lex.accept(",")? {
                break;
            }
        }
        Ok(axes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::print::print;

    const ALL: &str = r#"dim a = 2
dim Attention.key = 3
dim n#2 = 6
dim "odd name\n" = 1 ragged
scope 1 block.0 Block
scope 2 block.0.attention Attention in 1
param 0 block.0.w: f32[a, Attention.key] (a -> Attention.key)
param 1 b: f64
state 0 "adamw.m:block.0.w": f32[a] optimizer
input 0 x: int[a]
%0: f32[a, Attention.key] = param[0 block.0.w]  // @2 block.0.attention
%1 score: int[a] = input[0 x]
%2: f32[a] = state[0 "adamw.m:block.0.w"]
%3: f32 = constant[-1.5e-7]  // backward
%4: f64[a] = constant[{inf, NaN}]  // @1 update block.0
%5: f32[a] = random[uniform -1.0 2.5; stream = 18446744073709551615; a](%6)
%6: int = step
%7: f32[a, Attention.key] = window[a = -1 + 2*a + -1*n#2, Attention.key = dynamic 0; fill = -inf](%0, %6)
%8: f32[a] = fold[a = 1 + 1*a](%7)
%9: bool[a] = bool(%1)
%10: f32[a] = where(%9, %2, %2)
%11: f32 = reduce_argmax[a, Attention.key](%0)
%12: f32[n#2] = reshape[(a, Attention.key) -> (n#2)](%0)
%13: f32 = gather[n#2; zero](%12, %6)
%14: f32[a] = scatter_max[ -> a](%13, %6)
%15: f32 = concat[a, a -> Attention.key](%10, %10)
%16: f32[a] = cumprod[a exclusive reverse](%10)
%17: f32[a] = linear_scan[a reverse](%10, %10)
%18: int[a] = draw[n#2; top_k = 3; top_p = 0.5; stream = 1; a](%12)
%19: f32, %20: f32[a] = loop[a reverse](%3; %2) {  // @1 block.0
  params(%21: int, %22: f32, %23 m: f32[a])
  %24: f32 = add(%22, %22)
  %25: f32 = loop["odd name\n"](%22;) {
    params(%26: int, %27: f32)
    results(%27;)
  }
  results(%24; %25)
}
%28: f32[a] = write_at[a -> a](%2, %2, %6)
%29: int[a] = pack_place[a; limit = 7](%1)
%30: f32[n#2, a], %31: f32[n#2] = attention[n#2, Attention.key, a, a; scale = 0.5; cap = 30.0; causal reach 3 documents mask bias](%0, %0, %0, %1, %1, %9, %0)
%32: f32[a], %33: f32[a], %34: f32[a] = attention_grad[n#2, Attention.key, a, a; scale = -0.5; cap = 0.0;](%0, %0, %0, %30, %31, %30)  // backward
output loss total = %19
output param[0] block.0.w = %0
output init_state[0] "s t" = %2
"#;

    #[test]
    fn text_reads_back_as_it_was() {
        let graph = parse(ALL).unwrap();
        assert_eq!(print(&graph), ALL);
        assert_eq!(graph.blocks.len(), 3);
    }

    #[test]
    fn broken_text_is_an_error_with_its_line() {
        for (text, want) in [
            ("dim a = 0x", "line 1"),
            ("dim a = 2\n%0: f32[b] = step()", "line 2: there is no dim `b`"),
            ("%1: f32 = step()", "%0 is not defined"),
            ("%0: f32 = neg(%7)", "%7 is not defined"),
            ("%0: f32 = frob(%0)", "`frob` is no operation"),
            ("%0: f32 = step(\"", "line 1"),
            ("%0: f32 = constant[1.0e999999999]()", ""),
            ("%99999999999: f32 = step()", "line 1"),
            ("output loss l = %0", "%0 is not defined"),
            ("%0: f32 = step() %0: f32 = step()", "defined twice"),
            ("}", "out of place"),
            ("é", "line 1"),
        ] {
            match parse(text) {
                Ok(_) => assert_eq!(want, "", "{text}"),
                Err(e) => assert!(e.contains(want), "{text}: {e}"),
            }
        }
    }

    #[test]
    fn no_beginning_of_a_text_panics() {
        for (i, _) in ALL.char_indices() {
            let _ = parse(&ALL[..i]).map(|g| verify::verify(&g));
            // One character left out, or doubled.
            let rest = &ALL[i..];
            let skip = rest.chars().next().map_or(0, char::len_utf8);
            let _ = parse(&format!("{}{}", &ALL[..i], &rest[skip..])).map(|g| verify::verify(&g));
            let _ = parse(&format!("{}{}", &ALL[..i + skip], rest)).map(|g| verify::verify(&g));
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let open = "%1: f32 = loop[a](;) { params() ".repeat(100_000);
        assert!(parse(&format!("dim a = 1\n{open}")).unwrap_err().contains("line 2"));
    }
}
