"""The job with adapters: only they move, and every verb knows them."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxrl_llm import __main__ as door
from jaxrl_llm.models import lora as lora_lib
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import weights
from jaxrl_llm.training import checkpoints
from jaxrl_llm.verbs import replay

ROOT = pathlib.Path(__file__).parents[2]
SMALL = [
    f"--config={ROOT / 'configs/tiny.py'}",
    "--config.prompts.count=64",
    "--config.prompts.eval_count=4",
    "--config.generation.prompts_per_round=8",
    "--config.generation.slots=32",
    "--config.train.checkpoint_every=1",
    "--config.train.keep_uniform_groups=True",
    "--config.evaluation.samples=1",
    "--config.evaluation.pass_at=1",
    "--config.objective.name=grpo",
]
LORA = ["--config.model.lora_rank=3", "--config.model.lora_base_dtype=int8"]
POLICY = policy_lib.Policy(
    policy_lib.preset("tiny"), "float32", lora=lora_lib.Lora(3, 6.0),
    base_dtype="int8",
)


def call(verb, workdir, *arguments):
  flags = [*SMALL, f"--workdir={workdir}", *arguments]
  if verb == "export":  # Reads less.
    flags = [SMALL[0], f"--workdir={workdir}", *arguments]
  return door.main([verb, *flags])


@pytest.fixture(scope="module", name="workdir")
def _workdir(tmp_path_factory):
  """One round, generated and trained on."""
  workdir = tmp_path_factory.mktemp("adapters")
  assert call("generate", workdir, *LORA) == 0
  assert call("train", workdir, *LORA) == 0
  return workdir


def _restored(workdir, number=None):
  steps = checkpoints.complete_steps(workdir / "checkpoints")
  path = steps[number or max(steps)]
  start = POLICY.init(jax.random.key(0))
  return start, checkpoints.restore_params(path, start)


def test_a_checkpoint_holds_adapters_alone_and_they_moved(workdir):
  start, params = _restored(workdir)
  for name, value in policy_lib.trained(params).items():
    assert np.any(value != policy_lib.trained(start)[name]), name
  step = max(checkpoints.complete_steps(workdir / "checkpoints").values())
  tree = json.loads((step / "params/_METADATA").read_text())["tree_metadata"]
  assert {key.strip("()',") for key in tree} == policy_lib.trained(start).keys()
  moments = json.loads((step / "optimizer/_METADATA").read_text())
  names = "".join(moments["tree_metadata"])
  assert "query_a" in names and "embedding" not in names


def test_resumed_training_ends_in_the_same_bits(workdir, tmp_path):
  copy = shutil.copytree(workdir, tmp_path / "copy")
  steps = checkpoints.complete_steps(copy / "checkpoints")
  shutil.rmtree(steps[max(steps)])
  assert call("train", copy, *LORA) == 0
  for ours, theirs in zip(
      jax.tree.leaves(_restored(copy)[1]),
      jax.tree.leaves(_restored(workdir)[1]),
      strict=True,
  ):
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("flags", [
    ["--config.curation.name=ippo", "--config.curation.validation=batch"],
    ["--config.objective.advantage=gae", "--config.critic.kind=head"],
    ["--config.objective.advantage=gae", "--config.critic.kind=network"],
], ids=["influence", "value head", "value network"])
def test_what_else_reads_or_moves_weights(workdir, tmp_path, flags):
  """Influence takes directions of adapters; a critic's network is whole."""
  shards = f"--config.train.rollouts={workdir / 'rollouts'}"
  assert call(
      "train", tmp_path, *LORA, shards, "--config.train.epochs=1", *flags
  ) == 0
  start, params = _restored(tmp_path)
  moved = policy_lib.trained(params)["query_b"]
  assert np.any(moved != policy_lib.trained(start)["query_b"])


def test_the_sampler_reads_the_trained_adapters(workdir, tmp_path, capsys):
  """The next round's log-probs are those that the trainer computes."""
  copy = shutil.copytree(workdir, tmp_path / "copy")
  assert call("evaluate", copy, *LORA) == 0
  assert call("generate", copy, *LORA) == 0
  capsys.readouterr()
  assert call("train", copy, *LORA, "--config.train.epochs=2") == 0
  assert "trainer and sampler agree" in capsys.readouterr().out


def test_exports(workdir, tmp_path):
  """Merged weights, or adapters with PEFT's names; both say the same."""
  start, params = _restored(workdir)
  assert call(
      "export", workdir, *LORA, f"--config.export.folder={tmp_path / 'model'}"
  ) == 0
  _, found = weights.read(tmp_path / "model")
  merged = POLICY.merged(params)
  for ours, theirs in zip(
      jax.tree.leaves(found), jax.tree.leaves(merged), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, atol=1e-7)
  assert call(
      "export", workdir, *LORA, "--config.export.format=peft",
      f"--config.export.folder={tmp_path / 'peft'}",
  ) == 0
  tensors = safetensors.numpy.load_file(
      tmp_path / "peft/adapter_model.safetensors"
  )
  stem = "base_model.model.model.layers.1.mlp.down_proj.lora"
  change = tensors[f"{stem}_B.weight"] @ tensors[f"{stem}_A.weight"]
  base = POLICY.merged(start)["layers"]["down"][1]
  np.testing.assert_allclose(
      base + 2.0 * change.T, found["layers"]["down"][1], atol=1e-6
  )


def test_replay_starts_from_adapters_and_from_a_checkpoint(workdir, tmp_path):
  """The reference is the base, and only the adapters move."""
  path = checkpoints.latest(workdir / "checkpoints")
  assert door.main([
      "replay", SMALL[0], *LORA, "--config.train.keep_uniform_groups=True",
      f"--shards={workdir / 'rollouts'}", f"--workdir={tmp_path}",
      "--objectives=grpo:kl_coefficient=0.1,topr",
      f"--config.lab.checkpoint={path}", "--config.lab.correction=bypass",
      "--config.lab.updates=1",
  ]) == 0
  rows = json.loads((tmp_path / replay.RESULT).read_text())["rows"]
  after = rows["grpo:kl_coefficient=0.1"]["after"]
  assert after["updates"] == 1 and after["moved"] > 0


def test_report_judges_by_a_checkpoint_of_adapters(workdir, capsys):
  assert door.main([
      "report", f"--workdir={workdir}", "--config.report.samples=2"
  ]) == 0
  line = capsys.readouterr().out.strip().splitlines()[-1]
  page = pathlib.Path(line.removeprefix("report: ")).read_text("utf-8")
  assert "Coloured by live" in page


@pytest.mark.parametrize("flags, word", [
    (["--config.model.lora_rank=3"], "model.lora_base_dtype"),
    (["--config.export.format=gguf", *LORA], "export.format"),
])
def test_refused_exports(workdir, tmp_path, capsys, flags, word):
  code = call("export", workdir, *flags,
              f"--config.export.folder={tmp_path / 'out'}")
  text = capsys.readouterr().err
  assert code == door.USER_ERROR and word in text and text.count("\n") == 1


def test_references_in_8_bits(workdir, tmp_path, capsys):
  """Runs without adapters on the same shards: the KL's reference is near."""
  shared = [
      f"--config.train.rollouts={workdir / 'rollouts'}",
      "--config.objective.correction=none",
      "--config.objective.kl_coefficient=0.1",
  ]
  found = []
  for dtype in ("float32", "int8"):
    target = tmp_path / dtype
    assert call(
        "train", target, *shared, "--config.train.epochs=1",
        f"--config.train.reference_dtype={dtype}",
    ) == 0
    file = next((target / "prepared").rglob("batch_*.npz"))
    with np.load(file) as stored:
      found.append(stored["term_reference_logprobs"])
  difference = np.abs(found[0] - found[1]).max()
  assert 0 < difference < 0.05
  capsys.readouterr()
  # With adapters the reference is their base, which is stored in int8.
  code = call(
      "train", tmp_path / "other", *LORA, *shared,
      "--config.train.reference_dtype=bfloat16",
  )
  text = capsys.readouterr().err
  assert code == door.USER_ERROR and "train.reference_dtype" in text
