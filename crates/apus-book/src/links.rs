//! Links of the pages to files of the repository.

use serde_json::Value;

/// The repository's files as GitHub shows them.
const REPOSITORY: &str = "https://github.com/apus-rpc/apus/blob/main/";

/// The directory of the pages, below the root of the repository.
const PAGES: &str = "docs";

/// Redirects the links of all chapters of a book. `input` is the text that mdBook gives to a preprocessor: an array of the context and
/// the book. Returns the book.
///
/// # Errors
///
/// When the input is not such an array.
pub fn preprocess(input: &str) -> Result<Value, serde_json::Error> {
    let (_context, mut book): (Value, Value) = serde_json::from_str(input)?;
    redirect_below(&mut book);
    Ok(book)
}

/// A chapter is an object with a text and the path of its page; chapters contain chapters.
fn redirect_below(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(redirect_below),
        Value::Object(fields) => {
            if let (Some(Value::String(text)), Some(Value::String(page))) =
                (fields.get("content"), fields.get("path"))
            {
                let redirected = redirect(page, text);
                fields.insert("content".to_owned(), Value::String(redirected));
            }
            fields.values_mut().for_each(redirect_below);
        }
        _ => {}
    }
}

/// The text of a page with its links out of the book redirected to the repository. `page` is the path of the page below `docs/`.
/// Blocks of code stay as they are.
#[must_use]
pub fn redirect(page: &str, text: &str) -> String {
    let mut in_code = false;
    let mut redirected = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        in_code ^= line.trim_start().starts_with("```");
        if in_code {
            redirected.push_str(line);
            continue;
        }
        let mut parts = line.split("](");
        redirected.extend(parts.next());
        for part in parts {
            redirected.push_str("](");
            let end = part.find(')').unwrap_or(part.len());
            let (target, rest) = part.split_at(end);
            match outside(page, target) {
                Some(file) => redirected.extend([REPOSITORY, &file]),
                None => redirected.push_str(target),
            }
            redirected.push_str(rest);
        }
    }
    redirected
}

/// The path of a link's target from the root of the repository, if the target is outside of the book or a directory, for which the book
/// has no page.
fn outside(page: &str, target: &str) -> Option<String> {
    if target.contains(':') {
        return None;
    }
    let (file, anchor) = target.split_at(target.find('#').unwrap_or(target.len()));
    let directory = page.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut path = vec![PAGES];
    for part in directory.split('/').chain(file.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(path.pop()),
            part => path.push(part),
        }
    }
    let is_directory = path.last().is_some_and(|name| !file.is_empty() && !name.contains('.'));
    (path.first() != Some(&PAGES) || is_directory).then(|| path.join("/") + anchor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_lead_to_the_repository_and_others_stay() {
        let text = "[a](../SECURITY.md#reporting), [b](links.md#settings), [c](#here)\n\
                    and [d](https://example.org/../x.md).\n```text\n[e](../a.md)\n```\n![f](images/f.svg)\n";
        assert_eq!(
            redirect("sockets.md", text),
            "[a](https://github.com/apus-rpc/apus/blob/main/SECURITY.md#reporting), [b](links.md#settings), [c](#here)\n\
             and [d](https://example.org/../x.md).\n```text\n[e](../a.md)\n```\n![f](images/f.svg)\n"
        );
    }

    #[test]
    fn a_page_of_a_folder_leaves_the_book_by_two_steps() {
        assert_eq!(redirect("measurements/deep.md", "[a](../links.md)"), "[a](../links.md)");
        assert_eq!(
            redirect("measurements/deep.md", "[a](../../plans/x.toml)"),
            "[a](https://github.com/apus-rpc/apus/blob/main/plans/x.toml)"
        );
    }

    #[test]
    fn a_directory_is_shown_by_the_repository() {
        assert_eq!(
            redirect("lessons.md", "[a](measurements/loaded) [b](#n1)"),
            "[a](https://github.com/apus-rpc/apus/blob/main/docs/measurements/loaded) [b](#n1)"
        );
    }

    #[test]
    fn every_chapter_of_a_book_is_redirected() {
        let input = r#"[{"root": "/"}, {"items": [{"Chapter": {"content": "[a](../A.md)", "path": "a.md", "sub_items":
            [{"Chapter": {"content": "[b](../B.md)", "path": "b.md", "sub_items": []}}]}}, "Separator"]}]"#;
        let book = preprocess(input).expect("it is an array of two").to_string();
        assert!(book.contains("main/A.md)") && book.contains("main/B.md)"), "{book}");
        assert!(preprocess("{}").is_err());
    }
}
