"""The image's bill of materials (CycloneDX 1.6, JSON), printed from inside of it: any engine can do that.

docker run --rm -i --network none --entrypoint python kafka-sidecar - < deploy/image_bom.py > image.cdx.json

Components are the Python packages of the product and Debian's packages. Only the standard library is used.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from typing import Any
from urllib.parse import quote

Component = dict[str, Any]


def python_packages() -> Iterator[Component]:
    """What this interpreter can import."""
    for each in distributions():
        metadata = each.metadata
        name, version = str(metadata["Name"]), str(metadata["Version"])
        found = component(name, version, f"pkg:pypi/{quote(name.lower().replace('_', '-'))}@{quote(version)}")
        expression = metadata.get("License-Expression")
        yield found if expression is None else {**found, "licenses": [{"expression": str(expression)}]}


def debian_packages(listed: str) -> Iterator[Component]:
    """``listed``: lines of name, version and architecture, as dpkg-query prints them."""
    for line in listed.splitlines():
        name, version, architecture = line.split()
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='.-~')}?arch={architecture}"
        yield component(name, version, purl)


def component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def bill(packages: list[Component]) -> dict[str, Any]:
    """The same packages give the same bytes: no time and no serial number."""
    ordered = sorted({each["purl"]: each for each in packages}.values(), key=lambda each: str(each["purl"]))
    version = next((each["version"] for each in ordered if each["name"] == "kafka-sidecar"), "0")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "kafka-sidecar", "version": version}},
        "components": ordered,
    }


def main() -> None:
    shown = "--showformat=${Package} ${Version} ${Architecture}\n"
    listed = subprocess.run(["dpkg-query", "--show", shown], capture_output=True, text=True, check=True)
    packages = [*python_packages(), *debian_packages(listed.stdout)]
    json.dump(bill(packages), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
