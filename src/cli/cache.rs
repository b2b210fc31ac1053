//! Where compiled programs are kept from run to run.

use crate::driver::cache::Cache;
use std::env::var_os;
use std::ffi::OsString;
use std::path::PathBuf;

/// `off`, or a folder.
const VARIABLE: &str = "PARTITA_CACHE";

/// The cache of this user, unless it is turned off.
pub fn cache() -> Option<Cache> {
    let given = |name: &str| var_os(name).filter(|v| !v.is_empty());
    folder(given).map(Cache::at)
}

fn folder(given: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(wanted) = given(VARIABLE) {
        return (wanted != "off").then(|| wanted.into());
    }
    // A relative path would be another folder in every place.
    let absolute = |name: &str| given(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let home = |within: &str| absolute("HOME").map(|h| h.join(within));
    let caches = match std::env::consts::OS {
        "windows" => absolute("LOCALAPPDATA"),
        "macos" => absolute("XDG_CACHE_HOME").or_else(|| home("Library/Caches")),
        _ => absolute("XDG_CACHE_HOME").or_else(|| home(".cache")),
    };
    caches.map(|c| c.join("partita"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(all: &[(&str, &str)]) -> Option<PathBuf> {
        folder(|name| all.iter().find(|v| v.0 == name).map(|v| v.1.into()))
    }

    #[test]
    fn the_variable_comes_before_the_platforms_folder() {
        let home = std::env::temp_dir();
        let home = ["HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"].map(|name| (name, home.to_str().expect("a plain path")));
        assert!(with(&home).expect("a folder").ends_with("partita"));
        assert_eq!(with(&[("PARTITA_CACHE", "here"), home[0]]), Some("here".into()));
        assert_eq!(with(&[("PARTITA_CACHE", "off"), home[0]]), None);
        assert_eq!(with(&[("HOME", "not/absolute"), ("XDG_CACHE_HOME", "neither")]), None);
        assert_eq!(with(&[]), None);
    }
}
