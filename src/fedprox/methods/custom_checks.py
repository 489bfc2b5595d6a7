"""What a custom method's hooks return is checked where the library goes on with it; those of its own are not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import RunError, short
from fedprox.core.own_results import check_arrays, fitted
from fedprox.core.trees import Tree, flatten_names
from fedprox.methods.device_view import Posed, Reply
from fedprox.methods.method import Method
from fedprox.participation.stragglers import Workload

__all__ = ["check_memory", "check_reply", "check_starts", "checked_posed", "kept_devices", "merged_model"]


def check_starts(method: Method, params: Tree) -> None:
    """Refuse a method whose server or devices would remember something other than arrays, which are saved."""
    if method.is_custom:
        for hook in (method.start, method.start_device):
            check_arrays(hook(params), f"{hook.__name__} of the method {method.name!r}", "what is remembered")


def kept_devices(method: Method, work: Workload) -> NDArray[np.bool_]:
    """Return which listed devices the method keeps."""
    kept = method.kept(work)
    is_mask = isinstance(kept, np.ndarray) and kept.dtype.kind == "b" and kept.shape == work.straggler.shape
    if method.is_custom and not is_mask:
        raise RunError(
            f"kept of the method {method.name!r} must return true or false for each of {len(work.straggler)} devices; "
            f"got {short(kept)}"
        )
    return kept


def checked_posed(method: Method, posed: Posed, like: Tree) -> Posed:
    """Return the subproblem that a method poses, with trees of the model's structure."""
    if not method.is_custom:
        return posed
    given = {"anchor": posed.anchor, "linear": posed.linear, "start": posed.start}
    part = f"method {method.name!r}"
    trees = {key: fitted(tree, like, part, f"`{key}`") for key, tree in given.items() if tree is not None}
    return posed._replace(**trees)


def check_reply(method: Method, reply: Any) -> Reply:
    """Return a device's reply if it is one."""
    if method.is_custom:
        part = f"method {method.name!r}"
        if not isinstance(reply, Reply):
            raise RunError(f"{part} must return a Reply from each device; got {type(reply).__name__}")
        for what, tree in zip(Reply._fields, reply, strict=True):
            check_arrays(tree, part, f"`{what}`")
    checked: Reply = reply
    return checked


def merged_model(method: Method, merged: Any, server: Tree, params: Tree, part: str) -> tuple[Tree, Tree]:
    """Return what a method's merge gives: a model like the last one, and what the server remembers, as it began."""
    if not method.is_custom:
        return merged
    if not isinstance(merged, tuple) or len(merged) != 2:
        raise RunError(f"{part} must return (params, server); got {type(merged).__name__}")
    model = fitted(merged[0], params, part, "params", of="the model, then the server's state")
    check_memory(merged[1], server, part)
    return model, merged[1]


def check_memory(found: Tree, before: Tree, part: str) -> None:
    """Refuse what the server cannot remember: a run is resumed with the arrays that `start` gave."""
    check_arrays(found, part, "the server's state")
    shapes, known = ({name: leaf.shape for name, leaf in flatten_names(tree).items()} for tree in (found, before))
    for name in {**known, **shapes}:
        if shapes.get(name) != known.get(name):
            raise RunError(
                f"{part} must return the server's state with the names and shapes that `start` gives ({name!r}: "
                f"{known.get(name, 'none')}); got {shapes.get(name, 'none')}"
            )
