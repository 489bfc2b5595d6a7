"""pFedMe (Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", 2020).

The shared model minimises the mean of the devices' Moreau envelopes,

    sum_k p_k min_theta { F_k(theta) + (personal_mu / 2) ||theta - w||^2 }

and the minimiser theta_k is the personal model of device k. The gradient of an envelope at w^t is
personal_mu (w^t - theta_k). A chosen device works on the minimisation from w^t as far as its budget allows and keeps
theta_k; the server takes a step along the mean gradient,

    w^{t+1} = w^t + server_learning_rate (sum_k weight_k theta_k - w^t)

`personal_mu` is the source's lambda. The source takes R such steps on the device before the server averages with
beta; here a round has one (R = 1), with the entire budget for theta_k, and `server_learning_rate` is the product
beta eta lambda of the source's three factors. With 1 the shared model is that of FedProx with mu = personal_mu, bit for
bit.

Partial work is kept. Devices send theta_k; a device that fails keeps its old one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedprox.config.fields import Positive
from fedprox.core.errors import ConfigError
from fedprox.core.trees import Tree, difference, scale, total
from fedprox.methods.hook_marks import elementwise
from fedprox.methods.method import Method, Reply, Solution

__all__ = ["PFedMe"]


@dataclass(frozen=True)
class PFedMe(Method):
    """pFedMe: personal models as proximal points of the shared one; partial work is kept.

    >>> PFedMe(server_learning_rate=0.5).merge((), 1.0, 3.0, ())[0]
    np.float64(2.0)
    """

    name: str = field(default="pfedme", init=False)
    personal_models: bool = field(default=True, init=False)
    personal_mu: Positive = 15.0
    server_learning_rate: Positive = 1.0

    def __post_init__(self) -> None:
        if not self.personal_mu > 0:
            raise ConfigError(f"`method.personal_mu` must be a number > 0; got {self.personal_mu!r}")

    @property
    def mu_key(self) -> str:
        """Return the key that takes mu's place."""
        return "personal_mu"

    def subproblem_mu(self, mu: float) -> float:
        """Return `personal_mu`, which takes mu's place."""
        return self.personal_mu

    def start_device(self, params: Tree) -> Tree:
        """Return theta_k."""
        return params

    @elementwise
    def reply(self, solution: Solution) -> Reply:
        """Send theta_k, and keep it."""
        return Reply(solution.params, state=solution.params)

    def merge(self, server: Tree, params: Tree, averaged: Tree, summed: Tree) -> tuple[Tree, Tree]:
        """Take the server's step."""
        if self.server_learning_rate == 1:
            return averaged, server
        return total(params, scale(difference(averaged, params), self.server_learning_rate)), server
