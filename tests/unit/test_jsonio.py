"""Strict JSON (shared/jsonio.py): trouble.md ranks 13, 16, 17, 21, 39, 40; wire/semif.md §1 and §8, 15 and 21;
architecture.md §1.11."""

from __future__ import annotations

import json
import math
import struct
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared import jsonio
from shared.jsonio import MAX_DEPTH, InvalidJSON
from tests.unit.strategies import FINITE, TEXT, json_values


def refused(data: bytes) -> str:
    with pytest.raises(InvalidJSON) as caught:
        jsonio.loads(data)
    message = str(caught.value)
    message.encode()  # an error reply must itself be encodable
    assert caught.value.offset >= 0
    assert caught.value.__cause__ is None
    return message


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("body", ["%s", "[%s]", '{"state":{"score":%s}}', '{"ignored":[{"deep":%s}]}'])
def test_nan_and_infinity_are_not_json_anywhere_in_a_body(literal: str, body: str) -> None:
    assert literal.removeprefix("-") in refused((body % literal).encode())


@pytest.mark.parametrize(
    "number", ["1e400", "-1e400", "1e999", "1.7976931348623159e308", "9" * 400 + ".0", "1E+99999999"]
)
def test_a_number_that_overflows_to_infinity_is_refused(number: str) -> None:
    assert "finite" in refused(b'{"v":[' + number.encode() + b"]}")


@pytest.mark.parametrize("number", ["1.7976931348623157e308", "5e-324", "1e-400", "-0.0", "0e999"])
def test_a_finite_number_at_the_edges_is_kept(number: str) -> None:
    assert jsonio.loads(number.encode()) == float(number)
    assert math.copysign(1, jsonio.loads(number.encode())) == math.copysign(1, float(number))


def test_an_integer_of_4300_digits_is_exact_and_one_more_digit_is_refused() -> None:
    assert sys.get_int_max_str_digits() == 4300
    digits = "7" * 4300
    assert jsonio.loads(digits.encode()) == int(digits)
    assert jsonio.dumps(jsonio.loads(digits.encode())) == digits.encode()
    for size in (4301, 5000, 100_000):
        assert "4300 digits" in refused(b"[" + b"7" * size + b"]")
        assert "4300 digits" in refused(b"[-" + b"7" * size + b"]")


@pytest.mark.parametrize("text", ["9007199254740993", "18446744073709551616", "-123456789012345678901234567890"])
def test_integers_above_53_and_64_bits_stay_exact(text: str) -> None:
    assert jsonio.dumps(jsonio.loads(text.encode())) == text.encode()


def nested(depth: int, opening: str, closing: str) -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_of_max_depth_is_accepted_and_one_level_more_is_refused(opening: str, closing: str) -> None:
    assert MAX_DEPTH == 64
    jsonio.loads(nested(64, opening, closing))
    assert "64" in refused(nested(65, opening, closing))


@pytest.mark.parametrize("depth", [66, 500, 900, 2_000, 20_000, 200_000])
def test_any_deeper_nesting_is_refused_alike_whatever_the_parser_makes_of_it(depth: int) -> None:
    refused(nested(depth, "[", "]"))
    refused(b'{"id":"d","state":' + nested(depth, "[", "]") + b"}")
    refused(b"[" * depth)


def test_nesting_is_refused_alike_however_full_the_callers_stack_is() -> None:
    def at(frames: int, data: bytes) -> Any:
        return at(frames - 1, data) if frames else jsonio.loads(data)

    at(300, nested(64, "[", "]"))
    with pytest.raises(InvalidJSON):
        at(300, nested(65, "[", "]"))


def test_brackets_inside_strings_are_not_nesting() -> None:
    assert jsonio.loads(b'["' + b"[{" * 500 + b'"]') == ["[{" * 500]


def test_many_shallow_containers_are_not_deep() -> None:
    assert jsonio.loads(b"[" + b"[]," * 500 + b"{}]") == [[]] * 500 + [{}]


def test_a_caller_with_containers_of_its_own_around_a_body_may_ask_for_more_depth() -> None:
    jsonio.loads(nested(80, "[", "]"), 80)
    with pytest.raises(InvalidJSON, match="80"):
        jsonio.loads(nested(81, "[", "]"), 80)


@pytest.mark.parametrize(
    "body",
    ['{"a":1,"a":1}', '{"a":1,"b":2,"a":3}', '[{"x":{"a":1,"\\u0061":2}}]', '{"questions":{"team":{},"team":{}}}'],
)
def test_a_name_that_occurs_twice_in_one_object_is_refused_and_named(body: str) -> None:
    message = refused(body.encode())
    assert "twice" in message
    assert ('"team"' if "team" in body else '"a"') in message


def test_a_long_doubled_name_is_shown_cut_short() -> None:
    name = "n" * 10_000
    assert len(refused(json.dumps({"x": 0}).replace("x", name)[:-1].encode() + f',"{name}":1}}'.encode())) < 200


def test_a_doubled_name_with_a_lone_surrogate_still_gives_a_message_that_can_be_encoded() -> None:
    refused(b'{"\\ud800":1,"\\ud800":2}')


def test_one_name_in_two_objects_and_names_that_differ_in_case_are_two_names() -> None:
    assert jsonio.loads(b'[{"a":1},{"a":2,"A":3,"a ":4}]') == [{"a": 1}, {"a": 2, "A": 3, "a ": 4}]


@pytest.mark.parametrize(
    "body",
    [
        '"\\ud800"',
        '"x\\udfffy"',
        '{"\\ud83d":1}',
        '{"a":[{"b":"\\ude00\\ud83d"}]}',
        '"\\ud83d\\ud83d\\ude00"',
        '"\\uD83Dx\\uDE00"',
    ],
)
def test_a_lone_surrogate_is_refused_in_values_and_in_names(body: str) -> None:
    assert "surrogate" in refused(body.encode())


@pytest.mark.parametrize("body", ['"\\ud83d\\ude00"', '"\\uD83D\\uDE00"', '"😀"'])
def test_a_pair_of_surrogates_is_one_character(body: str) -> None:
    assert jsonio.loads(body.encode()) == "😀"
    assert jsonio.loads(b"{" + body.encode() + b":1}") == {"😀": 1}


def test_an_escaped_backslash_before_u_is_not_a_surrogate() -> None:
    assert jsonio.loads(b'"\\\\ud800"') == "\\ud800"


@pytest.mark.parametrize("data", [b'"\xe9"', b'{"a":"\xff"}', b"\xff\xfe", b'"\xc0\xaf"', b'"\xed\xa0\x80"', b"\xf8"])
def test_bytes_that_are_not_utf8_are_refused(data: bytes) -> None:
    assert "UTF-8" in refused(data)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_another_encoding_is_never_guessed(encoding: str) -> None:
    refused('{"a":"é"}'.encode(encoding))


def test_a_byte_order_mark_is_tolerated_once() -> None:
    assert jsonio.loads(b'\xef\xbb\xbf{"a":1}') == {"a": 1}
    refused(b"\xef\xbb\xbf" * 2 + b"1")
    refused(b"\xef\xbb\xbf")


@pytest.mark.parametrize(
    "body",
    [
        "",
        " ",
        "{",
        "}",
        '{"a":1}{"b":2}',
        "[1,]",
        '{"a":1,}',
        "{a:1}",
        "'a'",
        "nul",
        "True",
        "+1",
        "01",
        ".5",
        "1.",
        "0x1",
        "1_000",
        '"\x00"',
        '"a\nb"',
        '"\\x41"',
        '"\\u12"',
        '"open',
        "// c\n1",
        "\u00a01",
    ],
)
def test_what_is_not_json_is_refused_with_the_place(body: str) -> None:
    refused(body.encode())


def test_the_offset_is_the_character_where_parsing_stopped() -> None:
    with pytest.raises(InvalidJSON) as caught:
        jsonio.loads('{"é": nope}'.encode())
    assert caught.value.offset == 6


@pytest.mark.parametrize("body", ["[]", '"x"', "5", "null", "true", "1.5"])
def test_a_root_that_is_no_object_is_json(body: str) -> None:
    assert jsonio.loads(body.encode()) == json.loads(body)


def test_the_order_of_names_is_kept_both_ways() -> None:
    text = b'{"z":1,"a":2,"10":3,"9":4,"2":{"b":1,"a":2}}'
    assert jsonio.dumps(jsonio.loads(text)) == text


def test_what_is_written_is_compact_utf8() -> None:
    assert jsonio.dumps({"a": ["é", None, True, 0.1 + 0.2]}) == '{"a":["é",null,true,0.30000000000000004]}'.encode()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_never_written(number: float) -> None:
    for value in (number, [number], {"a": {"b": number}}, {"null": None, "a": number}):
        with pytest.raises(ValueError, match=r".*"):
            jsonio.dumps(value)


@pytest.mark.parametrize("value", ["\ud800", ["a\udfff"], {"\ud800": 1}])
def test_a_lone_surrogate_is_never_written(value: Any) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        jsonio.dumps(value)


@pytest.mark.parametrize("value", [object(), [1j]])
def test_what_json_has_no_form_for_is_an_error_and_never_a_repr(value: Any) -> None:
    with pytest.raises(TypeError):
        jsonio.dumps(value)


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), [1j]])
def test_a_model_reads_nothing_that_json_has_no_form_for(value: Any) -> None:
    for text in (jsonio.canonical, jsonio.as_text):
        with pytest.raises(TypeError):
            text(value)


@pytest.mark.parametrize("value", [1e-5, 1e-7, 1e16, 1.5e300, [0.1, {"a": 2.5e-9}], 10**30, {"b": None, "a": "é\n"}])
def test_a_model_reads_numbers_in_the_standard_librarys_words(value: Any) -> None:
    """The digits are part of what was asked: another library's 0.00001 is other tokens than 1e-05."""
    expected = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert jsonio.as_text(value) == expected == jsonio.canonical(value).decode()


@pytest.mark.parametrize("value", ["é", "\ud800", "a\nb\u2028", {"k": ["\udfff", 1.5, None]}, "plain"])
def test_a_log_line_is_ascii_and_says_what_was_given(value: Any) -> None:
    line = jsonio.dumps_ascii(value)
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == value


def test_as_text_gives_strings_as_they_are_null_as_nothing_and_the_rest_as_compact_json() -> None:
    assert jsonio.as_text("None") == "None"
    assert jsonio.as_text("") == ""
    assert jsonio.as_text(None) == ""
    assert jsonio.as_text({"b": [True, None, "é"], "a": 1}) == '{"b":[true,null,"é"],"a":1}'
    assert jsonio.as_text(["x"]) == '["x"]'


@pytest.mark.parametrize("data", [b"", b"{", b"NaN", b"[Infinity]", b"\xff", b"[" * 200_000, b"7" * 5_000, b"1 2"])
def test_what_the_other_tier_wrote_is_read_leniently_but_raises_nothing_but_invalid_json(data: bytes) -> None:
    with pytest.raises(InvalidJSON) as caught:
        jsonio.loads_ours(data)
    str(caught.value).encode()


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


@given(FINITE)
@example(-0.0)
@example(5e-324)
@example(sys.float_info.max)
@example(0.1 + 0.2)
def test_a_finite_double_comes_back_bit_for_bit(value: float) -> None:
    assert bits(jsonio.loads(jsonio.dumps([value]))[0]) == bits(value)
    assert bits(jsonio.loads_ours(jsonio.dumps([value]))[0]) == bits(value)


def same(left: Any, right: Any) -> bool:
    """Equal in type, bits and order of names."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bits(left) == bits(right) if isinstance(left, float) else left == right


@given(json_values())
def test_any_value_comes_back_as_it_was(value: Any) -> None:
    assert same(jsonio.loads(jsonio.dumps(value)), value)
    assert same(jsonio.loads_ours(jsonio.dumps(value)), value)
    # Written by somebody else, with escapes and white space.
    assert same(jsonio.loads(json.dumps(value, indent=1).encode()), value)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_raise_nothing_but_invalid_json(data: bytes) -> None:
    for loads in (jsonio.loads, jsonio.loads_ours):
        try:
            loads(data)
        except InvalidJSON as error:
            str(error).encode()


#: Pieces that make nearly valid JSON likely.
PIECES = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"a"',
        '"\\ud800"',
        '"\\ud83d\\ude00"',
        "1",
        "-0",
        "1e400",
        "NaN",
        "null",
        "true",
        '"',
        "\\",
        "\ufeff",
        " ",
    ]
)


@given(st.lists(PIECES, max_size=24).map("".join))
@example("[" * 24)
def test_text_that_is_nearly_json_raises_nothing_but_invalid_json(text: str) -> None:
    try:
        value = jsonio.loads(text.encode())
    except InvalidJSON as error:
        str(error).encode()
    else:
        jsonio.dumps(value)  # whatever was let in can leave again


@given(json_values(), st.lists(st.none() | TEXT, min_size=0, max_size=80))
def test_depth_is_counted_exactly(value: Any, wrappers: list[str | None]) -> None:
    def depth(item: Any) -> int:
        if isinstance(item, dict):
            return 1 + max(map(depth, item.values()), default=0)
        return 1 + max(map(depth, item), default=0) if isinstance(item, list) else 0

    for name in wrappers:
        value = [value] if name is None else {name: value}
    data = jsonio.dumps(value)
    if depth(value) <= MAX_DEPTH:
        assert same(jsonio.loads(data), value)
    else:
        with pytest.raises(InvalidJSON, match="deeper"):
            jsonio.loads(data)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=5))
def test_names_are_refused_exactly_when_one_repeats(pairs: list[tuple[str, int]]) -> None:
    data = ("{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}").encode()
    if len({name for name, _ in pairs}) == len(pairs):
        assert list(jsonio.loads(data).items()) == pairs
    else:
        with pytest.raises(InvalidJSON, match="twice"):
            jsonio.loads(data)


def test_lines_are_what_each_object_is_alone() -> None:
    assert jsonio.dumps_lines([]) == b""
    two = '{"row":null}\n{"row":"é\\n","l":[]}\n'
    assert jsonio.dumps_lines([{"row": None}, {"row": "é\n", "l": []}]) == two.encode()


def test_lines_refuse_what_a_single_object_would() -> None:
    for value in (math.nan, "\ud800"):
        with pytest.raises(ValueError, match=r"not JSON compliant|surrogates"):
            jsonio.dumps_lines([{"row": 1}, {"row": value}])
