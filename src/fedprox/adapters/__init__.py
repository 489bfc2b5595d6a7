"""Models and solvers of other libraries, used unchanged.

Each adapter imports its library when it is imported itself, so that the rest works without them:

    from fedprox.adapters.torch import from_torch        # pip install 'fedprox[torch]'
    from fedprox.adapters.flax import from_linen, from_nnx
    from fedprox.adapters.equinox import from_equinox
    from fedprox.adapters.scipy import scipy_solver
"""

__all__: list[str] = []
