"""Every error that this package raises on purpose, as one tree.

    OsaError                          exit code 3
    ├── InputError (ValueError)       exit code 2   a value, shape, dtype, mask or flag from the caller
    │   └── ConfigError               exit code 2   a configuration that cannot be built
    ├── ExponentRangeError (ArithmeticError)        ‖S‖ beyond what the exponential can represent
    ├── DataError                                   a data set that is unknown, missing or damaged
    ├── CheckpointError                             a checkpoint that is missing, damaged or of another version
    ├── ExportError                                 a model that cannot be exported
    ├── ArtifactError                               an exported folder that is missing, damaged or changed
    │   └── InterfaceError                          a model whose inputs or outputs are not those of its manifest
    ├── DeviceError                                 a requested device that cannot be used
    ├── RunError                                    a model that failed while it ran, or returned NaN or Inf
    ├── StorageError                                a path that cannot be read or written, a full disk
    └── MissingDependencyError                      an optional package that is not installed

Each message says what was wrong, what was received, what was expected and what to do.
The command line prints the message and exits with ``exit_code``; it never shows a traceback for these.
"""

from __future__ import annotations


class OsaError(Exception):
    """The root of the tree: catch this to catch every error that the package raises on purpose."""

    exit_code = 3


class InputError(OsaError, ValueError):
    """A value, shape, dtype, mask or flag that the caller passed is not acceptable."""

    exit_code = 2


class ConfigError(InputError):
    """A configuration whose fields contradict each other or lie outside their range."""


class ExponentRangeError(OsaError, ArithmeticError):
    """The norm of the exponent is beyond what the chosen scaling and precision can represent."""


class DataError(OsaError):
    """A data set is unknown, not present, or not what its checksum says."""


class CheckpointError(OsaError):
    """A checkpoint is missing, damaged, or does not belong to the model."""


class ExportError(OsaError):
    """A model could not be exported; the message names the step and the layer or flag."""


class ArtifactError(OsaError):
    """An exported folder is missing, damaged, or not what its manifest says."""


class InterfaceError(ArtifactError):
    """The inputs or outputs of a model file are not those that its manifest declares."""


class DeviceError(OsaError):
    """The requested device cannot be used; the message says what is missing and how to get it."""


class RunError(OsaError):
    """A loaded model failed while it ran, or its outputs are not finite where they must be."""


class StorageError(OsaError):
    """A path could not be read or written."""


class MissingDependencyError(OsaError):
    """An optional dependency is needed for this and is not installed."""
