"""The kinds of settings, each with its rule in words, and what every section of a config has in common."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import ErrorDetails

__all__ = [
    "BelowOne",
    "Count",
    "CountOrZero",
    "Flag",
    "NotNegative",
    "NumberOrAuto",
    "PartSection",
    "PathText",
    "Positive",
    "Section",
    "Seed",
    "Share",
    "Text",
    "broken_rule",
]

MOST, SMALLEST, LARGEST = 10**9, 1e-30, 1e30
"""Bounds of every count and number: products of two counts fit 64 bits, and numbers fit single precision."""
SEEDS = 2**63

# A field's description is its rule: the words between "must be" and "; got" in the error that a bad value gets.
# -0.0 is 0.0: NumPy's generators refuse a scale with a sign.
Seed = Annotated[int, Field(ge=0, lt=SEEDS, description="an integer >= 0")]
Positive = Annotated[float, Field(gt=0, ge=SMALLEST, le=LARGEST, allow_inf_nan=False, description="a number > 0")]
NotNegative = Annotated[
    float,
    Field(ge=0, le=LARGEST, allow_inf_nan=False, description="a number >= 0"),
    AfterValidator(lambda value: value + 0.0),
]
NumberOrAuto = Annotated[NotNegative | Literal["auto"], Field(description="a number >= 0 or 'auto'")]
Count = Annotated[int, Field(ge=1, le=MOST, description="an integer >= 1")]
CountOrZero = Annotated[int, Field(ge=0, le=MOST, description="an integer >= 0")]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, description="a number in [0, 1]")]
BelowOne = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False, description="a number in [0, 1)")]
Flag = Annotated[bool, Field(description="true or false")]
Text = Annotated[str, Field(description="text")]
PathText = Annotated[str, Field(description="text"), AfterValidator(os.path.expanduser)]  # no shell expands a ~ here


def broken_rule(error: ErrorDetails, rule: str) -> str:
    """Return the rule that a value breaks: the field's own, or the bound where only that is exceeded.

    >>> broken_rule({"type": "less_than_equal", "loc": (), "msg": "", "input": 10**12, "ctx": {"le": 10**9}}, "a count")
    'at most 1e+09'
    """
    context = error.get("ctx", {})
    if error["type"] == "less_than_equal" and context["le"] in (MOST, LARGEST):
        return f"at most {context['le']:g}"
    if error["type"] == "less_than" and context["lt"] == SEEDS:
        return "below 2^63"
    if error["type"] == "greater_than_equal" and context["ge"] == SMALLEST and error["input"] > 0:
        return f"at least {SMALLEST:g}"
    return rule


class Section(BaseModel):
    """A group of settings: frozen, strict about types, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class PartSection(Section):
    """A section that names a part, and takes the part's keys beside its own (`fedprox.config.resolution`)."""

    model_config = ConfigDict(extra="allow")

    def given(self) -> dict[str, Any]:
        """Return the settings that were given, not those at the section's defaults."""
        return {**{key: getattr(self, key) for key in self.model_fields_set}, **(self.model_extra or {})}
