"""Files in a directory that Python loads instead of torch or a module of its standard library."""

import sys

import pytest

from ddp_doctor.knowledge.import_path import NEEDED, hidden_modules

IN_TORCH = ("__init__.py", "version.py", "nn")


@pytest.mark.parametrize(
    ("tree", "hidden"),
    [
        ({"torch.py": ()}, {"torch": "torch.py"}),
        ({"random.py": (), "train.py": ()}, {"random": "random.py"}),
        ({"logging": ("__init__.py", "handlers.py")}, {"logging": "logging/__init__.py"}),
        ({"logging": ("__init__.py",), "logging.py": ()}, {"logging": "logging/__init__.py"}),
        ({"logging": ("run1.log",), "logging.py": ()}, {"logging": "logging.py"}),
        ({"torch": IN_TORCH}, {"torch": "torch/__init__.py"}),
    ],
)
def test_a_module_or_package_of_that_name_hides_pythons_own(tree, hidden):
    assert hidden_modules(tree, tree.get) == hidden


@pytest.mark.parametrize(
    "tree",
    [
        {"utils": ("__init__.py",), "models.py": (), "train.py": ()},
        {"random.pyi": (), "torch.txt": (), "Random.py": ()},
        {"logging": ("run1.log",), "json": ()},
        {"time.py": (), "sys.py": (), "os.py": (), "csv.py": (), "turtle.py": ()},
        {"torch": (*IN_TORCH, "_C.cpython-311-x86_64-linux-gnu.so")},
        {"os.py": (), "site.py": (), "random.py": (), "logging": ("__init__.py",)},
    ],
    ids=["own-package", "no-module", "no-init", "not-hidden-or-not-needed", "installed-torch", "pythons-library"],
)
def test_files_that_python_does_not_load_instead_hide_no_module(tree):
    assert hidden_modules(tree, tree.get) == {}


def test_every_needed_module_is_one_of_pythons_library_that_can_be_hidden():
    assert NEEDED.issubset(sys.stdlib_module_names)
    assert not NEEDED & {"os", "sys", "site", "io", "abc", "codecs", "stat", "time"}
