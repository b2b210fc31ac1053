//! The only way to add operations to a graph: derives result types, captures outer values in loop bodies, folds what
//! is constant or neutral on the spot.
//!
//! Methods assume operands that the caller has checked (dims, dtypes); misuse is a bug in the compiler and is caught by
//! debug assertions and by `verify`.

use super::*;
use indexmap::IndexMap;
use std::collections::HashMap;

/// An open block of the program under construction.
#[derive(Clone)]
struct Open {
    id: BlockId,
    /// Outer value -> the body's parameter that stands for it, in order of first use.
    captures: IndexMap<ValueId, ValueId>,
    scalars: HashMap<(u64, DType), ValueId>,
}

#[derive(Clone)]
pub struct Builder {
    pub graph: Graph,
    open: Vec<Open>,
    /// Stamped on each new operation.
    pub span: Option<Span>,
    pub scope: ScopeId,
    pub phase: Phase,
    pub again: bool,
}

/// A loop whose body is under construction; see [`Builder::begin_loop`].
pub struct LoopFrame {
    pub turn: ValueId,
    pub carries: Vec<ValueId>,
    initial: Vec<ValueId>,
    dim: DimId,
    reverse: bool,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new(Graph::default())
    }
}

impl Builder {
    /// Continues a graph (an empty one gets its entry block and root scope).
    pub fn new(mut graph: Graph) -> Builder {
        if graph.blocks.is_empty() {
            graph.blocks.push(Block::default());
            graph.scopes.push(Scope::default());
        }
        Builder {
            graph,
            open: vec![Open { id: ENTRY, captures: IndexMap::new(), scalars: HashMap::new() }],
            span: None,
            scope: ROOT,
            phase: Phase::Forward,
            again: false,
        }
    }

    pub fn finish(self) -> Graph {
        debug_assert_eq!(self.open.len(), 1, "a loop is still open");
        self.graph
    }

    // ---- tables

    /// Adds a dim; a name that is taken gets `#2`, `#3`, ..
    pub fn add_dim(&mut self, name: &str, size: usize, ragged: bool) -> DimId {
        let mut unique = name.to_string();
        let mut n = 1;
        while self.graph.dims.iter().any(|d| d.name == unique) {
            n += 1;
            unique = format!("{name}#{n}");
        }
        self.graph.dims.push(Dim { name: unique, size, ragged, cut: None });
        DimId(self.graph.dims.len() as u32 - 1)
    }

    pub fn add_scope(&mut self, scope: Scope) -> ScopeId {
        self.graph.scopes.push(scope);
        ScopeId(self.graph.scopes.len() as u32 - 1)
    }

    pub fn add_param(&mut self, param: Param) -> ParamId {
        self.graph.params.push(param);
        ParamId(self.graph.params.len() as u32 - 1)
    }

    pub fn add_state(&mut self, state: State) -> StateId {
        self.graph.states.push(state);
        StateId(self.graph.states.len() as u32 - 1)
    }

    pub fn add_input(&mut self, input: Input) -> InputId {
        self.graph.inputs.push(input);
        InputId(self.graph.inputs.len() as u32 - 1)
    }

    pub fn output(&mut self, kind: OutputKind, name: &str, value: ValueId) {
        let span = self.span;
        self.graph.outputs.push(Output { kind, name: name.to_string(), value, span });
    }

    // ---- reading types

    pub fn dims(&self, v: ValueId) -> &[DimId] {
        &self.graph.value(v).dims
    }

    pub fn dtype(&self, v: ValueId) -> DType {
        self.graph.value(v).dtype
    }

    pub fn size(&self, d: DimId) -> usize {
        self.graph.size(d)
    }

    /// The value of a constant that is the same everywhere.
    pub fn splat(&self, v: ValueId) -> Option<f64> {
        match self.graph.def_op(v)?.op {
            Op::Constant(Constant::Splat(x)) => Some(x),
            Op::Broadcast { .. } => self.splat(self.graph.def_op(v)?.args[0]),
            _ => None,
        }
    }

    /// Names a value for printed IRs, unless it has a name.
    pub fn name(&mut self, v: ValueId, name: &str) {
        let slot = &mut self.graph.values[v.index()].name;
        if slot.is_none() {
            *slot = Some(name.to_string());
        }
    }

    // ---- emission

    /// The block that operations go to now.
    pub fn block(&self) -> BlockId {
        self.open.last().expect("a block is open").id
    }

    /// The value as seen from the current block: itself, or a capture of each loop between.
    pub fn reach(&mut self, v: ValueId) -> ValueId {
        let home = self.graph.value(v).block;
        let level = self.open.iter().position(|o| o.id == home).expect("value of a closed block");
        let mut seen = v;
        for i in level + 1..self.open.len() {
            seen = match self.open[i].captures.get(&seen) {
                Some(&inner) => inner,
                None => {
                    let Value { dtype, dims, name, .. } = self.graph.value(seen).clone();
                    let block = self.open[i].id;
                    let inner = self.new_value(dtype, dims, block, Def::BlockParam(u32::MAX));
                    self.graph.values[inner.index()].name = name;
                    self.open[i].captures.insert(seen, inner);
                    inner
                }
            };
        }
        seen
    }

    /// Runs `f` with the program's own block open, whatever loop is under construction: for reads of parameters, states
    /// and inputs, which loops take as captures.
    pub fn hoisted<T>(&mut self, f: impl FnOnce(&mut Builder) -> T) -> T {
        let inner = self.open.split_off(1);
        let out = f(self);
        self.open.extend(inner);
        out
    }

    fn new_value(&mut self, dtype: DType, dims: Vec<DimId>, block: BlockId, def: Def) -> ValueId {
        self.graph.values.push(Value { dtype, dims, block, def, name: None });
        ValueId(self.graph.values.len() as u32 - 1)
    }

    /// Adds an operation with results of the given types.
    pub fn emit(&mut self, op: Op, args: &[ValueId], results: &[(DType, Vec<DimId>)]) -> Vec<ValueId> {
        let args: Vec<ValueId> = args.iter().map(|a| self.reach(*a)).collect();
        let block = self.block();
        let id = OpId(self.graph.ops.len() as u32);
        let results: Vec<ValueId> = results
            .iter()
            .enumerate()
            .map(|(i, (dtype, dims))| self.new_value(*dtype, dims.clone(), block, Def::Op(id, i as u32)))
            .collect();
        self.graph.ops.push(Operation {
            op,
            args,
            results: results.clone(),
            block,
            span: self.span,
            scope: self.scope,
            phase: self.phase,
            again: self.again,
        });
        self.graph.blocks[block.index()].ops.push(id);
        results
    }

    fn one(&mut self, op: Op, args: &[ValueId], dtype: DType, dims: Vec<DimId>) -> ValueId {
        self.emit(op, args, &[(dtype, dims)])[0]
    }

    // ---- leaves

    pub fn param(&mut self, id: ParamId) -> ValueId {
        let Param { dtype, dims, .. } = self.graph.params[id.index()].clone();
        self.one(Op::Param(id), &[], dtype, dims)
    }

    pub fn state(&mut self, id: StateId) -> ValueId {
        let State { dtype, dims, .. } = self.graph.states[id.index()].clone();
        self.one(Op::State(id), &[], dtype, dims)
    }

    pub fn input(&mut self, id: InputId) -> ValueId {
        let Input { dtype, dims, .. } = self.graph.inputs[id.index()].clone();
        self.one(Op::Input(id), &[], dtype, dims)
    }

    /// A constant scalar, shared within its block.
    pub fn scalar(&mut self, x: f64, dtype: DType) -> ValueId {
        let key = (x.to_bits(), dtype);
        let top = self.open.last().expect("a block is open");
        if let Some(v) = top.scalars.get(&key) {
            return *v;
        }
        let v = self.one(Op::Constant(Constant::Splat(x)), &[], dtype, vec![]);
        self.open.last_mut().expect("a block is open").scalars.insert(key, v);
        v
    }

    pub fn splat_of(&mut self, x: f64, dtype: DType, dims: &[DimId]) -> ValueId {
        let s = self.scalar(x, dtype);
        self.broadcast(s, dims)
    }

    pub fn elements(&mut self, data: Vec<f64>, dtype: DType, dims: Vec<DimId>) -> ValueId {
        debug_assert_eq!(data.len(), self.graph.elements(&dims));
        self.one(Op::Constant(Constant::Elements(data)), &[], dtype, dims)
    }

    pub fn iota(&mut self, d: DimId) -> ValueId {
        self.one(Op::Iota(d), &[], DType::I32, vec![d])
    }

    /// The flattened index over several dims, major first; a constant 0 for none.
    pub fn flat_iota(&mut self, dims: &[DimId]) -> ValueId {
        let mut flat: Option<ValueId> = None;
        for d in dims {
            let i = self.iota(*d);
            flat = Some(match flat {
                None => i,
                Some(f) => {
                    let n = self.scalar(self.size(*d) as f64, DType::I32);
                    let scaled = self.map(MapOp::Mul, &[f, n]);
                    self.map(MapOp::Add, &[scaled, i])
                }
            });
        }
        flat.unwrap_or_else(|| self.scalar(0.0, DType::I32))
    }

    pub fn step(&mut self) -> ValueId {
        self.one(Op::Step, &[], DType::I32, vec![])
    }

    pub fn random(&mut self, dist: Dist, stream: u64, dims: &[DimId], turns: &[ValueId]) -> ValueId {
        let dtype = match dist {
            Dist::RandInt { .. } => DType::I32,
            Dist::Bernoulli { .. } => DType::Bool,
            _ => DType::F32,
        };
        self.one(Op::Random { dist, stream, dims: dims.to_vec() }, turns, dtype, dims.to_vec())
    }

    // ---- elementwise

    /// Union of the operands' dims in a stable order: the operand with most dims first.
    pub fn union(&self, args: &[ValueId]) -> Vec<DimId> {
        let mut order: Vec<usize> = (0..args.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(self.dims(args[*i]).len()));
        let mut dims: Vec<DimId> = Vec::new();
        for i in order {
            for d in self.dims(args[i]) {
                if !dims.contains(d) {
                    dims.push(*d);
                }
            }
        }
        dims
    }

    /// An elementwise function; operands (but a condition) have one dtype.
    pub fn map(&mut self, op: MapOp, args: &[ValueId]) -> ValueId {
        debug_assert_eq!(op.arity(), args.len(), "{op:?}");
        let dtype = self.map_dtype(op, args);
        if let Some(v) = self.fold(op, args, dtype) {
            return v;
        }
        let dims = self.union(args);
        self.one(Op::Map(op), args, dtype, dims)
    }

    fn map_dtype(&self, op: MapOp, args: &[ValueId]) -> DType {
        use MapOp::*;
        match op {
            Cast(t) => t,
            IsFinite | Not | And | Or | Eq | Ne | Lt | Le | Gt | Ge => DType::Bool,
            Where => self.dtype(args[1]),
            _ => self.dtype(args[0]),
        }
    }

    /// What is constant or neutral: constants of constants, x + 0, x * 1, where(true, ..), a cast to the same type.
    fn fold(&mut self, op: MapOp, args: &[ValueId], dtype: DType) -> Option<ValueId> {
        use MapOp::*;
        if op == Cast(self.dtype(args[0])) {
            return Some(args[0]);
        }
        let dims = self.union(args);
        let constants: Vec<Option<f64>> = args.iter().map(|a| self.splat(*a)).collect();
        if let Some(xs) = constants.iter().copied().collect::<Option<Vec<f64>>>() {
            let from = self.dtype(args[args.len() - 1]);
            // Where 16-bit floats would round, the running program does it.
            let same = |x: f64, t: DType| match t {
                DType::F16 => half::f16::from_f64(x).to_f64() == x,
                DType::BF16 => half::bf16::from_f64(x).to_f64() == x,
                _ => true,
            };
            let narrow = matches!(dtype, DType::F16 | DType::BF16);
            let exact = xs.iter().zip(args).all(|(x, a)| same(*x, self.dtype(*a)));
            let folded =
                exact.then(|| fold_constants(op, &xs, from, if narrow { DType::F32 } else { dtype })).flatten();
            if let Some(x) = folded.filter(|x| same(*x, dtype)) {
                return Some(self.splat_of(x, dtype, &dims));
            }
        }
        let keep = match (op, constants.as_slice()) {
            (Add, [_, Some(0.0)]) | (Sub, [_, Some(0.0)]) | (Mul, [_, Some(1.0)]) | (Div, [_, Some(1.0)]) => args[0],
            (Add, [Some(0.0), _]) | (Mul, [Some(1.0), _]) => args[1],
            (And, [_, Some(1.0)]) | (Or, [_, Some(0.0)]) => args[0],
            (And, [Some(1.0), _]) | (Or, [Some(0.0), _]) => args[1],
            (Where, [Some(c), ..]) => args[if *c != 0.0 { 1 } else { 2 }],
            (Pow, [_, Some(1.0)]) => args[0],
            (Pow, [_, Some(2.0)]) => return Some(self.map(Square, &[args[0]])),
            _ => return None,
        };
        // -0.0 + 0.0 is 0.0 and x - 0.0 is x: only the sign of a zero may differ.
        let missing: Vec<DimId> = dims.iter().copied().filter(|d| !self.dims(keep).contains(d)).collect();
        Some(self.broadcast(keep, &missing))
    }

    pub fn cast(&mut self, v: ValueId, dtype: DType) -> ValueId {
        self.map(MapOp::Cast(dtype), &[v])
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Add, &[a, b])
    }

    pub fn sub(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Sub, &[a, b])
    }

    pub fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Mul, &[a, b])
    }

    pub fn div(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Div, &[a, b])
    }

    pub fn neg(&mut self, a: ValueId) -> ValueId {
        self.map(MapOp::Neg, &[a])
    }

    pub fn select(&mut self, c: ValueId, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Where, &[c, a, b])
    }

    /// x op constant, the constant in x's dtype.
    pub fn map_scalar(&mut self, op: MapOp, a: ValueId, x: f64) -> ValueId {
        let s = self.scalar(x, self.dtype(a));
        self.map(op, &[a, s])
    }

    /// Adds the dims that x lacks (major to x's own).
    pub fn broadcast(&mut self, v: ValueId, dims: &[DimId]) -> ValueId {
        let new: Vec<DimId> = dims.iter().copied().filter(|d| !self.dims(v).contains(d)).collect();
        if new.is_empty() {
            return v;
        }
        let all = new.iter().chain(self.dims(v)).copied().collect();
        let dtype = self.dtype(v);
        self.one(Op::Broadcast { dims: new }, &[v], dtype, all)
    }

    // ---- reductions

    /// Reduces over `dims`; Sum and Prod of 16-bit floats give `dtype` f32 where the caller casts first.
    pub fn reduce(&mut self, kind: ReduceKind, dims: &[DimId], v: ValueId) -> ValueId {
        if dims.is_empty() && !matches!(kind, ReduceKind::ArgMax | ReduceKind::ArgMin) {
            return v;
        }
        let rest: Vec<DimId> = self.dims(v).iter().copied().filter(|d| !dims.contains(d)).collect();
        let dtype = match kind {
            ReduceKind::ArgMax | ReduceKind::ArgMin => DType::I32,
            ReduceKind::Any | ReduceKind::All => DType::Bool,
            _ => self.dtype(v),
        };
        self.one(Op::Reduce { kind, dims: dims.to_vec() }, &[v], dtype, rest)
    }

    pub fn sum(&mut self, dims: &[DimId], v: ValueId) -> ValueId {
        self.reduce(ReduceKind::Sum, dims, v)
    }

    /// Contraction of two values over `contract`; result order: batch dims, a's, b's.
    pub fn dot(&mut self, contract: &[DimId], a: ValueId, b: ValueId, dtype: DType) -> ValueId {
        let (da, db) = (self.dims(a).to_vec(), self.dims(b).to_vec());
        let mut dims: Vec<DimId> = da.iter().copied().filter(|d| db.contains(d) && !contract.contains(d)).collect();
        dims.extend(da.iter().filter(|d| !db.contains(d)));
        dims.extend(db.iter().filter(|d| !da.contains(d)));
        self.one(Op::Dot { contract: contract.to_vec() }, &[a, b], dtype, dims)
    }

    // ---- views

    /// Replaces each group of dims; a merged group stands where its first dim stood.
    pub fn reshape(&mut self, groups: &[(Vec<DimId>, Vec<DimId>)], v: ValueId) -> ValueId {
        let mut dims = Vec::new();
        for d in self.dims(v) {
            match groups.iter().find(|(from, _)| from.contains(d)) {
                None => dims.push(*d),
                Some((from, to)) if from[0] == *d => dims.extend(to),
                Some(_) => {}
            }
        }
        let dtype = self.dtype(v);
        self.one(Op::Reshape { groups: groups.to_vec() }, &[v], dtype, dims)
    }

    pub fn rename(&mut self, from: DimId, to: DimId, v: ValueId) -> ValueId {
        if from == to { v } else { self.reshape(&[(vec![from], vec![to])], v) }
    }

    /// A window over x; `offsets` are the operands of dynamic axes. New dims stand where the axis' input dim stood.
    pub fn window(&mut self, axes: Vec<WindowAxis>, fill: f64, v: ValueId, offsets: &[ValueId]) -> ValueId {
        let mut dims = Vec::new();
        for d in self.dims(v) {
            match axes.iter().find(|a| a.input == *d) {
                None => dims.push(*d),
                Some(a) => dims.extend(a.terms.iter().map(|t| t.0)),
            }
        }
        let dtype = self.dtype(v);
        let args: Vec<ValueId> = std::iter::once(v).chain(offsets.iter().copied()).collect();
        self.one(Op::Window { axes, fill }, &args, dtype, dims)
    }

    /// The adjoint of a window: `axes` as that window had them.
    pub fn fold_window(&mut self, axes: Vec<WindowAxis>, v: ValueId) -> ValueId {
        let mut dims = Vec::new();
        for d in self.dims(v) {
            match axes.iter().find(|a| a.terms.iter().any(|t| t.0 == *d)) {
                None => dims.push(*d),
                Some(a) if !dims.contains(&a.input) => dims.push(a.input),
                Some(_) => {}
            }
        }
        // An axis without terms was an index: its dim comes back as the innermost.
        for a in &axes {
            if !dims.contains(&a.input) {
                dims.push(a.input);
            }
        }
        let dtype = self.dtype(v);
        self.one(Op::Fold { axes }, &[v], dtype, dims)
    }

    /// x[dim = index] for a constant index.
    pub fn index(&mut self, dim: DimId, index: usize, v: ValueId) -> ValueId {
        let axis = WindowAxis { input: dim, offset: index as i64, dynamic: false, terms: vec![] };
        self.window(vec![axis], 0.0, v, &[])
    }

    /// x[dim = lo.. -> to]
    pub fn slice(&mut self, dim: DimId, lo: usize, to: DimId, v: ValueId) -> ValueId {
        let axis = WindowAxis { input: dim, offset: lo as i64, dynamic: false, terms: vec![(to, 1)] };
        self.window(vec![axis], 0.0, v, &[])
    }

    /// out[i] = x[i - by] along `dim`, `fill` outside.
    pub fn shift(&mut self, dim: DimId, by: i64, fill: f64, v: ValueId) -> ValueId {
        let axis = WindowAxis { input: dim, offset: -by, dynamic: false, terms: vec![(dim, 1)] };
        self.window(vec![axis], fill, v, &[])
    }

    pub fn flip(&mut self, dim: DimId, v: ValueId) -> ValueId {
        let last = self.size(dim) as i64 - 1;
        let axis = WindowAxis { input: dim, offset: last, dynamic: false, terms: vec![(dim, -1)] };
        self.window(vec![axis], 0.0, v, &[])
    }

    pub fn gather(&mut self, dims: &[DimId], mode: GatherMode, v: ValueId, indices: &[ValueId]) -> ValueId {
        let mut out = self.union(indices);
        out.extend(self.dims(v).iter().copied().filter(|d| !dims.contains(d)).collect::<Vec<_>>());
        let mut seen = Vec::new();
        out.retain(|d| !seen.contains(d) && (seen.push(*d), true).1);
        let dtype = self.dtype(v);
        let args: Vec<ValueId> = std::iter::once(v).chain(indices.iter().copied()).collect();
        self.one(Op::Gather { dims: dims.to_vec(), mode }, &args, dtype, out)
    }

    pub fn scatter(
        &mut self,
        kind: ReduceKind,
        removed: &[DimId],
        targets: &[DimId],
        v: ValueId,
        indices: &[ValueId],
    ) -> ValueId {
        let mut all = vec![v];
        all.extend(indices);
        let mut dims: Vec<DimId> = Vec::new();
        for a in &all {
            for d in self.dims(*a) {
                if !removed.contains(d) && !dims.contains(d) {
                    dims.push(*d);
                }
            }
        }
        // Rows of a target stay contiguous: targets stand before x's own remaining dims that the indices lack.
        let own: Vec<DimId> =
            dims.iter().copied().filter(|d| !indices.iter().any(|i| self.dims(*i).contains(d))).collect();
        dims.retain(|d| !own.contains(d));
        dims.extend(targets);
        dims.extend(own);
        let dtype = self.dtype(v);
        self.one(Op::Scatter { kind, removed: removed.to_vec(), targets: targets.to_vec() }, &all, dtype, dims)
    }

    /// Values that differ in one dim, one after another; the first value decides the order of the other dims.
    pub fn concat(&mut self, parts: &[DimId], to: DimId, values: &[ValueId]) -> ValueId {
        let dims = self.dims(values[0]).iter().map(|d| if *d == parts[0] { to } else { *d }).collect();
        let dtype = self.dtype(values[0]);
        self.one(Op::Concat { parts: parts.to_vec(), to }, values, dtype, dims)
    }

    pub fn stack(&mut self, dim: DimId, values: &[ValueId]) -> ValueId {
        let dims = std::iter::once(dim).chain(self.dims(values[0]).iter().copied()).collect();
        let dtype = self.dtype(values[0]);
        self.one(Op::Stack { dim }, values, dtype, dims)
    }

    // ---- along a dim

    pub fn scan(&mut self, kind: ScanKind, dim: DimId, exclusive: bool, reverse: bool, v: ValueId) -> ValueId {
        let dtype = if kind == ScanKind::ArgMax { DType::I32 } else { self.dtype(v) };
        let dims = self.dims(v).to_vec();
        self.one(Op::Scan { kind, dim, exclusive, reverse }, &[v], dtype, dims)
    }

    pub fn linear_scan(&mut self, dim: DimId, reverse: bool, g: ValueId, x: ValueId) -> ValueId {
        let dims = self.union(&[x, g]);
        let dtype = self.dtype(x);
        self.one(Op::LinearScan { dim, reverse }, &[g, x], dtype, dims)
    }

    pub fn arg_sort(&mut self, dim: DimId, v: ValueId) -> ValueId {
        let dims = self.dims(v).to_vec();
        self.one(Op::ArgSort { dim }, &[v], DType::I32, dims)
    }

    pub fn top_k(&mut self, dim: DimId, k: DimId, v: ValueId) -> ValueId {
        let dims = self.dims(v).iter().map(|d| if *d == dim { k } else { *d }).collect();
        self.one(Op::TopK { dim, k }, &[v], DType::I32, dims)
    }

    pub fn pack_place(&mut self, packed: &[DimId], limit: usize, index: ValueId) -> ValueId {
        let dims = self.dims(index).to_vec();
        self.one(Op::PackPlace { packed: packed.to_vec(), limit }, &[index], DType::I32, dims)
    }

    pub fn stop_gradient(&mut self, v: ValueId) -> ValueId {
        let (dtype, dims) = (self.dtype(v), self.dims(v).to_vec());
        self.one(Op::StopGradient, &[v], dtype, dims)
    }

    // ---- attention

    /// The result and the logsumexp; laid out as q.
    pub fn attention(&mut self, a: &Attention, args: &[ValueId]) -> [ValueId; 2] {
        let dtype = self.dtype(args[0]);
        let rows: Vec<DimId> = self.dims(args[0]).iter().copied().filter(|d| *d != a.feature).collect();
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let results = [(dtype, [rows.as_slice(), &[a.value]].concat()), (wide, rows)];
        let out = self.emit(Op::Attention(a.clone()), args, &results);
        [out[0], out[1]]
    }

    /// The cotangents of q, keys and values. `args`: operands and results of the attention, the cotangent of the first
    /// result.
    pub fn attention_grad(&mut self, a: &Attention, args: &[ValueId]) -> [ValueId; 3] {
        let types = [0, 1, 2].map(|i| (self.dtype(args[i]), self.dims(args[i]).to_vec()));
        let out = self.emit(Op::AttentionGrad(a.clone()), args, &types);
        [out[0], out[1], out[2]]
    }

    // ---- loops

    /// Opens the body of a loop over `dim` with the given initial carries (in the enclosing block). Until
    /// [`Builder::end_loop`], operations go to the body; outer values are captured by themselves.
    pub fn begin_loop(&mut self, dim: DimId, reverse: bool, initial: &[ValueId]) -> LoopFrame {
        let initial: Vec<ValueId> = initial.iter().map(|v| self.reach(*v)).collect();
        let id = BlockId(self.graph.blocks.len() as u32);
        self.graph.blocks.push(Block::default());
        let turn = self.new_value(DType::I32, vec![], id, Def::BlockParam(0));
        let carries: Vec<ValueId> = initial
            .iter()
            .enumerate()
            .map(|(i, v)| {
                let Value { dtype, dims, .. } = self.graph.value(*v).clone();
                self.new_value(dtype, dims, id, Def::BlockParam(i as u32 + 1))
            })
            .collect();
        self.open.push(Open { id, captures: IndexMap::new(), scalars: HashMap::new() });
        LoopFrame { turn, carries, initial, dim, reverse }
    }

    /// Closes the body: `next` are the carries of the next turn (types as the initial ones), `collected` the values that
    /// are stacked along the loop's dim (as the major dim). Returns the final carries and the stacked values.
    pub fn end_loop(
        &mut self,
        frame: LoopFrame,
        next: &[ValueId],
        collected: &[ValueId],
    ) -> (Vec<ValueId>, Vec<ValueId>) {
        let results: Vec<ValueId> = next.iter().chain(collected).map(|v| self.reach(*v)).collect();
        let open = self.open.pop().expect("a loop is open");
        let mut params = vec![frame.turn];
        params.extend(&frame.carries);
        params.extend(open.captures.values());
        for (i, p) in params.iter().enumerate() {
            self.graph.values[p.index()].def = Def::BlockParam(i as u32);
        }
        let types: Vec<(DType, Vec<DimId>)> = results
            .iter()
            .enumerate()
            .map(|(i, v)| {
                let Value { dtype, dims, .. } = self.graph.value(*v).clone();
                if i < next.len() { (dtype, dims) } else { (dtype, std::iter::once(frame.dim).chain(dims).collect()) }
            })
            .collect();
        let block = &mut self.graph.blocks[open.id.index()];
        block.params = params;
        block.results = results;
        let args: Vec<ValueId> = frame.initial.iter().copied().chain(open.captures.keys().copied()).collect();
        let op = Op::Loop { body: open.id, dim: frame.dim, reverse: frame.reverse, carries: next.len() as u32 };
        let mut out = self.emit(op, &args, &types);
        let stacked = out.split_off(next.len());
        (out, stacked)
    }
}

/// The value of an elementwise function of constants, or None where folding would round differently from the machine.
fn fold_constants(op: MapOp, x: &[f64], from: DType, to: DType) -> Option<f64> {
    use MapOp::*;
    if to == DType::I32 && from != DType::I32 && from != DType::Bool {
        return None;
    }
    let bit = |b: bool| f64::from(u8::from(b));
    let value = match op {
        Neg => -x[0],
        Not => bit(x[0] == 0.0),
        And => bit(x[0] != 0.0 && x[1] != 0.0),
        Or => bit(x[0] != 0.0 || x[1] != 0.0),
        Eq => bit(x[0] == x[1]),
        Ne => bit(x[0] != x[1]),
        Lt => bit(x[0] < x[1]),
        Le => bit(x[0] <= x[1]),
        Gt => bit(x[0] > x[1]),
        Ge => bit(x[0] >= x[1]),
        Where => {
            if x[0] != 0.0 {
                x[1]
            } else {
                x[2]
            }
        }
        Cast(DType::Bool) => bit(x[0] != 0.0),
        Cast(DType::F32) => x[0] as f32 as f64,
        Cast(DType::F64 | DType::I32) => x[0],
        _ if to == DType::F64 || to == DType::F32 => {
            let exact = match op {
                Add => x[0] + x[1],
                Sub => x[0] - x[1],
                Mul => x[0] * x[1],
                Div => x[0] / x[1],
                Sqrt => x[0].sqrt(),
                Max if !x[0].is_nan() && !x[1].is_nan() => x[0].max(x[1]),
                Min if !x[0].is_nan() && !x[1].is_nan() => x[0].min(x[1]),
                _ => return None,
            };
            if to == DType::F32 { exact as f32 as f64 } else { exact }
        }
        _ => return None,
    };
    Some(value)
}
