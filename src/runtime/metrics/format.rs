//! Numbers as people read them.

/// `85 ms`, `4.2 s`, `3 min 12 s`, `1 h 02 min`, `3 d 4 h`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "?".into();
    }
    if seconds < 0.9995 {
        return format!("{:.0} ms", seconds * 1e3);
    }
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// Of things a second, with three digits: `2.75`, `12.3k`, `456k`, `1.20M`.
pub fn rate(per_second: f64) -> String {
    if !per_second.is_finite() {
        return "?".into();
    }
    scaled(per_second, 1000.0, &["", "k", "M", "G", "T", "P"])
}

/// `512 B`, `1.50 GiB`.
pub fn bytes(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    scaled(count as f64, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"])
}

fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    // 999.5 would round up to four digits
    while value.abs() >= if base == 1000.0 { 999.5 } else { base } && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let cases = [
            (0.0, "0 ms"),
            (0.0851, "85 ms"),
            (0.9999, "1.0 s"),
            (4.24, "4.2 s"),
            (9.97, "10 s"),
            (59.7, "1 min 00 s"),
            (192.0, "3 min 12 s"),
            (3725.0, "1 h 02 min"),
            (273_600.0, "3 d 4 h"),
            (f64::NAN, "?"),
            (f64::INFINITY, "?"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn rates_and_sizes() {
        let cases =
            [(0.5, "0.50"), (2.7499, "2.75"), (99.96, "100"), (999.7, "1.00k"), (12_345.0, "12.3k"), (4.56e8, "456M")];
        for (value, text) in cases {
            assert_eq!(rate(value), text);
        }
        assert_eq!((bytes(512), bytes(1536), bytes(3 << 30)), ("512 B".into(), "1.50 KiB".into(), "3.00 GiB".into()));
    }
}
