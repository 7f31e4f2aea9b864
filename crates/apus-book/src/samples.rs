//! The pages with Rust samples.

macro_rules! pages {
    ($($name:ident = $page:literal,)+) => {
        $(
            #[doc = include_str!(concat!("../../../", $page))]
            mod $name {}
        )+
    };
}

pages! {
    readme = "README.md",
    start = "docs/start.md",
    services = "docs/services.md",
    service = "docs/service.md",
    call = "docs/call.md",
    streams = "docs/streams.md",
    zeromq = "docs/zeromq.md",
    errors = "docs/errors.md",
    settings = "docs/settings.md",
    security = "docs/security.md",
}
