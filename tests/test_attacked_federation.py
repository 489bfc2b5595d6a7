"""A real federation of two honest nodes and one that answers every message with a damaged one."""

from attack.federation import attack_federation

ROUNDS = 8


def test_a_node_that_sends_damaged_messages_harms_no_round(tmp_path):
    """The long attack, over 200 rounds, is `make attack-federation`."""
    patient = ["deploy.deadline=60", "measure.every=4"]  # an honest node may wait for the processor
    found = attack_federation(tmp_path, rounds=ROUNDS, seed=2, nodes=3, per_round=3, overrides=patient)
    assert found.rounds == ROUNDS
    assert sum(found.attacks.values()) == ROUNDS
    assert found.attacks["refused"] >= ROUNDS // 2
    assert found.lost == 0
    assert found.holds
