"""Chat templates render as in transformers, never depend on the clock, and cannot harm."""

import contextlib
import datetime
import time

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.chat_template import ChatTemplate
from engine.errors import ChatTemplateError

MESSAGES = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": 'Is 1 < 2 & "so"?'},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Größe?\n\n  indented"},
]
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
    " + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3_STYLE = """{{- bos_token }}
{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
TOOLS_STYLE = """{% if tools %}
{% for tool in tools %}
{{ tool | tojson(indent=2) }}
{% endfor %}
{% endif %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% continue %}
    {% endif %}
{% generation %}{{ message.role }}: {{ message.content | tojson }}{% endgeneration %}

    {% if loop.index > 2 %}
        {% break %}
    {% endif %}
{% endfor %}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
"""


@pytest.mark.parametrize("source", [CHATML, LLAMA3_STYLE, TOOLS_STYLE])
@pytest.mark.parametrize("prompt", [False, True])
def test_renders_as_transformers_does(source, prompt):
    from transformers.utils.chat_template_utils import render_jinja_template

    variables = {"date_string": "01 Dec 2027", "enable_thinking": False}
    tools = [{"type": "function", "function": {"name": "größe", "parameters": {"a": [1, "<b>"]}}}]
    expected, _ = render_jinja_template(
        [MESSAGES], tools=tools, chat_template=source, add_generation_prompt=prompt, bos_token="<s>", **variables
    )
    ours = ChatTemplate(source, {"bos_token": "<s>"})
    assert ours.render(MESSAGES, add_generation_prompt=prompt, variables={**variables, "tools": tools}) == expected[0]


@pytest.mark.parametrize("now", ["2027-12-01", "2027-12-01T09:30:00", datetime.date(2027, 12, 1)])
def test_the_date_is_the_callers(now):
    text = ChatTemplate(LLAMA3_STYLE, {"bos_token": ""}).render(
        MESSAGES, add_generation_prompt=True, variables={"now": now}
    )
    assert "Today Date: 01 Dec 2027" in text


def test_a_template_never_reads_the_clock():
    with pytest.raises(ChatTemplateError, match="today's date"):
        ChatTemplate(LLAMA3_STYLE, {"bos_token": ""}).render(MESSAGES, add_generation_prompt=True, variables={})


def test_the_caller_may_bring_a_clock():
    clock = datetime.datetime(2027, 12, 1).strftime
    text = ChatTemplate("{{ strftime_now('%Y') }}", {}).render(
        [], add_generation_prompt=False, variables={"strftime_now": clock}
    )
    assert text == "2027"


def test_refusals_are_told_in_the_templates_words():
    template = ChatTemplate("{{ raise_exception('System role not supported') }}", {})
    with pytest.raises(ChatTemplateError, match="System role not supported"):
        template.render(MESSAGES, add_generation_prompt=True, variables={})


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'open", "{% endfor %}", "{% include 'x' %}{{", "x" * (2 << 20)])
def test_broken_templates_are_refused_when_made(source):
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{{ strftime_now.__closure__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id') }}",
        "{{ messages.append({'role': 'system', 'content': 'x'}) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ messages[9].content }}",
        "{{ 1 / 0 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_nothing_outside_the_sandbox_is_reached(source):
    messages = [dict(message) for message in MESSAGES]
    text = ""  # jinja gives some forbidden attributes as undefined, which render to nothing
    with contextlib.suppress(ChatTemplateError):
        text = ChatTemplate(source, {}).render(messages, add_generation_prompt=True, variables={})
    assert text == ""
    assert messages == MESSAGES


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ 10000000000 * 'x' }}",
        "{{ [0] * 10000000000 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ 'x'.center(10000000000) }}",
        "{{ 'x'.ljust(10000000000) }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ 'x' | center(10000000000) }}",
        "{{ lipsum(100000) }}",
        "{{ [1, 2, 3] | random }}",
        "{% set n = namespace(t='xxxx') %}{% for a in range(9) %}{% set n.t = n.t.replace('x', n.t) %}{% endfor %}",
        "{% set n = namespace(t='xxxx') %}{% for a in range(9) %}{% set n.t = n.t | replace('x', n.t) %}{% endfor %}",
        "{{ ('x' * 9999999).join(range(99999) | map('string') | list) }}",
        "{{ range(99999) | join('x' * 9999999) }}",
        "{{ '%010000d' | format(1) }}",
        "{{ range(10000000000) | list }}",
        "{% set ns = namespace(t='x') %}{% for a in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}{{ ns.t }}",
        "{% set ns = namespace(t='x') %}{% for a in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
    ],
)
def test_hostile_templates_stop(source, monkeypatch):
    monkeypatch.setattr("engine.chat_template.TIME_LIMIT_S", 0.5)
    start = time.process_time()
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, {}).render(MESSAGES, add_generation_prompt=True, variables={})
    assert time.process_time() - start < 3


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' ~ 1 ~ none ~ messages | length }}",
        "{{ messages | map(attribute='role') | join(', ') }}",
        "{{ messages | join('|', attribute='content') }}",
        "{{ messages[3].content | indent(2) }}",
        "{{ messages[3].content | indent(3, true, true) }}",
        "{{ '%s is %03d' | format('a', 7) }}",
        "{{ '%s-%s' % ('a', 7) }}",
        "{{ 'a-b-c' | replace('-', '+', 1) }}{{ 'a-b-c'.replace('-', '+') }}{{ '-'.join(['a', 'b']) }}",
        "{{ [1] + [2] }}{{ 'x' * 3 }}{{ 2 ** 5 }}{{ 7 % 4 }}{{ 1 + 2.5 }}",
    ],
)
def test_watched_operations_do_what_jinja_does(source):
    expected = ImmutableSandboxedEnvironment().from_string(source).render(messages=MESSAGES)
    assert ChatTemplate(source, {}).render(MESSAGES, add_generation_prompt=False, variables={}) == expected


def test_long_documents_render_fast():
    messages = [{"role": "user", "content": "word " * 2_000_000}]
    start = time.process_time()
    text = ChatTemplate(CHATML, {}).render(messages, add_generation_prompt=True, variables={})
    assert len(text) > 10_000_000
    assert time.process_time() - start < 2


def test_tracing_of_others_goes_on_after_a_render():
    import sys

    def trace(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ChatTemplate(CHATML, {}).render(MESSAGES, add_generation_prompt=True, variables={})
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
