import json
import os
import signal
from pathlib import Path

import platformdirs

# One compilation cache for the suite: for all workers, for the processes that tests start, and for the next time.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(platformdirs.user_cache_path("fedprox") / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import numpy as np
import pytest

from fedprox.population import Population

# A shell starts what runs in its background deaf to interrupts, and children inherit that; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Files whose tests start clusters, federations or many processes, or run the documentation from end to end.
SLOW_FILES = {
    "test_cli.py",
    "test_deploy.py",
    "test_deploy_privacy.py",
    "test_docs.py",
    "test_examples.py",
    "test_kill.py",
    "test_lstm.py",
    "test_notebooks.py",
    "test_paper_runs.py",
    "test_paper_smoke.py",
    "test_ray.py",
    "test_scheduler.py",
    "test_survival.py",
    "test_sweep.py",
    "test_trackers.py",
    "test_workers.py",
}


# Single tests that start processes, read large files or try many damaged ones: each took more than 2 s of CPU time.
SLOW_TESTS = {
    "test_a_full_standard_output_is_a_sentence",
    "test_a_method_of_ones_own_runs_in_every_command",
    "test_a_module_in_the_current_folder_is_not_imported_by_workers",
    "test_a_new_project_is_a_flower_app_that_learns_in_three_rounds",
    "test_a_part_that_raises_ends_the_run_with_its_traceback_and_the_folder_can_be_resumed",
    "test_a_record_is_of_one_config",
    "test_an_installed_module_wins_over_a_file_in_the_folder",
    "test_an_interrupted_comparison_resumes",
    "test_any_message_is_taken_or_refused",
    "test_any_solver_of_ours_trains_a_torch_model",
    "test_cifar_10_from_the_command_line",
    "test_compare_over_bytes_shows_what_a_byte_buys",
    "test_compare_over_seconds",
    "test_damage_is_answered_with_data_or_a_sentence",
    "test_jax_keeps_its_programs_in_ours_and_the_folder_is_private",
    "test_memory_is_of_the_numbers_not_of_the_text",
    "test_mnist_is_table_1",
    "test_mu_is_chosen_by_shorter_runs_and_records_stand_for_runs",
    "test_prepare_and_stats_from_a_users_folder",
    "test_sent140_with_a_file_of_the_full_form",
    "test_sent140_with_the_partial_file",
    "test_the_command_prints_the_address_and_ends_with_an_interrupt",
    "test_the_command_writes_picture_and_report_and_resumes",
    "test_the_folder_is_searched_only_where_a_config_asks_for_it",
}


collect_ignore = ["attack/federation_app"]  # part of an app, which imports the rest of it


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave slow files unread where no test of them is wanted: what they import takes seconds."""
    return True if config.option.markexpr == "not slow" and collection_path.name in SLOW_FILES else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in SLOW_FILES or item.name.partition("[")[0] in SLOW_TESTS:
            item.add_marker(pytest.mark.slow)


def population_of(sizes, features=5, classes=3, seed=0, test=0):
    """A small population of Gaussian clouds that differ per device; `test` more rows per device are test rows."""
    random = np.random.default_rng(seed)
    owner = np.concatenate([np.full(size + test, k) for k, size in enumerate(sizes)])
    is_test = np.concatenate([np.arange(size + test) >= size for size in sizes])
    centres = random.normal(size=(len(sizes), features))
    x = (centres[owner] + random.normal(size=(len(owner), features))).astype(np.float32)
    y = (x @ random.normal(size=(features, classes))).argmax(axis=1)
    return Population.from_arrays(x, y, owner, test=is_test)


@pytest.fixture
def small_population():
    return population_of([7, 23, 4, 31, 12], test=3)


@pytest.fixture
def write_leaf(tmp_path):
    """Write {user: (x, y)} for training and test data as a LEAF folder and return it."""

    def write(train, test, folder="leaf"):
        for part, users in (("train", train), ("test", test)):
            path = tmp_path / folder / part
            path.mkdir(parents=True, exist_ok=True)
            content = {
                "users": list(users),
                "num_samples": [len(y) for _, y in users.values()],
                "user_data": {
                    name: {"x": np.asarray(x).tolist(), "y": np.asarray(y).tolist()} for name, (x, y) in users.items()
                },
            }
            (path / "data.json").write_text(json.dumps(content))
        return tmp_path / folder

    return write
