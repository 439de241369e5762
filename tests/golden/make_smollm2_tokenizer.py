"""Writes smollm2_tokenizer.json: texts and the ids that llama.cpp gives them.

Run once by hand, in an environment of its own:

  pip install ik-llama-cpp-python==0.1.5
  python make_smollm2_tokenizer.py SmolLM2-135M-Instruct.Q4_1.gguf

The reference is the C++ tokenizer of ik_llama.cpp (a fork of llama.cpp), which
reads the GGUF on its own and shares no code with the `tokenizers` library.
"""

import json
import pathlib
import sys

from ik_llama_cpp import _ctypes_api as api
from ik_llama_cpp import _internals

TEXTS = [
    "   1234",
    "1234",
    "12 34",
    " 7",
    "a1b22c333",
    "3 + 4 = 7",
    "-17.50%",
    "$1,234,567.89",
    "2024-02-29T12:00:00",
    "x²+½y³",
    "٣٤ and 五",
    "Hello, world!",
    "I'll say it's they're we'd you've I'm",
    "HELLO'S o'clock 'quoted'",
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "\t\ttab",
    "trailing space ",
    "trailing newline\n",
    " \n \n  mixed \r\n lines",
    "def f(x):\n    return x ** 2  # square\n",
    "naïve café — “quotes” … œuvre",
    "Straße ΑΒΓ Привет мир",
    "日本語のテキスト",
    "😀👍🏽 family 👨‍👩‍👧",
    "e\u0301 combining",
    "\u00a0non\u200bbreaking\u3000wide",
    "a_b-c/d\\e|f",
    "\\boxed{42} \\frac{1}{2}",
    "#### 72",
    "antidisestablishmentarianism",
    "<|endoftext|>",
    "<|im_start|>user\nHi<|im_end|>\n",
    "a<|im_end|>b",
    "  <|im_start|>  <|im_end|>  ",
    "<|im_start",
    "<repo_name>x<file_sep>12",
]

CONVERSATIONS = [
    [{"role": "user", "content": "What is 3 + 4?"}],
    [
        {"role": "system", "content": "Answer with a number."},
        {"role": "user", "content": "12 apples and   34 pears\nHow many?"},
    ],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! 1 2 3"},
        {"role": "user", "content": " spaces kept "},
    ],
]

DEFAULT_SYSTEM = (
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
)


def render(messages, add_generation_prompt):
  """Writes a conversation as SmolLM2's chat template does, by plain code."""
  if messages[0]["role"] != "system":
    messages = [{"role": "system", "content": DEFAULT_SYSTEM}, *messages]
  text = "".join(
      f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages
  )
  return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")


def main(path):
  api.llama_backend_init()
  model = _internals.IkModel(path)
  encode = lambda text: model.tokenize(text, add_bos=False, special=True)
  conversations = []
  for messages in CONVERSATIONS:
    for add_generation_prompt in (True, False):
      text = render(messages, add_generation_prompt)
      conversations.append({
          "messages": messages,
          "add_generation_prompt": add_generation_prompt,
          "text": text,
          "ids": encode(text),
      })
  fixture = {
      "reference": "ik-llama-cpp-python 0.1.5, add_bos=False, special=True",
      "texts": [{"text": text, "ids": encode(text)} for text in TEXTS],
      "conversations": conversations,
  }
  target = pathlib.Path(__file__).with_name("smollm2_tokenizer.json")
  target.write_text(json.dumps(fixture, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
  main(sys.argv[1])
