//! An open `/dev/ublkcN`.

use std::fs::File;
use std::sync::Arc;

use super::batch::BatchPort;
use super::port::UblkPort;
use super::requests::Transfer;
use crate::driver::queue::{Buffers, ThreadSet};
use crate::driver::{CharDevice, Features, QueueSet, ServePlan};
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
        let transfer = Transfer::of(plan.features, plan.target.data_use());
        let buffers = match transfer {
            Transfer::Registered => Buffers::Registered,
            Transfer::Kernel | Transfer::User | Transfer::None => Buffers::Memory,
        };
        let set = if plan.features.has(Features::BATCH_IO) {
            ThreadSet::start(&plan, buffers, move |setup| BatchPort::new(&file, &setup, transfer))
        } else {
            ThreadSet::start(&plan, buffers, move |setup| UblkPort::new(&file, &setup, transfer))
        };
        Ok(Box::new(set))
    }
}
