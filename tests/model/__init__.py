"""Tests of the vocabulary: bytes against other people's implementations, and everything hostile."""
