//! Named types of a schema, and the shapes that they are made from.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::schema::text::TypeText;

/// The named types of a schema, which grow while its methods are described.
#[derive(Default, Debug)]
pub struct SchemaTypes {
    types: BTreeMap<String, TypeText>,
    /// The names of types by their ids.
    names: BTreeMap<&'static str, String>,
}

/// The structure of a type, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Shape {
    /// Not seen yet, or not to be seen.
    #[default]
    Unknown,
    /// A type without parts.
    Plain(&'static str),
    /// The id of a named type around this part.
    Recursive(&'static str),
    Option(Box<Self>),
    List(Box<Self>),
    Map(Box<(Self, Self)>),
    Tuple(Vec<Self>),
    Struct {
        name: &'static str,
        /// The same for the same type only.
        id: &'static str,
        fields: Fields,
    },
    Enum {
        name: &'static str,
        id: &'static str,
        /// A variant is `None` until it is seen.
        variants: Vec<(&'static str, Option<Fields>)>,
    },
}

/// The contents of a struct or a variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fields {
    None,
    Unnamed(Vec<Shape>),
    Named(Vec<(&'static str, Shape)>),
}

impl SchemaTypes {
    pub(crate) fn into_inner(self) -> BTreeMap<String, TypeText> {
        self.types
    }

    /// The text of a shape. Named types in it are added.
    pub(crate) fn add(&mut self, shape: &Shape) -> String {
        match shape {
            Shape::Unknown => "?".to_owned(),
            Shape::Plain(name) => (*name).to_owned(),
            Shape::Recursive(id) => self.known(id).unwrap_or_else(|| within(id)),
            Shape::Option(inner) => format!("option<{}>", self.add(inner)),
            Shape::List(inner) => format!("list<{}>", self.add(inner)),
            Shape::Map(parts) => {
                let (key, value) = (self.add(&parts.0), self.add(&parts.1));
                format!("map<{key}, {value}>")
            }
            Shape::Tuple(parts) => self.tuple(parts),
            Shape::Struct { id, .. } | Shape::Enum { id, .. } if self.names.contains_key(id) => {
                self.known(id).unwrap_or_default()
            }
            Shape::Struct { name, id, fields } => {
                let text = match fields {
                    Fields::None => TypeText::of_struct(String::new(), Vec::new()),
                    Fields::Unnamed(parts) => TypeText::of_struct(self.list(parts), Vec::new()),
                    Fields::Named(fields) => {
                        let fields = fields.iter().map(|(name, shape)| {
                            let shape = self.add(shape);
                            format!("{name}: {shape}")
                        });
                        TypeText::of_struct(String::new(), fields.collect())
                    }
                };
                self.name(name, id, text)
            }
            Shape::Enum { name, id, variants } => {
                let lines = variants.iter().map(|(name, fields)| self.variant(name, fields));
                let text = TypeText::of_enum(lines.collect());
                self.name(name, id, text)
            }
        }
    }

    fn variant(&mut self, name: &str, fields: &Option<Fields>) -> String {
        match fields {
            None => format!("{name} ?"),
            Some(Fields::None) => name.to_owned(),
            Some(Fields::Unnamed(parts)) => format!("{name}{}", self.list(parts)),
            Some(Fields::Named(fields)) => {
                let mut line = format!("{name} {{ ");
                for (place, (name, shape)) in fields.iter().enumerate() {
                    let shape = self.add(shape);
                    let comma = if place == 0 { "" } else { ", " };
                    let _ = write!(line, "{comma}{name}: {shape}");
                }
                line + " }"
            }
        }
    }

    /// `(A, B)`.
    fn list(&mut self, parts: &[Shape]) -> String {
        let parts: Vec<String> = parts.iter().map(|part| self.add(part)).collect();
        format!("({})", parts.join(", "))
    }

    /// A tuple, or an array if all its parts are the same: serde shows both alike.
    fn tuple(&mut self, parts: &[Shape]) -> String {
        match parts {
            [first, rest @ ..] if !rest.is_empty() && rest.iter().all(|part| part == first) => {
                format!("[{}; {}]", self.add(first), parts.len())
            }
            _ => self.list(parts),
        }
    }

    /// The name of a type that has one.
    fn known(&self, id: &str) -> Option<String> {
        self.names.get(id).cloned()
    }

    /// Gives a type its name. Another type of the same name gets a number.
    fn name(&mut self, name: &str, id: &'static str, text: TypeText) -> String {
        let mut unique = name.to_owned();
        let mut number = 2;
        let is_other = |unique: &String, types: &BTreeMap<String, TypeText>| {
            types.get(unique).is_some_and(|known| *known != text.with(&within(id), unique))
        };
        while is_other(&unique, &self.types) {
            unique = format!("{name}.{number}");
            number += 1;
        }
        self.types.insert(unique.clone(), text);
        for text in self.types.values_mut() {
            *text = text.with(&within(id), &unique);
        }
        self.names.insert(id, unique.clone());
        unique
    }
}

/// Stands for a type within itself until it has a name. No name has this character.
fn within(id: &str) -> String {
    format!("\0{id}\0")
}

impl TypeText {
    /// The text with a name in the place of another text.
    fn with(&self, from: &str, to: &str) -> Self {
        let replaced = |text: &String| text.replace(from, to);
        let lines = self.lines.iter().map(replaced).collect();
        Self { is_enum: self.is_enum, unnamed: replaced(&self.unnamed), lines }
    }
}
