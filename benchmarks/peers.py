"""FedProx as FedJAX and pfl run it, on the work of `benchmarks.speed`.

Each contender serves the same devices in the same rounds, weighs them by their samples and takes the same number of
local steps; all else is the peer's own code. It also batches in its own way, so its weights are not ours bit for bit.
What is checked instead, after the clock has stopped: the steps it really took, one by one, and its training loss.

FedJAX fills every mini-batch, also across epochs, and would take ceil(E n_k / B) steps where the paper's loop takes
E ceil(n_k / B); so it is told the number of steps. pfl takes the samples in the order in which they lie, the last
mini-batch of an epoch being short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fedprox.population import Population

if TYPE_CHECKING:
    from benchmarks.speed import Work

CLOSE = 0.05  # how far the training loss may lie from ours, as a share of it

Run = Callable[[], tuple[float, Any]]


def fedjax_rounds(work: Work) -> Run | None:
    """Return a run of FedJAX's `fed_prox`, compiled beforehand, or None where FedJAX is not installed."""
    try:
        import fedjax
    except ImportError:
        return None
    import jax
    from fedjax.algorithms.fed_prox import fed_prox

    if not hasattr(jax, "tree_map"):
        # FedJAX 0.0.17 calls it by this name, which newer versions of JAX gave up
        jax.tree_map = jax.tree.map  # type: ignore[attr-defined]

    solver = work.config["solver"]
    taken = [0]

    class Device(fedjax.ClientDataset):  # type: ignore[misc]
        def shuffle_repeat_batch(self, hparams: Any = None, **options: Any) -> Iterator[Any]:
            steps = hparams.num_epochs * -(-len(self) // hparams.batch_size)
            for batch in super().shuffle_repeat_batch(hparams, num_epochs=None, num_steps=steps, **options):
                taken[0] += 1
                yield batch

    def losses(params: Any, batch: Any, key: Any) -> Any:
        scores = batch["x"] @ params["weight"].T + params["bias"]
        return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores)

    with fedjax.for_each_client_backend("jit"):
        algorithm = fed_prox(
            losses,
            client_optimizer=fedjax.optimizers.sgd(solver["learning_rate"]),
            server_optimizer=fedjax.optimizers.sgd(1.0),
            client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
                batch_size=solver["batch_size"], num_epochs=solver["epochs"], seed=0
            ),
            proximal_weight=work.config["method"]["mu"],
        )
    datasets = {device: Device({"x": x, "y": y}) for device, x, y in devices_of(work)}
    classes, features = work.population.classes, work.population.shape[0]
    start = {"weight": np.zeros((classes, features), np.float32), "bias": np.zeros(classes, np.float32)}
    key = jax.random.PRNGKey(0)  # the model draws nothing, but every device must be handed a key
    cohorts = [[(device, datasets[device], key) for device, _, _ in jobs] for jobs in work.jobs]

    def rounds(chosen: list[Any]) -> Any:
        state = algorithm.init(jax.device_put(start))
        for cohort in chosen:
            state, _ = algorithm.apply(state, cohort)
        return jax.block_until_ready(state.params)

    smallest = min(datasets.values(), key=len)
    rounds([[(0, smallest, key)]] * 2)  # compiles all there is to compile

    def run() -> tuple[float, Any]:
        taken[0] = 0
        begin = time.perf_counter()
        params = rounds(cohorts)
        seconds = time.perf_counter() - begin
        weight = checked("FedJAX", work, taken[0], np.asarray(params["weight"]), np.asarray(params["bias"]))
        return seconds, weight

    return run


def pfl_rounds(work: Work) -> Run | None:
    """Return a run of pfl's `FedProx` on its simulated backend with PyTorch, or None where pfl is not installed."""
    try:
        import pfl  # noqa: F401
        import torch
    except ImportError:
        return None
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.fedprox import FedProx, FedProxParams
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    solver = work.config["solver"]
    taken = [0]

    class Softmax(torch.nn.Linear):
        def loss(self, x: Any, y: Any) -> Any:
            taken[0] += 1
            return torch.nn.functional.cross_entropy(self(x), y)

        def metrics(self, x: Any, y: Any) -> dict[str, Any]:
            return {}  # pfl measures in the first round; our clock leaves measuring out

    datasets = {
        device: PyTorchTensorDataset((torch.from_numpy(np.array(x)), torch.from_numpy(y.astype(np.int64))))
        for device, x, y in devices_of(work)
    }

    def rounds(cohorts: list[list[int]], epochs: int) -> Any:
        classes, features = work.population.classes, work.population.shape[0]
        softmax = Softmax(features, classes)
        for parameter in softmax.parameters():
            torch.nn.init.zeros_(parameter)
        model = PyTorchModel(softmax, torch.optim.SGD, torch.optim.SGD(softmax.parameters(), lr=1.0))
        in_turn = get_user_sampler("minimize_reuse", [device for cohort in cohorts for device in cohort])
        data = FederatedDataset(datasets.__getitem__, in_turn)
        FedProx().run(
            FedProxParams(
                central_num_iterations=len(cohorts),
                evaluation_frequency=len(cohorts),
                train_cohort_size=len(cohorts[0]),
                val_cohort_size=None,
                mu=work.config["method"]["mu"],
            ),
            SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
            model,
            NNTrainHyperParams(
                local_num_epochs=epochs,
                local_learning_rate=solver["learning_rate"],
                local_batch_size=solver["batch_size"],
            ),
            send_metrics_to_platform=False,
        )
        return softmax

    cohorts = [[device for device, _, _ in jobs] for jobs in work.jobs]
    rounds([[min(datasets, key=lambda device: len(datasets[device]))]], epochs=1)  # what is loaded at first use

    def run() -> tuple[float, Any]:
        taken[0] = 0
        begin = time.perf_counter()
        softmax = rounds(cohorts, solver["epochs"])
        seconds = time.perf_counter() - begin
        weight, bias = softmax.weight.detach().numpy(), softmax.bias.detach().numpy()
        return seconds, checked("pfl", work, taken[0], weight, bias)

    return run


def devices_of(work: Work) -> Iterator[tuple[int, Any, Any]]:
    """Yield the devices that take part, each once, with their training samples."""
    for device in sorted({device for jobs in work.jobs for device, _, _ in jobs}):
        yield device, *work.population.train.of(device)


def checked(peer: str, work: Work, steps: int, weight: Any, bias: Any) -> Any:
    """Return `weight`, unless the peer took another number of steps than we did or ended at another training loss."""
    if steps != work.steps:
        raise RuntimeError(f"{peer} must take {work.steps} steps, as we do; it took {steps}")
    ours = train_loss(work.population, np.asarray(work.final["weight"]), np.asarray(work.final["bias"]))
    theirs = train_loss(work.population, weight, bias)
    if not abs(theirs - ours) <= CLOSE * ours:
        raise RuntimeError(f"{peer} must end within {CLOSE:.0%} of our training loss {ours:.4f}; got {theirs:.4f}")
    return weight


def train_loss(population: Population, weight: Any, bias: Any) -> float:
    """Return f(w), the mean cross-entropy over the training samples of all devices (Equation 1)."""
    x, y = population.train.x, population.train.y
    scores = (x @ weight.T + bias).astype(np.float64)  # (rows, classes)
    scores -= scores.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]))
