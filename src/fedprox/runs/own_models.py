"""The models of devices that have their own, read from a run folder.

The model of the server is in `model.safetensors`; what devices keep to themselves (`[personal]`) is in the checkpoint.
A device that has not taken part has its personal parameters as they were at the start. Real devices keep theirs to
themselves: their models are not in the folder.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import partial

from fedprox import methods
from fedprox.core.errors import ConfigError, RunFolderError
from fedprox.core.trees import Tree
from fedprox.methods import Method
from fedprox.methods.parameter_roles import assign_roles
from fedprox.models import Model
from fedprox.runs.checkpoint import devices_folder, find_checkpoint
from fedprox.runs.device_models import DeviceModels
from fedprox.runs.device_store import DeviceStore
from fedprox.runs.identity import run_identity
from fedprox.runs.reader import SavedRun
from fedprox.runs.replaced import check_present, check_replaced, describe_parts

__all__ = ["check_all_here", "choose_device_model", "read_own_models", "read_personal_models"]


def read_own_models(
    run: SavedRun, model: Model, params: Tree, method: Method | None = None
) -> Mapping[int, Tree] | None:
    """Return the complete model of each device that has taken part; None where all devices share one.

    `method` is the one that was given to `train`, if any.
    """
    if not (run.summary or {}).get("own_models", False):
        return None
    divided, remembered = _read_remembered(run, model, params, method)
    return DeviceModels(remembered, lambda states: states, partial(divided.device_model, params))


def read_personal_models(
    run: SavedRun, model: Model, params: Tree, method: Method | None = None
) -> Mapping[int, Tree] | None:
    """Return the second model of each device that has taken part; None where devices have none."""
    if not (run.summary or {}).get("personal_models", False):
        return None
    divided, remembered = _read_remembered(run, model, params, method)
    return DeviceModels(remembered, lambda states: states, partial(divided.personal_model, params))


def _read_remembered(
    run: SavedRun, model: Model, params: Tree, method: Method | None
) -> tuple[Method, Mapping[int, Tree]]:
    """Return the run's method, and what each device remembers."""
    recorded = {part: record for part, record in run.replaced.items() if part == "method"}
    check_present(run.path, recorded, {"method": method})
    if recorded:
        check_replaced(run.path, recorded, describe_parts({"method": method}, params))
    plain = method if method is not None else methods.build(run.config.method, run.config.seed)
    divided = assign_roles(run.config, model, plain).of_method(plain)
    found = find_checkpoint(run.path, run_identity(run.config, run.replaced))
    if found is None:
        raise RunFolderError(f"{run.path} holds no checkpoint, which has the state of its devices")
    like = divided.start_device(params)
    try:
        remembered = DeviceStore(devices_folder(run.path), like, segments=found.checkpoint.devices)
    except ValueError as error:
        raise RunFolderError(f"the checkpoint of {run.path} does not fit its model: {error}") from None
    check_all_here(run, remembered)
    return divided, remembered


def choose_device_model(run: SavedRun, params: Tree, own: Mapping[int, Tree] | None, device: int) -> Tree:
    """Return the model of one device of a run."""
    if own is None:
        raise ConfigError(f"`device` must be left out for {run.path}, whose devices share one model; got {device}")
    count = (run.summary or {}).get("devices")
    if device < 0 or (isinstance(count, int) and device >= count):
        last = "" if count is None else f" from 0 to {count - 1}"
        raise ConfigError(f"`device` must be the number of a device of {run.path}{last}; got {device}")
    return own.get(device, params)


def check_all_here(run: SavedRun, devices: Container[int]) -> None:
    """Refuse a run in which a device took part whose parameters are not in the folder."""
    for row in run.devices:
        for device, kept in zip(row["device"], row["kept"], strict=True):
            if kept and device not in devices:
                raise RunFolderError(
                    f"device {device} of {run.path} keeps its personal parameters, so its model is not in the folder"
                )
