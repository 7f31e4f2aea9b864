//! Parts of types.

use quote::ToTokens;
use syn::{GenericArgument, PathArguments, PathSegment, Type};

/// The last word of a type, with its parameters.
pub(crate) fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match ty {
        Type::Path(path) if path.qself.is_none() => path.path.segments.last(),
        _ => None,
    }
}

/// The types in angle brackets.
pub(crate) fn types_of(segment: &PathSegment) -> Vec<&Type> {
    let PathArguments::AngleBracketed(parts) = &segment.arguments else { return Vec::new() };
    let types = parts.args.iter().filter_map(|part| match part {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.collect()
}

/// A part of the source as people write it.
pub(crate) fn text_of(part: &impl ToTokens) -> String {
    let text = part.to_token_stream().to_string();
    let tight = [(" < ", "<"), (" >", ">"), (" ,", ","), ("& ", "&"), (" :: ", "::"), (" ;", ";")];
    tight.iter().fold(text, |text, (from, to)| text.replace(from, to))
}
