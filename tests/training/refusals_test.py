"""What several hosts refuse beyond what one does."""

import types

import pytest

from jaxrl_llm.training import refusals


def folder(name, topk):
  metadata = types.SimpleNamespace(topk=topk)
  return types.SimpleNamespace(path=name, metadata=metadata)


def test_shards_with_other_numbers_of_recorded_ids_are_refused():
  """Hosts that read one kind each would make arrays of two shapes."""
  refusals.mixed_topk([folder("a", 5), folder("b", 5)])
  with pytest.raises(ValueError, match="^c: expected the top 5 .* found 0; ge"):
    refusals.mixed_topk([folder("a", 5), folder("b", 5), folder("c", 0)])
