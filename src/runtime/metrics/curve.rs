//! The loss over steps as a plot of braille dots, two across and four down in each character.

/// Least size of the dotted area, in characters.
const LEAST: (usize, usize) = (8, 2);

/// Plots training losses as dots joined to a line and validation losses as `o`, in at most `width` columns and `height` lines
/// (or the least that makes sense). Values that are not finite are left out; with none left, says so.
pub fn loss_curve(train: &[(u64, f64)], valid: &[(u64, f64)], width: usize, height: usize) -> String {
    let finite =
        |points: &[(u64, f64)]| -> Vec<(u64, f64)> { points.iter().copied().filter(|(_, v)| v.is_finite()).collect() };
    let (train, valid) = (finite(train), finite(valid));
    let all = || train.iter().chain(&valid);
    let Some(&(first, value)) = all().next() else {
        return "(no finite losses to plot)\n".into();
    };
    let (mut lo, mut hi) = (value, value);
    let (mut from, mut to) = (first, first);
    for &(step, v) in all() {
        (lo, hi) = (lo.min(v), hi.max(v));
        (from, to) = (from.min(step), to.max(step));
    }
    let labels = [label(hi), label((lo + hi) / 2.0), label(lo)];
    let margin = labels.iter().map(String::len).max().unwrap_or(0);
    let (across, down) = (width.saturating_sub(margin + 2).max(LEAST.0), height.saturating_sub(2).max(LEAST.1));
    let scale = |x: f64, most: usize| ((x * most as f64).round() as usize).min(most);
    let x_of = |step: u64| if to == from { 0.0 } else { (step - from) as f64 / (to - from) as f64 };
    // a flat curve runs through the middle
    let y_of = |v: f64| if hi > lo { (hi - v) / (hi - lo) } else { 0.5 };

    let mut cells = vec![vec![0u8; across]; down];
    let mut before: Option<(usize, usize)> = None;
    for (x, v) in columns(&train, |step| scale(x_of(step), across * 2 - 1), across * 2) {
        let y = scale(y_of(v), down * 4 - 1);
        let (x0, y0) = before.unwrap_or((x, y));
        // joined by a line, column by column
        let at = |c: usize| match x - x0 {
            0 => y,
            n => (y0 * (x - c) + y * (c - x0) + n / 2) / n,
        };
        for column in x0..=x {
            let row = at(column);
            let next = if column < x { at(column + 1) } else { row };
            // up to just before the next column's dot
            let run = if next >= row { row..next.max(row + 1) } else { next + 1..row + 1 };
            for row in run {
                cells[row / 4][column / 2] |= dot(column % 2, row % 4);
            }
        }
        before = Some((x, y));
    }
    let mut text: Vec<Vec<char>> =
        cells.iter().map(|row| row.iter().map(|&bits| if bits == 0 { ' ' } else { braille(bits) }).collect()).collect();
    for &(step, v) in &valid {
        text[scale(y_of(v), down - 1)][scale(x_of(step), across - 1)] = 'o';
    }

    let mut out = String::new();
    for (i, row) in text.iter().enumerate() {
        let (label, axis) = match i {
            0 => (labels[0].as_str(), '┤'),
            _ if i == down - 1 => (labels[2].as_str(), '┤'),
            _ if down > 4 && i == down / 2 => (labels[1].as_str(), '┤'),
            _ => ("", '│'),
        };
        let row: String = row.iter().collect();
        out += format!("{label:>margin$} {axis}{}", row.trim_end()).trim_end();
        out.push('\n');
    }
    out += &format!("{:margin$} └{}\n", "", "─".repeat(across));
    let (left, right) = (from.to_string(), to.to_string());
    let legend = if valid.is_empty() { "step" } else { "step (o: validation)" };
    let room = across.saturating_sub(left.len() + right.len());
    let middle = if legend.len() + 2 <= room { format!("{legend:^room$}") } else { " ".repeat(room.max(1)) };
    out += &format!("{:margin$}  {left}{middle}{right}\n", "");
    out
}

/// The mean of the points in each column that has any, from left to right.
fn columns(points: &[(u64, f64)], column: impl Fn(u64) -> usize, count: usize) -> Vec<(usize, f64)> {
    let mut sums = vec![(0.0, 0u32); count];
    for &(step, v) in points {
        let (sum, n) = &mut sums[column(step)];
        *sum += v;
        *n += 1;
    }
    sums.into_iter().enumerate().filter(|(_, (_, n))| *n > 0).map(|(x, (sum, n))| (x, sum / f64::from(n))).collect()
}

fn label(v: f64) -> String {
    match v.abs() {
        0.0 => "0".into(),
        a if !(1e-3..1e5).contains(&a) => format!("{v:.2e}"),
        a if a >= 100.0 => format!("{v:.1}"),
        a if a >= 0.1 => format!("{v:.3}"),
        _ => format!("{v:.5}"),
    }
}

/// Bits of the dots in a braille character (Unicode block 2800).
fn dot(x: usize, y: usize) -> u8 {
    match (x, y) {
        (0, 3) => 0x40,
        (1, 3) => 0x80,
        (0, y) => 1 << y,
        (_, y) => 8 << y,
    }
}

fn braille(bits: u8) -> char {
    char::from_u32(0x2800 + u32::from(bits)).unwrap_or(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_falling_line_is_a_diagonal() {
        let points: Vec<(u64, f64)> = (0..=100).map(|i| (i, 4.0 - i as f64 * 0.03)).collect();
        let expected = "\
4.000 ┤⠑⢄
      │  ⠑⢄
      │    ⠑⢄
1.000 ┤      ⠑⢄
      └────────
       0    100
";
        let plot = loss_curve(&points, &[], 15, 6);
        assert_eq!(plot, expected, "{plot}");
    }

    #[test]
    fn jumps_are_joined_and_validation_is_marked() {
        let plot = loss_curve(&[(0, 1.0), (10, 1.0), (11, 0.0), (20, 0.0)], &[(0, 0.0), (20, 1.0)], 40, 8);
        let rows: Vec<&str> = plot.lines().collect();
        assert!(rows[..6].iter().all(|row| row.chars().any(|c| c > '\u{2800}' && c < '\u{2900}')), "{plot}");
        assert!(rows[0].ends_with('o') && rows[5].contains("┤o"), "{plot}");
        assert!(plot.contains("step (o: validation)"), "{plot}");
        assert!(rows.iter().all(|r| r.chars().count() <= 40), "{plot}");
    }

    #[test]
    fn odd_inputs_give_some_plot() {
        assert_eq!(loss_curve(&[(1, f64::NAN)], &[], 40, 8), "(no finite losses to plot)\n");
        for points in [
            vec![(5, 2.0)],
            vec![(5, 2.0), (6, 2.0)],
            vec![(0, -1e30), (1, f64::INFINITY), (u64::MAX, 1e30)],
            vec![(9, 1.0), (3, 2.0)],
            vec![(0, f64::MAX), (1, f64::MIN)],
        ] {
            for (width, height) in [(0, 0), (1, 100), (80, 12), (200, 1)] {
                let plot = loss_curve(&points, &[], width, height);
                assert!(plot.lines().count() >= 4 && plot.contains('└'), "{plot}");
            }
        }
    }
}
