"""`[attack]`: devices of a simulation that send bad replies."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedprox.config.fields import NotNegative, Section, Share

__all__ = ["AttackConfig"]

Kind = Annotated[
    Literal["sign_flip", "scale", "noise", "label_flip", "alie", "ipm"],
    Field(description="one of sign_flip, scale, noise, label_flip, alie, ipm"),
]


class AttackConfig(Section):
    """`[attack]`: how many devices attack, and how (`fedprox.attacks`).

    Attributes:
      share: of all devices.
      kind: what they send.
      strength: how strong the attack is; 0 takes the default of its kind.
    """

    share: Share = 0.0
    kind: Kind = "sign_flip"
    strength: NotNegative = 0.0
