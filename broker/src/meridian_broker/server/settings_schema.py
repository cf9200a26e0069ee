# SPDX-License-Identifier: Apache-2.0
"""The settings as a JSON schema, so that the Helm chart refuses what the broker would refuse.

``python -m meridian_broker.server.settings_schema FILE`` prints the chart's schema FILE with its definition
``settings`` regenerated.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from meridian_broker.server.settings import BY_KEY, Setting

ONE_LINE: Final = r"^[^\x00-\x1f\x7f]*$"
"""A configuration file has a line per setting: a value with a line break would be another setting."""

LARGEST: Final = 1 << 53
"""Helm handles numbers as floating point: larger ones would change."""

_DEFINITION: Final = re.compile(r'("settings": \{[^{}]*"properties": \{\n).*?(\n? *\}\n    \}\n)', re.DOTALL)


def value_schema(setting: Setting) -> dict[str, Any]:
    """The allowed values of one setting."""
    if setting.kind is bool:
        return {"type": "boolean"}
    if setting.kind is int:
        assert setting.maximum is not None, "whole numbers have bounds"
        return {"type": "integer", "minimum": setting.minimum, "maximum": min(setting.maximum, LARGEST)}
    if get_origin(setting.kind) is Literal:
        return {"enum": list(get_args(setting.kind))}
    return {"type": "string", "pattern": ONE_LINE}


def with_settings(schema: str) -> str:
    """The text of a schema with every setting in its definition ``settings``.

    :raises ValueError: it has no such definition.
    """
    lines = [f"        {json.dumps(key)}: {json.dumps(value_schema(BY_KEY[key]))}" for key in sorted(BY_KEY)]
    told, count = _DEFINITION.subn(lambda found: found[1] + ",\n".join(lines) + "\n      }\n    }\n", schema)
    if count != 1:
        raise ValueError('expected one definition "settings" that ends with the definitions')
    return told


if __name__ == "__main__":
    sys.stdout.write(with_settings(Path(sys.argv[1]).read_text(encoding="utf-8")))
