"""Queue mode: leases, deliveries, receipts."""
