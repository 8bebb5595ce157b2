"""Exported models packed for other servers. No torch, no onnx.

triton_repository      a folder that NVIDIA's Triton serves: its layout, its samples, its configuration
ray_application        a folder that Ray Serve deploys: models and a config file
triton_model           what runs inside Triton, in its python backend
"""
