"""Who may import whom: the layers of the package, read from its imports."""

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "jaxrl_llm"

ALL = "everything"
# Package -> (own packages, third-party packages). `models.policy` names one
# module, `data` a whole package.
RULES = {
    "types": ((), ("jax", "numpy")),
    "hosts": ((), ("jax", "numpy")),
    "platforms": ((), ("jax",)),
    "plurals": ((), ()),
    "losses": (("types", "platforms"), ("jax", "chex")),
    "curation": (("types", "losses"), ("jax", "numpy")),
    "allocation": ((), ("numpy", "scipy")),
    "models": (
        ("types", "platforms"),
        ("jax", "flax", "numpy", "safetensors", "gguf", "ml_dtypes"),
    ),
    "data": (
        ("types",),
        (
            "numpy",
            "tensorflow_datasets",
            "array_record",
            "grain",
            "tokenizers",
            "jinja2",
            "gguf",
            "reasoning_gym",
            "absl",
            "pyarrow",
        ),
    ),
    "rollout": (
        ("types", "models.policy", "models.sharding", "data", "allocation"),
        (
            "jax",
            "numpy",
            "rich",
            "math_verify",
            "latex2sympy2_extended",
            "sympy",
            "reasoning_gym",
            "absl",
        ),
    ),
    "training": (
        (
            "types",
            "hosts",
            "plurals",
            "losses",
            "curation",
            "models.policy",
            "models.placement",
            "models.sharding",
            "data",
        ),
        (
            "jax",
            "numpy",
            "optax",
            "orbax",
            "grain",
            "tensorboardX",
            "rich",
            "absl",
        ),
    ),
    "evaluation": (("types", "data", "rollout"), ("numpy",)),
    "slices": (
        (
            "types",
            "losses",
            "models.policy",
            "models.sharding",
            "data",
            "training",
            "rollout",
        ),
        ("jax", "numpy"),
    ),
    "lab": (
        (
            "types",
            "losses",
            "curation",
            "data",
            "models.policy",
            "training",
            "rollout",
            "evaluation",
        ),
        ("jax", "numpy", "matplotlib", "rich"),
    ),
    "verbs": (ALL, ("absl", "ml_collections", "rich", "jax", "numpy",
                    "matplotlib")),
    "__main__": (ALL, ("absl", "ml_collections", "rich")),
}
STANDARD = sys.stdlib_module_names


def imported_modules(path: pathlib.Path) -> list[tuple[int, str]]:
  """Lists (line, dotted module) of every import of a file."""
  found = []
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      found += [(node.lineno, alias.name) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{path}:{node.lineno}: a relative import"
      found += [
          (node.lineno, f"{node.module}.{alias.name}") for alias in node.names
      ]
  return found


def layer(path: pathlib.Path) -> str:
  """Names the rule that a file falls under."""
  first = path.relative_to(PACKAGE).parts[0]
  return first.removesuffix(".py")


def complaint(path: pathlib.Path, module: str) -> str:
  """Says what is wrong with a file importing a module; empty if nothing."""
  own, third = RULES[layer(path)]
  parts = module.split(".")
  if parts[0] == "jaxrl_llm":
    inner = ".".join(parts[1:])
    allowed = own == ALL or any(
        inner in ("", name) or inner.startswith(name + ".")
        for name in (*own, layer(path))
    )
    return "" if allowed else f"{layer(path)} may not import {module}"
  if parts[0] in STANDARD or parts[0] in third:
    return ""
  return f"{layer(path)} may not import {parts[0]}"


FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"
)


def test_layers_import_only_what_they_may():
  wrong = [
      f"{path.relative_to(ROOT)}:{line}: {problem}"
      for path in FILES
      for line, module in imported_modules(path)
      if (problem := complaint(path, module))
  ]
  assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "file,module",
    [
        ("losses/kernels.py", "jaxrl_llm.models.policy"),
        ("losses/kernels.py", "flax"),
        ("training/step.py", "flax.linen"),
        ("training/step.py", "jaxrl_llm.models.layers"),
        ("training/step.py", "jaxrl_llm.models.policymaker"),
        ("data/shards.py", "jax"),
        ("data/shards.py", "tensorflow"),
        ("evaluation/metrics.py", "jaxrl_llm.verbs.run"),
    ],
)
def test_forbidden_import_is_named(file, module):
  assert complaint(PACKAGE / file, module)


def test_config_files_import_only_ml_collections():
  for path in (ROOT / "configs").rglob("*.py"):
    for line, module in imported_modules(path):
      assert module.split(".")[0] in ("ml_collections", "configs"), (
          f"{path}:{line} imports {module}"
      )


def test_nothing_is_called_utils():
  homeless = {"utils", "util", "common", "helpers", "misc"}
  names = [path for path in ROOT.rglob("*.py") if path.stem in homeless]
  folders = [path for path in PACKAGE.rglob("*") if path.name in homeless]
  ours = [path for path in names if ".venv" not in path.parts]
  assert not ours + folders
