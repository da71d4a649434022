"""Programs in JavaScript and Go that use a schema registry with unmodified clients."""
