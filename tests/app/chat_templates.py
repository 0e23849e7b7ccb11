"""Chat templates in the manner of several families, written for these tests, and an encoder that knows their tokens."""

import re

CHATML = """\
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif -%}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>' + '\\n' }}{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""

LLAMA3_DATE = """\
{{- bos_token }}
{%- if strftime_now is defined %}{% set today = strftime_now("%d %b %Y") %}
{%- else %}{% set today = date_string %}{% endif %}
{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + today + "\\n\\n" + system + "<|eot_id|>" }}
{%- for m in rest %}
{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

# Shows thinking in the last answer only, drops it from earlier ones, and closes an empty block when it is switched off.
QWEN3_THINKING = """\
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' and loop.index0 > ns.last %}
{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + m.content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' + (m.content.split('</think>') | last) + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""

# Leaves the thinking block open at the beginning of every answer.
ALWAYS_THINKING = CHATML.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}")

# The system text goes before the LAST user message, so that a plain rendering changes earlier tokens at every turn.
MISTRAL_INST = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{%- for m in rest %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate.') }}{% endif %}
{%- if m.role == 'user' %}
{%- if loop.last and system is defined %}{{ '[INST] ' + system + '\\n\\n' + m.content + ' [/INST]' }}
{%- else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}
{%- else %}{{ ' ' + m.content + '</s>' }}{% endif %}
{%- endfor %}"""

GEMMA_NO_SYSTEM = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
{%- set role = 'model' if m['role'] == 'assistant' else m['role'] %}
{{- '<start_of_turn>' + role + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

TEMPLATES = {
    "chatml": CHATML,
    "llama3-date": LLAMA3_DATE,
    "qwen3-thinking": QWEN3_THINKING,
    "always-thinking": ALWAYS_THINKING,
    "mistral-inst": MISTRAL_INST,
    "gemma-no-system": GEMMA_NO_SYSTEM,
}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CONTROL = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>"),
]


class ByteEncoder:
    """One id a byte; control tokens have ids below 100 and are recognised in skeletons only."""

    eos_ids = frozenset({CONTROL.index("</s>"), CONTROL.index("<|im_end|>")})

    def encode(self, text: str) -> list[int]:
        return [100 + byte for byte in text.encode()]

    def encode_skeleton(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in re.split("(" + "|".join(map(re.escape, CONTROL)) + ")", text):
            ids += [CONTROL.index(piece)] if piece in CONTROL else self.encode(piece)
        return ids

    def decode(self, ids) -> str:
        text = bytearray()
        for id in ids:
            text += CONTROL[id].encode() if id < 100 else bytes([id - 100])
        return text.decode()
