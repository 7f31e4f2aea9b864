//! Each misuse has an error that names the argument, its value and the allowed ones, at the place in the source.

use proc_macro2::TokenStream;

use crate::expand;

/// The error for a trait, and the source at which it points.
fn error(options: &str, item: &str) -> (String, String) {
    let parse = |text: &str| text.parse::<TokenStream>().expect("tokens");
    let error = expand(parse(options), parse(item)).expect_err("misuse");
    let place = error.span().source_text().unwrap_or_default();
    (error.to_string(), place)
}

/// The error of a trait with one method.
fn in_method(method: &str) -> (String, String) {
    error("name = \"shop.Calc\"", &format!("trait Calc {{ {method} }}"))
}

#[track_caller]
fn assert_error((text, place): (String, String), expected: &str, at: &str) {
    assert_eq!((text.as_str(), place.as_str()), (expected, at));
}

#[test]
fn options() {
    let trait_ = "trait Calc {}";
    assert_error(
        error("nam = \"a\"", trait_),
        "argument `nam`: allowed are `name` and `codec`",
        "nam",
    );
    let expected = "argument `name` is \"shop Calc\": allowed are letters, digits and `_`, in parts with `.` between, as \"shop.Calc\"";
    assert_error(error("name = \"shop Calc\"", trait_), expected, "\"shop Calc\"");
    let expected = "argument `codec` is \"bincode\": allowed are \"postcard\", \"json\", \"prost\", and the path of a type that implements `Codec`, without quotes";
    assert_error(error("name = \"a.B\", codec = \"bincode\"", trait_), expected, "\"bincode\"");
    assert_error(
        error("name = \"a\", name = \"b\"", trait_),
        "argument `name` is given twice",
        "name",
    );
    let (text, _) = error("codec = \"json\"", trait_);
    assert_eq!(text, "argument `name` is missing: expected `name = \"package.Service\"`");
}

#[test]
fn traits() {
    let name = "name = \"a.B\"";
    let generic = error(name, "trait Calc<T> {}");
    assert_error(generic, "trait `Calc` is generic: a service is not", "T");
    let unsafe_ = error(name, "unsafe trait Calc {}");
    assert_error(unsafe_, "trait `Calc` is unsafe: a service is not", "unsafe");
    let constant = error(name, "trait Calc { const A: u8; }");
    let expected = "trait `Calc` has an item that is no method: a service has methods only";
    assert_eq!(constant.0, expected);
    let twice = "trait Calc {
        async fn a_b(&self, cx: &Context) -> Result<(), Status>;
        #[name = \"AB\"] async fn other(&self, cx: &Context) -> Result<(), Status>;
    }";
    let expected = "methods `a_b` and `other` have the same name in their paths, `AB`: `#[name = \"..\"]` gives one of them another";
    assert_error(error(name, twice), expected, "\"AB\"");
}

#[test]
fn kinds_of_methods() {
    assert_error(
        in_method("fn add(&self, cx: &Context) -> Result<(), Status>;"),
        "method `add` is neither `async` nor marked `#[blocking]`",
        "add",
    );
    assert_error(
        in_method("#[blocking] async fn add(&self, cx: &Context) -> Result<(), Status>;"),
        "method `add` is `async` and marked `#[blocking]`: expected one of them",
        "blocking",
    );
    assert_error(
        in_method("async fn add<T>(&self, cx: &Context) -> Result<(), Status>;"),
        "method `add` is generic: a method of a service is not",
        "<",
    );
    assert_error(
        in_method("async fn new(&self, cx: &Context) -> Result<(), Status>;"),
        "method `new`: each client has a method of this name; `#[name = \"..\"]` gives another method this name in its path",
        "new",
    );
    assert_error(
        in_method("#[retry] async fn add(&self, cx: &Context) -> Result<(), Status>;"),
        "attribute `retry`: allowed are `idempotent`, `blocking`, `name`, and `doc`, `allow`, `expect`, `warn`, `deprecated`, `must_use`",
        "retry",
    );
    assert_error(
        in_method(
            "#[name = \"__describe\"] async fn add(&self, cx: &Context) -> Result<(), Status>;",
        ),
        "name \"__describe\": allowed are letters, digits and `_`, and no `__` at the beginning",
        "\"__describe\"",
    );
}

#[test]
fn first_arguments() {
    assert_error(
        in_method("async fn add(&mut self, cx: &Context) -> Result<(), Status>;"),
        "receiver `&mut self` of method `add`: expected `&self`",
        "&mut self",
    );
    assert_error(
        in_method("async fn add(cx: &Context) -> Result<(), Status>;"),
        "method `add` has no `&self`, its first argument",
        "cx: &Context",
    );
    assert_error(
        in_method("async fn add(&self, a: i64) -> Result<(), Status>;"),
        "argument `a` of method `add` is `i64`: the argument after `&self` is the context, `cx: &Context`",
        "i64",
    );
    assert_error(
        in_method("async fn add(&self) -> Result<(), Status>;"),
        "method `add`: the argument after `&self` is the context, `cx: &Context`",
        "add",
    );
}

#[test]
fn arguments() {
    assert_error(
        in_method("async fn add(&self, cx: &Context, a: &str) -> Result<(), Status>;"),
        "argument `a` is `&str`: an argument owns its data, as `String` and `Vec<T>` do",
        "&str",
    );
    assert_error(
        in_method("async fn add(&self, cx: &Context, (a, b): (u8, u8)) -> Result<(), Status>;"),
        "argument `(a, b)`: expected a name",
        "(a, b)",
    );
    assert_error(
        in_method("async fn add(&self, cx: &Context, #[bytes] a: Vec<u8>) -> Result<(), Status>;"),
        "argument `a` is marked `#[bytes]` and has the type `Vec<u8>`: expected `Bytes`",
        "Vec<u8>",
    );
    assert_error(
        in_method(
            "async fn add(&self, cx: &Context, #[bytes] a: Bytes, b: u8) -> Result<(), Status>;",
        ),
        "argument `a` is marked `#[bytes]` and is not the last one: `b` follows",
        "a",
    );
    let prost = |method: &str| {
        error("name = \"a.B\", codec = \"prost\"", &format!("trait B {{ {method} }}"))
    };
    assert_error(
        prost("async fn add(&self, cx: &Context, a: A, b: B) -> Result<A, Status>;"),
        "argument `b`: with the codec \"prost\" a method has one argument, a message, and `add` has 2",
        "b",
    );
    assert_error(
        prost("async fn add(&self, cx: &Context, #[bytes] a: Bytes) -> Result<A, Status>;"),
        "argument `a` is marked `#[bytes]`, which the codec \"prost\" does not have",
        "a",
    );
}

#[test]
fn results() {
    assert_error(
        in_method("async fn add(&self, cx: &Context);"),
        "method `add` returns nothing: expected `Result<RESPONSE, Status>`",
        "add",
    );
    assert_error(
        in_method("async fn add(&self, cx: &Context) -> Option<u8>;"),
        "method `add` returns `Option<u8>`: expected `Result<RESPONSE, Status>`",
        "Option<u8>",
    );
    assert_error(
        in_method("async fn add(&self, cx: &Context) -> Result<u8, String>;"),
        "the error of method `add` is `String`: expected `Status`",
        "String",
    );
}

#[test]
fn streams_of_requests() {
    let takes = |arguments: &str| {
        in_method(&format!("async fn put(&self, cx: &Context, {arguments}) -> Result<u8, Status>;"))
    };
    assert_error(
        takes("parts: Streaming"),
        "argument `parts` is `Streaming`: expected `Streaming<REQUEST>`",
        "Streaming",
    );
    assert_error(
        takes("name: String, parts: Streaming<Part>"),
        "argument `parts` of method `put` is a stream, which is the only argument: `name` is another",
        "name",
    );
    assert_error(
        takes("parts: Streaming<Part>, #[bytes] data: Bytes"),
        "argument `parts` of method `put` is a stream, which is the only argument: `data` is another",
        "data",
    );
    assert_error(
        takes("#[bytes] parts: Streaming<Bytes>"),
        "argument `parts` is a stream and is marked `#[bytes]`, which is for an argument `Bytes`",
        "bytes",
    );
    assert_error(
        takes("parts: Streaming<Part>, more: Streaming<Part>"),
        "argument `parts` of method `put` is a stream, which is the only argument: `more` is another",
        "more",
    );
    assert_error(
        takes("parts: impl Stream<Item = Result<Part, Status>>"),
        "argument `parts` is `impl Stream<Item = Result<Part, Status>>`: expected `Streaming<REQUEST>` for a stream of requests",
        "impl Stream<Item = Result<Part, Status>>",
    );
}

#[test]
fn streams_of_responses() {
    let gives = |result: &str| {
        in_method(&format!("async fn get(&self, cx: &Context) -> Result<{result}, Status>;"))
    };
    for result in [
        "impl Stream",
        "impl Stream<Item = u8>",
        "impl Stream<Item = Result<u8, String>>",
        "impl Stream<Item = Result<u8>> + Send",
        "Streaming<u8>",
    ] {
        let expected = format!(
            "the response of method `get` is `{result}`: expected `impl Stream<Item = Result<RESPONSE, Status>>`"
        );
        assert_error(gives(result), &expected, result);
    }
    assert_error(
        gives("impl Debug"),
        "the response of method `get` is `impl Debug`: expected a type",
        "impl Debug",
    );
}

#[test]
fn marks_of_streams() {
    assert_error(
        in_method(
            "#[idempotent] async fn put(&self, cx: &Context, parts: Streaming<Part>) -> Result<u8, Status>;",
        ),
        "method `put` has a stream and is marked `#[idempotent]`: calls with streams are not repeated",
        "idempotent",
    );
    assert_error(
        in_method(
            "#[blocking] fn get(&self, cx: &Context) -> Result<impl Stream<Item = Result<u8, Status>>, Status>;",
        ),
        "method `get` has a stream and is marked `#[blocking]`: a method with streams is `async`",
        "blocking",
    );
}
