//! An open `/dev/ublkcN`.

use std::fs::File;
use std::sync::Arc;

use super::port::UblkPort;
use crate::driver::queue::ThreadSet;
use crate::driver::{CharDevice, QueueSet, ServePlan};
use crate::model::Error;

/// The char device of one device. The kernel lets it be open once.
pub(super) struct CharNode {
    /// Shared with the queue threads: it is closed when the last of them has ended.
    file: Arc<File>,
}

impl CharNode {
    pub(super) fn new(file: File) -> Self {
        Self { file: Arc::new(file) }
    }
}

impl CharDevice for CharNode {
    fn serve(&self, plan: ServePlan) -> Result<Box<dyn QueueSet>, Error> {
        let file = Arc::clone(&self.file);
        Ok(Box::new(ThreadSet::start(&plan, move |setup| UblkPort::new(&file, &setup))))
    }
}
