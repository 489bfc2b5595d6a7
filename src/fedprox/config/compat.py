"""Where the paper's text and its released code say different things and a run can choose, each as a setting.

| key | "paper": the text | "released": the code |
|---|---|---|
| `split` | a fifth of a device's samples are test samples (Appendix C.2) | a tenth |
| `straggler_epochs` | stragglers draw from {1, ..., E} (Section 5.2) | from {1, ..., E - 1} |
| `alpha_beta` | u_k ~ N(0, alpha), B_k ~ N(0, beta) with variances (Section 5.1) | with standard deviations |
| `initial` | softmax regression starts from zeros (the text does not say) | its weights are uniform (Glorot) |
| `dissimilarity` | E_k has the masses p_k = n_k / n (Definition 3) | is a plain mean over devices |

Every key but `alpha_beta` follows the paper by default. The code that acts on a setting takes a plain number, which the
methods here derive from the words.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from fedprox.config.fields import Section

__all__ = ["CompatConfig"]

Source = Annotated[Literal["paper", "released"], Field(description="one of paper, released")]


class CompatConfig(Section):
    """`[compat]`: the paper's text or its released code, where they differ.

    A setting about something that a run does not have (stragglers, alpha and beta, a measured dissimilarity, softmax
    regression) changes nothing.

    >>> compat = CompatConfig(straggler_epochs="released")
    >>> compat.test_share, compat.most_epochs(20), compat.deviation(0.25), compat.weighted
    (0.2, 19, 0.25, True)
    """

    split: Source = "paper"
    straggler_epochs: Source = "paper"
    alpha_beta: Source = "released"
    dissimilarity: Source = "paper"
    initial: Source = "paper"

    @property
    def test_share(self) -> float:
        """The share of a synthetic device's samples that are test samples."""
        return 0.2 if self.split == "paper" else 0.1

    def most_epochs(self, epochs: int) -> int:
        """Return the largest number of epochs that a straggler can draw, given E."""
        return epochs if self.straggler_epochs == "paper" else epochs - 1

    def deviation(self, spread: float) -> float:
        """Return the standard deviation that alpha or beta stands for."""
        return math.sqrt(spread) if self.alpha_beta == "paper" else spread

    @property
    def weighted(self) -> bool:
        """Whether the mean over devices in the gradient variance and in B has the masses p_k."""
        return self.dissimilarity == "paper"
