"""`memscale env` and `memscale doctor`, on a machine without a driver and with the fake one of tests/fake.

The command line runs as a process of its own. Where many cases need the fake driver, one process imports torch and
forks a child for each of them, with that case's environment.
"""

import ctypes
import io
import json
import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

import memscale
from fixtures import skip_without_tool
from memscale import _core, cli
from memscale._cli import doctor_command as _doctor
from memscale._cli import env_command as _environment
from memscale._hw import gpu as _gpu

ROOT = Path(__file__).parents[2]
VARIABLES = ("CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
NOWHERE = {"driver": "/nowhere/libcuda.so", "nvml": "/nowhere/libnvidia-ml.so", "nvrtc": [], "cache": ""}


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


without_driver = pytest.mark.skipif(has_driver(), reason="this machine has a driver")


def environment(**changes):
    ours = ("FAKE_", "MEMSCALE_")
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES and not name.startswith(ours)}
    path = os.pathsep.join([str(Path(memscale.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**kept, "PYTHONPATH": path, **{name: str(value) for name, value in changes.items()}}


def run(*command, **changes):
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env=environment(**changes),
        timeout=100,
        check=False,
    )


def command(*arguments, **changes):
    return run("-W", "error", "-m", "memscale", *arguments, **changes)


def checks_of(text):
    report = json.loads(text)
    assert report.keys() == {"ok", "checks"}
    found = {check["name"]: (check["status"], check["detail"]) for check in report["checks"]}
    assert len(found) == len(report["checks"])
    assert {status for status, _ in found.values()} <= {"ok", "skipped", "FAILED"}
    assert all(detail for _, detail in found.values())
    assert report["ok"] == all(status != "FAILED" for status, _ in found.values())
    return found


# A machine as it is


@without_driver
def test_env():
    result = command("env", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", MEMSCALE_CACHE_DIR="/tmp/of mine")
    assert (result.returncode, result.stderr) == (0, "")
    lines = [line.split(maxsplit=1) for line in result.stdout.splitlines() if line]
    assert ["memscale", memscale.__version__] in lines
    assert ["transformers", _environment.package_version("transformers")] in lines
    assert ["none", "no NVIDIA driver: there is no libcuda.so.1"] in lines
    assert ["PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"] in lines
    assert ["MEMSCALE_CACHE_DIR", "/tmp/of mine"] in lines
    assert ["cache", "works: /tmp/of mine"] in lines
    for words in ("GB usable of", "NUMA nodes", "driver  does not work: libcuda.so.1: cannot open"):
        assert words in result.stdout
    assert "\x1b" not in result.stdout
    assert "problems" not in result.stdout


@without_driver
def test_env_as_json():
    result = command("env", "--json", CUDA_VISIBLE_DEVICES="")
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert list(report) == ["memscale", "versions", "hardware", "parts", "calibration", "environment", "messages"]
    assert report["memscale"] == memscale.__version__
    assert list(report["versions"]) == ["python", "torch", "torch_cuda", "platform", *_environment.PACKAGES]
    assert report["versions"]["torch"] == torch.__version__
    assert _core.hw_from_json(json.dumps(report["hardware"]))  # the record of the C library, as it is
    assert report["hardware"]["gpus"] == []
    assert [part["name"] for part in report["parts"]] == ["driver", "nvml", "nvrtc", "ptx", "cache"]
    assert all(part.keys() == {"name", "works", "version", "text"} for part in report["parts"])
    assert report["environment"] == {"CUDA_VISIBLE_DEVICES": ""}


@without_driver
def test_doctor_without_a_driver():
    result = command("doctor")
    assert (result.returncode, result.stderr) == (0, "")
    found = {
        line[9:24].strip(): (line[:8].strip(), line[25:]) for line in result.stdout.splitlines() if line[8:9] == " "
    }
    for name in ("extension", "torch", "host", "cpu training"):
        assert found[name][0] == "ok"
    for name in ("driver", "gpu kernel", "gpu link", "gpu training"):
        assert found[name] == ("skipped", "no NVIDIA driver: there is no libcuda.so.1")
    assert "equal bit for bit" in found["cpu training"][1]
    assert "none failed" in result.stdout.splitlines()[-1]
    assert "\x1b" not in result.stdout


def test_usage_errors(capsys):
    for arguments in ((), ("unknown",), ("env", "--colour"), ("doctor", "now"), ("--json",)):
        with pytest.raises(SystemExit) as error:
            cli.main(arguments)
        assert error.value.code == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert "usage: memscale" in output.err


def test_usage_error_of_the_process():
    result = run("-m", "memscale")
    assert (result.returncode, result.stdout) == (2, "")
    assert "COMMAND" in result.stderr


def test_version_and_help(capsys):
    for arguments, words in ((["--version"], memscale.__version__), (["--help"], "doctor"), (["env", "-h"], "--json")):
        with pytest.raises(SystemExit) as done:
            cli.main(arguments)
        assert done.value.code == 0
        assert words in capsys.readouterr().out


def test_output_that_goes_nowhere(monkeypatch, no_gpu):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["env"]) == 0
    assert cli.main(["doctor", "--json"]) == 1


def test_a_full_disk():
    if not Path("/dev/full").exists():
        skip_without_tool("there is no /dev/full")
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "memscale", "env"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(PYTHONUNBUFFERED=""),
            text=True,
            check=False,
        )
    assert (result.returncode, result.stderr) == (1, "memscale: error: [Errno 28] No space left on device\n")


def test_a_reader_that_leaves():
    process = subprocess.Popen(
        [sys.executable, "-m", "memscale", "env"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 1


def test_the_installed_script_is_the_same():
    script = Path(sys.executable).with_name("memscale")
    if not script.exists():
        skip_without_tool("memscale is not installed with its script")
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, f"memscale {memscale.__version__}\n")


# Inside this process


@pytest.fixture
def no_gpu(monkeypatch):
    """No driver, even if this machine has one."""
    monkeypatch.setattr(_gpu, "get", lambda: _core.Gpu(**NOWHERE))


class Terminal(io.StringIO):
    encoding = "ascii"

    def isatty(self):
        return True


def test_colour_and_width_on_a_terminal(monkeypatch, no_gpu):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(_doctor, "_host", lambda: "many words " * 20 + "µ")
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert cli.main(["doctor"]) == 1  # /nowhere is not the usual name: such a driver is broken
    text = sys.stdout.getvalue()
    assert "\x1b[32mok" in text
    assert "\x1b[31mFAILED" in text
    assert "\\xb5" in text
    assert "training on the CPU...\r" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().endswith("\r")
    plain = [line.replace("\x1b[32m", "").replace("\x1b[0m", "") for line in text.splitlines() if "many" in line]
    assert len(plain) > 3
    assert all(len(line) <= 60 for line in plain)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", Terminal())
    cli.main(["doctor"])
    assert "\x1b" not in sys.stdout.getvalue()


def test_errors_of_the_core_are_one_line(monkeypatch, capsys):
    def fails():
        raise OSError("no memory information")

    monkeypatch.setattr(_environment, "gather", fails)
    assert cli.main(["env"]) == 1
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "memscale: error: no memory information\n")


def doctor():
    return {check.name: check for check in _doctor.run(lambda text: None)}


def test_the_doctor_never_raises(monkeypatch, no_gpu):
    def fails(*args):
        raise KeyError("unexpected")

    for name in ("_extension", "_torch", "_host", "_driver", "_part", "_training"):
        monkeypatch.setattr(_doctor, name, fails)
    found = doctor()
    assert {check.detail for check in found.values() if check.status == "FAILED"} == {"KeyError: 'unexpected'"}
    assert found["cpu training"].status == "FAILED"
    monkeypatch.setattr(_gpu, "get", fails)
    assert doctor()["driver"].status == "FAILED"


def test_the_doctor_leaves_no_trace(no_gpu, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    seen, logged = [], []
    _core.set_observer(seen.append)
    _core.set_log(lambda level, text: logged.append(text))
    try:
        state, filters = torch.get_rng_state(), list(warnings.filters)
        assert doctor()["cpu training"].status == "ok"
        assert torch.equal(torch.get_rng_state(), state)
        assert warnings.filters == filters
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
        assert seen == []
    finally:
        assert _core.set_observer(None) == seen.append
        assert _core.set_log(None) is not None
    assert _core.set_observer(None) is None
    assert _core.set_log(None) is None


def test_the_training_check_finds_what_it_looks_for(monkeypatch):
    train, everything = _doctor._train, _doctor._recompute_everything
    device = torch.device("cpu")
    monkeypatch.setattr(_doctor, "_recompute_everything", lambda model, x: everything(model, x) | {"ghost"})
    check = _doctor._attempt("x", _doctor._training, device)
    assert (check.status, check.detail) == ("FAILED", "not recomputed: ghost.")
    monkeypatch.setattr(_doctor, "_recompute_everything", everything)

    def wrong(model, x, y):
        steps = train(model, x, y)
        if hasattr(model, "_memscale_executor"):
            steps[1]["gradient of blocks.1.qkv.bias"][3] += 1e-3
        return steps

    monkeypatch.setattr(_doctor, "_train", wrong)
    check = _doctor._attempt("x", _doctor._training, device)
    assert check.status == "FAILED"
    assert check.detail.startswith("step 2: the gradient of blocks.1.qkv.bias differs from plain training by 0.001;")


def test_reasons_why_torch_cannot_be_used(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    assert "is a CPU build" in _doctor._why_not_torch()
    monkeypatch.setattr(torch.version, "hip", "6.2", raising=False)
    assert "ROCm" in _doctor._why_not_torch()
    monkeypatch.setattr(torch.version, "cuda", "12.8")

    def too_old():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040)")

    monkeypatch.setattr(torch.cuda, "init", too_old)
    check = _doctor._attempt("x", _doctor._torch_cuda, 1)
    assert check.status == "FAILED"
    assert "too old (found version 11040)" in check.detail
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert _doctor._attempt("x", _doctor._torch_cuda, 1).detail == "1 GPU"
    assert "torch sees 1 GPUs and the driver 2" in _doctor._attempt("x", _doctor._torch_cuda, 2).detail
    check = _doctor._attempt("x", _doctor._part, False, 0, "no such file", "no kernels", True)
    assert (check.status, check.detail[-37:]) == ("FAILED", "with: pip install nvidia-cuda-nvrtc-cu12"[-37:])


def test_where_nvrtc_is_looked_for(monkeypatch, tmp_path):
    names = [
        "nvidia/cu13/lib/libnvrtc.so.13",
        "nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
        "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.8",
        "nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2",
        "torch/lib/libnvrtc-672ee683.so.11.2",
        "torch/lib/libnvrtc-builtins-7237cb5d.so.11.8",
        "torch/__init__.py",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch/__init__.py"))
    usual, own = ["libnvrtc.so.13", "libnvrtc.so.12"], str(tmp_path / names[5])
    for cuda, expected in (("13.0", [names[0]]), ("12.8", [names[2]]), ("11.8", [names[4]]), (None, [])):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        assert _gpu.nvrtc_candidates() == [*(str(tmp_path / name) for name in expected), own, *usual]


# _core.Gpu


def test_arguments_of_gpu():
    for wrong in (
        {"driver": 3},
        {"nvml": object()},
        {"cache": 1.5},
        {"nvrtc": 3},
        {"nvrtc": "libnvrtc.so.13"},
        {"nvrtc": b"libnvrtc.so.13"},
        {"nvrtc": ["a", None]},
        {"unknown": None},
    ):
        with pytest.raises(TypeError):
            _core.Gpu(**{**NOWHERE, **wrong})
    with pytest.raises(TypeError):
        _core.Gpu("a", "b", [], "", "e")
    for wrong in ({"driver": "a\0b"}, {"nvrtc": ["a\0b"]}, {"driver": "x" * 100_000}, {"nvrtc": ["x" * 100_000]}):
        with pytest.raises(ValueError, match="null|long"):
            _core.Gpu(**{**NOWHERE, **wrong})


def test_gpu_without_a_driver(tmp_path):
    gpu = _core.Gpu(Path("/nowhere/libcuda.so"), b"/nowhere/ml", (tmp_path / "a", "/nowhere/b"), tmp_path)
    assert gpu.count == 0
    rows = {name: (works, version, text) for name, works, version, text in gpu.components()}
    assert list(rows) == ["driver", "nvml", "nvrtc", "ptx", "cache"]
    assert rows["driver"][:2] == (False, 0)
    assert rows["driver"][2].startswith("/nowhere/libcuda.so: cannot open")
    assert str(tmp_path / "a") in rows["nvrtc"][2]
    assert rows["cache"] == (True, 0, str(tmp_path))
    assert json.loads(gpu.hw())["gpus"] == []
    for call in (lambda: gpu.checksum(0, 4096, 8, 0), lambda: gpu.link(0, 1 << 20)):
        with pytest.raises(memscale.MemScaleError, match="no GPU: /nowhere/libcuda.so"):
            call()
    with pytest.raises(OSError, match="meminfo"):
        gpu.hw(str(tmp_path))


def test_arguments_of_calls():
    gpu = _core.Gpu(**NOWHERE)
    for call in (
        lambda: gpu.hw(3),
        lambda: gpu.hw("", ""),
        lambda: gpu.checksum(0, 0, 0),
        lambda: gpu.checksum("0", 0, 0, 0),
        lambda: gpu.checksum(0, 0.5, 0, 0),
        lambda: gpu.checksum(0, 0, None, 0),
        lambda: gpu.link(0),
        lambda: gpu.link(0, "many"),
        lambda: _core.checksum("text"),
        lambda: _core.checksum(3),
    ):
        with pytest.raises(TypeError):
            call()
    for call in (
        lambda: gpu.checksum(0, -1, 0, 0),
        lambda: gpu.checksum(0, 0, 1 << 64, 0),
        lambda: gpu.checksum(1 << 64, 0, 0, 0),
        lambda: gpu.link(0, 1 << 64),
    ):
        with pytest.raises(OverflowError):
            call()
    with pytest.raises(ValueError, match="null"):
        gpu.hw("a\0b")


def test_a_closed_gpu():
    gpu = _core.Gpu(**NOWHERE)
    gpu.close()
    gpu.close()
    for call in (
        lambda: gpu.count,
        gpu.components,
        gpu.hw,
        lambda: gpu.checksum(0, 1, 1, 0),
        lambda: gpu.link(0, 4096),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_checksum_of_bytes():
    data = bytes(range(256)) * 5
    assert _core.checksum(b"") != _core.checksum(b"\0") != _core.checksum(b"\0\0")
    assert _core.checksum(data) == _core.checksum(bytes(data))
    assert _core.checksum(data) != _core.checksum(data[:-1] + b"x")


# The fake driver


def tool(name):
    installed = Path(sys.executable).with_name(name)
    return str(installed) if installed.exists() else shutil.which(name)


@pytest.fixture(scope="session")
def fake(tmp_path_factory):
    """The folder of the fake libraries."""
    if torch.version.cuda is not None:
        pytest.skip("a torch with CUDA cannot work with the fake driver")
    if shutil.which(os.environ.get("CC", "cc")) is None:
        skip_without_tool("there is no C compiler")
    build = tmp_path_factory.mktemp("fake")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    options = ["-DMEMSCALE_PYTHON=OFF", "-DMEMSCALE_NVCC=OFF"]
    for step in (
        ["-S", str(ROOT), "-B", str(build), *generator, *options],
        ["--build", str(build), "--target", "fake_cuda", "fake_nvml", "fake_nvrtc"],
    ):
        result = subprocess.run([tool("cmake"), *step], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
    return build / "tests/fake"


# The extension by itself, without torch, and the fake libraries' own functions.
PREAMBLE = """
    import ctypes, importlib.util, json, os, sys, threading, time
    core, folder, work = sys.argv[1:4]
    spec = importlib.util.spec_from_file_location("memscale._core", core)
    _core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(_core)
    fake = ctypes.CDLL(folder + "/libmemscale_fake.so")
    fake.fake_alloc.restype = ctypes.c_void_p
    fake.fake_alloc.argtypes = ctypes.c_int, ctypes.c_size_t
    fake.fake_calls.restype = fake.fake_retained.restype = fake.fake_live.restype = ctypes.c_int64
    fake.fake_fail.argtypes = ctypes.c_char_p, ctypes.c_int, ctypes.c_int

    def make(**options):
        options = {"cache": work + "/cache", **options}
        paths = {"driver": "/libcuda.so.1", "nvml": "/libnvidia-ml.so.1"}
        given = {name: folder + path for name, path in paths.items()}
        return _core.Gpu(**{**given, "nvrtc": [folder + "/libnvrtc.so.13"], **options})

    data = os.urandom(100_001)

    def put(device=0):
        address = fake.fake_alloc(device, len(data))
        ctypes.memmove(address, data, len(data))
        return address

    def parts(gpu):
        return {name: (works, version, text) for name, works, version, text in gpu.components()}

    logged = []
    _core.set_log(lambda level, text: logged.append((level, text)))
"""


@pytest.fixture
def script(fake, tmp_path):
    """Run a script with the extension and the fake libraries; it must succeed and print nothing."""

    def run_script(code, **changes):
        text = textwrap.dedent(PREAMBLE) + textwrap.dedent(code)
        result = run("-c", text, _core.__file__, str(fake), str(tmp_path), **changes)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")

    return run_script


def test_checksums_and_link_of_devices(script):
    script(
        """
        gpu = make()
        assert gpu.count == 2
        assert parts(gpu)["driver"] == (True, 13000, folder + "/libcuda.so.1")
        for device in range(2):
            address = put(device)
            for offset in (0, 1, 3, 8, 13):
                for n in (0, 1, 7, 8, 9, 255, 4096, len(data) - offset):
                    there = gpu.checksum(device, address + offset, n, 0)
                    assert there == _core.checksum(data[offset : offset + n]), (offset, n)
        assert fake.fake_calls(b"cuLaunchKernel") == 2 * 5 * 7
        link = gpu.link(1, 1 << 20)
        assert list(link) == ["n_bytes", "to_device_rate", "from_device_rate", "both_rate", "pinning_rate", "intact"]
        assert link["n_bytes"] == 1 << 20 and link["intact"] is True
        assert min(link["to_device_rate"], link["from_device_rate"], link["both_rate"], link["pinning_rate"]) > 0
        for device in (-1, 2, 1 << 40):
            for call in (lambda: gpu.checksum(device, address, 8, 0), lambda: gpu.link(device, 4096)):
                try:
                    call()
                except ValueError as error:
                    assert f"no device {device}" in str(error)
                else:
                    assert False
        for call, *args in ((gpu.link, 0, 1), (gpu.checksum, 0, 0, 8, 0), (gpu.checksum, 0, 1, 2**64 - 1, 0)):
            try:
                call(*args)
            except ValueError:
                pass
            else:
                assert False
        assert fake.fake_retained() == 2
        del gpu, call  # which is a method of it
        assert fake.fake_retained() == 0
        """,
        FAKE_CUDA_DEVICES=2,
    )


def test_closing_while_calls_run(script):
    script(
        """
        gpu, results = make(), []

        def measure():
            try:
                while True:
                    results.append(gpu.link(0, 8 << 20)["intact"])
            except ValueError as error:
                results.append(str(error))

        threads = [threading.Thread(target=measure) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(results) < 3:
            time.sleep(0.001)
        gpu.close()
        for thread in threads:
            thread.join()
        assert results.count("this Gpu is closed") == 3
        assert set(results) == {True, "this Gpu is closed"}
        assert fake.fake_retained() == 0 and fake.fake_live(0) == 0
        """
    )


def test_a_forked_child(script):
    script(
        """
        gpu, address = make(), put()
        assert gpu.checksum(0, address, len(data), 0) == _core.checksum(data)
        calls = fake.fake_calls(None)
        pid = os.fork()
        if pid == 0:
            try:
                gpu.checksum(0, address, len(data), 0)
            except _core.MemScaleError as error:
                right = "forked" in str(error) and gpu.count == 0
            gpu.close()
            os._exit(0 if right and fake.fake_calls(None) == calls else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert gpu.checksum(0, address, len(data), 0) == _core.checksum(data)
        """
    )


def test_a_compiler_that_fails(script):
    """Then the built-in PTX is taken, or the host; the compiler's own words can be read."""
    script(
        """
        gpu, address = make(), put()
        assert gpu.checksum(0, address, len(data), 0) == _core.checksum(data)
        assert parts(gpu)["nvrtc"][0]
        assert any("identifier is undefined" in text for level, text in logged)
        assert parts(gpu)["ptx"][0] or any("on the host" in text for level, text in logged if level == 1)
        """,
        FAKE_NVRTC_LOG="kernel.cu(3): error: identifier is undefined",
    )


def test_caches_that_do_not_work(script):
    script(
        """
        open(work + "/file", "w").close()
        sizes = []
        for folder_of_cache in (work + "/file/below", "", work + "/cache"):
            gpu, address = make(cache=folder_of_cache), put()
            for _ in range(2):
                assert gpu.checksum(0, address, len(data), 0) == _core.checksum(data)
                works, _, text = parts(gpu)["cache"]
                assert works == folder_of_cache.endswith("cache")
                assert text == ("switched off" if folder_of_cache == "" else text)
            gpu.close()
        assert any(level == 1 and "not cached" in text and "/file" in text for level, text in logged)

        (name,) = os.listdir(work + "/cache")
        path = work + "/cache/" + name
        whole = open(path, "rb").read()
        compiled = fake.fake_calls(b"nvrtcCompileProgram")
        assert make().checksum(0, put(), len(data), 0) == _core.checksum(data)
        assert fake.fake_calls(b"nvrtcCompileProgram") == compiled  # from the cache
        for damaged in (b"", whole[:20], whole[:-1], b"\\x7fELF" + whole[4:], os.urandom(5000), whole + b"x"):
            with open(path, "wb") as file:
                file.write(damaged)
            compiled += 1
            assert make().checksum(0, put(), len(data), 0) == _core.checksum(data)
            assert fake.fake_calls(b"nvrtcCompileProgram") == compiled
            assert open(path, "rb").read() == whole
        """
    )


def test_driver_calls_that_fail(script):
    """Each call fails in turn: the result is right or an exception names the call, and everything works afterwards."""
    script(
        """
        names = {
            "cuDevicePrimaryCtxRetain": 2, "cuCtxPushCurrent_v2": 201, "cuCtxPopCurrent_v2": 201, "cuMemAlloc_v2": 2,
            "cuMemHostAlloc": 2, "cuMemsetD8Async": 999, "cuModuleLoadData": 999, "cuModuleGetFunction": 500,
            "cuLaunchKernel": 700, "cuMemcpyDtoHAsync_v2": 999, "cuMemcpyHtoDAsync_v2": 999, "cuStreamCreate": 2,
            "cuStreamSynchronize": 700, "cuEventCreate": 2, "cuEventRecord": 999, "cuEventElapsedTime": 999,
            "cuDeviceGetAttribute": 999, "nvrtcCompileProgram": 6, "nvrtcGetCUBIN": 1, "cuInit": 999,
            "cuDeviceGetCount": 999, "cuDeviceGet": 101, "nvmlInit_v2": 9, "nvrtcVersion": 1,
            "nvmlDeviceGetMemoryInfo_v2": 999, "nvmlDeviceGetHandleByPciBusId_v2": 6,
        }
        failures = 0
        for name, code in names.items():
            for nth in (0, 1, 2):
                fake.fake_fail(name.encode(), code, nth)
                gpu, address = make(cache=""), put()
                assert json.loads(gpu.hw())["memscale_hw"] == 1
                for call in (lambda: gpu.checksum(0, address, len(data), 0), lambda: gpu.link(0, 4096)):
                    try:
                        result = call()
                    except (_core.MemScaleError, MemoryError) as error:
                        failures += 1
                        assert name.removesuffix("_v2") in str(error) or "host memory" in str(error), (name, str(error))
                    else:
                        assert result == _core.checksum(data) if isinstance(result, int) else result["intact"], name
                gpu.close()
                fake.fake_fail_nothing()
        assert failures > 20
        gpu = make()
        assert gpu.checksum(0, put(), len(data), 0) == _core.checksum(data)
        assert gpu.link(0, 4096)["intact"]
        """
    )


# The command line with the fake driver. One process for all cases: it reads one a line, forks, and answers.
SERVER = """
    import contextlib, ctypes, io, json, os, sys, traceback
    import torch, torch._dynamo
    from memscale import cli
    from memscale._cli import doctor_command as _doctor

    _doctor._LINK_BYTES = 1 << 20
    torch.set_num_threads(1)

    @contextlib.contextmanager
    def fake_bytes(device, data):
        fake = ctypes.CDLL("libmemscale_fake.so")
        fake.fake_alloc.restype = ctypes.c_void_p
        fake.fake_alloc.argtypes = ctypes.c_int, ctypes.c_size_t
        address = fake.fake_alloc(device, len(data))
        ctypes.memmove(address, data, len(data))
        if "TEST_DAMAGE" in os.environ:
            ctypes.memset(address + 999_999, data[999_999] ^ 16, 1)
        yield address, 0

    def answer(case):
        os.environ.update(case["environment"])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            if case["arguments"] == ["kernel"]:
                _doctor._device_bytes = fake_bytes
                checks = [_doctor._attempt("kernel", _doctor._kernel, device) for device in range(2)]
                print(json.dumps([[check.status, check.detail] for check in checks]))
                code = 0
            else:
                code = cli.main(case["arguments"])
        return {"code": code, "out": out.getvalue(), "err": err.getvalue()}

    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                result = answer(json.loads(line))
            except BaseException:
                result = {"code": -1, "out": "", "err": traceback.format_exc()}
            os.write(1, json.dumps(result).encode() + b"\\n")
            os._exit(0)
        if os.waitpid(pid, 0)[1] != 0:
            os.write(1, b'{"code": -2, "out": "", "err": "crashed"}\\n')
"""


@pytest.fixture(scope="module")
def server(fake, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(LD_LIBRARY_PATH=fake, MEMSCALE_CACHE_DIR=cache),
        text=True,
        bufsize=1,
    )

    def ask(*arguments, **changes):
        case = {"arguments": arguments, "environment": {name: str(value) for name, value in changes.items()}}
        process.stdin.write(json.dumps(case) + "\n")
        answer = json.loads(process.stdout.readline())
        assert answer["code"] in (0, 1), answer
        assert answer["err"] == ""
        return answer["code"], answer["out"]

    yield ask
    process.stdin.close()
    process.wait(timeout=20)
    process.stdout.close()


def test_gpus_in_env(fake, tmp_path):
    result = command(
        "env", LD_LIBRARY_PATH=fake, FAKE_CUDA_DEVICES=2, MEMSCALE_CACHE_DIR=tmp_path, FAKE_CUDA_OTHERS=3 * 10**9
    )
    assert (result.returncode, result.stderr) == (0, "")
    for words in (
        "GPU 0\n  name             Fake GPU 0\n",
        "GPU 1\n  name             Fake GPU 1\n",
        "25.8 GB, 22.8 GB free, 3.00 GB taken by others",
        "capability       9.0, bf16 and fp16",
        "PCIe             generation 5, 16 lanes",
        "multiprocessors  101",
        f"nvrtc   works: CUDA 13.0, {fake}/libnvrtc.so.13",
    ):
        assert words in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["Fake GPU 0"]),
        ({"FAKE_CUDA_DEVICES": 2}, ["Fake GPU 0", "Fake GPU 1"]),
        ({"FAKE_CUDA_DEVICES": 2, "CUDA_VISIBLE_DEVICES": "1"}, ["Fake GPU 1"]),
        ({"FAKE_CUDA_DEVICES": 2, "CUDA_VISIBLE_DEVICES": "1,0"}, ["Fake GPU 1", "Fake GPU 0"]),
        ({"FAKE_CUDA_MIG": 1}, ["Fake GPU 0 MIG 3g.20gb"]),
        ({"FAKE_CUDA_DEVICES": 2, "CUDA_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_which_gpus_are_listed(server, changes, names):
    code, out = server("env", "--json", **changes)
    report = json.loads(out)
    assert code == 0
    gpus = report["hardware"]["gpus"]
    assert [gpu["name"] for gpu in gpus] == names
    assert [gpu["index"] for gpu in gpus] == list(range(len(names)))
    assert all(gpu["is_mig"] == ("FAKE_CUDA_MIG" in changes) for gpu in gpus)
    assert all((gpu["capability"], gpu["has_bf16"], gpu["n_multiprocessors"] >= 100) == (90, 1, True) for gpu in gpus)
    assert report["messages"] == []
    code, out = server("env", **changes)
    assert code == 0
    assert out.count("MIG slice") == ("FAKE_CUDA_MIG" in changes)
    assert ("CUDA_VISIBLE_DEVICES='' leaves no GPU visible" in out) == (not names)


def test_old_chips_and_unknown_figures(server):
    code, out = server("env", FAKE_CUDA_CAPABILITY=61, FAKE_CUDA_FAIL="nvmlInit_v2=9", LC_ALL="C")
    assert code == 0
    assert "6.1, no 16-bit types" in out
    assert "unknown free, 0.0 GB taken" in out or "unknown free, unknown taken" in out
    assert "PCIe             unknown" in out
    assert "nvml    does not work: nvmlInit failed: Driver Not Loaded" in out
    code, out = server("env", FAKE_CUDA_FAIL="cuDeviceGetName=999")
    assert code == 0
    assert "GPU 0 is left out: cuDeviceGetName failed: CUDA_ERROR_UNKNOWN" in out.split("problems")[1]


def test_doctor_with_a_gpu(server):
    code, out = server("doctor", "--json", FAKE_CUDA_DEVICES=2)
    found = checks_of(out)
    assert code == 0
    for name in ("driver", "nvml", "nvrtc", "cache", "gpus", "gpu 0 link", "gpu 1 link", "cpu training"):
        assert found[name][0] == "ok", found[name]
    assert found["gpu 0 link"][1].count("GB/s") == 3
    assert found["gpus"][1] == "0: Fake GPU 0, 25.8 GB, 1: Fake GPU 1, 25.8 GB"
    for name in ("torch cuda", "gpu 0 kernel", "gpu 1 training"):
        assert found[name] == ("skipped", f"torch {torch.__version__} is a CPU build")


@pytest.mark.parametrize(
    ("changes", "check", "status", "words"),
    [
        ({"FAKE_CUDA_DRIVER": 11040}, "gpu kernel", "skipped", "too old: the driver is for CUDA 11.4, and 11.8 or"),
        ({"FAKE_CUDA_FAIL": "cuInit=100"}, "gpu link", "skipped", "finds no GPU"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "gpu training", "skipped", "CUDA_VISIBLE_DEVICES='' leaves no GPU visible"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "driver", "skipped", "CUDA_VISIBLE_DEVICES='-1' leaves no GPU visible"),
        ({"FAKE_CUDA_FAIL": "cuInit=999"}, "driver", "FAILED", "cuInit failed: CUDA_ERROR_UNKNOWN. nvidia-smi should"),
        ({"FAKE_CUDA_FAIL": "cuDeviceGetCount=999"}, "driver", "FAILED", "cuDeviceGetCount failed"),
        ({"FAKE_CUDA_FAIL": "cuDeviceGetAttribute=999"}, "gpus", "FAILED", "GPU 0 is left out: cuDeviceGetAttribute"),
        ({"FAKE_CUDA_FAIL": "cuMemAlloc_v2=2"}, "gpu 0 link", "FAILED", "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY"),
        ({"FAKE_CUDA_FAIL": "cuMemHostAlloc=2"}, "gpu 0 link", "FAILED", "of host memory"),
        ({"FAKE_CUDA_FAIL": "cuStreamCreate=999@2"}, "gpu 0 link", "FAILED", "cuStreamCreate failed"),
        ({"FAKE_CUDA_FAIL": "cuDevicePrimaryCtxRetain=46"}, "gpu 0 link", "FAILED", "cuDevicePrimaryCtxRetain failed"),
        ({"FAKE_CUDA_FAIL": "nvmlInit_v2=9"}, "nvml", "skipped", "Driver Not Loaded: the memory of other processes"),
        ({"FAKE_CUDA_FAIL": "nvrtcVersion=1"}, "nvrtc", "skipped", "nvrtcVersion failed"),
        ({"FAKE_NVRTC_VERSION": 14000}, "nvrtc", "skipped", "the driver, for CUDA 13.0, cannot load its code"),
        ({"MEMSCALE_CACHE_DIR": f"{__file__}/below"}, "cache", "skipped", "is not a folder"),
    ],
)  # fmt: skip
def test_doctor_with_trouble(server, changes, check, status, words):
    code, out = server("doctor", "--json", **changes)
    found = checks_of(out)
    assert found[check][0] == status, found[check]
    assert words in found[check][1]
    assert code == (1 if status == "FAILED" else 0)
    assert found["cpu training"][0] == "ok"


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({}, "ok", "7 checksums equal the host's"),
        ({"MEMSCALE_CACHE_DIR": f"{__file__}/below"}, "ok", "7 checksums"),
        ({"TEST_DAMAGE": 1}, "FAILED", "differs from the host's"),
        ({"FAKE_CUDA_FAIL": "cuLaunchKernel=700"}, "FAILED", "cuLaunchKernel failed"),
        (
            {"FAKE_NVRTC_LOG": "error: no type ulong", "FAKE_CUDA_FAIL": "cuModuleLoadData=218"},
            "FAILED",
            "no type ulong",
        ),
    ],
)
def test_the_kernel_check(server, changes, status, words):
    """Through the fake's memory, since this torch has no device memory: on each of two devices."""
    _, out = server("kernel", FAKE_CUDA_DEVICES=2, **changes)
    found = json.loads(out)
    assert [each[0] for each in found] == [status, status], found
    assert all(words in each[1] for each in found)


def test_a_driver_without_nvrtc(fake, tmp_path):
    for name in ("libcuda.so.1", "libmemscale_fake.so"):
        shutil.copy(fake / name, tmp_path)
    result = command("env", "--json", LD_LIBRARY_PATH=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    parts = {part["name"]: part for part in report["parts"]}
    assert parts["driver"]["works"]
    for name, library in (("nvml", "libnvidia-ml.so.1"), ("nvrtc", "libnvrtc.so.13")):
        assert not parts[name]["works"]
        assert parts[name]["version"] is None
        assert f"{library}: cannot open" in parts[name]["text"]
    (gpu,) = report["hardware"]["gpus"]
    assert (gpu["memory_free_bytes"], gpu["pcie_generation"]) == (-1, 0)


def test_a_driver_that_is_no_library(tmp_path):
    (tmp_path / "libcuda.so.1").write_text("not a library")
    result = command("env", LD_LIBRARY_PATH=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    text = f"{tmp_path}/libcuda.so.1: file too short"
    assert f"driver  does not work: {text}" in result.stdout
    assert f"none  the driver does not work: {text}" in result.stdout
    assert not _gpu.explain_driver(text)[1]


def test_models_on_the_cpu_never_open_the_driver(fake):
    """A child that is forked after cuInit could not use CUDA: only who asks for GPUs opens it."""
    result = run(
        "-c",
        textwrap.dedent(
            """
            import os
            import torch, memscale

            def opened():
                with open("/proc/self/maps") as file:
                    maps = file.read()
                return [name for name in ("libcuda.so", "libnvidia-ml", "libnvrtc") if name in maps]

            blocks = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(3)]
            model = torch.nn.Sequential(*blocks)
            memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
            model(torch.ones(2, 8)).sum().backward()
            memscale.detach(model)
            from memscale import cli
            from memscale._hw import gpu as _gpu
            from memscale._cli import doctor_command as _doctor
            assert opened() == [], opened()

            ours = _gpu.get()
            assert opened() == ["libcuda.so", "libnvidia-ml", "libnvrtc"]
            assert ours is _gpu.get() and ours.count == 1
            assert _gpu.nvrtc_candidates()[0].endswith("/libnvrtc.so.13")  # that which is loaded
            pid = os.fork()
            if pid == 0:
                os._exit(0 if _gpu.get() is not ours and ours.count == 0 and _gpu.get().count == 1 else 1)
            assert os.waitpid(pid, 0)[1] == 0
            assert _gpu.get() is ours
            """
        ),
        LD_LIBRARY_PATH=fake,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
