//! The arguments of a check: words, options with a value, and options without one.

use anyhow::{Context, Result, bail};

/// Parsed arguments.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Arguments<'a> {
    /// Arguments that are no options.
    pub(crate) words: Vec<&'a str>,
    options: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Arguments<'a> {
    /// Parses `--flag`, `--option VALUE` and `--option=VALUE` among words.
    ///
    /// # Errors
    /// If an option is unknown, or lacks its value.
    pub(crate) fn parse(arguments: &[&'a str], flags: &[&str], options: &[&str]) -> Result<Self> {
        let mut parsed = Self { words: Vec::new(), options: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let Some(option) = argument.strip_prefix("--") else {
                parsed.words.push(argument);
                continue;
            };
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            if flags.contains(&name) && value.is_none() {
                parsed.options.push((name, None));
            } else if options.contains(&name) {
                let value = value.or_else(|| rest.next().copied());
                let value = value.with_context(|| format!("--{name} needs a value"))?;
                parsed.options.push((name, Some(value)));
            } else {
                bail!("unknown option {argument}");
            }
        }
        Ok(parsed)
    }

    /// Whether the arguments have this flag.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.options.iter().any(|(name, _)| *name == flag)
    }

    /// The last value of this option.
    pub(crate) fn value(&self, option: &str) -> Option<&'a str> {
        self.options.iter().rev().find(|(name, _)| *name == option)?.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_may_stand_anywhere() {
        let parse = |text: &'static str| {
            let arguments: Vec<&str> = text.split(' ').collect();
            Arguments::parse(&arguments, &["record"], &["logs", "way"])
        };
        let parsed = parse("curl --way early --record 5 --logs=a --logs b").unwrap();
        assert_eq!(parsed.words, ["curl", "5"]);
        assert!(parsed.has("record") && !parse("all").unwrap().has("record"));
        assert_eq!((parsed.value("way"), parsed.value("logs")), (Some("early"), Some("b")));
        for wrong in ["--record=x", "--way", "--unknown"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
