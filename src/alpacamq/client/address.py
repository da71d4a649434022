"""Where a broker is reached, the way users write it: the port may be left out."""

from alpacamq.model.address import Address

DEFAULT_PORT = 9092


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """The address in HOST, HOST:PORT or [IPv6]:PORT, or ValueError saying what is wrong with it."""
    text = text.strip()
    if ":" not in text or text.endswith("]"):
        text = f"{text}:{default_port}"
    address = Address.parse(text)
    if address.port == 0:
        raise ValueError(f"{text!r}: port 0 is for listening, a broker is reached at 1 to 65535")
    return address
