"""The gRPC API: its .proto files, and the modules that `make proto` generates from them."""
