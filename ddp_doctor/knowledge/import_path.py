"""The user's files that Python loads instead of its own modules or torch.

``python train.py`` searches the script's directory first, ``python -m`` the working directory, then each entry of
PYTHONPATH, then its own library and site-packages (docs.python.org, "The initialization of the sys.path module search
path"). In a directory, a package with ``__init__.py`` comes before ``NAME.py``. A directory without ``__init__.py``
comes after every module further down the path (PEP 420), so it hides nothing.
"""

import sys
from collections.abc import Callable, Collection

TORCH = "torch"
#: Modules of Python's library that torch needs to start. Measured with torch 2.13 under Python 3.11: with an empty
#: module of that name first on the path, ``import torch.distributed.run, torch.nn.parallel, torch.utils.data,
#: torch._dynamo.utils`` fails. Not included: modules that are built in or frozen in that Python, which cannot be
#: hidden, and modules that torch loads but can start without, such as csv and shutil.
NEEDED = frozenset(
    """
    argparse array ast asyncio base64 binascii bisect cmath collections colorsys concurrent contextlib
    contextvars copy copyreg ctypes dataclasses datetime decimal dis email encodings enum fnmatch fractions
    functools getpass gettext glob heapq hmac http importlib inspect json keyword linecache logging math mmap
    multiprocessing numbers opcode operator pathlib pickle pkgutil platform pprint profile queue quopri random
    re reprlib secrets select selectors signal socket ssl string struct subprocess sysconfig tempfile textwrap
    threading timeit token tokenize traceback types typing unicodedata unittest urllib uuid warnings weakref
    zlib
    """.split()  # noqa: SIM905  a list of words
)
#: Modules that torch loads only with torch._dynamo, which torch.compile needs. Measured in the same way.
LATE = frozenset("colorsys decimal fractions getpass hmac profile secrets sysconfig".split())  # noqa: SIM905  words
#: Files that are together only in the directory of Python's own library.
_LIBRARY = {"os.py", "site.py"}


def hidden_modules(names: Collection[str], inside: Callable[[str], Collection[str]]) -> dict[str, str]:
    """Return the needed modules, or torch, that Python would load from a directory instead: the file by module.

    ``names`` are the names in the directory, ``inside(name)`` the names in a subdirectory, or empty if it is not a
    directory. Python's library itself, and an installed torch, hide nothing.
    """
    if _LIBRARY.issubset(names):
        return {}
    found = {}
    needed = NEEDED.difference(sys.builtin_module_names) | {TORCH}
    for module in sorted(needed.intersection(name.removesuffix(".py") for name in names)):
        below = inside(module) if module in names else ()
        # An installed torch has its compiled part in the directory (torch/_C.cpython-311-….so).
        is_torch = module == TORCH and any(name.startswith("_C.") and name.endswith(".so") for name in below)
        if "__init__.py" in below:
            if not is_torch:
                found[module] = f"{module}/__init__.py"
        elif f"{module}.py" in names:
            found[module] = f"{module}.py"
    return found
