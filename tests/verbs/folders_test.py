"""A round that is not whole is refused, in words."""

import pytest
import tiny_run

from jaxrl_llm.verbs import folders


@pytest.mark.parametrize("hosts, said", [
    (2, "found 1; host_001 without manifest.json: let `generate` end there"),
    (3, "found 1; host_001, host_002 without manifest.json: let "),
])
def test_the_parts_that_are_missing_are_named(tmp_path, hosts, said):
  folder = tiny_run.write(
      folders.host_folder(tmp_path, 0, 0), tiny_run.make_rollouts(1, 1),
      config={"job": {"hosts": hosts}},
  )
  with pytest.raises(ValueError, match=said):
    folders.require_round([folder])
