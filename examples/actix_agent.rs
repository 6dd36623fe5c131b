//! A host agent that is an actix system itself: the supervisor runs among its actors, on its
//! thread, and an agent actor asks it for a volume per sandbox.

mod common;

use std::time::Duration;

use actix::{Actor, Context, Handler, Message, ResponseFuture};
use common::Outcome;
use ublkd::Handle;
use ublkd::model::{CreateOutcome, Error};

/// The agent.
struct Agent {
    volumes: Handle,
}

/// A sandbox wants a volume.
#[derive(Message)]
#[rtype(result = "Result<CreateOutcome, Error>")]
struct Sandbox(String);

impl Actor for Agent {
    type Context = Context<Self>;
}

impl Handler<Sandbox> for Agent {
    type Result = ResponseFuture<Result<CreateOutcome, Error>>;

    fn handle(&mut self, Sandbox(name): Sandbox, _: &mut Context<Self>) -> Self::Result {
        let volumes = self.volumes.clone();
        Box::pin(async move {
            let spec = common::ram(&name)
                .map_err(|e| Error::new(ublkd::model::ErrorKind::Invalid, e.to_string()))?;
            volumes.create(spec).await
        })
    }
}

fn main() -> Outcome {
    let (driver, host) = common::driver()?;
    actix_rt::System::new().block_on(async {
        let volumes = ublkd::Builder::new(driver).start_here()?;
        let agent = Agent { volumes: volumes.clone() }.start();

        for n in 0..4 {
            let device = agent.send(Sandbox(format!("sandbox-{n}"))).await??;
            let disk = host.open(device.id)?;
            actix_rt::task::spawn_blocking(move || disk.check()).await??;
            println!("{} is {}", device.name, device.id.block_path());
        }

        let report = volumes.shutdown(Duration::from_secs(30)).await?;
        assert!(report.is_clean(), "{:?}", report.left);
        println!("all gone");
        Ok(())
    })
}
