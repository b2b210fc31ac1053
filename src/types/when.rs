//! Steps that go over into each other.

/// In which runs of a training step something is done. A run may begin the step after its own, which the next run then goes on with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
pub enum When {
    #[default]
    Always,
    /// Where the run before has not begun this step.
    Fresh,
    /// Where it has.
    Begun,
    /// Where the next step is begun.
    Ahead,
}

impl When {
    pub fn holds(self, begun: bool, ahead: bool) -> bool {
        match self {
            When::Always => true,
            When::Fresh => !begun,
            When::Begun => begun,
            When::Ahead => ahead,
        }
    }
}
