"""Images and labels: from memory, from an .npz file, from TFDS; the batch stream."""
