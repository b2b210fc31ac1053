//! Data files that the command line puts in the place of the program's.

use crate::diag::did_you_mean;
use crate::runtime::RuntimeError;
use crate::runtime::data::{DataSpec, Input};
use indexmap::IndexSet;
use std::path::{Path, PathBuf};

/// Another file in the place of one of the program's.
#[derive(Clone, PartialEq, Debug)]
pub struct Replacement {
    /// For this input alone; None: wherever the file is read.
    input: Option<String>,
    old: PathBuf,
    new: PathBuf,
}

/// What `FILE`s and `NAME=FILE`s stand for. A `FILE` is in the place of the first one that is read; a `NAME` is an input, or
/// the path or the name of a file as the program has it. `what`: the statement that `spec` comes from.
pub fn replacements(
    spec: &DataSpec,
    inputs: &[Input],
    what: &str,
    given: &[PathBuf],
) -> Result<Vec<Replacement>, RuntimeError> {
    let files = spec.files();
    let mut out: Vec<Replacement> = Vec::new();
    for path in given {
        let (input, old, new) = match named(&files, inputs, what, path)? {
            Some(found) => found,
            None => match files.first() {
                Some((_, first)) => (None, first.clone(), path.clone()),
                None => return Err(wrong(format!("`{what}` reads no file"), "leave the option out")),
            },
        };
        if let Some(before) = out.iter().find(|r| r.input == input && r.old == old) {
            let (a, b) = (before.new.display(), path.display());
            let message = format!("`{a}` and `{b}` are both given in the place of `{}`", old.display());
            return Err(wrong(message, others(&files, &old)));
        }
        out.push(Replacement { input, old, new });
    }
    Ok(out)
}

type Found = (Option<String>, PathBuf, PathBuf);

/// The parts of `NAME=FILE`; None for a `FILE`, which may have `=` in it, too.
fn named(
    files: &[(String, PathBuf)],
    inputs: &[Input],
    what: &str,
    given: &Path,
) -> Result<Option<Found>, RuntimeError> {
    let Some((name, new)) = given.to_str().and_then(|t| t.split_once('=')) else { return Ok(None) };
    let of_input = |(input, _): &&(String, PathBuf)| input == name;
    // A stream has one file for all its inputs.
    let whole = |(input, _): &&(String, PathBuf)| input.is_empty() && inputs.iter().any(|i| i.name == name);
    let of_file =
        |(_, path): &&(String, PathBuf)| path == Path::new(name) || path.file_name().is_some_and(|f| f == name);
    let only = |mut paths: Vec<&PathBuf>| {
        paths.sort();
        paths.dedup();
        match &paths[..] {
            [] => Ok(None),
            [one] => Ok(Some((*one).clone())),
            several => Err(wrong(
                format!("`{name}` stands for several files"),
                format!("name one of them: {}", list(several.iter().map(|p| format!("`{}=FILE`", p.display())))),
            )),
        }
    };
    if name.is_empty() {
        return Err(wrong(
            format!("`{}` names nothing before its `=`", given.display()),
            "write `NAME=FILE`, or `FILE`",
        ));
    }
    if new.is_empty() {
        return Err(wrong(format!("no file is given for `{name}`"), format!("write `{name}=FILE`")));
    }
    if let Some(old) = only(files.iter().filter(of_input).map(|f| &f.1).collect())? {
        return Ok(Some((Some(name.to_string()), old, new.into())));
    }
    if let Some(old) = only(files.iter().filter(|f| whole(f) || of_file(f)).map(|f| &f.1).collect())? {
        return Ok(Some((None, old, new.into())));
    }
    if name.contains('/') || given.exists() {
        return Ok(None);
    }
    let own = files.iter().map(|f| f.0.as_str()).filter(|n| !n.is_empty());
    let names: IndexSet<&str> = own.chain(files.iter().filter_map(|f| f.1.file_name()?.to_str())).collect();
    let cure = match did_you_mean(name, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}={new}`?"),
        None => format!("it has {}; a path with `=` in it is written `./{}`", list(names.iter()), given.display()),
    };
    Err(wrong(format!("`{what}` has no input or file `{name}`"), cure))
}

/// Puts files into the place of others, each by the first list that has one for it; says whether any did.
pub fn replace(spec: &mut DataSpec, lists: &[&[Replacement]]) -> bool {
    let files = spec.files();
    let mut any = false;
    for (source, (input, path)) in spec.sources_mut().into_iter().zip(files) {
        let fits = |r: &&Replacement| r.old == path && r.input.as_ref().is_none_or(|i| *i == input);
        // An input's own file comes before one that is given for all.
        let of = |list: &&'_ [Replacement]| list.iter().filter(fits).min_by_key(|r| r.input.is_none()).cloned();
        if let Some(r) = lists.iter().find_map(of) {
            source.path = r.new;
            any = true;
        }
    }
    any
}

/// How the command line names one of the files that `spec` reads: `FILE`, `label=FILE`.
pub fn argument(spec: &DataSpec, path: &Path) -> Option<String> {
    let files = spec.files();
    let at = files.iter().position(|f| f.1 == path)?;
    let input = &files[at].0;
    Some(if files[0].1 == path {
        "FILE".to_string()
    } else if files.iter().all(|f| f.0 != *input || f.1 == path) {
        format!("{input}=FILE")
    } else {
        format!("{}=FILE", path.display())
    })
}

/// What else there is to be given.
fn others(files: &[(String, PathBuf)], old: &Path) -> String {
    let mut names: Vec<&str> =
        files.iter().filter(|f| f.1 != old).map(|f| f.0.as_str()).filter(|n| !n.is_empty()).collect();
    names.dedup();
    match names.is_empty() {
        true => "keep one".to_string(),
        false => format!("say what the other is for: {}", list(names.iter().map(|n| format!("`{n}=FILE`")))),
    }
}

fn list(names: impl Iterator<Item = impl ToString>) -> String {
    names.map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
}

fn wrong(message: String, help: impl Into<String>) -> RuntimeError {
    RuntimeError::new("E0902", message).help(help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::data::{Expr, Source, SourceKind};
    use crate::types::{DType, MapOp};

    fn npy(path: &str) -> Expr {
        Expr::Source(Source::new(path, SourceKind::Npy))
    }

    /// An image of two files, a label and a weight from one file.
    fn spec() -> DataSpec {
        let both = Expr::Map(MapOp::Add, vec![npy("in/a.npy"), npy("in/b.npy")]);
        let fields = [("image", both), ("label", npy("l.npy")), ("weight", npy("l.npy"))];
        DataSpec::Fields(fields.map(|(n, e)| (n.to_string(), e)).to_vec())
    }

    fn given(spec: &DataSpec, all: &[&str]) -> Result<String, String> {
        let input = |name: &str| Input { name: name.into(), dtype: DType::F32, dims: vec![], sample: 0, bound: None };
        let paths: Vec<PathBuf> = all.iter().map(PathBuf::from).collect();
        let by = replacements(spec, &[input("tokens")], "data", &paths).map_err(|e| {
            assert_eq!(e.code, "E0902");
            e.to_string()
        })?;
        let mut new = spec.clone();
        assert_eq!(replace(&mut new, &[&by]), !all.is_empty());
        Ok(new.files().iter().map(|f| f.1.display().to_string()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn files_are_replaced_by_place_input_and_name() {
        let spec = spec();
        assert_eq!(given(&spec, &[]).unwrap(), "in/a.npy in/b.npy l.npy l.npy");
        assert_eq!(given(&spec, &["x"]).unwrap(), "x in/b.npy l.npy l.npy");
        assert_eq!(given(&spec, &["label=y", "x"]).unwrap(), "x in/b.npy y l.npy");
        assert_eq!(given(&spec, &["l.npy=y", "label=z"]).unwrap(), "in/a.npy in/b.npy z y");
        assert_eq!(given(&spec, &["in/b.npy=y", "a.npy=z"]).unwrap(), "z y l.npy l.npy");
        assert_eq!(given(&spec, &["./label=y"]).unwrap(), "./label=y in/b.npy l.npy l.npy");
        // Files change places: the old names are meant.
        assert_eq!(given(&spec, &["a.npy=in/b.npy", "b.npy=in/a.npy"]).unwrap(), "in/b.npy in/a.npy l.npy l.npy");
        let stream = DataSpec::Whole(Source::new("t.bin", SourceKind::Bytes));
        assert_eq!(given(&stream, &["tokens=u.bin"]).unwrap(), "u.bin");
    }

    #[test]
    fn what_is_not_clear_is_an_error() {
        let spec = spec();
        for (all, says) in [
            (&["x", "y"][..], "`x` and `y` are both given in the place of `in/a.npy`"),
            (&["x", "y"], "`label=FILE`, `weight=FILE`"),
            (&["label=x", "label=y"], "are both given"),
            (&["image=x"], "`in/a.npy=FILE`, `in/b.npy=FILE`"),
            (&["labels=x"], "did you mean `label=x`?"),
            (&["zzz=x"], "written `./zzz=x`"),
            (&["label="], "no file is given"),
            (&["=x"], "names nothing before its `=`"),
        ] {
            let said = given(&spec, all).unwrap_err();
            assert!(said.contains(says), "{all:?}: {said}");
        }
        let none = DataSpec::Fields(vec![("x".into(), Expr::Int(1))]);
        assert!(given(&none, &["x"]).unwrap_err().contains("reads no file"));
    }

    #[test]
    fn files_are_named_as_they_are_given() {
        let name = |path: &str| argument(&spec(), Path::new(path)).unwrap();
        assert_eq!(["in/a.npy", "in/b.npy", "l.npy"].map(name), ["FILE", "in/b.npy=FILE", "label=FILE"]);
        assert_eq!(argument(&spec(), Path::new("no")), None);
    }
}
