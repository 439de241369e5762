"""Corrections and selections over other hosts, on stale shards."""

import frozen_rounds
import mechanisms
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm.losses import algorithms

FILES = frozen_rounds.FILES

SIS = {"selection": "sis"}
COMBINATIONS = {
    "sis over ppo": ("ppo", SIS, mechanisms.accepted_or_cut),
    "sis over gspo": ("gspo", SIS, mechanisms.accepted_or_cut),
    "sis over dapo": ("dapo", SIS, mechanisms.accepted_or_cut),
    "sis over cispo": ("cispo", SIS, mechanisms.accepted_or_truncated),
    "tis over grpo": (
        "grpo",
        {"correction": "tis", "correction_cap": 1.02},
        mechanisms.zeroed,
    ),
    "icepop over ppo": (
        "ppo",
        {
            "correction": "icepop",
            "correction_low": 0.7,
            "correction_high": 1.4,
        },
        mechanisms.zeroed,
    ),
    "rejection over grpo": (
        "grpo",
        {"correction": "rejection", "rejection_high": 1.5},
        mechanisms.rejected,
    ),
    "tis and mis over ppo": (
        "ppo",
        {
            "correction": "tis+mis",
            "correction_cap": 1.02,
            "rejection_high": 1.5,
        },
        mechanisms.both,
    ),
    "decoupled over grpo": (
        "grpo", {"correction": "decoupled"}, mechanisms.apart
    ),
}


@pytest.mark.parametrize("case", COMBINATIONS)
def test_a_combination_on_the_stale_round(case, donor, tmp_path):
  name, keys, mechanism = COMBINATIONS[case]
  keys = keys | {"train.rollouts": donor / "round_00001"}
  updates = frozen_rounds.train(tmp_path, FILES[name], keys)
  assert len(updates) == 4
  assert all(u["grad_norm"] > 0 and not u["skipped"] for u in updates)
  assert updates[0]["ratio_deviation"] < 1e-5 < updates[1]["ratio_deviation"]
  assert mechanism(updates), updates


@pytest.mark.parametrize("host", ["ppo", "grpo"])
def test_mis_is_another_word_for_rejection(host):
  build = lambda word: algorithms.build({"name": host, "correction": word})
  assert build("mis") == build("rejection") != build("none")


REFUSED = {
    "staleness that nobody named": ("ppo", {}, "drawn by other weights"),
    "more top ids than the shards hold": (
        "cppo_prefix", {"divergence_topk": 21}, "expected the top 21 ids"
    ),
    "versions of the donor": (
        "decoupled_ppo", {"proximal": "loglinear"}, "objective.proximal"
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_shards_that_do_not_serve_are_refused(case, donor, tmp_path, capsys):
  name, keys, message = REFUSED[case]
  keys = keys | {"train.rollouts": donor / "round_00001"}
  line = [*frozen_rounds.words(FILES[name], keys), f"--workdir={tmp_path}"]
  assert door.main(["train", *line]) == door.USER_ERROR
  assert message in capsys.readouterr().err
