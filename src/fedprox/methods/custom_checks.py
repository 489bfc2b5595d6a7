"""What a custom method's hooks return is checked where the library goes on with it; those of its own are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.core.errors import RunError, short
from fedprox.core.own_results import check_arrays, fitted
from fedprox.core.own_signatures import check_signatures
from fedprox.core.trees import Tree, flatten_names
from fedprox.methods.device_view import Posed, Reply
from fedprox.methods.method import Method
from fedprox.participation.stragglers import Workload

__all__ = [
    "check_memory",
    "check_starts",
    "checked_posed",
    "checked_reply",
    "checked_values",
    "kept_devices",
    "merged_model",
]


def check_starts(method: Method, params: Tree) -> None:
    """Refuse a method with hooks of other arguments, or which would remember, or send, something other than arrays."""
    if not method.is_custom:
        return
    check_signatures(method, Method, f"the method {method.name!r}")
    server = method.start(params)
    check_arrays(server, _hook("start", method), "what is remembered")
    check_arrays(method.start_device(params), _hook("start_device", method), "what is remembered")
    fitted(method.centre(server, params), params, _hook("centre", method))
    gradient = jax.tree.map(np.zeros_like, params) if method.needs_gradients else None
    check_arrays(method.send(server, gradient), _hook("send", method), "what is sent")


def kept_devices(method: Method, work: Workload) -> NDArray[np.bool_]:
    """Return which listed devices the method keeps."""
    kept = method.kept(work)
    is_mask = isinstance(kept, np.ndarray) and kept.dtype.kind == "b" and kept.shape == work.straggler.shape
    if method.is_custom and not is_mask:
        raise RunError(
            f"{_hook('kept', method)} must return true or false for each of {len(work.straggler)} devices; "
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
    if not all(map(_is_number, posed.mu.values() if isinstance(posed.mu, Mapping) else [posed.mu])):
        raise RunError(f"{part} must return a number as `mu`, or one for each group of names; got {short(posed.mu)}")
    return posed._replace(**trees)


def checked_reply(method: Method, reply: Any, state: Tree) -> Reply:
    """Return a device's reply if it is one; `state` is what the device remembered before."""
    checked = checked_values(method, reply)
    if method.is_custom and checked.state is not None:
        check_memory(checked.state, state, f"method {method.name!r}", "the device's state", "start_device")
    return checked


def checked_values(method: Method, reply: Any) -> Reply:
    """Return a reply if it is one, of one device or of several; numbers that are averaged or summed are real."""
    if not method.is_custom:
        checked: Reply = reply
        return checked
    part = f"method {method.name!r}"
    if not isinstance(reply, Reply):
        raise RunError(f"{part} must return a Reply from each device; got {type(reply).__name__}")
    for what, tree in zip(Reply._fields, reply, strict=True):
        check_arrays(tree, part, f"`{what}`")
    return reply._replace(averaged=jax.tree.map(_real, reply.averaged), summed=jax.tree.map(_real, reply.summed))


def merged_model(method: Method, hook: str, merged: Any, server: Tree, params: Tree) -> tuple[Tree, Tree]:
    """Return what a method's merge gives: a model like the last one, and what the server remembers, as it began."""
    if not method.is_custom:
        return merged
    part = _hook(hook, method)
    if not isinstance(merged, tuple) or len(merged) != 2:
        raise RunError(f"{part} must return (params, server); got {type(merged).__name__}")
    model = fitted(merged[0], params, part, "params", of="the model, then the server's state")
    check_memory(merged[1], server, part, "the server's state", "start")
    return model, merged[1]


def check_memory(found: Tree, before: Tree, part: str, what: str, start: str) -> None:
    """Refuse what cannot be remembered: a run is resumed with the arrays that the hook `start` gave."""
    check_arrays(found, part, what)
    shapes, known = ({name: leaf.shape for name, leaf in flatten_names(tree).items()} for tree in (found, before))
    for name in {**known, **shapes}:
        if shapes.get(name) != known.get(name):
            raise RunError(
                f"{part} must return {what} with the names and shapes that `{start}` gives ({name!r}: "
                f"{known.get(name, 'none')}); got {shapes.get(name, 'none')}"
            )


def _hook(name: str, method: Method) -> str:
    return f"{name} of the method {method.name!r}"


def _is_number(value: Any) -> bool:
    return not isinstance(value, (bool, str)) and np.ndim(value) == 0 and np.can_cast(np.asarray(value).dtype, float)


def _real(leaf: Any) -> Any:
    """Return a leaf as it is weighted: an integer times a weight would be rounded to 0."""
    kind = leaf.dtype.kind if hasattr(leaf, "dtype") else "i"
    return np.asarray(leaf, np.float64) if kind in "biu" else leaf
