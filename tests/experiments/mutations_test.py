"""Mutation operators: the places they find in a few lines, and the rest not."""

import ast

import pytest

from experiments.mutations import operators
from experiments.mutations import worker

SAMPLE = '''
"""Says a < b, 1 + x and jax.lax.stop_gradient(x)."""


def clip(low: float, high: float, eps):
  """Keeps low <= x."""
  text = f"{low < high} {1 + eps}" + "a"
  return x[:-1] < 1.0 - eps, low, text


def loss(tokens, anchor):
  live = jax.lax.stop_gradient(tokens.logprobs)
  where = tokens.layout
  sums = masked.running_sums(live - anchor, where)
  bound = jnp.minimum(masked.fill(sums, where.mask), 2.0)
  return jnp.sum(bound, where=where.mask, axis=1), "behavior"
'''

FOUND = {
    "policy": {
        "tokens.logprobs → tokens.anchor_logprobs",
        "live → anchor",
        "anchor → live",
        '"behavior" → "proximal"',
    },
    "stop_gradient": {
        "jax.lax.stop_gradient(tokens.logprobs) → (tokens.logprobs)"
    },
    "prefix": {
        "masked.running_sums(live - anchor, where) →"
        " masked.sequence_sums(live - anchor, where)"
    },
    "strictness": {"x[:-1] < 1.0 - eps → x[:-1] <= 1.0 - eps"},
    "sign": {"1.0 - eps → 1.0 + eps", "live - anchor → live + anchor"},
    "low_high": {"low → high"},
    "extremum": {
        "jnp.minimum(masked.fill(sums, where.mask), 2.0) →"
        " jnp.maximum(masked.fill(sums, where.mask), 2.0)"
    },
    "mask": {
        "masked.fill(sums, where.mask) → (sums)",
        "jnp.sum(bound, where=where.mask, axis=1) → jnp.sum(bound, axis=1)",
    },
    "clamp": {
        "jnp.minimum(masked.fill(sums, where.mask), 2.0) →"
        " (masked.fill(sums, where.mask))"
    },
}

LINES = {
    "prefix": {
        "masked.sequence_sums(x, w)": "masked.running_sums(x, w)",
        "_last(x, s)": "(x)",
        "_running(x, m, s)": "_last(_running(x, m, s), s)",
        "k = kernels.cumulative_log_ratios": (
            "k = (lambda *x: kernels.last_values("
            "kernels.cumulative_log_ratios(*x), x[2]))"
        ),
    },
    "strictness": {"a >= b": "a > b", "a != b": None},
    "sign": {"[a] + b": None, "-c": "c", "-2": None},
    "low_high": {
        "f(clip_low=1, clip_high=2)": "f(clip_low=2, clip_high=1)",
        "clamp(x, -c, c)": "clamp(x, c, -c)",
        "self.clip_low": None,
    },
    "extremum": {"jax.ops.segment_min(x)": "jax.ops.segment_max(x)"},
    "mask": {
        "jnp.where(m, x, 0.0)": "(x)",
        "jnp.where(start, 0.0, x)": "(x)",
        "jnp.where(m, x, y)": None,
        "where.mask & kept": "(kept)",
        "here & there": None,
    },
    "stop_gradient": {"tokens.detached_logprobs": "tokens.logprobs"},
    "policy": {
        "Tokens(logprobs=a, anchor_logprobs=b)": (
            "Tokens(anchor_logprobs=a, logprobs=b)"
        ),
        "config.logprobs": None,
    },
    "clamp": {"masked.cap(x, c)": "(x)", "capped(x, c)": None},
}


@pytest.mark.parametrize("operator", operators.OPERATORS)
def test_places_in_the_sample(operator):
  """All of them, none in docstrings, f-strings, slices or annotations."""
  found = operators.mutants("sample.py", SAMPLE.encode())
  changes = {
      f"{m.before} → {m.after}" for m in found if m.operator == operator
  }
  assert changes == FOUND[operator]


@pytest.mark.parametrize("operator", LINES)
def test_changes_of_a_line(operator):
  for line, wanted in LINES[operator].items():
    content = f"# ε\n{line}\n".encode()
    changed = [
        m.apply(content).decode().splitlines()[1]
        for m in operators.mutants("line.py", content)
        if m.operator == operator
    ]
    assert changed == ([] if wanted is None else [wanted]), line


def test_a_mutant_differs_at_its_place_only():
  lines = SAMPLE.splitlines()
  for mutant in operators.mutants("sample.py", SAMPLE.encode()):
    changed = mutant.apply(SAMPLE.encode()).decode().splitlines()
    differing = [i for i, (a, b) in enumerate(zip(lines, changed)) if a != b]
    assert differing == [mutant.line - 1], mutant.name
    assert str(mutant.line) in mutant.name


def test_every_operator_finds_places_in_the_losses():
  counts = dict.fromkeys(operators.OPERATORS, 0)
  for path in (worker.ROOT / "jaxrl_llm/losses").glob("*.py"):
    content = path.read_bytes()
    tree = ast.dump(ast.parse(content))
    for mutant in operators.mutants(path.name, content):
      counts[mutant.operator] += 1
      assert ast.dump(ast.parse(mutant.apply(content))) != tree, mutant.name
  assert min(counts.values()) >= 10, counts
