"""Three distributions out of one tree: what is built for a package index.

``python deploy/packages/distributions.py FOLDER`` writes a project into FOLDER for each; ``pip wheel``, ``build`` and
``cibuildwheel`` take them as they are. An application's process installs the stub alone, which has no daemon, bench or
test kit in it. ``pip install .`` in a clone installs everything in one piece.

| distribution | packages | is installed by |
| kafka-sidecar | the stub and the Spark sink | ``pip install kafka-sidecar`` |
| kafka-sidecar-daemon | the daemon and the command line | the extra [daemon] |
| kafka-sidecar-tools | bench, chaos, demo and the test kit | the extra [demo] |
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOLS = "tools"
BRANCH = "blob/main"
IGNORED = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info", ".*")


def write_all(folder: Path) -> list[Path]:
    """The three projects. A folder that is there is replaced."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())
    made = []
    for name, fill in (
        ("kafka-sidecar", _stub),
        ("kafka-sidecar-daemon", _daemon),
        ("kafka-sidecar-tools", _tools),
    ):
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for file in ("LICENSE", "CHANGELOG.md"):
            shutil.copy(ROOT / file, place / file)
        (place / "README.md").write_text(absolute_links((ROOT / "README.md").read_text(), source))
        fill(place, source, _common(name, source))
        made.append(place)
    return made


def absolute_links(text: str, source: dict[str, Any]) -> str:
    """A package's page stands alone: links into the tree lead to the repository."""
    home = source["project"]["urls"]["Homepage"]
    return re.sub(r"\]\((?![a-z]+:|#)([^)]+)\)", rf"]({home}/{BRANCH}/\1)", text)


def _common(name: str, source: dict[str, Any]) -> dict[str, Any]:
    kept = (
        "version",
        "description",
        "readme",
        "requires-python",
        "license",
        "license-files",
        "authors",
        "keywords",
    )
    project = source["project"]
    return {
        "build-system": source["build-system"],
        "project": {
            "name": name,
            **{key: project[key] for key in (*kept, "classifiers", "urls")},
        },
    }


def _stub(place: Path, source: dict[str, Any], made: dict[str, Any]) -> None:
    project, version = source["project"], source["project"]["version"]
    extras = project["optional-dependencies"]
    made["project"] |= {
        "dependencies": project["dependencies"],
        "optional-dependencies": {
            **extras,
            "daemon": [f"kafka-sidecar-daemon=={version}"],
            "demo": [f"kafka-sidecar-tools=={version}"],
        },
        "scripts": project["scripts"],
    }
    _copy(place, "client_stub", "pyspark_kafka_sidecar")
    (place / "MANIFEST.in").write_text("recursive-include client_stub *.pyx *.pxi\n")
    _write(place, source, made, ["client_stub*", "pyspark_kafka_sidecar*"], "client_stub.native._native")


def _daemon(place: Path, source: dict[str, Any], made: dict[str, Any]) -> None:
    """Its source distribution has the docs, the tests and the deployment files of the whole project, too."""
    project, version = source["project"], source["project"]["version"]
    made["project"] |= {
        "description": "The daemon and the command line of kafka-sidecar: pip install 'kafka-sidecar[daemon]'.",
        "dependencies": [f"kafka-sidecar=={version}", *project["optional-dependencies"]["daemon"]],
    }
    shutil.copytree(
        ROOT / "sidecar",
        place / "sidecar",
        ignore=lambda at, names: {
            *IGNORED(at, names),
            *({TOOLS} if Path(at) == ROOT / "sidecar" else ()),
        },
    )
    for folder in ("docs", "tests", "deploy"):
        shutil.copytree(ROOT / folder, place / folder, ignore=IGNORED)
    (place / "MANIFEST.in").write_text(
        "graft docs\ngraft tests\ngraft deploy\nrecursive-include sidecar *.pyx *.pxi *.pxd\n"
    )
    _write(place, source, made, ["sidecar*"], "sidecar.kernel._kernel")


def _tools(place: Path, source: dict[str, Any], made: dict[str, Any]) -> None:
    project, version = source["project"], source["project"]["version"]
    demo = [each for each in project["optional-dependencies"]["demo"] if not each.startswith("kafka-sidecar")]
    made["project"] |= {
        "description": "Bench, chaos, demo and test kit of kafka-sidecar: pip install 'kafka-sidecar[demo]'.",
        "dependencies": [f"kafka-sidecar[daemon,spark]=={version}", *demo],
    }
    _copy(place, f"sidecar/{TOOLS}")
    _write(place, source, made, [f"sidecar.{TOOLS}*"], None)


def _copy(place: Path, *folders: str) -> None:
    for folder in folders:
        shutil.copytree(ROOT / folder, place / folder, ignore=IGNORED)


def _write(
    place: Path, source: dict[str, Any], made: dict[str, Any], packages: list[str], extension: str | None
) -> None:
    tools = source["tool"]["setuptools"]
    made["tool"] = {
        "setuptools": {
            "include-package-data": False,
            "packages": {"find": {"include": packages, "namespaces": extension is None}},
            # Cython's sources are for builds: the source distribution has them as dependencies of the extension.
            "package-data": {
                "*": [each for each in tools["package-data"]["*"] if each not in ("*.pxd", "*.pxi")]
            },
        }
    }
    if extension is not None:
        (module,) = (each for each in tools["ext-modules"] if each["name"] == extension)
        is_stub = extension.startswith("client_stub")
        # A daemon without its kernel would not start, so its build fails at once.
        made["tool"]["setuptools"]["ext-modules"] = [{**module, "optional": False}]
        shutil.copy(ROOT / "setup.py", place / "setup.py")
        made["tool"]["cibuildwheel"] = {
            **source["tool"]["cibuildwheel"],
            "test-command": f'python -c "import {extension}"' if is_stub else "",
        }
    (place / "pyproject.toml").write_text("\n".join(_toml(made, ())) + "\n")


def _toml(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """Enough of TOML for a pyproject: values first, then tables and arrays of tables."""
    head = ".".join(map(_key, path))
    lines = [f"[{head}]"] if path else []
    nested = []
    for key, value in table.items():
        if isinstance(value, dict):
            nested += _toml(value, (*path, key))
        elif isinstance(value, list) and value and isinstance(value[0], dict) and key == "ext-modules":
            for each in value:
                nested += [
                    f"[[{head}.{key}]]",
                    *(f"{name} = {_value(found)}" for name, found in each.items()),
                ]
        else:
            lines.append(f"{_key(key)} = {_value(value)}")
    return [*lines, *nested]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    return json.dumps(value)


if __name__ == "__main__":
    for made_project in write_all(Path(sys.argv[1])):
        print(made_project)
