"""The tests: one folder per package of src, compat/ for foreign clients, integration/ for real kills."""
