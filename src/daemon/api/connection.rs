//! One connection: bytes both ways, and an end for a reader that does not read.
//!
//! The HTTP machinery bounds how long a request's head may take and how long a connection may be
//! idle, but waits for ever until what it writes is read. Here a write that makes no progress for
//! a while fails, which ends the connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Sleep, sleep};

use super::peer::Peer;

/// A client's connection, and its place among those that are allowed at once.
pub(super) struct Connection {
    stream: UnixStream,
    pub(super) peer: Peer,
    /// Longest time without progress of a write.
    patience: Duration,
    stall: Option<Pin<Box<Sleep>>>,
    /// Ends the reading when the server ends: what was asked is still answered.
    ending: Pin<Box<dyn Future<Output = ()>>>,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    pub(super) fn new(
        stream: UnixStream,
        peer: Peer,
        patience: Duration,
        mut closing: watch::Receiver<bool>,
        _place: OwnedSemaphorePermit,
    ) -> Self {
        let ending = async move {
            // A server that is gone closes too.
            let _ = closing.wait_for(|closing| *closing).await;
        };
        Self { stream, peer, patience, stall: None, ending: Box::pin(ending), ended: false, _place }
    }

    fn stalled<T>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stall = None;
            return wrote;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(stall.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() || (!self.ended && self.ending.as_mut().poll(cx).is_pending()) {
            return read;
        }
        self.ended = true;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.stalled(cx, wrote)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
