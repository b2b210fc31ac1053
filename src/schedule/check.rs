//! Whether a table can be run: all work is there once, on ranks that hold it, in an order that dependencies allow.

use super::{Action, Fault, Index, Place, Problem, Table, Work};

/// More problems than this are not listed.
const MAX_PROBLEMS: usize = 20;

/// What is wrong with a table, by place; nothing if it can be run.
pub fn check(table: &Table) -> Vec<Problem> {
    let index = Index::of(table);
    let mut found = Vec::new();
    each_once(table, &index, &mut found);
    if found.is_empty() {
        in_order(table, &index, &mut found);
    }
    if found.is_empty() {
        found.extend(order(table, &index).err());
    }
    found.truncate(MAX_PROBLEMS);
    found
}

fn each_once(table: &Table, index: &Index, found: &mut Vec<Problem>) {
    let mut seen = vec![[None::<Place>; 3]; table.stages * table.microbatches];
    for (place, a) in table.places() {
        if a.stage >= table.stages || a.microbatch >= table.microbatches {
            found.push(Problem::at(place, Fault::Unknown));
            continue;
        }
        if !table.rank_of[a.stage].contains(&place.rank) {
            found.push(Problem::at(place, Fault::Elsewhere));
        }
        let parts: &[usize] = match a.op {
            Work::F => &[0],
            Work::I => &[1],
            Work::W => &[2],
            Work::B => &[1, 2],
        };
        let mut first = None;
        for part in parts {
            let before = &mut seen[a.stage * table.microbatches + a.microbatch][*part];
            first = first.or(*before);
            *before = before.or(Some(place));
        }
        if let Some(first) = first {
            found.push(Problem::at(place, Fault::Twice { first }));
        }
        if let Some(forward) = index.forward(a.stage, a.microbatch)
            && forward.rank != place.rank
        {
            found.push(Problem::at(place, Fault::Apart { forward }));
        }
    }
    for (at, parts) in seen.iter().enumerate() {
        let (stage, microbatch) = (at / table.microbatches, at % table.microbatches);
        let mut missing = |op| {
            found.push(Problem::new(Fault::Missing { action: Action::new(op, stage, microbatch) }));
        };
        match parts {
            [Some(_), Some(_), Some(_)] => {}
            [None, ..] => missing(Work::F),
            [_, None, None] => missing(Work::B),
            [_, None, _] => missing(Work::I),
            [_, _, None] => missing(Work::W),
        }
    }
}

/// What the same rank has computed comes first on it.
fn in_order(table: &Table, index: &Index, found: &mut Vec<Problem>) {
    for (place, a) in table.places() {
        for needs in index.needs(table, a).into_iter().flatten() {
            if needs.rank == place.rank && needs.index > place.index {
                found.push(Problem::at(place, Fault::Early { needs }));
            }
        }
    }
}

/// An order of all actions in which each comes after what it needs and after what its rank does before, or a cycle.
pub fn order(table: &Table, index: &Index) -> Result<Vec<Place>, Problem> {
    let mut out = Vec::with_capacity(table.len());
    let mut next = vec![0; table.ranks.len()];
    let done = |next: &[usize], p: &Place| next[p.rank] > p.index;
    let ready =
        |next: &[usize], place: Place| index.needs(table, table.action(place)).iter().flatten().all(|p| done(next, p));
    // Ranks that may go on: all at first, then those that wait for what was just computed.
    let mut open: Vec<usize> = (0..table.ranks.len()).rev().collect();
    while let Some(rank) = open.pop() {
        while next[rank] < table.ranks[rank].len() {
            let place = Place { rank, index: next[rank] };
            if !ready(&next, place) {
                break;
            }
            next[rank] += 1;
            out.push(place);
            let a = table.action(place);
            let after = match a.op {
                Work::F if a.stage + 1 < table.stages => index.forward(a.stage + 1, a.microbatch),
                Work::I | Work::B if a.stage > 0 => index.input(a.stage - 1, a.microbatch),
                _ => None,
            };
            if let Some(p) = after
                && p.rank != rank
                && next[p.rank] == p.index
                && !open.contains(&p.rank)
            {
                open.push(p.rank);
            }
        }
    }
    if out.len() == table.len() { Ok(out) } else { Err(cycle(table, index, &next)) }
}

/// Ranks that stand still wait for each other; `next` is the entry that each stands before.
fn cycle(table: &Table, index: &Index, next: &[usize]) -> Problem {
    let stands = |rank: usize| Place { rank, index: next[rank] };
    let start = (0..next.len()).find(|r| next[*r] < table.ranks[*r].len()).unwrap_or(0);
    let mut path = vec![stands(start)];
    let mut rank = start;
    loop {
        let needs = index.needs(table, table.action(stands(rank)));
        let Some(missing) = needs.into_iter().flatten().find(|p| next[p.rank] <= p.index) else { break };
        rank = missing.rank;
        let before = path.iter().position(|p| *p == stands(rank));
        // The rank will not come there where it stands earlier.
        if before.is_none() || missing != stands(rank) {
            path.push(missing);
        }
        match before {
            Some(from) => return Problem::at(path[from], Fault::Cycle { around: path.split_off(from) }),
            None if missing != stands(rank) => path.push(stands(rank)),
            None => {}
        }
    }
    Problem::new(Fault::Cycle { around: path })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::file;

    fn found(text: &str) -> Vec<String> {
        let t = file::parse(text).expect("a table").table;
        check(&t).iter().map(|p| p.message(&t)).collect()
    }

    #[test]
    fn mistakes_are_found() {
        assert_eq!(found("0F0,0B0\n1F0,1B0"), [""; 0]);
        assert_eq!(found("0F0,0I0,0W0\n1F0,1B0"), [""; 0]);
        assert_eq!(found("0F0,0B0\n1F0"), ["no rank computes 1B0"]);
        assert_eq!(found("0F0,0B0\n1F0,1I0"), ["no rank computes 1W0"]);
        assert_eq!(found("0F0,0B0\n1F0,1W0"), ["no rank computes 1I0"]);
        assert_eq!(found("0B0\n1F0,1B0"), ["no rank computes 0F0"]);
        assert_eq!(found("0F0,0B0,0W0\n1F0,1B0"), ["0W0 (entry 3 of rank 0) repeats 0B0 (entry 2 of rank 0)"]);
        assert_eq!(
            found("0F0,1B0\n1F0,0B0"),
            [
                "1B0 (entry 2 of rank 0) is on a rank that does not hold its stage",
                "1B0 (entry 2 of rank 0) is on another rank than 1F0 (entry 1 of rank 1)",
                "0B0 (entry 2 of rank 1) is on a rank that does not hold its stage",
                "0B0 (entry 2 of rank 1) is on another rank than 0F0 (entry 1 of rank 0)"
            ]
        );
        assert_eq!(
            found("0B0,0F0\n1F0,1B0"),
            ["0B0 (entry 1 of rank 0) comes before 0F0 (entry 2 of rank 0), which it needs"]
        );
    }

    /// Rank 0 waits for the gradient of a microbatch that rank 1 will see only after the next one, which rank 0 has not sent.
    #[test]
    fn circles_are_drawn() {
        let text = "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0";
        let t = file::parse(text).expect("a table").table;
        let p = &check(&t)[0];
        let Fault::Cycle { around } = &p.fault else { panic!("{p:?}") };
        let names: Vec<String> = around.iter().map(|p| t.action(*p).to_string()).collect();
        assert_eq!(names, ["0B0", "1B0", "1F1", "0F1"]);
        let drawn = [
            "0B0 of rank 0 waits for 1B0 of rank 1",
            "1B0 of rank 1 comes after 1F1 of rank 1",
            "1F1 of rank 1 waits for 0F1 of rank 0",
            "0F1 of rank 0 comes after 0B0 of rank 0",
        ];
        assert_eq!(p.drawing(&t), drawn);
    }

    #[test]
    fn two_ranks_may_hold_a_stage() {
        assert_eq!(found("0F0,0B0,1F1,1B1\n1F0,1B0,0F1,0B1"), [""; 0]);
    }
}
