"""The `alpacactl` command, one module per noun; accesses brokers through `client` only."""
