//! What a request says beside its body: the query, each key known and at most once, and how long
//! the client wants to wait.

use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::web;

use super::problem::Refusal;
use crate::config::parse_duration;
use crate::model::DeviceName;

/// How long a request waits for an operation unless it says otherwise.
const USUAL_WAIT: Duration = Duration::from_secs(60);

/// The longest that it may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The query of a request.
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Takes the keys in `known`; one in `many` may be there more than once.
    pub(super) fn of(
        request: &HttpRequest,
        known: &[&str],
        many: &[&str],
    ) -> Result<Self, Refusal> {
        let query = web::Query::<Vec<(String, String)>>::from_query(request.query_string());
        let pairs = query.map_err(|e| Refusal::malformed(format!("the query: {e}")))?.into_inner();
        for (n, (key, _)) in pairs.iter().enumerate() {
            if many.contains(&key.as_str()) {
                continue;
            }
            if !known.contains(&key.as_str()) {
                let all: Vec<_> = known.iter().chain(many).copied().collect();
                let expected = match all.is_empty() {
                    true => "this call takes none".to_owned(),
                    false => format!("expected one of {}", all.join(", ")),
                };
                return Err(Refusal::malformed(format!("unknown query key {key:?}: {expected}")));
            }
            if pairs[..n].iter().any(|(other, _)| other == key) {
                return Err(Refusal::malformed(format!("query key {key:?} is there twice")));
            }
        }
        Ok(Self(pairs))
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.all(key).next()
    }

    /// Each value of a key.
    pub(super) fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// A value that is made of text.
    pub(super) fn parsed<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Refusal> {
        self.get(key).map(parse).transpose().map_err(|message| Refusal::key(key, message))
    }

    /// How long to wait for an operation: `?wait=10s`, `Prefer: wait=10` (seconds), or not at all
    /// with `Prefer: respond-async`.
    pub(super) fn wait(&self, request: &HttpRequest) -> Result<Duration, Refusal> {
        if let Some(wait) = self.parsed("wait", parse_duration)? {
            return Ok(wait.min(LONGEST_WAIT));
        }
        let prefer = request.headers().get_all("prefer").filter_map(|value| value.to_str().ok());
        let mut wait = USUAL_WAIT;
        for preference in prefer.flat_map(|value| value.split(',')).map(str::trim) {
            // What is not understood is passed over, as RFC 7240 has it.
            if preference.eq_ignore_ascii_case("respond-async") {
                return Ok(Duration::ZERO);
            }
            if let Some(seconds) = preference.strip_prefix("wait=").and_then(|s| s.parse().ok()) {
                wait = Duration::from_secs(seconds).min(LONGEST_WAIT);
            }
        }
        Ok(wait)
    }
}

/// The device that the path names.
pub(super) fn device(request: &HttpRequest) -> Result<DeviceName, Refusal> {
    DeviceName::new(segment(request, "name"))
        .map_err(|error| Refusal::key("name", error.to_string()))
}

/// A decoded segment of the path.
pub(super) fn segment<'r>(request: &'r HttpRequest, name: &str) -> &'r str {
    request.match_info().query(name)
}
