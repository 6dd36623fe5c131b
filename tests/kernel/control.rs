//! Control commands against the kernel.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use ublkd::driver::{AddDevice, Command, Features, KernelState, Params, Reply};
use ublkd::model::{DeviceId, Error, ErrorKind, QueueSpec};
use ublkd::target::{Discard, Geometry};

use crate::support::{delete, freed, run};

fn add(id: Option<DeviceId>) -> AddDevice {
    let queues = QueueSpec { count: 1, depth: 16, max_io: 128 << 10 };
    AddDevice { id, queues, features: Features::NONE }
}

#[test]
fn a_device_is_added_configured_and_deleted() -> Result<(), Error> {
    run(async |driver| {
        let features = driver.features().await?;
        println!("features {features:?}");
        assert!(features.has(Features::CMD_IOCTL_ENCODE));

        let device = driver.add(add(None)).await?;
        assert_eq!(device.state, KernelState::Dead);
        assert_eq!(device.queues, add(None).queues);
        assert_eq!(device.pid, 0);
        assert_eq!(driver.info(device.id).await?, device);
        assert!(driver.list()?.contains(&device.id));

        let mut geometry = Geometry::new(1 << 30, 4096);
        geometry.discard =
            Some(Discard { granularity: 4096, max_discard: 1 << 20, max_write_zeroes: 1 << 20 });
        geometry.volatile_cache = true;
        geometry.fua = true;
        let params = Params { geometry, max_io: 128 << 10, memory_alignment: None };
        driver.execute(Command::SetParams(device.id, params)).await?;
        let told = driver.execute(Command::GetParams(device.id)).await?;
        assert_eq!(told, Reply::Params(params));

        delete(driver, device.id).await?;
        freed(driver, device.id).await?;
        assert!(!driver.list()?.contains(&device.id));
        Ok(())
    })
}

#[test]
fn f14_deleting_what_is_gone_is_told_as_not_found() -> Result<(), Error> {
    run(async |driver| {
        let id = driver.add(add(None)).await?.id;
        delete(driver, id).await?;
        for command in [Command::Delete(id), Command::DeleteAsync(id), Command::Stop(id)] {
            let error = driver.execute(command).await.expect_err("it is gone");
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert!(error.to_string().contains(&format!("id {id}")), "{error}");
        }
        Ok(())
    })
}

#[test]
fn f92_refusals_say_what_and_why() -> Result<(), Error> {
    run(async |driver| {
        let id = driver.add(add(None)).await?.id;
        let taken = driver.add(add(Some(id))).await.expect_err("the id is taken");
        assert_eq!(taken.kind(), ErrorKind::Exists, "{taken}");
        let mut nonsense = add(None);
        nonsense.queues.depth = 0;
        let refused = driver.add(nonsense).await.expect_err("queues without tags");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        println!("{refused}");
        let params = Params {
            geometry: Geometry::new(1 << 20, 512),
            max_io: 1 << 20,
            memory_alignment: None,
        };
        let refused = driver.execute(Command::SetParams(id, params)).await;
        let refused = refused.expect_err("requests larger than the buffers");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        println!("{refused}");
        delete(driver, id).await
    })
}

#[test]
fn f27_many_commands_are_in_flight_at_a_time() -> Result<(), Error> {
    run(async |driver| {
        let began = Instant::now();
        let devices = try_join_all((0..200).map(|_| driver.add(add(None)))).await?;
        let added = began.elapsed();
        let began = Instant::now();
        try_join_all(devices.iter().map(|device| delete(driver, device.id))).await?;
        println!("200 added in {added:?}, deleted in {:?}", began.elapsed());
        let left = driver.list()?;
        assert!(devices.iter().all(|device| !left.contains(&device.id)), "{left:?}");
        Ok(())
    })
}

#[test]
fn f23_a_char_device_that_somebody_looks_into_is_opened_afterwards() -> Result<(), Error> {
    run(async |driver| {
        let id = driver.add(add(None)).await?.id;
        let looking = File::options().read(true).write(true).open(id.char_path());
        let looking = looking.expect("the node");
        let open = driver.open(id);
        let look = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            drop(looking);
        };
        let (opened, ()) = futures::join!(open, look);
        // While we have it nobody else gets it, and that is an error in the end.
        let opened = opened?;
        let began = Instant::now();
        let refused = driver.open(id).await.map(|_| ()).expect_err("it is open");
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        println!("{refused}");
        drop(opened);
        delete(driver, id).await
    })
}

#[test]
fn f25_the_limit_on_devices_is_named_where_the_kernel_has_one() -> Result<(), Error> {
    const LIMIT: &str = "/sys/module/ublk_drv/parameters/ublks_max";
    run(async |driver| {
        let before = fs::read_to_string(LIMIT).expect("a parameter");
        let devices = driver.list()?.len();
        fs::write(LIMIT, (devices + 1).to_string()).expect("the parameter takes it");
        let first = driver.add(add(None)).await?.id;
        let second = driver.add(add(None)).await;
        fs::write(LIMIT, before).expect("the parameter takes it");
        match second {
            // Newer kernels bound the devices of users without rights only.
            Ok(device) => delete(driver, device.id).await?,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
                let (max, used) = (devices + 1, devices + 1);
                let limit = format!("ublks_max is {max} and {used} devices exist");
                assert!(error.to_string().contains(&limit), "{error}");
                println!("{error}");
            }
        }
        delete(driver, first).await
    })
}
