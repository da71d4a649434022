"""Power cuts under load: a disk that loses what was not synced, and a checker of what was promised."""
