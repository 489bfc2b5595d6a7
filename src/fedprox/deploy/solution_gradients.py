"""The gradients of devices at models of their own, for methods that need them at the devices' solutions (S-DANE).

They are asked for in an exchange after that of the work. Each must be finite and have the model's shapes; what it would
add to the model is bounded with the rest of the device's reply.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedprox.core.trees import Tree
from fedprox.deploy.message_exchange import NodeAnswer
from fedprox.deploy.remote_gradients import RemoteGradients
from fedprox.deploy.round_replies import Collected
from fedprox.methods.traffic import count_bytes

__all__ = ["take_gradients"]


def take_gradients(
    asked: Mapping[int, RemoteGradients], answers: Mapping[int, NodeAnswer], collected: Collected
) -> dict[int, Tree]:
    """Return the gradients that can be used, by device; why there is none, times and bytes go into `collected`."""
    found: dict[int, Tree] = {}
    for device, answer in answers.items():
        one = asked[device]
        collected.seconds[device] = collected.seconds.get(device, 0.0) + answer.seconds
        collected.bytes[device] = collected.bytes.get(device, 0) + count_bytes(one.sent)
        if answer.records is None:
            collected.problems[device] = f"no gradient: {answer.problem}"
        elif reason := one.take(device, answer.records):
            collected.refuse(device, f"no gradient: {reason}")
        else:
            found[device] = one.found[device]
            collected.bytes[device] += count_bytes(one.sent)
    return found
