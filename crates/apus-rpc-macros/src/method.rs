//! A method of the trait.

use quote::ToTokens;
use syn::{
    Attribute, Block, Error, Expr, ExprLit, FnArg, Ident, Lit, LitStr, Meta, Pat, PatType,
    ReturnType, TraitItemFn, Type, ext::IdentExt,
};

use crate::parts::{last_segment, text_of, types_of};
use crate::stream;

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
    /// The only argument, if it is a stream, with the type of a request.
    pub(crate) requests: Option<(Argument, Type)>,
    /// The whole result.
    pub(crate) result: Type,
    /// The value in the result, or each of its values.
    pub(crate) response: Type,
    /// The result is a stream of values.
    pub(crate) is_response_stream: bool,
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
    idempotent: Option<Ident>,
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
        let Arguments { arguments, rest, requests } = Arguments::new(&ident, inputs)?;
        let Response { result, response, is_stream } = response(&ident, signature.output)?;
        if requests.is_some() || is_stream {
            marks.check_stream(&plain)?;
        }
        let camel = || LitStr::new(&camel_case(&plain), ident.span());
        Ok(Self {
            attributes: marks.kept,
            name: marks.name.unwrap_or_else(camel),
            is_idempotent: marks.idempotent.is_some(),
            is_blocking: marks.blocking.is_some(),
            context,
            arguments,
            rest,
            requests,
            result,
            response,
            is_response_stream: is_stream,
            body: item.default,
            ident,
        })
    }

    /// All arguments of the request, in order.
    pub(crate) fn all_arguments(&self) -> impl Iterator<Item = &Argument> {
        let requests = self.requests.iter().map(|(argument, _)| argument);
        self.arguments.iter().chain(&self.rest).chain(requests)
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
                        _ => marks.idempotent = Some(mark),
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

    /// Refuses marks that a method with streams does not have.
    fn check_stream(&self, method: &str) -> syn::Result<()> {
        let (mark, why) = match (&self.idempotent, &self.blocking) {
            (Some(mark), _) => (mark, "calls with streams are not repeated"),
            (None, Some(mark)) => (mark, "a method with streams is `async`"),
            (None, None) => return Ok(()),
        };
        let text = format!("method `{method}` has a stream and is marked `#[{mark}]`: {why}");
        Err(Error::new(mark.span(), text))
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

/// The arguments of a request.
struct Arguments {
    arguments: Vec<Argument>,
    rest: Option<Argument>,
    requests: Option<(Argument, Type)>,
}

impl Arguments {
    fn new(method: &Ident, inputs: impl Iterator<Item = FnArg>) -> syn::Result<Self> {
        let mut all = Self { arguments: Vec::new(), rest: None, requests: None };
        for input in inputs {
            let FnArg::Typed(input) = input else { continue };
            all.add(method, input)?;
        }
        Ok(all)
    }

    fn add(&mut self, method: &Ident, input: PatType) -> syn::Result<()> {
        let Pat::Ident(pattern) = &*input.pat else {
            let text = format!("argument `{}`: expected a name", text_of(&input.pat));
            return Err(Error::new_spanned(&input.pat, text));
        };
        let ident = pattern.ident.clone();
        if let Some(rest) = &self.rest {
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
        let request = stream::request(&argument.ident, &argument.ty)?;
        let other = self.arguments.first().filter(|_| request.is_some());
        if let Some((requests, other)) = match (&self.requests, other) {
            (Some((requests, _)), _) => Some((&requests.ident, &argument.ident)),
            (None, Some(other)) => Some((&argument.ident, &other.ident)),
            (None, None) => None,
        } {
            let text = format!(
                "argument `{requests}` of method `{method}` is a stream, which is the only argument: `{other}` is another"
            );
            return Err(Error::new(other.span(), text));
        }
        if let Some(request) = request {
            if let Some(mark) = marks.first() {
                let text = format!(
                    "argument `{}` is a stream and is marked `#[bytes]`, which is for an argument `Bytes`",
                    argument.ident
                );
                return Err(Error::new_spanned(mark.path(), text));
            }
            self.requests = Some((argument, request));
            return Ok(());
        }
        if marks.is_empty() {
            self.arguments.push(argument);
            return Ok(());
        }
        if last_segment(&argument.ty).is_none_or(|last| last.ident != "Bytes") {
            let (name, ty) = (&argument.ident, text_of(&argument.ty));
            let text = format!(
                "argument `{name}` is marked `#[bytes]` and has the type `{ty}`: expected `Bytes`"
            );
            return Err(Error::new_spanned(&argument.ty, text));
        }
        self.rest = Some(argument);
        Ok(())
    }
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
            Type::ImplTrait(opaque) if stream::in_bounds(opaque).is_some() => {
                format!(
                    "argument `{name}` is `{ty}`: expected `Streaming<REQUEST>` for a stream of requests"
                )
            }
            Type::ImplTrait(_) => format!("argument `{name}` is `{ty}`: expected a type"),
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

/// The result of a method.
struct Response {
    result: Type,
    response: Type,
    is_stream: bool,
}

fn response(method: &Ident, output: ReturnType) -> syn::Result<Response> {
    let expected = "expected `Result<RESPONSE, Status>`";
    let ReturnType::Type(_, mut result) = output else {
        let text = format!("method `{method}` returns nothing: {expected}");
        return Err(Error::new(method.span(), text));
    };
    let wrong = || {
        let text = format!("method `{method}` returns `{}`: {expected}", text_of(&result));
        Error::new_spanned(&result, text)
    };
    let last = last_segment(&result).filter(|last| last.ident == "Result").ok_or_else(wrong)?;
    let [response, error] = types_of(last)[..] else { return Err(wrong()) };
    if last_segment(error).is_none_or(|last| last.ident != "Status") {
        let text =
            format!("the error of method `{method}` is `{}`: expected `Status`", text_of(error));
        return Err(Error::new_spanned(error, text));
    }
    let stream = stream::response(method, response)?;
    let (response, is_stream) = match stream {
        Some(item) => (item, true),
        None => (response.clone(), false),
    };
    if is_stream {
        stream::make_send(&mut result);
    }
    Ok(Response { result: *result, response, is_stream })
}

/// `list_prices` as `ListPrices`.
fn camel_case(name: &str) -> String {
    let capital = |part: &str| {
        let mut chars = part.chars();
        chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str())
    };
    name.split('_').filter_map(capital).collect()
}
