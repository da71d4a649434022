"""Where Spark looks for the data source named `alpacamq`. Light: Spark imports it to see what is there."""
