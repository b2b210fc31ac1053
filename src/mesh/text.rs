//! The notation of layouts: `[batch@dp, seq, mlp@(dp, tp), row@cp zigzag] P(sum)@tp`, printed and read.
//!
//! After `@` stand the axes that cut a dim, major first, in parentheses where there are several. A whole axis goes by its name,
//! an atom of one by name and number (`tp:0`). `tp*32` cuts into multiples of 32; `zigzag` deals from both ends. After the
//! bracket come the axes that the value is partial over, with their operator.

use super::{Atom, Entry, Layout, Mesh, Order, Partial};
use crate::types::ReduceKind;

impl Layout {
    /// In the notation, without the name of the value.
    pub fn show(&self, mesh: &Mesh, dims: &[&str]) -> String {
        let dim = |(name, cut): (&&str, &Vec<Entry>)| match &items(mesh, cut)[..] {
            [] => (*name).to_string(),
            [one] => format!("{name}@{one}"),
            all => format!("{name}@({})", all.join(", ")),
        };
        let all: Vec<String> = dims.iter().zip(&self.dims).map(dim).collect();
        let mut out = format!("[{}]", all.join(", "));
        for op in ReduceKind::ALL {
            let atoms: Vec<Atom> = self.partial.iter().filter(|p| p.op == op).map(|p| p.atom).collect();
            match &mesh.names(&atoms)[..] {
                [] => {}
                [one] => out += &format!(" P({})@{one}", op.name()),
                all => out += &format!(" P({})@({})", op.name(), all.join(", ")),
            }
        }
        out
    }
}

/// The axes of a dim's cut as they are written: atoms joined to axes where unit and order let them.
fn items(mesh: &Mesh, cut: &[Entry]) -> Vec<String> {
    let mut out = Vec::new();
    let mut left = cut;
    while let [first, ..] = left {
        let (axis, _) = mesh.axis_of(first.atom);
        let whole = mesh.atoms_of(axis);
        let run = &left[..whole.len().min(left.len())];
        let joins = run.iter().map(|e| e.atom).eq(whole)
            && run.iter().all(|e| e.unit == first.unit)
            && run.iter().rev().skip(1).all(|e| e.order == Order::Block);
        let (name, taken) =
            if joins { (mesh.axes[axis].name.clone(), run) } else { (mesh.name(first.atom), &left[..1]) };
        let unit = if first.unit == 1 { String::new() } else { format!("*{}", first.unit) };
        let order = match taken.last().map(|e| e.order) {
            Some(Order::Zigzag) => " zigzag",
            // Of no value's layout, and so never read back.
            Some(Order::Halo { .. }) => " halo",
            Some(Order::Ring { .. }) => " ring",
            Some(Order::Block) | None => "",
        };
        out.push(format!("{name}{unit}{order}"));
        left = &left[taken.len()..];
    }
    out
}

/// The names of dims and the layout that a text stands for, whether a value's name comes first or not; else what is wrong.
pub fn parse_layout(mesh: &Mesh, text: &str) -> Result<(Vec<String>, Layout), String> {
    let (_, rest) = text.split_once('[').ok_or("expected `[`")?;
    let (inside, mut rest) = rest.split_once(']').ok_or("expected `]`")?;
    let mut names = Vec::new();
    let mut layout = Layout::default();
    for dim in parts(inside) {
        let (name, axes) = dim.split_once('@').map_or((dim, ""), |(name, axes)| (name.trim(), axes));
        if name.is_empty() || name.contains(['(', ')', '[']) {
            return Err(format!("`{dim}` does not begin with the name of a dim"));
        }
        names.push(name.to_string());
        let cut = if dim.contains('@') { group(mesh, axes)? } else { Vec::new() };
        layout.dims.push(cut);
    }
    while !rest.trim().is_empty() {
        let partial =
            rest.trim_start().strip_prefix("P(").ok_or_else(|| format!("expected `P(`, found `{}`", rest.trim()))?;
        let (op, after) = partial.split_once(")@").ok_or("expected `)@` after the operator of a partial value")?;
        let op = ReduceKind::ALL.into_iter().find(|k| k.name() == op).ok_or_else(|| format!("no operator `{op}`"))?;
        let end = if after.starts_with('(') { after.find(')').map(|i| i + 1) } else { after.find(char::is_whitespace) };
        let (axes, next) = after.split_at(end.unwrap_or(after.len()));
        for e in group(mesh, axes)? {
            if e != Entry::new(e.atom) {
                return Err(format!("a unit or an order of `{}`, which cuts nothing", mesh.name(e.atom)));
            }
            layout.partial.push(Partial { atom: e.atom, op });
        }
        rest = next;
    }
    layout.partial.sort();
    let roles = layout.dims.iter().flatten().map(|e| e.atom).chain(layout.partial.iter().map(|p| p.atom));
    let mut roles: Vec<Atom> = roles.collect();
    roles.sort_unstable();
    match roles.windows(2).find(|w| w[0] == w[1]) {
        Some(w) => Err(format!("`{}` has two roles", mesh.name(w[0]))),
        None => Ok((names, layout)),
    }
}

/// What stands between commas outside of parentheses; nothing of a blank.
fn parts(text: &str) -> Vec<&str> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let mut depth = 0i64;
    let outside = |c: char| {
        depth += i64::from(c == '(') - i64::from(c == ')');
        c == ',' && depth == 0
    };
    text.split(outside).map(str::trim).collect()
}

/// `tp` or `(dp, tp:0*32 zigzag)`.
fn group(mesh: &Mesh, text: &str) -> Result<Vec<Entry>, String> {
    let text = text.trim();
    let items = match text.strip_prefix('(') {
        Some(rest) => parts(rest.strip_suffix(')').ok_or_else(|| format!("`{text}` lacks a `)`"))?),
        None => vec![text],
    };
    let mut out = Vec::new();
    for item in items {
        let (plain, order) = match item.strip_suffix(" zigzag") {
            Some(plain) => (plain.trim_end(), Order::Zigzag),
            None => (item, Order::Block),
        };
        let (name, unit) = match plain.split_once('*') {
            Some((name, unit)) => (name, unit.parse().ok().filter(|u| *u > 0).ok_or(format!("`{unit}` is no unit"))?),
            None => (plain, 1),
        };
        let atoms = atoms(mesh, name).ok_or_else(|| format!("the mesh has no axis `{name}`"))?;
        out.extend(atoms.into_iter().map(|atom| Entry { atom, unit, order: Order::Block }));
        if let Some(last) = out.last_mut() {
            last.order = order;
        }
    }
    Ok(out)
}

/// Of an axis, or of its part with a number.
fn atoms(mesh: &Mesh, name: &str) -> Option<Vec<Atom>> {
    match name.split_once(':') {
        None => mesh.axis(name).map(|axis| mesh.atoms_of(axis)),
        Some((axis, part)) => {
            let all = mesh.atoms_of(mesh.axis(axis)?);
            all.get(part.parse::<usize>().ok()?).map(|atom| vec![*atom])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::emulate::layouts;
    use super::*;

    fn mesh() -> Mesh {
        let mut mesh = Mesh::of(&[("dp", 2), ("tp", 4), ("cp", 2)]);
        mesh.axes[1].atoms = vec![2, 2];
        mesh
    }

    #[test]
    fn layouts_print_as_people_write_them() {
        let mesh = mesh();
        let [dp, tp0, tp1, cp] = [0, 1, 2, 3].map(|i| Entry::new(Atom(i)));
        let zigzag = Entry { order: Order::Zigzag, ..cp };
        let sum = |atom| Partial { atom: Atom(atom), op: ReduceKind::Sum };
        let of = |dims: &[&[Entry]], partial: &[Partial]| Layout {
            dims: dims.iter().map(|c| c.to_vec()).collect(),
            partial: partial.to_vec(),
        };
        let names = ["batch", "seq", "mlp"];
        let show = |l: Layout| l.show(&mesh, &names);
        assert_eq!(show(of(&[&[dp], &[], &[tp0, tp1]], &[])), "[batch@dp, seq, mlp@tp]");
        assert_eq!(show(of(&[&[dp, tp0, tp1], &[zigzag], &[]], &[])), "[batch@(dp, tp), seq@cp zigzag, mlp]");
        assert_eq!(show(of(&[&[], &[tp0, zigzag], &[]], &[sum(0)])), "[batch, seq@(tp:0, cp zigzag), mlp] P(sum)@dp");
        assert_eq!(show(of(&[&[tp1, tp0], &[], &[]], &[])), "[batch@(tp:1, tp:0), seq, mlp]");
        let wide = |e: Entry| Entry { unit: 32, ..e };
        assert_eq!(show(of(&[&[wide(tp0), wide(tp1)], &[], &[]], &[])), "[batch@tp*32, seq, mlp]");
        assert_eq!(show(of(&[&[wide(tp0), tp1], &[], &[]], &[])), "[batch@(tp:0*32, tp:1), seq, mlp]");
        assert_eq!(show(of(&[&[], &[], &[]], &[sum(0), sum(1), sum(2)])), "[batch, seq, mlp] P(sum)@(dp, tp)");
        assert_eq!(Layout { partial: vec![sum(3)], ..Layout::default() }.show(&mesh, &[]), "[] P(sum)@cp");
    }

    #[test]
    fn what_is_printed_reads_back() {
        let mesh = mesh();
        let kinds = [(1, Order::Block), (32, Order::Block), (1, Order::Zigzag), (2, Order::Zigzag)];
        let mut count = 0;
        for (i, mut layout) in layouts(&mesh, 2, ReduceKind::Max).into_iter().enumerate() {
            let (unit, order) = kinds[i % 4];
            if let Some(e) = layout.dims[i % 2].last_mut() {
                *e = Entry { unit, order, ..*e };
            }
            if let [first, _, ..] = &mut layout.partial[..] {
                first.op = ReduceKind::Sum;
            }
            let text = format!("x{}", layout.show(&mesh, &["row", "d'"]));
            assert_eq!(parse_layout(&mesh, &text), Ok((vec!["row".to_string(), "d'".to_string()], layout)), "{text}");
            count += 1;
        }
        assert!(count > 200);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mesh = mesh();
        for (text, wrong) in [
            ("x", "expected `[`"),
            ("x[a", "expected `]`"),
            ("x[a,]", "`` does not begin with the name of a dim"),
            ("x[a@]", "the mesh has no axis ``"),
            ("x[a@ep]", "the mesh has no axis `ep`"),
            ("x[a@tp:2]", "the mesh has no axis `tp:2`"),
            ("x[a@(dp, tp]", "`(dp, tp` lacks a `)`"),
            ("x[a@dp*0]", "`0` is no unit"),
            ("x[a@dp, b@dp]", "`dp` has two roles"),
            ("x[a@(tp, tp:1)]", "`tp:1` has two roles"),
            ("x[a@dp] P(sum)@dp", "`dp` has two roles"),
            ("x[a] P(mean)@dp", "no operator `mean`"),
            ("x[a] P(sum) dp", "expected `)@` after the operator of a partial value"),
            ("x[a] P(sum)@dp*2", "a unit or an order of `dp`, which cuts nothing"),
            ("x[a] tail", "expected `P(`, found `tail`"),
        ] {
            assert_eq!(parse_layout(&mesh, text), Err(wrong.to_string()), "{text}");
        }
    }

    #[test]
    fn no_text_panics() {
        let mesh = mesh();
        let text: Vec<char> = "é[ü@(dp, tp:1*2 zigzag), b] P(max)@(tp:0, cp)".chars().collect();
        for i in 0..text.len() {
            for c in ['(', ')', '[', ']', '@', ',', '*', ':', ' ', 'ß', 'P'] {
                let mut other = text.clone();
                other[i] = c;
                let _ = parse_layout(&mesh, &other.iter().collect::<String>());
                other.truncate(i);
                let _ = parse_layout(&mesh, &other.iter().collect::<String>());
            }
        }
    }
}
