"""The configuration of a run: every setting, its default and its rule.

A config is a frozen tree of sections. It is read from TOML, a dict or keyword arguments, and anything unknown or
invalid is refused in one sentence: the field, the rule, the value. `to_toml` writes the complete resolved config back,
so that a run folder is enough to run it again.

    >>> config = Config.from_dict({"method": {"mu": 1.0}})
    >>> config.method.mu, config.solver.epochs
    (1.0, 20)
    >>> Config.from_dict({"method": {"mu": -1.0}})
    Traceback (most recent call last):
    ...
    fedprox.core.errors.ConfigError: `method.mu` must be a number >= 0, 'adaptive', 'drift' or 'auto'; got -1.0
"""

from __future__ import annotations

from fedprox.config.attack import AttackConfig
from fedprox.config.compat import CompatConfig
from fedprox.config.config import Config
from fedprox.config.overrides import with_overrides
from fedprox.config.privacy import PrivacyConfig
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
from fedprox.config.toml import read_toml

__all__ = [
    "AttackConfig",
    "CheckpointConfig",
    "CompatConfig",
    "Config",
    "DataConfig",
    "DeployConfig",
    "DevicesConfig",
    "EngineConfig",
    "MeasureConfig",
    "MergeConfig",
    "MethodConfig",
    "ModelConfig",
    "PrivacyConfig",
    "SolverConfig",
    "StopConfig",
    "SystemsConfig",
    "read_toml",
    "with_overrides",
]
