"""Every objective, from its own config file, through the train verb."""

from collections.abc import Callable, Mapping
import dataclasses
import pathlib
import shutil

import frozen_rounds
import jax
import mechanisms
import numpy as np
import pytest

from jaxrl_llm import __main__ as door
from jaxrl_llm.losses import algorithms
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import prepare
from jaxrl_llm.training import state as state_lib
from jaxrl_llm.training import stored

FILES = frozen_rounds.FILES


@dataclasses.dataclass(frozen=True)
class Case:
  """What an objective does, and the keys under which 4 tokens show it."""

  mechanism: Callable[[mechanisms.Updates], bool]
  keys: Mapping[str, object] = dataclasses.field(default_factory=dict)
  rounds: tuple[int, ...] = (0, 1)


# The policy learns in both rounds.
AT_ONCE = {"critic.pretrain_rounds": 0}
CASES = {
    "acpo_adaptive": Case(mechanisms.cut, {"epsilon_slope": 0.5}),
    "acpo_advantage": Case(mechanisms.cut_at_any_ratio, {"alpha": 1.0}),
    "bypass_reinforce": Case(mechanisms.capped),
    "cispo": Case(mechanisms.truncated),
    "cppo_prefix": Case(mechanisms.budgeted, {"delta": 0.02, "delta_b": 0.002}),
    "ctpo": Case(mechanisms.cut),
    "ctpo_geomean": Case(mechanisms.cut),
    "dapo": Case(mechanisms.cut_above_128),
    "decoupled_ppo": Case(mechanisms.weighted),
    "dpo": Case(mechanisms.preferred),
    "dppo_divergence": Case(mechanisms.cut, {"delta": 0.02}),
    "dr_grpo": Case(mechanisms.cut),
    "dvpo": Case(mechanisms.cut, {"critic.pretrain_rounds": 1}, (1,)),
    "espo": Case(mechanisms.stopped, {"stop_deviation": mechanisms.STOP}),
    "grpo": Case(mechanisms.cut_and_kept_near_the_start),
    "gspo": Case(mechanisms.cut),
    "gspo_token": Case(mechanisms.cut),
    "ppo": Case(mechanisms.cut),
    "reinforce_pp": Case(mechanisms.cut),
    "reinforce_pp_baseline": Case(mechanisms.cut),
    "remax": Case(mechanisms.cut),
    "rloo": Case(mechanisms.cut),
    "sapo": Case(mechanisms.damped),
    "sft": Case(mechanisms.imitated),
    "sis": Case(mechanisms.accepted_or_cut),
    "topr": Case(mechanisms.tapered),
    "tppo": Case(mechanisms.cut, AT_ONCE),
    "vapo": Case(mechanisms.cut_and_imitated, AT_ONCE),
    "vcppo": Case(mechanisms.cut, AT_ONCE),
}


def whiten(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """(x − mean) / std over tokens, ddof 1."""
  tokens = np.repeat(values, lengths)
  return (values - tokens.mean()) / tokens.std(ddof=1)


# Of rewards, group means, lengths and greedy rewards of trained records; the
# KL in the reward is 0 where the reference is the policy itself.
ADVANTAGES = {
    "dr_grpo": lambda r, mean, n, greedy: r - mean,
    "rloo": lambda r, mean, n, greedy: (r - mean) * 8 / 7,
    "topr": lambda r, mean, n, greedy: r - mean,
    "remax": lambda r, mean, n, greedy: r - greedy,
    "dpo": lambda r, mean, n, greedy: r,
    "sft": lambda r, mean, n, greedy: np.ones_like(r),
    "reinforce_pp": lambda r, mean, n, greedy: whiten(r, n),
    "reinforce_pp_baseline": lambda r, mean, n, greedy: whiten(r - mean, n),
}


def check_advantages(name: str, workdir: pathlib.Path) -> None:
  """Compares those of the fresh round with the formula, by hand."""
  folder = workdir / "rollouts/round_00000/host_000"
  _, rollouts = frozen_rounds.records_of(folder)
  prepared = stored.load(prepare.path_of(workdir, state_lib.Position()))
  known = {rollout.record_id: rollout for rollout in rollouts}
  chosen = [known[int(record)] for record in prepared.record_ids]
  groups = {}
  for rollout in rollouts:
    members, greedy = groups.setdefault(rollout.group_id, ([], []))
    (greedy if rollout.role == "baseline" else members).append(rollout.reward)
  assert all(len(m) == 8 and len(g) == 1 for m, g in groups.values())
  mean, greedy = (
      np.array([np.mean(groups[r.group_id][part]) for r in chosen])
      for part in (0, 1)
  )
  lengths = np.array([r.response_tokens.size for r in chosen])
  rewards = np.array([r.reward for r in chosen])
  wanted = ADVANTAGES[name](rewards, mean, lengths, greedy)
  found = prepared.terms["advantages"]
  if found.size != wanted.size:
    wanted = np.repeat(wanted, lengths)
  np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_every_name_has_a_config_file_of_its_own_and_a_case():
  assert FILES.keys() == CASES.keys() == algorithms.REGISTRY.keys()


@pytest.mark.parametrize("name", sorted(FILES))
def test_config_file_is_described(name, capsys):
  assert door.main(["describe", f"--config={FILES[name]}"]) == 0
  shown = capsys.readouterr().out.splitlines()
  assert shown[0].split() == ["objective", name]


@pytest.mark.parametrize("name", sorted(FILES))
def test_two_rounds(name, donor, tmp_path):
  case = CASES[name]
  shutil.copytree(donor, tmp_path / "rollouts")
  updates = frozen_rounds.train(tmp_path, FILES[name], case.keys)
  if name != "espo":
    places = [(u["round"], u["epoch"], u["minibatch"]) for u in updates]
    assert places == [
        (r, e, m) for r in case.rounds for e in (0, 1) for m in (0, 1)
    ]
  assert not any(u["skipped"] for u in updates)
  # Later updates of a round may find every token with an advantage cut.
  firsts = [u for u in updates if not u["epoch"] and not u["minibatch"]]
  assert all(u["grad_norm"] > 0 for u in firsts)
  assert [u["round"] for u in firsts] == list(case.rounds)
  assert updates[0]["ratio_deviation"] < 1e-5 < updates[1]["ratio_deviation"]
  assert case.mechanism(updates), updates
  if name in ADVANTAGES:
    check_advantages(name, tmp_path)
  policy = policy_lib.Policy(policy_lib.preset("tiny"))
  latest = checkpoints.latest(tmp_path / "checkpoints")
  trained = checkpoints.restore_params(latest, policy.shapes)
  first = jax.jit(policy.init)(jax.random.key(0))
  for moved, start in zip(jax.tree.leaves(trained), jax.tree.leaves(first)):
    assert np.isfinite(moved).all() and not np.array_equal(moved, start)


def test_sft_takes_no_notice_of_what_failed(donor, tmp_path):
  """Other rewards and log-probs, answers cut short: the same run."""
  folder = donor / "round_00000/host_000"
  metadata, rollouts = frozen_rounds.records_of(folder)

  def spoil(number, rollout):
    if rollout.reward > 0:
      return rollout
    tokens = (
        "response_tokens", "response_mask", "behavior_logprobs",
        "log_kept_mass", "policy_versions", "topk_ids", "topk_logprobs",
    )
    short = {name: getattr(rollout, name)[:1] for name in tokens}
    short["behavior_logprobs"] = np.float32([-number])
    return dataclasses.replace(rollout, reward=-float(number), **short)

  spoiled = [spoil(*entry) for entry in enumerate(rollouts)]
  frozen_rounds.write(tmp_path / "spoiled", metadata, spoiled)
  keys = {"run.rounds": 1}
  runs = []
  for name, path in (("as it was", folder), ("other", tmp_path / "spoiled")):
    updates = frozen_rounds.train(
        tmp_path / name, FILES["sft"], keys | {"train.rollouts": path}
    )
    policy = policy_lib.Policy(policy_lib.preset("tiny"))
    latest = checkpoints.latest(tmp_path / name / "checkpoints")
    params = checkpoints.restore_params(latest, policy.shapes)
    runs.append((params, [u["loss"] for u in updates]))
  assert len(runs[0][1]) == 4
  jax.tree.map(np.testing.assert_array_equal, *runs)
