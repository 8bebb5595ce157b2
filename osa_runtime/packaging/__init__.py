"""Exported models packed for other servers, without torch and onnx.

triton_repository      a folder that NVIDIA's Triton serves: its layout, its samples, its configuration
ray_application        a folder that Ray Serve deploys: models and a config file
triton_model           the model inside Triton's python backend
"""
