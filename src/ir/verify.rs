//! placeholder
pub fn verify(_: &super::Graph) -> Result<(), String> {
    Ok(())
}
