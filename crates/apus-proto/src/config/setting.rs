//! The type of a setting, and the macro that defines a configuration by a table of settings.

use std::fmt;
use std::time::Duration;

/// A setting, as its table declares it. Values of every kind are numbers: bytes, nanoseconds, a count, or 0 and 1 for a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Setting {
    /// The setter's name, which is also the key in a file.
    pub name: &'static str,
    /// The kind of its values.
    pub unit: Unit,
    /// The default value.
    pub default: u64,
    /// The minimum.
    pub low: u64,
    /// The maximum.
    pub high: u64,
    /// Whether the default applies to fast links only. Unless set, the setting follows the rate of a slower link (rule `link-1`).
    pub follows_link: bool,
    /// The setter's documentation.
    pub text: &'static str,
}

/// The kind of a setting's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unit {
    /// A size in bytes.
    Bytes,
    /// A time in nanoseconds.
    Time,
    /// A number of things with this name.
    Count(&'static str),
    /// On (1) or off (0).
    Switch,
}

impl Setting {
    #[doc(hidden)]
    #[must_use]
    pub const fn new(
        (name, text): (&'static str, &'static str),
        unit: Unit,
        default: u64,
        (low, high): (u64, u64),
        follows_link: bool,
    ) -> Self {
        Self { name, unit, default, low, high, follows_link, text }
    }

    /// Checks that the value is in the range.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if it is outside.
    pub fn check(&self, value: u64) -> Result<(), SettingError> {
        if (self.low..=self.high).contains(&value) {
            return Ok(());
        }
        let shown = match self.unit {
            Unit::Count(_) => value.to_string(),
            _ => self.show(value),
        };
        Err(SettingError::new(self.name, shown, self.allowed()))
    }

    /// Formats a value for people: `64 MiB`, `2 ms`, `8 messages`, `true`.
    #[must_use]
    pub fn show(&self, value: u64) -> String {
        let exact = |units: &[(u64, &str)]| {
            let fits = units.iter().find(|(unit, _)| value > 0 && value.is_multiple_of(*unit));
            fits.map_or_else(
                || "0".to_owned(),
                |(unit, name)| format!("{} {name}", grouped(value / unit)),
            )
        };
        match self.unit {
            Unit::Bytes => exact(&[
                (1 << 40, "TiB"),
                (1 << 30, "GiB"),
                (1 << 20, "MiB"),
                (1 << 10, "KiB"),
                (1, "B"),
            ]),
            Unit::Time => exact(&[
                (3_600_000_000_000, "h"),
                (1_000_000_000, "s"),
                (1_000_000, "ms"),
                (1_000, "µs"),
                (1, "ns"),
            ]),
            Unit::Count(of) => format!("{} {of}", grouped(value)),
            Unit::Switch => (value != 0).to_string(),
        }
    }

    /// Formats the range for people: `1 B to 1 GiB`, `1 to 8`; empty for a switch.
    #[must_use]
    pub fn range(&self) -> String {
        match self.unit {
            Unit::Switch => String::new(),
            Unit::Count(_) => format!("{} to {}", grouped(self.low), grouped(self.high)),
            Unit::Bytes | Unit::Time => {
                format!("{} to {}", self.show(self.low), self.show(self.high))
            }
        }
    }

    /// Returns the allowed input as a phrase: `a number from 1 to 8`.
    #[must_use]
    pub fn allowed(&self) -> String {
        match self.unit {
            Unit::Bytes => format!("a size from {}", self.range()),
            Unit::Time => format!("a time from {}", self.range()),
            Unit::Count(_) => format!("a number from {}", self.range()),
            Unit::Switch => "true or false".to_owned(),
        }
    }
}

/// Formats a number in groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The error for a value that its setting does not allow.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SettingError {
    /// The setting.
    pub name: &'static str,
    /// The rejected value.
    pub value: String,
    /// The allowed input, as a phrase.
    pub allowed: String,
}

impl SettingError {
    #[doc(hidden)]
    #[must_use]
    pub fn new(name: &'static str, value: String, allowed: String) -> Self {
        Self { name, value, allowed }
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: expected {}", self.name, self.value, self.allowed)
    }
}

impl std::error::Error for SettingError {}

/// A type of settings' values.
#[doc(hidden)]
pub trait Number: Copy {
    /// Converts the value to a number; `u64::MAX` if it is beyond all ranges.
    fn number(self) -> u64;

    /// Converts a number in the setting's range.
    fn from_number(number: u64) -> Self;
}

macro_rules! integer {
    ($($type:ty)*) => {$(
        impl Number for $type {
            fn number(self) -> u64 {
                u64::try_from(self).unwrap_or(u64::MAX)
            }

            fn from_number(number: u64) -> Self {
                Self::try_from(number).expect("the range of a setting fits its type")
            }
        }
    )*};
}

integer! { u8 u32 u64 usize }

impl Number for bool {
    fn number(self) -> u64 {
        self.into()
    }

    fn from_number(number: u64) -> Self {
        number != 0
    }
}

impl Number for Duration {
    fn number(self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX)
    }

    fn from_number(number: u64) -> Self {
        Self::from_nanos(number)
    }
}

/// Defines a configuration by a table: a struct with a field and a setter for each setting, and further fields.
/// `protocol_settings!` shows the form of a table.
#[doc(hidden)]
#[macro_export]
macro_rules! define_settings {
    (@number) => { 0 };
    (@number $n:literal TiB) => { ($n as u64) << 40 };
    (@number $n:literal GiB) => { ($n as u64) << 30 };
    (@number $n:literal MiB) => { ($n as u64) << 20 };
    (@number $n:literal KiB) => { ($n as u64) << 10 };
    (@number $n:literal h) => { $n as u64 * 3_600_000_000_000 };
    (@number $n:literal s) => { $n as u64 * 1_000_000_000 };
    (@number $n:literal ms) => { $n as u64 * 1_000_000 };
    (@number $n:literal us) => { $n as u64 * 1_000 };
    (@number $n:literal $($of:ident)?) => { $n as u64 };
    (@high) => { 1 };
    (@high $($high:tt)+) => { $crate::define_settings!(@number $($high)+) };
    (@unit) => { $crate::Unit::Switch };
    (@unit B) => { $crate::Unit::Bytes };
    (@unit KiB) => { $crate::Unit::Bytes };
    (@unit MiB) => { $crate::Unit::Bytes };
    (@unit GiB) => { $crate::Unit::Bytes };
    (@unit TiB) => { $crate::Unit::Bytes };
    (@unit us) => { $crate::Unit::Time };
    (@unit ms) => { $crate::Unit::Time };
    (@unit s) => { $crate::Unit::Time };
    (@unit h) => { $crate::Unit::Time };
    (@unit $of:ident) => { $crate::Unit::Count(stringify!($of)) };
    (@follows) => { false };
    (@follows follows_link) => { true };
    (@link_text) => { "" };
    (@link_text follows_link) => { "; follows the rate of a slow link unless set (rule `link-1`)" };
    (@range $default:literal $($unit:ident)?, $($low:literal $($low_unit:ident)? ..= $high:literal $($high_unit:ident)?)? | $($link:ident)?) => {
        concat!(
            "\n\nDefault ", stringify!($default), $(" ", stringify!($unit),)?
            $("; range ", stringify!($low), $(" ", stringify!($low_unit),)? " to ",
            stringify!($high), $(" ", stringify!($high_unit),)?)?
            $crate::define_settings!(@link_text $($link)?),
            ".",
        )
    };
    (
        {
            $(#[$meta:meta])*
            $vis:vis struct $config:ident {
                $($(#[$field_meta:meta])* $field:ident: $field_type:ty = $field_default:expr,)*
            }
        }
        $(
            $(#[doc = $text:literal])*
            $name:ident: $type:ty = $default:literal $($unit:ident)?
            $(, $low:literal $($low_unit:ident)? ..= $high:literal $($high_unit:ident)?)?
            $(| $link:ident)?;
        )*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        $vis struct $config {
            $(pub(crate) $name: $type,)*
            $($(#[$field_meta])* pub(crate) $field: $field_type,)*
            /// Names of the settings that were set.
            set: ::std::collections::BTreeSet<&'static str>,
            /// The first disallowed value that was passed to a setter.
            error: Option<$crate::SettingError>,
        }

        impl Default for $config {
            fn default() -> Self {
                Self {
                    $($name: $crate::Number::from_number(
                        $crate::define_settings!(@number $default $($unit)?)
                    ),)*
                    $($field: $field_default,)*
                    set: ::std::collections::BTreeSet::new(),
                    error: None,
                }
            }
        }

        impl $config {
            /// The table of settings.
            pub(crate) const TABLE: &'static [$crate::Setting] = &[$(
                $crate::Setting::new(
                    (stringify!($name), concat!($($text),*)),
                    $crate::define_settings!(@unit $($unit)?),
                    $crate::define_settings!(@number $default $($unit)?),
                    (
                        $crate::define_settings!(@number $($low $($low_unit)?)?),
                        $crate::define_settings!(@high $($high $($high_unit)?)?),
                    ),
                    $crate::define_settings!(@follows $($link)?),
                ),
            )*];

            $(
                $(#[doc = $text])*
                #[doc = $crate::define_settings!(
                    @range $default $($unit)?,
                    $($low $($low_unit)? ..= $high $($high_unit)?)? | $($link)?
                )]
                pub fn $name(&mut self, $name: $type) -> &mut Self {
                    let number = $crate::Number::number($name);
                    if let Err(error) = self.set_number(stringify!($name), number) {
                        self.error.get_or_insert(error);
                    }
                    self
                }
            )*

            /// Sets a setting by its name, which must be in the table.
            pub(crate) fn set_number(
                &mut self,
                name: &str,
                number: u64,
            ) -> Result<&mut Self, $crate::SettingError> {
                let setting = Self::TABLE.iter().find(|setting| setting.name == name);
                let setting = setting.unwrap_or_else(|| panic!("unknown setting '{name}'"));
                setting.check(number)?;
                match name {
                    $(stringify!($name) => self.$name = $crate::Number::from_number(number),)*
                    _ => unreachable!("it is in the table"),
                }
                self.set.insert(setting.name);
                Ok(self)
            }

            /// Returns whether a value was set.
            pub(crate) fn is_set(&self, name: &str) -> bool {
                self.set.contains(name)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_in_the_largest_unit_that_needs_no_fraction() {
        let shown = |unit, value| Setting::new(("x", ""), unit, 0, (0, 0), false).show(value);
        let sizes = [0, 400, 1_024, 60_000, 64 << 20, 1 << 40].map(|size| shown(Unit::Bytes, size));
        assert_eq!(sizes, ["0", "400 B", "1 KiB", "60,000 B", "64 MiB", "1 TiB"]);
        let times =
            [0, 1, 5_000, 1_500_000, 2_000_000, 60_000_000_000].map(|ns| shown(Unit::Time, ns));
        assert_eq!(times, ["0", "1 ns", "5 µs", "1,500 µs", "2 ms", "60 s"]);
        assert_eq!(shown(Unit::Count("calls"), 65_536), "65,536 calls");
        assert_eq!(shown(Unit::Switch, 1), "true");
    }
}
