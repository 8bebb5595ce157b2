"""The command line ``osa``: one command per file, which parses, calls and prints."""
