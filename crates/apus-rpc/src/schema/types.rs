//! Named types of a schema, and the shapes that they are made from.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::schema::text::TypeText;

/// The named types of a schema, which grow while its methods are described.
#[derive(Default, Debug)]
pub struct SchemaTypes {
    types: BTreeMap<String, TypeText>,
}

/// The structure of a type, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Shape {
    /// Not seen yet, or not to be seen.
    #[default]
    Unknown,
    /// A type without parts.
    Plain(&'static str),
    /// A named type within itself.
    Recursive(&'static str),
    Option(Box<Self>),
    List(Box<Self>),
    Map(Box<(Self, Self)>),
    Tuple(Vec<Self>),
    Struct {
        name: &'static str,
        fields: Fields,
    },
    Enum {
        name: &'static str,
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
            Shape::Recursive(name) => (*name).to_owned(),
            Shape::Option(inner) => format!("option<{}>", self.add(inner)),
            Shape::List(inner) => format!("list<{}>", self.add(inner)),
            Shape::Map(parts) => {
                let (key, value) = (self.add(&parts.0), self.add(&parts.1));
                format!("map<{key}, {value}>")
            }
            Shape::Tuple(parts) => self.tuple(parts),
            Shape::Struct { name, fields } => {
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
                self.name(name, text)
            }
            Shape::Enum { name, variants } => {
                let lines = variants.iter().map(|(name, fields)| self.variant(name, fields));
                let text = TypeText::of_enum(lines.collect());
                self.name(name, text)
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

    /// Gives a type its name. Another type of the same name gets a number.
    fn name(&mut self, name: &str, text: TypeText) -> String {
        let mut unique = name.to_owned();
        let mut number = 2;
        while self.types.get(&unique).is_some_and(|known| *known != text) {
            unique = format!("{name}.{number}");
            number += 1;
        }
        self.types.insert(unique.clone(), text);
        unique
    }
}
