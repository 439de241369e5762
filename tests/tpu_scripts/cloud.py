"""A stand-in for gcloud: records calls, plays a small cloud, and its failures.

The folder $CLOUD holds plan.json (what to play), calls.jsonl (an argument list
per call), the files `queued` and `node` while those exist, their numbers of
descriptions, and host_N, the home of host N, where ssh runs its command.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

CLOUD = pathlib.Path(os.environ["CLOUD"])
PLAN = json.loads((CLOUD / "plan.json").read_text())
ARGUMENTS = sys.argv[1:]
MISSING = "NOT_FOUND: Resource was not found"
UNREACHABLE = "ssh: connect to host port 22: Connection timed out"


def end(code: int, error: str = ""):
  """Ends with an exit code and a last line as gcloud prints it."""
  if error:
    print(f"ERROR: (gcloud) {error}", file=sys.stderr)
  sys.exit(code)


def flag(name: str) -> str | None:
  """Returns the value of --name=VALUE."""
  for argument in ARGUMENTS:
    if argument.startswith(f"--{name}="):
      return argument.partition("=")[2]
  return None


def play(kind: str, last=None):
  """Takes the next entry of a list of the plan, and `last` after its end."""
  counter = CLOUD / f"played_{kind}"
  number = int(counter.read_text()) if counter.exists() else 0
  counter.write_text(str(number + 1))
  entries = PLAN.get(kind, [])
  if number < len(entries):
    return entries[number]
  return last


def describe(kind: str):
  """Prints the next state of the queued resource or the node."""
  name = "queued" if kind == "queued-resources" else "node"
  if error := play(f"{name}_errors"):
    end(1, error)
  if not (CLOUD / name).exists():
    end(1, MISSING)
  asked = flag("format")
  if "failedData" in asked:
    print(PLAN["failure"])
    return
  if name == "node":
    state = play("node_states", PLAN.get("node_state", "READY"))
    hosts = PLAN.get("hosts", 2)
    print(f"{state}\t{hosts}" if "len()" in asked else state)
    return
  state = play("states", PLAN.get("states", ["ACTIVE"])[-1])
  if state == "ACTIVE":
    (CLOUD / "node").touch()
  print(state)


def create():
  """Makes the queued resource, or fails as planned."""
  if error := play("create_errors"):
    end(1, error)
  (CLOUD / "queued").touch()


def delete(kind: str):
  """Removes a queued resource with its node, or a node."""
  if error := play("delete_errors"):
    end(1, error)
  if kind == "queued-resources":
    (CLOUD / "queued").unlink(missing_ok=True)
  if not PLAN.get("node_stays") or kind == "tpu-vm":
    (CLOUD / "node").unlink(missing_ok=True)


def workers() -> list[int]:
  """Lists the hosts that --worker names."""
  named = flag("worker") or "0"
  hosts = range(PLAN.get("hosts", 2))
  return list(hosts) if named == "all" else [int(named)]


def ssh():
  """Runs --command in the home of a host; may break the connection."""
  (worker,) = workers()
  print(f"SSH: Attempting to connect to worker {worker}...", file=sys.stderr)
  home = CLOUD / f"host_{worker}"
  if worker in PLAN.get("down", []):
    end(1, UNREACHABLE)
  home.mkdir(exist_ok=True)
  command = flag("command")
  environment = {
      "HOME": str(home),
      "PATH": f"{CLOUD / 'host_bin'}:/usr/bin:/bin",
  }
  # gcloud repeats a command whose connection broke, as it stands.
  if PLAN.get("repeats"):
    repeated = subprocess.Popen(
        ["bash", "-c", command], cwd=home, env=environment,
        stdout=subprocess.PIPE, text=True,
    )
    sys.stdout.write(repeated.stdout.readline())
    repeated.send_signal(signal.SIGKILL)
    if "on_host.sh start" in command:
      repeated.stdout.read()
  process = subprocess.Popen(
      ["bash", "-c", command], cwd=home, env=environment,
      stdout=subprocess.PIPE, text=True,
  )
  # A following is cut after some lines as often as the plan says.
  cut = play(f"cuts_{worker}") if "on_host.sh follow" in command else None
  lines = 0
  while lines != cut and (line := process.stdout.readline()):
    sys.stdout.write(line)
    sys.stdout.flush()
    lines += 1
  if lines == cut:
    process.send_signal(signal.SIGKILL)
    end(1, UNREACHABLE)
  end(process.wait())


def scp():
  """Copies a file to or from the homes of hosts."""
  source, target = [a for a in ARGUMENTS[4:] if not a.startswith("--")]
  remote = re.compile(r"[a-z][-a-z0-9]+:(.*)")
  for worker in workers():
    if worker in PLAN.get("down", []):
      end(1, UNREACHABLE)
    home = CLOUD / f"host_{worker}"
    home.mkdir(exist_ok=True)
    if place := remote.fullmatch(target):
      shutil.copy(source, home / (place[1] or pathlib.Path(source).name))
    else:
      shutil.copy(home / remote.fullmatch(source)[1], target)


with open(CLOUD / "calls.jsonl", "a", encoding="utf-8") as calls:
  calls.write(json.dumps(ARGUMENTS) + "\n")
assert ARGUMENTS[:2] == ["compute", "tpus"], ARGUMENTS
KIND, VERB = ARGUMENTS[2:4]
if VERB in ("describe", "delete"):
  {"describe": describe, "delete": delete}[VERB](KIND)
else:
  {"create": create, "ssh": ssh, "scp": scp}[VERB]()
