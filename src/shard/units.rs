//! Cuts of a slot's dim as cuts of the loop that goes along it, and back: a turn may cover several elements.

use crate::mesh::{Cut, Entry, Mesh, Order, cut};

/// The cut in turns of a loop: as many entries, major first, as fall between turns.
pub fn to_loop(mesh: &Mesh, of: &[Entry], slot_extent: usize, extent: usize, scale: u32) -> Cut {
    if scale == 1 {
        return of.to_vec();
    }
    let (mut elements, mut turns) = (slot_extent, extent);
    let mut out = Cut::new();
    for e in of {
        let block = cut::block(mesh, e, elements);
        let unit = (e.unit / scale).max(1);
        let own = Entry { unit, ..*e };
        if cut::block(mesh, &own, turns) * scale as usize != block {
            break;
        }
        (elements, turns) = (block, block / scale as usize);
        out.push(own);
    }
    out
}

/// The cut in elements of a slot's dim, with the smallest units that say the same.
pub fn to_slot(mesh: &Mesh, of: &[Entry], extent: usize, scale: u32) -> Cut {
    if scale == 1 {
        return of.to_vec();
    }
    let mut turns = extent;
    let mut out = Cut::new();
    for e in of {
        let block = cut::block(mesh, e, turns);
        let plain = Entry { unit: 1, ..*e };
        let elements = turns * scale as usize;
        let same = cut::block(mesh, &plain, elements) == block * scale as usize;
        out.push(if same { plain } else { Entry { unit: e.unit * scale, ..*e } });
        turns = block;
    }
    out
}

/// The number of entries by which a dim is cut into so many equal blocks; none if it is not.
pub fn head(mesh: &Mesh, of: &[Entry], extent: usize, blocks: u32) -> Option<usize> {
    let (mut made, mut left) = (1, extent);
    for (k, e) in of.iter().enumerate() {
        if made >= blocks as usize {
            return (made == blocks as usize).then_some(k);
        }
        let block = cut::block(mesh, e, left);
        if e.order != Order::Block || block * mesh.size(e.atom) != left {
            return None;
        }
        (made, left) = (made * mesh.size(e.atom), block);
    }
    (made == blocks as usize).then_some(of.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Atom;

    #[test]
    fn a_split_dim_is_cut_between_its_groups() {
        let mesh = Mesh::of(&[("tp", 4)]);
        let entry = Entry::new(Atom(0));
        // 12 heads of 8: 3 heads each.
        assert_eq!(to_slot(&mesh, &[entry], 12, 8), [entry]);
        assert_eq!(to_loop(&mesh, &[entry], 96, 12, 8), [entry]);
        // 10 heads of 8: 3, 3, 3, 1; in elements blocks of 24.
        let wide = Entry { unit: 8, ..entry };
        assert_eq!(to_slot(&mesh, &[entry], 10, 8), [wide]);
        assert_eq!(to_loop(&mesh, &[wide], 80, 10, 8), [entry]);
        // Four blocks of 24 elements, each in two.
        let two = Mesh::of(&[("a", 4), ("b", 2), ("c", 3)]);
        let [a, b, c] = [0, 1, 2].map(|n| Entry::new(Atom(n)));
        assert_eq!(head(&two, &[a, b], 96, 4), Some(1));
        assert_eq!(head(&two, &[a, b], 96, 8), Some(2));
        assert_eq!((head(&two, &[a, b], 96, 1), head(&two, &[a, b], 96, 2)), (Some(0), None));
        assert_eq!(
            (head(&two, &[a, b], 98, 4), head(&two, &[c, b], 96, 4), head(&two, &[], 96, 4)),
            (None, None, None)
        );
        // 80 elements in blocks of 20 cut through heads.
        assert_eq!(to_loop(&mesh, &[entry], 80, 10, 8), []);
    }
}
