"""The cluster's cores in virtual time, with faults."""
