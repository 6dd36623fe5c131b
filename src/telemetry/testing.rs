//! Sinks for the tests of this room.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};

/// Keeps what is written.
#[derive(Clone, Default)]
pub(super) struct Sink(Arc<Mutex<(Vec<u8>, usize)>>);

impl Sink {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").0.clone()).expect("UTF-8")
    }

    pub(super) fn writes(&self) -> usize {
        self.0.lock().expect("no panic").1
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.lock().expect("no panic");
        inner.0.extend_from_slice(bytes);
        inner.1 += 1;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps every writer waiting until it is released, as a full pipe does.
#[derive(Clone, Default)]
pub(super) struct Stuck {
    sink: Sink,
    open: Arc<(Mutex<bool>, Condvar)>,
}

impl Stuck {
    pub(super) fn release(&self) {
        *self.open.0.lock().expect("no panic") = true;
        self.open.1.notify_all();
    }

    pub(super) fn text(&self) -> String {
        self.sink.text()
    }

    pub(super) fn lines(&self) -> usize {
        self.text().lines().count()
    }
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let open = self.open.0.lock().expect("no panic");
        drop(self.open.1.wait_while(open, |open| !*open).expect("no panic"));
        self.sink.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
