from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox
from fedprox.participation.budget import minibatches, split_batches, steps_per_epoch
from fedprox.participation.sampling import Cohort
from fedprox.participation.stragglers import failures, straggler_work


def drawn(samples, batch_size, steps, piece=16, epochs_at_once=0, device=0):
    batches = []
    for each in minibatches(
        samples, batch_size, steps, seed=0, round=1, device=device, piece=piece, epochs_at_once=epochs_at_once
    ):
        assert each.rows.shape == (piece, batch_size)
        assert set(each.rows.ravel().tolist()) <= set(range(samples))  # also the fill must be rows that exist
        batches += [rows.tolist() for rows in split_batches(each, samples)]
    return batches


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 15), st.integers(1, 100), st.sampled_from([4, 16, 64]))
def test_batches_walk_through_whole_epochs_and_stop_at_the_budget(samples, batch_size, steps, piece):
    batches = drawn(samples, batch_size, steps, piece)
    assert len(batches) == steps
    per_epoch = ceil(samples / batch_size)
    assert steps_per_epoch(samples, batch_size) == per_epoch
    for begin in range(0, steps - per_epoch + 1, per_epoch):
        epoch = batches[begin : begin + per_epoch]
        assert sorted(row for batch in epoch for row in batch) == list(range(samples))
        assert all(len(batch) == batch_size for batch in epoch[:-1])
        assert len(epoch[-1]) == samples - (per_epoch - 1) * batch_size


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 60), st.integers(0, 3))
def test_a_smaller_budget_is_the_beginning_of_a_larger_one_however_it_is_cut(samples, batch_size, steps, at_once):
    whole = drawn(samples, batch_size, 60, piece=64)
    assert drawn(samples, batch_size, steps, piece=8, epochs_at_once=at_once) == whole[:steps]


def test_every_epoch_and_every_device_has_its_own_order():
    first, second = (tuple(batch) for batch in drawn(50, 50, 2))
    assert first != second
    assert drawn(50, 50, 1, device=1)[0] != list(first)


def test_orders_are_uniform():
    counts = {}
    for device in range(3000):
        order = tuple(drawn(3, 3, 1, device=device)[0])
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 20.5  # 99.9%, 5 degrees of freedom


def cohort_of(sizes):
    sizes = np.asarray(sizes)
    return Cohort(np.arange(len(sizes)) + 100, sizes, np.ones(len(sizes), int))


def work_of(cohort, share, epochs, batch_size=10, round=1):
    return straggler_work(
        cohort,
        share=share,
        epochs=epochs,
        batch_size=batch_size,
        seed=0,
        round=round,
    )


@given(
    st.lists(st.integers(1, 99), min_size=1, max_size=12),
    st.floats(0, 1),
    st.integers(1, 20),
    st.integers(0, 12),
    st.integers(1, 99),
)
def test_budgets(sizes, share, epochs, batch_size, round):
    cohort = cohort_of(sizes)
    work = work_of(cohort, share, epochs, batch_size, round)
    per_epoch = np.array([steps_per_epoch(size, batch_size) for size in sizes])
    assert work.straggler.sum() == int(share * len(sizes) + 0.5)
    assert (work.budget[~work.straggler] == epochs * per_epoch[~work.straggler]).all()
    assert (work.budget >= 1).all()
    assert (work.budget <= epochs * per_epoch).all()
    assert np.allclose(work.epochs * per_epoch, work.budget)
    if epochs > 1:
        assert (work.budget % per_epoch == 0).all()  # whole epochs


def test_stragglers_draw_every_number_of_epochs_from_1_to_e():
    drawn = [
        epochs for round in range(400) for epochs in work_of(cohort_of([30] * 5), 1.0, 4, round=round).epochs.tolist()
    ]
    counts = [drawn.count(x) for x in (1, 2, 3, 4)]
    assert sum(counts) == 2000
    assert sum((count - 500) ** 2 / 500 for count in counts) < 16.3  # 99.9%, 3 degrees of freedom


def test_with_one_epoch_stragglers_draw_a_number_of_mini_batches():
    steps = [
        budget for round in range(300) for budget in work_of(cohort_of([45] * 4), 1.0, 1, round=round).budget.tolist()
    ]
    counts = [steps.count(x) for x in (1, 2, 3, 4, 5)]
    assert sum(counts) == 1200
    assert sum((count - 240) ** 2 / 240 for count in counts) < 18.5  # 99.9%, 4 degrees of freedom


def test_with_repeated_draws_the_share_is_of_the_listed_devices():
    cohort = Cohort(np.arange(7), np.full(7, 5), np.array([3, 2, 1, 1, 1, 1, 1]))  # K = 10
    assert work_of(cohort, 0.9, 2).straggler.sum() == 6  # floor(6.3 + 1/2)
    assert failures(cohort, share=0.9, seed=0, round=1).sum() == 6
    assert work_of(cohort, 0.5, 2).straggler.sum() == 4


def test_fedavg_moves_under_90_percent_stragglers_with_proportional_sampling():
    settings = {
        "rounds": 12,
        "solver": {"epochs": 1},
        "method": {"name": "fedavg"},
        "devices": {"sampling": "proportional", "stragglers": 0.9},
    }
    result = fedprox.train(settings)
    for row in result.devices:
        assert sum(row["straggler"]) == int(0.9 * len(row["device"]) + 0.5)
    assert any(any(row["kept"]) for row in result.devices)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_who_fails_is_drawn_apart_from_who_straggles():
    cohort = cohort_of([5] * 10)
    failed = failures(cohort, share=0.3, seed=0, round=1)
    assert failed.sum() == 3
    assert failed.tolist() != work_of(cohort, 0.3, 2).straggler.tolist()


def test_a_batch_larger_than_any_device_costs_no_more_than_the_device(small_population):
    whole, huge = (
        fedprox.train(
            {"rounds": 2, "solver": {"epochs": 2, "batch_size": size}, "devices": {"per_round": 5}},
            population=small_population,
        )
        for size in (31, 10**9)
    )
    assert huge.devices.column("steps") == whole.devices.column("steps")
    assert huge.history[-1]["train_loss"] == pytest.approx(whole.history[-1]["train_loss"], rel=1e-5)
