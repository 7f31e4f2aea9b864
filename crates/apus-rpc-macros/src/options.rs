//! The arguments of the attribute.

use proc_macro2::Span;
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Ident, LitStr, Path, Token};

/// `name = "shop.Calc", codec = "postcard"`.
pub(crate) struct Options {
    pub(crate) name: String,
    pub(crate) codec: Codec,
}

/// The codec of a service.
pub(crate) enum Codec {
    Postcard,
    Json,
    Prost,
    Type(Path),
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let (mut name, mut codec) = (None, None);
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            let is_twice = match key.to_string().as_str() {
                "name" => name.replace(service_name(&input.parse()?)?).is_some(),
                "codec" => codec.replace(input.call(Codec::parse)?).is_some(),
                other => {
                    let text = format!("argument `{other}`: allowed are `name` and `codec`");
                    return Err(syn::Error::new(key.span(), text));
                }
            };
            if is_twice {
                return Err(syn::Error::new(
                    key.span(),
                    format!("argument `{key}` is given twice"),
                ));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let missing = || {
            let text = "argument `name` is missing: expected `name = \"package.Service\"`";
            syn::Error::new(Span::call_site(), text)
        };
        Ok(Self { name: name.ok_or_else(missing)?, codec: codec.unwrap_or(Codec::Postcard) })
    }
}

fn service_name(literal: &LitStr) -> syn::Result<String> {
    let name = literal.value();
    let is_part = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if name.split('.').all(is_part) {
        return Ok(name);
    }
    let text = format!(
        "argument `name` is \"{name}\": allowed are letters, digits and `_`, in parts with `.` between, as \"shop.Calc\""
    );
    Err(syn::Error::new(literal.span(), text))
}

impl Codec {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if !input.peek(LitStr) {
            return input.parse().map(Self::Type);
        }
        let literal: LitStr = input.parse()?;
        match literal.value().as_str() {
            "postcard" => Ok(Self::Postcard),
            "json" => Ok(Self::Json),
            "prost" => Ok(Self::Prost),
            other => {
                let text = format!(
                    "argument `codec` is \"{other}\": allowed are \"postcard\", \"json\", \"prost\", and the path of a type that implements `Codec`, without quotes"
                );
                Err(syn::Error::new(literal.span(), text))
            }
        }
    }
}

impl ToTokens for Codec {
    fn to_tokens(&self, tokens: &mut proc_macro2::TokenStream) {
        tokens.extend(match self {
            Self::Postcard => quote!(::apus_rpc::codec::Postcard),
            Self::Json => quote!(::apus_rpc::codec::Json),
            Self::Prost => quote!(::apus_rpc::codec::Prost),
            Self::Type(path) => quote!(#path),
        });
    }
}
