"""chips.py: slices by name."""

import importlib.util

import pytest

from jaxrl_llm.slices import chips

HAS_COMPILER = importlib.util.find_spec("libtpu") is not None


@pytest.mark.parametrize(
    "name", ["v5e", "v5e:", "v5e:4", "v5e:0x4", "v9:4x4", "4x4", "v5p:2x2x2x2"]
)
def test_what_names_no_slice_is_refused(name):
  with pytest.raises(ValueError, match="compile.topology.*v5e:4x4"):
    chips.chip(name)


@pytest.mark.parametrize(
    "name", ["v5e:2x2x2", "v6e:2x2x1", "v5p:4x4", "v5e:16x32", "v5p:16x16x32"]
)
def test_shapes_that_the_compiler_takes_and_no_slice_has(name):
  with pytest.raises(ValueError, match=f"no slice {name}: expected a shape"):
    chips.chip(name)


def test_the_largest_slices():
  for name in ("v5e:16x16", "v6e:16x16", "v5p:16x16x24"):
    chips.chip(name)


def test_peaks_are_those_published():
  chip = chips.chip("v5p:4x4x4")
  # FLOPs that pay for one byte from memory: 459e12 / 2765e9.
  assert round(chip.flops / chip.bandwidth) == 166


@pytest.mark.skipif(HAS_COMPILER, reason="libtpu is installed")
def test_without_the_compiler_the_remedy_is_named():
  with pytest.raises(ImportError, match="libtpu"):
    chips.devices("v5e:2x2")


@pytest.mark.skipif(
    not HAS_COMPILER, reason="libtpu, the compiler for TPUs, is not installed"
)
def test_devices_are_described_and_need_not_be_there():
  assert len(chips.devices("v5e:4x4")) == 16
  with pytest.raises(ValueError, match="no slice v5e:3x3"):
    chips.devices("v5e:3x3")
