"""A user's Keras callbacks in a run: which of their hooks are called, when, and with what.

    hook                              when
    set_params, set_model             once, first; params: steps, epochs (evaluations in all); model: the network
    on_train_begin()                  the run begins, or goes on
    on_epoch_begin(i)                 before the first update that evaluation i, from 0, looks back on
    on_train_batch_begin(step)        before each call into the compiled program, which is steps_per_execution updates
    on_train_batch_end(step, logs)    after it: loss, cross_entropy, top1 and top5, means since the last checkpoint
                                      or evaluation
    on_epoch_end(i, logs)             after evaluation i: its row of metrics.csv, but for epoch, and the test or
                                      held-out loss as val_loss
    on_train_end(logs)                all results are written; the last row

So Keras's epoch is what lies between two evaluations. `step` is the number of the call's last update, from 0 over the
whole run (in on_train_batch_begin of its first). No other hook is called, and none where the run was done before, also
where its results are written again. `self.model` is the network, not compiled: from standardised images to logits. A
callback that sets `self.model.stop_training` ends the run as its last step would: after the call under way, or in
on_train_begin after the first, with a checkpoint, an evaluation and the results, status done. With callbacks there is a
checkpoint at each evaluation, where many of them end a run.

Of Keras's callbacks those that need the optimiser, which the network does not have, are refused before anything is
written, and so are their subclasses: see REFUSED. BackupAndRestore is too, whose weights would replace those of the
newest checkpoint. EarlyStopping and ModelCheckpoint need mode="min" or "max" where they monitor anything but a loss.

A callback that only looks on leaves the run bit-identical. The callbacks' own state is in no checkpoint: after an
interruption they start afresh, at the step of the newest checkpoint, and updates since then come to them again.
"""

from collections.abc import Iterable, Iterator, Sequence

import keras

from identity_matters.config import TrainConfig
from identity_matters.errors import UserError

_OWN_SCHEDULE = "the config's schedule sets the learning rate, which the logs of on_epoch_end hold"
_OWN_CHECKPOINTS = "the run saves and restores its own checkpoints; ModelCheckpoint saves the network besides"
# Names in keras.callbacks, and what a run does in their place.
REFUSED = {
    "BackupAndRestore": _OWN_CHECKPOINTS,
    "LearningRateScheduler": _OWN_SCHEDULE,
    "OrbaxCheckpoint": _OWN_CHECKPOINTS,
    "ReduceLROnPlateau": _OWN_SCHEDULE,
    "SwapEMAWeights": "the run's optimiser averages no weights",
    "TensorBoard": "the run writes its own TensorBoard events, into run_dir",
}


def checked_callbacks(
    callbacks: keras.callbacks.Callback | Sequence[keras.callbacks.Callback] | None,
) -> tuple[keras.callbacks.Callback, ...]:
    """Returns callbacks, given as Keras takes them, with which a run can go on to its end.

    Raises:
      TypeError: one of them is no Keras callback.
      UserError: one is in REFUSED, or a subclass of it, or does not know whether more or less of its metric is better.
    """
    if callbacks is None or isinstance(callbacks, keras.callbacks.Callback):
        callbacks = [] if callbacks is None else [callbacks]
    if not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks must be keras.callbacks.Callback objects, got {callbacks!r}")
    callbacks = tuple(_unpacked(callbacks))
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"callbacks must be keras.callbacks.Callback objects, got {callback!r}")
        kind = type(callback).__name__
        for name, reason in REFUSED.items():
            if isinstance(callback, getattr(keras.callbacks, name, ())):  # older versions of Keras lack some
                which = kind if kind == name else f"{kind}, which is a {name}"
                raise UserError(f"{which} cannot be a callback of a run: {reason}")
        # Keras looks up what is better in the metrics of a compiled model, at the first evaluation.
        if isinstance(callback, (keras.callbacks.EarlyStopping, keras.callbacks.ModelCheckpoint)):
            is_open = callback.mode == "auto" and callback.monitor_op is None
            if is_open and callback.monitor.removeprefix("val_") != "loss":
                raise UserError(
                    f"{kind} must be told what is better, mode='min' or 'max' for monitor={callback.monitor!r}"
                )
    return callbacks


def _unpacked(callbacks: Iterable[keras.callbacks.Callback]) -> Iterator[keras.callbacks.Callback]:
    """Yields the callbacks, those of a CallbackList one by one."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CallbackList):
            yield from _unpacked(callback.callbacks)
        else:
            yield callback


class RunCallbacks(keras.callbacks.Callback):
    """Hands the events of a run to a user's callbacks; itself the callback of each call of fit.

    Args:
      callbacks: What `checked_callbacks` returns.
      network: keras.Model. What they get as their model.
      config: TrainConfig. Read: train_steps, eval_every, steps_per_execution.
    """

    def __init__(
        self, callbacks: Sequence[keras.callbacks.Callback], network: keras.Model, config: TrainConfig
    ) -> None:
        super().__init__()
        self._network, self._steps_per_call = network, config.steps_per_execution
        self._next_step = self._epoch = 0
        self._is_in_epoch, network.stop_training = False, False
        epochs = -(-config.train_steps // config.eval_every)
        self._list = keras.callbacks.CallbackList(
            list(callbacks), model=network, steps=config.train_steps, epochs=epochs, verbose=0
        )

    @property
    def are_given(self) -> bool:
        """Returns whether there is any, which may ask for the end of the run at each evaluation."""
        return bool(self._list.callbacks)

    @property
    def is_stopping(self) -> bool:
        """Returns whether a callback has asked for the end of the run."""
        return self._network.stop_training

    def begin(self, step: int, num_evaluations: int) -> None:
        """Takes notice that training goes on after these numbers of updates and evaluations."""
        self._next_step, self._epoch = step, num_evaluations
        self._list.on_train_begin()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Takes notice of a call into the compiled program, and of the epoch that it may begin."""
        if not self._is_in_epoch:
            self._is_in_epoch = True
            self._list.on_epoch_begin(self._epoch)
        self._list.on_train_batch_begin(self._next_step)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Takes notice of the end of a call, and ends fit where a callback asks for it."""
        self._next_step += self._steps_per_call
        if not self.are_given:
            return
        training = self.model  # under JAX, asking for it gives the network the weights of now
        self._list.on_train_batch_end(self._next_step - 1, logs)
        if self.is_stopping:
            training.stop_training = True

    def evaluated(self, step: int, row: dict[str, float]) -> None:
        """Takes notice of the row of an evaluation."""
        self._next_step, self._is_in_epoch = step, False
        logs = {name: value for name, value in row.items() if name != "epoch"}  # which Keras uses for its own
        self._list.on_epoch_end(self._epoch, logs | {"val_loss": row["test_cross_entropy"]})
        self._epoch += 1

    def end(self, row: dict[str, float]) -> None:
        """Takes notice that the results are written."""
        self._list.on_train_end(row)
