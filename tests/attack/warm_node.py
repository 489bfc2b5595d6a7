"""A node that keeps its app: Flower's SuperNode starts a program for each message, which for 200 rounds takes hours.

It speaks to the SuperLink as the SuperNode does, with the same key, over Flower's own connection, and calls the app in
its own process. The rest of the federation is as it always is.

    python -m attack.warm_node --superlink 127.0.0.1:8000 --keys DIR --number 0 --nodes 5 --app DIR
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

_POLL = 0.2  # seconds
_NO_RUN = (Exception, RunNotRunningException)  # the latter, a BaseException, where the run has ended meanwhile


def main() -> None:
    """Serve messages until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m attack.warm_node")
    for name in ("--superlink", "--keys", "--app"):
        parser.add_argument(name, required=True)
    for name in ("--number", "--nodes"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    keys = Path(options.keys)
    private = load_ssh_private_key((keys / f"node{options.number}").read_bytes(), None)
    sys.path.insert(0, options.app)
    app = importlib.import_module("federation.client_app").app
    numbers = {"partition-id": options.number, "num-partitions": options.nodes}
    certificate = (keys / "ca.crt").read_bytes()
    with http_request_response(options.superlink, False, certificate, (private, private.public_key())) as connection:
        sys.stdout.write(f"SuperNode ID: {connection[0]}\n")
        sys.stdout.flush()
        _serve(app, numbers, *connection)


def _serve(
    app: Any, numbers: dict[str, int], node: int, receive: Any, send: Any, get_run: Any, get_fab: Any,
    pull_object: Any, push_object: Any, confirm: Any
) -> None:  # fmt: skip
    contexts: dict[int, Context] = {}
    while True:
        try:
            message = _receive(receive, pull_object, confirm)
            if message is not None and (run := message.metadata.run_id) not in contexts:
                about = get_run(run)
                settings = get_fused_config_from_fab(get_fab(about.fab_hash, run).content, about)
                contexts[run] = Context(run, node, numbers, RecordDict(), settings, about.series_id)
                TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, node, 1
        except _NO_RUN as error:
            sys.stderr.write(f"the message could not be read: {type(error).__name__}: {error}\n")
            continue
        if message is None:
            time.sleep(_POLL)
            continue
        _reply(app, message, contexts[run], send, partial(push_object, run))


def _receive(receive: Any, pull_object: Any, confirm: Any) -> Message | None:
    received = receive()
    if received is None:
        return None
    run, tree = received[0].metadata.run_id, received[1]
    message = pull_and_inflate_object_from_tree(
        tree, partial(pull_object, run), partial(confirm, run), return_type=Message
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def _reply(app: Any, message: Message, context: Context, send: Any, push_object: Any) -> None:
    started = time.monotonic()
    try:
        answer = app(message, context)
    except Exception as error:  # as Flower does it
        answer = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
    try:
        answer.metadata.__dict__["_message_id"] = answer.object_id
        tree, objects = get_object_tree(answer), get_all_nested_objects(answer)
        wanted, session = send(answer, tree, time.monotonic() - started)
        push_objects(objects, partial(push_object, session), object_ids_to_push=wanted)
    except _NO_RUN as error:
        sys.stderr.write(f"the reply could not be sent: {type(error).__name__}: {error}\n")


if __name__ == "__main__":
    main()
