//! The shape of a type, from the calls that its `Deserialize` makes.
//!
//! A type is made from dummy values, several times: each time another variant of its enums. The shape is a tree that
//! grows meanwhile. A type within itself ends the tree, and gets a value that is as short as possible.

use std::fmt;

use serde_core::de::value::{BorrowedStrDeserializer, U32Deserializer};
use serde_core::de::{
    self, DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use crate::schema::types::{Fields, SchemaTypes, Shape};

/// Most times that a type is made. An enum needs one for each variant.
const RUNS_MAX: usize = 1_000;

/// Runs without a new part after which a type counts as seen.
const RUNS_IDLE_MAX: usize = 16;

/// Most parts of the values of one run.
const PARTS_MAX: usize = 100_000;

/// Texts to make values from. Some types take only particular ones.
const TEXTS: [&str; 6] = ["", "a", "1", "127.0.0.1", "127.0.0.1:1", "2000-01-01T00:00:00Z"];

/// The text of a type in a schema. `readable` is that of the codec, as types have other forms for people.
pub(crate) fn trace<T: DeserializeOwned>(types: &mut SchemaTypes, readable: bool) -> String {
    let mut shape = Shape::Unknown;
    let mut idle = 0;
    for run in 0..RUNS_MAX {
        let before = shape.clone();
        let mut parts = 0;
        let mut state = Run { number: run, readable, parts: &mut parts, within: Vec::new() };
        let made = T::deserialize(Tracer { shape: &mut shape, run: &mut state }).is_ok();
        idle = if shape == before { idle + 1 } else { 0 };
        if (made && is_seen(&shape)) || idle >= RUNS_IDLE_MAX {
            break;
        }
    }
    types.add(&shape)
}

/// Whether each variant was seen.
fn is_seen(shape: &Shape) -> bool {
    let all_seen = |fields: &Fields| match fields {
        Fields::None => true,
        Fields::Unnamed(parts) => parts.iter().all(is_seen),
        Fields::Named(fields) => fields.iter().all(|(_, shape)| is_seen(shape)),
    };
    match shape {
        Shape::Unknown => false,
        Shape::Plain(_) | Shape::Recursive(_) => true,
        Shape::Option(inner) | Shape::List(inner) => is_seen(inner),
        Shape::Map(parts) => is_seen(&parts.0) && is_seen(&parts.1),
        Shape::Tuple(parts) => parts.iter().all(is_seen),
        Shape::Struct { fields, .. } => all_seen(fields),
        Shape::Enum { variants, .. } => {
            variants.iter().all(|(_, fields)| fields.as_ref().is_some_and(all_seen))
        }
    }
}

/// One making of the type.
struct Run<'r> {
    number: usize,
    readable: bool,
    parts: &'r mut usize,
    /// The ids of the named types around this part.
    within: Vec<&'static str>,
}

/// Gives a part of the type a dummy value, and notes its shape.
struct Tracer<'t, 'r> {
    shape: &'t mut Shape,
    run: &'t mut Run<'r>,
}

/// The value does not suit the type. Its shape is noted nevertheless.
#[derive(Debug)]
struct Unsuitable;

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value does not suit the type")
    }
}

impl std::error::Error for Unsuitable {}

impl de::Error for Unsuitable {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

impl Run<'_> {
    /// How often this named type is around this part.
    fn depth(&self, id: &str) -> usize {
        self.within.iter().filter(|outer| **outer == id).count()
    }

    /// Whether this part is in a type within itself, and should be short.
    fn is_closing(&self) -> bool {
        self.within.iter().any(|id| self.depth(id) > 1)
    }

    fn count(&mut self) -> Result<(), Unsuitable> {
        *self.parts += 1;
        if *self.parts > PARTS_MAX { Err(Unsuitable) } else { Ok(()) }
    }
}

impl<'t> Tracer<'t, '_> {
    fn plain(&mut self, name: &'static str) {
        *self.shape = Shape::Plain(name);
    }

    fn text(&self) -> &'static str {
        TEXTS[self.run.number % TEXTS.len()]
    }

    /// Numbers that some types refuse: zero, and all but a few.
    fn number(&self) -> u8 {
        u8::from(self.run.number % 3 != 1)
    }

    /// Gives a named type its value, unless it is within itself too deeply.
    fn named<T>(
        self,
        id: &'static str,
        make: impl FnOnce(Tracer<'_, '_>) -> Result<T, Unsuitable>,
    ) -> Result<T, Unsuitable> {
        let Tracer { shape, run } = self;
        run.count()?;
        let is_recursive = run.depth(id) > 0;
        run.within.push(id);
        let made = if is_recursive {
            *shape = Shape::Recursive(id);
            make(Tracer { shape: &mut Shape::Unknown, run: &mut *run })
        } else {
            make(Tracer { shape, run: &mut *run })
        };
        run.within.pop();
        made
    }
}

/// Parts of a tuple, a struct or a list, one after another.
struct Parts<'t, 'r> {
    shapes: std::slice::IterMut<'t, Shape>,
    run: &'t mut Run<'r>,
}

impl<'de> SeqAccess<'de> for Parts<'_, '_> {
    type Error = Unsuitable;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Unsuitable> {
        let Some(shape) = self.shapes.next() else { return Ok(None) };
        seed.deserialize(Tracer { shape, run: &mut *self.run }).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.shapes.len())
    }
}

/// The fields of a struct in a form with names, or one entry of a map.
struct Entries<'t, 'r> {
    fields: std::slice::IterMut<'t, (&'static str, Shape)>,
    value: Option<&'t mut Shape>,
    run: &'t mut Run<'r>,
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = Unsuitable;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Unsuitable> {
        let Some((name, shape)) = self.fields.next() else { return Ok(None) };
        self.value = Some(shape);
        let name: BorrowedStrDeserializer<'_, Unsuitable> = BorrowedStrDeserializer::new(name);
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, Unsuitable> {
        let shape = self.value.take().ok_or(Unsuitable)?;
        seed.deserialize(Tracer { shape, run: &mut *self.run })
    }
}

/// One entry of a map.
struct OneEntry<'t, 'r> {
    parts: Option<&'t mut (Shape, Shape)>,
    value: Option<&'t mut Shape>,
    run: &'t mut Run<'r>,
}

impl<'de> MapAccess<'de> for OneEntry<'_, '_> {
    type Error = Unsuitable;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Unsuitable> {
        let Some((key, value)) = self.parts.take() else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(Tracer { shape: key, run: &mut *self.run }).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, Unsuitable> {
        let shape = self.value.take().ok_or(Unsuitable)?;
        seed.deserialize(Tracer { shape, run: &mut *self.run })
    }
}

/// The variant that this run has chosen.
struct Chosen<'t, 'r> {
    place: usize,
    fields: &'t mut Option<Fields>,
    run: &'t mut Run<'r>,
}

impl<'de, 't, 'r> EnumAccess<'de> for Chosen<'t, 'r> {
    type Error = Unsuitable;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self), Unsuitable> {
        let place: U32Deserializer<Unsuitable> =
            u32::try_from(self.place).map_err(|_| Unsuitable)?.into_deserializer();
        Ok((seed.deserialize(place)?, self))
    }
}

impl<'t> Fields {
    fn unnamed(&'t mut self, length: usize) -> std::slice::IterMut<'t, Shape> {
        if !matches!(self, Self::Unnamed(parts) if parts.len() == length) {
            *self = Self::Unnamed(vec![Shape::Unknown; length]);
        }
        let Self::Unnamed(parts) = self else { unreachable!("they were just made") };
        parts.iter_mut()
    }

    fn named(&'t mut self, names: &[&'static str]) -> &'t mut [(&'static str, Shape)] {
        if !matches!(self, Self::Named(fields) if fields.len() == names.len()) {
            *self = Self::Named(names.iter().map(|name| (*name, Shape::Unknown)).collect());
        }
        let Self::Named(fields) = self else { unreachable!("they were just made") };
        fields
    }
}

/// Gives a visitor the fields of a struct or a variant, with names if the codec has them.
fn visit_fields<'de, V: Visitor<'de>>(
    visitor: V,
    fields: &mut [(&'static str, Shape)],
    run: &mut Run<'_>,
) -> Result<V::Value, Unsuitable> {
    if run.readable {
        return visitor.visit_map(Entries { fields: fields.iter_mut(), value: None, run });
    }
    visitor.visit_seq(Unnamed { fields: fields.iter_mut(), run })
}

/// The fields of a struct in a form without names.
struct Unnamed<'t, 'r> {
    fields: std::slice::IterMut<'t, (&'static str, Shape)>,
    run: &'t mut Run<'r>,
}

impl<'de> SeqAccess<'de> for Unnamed<'_, '_> {
    type Error = Unsuitable;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Unsuitable> {
        let Some((_, shape)) = self.fields.next() else { return Ok(None) };
        seed.deserialize(Tracer { shape, run: &mut *self.run }).map(Some)
    }
}

impl<'de> VariantAccess<'de> for Chosen<'_, '_> {
    type Error = Unsuitable;

    fn unit_variant(self) -> Result<(), Unsuitable> {
        *self.fields = Some(Fields::None);
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<T::Value, Unsuitable> {
        let mut shapes = self.fields.get_or_insert(Fields::None).unnamed(1);
        let shape = shapes.next().expect("there is one");
        seed.deserialize(Tracer { shape, run: self.run })
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        let shapes = self.fields.get_or_insert(Fields::None).unnamed(length);
        visitor.visit_seq(Parts { shapes, run: self.run })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        let fields = self.fields.get_or_insert(Fields::None).named(fields);
        visit_fields(visitor, fields, self.run)
    }
}

/// Types without parts: name of the method, name in the schema, and the value.
macro_rules! plain {
    ($($method:ident $name:literal $visit:ident $value:expr;)+) => {$(
        fn $method<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Unsuitable> {
            self.run.count()?;
            self.plain($name);
            #[allow(clippy::redundant_closure_call, reason = "each row has a closure over the tracer")]
            visitor.$visit($value(&self))
        }
    )+};
}

impl<'de> de::Deserializer<'de> for Tracer<'_, '_> {
    type Error = Unsuitable;

    plain! {
        deserialize_any "any" visit_str |it: &Self| it.text();
        deserialize_bool "bool" visit_bool |it: &Self| it.number() == 0;
        deserialize_i8 "i8" visit_i8 |it: &Self| i8::from(it.number() != 0);
        deserialize_i16 "i16" visit_i16 |it: &Self| it.number().into();
        deserialize_i32 "i32" visit_i32 |it: &Self| it.number().into();
        deserialize_i64 "i64" visit_i64 |it: &Self| it.number().into();
        deserialize_i128 "i128" visit_i128 |it: &Self| it.number().into();
        deserialize_u8 "u8" visit_u8 |it: &Self| it.number();
        deserialize_u16 "u16" visit_u16 |it: &Self| it.number().into();
        deserialize_u32 "u32" visit_u32 |it: &Self| it.number().into();
        deserialize_u64 "u64" visit_u64 |it: &Self| it.number().into();
        deserialize_u128 "u128" visit_u128 |it: &Self| it.number().into();
        deserialize_f32 "f32" visit_f32 |it: &Self| it.number().into();
        deserialize_f64 "f64" visit_f64 |it: &Self| it.number().into();
        deserialize_char "char" visit_char |_: &Self| 'a';
        deserialize_str "string" visit_borrowed_str |it: &Self| it.text();
        deserialize_string "string" visit_borrowed_str |it: &Self| it.text();
        deserialize_bytes "bytes" visit_borrowed_bytes |it: &Self| it.text().as_bytes();
        deserialize_byte_buf "bytes" visit_borrowed_bytes |it: &Self| it.text().as_bytes();
        deserialize_identifier "any" visit_str |it: &Self| it.text();
    }

    fn deserialize_unit<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Unsuitable> {
        self.plain("()");
        visitor.visit_unit()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(
        mut self,
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        self.plain("any");
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unsuitable> {
        if !matches!(self.shape, Shape::Option(_)) {
            *self.shape = Shape::Option(Box::default());
        }
        let Shape::Option(inner) = self.shape else { unreachable!("it was just made") };
        self.run.count()?;
        if self.run.is_closing() {
            return visitor.visit_none();
        }
        visitor.visit_some(Tracer { shape: inner, run: self.run })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unsuitable> {
        if !matches!(self.shape, Shape::List(_)) {
            *self.shape = Shape::List(Box::default());
        }
        let Shape::List(inner) = self.shape else { unreachable!("it was just made") };
        self.run.count()?;
        let mut shapes = std::slice::from_mut(&mut **inner).iter_mut();
        if self.run.is_closing() {
            shapes.next();
        }
        visitor.visit_seq(Parts { shapes, run: self.run })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unsuitable> {
        if !matches!(self.shape, Shape::Map(_)) {
            *self.shape = Shape::Map(Box::default());
        }
        let Shape::Map(parts) = self.shape else { unreachable!("it was just made") };
        self.run.count()?;
        let parts = (!self.run.is_closing()).then_some(&mut **parts);
        visitor.visit_map(OneEntry { parts, value: None, run: self.run })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        if !matches!(self.shape, Shape::Tuple(parts) if parts.len() == length) {
            *self.shape = Shape::Tuple(vec![Shape::Unknown; length]);
        }
        let Shape::Tuple(parts) = self.shape else { unreachable!("it was just made") };
        visitor.visit_seq(Parts { shapes: parts.iter_mut(), run: self.run })
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        *self.shape = Shape::Struct { name, id: id_of::<V>(), fields: Fields::None };
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        let id = id_of::<V>();
        self.named(id, |Tracer { shape, run }| {
            let shape = fields_of(shape, name, id).unnamed(1).next().expect("there is one");
            visitor.visit_newtype_struct(Tracer { shape, run })
        })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        let id = id_of::<V>();
        self.named(id, |Tracer { shape, run }| {
            let shapes = fields_of(shape, name, id).unnamed(length);
            visitor.visit_seq(Parts { shapes, run })
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        let id = id_of::<V>();
        self.named(id, |Tracer { shape, run }| {
            visit_fields(visitor, fields_of(shape, name, id).named(fields), run)
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unsuitable> {
        if variants.is_empty() {
            *self.shape = Shape::Enum { name, id: id_of::<V>(), variants: Vec::new() };
            return Err(Unsuitable);
        }
        let id = id_of::<V>();
        self.named(id, |Tracer { shape, run }| {
            // A type within itself takes another variant at each level, so that one of them ends it.
            let turn = run.number + run.depth(id).saturating_sub(1);
            if !matches!(shape, Shape::Enum { .. }) {
                let variants = variants.iter().map(|variant| (*variant, None)).collect();
                *shape = Shape::Enum { name, id, variants };
            }
            let Shape::Enum { variants, .. } = shape else { unreachable!("it was just made") };
            let is_inner = run.depth(id) > 1;
            let unseen = variants.iter().position(|(_, fields)| fields.is_none());
            let place = unseen.filter(|_| !is_inner).unwrap_or(turn % variants.len());
            let fields = &mut variants[place].1;
            visitor.visit_enum(Chosen { place, fields, run })
        })
    }

    fn is_human_readable(&self) -> bool {
        self.run.readable
    }
}

/// Distinguishes types of one name: each has its own visitor, also for each parameter of a generic type.
fn id_of<V>() -> &'static str {
    std::any::type_name::<V>()
}

/// The fields of a struct, which is made if it is new.
fn fields_of<'t>(shape: &'t mut Shape, name: &'static str, id: &'static str) -> &'t mut Fields {
    if !matches!(shape, Shape::Struct { .. }) {
        *shape = Shape::Struct { name, id, fields: Fields::None };
    }
    let Shape::Struct { fields, .. } = shape else { unreachable!("it was just made") };
    fields
}
