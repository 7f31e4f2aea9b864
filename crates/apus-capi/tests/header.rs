//! The header, the library and the manual pages have the same functions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

use object::{Object, ObjectSymbol};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn header() -> String {
    fs::read_to_string(here("include/apus/apus.h")).unwrap()
}

/// A function of the header.
struct Function {
    name: String,
    /// The lines of its comment.
    comment: Vec<String>,
    /// Its declaration, on one line.
    declaration: String,
}

/// The functions of the header, which has a comment in front of each declaration.
fn functions() -> Vec<Function> {
    let header = header();
    let declarations = header.split("extern \"C\" {").nth(1).expect("the header has functions");
    let (mut functions, mut comment, mut declaration) = (Vec::new(), Vec::new(), String::new());
    for line in declarations.lines().map(str::trim) {
        match line {
            "/**" => comment.clear(),
            "*/" | "" => {}
            _ if line.starts_with('*') => {
                let text = line[1..].strip_prefix(' ').unwrap_or_default();
                comment.push(text.to_owned());
            }
            _ if line.starts_with('#') || line.starts_with('}') => {}
            _ => {
                declaration.push_str(line);
                if line.ends_with(';') {
                    let declaration = std::mem::take(&mut declaration);
                    let name = declaration.split('(').next().unwrap();
                    let name = name.rsplit([' ', '*']).next().unwrap().to_owned();
                    functions.push(Function { name, comment: comment.clone(), declaration });
                } else {
                    declaration.push(' ');
                }
            }
        }
    }
    functions
}

#[test]
fn the_library_exports_the_functions_of_the_header() {
    let library = env::current_exe().unwrap().with_file_name("libapus_capi.so");
    let library = fs::read(library).expect("cargo builds the library before its tests");
    let library = object::File::parse(&*library).expect("it is an ELF file");
    let symbols = library.dynamic_symbols().filter(ObjectSymbol::is_definition);
    let exported: BTreeSet<String> =
        symbols.map(|symbol| symbol.name().expect("a name is text").to_owned()).collect();
    assert_eq!(exported, functions().into_iter().map(|function| function.name).collect());
}

/// cbindgen, which `.ci/c` runs, makes the header. This finds a forgotten run without it.
#[test]
fn the_header_has_the_comments_of_the_sources() {
    let documented: BTreeSet<String> = functions().iter().map(|it| it.comment.join(" ")).collect();
    let mut count = 0;
    for file in fs::read_dir(here("src")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let mut comment = Vec::new();
        for line in text.lines() {
            if let Some(text) = line.strip_prefix("///") {
                comment.push(text.trim().to_owned());
            } else if line.starts_with("#[unsafe(no_mangle)]") {
                assert!(documented.contains(&comment.join(" ")), "apus.h is old: {comment:?}");
                count += 1;
            } else {
                comment.clear();
            }
        }
    }
    assert_eq!(count, functions().len());
}

/// `.ci/c` compares types and functions as well, where libabigail is installed.
#[test]
fn members_of_structures_keep_their_places() {
    use std::mem::offset_of;

    use apus_capi::{apus_address, apus_call_options, apus_completion, apus_stat, apus_trace};

    assert_eq!(offset_of!(apus_address, family), 4);
    assert_eq!(offset_of!(apus_address, port), 6);
    assert_eq!(offset_of!(apus_address, udp_port), 8);
    assert_eq!(offset_of!(apus_address, scope_id), 12);
    assert_eq!(offset_of!(apus_address, ip), 16);
    assert_eq!(offset_of!(apus_trace, span_id), 16);
    assert_eq!(offset_of!(apus_trace, flags), 24);
    assert_eq!(size_of::<apus_trace>(), 32);
    assert_eq!(offset_of!(apus_call_options, flags), 4);
    assert_eq!(offset_of!(apus_call_options, deadline_ns), 8);
    assert_eq!(offset_of!(apus_call_options, trace), 16);
    assert_eq!(offset_of!(apus_completion, error), 4);
    assert_eq!(offset_of!(apus_completion, tag), 8);
    assert_eq!(offset_of!(apus_completion, message), 16);
    assert_eq!(offset_of!(apus_completion, may_have_executed), 24);
    assert_eq!(offset_of!(apus_stat, name), 8);
    assert_eq!(offset_of!(apus_stat, value), 16);
    // Later versions may be longer.
    assert!(size_of::<apus_address>() >= 32 && size_of::<apus_call_options>() >= 48);
    assert!(size_of::<apus_completion>() >= 32 && size_of::<apus_stat>() >= 24);
}

/// `UPDATE_EXPECT=1 cargo test -p apus-capi --test header` writes the pages.
#[test]
fn the_manual_pages_are_those_of_the_header() {
    let directory = here("man");
    let functions = functions();
    let pages: Vec<(String, String)> = functions
        .iter()
        .map(|function| (format!("{}.3", function.name), page(function, &functions)))
        .collect();
    if env::var_os("UPDATE_EXPECT").is_some() {
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        for (name, page) in &pages {
            fs::write(directory.join(name), page).unwrap();
        }
    }
    let expected: BTreeSet<&String> = pages.iter().map(|(name, _)| name).collect();
    let found: Vec<String> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let hint = "UPDATE_EXPECT=1 cargo test -p apus-capi --test header";
    assert_eq!(found.iter().collect::<BTreeSet<_>>(), expected, "{hint}");
    for (name, page) in &pages {
        assert!(fs::read_to_string(directory.join(name)).unwrap() == *page, "{name}: {hint}");
    }
}

/// The manual page of a function, for `man`.
fn page(function: &Function, all: &[Function]) -> String {
    let Function { name, comment, declaration } = function;
    let (returns, described): (Vec<String>, Vec<String>) =
        paragraphs(comment).into_iter().partition(|text| text.starts_with("Returns "));
    let all_text = comment.join(" ");
    let short = all_text.split(['.', ':', ';']).next().unwrap_or_default();
    let mut page = format!(
        ".\\\" Made from apus.h; do not edit.\n.TH {} 3 \"\" \"Apus {}\" \"Apus for C\"\n",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    );
    let mut section = |title: &str, text: &str| {
        page.push_str(&format!(".SH {title}\n{text}\n"));
    };
    section("NAME", &format!("{name} \\- {}", roff(&lower(short))));
    section("LIBRARY", "Apus (libapus, \\-lapus; pkg\\-config apus)");
    let lines: Vec<String> =
        roff(declaration).split(", ").map(|line| format!(".BI \"{line}")).collect();
    let prototype = lines.join(",\"\n").replace("\n.BI \"", "\n.BI \"    ") + "\"";
    section("SYNOPSIS", &format!(".nf\n.B #include <apus/apus.h>\n.PP\n{prototype}\n.fi"));
    if !described.is_empty() {
        section(
            "DESCRIPTION",
            &described.iter().map(|it| roff(it)).collect::<Vec<_>>().join("\n.PP\n"),
        );
    }
    if !returns.is_empty() {
        section(
            "RETURN VALUE",
            &returns.iter().map(|it| roff(it)).collect::<Vec<_>>().join("\n.PP\n"),
        );
    }
    // Errors are numbers of functions with handles.
    if declaration.starts_with("int32_t") && declaration.contains('*') {
        section("ERRORS", ERRORS);
    }
    section("THREADS", if name.ends_with("_free") { FREEING } else { THREADS });
    let mentioned = all.iter().filter(|other| other.name != *name);
    let mut also: Vec<&str> = mentioned
        .filter(|other| all_text.contains(&format!("{}()", other.name)))
        .map(|other| other.name.as_str())
        .collect();
    if name != "apus_last_error" && !also.contains(&"apus_last_error") {
        also.push("apus_last_error");
    }
    let also: Vec<String> = also.iter().map(|other| format!(".BR {other} (3)")).collect();
    section("SEE ALSO", &also.join(",\n"));
    page
}

const ERRORS: &str = "NULL and values that are not allowed are\n.BR APUS_EINVAL ,\n\
    and handles of the parent of a forked process\n.BR APUS_EFORKED .\n\
    .BR apus_last_error (3)\nhas the text of the last error of the calling thread.";
const THREADS: &str = "Any number of threads may call the function at once, with the same handles.";
const FREEING: &str = "No other thread may use the handle.";

/// The paragraphs of a comment, each on one line.
fn paragraphs(comment: &[String]) -> Vec<String> {
    let paragraphs = comment.split(|line| line.is_empty()).map(|lines| lines.join(" "));
    paragraphs.filter(|text| !text.is_empty()).collect()
}

/// Text for troff: names in backticks are bold, and the characters that it interprets are escaped.
fn roff(text: &str) -> String {
    let mut escaped = text.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    let mut bold = true;
    while escaped.contains('`') {
        escaped = escaped.replacen('`', if bold { "\\fB" } else { "\\fR" }, 1);
        bold = !bold;
    }
    match escaped.starts_with(['.', '\'']) {
        true => format!("\\&{escaped}"),
        false => escaped,
    }
}

fn lower(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
