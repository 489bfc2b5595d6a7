"""PyTorch modules of unusual kinds: same bits for any number of workers, as by hand, or one sentence."""

import random
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedprox
from fedprox.core.errors import ConfigError, DataError
from fedprox.participation.budget import minibatches, split_batches
from fedprox.runs.evaluate import evaluate, predict

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from fedprox.adapters.torch import from_torch  # noqa: E402 - needs PyTorch

FEATURES, CLASSES = 6, 3


def population(x: Any = None) -> fedprox.Population:
    random = np.random.default_rng(0)
    device = np.repeat(np.arange(4), [9, 5, 8, 2])
    rows = random.normal(size=(24, FEATURES)).astype(np.float32) if x is None else x
    return fedprox.Population.from_arrays(rows, random.integers(0, CLASSES, 24), device, test=np.zeros(24, bool))


def run(module: Any, *arguments: Any, workers: int = 1, data: Any = None, config: Any = None, **options: Any) -> Any:
    model, solver = from_torch(module, *arguments, **options)
    settings = {
        "rounds": 2,
        "solver": {"batch_size": 4, "epochs": 2, "learning_rate": 0.05},
        "devices": {"per_round": 4},
        "measure": {"dissimilarity": False},
        "engine": {"workers": workers},
        **(config or {}),
    }
    return fedprox.train(settings, population=data or population(), model=model, solver=solver)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)


class FunctionalDropout(Layer):
    def forward(self, x: Any) -> Any:
        return nn.functional.dropout(self.layer(x), 0.5, self.training)


class Counting(Layer):
    """It keeps a number, a tensor, an unsaved buffer and, from its first call on, one more attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.sum = 0, torch.zeros(1)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x: Any) -> Any:
        if self.training:
            self.calls += 1
            self.sum += 1
            self.scale += 1
            self.more = getattr(self, "more", 0) + 1
            return self.layer(x) * (self.calls + self.sum + self.scale + self.more)
        return self.layer(x)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "dropout by a function": FunctionalDropout,
    "dropout within an LSTM": lambda: nn.Sequential(
        nn.Unflatten(1, (1, FEATURES)),
        nn.LSTM(FEATURES, CLASSES, 2, dropout=0.5, batch_first=True),
        First(),
        nn.Flatten(),
    ),
    "random slopes": lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.RReLU(), nn.Linear(5, CLASSES)),
    "state outside the parameters": Counting,
    "cumulative statistics": lambda: nn.Sequential(
        nn.Linear(FEATURES, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, CLASSES)
    ),
}


class First(nn.Module):
    def forward(self, outputs: Any) -> Any:
        return outputs[0]


@pytest.mark.parametrize("kind", MODULES)
def test_any_number_of_workers_gives_the_same_bits(kind: str) -> None:
    torch.manual_seed(0)
    module = MODULES[kind]()
    before = torch.get_rng_state()
    one, two, again = (run(module, workers=workers) for workers in (1, 2, 1))
    for name, value in one.params.items():
        np.testing.assert_array_equal(two.params[name], value)
        np.testing.assert_array_equal(again.params[name], value)
    assert torch.equal(torch.get_rng_state(), before)  # the user's own draws are not touched


def test_a_transform_that_draws_from_numpy_and_python_is_seeded_too() -> None:
    def noisy(x: Any) -> Any:
        return x * random.random() + torch.tensor(np.random.normal(size=x.shape)).float()  # noqa: NPY002

    torch.manual_seed(0)
    module = nn.Linear(FEATURES, CLASSES)
    before = random.getstate(), str(np.random.get_state())  # noqa: NPY002
    one, two = (run(module, transform=noisy, workers=workers).params for workers in (1, 2))
    assert before == (random.getstate(), str(np.random.get_state()))  # noqa: NPY002
    for name, value in one.items():
        np.testing.assert_array_equal(two[name], value)
    assert np.any(one["weight"] != run(module).params["weight"])


def test_a_module_is_left_as_it_is() -> None:
    module = Counting()
    run(module)
    assert (module.calls, float(module.sum), float(module.scale), hasattr(module, "more")) == (0, 0.0, 1.0, False)


def test_batch_normalisation_that_the_module_keeps_in_evaluation_mode_stays_there() -> None:
    class Fixed(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(CLASSES)

        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self.norm.eval()
            return self

        def forward(self, x: Any) -> Any:
            return self.norm(self.layer(x))

    found = run(Fixed()).params
    np.testing.assert_array_equal(found["norm.running_mean"], 0)
    assert np.abs(found["norm.weight"] - 1).max() > 0


@pytest.mark.parametrize("own", [True, False])
def test_parameters_without_gradient_are_frozen(own: bool) -> None:
    """They are neither trained nor sent, also with a solver of this library, whose weight decay moves all others."""
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    module[0].weight.requires_grad_(False)
    model, solver = from_torch(module)
    config = {"rounds": 1, "devices": {"per_round": 4}}
    given = {"solver": fedprox.solvers.sgd(weight_decay=0.5) if own else solver}
    result = fedprox.train(config, population=population(), model=model, **given)
    np.testing.assert_array_equal(result.params["0.weight"], module[0].weight.detach().numpy())
    assert not np.array_equal(result.params["2.weight"], module[2].weight.detach().numpy())


def test_shared_parameters_are_trained_as_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
            self.second.weight = self.first.weight
            self.last = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.last(self.second(self.first(x).relu()))

    module = Tied()
    found = run(module).params
    assert "second.weight" not in found
    module.load_state_dict({name: torch.tensor(value) for name, value in found.items()}, strict=False)
    np.testing.assert_array_equal(module.second.weight.detach().numpy(), found["first.weight"])


def test_several_outputs_with_their_own_loss_and_prediction() -> None:
    class Two(Layer):
        def forward(self, x: Any) -> Any:
            return self.layer(x), x

    def loss(outputs: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(outputs[0], y, reduction="none")

    torch.manual_seed(0)
    module = Two()
    config = {"measure": {"dissimilarity": True}}
    result = run(module, loss, predict=lambda outputs: outputs[0].argmax(1), config=config)
    plain = run(module.layer, config=config)
    assert result.history[-1] | {"seconds": 0} != {}
    for key in ("train_loss", "train_accuracy", "gradient_variance"):
        assert result.history[-1][key] == plain.history[-1][key]


def test_sparse_gradients() -> None:
    codes = np.random.default_rng(1).integers(0, 9, (24, FEATURES)).astype(np.int32)
    runs = []
    for sparse in (True, False):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Embedding(9, 2, sparse=sparse), nn.Flatten(), nn.Linear(2 * FEATURES, CLASSES))
        config = {"measure": {"dissimilarity": True}, "method": {"name": "fedprox", "mu": 0.5}}
        runs.append(run(module, data=population(codes), config=config).params)
    for name, value in runs[0].items():
        np.testing.assert_allclose(value, runs[1][name], rtol=1e-5, atol=1e-6)


def locked() -> Any:
    module = nn.Linear(FEATURES, CLASSES)
    module.lock = threading.Lock()
    return module


def always_random() -> Any:
    class Random(Layer):
        def forward(self, x: Any) -> Any:
            return nn.functional.dropout(self.layer(x))

    return Random()


def without_gradient() -> Any:
    class WithoutGradient(Layer):
        @torch.no_grad()
        def forward(self, x: Any) -> Any:
            return self.layer(x)

    return WithoutGradient()


def changed_in_place() -> Any:
    class ChangedInPlace(Layer):
        def forward(self, x: Any) -> Any:
            outputs = torch.sigmoid(self.layer(x))
            outputs += 1
            return outputs

    return ChangedInPlace()


def in_a_list() -> Any:
    module = nn.Flatten()
    module.layers = [nn.Linear(FEATURES, CLASSES)]
    return module


def squares(outputs: Any, y: Any) -> Any:
    return (outputs[:, 0] - y).square()


@pytest.mark.parametrize(
    ("module", "options", "sentence"),
    [
        (nn.Flatten(), {}, "a module must have a parameter that is trained; Flatten has none"),
        (nn.LazyLinear(CLASSES), {}, "parameters of known shape; 'weight' gets its shape when the module is first"),
        (nn.Linear(FEATURES, CLASSES).half(), {}, "parameters of type float32; 'weight' is torch.float16"),
        (locked(), {}, "module Linear must be one that `copy.deepcopy` can copy: cannot pickle"),
        (always_random(), {}, "must give the same outputs each time in evaluation mode; they differ"),
        (changed_in_place(), {}, "the gradient of module ChangedInPlace cannot be computed: one of the variables"),
        (in_a_list(), {}, "Flatten has none: PyTorch does not see those in the list `layers`; use nn.ModuleList"),
        (without_gradient(), {}, "the loss of module WithoutGradient must have a gradient; it has none"),
        (None, {"transform": nn.Identity}, "`transform` must be a function of a batch, .* got <class .*Identity"),
        (None, {"transform": 3}, "`transform` must be a function of a batch, or of a batch and a generator; got 3"),
        (None, {"transform": lambda: 3}, "`transform` must take a batch, or a batch and a generator; got 0 parameters"),
        (None, {"transform": lambda x, y, z: x}, "`transform` must take a batch, or a batch and .* got 3 parameters"),
        (None, {"transform": lambda x: None}, "`transform` must return a tensor of as many examples .* got NoneType"),
        (None, {"transform": lambda x: x[1:]}, r"of as many examples as it was given, 4 here; got shape \(3, 6\)"),
        (nn.Linear(FEATURES, 1), {"loss": squares}, r"`predict` must be given for outputs \(2, 1\), whose largest is"),
        (None, {"loss": nn.CrossEntropyLoss}, "`loss` must be a function or an instance.* got <class .*CrossEntropy"),
        (None, {"loss": lambda outputs, y: 1.0}, "`loss` must return a tensor, one number per example; got float"),
        (None, {"predict": lambda outputs: outputs}, r"shape \(2,\); it returned outputs \(2, 3\)"),
        (None, {"predict": lambda outputs: outputs[0].shape.no}, "`predict` cannot be computed from outputs"),
        (None, {"device": None}, "`device` must name a device of this machine; got None"),
        (None, {"device": "meta"}, "`device` must name a device of this machine; got 'meta'"),
        (None, {"optimiser": "adam"}, "`optimiser` must be a class.* got .adam."),
        (
            None,
            {"optimiser": torch.optim.SparseAdam},
            "solver 'torch.SparseAdam' cannot take a step: SparseAdam",
        ),
        (
            None,
            {"optimiser": lambda p, lr: torch.optim.SGD(nn.Linear(2, 2).parameters(), lr)},
            "`optimiser` must change the parameters that it is called with, those of one device; SGD has others",
        ),
        (None, {"predict": lambda outputs: outputs.softmax(1)[:, 0]}, r"`predict` must return labels, .* float32"),
        (None, {"optimiser": lambda p, lr: p}, "`optimiser` must return a torch.optim.Optimizer; got .tensor"),
    ],
)
def test_what_cannot_be_trained_gets_one_sentence(module: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run(nn.Linear(FEATURES, CLASSES) if module is None else module, **options)


def test_layers_in_a_plain_list_are_warned_of() -> None:
    class Listed(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.before = {"first": [nn.Linear(FEATURES, FEATURES)]}
            self.activations = [nn.ReLU()]
            self.again = [self.layer]

        def forward(self, x: Any) -> Any:
            return self.layer(self.activations[0](self.before["first"][0](x)))

    with pytest.warns(UserWarning, match="not all layers of module Listed are trained: .* dict `before`; use nn.Modul"):
        from_torch(Listed())


@pytest.mark.parametrize("is_personal", [False, True])
def test_batch_normalisation_needs_the_solver_of_the_module(is_personal: bool) -> None:
    """Solvers of the library would leave the running statistics at those of w^0."""
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))
    model, _ = from_torch(module)
    config = {"rounds": 1, "devices": {"per_round": 2}, "personal": {"parameters": ["1"] if is_personal else []}}
    with pytest.raises(ConfigError, match=r"must be the one that `from_torch` returns .*1.running_mean.* got 'sgd'"):
        fedprox.train(config, population=population(), model=model)
    frozen = {**config, "personal": {"frozen": ["1.running_*"]}}  # used as they are, on purpose
    found = fedprox.train(frozen, population=population(), model=model)
    np.testing.assert_array_equal(found.params["1.running_mean"], np.zeros(5))


def test_dropout_that_a_solver_leaves_out_is_warned_of() -> None:
    model, solver = from_torch(nn.Sequential(nn.Dropout(), nn.Linear(FEATURES, CLASSES)))
    config = {"rounds": 1, "devices": {"per_round": 2}}
    with pytest.warns(UserWarning, match="solver 'sgd' trains Sequential without its dropout: use the solver that"):
        fedprox.train(config, population=population(), model=model)
    fedprox.train(config, population=population(), model=model, solver=solver)  # warnings are errors here


@pytest.mark.parametrize(("kind", "scale"), [(np.uint8, 255), (np.float32, 1)])
def test_a_saved_module_takes_numbers_of_the_kind_that_it_was_trained_on(tmp_path: Any, kind: Any, scale: int) -> None:
    """Images of bytes are from 0 to 1 for a module that was trained on bytes, and else as they are."""
    torch.manual_seed(0)
    random = np.random.default_rng(1)
    images, y, device = random.integers(0, 256, (24, 2, 3)), random.integers(0, CLASSES, 24), np.arange(24) % 4
    np.savez(tmp_path / "data.npz", x=images.astype(kind), y=y, device=device)
    module = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    model, solver = from_torch(module)
    config = {"rounds": 1, "devices": {"per_round": 2}, "data": {"name": "npz", "path": str(tmp_path / "data.npz")}}
    result = fedprox.train(config, model=model, solver=solver, out=tmp_path / "run")
    module.load_state_dict({key: torch.tensor(value) for key, value in result.params.items()})
    with torch.no_grad():
        expected = module(torch.tensor(images / scale).float()).argmax(1).numpy()
    np.testing.assert_array_equal(predict(tmp_path / "run", images.astype(np.uint8), model=model), expected)
    same = fedprox.Population.from_arrays(images.astype(np.uint8), y, device)
    found = evaluate(tmp_path / "run", same, model=model)
    assert found["train_loss"] == evaluate(tmp_path / "run", model=model)["train_loss"]


def test_a_saved_module_names_examples_that_it_does_not_take(tmp_path: Any) -> None:
    """The sentence is not one within an error of JAX."""
    codes = np.random.default_rng(1).integers(0, 9, (24, FEATURES))
    module = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(2 * FEATURES, CLASSES))
    data = population(codes)
    model, solver = from_torch(module)
    config = {"rounds": 1, "devices": {"per_round": 2}}
    fedprox.train(config, population=data, model=model, solver=solver, out=tmp_path / "run")
    with pytest.raises(
        DataError, match=r"module Sequential does not take a batch of shape \(3, 6\) and int64: index out"
    ):
        predict(tmp_path / "run", codes[:3] + 9, population=data, model=model)


def test_steps_that_are_too_long_for_mu_are_warned_of() -> None:
    config = {"rounds": 1, "method": {"mu": 40.0}}  # the learning rate is 0.05
    with pytest.warns(UserWarning, match=r"SGD cannot be stable where .* got 0.05 \* 40.0"):
        run(nn.Linear(FEATURES, CLASSES), config=config)
    run(nn.Linear(FEATURES, CLASSES), optimiser=torch.optim.Adam, config=config)


def test_losses_of_half_precision() -> None:
    class Half(Layer):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.layer(x)

    torch.manual_seed(0)
    module = Half()
    half, whole = run(module), run(module.layer)
    assert abs(half.history[-1]["train_loss"] - whole.history[-1]["train_loss"]) < 0.02


def test_a_scripted_module_gets_one_sentence() -> None:
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        scripted = torch.jit.script(nn.Linear(FEATURES, CLASSES))
    with pytest.raises(ConfigError, match="`module` must be a module of Python; got a TorchScript one"):
        from_torch(scripted)


def test_model_and_solver_of_different_modules_get_one_sentence() -> None:
    model, _ = from_torch(nn.Linear(FEATURES, CLASSES))
    _, solver = from_torch(nn.Sequential(nn.Linear(FEATURES, CLASSES)))
    config = {"rounds": 1, "devices": {"per_round": 2}}
    with pytest.raises(ConfigError, match=r"give the model and the solver of one call .*; '0\.weight' cannot be set"):
        fedprox.train(config, population=population(), model=model, solver=solver)
    with pytest.raises(ConfigError, match="got a tuple with one, so take it apart"):
        fedprox.train(config, population=population(), model=from_torch(nn.Linear(FEATURES, CLASSES)))


def test_a_config_that_names_a_module_is_told_what_makes_a_model_of_it(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\n"
        "from fedprox.adapters.torch import from_torch\n"
        f"net = nn.Linear({FEATURES}, {CLASSES})\n"
        "both = from_torch(net)\n"
        "model, solver = both\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config: dict[str, Any] = {"rounds": 1, "devices": {"per_round": 2}}
    for name, sentence in {
        "net": "got 'own_nets:net', which gives Linear: make one of it with `model, solver = fedprox.",
        "both": "got 'own_nets:both', which gives tuple: `model, solver = from_torch(module)` gives each a name",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            fedprox.train({**config, "model": {"name": f"own_nets:{name}"}}, population=population())
    named = {"model": {"name": "own_nets:model"}, "solver": {"name": "own_nets:solver"}}
    assert fedprox.train({**config, **named}, population=population()).summary["ended"] == "finished"


def test_losses_that_depend_on_the_rest_of_the_batch_are_warned_of() -> None:
    """A batch as the steps of a sequence, and outputs (examples, 1) minus labels (examples,)."""
    with pytest.warns(
        UserWarning, match="should not depend on the other examples of its batch; with module Sequential"
    ):
        run(nn.Sequential(nn.LSTM(FEATURES, CLASSES), First()))
    with pytest.warns(UserWarning, match="are outputs and labels of different shapes subtracted"):
        run(nn.Linear(FEATURES, 1), lambda outputs, y: (outputs - y).square().mean(1), predict=None)


def test_images_whose_channels_come_last_get_a_hint() -> None:
    module = nn.Sequential(nn.Conv2d(3, 2, 5), nn.Flatten(), nn.Linear(8, CLASSES))
    with pytest.raises(DataError, match=r"shape \(2, 6, 6, 3\) and float32 \(the channels are last: x.permute"):
        run(module, data=population(np.zeros((24, 6, 6, 3), np.float32)))


def test_a_module_may_change_its_input() -> None:
    class Shifting(Layer):
        def forward(self, x: Any) -> Any:
            x += 1
            return self.layer(x)

    data = population()
    before = data.train.x.copy()
    run(Shifting(), data=data)
    np.testing.assert_array_equal(data.train.x, before)


def test_a_lone_image_is_normalised_as_by_pytorch() -> None:
    """It has a variance over its pixels; a lone row of numbers has none, and PyTorch refuses it."""
    torch.manual_seed(0)
    images = np.random.default_rng(2).normal(size=(24, 1, 4, 4)).astype(np.float32)
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, CLASSES))
    data = population(images)
    config = {"rounds": 1, "solver": {"batch_size": 1, "epochs": 1, "learning_rate": 0.05}, "devices": {"per_round": 1}}
    result = run(module, data=data, config=config)
    (device,), (budget,) = result.devices[0]["device"], result.devices[0]["budget"]
    x, y = data.train.of(device)
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    for rows in split_batches(next(minibatches(len(y), 1, budget, seed=0, round=1, device=device, piece=99)), len(y)):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(torch.tensor(x[rows])), torch.tensor(y[rows]).long()).backward()
        optimiser.step()
    for name, value in result.params.items():
        np.testing.assert_allclose(value, module.state_dict()[name].detach().numpy(), rtol=1e-5, atol=1e-6)
