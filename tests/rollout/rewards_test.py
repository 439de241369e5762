"""Rewards: verdicts, failures that are counted, time-outs that work."""

import json
import math
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import reasoning_gym

from jaxrl_llm.data import prompts as prompts_lib
from jaxrl_llm.rollout import rewards
from jaxrl_llm.rollout import verifier_calls
from jaxrl_llm.rollout import verifier_process

Settings = rewards.RewardSettings
# math-verify integrates this for ever.
ENDLESS = r"\boxed{\int_0^1 x^{x^{x^x}} dx}"


def prompt(answer: str, text: str = "How many?", metadata=None):
  tokens = np.zeros(1, np.int32)
  return prompts_lib.Prompt(1, tokens, text, answer, metadata or {})


@pytest.fixture(scope="module")
def math_grader() -> rewards.Grader:
  return rewards.build(
      Settings("math", timeout=2.0), prompts_lib.PromptSettings()
  )


def total(grader: rewards.Grader, response: str, answer: str) -> float:
  return grader.grade([(response, prompt(answer))])[0].total


def test_math_grades_in_order_and_in_threads(math_grader):
  responses = [
      (rf"\boxed{{{i % 3}+x}}", prompt(f"x+{i % 2}")) for i in range(12)
  ]
  rewards_found = math_grader.grade(responses)
  assert [reward.total for reward in rewards_found] == [
      float(i % 3 == i % 2) for i in range(12)
  ]
  found = []
  thread = threading.Thread(
      target=lambda: found.append(
          total(math_grader, r"\boxed{(x+1)^2}", "x^2+2x+1")
      )
  )
  thread.start()
  thread.join()
  assert found == [1.0]


def test_a_late_verifier_is_counted_and_replaced(math_grader):
  math_grader.failures.clear()
  start = time.monotonic()
  late, fine = math_grader.grade(
      [(ENDLESS, prompt("5")), (r"\boxed{1+x}", prompt("x+1"))]
  )
  assert time.monotonic() - start < 30
  assert math.isnan(late.total) and math.isnan(late.parts["correct"])
  assert late.failed and late.parsed and late.failure == "timeout"
  assert fine.total == 1.0 and not fine.failed
  assert math_grader.failures == {"timeout": 1}
  assert total(math_grader, r"\boxed{2+x}", "x+2") == 1.0


def test_an_exception_is_counted_never_zero():
  def broken(response, problem):
    if response == "break":
      raise RuntimeError("out of order")
    return rewards.Verdict(1.0, response, True)

  grader = rewards.Grader(Settings(), broken)
  graded = grader.grade([("break", prompt("1")), ("1", prompt("1"))])
  assert [reward.failed for reward in graded] == [True, False]
  assert math.isnan(graded[0].total) and graded[1].total == 1.0
  assert grader.failures == {"RuntimeError: out of order": 1}


def test_an_exception_in_the_process_is_told():
  pool = verifier_process.Pool(("prepare_comparison",), 1)
  try:
    with pytest.raises(verifier_process.VerifierError, match="not registered"):
      pool.call("score", "no such task", "{}", "1", {}, timeout=30.0)
    assert pool.call("equal", "x+1", "1+x", False, timeout=5.0)
  finally:
    pool.close()


def test_a_worker_does_not_load_jax():
  code = (
      "import sys; from jaxrl_llm.rollout import verifier_calls as calls;"
      " calls.prepare_comparison(); assert 'sympy' in sys.modules;"
      " sys.exit('jax' in sys.modules)"
  )
  worker = subprocess.run([sys.executable, "-c", code], timeout=120)
  assert worker.returncode == 0


def test_a_pickled_grader_grades(math_grader):
  # Work sent to another process takes the grader along, not its processes.
  copy = pickle.loads(pickle.dumps(math_grader))
  assert total(copy, r"\boxed{1+x}", "x+1") == 1.0


FORK = """
import os, signal, sys, time
import numpy as np
from jaxrl_llm.data import prompts
from jaxrl_llm.rollout import rewards
grader = rewards.build(
    rewards.RewardSettings("math", timeout=600.0), prompts.PromptSettings())
problem = prompts.Prompt(1, np.zeros(1, np.int32), "", "x+1", {})
assert grader.grade([(r"\\boxed{1+x}", problem)])[0].total == 1.0
child = os.fork()
if not child:
  os._exit(int(grader.grade([(r"\\boxed{1+x}", problem)])[0].total != 1.0))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
children = f"/proc/self/task/{os.getpid()}/children"
print(open(children).read() if os.path.exists(children) else "", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_forked_and_killed_owners():
  """A forked copy grades; no process outlives an owner that was killed."""
  owner = subprocess.run(
      [sys.executable, "-c", FORK], stdout=subprocess.PIPE, text=True,
      timeout=120,
  )
  assert owner.returncode == -signal.SIGKILL
  for process in map(int, owner.stdout.split()):
    for _ in range(100):
      if not _runs(process):
        break
      time.sleep(0.1)
    assert not _runs(process)


def _runs(process: int) -> bool:
  try:
    status = pathlib.Path(f"/proc/{process}/stat").read_text()
  except (FileNotFoundError, ProcessLookupError):
    return False
  return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    "response,answer,correct",
    [
        ("The total is 72 clips, altogether.", "72", 1),
        ("2 + 3 = 5", "5", 1), ("5 - 8 = -3", "-3", 1), ("-3", "3", 0),
        ("It is $1,080.00.", "1,080", 1), ("so 50%", "50", 1),
        ("12", "2", 0), ("no idea", "2", 0), ("1e400000 ", "2", 0),
        ("5, or maybe 6", "5", 0), ("3/4", "0.75", 1),
    ],
)  # fmt: skip
def test_last_number(response, answer, correct):
  verdict = rewards.verify_last_number(response, prompt(answer))
  assert verdict.correct == correct


def test_last_number_needs_a_number():
  grader = rewards.build(Settings(), prompts_lib.PromptSettings())
  reward = grader.grade([("5", prompt("five apples"))])[0]
  assert reward.failed and "reward.verifier=math" in reward.failure
  reward = grader.grade([("none", prompt("5"))])[0]
  assert reward.total == 0.0 and not reward.parsed and not reward.failed


def test_parts_are_weighted():
  settings = Settings("last_number", correct_weight=2.0, format_weight=0.5)
  grader = rewards.build(settings, prompts_lib.PromptSettings())
  stated, bare, wrong = grader.grade([
      (r"\boxed{5}", prompt("5")), ("5", prompt("5")),
      ("The answer is 6.", prompt("5")),
  ])  # fmt: skip
  assert (stated.total, bare.total, wrong.total) == (2.5, 2.0, 0.5)
  assert stated.parts == {"correct": 1.0, "format": 1.0}
  assert tuple(stated.parts) == grader.part_names


def test_percent_in_the_question_makes_it_a_unit(math_grader):
  asked = prompt("10", text="What percent of them?")
  assert math_grader.grade([(r"\boxed{10\%}", asked)])[0].total == 1.0
  assert total(math_grader, r"\boxed{10\%}", "10") == 0.0


def test_reasoning_gym_scores_the_final_answer():
  arguments = {"min_terms": 2, "max_terms": 2}
  settings = prompts_lib.PromptSettings(
      source="reasoning_gym", task="basic_arithmetic",
      task_args=json.dumps(arguments),
  )
  item = reasoning_gym.create_dataset(
      "basic_arithmetic", seed=1, size=1, **arguments
  )[0]
  problem = prompt(item["answer"], item["question"], item["metadata"])
  answer = item["answer"]
  grader = rewards.build(Settings("reasoning_gym"), settings)
  graded = grader.grade([
      (rf"First 1, then \boxed{{{answer}}}.", problem),
      (f"So it is {answer}.", problem), (rf"\boxed{{x = {answer}}}", problem),
      (rf"\boxed{{{answer}1}} or so", problem), ("no idea", problem),
  ])  # fmt: skip
  assert [reward.total >= 1 for reward in graded] == [1, 1, 1, 0, 0]
  assert not graded[-1].parsed and not any(r.failed for r in graded)
  with pytest.raises(ValueError, match="prompts.source='reasoning_gym'"):
    rewards.build(
        Settings("reasoning_gym"),
        prompts_lib.PromptSettings(source="jsonl", path="x"),
    )


EVALUATING = (
    "string_insertion", "spiral_matrix", "binary_matrix", "n_queens",
    "simple_integration", "polynomial_multiplication", "countdown",
)  # fmt: skip


@pytest.mark.parametrize("task", (*EVALUATING, "arc_agi", "graph_color"))
def test_scorers_know_their_own_answers(task):
  item = reasoning_gym.create_dataset(task, seed=2, size=1)[0]
  entry = {key: item[key] for key in ("question", "answer", "metadata")}
  entry = pickle.loads(pickle.dumps(entry))
  if item["answer"] is None:
    assert verifier_calls.score(task, "{}", "nonsense", entry) < 1
  else:
    assert verifier_calls.score(task, "{}", item["answer"], entry) == 1.0


@pytest.mark.parametrize("task", EVALUATING)
@pytest.mark.parametrize(
    "attack",
    [
        "__import__('pathlib').Path({0!r}).touch()",
        "[open({0!r}, 'w')]",
        "eval(chr(49))",
        "9**9**9**9",
    ],
)
def test_model_output_is_never_evaluated(task, attack, tmp_path):
  target = tmp_path / "touched"
  item = reasoning_gym.create_dataset(task, seed=2, size=1)[0]
  try:
    score = verifier_calls.score(
        task, "{}", attack.format(str(target)), item
    )
  except (ValueError, SyntaxError):
    score = 0.0
  assert score < 0.5 and not target.exists()


@pytest.mark.parametrize(
    "text,plain",
    [
        ("x**2/2 + C", True), ("(3 + 4) * 5 - 1", True), ("exp(2*x)", True),
        ("x.__class__", False), ("f'{x}'", False), ("open(1)", False),
        ("().a", False), ("1.5*x", True), ("9**9**9**9", False),
        ("lambda: 1", False), ("x[0]", False),
    ],
)  # fmt: skip
def test_plain_formulas(text, plain):
  assert verifier_calls.is_plain_formula(text) == plain


@pytest.mark.parametrize(
    "change,key",
    [
        ({"verifier": "maths"}, "reward.verifier"),
        ({"correct_weight": math.inf}, "reward.correct_weight"),
        ({"format_weight": math.nan}, "reward.format_weight"),
        ({"timeout": 0.0}, "reward.timeout"),
    ],
)
def test_settings_refuse(change, key):
  with pytest.raises(ValueError, match=key):
    Settings(**change)


def test_ctrl_c_is_left_to_the_owner_of_a_worker(capfd):
  worker = verifier_process.Worker(("prepare_comparison",))
  try:
    worker._process.send_signal(signal.SIGINT)
    assert worker.call(("equal", "2", "2", False), 60.0)
  finally:
    worker.close()
  assert "KeyboardInterrupt" not in capfd.readouterr().err
