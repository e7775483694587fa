"""Mixed-precision training, and text classifiers: the features of the program mezzo, for Python."""

import importlib

from mezzo._version import __version__

TYPE_CHECKING = False  # of typing, whose import takes as long as the rest

# Where each public name is. torch is imported when the first of them is used, and not before.
_MODULES = {  # name: module; of the same name, the module itself
    **dict.fromkeys(("CastLog", "FiniteTracer", "GradScaler", "MasterWeights", "OpPolicy", "advise_scale", "autocast"), "amp"),
    **dict.fromkeys(("Classifier", "Tokenizer"), "text"),
    "optim": "optim",
    "optimize": "_optimize",
    "train": "_train",
}

__all__ = sorted(_MODULES)


if TYPE_CHECKING:
    from typing import Any

    from mezzo import optim as optim
    from mezzo._optimize import optimize as optimize
    from mezzo._train import train as train
    from mezzo.amp import (CastLog as CastLog, FiniteTracer as FiniteTracer, GradScaler as GradScaler, MasterWeights as MasterWeights,
                           OpPolicy as OpPolicy, advise_scale as advise_scale, autocast as autocast)
    from mezzo.text import Classifier as Classifier, Tokenizer as Tokenizer
else:
    def __getattr__(name: str) -> "Any":
        if name in _MODULES:
            from mezzo import _library

            _library.folder()  # raises UnsupportedTorch before torch is imported
            module = importlib.import_module(f"mezzo.{_MODULES[name]}")
            return module if name == _MODULES[name] else getattr(module, name)
        raise AttributeError(f"module 'mezzo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
