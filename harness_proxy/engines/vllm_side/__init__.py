"""What runs inside vLLM, in whatever environment that is: files here import torch and nothing of ours."""
