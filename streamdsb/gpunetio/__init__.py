"""Queues on a network card that the GPU drives itself, through NVIDIA DOCA GPUNetIO."""
