"""Real devices, through Flower: Algorithm 2 with a server, nodes and wall-clock time.

`fedprox deploy init DIR` writes a Flower app that is made of these parts (`pip install 'fedprox[flower]'`);
`docs/deploy.md` goes through it step by step.
"""

from __future__ import annotations

__all__: list[str] = []
