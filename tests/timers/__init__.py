"""Tests of the delay machine and its timer wheel, without I/O."""
