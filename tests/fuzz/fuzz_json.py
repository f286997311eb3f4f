"""The strict JSON reader takes exactly what the reference takes, and reads the same value; it raises InvalidJSON and
nothing else; what it took is written and read again unchanged."""

from __future__ import annotations

from shared import jsonio
from tests.fuzz import reference_json

SEEDS = [
    b'{"id":"d1","state":{"a":[1,-0,0.5,1e3,true,false,null]},"b":"\\ud83d\\ude00\\n\\u0000"}',
    b"\xef\xbb\xbf[]",
    b'"\\ud800"',
    b'"\\ud800\\ud83d\\ude00"',
    b'{"a":1,"\\u0061":2}',
    b"[NaN,Infinity,-Infinity]",
    b"1e400",
    b"-1E-400",
    b"9" * 4300,
    b"-" + b"9" * 4301,
    b"[" * 64 + b"]" * 64,
    b'{"a":' * 64 + b"[" + b"]" + b"}" * 64,
    '"é\u2028"'.encode(),
    b'"\xed\xa0\x80"',
    b'"\x00"',
    b" \t\r\n{ } ",
    b"01",
    b"[1,]",
    b"\xff\xfe[\x00]\x00",
]


def check(data: bytes) -> None:
    try:
        expected = (True, reference_json.read(data))
    except reference_json.Refused:
        expected = (False, None)
    try:
        found = (True, jsonio.loads(data))
    except jsonio.InvalidJSON as error:
        found = (False, None)
        refusal: jsonio.InvalidJSON | None = error
    else:
        refusal = None
    # By their text: 1, 1.0 and true are equal in Python, and so are objects whose names come in another order.
    assert repr(found) == repr(expected), (data, found, expected)
    if refusal:
        # The answer repeats both.
        assert len(str(refusal).encode("utf-8")) < 1000
        assert 0 <= refusal.offset <= len(data)
    else:
        written = jsonio.dumps(found[1])
        assert repr(jsonio.loads(written)) == repr(found[1])
        assert repr(jsonio.loads_ours(written)) == repr(found[1])
        assert jsonio.dumps_ascii(found[1]).isascii()
