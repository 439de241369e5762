"""Where other systems' dumps keep the fields of a rollout.

A layout maps a field to a dotted path into a row of the dump: keys of objects
and places in lists, as in `choices.0.text`. `*` stands for the number of the
response within the row, so `choices.*.token_ids` is that of each choice. A row
holds as many responses as the list at `responses` has entries; one where that
path is not given.
"""

from collections.abc import Mapping
import dataclasses
import difflib
import math
from typing import Any

# The layout of `export-rollouts`: every field of the shard contract.
NATIVE = "jaxrl_llm"
FIELDS = (
    # List with an entry per response of the row.
    "responses",
    # The prompt: ids; or text with its control tokens; or chat messages.
    "prompt_tokens",
    "prompt_text",
    "messages",
    # The problem as given, beside a prompt that a template surrounds.
    "question",
    # The response: ids; or the text of each token; or text.
    "response_tokens",
    "token_texts",
    "response_text",
    # True or 1 on sampled tokens, False or 0 on those of tools.
    "response_mask",
    # True where a tool spoke in the response.
    "tool_called",
    "logprobs",
    "log_kept_mass",
    "reward",
    "reference_answer",
    "finish_reason",
    # Equal for the responses that are compared; paths joined by + together.
    "group",
    "policy_version",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
)
# vLLM gives ids to a request with return_token_ids.
_CHOICES = {
    "responses": "choices",
    "prompt_tokens": "prompt_token_ids",
    "response_tokens": "choices.*.token_ids",
    "finish_reason": "choices.*.finish_reason",
    "reward": "choices.*.reward",
    "reference_answer": "reference_answer",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
}
LAYOUTS: Mapping[str, Mapping[str, str]] = {
    NATIVE: {},
    # Responses of /v1/chat/completions with the messages of their request.
    "openai_chat": {
        **_CHOICES,
        "messages": "messages",
        "token_texts": "choices.*.logprobs.content",
        "response_text": "choices.*.message.content",
        "logprobs": "choices.*.logprobs.content",
    },
    # Responses of /v1/completions with the prompt of their request.
    "openai_completions": {
        **_CHOICES,
        "prompt_tokens": "choices.*.prompt_token_ids",
        "prompt_text": "prompt",
        "token_texts": "choices.*.logprobs.tokens",
        "response_text": "choices.*.text",
        "logprobs": "choices.*.logprobs.token_logprobs",
    },
    # vLLM's RequestOutput, as written out field by field.
    "vllm": {
        **_CHOICES,
        "responses": "outputs",
        "prompt_text": "prompt",
        "response_tokens": "outputs.*.token_ids",
        "response_text": "outputs.*.text",
        "logprobs": "outputs.*.logprobs",
        "finish_reason": "outputs.*.finish_reason",
        "reward": "outputs.*.reward",
    },
    # verl's trainer.rollout_data_dir: decoded text, without log-probs.
    "verl": {
        "prompt_text": "input",
        "response_text": "output",
        "reward": "score",
        "reference_answer": "gts",
        "policy_version": "step",
    },
    # Fields of verl's AgentLoopOutput, and the batch's uid.
    "verl_agent_loop": {
        "prompt_tokens": "prompt_ids",
        "response_tokens": "response_ids",
        "response_mask": "response_mask",
        "logprobs": "response_logprobs",
        "reward": "reward_score",
        "reference_answer": "ground_truth",
        "group": "uid",
        "policy_version": "step",
    },
    # A response per row, with the names that trl's rollout_func gives.
    "trl": {
        "prompt_tokens": "prompt_ids",
        "response_tokens": "completion_ids",
        "response_mask": "env_mask",
        "logprobs": "logprobs",
        "messages": "prompt",
        "reward": "reward",
        "reference_answer": "answer",
        "policy_version": "step",
    },
    # What a call of trl's rollout_func returns: a list per field.
    "trl_rollout": {
        "responses": "completion_ids",
        "prompt_tokens": "prompt_ids.*",
        "response_tokens": "completion_ids.*",
        "response_mask": "env_mask.*",
        "logprobs": "logprobs.*",
        "reward": "reward.*",
        "reference_answer": "answer.*",
        "policy_version": "step",
    },
    # trl's log_completions (Parquet): text, without log-probs. Rewards are
    # under the names of their functions: map `reward`.
    "trl_completions": {
        "messages": "prompt",
        "response_text": "completion",
        "reward": "reward",
        "policy_version": "step",
    },
    # open-instruct's save_traces.
    "open_instruct": {
        "prompt_tokens": "prompt_tokens",
        "response_tokens": "response_tokens",
        "tool_called": "request_info.tool_calleds",
        "logprobs": "logprobs",
        "reward": "reward",
        "reference_answer": "ground_truth",
        "finish_reason": "finish_reason",
        "group": "step+prompt_idx",
        "policy_version": "step",
    },
}
KINDS = ("sampled", "tempered", "raw")


@dataclasses.dataclass(frozen=True)
class ImportSettings:
  """How a dump is read (config.import_rollouts); see configs/base.py."""

  files: str = ""
  format: str = NATIVE
  fields: str = ""
  round: int = 0
  policy_version: int = 0
  temperature: float | None = None
  top_p: float | None = None
  top_k: int | None = None
  min_p: float | None = None
  logprobs: str | None = None
  recompute_logprobs: bool = False
  drawn_by_model: bool = False
  missing_eos: str | None = None
  grade: bool = False
  plain_text: bool = False

  def __post_init__(self):
    if self.format not in LAYOUTS:
      raise ValueError(
          "import_rollouts.format: expected one of"
          f" {', '.join(LAYOUTS)}, found {self.format!r}."
      )
    self._check_choice("logprobs", KINDS)
    self._check_choice("missing_eos", ("stop", "length"))
    for name in ("round", "policy_version"):
      if getattr(self, name) < 0:
        raise ValueError(
            f"import_rollouts.{name}: expected an integer ≥ 0, found"
            f" {getattr(self, name)}."
        )
    if self.temperature is not None and not 0 < self.temperature < math.inf:
      raise ValueError(
          "import_rollouts.temperature: expected a finite number > 0, found"
          f" {self.temperature}; greedy responses have no ratio to correct."
      )
    if self.recompute_logprobs and self.drawn_by_model:
      raise ValueError(
          "import_rollouts.drawn_by_model: the recorded log-probs are compared"
          " with the model's, and recompute_logprobs gives them up; set one."
      )
    if self.format == NATIVE:
      self._check_native()
    self.paths()

  def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
    """Refuses a value that is none of the choices."""
    value = getattr(self, name)
    if value is not None and value not in choices:
      raise ValueError(
          f"import_rollouts.{name}: expected one of {', '.join(choices)},"
          f" found {value!r}."
      )

  def _check_native(self) -> None:
    """Refuses keys that a file of `export-rollouts` answers itself."""
    default = ImportSettings.__dataclass_fields__
    for field in default.values():
      name = field.name
      if name in ("files", "format"):
        continue
      if getattr(self, name) != field.default:
        raise ValueError(
            f"import_rollouts.{name}: a file of format={NATIVE} says it"
            " itself; leave it as it is, or set import_rollouts.format."
        )

  def paths(self) -> dict[str, str]:
    """Returns the layout's paths by field, those of `fields` laid over them.

    Raises:
      ValueError: `fields` is no list of name=path, or names no field.
    """
    paths = dict(LAYOUTS[self.format])
    for part in filter(None, self.fields.split(",")):
      name, equals, path = (text.strip() for text in part.partition("="))
      if not equals or name not in FIELDS:
        close = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.0)
        raise ValueError(
            "import_rollouts.fields: expected field=path, separated by commas,"
            f" found {part!r}; the nearest field is {close[0]!r}."
        )
      paths.pop(name, None)
      if path:
        paths[name] = path
    return paths


def lookup(row: Any, path: str, number: int) -> Any:
  """Returns what lies at a dotted path of a row; None where nothing does.

  Args:
    row: parsed JSON.
    path: keys of objects and places in lists; `*` is `number`.
    number: of the response within the row.
  """
  for part in path.split("."):
    part = str(number) if part == "*" else part
    if isinstance(row, Mapping):
      row = row.get(part)
    elif isinstance(row, list) and part.isdecimal():
      row = row[int(part)] if int(part) < len(row) else None
    else:
      return None
  return row
