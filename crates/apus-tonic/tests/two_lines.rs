//! Programs of tonic become programs of Apus by a change of one line in the client and one in the server.
//!
//! Each pair of examples, for TCP and for Apus, is compiled with the tests. The files in `two_lines/` are all that differs.

/// Applies the part of a diff that is about this file. Each removed line occurs once, and the added ones take its place.
fn apply(diff: &str, file: &str, program: &str) -> String {
    let head = format!("+++ b/{file}\n");
    let (_, part) = diff.split_once(&head).expect("the diff has the file");
    let part = part.split("--- a/").next().expect("split gives a first part");
    let lines = |mark: char| part.lines().filter_map(move |line| line.strip_prefix(mark));
    let removed: Vec<_> = lines('-').collect();
    let added: String = lines('+').map(|line| format!("{line}\n")).collect();
    let [removed] = removed[..] else { panic!("{file} loses more than one line") };
    let removed = format!("{removed}\n");
    assert_eq!(program.matches(&removed).count(), 1, "the line occurs once in {file}");
    program.replace(&removed, &added)
}

#[test]
fn helloworld_changes_one_line_on_each_side() {
    let diff = include_str!("two_lines/helloworld.diff");
    assert_eq!(diff.lines().filter(|line| line.starts_with("+ ")).count(), 2);
    let client = include_str!("../examples/helloworld_client_tcp.rs");
    let server = include_str!("../examples/helloworld_server_tcp.rs");
    assert_eq!(apply(diff, "client.rs", client), include_str!("../examples/helloworld_client.rs"));
    assert_eq!(apply(diff, "server.rs", server), include_str!("../examples/helloworld_server.rs"));
}

#[test]
fn routeguide_changes_one_line_on_each_side() {
    let diff = include_str!("two_lines/routeguide.diff");
    // `RouteGuideClient::connect` is a function for TCP: a channel and a client are two lines.
    assert_eq!(diff.lines().filter(|line| line.starts_with("+ ")).count(), 3);
    let client = include_str!("../examples/routeguide_client_tcp.rs");
    let server = include_str!("../examples/routeguide_server_tcp.rs");
    assert_eq!(apply(diff, "client.rs", client), include_str!("../examples/routeguide_client.rs"));
    assert_eq!(apply(diff, "server.rs", server), include_str!("../examples/routeguide_server.rs"));
}
