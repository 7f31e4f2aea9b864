//! The attribute `service` of [apus-rpc](https://docs.rs/apus-rpc), which exports it.
//!
//! | file | contents |
//! |---|---|
//! | `options.rs` | the arguments of the attribute |
//! | `method.rs`, `stream.rs` | a method of the trait; its streams |
//! | `parts.rs` | parts of types |
//! | `plan.rs` | the whole trait |
//! | `generate.rs` | the code |

#![forbid(unsafe_code)]

use proc_macro::TokenStream;

mod generate;
mod method;
mod options;
mod parts;
mod plan;
mod stream;
#[cfg(test)]
mod tests;

/// Makes a typed service of a trait: a client, a server, and a schema.
///
/// ```ignore
/// #[apus_rpc::service(name = "shop.Calc")]
/// pub trait Calc {
///     /// Adds two numbers.
///     #[idempotent]
///     async fn add(&self, cx: &Context, a: i64, b: i64) -> Result<i64, Status>;
///
///     #[blocking]
///     fn hash(&self, cx: &Context, seed: u64, #[bytes] data: Bytes) -> Result<[u8; 32], Status>;
/// }
/// ```
///
/// A trait `Calc` gives
///
/// * `CalcClient`, with a method for each of the trait. The result is a call that is awaited, or `.wait()` blocks; `.deadline(..)`
///   and `.metadata(..)` are set before. Arguments of the types `String` and `Bytes` take all that is `Into` these;
/// * `CalcServer<T>` for an implementation `T` of the trait: `Server::builder(&node).add(CalcServer::new(MyCalc))`;
/// * `CalcClient::schema()`, which a test compares with a file.
///
/// The trait itself gets the supertraits `Send + Sync + 'static`, and the futures of its methods are `Send`. An implementation
/// writes `async fn`. A method with a body in the trait has it as its default.
///
/// # Arguments of the attribute
///
/// * `name`: the name of the service in paths, of letters, digits, `_` and `.`, such as `"shop.Calc"`. Required.
/// * `codec`: `"postcard"` (default), `"json"`, `"prost"`, or the path of a type that implements `Codec`.
///
/// # Methods
///
/// The first two arguments are `&self` and the context, `cx: &Context`; the others are the request. The result is
/// `Result<RESPONSE, Status>`. The path of a method `list_prices` is `/shop.Calc/ListPrices`.
///
/// | arguments and result | client |
/// |---|---|
/// | values, one value | `calc.add(1, 2).await?`, `calc.add(1, 2).wait()?` |
/// | values, `Result<impl Stream<Item = Result<RESPONSE, Status>>, Status>` | `let mut responses = calc.watch("ABC").await?` |
/// | `parts: Streaming<REQUEST>`, one value | `let (mut parts, response) = calc.upload().start()?` |
/// | `lines: Streaming<REQUEST>`, `Result<impl Stream<..>, Status>` | `let (mut lines, mut responses) = calc.chat().start()?` |
///
/// A stream of requests is the only argument. A stream of responses may borrow the service and the context; its future and the
/// stream are `Send`. Methods with streams are `async`, and calls of them are not repeated.
///
/// * `#[idempotent]`: the method may be repeated.
/// * `#[blocking]`, on a method without `async`: it runs on a thread of its own, up to 64 for a service, and may block it.
/// * `#[name = "Sum"]`: the name of the method in its path.
/// * `#[bytes]`, on the last argument, of type `Bytes`: it lies behind the others in the message, and the server gets a slice of the
///   message instead of a copy.
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    match expand(options.into(), item.into()) {
        Ok(code) => code.into(),
        Err(error) => error.into_compile_error().into(),
    }
}

/// The code for a trait.
fn expand(
    options: proc_macro2::TokenStream,
    item: proc_macro2::TokenStream,
) -> syn::Result<proc_macro2::TokenStream> {
    let options = syn::parse2::<options::Options>(options)?;
    let service = plan::ServicePlan::new(options, syn::parse2(item)?)?;
    Ok(generate::generate(&service))
}
