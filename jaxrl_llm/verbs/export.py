"""Writes a checkpoint as a Hugging Face folder that transformers loads.

Takes the latest checkpoint under --workdir (or the one that
--config.export.checkpoint numbers) and writes weights, configuration and
tokenizer to --config.export.folder, which must not hold anything yet. Adapters
are merged into the weights; with --config.export.format=peft they are written
alone, as PEFT reads them. Without --config the configuration is that of the
working directory.
"""

import pathlib

import ml_collections

from jaxrl_llm.models import policy as policy_lib
from jaxrl_llm.training import checkpoints
from jaxrl_llm.verbs import flags
from jaxrl_llm.verbs import parts

FORMATS = ("model", "peft")
SECTIONS = ("seed", "mesh", "model", "export")


def main(
    config: ml_collections.ConfigDict, workdir: pathlib.Path | None
) -> None:
  """Writes the folder and prints its path."""
  workdir = flags.require_workdir(workdir, "export")
  if config.export.format not in FORMATS:
    raise ValueError(
        f"export.format: expected one of {', '.join(FORMATS)}, found"
        f" {config.export.format!r}; correct it."
    )
  target = pathlib.Path(config.export.folder or workdir / "export")
  policy_lib.check_target(target)
  checkpoint = parts.checkpoint(config, workdir, config.export.checkpoint)
  model = parts.model(config, parts.tokenizer(config))
  like = parts.start_like(config, model)
  params = checkpoints.restore_params(checkpoint, like)
  if config.export.format == "peft":
    base = config.model.path or config.model.preset
    policy_lib.save_adapters(target, model.policy, params, base)
  else:
    policy_lib.save(target, model.policy, params, model.tokenizer.files())
  print(f"{checkpoint} exported to {target}")
