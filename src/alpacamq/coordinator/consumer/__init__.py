"""Consumer groups of KIP-848: members, assignment, reconciliation."""
