//! A host without any runtime: plain threads create and delete devices at the same time.

mod common;

use std::time::Duration;

use common::Outcome;
use futures::executor::block_on;

fn main() -> Outcome {
    let (driver, host) = common::driver()?;
    let running = ublkd::Builder::new(driver).start()?;

    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let (handle, host) = (running.handle(), &host);
                scope.spawn(move || -> Outcome {
                    let spec = common::ram(&format!("thread-{n}"))?;
                    let device = block_on(handle.create(spec))?;
                    host.open(device.id)?.check()?;
                    println!("{} is {}", device.name, device.id.block_path());
                    block_on(handle.delete(&device.name))?;
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked")?)
    })?;

    let report = block_on(running.shutdown(Duration::from_secs(30)))?;
    assert!(report.is_clean(), "{:?}", report.left);
    println!("all gone");
    Ok(())
}
