"""The `alpacactl` command, one module per noun; asks brokers through `client` only."""
