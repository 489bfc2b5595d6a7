"""Differential privacy of the devices: clipped updates, Gaussian noise, and an accountant of the guarantee."""

from __future__ import annotations

from fedprox.privacy.accountant import Accountant, build_accountant
from fedprox.privacy.clipping import clip
from fedprox.privacy.mechanism import Mechanism, build_mechanism, equal_weights
from fedprox.privacy.noise import Normals, seeded_normals, system_normals, with_noise
from fedprox.privacy.rules import check_private

__all__ = [
    "Accountant",
    "Mechanism",
    "Normals",
    "build_accountant",
    "build_mechanism",
    "check_private",
    "clip",
    "equal_weights",
    "seeded_normals",
    "system_normals",
    "with_noise",
]
