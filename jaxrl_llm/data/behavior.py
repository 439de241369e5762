"""What a dump says of the distribution that its tokens were sampled from.

Ratios need log π of the whole vocabulary at the sampling temperature. Dumps
hold one of three log-probs (import_rollouts.logprobs):

  sampled    after temperature and truncation; + log kept mass is log π
  tempered   after temperature, of the whole vocabulary; is log π
  raw        of the model itself; is log π at temperature 1 alone

At temperature 1 without truncation all three are the same.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np

from jaxrl_llm.data import dump_values
from jaxrl_llm.data import layouts

# Values of a setting that truncate nothing.
_OFF = {"top_p": (1,), "top_k": (0, -1), "min_p": (0,)}


@dataclasses.dataclass(frozen=True)
class Drawn:
  """How a response was drawn.

  Attributes:
    logprobs: float32 [R], as Rollout.behavior_logprobs; 0 where they are to be
      recomputed.
    log_kept_mass: float32 [R].
    temperature: above 0.
    sampling: settings by name; None where nothing says them.
  """

  logprobs: np.ndarray
  log_kept_mass: np.ndarray
  temperature: float
  sampling: Mapping[str, float | None]


def read(
    settings: layouts.ImportSettings,
    values: Mapping[str, Any],
    tokens: np.ndarray,
    mask: np.ndarray,
    prompt_length: int,
) -> Drawn:
  """Reads log-probs and brings them to the contract's convention.

  Args:
    settings: say what the row does not.
    values: of the row by field.
    tokens: int32 [R].
    mask: bool [R], tokens that the policy sampled.
    prompt_length: in tokens.

  Raises:
    ValueError: they are missing, or log π does not follow from them.
  """
  sampling = {
      name: _setting(settings, values, name)
      for name in ("temperature", *_OFF)
  }
  temperature = sampling["temperature"]
  if temperature is None:
    raise ValueError(
        "temperature: the row has none, and ratios need it; set"
        " import_rollouts.temperature"
    )
  if not temperature > 0:
    raise ValueError(
        f"temperature: expected a number > 0, found {temperature:g}; greedy"
        " responses have no ratio to correct, delete the row"
    )
  nothing = np.zeros(tokens.size, np.float32)
  if settings.recompute_logprobs:
    return Drawn(nothing, nothing, temperature, sampling)
  if values.get("logprobs") is None:
    raise ValueError(
        "logprobs: expected the behaviour log-probs at"
        f" {settings.paths().get('logprobs', 'no path')}, found nothing; dump"
        " them, or set import_rollouts.recompute_logprobs to take those of the"
        " configured model in their place"
    )
  found = dump_values.logprobs(
      "logprobs", values["logprobs"], tokens, mask, prompt_length
  )
  mass = nothing
  if values.get("log_kept_mass") is not None:
    mass = dump_values.logprobs(
        "log_kept_mass", values["log_kept_mass"], tokens, mask, prompt_length
    )
  known = values.get("log_kept_mass") is not None
  if _kind(settings, sampling, known) != "sampled":
    # log π is given; the mass only says how it divides.
    found = np.minimum(found - mass, 0, dtype=np.float32)
  return Drawn(found, mass, temperature, sampling)


def _setting(
    settings: layouts.ImportSettings, values: Mapping[str, Any], name: str
) -> float | None:
  """Returns a sampling setting of the row, else of the configuration."""
  if values.get(name) is not None:
    return dump_values.number(name, values[name])
  return getattr(settings, name)


def _kind(
    settings: layouts.ImportSettings,
    sampling: Mapping[str, float | None],
    mass_known: bool,
) -> str:
  """Returns what the log-probs are of.

  Raises:
    ValueError: log π does not follow from them, or nothing says what they are.
  """
  cut = [
      f"{name} {sampling[name]:g}"
      for name, off in _OFF.items()
      if sampling[name] is not None and sampling[name] not in off
  ]
  unsaid = [name for name in ("top_p", "top_k") if sampling[name] is None]
  warm = sampling["temperature"] != 1
  kind = settings.logprobs
  if kind is None and not (warm or cut or unsaid):
    return "tempered"
  said = ", ".join([f"temperature {sampling['temperature']:g}", *cut])
  if unsaid:
    said += f", {' and '.join(unsaid)} unknown"
  if kind is None:
    raise ValueError(
        f"logprobs: nothing says what they are of, at {said}; set"
        " import_rollouts.logprobs to sampled (after temperature and"
        " truncation: vLLM's processed_logprobs), tempered or raw (vLLM's"
        " default), or top_p=1 and top_k=0 where all are the same"
    )
  if kind == "raw" and warm:
    raise ValueError(
        f"logprobs: raw ones say nothing of a policy at {said}; serve with"
        " vLLM's logprobs_mode=processed_logprobs, or set"
        " import_rollouts.recompute_logprobs"
    )
  if kind == "sampled" and (cut or unsaid) and not mass_known:
    remedy = (
        "map log_kept_mass, serve at temperature 1 with raw log-probs, or set"
        " import_rollouts.recompute_logprobs"
        if cut
        else "set import_rollouts.top_p and top_k to what was served with"
    )
    raise ValueError(
        f"log_kept_mass: at {said} the mass that truncated sampling kept is"
        f" unknown; {remedy}"
    )
  return kind
