"""The schema registry: subjects, versions, compatibility, and the three schema languages."""
