"""Federated methods, one small file each; everything that is not in a method's file is shared."""

from __future__ import annotations

from fedprox.config import MethodConfig
from fedprox.config.parts import build_part, check_kind
from fedprox.core.errors import ConfigError
from fedprox.methods.agnostic import Agnostic
from fedprox.methods.device_view import DeviceView, Posed
from fedprox.methods.ditto import Ditto
from fedprox.methods.fedadam import FedAdam
from fedprox.methods.fedadmm import FedAdmm
from fedprox.methods.fedavg import FedAvg
from fedprox.methods.fedavgm import FedAvgM
from fedprox.methods.feddane import FedDane
from fedprox.methods.feddyn import FedDyn
from fedprox.methods.fedexp import FedExP
from fedprox.methods.fedexprox import FedExProx
from fedprox.methods.fednova import FedNova
from fedprox.methods.fedprox import FedProx
from fedprox.methods.fedyogi import FedYogi
from fedprox.methods.hook_marks import elementwise
from fedprox.methods.method import Method, Received, Reply, Solution
from fedprox.methods.pfedme import PFedMe
from fedprox.methods.qffl import QFedAvg
from fedprox.methods.scaffnew import Scaffnew
from fedprox.methods.scaffold import Scaffold
from fedprox.methods.sdane import SDane

__all__ = [
    "DeviceView",
    "Method",
    "Posed",
    "Received",
    "Reply",
    "Solution",
    "agnostic",
    "build",
    "ditto",
    "elementwise",
    "fedadam",
    "fedadmm",
    "fedavg",
    "fedavgm",
    "feddane",
    "feddyn",
    "fedexp",
    "fedexprox",
    "fednova",
    "fedprox",
    "fedyogi",
    "pfedme",
    "qffl",
    "scaffnew",
    "scaffold",
    "sdane",
]

# the names of configs are those of the constructors: `fedprox.methods.feddyn(alpha=0.5)`
agnostic, ditto, pfedme, qffl = Agnostic, Ditto, PFedMe, QFedAvg
fedadam, fedadmm, fedavg, fedavgm, feddane, feddyn = FedAdam, FedAdmm, FedAvg, FedAvgM, FedDane, FedDyn
fedexp, fedexprox, fednova, fedprox = FedExP, FedExProx, FedNova, FedProx
fedyogi, scaffnew, scaffold, sdane = FedYogi, Scaffnew, Scaffold, SDane


def build(config: MethodConfig, seed: int = 0) -> Method:
    """Return the method that the config names; mu is not among its settings, since it may change over the rounds.

    >>> build(MethodConfig(name="feddyn", alpha=0.5)).alpha
    0.5
    """
    method = build_part("methods", "method.name", config, {"seed": seed})
    check_kind(method, Method, "a Method", "method.name", config.name)
    if config.mu and not method.proximal:
        raise ConfigError(
            f"`method.mu` must be left out with method.name = {config.name!r}, which has no proximal term; "
            f"got {config.mu!r}"
        )
    return method
