"""The version of AlpacaMQ."""

VERSION = "0.1.0"
