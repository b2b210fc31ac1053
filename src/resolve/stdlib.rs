//! The standard library's sources, embedded in the binary so that it needs no files beside it.

/// Every module of the standard library with its text, in order of name.
pub const MODULES: &[(&str, &str)] = &[
    ("losses", include_str!("../../stdlib/losses.pta")),
    ("nn", include_str!("../../stdlib/nn.pta")),
    ("optim", include_str!("../../stdlib/optim.pta")),
    ("schedule", include_str!("../../stdlib/schedule.pta")),
];

/// The text of a module, if the standard library has it.
pub fn text(module: &str) -> Option<&'static str> {
    MODULES.iter().find(|(name, _)| *name == module).map(|(_, text)| *text)
}

/// Whether a module has a definition of this name.
pub fn defines(module: &str, name: &str) -> bool {
    let begins = |line: &str| {
        ["fn ", "layer ", "optimizer "].iter().any(|word| {
            let rest = line.strip_prefix(word).and_then(|l| l.strip_prefix(name));
            rest.is_some_and(|r| r.starts_with(['(', '[']))
        })
    };
    text(module).is_some_and(|t| t.lines().any(begins))
}

/// The module that has a definition of this name.
pub fn home(name: &str) -> Option<&'static str> {
    MODULES.iter().map(|(module, _)| *module).find(|module| defines(module, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_sorted_and_found() {
        assert!(MODULES.is_sorted_by_key(|(name, _)| *name));
        assert!(text("nn").is_some_and(|t| t.contains("layer Linear[")));
        assert!(text("torch").is_none());
        assert_eq!((home("cross_entropy"), home("Linear"), home("Line")), (Some("losses"), Some("nn"), None));
    }
}
