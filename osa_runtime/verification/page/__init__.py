"""A verification as one self-contained page."""
