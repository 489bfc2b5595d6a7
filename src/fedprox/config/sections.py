"""The sections of a config: every setting, its default and its rule."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from fedprox.config.fields import (
    BelowOne,
    Count,
    CountOrZero,
    Flag,
    NotNegative,
    NumberOrAuto,
    PartSection,
    PathText,
    Positive,
    Section,
    Seed,
    Share,
    Text,
)

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "DeployConfig",
    "DevicesConfig",
    "EngineConfig",
    "MeasureConfig",
    "MergeConfig",
    "MethodConfig",
    "ModelConfig",
    "SolverConfig",
    "StopConfig",
    "SystemsConfig",
]


class DataConfig(PartSection):
    """`[data]`: which federated data set. `seed` fixes what is generated, partitioned and split."""

    name: Text = "synthetic"
    seed: Seed = 0
    alpha: NotNegative = 1.0
    beta: NotNegative = 1.0
    devices: Count = 30
    path: PathText = ""
    partition: Annotated[
        Literal["", "iid", "dirichlet", "classes", "power_law"],
        Field(description="one of iid, dirichlet, classes, power_law, or '' for the data set's own devices"),
    ] = ""
    concentration: Positive = 0.5
    classes_per_device: Count = 2
    validation: BelowOne = 0.0
    holdout_devices: BelowOne = 0.0


class ModelConfig(PartSection):
    """`[model]`: which model; an empty name takes the one that the paper uses for the data."""

    name: Text = ""
    init: PathText = ""


class MethodConfig(PartSection):
    """`[method]`: the federated method, and mu where it has a proximal term; other keys are the method's own."""

    name: Text = "fedprox"
    mu: Annotated[
        Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)] | str,
        Field(description="a number >= 0, 'adaptive', 'drift' or 'auto'"),
    ] = 0.0
    mu_initial: NotNegative = 0.0
    mu_step: Positive = 0.1
    mu_patience: Count = 5


class SolverConfig(PartSection):
    """`[solver]`: how a device works on its subproblem. `epochs` is the paper's E.

    `schedule` changes the learning rate over the rounds.
    """

    name: Text = "sgd"
    learning_rate: Positive = 0.01
    batch_size: CountOrZero = 10
    epochs: Count = 20
    gamma: Share = 0.0
    momentum: BelowOne = 0.0
    nesterov: Flag = False
    weight_decay: NotNegative = 0.0
    options: dict[str, Any] = Field(default_factory=dict, description="a table of the solver's own options")
    schedule: Text = "constant"


class DevicesConfig(PartSection):
    """`[devices]`: which devices take part. `per_round` is the paper's K."""

    per_round: Count = 10
    sampling: Text = "uniform"
    stragglers: Share = 0.0
    failure: Share = 0.0


class SystemsConfig(PartSection):
    """`[systems]`: what decides how much work a device does; all but `model` belongs to the clock.

    `server` says when the model moves: after a round, after the first K replies of a round that asked more, or
    whenever replies arrive.
    A device with the share q of its samples in `rare_labels` is available less often, by `rare_by` * q standard
    deviations of the devices' levels.
    """

    model: Text = "stragglers"
    profile: PathText = ""  # "phones" where there is no trace either
    trace: PathText = ""
    deadline: Annotated[
        Annotated[float, Field(gt=0, ge=1e-30, le=1e30, allow_inf_nan=False)]
        | Annotated[str, Field(pattern=r"^q(0?\.\d*[1-9]\d*|1(\.0*)?)$")],
        Field(description="a number of seconds > 0 or a quantile of what the chosen devices need, such as 'q0.8'"),
    ] = "q0.8"
    rare_labels: Annotated[
        list[CountOrZero], Field(max_length=10**6, description="a list of labels, which are integers >= 0")
    ] = Field(default_factory=list)
    rare_by: NotNegative = 2.0
    server: Annotated[
        Literal["synchronous", "over_selection", "buffered", "asynchronous"],
        Field(description="one of synchronous, over_selection, buffered, asynchronous"),
    ] = "synchronous"
    over_selection: Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False, description="a number >= 1")] = 1.3
    concurrency: Count = 100
    buffer: Count = 10
    staleness: NotNegative = 0.5
    mixing: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, description="a number in (0, 1]")] = 0.6

    @property
    def runs_on_events(self) -> bool:
        """Whether the model moves with replies as they arrive, not in rounds."""
        return self.server in ("buffered", "asynchronous")


class MergeConfig(PartSection):
    """`[merge]`: how the replies of a round become one."""

    rule: Text = "mean"


class MeasureConfig(Section):
    """`[measure]`: what is measured, when, and over how many devices (0: all)."""

    every: Count = 1
    devices: CountOrZero = 0
    dissimilarity: Flag = True
    gamma: Flag = False
    metrics: list[str] = Field(default_factory=list, description='a list of names, such as ["module:object"]')


class StopConfig(PartSection):
    """`[stop]`: whether to end where the paper calls a run converged or diverged."""

    converged: Flag = False
    diverged: Flag = False
    rule: Text = ""


class CheckpointConfig(Section):
    """`[checkpoint]`: how often, in rounds, the state is saved."""

    every: Count = 10


class EngineConfig(PartSection):
    """`[engine]`: where local problems are solved, on how many cores (0: all); `address` is that of a Ray cluster.

    `lanes` bounds how many small devices of a round one call of a compiled program solves (0: the engine chooses).
    """

    name: Text = "local"
    workers: CountOrZero = 0
    address: Text = ""
    lanes: CountOrZero = 0

    @property
    def local_workers(self) -> int:
        """How many cores of this machine (0: all), which `workers` does not say where it counts those of a cluster."""
        return self.workers if self.name == "local" else 0


class DeployConfig(Section):
    """`[deploy]`: real devices through Flower; a simulation ignores it.

    `devices` is their number N. In a round each may work for `deadline` seconds (0: as long as it takes; "auto": a
    multiple of what the last rounds took), and the server waits `grace` seconds more for messages to travel and
    programs to start. Fewer than `min_replies` usable replies leave the model as it was, and the round is repeated, at
    most `repeats` times. `max_norm` is the most that a reply may add to the model (0: any; "auto": a multiple of what
    replies added lately), `max_samples` the most training samples that a device may claim (0: any), `max_weight` the
    largest weight of one device in a merge. `join_seconds` is how long the server waits for all devices at the start,
    `nodes` has Flower's ids of the nodes of devices 0 to N - 1, which no other node can claim then. A reply that
    arrives after the server has stopped waiting is discarded, or with `late` = "merge" merged on arrival, with a weight
    that `systems.staleness` lowers.
    """

    devices: CountOrZero = 0
    deadline: NumberOrAuto = "auto"
    grace: NotNegative = 30.0
    min_replies: Count = 1
    repeats: CountOrZero = 3
    max_norm: NumberOrAuto = "auto"
    max_samples: CountOrZero = 0
    max_weight: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, description="a number in (0, 1]")] = 1.0
    nodes: list[int] = Field(default_factory=list, description="a list of node ids, which are integers")
    join_seconds: Positive = 300.0
    late: Annotated[Literal["refuse", "merge"], Field(description="one of refuse, merge")] = "refuse"
