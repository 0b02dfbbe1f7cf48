# SPDX-License-Identifier: Apache-2.0
"""Lets SGLang import without packages that exist for GPUs only: on PYTHONPATH of the tests.

In: imports of `sgl_kernel` and `torchvision`, in whatever process (SGLang spawns its children).
Out: modules whose every name is there and does nothing. Next: SGLang's CPU path, which calls none
of them. With UNPINNED=1 memory that SGLang wants pinned, which only accelerators have, is memory: for
its LoRA code.
"""

import functools
import importlib.machinery
import importlib.util
import os
import sys
import types

ABSENT = {"sgl_kernel", "torchvision"}


class _Name(type):
    """A class whose every attribute exists: enumerations of transforms, mostly."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = f"{cls.__name__}.{name}"
        setattr(cls, name, value)
        return value


class _Module(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__version__ = "0.28.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper():
            value = _Name(name, (), {})
        else:
            full = f"{self.__name__}.{name}"
            value = sys.modules.setdefault(full, _Module(full))
        setattr(self, name, value)
        return value

    def __call__(self, *args, **kwargs):
        """As a decorator, with and without arguments."""
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else lambda f: f


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


class _Unpinned:
    """Comes by when SGLang first looks for its LoRA code; torch is there then."""

    def find_spec(self, name, path=None, target=None):
        if name == "sglang.srt.lora.lora_manager":
            sys.meta_path.remove(self)
            torch = sys.modules["torch"]
            for f in ("arange", "empty", "ones", "tensor", "zeros"):
                setattr(torch, f, _without(getattr(torch, f)))
            torch.Tensor.pin_memory = lambda tensor, device=None: tensor


def _without(f):
    @functools.wraps(f)
    def unpinned(*args, pin_memory=False, **kwargs):
        return f(*args, **kwargs)

    return unpinned


if os.environ.get("UNPINNED"):
    sys.meta_path.insert(0, _Unpinned())

# Last: a package that is there comes first.
sys.meta_path.append(_Finder())
