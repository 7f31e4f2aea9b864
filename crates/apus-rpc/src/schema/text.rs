//! Schemas as text.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The methods of a typed service and the types of their messages. As text by [`Display`](fmt::Display), and from text by [`FromStr`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Schema {
    pub(crate) service: String,
    pub(crate) codec: String,
    pub(crate) methods: BTreeMap<String, MethodText>,
    pub(crate) types: BTreeMap<String, TypeText>,
}

/// A method. Types are texts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct MethodText {
    pub(crate) is_idempotent: bool,
    /// Names and types.
    pub(crate) arguments: Vec<(String, String)>,
    pub(crate) returns: String,
}

/// A struct or an enum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TypeText {
    pub(crate) is_enum: bool,
    /// Fields of a struct without names: `(u64)`.
    pub(crate) unnamed: String,
    /// Fields with names, or variants.
    pub(crate) lines: Vec<String>,
}

impl TypeText {
    pub(crate) fn of_struct(unnamed: String, lines: Vec<String>) -> Self {
        Self { is_enum: false, unnamed, lines }
    }

    pub(crate) fn of_enum(lines: Vec<String>) -> Self {
        Self { is_enum: true, unnamed: String::new(), lines }
    }
}

impl Schema {
    /// The name of the service.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.service
    }

    /// The name of the codec.
    #[must_use]
    pub fn codec(&self) -> &str {
        &self.codec
    }

    /// The names of the methods, as in their paths.
    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }

    /// A number by which schemas differ: FNV-1a of the text, 64 bits. Errors have it as 16 hexadecimal digits.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let text = self.to_string();
        text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        })
    }

    /// The hash as it stands in errors.
    pub(crate) fn hash_text(&self) -> String {
        format!("{:016x}", self.hash())
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "service {}", self.service)?;
        writeln!(f, "codec {}", self.codec)?;
        for (name, method) in &self.methods {
            let mark = if method.is_idempotent { " idempotent" } else { "" };
            writeln!(f, "\nmethod {name}{mark}")?;
            for (name, text) in &method.arguments {
                writeln!(f, "    {name}: {text}")?;
            }
            writeln!(f, "    returns {}", method.returns)?;
        }
        for (name, text) in &self.types {
            let kind = if text.is_enum { "enum" } else { "struct" };
            writeln!(f, "\n{kind} {name}{}", text.unnamed)?;
            for line in &text.lines {
                writeln!(f, "    {line}")?;
            }
        }
        Ok(())
    }
}

/// A text that is no schema.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct SchemaTextError {
    /// The line, from 1.
    pub line: usize,
    problem: String,
}

/// The block that the lines of a schema belong to.
enum Block<'s> {
    None,
    Method(&'s mut MethodText),
    Type(&'s mut TypeText),
}

impl FromStr for Schema {
    type Err = SchemaTextError;

    /// Reads the text of a schema. Empty lines and those that begin with `#` are ignored.
    fn from_str(text: &str) -> Result<Self, SchemaTextError> {
        let (mut service, mut codec) = (None, None);
        let (mut methods, mut types) = (BTreeMap::new(), BTreeMap::new());
        let mut block = Block::None;
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = |problem: String| SchemaTextError { line: number, problem };
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(line) = line.strip_prefix("    ") {
                block.add(line).map_err(wrong)?;
                continue;
            }
            let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
            block = match keyword {
                "service" => {
                    service = Some(rest.to_owned());
                    Block::None
                }
                "codec" => {
                    codec = Some(rest.to_owned());
                    Block::None
                }
                "method" => {
                    let (name, mark) = rest.split_once(' ').unwrap_or((rest, ""));
                    let method: &mut MethodText = methods.entry(name.to_owned()).or_default();
                    method.is_idempotent = mark == "idempotent";
                    Block::Method(method)
                }
                "struct" | "enum" => {
                    let (name, unnamed) = rest.split_at(rest.find('(').unwrap_or(rest.len()));
                    let is_enum = keyword == "enum";
                    let made = TypeText { is_enum, unnamed: unnamed.to_owned(), lines: Vec::new() };
                    Block::Type(types.entry(name.to_owned()).or_insert(made))
                }
                _ => {
                    let known = "service, codec, method, struct and enum";
                    return Err(wrong(format!("'{keyword}': expected one of {known}")));
                }
            };
        }
        let missing =
            |name: &str| SchemaTextError { line: 1, problem: format!("no line '{name}'") };
        let service = service.ok_or_else(|| missing("service"))?;
        let codec = codec.ok_or_else(|| missing("codec"))?;
        Ok(Self { service, codec, methods, types })
    }
}

impl Block<'_> {
    /// Adds an indented line.
    fn add(&mut self, line: &str) -> Result<(), String> {
        match self {
            Self::None => return Err(format!("'{line}' is outside of a method and a type")),
            Self::Type(text) => text.lines.push(line.to_owned()),
            Self::Method(method) => {
                if let Some(returns) = line.strip_prefix("returns ") {
                    method.returns = returns.to_owned();
                } else {
                    let argument = line.split_once(": ");
                    let (name, text) = argument.ok_or_else(|| {
                        format!("'{line}': expected 'NAME: TYPE' or 'returns TYPE'")
                    })?;
                    method.arguments.push((name.to_owned(), text.to_owned()));
                }
            }
        }
        Ok(())
    }
}
