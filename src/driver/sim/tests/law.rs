//! What removals cost, in numbers that follow from the law of shared grace periods.

use std::time::Duration;

use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Only waits for grace periods cost time: 10 ms each, 5 in a stop, 2 ms for the last reference.
fn exact() -> KernelProfile {
    let mut profile = KernelProfile::linux_7_3().grace_only();
    profile.costs.grace = 10 * MS;
    profile.costs.stop_graces = 5;
    profile.costs.last_reference = 2 * MS;
    profile.costs.last_reference_locked = 17 * MS;
    profile
}

async fn live(driver: &SimDriver, count: usize) -> Result<Vec<Server>, Error> {
    try_join_all((0..count).map(|_| Server::live(driver))).await
}

/// Tears `servers` down, `workers` at once, and says how long it took.
async fn tear_down<F>(
    servers: Vec<Server>,
    workers: usize,
    one: fn(Server) -> F,
) -> Result<Duration, Error>
where
    F: Future<Output = Result<(), Error>>,
{
    let all = stream::iter(servers).map(Ok).try_for_each_concurrent(workers, one);
    let (done, took) = timed(all).await;
    done.map(|()| took)
}

#[test]
fn serial_removal_costs_n_times_what_overlapped_removal_costs_once() -> Outcome {
    on_virtual_time(async {
        let driver = sim(exact());
        let n = 100;
        // A stop waits for five periods; the first reference that is asked about is gone by then.
        let stops = 5 * 10 * MS;

        let servers = live(&driver, n).await?;
        let serial = tear_down(servers, 1, |s| async move { s.stop().await }).await?;
        assert_eq!(serial, stops * 100);

        let servers = live(&driver, n).await?;
        let overlapped = tear_down(servers, n, |s| async move { s.stop().await }).await?;
        assert_eq!(overlapped, stops);
        Ok(())
    })
}

#[test]
fn up_to_7_3_a_delete_that_drops_the_last_reference_holds_all_others_up() -> Outcome {
    on_virtual_time(async {
        let n: u32 = 100;
        let stops = 5 * 10 * MS;
        let cases = [(exact(), stops + 17 * MS * n), (exact_7_4(), stops + 2 * MS)];
        for (profile, expected) in cases {
            let driver = sim(profile);
            let servers = live(&driver, n as usize).await?;
            let took = tear_down(servers, n as usize, Server::torn_down_close_first).await?;
            assert_eq!(took, expected, "{}", driver.profile().name);
            assert!(driver.snapshot().is_empty(), "{}", driver.snapshot());
        }
        Ok(())
    })
}

fn exact_7_4() -> KernelProfile {
    KernelProfile { name: "7.4", mutex_on_delete: false, ..exact() }
}

#[test]
fn close_after_a_delete_without_waiting_never_holds_anybody_up() -> Outcome {
    on_virtual_time(async {
        for profile in [exact(), exact_7_4()] {
            let driver = sim(profile);
            let servers = live(&driver, 100).await?;
            let took = tear_down(servers, 100, Server::torn_down).await?;
            // Unknown at once when the last reference is gone; the tag set needs 2 ms more.
            assert!(took <= 50 * MS + MS, "{took:?}");
            assert!(driver.snapshot().is_empty(), "{}", driver.snapshot());
        }
        Ok(())
    })
}

#[test]
fn a_hanging_stop_inside_a_delete_holds_the_global_mutex() -> Outcome {
    on_virtual_time(async {
        let driver = sim(KernelProfile { stop_probe: true, ..exact() });
        let (mut stuck, other) = (Server::live(&driver).await?, Server::live(&driver).await?);
        stuck.join().await;
        let delete = driver.execute(Command::DeleteAsync(stuck.id));
        other.stop().await?;
        let add = driver.execute(add(None));
        let (both, _) =
            timed(tokio::time::timeout(1000 * MS, futures::future::join(delete, add))).await;
        assert!(both.is_err(), "never let a delete stop the disk");
        Ok(())
    })
}

#[test]
fn the_presets_give_the_measured_times_within_a_factor_of_2_5() -> Outcome {
    on_virtual_time(async {
        // 200 devices, seconds, one by one, 4, 16 and 64 at a time.
        let close_first = |s: Server| -> Step { Box::pin(s.torn_down_close_first()) };
        let close_last = |s: Server| -> Step { Box::pin(s.torn_down()) };
        let measured: [(KernelProfile, Order, [f64; 4]); 4] = [
            (KernelProfile::linux_7_3(), close_first, [12.57, 3.59, 3.38, 3.39]),
            (KernelProfile::linux_7_3(), close_last, [9.46, 1.41, 0.288, 0.265]),
            (KernelProfile::linux_6_12(), close_first, [10.74, 2.31, 0.508, 0.208]),
            (KernelProfile::linux_6_12(), close_last, [9.94, 2.20, 0.520, 0.224]),
        ];
        let mut off = Vec::new();
        for (profile, order, seconds) in measured {
            for (workers, expected) in [1, 4, 16, 64].into_iter().zip(seconds) {
                let driver = sim(profile.clone());
                let servers = live(&driver, 200).await?;
                let took = tear_down(servers, workers, order).await?.as_secs_f64();
                let ratio = took / expected;
                off.extend((!(0.4..2.5).contains(&ratio)).then_some((
                    profile.name,
                    workers,
                    ratio,
                )));
            }
        }
        assert!(off.is_empty(), "{off:?}");
        Ok(())
    })
}

type Order = fn(Server) -> Step;
type Step = futures::future::LocalBoxFuture<'static, Result<(), Error>>;

#[test]
fn f27_five_hundred_devices_come_up_at_any_width_and_faster_when_wider() -> Outcome {
    on_virtual_time(async {
        let mut times = Vec::new();
        for width in [1, 8, 64] {
            let driver = sim(KernelProfile::linux_7_3());
            let up = (0..500).map(|_| Server::live(&driver));
            let (servers, took) =
                timed(stream::iter(up).buffer_unordered(width).try_collect::<Vec<_>>()).await;
            assert_eq!(servers?.len(), 500);
            let commands = driver.snapshot().commands;
            assert_eq!(commands.now, 0);
            assert!(commands.most <= width, "{} in flight at width {width}", commands.most);
            times.push(took);
        }
        assert!(times[1] < times[0] / 2 && times[2] <= times[1], "{times:?}");
        Ok(())
    })
}

#[test]
fn ten_thousand_devices_come_and_go_in_virtual_time() -> Outcome {
    on_virtual_time(async {
        let driver = sim(KernelProfile::linux_7_3());
        let servers = live(&driver, 10_000).await?;
        assert_eq!(driver.list()?.len(), 10_000);
        assert_eq!(driver.snapshot().queue_threads, 20_000);
        let took = tear_down(servers, 64, Server::torn_down).await?;
        sleep(Duration::from_secs(1)).await;
        assert!(driver.snapshot().is_empty(), "{}", driver.snapshot());
        assert!(took < Duration::from_secs(15), "{took:?}");
        Ok(())
    })
}
