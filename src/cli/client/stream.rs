//! Server-sent events out of the bytes of a stream, however they are cut.

/// Longest event; one of ublkd's has a few hundred bytes.
const LONGEST: usize = 1 << 20;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Item {
    /// Its number, where it has one.
    pub(crate) id: Option<String>,
    /// Which kind of event.
    pub(crate) event: String,
    pub(crate) data: String,
}

/// Collects bytes until an event is complete. Comments (heartbeats) are passed over.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    line: Vec<u8>,
    item: Item,
    size: usize,
}

impl Reader {
    /// Takes more bytes; gives the events that they complete.
    ///
    /// # Errors
    /// When an event has no end, or is no text.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Item>, &'static str> {
        let mut items = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.size += 1;
                if self.size > LONGEST {
                    return Err("an event without an end");
                }
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8(line).map_err(|_| "an event that is not UTF-8")?;
            let line = line.strip_suffix('\r').unwrap_or(&line);
            if line.is_empty() {
                self.size = 0;
                let item = std::mem::take(&mut self.item);
                if !item.data.is_empty() {
                    items.push(item);
                }
            } else {
                self.field(line);
            }
        }
        Ok(items)
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.item.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.item.event),
            "data" => {
                if !self.item.data.is_empty() {
                    self.item.data.push('\n');
                }
                self.item.data.push_str(value);
            }
            // A comment has no name; others mean nothing here. A heartbeat without a blank line
            // after it does not add up to a long event.
            _ => self.size = self.item.data.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &str = ": hello\n\nid: 1\nevent: state\ndata: {\"a\":1}\n\n: beat\n\r\n\
                          event: lost\r\ndata: x\r\ndata:y\r\n\r\nid: 3\n\ndata: half";

    fn items() -> Vec<Item> {
        vec![
            Item { id: Some("1".into()), event: "state".into(), data: "{\"a\":1}".into() },
            Item { id: None, event: "lost".into(), data: "x\ny".into() },
        ]
    }

    proptest! {
        #[test]
        fn events_are_the_same_however_the_bytes_are_cut(cuts in prop::collection::vec(0..STREAM.len(), 0..20)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut reader = Reader::default();
            let (mut seen, mut at) = (Vec::new(), 0);
            for cut in cuts.into_iter().chain([STREAM.len()]) {
                seen.extend(reader.push(&STREAM.as_bytes()[at..cut]).expect("events"));
                at = cut;
            }
            prop_assert_eq!(seen, items());
        }

        #[test]
        fn garbage_does_no_harm(bytes: Vec<u8>) {
            let _ = Reader::default().push(&bytes);
        }
    }

    #[test]
    fn an_event_without_an_end_is_refused_and_heartbeats_are_not_one() {
        let mut reader = Reader::default();
        for _ in 0..200_000 {
            assert_eq!(reader.push(b": heartbeat\n"), Ok(Vec::new()));
        }
        let long = vec![b'x'; LONGEST + 1];
        assert!(reader.push(&long).is_err());
    }
}
