"""Differential privacy of the devices: clipped updates, Gaussian noise, and an accountant of what it promises."""

from __future__ import annotations

from fedprox.privacy.accountant import Accountant, accountant_of
from fedprox.privacy.clipping import clip
from fedprox.privacy.mechanism import Mechanism, equal_weights, mechanism_of
from fedprox.privacy.noise import Normals, seeded_normals, system_normals, with_noise
from fedprox.privacy.rules import check_private

__all__ = [
    "Accountant",
    "Mechanism",
    "Normals",
    "accountant_of",
    "check_private",
    "clip",
    "equal_weights",
    "mechanism_of",
    "seeded_normals",
    "system_normals",
    "with_noise",
]
