//! The `partita` command: see `cli`.
use partita::driver::{Request, check};
use partita::source::Disk;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let presets = args[2..].to_vec();
    let c = check::check(&Request { path: args[1].clone().into(), presets, sets: vec![] }, &Disk);
    print!("{}", partita::diag::render::text(&c.sink, &c.sources, false));
    for m in &c.models {
        println!("{}: {} parameters, {} states, {} tensors", m.name, m.parameters, m.states, m.tensors);
    }
}
