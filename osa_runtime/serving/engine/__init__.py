"""The server without a network: models, their queues and batches, and what they counted."""
