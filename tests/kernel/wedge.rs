//! Commands that never end. A start that nobody serves is one: it waits for the queues.

use std::rc::Rc;
use std::time::{Duration, Instant};

use ublkd::driver::deadline::Deadline;
use ublkd::driver::ublk::UblkDriver;
use ublkd::driver::{AddDevice, Command, Driver, Features, Params};
use ublkd::model::{DeviceId, Error, ErrorKind, QueueSpec};
use ublkd::target::Geometry;

use crate::support::{delete, freed, run};

async fn configured(driver: &dyn Driver) -> Result<DeviceId, Error> {
    let queues = QueueSpec { count: 1, depth: 4, max_io: 64 << 10 };
    let add = AddDevice { id: None, queues, features: Features::NONE };
    let id = driver.add(add).await?.id;
    let params =
        Params { geometry: Geometry::new(1 << 20, 512), max_io: 64 << 10, memory_alignment: None };
    driver.execute(Command::SetParams(id, params)).await?;
    Ok(id)
}

#[test]
fn f01_a_delete_waits_for_the_char_device_and_goes_on_when_it_is_closed() -> Result<(), Error> {
    run(async |_| {
        let driver = Deadline::new(Rc::new(UblkDriver::open(4)?), Duration::from_secs(1));
        let id = configured(&driver).await?;
        let node = driver.open(id).await?;
        let waiting = driver.execute(Command::Delete(id));
        let error = waiting.await.expect_err("the char device is open");
        assert_eq!(error.kind(), ErrorKind::Wedged, "{error}");
        assert!(error.to_string().contains("DEL_DEV"), "{error}");
        drop(node);
        freed(&driver, id).await
    })
}

#[test]
fn f19_starts_that_never_end_keep_nothing_from_working() -> Result<(), Error> {
    run(async |patient| {
        let limit = Duration::from_millis(300);
        let hasty = Deadline::new(Rc::new(UblkDriver::open(4)?), limit);
        let mut wedged = Vec::new();
        // More than are meant to be in flight at a time.
        for _ in 0..12 {
            wedged.push(configured(&hasty).await?);
        }
        let starts: Vec<_> = wedged.iter().map(|id| hasty.execute(Command::Start(*id))).collect();
        for start in starts {
            let error = start.await.expect_err("nobody serves it");
            assert_eq!(error.kind(), ErrorKind::Wedged, "{error}");
            let text = error.to_string();
            assert!(text.contains("START_DEV") && text.contains("see dmesg"), "{text}");
        }
        let began = Instant::now();
        let other = configured(&hasty).await?;
        delete(&hasty, other).await?;
        println!("another device came and went in {:?} meanwhile", began.elapsed());

        let began = Instant::now();
        drop(hasty);
        let parted = began.elapsed();
        println!("the driver was dropped in {parted:?} with 12 commands out");
        assert!(parted < Duration::from_secs(3));
        for id in wedged {
            delete(patient, id).await?;
            freed(patient, id).await?;
        }
        Ok(())
    })
}
