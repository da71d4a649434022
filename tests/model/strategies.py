"""Records and batches as hypothesis makes them."""

from hypothesis import strategies as st

from alpacamq.model.batch import Codec
from alpacamq.model.records import Header, Record

CODECS = st.sampled_from(Codec)
OPTIONAL_BYTES = st.one_of(st.none(), st.binary(max_size=200))
TEXTS = st.text(max_size=10)
HEADERS = st.lists(st.builds(Header, TEXTS, OPTIONAL_BYTES), max_size=3).map(tuple)
TIMESTAMPS = st.integers(-1, 2**62)
OFFSETS = st.integers(0, 2**62)


@st.composite
def record_lists(draw: st.DrawFn, min_size: int = 1, max_size: int = 8) -> list[Record]:
    """Records whose offsets ascend, not always by one."""
    offset = draw(OFFSETS)
    records = []
    for _ in range(draw(st.integers(min_size, max_size))):
        records.append(
            Record(offset, draw(TIMESTAMPS), draw(OPTIONAL_BYTES), draw(OPTIONAL_BYTES), draw(HEADERS))
        )
        offset += draw(st.integers(1, 1000))
    return records
