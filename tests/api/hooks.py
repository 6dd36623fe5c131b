"""Keeps what the fuzzer asks for small: the simulated driver has real threads and memory."""

import os

import schemathesis

FILE = os.environ["UBLKD_FUZZ_FILE"]
MOST = {"size": 1 << 20, "queues": 2, "depth": 8, "max_io": 65536, "count": 3}


def tame(device):
    if not isinstance(device, dict):
        return
    for key, most in MOST.items():
        if isinstance(device.get(key), int) and not isinstance(device[key], bool):
            device[key] = min(device[key], most)
        elif key in device and isinstance(device[key], str) and device[key][:1].isdigit():
            device[key] = most
    if isinstance(device.get("path"), str) and device["path"]:
        device["path"] = FILE
    device.pop("delay", None)


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict):
        tame(body)
        for device in body.get("devices") if isinstance(body.get("devices"), list) else []:
            tame(device)
    return body


@schemathesis.hook
def map_query(context, query):
    # Nobody waits long for anything here.
    if isinstance(query, dict) and isinstance(query.get("wait"), str) and query["wait"][:1].isdigit():
        query["wait"] = "1s"
    return query
