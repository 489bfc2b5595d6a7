"""The kinds of settings, each with its rule in words, and what every section of a config has in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "BelowOne",
    "Count",
    "CountOrZero",
    "Flag",
    "NotNegative",
    "PartSection",
    "Positive",
    "Section",
    "Seed",
    "Share",
    "Text",
]

# A field's description is its rule: the words between "must be" and "; got" in the error that a bad value gets.
Seed = Annotated[int, Field(ge=0, lt=2**63, description="a whole number >= 0")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number > 0")]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, description="a number >= 0")]
Count = Annotated[int, Field(ge=1, description="a whole number >= 1")]
CountOrZero = Annotated[int, Field(ge=0, description="a whole number >= 0")]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, description="a number in [0, 1]")]
BelowOne = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False, description="a number in [0, 1)")]
Flag = Annotated[bool, Field(description="true or false")]
Text = Annotated[str, Field(description="text")]


class Section(BaseModel):
    """A group of settings: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class PartSection(Section):
    """A section that names a part, and takes the part's keys beside its own (`fedprox.config.resolution`)."""

    model_config = ConfigDict(extra="allow")

    def given(self) -> dict[str, Any]:
        """Return the settings that were given, not those at the section's defaults."""
        return {**{key: getattr(self, key) for key in self.model_fields_set}, **(self.model_extra or {})}
