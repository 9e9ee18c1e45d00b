"""Goal: the image's bill of materials names every package by its purl, and is the same for the same packages."""

from __future__ import annotations

import runpy
from pathlib import Path

BOM = runpy.run_path(str(Path(__file__).parents[2] / "deploy" / "image_bom.py"))


def test_debian_packages_have_their_purl() -> None:
    found = list(BOM["debian_packages"]("libc6 2.36-9+deb12u10 amd64\ntzdata 2025b-0+deb12u1 all\n"))
    assert [each["purl"] for each in found] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64",
        "pkg:deb/debian/tzdata@2025b-0%2Bdeb12u1?arch=all",
    ]


def test_the_bill_names_what_is_installed_once_and_in_order() -> None:
    packages = list(BOM["python_packages"]())
    bill = BOM["bill"]([*packages, *reversed(packages)])
    purls = [each["purl"] for each in bill["components"]]
    assert purls == sorted(set(purls)) and BOM["bill"](list(reversed(packages))) == bill
    assert any(purl.startswith("pkg:pypi/msgpack@") for purl in purls)
    assert bill["metadata"]["component"]["version"] == "0.1.0"
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
