"""The configuration of a run: every setting, its default and its rule.

A config is a frozen tree of sections. It is read from TOML, a dict or keyword arguments, refuses what it does not
know, and says so in one sentence: the field, the rule, the value. `to_toml` writes the whole resolved config back, so
that a run folder is enough to run it again.

    >>> config = Config.from_dict({"method": {"mu": 1.0}})
    >>> config.method.mu, config.solver.epochs
    (1.0, 20)
    >>> Config.from_dict({"method": {"mu": -1.0}})
    Traceback (most recent call last):
    ...
    fedprox.errors.ConfigError: `method.mu` must be a number >= 0, 'adaptive' or 'auto'; got -1.0
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fedprox.errors import ConfigError, nearest

__all__ = [
    "METHOD_KEYS",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "DevicesConfig",
    "EngineConfig",
    "MeasureConfig",
    "MethodConfig",
    "ModelConfig",
    "SolverConfig",
    "StopConfig",
    "SystemsConfig",
    "with_overrides",
]

# A field's description is its rule: the words between "must be" and "; got" in the error that a bad value gets.
Seed = Annotated[int, Field(ge=0, lt=2**63, description="a whole number >= 0")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number > 0")]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, description="a number >= 0")]
Count = Annotated[int, Field(ge=1, description="a whole number >= 1")]
CountOrZero = Annotated[int, Field(ge=0, description="a whole number >= 0")]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, description="a number in [0, 1]")]
BelowOne = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False, description="a number in [0, 1)")]
Flag = Annotated[bool, Field(description="true or false")]
Text = Annotated[str, Field(description="text")]


class Section(BaseModel):
    """A group of settings: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


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
    options: Annotated[dict[str, Any], Field(description="a table of the solver's own options")] = {}


class DevicesConfig(Section):
    """`[devices]`: who takes part. `per_round` is the paper's K."""

    per_round: Count = 10
    sampling: Annotated[Literal["uniform", "proportional"], Field(description="one of uniform, proportional")] = (
        "uniform"
    )
    stragglers: Share = 0.0
    failure: Share = 0.0


class SystemsConfig(Section):
    """`[systems]`: what decides how much work a device does."""

    model: Annotated[Literal["stragglers"], Field(description="one of stragglers")] = "stragglers"


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
    """`[engine]`: where local problems are solved, on how many cores (0: all)."""

    name: Annotated[Literal["local"], Field(description="one of local")] = "local"
    workers: CountOrZero = 0


class Config(Section):
    """Everything that defines a run."""

    seed: Seed = 0
    rounds: Count = 200
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    solver: SolverConfig = SolverConfig()
    devices: DevicesConfig = DevicesConfig()
    systems: SystemsConfig = SystemsConfig()
    measure: MeasureConfig = MeasureConfig()
    stop: StopConfig = StopConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    engine: EngineConfig = EngineConfig()

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Config:
        """Check `settings` (nested, as TOML gives them) and fill in the defaults."""
        if "compare" in settings:
            raise ConfigError("a config with a [compare] section describes several runs; use `fedprox compare`")
        try:
            config = cls.model_validate(dict(settings))
        except ValidationError as error:
            raise ConfigError(_sentence(error.errors()[0])) from None
        _check_together(config)
        return config

    @classmethod
    def from_toml(cls, path: str | Path) -> Config:
        """Read a config file."""
        return cls.from_dict(read_toml(path))

    @classmethod
    def of(cls, config: Config | Mapping[str, Any] | str | Path) -> Config:
        """Accept what `fedprox.train` accepts: a Config, a dict or the path of a TOML file."""
        if isinstance(config, Config):
            return config
        if isinstance(config, Mapping):
            return cls.from_dict(config)
        return cls.from_toml(config)

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved settings as plain nested values; `from_dict` takes them back."""
        settings = self.model_dump()
        belongs = ("name", *METHOD_KEYS[self.method.name])  # a key of another method would be refused
        settings["method"] = {key: value for key, value in settings["method"].items() if key in belongs}
        return settings

    def to_toml(self) -> str:
        """Return the resolved settings as TOML text."""
        return _dump_toml(self.to_dict())


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file, or say in one sentence why it cannot be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config file {path} is not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config file {path} is not valid TOML: {error}") from None


def with_overrides(settings: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Apply `section.key=value` strings to nested settings; the last one wins.

    The value is read as TOML, and as plain text where it is not valid TOML or the key wants text. With another
    `method.name`, settings of the method before that the new one does not have are left out.

    >>> with_overrides({"seed": 1}, ["method.mu=0.1", "data.path=./x", "seed=2"])
    {'seed': 2, 'method': {'mu': 0.1}, 'data': {'path': './x'}}
    """
    result = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    overrides = list(overrides)
    for override in overrides:
        key, _, name = override.partition("=")
        if key.strip() == "method.name" and isinstance(result.get("method"), dict):
            _keep_what_fits(result["method"], name.strip().strip("\"'"))
    for override in overrides:
        key, equals, text = override.partition("=")
        *sections, name = key.strip().split(".")
        if not equals or not name or len(sections) > 1:
            raise ConfigError(f"an override must be section.key=value; got {override!r}")
        target = result
        if sections:
            target = result.setdefault(sections[0], {})
            if not isinstance(target, dict):
                raise ConfigError(f"`{sections[0]}` is not a section; got {override!r}")
        target[name] = _override_value(sections, name, text.strip())
    return result


def _keep_what_fits(method: dict[str, Any], name: str) -> None:
    """Take away what a recipe says of its own method, such as its mu, when another one is asked for."""
    for key in [key for key in method if key != "name" and key not in METHOD_KEYS.get(name, method)]:
        del method[key]


def _override_value(sections: list[str], name: str, text: str) -> Any:
    owner: Any = Config
    for section in sections:
        field = owner.model_fields.get(section)
        owner = field.annotation if field is not None else Section
    field = owner.model_fields.get(name)
    if field is not None and field.annotation is str:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _check_together(config: Config) -> None:
    """Rules that involve more than one setting."""
    for key in sorted(config.method.model_fields_set - {"name", *METHOD_KEYS[config.method.name]}):
        owners = [method for method, keys in METHOD_KEYS.items() if key in keys]
        raise ConfigError(
            f"`method.{key}` must be left out with method.name = {config.method.name!r}, which has no such setting "
            f"(it belongs to {', '.join(owners)}); got {getattr(config.method, key)!r}"
        )
    needs_every_round = [
        name
        for name, active in (
            (f"method.mu = {config.method.mu!r}", config.method.mu in ("adaptive", "auto")),
            ("stop.converged", config.stop.converged),
            ("stop.diverged", config.stop.diverged),
        )
        if active
    ]
    if needs_every_round and config.measure.every != 1:
        raise ConfigError(
            f"`measure.every` must be 1 with `{needs_every_round[0]}`, which needs the loss of every round; "
            f"got {config.measure.every}"
        )
    for name in ("momentum", "nesterov", "weight_decay"):
        if getattr(config.solver, name) and config.solver.name != "sgd":
            raise ConfigError(
                f"`solver.{name}` must be left out with solver.name = {config.solver.name!r}, whose settings go to "
                f"`solver.options`; got {getattr(config.solver, name)!r}"
            )
    if config.data.name in ("leaf", "npz", "arrow", "population") and not config.data.path:
        raise ConfigError(f"`data.path` must be given with data.name = {config.data.name!r}; got ''")


def _sentence(error: ErrorDetails) -> str:
    """Turn pydantic's first complaint into: `field` must be rule; got value."""
    owner: Any = Config
    path: list[str] = []
    rule = "valid"
    for part in error["loc"]:
        fields = getattr(owner, "model_fields", {})
        if not isinstance(part, str) or (path and part not in fields and error["type"] != "extra_forbidden"):
            break  # the rest names a branch of a union, not a field
        path.append(part)
        if part not in fields:
            return f"unknown key `{'.'.join(path)}`{_nearest_key(path)}"
        field = fields[part]
        owner = field.annotation
        rule = field.description or "a table of settings"
    value = error["input"]
    return f"`{'.'.join(path)}` must be {rule}; got {value!r}"


def _nearest_key(path: list[str]) -> str:
    every = [
        f"{name}.{key}" if hasattr(field.annotation, "model_fields") else name
        for name, field in Config.model_fields.items()
        for key in getattr(field.annotation, "model_fields", {"": None})
    ]
    sections = [name for name, field in Config.model_fields.items() if hasattr(field.annotation, "model_fields")]
    return nearest(".".join(path), [*every, *sections])


def _dump_toml(settings: Mapping[str, Any]) -> str:
    top = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
    lines = [f"{name} = {_toml_value(value)}" for name, value in top.items()]
    for section, values in settings.items():
        if isinstance(values, Mapping):
            lines += ["", f"[{section}]", *(f"{name} = {_toml_value(value)}" for name, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML basic string
    return repr(value)
