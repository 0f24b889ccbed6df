"""Weights of models in the library transformers, which is not needed to convert them."""
