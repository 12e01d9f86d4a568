"""Out into other tools: detections in their formats, and the detector itself as ONNX."""
