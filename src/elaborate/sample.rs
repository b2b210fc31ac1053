//! Sample items: a body over the model's instances and outputs, run without gradients.

use super::Elab;
use super::frame::{Body, Local};
use super::value::Val;
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::{DimId, Input, InputId, Op, OutputKind, Scope, State, StateKind, ValueId};
use crate::source::Span;
use crate::syntax::ast::{self, Expr, ExprKind, StmtKind};
use crate::types::{DType, MapOp};
use indexmap::IndexMap;

/// What the runtime needs to know of a sample item.
#[derive(Clone, Debug, Default)]
pub struct SampleFacts {
    pub name: String,
    pub feed: Option<FeedBack>,
    pub text: Option<(Text, Span)>,
    pub length: Option<u64>,
    pub stop: Option<String>,
    /// Inputs of the sample item itself, beside those of the model.
    pub inputs: Vec<InputId>,
}

/// `feed tokens[seq] = e`
#[derive(Clone, Debug)]
pub struct FeedBack {
    pub input: InputId,
    pub dim: DimId,
    /// The next input; also the graph's `Value` output `next`.
    pub value: ValueId,
    pub span: Span,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Text {
    Bytes,
    Chars,
    /// Numbers.
    Ids,
    /// The path of a tokenizer.json, relative to the main file.
    Tokenizer(String),
}

/// The state that holds the temperature of the draw.
pub const TEMPERATURE: &str = "sampling.temperature";
/// The name of the output that holds the next input.
pub const NEXT: &str = "next";

impl<'a> Elab<'a> {
    /// Walks the model of a sample item, then the item's body. The graph's `Value` outputs are the item's own, and `next`
    /// where an input is fed back.
    pub fn sample(&mut self, item: &'a ast::Sample) -> SampleFacts {
        let mut facts =
            SampleFacts { name: item.name.as_ref().unwrap_or(&item.model).text.clone(), ..SampleFacts::default() };
        let Some(at) = self.model_of(&item.model) else { return facts };
        let fed: Vec<String> = (item.body.stmts.iter())
            .filter_map(|s| match &s.kind {
                StmtKind::Feed { input, .. } => Some(input.text.clone()),
                _ => None,
            })
            .collect();
        // Inputs with a default take it, unless the item feeds them.
        self.fed = Some(fed);
        let root = self.model(at);
        if self.failed() {
            return facts;
        }
        self.b.graph.outputs.clear();
        let mut frame = self.open_frame(crate::resolve::MAIN, Body::Sample, &facts.name);
        frame.instance = Some(root);
        frame.ordinals = self.ordinals_of(&item.body);
        frame.stream = format!("sample/{}", facts.name);
        frame.scope = self.b.add_scope(Scope {
            path: String::new(),
            definition: format!("sample {}", facts.name),
            parent: Some(crate::ir::ROOT),
            site: None,
            turns: Vec::new(),
        });
        let mut names = IndexMap::new();
        for (n, id) in &self.instances[root.0 as usize].children {
            if !n.contains('.') {
                let local = Local { val: Val::Instance(*id), span: item.head, used: true, scan_depth: 0 };
                names.insert(n.clone(), local);
            }
        }
        for (n, (v, span)) in &self.outputs {
            names.insert(n.clone(), Local { val: Val::Tensor(*v), span: *span, used: true, scan_depth: 0 });
        }
        frame.scopes = vec![names];
        self.within(frame, |e| {
            for a in item.args.iter().flatten() {
                e.sample_input(a, &mut facts);
            }
            e.sample_body(item, &mut facts);
        });
        facts
    }

    fn sample_input(&mut self, a: &'a ast::Arg, facts: &mut SampleFacts) {
        let Some(d) = self.declared(&a.ty) else {
            self.define(&a.name, Val::Error, true);
            return;
        };
        if let Some(default) = &a.default {
            let val = self.value_as(default, Some(std::slice::from_ref(&d.dims)));
            let val = self.widen(val, &d, default.span);
            self.define(&a.name, val, false);
            return;
        }
        let dtype = d.dtype.unwrap_or(self.single());
        let id =
            self.b.add_input(Input { name: a.name.text.clone(), dtype, dims: d.dims.clone(), span: Some(a.name.span) });
        facts.inputs.push(id);
        let read = if d.dtype.is_none() { self.precision } else { dtype };
        let v = self.read(super::ReadKey::Input(id), read);
        self.define(&a.name, Val::Tensor(v), false);
    }

    fn sample_body(&mut self, item: &'a ast::Sample, facts: &mut SampleFacts) {
        // The feed and the settings may refer to names of the body, so they are read where they stand.
        self.frame().scopes.push(IndexMap::new());
        for s in &item.body.stmts {
            match &s.kind {
                StmtKind::Feed { input, dim, value } => {
                    let fed = self.feed_back(input, dim, value, s.span);
                    if facts.feed.is_some() && fed.is_some() {
                        self.error(
                            Diagnostic::error("E0710", "a sample item feeds one input")
                                .at(s.span, "a second `feed`")
                                .help("keep one"),
                        );
                    }
                    facts.feed = fed;
                }
                StmtKind::Setting { word, value } => self.sample_setting(word, value, facts),
                StmtKind::Expr(e) => {
                    let val = match &*e.kind {
                        ExprKind::For { .. } => self.run_loop(e, false),
                        _ => self.value(e),
                    };
                    if !matches!(val, Val::Nothing | Val::Error) {
                        self.error(
                            Diagnostic::error("E0406", "this value is computed and dropped")
                                .at(e.span, format!("{} that nothing uses", val.kind()))
                                .help("give it a name: `output name = ..`"),
                        );
                    }
                }
                _ => {
                    self.statement(s, false, None);
                }
            }
        }
        self.frame().scopes.pop();
        if facts.feed.is_none() && self.b.graph.outputs.is_empty() && !self.failed() {
            self.error(
                Diagnostic::error("E0710", "the sample item gives nothing")
                    .at(item.head, "no `feed` and no `output`")
                    .help("write `output name = ..`; for a model of tokens, `feed tokens[seq] = draw[vocab](logits)`"),
            );
        }
    }

    fn feed_back(&mut self, input: &'a ast::Name, dim: &'a ast::Name, value: &'a Expr, span: Span) -> Option<FeedBack> {
        let found = self.b.graph.inputs.iter().position(|i| i.name == input.text);
        let Some(i) = found else {
            let names: Vec<String> = self.b.graph.inputs.iter().map(|i| i.name.clone()).collect();
            let d = Diagnostic::error("E0201", format!("the model has no input `{}`", input.text))
                .at(input.span, "unknown input");
            self.error(match did_you_mean(&input.text, names.iter().map(String::as_str)) {
                Some(n) => d.help(format!("did you mean `{n}`?")),
                None if names.is_empty() => {
                    d.help("the model has no inputs: declare one, `model M(tokens: int[batch, seq])`")
                }
                None => d.help(format!("its inputs: {}", names.join(", "))),
            });
            return None;
        };
        let id = InputId(i as u32);
        let set = self.dim(dim)?;
        let info = self.b.graph.inputs[i].clone();
        let &[d] = &set.ids[..] else { return None };
        if !info.dims.contains(&d) {
            let shown = self.show_dims(&info.dims);
            self.error(
                Diagnostic::error("E0302", format!("input `{}` has no dim `{}`", input.text, dim.text))
                    .at(dim.span, format!("it has {shown}"))
                    .help("name the dim along which it is fed"),
            );
            return None;
        }
        let val = self.value(value);
        let v = match val {
            Val::Tensor(v) => v,
            Val::Error => return None,
            other => {
                self.error(
                    Diagnostic::error("E0309", "what is fed is a value")
                        .at(value.span, format!("this is {}", other.kind()))
                        .help("write `draw[vocab](logits)` or `argmax[vocab](logits)`"),
                );
                return None;
            }
        };
        let dims = self.b.dims(v).to_vec();
        let same = dims.len() == info.dims.len() && dims.iter().all(|x| info.dims.contains(x));
        if !same {
            let (a, b) = (self.show_dims(&dims), self.show_dims(&info.dims));
            self.error(
                Diagnostic::error("E0307", "what is fed has the dims of the input")
                    .at(value.span, format!("this has {a}"))
                    .help(format!("`{}` has {b}", input.text)),
            );
            return None;
        }
        let v = self.convert(v, info.dtype, value.span)?;
        self.b.span = Some(span);
        self.b.output(OutputKind::Value, NEXT, v);
        Some(FeedBack { input: id, dim: d, value: v, span })
    }

    fn sample_setting(&mut self, word: &'a ast::Name, value: &'a Expr, facts: &mut SampleFacts) {
        match word.text.as_str() {
            "length" => facts.length = self.positive(value),
            "stop" => match self.constant(value) {
                Some(crate::check::constant::Const::Str(s)) => facts.stop = Some(s),
                Some(other) => self.error(
                    Diagnostic::error("E0710", "`stop` takes a string")
                        .at(value.span, format!("this is {}", other.kind()))
                        .help("write `stop \"\\n\"`"),
                ),
                None => {}
            },
            _ => match text_kind(value) {
                Some(t) => facts.text = Some((t, value.span)),
                None => self.error(
                    Diagnostic::error("E0710", "`text` says how tokens are written")
                        .at(value.span, "not understood")
                        .help("write `text bytes`, `text chars`, `text ids` or `text tokenizer(\"tokenizer.json\")`"),
                ),
            },
        }
    }

    /// Makes the temperature of the last draw a state, so that it can be chosen at run time; a constant divisor of the
    /// logits is the written temperature and the state's usual value. None where nothing is drawn.
    pub fn free_temperature(&mut self) -> Option<f64> {
        let k = (self.b.graph.ops.iter()).rposition(|o| matches!(o.op, Op::Draw { .. }))?;
        let mut draw = self.b.graph.ops[k].clone();
        let logits = draw.args[0];
        let divisor = self.b.graph.def_op(logits).filter(|o| o.op == Op::Map(MapOp::Div)).and_then(|o| {
            let written = self.b.splat(o.args[1])?;
            self.b.dims(o.args[1]).is_empty().then_some((o.args[0], written))
        });
        let (base, written) = divisor.unwrap_or((logits, 1.0));
        let single = self.single();
        // A low temperature would make infinities of logits in f16.
        let base = self.b.cast(base, single);
        let id = self.b.add_state(State {
            path: TEMPERATURE.to_string(),
            dtype: single,
            dims: vec![],
            kind: StateKind::Cache,
            span: None,
        });
        self.b.span = draw.span;
        let state = self.b.state(id);
        let divided = self.b.div(base, state);
        // The draw stands before the new division, so it is made again after it.
        draw.args[0] = divided;
        let old = draw.results[0];
        let dims = self.b.dims(old).to_vec();
        let new = self.b.emit(draw.op, &draw.args, &[(DType::I32, dims)])[0];
        for o in &mut self.b.graph.outputs {
            if o.value == old {
                o.value = new;
            }
        }
        Some(written)
    }
}

fn text_kind(e: &Expr) -> Option<Text> {
    match &*e.kind {
        ExprKind::Name(n) if n == "bytes" => Some(Text::Bytes),
        ExprKind::Name(n) if n == "chars" => Some(Text::Chars),
        ExprKind::Name(n) if n == "ids" => Some(Text::Ids),
        ExprKind::Call { callee, args } => match (&*callee.kind, &args[..]) {
            (ExprKind::Name(n), [a]) if n == "tokenizer" => match &*a.value.kind {
                ExprKind::Str(s) => Some(Text::Tokenizer(s.clone())),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}
