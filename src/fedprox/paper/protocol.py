"""The paper's protocol (Section 5.1 and Appendix C.2): data sets, shares of stragglers, best mu, and how curves look.

Rounds, learning rates and models are those of the recipes. K = 10 devices take part in a round, batches have 10
samples, and the data are the same for all seeds: a seed changes which devices take part, which are stragglers, and the
order of samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "DATASETS",
    "DYNAMIC",
    "FEDAVG",
    "FEDDANE_0",
    "FEDDANE_1",
    "FIVE",
    "FRAME_COLOUR",
    "MEASURES",
    "PROX",
    "PROX_0",
    "PROX_1",
    "STRAGGLERS",
    "SYNTHETIC",
    "Dataset",
    "Style",
]


@dataclass(frozen=True)
class Dataset:
    """A data set of the paper; its name is that of the recipe with its data, rounds and learning rate.

    Attributes:
      title: its name in the figures.
      best_mu: the mu that the paper found best (Section 5.3.2; for synthetic data that of Figure 2).
      adversarial_mu: where the adaptive rule starts in Figures 3 and 11.
      has_costly_gradients: the gradients of all devices are measured only where a figure shows them.
      unlike_paper: how the data differ from the paper's apart from their size at a scale, in sentences.
    """

    title: str
    best_mu: float
    adversarial_mu: float = 0.0
    has_costly_gradients: bool = False
    unlike_paper: str = ""


@dataclass(frozen=True)
class Style:
    """How a curve is drawn."""

    label: str
    colour: str
    line: str


DATASETS: Mapping[str, Dataset] = {
    "synthetic-iid": Dataset("Synthetic-IID", 1.0, adversarial_mu=1.0),
    "synthetic-0-0": Dataset("Synthetic (0,0)", 1.0),
    "synthetic-0.5-0.5": Dataset("Synthetic (0.5,0.5)", 1.0),
    "synthetic-1-1": Dataset("Synthetic (1,1)", 1.0),
    "mnist": Dataset("MNIST", 1.0),
    "femnist": Dataset("FEMNIST", 1.0),
    "shakespeare": Dataset(
        "Shakespeare",
        0.001,
        has_costly_gradients=True,
        unlike_paper="Shakespeare's 143 roles are drawn from the 563 of LEAF's file of 1994, with 517,853 samples in "
        "all where the paper has 517,106; which roles the paper drew is not known. The last fifth of a role's windows "
        "are its test samples, so that no test character is seen in training.",
    ),
    "sent140": Dataset(
        "Sent140",
        0.01,
        has_costly_gradients=True,
        unlike_paper="Sent140 has 536 devices and 28,583 tweets where the paper has 772 and 40,783, since only a part "
        "of the tweets was at hand. No account in it has the 30 tweets of the paper's accounts, so a device is a group "
        "of accounts with the paper's distribution of sizes and its own share of positive tweets. Words have GloVe "
        "vectors of 100 dimensions, in the paper of 300.",
    ),
}
SYNTHETIC = ("synthetic-iid", "synthetic-0-0", "synthetic-0.5-0.5", "synthetic-1-1")  # from left to right in Figure 2
FIVE = ("synthetic-1-1", "mnist", "femnist", "shakespeare", "sent140")  # from left to right in Figure 1
STRAGGLERS = (0.0, 0.5, 0.9)  # from top to bottom in Figure 1

# The colours and lines of the paper's figures.
FEDAVG = Style("FedAvg", "tab:orange", ":")
PROX_0 = Style("FedProx (μ=0)", "tab:pink", "--")
PROX = Style("FedProx (μ>0)", "tab:cyan", "-")
PROX_1 = Style("FedProx (μ=1)", "tab:cyan", "-")
DYNAMIC = Style("FedProx (dynamic μ)", "tab:green", "-.")
FEDDANE_0 = Style("FedDANE (μ=0)", "tab:brown", ":")
FEDDANE_1 = Style("FedDANE (μ=1)", "tab:purple", "-.")
FRAME_COLOUR = "#dddddd"

MEASURES: Mapping[str, str] = {
    "train_loss": "Training Loss",
    "test_accuracy": "Testing Accuracy",
    "gradient_variance": "Variance of Local Grad.",
}
"""The measures that figures show, and what the axis says."""
