"""The colours of curves and classes of devices in pictures.

They are Okabe and Ito's, which colour-blind readers can distinguish, without the two that vanish on white or black.
"""

from __future__ import annotations

__all__ = ["COLOURS"]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C6D31", "#7F7F7F")
