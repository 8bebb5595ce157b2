"""Exported models packed for other servers, without torch and onnx, and for browsers, without torch.

triton_repository      a folder that NVIDIA's Triton serves: its layout, its samples, its configuration
ray_application        a folder that Ray Serve deploys: models and a config file
triton_model           the model inside Triton's python backend
web_page               a static folder with a page that runs the model: the page itself is in web/, web_graph adds the
                       attention matrices to the model
"""
