"""Goal: a job on a host without a daemon gets one, and only one, whatever happens to the process that started it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from client_stub import Producer
from client_stub.spark import autostart
from client_stub.spark.autostart import DaemonNotStarted, ensure_daemon
from client_stub.spark.options import read_options
from client_stub.spark.producers import ProducerCache
from sidecar.common.python_child import python_command
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.reading import end_offsets
from sidecar.tools.testing.waiting import wait_until
from tests.tools import ROOT_USER, needs

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]

ASK = "import sys; from pathlib import Path; from client_stub.spark.autostart import ensure_daemon; "
ASK += (
    "print(ensure_daemon(dict(each.split('=', 1) for each in sys.argv[2:]), Path(sys.argv[1])), flush=True)"
)
AT_ONCE = 32


def daemons(home: Path) -> list[psutil.Process]:
    """Controllers whose run directory lies in ``home``."""
    found = []
    for each in psutil.process_iter(["cmdline"]):
        try:
            is_controller = (each.info["cmdline"] or [""])[0].startswith("kafka-sidecar: controller")
            if is_controller and any(str(home) in file.path for file in each.open_files()):
                found.append(each)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = Path(f"/tmp/ks-{os.getpid()}-{time.monotonic_ns() % 1_000_000}")
    path.mkdir(mode=0o700)
    yield path
    for each in daemons(path):
        each.terminate()
    wait_until(lambda: not daemons(path), "the daemons to end")
    subprocess.run(["rm", "-rf", str(path)], check=True)


def settings(broker: MockBroker, **more: str) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers, "buffer.memory": "33554432", **more}


def ask(home: Path, wanted: dict[str, str], *prefix: str) -> subprocess.Popen[str]:
    words = [f"{name}={value}" for name, value in wanted.items()]
    command = [*prefix, *python_command("-c", ASK)[:1], "-P", "-c", ASK, str(home), *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def deliver(run_dir: str) -> None:
    with Producer(run_dir=run_dir) as producer:
        assert producer.send("smoke", b"1").result(timeout=30).offset >= 0


def test_all_tasks_of_a_host_share_one_daemon(home: Path, mock_broker: MockBroker) -> None:
    asked = [ask(home, settings(mock_broker)) for _ in range(AT_ONCE)]
    answers = {each.communicate(timeout=120)[0].strip() for each in asked}
    (run_dir,) = answers
    assert len(daemons(home)) == 1
    deliver(run_dir)


def test_other_settings_get_their_own_daemon(home: Path, mock_broker: MockBroker) -> None:
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(
            lambda linger: ensure_daemon(settings(mock_broker, **{"linger.ms": linger}), home), ("0", "5")
        )
    assert first != second
    assert len(daemons(home)) == 2


def test_the_end_of_the_executor_leaves_it_alone(home: Path, mock_broker: MockBroker) -> None:
    executor = ask(home, settings(mock_broker))
    assert executor.stdout is not None
    run_dir = executor.stdout.readline().strip()
    os.killpg(executor.pid, signal.SIGKILL)
    executor.communicate()
    deliver(run_dir)
    assert ensure_daemon(settings(mock_broker), home) == run_dir
    assert len(daemons(home)) == 1


def test_it_is_no_process_of_the_executor(home: Path, mock_broker: MockBroker) -> None:
    """YARN walks from a container's process to its children, and ends the container for the memory of all."""
    before = set(psutil.Process().children(recursive=True))
    ensure_daemon(settings(mock_broker), home)
    (daemon,) = daemons(home)
    # Fewer are no fault: Spark's idle Python workers end by themselves.
    assert set(psutil.Process().children(recursive=True)) <= before
    assert os.getsid(daemon.pid) == daemon.pid


def test_a_starter_that_is_killed_meanwhile_leaves_a_daemon(home: Path, mock_broker: MockBroker) -> None:
    """The next one who asks for it finds it, and it was started once."""
    executor = ask(home, settings(mock_broker))
    wait_until(lambda: daemons(home), "the controller to start")
    os.killpg(executor.pid, signal.SIGKILL)
    executor.communicate()
    deliver(ensure_daemon(settings(mock_broker), home))
    assert len(daemons(home)) == 1


def test_a_killed_daemon_is_started_again(home: Path, mock_broker: MockBroker) -> None:
    run_dir = ensure_daemon(settings(mock_broker), home)
    (daemon,) = daemons(home)
    daemon.kill()
    daemon.wait(30)  # a process that is ending has no command line any more, and still listens
    assert ensure_daemon(settings(mock_broker), home) == run_dir
    deliver(run_dir)


def test_it_ends_some_time_after_its_last_client(home: Path, mock_broker: MockBroker) -> None:
    wanted = settings(mock_broker, **{"daemon.idle_timeout_s": "1"})
    run_dir = ensure_daemon(wanted, home)
    deliver(run_dir)
    wait_until(lambda: not daemons(home), "the idle daemon to end")
    assert "No client for 1 s (daemon.idle_timeout_s)" in next(home.glob("*/daemon.log")).read_text()
    assert ensure_daemon(wanted, home) == run_dir
    deliver(run_dir)


def test_a_client_keeps_it(home: Path, mock_broker: MockBroker) -> None:
    run_dir = ensure_daemon(settings(mock_broker, **{"daemon.idle_timeout_s": "1"}), home)
    with Producer(run_dir=run_dir) as producer:
        producer.send("smoke", b"1").result(timeout=30)
        time.sleep(3)  # three times its idle time, with a client that says nothing
        assert producer.send("smoke", b"2").result(timeout=30).offset >= 0
    assert len(daemons(home)) == 1


def test_a_start_that_fails_says_why_and_is_not_tried_by_each_task(
    home: Path, mock_broker: MockBroker
) -> None:
    wanted = settings(mock_broker, **{"linger.ms": "many"})
    with pytest.raises(
        DaemonNotStarted, match=r"did not start, it ended with status 2: .*linger\.ms.*daemon\.log"
    ):
        ensure_daemon(wanted, home)
    log = next(home.glob("*/daemon.log"))
    before = log.stat().st_mtime_ns
    with pytest.raises(DaemonNotStarted, match=r"linger\.ms"):
        ensure_daemon(wanted, home)
    assert log.stat().st_mtime_ns == before
    # Some time later it is tried again.
    failed = log.with_name("failed")
    failed.write_text(failed.read_text().replace('"at_s": ', '"at_s": 1e-9, "was_s": '))
    with pytest.raises(DaemonNotStarted, match=r"linger\.ms"):
        ensure_daemon(wanted, home)
    assert log.stat().st_mtime_ns != before


def test_the_log_of_the_daemon_is_found_from_that_of_the_executor(
    home: Path, mock_broker: MockBroker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A Python worker's stderr is in the executor's log."""
    monkeypatch.setenv(autostart.HOME_VARIABLE, str(home))
    options = {
        "topic": "smoke",
        "sidecar.autostart": "true",
        "kafka.bootstrap.servers": mock_broker.bootstrap_servers,
        "kafka.buffer.memory": "33554432",
    }
    cache = ProducerCache()
    producer = cache.producer_for(read_options(options))
    assert cache.producer_for(read_options(options)) is producer
    producer.close()
    (path,) = home.glob("*/daemon.log")
    assert capfd.readouterr().err.splitlines() == [
        f"kafka_sidecar: Records go through the daemon at {path.parent}/run; its log is {path}."
    ]
    with pytest.raises(DaemonNotStarted):
        cache.producer_for(read_options({**options, "kafka.linger.ms": "many"}))
    *_, last = capfd.readouterr().err.splitlines()
    assert last.startswith("kafka_sidecar: log of the daemon: ")
    assert "linger.ms" in last


def test_a_file_that_cannot_be_written_is_one_sentence(home: Path, mock_broker: MockBroker) -> None:
    """As on a full disk: the limit on the size of a file lets no byte through."""
    limited = ask(home, settings(mock_broker), "prlimit", "--fsize=0")
    errors = limited.communicate(timeout=60)[1]
    # Not the last line where coverage is measured: it cannot write its file either.
    assert re.search(
        rf"DaemonNotStarted: No daemon can be started: {home}\S* cannot be used \(File too large\); make room for "
        r"it, or name another folder by KAFKA_SIDECAR_AUTOSTART_DIR\.$",
        errors,
        re.MULTILINE,
    )


@needs(ROOT_USER, "unshare")
def test_the_pool_is_a_file_where_shared_memory_is_small(home: Path, mock_broker: MockBroker) -> None:
    """As in a container, which has 64 MiB of it by default."""
    small = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=16m none /dev/shm && exec "$@"', "sh")
    asked = [ask(home, settings(mock_broker), *small) for _ in range(2)]
    said = [each.communicate(timeout=120) for each in asked]
    (run_dir,) = {out.strip() for out, _ in said}
    deliver(run_dir)
    warnings = [
        line for _, errors in said for line in errors.splitlines() if "does not fit into /dev/shm" in line
    ]
    assert len(warnings) == 1
    (pool,) = home.glob("*/pool")
    assert (
        f"pool of 32 MiB does not fit into /dev/shm, which has 16 MiB free: it is the file {pool}"
        in warnings[0]
    )


def test_no_secret_is_seen_by_others(home: Path, mock_broker: MockBroker) -> None:
    secret = r" tea = 5\pot"
    wanted = settings(
        mock_broker, **{"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": secret}
    )
    ensure_daemon(wanted, home)
    for each in psutil.process_iter(["cmdline", "environ"]):
        assert not any(secret in word for word in each.info["cmdline"] or ())
        assert secret not in (each.info["environ"] or {}).values()
    (config,) = home.glob("*/daemon.properties")
    assert config.stat().st_mode & 0o777 == 0o600
    escaped = secret.replace("\\", "\\\\")
    holders = [
        path
        for path in home.rglob("*")
        if path.is_file() and any(each.encode() in path.read_bytes() for each in (secret, escaped))
    ]
    assert holders == [config]
    shown = subprocess.run(
        python_command("sidecar", "config", "check", "-c", str(config)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert secret not in shown.stdout + shown.stderr


def test_a_folder_that_others_can_enter_is_refused(home: Path, mock_broker: MockBroker) -> None:
    home.chmod(0o755)
    with pytest.raises(DaemonNotStarted, match=r"not a folder of this user's alone \(uid \d+, mode 0755\)"):
        ensure_daemon(settings(mock_broker), home)


def test_a_worker_without_the_daemon_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr(autostart, "find_spec", lambda name: None)
    with pytest.raises(DaemonNotStarted, match=r"install 'kafka-sidecar\[daemon\]'") as raised:
        ensure_daemon({}, home)
    assert sys.executable in str(raised.value)


def test_a_job_needs_no_service(spark: SparkSession, mock_broker: MockBroker) -> None:
    """All of a daemon's configuration is in the query, by the options of Spark's own format."""
    options = {
        "topic": "smoke",
        "sidecar.autostart": "true",
        "kafka.bootstrap.servers": mock_broker.bootstrap_servers,
        "kafka.linger.ms": "5",
        "sidecar.daemon.idle_timeout_s": "1",
    }
    before = sum(end_offsets(mock_broker.bootstrap_servers, "smoke").values())
    frame = spark.range(20_000).select(f.col("id").cast("string").alias("value")).repartition(4)
    frame.write.format("kafka_sidecar").mode("append").options(**options).save()
    assert sum(end_offsets(mock_broker.bootstrap_servers, "smoke").values()) - before == 20_000
    assert len(daemons(Path(os.environ[autostart.HOME_VARIABLE]))) == 1


def test_no_secret_is_in_a_plan(spark: SparkSession, mock_broker: MockBroker) -> None:
    """Plans are in the UI, in event logs and in the history server."""
    secret = "s3cr3t-of-plans"
    jaas = (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="{secret}";'
    )
    options = {
        "topic": "smoke",
        "sidecar.autostart": "true",
        "kafka.bootstrap.servers": mock_broker.bootstrap_servers,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": jaas,
    }
    # Without a row no task asks for a daemon, and the plan is the same.
    frame = spark.range(0).select(f.lit("v").alias("value"))
    frame.write.format("kafka_sidecar").mode("append").options(**options).save()
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    newest = executions.apply(executions.size() - 1)
    assert "kafka_sidecar" in newest.physicalPlanDescription()
    assert secret not in newest.physicalPlanDescription() + newest.details()


def test_the_program_of_the_page_runs(spark: SparkSession, mock_broker: MockBroker) -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    (program,) = re.findall(
        r"^```python\n((?:(?!```).)*sidecar\.autostart.*?)^```", page, re.DOTALL | re.MULTILINE
    )
    program = program.replace("kafka-1:9092", mock_broker.bootstrap_servers).replace('"orders"', '"smoke"')
    before = sum(end_offsets(mock_broker.bootstrap_servers, "smoke").values())
    exec(compile(program, "docs/spark.md", "exec"), {"df": spark.range(3).selectExpr("'v' value")})
    assert sum(end_offsets(mock_broker.bootstrap_servers, "smoke").values()) - before == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kafka.linger.ms": "many"}, r"linger\.ms"),
        ({"kafka.lingr.ms": "5"}, r'did you mean "linger\.ms"'),
        ({"sidecar.run_dir": "/run/x"}, "exclude each other"),
        ({"sidecar.autostart": "yes"}, "must be true or false"),
        ({"kafka.key.serializer": "x"}, "keys and values are written as string or binary columns"),
        ({"sidecar.autostrat": "true"}, "did you mean 'sidecar.autostart'"),
    ],
)
def test_a_wrong_setting_is_refused_on_the_driver(
    spark: SparkSession, options: dict[str, str], sentence: str
) -> None:
    all_options = {
        "topic": "t",
        "sidecar.autostart": "true",
        "kafka.bootstrap.servers": "127.0.0.1:1",
        **options,
    }
    with pytest.raises(Exception, match=sentence):
        spark.range(1).select(f.lit("v").alias("value")).write.format("kafka_sidecar").mode("append").options(
            **all_options
        ).save()
