//! The description of the API: OpenAPI 3.1, made of the table of calls here, the types' schemas and
//! the config's keys. `docs/openapi.json` is a copy; a test keeps it fresh.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::schema::device_keys;
use super::types::{
    CreateDevices, CreateGroup, Created, Deleted, Devices, Event, GroupDeleted, Groups, Health,
    Lost, Operation, Operations, Problem, QuiesceRequest, ReadOnlyRequest, ReloadRequest, Report,
    ResizeRequest, ResumeRequest, ShutdownRequest,
};
use crate::config::device_schema;
use crate::model::{BusyPolicy, DeviceInfo, DeviceState, GroupInfo, KernelFeatures};

/// The document as text.
pub(super) static TEXT: LazyLock<String> = LazyLock::new(|| {
    // A value has nothing in it that JSON cannot hold.
    serde_json::to_string_pretty(&document()).unwrap_or_default() + "\n"
});

/// One call.
struct Call {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Names of its parameters, without those that the path has.
    takes: &'static [&'static str],
    body: Option<&'static str>,
    /// Statuses of success, with the schema of the body, or none for text.
    gives: &'static [(u16, &'static str)],
}

const WAIT: &[&str] = &["wait", "Prefer"];
const DELETE: &[&str] = &["busy", "busy_timeout", "wait", "Prefer"];

const CHANGED: &[(u16, &str)] = &[(200, "DeviceInfo"), (202, "Operation")];

/// Bodies that may be left out.
const OPTIONAL: [&str; 4] = ["ShutdownRequest", "ReloadRequest", "QuiesceRequest", "ResumeRequest"];

const CALLS: &[Call] = &[
    call("get", "/healthz", "Whether the daemon is ready").gives(&[(200, "Health")]),
    call("get", "/healthz/ready", "Whether the config's devices are up").gives(&[(200, "Health")]),
    call("get", "/healthz/live", "Whether the daemon answers").gives(&[(200, "Health")]),
    call("get", "/metrics", "Metrics in the OpenMetrics format").gives(&[(200, "")]),
    call("get", "/openapi.json", "This document").gives(&[(200, "Document")]),
    call("get", "/api/v1/devices", "Devices, by name")
        .takes(&["state", "group", "target", "label", "limit", "after"])
        .gives(&[(200, "Devices")]),
    call("post", "/api/v1/devices", "Create a device, unless it is there as asked")
        .takes(WAIT)
        .body("NewDevice")
        .gives(&[(200, "DeviceInfo"), (201, "DeviceInfo"), (202, "Operation")]),
    call("post", "/api/v1/devices:batch", "Create devices, each by itself or all or none")
        .takes(WAIT)
        .body("CreateDevices")
        .gives(&[(200, "Created"), (201, "Created"), (202, "Operation"), (207, "Created")]),
    call("get", "/api/v1/devices/{name}", "A device, with those who hold it")
        .gives(&[(200, "DeviceInfo")]),
    call("delete", "/api/v1/devices/{name}", "Take a device down")
        .takes(DELETE)
        .gives(&[(200, "Deleted"), (202, "Operation")]),
    call("post", "/api/v1/devices/{name}/resize", "Change the size of a device in use")
        .takes(WAIT)
        .body("ResizeRequest")
        .gives(CHANGED),
    call("post", "/api/v1/devices/{name}/quiesce", "Take a device's server away; its users wait")
        .takes(WAIT)
        .body("QuiesceRequest")
        .gives(CHANGED),
    call("post", "/api/v1/devices/{name}/resume", "Serve a quiesced device again")
        .takes(WAIT)
        .body("ResumeRequest")
        .gives(CHANGED),
    call("post", "/api/v1/devices/{name}/read-only", "Refuse writes, or take them again")
        .takes(WAIT)
        .body("ReadOnlyRequest")
        .gives(CHANGED),
    call("get", "/api/v1/groups", "Groups, by name").gives(&[(200, "Groups")]),
    call("get", "/api/v1/groups/{group}", "A group").gives(&[(200, "GroupInfo")]),
    call("put", "/api/v1/groups/{group}", "Create the devices of a group, all or none")
        .takes(WAIT)
        .body("CreateGroup")
        .gives(&[(200, "Created"), (201, "Created"), (202, "Operation")]),
    call("delete", "/api/v1/groups/{group}", "Take all devices of a group down")
        .takes(DELETE)
        .gives(&[(200, "GroupDeleted"), (202, "Operation")]),
    call("get", "/api/v1/features", "What the kernel's driver can do")
        .gives(&[(200, "KernelFeatures")]),
    call("get", "/api/v1/events", "Every change of state, as server-sent events")
        .takes(&["from", "Last-Event-ID"])
        .gives(&[(200, "")]),
    call("get", "/api/v1/operations", "Operations that nobody waited for to the end")
        .gives(&[(200, "Operations")]),
    call("get", "/api/v1/operations/{id}", "An operation")
        .takes(&["wait"])
        .gives(&[(200, "Operation")]),
    call("get", "/api/v1/report", "How far a shutdown is, and its report")
        .gives(&[(200, "Report")]),
    call("post", "/api/v1/reload", "Read the config again and do what has changed in it")
        .takes(WAIT)
        .body("ReloadRequest")
        .gives(&[(200, "ReloadReport"), (202, "Operation")]),
    call("post", "/api/v1/shutdown", "Take everything down and end the daemon")
        .takes(WAIT)
        .body("ShutdownRequest")
        .gives(&[(200, "ShutdownReport"), (202, "Operation")]),
];

const fn call(method: &'static str, path: &'static str, summary: &'static str) -> Call {
    Call { method, path, summary, takes: &[], body: None, gives: &[] }
}

impl Call {
    const fn takes(mut self, takes: &'static [&'static str]) -> Self {
        self.takes = takes;
        self
    }

    const fn body(mut self, body: &'static str) -> Self {
        self.body = Some(body);
        self
    }

    const fn gives(mut self, gives: &'static [(u16, &'static str)]) -> Self {
        self.gives = gives;
        self
    }

    fn describe(&self) -> Value {
        let in_path = self.path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
        let parameters: Vec<_> = in_path
            .map(|name| parameter(name, true))
            .chain(self.takes.iter().map(|name| parameter(name, false)))
            .collect();
        let mut answers = Map::new();
        for (status, schema) in self.gives {
            let mut answer = json!({ "description": "It went well." });
            if *status == 202 {
                answer["description"] = json!("It goes on.");
                answer["headers"] = json!({ "Location": {
                    "description": "Where the operation is.",
                    "schema": { "type": "string" },
                }});
            }
            answer["content"] = match (*schema, self.path) {
                ("", "/metrics") => json!({ "application/openmetrics-text": {} }),
                ("", _) => json!({ "text/event-stream": {} }),
                ("Document", _) => {
                    json!({ "application/json": { "schema": { "type": "object" } } })
                }
                (name, _) => json!({ "application/json": { "schema": reference(name) } }),
            };
            answers.insert(status.to_string(), answer);
        }
        answers.insert(
            "default".to_owned(),
            json!({
                "description": "It was refused, or failed.",
                "content": { "application/problem+json": { "schema": reference("Problem") } },
            }),
        );
        let id: String =
            self.path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let mut described = json!({
            "operationId": format!("{}{id}", self.method),
            "summary": self.summary,
            "responses": answers,
        });
        if !parameters.is_empty() {
            described["parameters"] = json!(parameters);
        }
        if let Some(body) = self.body {
            described["requestBody"] = json!({
                "required": !OPTIONAL.contains(&body),
                "content": { "application/json": { "schema": reference(body) } },
            });
        }
        described
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn parameter(name: &str, in_path: bool) -> Value {
    let duration = json!({ "type": "string", "examples": ["10s"] });
    let (schema, description) = match name {
        "name" | "after" => (reference("DeviceName"), "A device."),
        "group" => (reference("GroupName"), "A group."),
        "id" => (json!({ "type": "string" }), "The number of an operation."),
        "state" => (json!({ "enum": DeviceState::ALL }), "Only devices in this state."),
        "target" => (json!({ "type": "string" }), "Only devices of this kind of target."),
        "label" => (
            json!({ "type": "array", "items": { "type": "string", "minLength": 1 } }),
            "Only devices with this label, as KEY=VALUE or KEY; may be repeated.",
        ),
        "limit" => (
            json!({ "type": "integer", "minimum": 1, "maximum": 10_000, "default": 1000 }),
            "Most devices of the page.",
        ),
        "busy" => (
            json!({ "enum": BusyPolicy::ALL }),
            "What to do while somebody holds the device, instead of what its spec says.",
        ),
        "busy_timeout" => (duration, "How long busy=wait waits."),
        "from" => (json!({ "type": "integer", "minimum": 0 }), "The first event that is wanted."),
        "Last-Event-ID" => {
            (json!({ "type": "integer", "minimum": 0 }), "The last event that was seen.")
        }
        "Prefer" => (
            json!({ "type": "string", "examples": ["respond-async", "wait=10"] }),
            "respond-async: answer 202 at once; wait=SECONDS: after that time (RFC 7240).",
        ),
        _ => (duration, "How long to wait for the end; after that 202 and the operation."),
    };
    let place = match name {
        _ if in_path => "path",
        "Last-Event-ID" | "Prefer" => "header",
        _ => "query",
    };
    json!({
        "name": name,
        "in": place,
        "required": in_path,
        "description": description,
        "schema": schema,
    })
}

/// The types whose schemas, and those that they refer to, are in the document.
#[derive(OpenApi)]
#[openapi(components(schemas(
    CreateDevices,
    CreateGroup,
    Created,
    Deleted,
    DeviceInfo,
    Devices,
    Event,
    GroupDeleted,
    GroupInfo,
    Groups,
    Health,
    KernelFeatures,
    Lost,
    Operation,
    Operations,
    Problem,
    QuiesceRequest,
    ReadOnlyRequest,
    ReloadRequest,
    Report,
    ResizeRequest,
    ResumeRequest,
    ShutdownRequest,
)))]
struct Types;

fn document() -> Value {
    let mut paths = Map::new();
    for call in CALLS {
        let path = paths.entry(call.path).or_insert_with(|| json!({}));
        path[call.method] = call.describe();
    }
    let components = Types::openapi().components;
    let mut components = json!(components);
    let schemas = &mut components["schemas"];
    schemas["DeviceKeys"] = device_keys(true);
    schemas["ReloadReport"] = json!({
        "type": "object",
        "description": "What a reload did, or would do; docs/operations.md has its keys.",
    });
    schemas["Size"] = device_schema()["properties"]["size"].take();
    schemas["NewDevice"] = device_keys(false);
    schemas["ShutdownReport"] = json!({
        "type": "object",
        "description": "What became of every device; docs/operations.md has its keys.",
        "required": ["outcomes", "devices", "wall_s", "stages", "left", "forced"],
    });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ublkd",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Drives a running ublkd over its Unix socket; docs/api.md says how.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "http://localhost", "description": "<run_dir>/ublkd.sock" }],
        "paths": paths,
        "components": components,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: &str = "docs/openapi.json";

    /// `UBLKD_BLESS=1 cargo test --lib openapi` writes the copy.
    #[test]
    fn the_copy_in_docs_is_fresh() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(COPY);
        if std::env::var_os("UBLKD_BLESS").is_some() {
            std::fs::write(&path, &*TEXT).expect("the copy is written");
        }
        let copy = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(copy == *TEXT, "{COPY} is old: UBLKD_BLESS=1 cargo test --lib openapi");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let mut references = Vec::new();
        collect(&document, &mut references);
        assert!(references.len() > 40);
        for reference in references {
            let place = reference.trim_start_matches('#');
            assert!(document.pointer(place).is_some(), "{reference}");
        }
    }

    fn collect(value: &Value, references: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                references.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| collect(value, references));
            }
            Value::Array(all) => all.iter().for_each(|value| collect(value, references)),
            _ => {}
        }
    }
}
