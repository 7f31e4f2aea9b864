//! The whole trait.

use syn::{Attribute, Error, Ident, ItemTrait, TraitItem, TypeParamBound, Visibility};

use crate::method::Method;
use crate::options::{Codec, Options};

/// A service whose code can be generated.
pub(crate) struct ServicePlan {
    pub(crate) options: Options,
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) ident: Ident,
    pub(crate) supertraits: Vec<TypeParamBound>,
    pub(crate) methods: Vec<Method>,
}

impl ServicePlan {
    pub(crate) fn new(options: Options, item: ItemTrait) -> syn::Result<Self> {
        if let Some(first) = item.generics.params.first() {
            let text = format!("trait `{}` is generic: a service is not", item.ident);
            return Err(Error::new_spanned(first, text));
        }
        if let Some(unsafety) = item.unsafety {
            let text = format!("trait `{}` is unsafe: a service is not", item.ident);
            return Err(Error::new(unsafety.span, text));
        }
        let mut methods: Vec<Method> = Vec::new();
        for part in item.items {
            let TraitItem::Fn(function) = part else {
                let text = format!(
                    "trait `{}` has an item that is no method: a service has methods only",
                    item.ident
                );
                return Err(Error::new_spanned(part, text));
            };
            let method = Method::new(function)?;
            options.codec.check(&method)?;
            if let Some(other) =
                methods.iter().find(|other| other.name.value() == method.name.value())
            {
                let text = format!(
                    "methods `{}` and `{}` have the same name in their paths, `{}`: `#[name = \"..\"]` gives one of them another",
                    other.ident,
                    method.ident,
                    method.name.value()
                );
                return Err(Error::new(method.name.span(), text));
            }
            methods.push(method);
        }
        Ok(Self {
            options,
            attributes: item.attrs,
            visibility: item.vis,
            ident: item.ident,
            supertraits: item.supertraits.into_iter().collect(),
            methods,
        })
    }
}

impl Codec {
    /// Refuses arguments that the codec does not have.
    fn check(&self, method: &Method) -> syn::Result<()> {
        if !matches!(self, Self::Prost) {
            return Ok(());
        }
        let ident = &method.ident;
        if let Some(rest) = &method.rest {
            let text = format!(
                "argument `{}` is marked `#[bytes]`, which the codec \"prost\" does not have",
                rest.ident
            );
            return Err(Error::new(rest.ident.span(), text));
        }
        if let Some(second) = method.arguments.get(1) {
            let text = format!(
                "argument `{}`: with the codec \"prost\" a method has one argument, a message, and `{ident}` has {}",
                second.ident,
                method.arguments.len()
            );
            return Err(Error::new(second.ident.span(), text));
        }
        Ok(())
    }
}
