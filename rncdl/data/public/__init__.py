"""The paper's two settings, made from the files in which COCO, LVIS and Visual Genome come."""
