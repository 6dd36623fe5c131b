//! The thread that serves: accepts, hands connections to the application, ends in order.

use std::os::unix::net::UnixListener as StdListener;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use actix_http::HttpService;
use actix_service::{IntoServiceFactory, Service, ServiceFactory, ServiceFactoryExt, map_config};
use actix_web::dev::AppConfig;
use actix_web::rt;
use futures::channel::{mpsc as orders, oneshot};
use futures::future::select;
use slog::Logger;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use super::app::{self, Api};
use super::connection::Connection;
use super::operations::Operations;
use super::peer::{self, Allowed, Peer};
use super::socket::{Rights, Socket};
use super::types::Phase;
use crate::Handle;
use crate::config::{ApiConfig, MetricsConfig};
use crate::daemon::reload::Reloader;
use crate::daemon::signals::Signal;
use crate::model::{Error, ErrorKind, ShutdownReport};
use crate::sys;
use crate::sys::thread::wait_for;

/// Longest time for the head of a request.
const HEAD_BOUND: Duration = Duration::from_secs(5);

/// Longest time that a connection may be idle between requests.
const IDLE_BOUND: Duration = Duration::from_secs(30);

/// Longest time that a client may not read what it asked for.
const STALL_BOUND: Duration = Duration::from_secs(30);

/// Longest time for the thread to begin.
const START_BOUND: Duration = Duration::from_secs(10);

/// How long answers that are under way at the end may take.
const DRAIN_BOUND: Duration = Duration::from_secs(2);

/// Pause after the host had no descriptor for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// How the API shall be.
pub(in crate::daemon) struct Options {
    /// `[api]`.
    pub(in crate::daemon) config: ApiConfig,
    /// `[metrics]`.
    pub(in crate::daemon) metrics: MetricsConfig,
    /// Where its socket is, below a lock that this process holds.
    pub(in crate::daemon) path: PathBuf,
    /// A socket that a service manager has handed over, to be used instead.
    pub(in crate::daemon) listener: Option<StdListener>,
    /// Whom it asks.
    pub(in crate::daemon) handle: Handle,
    /// What the daemon itself is told.
    pub(in crate::daemon) orders: orders::Sender<Signal>,
    /// Reads the config again.
    pub(in crate::daemon) reloader: Reloader,
    /// What the daemon says of itself.
    pub(in crate::daemon) state: watch::Receiver<State>,
    /// Where to log.
    pub(in crate::daemon) log: Logger,
}

/// What the daemon says of itself.
#[derive(Clone)]
pub(in crate::daemon) struct State {
    pub(in crate::daemon) phase: Phase,
    /// The shutdown report, once there is one.
    pub(in crate::daemon) report: Option<Arc<ShutdownReport>>,
}

/// The API while it is served. Dropping it ends it: the socket goes first, answers that are under
/// way get a moment.
pub(in crate::daemon) struct Server {
    closing: watch::Sender<bool>,
    ended: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// Makes the socket and starts to serve.
pub(in crate::daemon) fn start(options: Options) -> Result<Server, Error> {
    let config = &options.config;
    let allowed = Allowed::new(config.allow.as_deref())?;
    let socket = match options.listener {
        Some(listener) => Socket::handed_over(listener),
        None => {
            let hint = |e: Error| e.hint("see owner and group of [api]");
            let owner = config.owner.as_deref().map(peer::user).transpose().map_err(hint)?;
            let group = config.group.as_deref().map(peer::group).transpose().map_err(hint)?;
            Socket::make(&options.path, Rights { mode: config.mode, owner, group })?
        }
    };
    let connections = config.connections;
    let (closing, is_closing) = watch::channel(false);
    let (end, ended) = mpsc::channel();
    let (ready, begun) = oneshot::channel();
    slog::info!(options.log, "the API is served"; "socket" => %options.path.display());
    let thread = sys::thread::spawn("ublkd-http", move || {
        let _end: mpsc::Sender<()> = end;
        rt::System::new().block_on(async move {
            let serving = Serving {
                socket,
                places: Arc::new(Semaphore::new(connections)),
                connections: u32::try_from(connections).unwrap_or(u32::MAX),
                allowed,
                closing: is_closing,
                log: options.log.clone(),
            };
            let api = Api {
                handle: options.handle,
                orders: options.orders,
                reloader: options.reloader,
                state: options.state,
                operations: Operations::default(),
                metrics: options.metrics,
                watchers: Arc::new(Semaphore::new(connections / 4)),
                log: options.log,
            };
            serving.run(api, ready).await;
        });
    })?;
    let server = Server { closing, ended, thread: Some(thread) };
    match wait_for(START_BOUND, begun) {
        Some(Ok(Ok(()))) => Ok(server),
        Some(Ok(Err(error))) => Err(error),
        _ => Err(Error::new(ErrorKind::Internal, "the API did not start")),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        let bound = DRAIN_BOUND + Duration::from_secs(1);
        if self.ended.recv_timeout(bound) != Err(mpsc::RecvTimeoutError::Timeout)
            && let Some(thread) = self.thread.take()
        {
            // A panic there has been logged by the hook, and ended only the API.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Serving {
    socket: Socket,
    places: Arc<Semaphore>,
    /// How many places there are.
    connections: u32,
    allowed: Allowed,
    closing: watch::Receiver<bool>,
    log: Logger,
}

impl Serving {
    async fn run(self, api: Api, ready: oneshot::Sender<Result<(), Error>>) {
        let app = app::application(api);
        let app = map_config(app.into_factory(), |()| AppConfig::default())
            .map_err(|error: actix_web::Error| error.error_response());
        let service = HttpService::build()
            .keep_alive(IDLE_BOUND)
            .client_request_timeout(HEAD_BOUND)
            .client_disconnect_timeout(DRAIN_BOUND)
            .on_connect_ext(|connection: &Connection, data: &mut actix_http::Extensions| {
                data.insert(connection.peer);
            })
            .h1(app)
            .new_service(())
            .await;
        let listener = self.socket.listener.try_clone().and_then(|listener| {
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        });
        let failed = |e: &std::io::Error| Error::from_io(e, "cannot serve the API");
        let (service, listener) = match (service, listener) {
            (Ok(service), Ok(listener)) => (Rc::new(service), listener),
            (_, Err(error)) => return drop(ready.send(Err(failed(&error)))),
            (Err(()), _) => {
                let error = Error::new(ErrorKind::Internal, "the API cannot be set up");
                return drop(ready.send(Err(error)));
            }
        };
        // Whoever waited may have given up; then the server is dropped and this ends.
        let _ = ready.send(Ok(()));
        let mut closing = self.closing.clone();
        let serve = |connection| {
            let service = Rc::clone(&service);
            rt::spawn(async move {
                // Whatever goes wrong with a connection ends that connection.
                let _ = service.call((connection, None)).await;
            });
        };
        {
            let closed = pin!(closing.wait_for(|closing| *closing));
            select(pin!(self.accept(&listener, serve)), closed).await;
        }
        // Nobody listens from here on: the kernel refuses who comes.
        drop((listener, self.socket));
        let everyone = self.places.acquire_many(self.connections);
        // What is not answered by then is cut.
        let _ = timeout(DRAIN_BOUND, everyone).await;
    }

    /// Takes up connections, as many at once as there are places.
    async fn accept(&self, listener: &UnixListener, serve: impl Fn(Connection)) {
        loop {
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    slog::warn!(self.log, "cannot take up a connection: {error}");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            // Somebody who cannot be told is nobody.
            let Ok(who) = stream.peer_cred() else { continue };
            let allowed = self.allowed.has(who.uid());
            let peer = Peer { uid: who.uid(), pid: who.pid(), allowed };
            serve(Connection::new(stream, peer, STALL_BOUND, self.closing.clone(), place));
        }
    }
}
