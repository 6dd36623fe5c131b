//! HTTP/1.1 over a Unix socket.
//!
//! One connection a request: it costs microseconds here, and no request can meet what another has
//! left behind. A deadline is over the whole of connect, request and answer.

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use futures::stream::{self, StreamExt};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::time::{error::Elapsed, timeout};

use super::failure::Failure;
use super::stream::{Item, Reader};
use crate::daemon::ExitStatus;
use crate::model::Error;

/// Largest answer: a page of devices has a hundredth of it.
const LARGEST: usize = 64 << 20;

/// How much later than the time that the daemon was given its answer may come.
const GRACE: Duration = Duration::from_secs(5);

/// Requests at once: a daemon takes more connections than that by default.
const AT_ONCE: usize = 32;

/// Time between two questions while something goes on.
const LOOK: Duration = Duration::from_millis(200);

/// Longest silence of an event stream, whose heartbeats come far more often.
const SILENCE: Duration = Duration::from_secs(60);

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: Method,
    path: String,
    body: Option<Value>,
    within: Duration,
    /// Whether the daemon is told when to answer, done or not.
    waits: bool,
}

impl Call {
    /// Asks for something; the answer has to come `within`.
    pub(crate) fn get(path: impl Into<String>, within: Duration) -> Self {
        Self { method: Method::GET, path: path.into(), body: None, within, waits: false }
    }

    /// Changes something; the daemon answers `within`, done or not.
    pub(crate) fn change(method: Method, path: impl Into<String>, within: Duration) -> Self {
        Self { method, path: path.into(), body: None, within, waits: true }
    }

    pub(crate) fn body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    fn request(&self) -> hyper::http::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(&self.method).uri(&self.path);
        request = request.header(HOST, "localhost").header("accept", "*/*");
        if self.waits {
            // Whole seconds are what the header can say; the deadline is ours to keep.
            let seconds = self.within.as_secs_f64().ceil();
            request = request.header("prefer", format!("wait={seconds}"));
        }
        let body = match &self.body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        request.body(Full::new(body))
    }

    /// When there is no use in waiting any longer.
    fn deadline(&self) -> Duration {
        if self.waits { self.within + GRACE } else { self.within }
    }
}

/// A good answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) json: Value,
}

/// A daemon's socket.
pub(crate) struct Client {
    socket: PathBuf,
    runtime: Runtime,
}

impl Client {
    pub(crate) fn new(socket: impl Into<PathBuf>) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::from_io(&e, "cannot start a runtime"))?;
        Ok(Self { socket: socket.into(), runtime })
    }

    /// Sends a request and gives its answer.
    ///
    /// # Errors
    /// What the daemon says against it, or why there is no answer.
    pub(crate) fn send(&self, call: &Call) -> Result<Reply, Failure> {
        self.runtime.block_on(self.answer(call))
    }

    /// Sends many requests, some at once, and gives each answer to `take` as it comes, with the
    /// place of its request.
    ///
    /// # Errors
    /// What `take` says; the rest is not waited for then.
    pub(crate) fn send_all(
        &self,
        calls: &[Call],
        mut take: impl FnMut(usize, Result<Reply, Failure>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.runtime.block_on(async {
            let answer = |(at, call)| async move { (at, self.answer(call).await) };
            let mut answers =
                stream::iter(calls.iter().enumerate()).map(answer).buffer_unordered(AT_ONCE);
            while let Some((at, answered)) = answers.next().await {
                take(at, answered)?;
            }
            Ok(())
        })
    }

    /// Sends a request, and until it is answered asks `question` now and then.
    ///
    /// # Errors
    /// As [`Self::send`]; a question that fails is no matter.
    pub(crate) fn send_watched(
        &self,
        call: &Call,
        question: &Call,
        mut told: impl FnMut(&Value),
    ) -> Result<Reply, Failure> {
        self.runtime.block_on(async {
            let mut answer = pin!(self.answer(call));
            loop {
                match select(answer, pin!(tokio::time::sleep(LOOK))).await {
                    Either::Left((answered, _)) => return answered,
                    Either::Right(((), waiting)) => answer = waiting,
                }
                if let Ok(reply) = self.answer(question).await {
                    told(&reply.json);
                }
            }
        })
    }

    /// Reads events until `take` has enough of them, and gives true then; false when the daemon
    /// has ended the stream.
    ///
    /// # Errors
    /// As [`Self::send`], and what `take` says.
    pub(crate) fn events(
        &self,
        call: &Call,
        mut take: impl FnMut(Item) -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        self.runtime.block_on(async {
            let opened = timeout(call.within, self.open(call)).await;
            let mut response = opened.map_err(|_| self.late(call.within))??;
            if response.status() != StatusCode::OK {
                let read = timeout(call.within, self.read(response)).await;
                read.map_err(|_| self.late(call.within))??;
                return Err(self.strange("it has no events"));
            }
            let mut reader = Reader::default();
            loop {
                let silent = |_: Elapsed| self.late(SILENCE);
                let Some(frame) =
                    timeout(SILENCE, response.body_mut().frame()).await.map_err(silent)?
                else {
                    return Ok(false);
                };
                // A connection that breaks has ended the stream, too.
                let Ok(frame) = frame else { return Ok(false) };
                let Some(data) = frame.data_ref() else { continue };
                for item in reader.push(data).map_err(|why| self.strange(why))? {
                    if take(item)? {
                        return Ok(true);
                    }
                }
            }
        })
    }

    async fn answer(&self, call: &Call) -> Result<Reply, Failure> {
        let answered = timeout(call.deadline(), self.exchange(call)).await;
        let reply = answered.map_err(|_| self.late(call.deadline()))??;
        if reply.status != StatusCode::ACCEPTED {
            return Ok(reply);
        }
        let (within, id) = (humantime::format_duration(call.within), &reply.json["id"]);
        let text = format!("not done within {within}; it goes on, as operation {id}");
        Err(Failure::new(ExitStatus::Timeout, text))
    }

    async fn exchange(&self, call: &Call) -> Result<Reply, Failure> {
        let response = self.open(call).await?;
        self.read(response).await
    }

    /// Sends a request; the answer's body is still to be read.
    async fn open(&self, call: &Call) -> Result<Response<Incoming>, Failure> {
        let request = call.request();
        let request = request.map_err(|e| Failure::new(ExitStatus::Usage, e.to_string()))?;
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| self.unreachable(&e))?;
        let broken = |e: hyper::Error| self.strange(&e.to_string());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // What ends it shows in the answer.
        self.runtime.spawn(async move { drop(connection.await) });
        sender.send_request(request).await.map_err(broken)
    }

    async fn read(&self, response: Response<Incoming>) -> Result<Reply, Failure> {
        let (head, body) = response.into_parts();
        let header = |name| head.headers.get(name)?.to_str().ok().map(str::to_owned);
        let body = Limited::new(body, LARGEST).collect().await;
        let body = body.map_err(|e| self.strange(&e.to_string()))?.to_bytes();
        let parsed = match body.is_empty() {
            true => Ok(Value::Null),
            false => serde_json::from_slice::<Value>(&body),
        };
        if head.status.is_success() {
            let json = parsed.map_err(|e| self.strange(&format!("its answer is no JSON: {e}")))?;
            return Ok(Reply { status: head.status, json });
        }
        let mut failure = parsed.ok().as_ref().and_then(Failure::of_problem).unwrap_or_else(|| {
            self.strange(&format!("it answers {} without a problem document", head.status))
        });
        if let Some(seconds) = header(RETRY_AFTER) {
            failure = Failure::new(failure.status, format!("{failure}; retry after {seconds} s"));
        }
        Err(failure)
    }

    fn unreachable(&self, error: &io::Error) -> Failure {
        let socket = self.socket.display();
        let text = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
                "no daemon runs here: nobody listens on {socket}; start one with `ublkd run -c CONFIG`, \
                 or name its socket with --socket or UBLKD_SOCKET"
            ),
            io::ErrorKind::PermissionDenied => format!(
                "the socket {socket} may not be used: EACCES; be the user or in the group that \
                 owns it, or use sudo"
            ),
            _ => format!("cannot connect to {socket}: {error}"),
        };
        Failure::new(ExitStatus::NoDaemon, text)
    }

    fn late(&self, after: Duration) -> Failure {
        let (socket, after) = (self.socket.display(), humantime::format_duration(after));
        let text = format!(
            "no answer from {socket} within {after}; what was asked may still be under way"
        );
        Failure::new(ExitStatus::Timeout, text)
    }

    /// What answers is no ublkd, or one of another kind.
    pub(crate) fn strange(&self, why: &str) -> Failure {
        let socket = self.socket.display();
        Failure::new(ExitStatus::NoDaemon, format!("{socket} does not answer as ublkd does: {why}"))
    }
}
