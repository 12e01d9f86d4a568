"""Out into other tools: annotation formats, and the detector itself as ONNX."""
