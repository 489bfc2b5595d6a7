"""Servers that merge replies as they arrive, in plain Python and double precision, written from their description.

Shares no code with the package: it gets the time that each device takes, the order in which devices are to be asked at
each version, and a function that solves for a device, from the caller.
"""

import heapq


def follow(seconds, order_at, concurrency, buffer, versions):
    """Return (time, [(device, version)]) for each of `versions` merges; all devices are available and reply."""
    now, version, asked = 0.0, 0, 0
    at_work, merges, arrived = [], [], []
    asked_at = {0: set()}
    while len(merges) < versions:
        while at_work and at_work[0][0] == now and len(arrived) < buffer:
            _, _, device, given = heapq.heappop(at_work)
            arrived.append((device, given))
        if len(arrived) == buffer:
            merges.append((now, arrived))
            arrived, version = [], version + 1
            asked_at[version] = set()
            continue
        busy = {entry[2] for entry in at_work}
        for device in order_at(version):
            if len(at_work) == concurrency:
                break
            if device not in busy and device not in asked_at[version]:
                heapq.heappush(at_work, (now + seconds[device], asked, device, version))
                asked_at[version].add(device)
                busy.add(device)
                asked += 1
        now = at_work[0][0]
    return merges


def weights_of(merge, samples, version, exponent):
    """Return the weights of a merge that makes `version` + 1."""
    shares = [samples[device] * (1 + version - given) ** -exponent for device, given in merge]
    return [share / sum(shares) for share in shares]


def train(start, merges, samples, exponent, solve, mixing=None):
    """Return all versions of a float64 array; `solve(device, version, model)` is what a device makes of a model."""
    models = [start]
    for version, (_, merge) in enumerate(merges):
        current = models[-1]
        if mixing is None:
            weights = weights_of(merge, samples, version, exponent)
        else:
            weights = [mixing * (1 + version - given) ** -exponent for _, given in merge]
        for weight, (device, given) in zip(weights, merge, strict=True):
            current = current + weight * (solve(device, given, models[given]) - models[given])
        models.append(current)
    return models
