"""Devices that take as long to train as a file says.

`FEDPROX_PACE` names it: JSON with, by device, the seconds of its trainings, which are taken in turn.
"""

import itertools
import json
import os
import time
from functools import cache
from pathlib import Path

from flwr.app import Message
from flwr.clientapp import ClientApp

TRAININGS = itertools.count()


class Devices(ClientApp):
    """Has the app answer, and holds back what it was asked to train until its time is over."""

    def __call__(self, message: Message, context: object) -> Message:
        """Answer a message."""
        started = time.monotonic()
        answer = trained_app()(message, context)
        if message.metadata.message_type == "train":
            paces = json.loads(Path(os.environ["FEDPROX_PACE"]).read_text())[str(context.node_config["partition-id"])]
            seconds = paces[next(TRAININGS) % len(paces)]
            time.sleep(max(0.0, started + seconds - time.monotonic()))
        return answer


@cache
def trained_app() -> ClientApp:
    """Return the app of a device, whose model is compiled once."""
    from federation.task import SETTINGS, load_data, load_model

    from fedprox.deploy.client import client_app  # JAX is imported where it is needed

    models: list = []

    def model(config: object) -> object:
        models[:] = models or [load_model(config)]
        return models[0]

    return client_app(SETTINGS, model, load_data)


app = Devices()
