"""The built-in tokenizer: one id per byte, for tests and tiny models."""

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

BOS_ID, EOS_ID, PAD_ID = 256, 257, 258
VOCAB_SIZE = 259

# A message a line; the assistant's closes the text.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% else %}"
    "{{ '\\n' }}{% endif %}{% endfor %}"
)


def build() -> tokenizers.Tokenizer:
  """Builds the tokenizer whose first 256 ids are the bytes themselves."""
  vocabulary = {letter: byte for byte, letter in enumerate(_letters())}
  tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
      add_prefix_space=False, use_regex=False
  )
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens(["<|bos|>", "<|eos|>", "<|pad|>"])
  return tokenizer


def _letters() -> list[str]:
  """Returns the printable letter by which ByteLevel writes each byte."""
  own = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [byte for byte in range(256) if byte not in own]
  letters = {byte: chr(byte) for byte in own}
  letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
  return [letters[byte] for byte in range(256)]
