"""Package of jaxrl_llm: off-policy RL post-training of LLMs in JAX.

The lower bounds are the oldest versions that the tests ran with, the upper
bounds the newest; tests/lock-X.Y.txt holds the exact sets.
"""

import pathlib
import re

import setuptools

INIT = pathlib.Path(__file__).parent / "jaxrl_llm" / "__init__.py"
VERSION = re.search(r'__version__ = "(.+)"', INIT.read_text())[1]
GGUF = ["gguf>=0.19,<0.20", "huggingface_hub>=2.4,<3"]
TEST = ["hypothesis>=6.170,<7", "pytest>=9,<10", "pytest-xdist>=3.8,<4"]

setuptools.setup(
    name="jaxrl_llm",
    version=VERSION,
    description="Off-policy RL post-training of LLMs in JAX",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    # `configs` holds base.py, the one place where keys are explained.
    packages=[*setuptools.find_packages(include=["jaxrl_llm*"]), "configs"],
    install_requires=[
        "absl-py>=2.5,<3",
        "array_record>=0.8.6,<0.9",
        "chex>=0.1.92,<0.2",
        "flax>=0.12.8,<0.13",
        "grain>=0.2.18,<0.3",
        "jax>=0.10.2,<0.13",
        "jinja2>=3.1.6,<4",
        "math-verify>=0.9,<0.10",
        "matplotlib>=3.11,<4",
        "ml-collections>=1.1,<2",
        "numpy>=2.4,<3",
        "optax>=0.2.8,<0.3",
        "orbax-checkpoint>=0.12.8,<0.13",
        "pyarrow>=26.0.1,<27",
        "reasoning-gym>=0.1.25,<0.2",
        "rich>=15,<16",
        "safetensors>=0.8,<0.9",
        "scipy>=1.17,<2",
        "tensorboardX>=2.6.5,<3",
        "tensorflow-datasets>=4.9.10,<5",
        "tokenizers>=0.23,<0.24",
    ],
    extras_require={
        "tpu": ["jax[tpu]"],
        "cuda": ["jax[cuda13]"],
        "gguf": GGUF,
        "test": [*GGUF, *TEST],
        "dev": [*GGUF, *TEST, "ipython"],
    },
)
