//! Gathers that each turn of a loop makes of a sum are made once, behind the loop.
//!
//! Where what a turn adds is cut and what the loop carries is whole, a turn would slice what is carried, add to the slice, and gather again.
//! An elementwise function of slices is the slice of the function, so the loop carries the slice instead: as gradients of several
//! microbatches are gathered once a step.

use crate::ir::*;

pub fn gathers(g: &mut Graph) {
    for block in 0..g.blocks.len() {
        for id in g.blocks[block].ops.clone() {
            if let Op::Loop { body, carries, .. } = g.op(id).op {
                for k in 0..carries as usize {
                    if let Some(found) = Found::of(g, body, k) {
                        found.hoist(g, id, body, k);
                    }
                }
            }
        }
    }
}

/// A carry that a turn slices, changes element by element, and gathers.
struct Found {
    slice: OpId,
    change: OpId,
    gather: OpId,
}

impl Found {
    fn of(g: &Graph, body: BlockId, k: usize) -> Option<Found> {
        let block = g.block(body);
        let (carry, next) = (block.params[1 + k], block.results[k]);
        let uses = |v: ValueId| {
            let args = block.ops.iter().flat_map(|id| &g.op(*id).args);
            args.chain(&block.results).filter(|a| **a == v).count()
        };
        let made = |v: ValueId| match g.value(v).def {
            Def::Op(id, _) if g.op(id).block == body && uses(v) == 1 => Some(id),
            _ => None,
        };
        // Most carries are not gathered, which is seen at once.
        let Some(Operation { op: Op::Collective(out), .. }) = g.def_op(next) else { return None };
        let gather = made(next)?;
        let change = made(g.op(gather).args[0])?;
        let Op::Map(_) = g.op(change).op else { return None };
        let is_slice = |id: &OpId| matches!(&g.op(*id).op, Op::Collective(c) if c.kind == CollectiveKind::Slice);
        let own = |id: &OpId| g.op(*id).args == [carry] && is_slice(id);
        let slice = g.op(change).args.iter().filter_map(|a| made(*a)).find(own)?;
        let Op::Collective(inwards) = &g.op(slice).op else { return None };
        let back: Vec<(DimId, DimId)> = inwards.dims.iter().map(|(whole, part)| (*part, *whole)).collect();
        let gathers = out.kind == CollectiveKind::AllGather && out.reduce.is_none() && inwards.reduce.is_none();
        let types = g.value(carry).dtype == g.value(next).dtype;
        (gathers && types && out.dims == back && uses(carry) == 1).then_some(Found { slice, change, gather })
    }

    fn hoist(self, g: &mut Graph, id: OpId, body: BlockId, k: usize) {
        let Found { slice, change, gather } = self;
        let outer = g.op(id).block;
        let (initial, total) = (g.op(id).args[k], g.op(id).results[k]);
        let (part, sum, whole) = (g.op(slice).results[0], g.op(change).results[0], g.op(gather).results[0]);
        let carry = g.block(body).params[1 + k];
        // Inside: the slice is what is carried.
        let block = &mut g.blocks[body.index()];
        block.ops.retain(|op| *op != slice && *op != gather);
        block.results[k] = sum;
        g.ops[change.index()].args.iter_mut().filter(|a| **a == part).for_each(|a| *a = carry);
        // Outside: sliced before, gathered behind, and that is what others read.
        g.ops[slice.index()].args = vec![initial];
        g.ops[gather.index()].args = vec![total];
        g.ops[id.index()].args[k] = part;
        for (op, v) in [(slice, part), (gather, whole)] {
            g.ops[op.index()].block = outer;
            g.values[v.index()].block = outer;
        }
        for other in g.blocks[outer.index()].ops.clone() {
            g.ops[other.index()].args.iter_mut().filter(|a| **a == total).for_each(|a| *a = whole);
        }
        g.blocks[outer.index()].results.iter_mut().filter(|a| **a == total).for_each(|a| *a = whole);
        g.outputs.iter_mut().filter(|o| o.value == total).for_each(|o| o.value = whole);
        let ops = &mut g.blocks[outer.index()].ops;
        let at = ops.iter().position(|op| *op == id).expect("it stands there");
        ops.insert(at + 1, gather);
        ops.insert(at, slice);
        for v in [carry, total] {
            g.values[v.index()].dims = g.values[sum.index()].dims.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{parse::parse, print::print};

    const DIMS: &str = "axis tp = 2\ndim n = 4\ndim part = 2 of 4 by tp\ndim turn = 3\n\
        input 0 x: f32[n]\ninput 1 y: f32[part]\n%0: f32[n] = input[0 x]\n%1: f32[part] = input[1 y]\n";

    fn hoisted(body: &str) -> String {
        let text = format!(
            "{DIMS}%2: f32[n] = loop[turn](%0; %1) {{\nparams(%3: int, %4: f32[n], %5: f32[part])\n{body}}}\n\
             output value total = %2\n"
        );
        let mut g = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        gathers(&mut g);
        crate::ir::verify::verify(&g).unwrap_or_else(|e| panic!("{e}\n{}", print(&g)));
        print(&g).lines().skip_while(|l| !l.starts_with("%1")).skip(1).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_sum_is_gathered_once() {
        let text = hoisted(
            "%6: f32[part] = collective[slice; n -> part](%4)\n%7: f32[part] = add(%6, %5)\n\
             %8: f32[n] = collective[all_gather tp; part -> n](%7)\nresults(%8; )\n",
        );
        let [slice, loop_, .., gather, output] = &text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(
            slice.contains("collective[slice; n -> part](%0)") && loop_.contains("f32[part] = loop[turn]"),
            "{text}"
        );
        assert!(gather.contains("f32[n] = collective[all_gather tp; part -> n]"), "{text}");
        assert!(output.ends_with(gather.split(':').next().expect("a value")), "{text}");
        assert_eq!(text.matches("collective").count(), 2);
    }

    #[test]
    fn what_else_a_turn_reads_stays() {
        let body = "%6: f32[part] = collective[slice; n -> part](%4)\n%7: f32[part] = add(%6, %5)\n\
             %8: f32[n] = collective[all_gather tp; part -> n](%7)\n%9: f32[n] = add(%8, %4)\nresults(%9; )\n";
        assert!(hoisted(body).starts_with("%2: f32[n] = loop"));
    }
}
