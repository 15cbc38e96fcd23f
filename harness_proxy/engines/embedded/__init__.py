"""An inference engine in PyTorch for small Qwen3 models: continuous batching, KV cache, prefix reuse.

Read engine.py first. This package imports torch only when one of its modules is imported.
"""
