"""A working directory made by hand, with every kind of file in it."""

import json
import pathlib

import numpy as np

from jaxrl_llm import types
from jaxrl_llm.data import byte_tokenizer
from jaxrl_llm.data import schema
from jaxrl_llm.data import shards
from jaxrl_llm.evaluation import results
from jaxrl_llm.evaluation import settings as settings_lib
from jaxrl_llm.lab import report
from jaxrl_llm.lab import workdir as workdir_lib
from jaxrl_llm.training import stored

SCRIPT = "<script>document.title='struck'</script>"
CONFIG = {
    "objective.name": "ppo",
    "model.preset": "tiny",
    "allocation.name": "cero",
    "curation.name": "ps_ppo",
    "run.rounds": 4,
    "seed": 7,
}
UPDATE = {
    "kind": "update", "reward": 0.5, "ratio/mean": 1.01, "ratio_max": 1.5,
    "ratio_after_max": 1.2, "log_ratio/q99": 0.2, "log_ratio/q50": 0.0,
    "log_ratio/q01": -0.2, "ess/ess": 0.9, "kl/behavior_k3": 0.01,
    "kl/proximal_k3": 0.01, "clip": 0.3, "clip/high_positive": 0.1,
    "clip/low_negative": 0.2, "clip/high_negative": 0.0,
    "clip/low_positive": 0.0, "grad_norm": 1.0, "skipped": 0.0,
}
BATCH = {
    "kind": "batch", "reward": 0.25, "records": 6, "dropped/uniform": 2,
    "dropped/long": 0, "curation/survivor_share": 0.75,
    "curation/response_tokens_kept": 0.5, "critic/explained_variance": 0.2,
}


def positions(step: int, round: int) -> dict[str, object]:
  """A record by position; the last bucket is out of reach."""
  values = [0.1, -0.2, 0.3 * step, None]
  names = [
      f"{name}/{part}"
      for name in ("log_ratio", "cumulative")
      for part in ("mean", "q05", "q25", "q50", "q75", "q95")
  ]
  names += ["tv", "clip", "ess", "contribution", "budget"]
  names += ["bound_low", "bound_high"]
  return {
      "step": step, "kind": "positions", "round": round,
      "edges": [0, 1, 2, 4, 8], "tokens": [8, 8, 6, None],
      **{name: values for name in names},
  }


def rollout(sample: int, round: int, length: int, **changes) -> types.Rollout:
  """A response of `length` bytes."""
  text = (SCRIPT * 9)[:length]
  return types.Rollout(**{
      "record_id": 1000 * round + sample,
      "prompt_id": sample // 2,
      "group_id": 100 * round + sample // 2,
      "sample_index": sample % 2,
      "round": round,
      "prompt_tokens": np.array([byte_tokenizer.BOS_ID, 65], np.int32),
      "response_tokens": np.frombuffer(text.encode(), np.uint8).astype(
          np.int32
      ),
      "response_mask": np.ones(length, bool),
      "behavior_logprobs": np.full(length, -1.0, np.float32),
      "log_kept_mass": np.zeros(length, np.float32),
      "policy_versions": np.zeros(length, np.int32),
      "lineage": "made",
      "window_start": 0,
      "topk_ids": np.zeros((length, 0), np.int32),
      "topk_logprobs": np.zeros((length, 0), np.float32),
      "finish_reason": "stop" if sample % 2 else "length",
      "role": "train",
      "temperature": 1.0,
      "reward": float(sample % 2),
      "reward_parts": {},
      "reference_answer": "&",
      "prompt_text": f"What is {SCRIPT}?",
      "response_text": text,
      **changes,
  })


def write_shards(
    folder: pathlib.Path, rollouts: list[types.Rollout], finish: bool = True
) -> None:
  """Writes a folder of one shard."""
  metadata = schema.FolderMetadata(
      lineage="made", round=rollouts[0].round, policy_version=0,
      weights_fingerprint="w", tokenizer_fingerprint="t",
      prompts_fingerprint="p", sampling={}, config={}, code_version="0",
  )
  writer = shards.ShardWriter(folder, metadata, 1)
  writer.write(0, rollouts)
  if finish:
    writer.finish()


def whole(folder: pathlib.Path, rounds: int = 2) -> pathlib.Path:
  """Writes a run of some rounds, of two updates each."""
  folder.mkdir(parents=True)
  _json(folder / "config.json", CONFIG)
  _json(folder / "run.json", {"rounds": rounds, "evaluations": {}})
  lines = []
  for number in range(rounds):
    step = 2 * number + 1
    lines.append({"step": step, "round": number, "batch": 0, **BATCH})
    for update in (step, step + 1):
      lines.append({"step": update, "round": number, **UPDATE})
      lines.append(positions(update, number))
    _round(folder, number)
  text = "".join(json.dumps(line) + "\n" for line in lines)
  (folder / "metrics.jsonl").write_text(text)
  for updates in (0, 2 * rounds):
    evaluation(folder, updates)
  return folder


def evaluation(folder: pathlib.Path, updates: int, samples: int = 2) -> None:
  """Writes an evaluation of four problems, half of them solved."""
  problems = [
      results.Problem(
          number, "?", "1", ["1"] * samples, ["stop"] * samples,
          [1] * samples, ["1"] * samples, [float(number % 2)] * samples,
          [""] * samples,
      )
      for number in range(4)
  ]
  settings = settings_lib.EvaluationSettings(samples=samples, pass_at="1,2")
  found = results.summarise(settings, problems, {"updates": updates})
  results.save(found, folder / f"evaluations/step_{updates}-{samples}")


def read(folder: pathlib.Path) -> workdir_lib.Run:
  """Reads a run as a report does."""
  return workdir_lib.read(folder, folder.name, report.cache_of(folder))


def _round(folder: pathlib.Path, number: int) -> None:
  """Writes shards, plan, feedback and prepared terms of a round."""
  rollouts = [rollout(n, number, 3 + 2 * n) for n in range(8)]
  place = f"round_{number:05d}"
  write_shards(folder / "rollouts" / place / "host_000", rollouts)
  _json(
      folder / "allocation" / f"{place}.json",
      {"round": number, "counts": [4, 2, 2], "prompt_ids": [0, 1, 2]},
  )
  groups = [
      {"correct": correct, "samples": 2} for correct in (0, 1, 1, 2)
  ]
  _json(
      folder / "feedback" / f"round_{number:04d}.json",
      {"round": number, "groups": groups},
  )
  chosen = rollouts[:6]
  prepared = stored.Prepared(
      np.array([one.record_id for one in chosen]),
      np.array([one.response_tokens.size for one in chosen]),
      {
          "advantages": np.array(
              [one.reward - 0.5 for one in chosen], np.float32
          ),
          "proximal_logprobs": np.concatenate(
              [one.behavior_logprobs + 0.1 for one in chosen]
          ),
      },
  )
  stored.save(
      folder / f"prepared/round_{number:04d}/batch_0000.npz", prepared, {}
  )


def _json(path: pathlib.Path, content: object) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(content))
