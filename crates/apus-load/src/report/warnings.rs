//! Similar warnings about several subjects, put together.

/// Warnings by kind, in the order of each kind's first warning: the kind's text, then all its warnings.
pub(super) fn by_kind(texts: &[String]) -> Vec<(String, Vec<&str>)> {
    let mut kinds: Vec<(String, Vec<&str>)> = Vec::new();
    for text in texts {
        let kind = kind_of(text);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, texts)) => texts.push(text),
            None => kinds.push((kind, vec![text])),
        }
    }
    kinds
}

/// The text of a warning without its subject, which ends at a colon, and without its numbers.
fn kind_of(text: &str) -> String {
    let said = text.split_once(": ").map_or(text, |(_, said)| said);
    let words = said.split(' ').map(|word| {
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        if is_number { "…" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_and_numbers_do_not_make_a_kind() {
        let texts = [
            "tcp-epoll at 2 Gb/s: the generator was late: 1.5 % of calls",
            "apus-udp: some data was retransmitted",
            "apus-udp at 60 %: the generator was late: 11.9 % of calls",
        ]
        .map(str::to_owned);
        let kinds = by_kind(&texts);
        assert_eq!(kinds.len(), 2);
        assert_eq!(
            kinds[0],
            (
                "the generator was late: … % of calls".to_owned(),
                vec![texts[0].as_str(), texts[2].as_str()]
            )
        );
    }
}
