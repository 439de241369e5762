"""Responses as HTML: every token with its ratio, and whether it is cut."""

from collections.abc import Sequence
import html
import math

import numpy as np

from jaxrl_llm.data import tokenizer as tokenizer_lib
from jaxrl_llm.lab import samples

# Log-ratio in nats from which a token has the full colour.
FULL = 0.5
_STEPS = 4

LEGEND = (
    '<p class="legend"><span class="t u4">token</span> line above: more likely'
    ' now (ratio &gt; 1) <span class="t d4">token</span> line below: less'
    " likely (ratio &lt; 1); the thicker the line and the darker the ground,"
    f" the further, from 0 to {FULL:g} nats"
    ' <span class="t cut">token</span> in a box: cut, without a gradient'
    ' <span class="t off">token</span> grey: not trained on.'
    " Point at a token for its numbers.</p>"
)


def pieces(
    tokenizer: tokenizer_lib.Tokenizer | None, prompt: Sequence[int],
    tokens: Sequence[int],
) -> list[str]:
  """Returns the text of each token, as it reads after the one before.

  A token that is no whole character alone has the spelling of the vocabulary;
  without a tokenizer each has its number.
  """
  if tokenizer is None:
    return [f"⟨{token}⟩" for token in tokens]
  texts = []
  before = int(prompt[-1]) if len(prompt) else None
  for token in map(int, tokens):
    head = "" if before is None else tokenizer.decode([before])
    both = tokenizer.decode([token] if before is None else [before, token])
    text = both.removeprefix(head) if both.startswith(head) else ""
    plain = text.replace("\n", "").replace("\t", "")
    if not text or "\ufffd" in text or not plain.isprintable():
      text = tokenizer.token(token) or f"⟨{token}⟩"
    texts.append(text)
    before = token
  return texts


def render(
    chosen: Sequence[samples.Sample],
    tokenizer: tokenizer_lib.Tokenizer | None,
    ratio: str,
) -> str:
  """Returns the HTML of some samples.

  Args:
    chosen: what to show.
    tokenizer: of their tokens, or None.
    ratio: what the colours compare, as "live / proximal".
  """
  return "".join(_sample(sample, tokenizer, ratio) for sample in chosen)


def _sample(
    sample: samples.Sample,
    tokenizer: tokenizer_lib.Tokenizer | None,
    ratio: str,
) -> str:
  rollout = sample.rollout
  texts = pieces(tokenizer, rollout.prompt_tokens, rollout.response_tokens)
  spans = "".join(
      _token(sample, place, text, ratio) for place, text in enumerate(texts)
  )
  facts = [f"reward {rollout.reward:g}"]
  if rollout.unfinished:
    facts = ["not graded yet"]
  if not np.isnan(sample.advantages).any():
    facts.append(f"advantage {float(np.mean(sample.advantages)):+.3g}")
  facts.append(f"{len(texts)} tokens, {rollout.finish_reason}")
  if sample.cut_mask is not None:
    facts.append(f"{int(sample.cut_mask.sum())} cut")
  known = sample.log_ratios[np.isfinite(sample.log_ratios)]
  if known.size:
    facts.append(f"mean log-ratio {known.mean():+.3g}")
  return (
      f'<article class="sample"><p class="prompt">'
      f"{html.escape(rollout.prompt_text)}</p>"
      f'<p class="response">{spans}</p>'
      f'<p class="facts">{html.escape("; ".join(facts))}; expected answer'
      f" {html.escape(rollout.reference_answer or '–')}</p></article>\n"
  )


def _token(
    sample: samples.Sample, place: int, text: str, ratio: str
) -> str:
  """Returns one token as a span whose title holds its numbers."""
  log_ratio = float(sample.log_ratios[place])
  logs = float(sample.objective_log_ratios[place])
  cut = sample.cut_mask is not None and bool(sample.cut_mask[place])
  names, words = ["t"], [f"position {place}"]
  if math.isnan(log_ratio):
    names.append("off")
    words.append("no ratio")
  else:
    level = math.ceil(_STEPS * min(abs(log_ratio) / FULL, 1.0) - 1e-3)
    if level:
      names.append(f"{'u' if log_ratio > 0 else 'd'}{level}")
    words.append(f"{ratio} {math.exp(log_ratio):.3g} ({log_ratio:+.3g} nats)")
  if math.isfinite(logs):
    words.append(f"the objective's ratio {math.exp(logs):.3g}")
  if math.isfinite(sample.advantages[place]):
    words.append(f"A {sample.advantages[place]:+.3g}")
  if cut:
    names.append("cut")
    words.append("cut")
  shown = html.escape(text).replace("\n", "↵\n").replace("\t", "⇥")
  title = html.escape("; ".join(words))
  return f'<span class="{" ".join(names)}" title="{title}">{shown}</span>'
