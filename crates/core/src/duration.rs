//! Go's `time.Duration`: the notation of the operator's flags and of every duration in a Flux object.

use std::fmt;
use std::str::FromStr;

/// A span of time with Go's notation: reads `1h30m`, `90s`, `1.5s`; prints `1h30m0s`, `1m30s`, `1.5s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration {
    nanos: i64,
}

/// The text is not a Go duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration; write it like 30s, 5m or 1h30m")]
pub struct ParseDurationError(String);

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl GoDuration {
    /// That many seconds.
    #[must_use]
    pub const fn from_secs(seconds: u32) -> Self {
        Self { nanos: seconds as i64 * 1_000_000_000 }
    }

    /// Nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> i64 {
        self.nanos
    }

    /// The span without sign; `None` when it is negative.
    #[must_use]
    pub fn to_std(self) -> Option<std::time::Duration> {
        u64::try_from(self.nanos).ok().map(std::time::Duration::from_nanos)
    }
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    /// `time.ParseDuration`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseDurationError(text.to_owned());
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Ok(Self { nanos: 0 });
        }
        if rest.is_empty() {
            return Err(fail());
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(fail)?;
            let (number, tail) = rest.split_at(end);
            let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(end);
            let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(fail)?;
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            if whole.is_empty() && fraction.is_empty() || whole.len() > 19 || fraction.contains('.') {
                return Err(fail());
            }
            let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| fail())? };
            total += whole * i128::from(*nanos);
            // More digits than nanoseconds of an hour have do not count.
            let digits = fraction.get(..fraction.len().min(18)).unwrap_or_default();
            if !digits.is_empty() {
                let value: i128 = digits.parse().map_err(|_| fail())?;
                total += value * i128::from(*nanos)
                    / 10_i128.pow(u32::try_from(digits.len()).map_err(|_| fail())?);
            }
            if total > i128::from(i64::MAX) {
                return Err(fail());
            }
            rest = tail;
        }
        let total = i64::try_from(total).map_err(|_| fail())?;
        Ok(Self { nanos: if negative { -total } else { total } })
    }
}

impl fmt::Display for GoDuration {
    /// `time.Duration.String`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.nanos < 0 { "-" } else { "" };
        let nanos = self.nanos.unsigned_abs();
        let fraction = |f: &mut fmt::Formatter<'_>, value: u64, digits: usize, unit: &str| {
            let scale = 10_u64.pow(u32::try_from(digits).unwrap_or(0));
            let rest = format!("{:0digits$}", value % scale);
            let rest = rest.trim_end_matches('0');
            let point = if rest.is_empty() { "" } else { "." };
            write!(f, "{}{point}{rest}{unit}", value / scale)
        };
        f.write_str(sign)?;
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => fraction(f, nanos, 3, "µs"),
            1_000_000..1_000_000_000 => fraction(f, nanos, 6, "ms"),
            _ => {
                let minutes = nanos / 60_000_000_000;
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                fraction(f, nanos % 60_000_000_000, 9, "s")
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints_like_go() {
        for (text, printed) in [
            ("0", "0s"),
            ("5m", "5m0s"),
            ("90s", "1m30s"),
            ("1500ms", "1.5s"),
            ("1h", "1h0m0s"),
            ("100ms", "100ms"),
            ("1h15m30.918s", "1h15m30.918s"),
            ("-1.5h", "-1h30m0s"),
            ("1us", "1µs"),
            ("1.5µs", "1.5µs"),
            ("2ns", "2ns"),
            (".5s", "500ms"),
            ("1.s", "1s"),
            ("+3s", "3s"),
            ("9223372036854775807ns", "2562047h47m16.854775807s"),
        ] {
            assert_eq!(text.parse::<GoDuration>().unwrap().to_string(), printed, "{text}");
        }
        for text in [
            "",
            "5",
            "m",
            "5 m",
            "1d",
            "--1s",
            "1..5s",
            ".s",
            "1h-5m",
            "9223372036854775808ns",
            "99999999999h",
            "1e3s",
        ] {
            assert!(text.parse::<GoDuration>().is_err(), "{text}");
        }
    }
}
