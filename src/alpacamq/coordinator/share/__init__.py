"""Share groups of KIP-932: members, assignment, settings."""
