//! A small HTTP client for a Unix socket: as strict as the tests need, and able to be rude.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{SOON, Scene};

/// A daemon's API.
#[derive(Clone)]
pub(crate) struct Api {
    path: PathBuf,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Scene {
    /// The API of the scene's daemon.
    pub(crate) fn api(&self) -> Api {
        Api::at(&self.path("run/ublkd.sock"))
    }
}

impl Api {
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.set_write_timeout(Some(SOON)).unwrap();
        stream
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[], Some(body))
    }

    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, &[], None)
    }

    /// One request on a connection of its own.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Answer {
        let mut stream = self.connect();
        stream.write_all(head(method, path, headers, body).as_bytes()).unwrap();
        Answer::read(&mut BufReader::new(stream)).expect("an answer")
    }
}

/// A request as text, to be answered once.
pub(crate) fn head(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: ublkd\r\nconnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    match body {
        Some(body) => {
            let body = body.to_string();
            let length = body.len();
            text + &format!(
                "content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            )
        }
        None => text + "\r\n",
    }
}

impl Answer {
    /// Reads one answer that ends with its length or with the connection.
    pub(crate) fn read(from: &mut impl BufRead) -> Option<Self> {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            from.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let mut answer = Self { status, headers, body: String::new() };
        match answer.header("content-length").map(|length| length.parse::<u64>().unwrap()) {
            Some(length) => from.take(length).read_to_string(&mut answer.body).ok()?,
            None => from.read_to_string(&mut answer.body).ok()?,
        };
        Some(answer)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {self:?}"))
    }

    /// Asserts the status; gives the body.
    #[track_caller]
    pub(crate) fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// Asserts that it is a problem document of this status and kind.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, kind: &str) -> Value {
        let problem = self.is(status);
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(problem["kind"], kind, "{self:?}");
        assert_eq!(problem["status"], status, "{self:?}");
        assert!(!problem["detail"].as_str().unwrap().is_empty(), "{self:?}");
        problem
    }
}
