"""The sections of a config: every setting, its default and its rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedprox.config.fields import (
    BelowOne,
    Count,
    CountOrZero,
    Flag,
    NotNegative,
    Positive,
    Section,
    Seed,
    Share,
    Text,
)

__all__ = [
    "METHOD_KEYS",
    "CheckpointConfig",
    "DataConfig",
    "DeployConfig",
    "DevicesConfig",
    "EngineConfig",
    "MeasureConfig",
    "MethodConfig",
    "ModelConfig",
    "SolverConfig",
    "StopConfig",
    "SystemsConfig",
]


class DataConfig(Section):
    """`[data]`: which federated data set. `seed` fixes what is generated, partitioned and split."""

    name: Annotated[
        Literal[
            "synthetic",
            "synthetic_iid",
            "mnist",
            "femnist",
            "shakespeare",
            "sent140",
            "leaf",
            "npz",
            "arrow",
            "population",
        ],
        Field(
            description="one of synthetic, synthetic_iid, mnist, femnist, shakespeare, sent140, leaf, npz, arrow, "
            "population"
        ),
    ] = "synthetic"
    seed: Seed = 0
    alpha: NotNegative = 1.0
    beta: NotNegative = 1.0
    devices: Count = 30
    path: Text = ""


class ModelConfig(Section):
    """`[model]`: which model; an empty name takes the one that the paper uses for the data."""

    name: Annotated[
        Literal["", "softmax_regression", "linear_regression", "char_lstm", "sentiment_lstm", "mlp", "cnn"],
        Field(
            description="one of softmax_regression, linear_regression, char_lstm, sentiment_lstm, mlp, cnn, "
            "or '' for the paper's choice"
        ),
    ] = ""
    init: Text = ""


class MethodConfig(Section):
    """`[method]`: the federated method and its coefficients; `METHOD_KEYS` says which keys belong to which method."""

    name: Annotated[
        Literal["fedavg", "fedprox", "feddane", "scaffold", "fednova", "feddyn", "fedavgm", "fedadam", "fedyogi"],
        Field(description="one of fedavg, fedprox, feddane, scaffold, fednova, feddyn, fedavgm, fedadam, fedyogi"),
    ] = "fedprox"
    mu: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["adaptive", "auto"],
        Field(description="a number >= 0, 'adaptive' or 'auto'"),
    ] = 0.0
    mu_initial: NotNegative = 0.0
    mu_step: Positive = 0.1
    mu_patience: Count = 5
    second_draw: Flag = False
    alpha: Positive = 0.1
    server_learning_rate: Positive = 1.0
    momentum: BelowOne = 0.9
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Positive = 1e-3

    @model_validator(mode="before")
    @classmethod
    def _adaptive_servers_take_small_steps(cls, settings: Any) -> Any:
        if isinstance(settings, Mapping) and settings.get("name") in ("fedadam", "fedyogi"):
            return {"server_learning_rate": 0.03, **settings}
        return settings


_MU = tuple(key for key in MethodConfig.model_fields if key.startswith("mu"))
_ADAPTIVE_SERVER = ("server_learning_rate", "beta1", "beta2", "tau")

METHOD_KEYS: Mapping[str, tuple[str, ...]] = {
    "fedavg": (),
    "fedprox": _MU,
    "feddane": (*_MU, "second_draw"),
    "scaffold": (),
    "fednova": _MU,
    "feddyn": ("alpha",),
    "fedavgm": ("server_learning_rate", "momentum"),
    "fedadam": _ADAPTIVE_SERVER,
    "fedyogi": _ADAPTIVE_SERVER,
}
"""The keys of `[method]`, beside its name, that belong to each method; any other, when given, is refused."""


class SolverConfig(Section):
    """`[solver]`: how a device works on its subproblem. `epochs` is the paper's E."""

    name: Annotated[
        Literal["sgd", "adam", "optax", "gradient_descent", "lbfgs", "newton_cg", "closed_form", "svrg"],
        Field(description="one of sgd, adam, optax, gradient_descent, lbfgs, newton_cg, closed_form, svrg"),
    ] = "sgd"
    learning_rate: Positive = 0.01
    batch_size: CountOrZero = 10
    epochs: Count = 20
    gamma: Share = 0.0
    momentum: BelowOne = 0.0
    nesterov: Flag = False
    weight_decay: NotNegative = 0.0
    options: dict[str, Any] = Field(default_factory=dict, description="a table of the solver's own options")


class DevicesConfig(Section):
    """`[devices]`: who takes part. `per_round` is the paper's K."""

    per_round: Count = 10
    sampling: Annotated[Literal["uniform", "proportional"], Field(description="one of uniform, proportional")] = (
        "uniform"
    )
    stragglers: Share = 0.0
    failure: Share = 0.0


class SystemsConfig(Section):
    """`[systems]`: what decides how much work a device does; all but `model` belongs to the clock."""

    model: Annotated[Literal["stragglers", "clock"], Field(description="one of stragglers, clock")] = "stragglers"
    profile: Text = ""  # "phones" where there is no trace either
    trace: Text = ""
    deadline: Annotated[
        Annotated[float, Field(gt=0, allow_inf_nan=False)]
        | Annotated[str, Field(pattern=r"^q(0?\.\d*[1-9]\d*|1(\.0*)?)$")],
        Field(description="a number of seconds > 0 or a quantile of what the chosen devices need, such as 'q0.8'"),
    ] = "q0.8"


class MeasureConfig(Section):
    """`[measure]`: what is measured, when, and over how many devices (0: all)."""

    every: Count = 1
    devices: CountOrZero = 0
    dissimilarity: Flag = True
    gamma: Flag = False


class StopConfig(Section):
    """`[stop]`: whether to end where the paper calls a run converged or diverged."""

    converged: Flag = False
    diverged: Flag = False


class CheckpointConfig(Section):
    """`[checkpoint]`: how often, in rounds, the state is saved."""

    every: Count = 10


class EngineConfig(Section):
    """`[engine]`: where local problems are solved, on how many cores (0: all); `address` is that of a Ray cluster."""

    name: Annotated[Literal["local", "ray"], Field(description="one of local, ray")] = "local"
    workers: CountOrZero = 0
    address: Text = ""

    @property
    def local_workers(self) -> int:
        """How many cores of this machine (0: all), which `workers` does not say where it counts those of a cluster."""
        return self.workers if self.name == "local" else 0


class DeployConfig(Section):
    """`[deploy]`: real devices through Flower; a simulation takes no notice of it.

    `devices` is their number N. In a round each may work for `deadline` seconds (0: as long as it takes), and the
    server waits `grace` seconds more for messages to travel and programs to start. Fewer than `min_replies` usable
    replies leave the model as it was, and the round is repeated, at most `repeats` times. `max_norm` is the largest
    ||w_k - w^t|| that is let in (0: any), `join_seconds` how long the server waits for all devices at the start.
    """

    devices: CountOrZero = 0
    deadline: NotNegative = 0.0
    grace: NotNegative = 30.0
    min_replies: Count = 1
    repeats: CountOrZero = 3
    max_norm: NotNegative = 0.0
    join_seconds: Positive = 300.0
