"""Every allocation and curation, from its own config file, in the main job."""

import importlib
import json
import pathlib

import pytest

from configs import tiny
from jaxrl_llm import __main__ as door
from jaxrl_llm.allocation import registry
from jaxrl_llm.curation import methods
from jaxrl_llm.data import shards
from jaxrl_llm.rollout import rewards
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training import metrics
from jaxrl_llm.verbs import parts
from jaxrl_llm.verbs import rounds

ROOT = pathlib.Path(__file__).parents[2]
ALLOCATIONS = sorted(set(registry.REGISTRY) - {"uniform"})
# The file of codapo is that of its allocation.
CURATIONS = ("cppo_completion", "dppo_pruning", "ippo", "ps_ppo")
SIZES = {
    "model.remat": "none",
    "prompts.count": 16,
    "prompts.eval_count": 2,
    "generation.prompts_per_round": 4,
    "generation.samples_per_prompt": 8,
    "run.rounds": 4,
    "evaluation.samples": 1,
    "evaluation.pass_at": "1",
}


def by_first_letter(response: str, prompt) -> rewards.Verdict:
  """Right for a share of random responses that the prompt decides."""
  if not response:
    return rewards.Verdict(0.0, "", True)
  return rewards.Verdict(
      float(ord(response[0]) % 4 <= prompt.prompt_id % 3), "", True
  )


@pytest.fixture
def run(tmp_path, monkeypatch):
  """Runs a config file with rewards that vary; returns metrics by kind."""
  monkeypatch.setattr(
      parts, "grader",
      lambda config: rewards.Grader(rewards.RewardSettings(), by_first_letter),
  )

  def started(name, **changes):
    words = [f"--config.{k}={v}" for k, v in (SIZES | changes).items()]
    path = ROOT / "configs" / f"{name}.py"
    command = ["run", f"--config={path}", *words, f"--workdir={tmp_path}"]
    assert door.main(command) == 0
    records = metrics.read(tmp_path / "metrics.jsonl")
    updates = [r for r in records if r["kind"] == "update"]
    assert updates and not any(r["skipped"] for r in updates)
    assert updates[0]["grad_norm"] > 0
    steps = checkpoints.complete_steps(tmp_path / "checkpoints")
    assert max(steps) == len(updates)
    return updates, [r for r in records if r["kind"] == "batch"]

  return started


def counts(workdir: pathlib.Path) -> list[dict[int, int]]:
  """Responses by prompt of each round."""
  found = []
  for path in sorted((workdir / "allocation").glob("round_*.json")):
    plan = json.loads(path.read_text())
    found.append(dict(zip(plan["prompt_ids"], plan["counts"])))
  return found


def test_every_method_has_a_config_file():
  for name in ALLOCATIONS:
    file = importlib.import_module(f"configs.allocation_{name}")
    assert file.get_config().allocation.name == name
  for name in CURATIONS:
    file = importlib.import_module(f"configs.curation_{name}")
    assert file.get_config().curation.name == name
  file = importlib.import_module("configs.allocation_codapo")
  assert file.get_config().curation.name == "codapo"
  assert {*CURATIONS, "codapo"} == set(methods.REGISTRY)


def by_turn(number: int) -> dict[int, int]:
  """The plan of a round without any method."""
  config = tiny.get_config()
  config.prompts.count = SIZES["prompts.count"]
  config.prompts.eval_count = SIZES["prompts.eval_count"]
  prompts, _ = parts.prompts(config, parts.tokenizer(config))
  turn = rounds.turn_of(prompts, number, 4, config.seed)
  return {prompt.prompt_id: 8 for prompt in turn[:4]}


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_allocations_leave_the_plan_by_turn(run, tmp_path, name):
  run(f"allocation_{name}")
  plans = counts(tmp_path)
  assert len(plans) == 4 and all(plans)
  assert any(plan != by_turn(k) for k, plan in enumerate(plans))
  # All but the ones that draw or forecast begin without knowledge, by turn.
  if name not in ("cero", "dapo", "spo"):
    assert plans[0] == by_turn(0)


@pytest.mark.parametrize("name", CURATIONS)
def test_curations_leave_something_out(run, name):
  updates, batches = run(f"curation_{name}")
  kept = [batch["curation/response_tokens_kept"] for batch in batches]
  assert all(0 < share <= 1 for share in kept) and min(kept) < 1
  assert max(u["curation/saved_tokens"] for u in updates) > 0
  if name == "cppo_completion":
    assert {b["curation/survivor_share"] for b in batches} == {0.5}
  if name == "ippo":
    for batch in batches:
      share = batch["influence/positive_share"]
      assert batch["curation/survivor_share"] == pytest.approx(share)


def test_a_bandit_tries_another_bound_each_round(run, tmp_path):
  run("pb_ppo")
  files = sorted((tmp_path / "controls").glob("round_*.json"))
  bounds = [json.loads(path.read_text())["bound"] for path in files]
  assert bounds == pytest.approx([0.02, 0.116, 0.212, 0.308])


def test_windows_of_tppo(run, tmp_path):
  """Its critic waits for finished responses; tokens bear their versions."""
  changes = {"run.rounds": 4, "prompts.count": 64}
  updates, batches = run("objectives/tppo", **changes)
  assert {u["round"] for u in updates} == {2, 3}
  # Hardly a response stops by itself: windows of 4 tokens end all of 8.
  assert [batch["unfinished"] > 0 for batch in batches] == [1, 0, 1, 1]
  assert [batch["continued"] > 0 for batch in batches] == [0, 1, 0, 1]
  folder = shards.open_folder(tmp_path / "rollouts/round_00003/host_000")
  versions = {tuple(folder[n].policy_versions) for n in range(len(folder))}
  learned = sum(u["round"] == 2 for u in updates)
  assert (0,) * 4 + (learned,) * 4 in versions


def test_a_critic_beside_ppo(run):
  updates, batches = run("ppo_gae")
  assert [b["critic/explained_variance"] for b in batches][0] == 0
  assert all("critic/explained_variance" in batch for batch in batches)
  assert updates[0]["clip"] == 0
