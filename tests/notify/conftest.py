from __future__ import annotations

import pytest

from tests.cli.conftest import desk
from tests.notify.inbox import an_inbox

inbox = pytest.fixture(an_inbox)
__all__ = ["desk"]
