"""Convolutions of any model in the forms that are fast on a CPU, also within compiled loops."""

from __future__ import annotations

from fedprox.core.convolutions.forms import fast_form

__all__ = ["fast_form"]
