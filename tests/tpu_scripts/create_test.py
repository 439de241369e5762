"""create.sh and delete.sh, against a stand-in for gcloud."""

import shutil
import signal
import time

import pytest

AT = ["--project=my-project", "--zone=us-west4-a", "--quiet"]
SLICE = ["--accelerator-type=v5litepod-8", "--runtime-version=v2-alpha-tpuv5"]
QUOTA = "RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepod' has been exceeded."
STOCKOUT = 'There is no more capacity in the zone "us-west4-a"'
STATE = [
    "compute", "tpus", "queued-resources", "describe", "my-first", *AT,
    "--format=value(state.state)",
]
CREATE = [
    "compute", "tpus", "queued-resources", "create", "my-first", *AT,
    "--node-id=my-first", *SLICE, "--valid-until-duration=7200s",
]
DELETE = [
    "compute", "tpus", "queued-resources", "delete", "my-first", *AT,
    "--force",
]
NODE = ["compute", "tpus", "tpu-vm", "describe", "my-first", *AT]


@pytest.mark.parametrize("flags", [[], ["--spot"]])
def test_calls_of_a_slow_creation_are_these(cloud, flags):
  cloud.plan(states=["WAITING_FOR_RESOURCES"] * 2 + ["PROVISIONING", "ACTIVE"])
  code, output, error = cloud.run("create.sh", *SLICE, *flags)
  assert (code, output) == (0, "")
  assert error.splitlines() == [
      "create.sh: my-first is WAITING_FOR_RESOURCES",
      "create.sh: my-first is PROVISIONING",
      "create.sh: my-first is ACTIVE",
      "create.sh: my-first is ACTIVE with 2 hosts; it costs until delete.sh.",
  ]
  assert cloud.calls() == [
      STATE, CREATE + flags, STATE, STATE, STATE, STATE,
      [*NODE, "--format=value(state,networkEndpoints.len())"],
  ]
  assert cloud.exists()


@pytest.mark.parametrize(
    "plan,code,word",
    [
        ({"create_errors": [QUOTA] * 9}, 3, "over quota"),
        ({"create_errors": [STOCKOUT] * 9}, 4, "no capacity"),
        ({"create_errors": ["PERMISSION_DENIED: no"] * 9}, 1, "failed"),
        ({"states": ["FAILED"], "failure": STOCKOUT}, 4, "no capacity"),
        ({"states": ["FAILED"], "failure": QUOTA}, 3, "over quota"),
        ({"states": ["FAILED"], "failure": "bad subnet"}, 1, "bad subnet"),
        ({"states": ["PROVISIONING", "SUSPENDING"]}, 6, "taken back"),
        ({"states": ["SUSPENDED"]}, 6, "taken back"),
        ({"node_state": "PREEMPTED"}, 6, "PREEMPTED"),
    ],
)
def test_failure_has_its_exit_code_and_leaves_nothing(cloud, plan, code, word):
  cloud.plan(**plan)
  found, _, error = cloud.run("create.sh", *SLICE)
  assert found == code, error
  assert word in error
  assert len(cloud.calls("create")) == 1
  assert "delete.sh: nothing is left of my-first." in error
  assert not cloud.exists()


def test_waiting_ends_in_time_and_leaves_nothing(cloud):
  cloud.plan(states=["WAITING_FOR_RESOURCES"])
  code, _, error = cloud.run(
      "create.sh", *SLICE, TPU_WAIT_S="1", TPU_POLL_S="0.3"
  )
  assert code == 5, error
  assert "not ACTIVE after 1 s" in error
  assert "--valid-until-duration=1s" in cloud.calls("create")[0]
  # At 0, 0.3, … s until the clock of whole seconds has moved on by one.
  assert 2 <= cloud.calls().count(STATE) <= 10
  assert not cloud.exists()


def test_tries_are_bounded_where_the_service_fails(cloud):
  cloud.plan(create_errors=["UNAVAILABLE: later"] * 9)
  code, _, error = cloud.run("create.sh", *SLICE)
  assert code == 1, error
  assert "no answer after 3 tries: ERROR: (gcloud) UNAVAILABLE" in error
  assert len(cloud.calls("create")) == 3


def test_try_that_came_through_after_all_is_waited_for(cloud):
  cloud.plan(
      create_errors=["UNAVAILABLE: later", "ALREADY_EXISTS: my-first"],
  )
  process = cloud.start("create.sh", *SLICE, TPU_RETRY_S="0.5")
  cloud.wait_until(lambda: cloud.calls("create"))
  (cloud.folder / "queued").touch()
  _, error = process.communicate(timeout=20)
  assert process.returncode == 0, error
  assert len(cloud.calls("create")) == 2
  assert cloud.exists()


def test_description_that_fails_in_passing_is_repeated(cloud):
  cloud.plan(queued_errors=[None, "UNAVAILABLE: later", "UNAVAILABLE: later"])
  code, _, error = cloud.run("create.sh", *SLICE)
  assert code == 0, error


def test_what_may_be_left_is_said_loudly(cloud):
  cloud.plan(queued_errors=[None] + ["UNAVAILABLE: later"] * 99)
  code, _, error = cloud.run("create.sh", *SLICE)
  assert code == 1
  assert "MAY STILL EXIST AND COST" in error
  # One before the request, then three tries each of create.sh and delete.sh.
  assert cloud.calls().count(STATE) == 7


def test_existing_slice_is_refused_and_left_alone(cloud):
  (cloud.folder / "queued").touch()
  code, _, error = cloud.run("create.sh", *SLICE)
  assert code == 2
  assert error == (
      "create.sh: expected no my-first, found one that is ACTIVE;"
      " delete.sh it first.\n"
  )
  assert not cloud.calls("create") and not cloud.calls("delete")


def test_slice_that_another_asked_for_meanwhile_is_left_alone(cloud):
  cloud.plan(create_errors=["ALREADY_EXISTS: my-first"])
  code, _, error = cloud.run("create.sh", *SLICE)
  assert code == 1
  assert "another asked for my-first" in error
  assert not cloud.calls("delete")


@pytest.mark.parametrize(
    "struck,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
@pytest.mark.parametrize("flags", [[], ["--keep"]])
def test_stop_while_waiting_leaves_nothing(cloud, struck, code, flags):
  cloud.plan(states=["WAITING_FOR_RESOURCES"])
  # A pause that lasts longer than the test may.
  process = cloud.start("create.sh", *SLICE, *flags, TPU_POLL_S="600")
  cloud.wait_until(lambda: cloud.calls().count(STATE) == 2)
  time.sleep(0.3)
  process.send_signal(struck)
  _, error = process.communicate(timeout=20)
  assert process.returncode == code, error
  assert cloud.exists() == bool(flags)
  assert bool(cloud.calls("delete")) == (not flags)


@pytest.mark.parametrize(
    "flags,settings,words",
    [
        (["--spto"], {}, "found '--spto'"),
        (["--name=My_Slice"], {}, "--name=VALUE (or TPU_NAME)"),
        (["--zone=us-west4"], {}, "such as us-west4-a, found 'us-west4'"),
        (["--project="], {}, "such as my-project, found ''"),
        (["--accelerator-type=8"], {}, "such as v6e-8, found '8'"),
        (["--runtime-version="], {}, "such as v2-alpha-tpuv6e, found ''"),
        ([], {"TPU_WAIT_S": "2h"}, "found '2h'"),
    ],
)
def test_wrong_argument_is_one_line(cloud, flags, settings, words):
  code, _, error = cloud.run("create.sh", *SLICE, *flags, **settings)
  assert code == 2
  assert len(error.splitlines()) == 1 and words in error
  assert cloud.calls() == []


def test_missing_gcloud_is_one_line(cloud):
  # A gcloud of the machine must be out of reach too.
  tools = cloud.folder / "tools"
  tools.mkdir()
  for tool in ("bash", "basename", "dirname", "timeout"):
    (tools / tool).symlink_to(shutil.which(tool))
  code, _, error = cloud.run("create.sh", *SLICE, PATH=str(tools))
  assert code == 2
  assert error == (
      "create.sh: expected gcloud on the PATH, found none; install it.\n"
  )


def test_calls_of_a_deletion_are_these(cloud):
  (cloud.folder / "queued").touch()
  (cloud.folder / "node").touch()
  code, _, error = cloud.run("delete.sh")
  assert (code, error) == (0, "delete.sh: nothing is left of my-first.\n")
  node = [*NODE, "--format=value(state)"]
  assert cloud.calls() == [STATE, node, DELETE, STATE, node]
  assert not cloud.exists()


def test_deletion_is_tried_again(cloud):
  (cloud.folder / "queued").touch()
  cloud.plan(delete_errors=["FAILED_PRECONDITION: it is PROVISIONING"] * 2)
  code, _, error = cloud.run("delete.sh")
  assert code == 0, error
  assert cloud.calls("delete") == [DELETE] * 3


def test_node_without_a_queued_resource_is_deleted_too(cloud):
  (cloud.folder / "queued").touch()
  (cloud.folder / "node").touch()
  cloud.plan(node_stays=True)
  code, _, error = cloud.run("delete.sh")
  assert code == 0, error
  assert cloud.calls("delete") == [
      DELETE, ["compute", "tpus", "tpu-vm", "delete", "my-first", *AT]
  ]
  assert not cloud.exists()


def test_deletion_that_never_works_ends_and_says_what_is_left(cloud):
  (cloud.folder / "queued").touch()
  cloud.plan(delete_errors=["INTERNAL: broken"] * 999)
  code, _, error = cloud.run("delete.sh", TPU_DELETE_S="1", TPU_POLL_S="0.2")
  assert code == 1
  assert "the queued resource my-first is ACTIVE" in error
  assert "AND MAY COST; run this again. ERROR: (gcloud) INTERNAL" in error
  assert 1 <= len(cloud.calls("delete")) <= 10
