"""Parts of the weights in files are those of the whole."""

import itertools
import pathlib

import numpy as np
import pytest

from jaxrl_llm.models import hf_import
from jaxrl_llm.models import weight_layout
from jaxrl_llm.models import weight_source
from jaxrl_llm.models import weights

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
FAMILIES = ("llama_tied", "llama_untied", "qwen2", "qwen3", "gemma2", "gemma3")


@pytest.mark.parametrize("name", FAMILIES)
def test_parts_are_cut_out_of_the_whole(name):
  source = weights.open_model(GOLDEN / name)
  whole = source.tree()
  for leaf, shape in source.shapes.items():
    # Along each axis: all, the second half, all but the ends.
    ends = [((0, n), (n // 2, n), (n > 2, n - (n > 2))) for n in shape]
    indices = [
        tuple(itertools.starmap(slice, index))
        for index in itertools.product(*ends)
    ]
    array = weight_layout.leaf_of(whole, leaf)
    for index, part in zip(indices, source.parts(leaf, indices), strict=True):
      assert part.dtype == np.float32
      np.testing.assert_array_equal(part, array[index], f"{leaf} {index}")


def test_a_part_of_a_matrix_is_all_that_is_read_for_it():
  opened = hf_import.open_folder(GOLDEN / "llama_untied")
  config, taken = opened.config, []

  def read(tensor, index):
    taken.append((tensor.name, index))
    return opened.read(tensor, index)

  source = weight_source.Source(config, opened.names, read)
  # Of [L, D, N, H] = query: the second layer, half the width, the last head.
  half = config.width // 2
  index = (slice(1, 2), slice(0, half), slice(config.heads - 1, config.heads),
           slice(None))
  (part,) = source.parts("layers/query", [index])
  assert part.shape == (1, half, 1, config.head_dim)
  # In the file [N · H, D]: the last head's rows, the first half of columns.
  ((name, found),) = taken
  assert name == "model.layers.1.self_attn.q_proj.weight"
  assert found == (
      slice((config.heads - 1) * config.head_dim,
            config.heads * config.head_dim),
      slice(0, half),
  )
