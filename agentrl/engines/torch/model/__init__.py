"""The model behind TorchEngine: configuration, weights and forward passes."""
