"""The complete config of a run, and the error for an invalid one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fedprox.config.attack import AttackConfig
from fedprox.config.compat import CompatConfig
from fedprox.config.fields import Count, Section, Seed, broken_rule
from fedprox.config.meanings import MEANINGS
from fedprox.config.nearest_key import nearest_key
from fedprox.config.personal import PersonalConfig
from fedprox.config.privacy import PrivacyConfig
from fedprox.config.resolution import resolve_parts, takes_mu
from fedprox.config.rules import check_together
from fedprox.config.sections import (
    CheckpointConfig,
    DataConfig,
    DeployConfig,
    DevicesConfig,
    EngineConfig,
    MeasureConfig,
    MergeConfig,
    MethodConfig,
    ModelConfig,
    SolverConfig,
    StopConfig,
    SystemsConfig,
)
from fedprox.config.toml import dump_toml, read_toml
from fedprox.core.errors import ConfigError, short

__all__ = ["Config"]


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
    merge: MergeConfig = MergeConfig()
    measure: MeasureConfig = MeasureConfig()
    stop: StopConfig = StopConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    engine: EngineConfig = EngineConfig()
    compat: CompatConfig = CompatConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    personal: PersonalConfig = PersonalConfig()
    attack: AttackConfig = AttackConfig()
    deploy: DeployConfig = DeployConfig()

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Config:
        """Check `settings` (nested, as TOML gives them) and fill in the defaults."""
        if "compare" in settings:
            raise ConfigError("a config with a [compare] section describes several runs; use `fedprox compare`")
        if "replaced" in settings:
            raise ConfigError(
                "a config with a [replaced] section belongs to a run with Python objects, which a file cannot hold; "
                "name each of them as 'module:object', or give them to `fedprox.train`, and remove the section"
            )
        _check_text(settings)
        try:
            config = cls.model_validate(resolve_parts(settings))
        except ValidationError as error:
            raise ConfigError(_sentence(error.errors()[0])) from None
        check_together(config)
        return config

    @classmethod
    def from_toml(cls, path: str | Path) -> Config:
        """Read a config file; for a run's own, the part about objects from Python is left out."""
        settings = read_toml(path)
        settings.pop("replaced", None)
        return cls.from_dict(settings)

    @classmethod
    def of(cls, config: Config | Mapping[str, Any] | str | Path) -> Config:
        """Accept what `fedprox.train` accepts: a Config, a dict, the path of a TOML file or the name of a recipe.

        As on the command line, text that ends in .toml or holds a slash is a path.

        >>> Config.of("synthetic-1-1").method.mu
        1.0
        """
        from fedprox.config.recipes import load_settings

        return config if isinstance(config, Config) else cls.from_dict(load_settings(config))

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved settings as plain nested values; `from_dict` takes them back."""
        settings = self.model_dump()
        if not takes_mu(self.method.name):  # mu would be refused
            shared = set(MethodConfig.model_fields) - {"name"}
            settings["method"] = {key: value for key, value in settings["method"].items() if key not in shared}
        return settings

    def to_toml(self) -> str:
        """Return the resolved settings as TOML text."""
        return dump_toml(self.to_dict())


def _check_text(settings: Mapping[str, Any], section: str = "") -> None:
    """Refuse text that a config file cannot hold, such as a file name from another encoding."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            _check_text(value, f"{section}{key}.")
        elif isinstance(value, str) and (shown := value.encode("utf-8", "backslashreplace").decode()) != value:
            raise ConfigError(f"`{section}{key}` must be text in UTF-8; got {shown!r}")


def _sentence(error: ErrorDetails) -> str:
    """Turn pydantic's first error into: `field` must be rule; got value."""
    owner: Any = Config
    path: list[str] = []
    rule = "valid"
    for part in error["loc"]:
        fields = getattr(owner, "model_fields", {})
        if not isinstance(part, str) or (path and part not in fields and error["type"] != "extra_forbidden"):
            break  # the rest names a branch of a union, not a field
        path.append(part)
        if part not in fields:
            key = ".".join(path)
            return f"unknown key `{key}`{nearest_key(key, _every_key())}"
        field = fields[part]
        owner = field.annotation
        rule = field.description or "a table of settings"
    named = f"{path[0]}.name" if len(path) == 1 and isinstance(error["input"], str) else ""
    hint = f"; did you mean `{named}`?" if named in MEANINGS else ""
    return f"`{'.'.join(path)}` must be {broken_rule(error, rule)}; got {short(error['input'])}{hint}"


def _every_key() -> list[str]:
    """Return the keys of all sections, and those of single parts after them."""
    of_sections = [
        f"{name}.{key}" if hasattr(field.annotation, "model_fields") else name
        for name, field in Config.model_fields.items()
        for key in getattr(field.annotation, "model_fields", {"": None})
    ]
    return list(dict.fromkeys([*of_sections, *MEANINGS]))
