//! The tree as text for people: one node a line, expressions with all their parentheses. Spans are left out, so two
//! texts print alike when and only when they mean the same tree.

use super::ast::*;
use std::fmt::Write;

/// The dump of a whole file.
pub fn ast(file: &File) -> String {
    let mut out = Printer::default();
    for item in &file.items {
        out.item(item);
    }
    out.text
}

/// One expression on one line.
pub fn expr(value: &Expr) -> String {
    let mut out = Printer::default();
    out.expr(value);
    out.text
}

#[derive(Default)]
struct Printer {
    text: String,
    depth: usize,
}

impl Printer {
    fn line(&mut self, text: &str) {
        self.begin();
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn begin(&mut self) {
        let indent = 2 * self.depth;
        let _ = write!(self.text, "{:indent$}", "");
    }

    /// A line that ends in an expression.
    fn valued(&mut self, head: &str, value: &Expr) {
        self.begin();
        self.text.push_str(head);
        self.text.push(' ');
        self.expr(value);
        self.text.push('\n');
    }

    fn inside(&mut self, body: impl FnOnce(&mut Printer)) {
        self.depth += 1;
        body(self);
        self.depth -= 1;
    }

    fn item(&mut self, item: &Item) {
        for line in item.doc.iter().flat_map(|d| d.lines()) {
            self.line(format!("/// {line}").trim_end());
        }
        if let Some((name, argument)) = &item.attribute {
            self.line(&format!("@{}({})", name.text, argument.text));
        }
        match &item.kind {
            ItemKind::Use(u) => {
                let names = u.names.as_ref().map_or(String::new(), |names| {
                    let names: Vec<String> = names.iter().map(use_name).collect();
                    format!(".{{{}}}", names.join(", "))
                });
                let path: Vec<&str> = u.path.iter().map(|n| n.text.as_str()).collect();
                self.line(&format!("use {}{}{names}", if u.local { "." } else { "" }, path.join(".")));
            }
            ItemKind::Dims(dims) => self.dims(dims),
            ItemKind::Consts(consts) => {
                for c in consts {
                    let ty = c.ty.as_ref().map_or(String::new(), |t| format!(": {}", type_text(t)));
                    self.valued(&format!("const {}{ty} =", c.name.text), &c.value);
                }
            }
            ItemKind::Def(def) => self.def(def),
            ItemKind::Model(model) => {
                self.line(&format!("model {}", model.name.text));
                self.inside(|p| p.args(&model.args));
                self.block(&model.body);
            }
            ItemKind::Preset(preset) => {
                self.line(&format!("preset {}", preset.name.text));
                self.inside(|p| preset.settings.iter().for_each(|(n, v)| p.valued(&format!("{} =", n.text), v)));
            }
            ItemKind::Plan(plan) => {
                self.line(&format!("plan {}", plan.name.text));
                self.inside(|p| plan.lines.iter().for_each(|l| p.plan_line(&l.kind)));
            }
            ItemKind::Train(train) => {
                self.line(&format!("train {}{}", variant(&train.name), train.model.text));
                self.inside(|p| train.lines.iter().for_each(|l| p.train_line(&l.kind)));
            }
            ItemKind::Sample(sample) => {
                self.line(&format!("sample {}{}", variant(&sample.name), sample.model.text));
                if let Some(args) = &sample.args {
                    self.inside(|p| {
                        p.line("inputs");
                        p.inside(|p| p.args(args));
                    });
                }
                self.block(&sample.body);
            }
            ItemKind::Weights(weights) => {
                self.line(&format!("weights {} of {}", weights.name.text, weights.of.text));
                self.weights_block(&weights.body);
            }
        }
    }

    fn dims(&mut self, dims: &[DimDef]) {
        for dim in dims {
            match &dim.value {
                DimValue::Size(size) => self.valued(&format!("dim {} =", dim.name.text), size),
                DimValue::Group(names) => self.line(&format!("dim {} = group({})", dim.name.text, joined(names))),
            }
        }
    }

    fn def(&mut self, def: &Def) {
        let kind = match def.kind {
            DefKind::Fn => "fn",
            DefKind::Layer => "layer",
            DefKind::Optimizer => "optimizer",
        };
        self.line(&format!("{kind} {}", def.name.text));
        self.inside(|p| {
            for s in &def.statics {
                let kind = match s.kind {
                    StaticKind::Dim => "dim",
                    StaticKind::Int => "int",
                    StaticKind::Float => "float",
                    StaticKind::Bool => "bool",
                    StaticKind::Str => "str",
                    StaticKind::OfDefault => "setting",
                };
                let head = format!("static {}: {kind}", s.name.text);
                match &s.default {
                    Some(value) => p.valued(&format!("{head} ="), value),
                    None => p.line(&head),
                }
            }
            p.args(&def.args);
            let result: Vec<String> = def.result.iter().map(type_text).collect();
            let result = result.join(", ");
            p.line(&if def.tuple { format!("-> ({result})") } else { format!("-> {result}") });
        });
        self.block(&def.body);
    }

    fn args(&mut self, args: &[Arg]) {
        for arg in args {
            let head = format!("arg {}: {}", arg.name.text, type_text(&arg.ty));
            match &arg.default {
                Some(value) => self.valued(&format!("{head} ="), value),
                None => self.line(&head),
            }
        }
    }

    fn block(&mut self, block: &Block) {
        self.inside(|p| block.stmts.iter().for_each(|s| p.stmt(&s.kind)));
    }

    fn stmt(&mut self, stmt: &StmtKind) {
        match stmt {
            StmtKind::Let { names, tuple, ty, value } => {
                let names = if *tuple { format!("({})", joined(names)) } else { joined(names) };
                let ty = ty.as_ref().map_or(String::new(), |t| format!(": {}", type_text(t)));
                self.valued(&format!("let {names}{ty} ="), value);
            }
            StmtKind::Rebind { name, value } => self.valued(&format!("rebind {} =", name.text), value),
            StmtKind::Dims(dims) => self.dims(dims),
            StmtKind::Param { names, ty, init } => {
                self.valued(&format!("param {}: {} =", joined(names), type_text(ty)), init);
            }
            StmtKind::State { names, ty, init } => {
                self.valued(&format!("state {}: {} =", joined(names), type_text(ty)), init);
            }
            StmtKind::Update { name, value } => self.valued(&format!("update {} =", name.text), value),
            StmtKind::Loss { name: Some(name), value } => self.valued(&format!("loss {} =", name.text), value),
            StmtKind::Loss { name: None, value } => self.valued("loss", value),
            StmtKind::Metric { name, value } => self.valued(&format!("metric {} =", name.text), value),
            StmtKind::Output { name, value } => self.valued(&format!("output {} =", name.text), value),
            StmtKind::Expr(value) => self.valued("value", value),
            StmtKind::Feed { input, dim, value } => {
                self.valued(&format!("feed {}[{}] =", input.text, dim.text), value);
            }
            StmtKind::Setting { word, value } => self.valued(&word.text, value),
        }
    }

    /// An expression with all parentheses. Blocks inside it take lines of their own, further in.
    fn expr(&mut self, value: &Expr) {
        match &*value.kind {
            ExprKind::Int(text) | ExprKind::Float(text) | ExprKind::Name(text) => self.text.push_str(text),
            ExprKind::Str(text) => self.text.push_str(&format!("{text:?}")),
            ExprKind::Bool(value) => self.text.push_str(if *value { "true" } else { "false" }),
            ExprKind::Type(name) => self.text.push_str(type_word(*name)),
            ExprKind::Tuple(values) => self.list("tuple(", values, ")", |p, v| p.expr(v)),
            ExprKind::Paren(inner) => {
                self.text.push_str("paren(");
                self.expr(inner);
                self.text.push(')');
            }
            ExprKind::Array(values) => self.list("[", values, "]", |p, v| p.expr(v)),
            ExprKind::If { cond, then, other } => {
                self.text.push_str("if ");
                self.expr(cond);
                self.inner_block(then);
                match other {
                    Some(Else::Block(block)) => {
                        self.text.push_str(" else");
                        self.inner_block(block);
                    }
                    Some(Else::If(inner)) => {
                        self.text.push_str(" else ");
                        self.expr(inner);
                    }
                    None => {}
                }
            }
            ExprKind::For { kind, var, reverse, over, body } => {
                let word = if *kind == LoopKind::Scan { "scan" } else { "for" };
                let _ = write!(self.text, "{word} {} in {}", var.text, if *reverse { "reverse " } else { "" });
                self.range(over);
                self.inner_block(body);
            }
            ExprKind::Unary { op, value } => {
                self.text.push_str(if *op == UnaryOp::Neg { "(-" } else { "(not " });
                self.expr(value);
                self.text.push(')');
            }
            ExprKind::Binary { op, left, right, .. } => {
                self.text.push('(');
                self.expr(left);
                let _ = write!(self.text, " {} ", binary_word(*op));
                self.expr(right);
                self.text.push(')');
            }
            ExprKind::Call { callee, args } => {
                self.expr(callee);
                self.list("(", args, ")", |p, arg| {
                    if let Some(name) = &arg.name {
                        let _ = write!(p.text, "{} = ", name.text);
                    }
                    p.expr(&arg.value);
                });
            }
            ExprKind::Index { base, items } => {
                self.expr(base);
                self.list("[", items, "]", |p, item| p.index_item(&item.kind));
            }
            ExprKind::Member { base, name } => {
                self.expr(base);
                let _ = write!(self.text, ".{}", name.text);
            }
            ExprKind::Turn { base, name } => {
                self.expr(base);
                let _ = write!(self.text, ".{{{}}}", name.text);
            }
            ExprKind::Layout { base, entries } => {
                self.expr(base);
                let _ = write!(self.text, " @ [{}]", entries_text(entries));
            }
        }
    }

    fn list<T>(&mut self, open: &str, values: &[T], close: &str, mut each: impl FnMut(&mut Printer, &T)) {
        self.text.push_str(open);
        for (i, value) in values.iter().enumerate() {
            if i > 0 {
                self.text.push_str(", ");
            }
            each(self, value);
        }
        self.text.push_str(close);
    }

    fn index_item(&mut self, item: &IndexKind) {
        match item {
            IndexKind::Rest => self.text.push_str(".."),
            IndexKind::Group { from, to } => {
                self.group(from);
                if let Some(to) = to {
                    self.text.push_str(" -> ");
                    self.group(to);
                }
            }
            IndexKind::Equals { name, value, slice, to } => {
                let _ = write!(self.text, "{} = ", name.text);
                self.expr(value);
                if *slice {
                    self.text.push_str("..");
                }
                if let Some(to) = to {
                    let _ = write!(self.text, " -> {}", to.text);
                }
            }
            IndexKind::Other(value) => {
                self.text.push_str("other ");
                self.expr(value);
            }
        }
    }

    fn group(&mut self, group: &Group) {
        let (open, close) = if group.paren { ("(", ")") } else { ("", "") };
        self.list(open, &group.parts, close, |p, part| {
            p.text.push_str(&part.name.text);
            if let Some(value) = &part.value {
                p.text.push_str(" = ");
                p.expr(value);
            }
        });
    }

    fn inner_block(&mut self, block: &Block) {
        self.text.push_str(" {\n");
        self.depth += 1;
        self.block(block);
        self.begin();
        self.text.push('}');
        self.depth -= 1;
    }

    fn range(&mut self, over: &LoopRange) {
        match over {
            LoopRange::Dim(name) => self.text.push_str(&name.text),
            LoopRange::Range(low, high) => {
                self.expr(low);
                self.text.push_str("..");
                self.expr(high);
            }
        }
    }

    fn train_line(&mut self, line: &TrainKind) {
        match line {
            TrainKind::Data { valid, source, every, batches } => {
                let word = if *valid { "valid" } else { "data" };
                match source {
                    DataSource::Stream(value) => self.valued(word, value),
                    DataSource::Fields(fields) => {
                        self.line(word);
                        self.inside(|p| fields.iter().for_each(|(n, v)| p.valued(&format!("{} =", n.text), v)));
                    }
                }
                self.inside(|p| {
                    every.iter().for_each(|e| p.valued("every", e));
                    batches.iter().for_each(|b| p.valued("batches", b));
                });
            }
            TrainKind::Samples { dim, slices } => match slices {
                Some(slices) => self.valued(&format!("samples {} slices", dim.text), slices),
                None => self.line(&format!("samples {}", dim.text)),
            },
            TrainKind::Let { name, value } => self.valued(&format!("let {} =", name.text), value),
            TrainKind::Optimizer { call, on, minimizes } => {
                self.valued("optimizer", call);
                self.inside(|p| {
                    p.select("on", on.as_ref());
                    if !minimizes.is_empty() {
                        p.line(&format!("minimizes {}", joined(minimizes)));
                    }
                });
            }
            TrainKind::Freeze(select) => self.select("freeze", Some(select)),
            TrainKind::Clip(value) => self.valued("clip", value),
            TrainKind::Gradient(value) => self.valued("gradient", value),
            TrainKind::Average(value) => self.valued("average", value),
            TrainKind::Steps(value) => self.valued("steps", value),
            TrainKind::Seed(value) => self.valued("seed", value),
            TrainKind::Save { every, keep } => {
                self.valued("save every", every);
                self.inside(|p| match keep {
                    None => {}
                    Some(Keep::All) => p.line("keep all"),
                    Some(Keep::Newest(count)) => p.valued("keep", count),
                });
            }
            TrainKind::SaveBest => self.line("save best"),
            TrainKind::Log(value) => self.valued("log every", value),
            TrainKind::Load { path, with, on } => {
                let with = with.as_ref().map_or(String::new(), |w| format!(" with {}", w.text));
                self.line(&format!("load {:?}{with}", path.0));
                self.inside(|p| p.select("on", on.as_ref()));
            }
        }
    }

    fn select(&mut self, word: &str, select: Option<&Select>) {
        let Some(select) = select else { return };
        let terms = |terms: &[SelectTerm]| {
            let words: Vec<String> = terms.iter().map(|t| select_word(&t.kind)).collect();
            words.join(", ")
        };
        let except =
            if select.except.is_empty() { String::new() } else { format!(" except {}", terms(&select.except)) };
        self.line(&format!("{word} {}{except}", terms(&select.terms)));
    }

    fn weights_block(&mut self, block: &WeightsBlock) {
        self.inside(|p| block.lines.iter().for_each(|l| p.weights_line(&l.kind)));
    }

    fn weights_line(&mut self, line: &WeightsKind) {
        match line {
            WeightsKind::Entry { file_name, axes, value } => {
                self.begin();
                let _ = write!(self.text, "{:?}: ", file_name.0);
                self.list("[", axes, "]", |p, g| p.group(g));
                self.text.push_str(" = ");
                self.expr(value);
                self.text.push('\n');
            }
            WeightsKind::Prefix { prefix, instance } => self.valued(&format!("prefix {:?} =", prefix.0), instance),
            WeightsKind::Dims(dims) => self.dims(dims),
            WeightsKind::For { var, over, body } => {
                self.begin();
                let _ = write!(self.text, "for {} in ", var.text);
                self.range(over);
                self.text.push('\n');
                self.weights_block(body);
            }
            WeightsKind::If { cond, then, other } => {
                self.valued("if", cond);
                self.weights_block(then);
                if let Some(other) = other {
                    self.line("else");
                    self.weights_block(other);
                }
            }
        }
    }

    fn plan_line(&mut self, line: &PlanKind) {
        match line {
            PlanKind::Mesh(axes) => {
                for axis in axes {
                    let link = axis.link.as_ref().map_or(String::new(), |l| format!(" @ {}", l.text));
                    self.line(&format!("mesh {} = {}{link}", axis.name.text, axis.size.0));
                }
            }
            PlanKind::Shard { dims, axes, scopes, opts } => {
                let dims = self.aside(|p| p.list("", dims, "", |p, g| p.group(g)));
                self.line(&format!("shard {dims} by {}{}", joined(axes), scopes_text(scopes)));
                self.opts(opts);
            }
            PlanKind::Replicate { dims, scopes } => {
                let dims = self.aside(|p| p.list("", dims, "", |p, g| p.group(g)));
                self.line(&format!("replicate {dims}{}", scopes_text(scopes)));
            }
            PlanKind::Layout { scope, entries } => {
                self.line(&format!("layout {} @ [{}]", scope_text(scope), entries_text(entries)));
            }
            PlanKind::Pipeline { dims, axis, opts } => {
                self.line(&format!("pipeline {} by {}", joined(dims), axis.text));
                self.opts(opts);
            }
            PlanKind::Microbatches((count, _)) => self.line(&format!("microbatches {count}")),
            PlanKind::Precision { name, opts } => {
                self.line(&format!("precision {}", name.text));
                self.opts(opts);
            }
            PlanKind::Zero { level, axes, scopes, opts } => {
                self.line(&format!("zero {} by {}{}", level.0, joined(axes), scopes_text(scopes)));
                self.opts(opts);
            }
            PlanKind::Recompute { values, opts } => {
                let values: Vec<String> = values.iter().map(|v| value_text(&v.kind)).collect();
                self.line(&format!("recompute {}", values.join(", ")));
                self.opts(opts);
            }
            PlanKind::Offload { what, to } => self.line(&format!("offload {} to {}", joined(what), to.text)),
            PlanKind::Statement { value, axis, opts } => {
                let by = axis.as_ref().map_or(String::new(), |a| format!(" by {}", a.text));
                self.line(&format!("statement {}{by}", value_text(&value.kind)));
                self.opts(opts);
            }
        }
    }

    fn opts(&mut self, opts: &[PlanOpt]) {
        self.inside(|p| {
            opts.iter().for_each(|o| p.line(&format!("{} = {}", o.name.text, value_text(&o.value.kind))));
        });
    }

    /// What the closure prints, as a text of its own.
    fn aside(&mut self, print: impl FnOnce(&mut Printer)) -> String {
        let mut out = Printer { text: String::new(), depth: self.depth };
        print(&mut out);
        out.text
    }
}

fn joined(names: &[Name]) -> String {
    names.iter().map(|n| n.text.as_str()).collect::<Vec<_>>().join(", ")
}

fn use_name(name: &UseName) -> String {
    let alias = name.alias.as_ref().map_or(String::new(), |a| format!(" as {}", a.text));
    format!("{}{alias}", name.name.text)
}

fn variant(name: &Option<Name>) -> String {
    name.as_ref().map_or(String::new(), |n| format!("{} of ", n.text))
}

fn type_text(ty: &Type) -> String {
    let dtype = ty.dtype.map_or("", |(name, _)| type_word(name));
    let Some(dims) = &ty.dims else { return dtype.to_string() };
    let dims: Vec<String> = dims
        .iter()
        .map(|d| match d {
            TypeDim::Rest(_) => "..".to_string(),
            TypeDim::Dim(name) => name.text.clone(),
            TypeDim::Map(from, to) => format!("({} -> {})", joined(from), joined(to)),
        })
        .collect();
    let outs = ty.outs.as_ref().map_or(String::new(), |o| format!(" -> {}", joined(o)));
    format!("{dtype}[{}{outs}]", dims.join(", "))
}

fn type_word(name: TypeName) -> &'static str {
    match name {
        TypeName::Bool => "bool",
        TypeName::Int => "int",
        TypeName::Float => "float",
        TypeName::F16 => "f16",
        TypeName::BF16 => "bf16",
        TypeName::F32 => "f32",
        TypeName::F64 => "f64",
    }
}

fn binary_word(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Or => "or",
        BinaryOp::And => "and",
        BinaryOp::Eq => "==",
        BinaryOp::Ne => "!=",
        BinaryOp::Lt => "<",
        BinaryOp::Le => "<=",
        BinaryOp::Gt => ">",
        BinaryOp::Ge => ">=",
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Div => "/",
        BinaryOp::Rem => "%",
        BinaryOp::Pow => "**",
    }
}

fn select_word(kind: &SelectKind) -> String {
    match kind {
        SelectKind::Matrix => "matrix".to_string(),
        SelectKind::Vector => "vector".to_string(),
        SelectKind::Rest => "rest".to_string(),
        SelectKind::Glob(glob) => format!("{glob:?}"),
    }
}

fn entries_text(entries: &[LayoutEntry]) -> String {
    let entries: Vec<String> = entries.iter().map(|e| format!("{}: ({})", e.dim.text, joined(&e.axes))).collect();
    entries.join(", ")
}

fn scope_text(scope: &Scope) -> String {
    let path: Vec<&str> = scope.path.iter().map(|n| n.text.as_str()).collect();
    let dims = if scope.dims.is_empty() { String::new() } else { format!("[{}]", joined(&scope.dims)) };
    format!("{}{dims}", path.join("."))
}

fn scopes_text(scopes: &[Scope]) -> String {
    if scopes.is_empty() {
        return String::new();
    }
    let scopes: Vec<String> = scopes.iter().map(scope_text).collect();
    format!(" in {}", scopes.join(", "))
}

fn value_text(value: &PlanValueKind) -> String {
    match value {
        PlanValueKind::Number { text, unit } => {
            format!("{text}{}", unit.as_ref().map_or(String::new(), |u| format!(" {}", u.text)))
        }
        PlanValueKind::Str(text) => format!("{text:?}"),
        PlanValueKind::Word(path) => path.iter().map(|n| n.text.as_str()).collect::<Vec<_>>().join("."),
        PlanValueKind::Call { name, args } => {
            let args: Vec<String> = args
                .iter()
                .map(|(name, value)| {
                    let name = name.as_ref().map_or(String::new(), |n| format!("{} = ", n.text));
                    format!("{name}{}", value_text(&value.kind))
                })
                .collect();
            format!("{}({})", name.text, args.join(", "))
        }
        PlanValueKind::List(values) => {
            let values: Vec<String> = values.iter().map(|v| value_text(&v.kind)).collect();
            format!("[{}]", values.join(", "))
        }
    }
}
