"""The devices of the attacked federation: honest ones, and the last one, which answers with damaged messages."""

import os
import random
from functools import cache

from federation.mutations import NASTY, damaged
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

NAMES = ("steps", "seconds", "loss", "speed", "gamma", "stopped-by-time", "train_samples", "train_loss", "test_samples")
SURROGATE = "\ud800"  # cannot be sent
VALUES = tuple(value for value in NASTY if isinstance(value, (bool, int, float, str)) and value != SURROGATE)
VALUES = (*VALUES, b"\xff" * 9, [1, 2], [], ["a"])


class Devices(ClientApp):
    """Has the honest app answer, unless the node is the last one and was asked for more than its introduction."""

    def __call__(self, message: Message, context: object) -> Message:
        """Answer a message."""
        last = context.node_config["num-partitions"] - 1
        if context.node_config["partition-id"] == last and message.content.array_records:
            return damaged_answer(message)
        return honest_app()(message, context)


@cache
def honest_app() -> ClientApp:
    """Return the app of an honest device, whose model is compiled once."""
    from federation.task import SETTINGS, load_data, load_model

    from fedprox.deploy.client import client_app  # JAX is imported where it is needed

    models: list = []

    def model(config: object) -> object:
        models[:] = models or [load_model(config)]
        return models[0]

    return client_app(SETTINGS, model, load_data)


def damaged_answer(message: Message) -> Message:
    """Return what a device might send that trained a little, damaged in one to four ways."""
    kind, round = message.metadata.message_type, message.metadata.group_id
    dice = random.Random(f"{os.environ['FEDPROX_ATTACK_SEED']} {kind} {round}")
    arrays = {name: Array(array.numpy() + 0.01) for name, array in message.content.array_records["arrays"].items()}
    values = {"steps": 1, "seconds": 0.1, "loss": 1.0, "stopped-by-time": True, "train_samples": 1, "train_loss": 1.0}
    records = RecordDict({"arrays": ArrayRecord(arrays), "values": ConfigRecord(values | {"test_samples": 0})})
    for _ in range(dice.randint(1, 4)):
        dice.choice(DAMAGES)(records, dice)
    return Message(records, reply_to=message)


def flip_bytes(records: RecordDict, dice: random.Random) -> None:
    """Damage the bytes of an array."""
    for array in records.array_records.values():
        name = dice.choice(sorted(array))
        old = array[name]
        array[name] = Array(old.dtype, old.shape, old.stype, damaged(old.data, dice))


def scale_array(records: RecordDict, dice: random.Random) -> None:
    """Make an array large, infinite or not a number."""
    for array in records.array_records.values():
        name = dice.choice(sorted(array))
        old = array[name]
        factor = dice.choice((1e3, 1e20, 1e38, float("inf"), float("nan"), -1.0))
        array[name] = Array((old.numpy() * factor).astype(old.dtype))


def change_value(records: RecordDict, dice: random.Random) -> None:
    """Put in a value that no device sends."""
    for config in records.config_records.values():
        config[dice.choice(NAMES)] = dice.choice(VALUES)


def shout(records: RecordDict, dice: random.Random) -> None:
    """Send a text of half a megabyte for a number."""
    for config in records.config_records.values():
        config[dice.choice(NAMES)] = "x" * 500_000


def lose_value(records: RecordDict, dice: random.Random) -> None:
    """Leave a value out."""
    for config in records.config_records.values():
        config.pop(dice.choice(NAMES), None)


def rename_array(records: RecordDict, dice: random.Random) -> None:
    """Send an array under another name."""
    for array in records.array_records.values():
        array[dice.choice(("", "x" * 10_000, "extra"))] = array.pop(dice.choice(sorted(array)))


def lose_records(records: RecordDict, dice: random.Random) -> None:
    """Leave out the arrays or the values, or send something else in their place."""
    key = dice.choice(("arrays", "values"))
    records.pop(key, None)
    if dice.random() < 0.5:
        records[key] = MetricRecord({"a": 1.0})


def fail(records: RecordDict, dice: random.Random) -> None:
    """Raise an error with a long text, or send what cannot be sent, so that there is no reply."""
    chance = dice.random()
    if chance < 0.3:
        raise RuntimeError("damaged " * 10_000)
    if chance < 0.35:
        records["values"] = ConfigRecord({"steps": SURROGATE})


DAMAGES = (flip_bytes, scale_array, change_value, change_value, shout, lose_value, rename_array, lose_records, fail)

app = Devices()
