"""Text to ids and back, and the chat template, for one model.

`tokenizers.Tokenizer` does the encoding and decoding;
this module adds what surrounds it: special ids, the chat template, the
fingerprint by which shards name the tokenizer they were written with.
"""

from collections.abc import Mapping, Sequence
import functools
import hashlib
import json
import os
import pathlib

import jinja2
import numpy as np
import tokenizers

from jaxrl_llm.data import byte_tokenizer
from jaxrl_llm.data import chat_templates
from jaxrl_llm.data import gguf_tokenizer

Message = Mapping[str, str]


class Tokenizer:
  """A tokenizer with its special ids and its chat template.

  Attributes:
    vocab_size: ids are below this number.
    bos_id: id that opens a text, or None.
    eos_id: the declared end of text.
    stop_ids: ids that end a response, ascending: the declared ends, and the
      token that the chat template puts after an assistant's message.
    pad_id: an id to fill arrays with; it carries no meaning, masks do.
    chat_template: jinja2 source; empty when the model has none.
  """

  def __init__(
      self,
      tokenizer: tokenizers.Tokenizer,
      *,
      chat_template: str = "",
      bos_id: int | None = None,
      eos_ids: Sequence[int] = (),
      pad_id: int | None = None,
      name: str = "tokenizer",
  ):
    """Wraps `tokenizer`.

    Args:
      tokenizer: its padding and truncation are switched off.
      chat_template: jinja2 source.
      bos_id: see the attribute.
      eos_ids: declared ends of text, the first one foremost.
      pad_id: None takes the end of text.
      name: the file or folder that errors speak of.

    Raises:
      ValueError: no end of text is declared, and the template shows none.
    """
    tokenizer.no_padding()
    tokenizer.no_truncation()
    self._tokenizer = tokenizer
    self._name = name
    self.chat_template = chat_template
    self.bos_id = bos_id
    self.eos_id = int(eos_ids[0]) if eos_ids else None
    stops = {int(eos_id) for eos_id in eos_ids} | self._chat_end_ids()
    if not stops:
      raise ValueError(
          f"{name}: no end-of-text token; add eos_token to"
          " tokenizer_config.json."
      )
    self.stop_ids = tuple(sorted(stops))
    if self.eos_id is None:
      self.eos_id = self.stop_ids[0]
    self.pad_id = self.eos_id if pad_id is None else int(pad_id)

  @functools.cached_property
  def vocab_size(self) -> int:
    """One more than the largest id."""
    return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

  @functools.cached_property
  def needed_size(self) -> int:
    """One more than the largest id that a model has to know.

    Control tokens that nothing here names may lie above it: Gemma 3's
    tokenizer has an image token that its text models have not.
    """
    vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
    named = {self.bos_id, self.pad_id, *self.stop_ids}
    special = set(self.special_tokens)
    return 1 + max(
        index for text, index in vocabulary.items()
        if text not in special or index in named
    )

  @functools.cached_property
  def special_tokens(self) -> tuple[str, ...]:
    """Texts that encode to one control token each."""
    added = self._tokenizer.get_added_tokens_decoder().values()
    return tuple(sorted(token.content for token in added if token.special))

  @functools.cached_property
  def fingerprint(self) -> str:
    """Sixteen hexadecimal digits: vocabulary, splitting, template, stops."""
    content = [json.loads(self._tokenizer.to_str()), self.chat_template]
    content += [self.bos_id, self.eos_id, self.stop_ids]
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def encode(self, text: str) -> list[int]:
    """Encodes text as it stands; nothing is added at its ends."""
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def decode(
      self,
      ids: Sequence[int] | np.ndarray,
      skip_special_tokens: bool = False,
  ) -> str:
    """Decodes ids; control tokens are kept as text unless asked otherwise."""
    return self._tokenizer.decode(
        [int(token) for token in ids], skip_special_tokens=skip_special_tokens
    )

  def token(self, token_id: int | None) -> str:
    """Returns the text of one id; an empty text for None."""
    if token_id is None:
      return ""
    return self._tokenizer.id_to_token(token_id) or ""

  def render_chat(
      self, messages: Sequence[Message], add_generation_prompt: bool = True
  ) -> str:
    """Renders messages ({"role", "content"}) as the text the model was taught.

    Raises:
      ValueError: there is no chat template, or it refuses the messages.
    """
    if not self.chat_template:
      raise ValueError(
          f"{self._name}: no chat template; put a chat_template.jinja beside"
          " tokenizer.json."
      )
    try:
      return chat_templates.compiled(self.chat_template).render(
          messages=[dict(message) for message in messages],
          add_generation_prompt=add_generation_prompt,
          bos_token=self.token(self.bos_id),
          eos_token=self.token(self.eos_id),
      )
    except jinja2.TemplateError as error:
      raise ValueError(
          f"{self._name}: the chat template refuses the messages: {error}"
      ) from error

  def apply_chat_template(
      self, messages: Sequence[Message], add_generation_prompt: bool = True
  ) -> list[int]:
    """Renders messages and encodes them, with no further BOS.

    Raises:
      ValueError: as `render_chat`; or the text opens with two BOS tokens.
    """
    ids = self.encode(self.render_chat(messages, add_generation_prompt))
    if self.bos_id is not None and ids[:2] == [self.bos_id, self.bos_id]:
      raise ValueError(
          f"{self._name}: the chat template opens with two"
          f" {self.token(self.bos_id)!r}; expected one, mend the template."
      )
    return ids

  def _chat_end_ids(self) -> set[int]:
    """Finds the control token that follows an assistant's message, if any."""
    if not self.chat_template:
      return set()
    marker = "jaxrl-llm-marker"
    messages = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": marker},
    ]
    text = self.render_chat(messages, add_generation_prompt=False)
    following = text.rpartition(marker)[2].lstrip()
    ends = [end for end in self.special_tokens if following.startswith(end)]
    return {self._tokenizer.token_to_id(max(ends, key=len))} if ends else set()

  def files(self) -> dict[str, bytes]:
    """Returns the files of a Hugging Face tokenizer folder by name."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": self.token(self.bos_id) or None,
        "eos_token": self.token(self.eos_id),
        "pad_token": self.token(self.pad_id),
        "clean_up_tokenization_spaces": False,
    }
    if self.chat_template:
      config["chat_template"] = self.chat_template
    stops = {"eos_token_id": list(self.stop_ids), "pad_token_id": self.pad_id}
    if self.bos_id is not None:
      stops["bos_token_id"] = self.bos_id
    return {
        "tokenizer.json": self._tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(config, indent=2).encode(),
        "generation_config.json": json.dumps(stops, indent=2).encode(),
    }

  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes `files()` into a folder, which `load` reads back."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in self.files().items():
      (folder / name).write_bytes(content)


def load(path: str | os.PathLike[str]) -> Tokenizer:
  """Loads a tokenizer.

  Args:
    path: a Hugging Face folder (tokenizer.json and its companions), a .gguf
      file, or "bytes": one id per byte, then bos 256, eos 257, pad 258.

  Raises:
    FileNotFoundError, ValueError: in one line that names the path.
  """
  if os.fspath(path) == "bytes":
    return Tokenizer(
        byte_tokenizer.build(),
        chat_template=byte_tokenizer.CHAT_TEMPLATE,
        bos_id=byte_tokenizer.BOS_ID,
        eos_ids=[byte_tokenizer.EOS_ID],
        pad_id=byte_tokenizer.PAD_ID,
        name="bytes",
    )
  path = pathlib.Path(path)
  if path.suffix == ".gguf" and path.is_file():
    found = gguf_tokenizer.read(path)
    return Tokenizer(
        found.tokenizer,
        chat_template=found.chat_template,
        bos_id=found.bos_id,
        eos_ids=[] if found.eos_id is None else [found.eos_id],
        pad_id=found.pad_id,
        name=str(path),
    )
  if not (path / "tokenizer.json").is_file():
    raise FileNotFoundError(
        f"{path}: expected a folder with tokenizer.json, a .gguf file or the"
        " word 'bytes'; set model.tokenizer."
    )
  return _from_folder(path)


def _from_folder(path: pathlib.Path) -> Tokenizer:
  """Reads tokenizer.json, its config, the template and the stop ids."""
  tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
  config = _read_json(path / "tokenizer_config.json")
  generation = _read_json(path / "generation_config.json")
  ids = {}
  for name in ("bos", "eos", "pad"):
    token = config.get(f"{name}_token")
    text = token["content"] if isinstance(token, dict) else token
    ids[name] = None if text is None else tokenizer.token_to_id(text)
    if text is not None and ids[name] is None:
      raise ValueError(
          f"{path}/tokenizer_config.json: {name}_token {text!r} is not in"
          " tokenizer.json; the two files belong to different models."
      )
  stops = generation.get("eos_token_id")
  stops = [stops] if isinstance(stops, int) else stops or []
  eos_ids = [ids["eos"]] if ids["eos"] is not None else []
  return Tokenizer(
      tokenizer,
      chat_template=_folder_template(path, config),
      bos_id=ids["bos"],
      eos_ids=[*eos_ids, *stops],
      pad_id=ids["pad"],
      name=str(path),
  )


def _folder_template(
    path: pathlib.Path, config: Mapping[str, object]
) -> str:
  """Returns the chat template: its own file first, as transformers does."""
  if (path / "chat_template.jinja").is_file():
    return (path / "chat_template.jinja").read_text("utf-8")
  template = config.get("chat_template") or ""
  if isinstance(template, list):
    named = {entry["name"]: entry["template"] for entry in template}
    template = named.get("default", "")
  return template


def _read_json(path: pathlib.Path) -> dict[str, object]:
  """Reads a JSON object; an absent file is an empty one."""
  if not path.is_file():
    return {}
  try:
    return json.loads(path.read_text("utf-8"))
  except json.JSONDecodeError as error:
    raise ValueError(f"{path}: not JSON ({error}); fetch it again.") from error
