//! Conflicts of the 32 banks of shared memory. A bank gives one 4-byte word a cycle, to all lanes that ask for it; wide
//! accesses go in parts: half a warp for 8 bytes a lane, a quarter for 16.

/// Parts that an access is served in and the cycles that they take. `addresses` are those of the lanes in `lanes`.
#[inline]
pub fn cycles(addresses: &[u32; 32], bytes: u32, lanes: u32) -> (u64, u64) {
    let group = match bytes {
        0..=4 => 32,
        8 => 16,
        _ => 8,
    };
    let (mut parts, mut total) = (0, 0);
    for begin in (0..32).step_by(group) {
        let lanes = lanes >> begin & (u32::MAX >> (32 - group));
        if lanes != 0 {
            parts += 1;
            total += part(&addresses[begin..begin + group], bytes.div_ceil(4), lanes);
        }
    }
    (parts, total)
}

/// Cycles of lanes that are served together: one, unless a bank is asked for several words.
#[inline(always)]
fn part(addresses: &[u32], words: u32, lanes: u32) -> u64 {
    let mut first = [u32::MAX; 32];
    for (l, address) in addresses.iter().enumerate() {
        if lanes >> l & 1 == 0 {
            continue;
        }
        for word in address / 4..address / 4 + words {
            let asked = &mut first[(word % 32) as usize];
            if *asked == u32::MAX {
                *asked = word;
            } else if *asked != word {
                return conflicts(addresses, words, lanes);
            }
        }
    }
    1
}

/// The most words that any bank is asked for.
fn conflicts(addresses: &[u32], words: u32, lanes: u32) -> u64 {
    let mut asked = [0u8; 32];
    // Lanes that are served together ask for 32 words at most.
    let (mut list, mut n) = ([u32::MAX; 32], 0);
    for (_, address) in addresses.iter().enumerate().filter(|(l, _)| lanes >> l & 1 != 0) {
        for word in address / 4..address / 4 + words {
            if list.iter().fold(true, |new, w| new & (*w != word)) && n < 32 {
                list[n] = word;
                n += 1;
                asked[(word % 32) as usize] += 1;
            }
        }
    }
    u64::from(asked.into_iter().max().unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(f: impl Fn(u32) -> u32) -> [u32; 32] {
        std::array::from_fn(|l| f(l as u32))
    }

    #[test]
    fn conflicts_are_counted_as_devices_serve_them() {
        assert_eq!(cycles(&at(|l| l * 4), 4, u32::MAX), (1, 1));
        assert_eq!(cycles(&at(|_| 64), 4, u32::MAX), (1, 1));
        assert_eq!(cycles(&at(|l| l * 8), 4, u32::MAX), (1, 2));
        assert_eq!(cycles(&at(|l| l * 128), 4, u32::MAX), (1, 32));
        assert_eq!(cycles(&at(|l| l * 132), 4, u32::MAX), (1, 1));
        assert_eq!(cycles(&at(|l| l * 16), 16, u32::MAX), (4, 4));
        assert_eq!(cycles(&at(|l| l * 8), 8, u32::MAX), (2, 2));
        assert_eq!(cycles(&at(|l| l * 128), 16, 0xff), (1, 8));
    }
}
