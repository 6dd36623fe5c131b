//! "Did you mean": what to say about a word that is none of those that were expected.

/// The candidate that `word` was most likely meant to be, if one is near.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace(['_', '-'], "");
    let word = plain(word);
    let distance = |candidate: &'a str| {
        let plain = plain(candidate);
        let distance = strsim::damerau_levenshtein(&word, &plain);
        // `queueDepth` is far from `depth` by letters, and yet surely meant it.
        let within = |a: &str, b: &str| a.len() > 2 && b.contains(a);
        let near = distance <= 1 + plain.len() / 4;
        let near = near || within(&plain, &word) || within(&word, &plain);
        near.then_some((distance, candidate))
    };
    candidates.into_iter().filter_map(distance).min().map(|(_, candidate)| candidate)
}

/// Says what was expected instead of `word`: the nearest candidate, or all of them.
pub(super) fn instead(word: &str, candidates: &[&str]) -> String {
    match nearest(word, candidates.iter().copied()) {
        Some(candidate) => format!("did you mean {candidate}?"),
        None => format!("expected {}", candidates.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f80_the_near_word_is_found_and_a_far_one_is_not_guessed() {
        let keys = ["queues", "depth", "max_io", "id"];
        for (word, meant) in [
            ("dept", "depth"),
            ("queueDepth", "depth"),
            ("QUEUE_DEPTH", "depth"),
            ("Queues", "queues"),
            ("maxio", "max_io"),
            ("ID", "id"),
        ] {
            assert_eq!(nearest(word, keys), Some(meant), "{word}");
        }
        assert_eq!(instead("colour", &keys), "expected queues, depth, max_io, id");
    }
}
