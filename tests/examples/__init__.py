"""The programs of examples/python, run as users run them."""
