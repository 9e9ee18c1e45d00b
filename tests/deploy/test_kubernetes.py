"""Goal: the manifests are ones that Kubernetes takes, as closed as they say, and the chart prints the plain ones.

Schemas come with kubernetes-validate, of the [dev] extra. No cluster is needed, and none was.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from sidecar.config.loader import load_config
from sidecar.telemetry.exporter import OPEN_PATHS
from tests.tools import needs

yaml = pytest.importorskip("yaml")

ROOT: Final = Path(__file__).parents[2]
KUBERNETES: Final = ROOT / "deploy" / "kubernetes"
CHART: Final = KUBERNETES / "helm" / "kafka-sidecar"
PLAIN: Final = sorted(KUBERNETES.glob("*.yaml"))
VERSIONS: Final = ("1.29", "1.33")
"""The oldest with native sidecars, and one of today."""
CUSTOM: Final = {"PodMonitor"}
HELM: Final = shutil.which("helm")
ALL_ON: Final = (
    *("--set", "podMonitor.enabled=true", "--set", "networkPolicy.enabled=true"),
    *("--set", "existingSecret=kafka", "--set", "priorityClassName=system-node-critical"),
    *("--set", "image.digest=sha256:0", "--set", "imagePullSecrets[0].name=registry"),
)

NAMED: Final = {
    "daemonset.yaml": {
        "volume run is a hostPath",
        "volume state is a hostPath",
        "prepare-directories may run as root",
        "prepare-directories adds CHOWN",
        "prepare-directories adds FOWNER",
    },
    "spark-executor-pod.yaml": {"volume kafka-sidecar is a hostPath"},
}
"""Exceptions from Pod Security "restricted", and why: docs/deployment.md."""


def documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def rendered(*words: str) -> str:
    assert HELM is not None
    command = [HELM, "template", "kafka-sidecar", str(CHART), "--namespace", "kafka-sidecar"]
    done = subprocess.run(
        [*command, "--kube-version", "1.33.0", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pod_spec(document: dict[str, Any]) -> dict[str, Any] | None:
    if document["kind"] == "Pod":
        return dict(document["spec"])
    template = document.get("spec", {}).get("template")
    return None if template is None else dict(template["spec"])


def not_restricted(spec: dict[str, Any]) -> Iterator[str]:
    """Each rule of the standard "restricted" that the pod breaks."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    for volume in spec.get("volumes", []):
        if "hostPath" in volume:
            yield f"volume {volume['name']} is a hostPath"
    of_pod = spec.get("securityContext", {})
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        name = container["name"]
        own = container.get("securityContext", {})
        effective = {**of_pod, **own}
        if effective.get("runAsNonRoot") is not True or effective.get("runAsUser") == 0:
            yield f"{name} may run as root"
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield f"{name} may escalate"
        if own.get("capabilities", {}).get("drop") != ["ALL"]:
            yield f"{name} keeps capabilities"
        for each in own.get("capabilities", {}).get("add", []):
            yield f"{name} adds {each}"
        if effective.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{name} has no seccomp profile"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.name)
def test_a_manifest_is_one_that_kubernetes_takes(path: Path, version: str) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="needs kubernetes-validate (pip: the extra dev)"
    )
    for document in documents(path.read_text()):
        if document["kind"] not in CUSTOM:
            validator.validate(document, version, strict=True)


def test_the_validation_would_notice() -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="needs kubernetes-validate (pip: the extra dev)"
    )
    (daemon_set,) = (
        each for each in documents((KUBERNETES / "daemonset.yaml").read_text()) if pod_spec(each)
    )
    daemon_set["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(validator.ValidationError, match="livenesProbe"):
        validator.validate(daemon_set, VERSIONS[0], strict=True)


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.name)
def test_every_pod_is_restricted_but_for_what_is_named(path: Path) -> None:
    found = {
        fault
        for document in documents(path.read_text())
        if (spec := pod_spec(document)) is not None
        for fault in not_restricted(spec)
    }
    assert found == NAMED.get(path.name, set())


def daemons() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(file, pod, container) of every daemon."""
    for path in PLAIN:
        for document in documents(path.read_text()):
            spec = pod_spec(document)
            for container in [] if spec is None else [*spec.get("initContainers", []), *spec["containers"]]:
                if container["name"] == "kafka-sidecar":
                    assert spec is not None
                    yield path.name, spec, container


def test_the_pool_and_the_run_dir_are_on_volumes_of_their_own() -> None:
    assert {name for name, _, _ in daemons()} == {"daemonset.yaml", "in-pod-sidecar.yaml"}
    for name, spec, container in daemons():
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        environment = {each["name"]: each["value"] for each in container["env"]}
        config = load_config(environment=environment, overrides=["bootstrap.servers=kafka:9092"])
        volumes = {each["name"]: each for each in spec["volumes"]}

        def volume_of(path: str, mounts: dict[str, str] = mounts) -> str:
            return next(
                mounts[str(each)] for each in (Path(path), *Path(path).parents) if str(each) in mounts
            )

        pool = volume_of(config.text("pool.path"))
        run = volume_of(environment["KAFKA_SIDECAR_RUN_DIR"])
        assert pool != run
        kind = "hostPath" if name == "daemonset.yaml" else "emptyDir"
        assert kind in volumes[pool] and kind in volumes[run]


def test_probes_ask_the_daemon_and_not_kafka() -> None:
    """A liveness probe that fails while Kafka is away kills what holds the records, and a readiness probe makes all
    pods unready at once. A command starts a Python each time.
    """
    paths = {"startupProbe": "", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert {"/livez", "/readyz"} <= OPEN_PATHS, "a probe has no token"
    for name, _, container in daemons():
        paths["startupProbe"] = "/readyz" if name == "in-pod-sidecar.yaml" else "/livez"
        (port,) = container["ports"]
        probes = {probe: container[probe] for probe in paths if probe in container}
        assert len(probes) == (3 if name == "daemonset.yaml" else 2)
        for probe, asks in probes.items():
            assert asks["httpGet"] == {"path": paths[probe], "port": port["name"], "scheme": "HTTP"}
        assert (
            f"KAFKA_SIDECAR__HTTP__LISTEN=0.0.0.0:{port['containerPort']}"
            in (ROOT / "Dockerfile").read_text()
        )
    chart = (CHART / "templates" / "daemonset.yaml").read_text()
    assert re.findall("path: (/.*z)\n", chart) == ["/livez", "/livez", "/readyz"]


def test_a_pod_ends_after_its_drain_and_its_configuration_loads(tmp_path: Path) -> None:
    configs = [
        (path, document["data"]["sidecar.toml"])
        for path in PLAIN
        for document in documents(path.read_text())
        if document["kind"] == "ConfigMap"
    ]
    assert len(configs) == 2
    for path, text in configs:
        file = tmp_path / f"{path.stem}.toml"
        file.write_text(text)
        drain_s = load_config(file, environment={}).number("daemon.shutdown_timeout_s")
        (grace_s,) = (
            spec["terminationGracePeriodSeconds"] for name, spec, _ in daemons() if name == path.name
        )
        assert grace_s > drain_s


def test_clients_join_the_daemons_group_and_cannot_write_its_directory() -> None:
    (executor,) = documents((KUBERNETES / "spark-executor-pod.yaml").read_text())
    (daemon,) = (spec for name, spec, _ in daemons() if name == "daemonset.yaml")
    assert (
        daemon["securityContext"]["runAsGroup"] in executor["spec"]["securityContext"]["supplementalGroups"]
    )
    (mount,) = executor["spec"]["containers"][0]["volumeMounts"]
    assert mount["readOnly"] is True
    (volume,) = executor["spec"]["volumes"]
    paths = {each["name"]: each.get("hostPath", {}).get("path") for each in daemon["volumes"]}
    assert volume["hostPath"]["path"] == paths["run"] == mount["mountPath"]


def test_one_version_in_chart_and_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = {container["image"] for _, _, container in daemons()}
    assert images == {f"kafka-sidecar:{chart['appVersion']}"}


@needs("helm")
def test_the_plain_manifest_is_what_the_chart_prints() -> None:
    plain = (KUBERNETES / "daemonset.yaml").read_text()
    assert documents(rendered()) == documents(plain)


@needs("helm")
def test_the_chart_with_everything_on_is_taken_too() -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="needs kubernetes-validate (pip: the extra dev)"
    )
    found = documents(rendered(*ALL_ON))
    kinds = {"ServiceAccount", "ConfigMap", "DaemonSet", "PodMonitor", "NetworkPolicy"}
    assert {each["kind"] for each in found} == kinds
    for document in found:
        if document["kind"] not in CUSTOM:
            validator.validate(document, VERSIONS[-1], strict=True)
    lint = subprocess.run(
        [str(HELM), "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False
    )
    assert lint.returncode == 0, lint.stdout
