"""What verify prints of folders as a whole."""

import tiny_run

from jaxrl_llm import __main__ as door
from jaxrl_llm.verbs import folders


def _verify(capsys, workdir):
  code = door.main(["verify", f"--workdir={workdir}"])
  return code, capsys.readouterr().out


def test_numbers_have_their_nouns(tmp_path, capsys):
  """One folder of one record; then its shard is gone; then another folder."""
  records = tiny_run.make_rollouts(1, 1)
  first = tiny_run.write(folders.host_folder(tmp_path, 0, 0), records)
  said = "1 folder, 1 record read, 0 problems.\n"
  assert _verify(capsys, tmp_path) == (0, said)
  shard, = first.glob("*array_record*")
  shard.unlink()
  code, text = _verify(capsys, tmp_path)
  assert code == 1 and text.startswith("1 folder, 0 records read, 1 problem.")
  tiny_run.write(folders.host_folder(tmp_path, 0, 1), records)
  assert _verify(capsys, tmp_path)[1].startswith("2 folders, 1 record read, ")
