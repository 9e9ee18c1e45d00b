"""Both implementations of the kernel: a test that takes ``kernel`` runs on each."""

from __future__ import annotations

from types import ModuleType

import pytest

from sidecar.kernel import _kernel
from tests.kernel.journal import Journal
from tests.kernel.oracle import reference


@pytest.fixture(params=[_kernel, reference], ids=["extension", "twin"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


@pytest.fixture
def journal(kernel: ModuleType) -> Journal:
    return Journal(kernel)
