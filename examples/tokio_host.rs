//! A host on tokio: many devices at once, results as they come, everything down at the end.

mod common;

use std::time::Duration;

use common::Outcome;
use futures::StreamExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let (driver, host) = common::driver()?;
    let running = ublkd::Builder::new(driver).workers(8).start()?;
    let handle = running.handle();

    let specs: Outcome<Vec<_>> = (0..16).map(|n| common::ram(&format!("vol-{n}"))).collect();
    let mut created = std::pin::pin!(handle.create_all(specs?));
    while let Some((name, result)) = created.next().await {
        let device = result?;
        println!("{name} is {}", device.id.block_path());
        let disk = host.open(device.id)?;
        tokio::task::spawn_blocking(move || disk.check()).await??;
    }
    println!("{} devices", handle.list().await?.len());

    let report = running.shutdown(Duration::from_secs(30)).await?;
    assert!(report.is_clean(), "{:?}", report.left);
    println!("all gone in {:.3} s", report.wall.as_secs_f64());
    Ok(())
}
