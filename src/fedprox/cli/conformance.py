"""`fedprox conformance`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from fedprox.cli.app import Json, answers_errors, app, say_json

__all__ = ["conformance"]


@app.command()
@answers_errors
def conformance(
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="A local update, e.g. my_package.training:local_update.")
    ],
    as_json: Json = False,
) -> None:
    """Check whether a local update solves the FedProx subproblem; the exit code is 1 if it does not.

    FUNCTION(params, x, y, *, mu, learning_rate, epochs, batch_size, seed)
    trains prediction = (x @ params["first"]) @ params["second"] with loss
    mean((prediction - y)^2) / 2 by mini-batch SGD, and returns the new params.

    Example: fedprox conformance fedprox.conformance:ours
    """
    from fedprox.conformance import check

    results = check(_load(function))
    if as_json:
        checks = [{"name": one.name, "passed": one.passed, "message": one.message} for one in results]
        say_json({"function": function, "passed": all(one.passed for one in results), "checks": checks})
    else:
        for one in results:
            typer.echo(f"passed  {one.name}" if one.passed else f"FAILED  {one.name}\n        {one.message}")
    raise typer.Exit(0 if all(one.passed for one in results) else 1)


def _load(function: str) -> Callable[..., Any]:
    import importlib
    import sys

    from fedprox.core.errors import ConfigError

    module, colon, name = function.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"a function must be named MODULE:FUNCTION; got {function!r}")
    sys.path.insert(0, "")  # modules of the current folder, as `python -m` has them
    try:
        loaded = importlib.import_module(module)
    except Exception as error:  # a user's module can raise anything when it is imported
        raise ConfigError(f"module {module!r} cannot be imported: {type(error).__name__}: {error}") from None
    found = getattr(loaded, name, None)
    if not callable(found):
        raise ConfigError(f"module {module!r} must have a function {name!r}; got {type(found).__name__}")
    return found
