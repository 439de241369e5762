"""Builds a byte-level BPE tokenizer from the metadata of a GGUF file."""

from collections.abc import Mapping
import dataclasses
import os
from typing import Any

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers

# llama.cpp names the pre-tokenizer only; these are the splitters of the
# tokenizers that the names were taken from. GPT-2's own regex is the one that
# ByteLevel(use_regex=True) holds.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_CONTROL, _USER_DEFINED = 3, 4


@dataclasses.dataclass(frozen=True)
class Metadata:
  """What a GGUF file says of its tokenizer; None where it says nothing."""

  tokenizer: tokenizers.Tokenizer
  chat_template: str
  bos_id: int | None
  eos_id: int | None
  pad_id: int | None


def _pre_tokenizer(name: str, path: str) -> pre_tokenizers.PreTokenizer:
  """Returns the splitter that llama.cpp calls `name`."""
  if name in ("gpt-2", "default", ""):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
  if name in ("smollm", "starcoder", "refact", "command-r"):
    first = pre_tokenizers.Digits(individual_digits=True)
    second = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pre_tokenizers.Sequence([first, second])
  splits = {"llama-bpe": _LLAMA3_SPLIT, "llama3": _LLAMA3_SPLIT}
  splits |= {"qwen2": _QWEN2_SPLIT, "deepseek-r1-qwen": _QWEN2_SPLIT}
  if name in splits:
    first = pre_tokenizers.Split(
        tokenizers.Regex(splits[name]), behavior="isolated"
    )
    second = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([first, second])
  raise ValueError(
      f"{path}: pre-tokenizer {name!r} is not known (known: default, gpt-2,"
      " smollm, llama-bpe, qwen2); set model.tokenizer to a folder with"
      " tokenizer.json."
  )


def _byte_level_bpe(
    fields: Mapping[str, Any], path: str
) -> tokenizers.Tokenizer:
  """Builds the tokenizer itself; `fields` maps GGUF keys to values."""
  tokens = fields["tokenizer.ggml.tokens"]
  merges = fields["tokenizer.ggml.merges"]
  pre = fields.get("tokenizer.ggml.pre", "")
  vocabulary = {token: index for index, token in enumerate(tokens)}
  if len(vocabulary) != len(tokens):
    raise ValueError(
        f"{path}: {len(tokens)} tokens, only {len(vocabulary)} distinct; the"
        " file is damaged, fetch it again."
    )
  tokenizer = tokenizers.Tokenizer(
      models.BPE(
          vocab=vocabulary,
          merges=[tuple(merge.split(" ")) for merge in merges],
          # Llama 3 looks whole words up before merging.
          ignore_merges=pre == "llama-bpe",
      )
  )
  tokenizer.pre_tokenizer = _pre_tokenizer(pre, path)
  if "qwen" in pre:
    tokenizer.normalizer = normalizers.NFC()
  tokenizer.decoder = decoders.ByteLevel()
  types = fields.get("tokenizer.ggml.token_type", [])
  for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
    tokenizer.add_tokens([
        tokenizers.AddedToken(token, special=special, normalized=False)
        for token, token_type in zip(tokens, types)
        if token_type == kind
    ])
  return tokenizer


def _reader(path: str) -> Any:
  """Opens the file."""
  try:
    # Optional dependency of the package: the extra "gguf".
    import gguf  # pylint: disable=g-import-not-at-top
  except ImportError as error:
    raise ImportError(
        f"{path}: expected the gguf library, found none; pip install"
        " 'jaxrl_llm[gguf]'."
    ) from error
  try:
    return gguf.GGUFReader(path)
  except (ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
    raise ValueError(
        f"{path}: expected a GGUF file, found a damaged one ({error}); copy it"
        " again."
    ) from error


def read(path: str | os.PathLike[str]) -> Metadata:
  """Reads the tokenizer and the chat template of a GGUF file.

  Raises:
    ImportError: the gguf library is not installed.
    ValueError: the file is damaged, or holds a kind of tokenizer other than
      byte-level BPE.
  """
  path = os.fspath(path)
  fields = {
      key: field.contents()
      for key, field in _reader(path).fields.items()
      if key.startswith("tokenizer.")
  }
  kind = fields.get("tokenizer.ggml.model")
  if kind != "gpt2":
    raise ValueError(
        f"{path}: expected a byte-level BPE tokenizer ('gpt2'), found {kind!r};"
        " set model.tokenizer to a folder with tokenizer.json."
    )
  return Metadata(
      tokenizer=_byte_level_bpe(fields, path),
      chat_template=fields.get("tokenizer.chat_template", ""),
      bos_id=fields.get("tokenizer.ggml.bos_token_id"),
      eos_id=fields.get("tokenizer.ggml.eos_token_id"),
      pad_id=fields.get("tokenizer.ggml.padding_token_id"),
  )
