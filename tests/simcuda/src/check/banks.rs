//! Conflicts of the 32 banks of shared memory. A bank gives one 4-byte word a cycle, to all lanes that ask for it; wide
//! accesses go in parts: half a warp for 8 bytes a lane, a quarter for 16.

/// Parts that an access is served in and the cycles that they take. `addresses` are those of the lanes in `lanes`.
pub fn cycles(addresses: &[u32; 32], bytes: u32, lanes: u32) -> (u64, u64) {
    let group = match bytes {
        0..=4 => 32,
        8 => 16,
        _ => 8,
    };
    let (mut parts, mut total) = (0, 0);
    for begin in (0..32).step_by(group) {
        let mut asked = [0u32; 32];
        let mut words = [[0u32; 32]; 32];
        let mut worst = 0;
        for (l, address) in addresses.iter().enumerate().skip(begin).take(group) {
            if lanes >> l & 1 == 0 {
                continue;
            }
            for k in 0..bytes.div_ceil(4) {
                let word = address / 4 + k;
                let bank = (word % 32) as usize;
                let n = asked[bank] as usize;
                if !words[bank][..n].contains(&word) {
                    words[bank][n] = word;
                    asked[bank] += 1;
                    worst = worst.max(asked[bank]);
                }
            }
        }
        if worst > 0 {
            parts += 1;
            total += u64::from(worst);
        }
    }
    (parts, total)
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
