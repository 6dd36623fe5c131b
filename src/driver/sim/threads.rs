//! Queues with threads: the same engine as on a real kernel, fed by the simulated disk.
//!
//! ```text
//!   serve: reserve the tags ─> ThreadSet, a WirePort a thread ─> Up, Fetched ─> START_DEV goes on
//!   stop, or tags come back ─> threads end ─> Down ─> mapping and ring are let go
//! ```
//!
//! Invariant: what a thread tells takes effect on the kernel's own thread, in the order it was told.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::device::{Device, FileHolder, Refusal};
use super::file::FileReference;
use super::kernel::{Kernel, refuse};
use super::wire::{Told, WirePort};
use crate::driver::queue::{Buffers, PortSetup, ThreadSet};
use crate::driver::{QueueSet, ServePlan};

/// Starts the queue threads of `device`.
pub(super) fn start(
    kernel: &Rc<Kernel>,
    device: &Rc<Device>,
    plan: &ServePlan,
) -> Box<dyn QueueSet> {
    let depth = plan.queues.depth;
    let reserved: Vec<Result<(), Refusal>> =
        (0..plan.queues.count).map(|queue| device.reserve(queue, depth)).collect();
    let (told, heard) = unbounded_channel();
    let wires = Arc::clone(&device.wires);
    // The simulated kernel's pages are the queue's own buffers, whatever the mode.
    let set = ThreadSet::start(plan, Buffers::Memory, move |setup: PortSetup<'_>| {
        let fetch = reserved.get(usize::from(setup.queue.queue.0)).copied().unwrap_or(Ok(()));
        refuse(fetch).map_err(|error| error.command("FETCH_REQ"))?;
        Ok(WirePort::new(&setup, Arc::clone(&wires), told.clone()))
    });
    kernel.work.spawn(listen(Rc::clone(kernel), Rc::clone(device), depth, heard));
    Box::new(set)
}

/// Lets what the threads tell take effect, until the last one has ended.
async fn listen(
    kernel: Rc<Kernel>,
    device: Rc<Device>,
    depth: u16,
    mut heard: UnboundedReceiver<Told>,
) {
    let mut held = BTreeMap::new();
    while let Some(told) = heard.recv().await {
        match told {
            Told::Up(queue) => {
                let holders = [FileHolder::Map, FileHolder::Ring];
                let taken = holders.map(|holder| FileReference::new(&kernel, &device, holder));
                held.insert(queue, taken);
                kernel.threads.set(kernel.threads.get() + 1);
            }
            Told::Fetched(_) => device.fetched(depth),
            Told::Down(queue) => {
                kernel.threads.set(kernel.threads.get() - 1);
                device.lost_server();
                held.remove(&queue);
            }
        }
    }
    kernel.journal.note(Some(device.id), "queues ended", None);
}
