"""Message attributes: what may be one, their digest, and their way through record headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.api.sqs import message_attributes
from alpacamq.api.sqs.errors import Fault
from alpacamq.api.sqs.message_attributes import Selection, digest, pack, unpack
from alpacamq.api.sqs.requests import AttributeValue
from alpacamq.model.records import Header


def text(value: str, data_type: str = "String") -> AttributeValue:
    return AttributeValue(data_type=data_type, string_value=value)


def binary(value: bytes, data_type: str = "Binary") -> AttributeValue:
    return AttributeValue(data_type=data_type, binary_value=value)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        pytest.param(
            {"MyAttribute": text("foobar")}, "adb59cd4678ea5a855436b949cd07ab6", id="a digest that AWS gave"
        ),
        pytest.param(
            {"attr1": binary(b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01")},
            "8cbe4db156db8a94db8b801b7addb984",
            id="one of binary data",
        ),
        pytest.param(
            {"b": text("2"), "a": text("1")},
            digest({"a": text("1"), "b": text("2")}),
            id="order does not count",
        ),
    ],
)
def test_the_digest_is_the_one_sdks_compute(attributes: dict[str, AttributeValue], expected: str) -> None:
    assert digest(attributes) == expected


@pytest.mark.parametrize(
    ("name", "attribute", "complaint"),
    [
        ("", text("x"), "name"),
        ("a" * 257, text("x"), "name"),
        (".a", text("x"), "name"),
        ("a.", text("x"), "name"),
        ("a..b", text("x"), "name"),
        ("a b", text("x"), "name"),
        ("AWS.x", text("x"), "name"),
        ("amazon.x", text("x"), "name"),
        ("sqs-attribute-types", text("x"), "reserved"),
        ("alpacamq-message-id", text("x"), "reserved"),
        ("a", text("x", ""), "non-empty message attribute type"),
        ("a", text("x", "Float"), "supported type prefixes"),
        ("a", text("x", "String."), "supported type prefixes"),
        ("a", text("x", "String." + "a" * 250), "supported type prefixes"),
        ("a", text(""), "non-empty value"),
        ("a", binary(b""), "non-empty value"),
        ("a", text("x", "Binary"), "must use field 'Binary'"),
        ("a", binary(b"x", "Number"), "must use field 'String'"),
        ("a", text("ten", "Number"), "to a number"),
        ("a", text("1e127", "Number"), "to a number"),
        ("a", text("1e-129", "Number"), "to a number"),
        ("a", text("1" * 39, "Number"), "to a number"),
        ("a", text("NaN", "Number"), "to a number"),
        ("a", text("1_0", "Number"), "to a number"),
        ("a", text("bell \x07"), "Invalid characters"),
        ("a", AttributeValue(data_type="String", string_list_values=["x"]), "list values"),
    ],
)
def test_invalid_input_is_refused(name: str, attribute: AttributeValue, complaint: str) -> None:
    with pytest.raises(Fault, match=complaint):
        message_attributes.check({name: attribute})


@pytest.mark.parametrize(
    "number", ["0", "-1.5", "+.5", "1.", "9" * 38, "1e126", "-1E-128", "000", "1" + "0" * 100]
)
def test_numbers_are_taken_within_the_precision_of_sqs(number: str) -> None:
    assert message_attributes.check({"n": text(number, "Number.float")}) == 1 + 12 + len(number)


def test_more_than_ten_attributes_are_refused() -> None:
    with pytest.raises(Fault, match=r"\[11\]"):
        message_attributes.check({f"a{index}": text("x") for index in range(11)})


NAMES = st.from_regex(r"[a-zA-Z0-9_-]{1,10}(\.[a-z]{1,5})?", fullmatch=True).filter(
    lambda name: (
        not name.startswith(message_attributes.RESERVED_PREFIXES) and not name.lower().startswith("aws.")
    )
)
TEXTS = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="\ufffe\uffff"), min_size=1
)
VALUES = st.one_of(
    st.builds(text, TEXTS, st.sampled_from(["String", "String.json"])),
    st.builds(text, st.integers().map(str), st.sampled_from(["Number", "Number.int"])),
    st.builds(binary, st.binary(min_size=1), st.sampled_from(["Binary", "Binary.png"])),
)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_attributes_come_out_of_headers_as_they_went_in(attributes: dict[str, AttributeValue]) -> None:
    assert unpack(pack(attributes)) == attributes


def test_an_attribute_is_a_header_with_the_plain_value() -> None:
    assert pack({"color": text("red")}) == [Header("color", b"red")]


@given(st.lists(st.builds(Header, st.text(), st.none() | st.binary())))
def test_headers_of_any_producer_can_be_shown(headers: list[Header]) -> None:
    for name, attribute in unpack(headers).items():
        assert message_attributes.is_attribute_name(name)
        assert (attribute.string_value is None) != (attribute.binary_value is None)


@pytest.mark.parametrize(
    ("requested", "given_back"),
    [
        (None, set()),
        ([], set()),
        (["All"], {"a", "a.b", "ab", "c"}),
        ([".*"], {"a", "a.b", "ab", "c"}),
        (["a"], {"a"}),
        (["a.*"], {"a", "a.b", "ab"}),
        (["c", "a.b"], {"c", "a.b"}),
        (["missing"], set()),
    ],
)
def test_a_receive_returns_requested_attributes(requested: list[str] | None, given_back: set[str]) -> None:
    attributes = {name: text("x") for name in ("a", "a.b", "ab", "c")}
    selection = Selection(requested)
    assert (set() if selection.is_empty else selection.of(attributes).keys()) == given_back
