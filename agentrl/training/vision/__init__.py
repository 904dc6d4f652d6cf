"""Vision: models that see images, and the pixels that they are trained on."""
