"""REST around the engine, on uvicorn and Starlette."""
