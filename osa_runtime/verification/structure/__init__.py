"""Structure: is the exported graph the one that a fresh export gives, up to names and order?"""
