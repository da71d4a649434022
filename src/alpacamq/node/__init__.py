"""One broker process: its configuration, its wiring and its root task group."""
