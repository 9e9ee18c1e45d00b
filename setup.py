"""What pyproject.toml cannot say: the linker's guards are those of Linux. On macOS the stub is built for its fakes."""

import sys

from setuptools import setup
from setuptools.command.build_ext import build_ext as BuildExt


class Guarded(BuildExt):
    def build_extension(self, extension):
        if sys.platform != "linux":
            extension.extra_link_args = []
        super().build_extension(extension)


setup(cmdclass={"build_ext": Guarded})
