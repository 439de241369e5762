"""fetch.sh, against a stand-in for gcloud and its hosts."""

import pathlib

AT = ["--project=my-project", "--zone=us-west4-a", "--quiet"]


def made_workdir(ready):
  """Puts a working directory on both hosts."""
  for host in range(2):
    for name in ("metrics.jsonl", "checkpoints/step_1/w", "rollouts/a",
                 "compilation_cache/c"):
      path = ready.home(host) / "jaxrl_llm/runs/first" / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(f"{name} {host}")


def names(folder: pathlib.Path) -> list[str]:
  """Lists the files below a folder."""
  return sorted(
      str(path.relative_to(folder)) for path in folder.rglob("*")
      if path.is_file()
  )


def test_fetch_brings_results_without_checkpoints(ready):
  made_workdir(ready)
  to = ready.folder / "fetched"
  words = ["--workdir=runs/first", f"--to={to}"]
  code, _, error = ready.run("fetch.sh", *words)
  assert code == 0, error
  for host in range(2):
    folder = to / f"worker_{host}"
    assert names(folder) == ["metrics.jsonl", "rollouts/a"]
    assert (folder / "rollouts/a").read_text() == f"rollouts/a {host}"
    assert list((ready.home(host) / "jaxrl_llm/packs").iterdir()) == []
  (first, second) = ready.calls("scp")
  assert first[4].startswith("my-first:jaxrl_llm/packs/fetch-")
  assert first[4].endswith(".tar.gz") and first[5].endswith("/0.tar.gz")
  assert first[6:] == [*AT, "--worker=0"]
  assert second[-1] == "--worker=1"
  assert sorted(path.name for path in to.iterdir()) == ["worker_0", "worker_1"]

  code, _, error = ready.run("fetch.sh", *words)
  assert code == 2
  assert f"expected no {to}/worker_0, found one" in error
  code, _, error = ready.run(
      "fetch.sh", *words, "--replace", "--checkpoints", "--worker=1"
  )
  assert code == 0, error
  assert "checkpoints/step_1/w" in names(to / "worker_1")
  assert "checkpoints/step_1/w" not in names(to / "worker_0")


def test_fetch_of_what_is_not_there_keeps_what_was_fetched(ready):
  made_workdir(ready)
  words = [f"--to={ready.folder}/fetched", "--replace"]
  assert ready.run("fetch.sh", "--workdir=runs/first", *words)[0] == 0
  code, output, error = ready.run("fetch.sh", "--workdir=runs/frist", *words)
  assert code == 3
  assert "[1] no folder runs/frist; give one of: first\n" in output
  assert "fetch.sh: host 1: runs/frist was not fetched." in error
  ready.plan(down=[1])
  code, _, error = ready.run("fetch.sh", "--workdir=runs/first", *words)
  assert code == 255
  assert "host 1 cannot be reached" in error
  folder = ready.folder / "fetched/worker_1"
  assert names(folder) == ["metrics.jsonl", "rollouts/a"]
