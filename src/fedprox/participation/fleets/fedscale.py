"""Files of FedScale, as JSON: capacities and availability of devices.

FedScale is Lai et al., "FedScale: Benchmarking Model and System Performance of Federated Learning at Scale", ICML 2022
(github.com/SymbioticLab/FedScale).

*Capacity* (`client_device_capacity`): {id: {"computation": ms per sample, "communication": kbit/s}}. The first is the
time of inference; training takes three times as long, as FedScale counts it. The second serves for both directions.

*Availability* (`client_behave_trace`): {id: {"active": [s, ...], "inactive": [s, ...], "finish_time": s, "duration",
"model"}}: available from active[i] to inactive[i], repeated after `finish_time`.

The published files are pickles, which are not read: a pickle runs what its author put into it. Convert one that you
trust to JSON first.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from fedprox.core.errors import DataError, short
from fedprox.participation.fleets.measured import Measured, joined_spans, positive

__all__ = ["read_behaviour", "read_capacity"]

_BYTES = 125.0  # of a kbit
_TRAINING = 3.0  # forward and backward, in units of inference


def read_capacity(file: str, rows: Mapping[str, Mapping[str, Any]]) -> Measured:
    """Read speeds and networks.

    >>> found = read_capacity("c.json", {"1": {"computation": 100.0, "communication": 8000.0}})
    >>> found.network, round(found.samples_per_second["1"], 3)
    ({'1': (1000000.0, 1000000.0)}, 3.333)
    """
    speed, network = {}, {}
    for name, row in rows.items():
        where = f"{file}, {name}"
        speed[name] = 1000 / (_TRAINING * positive(where, "computation", row.get("computation")))
        rate = positive(where, "communication", row.get("communication")) * _BYTES
        network[name] = (rate, rate)
    return Measured(samples_per_second=speed, network=network)


def read_behaviour(file: str, rows: Mapping[str, Mapping[str, Any]]) -> Measured:
    """Read when devices are available.

    >>> read_behaviour("b.json", {"7": {"active": [10, 50], "inactive": [20, 60], "finish_time": 60}}).spans
    {'7': ((10.0, 20.0), (50.0, 60.0))}
    """
    spans, period = {}, {}
    for name, row in rows.items():
        where = f"{file}, {name}"
        period[name] = positive(where, "finish_time", row.get("finish_time"))
        begins, ends = row.get("active"), row.get("inactive")
        if not isinstance(begins, list) or not isinstance(ends, list) or len(begins) != len(ends):
            raise DataError(
                f"{where}: `active` and `inactive` must be lists of one length; got {short(begins)} and {short(ends)}"
            )
        pairs = [(_seconds(where, begin), _seconds(where, end)) for begin, end in zip_longest(begins, ends)]
        # a span that ends after the trace continues at its beginning
        wrapped = [(0.0, min(end - period[name], period[name])) for _, end in pairs if end > period[name]]
        whole = [(begin, min(end, period[name])) for begin, end in pairs]
        spans[name] = joined_spans(where, whole + wrapped, period[name])
    return Measured(spans=spans, period=period)


def _seconds(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e12:
        raise DataError(f"{where}: `active` and `inactive` must be seconds >= 0; got {short(value)}")
    return float(value)
