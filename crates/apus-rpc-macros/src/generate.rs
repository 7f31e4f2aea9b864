//! The code: the trait, the client, the server.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::ext::IdentExt;

use crate::method::{Argument, Method};
use crate::plan::ServicePlan;

/// All code of a service.
pub(crate) fn generate(plan: &ServicePlan) -> TokenStream {
    let (service, client, server) = (service(plan), client(plan), server(plan));
    quote! { #service #client #server }
}

fn service(plan: &ServicePlan) -> TokenStream {
    let ServicePlan { attributes, visibility, ident, supertraits, .. } = plan;
    let methods = plan.methods.iter().map(|method| {
        let Method { attributes, ident, context, result, .. } = method;
        let arguments = method
            .all_arguments()
            .map(|Argument { ident, ty, attributes }| quote!(#(#attributes)* #ident: #ty));
        let arguments = quote!(&self, #context, #(#arguments),*);
        if method.is_blocking {
            let body = method.body.as_ref().map_or_else(|| quote!(;), |body| quote!(#body));
            return quote!(#(#attributes)* fn #ident(#arguments) -> #result #body);
        }
        let body = method.body.as_ref();
        let body = body.map_or_else(|| quote!(;), |body| quote!({ async move #body }));
        quote! {
            #(#attributes)*
            fn #ident(#arguments)
                -> impl ::core::future::Future<Output = #result> + ::core::marker::Send #body
        }
    });
    quote! {
        #(#attributes)*
        #visibility trait #ident:
            #(#supertraits +)* ::core::marker::Send + ::core::marker::Sync + 'static
        {
            #(#methods)*
        }
    }
}

/// The constant with the facts of a method.
fn constant(method: &Method) -> syn::Ident {
    format_ident!("__{}", method.ident.unraw().to_string().to_uppercase())
}

fn client(plan: &ServicePlan) -> TokenStream {
    let ServicePlan { options, visibility, ident, .. } = plan;
    let client = format_ident!("{ident}Client");
    let name = &options.name;
    let about = format!("Calls the service `{name}`. Clones share the channel.");
    let constants = plan.methods.iter().map(|method| {
        let (constant, is_idempotent) = (constant(method), method.is_idempotent);
        let path = format!("/{name}/{}", method.name.value());
        quote! {
            const #constant: ::apus_rpc::generated::TypedMethod = ::apus_rpc::generated::TypedMethod {
                path: #path,
                is_idempotent: #is_idempotent,
                schema: #client::schema,
            };
        }
    });
    let methods = plan.methods.iter().map(|method| client_method(plan, method));
    let schema = schema(plan);
    quote! {
        #[doc = #about]
        #[derive(Clone, Debug)]
        #visibility struct #client {
            channel: ::apus_rpc::Channel,
        }

        impl #client {
            #(#constants)*

            /// A client on this channel.
            #[must_use]
            pub fn new(channel: ::apus_rpc::Channel) -> Self {
                Self { channel }
            }

            /// The channel.
            #[must_use]
            pub fn channel(&self) -> &::apus_rpc::Channel {
                &self.channel
            }

            #schema

            #(#methods)*
        }
    }
}

fn client_method(plan: &ServicePlan, method: &Method) -> TokenStream {
    let codec = &plan.options.codec;
    let Method { attributes, ident, response, .. } = method;
    let constant = constant(method);
    // Attributes such as `must_use` are about the result of the handler.
    let attributes = attributes.iter().filter(|it| !it.path().is_ident("must_use"));
    if let Some((argument, request)) = &method.requests {
        let name = argument.ident.unraw().to_string();
        let call = if method.is_response_stream {
            quote!(::apus_rpc::DuplexCall)
        } else {
            quote!(::apus_rpc::RequestStreamCall)
        };
        return quote! {
            #(#attributes)*
            pub fn #ident(&self) -> #call<'_, #codec, #request, #response> {
                #call::new(&self.channel, Self::#constant, #name)
            }
        };
    }
    let parameters = method.all_arguments().map(|argument| {
        let Argument { ident, ty, .. } = argument;
        if argument.is_lenient() {
            quote!(#ident: impl ::core::convert::Into<#ty>)
        } else {
            quote!(#ident: #ty)
        }
    });
    let value = |argument: &Argument| {
        let Argument { ident, ty, .. } = argument;
        if argument.is_lenient() {
            quote!(&::core::convert::Into::<#ty>::into(#ident))
        } else {
            quote!(&#ident)
        }
    };
    let pushes = method.arguments.iter().map(|argument| {
        let (name, ty, value) = (argument.ident.unraw().to_string(), &argument.ty, value(argument));
        quote!(__arguments.push::<#ty>(#name, #value);)
    });
    let rest = method.rest.iter().map(|argument| {
        let Argument { ident, ty, .. } = argument;
        quote!(__arguments.push_rest(::core::convert::Into::<#ty>::into(#ident));)
    });
    let (call, made) = if method.is_response_stream {
        (quote!(::apus_rpc::ResponseStreamCall), quote!(stream_call))
    } else {
        (quote!(::apus_rpc::TypedCall), quote!(call))
    };
    quote! {
        #(#attributes)*
        pub fn #ident(&self, #(#parameters),*) -> #call<'_, #codec, #response> {
            #[allow(unused_mut, reason = "a method without arguments adds none")]
            let mut __arguments = ::apus_rpc::generated::ArgumentWriter::<#codec>::new();
            #(#pushes)*
            #(#rest)*
            __arguments.#made(&self.channel, Self::#constant)
        }
    }
}

/// The function that makes the schema.
fn schema(plan: &ServicePlan) -> TokenStream {
    let (name, codec) = (&plan.options.name, &plan.options.codec);
    let methods = plan.methods.iter().map(|method| {
        let (name, is_idempotent, response) =
            (&method.name, method.is_idempotent, &method.response);
        let arguments = method.arguments.iter().map(|Argument { ident, ty, .. }| {
            let name = ident.unraw().to_string();
            quote!(.argument::<#ty>(#name))
        });
        let rest = method.rest.iter().map(|Argument { ident, .. }| {
            let name = ident.unraw().to_string();
            quote!(.rest(#name))
        });
        let requests = method.requests.iter().map(|(Argument { ident, .. }, request)| {
            let name = ident.unraw().to_string();
            quote!(.requests::<#request>(#name))
        });
        let returns =
            if method.is_response_stream { quote!(returns_stream) } else { quote!(returns) };
        quote! {
            __schema.method(#name, #is_idempotent) #(#arguments)* #(#rest)* #(#requests)*
                .#returns::<#response>();
        }
    });
    quote! {
        /// The methods and their types, for a test that compares them with a file.
        #[must_use]
        pub fn schema() -> ::apus_rpc::schema::Schema {
            #[allow(unused_mut, reason = "a service without methods adds none")]
            let mut __schema = ::apus_rpc::generated::SchemaBuilder::<#codec>::new(#name);
            #(#methods)*
            __schema.finish()
        }
    }
}

fn server(plan: &ServicePlan) -> TokenStream {
    let ServicePlan { options, visibility, ident, .. } = plan;
    let (client, server) = (format_ident!("{ident}Client"), format_ident!("{ident}Server"));
    let name = &options.name;
    let about = format!(
        "Serves the service `{name}` by an implementation of [`{ident}`]. Clones share the implementation."
    );
    let methods = plan.methods.iter().map(|method| server_method(plan, method));
    let blocking = plan
        .methods
        .iter()
        .any(|method| method.is_blocking)
        .then(|| quote!(let __threads = ::apus_rpc::generated::BlockingThreads::default();));
    quote! {
        #[doc = #about]
        #visibility struct #server<T> {
            service: ::std::sync::Arc<T>,
        }

        impl<T: #ident> #server<T> {
            /// A server of this implementation.
            #[must_use]
            pub fn new(service: T) -> Self {
                Self::from_arc(::std::sync::Arc::new(service))
            }

            /// A server of an implementation that other parts of the program use as well.
            #[must_use]
            pub fn from_arc(service: ::std::sync::Arc<T>) -> Self {
                Self { service }
            }
        }

        impl<T> ::core::clone::Clone for #server<T> {
            fn clone(&self) -> Self {
                Self { service: ::std::sync::Arc::clone(&self.service) }
            }
        }

        impl<T> ::core::fmt::Debug for #server<T> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(::core::stringify!(#server)).finish_non_exhaustive()
            }
        }

        impl<T: #ident> ::apus_rpc::Service for #server<T> {
            fn add_to(
                self,
                __server: ::apus_rpc::ServerBuilder<'_>,
            ) -> ::apus_rpc::ServerBuilder<'_> {
                #blocking
                let __server = ::apus_rpc::generated::describe(__server, #name, #client::schema);
                #(#methods)*
                __server
            }
        }
    }
}

/// The code that reads the arguments of a method from `__input`.
struct ArgumentReads {
    locals: Vec<syn::Ident>,
    reads: Vec<TokenStream>,
}

impl ArgumentReads {
    fn new(method: &Method) -> Self {
        // Names of the program's arguments and of this code do not meet.
        let locals: Vec<_> =
            (0..method.all_arguments().count()).map(|it| format_ident!("__a{it}")).collect();
        let mut names = locals.iter();
        let reads: Vec<_> = method
            .arguments
            .iter()
            .zip(&mut names)
            .map(|(Argument { ident, ty, .. }, local)| {
                let name = ident.unraw().to_string();
                quote!(let #local = __input.next::<#ty>(#name)?;)
            })
            .collect();
        let rest = method.rest.iter().zip(names).map(|(Argument { ident, .. }, local)| {
            let name = ident.unraw().to_string();
            quote!(let #local = __input.split_rest(#name)?;)
        });
        let reads = rest.chain(reads).collect();
        Self { locals, reads }
    }
}

fn server_method(plan: &ServicePlan, method: &Method) -> TokenStream {
    if method.requests.is_some() || method.is_response_stream {
        return stream_method(plan, method);
    }
    let ServicePlan { options, ident: service, .. } = plan;
    let (codec, client) = (&options.codec, format_ident!("{service}Client"));
    let Method { ident, response, .. } = method;
    let constant = constant(method);
    let ArgumentReads { locals, reads } = ArgumentReads::new(method);
    let call = if method.is_blocking {
        quote! {
            __threads.run(__cx, move |__cx| {
                <T as #service>::#ident(&__service, __cx, #(#locals),*)
            }).await
        }
    } else {
        quote!(<T as #service>::#ident(&__service, &__cx, #(#locals),*).await)
    };
    let threads = method
        .is_blocking
        .then(|| quote!(let __threads = ::core::clone::Clone::clone(&__threads);));
    let threads_inside = threads.clone();
    quote! {
        let __server = {
            let __service = ::std::sync::Arc::clone(&self.service);
            #threads
            ::apus_rpc::generated::add_method(
                __server,
                #client::#constant,
                move |__cx, __body| {
                    let __service = ::std::sync::Arc::clone(&__service);
                    #threads_inside
                    async move {
                        #[allow(unused_mut, unused_variables, reason = "a method may have no arguments")]
                        let mut __input = ::apus_rpc::generated::ArgumentReader::<#codec>::new(
                            #client::#constant,
                            __body,
                        );
                        #(#reads)*
                        let __response: #response = #call?;
                        ::apus_rpc::generated::respond::<#codec, #response>(
                            #client::#constant,
                            &__response,
                        )
                    }
                },
            )
        };
    }
}

/// A method with streams at the server.
fn stream_method(plan: &ServicePlan, method: &Method) -> TokenStream {
    let ServicePlan { options, ident: service, .. } = plan;
    let (codec, client) = (&options.codec, format_ident!("{service}Client"));
    let Method { ident, response, .. } = method;
    let constant = constant(method);
    let ArgumentReads { locals, reads } = ArgumentReads::new(method);
    let reads = if let Some((argument, request)) = &method.requests {
        let (local, name) = (&locals[0], argument.ident.unraw().to_string());
        quote! {
            let #local = ::apus_rpc::generated::typed_requests::<#codec, #request>(
                #client::#constant,
                __requests,
                #name,
            );
        }
    } else {
        quote! {
            #[allow(unused_mut, unused_variables, reason = "a method may have no arguments")]
            let mut __input = ::apus_rpc::generated::read_arguments::<#codec>(
                #client::#constant,
                __requests,
            )
            .await?;
            #(#reads)*
        }
    };
    let respond = if method.is_response_stream {
        quote! {
            ::apus_rpc::generated::send_responses::<#codec, #response>(
                #client::#constant,
                __value,
                __responses,
            )
            .await
        }
    } else {
        quote! {
            ::apus_rpc::generated::send_response::<#codec, #response>(
                #client::#constant,
                &__value,
                __responses,
            )
            .await
        }
    };
    quote! {
        let __server = {
            let __service = ::std::sync::Arc::clone(&self.service);
            ::apus_rpc::generated::add_stream_method(
                __server,
                #client::#constant,
                move |__cx, __requests, __responses| {
                    let __service = ::std::sync::Arc::clone(&__service);
                    async move {
                        #reads
                        let __value =
                            <T as #service>::#ident(&__service, &__cx, #(#locals),*).await?;
                        #respond
                    }
                },
            )
        };
    }
}
