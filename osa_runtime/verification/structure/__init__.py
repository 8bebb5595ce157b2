"""Structure: the comparison of an exported graph with that of a fresh export, up to names and order."""
