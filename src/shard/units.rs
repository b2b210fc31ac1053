//! Cuts of a slot's dim as cuts of the loop that goes along it, and back: a turn may cover several elements.

use crate::mesh::{Cut, Entry, Mesh, cut};

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
        // 80 elements in blocks of 20 cut through heads.
        assert_eq!(to_loop(&mesh, &[entry], 80, 10, 8), []);
    }
}
