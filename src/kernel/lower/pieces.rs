//! Kernels with shorter rows: rows of one element, and rows of a part of a line.

use crate::kernel::simplify::simplify;
use crate::kernel::{ArgId, Expr, ExprId, Index, Kernel, LoopId, Node, Pass, Reduction, Statement};
use crate::types::ReduceKind;

/// Whether row r of a kernel reads nothing of an argument but its elements r * each .. (r + 1) * each.
pub(super) fn own_loads(kernel: &Kernel, arg: ArgId, each: usize) -> bool {
    let mut strides = vec![0i64; kernel.rows];
    let mut stride = each as i64;
    for l in (0..kernel.rows).rev() {
        strides[l] = stride;
        stride *= kernel.extents[l] as i64;
    }
    kernel.exprs.iter().all(|e| {
        let Node::Load { buffer, at, .. } = &e.node else { return true };
        if *buffer != arg {
            return true;
        }
        let step = |l: usize| at.coefficient(LoopId(l as u32));
        let own_row = (0..kernel.rows).all(|l| step(l) == strides[l] || kernel.extents[l] == 1);
        let inner = (kernel.rows..kernel.extents.len()).map(|l| (step(l), kernel.extents[l] as i64 - 1));
        let (mut low, mut high) = (at.base, at.base);
        for (step, last) in inner {
            low += (step * last).min(0);
            high += (step * last).max(0);
        }
        own_row && at.exprs.is_empty() && low >= 0 && high < each as i64
    })
}

/// An equal kernel each row of which is one turn of all loops, if there is nothing but one pass that computes element by
/// element.
pub(super) fn by_elements(kernel: &Kernel) -> Option<Kernel> {
    let [Statement::Pass(pass)] = kernel.body.as_slice() else { return None };
    let loops: Vec<LoopId> = (kernel.rows as u32..kernel.extents.len() as u32).map(LoopId).collect();
    if !pass.carries.is_empty() || !pass.reductions.is_empty() || pass.loops != loops {
        return None;
    }
    let mut fine = kernel.clone();
    fine.rows = kernel.extents.len();
    fine.body = vec![Statement::Pass(Pass { loops: Vec::new(), ..pass.clone() })];
    Some(fine)
}

/// A kernel with rows of `length` turns of its only inner loop, the extent of which is a multiple of that. Sums are those of the
/// shorter rows then: the arguments that they are stored to, one element for each row, are returned.
pub(super) fn by_pieces(kernel: &Kernel, length: usize) -> Option<(Kernel, Vec<ArgId>)> {
    let old = LoopId(kernel.rows as u32);
    if kernel.extents.len() != kernel.rows + 1 {
        return None;
    }
    let (part, inner) = (old, LoopId(kernel.rows as u32 + 1));
    let pieces = kernel.extents[old.index()] / length;
    let mut fine = kernel.clone();
    fine.rows += 1;
    fine.extents[part.index()] = pieces;
    fine.extents.push(length);
    let finer = |at: &Index| {
        at.replace_loops(|l| if l == old { vec![(part, length as i64), (inner, 1)] } else { vec![(l, 1)] })
    };
    for expr in &mut fine.exprs {
        match &mut expr.node {
            Node::Index(at) | Node::Load { at, .. } | Node::Random { counter: at, .. } => *at = finer(at),
            Node::Const(_) | Node::Map(..) | Node::Register(_) | Node::Check { .. } => {}
        }
    }
    let mut row = Index::default();
    let mut stride = 1;
    for l in (0..kernel.rows).rev() {
        if kernel.extents[l] > 1 {
            row.add_loop(LoopId(l as u32), stride);
        }
        stride *= kernel.extents[l] as i64;
    }
    let uses_register = registers(kernel);
    let mut partial = Vec::new();
    for statement in &mut fine.body {
        let Statement::Pass(pass) = statement else { return None };
        let whole = |e: &ExprId| uses_register[e.index()];
        if !pass.carries.is_empty() || pass.stores.iter().any(|s| s.when.is_some() || !s.at.exprs.is_empty()) {
            return None;
        }
        if pass.loops == [old] {
            let sums = pass.reductions.iter().all(|r| r.kind == ReduceKind::Sum && !whole(&r.value));
            if !sums || pass.stores.iter().any(|s| whole(&s.value)) {
                return None;
            }
            pass.loops = vec![inner];
            pass.stores.iter_mut().for_each(|s| s.at = finer(&s.at));
        } else {
            if !pass.loops.is_empty() || !pass.reductions.is_empty() {
                return None;
            }
            for store in &mut pass.stores {
                if store.at != row || !matches!(kernel.expr(store.value).node, Node::Register(_)) {
                    return None;
                }
                let mut at = Index::default();
                at.add(&row, pieces as i64);
                at.add_loop(part, 1);
                store.at = at;
                partial.push(store.buffer);
            }
        }
    }
    // What is summed in pieces is nowhere read as a whole, and written once.
    let loaded = |a: &ArgId| kernel.exprs.iter().any(|e| matches!(&e.node, Node::Load { buffer, .. } if buffer == a));
    let twice = partial.iter().enumerate().any(|(n, a)| partial[..n].contains(a));
    (!twice && !partial.iter().any(loaded)).then_some((fine, partial))
}

/// Expressions that depend on a register.
fn registers(kernel: &Kernel) -> Vec<bool> {
    let mut found: Vec<bool> = Vec::with_capacity(kernel.exprs.len());
    for expr in &kernel.exprs {
        let mut one = matches!(expr.node, Node::Register(_));
        expr.operands(&mut |e| one |= found[e.index()]);
        found.push(one);
    }
    found
}

/// A kernel that sums all elements of an argument, and does nothing else with them, for an argument that has `times` as many.
pub(super) fn longer_sum(kernel: &Kernel, arg: ArgId, elements: usize, times: usize) -> Option<Kernel> {
    let reads = |e: &Expr| matches!(&e.node, Node::Load { buffer, .. } if *buffer == arg);
    let at = kernel.exprs.iter().position(reads)?;
    let value = ExprId(at as u32);
    let Node::Load { at: index, when: None, .. } = &kernel.exprs[at].node else { return None };
    let &[(old, 1)] = index.loops.as_slice() else { return None };
    let mut users = 0;
    kernel.exprs.iter().for_each(|e| e.operands(&mut |o| users += u32::from(o == value)));
    let all = index.base == 0 && index.exprs.is_empty() && kernel.extents[old.index()] == elements;
    if users > 0 || !all || old.index() < kernel.rows || kernel.exprs.iter().filter(|e| reads(e)).count() > 1 {
        return None;
    }
    let mut longer = kernel.clone();
    let new = LoopId(kernel.extents.len() as u32);
    longer.extents.push(elements * times);
    if let Node::Load { at, .. } = &mut longer.exprs[value.index()].node {
        *at = Index::of_loop(new);
    }
    // The sum goes to a pass of its own, before the one that it was in.
    let mut found: Option<(usize, Reduction)> = None;
    for (n, statement) in longer.body.iter_mut().enumerate() {
        let Statement::Pass(pass) = statement else { return None };
        let mine = |r: &Reduction| r.value == value;
        let elsewhere = pass.stores.iter().any(|s| s.value == value || s.when == Some(value))
            || pass.carries.iter().any(|c| c.initial == value || c.next == value);
        let here = pass.reductions.iter().filter(|r| mine(r)).count();
        if elsewhere || here > 1 || here == 1 && (found.is_some() || pass.loops != [old]) {
            return None;
        }
        if let Some(r) = pass.reductions.iter().position(mine) {
            found = Some((n, pass.reductions.remove(r)));
        }
    }
    let (n, reduction) = found.filter(|(_, r)| r.kind == ReduceKind::Sum)?;
    let own = Pass { loops: vec![new], reductions: vec![reduction], ..Pass::default() };
    longer.body.insert(n, Statement::Pass(own));
    longer.body.retain(|s| {
        let Statement::Pass(p) = s else { return true };
        !(p.reductions.is_empty() && p.stores.is_empty() && p.carries.is_empty())
    });
    Some(simplify(longer))
}
