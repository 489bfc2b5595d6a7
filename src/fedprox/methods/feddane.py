"""FedDANE (Appendix B of the paper; Li et al., "FedDANE: A Federated Newton-Type Method", 2019).

Shamir et al.'s DANE with local epochs and low participation. In two exchanges per round the server gathers

    g^t = sum_k weight_k grad F_k(w^t)

over the round's own devices (or, as an option, over a second, independent draw of as many), sends it down, and each
chosen device minimises

    F_k(w) + <g^t - grad F_k(w^t), w> + (mu / 2) ||w - w^t||^2

as far as its budget allows; the server averages. The correction replaces the device's gradient at w^t by the mean one.

Partial work is kept: only failed devices are dropped. Gradients at w^t are extra work and not part of the budget;
stragglers do it too. It is one pass over the samples for the mean, and one for the device's own correction, since
nothing is kept between the two exchanges. Where no device of the second draw answers there is no correction, and the
round is one of FedProx.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedprox.config.fields import Flag
from fedprox.core.trees import Tree, difference
from fedprox.methods.method import Method

__all__ = ["FedDane"]


@dataclass(frozen=True)
class FedDane(Method):
    """FedDANE: a proximal term and a gradient correction; partial work is kept.

    >>> FedDane().needs_gradients, FedDane(second_draw=True).second_draw
    (True, True)
    """

    name: str = field(default="feddane", init=False)
    proximal: bool = field(default=True, init=False)
    needs_gradients: bool = field(default=True, init=False)
    second_draw: Flag = False

    def send(self, server: Tree, mean_gradient: Tree) -> Tree:
        """Send g^t down."""
        return mean_gradient

    def linear(self, sent: Tree, state: Tree, gradient: Tree) -> Tree:
        """Return g^t - grad F_k(w^t)."""
        return None if sent is None else difference(sent, gradient)
