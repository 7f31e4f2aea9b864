//! A method of the trait.

use quote::ToTokens;
use syn::{
    Attribute, Block, Error, Expr, ExprLit, FnArg, GenericArgument, Ident, Lit, LitStr, Meta, Pat,
    PatType, PathArguments, PathSegment, ReturnType, TraitItemFn, Type, TypeParamBound,
    ext::IdentExt,
};

/// A method.
pub(crate) struct Method {
    /// Attributes that all its forms have.
    pub(crate) attributes: Vec<Attribute>,
    /// Its name in Rust.
    pub(crate) ident: Ident,
    /// Its name in the path.
    pub(crate) name: LitStr,
    pub(crate) is_idempotent: bool,
    pub(crate) is_blocking: bool,
    pub(crate) context: PatType,
    pub(crate) arguments: Vec<Argument>,
    /// The last argument, if it is marked `#[bytes]`.
    pub(crate) rest: Option<Argument>,
    /// The whole result.
    pub(crate) result: Type,
    /// The value in the result.
    pub(crate) response: Type,
    /// The default body.
    pub(crate) body: Option<Block>,
}

/// An argument of a request.
pub(crate) struct Argument {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    /// Attributes that the trait keeps.
    pub(crate) attributes: Vec<Attribute>,
}

/// Attributes that a method may have besides those of the service.
const KEPT: [&str; 6] = ["doc", "allow", "expect", "warn", "deprecated", "must_use"];

/// Methods that every client has.
const RESERVED: [&str; 3] = ["new", "channel", "schema"];

/// The marks of a method.
#[derive(Default)]
struct Marks {
    kept: Vec<Attribute>,
    idempotent: bool,
    blocking: Option<Ident>,
    name: Option<LitStr>,
}

impl Method {
    pub(crate) fn new(item: TraitItemFn) -> syn::Result<Self> {
        let marks = Marks::new(item.attrs)?;
        let signature = item.sig;
        let ident = signature.ident;
        let plain = ident.unraw().to_string();
        if RESERVED.contains(&plain.as_str()) {
            let text = format!(
                "method `{plain}`: each client has a method of this name; `#[name = \"..\"]` gives another method this name in its path"
            );
            return Err(Error::new(ident.span(), text));
        }
        let others = [
            signature.unsafety.map(|it| ("unsafe", it.span)),
            signature.constness.map(|it| ("const", it.span)),
            signature.abi.as_ref().map(|it| ("extern", it.extern_token.span)),
            signature.generics.lt_token.map(|it| ("generic", it.span)),
            signature.generics.where_clause.as_ref().map(|it| ("`where`", it.where_token.span)),
        ];
        if let Some((word, span)) = others.into_iter().flatten().next() {
            let text = format!("method `{plain}` is {word}: a method of a service is not");
            return Err(Error::new(span, text));
        }
        match (&signature.asyncness, &marks.blocking) {
            (None, None) => {
                let text = format!("method `{plain}` is neither `async` nor marked `#[blocking]`");
                return Err(Error::new(ident.span(), text));
            }
            (Some(_), Some(mark)) => {
                let text = format!(
                    "method `{plain}` is `async` and marked `#[blocking]`: expected one of them"
                );
                return Err(Error::new(mark.span(), text));
            }
            _ => {}
        }
        let mut inputs = signature.inputs.into_iter();
        receiver(&ident, inputs.next())?;
        let context = context(&ident, inputs.next())?;
        let (arguments, rest) = arguments(inputs)?;
        let (result, response) = response(&ident, signature.output)?;
        let camel = || LitStr::new(&camel_case(&plain), ident.span());
        Ok(Self {
            attributes: marks.kept,
            name: marks.name.unwrap_or_else(camel),
            is_idempotent: marks.idempotent,
            is_blocking: marks.blocking.is_some(),
            context,
            arguments,
            rest,
            result,
            response,
            body: item.default,
            ident,
        })
    }

    /// All arguments of the request, in order.
    pub(crate) fn all_arguments(&self) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().chain(&self.rest)
    }
}

impl Marks {
    fn new(attributes: Vec<Attribute>) -> syn::Result<Self> {
        let mut marks = Self::default();
        for attribute in attributes {
            let path = attribute.path();
            let word = path.get_ident().map(ToString::to_string).unwrap_or_default();
            match word.as_str() {
                "idempotent" | "blocking" => {
                    attribute.meta.require_path_only()?;
                    let mark = path.require_ident()?.clone();
                    match word.as_str() {
                        "blocking" => marks.blocking = Some(mark),
                        _ => marks.idempotent = true,
                    }
                }
                "name" => marks.name = Some(path_name(&attribute)?),
                word if KEPT.contains(&word) => marks.kept.push(attribute),
                _ => {
                    let name = path.to_token_stream().to_string().replace(' ', "");
                    let text = format!(
                        "attribute `{name}`: allowed are `idempotent`, `blocking`, `name`, and `{}`",
                        KEPT.join("`, `")
                    );
                    return Err(Error::new_spanned(path, text));
                }
            }
        }
        Ok(marks)
    }
}

/// The value of `#[name = "Sum"]`.
fn path_name(attribute: &Attribute) -> syn::Result<LitStr> {
    let Meta::NameValue(pair) = &attribute.meta else {
        return Err(Error::new_spanned(attribute, "expected `#[name = \"Method\"]`"));
    };
    let Expr::Lit(ExprLit { lit: Lit::Str(literal), .. }) = &pair.value else {
        return Err(Error::new_spanned(&pair.value, "the name of a method is a text in quotes"));
    };
    let name = literal.value();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.starts_with("__") || !name.chars().all(is_name) {
        let text = format!(
            "name \"{name}\": allowed are letters, digits and `_`, and no `__` at the beginning"
        );
        return Err(Error::new(literal.span(), text));
    }
    Ok(literal.clone())
}

fn receiver(method: &Ident, input: Option<FnArg>) -> syn::Result<()> {
    let text = format!("method `{method}` has no `&self`, its first argument");
    match input {
        Some(FnArg::Receiver(receiver)) => {
            let is_plain = receiver.reference.is_some()
                && receiver.mutability.is_none()
                && receiver.colon_token.is_none();
            if is_plain {
                return Ok(());
            }
            let found = receiver.to_token_stream().to_string().replace("& ", "&");
            let text = format!("receiver `{found}` of method `{method}`: expected `&self`");
            Err(Error::new_spanned(receiver, text))
        }
        Some(other) => Err(Error::new_spanned(other, text)),
        None => Err(Error::new(method.span(), text)),
    }
}

fn context(method: &Ident, input: Option<FnArg>) -> syn::Result<PatType> {
    let expected = "the argument after `&self` is the context, `cx: &Context`";
    match input {
        Some(FnArg::Typed(context)) => {
            let is_context = match &*context.ty {
                Type::Reference(reference) if reference.mutability.is_none() => {
                    last_segment(&reference.elem).is_some_and(|last| last.ident == "Context")
                }
                _ => false,
            };
            if is_context {
                return Ok(context);
            }
            let (name, ty) = (text_of(&context.pat), text_of(&context.ty));
            let text = format!("argument `{name}` of method `{method}` is `{ty}`: {expected}");
            Err(Error::new_spanned(&context.ty, text))
        }
        _ => Err(Error::new(method.span(), format!("method `{method}`: {expected}"))),
    }
}

/// The arguments of the request, and the one that is marked `#[bytes]`.
fn arguments(
    inputs: impl Iterator<Item = FnArg>,
) -> syn::Result<(Vec<Argument>, Option<Argument>)> {
    let mut arguments: Vec<Argument> = Vec::new();
    let mut rest: Option<Argument> = None;
    for input in inputs {
        let FnArg::Typed(input) = input else { continue };
        let Pat::Ident(pattern) = &*input.pat else {
            let text = format!("argument `{}`: expected a name", text_of(&input.pat));
            return Err(Error::new_spanned(&input.pat, text));
        };
        let ident = pattern.ident.clone();
        if let Some(rest) = &rest {
            let text = format!(
                "argument `{}` is marked `#[bytes]` and is not the last one: `{ident}` follows",
                rest.ident
            );
            return Err(Error::new(rest.ident.span(), text));
        }
        let (marks, attributes): (Vec<_>, Vec<_>) =
            input.attrs.into_iter().partition(|attribute| attribute.path().is_ident("bytes"));
        let argument = Argument { ident, ty: *input.ty, attributes };
        argument.check()?;
        if marks.is_empty() {
            arguments.push(argument);
            continue;
        }
        if last_segment(&argument.ty).is_none_or(|last| last.ident != "Bytes") {
            let (name, ty) = (&argument.ident, text_of(&argument.ty));
            let text = format!(
                "argument `{name}` is marked `#[bytes]` and has the type `{ty}`: expected `Bytes`"
            );
            return Err(Error::new_spanned(&argument.ty, text));
        }
        rest = Some(argument);
    }
    Ok((arguments, rest))
}

impl Argument {
    /// Refuses types that a message cannot have.
    fn check(&self) -> syn::Result<()> {
        let (name, ty) = (&self.ident, text_of(&self.ty));
        let text = match &self.ty {
            Type::Reference(_) => {
                format!(
                    "argument `{name}` is `{ty}`: an argument owns its data, as `String` and `Vec<T>` do"
                )
            }
            Type::ImplTrait(_) => format!("argument `{name}` is `{ty}`: expected a type"),
            ty if last_segment(ty).is_some_and(|last| last.ident == "Streaming") => {
                format!(
                    "argument `{name}` is a stream: typed services do not have streams of requests yet"
                )
            }
            _ => return Ok(()),
        };
        Err(Error::new_spanned(&self.ty, text))
    }

    /// Whether the client takes all that is `Into` the type.
    pub(crate) fn is_lenient(&self) -> bool {
        last_segment(&self.ty).is_some_and(|last| {
            last.arguments.is_none() && (last.ident == "String" || last.ident == "Bytes")
        })
    }
}

/// The result of a method and the value in it.
fn response(method: &Ident, output: ReturnType) -> syn::Result<(Type, Type)> {
    let expected = "expected `Result<RESPONSE, Status>`";
    let ReturnType::Type(_, result) = output else {
        let text = format!("method `{method}` returns nothing: {expected}");
        return Err(Error::new(method.span(), text));
    };
    let wrong = || {
        let text = format!("method `{method}` returns `{}`: {expected}", text_of(&result));
        Error::new_spanned(&result, text)
    };
    let last = last_segment(&result).filter(|last| last.ident == "Result").ok_or_else(wrong)?;
    let PathArguments::AngleBracketed(parts) = &last.arguments else { return Err(wrong()) };
    let types: Vec<&Type> = parts
        .args
        .iter()
        .filter_map(|part| match part {
            GenericArgument::Type(ty) => Some(ty),
            _ => None,
        })
        .collect();
    let [response, error] = types[..] else { return Err(wrong()) };
    if last_segment(error).is_none_or(|last| last.ident != "Status") {
        let text =
            format!("the error of method `{method}` is `{}`: expected `Status`", text_of(error));
        return Err(Error::new_spanned(error, text));
    }
    if let Type::ImplTrait(stream) = response {
        let is_stream = |bound: &TypeParamBound| match bound {
            TypeParamBound::Trait(bound) => {
                bound.path.segments.last().is_some_and(|last| last.ident == "Stream")
            }
            _ => false,
        };
        let text = if stream.bounds.iter().any(is_stream) {
            format!(
                "the response of method `{method}` is a stream: typed services do not have streams of responses yet"
            )
        } else {
            format!("the response of method `{method}` is `{}`: expected a type", text_of(response))
        };
        return Err(Error::new_spanned(response, text));
    }
    let response = response.clone();
    Ok((*result, response))
}

fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match ty {
        Type::Path(path) if path.qself.is_none() => path.path.segments.last(),
        _ => None,
    }
}

/// A part of the source as people write it.
fn text_of(part: &impl ToTokens) -> String {
    let text = part.to_token_stream().to_string();
    let tight = [(" < ", "<"), (" >", ">"), (" ,", ","), ("& ", "&"), (" :: ", "::"), (" ;", ";")];
    tight.iter().fold(text, |text, (from, to)| text.replace(from, to))
}

/// `list_prices` as `ListPrices`.
fn camel_case(name: &str) -> String {
    let capital = |part: &str| {
        let mut chars = part.chars();
        chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str())
    };
    name.split('_').filter_map(capital).collect()
}
