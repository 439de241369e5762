"""AdamW with a learning-rate schedule and clipping by global norm."""

import jax
import optax

from jaxrl_llm import types
from jaxrl_llm.training import settings as settings_lib


def schedule(settings: settings_lib.TrainSettings) -> optax.Schedule:
  """Returns updates done -> learning rate.

  Linear from 0 over `warmup_updates` (the first update already moves), then
  constant, or a half cosine to 0 at `total_updates`.
  """
  if settings.schedule == "cosine":
    after = optax.cosine_decay_schedule(
        settings.learning_rate,
        settings.total_updates - settings.warmup_updates,
    )
  else:
    after = optax.constant_schedule(settings.learning_rate)
  warmup = settings.warmup_updates
  if not warmup:
    return after
  first = settings.learning_rate / (warmup + 1)
  return optax.join_schedules(
      [
          optax.linear_schedule(first, settings.learning_rate, warmup),
          after,
      ],
      [warmup],
  )


def build(
    settings: settings_lib.TrainSettings,
) -> optax.GradientTransformation:
  """Returns clip → AdamW; weight decay acts on every parameter array."""
  return optax.chain(
      optax.clip_by_global_norm(settings.max_grad_norm),
      optax.adamw(
          schedule(settings),
          b1=settings.beta1,
          b2=settings.beta2,
          eps=settings.epsilon,
          weight_decay=settings.weight_decay,
      ),
  )


def second_moments(
    opt_state: types.PyTree, settings: settings_lib.TrainSettings
) -> types.PyTree | None:
  """Returns Adam's ν̂, bias-corrected; None before the first update.

  Args:
    opt_state: of the optimizer that `build` makes.
    settings: it was made with.
  """
  adam = opt_state[1][0]
  count = int(adam.count)
  if not count:
    return None
  scale = 1.0 - settings.beta2**count
  return jax.tree.map(lambda nu: nu / scale, adam.nu)
