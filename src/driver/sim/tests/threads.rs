//! Real queue threads under the simulated kernel, in real time.

use std::sync::Mutex;
use std::time::Duration;

use futures::future::try_join_all;
use nix::libc;
use tokio::time::{sleep, timeout};

use super::*;
use crate::driver::QueueEvent;
use crate::driver::sim::SimDisk;
use crate::model::{DeviceSpec, FaultSpec, Processors, QueueId, TargetSpec};
use crate::sys::affinity;
use crate::target::{Errno, Op, Registry, Request};

const LIMIT: Duration = Duration::from_secs(20);

fn in_real_time<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), test)
}

fn driver() -> SimDriver {
    let profile = KernelProfile::linux_7_3();
    SimDriver::new(profile, FaultPlan::none(), QueueMode::Threads)
}

fn ram(faults: FaultSpec) -> Result<Arc<dyn Target>, Error> {
    let name = DeviceName::new("vol").expect("a name");
    let spec = DeviceSpec::builder(name, TargetSpec::Ram { size: 1 << 20 }).faults(faults);
    Registry::default().open(&spec.build()?)
}

struct Live {
    server: Server,
    disk: SimDisk,
    told: Arc<Mutex<Vec<QueueEvent>>>,
}

async fn live(driver: &SimDriver, faults: FaultSpec, drain: Duration) -> Result<Live, Error> {
    let mut server = Server::added(driver).await?;
    let told = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&told);
    let mut plan = plan(server.id, Arc::new(move |e| events.lock().expect("no panic").push(e)));
    (plan.target, plan.drain) = (ram(faults)?, drain);
    let char = driver.open(server.id).await?;
    let mut queues = char.serve(plan)?;
    queues.ready().await?;
    (server.char, server.queues) = (Some(char), Some(queues));
    driver.execute(Command::Start(server.id)).await?;
    let disk = driver.disk(server.id)?;
    Ok(Live { server, disk, told })
}

/// Does something blocking on a thread, so that the kernel's goes on.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || drop(done.send(work())));
    let result = timeout(LIMIT, is_done).await.expect("in time").expect("an answer");
    thread.join().expect("no panic");
    result
}

#[test]
fn what_is_written_is_read_back_through_the_target() -> Outcome {
    in_real_time(async {
        let driver = driver();
        let Live { server, disk, .. } = live(&driver, FaultSpec::default(), DRAIN).await?;
        let snapshot = driver.snapshot();
        let seen = &snapshot.devices[0];
        assert_eq!((seen.fds, seen.maps, seen.rings, snapshot.queue_threads), (1, 2, 2, 2));
        let data: Vec<u8> = (0..300_u32 << 10).map(|i| (i % 251) as u8).collect();
        let written = data.clone();
        let read = on_a_thread(move || {
            let mut read = vec![0; written.len()];
            disk.write_at(4096, &written)?;
            disk.flush()?;
            disk.read_at(4096, &mut read)?;
            Ok::<_, Errno>(read)
        });
        assert!(read.await.is_ok_and(|read| read == data));
        let stats = server.queues.as_ref().map(|queues| queues.stats()).unwrap_or_default();
        assert_eq!((stats.flush.requests, stats.write.bytes), (1, 300 << 10));
        assert_eq!(server.queues.as_ref().map(|queues| queues.tids().len()), Some(2));
        timeout(LIMIT, server.torn_down()).await??;
        sleep(Duration::from_millis(50)).await;
        assert!(driver.snapshot().is_empty(), "{}", driver.snapshot());
        Ok(())
    })
}

#[test]
fn each_thread_is_asked_to_run_on_its_queues_processors() -> Outcome {
    /// Tells, by queue, where the queue's thread may run when it opens its half.
    struct Spy(Mutex<Vec<(QueueId, Processors)>>);
    impl Target for Spy {
        fn geometry(&self) -> Geometry {
            params().geometry
        }
        fn open_queue(self: Arc<Self>, queue: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
            self.0.lock().expect("no panic").push((queue.queue, affinity::allowed()?));
            ram(FaultSpec::default())?.open_queue(queue)
        }
    }
    in_real_time(async {
        let profile = KernelProfile { processors: 4, ..KernelProfile::linux_7_3() };
        let driver = SimDriver::new(profile, FaultPlan::none(), QueueMode::Threads);
        let mut server = Server::added(&driver).await?;
        let asked = [0, 1].map(|n| asked(&driver).queue_affinity(server.id, QueueId(n)));
        let halves = try_join_all(asked).await?;
        assert_eq!(halves.iter().map(ToString::to_string).collect::<Vec<_>>(), ["0-1", "2-3"]);

        let mut plan = plan(server.id, Arc::new(|_| {}));
        let spy = Arc::new(Spy(Mutex::default()));
        (plan.target, plan.affinity) = (Arc::clone(&spy) as Arc<dyn Target>, halves.clone());
        let char = driver.open(server.id).await?;
        let mut queues = char.serve(plan)?;
        queues.ready().await?;
        // The host of the test may have fewer processors than the simulated one.
        let host = affinity::allowed()?;
        let cut = halves.iter().map(|half| half.and(&host));
        let bound: Vec<_> = cut.map(|left| Some(left).filter(|left| !left.is_empty())).collect();
        assert_eq!(queues.processors(), bound);
        let mut seen = spy.0.lock().expect("no panic").clone();
        seen.sort_by_key(|seen| seen.0);
        let runs: Vec<_> = seen.into_iter().map(|seen| seen.1).collect();
        assert_eq!(runs, bound.iter().map(|bound| bound.unwrap_or(host)).collect::<Vec<_>>());
        (server.char, server.queues) = (Some(char), Some(queues));
        timeout(LIMIT, server.torn_down()).await??;
        Ok(())
    })
}

#[test]
fn many_users_at_once_get_every_answer() -> Outcome {
    in_real_time(async {
        let driver = driver();
        let Live { server, disk, .. } = live(&driver, FaultSpec::default(), DRAIN).await?;
        let users: Vec<_> = (0..4_u64)
            .map(|user| {
                let disk = disk.clone();
                on_a_thread(move || {
                    for turn in 0..200_u64 {
                        let (at, byte) = ((user * 200 + turn) * 512, (user + turn) as u8);
                        disk.write_at(at, &[byte; 512])?;
                        let mut read = [0; 512];
                        disk.read_at(at, &mut read)?;
                        assert_eq!(read, [byte; 512]);
                    }
                    Ok::<_, Errno>(())
                })
            })
            .collect();
        for user in futures::future::join_all(users).await {
            assert_eq!(user, Ok(()));
        }
        timeout(LIMIT, disk.drained()).await?;
        timeout(LIMIT, server.torn_down()).await??;
        Ok(())
    })
}

#[test]
fn f04_stop_waits_until_the_threads_have_served_what_is_in_flight() -> Outcome {
    in_real_time(async {
        let driver = driver();
        let slow = FaultSpec { delay: Some(Duration::from_millis(300)), ..FaultSpec::default() };
        let Live { server, disk, .. } = live(&driver, slow, DRAIN).await?;
        // More than there are tags, so that some wait in the mailbox.
        let reads: Vec<_> = (0..20)
            .map(|i| disk.submit(Request::new(Op::Read, i * 512, 512), vec![9; 512]))
            .collect();
        let (stopped, took) = timed(server.stop()).await;
        stopped?;
        assert!(took >= Duration::from_millis(300 * 3), "{took:?}");
        for read in reads {
            assert_eq!(read.await, Ok(vec![0; 512]));
        }
        timeout(LIMIT, server.torn_down()).await??;
        Ok(())
    })
}

#[test]
fn f76_a_panicking_target_is_told_and_answers_eio_until_the_device_is_stopped() -> Outcome {
    in_real_time(async {
        let driver = driver();
        let faults = FaultSpec { panic_at: Some(42), ..FaultSpec::default() };
        let Live { mut server, disk, told } = live(&driver, faults, DRAIN).await?;
        let bad = disk.submit(Request::new(Op::Read, 42 * 512, 512), vec![0; 512]);
        assert_eq!(bad.await, Err(Errno(libc::EIO)));
        let queue = match &told.lock().expect("no panic")[..] {
            [QueueEvent::Panicked(queue, _)] => *queue,
            other => return Err(format!("{other:?}").into()),
        };
        // The two queues take turns.
        let later = [0, 1].map(|i| disk.submit(Request::new(Op::Read, i * 512, 512), vec![0; 512]));
        let answers = futures::future::join_all(later).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
        server.stop().await?;
        let exits = timeout(LIMIT, server.join()).await?;
        let panicked = |cause: &QueueExitCause| matches!(cause, QueueExitCause::Panicked(_));
        assert_eq!(exits.iter().position(panicked), Some(usize::from(queue.0)));
        timeout(LIMIT, server.torn_down()).await??;
        Ok(())
    })
}

#[test]
fn f38_a_thread_that_cannot_open_its_half_leaves_nothing_behind() -> Outcome {
    in_real_time(async {
        let driver = driver();
        let mut server = Server::added(&driver).await?;
        let char = driver.open(server.id).await?;
        // `Untouched` panics when a queue opens its half.
        let mut queues = char.serve(plan(server.id, Arc::new(|_| {})))?;
        let refused = timeout(LIMIT, queues.ready()).await?;
        assert!(refused.is_err_and(|error| error.to_string().contains("do not ask the target")));
        (server.char, server.queues) = (Some(char), Some(queues));
        timeout(LIMIT, server.torn_down()).await??;
        sleep(Duration::from_millis(50)).await;
        assert!(driver.snapshot().is_empty(), "{}", driver.snapshot());
        Ok(())
    })
}

#[test]
fn threads_that_are_asked_to_end_early_abandon_what_they_serve() -> Outcome {
    in_real_time(async {
        let driver = driver();
        let stuck = FaultSpec { delay: Some(LIMIT * 10), ..FaultSpec::default() };
        let drain = Duration::from_millis(100);
        let Live { mut server, disk, .. } = live(&driver, stuck, drain).await?;
        let read = disk.submit(Request::new(Op::Read, 0, 512), vec![0; 512]);
        sleep(Duration::from_millis(50)).await;
        let exits = timeout(LIMIT, server.join()).await?;
        assert_eq!(exits, [QueueExitCause::Abandoned(4), QueueExitCause::Abandoned(4)]);
        assert_eq!(timeout(LIMIT, read).await?, Err(Errno(libc::EIO)));
        let late = disk.submit(Request::new(Op::Read, 0, 512), vec![0; 512]);
        assert_eq!(timeout(LIMIT, late).await?, Err(Errno(libc::EIO)));
        timeout(LIMIT, server.torn_down()).await??;
        sleep(Duration::from_millis(50)).await;
        assert!(driver.snapshot().is_empty(), "{}", driver.snapshot());
        Ok(())
    })
}

#[test]
fn a_stop_that_others_send_ends_the_threads() -> Outcome {
    in_real_time(async {
        let driver = driver();
        let Live { mut server, told, .. } = live(&driver, FaultSpec::default(), DRAIN).await?;
        driver.execute(Command::Stop(server.id)).await?;
        let Some(queues) = &mut server.queues else { return Err("no queues".into()) };
        let exits = timeout(LIMIT, queues.join()).await?;
        assert!(exits.iter().all(|exit| exit.cause == QueueExitCause::Stopped), "{exits:?}");
        let told = std::mem::take(&mut *told.lock().expect("no panic"));
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told.iter().all(|event| matches!(event, QueueEvent::TakenAway(_))), "{told:?}");
        timeout(LIMIT, server.torn_down()).await??;
        Ok(())
    })
}
