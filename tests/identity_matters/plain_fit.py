"""A program for test_distribution.py: Keras's own fit, by a worker of TF_CONFIG. It prints what comes of it."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
dataset = tf.data.Dataset.from_tensor_slices((np.ones([8, 3], np.float32), np.ones([8, 1], np.float32)))
try:
    model.fit(dataset.batch(4), verbose=0)
    print("trained", flush=True)
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
os._exit(0)
