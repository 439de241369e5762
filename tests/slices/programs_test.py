"""What lies in memory beside a program."""

import abstract
import jax

from jaxrl_llm.losses import algorithms
from jaxrl_llm.models import lora
from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.models import sharding
from jaxrl_llm.slices import programs
from jaxrl_llm.training import settings as settings_lib

CONFIG = policy_lib.preset("tiny")


def beside(kl, adapters=None, **settings):
  """Bytes beside a micro-batch."""
  policy = policy_lib.Policy(CONFIG, "float32", lora=adapters)
  spec = algorithms.build({"name": "grpo", "kl_coefficient": kl})
  settings = settings_lib.TrainSettings(**settings)
  mesh = sharding.make_mesh("data=1")
  trainer = abstract.trainer(policy, spec, settings, mesh)
  return next(programs.training(trainer)).beside


def test_a_reference_lies_there_as_it_is_stored():
  shapes = jax.tree.leaves(policy_lib.Policy(CONFIG).shapes)
  whole = 4 * sum(shape.size for shape in shapes)
  without = beside(0.0)
  assert beside(0.1) - without == whole
  # Norms stay float32, and a tied head is stored beside the embedding.
  rounded = beside(0.1, reference_dtype="bfloat16") - without
  assert 0.5 * whole < rounded < 0.6 * whole


def test_the_base_of_adapters_is_there_already():
  adapters = lora.Lora(rank=2, alpha=1.0)
  assert beside(0.1, adapters) == beside(0.0, adapters)
  assert beside(0.1, adapters, reference="another") > beside(0.0, adapters)
