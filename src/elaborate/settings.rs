//! Values from outside the files: presets and `--set name=value`.

use crate::check::constant::Const;
use crate::diag::{Diagnostic, Sink, did_you_mean};
use crate::resolve::{Entity, ItemRef, MAIN, Program};
use crate::source::Span;
use crate::syntax::ast::{Expr, ItemKind, Preset};
use std::collections::HashMap;

/// What replaces the written value of a dim or constant.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// From `--set`: a constant.
    pub values: HashMap<ItemRef, Const>,
    /// From a preset of the main file: number of the preset's item, number of the setting.
    presets: HashMap<ItemRef, (usize, usize)>,
    /// `--set train.steps=9` and its like, by name after the point.
    pub train: Vec<(String, Const)>,
    /// The batch is one of so many shares of the whole one, if it is not all of it.
    pub shares: Option<usize>,
}

impl Settings {
    /// Finds what the names mean. `presets` in order; `sets` are pairs `name`, `text`.
    pub fn new(program: &Program, presets: &[String], sets: &[(String, String)], sink: &mut Sink) -> Settings {
        let mut out = Settings::default();
        for p in presets {
            out.add_preset(program, p, sink);
        }
        for (name, text) in sets {
            out.add_set(program, name, text, sink);
        }
        out
    }

    /// The expression that a preset gives to a dim or constant.
    pub fn preset<'a>(&self, program: &'a Program, at: ItemRef) -> Option<&'a Expr> {
        let (item, k) = self.presets.get(&at)?;
        match &program.module(MAIN).ast.items[*item].kind {
            ItemKind::Preset(p) => Some(&p.settings[*k].1),
            _ => None,
        }
    }

    /// Whether the names that presets set can be set, each once.
    pub fn check_presets(program: &Program, sink: &mut Sink) {
        for preset in program.main_items(|i| if let ItemKind::Preset(p) = i { Some(p) } else { None }) {
            let mut seen: HashMap<&str, Span> = HashMap::new();
            for (name, _) in &preset.settings {
                if !program.is_lost(MAIN, &name.text)
                    && let Err(e) = settable(program, &name.text)
                {
                    sink.push(e.at(name.span, "this name"));
                }
                if let Some(first) = seen.insert(&name.text, name.span) {
                    sink.push(
                        Diagnostic::error("E0202", format!("preset `{}` sets `{}` twice", preset.name.text, name.text))
                            .at(name.span, "a second time")
                            .and(first, "first here")
                            .help("keep one"),
                    );
                }
            }
        }
    }

    fn add_preset(&mut self, program: &Program, name: &str, sink: &mut Sink) {
        let items = program.modules.first().map_or(&[][..], |m| &m.ast.items);
        let all: Vec<(usize, &Preset)> = (items.iter().enumerate())
            .filter_map(|(i, item)| match &item.kind {
                ItemKind::Preset(p) => Some((i, p)),
                _ => None,
            })
            .collect();
        let Some((item, preset)) = all.iter().find(|(_, p)| p.name.text == name) else {
            let near = did_you_mean(name, all.iter().map(|(_, p)| p.name.text.as_str()));
            let d = Diagnostic::error("E0201", format!("the file has no preset `{name}`"));
            sink.push(d.help(match near {
                Some(n) => format!("did you mean `{n}`?"),
                None if all.is_empty() => "the file has no presets".to_string(),
                None => {
                    let names: Vec<&str> = all.iter().map(|(_, p)| p.name.text.as_str()).collect();
                    format!("its presets are: {}", names.join(", "))
                }
            }));
            return;
        };
        for (k, (setting, _)) in preset.settings.iter().enumerate() {
            match settable(program, &setting.text) {
                Ok(at) => {
                    self.presets.insert(at, (*item, k));
                }
                Err(_) if program.is_lost(MAIN, &setting.text) => {}
                Err(e) => sink.push(e.at(setting.span, "this name")),
            }
        }
    }

    fn add_set(&mut self, program: &Program, name: &str, text: &str, sink: &mut Sink) {
        let Some(value) = parse_value(text) else {
            sink.push(
                Diagnostic::error("E0902", format!("`--set {name}={text}`: the value is no constant"))
                    .help("write a number, true, false, or a string"),
            );
            return;
        };
        if let Some(rest) = name.strip_prefix("train.") {
            let needed = match rest {
                "steps" => value.as_int().is_none_or(|n| n <= 0).then_some("a positive whole number"),
                "seed" => value.as_int().is_none_or(|n| n < 0).then_some("a whole number, 0 or more"),
                _ => value.as_f64().is_none_or(|x| x <= 0.0).then_some("a positive number"),
            };
            if !["steps", "seed", "clip"].contains(&rest) {
                sink.push(
                    Diagnostic::error("E0201", format!("`--set {name}`: a train item has no such setting")).help(
                        format!(
                            "train.steps, train.seed and train.clip can be set; for other numbers write a constant, \
                             `const {rest} = ..`, use it in the train item, and set that: `--set {rest}={text}`"
                        ),
                    ),
                );
            } else if let Some(needed) = needed {
                sink.push(
                    Diagnostic::error("E0902", format!("`--set {name}={text}` is not {needed}"))
                        .help(format!("write {needed}")),
                );
            } else {
                self.train.push((rest.to_string(), value));
            }
            return;
        }
        match settable(program, name) {
            Ok(at) => {
                self.values.insert(at, value);
            }
            Err(e) => sink.push(e),
        }
    }
}

/// A number, a bool, or else a string.
fn parse_value(text: &str) -> Option<Const> {
    let plain = text.replace('_', "");
    if let Ok(n) = plain.parse::<i64>() {
        return Some(Const::int(n));
    }
    if let Ok(x) = plain.parse::<f64>() {
        return x.is_finite().then_some(Const::Float(x));
    }
    Some(match text {
        "" => return None,
        "true" => Const::Bool(true),
        "false" => Const::Bool(false),
        _ => Const::Str(text.trim_matches('"').to_string()),
    })
}

fn settable(program: &Program, name: &str) -> Result<ItemRef, Diagnostic> {
    let Some(module) = program.modules.first() else {
        let d = Diagnostic::error("E0201", format!("there is no dim or constant `{name}`"));
        return Err(d.help("no file was read"));
    };
    match module.names.get(name).map(|b| b.entity) {
        Some(Entity::Dim(at)) => match program.dim(at).value {
            crate::syntax::ast::DimValue::Size(_) => Ok(at),
            crate::syntax::ast::DimValue::Group(_) => {
                Err(Diagnostic::error("E0206", format!("`{name}` is a group of dims and cannot be set"))
                    .help("set its members"))
            }
        },
        Some(Entity::Const(at)) => Ok(at),
        Some(_) => Err(Diagnostic::error("E0206", format!("`{name}` is neither a dim nor a constant"))
            .help("only dims and constants can be set")),
        None => {
            let names = module
                .names
                .iter()
                .filter(|(_, b)| matches!(b.entity, Entity::Dim(_) | Entity::Const(_)))
                .map(|(n, _)| n.as_str());
            let d = Diagnostic::error("E0201", format!("there is no dim or constant `{name}`"));
            Err(match did_you_mean(name, names) {
                Some(n) => d.help(format!("did you mean `{n}`?")),
                None => d.help(format!(
                    "only dims and constants can be set: for a number that stands elsewhere, write `const {name} = ..` and use it there"
                )),
            })
        }
    }
}
