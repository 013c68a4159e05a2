"""Ways out of a cage that have to fail: the self-test runs them inside, and so do the tests.

Each attempt is a function that returns what it got hold of, or None, or raises. It runs in a fork of
its own, since the filter ends what it catches. Uncaged, most of them succeed: never run this on a
machine outside a namespace that was made to be thrown away.

The caller names victims in the environment: `HX_SECRET` (a file that only the host may read),
`HX_OWNED` (a file of the worker's user), `HX_PID`, `HX_PORT` (TCP and UDP on the host's loopback),
`HX_SOCK`, `HX_DGRAM` and `HX_ABSTRACT` (Unix sockets), and `HX_MARK`, a word in a victim's environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable

Attempt = Callable[[], object]
ATTEMPTS: dict[str, Attempt] = {}
_LIMIT_S = 3.0
_NEWUSER, _NEWNS, _NEWNET = 0x10000000, 0x00020000, 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def _attempt(fn: Attempt) -> Attempt:
    ATTEMPTS[fn.__name__] = fn
    return fn


def _call(number: int, *args: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _env(name: str) -> str:
    return os.environ[f"HX_{name}"]


def _victim() -> int:
    return int(_env("PID"))


def _port() -> int:
    return int(_env("PORT"))


# --- reading what is not ours ---


@_attempt
def read_shadow() -> object:
    with open("/etc/shadow", "rb") as file:
        return file.read(8)


@_attempt
def read_host_secret() -> object:
    with open(_env("SECRET"), "rb") as file:
        return file.read(8)


@_attempt
def secret_in_environment() -> object:
    return [name for name in os.environ if "DATABASE_URL" in name or "APP_SECRET" in name]


@_attempt
def environment_of_others() -> object:
    mark = _env("MARK").encode()
    own = {os.getpid(), os.getppid()}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in own:
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if b"HX_VICTIM=" + mark in file.read():
                    return name
    return None


@_attempt
def root_of_another_process() -> object:
    # That of the first process of the pid namespace: its root must be no more than ours.
    here, there = os.stat("/"), os.stat(f"/proc/{_victim()}/root/")
    os.listdir(f"/proc/{_victim()}/root")
    return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino) or "the same root"


@_attempt
def see_other_processes() -> object:
    count = sum(name.isdigit() for name in os.listdir("/proc"))
    return count if count > 6 else None


@_attempt
def see_the_victim() -> object:
    with open(f"/proc/{_victim()}/cmdline", "rb") as file:
        return b"HX_VICTIM" in file.read() or None


@_attempt
def memory_of_another() -> object:
    with open(f"/proc/{_victim()}/mem", "rb") as file:
        return file.fileno()


@_attempt
def files_of_another() -> object:
    return os.listdir(f"/proc/{_victim()}/fd")


@_attempt
def symlink_to_secret() -> object:
    link = f"link-{os.getpid()}"
    os.symlink(_env("SECRET"), link)
    with open(link, "rb") as file:
        return file.read(8)


@_attempt
def hardlink_to_secret() -> object:
    os.link(_env("SECRET"), f"hard-{os.getpid()}")
    return "linked"


@_attempt
def disk_device() -> object:
    name = f"disk-{os.getpid()}"
    os.mknod(name, 0o60600, os.makedev(7, 0))
    with open(name, "rb") as file:
        return file.read(1) or "opened"


@_attempt
def character_device() -> object:
    name = f"mem-{os.getpid()}"
    os.mknod(name, 0o20600, os.makedev(1, 1))
    return "made"


@_attempt
def raw_disk() -> object:
    for path in ("/dev/sda", "/dev/vda", "/dev/mem", "/dev/kmem", "/dev/root", "/dev/loop0"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            return file.read(1) or path
    return None


@_attempt
def kernel_log() -> object:
    with contextlib.suppress(OSError):
        os.close(os.open("/dev/kmsg", os.O_RDONLY))
        return "/dev/kmsg"
    return _libc.klogctl(10, None, 0) if _libc.klogctl(10, None, 0) >= 0 else None


@_attempt
def open_by_handle() -> object:
    handle = ctypes.create_string_buffer(struct.pack("<Ii", 128, 0), 136)
    mount_id = ctypes.c_int()
    args = (b"/etc/shadow", handle, ctypes.byref(mount_id), 0)
    return _call(303, ctypes.c_int(-100), *args) == 0 or None


@_attempt
def inherited_files() -> object:
    found = []
    for fd in range(3, 512):
        with contextlib.suppress(OSError):
            info = os.fstat(fd)
            if not stat.S_ISFIFO(info.st_mode) and info.st_nlink:  # a memfd has no link
                found.append((fd, oct(info.st_mode)))
    return found


# --- writing what is not ours ---


@_attempt
def write_outside() -> object:
    done = []
    folders = ("/", "/usr", "/etc", "/root", "/opt", "/var/tmp", "/dev", "/run", "/lib", "/bin")
    for folder in folders:
        path = os.path.join(folder, f"harness-escape-{os.getpid()}")
        with contextlib.suppress(OSError):
            with open(path, "w") as file:
                file.write("1")
            done.append(path)
            os.unlink(path)
    return done


@_attempt
def write_owned() -> object:
    with open(_env("OWNED"), "r+") as file:
        file.write("x")
    return "written"


@_attempt
def truncate_owned() -> object:
    os.truncate(_env("OWNED"), 0)
    return "truncated"


@_attempt
def chmod_owned() -> object:
    os.chmod(_env("OWNED"), 0o777)
    return "mode changed"


@_attempt
def touch_owned() -> object:
    os.utime(_env("OWNED"), (1, 1))
    return "time changed"


@_attempt
def label_owned() -> object:
    os.setxattr(_env("OWNED"), "user.harness", b"1")
    return "attribute set"


@_attempt
def unlink_owned() -> object:
    os.unlink(_env("OWNED"))
    return "removed"


@_attempt
def kernel_setting() -> object:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
    return "core_pattern can be written"


@_attempt
def sysrq() -> object:
    os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))
    return "sysrq can be triggered"


@_attempt
def move_cgroup() -> object:
    for path in ("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/tasks"):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY))
            return path
    return None


# --- the network ---


def _connect(family: int, address: object) -> object:
    with socket.socket(family) as sock:
        sock.settimeout(1.0)
        sock.connect(address)  # type: ignore[arg-type]
        return "connected"


@_attempt
def tcp_to_host() -> object:
    return _connect(socket.AF_INET, ("127.0.0.1", _port()))


@_attempt
def tcp6_to_host() -> object:
    return _connect(socket.AF_INET6, ("::1", _port()))


@_attempt
def udp_to_host() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(1.0)
        sock.connect(("127.0.0.1", _port()))
        sock.send(b"ping")
        return sock.recv(16)


@_attempt
def raw_socket() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, 1):
        return "raw socket"


@_attempt
def packet_socket() -> object:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW):
        return "packet socket"


@_attempt
def netlink() -> object:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW):
        return "netlink"


@_attempt
def vsock() -> object:
    with socket.socket(socket.AF_VSOCK):
        return "vsock reaches the hypervisor"


@_attempt
def unix_socket() -> object:
    return _connect(socket.AF_UNIX, _env("SOCK"))


@_attempt
def abstract_socket() -> object:
    return _connect(socket.AF_UNIX, "\0" + _env("ABSTRACT"))


@_attempt
def datagram_pair() -> object:
    # A pair of datagram sockets is connected, and may yet send to any name.
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"ping", _env("DGRAM"))
    return "sent"


# --- other processes ---


@_attempt
def ptrace_victim() -> object:
    return _call(101, 16, _victim(), 0, 0) == 0


@_attempt
def read_memory_of_victim() -> object:
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    with open(f"/proc/{_victim()}/maps") as file:
        start = int(file.readline().split("-")[0], 16)
    remote = (ctypes.c_size_t * 2)(start, 8)
    return _call(310, _victim(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)


@_attempt
def signal_victim() -> object:
    os.kill(_victim(), signal.SIGCONT)
    with contextlib.suppress(FileNotFoundError), open(f"/proc/{_victim()}/cmdline", "rb") as file:
        return b"HX_VICTIM" in file.read() or None  # in a pid namespace it is somebody else
    return "signalled"


@_attempt
def signal_by_pidfd() -> object:
    fd = os.pidfd_open(_victim())
    signal.pidfd_send_signal(fd, signal.SIGCONT)
    return signal_victim()


@_attempt
def limit_victim() -> object:
    before = resource.prlimit(_victim(), resource.RLIMIT_CORE)
    resource.prlimit(_victim(), resource.RLIMIT_CORE, before)
    return see_the_victim() if os.path.exists("/proc/self") else "limits set"


@_attempt
def priority_of_victim() -> object:
    os.setpriority(os.PRIO_PROCESS, _victim(), 1)
    return see_the_victim() if os.path.exists("/proc/self") else "priority set"


@_attempt
def take_file_of_victim() -> object:
    return _call(438, os.pidfd_open(_victim()), 0, 0)


@_attempt
def leave_the_group() -> object:
    # In a pid namespace a new session is of no use; without one nothing may leave the group.
    os.setsid() if os.getpid() != os.getsid(0) else None
    return None if os.path.exists("/proc/1/stat") and _is_alone() else "a session of its own"


def _is_alone() -> bool:
    return sum(name.isdigit() for name in os.listdir("/proc")) <= 6


@_attempt
def shared_memory_of_machine() -> object:
    made = _libc.shmget(0x48415253, 4096, 0o1666)
    if made < 0:
        return None
    _libc.shmctl(made, 0, None)
    return None if _is_private_ipc() else "System V shared memory"


def _is_private_ipc() -> bool:
    with contextlib.suppress(OSError, KeyError):
        return os.readlink("/proc/self/ns/ipc") != os.environ["HX_IPC"]
    return False


@_attempt
def terminal_input() -> object:
    fd = os.open("/dev/tty", os.O_RDWR)
    fcntl.ioctl(fd, 0x5412, b"x")
    return "typed"


@_attempt
def terminal_ioctl() -> object:
    one, other = os.openpty() if hasattr(os, "openpty") else (0, 0)
    fcntl.ioctl(other, 0x5412, b"x")
    return one


# --- more power ---


@_attempt
def new_user_namespace() -> object:
    return _call(272, ctypes.c_ulong(_NEWUSER)) == 0


@_attempt
def clone_user_namespace() -> object:
    pid = _call(56, ctypes.c_ulong(_NEWUSER | signal.SIGCHLD), 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


@_attempt
def clone3_user_namespace() -> object:
    args = (ctypes.c_uint64 * 11)(_NEWUSER, 0, 0, 0, signal.SIGCHLD)
    pid = _call(435, ctypes.byref(args), ctypes.c_size_t(88))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


@_attempt
def new_mount_namespace() -> object:
    return _call(272, ctypes.c_ulong(_NEWNS)) == 0


@_attempt
def new_network_namespace() -> object:
    return _call(272, ctypes.c_ulong(_NEWNET)) == 0


@_attempt
def enter_namespace() -> object:
    return _call(308, os.open("/proc/1/ns/net", os.O_RDONLY), 0) == 0


@_attempt
def mount_tmpfs() -> object:
    return _call(165, b"none", b"/tmp", b"tmpfs", ctypes.c_ulong(0), None) == 0


@_attempt
def remount_writable() -> object:
    return _call(165, b"none", b"/usr", None, ctypes.c_ulong(0x1020), None) == 0


@_attempt
def new_mount_interface() -> object:
    return _call(430, b"tmpfs", 0)


@_attempt
def copy_a_tree() -> object:
    return _call(428, ctypes.c_int(-100), b"/", 1)


@_attempt
def change_root() -> object:
    os.chroot(".")
    return "root changed"


@_attempt
def become_root() -> object:
    os.setuid(0)
    return "uid 0" if os.getuid() == 0 else None


@_attempt
def capabilities() -> object:
    header = struct.pack("<Ii", 0x20080522, 0)
    data = ctypes.create_string_buffer(24)
    _call(125, header, data)
    effective, permitted = struct.unpack_from("<II", data.raw)
    return hex(effective | permitted) if effective | permitted else None


@_attempt
def privileges_can_be_gained() -> object:
    return "no_new_privs is off" if _libc.prctl(39, 0, 0, 0, 0) == 0 else None


@_attempt
def setuid_program() -> object:
    name = f"su-{os.getpid()}"
    with open(name, "w") as file:
        file.write("#!")
    os.chmod(name, 0o4755)
    is_powerless = os.statvfs(name).f_flag & os.ST_NOSUID or _libc.prctl(39, 0, 0, 0, 0)
    return None if is_powerless else "a setuid file that works"


@_attempt
def bpf() -> object:
    attr = ctypes.create_string_buffer(struct.pack("<IIII", 2, 4, 4, 1), 72)
    return _call(321, 0, attr, 72)


@_attempt
def io_uring() -> object:
    return _call(425, 8, ctypes.create_string_buffer(120))


@_attempt
def keyring() -> object:
    return _call(250, 0, -3, 0)


@_attempt
def userfault() -> object:
    return _call(323, 1)


@_attempt
def performance_counters() -> object:
    attr = ctypes.create_string_buffer(struct.pack("<IIQ", 1, 112, 1), 112)
    return _call(298, attr, 0, -1, -1, ctypes.c_ulong(0))


@_attempt
def kernel_module() -> object:
    _call(175, b"", 0, b"")
    return "init_module"


@_attempt
def hostname() -> object:
    before = socket.gethostname()
    _call(170, before.encode(), len(before))
    return "hostname set"


@_attempt
def realtime() -> object:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    return "realtime priority"


@_attempt
def raise_limits() -> object:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard + 1))
    return "limit raised"


@_attempt
def other_call_numbers() -> object:
    # The x32 numbers of the same calls, which a filter may have forgotten.
    return _call(0x40000000 + 39)


def main(names: list[str]) -> None:
    """Run attempts and print one line of JSON for each: name, whether it escaped, what was seen."""
    for name in names or ATTEMPTS:
        escaped, detail = run_one(ATTEMPTS[name])
        sys.stdout.write(json.dumps([name, escaped, detail[:120]]) + "\n")
        sys.stdout.flush()


def run_one(attempt: Attempt) -> tuple[bool, str]:
    """Run one attempt in a fork; returns whether it got anywhere, and what happened."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGSYS, signal.SIG_DFL)
        os.close(read_end)
        try:
            got = attempt()
            answer = [bool(got) or (isinstance(got, int) and got is not False and got >= 0), got]
        except BaseException as error:  # noqa: BLE001 - a way that is barred
            answer = [False, f"{type(error).__name__}: {error}"]
        os.write(write_end, json.dumps(answer, default=repr).encode()[:4000])
        os._exit(0)
    os.close(write_end)
    ready, _, _ = select.select([read_end], [], [], _LIMIT_S)
    data = os.read(read_end, 4096) if ready else b""
    if not ready:
        os.kill(pid, signal.SIGKILL)
    os.close(read_end)
    _, status = os.waitpid(pid, 0)
    if data:
        escaped, got = json.loads(data)
        return bool(escaped), str(got)
    code = os.waitstatus_to_exitcode(status)
    return False, f"ended by {signal.Signals(-code).name}" if code < 0 else "no answer"


if __name__ == "__main__":
    main(sys.argv[1:])
