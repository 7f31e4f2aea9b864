//! The rules of versions.

use std::collections::BTreeSet;
use std::fmt;

use crate::schema::text::{MethodText, Schema, TypeText};

/// A change that breaks programs with the earlier schema.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchemaBreak {
    place: String,
    rule: String,
}

impl SchemaBreak {
    /// The method or type that was changed.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }
}

impl fmt::Display for SchemaBreak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.rule)
    }
}

/// Two schemas, and the breaks found so far.
struct SchemaComparison<'s> {
    earlier: &'s Schema,
    now: &'s Schema,
    /// The pairs of named types that were compared. Names themselves do not count.
    compared: BTreeSet<(&'s str, &'s str)>,
    breaks: Vec<SchemaBreak>,
    /// The codec has names of fields, and absent fields are `None`.
    has_names: bool,
}

impl Schema {
    /// The changes from an earlier schema to this one that break programs with the earlier one; empty if there are none. See the
    /// [rules](crate::schema#rules).
    ///
    /// ```
    /// use apus_rpc::schema::Schema;
    ///
    /// let earlier: Schema = "service a.B\ncodec postcard\nmethod Add\n    a: i64\n    returns i64\n".parse()?;
    /// let now: Schema = "service a.B\ncodec postcard\nmethod Add\n    a: i32\n    returns i64\n".parse()?;
    /// let breaks = now.check(&earlier);
    /// assert_eq!(breaks[0].to_string(), "method Add: argument 1 (a) was i64 and is i32: a changed type needs a new method");
    /// # Ok::<(), apus_rpc::schema::SchemaTextError>(())
    /// ```
    #[must_use]
    pub fn check(&self, earlier: &Self) -> Vec<SchemaBreak> {
        let mut found = SchemaComparison {
            earlier,
            now: self,
            compared: BTreeSet::new(),
            breaks: Vec::new(),
            has_names: earlier.codec == "json",
        };
        let (service, codec) = (&earlier.service, &earlier.codec);
        for (place, was, is) in [("service", service, &self.service), ("codec", codec, &self.codec)]
        {
            if was != is {
                found.add(place, format!("was {was} and is {is}"));
            }
        }
        for (name, was) in &earlier.methods {
            let place = format!("method {name}");
            match self.methods.get(name) {
                Some(is) => found.method(&place, was, is),
                None => found.add(&place, "is missing: its clients get UNIMPLEMENTED"),
            }
        }
        found.breaks
    }
}

impl<'s> SchemaComparison<'s> {
    fn add(&mut self, place: &str, rule: impl Into<String>) {
        self.breaks.push(SchemaBreak { place: place.to_owned(), rule: rule.into() });
    }

    fn method(&mut self, place: &str, was: &'s MethodText, is: &'s MethodText) {
        if was.is_idempotent && !is.is_idempotent {
            self.add(place, "is no longer idempotent: earlier clients repeat it");
        }
        if !self.is_same(&was.returns, &is.returns) {
            let rule = format!("returned {} and returns {}", was.returns, is.returns);
            self.add(place, format!("{rule}: a changed response needs a new method"));
        }
        // Bytes without an end of their own stay behind all others.
        let (was_rest, was) = split_rest(&was.arguments);
        let (is_rest, is) = split_rest(&is.arguments);
        if was_rest != is_rest {
            self.add(place, "has got or lost the argument #[bytes], which needs a new method");
        }
        for (number, (was, is)) in (1..).zip(was.iter().zip(is)) {
            if !self.is_same(&was.1, &is.1) {
                let (name, was, is) = (&was.0, &was.1, &is.1);
                let rule = format!("argument {number} ({name}) was {was} and is {is}");
                self.add(place, format!("{rule}: a changed type needs a new method"));
            }
        }
        let common = was.len().min(is.len());
        for (name, text) in is[common..].iter().filter(|(_, text)| !is_option(text)) {
            let rule = format!("the new argument {name} is {text}: expected option<{text}>");
            self.add(place, format!("{rule}, as earlier clients do not send it"));
        }
        for (name, text) in was[common..].iter().filter(|(_, text)| !is_option(text)) {
            let rule = format!("the argument {name} ({text}) is missing");
            self.add(place, format!("{rule}: earlier servers need it"));
        }
    }

    /// Whether two texts of types, fields or variants mean the same, apart from the names of types. Changes within the named types
    /// are noted as theirs.
    fn is_same(&mut self, was: &'s str, is: &'s str) -> bool {
        let (mut was, mut is) = (words(was), words(is));
        loop {
            let (was, is) = match (was.next(), is.next()) {
                (None, None) => return true,
                (Some(was), Some(is)) => (was, is),
                _ => return false,
            };
            match (self.earlier.types.get(was), self.now.types.get(is)) {
                (Some(earlier), Some(now)) => {
                    if self.compared.insert((was, is)) {
                        self.named_type(was, earlier, now);
                    }
                }
                (None, None) if was == is => {}
                _ => return false,
            }
        }
    }

    fn named_type(&mut self, name: &str, was: &'s TypeText, is: &'s TypeText) {
        let kind = if was.is_enum { "enum" } else { "struct" };
        let place = format!("{kind} {name}");
        match (was.is_enum, is.is_enum) {
            (true, true) => self.enumeration(&place, was, is),
            (false, false) => self.structure(&place, was, is),
            _ => self.add(&place, "is another kind of type"),
        }
    }

    fn structure(&mut self, place: &str, was: &'s TypeText, is: &'s TypeText) {
        let is_unnamed_same = self.is_same(&was.unnamed, &is.unnamed);
        if !self.has_names {
            let is_longer = was.lines.len() != is.lines.len();
            let lines = was.lines.iter().zip(&is.lines);
            let are_same = lines.fold(true, |all, (was, is)| self.is_same(was, is) && all);
            if is_longer || !are_same || !is_unnamed_same {
                self.add(place, "is changed: a changed struct needs a new method");
            }
            return;
        }
        if !is_unnamed_same {
            self.add(place, "is changed: a changed struct needs a new method");
        }
        for line in &was.lines {
            let now = is.lines.iter().find(|now| field(now).0 == field(line).0);
            if !now.is_some_and(|now| self.is_same(line, now)) {
                self.add(place, format!("the field '{line}' is missing or changed"));
            }
        }
        for line in &is.lines {
            let (name, text) = field(line);
            let is_new = was.lines.iter().all(|was| field(was).0 != name);
            if is_new && !is_option(text) {
                self.add(place, format!("the new field '{line}' is not an option"));
            }
        }
    }

    fn enumeration(&mut self, place: &str, was: &'s TypeText, is: &'s TypeText) {
        for (number, line) in was.lines.iter().enumerate() {
            match is.lines.get(number) {
                Some(now) if self.is_same(line, now) => {}
                Some(now) => {
                    let rule = format!("variant {number} was '{line}' and is '{now}'");
                    self.add(place, format!("{rule}: enums only grow at the end"));
                }
                None => self.add(place, format!("variant {number} ('{line}') is missing")),
            }
        }
    }
}

/// The names in a text, and the characters between them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '#');
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        let (word, others) = rest.split_at(if end == 0 { first.len_utf8() } else { end });
        rest = others;
        Some(word)
    })
}

/// The name and the type of a field.
fn field(line: &str) -> (&str, &str) {
    line.split_once(": ").unwrap_or((line, ""))
}

fn is_option(text: &str) -> bool {
    text.starts_with("option<")
}

/// The type of an argument that takes all bytes behind the others.
pub(crate) const REST: &str = "rest of bytes";

/// Splits the argument of the rest off.
fn split_rest(arguments: &[(String, String)]) -> (bool, &[(String, String)]) {
    match arguments.split_last() {
        Some(((_, text), others)) if text == REST => (true, others),
        _ => (false, arguments),
    }
}
