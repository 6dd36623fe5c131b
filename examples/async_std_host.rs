//! A host on async-std: the handle's futures need no runtime of a certain kind.

mod common;

use std::time::Duration;

use common::Outcome;

fn main() -> Outcome {
    async_std::task::block_on(async {
        let (driver, host) = common::driver()?;
        let running = ublkd::Builder::new(driver).start()?;
        let handle = running.handle();

        let device = async_std::task::spawn({
            let (handle, spec) = (handle.clone(), common::ram("from-async-std")?);
            async move { handle.create(spec).await }
        })
        .await?;
        let disk = host.open(device.id)?;
        async_std::task::spawn_blocking(move || disk.check()).await?;
        println!("{} is {}", device.name, device.id.block_path());

        let report = running.shutdown(Duration::from_secs(30)).await?;
        assert!(report.is_clean(), "{:?}", report.left);
        println!("all gone");
        Ok(())
    })
}
