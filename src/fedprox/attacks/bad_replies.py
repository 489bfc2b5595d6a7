"""What attackers send in place of their replies.

With the reply w_k of an honest device, w^t, the mean m and deviation s over the honest devices of the round (entry by
entry, with equal weights), n replies and f attackers among them:

    sign_flip   2 w^t - w_k                                 the update backwards
    scale       w^t + strength (w_k - w^t)                  strength 10
    noise       w_k + strength N(0, I)                      strength 1
    alie        m - strength s                              "A Little Is Enough" (Baruch et al., 2019); strength
                                                            Phi^-1 of (n - floor(n/2 + 1)) / (n - f), its z_max
    ipm         w^t - strength (m - w^t)                    inner product manipulation (Xie et al., 2020); strength 0.5
    label_flip  the reply itself, from flipped labels       `bad_labels`

What a method sums besides (SCAFFOLD's variates) is treated in the same way, with zero in place of w^t. alie and ipm use
the honest replies of their round; in a round without honest ones they send w^t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.config import AttackConfig
from fedprox.core.randomness import Purpose, generator
from fedprox.core.trees import Tree
from fedprox.methods import Received

__all__ = ["corrupt"]

_STRENGTHS = {"scale": 10.0, "noise": 1.0, "ipm": 0.5}


def corrupt(
    attack: AttackConfig,
    received: Sequence[Received],
    attackers: NDArray[np.bool_],
    unmoved: Tree,
    *,
    seed: int,
    round: int,
) -> list[Received]:
    """Return the replies of a round with those of the attackers replaced; `unmoved` is that of an idle device."""
    honest = [one.reply for one in received if not attackers[one.device]]
    bad = len(received) - len(honest)
    if attack.kind == "label_flip" or not bad:
        return list(received)
    strength = attack.strength or _STRENGTHS.get(attack.kind) or _z_max(len(received), bad)

    def replaced(one: Received) -> Received:
        send = _entrywise(attack.kind, strength, generator(seed, Purpose.ATTACK_NOISE, round, one.device))
        zero = jax.tree.map(np.zeros_like, one.reply.summed)
        averaged = _send(send, unmoved, one.reply.averaged, [reply.averaged for reply in honest])
        summed = _send(send, zero, one.reply.summed, [reply.summed for reply in honest])
        return one._replace(reply=one.reply._replace(averaged=averaged, summed=summed))

    return [replaced(one) if attackers[one.device] else one for one in received]


def _send(send: Callable[..., Any], start: Tree, own: Tree, honest: Sequence[Tree]) -> Tree:
    """Return what an attacker sends, leaf by leaf; an idle device replaces honest ones if there are none."""

    def leaf(at: Any, mine: Any, *others: Any) -> Any:
        return np.asarray(send(at, mine, np.stack(others))).astype(np.asarray(mine).dtype)[()]

    return jax.tree.map(leaf, start, own, *(honest or [start]))


def _entrywise(kind: str, strength: float, random: np.random.Generator) -> Callable[..., Any]:
    """Return the attack on one array: where the device started, its own reply, those of the honest devices."""
    attacks = {
        "sign_flip": lambda start, own, honest: 2 * start - own,
        "scale": lambda start, own, honest: start + strength * (own - start),
        "noise": lambda start, own, honest: own + strength * random.normal(size=own.shape),
        "alie": lambda start, own, honest: honest.mean(axis=0) - strength * honest.std(axis=0),
        "ipm": lambda start, own, honest: start - strength * (honest.mean(axis=0) - start),
    }
    return attacks[kind]


def _z_max(replies: int, attackers: int) -> float:
    """Return ALIE's z: as far from the mean as still has more than half of the replies beyond it, if normal.

    >>> round(_z_max(50, 24), 3)
    1.426
    """
    from scipy.special import ndtri  # scipy.stats would take a quarter of the start-up time

    honest = replies - attackers
    share = (replies - (replies // 2 + 1)) / honest if honest else 0.5
    return float(np.clip(ndtri(min(max(share, 0.5), 1 - 1e-6)), 0.1, 5.0))
