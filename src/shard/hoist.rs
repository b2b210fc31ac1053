//! What each turn of a loop would gather is gathered once: a sum behind the loop, a parameter before it.
//!
//! Where what a turn adds is cut and what the loop carries is whole, a turn would slice what is carried, add to the slice, and gather again.
//! An elementwise function of slices is the slice of the function, so the loop carries the slice instead: as gradients of several
//! microbatches are gathered once a step.

use crate::ir::*;
use crate::types::MapOp;

/// Moves gathers of sums behind loops.
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

/// Moves gathers of parameters that are to be gathered once before loops that capture them.
pub fn parameters(g: &mut Graph, once: &dyn Fn(&str) -> bool) {
    for block in 0..g.blocks.len() {
        for id in g.blocks[block].ops.clone() {
            if let Op::Loop { body, carries, .. } = g.op(id).op {
                for inner in g.block(body).ops.clone() {
                    if let Some(found) = Gathered::of(g, id, inner, carries as usize, once) {
                        found.hoist(g, id, body);
                    }
                }
            }
        }
    }
}

/// A gather of a parameter that a loop captures, or of a cast of one.
struct Gathered {
    /// Of the block that the loop stands in.
    captured: ValueId,
    cast: Option<OpId>,
    gather: OpId,
}

impl Gathered {
    fn of(g: &Graph, loop_: OpId, gather: OpId, carries: usize, once: &dyn Fn(&str) -> bool) -> Option<Gathered> {
        let op = g.op(gather);
        let Op::Collective(Collective { kind: CollectiveKind::AllGather, reduce: None, .. }) = op.op else {
            return None;
        };
        let is_cast = |id: &OpId| matches!(g.op(*id).op, Op::Map(MapOp::Cast(_)));
        let cast_of = |v: ValueId| match g.value(v).def {
            Def::Op(id, _) => Some(id).filter(is_cast),
            Def::BlockParam(_) => None,
        };
        let before_cast = |v: ValueId| cast_of(v).map_or(v, |id| g.op(id).args[0]);
        let Def::BlockParam(k) = g.value(before_cast(op.args[0])).def else { return None };
        let captured = *g.op(loop_).args.get((k as usize).checked_sub(1).filter(|k| *k >= carries)?)?;
        let Op::Param(p) = g.def_op(before_cast(captured))?.op else { return None };
        once(&g.params[p.index()].path).then_some(Gathered { captured, cast: cast_of(op.args[0]), gather })
    }

    /// Puts it before the loop, which captures the result. What else the body reads of the cast stays there.
    fn hoist(self, g: &mut Graph, loop_: OpId, body: BlockId) {
        let outer = g.op(loop_).block;
        let mut before = Vec::new();
        let mut from = self.captured;
        if let Some(cast) = self.cast {
            let (id, made) = (OpId(g.ops.len() as u32), ValueId(g.values.len() as u32));
            let Operation { results, .. } = g.op(cast).clone();
            g.values.push(Value { def: Def::Op(id, 0), block: outer, ..g.value(results[0]).clone() });
            g.ops.push(Operation { args: vec![from], results: vec![made], block: outer, ..g.op(cast).clone() });
            before.push(id);
            from = made;
        }
        let gathered = g.op(self.gather).results[0];
        let (inside, place) = (ValueId(g.values.len() as u32), g.block(body).params.len() as u32);
        g.values.push(Value { def: Def::BlockParam(place), ..g.value(gathered).clone() });
        g.values[gathered.index()].block = outer;
        let op = &mut g.ops[self.gather.index()];
        (op.args, op.block) = (vec![from], outer);
        before.push(self.gather);
        let block = &mut g.blocks[body.index()];
        block.params.push(inside);
        block.ops.retain(|op| *op != self.gather);
        block.results.iter_mut().filter(|v| **v == gathered).for_each(|v| *v = inside);
        for op in block.ops.clone() {
            g.ops[op.index()].args.iter_mut().filter(|a| **a == gathered).for_each(|a| *a = inside);
        }
        g.ops[loop_.index()].args.push(gathered);
        let ops = &mut g.blocks[outer.index()].ops;
        let at = ops.iter().position(|op| *op == loop_).expect("it stands there");
        ops.splice(at..at, before);
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
            Def::Op(id, _) if g.op(id).block == body => Some(id),
            _ => None,
        };
        // Most carries are not gathered, which is seen at once; uses are counted last.
        let gather = made(next)?;
        let Op::Collective(out) = &g.op(gather).op else { return None };
        let change = made(g.op(gather).args[0])?;
        let Op::Map(_) = g.op(change).op else { return None };
        let is_slice = |id: &OpId| matches!(&g.op(*id).op, Op::Collective(c) if c.kind == CollectiveKind::Slice);
        let own = |id: &OpId| is_slice(id) && g.op(*id).args == [carry];
        let slice = g.op(change).args.iter().filter_map(|a| made(*a)).find(own)?;
        let Op::Collective(inwards) = &g.op(slice).op else { return None };
        let back: Vec<(DimId, DimId)> = inwards.dims.iter().map(|(whole, part)| (*part, *whole)).collect();
        let gathers = out.kind == CollectiveKind::AllGather && out.reduce.is_none() && inwards.reduce.is_none();
        let types = g.value(carry).dtype == g.value(next).dtype;
        let fits = gathers && types && out.dims == back;
        let once = |v: &ValueId| uses(*v) == 1;
        (fits && [carry, g.op(slice).results[0], g.op(change).results[0], next].iter().all(once)).then_some(Found {
            slice,
            change,
            gather,
        })
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
