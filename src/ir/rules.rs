//! What each operation demands of its operands and results: the doc comments of [`Op`] as checks.

use super::verify::distinct;
use super::*;
use crate::mesh::Order;

/// The same dims in any order.
pub(super) fn same_dims(a: &[DimId], b: &[DimId]) -> bool {
    a.len() == b.len() && a.iter().all(|d| b.contains(d))
}

struct Check<'a> {
    g: &'a Graph,
    op: &'a Operation,
}

type Outcome = Result<(), String>;

pub(super) fn check(g: &Graph, op: &Operation) -> Outcome {
    let c = Check { g, op };
    match (&op.op, op.results.len()) {
        (Op::Loop { .. }, _) | (Op::Attention(_), 2) | (Op::AttentionGrad(_), 3) => {}
        (Op::Attention(_), _) => return Err("it has two results".into()),
        (Op::AttentionGrad(_), _) => return Err("it has three results".into()),
        (_, 1) => {}
        _ => return Err("it has one result".into()),
    }
    c.rule()
}

fn entries_of<'g>(g: &'g Graph, v: &'g Value) -> impl Iterator<Item = &'g Entry> {
    v.dims.iter().flat_map(|d| g.dim(*d).cut.iter().flat_map(|c| &c.entries))
}

fn g_has(g: &Graph, atom: Atom) -> bool {
    g.mesh.atoms().any(|a| a == atom)
}

fn fail<T>(message: impl Into<String>) -> Result<T, String> {
    Err(message.into())
}

impl Check<'_> {
    fn arg(&self, i: usize) -> &Value {
        self.g.value(self.op.args[i])
    }

    fn out(&self) -> &Value {
        self.g.value(self.op.results[0])
    }

    fn operands(&self, n: usize) -> Outcome {
        if self.op.args.len() == n {
            Ok(())
        } else {
            fail(format!("{n} operands expected, not {}", self.op.args.len()))
        }
    }

    fn name(&self, d: DimId) -> &str {
        &self.g.dim(d).name
    }

    fn list(&self, dims: &[DimId]) -> String {
        dims.iter().map(|d| self.name(*d)).collect::<Vec<_>>().join(", ")
    }

    fn result(&self, dtype: DType, dims: &[DimId]) -> Outcome {
        self.result_type(dtype)?;
        self.result_dims(dims)
    }

    fn result_type(&self, dtype: DType) -> Outcome {
        let found = self.out().dtype;
        if found == dtype { Ok(()) } else { fail(format!("the result has type {found}, expected {dtype}")) }
    }

    fn result_dims(&self, dims: &[DimId]) -> Outcome {
        distinct(self.g, dims)?;
        if same_dims(&self.out().dims, dims) {
            return Ok(());
        }
        fail(format!("the result has dims [{}], expected [{}]", self.list(&self.out().dims), self.list(dims)))
    }

    /// The operand's type, or a wider float.
    fn result_widens(&self, dtype: DType) -> Outcome {
        let found = self.out().dtype;
        if found == dtype || (found.is_float() && dtype.is_float() && found.bytes() > dtype.bytes()) {
            return Ok(());
        }
        fail(format!("the result has type {found}, expected {dtype} or a wider float"))
    }

    fn arg_type(&self, i: usize, dtype: DType) -> Outcome {
        let found = self.arg(i).dtype;
        if found == dtype { Ok(()) } else { fail(format!("operand {i} has type {found}, expected {dtype}")) }
    }

    fn numeric(&self, i: usize) -> Outcome {
        if self.arg(i).dtype == DType::Bool { fail(format!("operand {i} has type bool")) } else { Ok(()) }
    }

    fn float(&self, i: usize) -> Outcome {
        let found = self.arg(i).dtype;
        if found.is_float() { Ok(()) } else { fail(format!("operand {i} has type {found}, expected a float")) }
    }

    fn int_scalars(&self, from: usize) -> Outcome {
        for i in from..self.op.args.len() {
            self.arg_type(i, DType::I32)?;
            if !self.arg(i).dims.is_empty() {
                return fail(format!("operand {i} is no scalar"));
            }
        }
        Ok(())
    }

    fn has(&self, i: usize, dims: &[DimId]) -> Outcome {
        distinct(self.g, dims)?;
        match dims.iter().find(|d| !self.arg(i).dims.contains(d)) {
            Some(d) => fail(format!("operand {i} lacks dim `{}`", self.name(*d))),
            None => Ok(()),
        }
    }

    fn union(&self) -> Vec<DimId> {
        let mut all: Vec<DimId> = Vec::new();
        for d in self.op.args.iter().flat_map(|a| &self.g.value(*a).dims) {
            if !all.contains(d) {
                all.push(*d);
            }
        }
        all
    }

    fn without(&self, dims: &[DimId], less: &[DimId]) -> Vec<DimId> {
        dims.iter().copied().filter(|d| !less.contains(d)).collect()
    }

    fn rule(&self) -> Outcome {
        let g = self.g;
        match &self.op.op {
            Op::Param(p) => {
                let Some(p) = g.params.get(p.index()) else { return fail("the parameter does not exist") };
                self.leaf(p.dtype, &p.dims)
            }
            Op::State(s) => {
                let Some(s) = g.states.get(s.index()) else { return fail("the state does not exist") };
                self.leaf(s.dtype, &s.dims)
            }
            Op::Input(i) => {
                let Some(i) = g.inputs.get(i.index()) else { return fail("the input does not exist") };
                self.leaf(i.dtype, &i.dims)
            }
            Op::Constant(c) => self.constant(c),
            Op::Iota(d) => {
                self.operands(0)?;
                self.result(DType::I32, &[*d])
            }
            Op::Step | Op::Position => {
                self.operands(0)?;
                self.result(DType::I32, &[])
            }
            Op::Random { dist, dims, .. } => {
                self.int_scalars(0)?;
                let dtype = match dist {
                    Dist::RandInt { .. } => DType::I32,
                    Dist::Bernoulli { .. } => DType::Bool,
                    Dist::Uniform { .. } | Dist::Normal { .. } | Dist::TruncNormal { .. } => DType::F32,
                };
                self.result(dtype, dims)
            }
            Op::Map(op) => self.map(*op),
            Op::Broadcast { dims } => {
                self.operands(1)?;
                distinct(g, dims)?;
                if let Some(d) = dims.iter().find(|d| self.arg(0).dims.contains(d)) {
                    return fail(format!("the operand has already dim `{}`", self.name(*d)));
                }
                let all = [self.arg(0).dims.as_slice(), dims].concat();
                self.result(self.arg(0).dtype, &all)
            }
            Op::Reduce { kind, dims } => {
                self.operands(1)?;
                self.has(0, dims)?;
                match kind {
                    ReduceKind::Any | ReduceKind::All => {
                        self.arg_type(0, DType::Bool)?;
                        self.result_type(DType::Bool)?;
                    }
                    ReduceKind::ArgMax | ReduceKind::ArgMin => self.result_type(DType::I32)?,
                    ReduceKind::Max | ReduceKind::Min => {
                        self.numeric(0)?;
                        self.result_type(self.arg(0).dtype)?;
                    }
                    ReduceKind::Sum | ReduceKind::Prod => {
                        self.numeric(0)?;
                        self.result_widens(self.arg(0).dtype)?;
                    }
                }
                self.result_dims(&self.without(&self.arg(0).dims, dims))
            }
            Op::Dot { contract } => {
                self.operands(2)?;
                self.numeric(0)?;
                self.arg_type(1, self.arg(0).dtype)?;
                self.has(0, contract)?;
                self.has(1, contract)?;
                self.result_widens(self.arg(0).dtype)?;
                self.result_dims(&self.without(&self.union(), contract))
            }
            Op::Reshape { groups } => {
                self.operands(1)?;
                let from: Vec<DimId> = groups.iter().flat_map(|(f, _)| f.iter().copied()).collect();
                let to: Vec<DimId> = groups.iter().flat_map(|(_, t)| t.iter().copied()).collect();
                self.has(0, &from)?;
                distinct(g, &to)?;
                for (f, t) in groups {
                    if g.elements(f) != g.elements(t) {
                        return fail(format!("sizes of [{}] and [{}] differ", self.list(f), self.list(t)));
                    }
                }
                let all = [self.without(&self.arg(0).dims, &from), to].concat();
                self.result(self.arg(0).dtype, &all)
            }
            Op::Window { axes, .. } => {
                let dynamic = axes.iter().filter(|a| a.dynamic).count();
                self.operands(1 + dynamic)?;
                self.int_scalars(1)?;
                let (inputs, terms) = axis_dims(axes);
                self.has(0, &inputs)?;
                let all = [self.without(&self.arg(0).dims, &inputs), terms].concat();
                self.result(self.arg(0).dtype, &all)
            }
            Op::Fold { axes } => {
                self.operands(1)?;
                self.numeric(0)?;
                if axes.iter().any(|a| a.dynamic) {
                    return fail("a dynamic axis");
                }
                let (inputs, terms) = axis_dims(axes);
                self.has(0, &terms)?;
                let all = [self.without(&self.arg(0).dims, &terms), inputs].concat();
                self.result(self.arg(0).dtype, &all)
            }
            Op::Gather { dims, .. } => {
                self.operands(1 + dims.len())?;
                self.has(0, dims)?;
                let mut all = self.without(&self.arg(0).dims, dims);
                for i in 1..self.op.args.len() {
                    self.arg_type(i, DType::I32)?;
                    all.extend(self.without(&self.arg(i).dims, &all));
                }
                self.result(self.arg(0).dtype, &all)
            }
            Op::Scatter { kind, removed, targets } => {
                self.operands(1 + targets.len())?;
                self.numeric(0)?;
                if !matches!(kind, ReduceKind::Sum | ReduceKind::Max | ReduceKind::Min) {
                    return fail(format!("{} cannot be scattered", kind.name()));
                }
                for i in 1..self.op.args.len() {
                    self.arg_type(i, DType::I32)?;
                }
                distinct(g, removed)?;
                let union = self.union();
                if let Some(d) = removed.iter().find(|d| !union.contains(d)) {
                    return fail(format!("no operand has dim `{}`", self.name(*d)));
                }
                let all = [self.without(&union, removed).as_slice(), targets].concat();
                self.result(self.arg(0).dtype, &all)
            }
            Op::Concat { parts, to } => self.concat(parts, *to),
            Op::Stack { dim } => {
                distinct(g, &[*dim])?;
                self.operands(g.size(*dim))?;
                for i in 0..self.op.args.len() {
                    self.arg_type(i, self.arg(0).dtype)?;
                    if !same_dims(&self.arg(i).dims, &self.arg(0).dims) {
                        return fail(format!("operand {i} has other dims than operand 0"));
                    }
                }
                self.result(self.arg(0).dtype, &[&[*dim], self.arg(0).dims.as_slice()].concat())
            }
            Op::Scan { kind, dim, .. } => {
                self.operands(1)?;
                self.numeric(0)?;
                self.has(0, &[*dim])?;
                let dtype = if *kind == ScanKind::ArgMax { DType::I32 } else { self.arg(0).dtype };
                self.result(dtype, &self.arg(0).dims)
            }
            Op::LinearScan { dim, .. } => {
                self.operands(2)?;
                self.float(0)?;
                self.arg_type(1, self.arg(0).dtype)?;
                let union = self.union();
                if !union.contains(dim) {
                    return fail("no operand has the dim");
                }
                self.result(self.arg(0).dtype, &union)
            }
            Op::ArgSort { dim } => {
                self.operands(1)?;
                self.has(0, &[*dim])?;
                self.result(DType::I32, &self.arg(0).dims)
            }
            Op::TopK { dim, k } => {
                self.operands(1)?;
                self.has(0, &[*dim])?;
                distinct(g, &[*k])?;
                if g.size(*k) > g.size(*dim) {
                    return fail(format!("more than the {} elements of `{}`", g.size(*dim), self.name(*dim)));
                }
                let all = [self.without(&self.arg(0).dims, &[*dim]), vec![*k]].concat();
                self.result(DType::I32, &all)
            }
            Op::PackPlace { packed, .. } => {
                self.operands(1)?;
                self.arg_type(0, DType::I32)?;
                self.has(0, packed)?;
                self.result(DType::I32, &self.arg(0).dims)
            }
            Op::Draw { dim, dims, top_p, .. } => {
                if self.op.args.is_empty() {
                    return fail("no operands");
                }
                self.float(0)?;
                self.int_scalars(1)?;
                self.has(0, &[*dim])?;
                if top_p.is_nan() {
                    return fail("top_p is not a number");
                }
                if !same_dims(dims, &self.out().dims) {
                    return fail("its logical dims are not those of the result");
                }
                self.result(DType::I32, &self.without(&self.arg(0).dims, &[*dim]))
            }
            Op::Attention(a) => {
                self.operands(a.operands())?;
                self.attention(a)?;
                self.result(self.arg(0).dtype, &self.attended(a))?;
                self.logsumexp(a, self.g.value(self.op.results[1]))
            }
            Op::AttentionGrad(a) => {
                let n = a.operands();
                self.operands(n + 3)?;
                self.attention(a)?;
                self.logsumexp(a, self.arg(n + 1))?;
                for i in [n, n + 2] {
                    self.arg_type(i, self.arg(0).dtype)?;
                    if !same_dims(&self.arg(i).dims, &self.attended(a)) {
                        return fail(format!("operand {i} does not have the dims of the attention's result"));
                    }
                }
                for (i, r) in self.op.results.iter().enumerate() {
                    let (r, x) = (self.g.value(*r), self.arg(i));
                    if r.dtype != x.dtype || !same_dims(&r.dims, &x.dims) {
                        return fail(format!("result {i} does not have the type of operand {i}"));
                    }
                }
                Ok(())
            }
            Op::StopGradient => {
                self.operands(1)?;
                self.result_dims(&self.arg(0).dims)?;
                self.result_type(self.arg(0).dtype)
            }
            Op::Loop { body, dim, carries, .. } => self.looped(*body, *dim, *carries as usize),
            Op::WriteAt { dim, part } => {
                self.operands(3)?;
                self.int_scalars(2)?;
                self.has(0, &[*dim])?;
                self.has(1, &[*part])?;
                self.arg_type(1, self.arg(0).dtype)?;
                let all = [self.without(&self.arg(1).dims, &[*part]), vec![*dim]].concat();
                if !same_dims(&all, &self.arg(0).dims) {
                    return fail("dims of what is written are not those of the cache");
                }
                if g.size(*part) > g.size(*dim) {
                    return fail("what is written has a larger size than the cache");
                }
                self.result(self.arg(0).dtype, &self.arg(0).dims)
            }
            Op::Coordinate(atom) => {
                self.atoms(&[*atom])?;
                self.leaf(DType::I32, &[])
            }
            Op::Collective(c) => self.collective(c),
        }
    }

    fn atoms(&self, atoms: &[Atom]) -> Outcome {
        for (i, a) in atoms.iter().enumerate() {
            if !g_has(self.g, *a) {
                return fail(format!("the mesh has no atom {}", a.0));
            }
            if atoms[..i].contains(a) {
                return fail(format!("atom {} occurs twice", a.0));
            }
        }
        Ok(())
    }

    fn collective(&self, c: &Collective) -> Outcome {
        self.operands(1)?;
        self.atoms(&c.atoms)?;
        let mut cut: Vec<Atom> = Vec::new();
        let mut dims = self.arg(0).dims.clone();
        for (from, to) in &c.dims {
            let Some(at) = dims.iter().position(|d| d == from) else {
                return fail(format!("its operand lacks `{}`", self.name(*from)));
            };
            dims[at] = *to;
            if self.g.extent(*from) != self.g.extent(*to) {
                return fail(format!("`{}` and `{}` are parts of different wholes", self.name(*from), self.name(*to)));
            }
            let entries = [*from, *to].map(|d| self.g.dim(d).cut.iter().flat_map(|c| &c.entries).collect::<Vec<_>>());
            let [a, b] = &entries;
            cut.extend(a.iter().filter(|e| !b.contains(e)).map(|e| e.atom));
            // A part of what a rank gets is its own affair.
            let moved = |e: &&&Entry| entries_of(self.g, self.arg(0)).any(|x| x.atom == e.atom);
            cut.extend(b.iter().filter(|e| !a.contains(e)).filter(moved).map(|e| e.atom));
        }
        if let Some((op, parts)) = &c.reduce {
            self.atoms(parts)?;
            if parts.iter().any(|a| !c.atoms.contains(a)) {
                return fail("its group lacks an atom that it reduces over");
            }
            if matches!(op, ReduceKind::ArgMax | ReduceKind::ArgMin) {
                return fail(format!("{} is no operator of parts", op.name()));
            }
            if let Some(d) = self.arg(0).dims.iter().find(|d| {
                // Halos overlap: what several ranks have of an element is added up.
                let blocks = |e: &Entry| parts.contains(&e.atom) && !matches!(e.order, Order::Halo { .. });
                self.g.dim(**d).cut.as_ref().is_some_and(|c| c.entries.iter().any(blocks))
            }) {
                return fail(format!("it reduces over what cuts `{}`", self.name(*d)));
            }
        }
        if c.kind != CollectiveKind::Slice
            && let Some(a) = cut.iter().find(|a| !c.atoms.contains(a))
        {
            return fail(format!("its group lacks atom {}, which cuts a dim anew", a.0));
        }
        if c.kind == CollectiveKind::Slice && (c.reduce.is_some() || !c.atoms.is_empty()) {
            return fail("a slice has no group");
        }
        if c.hops > 0 && (c.kind != CollectiveKind::Permute || c.reduce.is_some() || !c.dims.is_empty()) {
            return fail("only what stays as it is goes round in a ring");
        }
        if self.out().dims != dims {
            return fail("its result has other dims");
        }
        self.result_type(self.arg(0).dtype)
    }

    fn leaf(&self, dtype: DType, dims: &[DimId]) -> Outcome {
        self.operands(0)?;
        self.result(dtype, dims)?;
        if self.out().dims == dims { Ok(()) } else { fail("its dims are not in declared order") }
    }

    fn constant(&self, c: &Constant) -> Outcome {
        self.operands(0)?;
        let data = match c {
            Constant::Splat(x) => std::slice::from_ref(x),
            Constant::Elements(data) if data.len() != self.g.elements(&self.out().dims) => {
                return fail(format!("{} elements for [{}]", data.len(), self.list(&self.out().dims)));
            }
            Constant::Elements(data) => data.as_slice(),
        };
        let whole = |x: f64| x == x.trunc() && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&x);
        match self.out().dtype {
            DType::I32 if data.iter().any(|x| !whole(*x)) => fail("an element is no whole number of 32 bits"),
            DType::Bool if data.iter().any(|x| *x != 0.0 && *x != 1.0) => fail("an element is neither 0 nor 1"),
            _ => Ok(()),
        }
    }

    fn map(&self, op: MapOp) -> Outcome {
        use MapOp::*;
        self.operands(op.arity())?;
        self.result_dims(&self.union())?;
        let last = op.arity() - 1;
        match op {
            Where => {
                self.arg_type(0, DType::Bool)?;
                self.arg_type(1, self.arg(2).dtype)?;
            }
            _ if last == 1 => self.arg_type(1, self.arg(0).dtype)?,
            _ => {}
        }
        match op {
            Not | And | Or => self.arg_type(0, DType::Bool)?,
            Cast(_) | Where | Eq | Ne => {}
            Neg | Square | Abs | Sign | Add | Sub | Mul | FloorDiv | Rem | Pow | Max | Min | Lt | Le | Gt | Ge => {
                self.numeric(0)?;
            }
            Exp | Expm1 | Log | Log1p | Sqrt | Rsqrt | Tanh | Sigmoid | Softplus | Erf | Sin | Cos | Floor | Ceil
            | Round | IsFinite | Div => self.float(0)?,
        }
        self.result_type(match op {
            Cast(to) => to,
            IsFinite | Not | And | Or | Eq | Ne | Lt | Le | Gt | Ge => DType::Bool,
            _ => self.arg(last).dtype,
        })
    }

    /// The operands that an attention and its gradient have both.
    fn attention(&self, a: &Attention) -> Outcome {
        let g = self.g;
        let dims = [a.query, a.key, a.feature, a.value];
        dims.iter().try_for_each(|d| distinct(g, &[*d]))?;
        distinct(g, &[a.query, a.key, a.feature])?;
        distinct(g, &[a.query, a.key, a.value])?;
        self.float(0)?;
        self.arg_type(1, self.arg(0).dtype)?;
        self.arg_type(2, self.arg(0).dtype)?;
        self.has(0, &[a.query, a.feature])?;
        self.has(1, &[a.key, a.feature])?;
        self.has(2, &[a.key, a.value])?;
        let shared = self.without(&self.arg(1).dims, &[a.key, a.feature]);
        if !same_dims(&shared, &self.without(&self.arg(2).dims, &[a.key, a.value])) {
            return fail("keys and values have different dims");
        }
        self.has(0, &shared)?;
        let rows = self.without(&self.arg(0).dims, &[a.feature]);
        if shared.contains(&a.query) || rows.contains(&a.key) || [&shared, &rows].iter().any(|x| x.contains(&a.value)) {
            return fail("an operand has a dim that is another one's alone");
        }
        let (documents, mask, bias) = a.extras();
        let within = |i: usize, dims: &[DimId], more: DimId| -> Outcome {
            match self.arg(i).dims.iter().find(|d| !dims.contains(d) && **d != more) {
                Some(d) => fail(format!("operand {i} has dim `{}`", self.name(*d))),
                None => Ok(()),
            }
        };
        if let Some(i) = documents {
            self.arg_type(i, DType::I32)?;
            self.arg_type(i + 1, DType::I32)?;
            within(i, &rows, a.query)?;
            within(i + 1, &shared, a.key)?;
        }
        if let Some(i) = mask {
            self.arg_type(i, DType::Bool)?;
            within(i, &rows, a.key)?;
        }
        if let Some(i) = bias {
            self.arg_type(i, self.arg(0).dtype)?;
            within(i, &rows, a.key)?;
        }
        if let Some(i) = a.position() {
            self.arg_type(i, DType::I32)?;
            if !self.arg(i).dims.is_empty() {
                return fail("the position of its first query is no scalar");
            }
        }
        if a.scale.is_finite() && a.cap >= 0.0 { Ok(()) } else { fail("its scale or cap is no number") }
    }

    /// Dims of an attention's first result.
    fn attended(&self, a: &Attention) -> Vec<DimId> {
        [self.without(&self.arg(0).dims, &[a.feature]).as_slice(), &[a.value]].concat()
    }

    fn logsumexp(&self, a: &Attention, v: &Value) -> Outcome {
        let dtype = if self.arg(0).dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let rows = self.without(&self.arg(0).dims, &[a.feature]);
        if v.dtype == dtype && same_dims(&v.dims, &rows) { Ok(()) } else { fail("its logsumexp has another type") }
    }

    fn concat(&self, parts: &[DimId], to: DimId) -> Outcome {
        if parts.is_empty() {
            return fail("no operands");
        }
        self.operands(parts.len())?;
        let g = self.g;
        let rest = self.without(&self.arg(0).dims, &parts[..1]);
        let mut size = 0usize;
        for (i, part) in parts.iter().enumerate() {
            self.has(i, &[*part])?;
            self.arg_type(i, self.arg(0).dtype)?;
            if !same_dims(&rest, &self.without(&self.arg(i).dims, &[*part])) {
                return fail(format!("operand {i} has other dims than operand 0"));
            }
            size = size.saturating_add(g.size(*part));
        }
        distinct(g, &[to])?;
        if size != g.size(to) {
            return fail(format!("the parts have {size} elements, the size of `{}` is {}", self.name(to), g.size(to)));
        }
        self.result(self.arg(0).dtype, &[rest, vec![to]].concat())
    }

    fn looped(&self, body: BlockId, dim: DimId, carries: usize) -> Outcome {
        let g = self.g;
        distinct(g, &[dim])?;
        let block = g.block(body);
        let (args, results) = (&self.op.args, &self.op.results);
        if args.len() < carries || results.len() < carries {
            return fail("it has fewer operands or results than carries");
        }
        if block.params.len() != 1 + args.len() || block.results.len() != results.len() {
            return fail("numbers of its operands and results are not those of the body");
        }
        let alike = |a: ValueId, b: ValueId| {
            let (a, b) = (g.value(a), g.value(b));
            a.dtype == b.dtype && same_dims(&a.dims, &b.dims)
        };
        let turn = g.value(block.params[0]);
        if turn.dtype != DType::I32 || !turn.dims.is_empty() {
            return fail("the turn is an int scalar");
        }
        for (a, p) in args.iter().zip(&block.params[1..]) {
            if !alike(*a, *p) {
                return fail(format!("carry or capture {p} has another type than {a}"));
            }
        }
        for (c, (inner, outer)) in block.results.iter().zip(results).enumerate() {
            if c < carries {
                if !alike(*inner, block.params[1 + c]) || !alike(*outer, *inner) {
                    return fail(format!("carry {c} changes its type"));
                }
                continue;
            }
            let (i, o) = (g.value(*inner), g.value(*outer));
            let dims = [i.dims.as_slice(), &[dim]].concat();
            if i.dtype != o.dtype || i.dims.contains(&dim) || !same_dims(&dims, &o.dims) {
                return fail(format!("collected value {outer} does not have the type of {inner}"));
            }
        }
        Ok(())
    }
}

fn axis_dims(axes: &[WindowAxis]) -> (Vec<DimId>, Vec<DimId>) {
    (axes.iter().map(|a| a.input).collect(), axes.iter().flat_map(|a| a.terms.iter().map(|t| t.0)).collect())
}
