//! The header `grpc-timeout`.

use std::time::Duration;

/// Most digits of the header's number.
const DIGITS_MAX: usize = 8;

/// The units of the header with their lengths in nanoseconds, from the shortest on.
const UNITS: [(u8, u64); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60 * 1_000_000_000),
    (b'H', 3_600 * 1_000_000_000),
];

/// Reads the value of the header: one to eight digits and a unit.
pub(crate) fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    let is_number =
        (1..=DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let number: u64 = str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()?;
    let (_, nanos) = UNITS.iter().find(|(letter, _)| letter == unit)?;
    let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    Some(Duration::from_secs(number * seconds) + Duration::from_nanos(number * rest))
}

/// Writes the value of the header, in the shortest unit in which it has at most eight digits. A part of a unit is dropped.
pub(crate) fn format(time: Duration) -> String {
    let most = 10_u128.pow(DIGITS_MAX as u32) - 1;
    let numbers = UNITS.iter().map(|&(unit, nanos)| (time.as_nanos() / u128::from(nanos), unit));
    let (number, unit) =
        numbers.clone().find(|(number, _)| *number <= most).unwrap_or((most, b'H'));
    format!("{number}{}", char::from(unit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_those_of_grpc() {
        let table = [
            ("1n", Duration::from_nanos(1)),
            ("20m", Duration::from_millis(20)),
            ("00000003S", Duration::from_secs(3)),
            ("2M", Duration::from_secs(120)),
            ("99999999H", Duration::from_secs(99_999_999 * 3_600)),
        ];
        for (text, time) in table {
            assert_eq!(parse(text.as_bytes()), Some(time), "{text}");
        }
        for text in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", "000000001S", "é", "1 S"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(format(Duration::from_millis(20)), "20000000n");
        assert_eq!(format(Duration::from_millis(100)), "100000u");
        assert_eq!(format(Duration::ZERO), "0n");
        assert_eq!(format(Duration::MAX), "99999999H");
    }

    proptest! {
        #[test]
        fn a_written_time_is_read_to_within_its_unit(nanos in any::<u64>(), shift in 0..64_u32) {
            let time = Duration::from_nanos(nanos >> shift);
            let read = parse(format(time).as_bytes()).expect("a value");
            prop_assert!(read <= time);
            prop_assert!((time - read).as_nanos() <= time.as_nanos() / 100_000);
        }
    }
}
