//! Programs spread over ranks compute what one device computes.

use partita::driver::{Options, Request, verify};
use partita::source::Memory;
use std::path::PathBuf;

fn findings_text(f: &partita::driver::Findings) -> String {
    f.sink.clone().sorted().iter().map(|d| format!("{} {} {:?}\n", d.code, d.message, d.notes)).collect()
}

fn verified(source: &str, plan: &str) -> verify::Report {
    let path = PathBuf::from("m.pta");
    let mut world = Memory::default();
    world.0.insert(path.clone(), format!("{source}\nplan p {{\n{plan}\n}}\n"));
    let options = Options {
        request: Request { path, ..Request::default() },
        plan: Some("p".into()),
        ..Options::default()
    };
    match verify::verify(&options, &world, 2) {
        Ok(report) => report,
        Err(findings) => panic!("{plan}\n{}", findings_text(&findings)),
    }
}

fn same(source: &str, plan: &str) {
    let report = verified(source, plan);
    assert_eq!(report.differs, None, "{plan}");
    assert!(report.compared > 4, "{report:?}");
}

const MLP: &str = "
use nn.{Linear, gelu}
use optim.{adamw, sgd}
dim batch = 8, inner = 6, mlp = 12, out = 5
model Net(x: [batch, inner], y: [batch, out]) {
    let up = Linear[inner, mlp]
    let down = Linear[mlp, out]
    let z = down(gelu(up(x)))
    loss mean[batch, out]((z - y) ^ 2)
}
train Net { data { x = normal(1.0), y = normal(1.0) }
 optimizer adamw(lr = 0.1) steps 2 seed 3 }
";

#[test]
fn data_parallel() {
    same(MLP, "mesh dp = 2\nshard batch by dp");
}

#[test]
fn tensor_parallel() {
    same(MLP, "mesh tp = 2\nshard mlp by tp");
}
