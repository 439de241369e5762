"""How the files of folders are shared out."""

import pytest

from jaxrl_llm.data import manifest as manifests


def manifest(*sizes: int) -> manifests.Manifest:
  files = {f"f{n}": manifests.Entry(size, "") for n, size in enumerate(sizes)}
  return manifests.Manifest(files, tuple(files))


def test_a_file_falls_to_the_part_that_holds_its_middle():
  # 100 bytes. Middles: 2, 24, 49 of the first folder, 74 and 94 of the second;
  # the half ends at 50, thirds at 33.3 and 66.7.
  folders = [manifest(4, 40, 10), manifest(40, 6)]
  assert manifests.split(folders, 2) == [
      [{"f0", "f1", "f2"}, set()],
      [set(), {"f0", "f1"}],
  ]
  assert manifests.split(folders, 3) == [
      [{"f0", "f1"}, set()],
      [{"f2"}, set()],
      [set(), {"f0", "f1"}],
  ]


@pytest.mark.parametrize("parts", [1, 2, 5, 16])
def test_every_file_falls_to_one_part(parts):
  folders = [manifest(*range(1, 9)), manifest(0), manifest(5, 5, 5)]
  split = manifests.split(folders, parts)
  assert len(split) == parts
  for number, folder in enumerate(folders):
    names = [name for part in split for name in part[number]]
    assert sorted(names) == sorted(folder.files)
