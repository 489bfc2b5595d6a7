"""What is measured of a model: loss, accuracy, gradient variance and dissimilarity, in one pass over the data."""

from __future__ import annotations

from fedprox.measures.measurer import Measurer, Measures, Measuring, add_personal, dissimilarity

__all__ = ["Measurer", "Measures", "Measuring", "add_personal", "dissimilarity"]
