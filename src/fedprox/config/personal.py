"""`[personal]`: parameters that stay on the device, and parameters that are never trained."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedprox.config.fields import Section

__all__ = ["PersonalConfig"]

Patterns = Annotated[list[str], Field(description="a list of patterns over parameter names, such as ['output.*']")]


class PersonalConfig(Section):
    """`[personal]`: which parameters are not shared, by patterns over their names.

    Attributes:
      parameters: kept on each device, trained there and never sent.
      frozen: never trained, and not sent after the start.
    """

    parameters: Patterns = Field(default_factory=list)
    frozen: Patterns = Field(default_factory=list)
