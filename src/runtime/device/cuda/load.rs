//! Finding libraries by name, by a variable of the environment, and in the folders where pip puts them.

use crate::runtime::RuntimeError;
use libloading::Library;
use std::path::{Path, PathBuf};

/// A library that was looked for in vain.
#[derive(Clone, Debug)]
pub struct Absent {
    /// What it is: `the driver`.
    pub what: &'static str,
    pub variable: &'static str,
    /// Names and paths that were tried.
    pub tried: Vec<String>,
    /// What is wrong with one that is there.
    pub why: Option<String>,
}

impl Absent {
    pub fn error(&self) -> RuntimeError {
        let Absent { what, variable, tried, why } = self;
        let error = match why {
            Some(why) => RuntimeError::new("E0817", format!("{what} cannot be used: {why}")),
            None => RuntimeError::new("E0817", format!("{what} was not found")),
        };
        error
            .note(format!("looked for {}", tried.join(", ")))
            .help(format!("install it, name its path by the variable {variable}, or use `--device cpu`"))
    }
}

/// What to look for.
pub struct Wanted {
    pub what: &'static str,
    /// Holds the path of the library, or of a folder with it.
    pub variable: &'static str,
    pub names: &'static [&'static str],
    /// Folders within those of Python packages.
    pub packages: &'static [&'static str],
}

/// The library and where it was found. It stays loaded.
pub fn open(wanted: &Wanted) -> Result<(&'static Library, String), Absent> {
    let mut absent = Absent { what: wanted.what, variable: wanted.variable, tried: Vec::new(), why: None };
    for place in places(wanted) {
        let path = PathBuf::from(&place);
        let is_path = path.components().count() > 1;
        if !is_path || path.exists() {
            // SAFETY: these libraries do nothing when they are loaded but set themselves up.
            match unsafe { Library::new(&path) } {
                Ok(library) => return Ok((Box::leak(Box::new(library)), place)),
                Err(e) if is_path => absent.why = Some(e.to_string()),
                Err(_) => {}
            }
        }
        absent.tried.push(place);
    }
    Err(absent)
}

/// Names and paths, in the order in which they are tried.
fn places(wanted: &Wanted) -> Vec<String> {
    let mut all = Vec::new();
    let text = |p: &Path| p.to_string_lossy().into_owned();
    if let Some(given) = std::env::var_os(wanted.variable).filter(|v| !v.is_empty()) {
        let given = PathBuf::from(given);
        if !given.is_dir() {
            return vec![text(&given)];
        }
        let folders = std::iter::once(PathBuf::new()).chain(wanted.packages.iter().map(PathBuf::from));
        for folder in folders {
            all.extend(wanted.names.iter().map(|n| text(&given.join(&folder).join(n))));
        }
        return all;
    }
    all.extend(wanted.names.iter().map(|n| n.to_string()));
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    for environment in environments {
        let Ok(versions) = std::fs::read_dir(environment.join("lib")) else { continue };
        let mut versions: Vec<PathBuf> = versions.flatten().map(|v| v.path().join("site-packages")).collect();
        versions.sort();
        for site in versions {
            for folder in wanted.packages {
                all.extend(wanted.names.iter().map(|n| text(&site.join(folder).join(n))));
            }
        }
    }
    all
}

/// A table of functions of a library, each looked up when the table is made.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($field:ident = $symbol:literal ($($arg:ty),*);)* }) => {
        $(#[$doc])*
        pub struct $table {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> u32,)*
            pub path: String,
        }

        impl $table {
            fn open(wanted: &$crate::runtime::device::cuda::load::Wanted)
                -> Result<$table, $crate::runtime::device::cuda::load::Absent>
            {
                let (library, path) = $crate::runtime::device::cuda::load::open(wanted)?;
                $(
                    // SAFETY: the signature is that of the library's header, and the library stays loaded.
                    let $field = unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> u32>($symbol) };
                    let $field = match $field {
                        Ok(f) => *f,
                        Err(_) => return Err($crate::runtime::device::cuda::load::Absent {
                            what: wanted.what,
                            variable: wanted.variable,
                            tried: vec![path],
                            why: Some(format!("it has no `{}`: it is too old", $symbol)),
                        }),
                    };
                )*
                Ok($table { $($field,)* path })
            }
        }
    };
}
pub(super) use functions;
