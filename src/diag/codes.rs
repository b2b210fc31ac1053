//! The registry of diagnostic codes: one line each here, one page each in `docs/errors/`.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// A code and its title.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    pub code: &'static str,
    pub title: &'static str,
}

pub fn find(code: &str) -> Option<&'static Code> {
    CODES.iter().find(|c| c.code == code)
}

/// A code of the registry.
pub type Name = &'static str;

/// Reads a code of the registry.
pub fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Name, D::Error> {
    let code = String::deserialize(from)?;
    find(&code).map(|c| c.code).ok_or_else(|| D::Error::custom(format!("there is no code `{code}`")))
}

macro_rules! codes {
    ($($code:literal $title:literal)*) => {
        /// Every code, in order.
        pub const CODES: &[Code] = &[$(Code { code: $code, title: $title }),*];
    };
}

codes! {
    "E0101" "syntax error"
    "E0102" "nesting or size limit exceeded"
    "E0103" "reserved word used as a name"
    "E0104" "chained comparison"
    "E0105" "line begins with an operator"
    "E0106" "`@` used as a matrix product"
    "E0201" "unknown name"
    "E0202" "name defined twice"
    "E0203" "name hides a dim"
    "E0204" "cyclic use"
    "E0205" "used before it is defined"
    "E0206" "wrong kind of name"
    "E0207" "file cannot be read"
    "E0301" "accidental outer product"
    "E0302" "value lacks a dim"
    "E0303" "dim occurs twice"
    "E0304" "sizes differ or do not divide"
    "E0305" "size is not a positive whole number"
    "E0306" "wrong size of a window, slice or concatenation"
    "E0307" "argument lacks or exceeds the declared dims"
    "E0308" "result is not as declared"
    "E0309" "wrong type of element"
    "E0310" "f16 mixed with bf16"
    "E0311" "dim contracted in one operand only"
    "E0312" "constant needed"
    "E0313" "constant index out of range"
    "E0314" "wrong number or form of arguments"
    "E0401" "parameter, state or layer inside a function"
    "E0402" "instance shared at different dims"
    "E0403" "recursion"
    "E0404" "state updated twice, or update of no state"
    "E0405" "rebinding changes dims"
    "E0406" "value computed and dropped"
    "E0407" "modes disagree on parameters"
    "E0408" "cannot stream: a value depends on later positions"
    "E0409" "not allowed here"
    "E0410" "program too large"
    "E0501" "unknown mesh axis"
    "E0502" "unused mesh axis"
    "E0503" "one mesh axis on two dims of a value"
    "E0504" "statement matches no value"
    "E0505" "mesh does not fit"
    "E0506" "plan statement is malformed"
    "E0507" "several ranks without a plan"
    "E0508" "layout conflict"
    "E0509" "unknown plan"
    "E0601" "batch statistic cut by microbatches"
    "E0602" "stages do not add up"
    "E0603" "schedule is invalid"
    "E0604" "does not fit memory"
    "E0605" "step cannot be cut into stages"
    "E0606" "replicas cannot train apart"
    "E0701" "input fed never or twice"
    "E0702" "parameter without optimizer"
    "E0703" "selector matches nothing"
    "E0704" "matrix optimizer on a vector"
    "E0705" "loss is not a scalar"
    "E0706" "weights map: missing entry"
    "E0707" "weights map: written twice"
    "E0708" "weights map: wrong shape"
    "E0709" "weights map: not invertible"
    "E0710" "train or sample item is malformed"
    "E0711" "unknown train, sample or model item"
    "E0801" "data file cannot be read"
    "E0802" "data file is malformed"
    "E0803" "data does not fit the model"
    "E0804" "data is shorter than one batch"
    "E0805" "checkpoint cannot be read"
    "E0806" "checkpoint is corrupted"
    "E0807" "checkpoint belongs to another model"
    "E0808" "checkpoint cannot be written"
    "E0809" "index out of range at run time"
    "E0810" "loss is not finite"
    "E0811" "out of memory"
    "E0812" "program file is not usable here"
    "E0813" "output cannot be written"
    "E0814" "another rank failed"
    "E0815" "a rank does not come"
    "E0816" "more rows than a bound allows"
    "E0817" "GPU cannot be used"
    "E0818" "GPU failed"
    "E0901" "internal error"
    "E0902" "bad command line value"
    "W0001" "unused name"
    "W0002" "anonymous twin layers"
    "W0003" "constant condition"
    "W0004" "name style"
    "W0005" "local hides a function"
    "W0006" "mesh axis of size 1"
    "W0007" "rest of the data is left out"
    "W0009" "data changed since the checkpoint"
    "W0010" "inline layout of an axis that no plan has"
    "W0011" "run goes on with other settings"
    "W0012" "checkpoint of another program"
    "W0013" "gathered whole unasked"
    "W0014" "recomputation without effect"
    "W0015" "recomputation that was chosen"
    "W0016" "steps after the last outer step"
    "W0017" "run that ends before late gradients are applied"
    "W0018" "pipeline of one microbatch"
}
