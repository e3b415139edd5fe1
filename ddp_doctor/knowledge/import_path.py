"""Files of the user's that Python finds in place of its own modules or of torch.

``python train.py`` searches the script's folder first, ``python -m`` the working directory, then each entry of
PYTHONPATH, then its own library and site-packages (docs.python.org, "The initialization of the sys.path module search
path"). In a folder a package with ``__init__.py`` comes before ``NAME.py``; a folder without ``__init__.py`` loses
against every module further down the path (PEP 420), and so hides nothing here.
"""

import sys
from collections.abc import Callable, Collection

TORCH = "torch"
#: The modules of Python's library without which torch does not come up. Measured with torch 2.13 under Python 3.11:
#: with an empty module of that name first on the path, ``import torch.distributed.run, torch.nn.parallel,
#: torch.utils.data, torch._dynamo.utils`` fails. Not among them: what that Python has built in or frozen, which
#: nothing hides, and what torch loads and gets by without, such as csv and shutil.
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
#: Those that torch loads only with torch._dynamo, which torch.compile needs. Measured in the same way.
LATE = frozenset("colorsys decimal fractions getpass hmac profile secrets sysconfig".split())  # noqa: SIM905  words
#: What stands together in the folder of Python's own library, and nowhere else.
_LIBRARY = {"os.py", "site.py"}


def hidden_modules(names: Collection[str], inside: Callable[[str], Collection[str]]) -> dict[str, str]:
    """The needed modules, and torch, in whose place Python would load something from a folder: its file by module.

    ``names`` are the names in the folder, ``inside(name)`` those in a folder below it, none where it is no folder.
    Python's library itself, and an installed torch, hide nothing.
    """
    if _LIBRARY.issubset(names):
        return {}
    found = {}
    needed = NEEDED.difference(sys.builtin_module_names) | {TORCH}
    for module in sorted(needed.intersection(name.removesuffix(".py") for name in names)):
        below = inside(module) if module in names else ()
        # An installed torch has its compiled part there (torch/_C.cpython-311-….so).
        is_torch = module == TORCH and any(name.startswith("_C.") and name.endswith(".so") for name in below)
        if "__init__.py" in below:
            if not is_torch:
                found[module] = f"{module}/__init__.py"
        elif f"{module}.py" in names:
            found[module] = f"{module}.py"
    return found
