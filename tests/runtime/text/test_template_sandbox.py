"""No template makes more of nothing than its fuel allows, whatever operation it uses."""

from __future__ import annotations

import resource
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from edgedec.models.errors import SessionError
from edgedec.runtime.text import chat_template
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.template_fuel import parts

pytestmark = pytest.mark.robustness

_HUGE = "9999999999"
_DOUBLE = (
    "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = %s %}{% endfor %}"
)
_NEST = "{% set n = namespace(x=('aaaaaaaa',)) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}"
GREEDY = {
    "percent width": '{{ "%' + _HUGE + 'd" % 1 }}',
    "percent precision": '{{ "%.' + _HUGE + 'f" % 1 }}',
    "percent star": '{{ "%*d" % (' + _HUGE + ", 1) }}",
    "percent key with parentheses": '{{ "%(a(b))' + _HUGE + "d\" % {'a(b)': 1} }}",
    "format filter": "{{ '%" + _HUGE + "d'|format(1) }}",
    "format": '{{ "{:>' + _HUGE + '}".format(1) }}',
    "format with zeros before": '{{ "{:>000000000000' + _HUGE + '}".format(1) }}',
    "percent with zeros before": "{{ '%.000000000000" + _HUGE + "f' % 1 }}",
    "format nested": '{{ "{:>{}}".format(1, ' + _HUGE + ") }}",
    "format precision": '{{ "{:.' + _HUGE + 'f}".format(1.5) }}',
    "format_map": "{{ '{x:>" + _HUGE + "}'.format_map({'x': 1}) }}",
    "format attribute": "{{ ('{:>" + _HUGE + "}'|attr('format'))(1) }}",
    "format safe": "{{ ('{:>" + _HUGE + "}'|safe).format(1) }}",
    "center": "{{ 'a'|center(10000000000) }}",
    "center mapped": "{{ ['a']|map('center', 10000000000)|list }}",
    "method center": "{{ 'a'.center(10000000000) }}",
    "ljust": "{{ 'a'.ljust(10000000000) }}",
    "zfill": "{{ 'a'.zfill(10000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(10000000000) }}",
    "times": '{{ "a"*1000000*1000 }}',
    "times left": "{{ 1000000000 * 'a' }}",
    "times list": "{{ ([1] * 1000000000)|length }}",
    "power": "{% set n = namespace(x=10) %}{% for i in range(40) %}{% set n.x = n.x ** 60 %}"
    "{% endfor %}",
    "plus": _DOUBLE.replace("%s", "n.x + n.x"),
    "concatenation": _DOUBLE.replace("%s", "n.x ~ n.x"),
    "output": _DOUBLE.replace("{% set n.x = %s %}", "{% set y %}{{n.x}}{{n.x}}{% endset %}"
                              "{% set n.x = y %}"),
    "replace": "{{ ('a'*1000000).replace('a', 'b'*1000000) }}",
    "replace filter": "{{ ('a'*1000000)|replace('a', 'b'*1000000) }}",
    "join": "{{ range(100000)|join('a'*1000000) }}",
    "method join": "{{ ('a'*1000000).join(range(100000)|map('string')) }}",
    "same text many times": "{% set a = 'a'*1000000 %}"
    "{{ range(100000)|map('default')|map('replace', '1', a)|join }}",
    "indent": "{{ ('\n'*1000000)|indent(1000000) }}",
    "slice": "{{ [1]|slice(10000000000)|list|length }}",
    "batch": "{{ [1]|batch(10000000000, 0)|list|length }}",
    "tojson": "{{ [1]|tojson(indent=1000000000) }}",
    "tojson separators": "{{ range(100000)|list|tojson(separators=['a'*100000, 'b']) }}",
    "round": "{{ 5|round(-1000000000) }}{{ 5|round(1000000000, 'ceil') }}",
    "shared parts as text": _NEST + "{% endfor %}{{ n.x }}",
    "shared parts compared": _NEST + "{% endfor %}{{ n.x == n.x[:] }}",
    "shared parts hashed": _NEST + "{% endfor %}{{ {n.x: 1} }}",
    "shared parts looked up": _NEST + "{% endfor %}{{ {}[n.x] }}",
    "shared parts unique": _NEST + "{% endfor %}{{ [n.x]|unique|list }}",
    "shared parts of lists": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x] * 9 %}{% endfor %}{{ n.x }}",
    "namespace in itself": "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
    "constant output": "{% for i in range(99999) %}" + "a" * 10_000 + "{% endfor %}",
    "literals": "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x, ["
    + "0," * 1000
    + "]] %}{% endfor %}",
    "parts of texts": "{% set a = 'a'*1000000 %}{% set n = namespace(x=[]) %}"
    "{% for i in range(99999) %}{% set n.x = [n.x, a[1:]] %}{% endfor %}",
    "split": "{% set a = 'a '*1900000 %}{{ a.split()|length }}",
    "strip": "{{ ('a'*1000000).strip('b'*1000000 ~ 'a') }}",
    "lists of lists": "{{ [[1]*1000]*1000|sum(start=[]) }}",
    "whole numbers to bytes": "{{ (1).to_bytes(10000000000, 'big')|length }}",
    "filler text": "{{ lipsum(n=1000000) }}",
    "loop in loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "loop that recurses": "{% for a in [1] recursive %}{{ loop(range(9)) }}{% endfor %}",
    "filters in filters": "{{ range(99999)|map('string')|map('list')|map('length')|sum }}" * 9,
    "escapes": "{% autoescape true %}{{ '<'*3000000 }}{% endautoescape %}",
}  # fmt: skip


@pytest.fixture
def small_memory() -> Any:
    """Ends an allocation that a template should not have been granted, not the machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:  # noqa: PTH123  its size is zero
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("source", GREEDY.values(), ids=GREEDY)
def test_greedy_templates_are_refused(
    source: str, small_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "MAX_TEMPLATE_WORK", 1 << 22)  # soon
    with pytest.raises(SessionError, match=r"^the chat template[^\n]*$") as caught:
        ChatTemplate(source).render([{"role": "user", "content": "hi"}])
    assert "memory" not in str(caught.value).lower(), "refused by the machine, not for want of fuel"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '%-5s|%05.1f|%d%%|%(a)s' % {'a': 1} if false else '%-5s|%05.1f' % ('x', 2) }}",
         "x    |002.0"),
        ("{{ '{:>4}|{!r}|{x[0]}'.format(1, 'a', x=[7]) }}", "   1|'a'|7"),
        ("{{ 'a'|center(5) ~ '|' ~ 'b'.ljust(3) ~ '|' }}", "  a  |b  |"),
        ("{{ [3, 1]|sort|join(', ') }} {{ 'a-b'.split('-')[1:] }}", "1, 3 ['b']"),
        ("{{ {'a': (1, 2), 'b' ~ 'c': none} }}", "{'a': (1, 2), 'bc': None}"),
        ("{{ 1 < 2 <= 2 != 3 }} {{ 'a' not in ['b'] }} {{ 'x' in messages[0] }}",
         "True True False"),
        ("{% autoescape true %}{{ '<' ~ '>' }}{% endautoescape %}{{ '<'|e }}", "&lt;&gt;&lt;"),
        ("{{ [1, 2, 3, 4, 5]|batch(2, 0)|list }}", "[[1, 2], [3, 4], [5, 0]]"),
        ("{{ {'a': [1]}|tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        ("{{ messages|map(attribute='role')|map('upper')|join('/') }}", "USER"),
        ("{% macro f(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call f(1) %}2{% endcall %}",
         "<12>"),
        ("{% for a in [[1, []]] recursive %}{{ a[0] }}{{ loop(a[1]) }}{% endfor %}", "1"),
    ],
)  # fmt: skip
def test_ordinary_operations_work(source: str, text: str) -> None:
    assert ChatTemplate(source).render([{"role": "user", "content": "hi"}]) == text


def test_long_conversations_are_within_the_fuel() -> None:
    template = ChatTemplate(
        "{% set ns = namespace(text='') %}{% for m in messages %}"
        "{% set ns.text = ns.text + m.role + m.content|trim %}{{ m|tojson }}{% endfor %}"
        "{{ ns.text }}"
    )
    many = [{"role": "user", "content": "word " * 40}] * 600
    assert len(template.render(many)) > 200_000
    assert len(template.render([{"role": "user", "content": "word " * 2_000_000}])) > 20_000_000


def test_every_rendering_has_its_own_fuel() -> None:
    template = ChatTemplate("{{ 'a' * 60000000 }}")
    for _ in range(3):
        assert len(template.render([])) == 60_000_000


def test_a_template_of_millions_of_characters_is_refused() -> None:
    with pytest.raises(SessionError, match="2000000 characters"):
        ChatTemplate("a" * 2_000_000)


def test_what_a_namespace_holds_is_seen() -> None:
    """Jinja keeps it in an attribute of its own, which it may rename."""
    assert list(parts(Namespace(x="a", y=[1]))) == [{"x": "a", "y": [1]}]


GENERATION = [
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% set x = 'a' %}{% generation %}{% set x = 'b' %}{{ x }}{% endgeneration %}{{ x }}",
    "{%- generation -%} a {%- endgeneration -%} b",
    "{% for m in messages %}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% generation %}{% set ns.n = 3 %}{% endgeneration %}{{ ns.n }}",
    "{% macro f(t) %}{% generation %}<{{ t }}>{% endgeneration %}{% endmacro %}{{ f('x') }}",
    "{% if messages %}\n{% generation %}\ntext\n{% endgeneration %}\n{% endif %}end",
]


@pytest.mark.parametrize("source", GENERATION)
def test_generation_tags_render_as_in_transformers(source: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="needs dev")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (theirs,), _ = utils.render_jinja_template([messages], chat_template=source)
    assert ChatTemplate(source).render(messages) == theirs


def test_an_endless_loop_within_a_generation_tag_is_refused() -> None:
    source = "{% generation %}{% for i in range(10**9) %}{{ i }}{% endfor %}{% endgeneration %}"
    with pytest.raises(SessionError):
        ChatTemplate(source).render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "expression",
    [
        "text | wordwrap(20)",
        "text | wordwrap(5, false, '|')",
        "text | wordwrap(10, wrapstring='--', break_on_hyphens=false)",
        "value | pprint",
        "text | pprint",
        "text | striptags",
        "value | xmlattr",
        "value | xmlattr(false)",
        "text | urlize",
        "text.encode()",
        "text.encode('utf-8') | length",
        "text.encode('utf-8').decode('utf-8')",
        "text.encode('ascii', 'replace').decode()",
        "text.encode('utf-8').hex()",
        "text.encode('latin-1', errors='xmlcharrefreplace')",
    ],
)
def test_filters_of_texts_give_what_jinja_gives(expression: str) -> None:
    text = (
        "A long-winded <b>sentence</b> with <!-- a note --> caf\u00e9 \u2212 https://example.org/a."
    )
    value = {"class": "a & b", "id": 7, "none": None, "text": text}
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    expected = jinja.from_string(f"{{{{ {expression} }}}}").render(text=text, value=value)
    template = ChatTemplate(f"{{{{ {expression} }}}}", {"text": text, "value": value})
    assert template.render([]) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "('a' * 9000000) | wordwrap(1)",
        "('<' * 900000) | striptags",
        "('(' * 900000) | urlize",
        "('a' * 90000000).encode()",
        "('a' * 9000).encode('punycode')",
        "'%999999999d'.encode() % 1",
        "('a ' * 30000) | wordwrap(1, wrapstring='b' * 30000)",
    ],
)
def test_filters_of_texts_have_their_price(expression: str) -> None:
    with pytest.raises(SessionError, match=r"too many steps|not supported|no form"):
        ChatTemplate(f"{{% set x = {expression} %}}").render([])
