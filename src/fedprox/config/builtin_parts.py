"""The registry: every part that a config can name, and where it is.

A part of the library is one file plus one line here. The object behind a name is the part itself or a callable that
returns it, as for parts from elsewhere (`fedprox.config.parts`), and is imported when a config names it.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BUILTIN", "FILE_KINDS"]

BUILTIN: Mapping[str, Mapping[str, str]] = {
    "data": {
        "synthetic": "fedprox.data.by_name:synthetic_by_name",
        "synthetic_iid": "fedprox.data.by_name:synthetic_iid_by_name",
        "mnist": "fedprox.data.by_name:mnist",
        "femnist": "fedprox.data.by_name:femnist",
        "shakespeare": "fedprox.data.by_name:shakespeare",
        "sent140": "fedprox.data.by_name:sent140",
        "cifar10": "fedprox.data.by_name:cifar10",
        "fashion_mnist": "fedprox.data.by_name:fashion_mnist",
        "leaf": "fedprox.data.leaf:read_leaf",
        "npz": "fedprox.data.npz:read_npz",
        "arrow": "fedprox.data.arrow:read_arrow",
        "csv": "fedprox.data.csv:read_csv",
        "population": "fedprox.population.folder:open_population",
    },
    "models": {
        "softmax_regression": "fedprox.models.by_name:softmax_regression_for",
        "linear_regression": "fedprox.models.by_name:linear_regression_for",
        "char_lstm": "fedprox.models.by_name:char_lstm_for",
        "char_transformer": "fedprox.models.by_name:char_transformer_for",
        "sentiment_lstm": "fedprox.models.by_name:sentiment_lstm_for",
        "mlp": "fedprox.models.by_name:mlp_for",
        "cnn": "fedprox.models.by_name:cnn_for",
        "lenet": "fedprox.models.by_name:lenet_for",
        "mcmahan_cnn": "fedprox.models.by_name:mcmahan_cnn_for",
        "resnet8": "fedprox.models.by_name:eight_layer_resnet_for",
        "resnet20": "fedprox.models.by_name:twenty_layer_resnet_for",
    },
    "methods": {
        "fedavg": "fedprox.methods.fedavg:FedAvg",
        "fedprox": "fedprox.methods.fedprox:FedProx",
        "feddane": "fedprox.methods.feddane:FedDane",
        "scaffold": "fedprox.methods.scaffold:Scaffold",
        "fednova": "fedprox.methods.fednova:FedNova",
        "feddyn": "fedprox.methods.feddyn:FedDyn",
        "fedavgm": "fedprox.methods.fedavgm:FedAvgM",
        "fedadam": "fedprox.methods.fedadam:FedAdam",
        "fedyogi": "fedprox.methods.fedyogi:FedYogi",
        "fedexp": "fedprox.methods.fedexp:FedExP",
        "fedexprox": "fedprox.methods.fedexprox:FedExProx",
        "ditto": "fedprox.methods.ditto:Ditto",
        "pfedme": "fedprox.methods.pfedme:PFedMe",
        "qffl": "fedprox.methods.qffl:QFedAvg",
        "agnostic": "fedprox.methods.agnostic:Agnostic",
        "scaffnew": "fedprox.methods.scaffnew:Scaffnew",
        "fedadmm": "fedprox.methods.fedadmm:FedAdmm",
        "sdane": "fedprox.methods.sdane:SDane",
    },
    "mu": {
        "adaptive": "fedprox.methods.mu.adaptive:AdaptiveMu.start",
        "auto": "fedprox.methods.mu.auto:AutoMu.start",
        "drift": "fedprox.methods.mu.drift:DriftMu.start",
    },
    "solvers": {
        "sgd": "fedprox.solvers.sgd:sgd",
        "adam": "fedprox.solvers.adam:adam",
        "optax": "fedprox.solvers.optax_steps:named_optax",
        "gradient_descent": "fedprox.solvers.gradient_descent:gradient_descent",
        "lbfgs": "fedprox.solvers.lbfgs:lbfgs",
        "newton_cg": "fedprox.solvers.newton_cg:newton_cg",
        "closed_form": "fedprox.solvers.closed_form:closed_form",
        "svrg": "fedprox.solvers.svrg:named_svrg",
        "personal_first": "fedprox.solvers.personal_first:personal_first",
    },
    "schedules": {
        "constant": "fedprox.solvers.schedules:constant",
        "exponential": "fedprox.solvers.schedules:exponential",
        "cosine": "fedprox.solvers.schedules:cosine",
        "step": "fedprox.solvers.schedules:step",
    },
    "samplers": {
        "uniform": "fedprox.participation.sampling:Uniform",
        "proportional": "fedprox.participation.sampling:Proportional",
        "available": "fedprox.participation.sampling:Available",
        "power_of_choice": "fedprox.participation.selection.power_of_choice:PowerOfChoice",
        "loss": "fedprox.participation.selection.loss:ByLoss",
        "oort": "fedprox.participation.selection.oort:Oort",
        "tiers": "fedprox.participation.selection.tiers:Tiers",
        "importance": "fedprox.participation.selection.importance:Importance",
    },
    "systems": {
        "stragglers": "fedprox.participation.stragglers:Stragglers",
        "clock": "fedprox.participation.clock:Clock",
    },
    "merge": {
        "mean": "fedprox.methods.merging.rule:mean",
        "median": "fedprox.methods.merging.median:median",
        "trimmed_mean": "fedprox.methods.merging.trimmed_mean:trimmed_mean",
        "krum": "fedprox.methods.merging.krum:krum",
        "multi_krum": "fedprox.methods.merging.krum:multi_krum",
        "geometric_median": "fedprox.methods.merging.geometric_median:geometric_median",
        "centered_clipping": "fedprox.methods.merging.centered_clipping:centered_clipping",
    },
    "engines": {
        "local": "fedprox.engines.by_name:local_engine",
        "ray": "fedprox.engines.by_name:ray_engine",
    },
    "metrics": {},
    "stopping": {},
}
"""Group -> name -> "module:object"."""

FILE_KINDS: Mapping[str, str] = {
    ".npz": "npz",
    ".csv": "csv",
    ".parquet": "arrow",
    ".arrow": "arrow",
    ".feather": "arrow",
}
"""Ending of a data file -> the `data.name` that reads it."""
