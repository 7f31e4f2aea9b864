//! Streams of requests and of responses.

use syn::{
    Error, GenericArgument, Ident, PathArguments, PathSegment, Type, TypeImplTrait, TypeParamBound,
    parse_quote,
};

use crate::parts::{last_segment, text_of, types_of};

/// The type of a request, if the argument is `Streaming<REQUEST>`.
pub(crate) fn request(argument: &Ident, ty: &Type) -> syn::Result<Option<Type>> {
    let Some(last) = last_segment(ty).filter(|last| last.ident == "Streaming") else {
        return Ok(None);
    };
    let [request] = types_of(last)[..] else {
        let text =
            format!("argument `{argument}` is `{}`: expected `Streaming<REQUEST>`", text_of(ty));
        return Err(Error::new_spanned(ty, text));
    };
    Ok(Some(request.clone()))
}

/// The type of a response, if the value of a result is `impl Stream<Item = Result<RESPONSE, Status>>`.
pub(crate) fn response(method: &Ident, value: &Type) -> syn::Result<Option<Type>> {
    let wrong = |expected: &str| {
        let text = format!(
            "the response of method `{method}` is `{}`: expected {expected}",
            text_of(value)
        );
        Error::new_spanned(value, text)
    };
    let of_stream = "`impl Stream<Item = Result<RESPONSE, Status>>`";
    let Type::ImplTrait(opaque) = value else {
        let is_reader = last_segment(value).is_some_and(|last| last.ident == "Streaming");
        return if is_reader { Err(wrong(of_stream)) } else { Ok(None) };
    };
    let Some(stream) = in_bounds(opaque) else { return Err(wrong("a type")) };
    let PathArguments::AngleBracketed(parts) = &stream.arguments else {
        return Err(wrong(of_stream));
    };
    let item = parts.args.iter().find_map(|part| match part {
        GenericArgument::AssocType(item) if item.ident == "Item" => Some(&item.ty),
        _ => None,
    });
    let result = item.and_then(last_segment).filter(|last| last.ident == "Result");
    let types = result.map(types_of).unwrap_or_default();
    let [response, error] = types[..] else { return Err(wrong(of_stream)) };
    if last_segment(error).is_none_or(|last| last.ident != "Status") {
        return Err(wrong(of_stream));
    }
    Ok(Some(response.clone()))
}

/// The trait `Stream` of `impl Stream`.
pub(crate) fn in_bounds(opaque: &TypeImplTrait) -> Option<&PathSegment> {
    opaque.bounds.iter().find_map(|bound| match bound {
        TypeParamBound::Trait(bound) => {
            bound.path.segments.last().filter(|last| last.ident == "Stream")
        }
        _ => None,
    })
}

/// Lets the stream in a result be sent between threads.
pub(crate) fn make_send(result: &mut Type) {
    let Type::Path(path) = result else { return };
    let Some(last) = path.path.segments.last_mut() else { return };
    let PathArguments::AngleBracketed(parts) = &mut last.arguments else { return };
    for part in &mut parts.args {
        if let GenericArgument::Type(Type::ImplTrait(opaque)) = part {
            opaque.bounds.push(parse_quote!(::core::marker::Send));
        }
    }
}
